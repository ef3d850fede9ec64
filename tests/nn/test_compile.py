"""Layers and models inside torch.compile and torch.export: one graph, the same numbers."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

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
from deepgat.ops.packed_lists import Lengths, views
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


@pytest.mark.parametrize(
    "score", [ClassScore, *(pytest.param(score, marks=pytest.mark.slow) for score in SCORES[1:])]
)
def test_a_plain_call_of_compile_breaks_no_graph(score):
    """Without ``fullgraph`` torch breaks graphs at sizes that depend on data, if it can."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    conv, x = NeighborAttention(6, 4, 2, score=score, num_classes=3), torch.randn(20, 6)
    compiled = torch.compile(conv, backend="aot_eager")
    for edges in (random_edges(20, 60), random_edges(20, 30)):
        torch.testing.assert_close(compiled(x, edges), conv(x, edges))
    assert not torch._dynamo.utils.counters["graph_break"]


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


@pytest.fixture
def constant_floats(request):
    """Slopes and scales are constants from the start, except for a score that no system has.

    With ``dynamic=True`` they are symbols at first, with which AOTAutograd traces everything before
    it asks for constants and traces again. The tests of every system do both.
    """
    constant = request.node.callspec.params.get("score") is not DotScore
    with torch._dynamo.config.patch(specialize_float=constant):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.usefixtures("constant_floats")
def test_every_score_takes_raw_edges(score, loops):
    conv = NeighborAttention(6, 4, 8, score=score, num_classes=3, add_self_loops=loops)
    assert_one_graph_for_all(conv, "aot_eager")


def edge_values(n: int, m: int) -> dict[str, Tensor]:
    return {"edge_attr": torch.randn(m, 2), "edge_weight": torch.rand(m)}


@pytest.mark.slow
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.usefixtures("constant_floats")
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
    operators = torch.ops.deepgat.neighbor_lists, torch.ops.deepgat.neighbor_list_lengths
    lists = operators[0](edge_index, n)
    sizes = operators[1](lists, edge_index, n)
    assert operators[1](lists.clone(), edge_index, n).shape == sizes.shape
    lengths = Lengths(edge_index.size(1) + n, *sizes.shape[1:])
    assert sizes.size(0) == 0
    assert lengths.symmetric == near.symmetric
    for name, view in views(lists, lengths, n).items():
        assert torch.equal(view, getattr(near, name)), name
        assert view.dtype == getattr(near, name).dtype
        assert view.storage_offset() * view.element_size() % 128 == 0, name
    assert operators[0](edge_index, n).data_ptr() == lists.data_ptr()  # no copy
    given = ((edge_index, n), (lists, edge_index, n))
    with use_neighbor_cache(False):
        for operator, arguments in zip(operators, given, strict=True):
            torch.library.opcheck(
                operator.default, arguments, test_utils=("test_schema", "test_faketensor")
            )


def traced_graphs(run) -> list[torch.fx.GraphModule]:
    """The forward and backward graphs that AOTAutograd makes while ``run(backend)`` runs."""
    found = []

    def keep(graph: torch.fx.GraphModule, _):
        found.append(graph)
        return make_boxed_func(graph.forward)

    run(aot_autograd(fw_compiler=keep, bw_compiler=keep))
    return found


def operators_of(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("classes", [None, 3], ids=["gat", "class"])
def test_compiled_code_takes_the_lists_as_one_tensor(classes):
    torch._dynamo.reset()
    conv, edge_index = NeighborAttention(6, 4, 8, num_classes=classes), random_edges(20, 60)

    def run(backend):
        compiled = torch.compile(conv, fullgraph=True, backend=backend, dynamic=False)
        compiled(torch.randn(20, 6, requires_grad=True), edge_index).sum().backward()

    forward, backward = traced_graphs(run)
    called = operators_of(forward)
    assert called.count("deepgat.neighbor_lists.default") == 1
    assert called.count("deepgat.neighbor_list_lengths.default") == 1
    assert called.count("deepgat.attend_forward.default") == 1
    assert operators_of(backward).count("deepgat.attend_backward.default") == 1
    assert not any("as_strided" in name for name in called)  # views that nobody reads
    inputs = [node.meta["val"] for node in backward.graph.nodes if node.op == "placeholder"]
    assert sum(isinstance(x, Tensor) and not x.is_floating_point() for x in inputs) == 1
    # compiled code may write into dead tensors, but only for others of the same symbolic size
    sizes = {
        str(node.target): free_unbacked_symbols(node.meta["val"])
        for graph in (forward, backward)
        for node in graph.graph.nodes
        if isinstance(node.meta.get("val"), Tensor)
    }
    (own,) = sizes.pop("deepgat.neighbor_lists.default")
    sizes.pop("neighbor_lists")  # as the backward pass takes them
    assert sizes
    assert not any(own in others for others in sizes.values())


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_two_graphs_of_one_shape_take_turns(mode, device):
    torch._dynamo.reset()
    n = 600
    conv = NeighborAttention(6, 4, 8, num_classes=3).to(device)
    x = torch.randn(n, 6, device=device, requires_grad=True)
    compiled = torch.compile(conv, fullgraph=True, mode=mode, dynamic=False)
    hub = torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.long)])  # a list that is cut
    even, odd = random_edges(n, 800, seed=1), random_edges(n, 1600, seed=2, directed=True)
    edges = [torch.cat([even, hub, hub.flip(0)], 1), torch.cat([odd, hub, hub], 1)]
    graphs = [edge_index.to(device) for edge_index in edges]
    assert graphs[0].shape == graphs[1].shape
    before = compiled_graphs()
    for edge_index in graphs * 4:
        torch.compiler.cudagraph_mark_step_begin()
        found = []
        for run in (conv, compiled):
            out = run(x, edge_index)
            found.append([out, *torch.autograd.grad(out.square().mean(), [x, *conv.parameters()])])
        for expected, got in zip(*found, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert compiled_graphs() == before + 1


@pytest.mark.slow
def test_a_backward_pass_outlives_its_edges():
    torch._dynamo.reset()
    conv, x = NeighborAttention(6, 4, 8, num_classes=3), torch.randn(40, 6, requires_grad=True)
    compiled = torch.compile(conv, fullgraph=True, dynamic=False)
    edge_index = random_edges(40, 80)
    expected = torch.autograd.grad(conv(x, edge_index).square().sum(), x)
    out = compiled(x, edge_index)
    del edge_index
    with use_neighbor_cache(False):  # frees all lists
        random_edges(40, 80, seed=3).clone()
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), x), expected)


def test_exported_with_raw_edges():
    conv = NeighborAttention(6, 4, 8, num_classes=3).eval()
    x, edge_index = torch.randn(20, 6), random_edges(20, 60)
    edges = torch.export.Dim("edges", min=2)
    exported = torch.export.export(conv, (x, edge_index), dynamic_shapes=(None, {1: edges}))
    for other in (edge_index, random_edges(20, 33, seed=1)):
        torch.testing.assert_close(exported.module()(x, other), conv(x, other))
