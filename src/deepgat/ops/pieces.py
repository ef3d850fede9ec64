"""Long lists cut into pieces, so that a hub's list is shared by many workers."""

from __future__ import annotations

import torch
from torch import Tensor

LONGEST = 512
"""Entries of the longest piece. One constant, since the cut decides the last bits of a sum."""


def cut_lists(ptr: Tensor, longest: int = LONGEST) -> tuple[Tensor, Tensor]:
    """Cut the lists ``ptr`` [n+1] (compressed rows) into pieces of at most ``longest`` entries.

    Returns:
        pieces: [P, 4] int64, rows (list, begin, end, slot). A list that fits is one piece with
            slot −1: whoever works on it has the whole result. The pieces of a longer list have
            slots 0, 1, …: places for partial results, numbered through. They come first, since
            they take longest.
        hubs: [K, 3] int64, rows (list, first slot, end slot) of the lists that were cut; their
            partial results are to be added in that order.
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
