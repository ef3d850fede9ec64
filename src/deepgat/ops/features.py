"""Node features, dense or sparse, and the linear map that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A constant sparse matrix [n, d] that knows its transpose.

    Bag-of-words features are 99% zeros. X W then costs one product per stored number, and so
    does its gradient XᵀG, if the transpose is at hand: it is laid out once, here.

    Attributes:
        values: [nnz]; row_ptr: [n+1], column: [nnz] as in compressed sparse rows.
        column_ptr: [d+1], row: [nnz] and order: [nnz]: the transpose, whose values are
            ``values[order]``.
    """

    values: Tensor
    row_ptr: Tensor
    column: Tensor
    column_ptr: Tensor
    row: Tensor
    order: Tensor
    shape: tuple[int, int]

    @staticmethod
    def from_torch(matrix: Tensor) -> SparseMatrix:
        """From a ``torch.sparse_csr`` or ``torch.sparse_coo`` tensor."""
        matrix = matrix.to_sparse_csr() if matrix.layout != torch.sparse_csr else matrix
        n, d = matrix.shape
        row_ptr = matrix.crow_indices().int()
        column = matrix.col_indices().int()
        row = torch.repeat_interleave(
            torch.arange(n, device=column.device, dtype=torch.int32), row_ptr.diff()
        )
        order = torch.argsort(column.long() * max(n, 1) + row)
        counts = torch.bincount(column, minlength=d)
        column_ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
        return SparseMatrix(matrix.values(), row_ptr, column, column_ptr, row[order], order, (n, d))

    def size(self, dim: int) -> int:
        return self.shape[dim]

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def with_values(self, values: Tensor) -> SparseMatrix:
        """The same places with other numbers in them."""
        return SparseMatrix(
            values, self.row_ptr, self.column, self.column_ptr, self.row, self.order, self.shape
        )

    def to(self, *args: Any, **kwargs: Any) -> SparseMatrix:
        """Like ``Tensor.to``: a device, a dtype (of the values), or both."""
        values = self.values.to(*args, **kwargs)
        device = values.device
        return SparseMatrix(
            values,
            self.row_ptr.to(device),
            self.column.to(device),
            self.column_ptr.to(device),
            self.row.to(device),
            self.order.to(device),
            self.shape,
        )

    def matmul(self, dense: Tensor) -> Tensor:
        """X @ dense: [n, d] × [d, m] → [n, m]."""
        return _csr(self.row_ptr, self.column, self.values, self.shape) @ dense

    def transposed_matmul(self, dense: Tensor) -> Tensor:
        """Xᵀ @ dense: [d, n] × [n, m] → [d, m]."""
        n, d = self.shape
        return _csr(self.column_ptr, self.row, self.values[self.order], (d, n)) @ dense


@dataclass(frozen=True, eq=False)
class Columns:
    """Feature blocks side by side, (x ‖ z), without copying them into one matrix."""

    blocks: tuple[Tensor | SparseMatrix, ...]

    def size(self, dim: int) -> int:
        return self.blocks[0].size(0) if dim == 0 else sum(b.size(1) for b in self.blocks)


Features: TypeAlias = Tensor | SparseMatrix | Columns
"""What a layer reads: [n, d], dense, sparse, or several blocks side by side."""


def as_features(x: Features) -> Features:
    """Torch's own sparse layouts become :class:`SparseMatrix`; all else passes through."""
    if isinstance(x, Tensor) and x.layout != torch.strided:
        return SparseMatrix.from_torch(x)
    return x


def linear(x: Features, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b for dense or sparse x: [n, d], weight [m, d] → [n, m].

    The gradient reaches W and b, and x where x is dense; sparse features are constants.
    """
    if isinstance(x, Tensor):
        return F.linear(x, weight, bias)
    if isinstance(x, Columns):
        widths = [block.size(1) for block in x.blocks]
        parts = zip(x.blocks, weight.split(widths, dim=1), strict=True)
        out = torch.stack([linear(block, part) for block, part in parts]).sum(0)
    else:
        out = _SparseLinear.apply(weight, x)
    return out if bias is None else out + bias


def unit_rows(x: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    """Every row divided by the sum of its absolute values; rows of zeros stay zero."""
    if isinstance(x, Tensor):
        return F.normalize(x, p=1.0, dim=1)
    lengths = x.row_ptr.diff()
    total = torch.segment_reduce(x.values.abs(), "sum", lengths=lengths, unsafe=True, initial=0)
    return x.with_values(x.values / torch.repeat_interleave(total, lengths))


def dropout(x: Any, p: float, training: bool) -> Any:
    """Dropout on features; zeros stay zero, so for sparse x only the stored numbers are drawn."""
    if not training or p == 0.0:
        return x
    if isinstance(x, Tensor):
        return F.dropout(x, p)
    if isinstance(x, Columns):
        return Columns(tuple(dropout(block, p, training) for block in x.blocks))
    return x.with_values(F.dropout(x.values, p))


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: SparseMatrix) -> Tensor:
        ctx.x = x
        ctx.weight_dtype = weight.dtype
        return x.matmul(weight.t().to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad_weight = ctx.x.transposed_matmul(grad.contiguous().to(ctx.x.dtype)).t()
        return grad_weight.to(ctx.weight_dtype), None


def _csr(ptr: Tensor, index: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(ptr, index, values, shape, check_invariants=False)
