"""Two operators on features: ``deepgat::sparse_matmul`` and ``deepgat::drop_entries``.

Signatures, shapes for tracing, autograd rules and an implementation in plain torch, which runs on
devices without a registered kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepgat.ops import dropout_masks


def define_sparse_matmul(
    ptr: Tensor,
    index: Tensor,
    pieces: Tensor,
    hubs: Tensor,
    position: Tensor | None,
    values: Tensor,
    dense: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> Tensor:
    """out_i = Σ_{j in list i} mask · values[position_j] · dense[index_j]: [c, m] → [r, m].

    The lists ``ptr`` [r+1] and ``index`` [nnz] int32 are the rows of a matrix, in the order of its
    ``values``. With ``position``, they are its columns, and ``position`` is the index of each entry
    in ``values``. The mask is :func:`deepgat.ops.dropout_masks.keep_entries` of (row, column).
    The first four arguments are a :class:`deepgat.ops.lists.Lists`.
    """
    numbers = values if position is None else values[position]
    if dropout:
        assert seed is not None
        mine = torch.repeat_interleave(torch.arange(ptr.numel() - 1, device=ptr.device), ptr.diff())
        place = (index, mine) if position is not None else (mine, index)
        numbers = numbers * dropout_masks.keep_entries(*place, dropout, seed).to(numbers.dtype)
    shape = (ptr.numel() - 1, dense.size(0))
    csr = torch.sparse_csr_tensor(ptr.int(), index, numbers, shape, check_invariants=False)
    return csr @ dense


sparse_matmul = torch.library.custom_op("deepgat::sparse_matmul", mutates_args=())(
    define_sparse_matmul
)


@sparse_matmul.register_fake
def _(ptr: Tensor, *others: Any) -> Tensor:
    dense = others[5]
    return dense.new_empty(ptr.numel() - 1, dense.size(1))


def define_drop_entries(x: Tensor, seed: Tensor, dropout: float) -> Tensor:
    """Dropout: zero a share of the entries, divide the rest by 1 − dropout: [n, m] → [n, m]."""
    row = torch.arange(x.size(0), device=x.device).unsqueeze(1)
    column = torch.arange(x.size(1), device=x.device)
    return x * dropout_masks.keep_entries(row, column, dropout, seed).to(x.dtype)


drop_entries = torch.library.custom_op("deepgat::drop_entries", mutates_args=())(
    define_drop_entries
)


@drop_entries.register_fake
def _(x: Tensor, seed: Tensor, dropout: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.dropout = inputs[2]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return drop_entries(grad.contiguous(), *ctx.saved_tensors, ctx.dropout), None, None


drop_entries.register_autograd(_backward, setup_context=_setup)


EAGER: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {}
"""The kernel of :func:`drop_entries` by device type, called directly outside ``torch.compile``."""


def dropped(x: Tensor, seed: Tensor, dropout: float) -> Tensor:
    """:func:`drop_entries`; in eager mode without the overhead of a registered operator."""
    if torch.compiler.is_compiling() or type(x) is not Tensor or x.device.type not in EAGER:
        return drop_entries(x, seed, dropout)
    return _Dropped.apply(x, seed, dropout)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: Tensor, dropout: float) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.dropout = dropout
        return EAGER[x.device.type](x, seed, dropout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (seed,) = ctx.saved_tensors
        return dropped(grad.contiguous(), seed, ctx.dropout), None, None
