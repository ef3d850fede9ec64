"""The two products per head of GAT's score, on a GPU (see ops/additive_score.py)."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepgat.ops import additive_score as operators
from deepgat.ops.gpu.launch import PROGRAMS, compute_type, row_tile, sum_type
from deepgat.ops.gpu.prepared import Launcher, current_stream, on_device_of


@triton.jit
def products_kernel(
    x, target, source, of_target, of_source, rows,
    XS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, ACC: tl.constexpr, RB: tl.constexpr,
    CB: tl.constexpr,
):  # fmt: skip
    """<w_t, x> and <w_s, x> of RB rows (node, head): [n, H, D] → [n, H] twice."""
    row = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB)
    c = tl.arange(0, CB)
    node, head = row // H, row % H
    here = (row < rows)[:, None] & (c < D)[None, :]
    value = tl.load(x + (node * XS + head * D)[:, None] + c[None, :], mask=here, other=0).to(ACC)
    at = head[:, None] * D + c[None, :]
    t = tl.sum(value * tl.load(target + at, mask=here, other=0).to(ACC), axis=1)
    s = tl.sum(value * tl.load(source + at, mask=here, other=0).to(ACC), axis=1)
    tl.store(of_target + row, t, mask=row < rows)
    tl.store(of_source + row, s, mask=row < rows)


@triton.jit
def products_backward_kernel(
    grad_t, grad_s, x, target, source, dx, parts, nodes,
    XS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, ACC: tl.constexpr, RB: tl.constexpr,
    CB: tl.constexpr,
):  # fmt: skip
    """dx, and this program's partial sums of dw_t and dw_s in parts [programs, 2, H·D]."""
    width: tl.constexpr = H * D
    c = tl.arange(0, CB)
    w_t = tl.load(target + c, mask=c < width, other=0).to(ACC)[None, :]
    w_s = tl.load(source + c, mask=c < width, other=0).to(ACC)[None, :]
    of_target = tl.zeros([RB, CB], ACC)
    of_source = tl.zeros([RB, CB], ACC)
    for first in range(tl.program_id(0) * RB, nodes, tl.num_programs(0) * RB):
        node = first + tl.arange(0, RB).to(tl.int64)
        here = (node < nodes)[:, None] & (c < width)[None, :]
        at = node[:, None] * H + (c // D)[None, :]
        t = tl.load(grad_t + at, mask=here, other=0).to(ACC)
        s = tl.load(grad_s + at, mask=here, other=0).to(ACC)
        value = tl.load(x + node[:, None] * XS + c[None, :], mask=here, other=0).to(ACC)
        of_target += t * value
        of_source += s * value
        tl.store(dx + node[:, None] * width + c[None, :], t * w_t + s * w_s, mask=here)
    at_part = parts + tl.program_id(0) * 2 * width + c
    tl.store(at_part, tl.sum(of_target, axis=0), mask=c < width)
    tl.store(at_part + width, tl.sum(of_source, axis=0), mask=c < width)


_launchers: dict[Any, tuple[Launcher, Launcher]] = {}


def _launchers_for(x: Tensor) -> tuple[Launcher, Launcher]:
    """The kernels of both passes for x [n, H, D] and weights of the same dtype."""
    _, heads, channels = x.shape
    key = heads, channels, x.stride(0), x.dtype, x.device
    found = _launchers.get(key)
    if found is None:
        shape = {"XS": x.stride(0), "H": heads, "D": channels, "ACC": compute_type(x)}
        tiles = ({"RB": rows, "CB": columns} for rows, columns in _tiles(heads, channels))
        kernels = products_kernel, products_backward_kernel
        first, second = (
            Launcher(kernel, shape | tile) for kernel, tile in zip(kernels, tiles, strict=True)
        )
        found = _launchers[key] = first, second
    return found


def _tiles(heads: int, channels: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return row_tile(channels), row_tile(heads * channels)


@on_device_of
def forward(x: Tensor, target: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """(<w_t, x>, <w_s, x>) per node and head: [n, H] each."""
    n, heads, channels = x.shape
    of_target, of_source = x.new_empty((n, heads)), x.new_empty((n, heads))
    rows = n * heads
    if rows:
        block, _ = row_tile(channels)
        tensors = x, target, source, of_target, of_source
        _launchers_for(x)[0]((triton.cdiv(rows, block), 1), current_stream(x), tensors, rows)
    return of_target, of_source


@on_device_of
def backward(
    x: Tensor, target: Tensor, source: Tensor, grad_t: Tensor, grad_s: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, w_t and w_s."""
    if not x.numel():
        return x.new_empty(x.shape), torch.zeros_like(target), torch.zeros_like(source)
    dx, parts = backward_in_parts(x, target, source, grad_t, grad_s)
    of_target, of_source = parts.sum(0).to(target.dtype).unbind()
    return dx, of_target, of_source


def backward_in_parts(
    x: Tensor, target: Tensor, source: Tensor, grad_t: Tensor, grad_s: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and summands of those of w_t and w_s: [·, 2, H, D]."""
    n, heads, channels = x.shape
    block, _ = row_tile(heads * channels)
    programs = max(1, min(PROGRAMS, triton.cdiv(n, block)))
    dx = x.new_empty(x.shape)
    parts = torch.empty((programs, 2, heads, channels), dtype=sum_type(x), device=x.device)
    tensors = grad_t, grad_s, x, target, source, dx, parts
    _launchers_for(x)[1]((programs, 1), current_stream(x), tensors, n)
    return dx, parts


operators.register_kernels("cuda", forward, backward)
