"""A cache of parsed graphs: one safetensors file per dataset, written atomically.

A file holds ``edge_index``, ``y``, the masks of the dataset, ``x`` (or the three arrays of its CSR
form) and, for several graphs, ``batch``: the graph of each node. Nothing is pickled.
"""

import os
import secrets
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data.feature_matrix import csr_tensor

VERSION = "1"
CSR_PARTS = ("x.crow", "x.col", "x.values")
OPTIONAL = ("train_mask", "val_mask", "test_mask")


class DamagedFile(Exception):  # noqa: N818 - a state of the file, handled by building it anew
    """The file exists but is not what :func:`write_graphs` wrote."""


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder given, else DEEPGAT_CACHE, else ``deepgat`` in the user's cache folder."""
    if given is not None:
        return Path(given)
    if own := os.environ.get("DEEPGAT_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "deepgat"


def graph_file(folder: Path, key: str) -> Path:
    """The path of the parsed dataset ``key``."""
    return folder / "graphs" / f"{key}-v{VERSION}.safetensors"


def write_graphs(path: Path, graphs: Sequence[Data]) -> None:
    """Write under a temporary name, then rename: readers never see part of the file."""
    tensors = _to_tensors(graphs)
    metadata = {"features": str(graphs[0].x.shape[1]), "checksum": _checksum(tensors)}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not mkstemp or save_file, whose files only the owner may read: a cache can be shared.
    temporary = path.with_name(f".{path.stem}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(save(tensors, metadata))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_graphs(path: Path) -> tuple[Data, ...]:
    """The graphs of a file; :class:`DamagedFile` if it is truncated, altered or of another kind."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # The tensors are views of the mapped file. If someone truncated it later, reading them
            # would kill the process.
            names = file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}
        if metadata.get("checksum") != _checksum(tensors):
            raise DamagedFile(f"{path}: the checksum does not match the content")
        return _to_graphs(tensors, int(metadata["features"]))
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError, IndexError) as error:
        raise DamagedFile(f"{path}: {error}") from error


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(name.encode(), total)
        total = zlib.crc32(tensors[name].numpy().reshape(-1).view("uint8").data, total)
    return f"{total:08x}"


def _to_tensors(graphs: Sequence[Data]) -> dict[str, Tensor]:
    tensors = {"y": torch.cat([graph.y for graph in graphs])}
    tensors |= {
        key: torch.cat([graph[key] for graph in graphs]) for key in OPTIONAL if key in graphs[0]
    }
    sizes = torch.tensor([len(graph.y) for graph in graphs])
    starts = sizes.cumsum(0) - sizes
    tensors["edge_index"] = torch.cat(
        [graph.edge_index + start for graph, start in zip(graphs, starts, strict=True)], dim=1
    )
    if len(graphs) > 1:
        tensors["batch"] = torch.repeat_interleave(torch.arange(len(graphs)), sizes)
    x = graphs[0].x
    if x.layout is torch.sparse_csr:
        if len(graphs) > 1:
            raise ValueError("only a single graph may have sparse features")
        parts = (x.crow_indices(), x.col_indices(), x.values())
        tensors |= dict(zip(CSR_PARTS, parts, strict=True))
    else:
        tensors["x"] = torch.cat([graph.x for graph in graphs])
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _to_graphs(tensors: dict[str, Tensor], num_features: int) -> tuple[Data, ...]:
    y, edge_index = tensors["y"], tensors["edge_index"]
    x = tensors["x"] if "x" in tensors else csr_tensor(*_csr_parts(tensors), num_features)
    whole = {"x": x, "y": y} | {key: tensors[key] for key in OPTIONAL if key in tensors}
    if "batch" not in tensors:
        return (Data(edge_index=edge_index, **whole),)
    batch = tensors["batch"]
    count = int(batch[-1]) + 1
    sizes = batch.bincount(minlength=count).tolist()
    # Edges were written graph by graph, so each graph's are one slice.
    edges = batch[edge_index[0]].bincount(minlength=count).tolist()
    graphs = []
    parts = {key: value.split(sizes) for key, value in whole.items()}
    start = 0
    for i, own in enumerate(edge_index.split(edges, dim=1)):
        node_values = {key: value[i] for key, value in parts.items()}
        graphs.append(Data(edge_index=own - start, **node_values))
        start += sizes[i]
    return tuple(graphs)


def _csr_parts(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    crow, col, values = (tensors[name] for name in CSR_PARTS)
    return crow, col, values
