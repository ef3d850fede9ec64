"""``deepgat::neighbor_lists``: neighbour lists as an operator of a traced graph.

The operator returns all lists in one tensor (``packed_lists.py``). Their lengths depend on the
edges, so they are unknown while ``torch.compile`` traces. A second operator,
``deepgat::neighbor_list_lengths``, returns them as the sizes of an empty tensor: the host knows
sizes without waiting for a GPU. Two operators with a result each, because torch hands the whole
result of an operator that defines sizes to the recorded part, which takes tensors only.

When the graph runs, the operator asks the cache of lists (``neighbor_cache.py``) and returns the
tensor that is kept there, not a copy. So the address stays the same from call to call, and a CUDA
graph can read it. A compiled graph may overwrite what it no longer needs, but only with a tensor of
the same symbolic size. The size of the packed lists is therefore a symbol of its own, unrelated to
those of ``edge_index``, and nothing else in the graph has it.

Building lists reads from the device, which CUDA graphs cannot record: torch versions that know the
tag run the operators between two recorded parts, and older ones do not record the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepgat.ops.list_checks import check_edge_index
from deepgat.ops.neighbor_cache import edge_lists
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.packed_lists import (
    Lengths,
    Packed,
    as_sizes,
    lengths_of,
    original,
    traced_neighbors,
)

LIBRARY = torch.library.Library("deepgat", "FRAGMENT")
_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)
_TAGS: Any = (torch.Tag.pt2_compliant_tag, *([] if _UNSAFE is None else [_UNSAFE]))

LIBRARY.define("neighbor_lists(Tensor edge_index, SymInt num_nodes) -> Tensor", tags=_TAGS)
LIBRARY.define(
    "neighbor_list_lengths(Tensor lists, Tensor edge_index, SymInt num_nodes) -> Tensor",
    tags=_TAGS,
)


def neighbor_lists(edge_index: Tensor, num_nodes: int) -> Tensor:
    """The packed lists of these edges."""
    return edge_lists(edge_index, num_nodes).packed()


def neighbor_list_lengths(lists: Tensor, edge_index: Tensor, num_nodes: int) -> Tensor:
    """An empty tensor [0, …] whose other sizes are the lengths of the packed ``lists``."""
    near = original(lists)
    if near is None:
        near = edge_lists(edge_index, num_nodes).neighbors
    return as_sizes(lists, lengths_of(near, num_nodes + edge_index.size(1)))


LIBRARY.impl("neighbor_lists", neighbor_lists, "CompositeExplicitAutograd")
LIBRARY.impl("neighbor_list_lengths", neighbor_list_lengths, "CompositeExplicitAutograd")


@torch.library.register_fake("deepgat::neighbor_lists", lib=LIBRARY)
def _(edge_index: Tensor, num_nodes: int) -> Tensor:
    return edge_index.new_empty(_new_size(), dtype=torch.int64)


@torch.library.register_fake("deepgat::neighbor_list_lengths", lib=LIBRARY)
def _(lists: Tensor, edge_index: Tensor, num_nodes: int) -> Tensor:
    lengths: Any = (_new_size(1), *(_new_size() for _ in Lengths._fields[2:]))
    return as_sizes(lists, Lengths(0, *lengths))


def _new_size(largest: int | None = None) -> torch.SymInt:
    """A size that depends on the edges.

    ``torch.compile`` without ``fullgraph`` refuses such sizes by default: it would break the graph
    at the operator and then trace the Python code behind it.
    """
    context = torch.library.get_ctx()
    env = getattr(context, "_shape_env", None)
    if env is not None and not env.allow_dynamic_output_shape_ops:
        from torch._library.fake_impl import allocate_size

        return allocate_size(env, 0, largest)
    return context.new_dynamic_size(max=largest)


def traced_lists(edge_index: Tensor, num_nodes: int) -> Neighbors:
    """The lists inside a traced graph, where their lengths and ``symmetric`` are not known yet."""
    check_edge_index(edge_index, num_nodes)
    lists = torch.ops.deepgat.neighbor_lists.default(edge_index, num_nodes)
    sizes = torch.ops.deepgat.neighbor_list_lengths.default(lists, edge_index, num_nodes)
    lengths = Lengths(num_nodes + edge_index.size(1), *sizes.shape[1:])
    return traced_neighbors(Packed(lists, lengths), num_nodes)
