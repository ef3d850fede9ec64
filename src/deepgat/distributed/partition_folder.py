"""A partitioned dataset on disk; each process reads its own part only.

``partition.json`` describes the dataset. ``parts/K/G`` holds part K of graph G as ``.npy`` files,
which are memory-mapped. ``nodes.json`` holds node names, if there are any; only the first process
reads it. The folder appears once it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data import NodeDataset
from deepgat.data.tables.opening import opened, parse_json, read_whole
from deepgat.distributed.part_dataset import PartDataset, cut_dataset
from deepgat.distributed.partition import owners
from deepgat.errors import UserError
from deepgat.files import FolderKind, new_folder, to_json

FORMAT = 1
DESCRIPTION = "partition.json"
NODES = "nodes.json"
PARTITION_FOLDER = FolderKind("partition", DESCRIPTION, (DESCRIPTION, NODES, "parts"))
DESCRIBED = {
    "parts": int, "graphs": int, "name": str, "title": str, "num_features": int, "num_classes": int,
    "multi_label": bool, "split": str, "class_names": list, "feature_names": list,
    "reading": dict, "feature_plan": list,
}  # fmt: skip
"""Fields of ``partition.json`` and their types; after the first two, they are the dataset's."""
ARRAYS = {
    **{name: name for name in ("ids", "halo_counts", "edge_index", "y")},
    **{name: f"{name}_mask" for name in ("train", "val", "test")},
    **{name: name for name in ("label_features", "edge_weight", "edge_attr")},
}
"""File → attribute of a part; the last three are optional."""


@dataclass(frozen=True)
class PartSize:
    """The size of one part, summed over all graphs."""

    nodes: int
    halo: int
    edges: int


def write_partition(
    folder: Path,
    dataset: NodeDataset,
    parts: int,
    method: str = "auto",
    told: Callable[[str, float], None] | None = None,
) -> list[PartSize]:
    """Partition a dataset, write the parts and return their sizes."""
    found = [owners(g.edge_index, g.num_nodes, parts, method) for g in dataset.graphs]
    sizes = []
    with new_folder(folder, PARTITION_FOLDER) as target:
        for number in range(parts):
            mine = cut_dataset(dataset, found, number, parts).graphs
            for index, part in enumerate(mine):
                _write(part_folder(target, number, index), part)
            own, edges = sum(part.own for part in mine), sum(part.num_edges for part in mine)
            sizes.append(PartSize(own, sum(len(part.ids) for part in mine) - own, edges))
            if told is not None:
                told("writing parts", (number + 1) / parts)
        write_description(target, dataset, sizes)
    return sizes


def write_description(folder: Path, dataset: NodeDataset, sizes: list[PartSize]) -> None:
    """Write ``partition.json``, and ``nodes.json`` if nodes have names."""
    description = {
        "format": FORMAT,
        "parts": len(sizes),
        "graphs": len(dataset.graphs),
        **{name: getattr(dataset, name) for name in list(DESCRIBED)[2:]},
        "sizes": [vars(size) for size in sizes],
    }
    (folder / DESCRIPTION).write_text(to_json(description, indent=1))
    if dataset.node_ids:
        (folder / NODES).write_text(to_json(dataset.node_ids))


def part_folder(folder: Path, number: int, graph: int = 0) -> Path:
    """Create the folder of one part of one graph."""
    inner = folder / "parts" / str(number) / str(graph)
    inner.mkdir(parents=True)
    return inner


def is_partition(folder: str | os.PathLike[str]) -> bool:
    return os.path.isfile(Path(folder) / DESCRIPTION)  # Path.is_file raises if names are too long


