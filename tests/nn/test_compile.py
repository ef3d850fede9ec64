"""Layers and models inside torch.compile and torch.export: one graph, the same numbers."""

import pytest
import torch
from torch import Tensor, nn

from deepgat.errors import UserError
from deepgat.models import SYSTEMS
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.nn import (
    AdditiveScore,
    ClassScore,
    DotScore,
    NeighborAttention,
    NeighborMeanScore,
    UniformScore,
)
from deepgat.ops import Neighbors, use_neighbor_cache
from deepgat.ops.cpu import kernels
from deepgat.ops.list_operator import neighbor_lists
from networks import network

from graphs import AWKWARD, random_edges

NEAR = Neighbors.from_edge_index(random_edges(20, 60), 20)
pytestmark = pytest.mark.skipif(
    not kernels.available(), reason="the native kernels are not built here: no compiler"
)


class Net(nn.Module):
    """Someone's own model around our layer."""

    def __init__(self, score, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = NeighborAttention(6, 4, 8, score=score, num_classes=3, dropout=dropout)
        self.out = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.conv(x, NEAR).relu())


@pytest.mark.slow
@pytest.mark.parametrize("score", [ClassScore, DotScore, AdditiveScore, UniformScore])
def test_compiled_as_one_graph(score):
    torch._dynamo.reset()
    torch.manual_seed(0)
    net, x = Net(score), torch.randn(20, 6, requires_grad=True)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    leaves = [x, *(p for p in net.parameters() if p.requires_grad)]
    found = []
    for model in (net, compiled):
        out = model(x)
        grads = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
        found.append([out, *(grad for grad in grads if grad is not None)])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.slow
def test_dropout_is_drawn_anew_in_a_compiled_layer():
    torch._dynamo.reset()
    net, x = Net(ClassScore, dropout=0.5), torch.randn(20, 6)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(x), compiled(x))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_with_the_fused_operator_in_it(strict):
    net, x = Net(ClassScore).eval(), torch.randn(20, 6)
    exported = torch.export.export(net, (x,), strict=strict)
    assert any("deepgat.attend" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(x), net(x))


SCORES = [ClassScore, DotScore, AdditiveScore, UniformScore, NeighborMeanScore]
GRAPHS = [(70, 60, False), (150, 200, True), (128, 300, False)]
"""(nodes, pairs, directed); the library sums in blocks of 64 rows."""


def compiled_graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def assert_one_graph_for_all(module: nn.Module, backend: str, inputs=lambda n, m: {}, **compiling):
    """Output and gradients of three graphs are those of eager mode, by one traced graph."""
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend, dynamic=True, **compiling)
    before = compiled_graphs()
    for n, pairs, directed in GRAPHS:
        edge_index = random_edges(n, pairs, directed=directed)
        x, more = torch.randn(n, 6, requires_grad=True), inputs(n, edge_index.size(1))
        leaves = [x, *(p for p in module.parameters() if p.requires_grad)]
        found = []
        for run in (module, compiled, compiled):
            out = run(x, edge_index, **more)
            grads = torch.autograd.grad(out.square().mean(), leaves, allow_unused=True)
            found.append([out, *(grad for grad in grads if grad is not None)])
        for expected, *others in zip(*found, strict=True):
            for got in others:
                torch.testing.assert_close(got, expected)
    assert compiled_graphs() == before + 1


@pytest.mark.slow
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("score", SCORES)
def test_every_score_takes_raw_edges(score, loops):
    conv = NeighborAttention(6, 4, 8, score=score, num_classes=3, add_self_loops=loops)
    assert_one_graph_for_all(conv, "aot_eager")


def edge_values(n: int, m: int) -> dict[str, Tensor]:
    return {"edge_attr": torch.randn(m, 2), "edge_weight": torch.rand(m)}


