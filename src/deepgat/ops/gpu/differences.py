"""``deepgat::differences`` on a GPU."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from deepgat.ops.differences import VALUE, register_pass
from deepgat.ops.gpu import differences_kernels as kernels
from deepgat.ops.gpu.launch import compute_type, sum_type, two_floats
from deepgat.ops.gpu.matmul_kernels import merge

MOST_ENTRIES, COLUMNS = 32, 64
MOST_HALVES = 16
"""The kernel unrolls powers up to half of this into products."""
PER_WARP = 512
"""Numbers of a tile per warp."""


def run_pass(
    kind: int, index: Tensor, pieces: Tensor, hubs: Tensor, x: Tensor, grad: Tensor | None,
    power: float,
) -> Tensor:  # fmt: skip
    """One pass over the lists: [n, D] → [n, D]."""
    n, width = x.shape
    out = torch.empty_like(x)
    if not x.numel():
        return out
    columns = min(COLUMNS, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, columns)
    entries = min(MOST_ENTRIES, triton.next_power_of_2(max(1, index.numel() // n)))
    slots = pieces.size(0) - n + hubs.size(0)  # a hub of p pieces adds p − 1 to the n
    part = x.new_empty(slots, width, dtype=sum_type(x))
    exponent = power if kind == VALUE else power - 1
    twice = int(2 * exponent) if (2 * exponent).is_integer() else -1
    kernels.differences[(pieces.size(0), blocks)](
        pieces, index, x, x if grad is None else grad, out, part,
        two_floats(exponent), two_floats(power), width, PASS=kind,
        TWICE=twice if twice <= MOST_HALVES else -1, ACC=compute_type(x),
        EB=entries, CB=columns, num_warps=max(1, entries * columns // PER_WARP),
    )  # fmt: skip
    if hubs.size(0):
        merge[(hubs.size(0), blocks)](hubs, part, out, width, ACC=compute_type(x), MB=columns)
    return out


register_pass("cuda", run_pass)
