"""A cache of parsed graphs: one safetensors file per dataset, written atomically.

A file holds the tensors of graph i under the names ``i/edge_index``, ``i/x`` and so on; features
in CSR form are three arrays and a width. Nothing is pickled.
"""

import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch_geometric.data import Data

from deepgat.data.feature_matrix import csr_tensor
from deepgat.files import write_whole

VERSION = "2"


class DamagedFile(Exception):  # noqa: N818 - a state of the file, handled by building it anew
    """The file exists but is not what :func:`write_graphs` wrote."""


def graph_file(key: str) -> Path:
    """The parsed dataset ``key``, in DEEPGAT_CACHE or ``deepgat`` in the user's cache folder."""
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = os.environ.get("DEEPGAT_CACHE") or Path(shared) / "deepgat"
    return Path(folder) / "graphs" / f"{key}-v{VERSION}.safetensors"


def write_graphs(path: Path, graphs: Sequence[Data]) -> None:
    """Write under a temporary name, then rename: readers never see part of the file."""
    tensors: dict[str, Tensor] = {}
    for i, graph in enumerate(graphs):
        parts = graph.to_dict()
        if graph.x.layout is torch.sparse_csr:
            x = parts.pop("x")
            parts |= {"crow": x.crow_indices(), "col": x.col_indices(), "values": x.values()}
            parts["width"] = torch.tensor(x.shape[1])
        tensors |= {f"{i}/{name}": part.contiguous() for name, part in parts.items()}
    write_whole(path, save(tensors, {"checksum": _checksum(tensors)}))


def read_graphs(path: Path) -> tuple[Data, ...]:
    """The graphs of a file; :class:`DamagedFile` if it is truncated, altered or of another kind."""
    try:
        with safe_open(path, framework="pt") as file:
            checksum = (file.metadata() or {}).get("checksum")
            # The tensors are views of the mapped file. If someone truncated it later, reading them
            # would kill the process.
            names = file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (OSError, SafetensorError) as error:
        raise DamagedFile(f"{path}: {error}") from error
    if checksum != _checksum(tensors):
        raise DamagedFile(f"{path}: the checksum does not match the content")
    graphs: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, part = name.partition("/")
        graphs.setdefault(int(number), {})[part] = tensor
    return tuple(_graph(graphs[number]) for number in sorted(graphs))


def _graph(parts: dict[str, Tensor]) -> Data:
    if "width" in parts:
        crow, col, values = (parts.pop(name) for name in ("crow", "col", "values"))
        parts["x"] = csr_tensor(crow, col, values, int(parts.pop("width")))
    return Data(**parts)


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(name.encode(), total)
        total = zlib.crc32(tensors[name].numpy().reshape(-1).view("uint8").data, total)
    return f"{total:08x}"
