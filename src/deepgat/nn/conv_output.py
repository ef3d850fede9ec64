"""What a convolution returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Attention(NamedTuple):
    """Attention weights with the edges they belong to (self-loops included)."""

    edge_index: Tensor
    """[2, E]: sources u in row 0, targets v in row 1."""
    weight: Tensor
    """[E, H]: α_vu of each edge and head; row-normalised, they sum to 1 over the edges into v."""


class ConvOutput(NamedTuple):
    """The outputs of one convolution."""

    out: Tensor
    """[n, H·D], or [n, D] with averaged heads."""
    class_logits: Tensor | None = None
    """The class prediction that the attention compares, [n, H, C]; None without one."""
    attention: Attention | None = None
    """On request only."""
