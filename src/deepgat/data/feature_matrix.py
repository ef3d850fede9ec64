"""Node features: dense float32, or float32 rows in CSR form for bags of words."""

import warnings

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

INT32_MAX = np.iinfo(np.int32).max


def csr_tensor(crow: Tensor, col: Tensor, values: Tensor, num_columns: int) -> Tensor:
    """A ``torch.sparse_csr`` tensor [len(crow) − 1, num_columns], checked.

    The check costs one pass; without it a wrong column index would read out of bounds.
    """
    with warnings.catch_warnings():
        # torch warns that CSR is in beta, and that it checks nothing by itself: we ask it to.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly")
        return torch.sparse_csr_tensor(
            crow, col, values, size=(len(crow) - 1, num_columns), check_invariants=True
        )


def canonical_rows(matrix: sp.spmatrix) -> sp.csr_matrix:
    """float32 CSR: duplicates summed, explicit zeros removed, columns sorted within a row."""
    rows = sp.csr_matrix(matrix, dtype=np.float32, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return rows


def csr_from_scipy(matrix: sp.spmatrix) -> Tensor:
    """:func:`canonical_rows` as a tensor with int32 indices (half the memory of int64)."""
    rows = canonical_rows(matrix)
    index = np.int32 if max(rows.nnz, rows.shape[1]) <= INT32_MAX else np.int64
    return csr_tensor(
        torch.from_numpy(rows.indptr.astype(index)),
        torch.from_numpy(rows.indices.astype(index)),
        torch.from_numpy(rows.data),
        rows.shape[1],
    )


def normalize_rows(x: Tensor) -> Tensor:
    """x_vj / Σ_j x_vj, dense or CSR [n, d]; rows with sum 0 do not change."""
    if x.layout is not torch.sparse_csr:
        total = x.sum(dim=1, keepdim=True)
        return x / torch.where(total == 0, 1, total)
    crow, col, values = x.crow_indices(), x.col_indices(), x.values()
    row = torch.repeat_interleave(torch.arange(x.shape[0], device=x.device), crow.diff())
    total = values.new_zeros(x.shape[0]).index_add_(0, row, values)
    total = torch.where(total == 0, 1, total)
    return csr_tensor(crow, col, values / total[row], x.shape[1])
