"""The memory layout of the attention kernels on the CPU (see attention.cpp).

A tensor [n, H, channels] is stored as [n, blocks, vectors, 8]. A block is 8 heads, and a vector
holds one channel of each. With few heads, a block is one head, and a vector holds 8 of its
channels. Both are padded to whole vectors. One number per node and head is [n, blocks, lanes].
"""

from __future__ import annotations

from torch import Tensor

WIDTH = 8


def lanes_of(value: Tensor) -> int:
    """Heads per vector for ``value`` [n, H, D]: 8, or 1 for few heads.

    Measured: 1 is faster for up to 2 heads, and for up to 4 wide heads.
    """
    _, heads, channels = value.shape
    return 1 if heads <= 2 or (heads <= 4 and channels >= 64) else WIDTH


def empty(value: Tensor, channels: int, per_head: bool = False) -> Tensor:
    """An uninitialised tensor of this layout, for the nodes and heads of ``value``.

    With ``per_head``, it has one number per node and head.
    """
    lanes, (n, heads, _) = lanes_of(value), value.shape
    blocks = -(-heads // lanes)
    if per_head:
        return value.new_empty(n, blocks, lanes)
    return value.new_empty(n, blocks, channels if lanes > 1 else -(-channels // WIDTH), WIDTH)


def natural(stored: Tensor, value: Tensor, channels: int) -> Tensor:
    """[n, H, channels] from this layout; a copy if there are several blocks of 8 heads."""
    heads = value.size(1)
    if stored.dim() == 3:  # one number per head
        return stored.flatten(1)[:, :heads].unsqueeze(-1)
    if lanes_of(value) == 1:
        return stored.flatten(2)[..., :channels]
    return stored.transpose(2, 3).flatten(1, 2)[:, :heads]
