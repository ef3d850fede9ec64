"""``deepgat::neighbor_lists``: neighbour lists as one operator of a traced graph.

The sizes of the lists depend on the edges, so they are unknown while ``torch.compile`` traces. When
the graph runs, the operator asks the cache of lists (``neighbor_cache.py``). It returns copies,
because a compiled graph overwrites what it no longer needs. Building lists reads from the device,
which CUDA graphs cannot record: torch versions that know the tag run the operator between two
recorded parts, and older ones do not record the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepgat.ops.list_checks import check_edge_index
from deepgat.ops.neighbor_cache import edge_lists
from deepgat.ops.neighbors import LISTS, Neighbors

_TAG = getattr(torch.Tag, "cudagraph_unsafe", None)
_TAGS: dict[str, Any] = {} if _TAG is None else {"tags": (_TAG,)}


@torch.library.custom_op("deepgat::neighbor_lists", mutates_args=(), **_TAGS)
def neighbor_lists(edge_index: Tensor, num_nodes: int) -> list[Tensor]:
    """The lists named in ``LISTS``, and a tensor of size 1 if they are symmetric, else of size 0.

    The host knows every size, so telling by it does not wait for a GPU.
    """
    neighbors = edge_lists(edge_index, num_nodes).neighbors
    lists = [getattr(neighbors, name).clone() for name in LISTS]
    return [*lists, neighbors.ptr.new_empty(int(neighbors.symmetric))]


@neighbor_lists.register_fake
def _(edge_index: Tensor, num_nodes: int) -> list[Tensor]:
    size = torch.library.get_ctx().new_dynamic_size
    edges, ends = size(), num_nodes + 1
    shapes: dict[str, tuple[Any, ...]] = {
        "ptr": (ends,), "source": (edges,), "target": (edges,),
        "source_ptr": (ends,), "by_source": (edges,), "target_by_source": (edges,),
        "pieces": (size(), 4), "hubs": (size(), 3),
        "source_pieces": (size(), 4), "source_hubs": (size(), 3),
    }  # fmt: skip
    nodes = ("source", "target", "target_by_source")
    lists = [
        edge_index.new_empty(shapes[name], dtype=torch.int32 if name in nodes else torch.int64)
        for name in LISTS
    ]
    return [*lists, edge_index.new_empty(size(max=1), dtype=torch.int64)]


def traced_lists(edge_index: Tensor, num_nodes: int) -> Neighbors:
    """The lists inside a traced graph, where ``symmetric`` is a size that is not known yet."""
    check_edge_index(edge_index, num_nodes)
    *lists, symmetric = neighbor_lists(edge_index, num_nodes)
    named: dict[str, Any] = dict(zip(LISTS, lists, strict=True))
    return Neighbors(**named, symmetric=symmetric.size(0))
