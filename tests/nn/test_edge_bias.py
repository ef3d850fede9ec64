"""Edge weights and edge features in the attention, against the sums written out."""

import pytest
import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.nn import AdditiveScore, DotScore, NeighborAttention, UniformScore
from deepgat.ops import Neighbors

EDGES = torch.tensor([[0, 1, 1, 2, 3, 0, 2], [1, 0, 2, 1, 3, 1, 0]])  # 0→1 twice, a loop at 3
WEIGHT = torch.tensor([0.5, 2.0, 1.5, 0.0, 3.0, 0.25, 4.0], dtype=torch.double)


def dense_weights(n: int) -> Tensor:
    """w[v, u]: weights of edges u → v added, 1 for a self-loop that is not there, 0 elsewhere."""
    matrix = torch.zeros(n, n, dtype=torch.double)
    for (u, v), weight in zip(EDGES.t().tolist(), WEIGHT.tolist(), strict=True):
        matrix[v, u] += weight
    named = {u for u, v in EDGES.t().tolist() if u == v}
    for v in range(n):
        if v not in named:
            matrix[v, v] = 1.0
    return matrix


def test_weights_multiply_the_exponential():
    conv = NeighborAttention(3, 2, 2, score=DotScore, bias=False).double()
    x = torch.randn(4, 3, dtype=torch.double)
    h = (x @ conv.weight.t()).view(4, 2, 2)
    expected = torch.zeros(4, 2, 2, dtype=torch.double)
    matrix = dense_weights(4)
    for head in range(2):
        e = matrix * (h[:, head] @ h[:, head].t()).exp()
        expected[:, head] = (e / e.sum(1, keepdim=True)) @ h[:, head]
    torch.testing.assert_close(conv(x, EDGES, edge_weight=WEIGHT), expected.flatten(1))
    near = Neighbors.from_edge_index(EDGES, 4)
    listed = matrix[near.target.long(), near.source.long()]
    torch.testing.assert_close(conv(x, near, edge_weight=listed), expected.flatten(1))


def test_features_join_by_a_linear_map_and_learn():
    conv = NeighborAttention(3, 2, 2, score=UniformScore, bias=False, edge_dim=2).double()
    x = torch.randn(4, 3, dtype=torch.double)
    attr = torch.randn(7, 2, dtype=torch.double, requires_grad=True)
    h = (x @ conv.weight.t()).view(4, 2, 2)
    scores = torch.full((4, 4, 2), -torch.inf, dtype=torch.double)
    rows: dict[tuple[int, int], list[Tensor]] = {(v, v): [] for v in range(4)}
    for (u, v), row in zip(EDGES.t().tolist(), attr, strict=True):
        rows.setdefault((v, u), []).append(row)
    for (v, u), found in rows.items():
        mean = torch.stack(found).mean(0) if found else torch.zeros(2, dtype=torch.double)
        scores[v, u] = conv.edge_map.weight @ mean
    expected = torch.einsum("vuh,uhd->vhd", scores.softmax(1), h).flatten(1)
    out, (edge_index, alpha) = conv(x, EDGES, return_attention_weights=True, edge_attr=attr)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(alpha, scores.softmax(1)[edge_index[1], edge_index[0]])
    leaves = [attr, conv.edge_map.weight]
    upstream = torch.randn_like(out)
    for mine, theirs in zip(
        torch.autograd.grad(out, leaves, upstream, retain_graph=True),
        torch.autograd.grad(expected, leaves, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_what_does_not_fit_is_refused():
    conv = NeighborAttention(3, 2, 2, score=AdditiveScore)
    x = torch.randn(4, 3)
    with pytest.raises(UserError, match=r"edge_weight has shape \[3\]: expected \[7\]"):
        conv(x, EDGES, edge_weight=torch.ones(3))
    with pytest.raises(UserError, match="has no edge_dim: make it with edge_dim=2"):
        conv(x, EDGES, edge_attr=torch.ones(7, 2))
    with pytest.raises(UserError, match="pass edge_attr"):
        NeighborAttention(3, 2, 2, score=AdditiveScore, edge_dim=2)(x, EDGES)
