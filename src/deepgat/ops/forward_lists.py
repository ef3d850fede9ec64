"""Neighbour lists for inference, which can be cut to their first nodes without a search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops.lists import split_lists
from deepgat.ops.neighbors import LISTS, Neighbors


@dataclass(frozen=True, eq=False, kw_only=True)
class ForwardLists(Neighbors):
    """The lists N_v without the lists by source, which only gradients read.

    The members of a list may be in any order. Operators refuse these lists while gradients are
    recorded.
    """

    @staticmethod
    def of(
        ptr: Tensor, source: Tensor, log_weight: Tensor | None, features: Tensor | None
    ) -> ForwardLists:
        """From lists on the CPU whose numbers are known to be in range, v ∈ N_v.

        Args:
            ptr: [n + 1] int64.
            source: [E] int32.
            log_weight: [E, 1] or None.
            features: [E, k] or None.
        """
        nodes = torch.arange(ptr.numel() - 1, dtype=torch.int32)
        pieces, hubs = split_lists(ptr)
        lists = {
            "ptr": ptr,
            "source": source,
            "target": torch.repeat_interleave(nodes, ptr.diff()),
            "source_ptr": ptr[:0],
            "by_source": ptr[:0],
            "target_by_source": source[:0],
            "pieces": pieces,
            "hubs": hubs,
            "source_pieces": pieces[:0],
            "source_hubs": hubs[:0],
        }
        return ForwardLists(
            **lists,
            symmetric=False,
            log_weight=log_weight,
            features=features,
            checked=tuple(lists[name] for name in LISTS),
        ).with_fallback_loops()

    def first(self, complete: int, rows: int) -> ForwardLists:
        """The first ``rows`` nodes: the lists of the first ``complete``, {v} for each other v.

        The members of the complete lists must be among the first ``rows`` nodes. No list is
        searched: the cost is that of copying what stays.
        """
        edges = int(self.ptr[complete])
        alone = torch.arange(complete, rows)

        def values(given: Tensor | None) -> Tensor | None:
            if given is None:
                return None
            return torch.cat([given[:edges], given.new_zeros(len(alone), given.size(1))])

        return ForwardLists.of(
            torch.cat([self.ptr[: complete + 1], alone + (edges - complete + 1)]),
            torch.cat([self.source[:edges], alone.int()]),
            values(self.log_weight),
            values(self.features),
        )

    def select(self, keep: Tensor, symmetric: bool) -> Neighbors:
        raise UserError("these lists serve predictions: build Neighbors to select edges")
