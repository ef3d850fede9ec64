"""Partitions a graph on disk that need not fit into memory.

The files are byte for byte those of ``partition_folder.write_partition`` for the same owners.
Memory grows with the number of nodes and the edges of 1/256 of them, not with all edges or the
features. METIS and "order" also hold all neighbours, at 4 bytes each; "stream" does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from deepgat.data import NodeDataset, ReadOptions
from deepgat.data.tables.label_lists import HOPS, LabelLists
from deepgat.data.tables.streamed import StreamedGraph, Told, stream_graph
from deepgat.data.transforms import MASKS, SPLITS
from deepgat.distributed.partition import chosen_method, owners_of, stream_owners
from deepgat.distributed.partition_folder import (
    PARTITION_FOLDER,
    PartSize,
    part_folder,
    write_description,
)
from deepgat.files import new_folder

_AT_ONCE = 2**22
"""Node numbers of an edge file to read at once."""


def write_streamed(
    folder: Path,
    path: Path,
    options: ReadOptions,
    split: str | None,
    parts: int,
    method: str = "auto",
    told: Told = lambda what, share: None,
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


def _owners(graph: StreamedGraph, parts: int, method: str, told: Told) -> np.ndarray:
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


class _ArrayFile:
    """An .npy file of a known shape, written from start to end."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        self.file = path.open("wb")
        self.dtype = np.dtype(dtype)
        description = np.lib.format.dtype_to_descr(self.dtype)
        header = {"descr": description, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, header)

    def append(self, items: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(items, dtype=self.dtype).data)

    def __enter__(self) -> _ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _write(
    target: Path,
    scratch: Path,
    graph: StreamedGraph,
    owner: np.ndarray,
    parts: int,
    told: Told,
) -> list[PartSize]:
    folders = [part_folder(target, number) for number in range(parts)]
    own = np.bincount(owner, minlength=parts)
    entering = np.zeros(parts, dtype=np.int64)
    np.add.at(entering, owner, graph.edges.degree)
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
    told: Told,
) -> None:
    """Write the edge values of every part, and the ends of its edges to temporary files."""
    edges = graph.edges
    with ExitStack() as stack:
        values: dict[str, list[_ArrayFile]] = {"edge_weight": [], "edge_attr": []}
        for folder, count in zip(folders, entering.tolist(), strict=True):
            shapes = {
                "edge_weight": (count,) if edges.weighted else None,
                "edge_attr": (count, len(edges.feature_names)) if edges.feature_names else None,
            }
            for name, shape in shapes.items():
                if shape is not None:
                    file = _ArrayFile(folder / f"{name}.npy", shape, np.float32)
                    values[name].append(stack.enter_context(file))
        ends = {
            name: [stack.enter_context(_ends(scratch, number, name).open("wb"))
                   for number in range(len(folders))]
            for name in ("source", "target")
        }  # fmt: skip
        for lists in edges.lists():
            target = lists.target
            owned = owner[target]
            for number in range(len(folders)):
                mine = owned == number
                lists.source[mine].tofile(ends["source"][number])
                target[mine].astype(np.int32).tofile(ends["target"][number])
                if lists.weight is not None:
                    values["edge_weight"][number].append(lists.weight[mine])
                if lists.features is not None:
                    values["edge_attr"][number].append(lists.features[mine])
            told("dividing edges", lists.end / edges.nodes)


def _ends(scratch: Path, number: int, name: str) -> Path:
    return scratch / f"{name}-{number}"


def _write_features(
    folders: list[Path], graph: StreamedGraph, owner: np.ndarray, own: np.ndarray, told: Told
) -> None:
    n, step, width = len(owner), graph.edges.stretch, graph.dataset.num_features
    with ExitStack() as stack:
        if not graph.sparse:
            dense = [
                stack.enter_context(_ArrayFile(folder / "x.npy", (int(count), width), np.float32))
                for folder, count in zip(folders, own, strict=True)
            ]
            for begin in range(0, n, step):
                rows = graph.rows(begin, min(begin + step, n))
                for number, file in enumerate(dense):
                    file.append(rows[owner[begin : begin + step] == number])
                told("dividing features", min(1.0, (begin + step) / n))
            return
        counts = np.zeros(n, dtype=np.int64)
        for begin in range(0, n, step):
            counts[begin : begin + step] = np.diff(graph.rows(begin, min(begin + step, n)).indptr)
        files = []
        for number, folder in enumerate(folders):
            ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[owner == number])])
            np.save(folder / "x_ptr.npy", ptr)
            shape = (int(ptr[-1]),)
            column = _ArrayFile(folder / "x_column.npy", shape, np.int64)
            value = _ArrayFile(folder / "x_value.npy", shape, np.float32)
            files.append((stack.enter_context(column), stack.enter_context(value)))
        for begin in range(0, n, step):
            rows = graph.rows(begin, min(begin + step, n))
            for number, (column, value) in enumerate(files):
                mine = rows[owner[begin : begin + step] == number]
                column.append(mine.indices)
                value.append(mine.data)
            told("dividing features", min(1.0, (begin + step) / n))


def _write_labels(
    folders: list[Path],
    scratch: Path,
    graph: StreamedGraph,
    owner: np.ndarray,
    own: np.ndarray,
    told: Told,
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
    with ExitStack() as stack:
        files = []
        for folder, count in zip(folders, own.tolist(), strict=True):
            shape = (count, HOPS, classes)
            file = _ArrayFile(folder / "label_features.npy", shape, np.float32)
            files.append(stack.enter_context(file))
        for lists in graph.edges.lists():
            rows = near.rows(lists)
            for number, file in enumerate(files):
                file.append(rows[owner[lists.begin : lists.end] == number])
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
    with _ArrayFile(folder / "edge_index.npy", (2, edges), np.int64) as file:
        for name in ("source", "target"):
            for piece in _pieces(_ends(scratch, number, name)):
                file.append(place[piece])
            _ends(scratch, number, name).unlink()
    return len(halo)


def _pieces(path: Path) -> Iterator[np.ndarray]:
    """Node numbers of a file, block by block."""
    with path.open("rb") as file:
        while len(found := np.fromfile(file, np.int32, _AT_ONCE)):
            yield found
