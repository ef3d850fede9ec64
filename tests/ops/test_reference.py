"""Neighbour attention against a loop over nodes, in double precision, gradients included."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepgat import ops
from deepgat.ops import (
    Additive,
    DotProduct,
    EdgeScore,
    Neighbors,
    Normalization,
    ScoreForm,
    Uniform,
)
from deepgat.ops.definition import attention_weights, neighbor_attention

from graphs import AWKWARD, edges, graphs, random_edges

H, A, D = 2, 3, 4
FORMS = ("dot", "scaled dot", "additive", "edge", "edge for all heads", "uniform")
NORMALIZATIONS = list(Normalization)
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


class Problem:
    """Random leaves for one form of score, and the same score written for one pair of nodes."""

    def __init__(self, kind: str, n: int, edge_index: Tensor, dtype=torch.double) -> None:
        self.kind, self.n = kind, n
        self.near = Neighbors.from_edge_index(edge_index, n)
        self.pairs = list(zip(*reversed(self.near.edge_index.tolist()), strict=True))  # (v, u)

        def leaf(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=dtype).requires_grad_()

        count = self.near.num_edges
        shapes = {
            "dot": [(n, H, A), (n, H, A)],
            "scaled dot": [(n, H, A), (n, H, A)],
            "additive": [(n, H), (n, H)],
            "edge": [(count, H)],
            "edge for all heads": [(count, 1)],
            "uniform": [],
        }[kind]
        self.parts = [leaf(*shape) for shape in shapes]
        self.value = leaf(n, H, D)

    @property
    def leaves(self) -> list[Tensor]:
        return [self.value, *self.parts]

    def form(self, *parts: Tensor) -> ScoreForm:
        return {
            "dot": DotProduct,
            "scaled dot": lambda query, key: DotProduct(query, key, 0.3),
            "additive": Additive,
            "edge": EdgeScore,
            "edge for all heads": EdgeScore,
            "uniform": Uniform,
        }[self.kind](*parts)

    def score(self, v: int, u: int) -> Tensor:
        """s_vu of every head: [H], or [1]."""
        match self.kind, self.parts:
            case "dot", (query, key):
                return (query[v] * key[u]).sum(-1)
            case "scaled dot", (query, key):
                return 0.3 * (query[v] * key[u]).sum(-1)
            case "additive", (target, source):
                total = target[v] + source[u]
                return torch.where(total > 0, total, 0.2 * total)
            case "uniform", _:
                return self.value.new_zeros(1)
        return self.parts[0][self.pairs.index((v, u))]

    def literal(self, normalization: Normalization) -> tuple[dict[tuple[int, int], Tensor], Tensor]:
        """α and the output, one node after the other."""
        e = {(v, u): self.score(v, u).exp() for v, u in self.pairs}
        d = [sum(e[v, u] for w, u in self.pairs if w == v) for v in range(self.n)]
        if normalization is Normalization.ROW:
            alpha = {(v, u): e[v, u] / d[v] for v, u in self.pairs}
        else:
            alpha = {(v, u): e[v, u] / (d[v] * d[u]).sqrt() for v, u in self.pairs}
        out = [
            sum(alpha[v, u].unsqueeze(-1) * self.value[u] for w, u in self.pairs if w == v)
            for v in range(self.n)
        ]
        return alpha, torch.stack(out)


@settings(max_examples=60)
@given(graphs(), st.sampled_from(FORMS), st.sampled_from(NORMALIZATIONS))
def test_equals_a_loop_over_nodes(graph, kind, normalization):
    problem = Problem(kind, *graph)
    alpha, expected = problem.literal(normalization)
    form = problem.form(*problem.parts)
    weights = attention_weights(problem.near, form, normalization)
    wanted = torch.stack([alpha[pair] for pair in problem.pairs])
    torch.testing.assert_close(weights, wanted, **TOLERANCE)
    out = neighbor_attention(problem.near, problem.value, form, normalization)
    torch.testing.assert_close(out, expected, **TOLERANCE)

    direction = torch.randn_like(expected)
    ours = torch.autograd.grad(out, problem.leaves, direction)
    theirs = torch.autograd.grad(expected, problem.leaves, direction)
    for mine, literal in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, literal, **TOLERANCE)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", AWKWARD)
def test_equals_a_loop_on_awkward_graphs(name, kind, normalization):
    problem = Problem(kind, *AWKWARD[name])
    _, expected = problem.literal(normalization)
    out = neighbor_attention(
        problem.near, problem.value, problem.form(*problem.parts), normalization
    )
    torch.testing.assert_close(out, expected, **TOLERANCE)


@settings(max_examples=12)
@given(graphs(max_nodes=4, max_edges=8), st.sampled_from(FORMS), st.sampled_from(NORMALIZATIONS))
def test_gradients_by_finite_differences(graph, kind, normalization):
    problem = Problem(kind, *graph)

    def run(value: Tensor, *parts: Tensor) -> Tensor:
        return neighbor_attention(problem.near, value, problem.form(*parts), normalization)

    assert torch.autograd.gradcheck(run, problem.leaves)


@settings(max_examples=30)
@given(graphs(), st.sampled_from(FORMS))
def test_rows_sum_to_one(graph, kind):
    problem = Problem(kind, *graph)
    weights = attention_weights(problem.near, problem.form(*problem.parts))
    sums = torch.zeros(problem.n, weights.size(1), dtype=torch.double)
    sums.index_add_(0, problem.near.edge_index[1], weights)
    torch.testing.assert_close(sums, torch.ones_like(sums), **TOLERANCE)


def large(kind: str, near: Neighbors) -> ScoreForm:
    """Scores of ±1e4, beyond what exp can take in any precision."""
    n = near.num_nodes
    signs = torch.where(torch.rand(n, H) < 0.5, 1.0, -1.0)
    vectors = (100 * signs).unsqueeze(-1)
    return {
        "dot": lambda: DotProduct(vectors, vectors),
        "scaled dot": lambda: DotProduct(signs.unsqueeze(-1), signs.unsqueeze(-1), 1e4),
        "additive": lambda: Additive(5e3 * signs, 5e3 * signs, 1.0),
        "edge": lambda: EdgeScore(1e4 * torch.randint(-1, 2, (near.num_edges, H)).float()),
    }[kind]()


@pytest.mark.parametrize("kind", ["dot", "scaled dot", "additive", "edge"])
def test_large_scores_stay_finite_in_single_precision(kind):
    near = Neighbors.from_edge_index(random_edges(20, 40), 20)
    form = large(kind, near)
    tensors = [part for part in vars(form).values() if isinstance(part, Tensor)]
    value = torch.randn(20, H, D)
    for tensor in (*tensors, value):
        tensor.requires_grad_()
    weights = attention_weights(near, form)
    out = neighbor_attention(near, value, form)
    assert weights.min() >= 0
    sums = torch.zeros(20, H).index_add_(0, near.edge_index[1], weights)
    torch.testing.assert_close(sums, torch.ones(20, H), rtol=0, atol=2e-3)
    for gradient in torch.autograd.grad(out.square().sum(), [value, *tensors]):
        assert gradient.isfinite().all()


def test_large_mutual_scores_stay_finite_under_symmetric_normalization():
    """s_vu = s_uv on an undirected graph: then e_vu ≤ sqrt(d_v d_u), however large."""
    near = Neighbors.from_edge_index(random_edges(20, 40), 20)
    form = large("dot", near)
    weights = attention_weights(near, form, Normalization.SYMMETRIC)
    assert weights.isfinite().all()
    assert weights.max() <= 1.01


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("kind", FORMS)
def test_no_nodes(kind, normalization):
    problem = Problem(kind, 0, edges())
    form = problem.form(*problem.parts)
    assert attention_weights(problem.near, form, normalization).size(0) == 0
    out = neighbor_attention(problem.near, problem.value, form, normalization)
    assert out.shape == (0, H, D)
    out.sum().backward()
    assert problem.value.grad.shape == (0, H, D)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("n", [1, 4])
def test_nodes_without_neighbours_keep_their_value(n, kind, normalization):
    problem = Problem(kind, n, edges())
    form = problem.form(*problem.parts)
    weights = attention_weights(problem.near, form, normalization)
    torch.testing.assert_close(weights, torch.ones_like(weights), **TOLERANCE)
    out = neighbor_attention(problem.near, problem.value, form, normalization)
    torch.testing.assert_close(out, problem.value, **TOLERANCE)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_minus_infinity_switches_an_edge_off(normalization):
    pairs = edges((0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0))
    near = Neighbors.from_edge_index(pairs, 3)
    off = ((near.target == 0) & (near.source == 2)) | ((near.target == 2) & (near.source == 0))
    score = torch.zeros(near.num_edges, 1, dtype=torch.double)
    score[off] = -torch.inf
    score.requires_grad_()
    value = torch.randn(3, H, D, dtype=torch.double)
    out = neighbor_attention(near, value, EdgeScore(score), normalization)
    without = Neighbors.from_edge_index(pairs[:, :4], 3)
    expected = neighbor_attention(without, value, Uniform(), normalization)
    torch.testing.assert_close(out, expected, **TOLERANCE)
    (gradient,) = torch.autograd.grad(out.square().sum(), score)
    assert gradient.isfinite().all()
    assert (gradient[off] == 0).all()


def test_dropout_drops_weights_per_head_and_scales_the_rest():
    n = 12
    near = Neighbors.from_edge_index(random_edges(n, 60), n)
    score = torch.randn(near.num_edges, 1)
    weights = attention_weights(near, EdgeScore(score))
    each = torch.eye(n).unsqueeze(1).expand(n, H, n)  # column u of the output is α_vu itself
    source, target = near.edge_index
    out = ops.neighbor_attention(near, each, EdgeScore(score), dropout=0.5)[target, :, source]
    dropped = out == 0
    torch.testing.assert_close(out[~dropped], (2 * weights).expand(-1, H)[~dropped])
    assert 0.3 < dropped.double().mean() < 0.7
    assert not torch.equal(dropped[:, 0], dropped[:, 1])


@pytest.mark.parametrize("kind", FORMS)
def test_the_output_has_the_dtype_of_the_values(kind):
    problem = Problem(kind, 9, random_edges(9, 20), torch.float32)
    out = neighbor_attention(problem.near, problem.value, problem.form(*problem.parts))
    assert out.dtype == torch.float32
    _, expected = problem.literal(Normalization.ROW)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("kind", FORMS)
def test_the_same_input_gives_the_same_bits(kind, normalization):
    problem = Problem(kind, 200, random_edges(200, 1500), torch.float32)
    direction = torch.randn(200, H, D)
    run: Callable[[], list[Tensor]] = lambda: [  # noqa: E731
        out := neighbor_attention(
            problem.near, problem.value, problem.form(*problem.parts), normalization
        ),
        *torch.autograd.grad(out, problem.leaves, direction),
    ]
    first = run()
    for _ in range(3):
        assert all(map(torch.equal, first, run()))
