"""Sparse features for exported programs: their product consists of gathers and scatters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepgat.ops import checks
from deepgat.ops.features import SparseMatrix
from deepgat.ops.lists import Lists


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseRows(SparseMatrix):
    """A sparse matrix [n, d] by its rows alone (CSR); for inference.

    Its product holds one number per stored value and output column, which the kernels of
    :class:`SparseMatrix` avoid. The transpose and the pieces of long rows, which only training and
    kernels need, are empty.

    Attributes:
        row: [nnz] int64, the row of each stored number.
    """

    row: Tensor

    @staticmethod
    def of(crow: Tensor, col: Tensor, values: Tensor, num_columns: int) -> SparseRows:
        """From the three tensors of ``torch.sparse_csr``: [n + 1], [nnz] and [nnz]."""
        none = col[:0]
        # row i begins at place crow[i]: of the rows that have begun there, an entry is in the last
        begun = crow.new_zeros(col.size(0) + 1).index_add(0, crow, torch.ones_like(crow))
        return SparseRows(
            values=values,
            rows=Lists(crow, col, none, none),
            columns=Lists(none, none, none, none),
            order=none,
            shape=(crow.size(0) - 1, num_columns),
            row=begun[:-1].cumsum(0) - 1,
        )

    def per_entry(self, x: Tensor) -> Tensor:
        return x.index_select(0, self.row)

    def matmul(self, dense: Tensor) -> Tensor:
        checks.product(dense, self.shape[1], self.device)
        terms = self.values.unsqueeze(1) * dense.index_select(0, self.rows.entries)
        return terms.new_zeros(self.shape[0], dense.size(1)).index_add(0, self.row, terms)
