"""Node features, dense or sparse, and linear maps of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.ops import deterministic, dropout_masks
from deepgat.ops.matmul import drop_entries, sparse_matmul
from deepgat.ops.neighbors import split_lists
from deepgat.ops.partitioned.part import row_ids


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A constant sparse matrix [n, d], stored with its transpose.

    Bag-of-words features are 99% zeros. X W then costs one multiplication per stored number and
    output column. With the transpose stored, so does the gradient XᵀG.

    Attributes:
        values: [nnz]; row_ptr: [n+1] int64, column: [nnz] int32: the CSR format.
        column_ptr: [d+1], row: [nnz] and order: [nnz]: the transpose, whose values are
            ``values[order]``.
        row_pieces, row_hubs, column_pieces, column_hubs: rows and columns, split by
            :func:`~deepgat.ops.neighbors.split_lists`.
        dropped: dropout rate that products apply to the stored numbers, seeded by ``seed``.
    """

    values: Tensor
    row_ptr: Tensor
    column: Tensor
    column_ptr: Tensor
    row: Tensor
    order: Tensor
    row_pieces: Tensor
    row_hubs: Tensor
    column_pieces: Tensor
    column_hubs: Tensor
    shape: tuple[int, int]
    dropped: float = 0.0
    seed: Tensor | None = None

    @staticmethod
    def from_torch(matrix: Tensor) -> SparseMatrix:
        """From a ``torch.sparse_csr`` or ``torch.sparse_coo`` tensor."""
        matrix = matrix.to_sparse_csr() if matrix.layout != torch.sparse_csr else matrix
        n, d = matrix.shape
        row_ptr = matrix.crow_indices().long()
        column = matrix.col_indices().int()
        row = torch.repeat_interleave(
            torch.arange(n, device=column.device, dtype=torch.int32), row_ptr.diff()
        )
        order = torch.argsort(column.long() * max(n, 1) + row)
        counts = torch.bincount(column, minlength=d)
        column_ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return SparseMatrix(
            matrix.values(),
            row_ptr,
            column,
            column_ptr,
            row[order],
            order,
            *split_lists(row_ptr),
            *split_lists(column_ptr),
            (n, d),
        )

    def size(self, dim: int) -> int:
        return self.shape[dim]

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def with_values(self, values: Tensor) -> SparseMatrix:
        """A matrix with the same sparsity pattern and other values."""
        return replace(self, values=values)

    def with_dropout(self, p: float) -> SparseMatrix:
        """The same matrix with dropout of rate p on its stored numbers."""
        return replace(self, dropped=p, seed=_row_seed(self.device))

    def to(self, *args: Any, **kwargs: Any) -> SparseMatrix:
        """Like ``Tensor.to``: a device, a dtype (of the values), or both."""
        values = self.values.to(*args, **kwargs)
        moved: dict[str, Any] = {
            name: item.to(values.device)
            for name, item in vars(self).items()
            if isinstance(item, Tensor)
        }
        return replace(self, **(moved | {"values": values}))

    def row_of_entries(self) -> Tensor:
        """[nnz]: the row of every stored number, in the order of ``values``."""
        # output_size avoids a synchronisation with the GPU, which CUDA graphs forbid
        return torch.repeat_interleave(self.row_ptr.diff(), output_size=self.values.numel())

    def to_dense(self) -> Tensor:
        """[n, d]."""
        n, d = self.shape
        place = self.row_of_entries() * d + self.column
        return self.values.new_zeros(n * d).index_add_(0, place, self.values).view(n, d)

    def matmul(self, dense: Tensor) -> Tensor:
        """X @ dense: [n, d] × [d, m] → [n, m]."""
        return sparse_matmul(
            self.row_ptr, self.column, None, self.row_pieces, self.row_hubs,
            self.values, dense, self.seed, self.dropped,
        )  # fmt: skip

    def transposed_matmul(self, dense: Tensor) -> Tensor:
        """Xᵀ @ dense: [d, n] × [n, m] → [d, m]."""
        return sparse_matmul(
            self.column_ptr, self.row, self.order, self.column_pieces, self.column_hubs,
            self.values, dense, self.seed, self.dropped,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Columns:
    """Feature blocks side by side, (x ‖ z), without copying them into one matrix."""

    blocks: tuple[Tensor | SparseMatrix, ...]

    @property
    def device(self) -> torch.device:
        return self.blocks[0].device

    def size(self, dim: int) -> int:
        return self.blocks[0].size(0) if dim == 0 else sum(b.size(1) for b in self.blocks)


Features: TypeAlias = Tensor | SparseMatrix | Columns
"""The input of a layer: [n, d], dense, sparse, or several blocks side by side."""


def as_features(x: Features) -> Features:
    """Convert torch's sparse layouts to :class:`SparseMatrix`; return anything else unchanged."""
    if isinstance(x, Tensor) and x.layout != torch.strided:
        return SparseMatrix.from_torch(x)
    return x


def take_rows(x: Tensor | SparseMatrix, rows: Tensor) -> Tensor | SparseMatrix:
    """The given rows [k] int64: [n, d] → [k, d]."""
    if isinstance(x, Tensor):
        return x.index_select(0, rows)
    begin = x.row_ptr[rows]
    counts = x.row_ptr[rows + 1] - begin
    row_ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    place = torch.arange(int(row_ptr[-1]), device=rows.device)
    place += torch.repeat_interleave(begin - row_ptr[:-1], counts)
    numbers = row_ptr, x.column[place].long(), x.values[place]
    shape = (rows.numel(), x.size(1))
    return SparseMatrix.from_torch(torch.sparse_csr_tensor(*numbers, shape, check_invariants=False))


def linear(x: Features, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b for dense or sparse x: [n, d], weight [m, d] → [n, m].

    Differentiable in W, b and dense x; sparse features are constants.
    """
    if isinstance(x, Tensor):
        return deterministic.linear(x, weight, bias)
    if isinstance(x, Columns):
        widths = [block.size(1) for block in x.blocks]
        parts = zip(x.blocks, weight.split(widths, dim=1), strict=True)
        out = torch.stack([linear(block, part) for block, part in parts]).sum(0)
    else:
        out = _SparseLinear.apply(weight, x)
    return out if bias is None else out + bias


def unit_rows(x: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    """Divide every row by the sum of its absolute values; rows of zeros stay zero."""
    if isinstance(x, Tensor):
        return F.normalize(x, p=1.0, dim=1)
    total = x.with_values(x.values.abs()).matmul(x.values.new_ones(x.size(1), 1)).squeeze(1)
    return x.with_values(x.values / total[x.row_of_entries()])


def dropout(x: Any, p: float, training: bool) -> Any:
    """Dropout on features; for sparse x, only stored numbers need a draw."""
    if not training or p == 0.0:
        return x
    if isinstance(x, Tensor):
        return drop_entries(x, _row_seed(x.device), p)
    if isinstance(x, Columns):
        return Columns(tuple(dropout(block, p, training) for block in x.blocks))
    return x.with_dropout(p)


def _row_seed(device: torch.device) -> Tensor:
    """A new dropout seed, with global row numbers if the graph is partitioned."""
    return dropout_masks.numbered(dropout_masks.new_seed(device), row_ids())


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: SparseMatrix) -> Tensor:
        ctx.x = x
        ctx.weight_dtype = weight.dtype
        return x.matmul(weight.t().to(x.dtype).contiguous())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad_weight = ctx.x.transposed_matmul(grad.contiguous().to(ctx.x.dtype)).t()
        return grad_weight.to(ctx.weight_dtype), None
