"""Node features, dense or sparse, and linear maps of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from deepgat.ops import checks, deterministic, dropout_masks
from deepgat.ops.lists import Lists, pointers
from deepgat.ops.matmul import dropped, sparse_matmul
from deepgat.ops.part import row_ids


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A constant sparse matrix [n, d], stored with its transpose.

    Bag-of-words features are 99% zeros. X W then costs one multiplication per stored number and
    output column. With the transpose stored, so does the gradient XᵀG.

    Attributes:
        values: [nnz], in the order of the rows.
        rows: the columns of the stored numbers of each row.
        columns: the rows of the stored numbers of each column.
        order: [nnz], the positions in ``values`` of the numbers in the order of the columns.
        dropped: dropout rate that products apply to the stored numbers, seeded by ``seed``.
    """

    values: Tensor
    rows: Lists
    columns: Lists
    order: Tensor
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
        rows = Lists.split(row_ptr, column)
        columns = Lists.split(pointers(column, d), row[order])
        return SparseMatrix(matrix.values(), rows, columns, order, (n, d))

    def size(self, dim: int) -> int:
        return self.shape[dim]

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def to(self, *args: Any, **kwargs: Any) -> SparseMatrix:
        """Like ``Tensor.to``: a device, a dtype (of the values), or both."""
        values = self.values.to(*args, **kwargs)
        return replace(
            self,
            values=values,
            rows=self.rows.to(values.device),
            columns=self.columns.to(values.device),
            order=self.order.to(values.device),
            seed=None if self.seed is None else self.seed.to(values.device),
        )

    def to_dense(self) -> Tensor:
        """[n, d]."""
        n, d = self.shape
        place = self.per_entry(torch.arange(n, device=self.device)) * d + self.rows.entries
        return self.values.new_zeros(n * d).index_add_(0, place, self.values).view(n, d)

    def per_entry(self, x: Tensor) -> Tensor:
        """The x of its row for every stored number: [n] → [nnz]."""
        # output_size avoids a synchronisation with the GPU, which CUDA graphs forbid
        return x.repeat_interleave(self.rows.ptr.diff(), output_size=self.values.numel())

    def matmul(self, dense: Tensor) -> Tensor:
        """X @ dense: [n, d] × [d, m] → [n, m]."""
        checks.product(dense, self.shape[1], self.device)
        return sparse_matmul(*self.rows, None, self.values, dense, self.seed, self.dropped)

    def transposed_matmul(self, dense: Tensor) -> Tensor:
        """Xᵀ @ dense: [d, n] × [n, m] → [d, m]."""
        checks.product(dense, self.shape[0], self.device)
        return sparse_matmul(*self.columns, self.order, self.values, dense, self.seed, self.dropped)


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
    begin = x.rows.ptr[rows]
    counts = x.rows.ptr[rows + 1] - begin
    row_ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    place = torch.arange(int(row_ptr[-1]), device=rows.device)
    place += torch.repeat_interleave(begin - row_ptr[:-1], counts)
    numbers = row_ptr, x.rows.entries[place].long(), x.values[place]
    shape = (rows.numel(), x.size(1))
    return SparseMatrix.from_torch(torch.sparse_csr_tensor(*numbers, shape, check_invariants=False))


def linear(x: Features, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b for dense or sparse x: [n, d], weight [m, d] → [n, m].

    Differentiable in W, b and dense x; sparse features are constants.
    """
    checks.linear(x, weight, bias)
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
    total = replace(x, values=x.values.abs()).matmul(x.values.new_ones(x.size(1), 1)).squeeze(1)
    return replace(x, values=x.values / x.per_entry(total))


def dropout(x: Any, p: float, training: bool) -> Any:
    """Dropout on features; for sparse x, only stored numbers need a draw."""
    checks.share("dropout", p)
    if not training or p == 0.0:
        return x
    ids = row_ids()
    checks.dropout(x, None if ids is None else ids.numel())
    if isinstance(x, Tensor):
        return dropped(x, _row_seed(x.device), p)
    if isinstance(x, Columns):
        return Columns(tuple(dropout(block, p, training) for block in x.blocks))
    return replace(x, dropped=p, seed=_row_seed(x.device))


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
