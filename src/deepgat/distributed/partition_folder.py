"""A partitioned dataset on disk; each process reads its own part only.

``partition.json`` describes the dataset. ``parts/K/G`` holds part K of graph G as ``.npy`` files,
which are memory-mapped. ``nodes.json`` holds node names, if there are any; only the first process
reads it. The folder appears once it is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data import NodeDataset
from deepgat.distributed.part_dataset import PartDataset, cut_dataset
from deepgat.distributed.partition import owners
from deepgat.errors import UserError
from deepgat.files import FolderKind, new_folder, to_json

FORMAT = 1
DESCRIPTION = "partition.json"
NODES = "nodes.json"
PARTITION_FOLDER = FolderKind("partition", DESCRIPTION, (DESCRIPTION, NODES, "parts"))
DESCRIBED = (
    "name", "title", "num_features", "num_classes", "multi_label", "split",
    "class_names", "feature_names", "reading", "feature_plan",
)  # fmt: skip
"""Fields of the dataset in ``partition.json``."""
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
        **{name: getattr(dataset, name) for name in DESCRIBED},
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
    """The content of ``partition.json``."""
    try:
        found = json.loads((Path(folder) / DESCRIPTION).read_text())
        if found["format"] != FORMAT:
            raise UserError(
                f"{folder} has partition format {found['format']} but this deepgat reads format "
                f"{FORMAT}: partition the graph again"
            )
        found |= {name: tuple(found[name]) for name in ("class_names", "feature_names")}
        return {name: found[name] for name in ("parts", "graphs", *DESCRIBED)}
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise UserError(
            f"{folder} is not a partitioned graph: make one with deepgat partition"
        ) from error


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
        described["graphs"] = tuple(_read(inner / str(index)) for index in range(graphs))
        if number == 0 and names.exists():
            described["node_ids"] = tuple(json.loads(names.read_text()))
    except (OSError, ValueError) as error:
        raise UserError(
            f"part {number} of {folder} is damaged: partition the graph again"
        ) from error
    return PartDataset(**described, number=number, of=of)


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
        return torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c"))

    own, num_nodes, features = kept("sizes").tolist()
    if (folder / "x.npy").exists():
        x = kept("x")
    else:
        numbers = kept("x_ptr"), kept("x_column"), kept("x_value")
        x = torch.sparse_csr_tensor(*numbers, (own, features), check_invariants=False)
    there = {
        attribute: kept(name)
        for name, attribute in ARRAYS.items()
        if (folder / f"{name}.npy").exists()
    }
    return Data(own=own, num_nodes=num_nodes, x=x, **there)
