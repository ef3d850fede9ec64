"""Dropout masks by a hash of (seed, row, column): nothing is stored, and the order, the device and
the division of the work do not matter. This is their definition; the kernels compute the same.

``seed`` is one integer of 32 bits in a tensor of 64-bit ones, on the device of the data. Where the
rows at hand are part of a larger graph, the numbers that they have there follow it
(:func:`numbered`), so that the masks are those of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = 0x9E3779B9
_LOW = 0xFFFFFFFF


def new_seed(device: torch.device) -> Tensor:
    """[1] int64: drawn from torch's random numbers of that device."""
    return torch.randint(2**31 - 1, (1,), device=device)


def numbered(seed: Tensor, ids: Tensor | None) -> Tensor:
    """[1 + n] int64: the seed, and what the masks call each of the n rows; [1] without ids."""
    return seed if ids is None else torch.cat([seed, ids])


def keep_edges(target: Tensor, source: Tensor, heads: int, p: float, seed: Tensor) -> Tensor:
    """[E, H]: 0 with probability ``p``, else 1/(1 − p), for the edges (v, u) and every head."""
    head = torch.arange(1, heads + 1, device=target.device)
    pair = mix(mix(seed[:1] ^ _names(target, seed)) + _names(source, seed))
    return _factors(mix(pair.unsqueeze(-1) + GOLDEN * head), p)


def keep_entries(row: Tensor, column: Tensor, p: float, seed: Tensor) -> Tensor:
    """The same for the entries (row, column) of a matrix; the shapes broadcast."""
    return _factors(mix(mix(seed[:1] ^ _names(row, seed)) + column.long()), p)


def mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers that scatters neighbouring inputs."""
    x = x & _LOW
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


def threshold(p: float) -> int:
    """A draw of 32 bits below this is dropped."""
    return int(p * 2**32)


def _names(rows: Tensor, seed: Tensor) -> Tensor:
    return rows.long() if seed.numel() == 1 else seed[1:][rows.long()]


def _factors(draw: Tensor, p: float) -> Tensor:
    return (draw >= threshold(p)).double() / (1 - p)
