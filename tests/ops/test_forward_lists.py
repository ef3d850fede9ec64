"""Lists for predictions: what networks compute on them, prefixes, and what they refuse."""

import pytest
import torch

from deepgat.errors import UserError
from deepgat.ops import DotProduct, ForwardLists, Neighbors, neighbor_attention, use_backend
from deepgat.ops.differences import neighbor_differences

from graphs import random_edges


def lists_of(n=700, weights=True):
    """The lists of a graph with a hub, twice: a list of more than 512 entries is split."""
    star = torch.stack([torch.arange(600), torch.zeros(600, dtype=torch.long)])
    index = torch.cat([random_edges(n, 900), star], 1)
    whole = Neighbors.from_edge_index(index, n)
    if weights:
        whole = whole.with_values(index, torch.rand(index.size(1)), torch.randn(index.size(1), 2))
    return whole, ForwardLists.of(whole.ptr, whole.source, whole.log_weight, whole.features)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("normalization", ["row", "symmetric"])
def test_they_compute_what_lists_with_gradients_do(backend, normalization):
    whole, found = lists_of()
    value, q = torch.randn(700, 2, 3), torch.randn(700, 2, 4)
    with torch.no_grad(), use_backend(backend):
        one, other = (
            neighbor_attention(each, value, DotProduct(q, q, 1.0), normalization, 0.0,
                               each.log_weight)
            for each in (whole, found)
        )  # fmt: skip
    assert torch.equal(one, other)
    assert torch.equal(whole.edge_index, found.edge_index)


def test_a_prefix_has_complete_lists_and_nodes_alone():
    _, whole = lists_of()
    complete = 5
    rows = 1 + int(whole.source[: whole.ptr[complete]].max())
    part = whole.first(complete, rows)
    edges = int(whole.ptr[complete])
    assert part.num_nodes == rows
    assert torch.equal(part.ptr[: complete + 1], whole.ptr[: complete + 1])
    assert torch.equal(part.source[:edges], whole.source[:edges])
    assert torch.equal(part.features[:edges], whole.features[:edges])
    assert torch.equal(part.source[edges:], torch.arange(complete, rows).int())
    assert torch.equal(part.target[edges:], part.source[edges:])
    assert not part.features[edges:].any()
    assert not part.log_weight[edges:].any()  # log 1
    none = whole.first(0, 3)
    assert none.source.tolist() == [0, 1, 2]
    assert none.ptr.tolist() == [0, 1, 2, 3]


def test_they_refuse_gradients():
    _, found = lists_of(weights=False)
    value = torch.randn(700, 1, 3, requires_grad=True)
    with pytest.raises(UserError, match="neighbors serve predictions only"):
        neighbor_attention(found, value, DotProduct(value, value, 1.0))
    with pytest.raises(UserError, match="neighbors serve predictions only"):
        neighbor_differences(found, value.view(700, 3), 2.0)
    with pytest.raises(UserError, match="these lists serve predictions"):
        found.select(found.source == found.target, symmetric=True)
    moved = found.to("cpu")
    assert isinstance(moved, ForwardLists)
    assert torch.equal(moved.source, found.source)
