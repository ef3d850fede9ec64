"""``deepgat::attend`` on lists that are packed into one tensor."""

import pytest
import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops import Neighbors
from deepgat.ops.attention_operator import ADDITIVE, AS_IS, DOT, LISTS, NONE, SOFTMAX, attend
from deepgat.ops.cpu import kernels
from deepgat.ops.packed_lists import Lengths, Packed, as_sizes, original, pack

from graphs import random_edges

pytestmark = pytest.mark.skipif(
    not kernels.available(), reason="the native kernels are not built here: no compiler"
)
N = 1100
HUB = torch.stack([torch.arange(N), torch.zeros(N, dtype=torch.long)])
"""Node 0 has a list that is cut into pieces."""
KINDS = {
    "class": (DOT, SOFTMAX, True),
    "dot": (DOT, AS_IS, False),
    "gat": (ADDITIVE, AS_IS, False),
    "uniform": (NONE, AS_IS, False),
}


def lists_of(directed: bool) -> tuple[Neighbors, Packed]:
    edge_index = torch.cat([random_edges(N, 3000, directed=directed), HUB], 1)
    if not directed:
        edge_index = torch.cat([edge_index, HUB.flip(0)], 1)
    near = Neighbors.from_edge_index(edge_index, N)
    assert near.symmetric != directed
    return near, pack(near, edge_index.size(1) + N)


def arguments(near: Neighbors, kind: str, biased: bool, lists: list[Tensor]) -> tuple[list, tuple]:
    number, activation, shared = KINDS[kind]
    width = 1 if number == ADDITIVE else 5
    torch.manual_seed(1)
    query, key = (torch.randn(near.num_nodes, 8, width, requires_grad=True) for _ in range(2))
    value = torch.randn(near.num_nodes, 8, 4, requires_grad=True)
    bias = torch.randn(near.num_edges, 8, requires_grad=True) if biased else None
    if number == NONE:
        query = key = None
    tensors = [query, None if shared else key, value, bias]
    settings = number, activation, 0.5, 0.2, False, shared, int(near.symmetric), 0.0
    return tensors, (lists, *tensors, None, *settings)


def found(given: tuple[list, tuple], lengths: tuple = ()) -> list[Tensor]:
    tensors, inputs = given
    leaves = [x for x in tensors if x is not None]
    out, log_sum = attend(*inputs, lengths)
    return [out, log_sum, *torch.autograd.grad(out.square().sum(), leaves)]


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_lists_give_the_same_bits(kind, biased, directed):
    near, packed = lists_of(directed)
    expected = found(arguments(near, kind, biased, [getattr(near, name) for name in LISTS]))
    copy = packed.lists.clone()
    assert original(packed.lists) is near
    assert original(copy) is None
    for lists in (packed.lists, copy):
        got = found(arguments(near, kind, biased, [lists]), packed.lengths)
        for mine, theirs in zip(got, expected, strict=True):
            assert torch.equal(mine, theirs)


def test_lists_go_with_the_tensor_they_were_packed_into():
    near, packed = lists_of(directed=True)
    number = id(near)
    assert original(packed.lists) is near
    del near
    assert id(original(packed.lists)) == number


def test_lengths_of_any_graph_fit_into_sizes():
    largest = Lengths(2**31, 1, 2**31, 2**31, 2**22, 2**31, 2**22)
    assert as_sizes(torch.zeros(1), largest).shape == (0, *largest[1:])


@pytest.mark.parametrize(
    "wrong",
    [{"edges": 10**6}, {"pieces": 10**6}, {"source_hubs": 99}, {"hubs": -1}, {"most": 5}],
    ids=str,
)
def test_lengths_that_do_not_fit_are_refused(wrong):
    near, packed = lists_of(directed=True)
    _, inputs = arguments(near, "class", False, [packed.lists.clone()])
    with pytest.raises(UserError, match="take both from deepgat::neighbor_lists"):
        attend(*inputs, packed.lengths._replace(**wrong))


def test_lists_of_another_type_are_refused():
    near, packed = lists_of(directed=True)
    _, inputs = arguments(near, "class", False, [packed.lists.int()])
    with pytest.raises(UserError, match="not a vector of int64"):
        attend(*inputs, packed.lengths)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_registered_properly(kind):
    edge_index = random_edges(6, 9)
    near = Neighbors.from_edge_index(edge_index, 6)
    packed = pack(near, edge_index.size(1) + 6)
    _, inputs = arguments(near, kind, kind == "gat", [packed.lists])
    results = torch.library.opcheck(torch.ops.deepgat.attend.default, (*inputs, packed.lengths))
    assert set(results.values()) == {"SUCCESS"}
