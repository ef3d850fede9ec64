"""Reads other formats: Parquet, .npy, GraphML and GML."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepgat.data.tables.arrays import read_npy
from deepgat.data.tables.columns import Rows, Tell, check_names
from deepgat.data.tables.convert import MemoryTable, typed
from deepgat.data.tables.opening import MOST_UNPACKED, check_unpacked, opened, parsing, shown
from deepgat.errors import UserError
from deepgat.machine import free_memory

CELLS = 2**22
"""Cells of a Parquet file to read at a time."""


class ParquetTable:
    """A Parquet file, a :class:`~deepgat.data.tables.columns.Source`."""

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        self.name = shown(path)
        with opened(path), self._parsing():
            self._file = parquet.ParquetFile(path)
        self.header = self._file.schema_arrow.names
        cells = self._file.metadata.num_rows * len(self.header)  # one value may stand for a billion
        room = max(MOST_UNPACKED, free_memory(torch.device("cpu")))
        check_unpacked(path, path.stat().st_size, 8 * cells, room, "save it as CSV")
        check_names(self.name, self.header)

    def rows(
        self,
        texts: Collection[str],
        skip: Collection[str] = (),
        tell: Tell | None = None,
        size: int = 0,
    ) -> Iterator[Rows]:
        """See :meth:`~deepgat.data.tables.columns.Source.rows`."""
        wanted = [name for name in self.header if name.lower() not in skip]
        size = max(1, CELLS // len(wanted))
        batches = self._file.iter_batches(size, columns=wanted)
        begin, end = 0, max(1, self._file.metadata.num_rows)
        while True:
            with self._parsing():
                if (batch := next(batches, None)) is None:
                    return
                columns = {
                    name: typed(self.name, name, values, name.lower() in texts)
                    for name, values in zip(wanted, batch.columns, strict=True)
                }
            yield Rows(self.name, len(batch), columns, partial(_row, begin))
            begin += len(batch)
            if tell is not None:
                tell(begin / end)

    def _parsing(self) -> AbstractContextManager[None]:
        return parsing(f"{self.name} is not a whole Parquet file", "save it again")


def _row(begin: int, row: int) -> str:
    return f"row {begin + row + 1}"


def feature_array(path: Path, id_name: str) -> MemoryTable:
    """The array [n, d] of a .npy file as columns x0, x1, …; row i is the node with id i."""
    import pyarrow as pa

    array = read_npy(path)
    numeric = np.issubdtype(array.dtype, np.number) and not np.iscomplexobj(array)
    if array.ndim != 2 or not (numeric or array.dtype == bool):
        raise UserError(
            f"{shown(path)} holds an array of {array.dtype} with {array.ndim} dimensions: expected "
            "numbers, one row per node"
        )
    if not array.shape[1]:
        raise UserError(f"{shown(path)} has no columns: expected one for every feature")
    columns = {f"x{i}": pa.array(array[:, i].astype(np.float64)) for i in range(array.shape[1])}
    return MemoryTable(shown(path), {id_name: pa.array(np.arange(len(array))), **columns})


def networkx_file(path: Path) -> Any:
    """The graph of a GraphML or GML file; document types, and thus entities, are refused."""
    try:
        import networkx as nx
    except ImportError:
        raise UserError(
            f"{shown(path)} needs NetworkX: install it with pip install networkx"
        ) from None
    kind = {".graphml": "GraphML", ".gml": "GML"}[path.suffix.lower()]
    with opened(path) as file:
        text = file.read()
        if kind == "GraphML" and (b"<!DOCTYPE" in text or b"\0" in text):
            raise UserError(
                f"{shown(path)} has a document type (<!DOCTYPE …>), which can define entities, or "
                "is not UTF-8: remove it; GraphML needs none"
            )
        file.seek(0)
        with parsing(f"{shown(path)} is not {kind} that NetworkX can read", "export it again"):
            return nx.read_graphml(file) if kind == "GraphML" else nx.read_gml(file)