def read_description(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of ``partition.json``, checked."""
    try:
        found = parse_json(read_whole(Path(folder) / DESCRIPTION), DESCRIPTION)
        if found["format"] == FORMAT:
            found = {name: _typed(found[name], kind) for name, kind in DESCRIBED.items()}
            names = {name: tuple(found[name]) for name in ("class_names", "feature_names")}
            "".join(chain(*names.values()))  # texts, all of them
            return found | names
        number = found["format"]
    except (UserError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder} is not a partitioned graph: make one with deepgat partition"
        ) from error
    raise UserError(
        f"{folder} has partition format {number!r} but this deepgat reads format {FORMAT}: "
        "partition the graph again"
    )


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of {kind}")
    return value


def read_part(folder: str | os.PathLike[str], number: int, of: int) -> PartDataset:
    """Part ``number`` of a folder written for ``of`` processes."""
    described = read_description(folder)
    parts, graphs = described.pop("parts"), described.pop("graphs")
    if parts != of:
        raise UserError(
            f"{folder} is partitioned for {parts} processes but there are {of}: "
            f"start {parts}, or partition it into {of} parts"
        )
    inner, names = Path(folder) / "parts" / str(number), Path(folder) / NODES
    try:
        shapes = described["num_features"], described["num_classes"], described["multi_label"]
        found = tuple(_read(inner / str(index)) for index in range(graphs))
        sound = all(_fits(part, of, *shapes) for part in found)
        if number == 0 and names.exists():
            described["node_ids"] = tuple(_typed(parse_json(read_whole(names), NODES), list))
            "".join(described["node_ids"])
            sound = sound and len(described["node_ids"]) == found[0].num_nodes
        if not sound:
            raise ValueError("its arrays do not fit together")
    except Exception as error:  # numpy and torch raise many kinds of errors
        raise UserError(
            f"part {number} of {folder} is damaged: partition the graph again"
        ) from error
    return PartDataset(**described, graphs=found, number=number, of=of)


def _fits(part: Data, parts: int, features: int, classes: int, multi_label: bool) -> bool:
    """Whether the arrays of a part fit together; kernels and exchanges trust them."""
    own, near, e = part.own, len(part.ids), part.edge_index.size(-1)
    whole: dict[str, tuple[int, ...]] = {
        "ids": (near,),
        "halo_counts": (parts,),
        "edge_index": (2, e),
    }
    if not multi_label:
        whole["y"] = (own,)
    masks = {f"{name}_mask": (own,) for name in ("train", "val", "test")}
    real: dict[str, tuple[int, ...]] = {"x": (own, features)}
    real |= {"y": (own, classes)} if multi_label else {}
    real |= {"edge_weight": (e,)} if "edge_weight" in part else {}
    shaped = all(
        part[name].shape == shape and part[name].dtype == kind
        for kind, arrays in ((torch.int64, whole), (torch.bool, masks), (torch.float32, real))
        for name, shape in arrays.items()
    )
    shaped = shaped and all(
        len(part[name]) == count and part[name].dtype == torch.float32
        for name, count in (("edge_attr", e), ("label_features", own))
        if name in part
    )
    return shaped and all(
        not numbers.numel() or 0 <= int(numbers.min()) <= int(numbers.max()) < most
        for numbers, most in (
            (part.ids, part.num_nodes),
            (part.edge_index[0], near),
            (part.edge_index[1], own),
            (part.halo_counts, near + 1),
            (part.halo_counts.sum() + own - near, 1),
        )
    )


def _write(folder: Path, part: Data) -> None:
    def keep(name: str, item: Tensor) -> None:
        np.save(folder / f"{name}.npy", item.contiguous().numpy())

    keep("sizes", torch.tensor([part.own, part.num_nodes, part.x.size(1)]))
    for name, attribute in ARRAYS.items():
        if attribute in part:
            keep(name, part[attribute])
    if part.x.layout == torch.strided:
        keep("x", part.x)
    else:
        keep("x_ptr", part.x.crow_indices())
        keep("x_column", part.x.col_indices())
        keep("x_value", part.x.values())


def _read(folder: Path) -> Data:
    def kept(name: str) -> Tensor:
        # copy on write: torch warns about read-only arrays
        with opened(folder / f"{name}.npy") as file:
            return torch.from_numpy(np.load(file.name, mmap_mode="c"))

    own, num_nodes, features = kept("sizes").tolist()
    if (folder / "x.npy").exists():
        x = kept("x")
    else:
        numbers = kept("x_ptr"), kept("x_column"), kept("x_value")
        x = torch.sparse_csr_tensor(*numbers, (own, features), check_invariants=True)
    there = {
        attribute: kept(name)
        for name, attribute in ARRAYS.items()
        if (folder / f"{name}.npy").exists()
    }
    return Data(own=own, num_nodes=num_nodes, x=x, **there)
