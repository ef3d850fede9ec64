"""The layer inside torch.compile and torch.export: one graph, the same numbers."""

import pytest
import torch
from torch import Tensor, nn

from deepgat.nn import AdditiveScore, ClassScore, DotScore, NeighborAttention, UniformScore
from deepgat.ops import Neighbors
from deepgat.ops.cpu import kernels

from graphs import random_edges

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
