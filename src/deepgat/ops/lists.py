"""Lists one after the other (compressed sparse rows), split for parallel work."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LONGEST = 512
"""Maximum entries per piece. A constant, because the split affects the rounding of sums."""


class Lists(NamedTuple):
    """Lists one after the other (compressed sparse rows), split for parallel work.

    List i is ``entries[ptr[i]:ptr[i+1]]``; ``pieces`` and ``hubs``: see :func:`split_lists`.
    """

    ptr: Tensor
    entries: Tensor
    pieces: Tensor
    hubs: Tensor

    @staticmethod
    def split(ptr: Tensor, entries: Tensor, longest: int = LONGEST) -> Lists:
        return Lists(ptr, entries, *split_lists(ptr, longest))

    def to(self, device: torch.device) -> Lists:
        return Lists(*(tensor.to(device) for tensor in self))


def split_lists(ptr: Tensor, longest: int = LONGEST) -> tuple[Tensor, Tensor]:
    """Split lists (CSR, ``ptr`` [n+1]) into pieces of at most ``longest`` entries.

    Threads or programs work on one piece each, so that many of them share the list of a hub.

    Returns:
        pieces: [P, 4] int64, rows (list, begin, end, slot). A short list is one piece with slot
            −1, which yields its complete result. The pieces of longer lists have consecutive slots
            0, 1, … for their partial results. They come first, since they take longest.
        hubs: [K, 3] int64, rows (list, first slot, end slot) of the lists that were split. Their
            partial results must be added in the order of the slots.
    """
    device, n = ptr.device, ptr.numel() - 1
    count = ((ptr.diff() + longest - 1) // longest).clamp(min=1)
    owner = torch.repeat_interleave(torch.arange(n, device=device), count)
    number = torch.arange(owner.numel(), device=device) - (count.cumsum(0) - count)[owner]
    begin = ptr[owner] + number * longest
    end = torch.minimum(begin + longest, ptr[owner + 1])
    is_cut = count > 1
    in_cut = is_cut[owner]
    slot = torch.where(in_cut, in_cut.cumsum(0) - 1, -1)
    order = torch.argsort(in_cut.int(), descending=True, stable=True)
    pieces = torch.stack([owner, begin, end, slot], dim=1)[order]
    hub, parts = is_cut.nonzero().squeeze(1), count[is_cut]
    last = parts.cumsum(0)
    return pieces.contiguous(), torch.stack([hub, last - parts, last], dim=1)


def pointers(sorted_or_not: Tensor, num_nodes: int) -> Tensor:
    """[n + 1]: where each node's list begins once the edges are sorted."""
    counts = torch.bincount(sorted_or_not, minlength=num_nodes)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
