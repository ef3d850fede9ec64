"""Features on disk, for graphs that need not fit into memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from deepgat.data.feature_matrix import canonical_rows
from deepgat.data.tables.column_features import SPARSE_BELOW, FeatureBlock
from deepgat.data.tables.columns import Tell


class FeatureFile:
    """x [n, d] in a new file, with the values of ``column_features.joined``."""

    def __init__(self, path: Path, nodes: int, columns: int, tell: Tell) -> None:
        self.path, self.nodes, self.columns, self.tell = path, nodes, columns, tell
        self.categories: list[int] = []
        """Per column of the table: the number of its categories; 0 for a column of numbers."""
        self.filled = self.width = 0

    def keep(self, block: FeatureBlock) -> FeatureBlock:
        """Append the features of a column of numbers or categories; the block without values."""
        with self.path.open("ab") as file:
            if block.plan.kind == "number":
                block.values[:, 0].astype(np.float32).tofile(file)
                self.categories.append(0)
            else:
                rank = np.full(self.nodes, -1, dtype=np.int32)
                rank[np.diff(block.values.indptr) > 0] = block.values.indices
                rank.tofile(file)
                self.categories.append(len(block.plan.names))
        self.filled += block.filled()
        self.width += len(block.plan.names)
        self.tell(len(self.categories) / self.columns)
        return replace(block, values=None)

    @property
    def sparse(self) -> bool:
        """Whether the features are kept sparse."""
        return self.filled < SPARSE_BELOW * self.nodes * self.width

    def rows(self, begin: int, end: int) -> Any:
        """x[begin:end] float32, dense or CSR."""
        blocks: list[Any] = []
        with self.path.open("rb") as file:
            for number, count in enumerate(self.categories):
                file.seek(4 * (number * self.nodes + begin))
                if not count:
                    blocks.append(np.fromfile(file, np.float32, end - begin)[:, None])
                    continue
                rank = np.fromfile(file, np.int32, end - begin)
                rows = np.flatnonzero(rank >= 0)
                ones = np.ones(len(rows), dtype=np.float32)
                shape = (end - begin, count)
                blocks.append(sp.csr_matrix((ones, (rows, rank[rows])), shape=shape))
        if self.sparse:
            return canonical_rows(sp.hstack([sp.csr_matrix(block) for block in blocks]))
        return np.hstack([b.toarray() if sp.issparse(b) else b for b in blocks])
