"""Reads other formats: Parquet, .npy, GraphML and GML."""

from __future__ import annotations

from pathlib import Path
from xml.parsers import expat

import numpy as np

from deepgat.data.tables.arrays import read_npy
from deepgat.data.tables.columns import Columns, check_names
from deepgat.data.tables.convert import column_of, graph_from_networkx
from deepgat.data.tables.graph import OwnGraph
from deepgat.data.tables.opening import opened, shown
from deepgat.data.tables.options import ReadOptions
from deepgat.errors import UserError


def read_parquet(path: Path) -> Columns:
    """The table in a Parquet file."""
    from pyarrow import parquet

    name = shown(path)
    with opened(path) as file:
        try:
            table = parquet.read_table(file)
        except Exception as error:  # Arrow's errors have no common parent
            why = " ".join(str(error).split())[:120]
            raise UserError(f"{name} is not a whole Parquet file ({why}): save it again") from error
    check_names(name, table.column_names)
    columns = []
    for title in table.column_names:
        values = table.column(title)
        kind = str(values.type)
        if kind.startswith(("list", "struct", "map", "binary")):
            raise UserError(
                f"{name}, column {title!r}: it holds {kind.split('<')[0]} values; expected "
                "numbers or texts, one per cell"
            )
        columns.append(column_of(title, values.to_pylist(), name))
    return Columns(name, table.num_rows, columns)


def read_feature_array(path: Path) -> np.ndarray:
    """The array [n, d] of a .npy file as doubles; row i belongs to the node with id i."""
    array = read_npy(path)
    numeric = np.issubdtype(array.dtype, np.number) and not np.iscomplexobj(array)
    if array.ndim != 2 or not (numeric or array.dtype == bool):
        raise UserError(
            f"{shown(path)} holds an array of {array.dtype} with {array.ndim} dimensions: expected "
            "numbers, one row per node"
        )
    return array.astype(np.float64)


def read_networkx_file(path: Path, options: ReadOptions, name: str, title: str) -> OwnGraph:
    """Read GraphML or GML with NetworkX; document types, and thus entities, are refused."""
    try:
        import networkx as nx
    except ImportError:
        raise UserError(
            f"{shown(path)} needs NetworkX: install it with pip install networkx"
        ) from None
    graphml = path.suffix.lower() == ".graphml"
    if graphml:
        _refuse_entities(path)
    with opened(path) as file:
        try:
            graph = nx.read_graphml(file) if graphml else nx.read_gml(file)
        except Exception as error:  # its parsers raise many kinds of errors
            why = " ".join(str(error).split())[:160] or type(error).__name__
            kind = "GraphML" if graphml else "GML"
            raise UserError(
                f"{shown(path)} is not {kind} that NetworkX can read ({why}): export it again"
            ) from error
    return graph_from_networkx(graph, options, name, title, shown(path))


def _refuse_entities(path: Path) -> None:
    """Refuse a document type: its entities can expand to gigabytes or name other files."""
    parser = expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise UserError(
            f"{shown(path)} has a document type (<!DOCTYPE …>), which can define entities: remove "
            "it; GraphML needs none"
        )

    parser.StartDoctypeDeclHandler = refuse
    with opened(path) as file:
        try:
            parser.ParseFile(file)
        except expat.ExpatError as error:
            raise UserError(
                f"{shown(path)}, line {error.lineno}: {expat.ErrorString(error.code)}; this is "
                "not whole GraphML"
            ) from error
        except (LookupError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{shown(path)} has an unknown encoding: save it as UTF-8") from error
