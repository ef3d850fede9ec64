"""A kept graph on disk: ``graph.json`` and a ``.npy`` file per array, which are memory-mapped.

``graph.json`` holds the format, the numbers of nodes and features, and the SHA-256 of every array.
Whoever wrote the folder need not be trusted: only regular files are opened, and nothing is
unpickled. Types, shapes and pointers are checked when the graph is opened; other numbers when a
prediction reads them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deepgat.data.dataset import NodeDataset
from deepgat.data.kept_graph import KeptGraph
from deepgat.data.tables.arrays import read_npy
from deepgat.data.tables.opening import opened, parse_json, read_whole
from deepgat.errors import UserError
from deepgat.files import to_json

FORMAT = 1
DESCRIPTION = "graph.json"
HASHED = 2**30
"""Arrays of up to so many bytes in all are compared with their SHA-256 when they are opened. To
read more than that would defeat the purpose of mapping them."""
TYPES = {
    "ptr": "int64", "source": "int32", "log_weight": "float32", "edge_attr": "float32",
    "x": "float32", "x_ptr": "int64", "x_column": "int32", "x_value": "float32",
    "part": "int8", "id_ptr": "int64", "id_text": "uint8", "id_order": "int64",
}  # fmt: skip
"""Arrays of :class:`KeptGraph` and their types; ``y`` is int64 or, of several labels, float32."""


class Expected(NamedTuple):
    """What a model expects of its graph."""

    features: int
    classes: int
    multi_label: bool
    edge_weights: bool
    edge_features: int


def write_kept(folder: Path, dataset: NodeDataset) -> str:
    """Write the graph of a dataset to a new folder; returns the SHA-256 of ``graph.json``."""
    graph = KeptGraph.of(dataset)
    folder.mkdir()
    digests = {}
    for name, array in graph.arrays.items():
        path = folder / f"{name}.npy"
        np.save(path, array, allow_pickle=False)
        digests[name] = _digest(path)
    description = {
        "format": FORMAT,
        "nodes": graph.num_nodes,
        "features": graph.num_features,
        "symmetric": graph.symmetric,
        "arrays": digests,
    }
    text = to_json(description, indent=1)
    (folder / DESCRIPTION).write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


def read_kept(folder: Path, digest: str, expected: Expected) -> KeptGraph:
    """The graph that :func:`write_kept` wrote, mapped from disk; ``digest`` is what it returned."""
    try:
        text = read_whole(folder / DESCRIPTION)
        if hashlib.sha256(text).hexdigest() != digest:
            raise ValueError(f"{DESCRIPTION} is not the file that was saved")
        described = parse_json(text, DESCRIPTION)
        if described["format"] != FORMAT:
            raise UserError(
                f"{folder} has graph format {described['format']!r} but this deepgat reads format "
                f"{FORMAT}: save the model with its graph again"
            )
        digests: dict[str, Any] = dict(described["arrays"])
        if described["features"] != expected.features:
            raise ValueError(f"it has {described['features']!r} features, unlike the model")
        if type(described["symmetric"]) is not bool:
            raise ValueError("it does not say whether its edges run both ways")
        if strange := sorted(digests.keys() - TYPES.keys() - {"y"}):
            raise ValueError(f"{strange[0][:40]!r} is no array of a graph")
        arrays = {name: read_npy(folder / f"{name}.npy") for name in digests}
        _check(arrays, described["nodes"], expected)
        if sum(array.nbytes for array in arrays.values()) <= HASHED:
            for name in digests:
                if _digest(folder / f"{name}.npy") != digests[name]:
                    raise ValueError(f"{name}.npy is not the file that was saved")
    except (UserError, ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, UserError) and "graph format" in str(error):
            raise
        why = " ".join(str(error).split())[:200]
        raise UserError(
            f"the graph in {folder} is damaged: {why}; train the model again with its graph kept"
        ) from error
    return KeptGraph(arrays, expected.features, described["symmetric"], f"the graph in {folder}")


def _digest(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _check(arrays: dict[str, np.ndarray], nodes: Any, expected: Expected) -> None:
    """Whether the arrays are there, of the right types and shapes, and fit together."""
    if type(nodes) is not int or not 0 < nodes < 2**31:
        raise ValueError(f"it has {nodes!r} nodes")
    sparse, named = "x" not in arrays, "id_ptr" in arrays
    needed = ["ptr", "source", "y", "part", *(["x_ptr", "x_column", "x_value"] if sparse else [])]
    needed += ["id_ptr", "id_text", "id_order"] if named else []
    needed += ["log_weight"] if expected.edge_weights else []
    needed += ["edge_attr"] if expected.edge_features else []
    if missing := [name for name in needed if name not in arrays]:
        raise ValueError(f"{missing[0]} is missing")
    for name, wanted in (
        ("log_weight", expected.edge_weights),
        ("edge_attr", expected.edge_features),
    ):
        if name in arrays and not wanted:
            raise ValueError(f"it has {name}, unlike the model")
    edges = len(arrays["source"])
    shapes: dict[str, tuple[int, ...]] = {
        "ptr": (nodes + 1,),
        "source": (edges,),
        "log_weight": (edges, 1),
        "edge_attr": (edges, expected.edge_features),
        "x": (nodes, expected.features),
        "x_ptr": (nodes + 1,),
        "y": (nodes, expected.classes) if expected.multi_label else (nodes,),
        "part": (nodes,),
        "id_ptr": (nodes + 1,),
        "id_order": (nodes,),
    }
    for name in ("x_column", "x_value", "id_text"):
        shapes[name] = (len(arrays[name]),) if name in arrays else ()
    types = TYPES | {"y": "float32" if expected.multi_label else "int64"}
    for name, array in arrays.items():
        if array.shape != shapes[name] or array.dtype != np.dtype(types[name]):
            raise ValueError(
                f"{name} is {array.dtype} {list(array.shape)}, expected {types[name]} "
                f"{list(shapes[name])}"
            )
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not in the order of C")
    for name, entries in (("ptr", "source"), ("x_ptr", "x_column"), ("id_ptr", "id_text")):
        if name in arrays:
            _check_pointers(name, arrays[name], len(arrays[entries]))
    if sparse and len(arrays["x_column"]) != len(arrays["x_value"]):
        raise ValueError("x_column and x_value differ in length")


def _check_pointers(name: str, ptr: np.ndarray, entries: int) -> None:
    rises = bool((ptr[1:] >= ptr[:-1]).all())
    if not rises or int(ptr[0]) != 0 or int(ptr[-1]) != entries:
        raise ValueError(f"{name} does not rise from 0 to {entries}")
