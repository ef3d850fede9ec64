"""Whole graphs per process: many small graphs need no partitioning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from deepgat.distributed.team import Team, Total
from deepgat.ops import Loan, Part


@dataclass(frozen=True, eq=False)
class WholeGraphs(Part):
    """Some of the graphs of a step: a part without a halo, so it borrows nothing.

    Nodes are numbered consecutively over all graphs of the step in all processes. Dropout masks
    are therefore those of a single process with all graphs.
    """

    team: Team
    own: int
    ids: Tensor
    num_nodes: int
    borrows = overlaps = False

    @staticmethod
    def among(team: Team, sizes: Sequence[int]) -> WholeGraphs:
        """This process's share (:func:`dealt`) of graphs with these numbers of nodes."""
        starts = [0, *accumulate(sizes)]
        mine = dealt(range(len(sizes)), team)
        numbers = [torch.arange(starts[i], starts[i + 1]) for i in mine]
        ids = torch.cat([torch.empty(0, dtype=torch.long), *numbers]).to(team.device)
        return WholeGraphs(team, ids.numel(), ids, starts[-1])

    def borrow(self, tensors: Sequence[Tensor]) -> Loan:
        raise AssertionError("there is no halo")

    def total(self, x: Tensor) -> Tensor:
        return Total.apply(x, self.team)

    def gathered(self, x: Tensor) -> Tensor | None:
        return self.team.gathered(self.ids, x, self.num_nodes)

    def to(self, device: object) -> Part:
        return self


def dealt(items: Sequence[int], team: Team) -> list[int]:
    """This process's share when items are dealt to the processes in turn."""
    return list(items[team.rank :: team.size])
