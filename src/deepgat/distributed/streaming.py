"""Partitions a graph on disk that need not fit into memory.

The files are byte for byte those of ``partition_folder.write_partition`` for the same owners.
Memory grows with the number of nodes and the edges of 1/256 of them, not with all edges or the
features. METIS and "order" also hold all neighbours, at 4 bytes each; "stream" does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from deepgat.data import NodeDataset, ReadOptions
from deepgat.data.tables.label_lists import HOPS, LabelLists
from deepgat.data.tables.streamed import OnProgress, StreamedGraph, stream_graph
from deepgat.data.transforms import MASKS, SPLITS
from deepgat.distributed.partition import chosen_method, owners_of, stream_owners
from deepgat.distributed.partition_folder import (
    PARTITION_FOLDER,
    PartSize,
    part_folder,
    write_description,
)
from deepgat.files import new_folder

ENDS = ("source", "target")
_AT_ONCE = 2**22
"""Node numbers of an edge file to read at once."""


def write_streamed(
    folder: Path,
    path: Path,
    options: ReadOptions,
    split: str | None,
    parts: int,
    method: str = "auto",
    told: OnProgress = lambda what, share: None,
    stretch: int | None = None,
) -> tuple[NodeDataset, list[PartSize]]:
    """Partition the graph at ``path`` and write the parts.

    Returns the dataset without features and edges, and the sizes of the parts. ``stretch``, a
    multiple of 64, is the number of nodes whose edges are in memory at once.
    """
    with new_folder(folder, PARTITION_FOLDER) as target:
        scratch = target.parent / "scratch"  # removed with the temporary folder around it
        scratch.mkdir()
        graph = stream_graph(path, options, split, scratch, told, stretch)
        owner = _owners(graph, parts, method, told)
        sizes = _write(target, scratch, graph, owner, parts, told)
        write_description(target, graph.dataset, sizes)
    return graph.dataset, sizes


def _owners(graph: StreamedGraph, parts: int, method: str, told: OnProgress) -> np.ndarray:
    edges = graph.edges
    method = chosen_method(method, edges.nodes, parts)
    if parts == 1:
        return np.zeros(edges.nodes, dtype=np.int64)
    if method == "stream":
        return stream_owners(
            edges.near, edges.near_degree, parts, lambda share: told("partitioning", share)
        )
    told("partitioning", 0.0)
    ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(edges.near_degree)])
    near = np.empty(int(ptr[-1]), dtype=np.int32)
    at = 0
    for piece in edges.near():
        near[at : at + len(piece)] = piece
        at += len(piece)
    ptr = ptr.astype(np.int32) if ptr[-1] < 2**31 else ptr
    ones = np.broadcast_to(np.int8(1), near.shape)  # takes no memory
    adjacency = sp.csr_matrix((edges.nodes, edges.nodes), dtype=np.int8)
    adjacency.data, adjacency.indices, adjacency.indptr = ones, near, ptr
    return owners_of(adjacency, parts, method)


class _PartFiles:
    """One .npy file for every part, of a known shape each; rows are appended by their owner."""

    def __init__(
        self, folders: list[Path], name: str, shapes: Iterable[tuple[int, ...]], dtype: Any
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.files = [(folder / f"{name}.npy").open("wb") for folder in folders]
        description = np.lib.format.dtype_to_descr(self.dtype)
        for file, shape in zip(self.files, shapes, strict=True):
            header = {"descr": description, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)

    def append(self, rows: np.ndarray, owner: np.ndarray) -> None:
        """Write every row [k, …] to the part that owns it, ``owner`` [k]."""
        for number, file in enumerate(self.files):
            file.write(np.ascontiguousarray(rows[owner == number], dtype=self.dtype).data)

    def __enter__(self) -> _PartFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()


def _write(
    target: Path,
    scratch: Path,
    graph: StreamedGraph,
    owner: np.ndarray,
    parts: int,
    told: OnProgress,
) -> list[PartSize]:
    folders = [part_folder(target, number) for number in range(parts)]
    own = np.bincount(owner, minlength=parts)
    entering = np.bincount(owner, graph.edges.degree, parts).astype(np.int64)
    _write_edges(folders, scratch, graph, owner, entering, told)
    _write_features(folders, graph, owner, own, told)
    _write_labels(folders, scratch, graph, owner, own, told)
    sizes = []
    for number, folder in enumerate(folders):
        halo = _write_halo(folder, scratch, owner, number, parts, int(entering[number]))
        width = graph.dataset.num_features
        np.save(folder / "sizes.npy", np.array([own[number], len(owner), width], dtype=np.int64))
        sizes.append(PartSize(int(own[number]), halo, int(entering[number])))
        told("writing parts", (number + 1) / parts)
    return sizes


def _write_edges(
    folders: list[Path],
    scratch: Path,
    graph: StreamedGraph,
    owner: np.ndarray,
    entering: np.ndarray,
    told: OnProgress,
) -> None:
    """Write the edge values of every part, and the ends of its edges to temporary files."""
    edges, width = graph.edges, len(graph.edges.feature_names)
    with ExitStack() as stack:

        def opened(name: str, *more: int) -> _PartFiles:
            shapes = [(count, *more) for count in entering.tolist()]
            return stack.enter_context(_PartFiles(folders, name, shapes, np.float32))

        weights = opened("edge_weight") if edges.weighted else None
        features = opened("edge_attr", width) if width else None
        ends = [
            [stack.enter_context(_ends(scratch, number, name).open("wb")) for name in ENDS]
            for number in range(len(folders))
        ]
        for lists in edges.lists():
            owned = owner[lists.target]
            for number, (source, target) in enumerate(ends):
                mine = owned == number
                lists.source[mine].tofile(source)
                lists.target[mine].astype(np.int32).tofile(target)
            if weights is not None and lists.weight is not None:
                weights.append(lists.weight, owned)
            if features is not None and lists.features is not None:
                features.append(lists.features, owned)
            told("dividing edges", lists.end / edges.nodes)


def _ends(scratch: Path, number: int, name: str) -> Path:
    return scratch / f"{name}-{number}"


def _write_features(
    folders: list[Path], graph: StreamedGraph, owner: np.ndarray, own: np.ndarray, told: OnProgress
) -> None:
    n, step, width = len(owner), graph.edges.stretch, graph.dataset.num_features
    ranges = [(begin, min(begin + step, n)) for begin in range(0, n, step)]
    with ExitStack() as stack:

        def opened(name: str, shapes: list[tuple[int, ...]], dtype: Any) -> _PartFiles:
            return stack.enter_context(_PartFiles(folders, name, shapes, dtype))

        if not graph.sparse:
            dense = opened("x", [(count, width) for count in own.tolist()], np.float32)
            for begin, end in ranges:
                dense.append(graph.rows(begin, end), owner[begin:end])
                told("dividing features", end / n)
            return
        counts = np.concatenate([np.diff(graph.rows(*each).indptr) for each in ranges])
        shapes: list[tuple[int, ...]] = []
        for number, folder in enumerate(folders):
            ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[owner == number])])
            np.save(folder / "x_ptr.npy", ptr.astype(np.int64))
            shapes.append((int(ptr[-1]),))
        column, value = opened("x_column", shapes, np.int64), opened("x_value", shapes, np.float32)
        for begin, end in ranges:
            rows = graph.rows(begin, end)
            owned = np.repeat(owner[begin:end], counts[begin:end])
            column.append(rows.indices, owned)
            value.append(rows.data, owned)
            told("dividing features", end / n)


def _write_labels(
    folders: list[Path],
    scratch: Path,
    graph: StreamedGraph,
    owner: np.ndarray,
    own: np.ndarray,
    told: OnProgress,
) -> None:
    """Write labels, masks and, for single-label data, the propagated labels."""
    data, classes = graph.dataset.graph, graph.dataset.num_classes
    for number, folder in enumerate(folders):
        mine = torch.from_numpy(owner == number)
        np.save(folder / "y.npy", data.y[mine].numpy())
        for name, key in zip(SPLITS, MASKS, strict=True):
            np.save(folder / f"{name}.npy", data[key][mine].numpy())
    if graph.dataset.multi_label:
        return
    label = torch.where(data.train_mask, data.y, -1).numpy()
    near = LabelLists(graph.edges, label, classes, scratch / "counts")
    shapes = [(count, HOPS, classes) for count in own.tolist()]
    with _PartFiles(folders, "label_features", shapes, np.float32) as files:
        for lists in graph.edges.lists():
            files.append(near.rows(lists), owner[lists.begin : lists.end])
            told("propagating labels", lists.end / len(owner))


def _write_halo(
    folder: Path, scratch: Path, owner: np.ndarray, number: int, parts: int, edges: int
) -> int:
    """Write the nodes of a part with its halo, and its renumbered edges; return the halo size."""
    seen = np.zeros(len(owner), dtype=bool)
    for source in _pieces(_ends(scratch, number, "source")):
        seen[source] = True
    halo = np.flatnonzero(seen & (owner != number))
    halo = halo[np.argsort(owner[halo], kind="stable")]
    ids = np.concatenate([np.flatnonzero(owner == number), halo])
    np.save(folder / "ids.npy", ids)
    np.save(folder / "halo_counts.npy", np.bincount(owner[halo], minlength=parts))
    place = np.empty(len(owner), dtype=np.int64)
    place[ids] = np.arange(len(ids))
    with _PartFiles([folder], "edge_index", [(2, edges)], np.int64) as file:
        for name in ENDS:
            for piece in _pieces(_ends(scratch, number, name)):
                file.append(place[piece], np.zeros(len(piece), dtype=np.int64))
            _ends(scratch, number, name).unlink()
    return len(halo)


def _pieces(path: Path) -> Iterator[np.ndarray]:
    """Node numbers of a file, block by block."""
    with path.open("rb") as file:
        while len(found := np.fromfile(file, np.int32, _AT_ONCE)):
            yield found
