"""What GRAND remembers of a graph is never wrong, and never outlives the graph."""

import copy
import gc
import pickle
import weakref

import pytest
import torch

from deepgat.nn.remembered import Remembered
from deepgat.ops import Neighbors, SparseMatrix, as_features
from networks import network

from graphs import random_edges

N = 12


class Counted:
    """A function of features and lists that counts its calls."""

    def __init__(self) -> None:
        self.calls, self.remembered = 0, Remembered()

    def __call__(self, x, lists=None):
        def compute():
            self.calls += 1
            return (x.values if isinstance(x, SparseMatrix) else x) + 1

        return self.remembered(compute, x, lists)


def lists() -> Neighbors:
    return Neighbors.from_edge_index(random_edges(N, 20), N)


def sparse() -> SparseMatrix:
    return as_features((torch.rand(N, 5) * (torch.rand(N, 5) < 0.5)).to_sparse_csr())


@pytest.mark.parametrize("make", [lambda: torch.randn(N, 5), sparse])
def test_the_same_inputs_are_computed_once(make):
    counted, x, near = Counted(), make(), lists()
    assert counted(x, near) is counted(x, near)
    assert counted.calls == 1
    counted(x, lists())
    counted(make(), near)
    counted(x)
    assert counted.calls == 4


def test_changes_in_place_are_seen():
    counted, x, near = Counted(), torch.randn(N, 5), lists()
    before = counted(x, near).clone()
    x += 1
    torch.testing.assert_close(counted(x, near), before + 1)
    x.resize_(N, 4)
    assert counted(x, near).shape == (N, 4)


def test_nothing_outlives_its_inputs():
    counted, x, near = Counted(), torch.randn(N, 5), lists()
    result = weakref.ref(counted(x, near))
    del near
    gc.collect()
    assert result() is None


def test_inputs_that_need_a_gradient_get_one():
    counted, x = Counted(), torch.randn(N, 5)
    counted(x)
    x.requires_grad_()
    assert counted(x).requires_grad
    assert counted.calls == 2


def test_inference_mode_leaves_nothing_behind():
    counted = Counted()
    with torch.inference_mode():
        x = torch.randn(N, 5)
        counted(x)
        counted(x)
    assert counted.calls == 2


def test_copies_begin_with_nothing():
    counted, x = Counted(), torch.randn(N, 5)
    counted(x)
    for other in (copy.deepcopy(counted), pickle.loads(pickle.dumps(counted))):
        other(x)
        assert other.calls == 2


def test_a_network_follows_its_features():
    model = network("grand", 5, 3, num_layers=2).eval()
    x, edges = torch.rand(N, 5), random_edges(N, 20)
    first = model(x, edges)
    assert torch.equal(model(x, edges), first)
    x[0] = 9.0
    fresh = copy.deepcopy(model)
    assert torch.equal(model(x, edges), fresh(x.clone(), edges.clone()))
    assert not torch.equal(model(x, edges), first)
    other = random_edges(N, 9)
    assert torch.equal(model(x, other), fresh(x.clone(), other.clone()))
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(model(x, edges).sum(), x)
    assert gradient.abs().sum() > 0
