"""Sizes of the tiles that the Triton kernels work on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 2048
"""Numbers in the largest tile of gathered rows: more spill out of the registers."""
PER_WARP = 1024
"""Numbers of a tile that one warp holds: 32 in each thread."""


@dataclass(frozen=True)
class Tiles:
    """How much of H heads of D channels, scored by A numbers, one program handles at a time."""

    num_heads: int
    num_channels: int
    num_score_channels: int
    mean_degree: float

    @property
    def channels(self) -> int:
        return triton.next_power_of_2(self.num_channels)

    @property
    def score_channels(self) -> int:
        return triton.next_power_of_2(self.num_score_channels)

    @property
    def widest(self) -> int:
        return max(self.channels, self.score_channels)

    @property
    def heads(self) -> int:
        """Heads of one program; the rest are other programs'."""
        fitting = max(1, LARGEST // self.widest)
        return min(triton.next_power_of_2(self.num_heads), fitting)

    @property
    def head_blocks(self) -> int:
        return triton.cdiv(self.num_heads, self.heads)

    @property
    def edges(self) -> int:
        """Neighbours at a time: as many as fit, but not many more than a list has.

        Measured on an H200: many heads at once do best with few neighbours.
        """
        fitting = max(1, LARGEST // (self.heads * self.widest))
        usual = triton.next_power_of_2(max(1, int(self.mean_degree)))
        return max(1, min(fitting, usual, 4 if self.heads >= 4 else 16))

    @property
    def warps(self) -> int:
        return min(8, max(1, self.edges * self.heads * self.widest // PER_WARP))


def compute_type(x: Tensor) -> Any:
    """The type sums are taken in."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def two_floats(x: float) -> tuple[float, float]:
    """x as a sum of two numbers of single precision; see :func:`deepgat.ops.gpu.draws.exact`."""
    high = float(np.float32(x))
    return high, x - high
