"""Tile sizes of the Triton kernels."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 2048
"""Numbers in the largest tile of gathered rows; larger tiles spill registers."""
PER_WARP = 1024
"""Numbers of a tile per warp: 32 per thread."""
PROGRAMS = 512
"""Programs that share a sum over all rows; each leaves a partial sum."""


class Tiles(NamedTuple):
    """Heads, channels and neighbours that one program handles at a time."""

    edges: int
    heads: int
    score_channels: int
    channels: int
    head_blocks: int
    """Programs per list, each with some of the heads."""
    warps: int


def tiles_for(heads: int, channels: int, score_channels: int, mean_degree: float) -> Tiles:
    """Tiles for H heads of D channels, scores from A numbers, and lists of this mean length."""
    return _tiles(heads, channels, score_channels, _power(max(1, int(mean_degree))), LARGEST)


@cache
def _tiles(heads: int, channels: int, score_channels: int, usual: int, largest: int) -> Tiles:
    """Measured on an H200: the more heads in a tile, the fewer neighbours it should have."""
    channels, score_channels = _power(channels), _power(score_channels)
    widest = max(channels, score_channels)
    block = min(_power(heads), max(1, largest // widest))
    fitting = max(1, largest // (block * widest))
    edges = min(fitting, usual, 4 if block >= 4 else 16)
    warps = min(8, max(1, edges * block * widest // PER_WARP))
    return Tiles(edges, block, score_channels, channels, -(-heads // block), warps)


def row_tile(m: int) -> tuple[int, int]:
    """(rows, columns) of a tile that holds whole rows of m numbers."""
    width = _power(max(1, m))
    return max(1, 1024 // width), width


def _power(x: int) -> int:
    """The next power of two."""
    return int(triton.next_power_of_2(x))


def compute_type(x: Tensor) -> Any:
    """Triton's dtype for sums."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def sum_type(x: Tensor) -> torch.dtype:
    """torch's dtype for sums."""
    return torch.promote_types(x.dtype, torch.float32)


def two_floats(x: float) -> tuple[float, float]:
    """x as a sum of two float32 numbers; see ``shared.exact``."""
    high = float(np.float32(x))
    return high, x - high
