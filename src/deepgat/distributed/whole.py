"""Whole graphs for each process: side by side they are one graph that nothing has to be cut of."""

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
    """Some of the graphs of a step, whole: a part without a halo, so nothing is borrowed.

    The nodes of all graphs of the step are numbered one graph after the other, whoever has them,
    so that dropout is that of one process that has all of them.
    """

    team: Team
    own: int
    ids: Tensor
    num_nodes: int
    borrows = overlaps = False

    @staticmethod
    def among(team: Team, sizes: Sequence[int]) -> WholeGraphs:
        """This process's, of graphs with so many nodes: :func:`dealt`."""
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
    """Every process's share: the first item to the first process, the second to the second, …"""
    return list(items[team.rank :: team.size])