@pytest.mark.slow
@pytest.mark.parametrize("loops", [True, False])
def test_a_layer_with_edge_values(loops):
    conv = NeighborAttention(6, 4, 8, edge_dim=2, add_self_loops=loops)
    assert_one_graph_for_all(conv, "aot_eager", edge_values)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("score", [ClassScore, AdditiveScore])
def test_inductor_takes_a_layer(score, mode):
    conv = NeighborAttention(6, 4, 8, score=score, num_classes=3)
    assert_one_graph_for_all(conv, "inductor", mode=mode)


@pytest.mark.slow
def test_inductor_takes_edge_values():
    assert_one_graph_for_all(NeighborAttention(6, 4, 8, edge_dim=2), "inductor", edge_values)


def small_network(name: str) -> nn.Module:
    """Without dropout, which draws anew at every call."""
    kinds = SYSTEMS[name].network.Config.kinds()
    off = {kind: 0.0 for kind in kinds if "dropout" in kind}
    return network(name, 6, 3, num_layers=2, hidden_channels=8, **off)


def true_labels(module: nn.Module):
    return lambda n, m: {"labels": torch.randint(3, (n,))} if module.needs_labels else {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != LABEL_PROPAGATION])
def test_every_system_takes_raw_edges_as_one_graph(name):
    module = small_network(name)
    assert_one_graph_for_all(module, "aot_eager", true_labels(module))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepgat", "sage"])
def test_inductor_takes_a_system(name):
    module = small_network(name)
    assert_one_graph_for_all(module, "inductor", true_labels(module))


@pytest.mark.slow
def test_a_compiled_layer_sees_another_graph_in_the_same_tensor():
    conv, x = NeighborAttention(6, 4, 8), torch.randn(20, 6)
    compiled = torch.compile(conv, fullgraph=True)
    edge_index = random_edges(20, 60)
    for seed in range(4):
        edge_index.copy_(random_edges(20, 60, seed=seed))
        torch.testing.assert_close(compiled(x, edge_index), conv(x, edge_index.clone()))


@pytest.mark.slow
def test_a_compiled_layer_leaves_the_kept_lists_alone():
    conv, x, edge_index = NeighborAttention(6, 4, 8), torch.randn(20, 6), random_edges(20, 60)
    expected = conv(x, edge_index)
    compiled = torch.compile(conv, fullgraph=True)
    for _ in range(5):
        compiled(x, edge_index).sum().backward()
        assert torch.equal(conv(x, edge_index), expected)


def test_compiled_code_gives_the_same_and_refuses_bad_edges_when_it_runs():
    torch._dynamo.reset()
    conv, x = NeighborAttention(6, 4), torch.randn(20, 6)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    edge_index = random_edges(20, 60)
    torch.testing.assert_close(compiled(x, edge_index), conv(x, edge_index))
    with pytest.raises(UserError, match="names node 0 to 20"):
        compiled(x, random_edges(21, 60))


@pytest.mark.parametrize("name", AWKWARD)
def test_the_operator_of_lists_keeps_its_promises(name):
    n, edge_index = AWKWARD[name]
    near = Neighbors.from_edge_index(edge_index, n)
    *lists, symmetric = neighbor_lists(edge_index, n)
    assert torch.equal(lists[1], near.source)
    assert symmetric.numel() == near.symmetric
    with use_neighbor_cache(False):
        torch.library.opcheck(
            neighbor_lists, (edge_index, n), test_utils=("test_schema", "test_faketensor")
        )


def test_exported_with_raw_edges():
    conv = NeighborAttention(6, 4, 8, num_classes=3).eval()
    x, edge_index = torch.randn(20, 6), random_edges(20, 60)
    edges = torch.export.Dim("edges", min=2)
    exported = torch.export.export(conv, (x, edge_index), dynamic_shapes=(None, {1: edges}))
    for other in (edge_index, random_edges(20, 33, seed=1)):
        torch.testing.assert_close(exported.module()(x, other), conv(x, other))
