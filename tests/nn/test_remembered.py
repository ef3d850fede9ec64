"""What training remembers of a graph is never wrong, and never outlives the training."""

import copy
import gc
import weakref

import pytest
import torch

from deepgat.models import GRAND
from deepgat.nn.remembered import remembered, remembering
from deepgat.ops import Neighbors, SparseMatrix, as_features
from deepgat.training.recipes import recipe
from deepgat.training.run import train_once
from networks import network
from tiny import tiny_dataset

from graphs import random_edges

N = 12


class Counted:
    """A function of features and lists that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x, lists=None):
        def compute():
            self.calls += 1
            return (x.values if isinstance(x, SparseMatrix) else x) + 1

        return remembered(self, "sum", compute, x, lists)


@pytest.fixture
def inside():
    with remembering():
        yield


def lists() -> Neighbors:
    return Neighbors.from_edge_index(random_edges(N, 20), N)


def sparse() -> SparseMatrix:
    return as_features((torch.rand(N, 5) * (torch.rand(N, 5) < 0.5)).to_sparse_csr())


@pytest.mark.parametrize("make", [lambda: torch.randn(N, 5), sparse])
def test_the_same_inputs_are_computed_once(make, inside):
    counted, x, near = Counted(), make(), lists()
    assert counted(x, near) is counted(x, near)
    assert counted.calls == 1
    counted(x, lists())
    counted(make(), near)
    counted(x)
    assert counted.calls == 4


def test_owners_do_not_share_results(inside):
    x = torch.randn(N, 5)
    for _ in range(3):  # which take each other's place in memory
        counted = Counted()
        counted(x)
        assert counted.calls == 1
        del counted


def test_changes_in_place_are_seen(inside):
    counted, x, near = Counted(), torch.randn(N, 5), lists()
    before = counted(x, near).clone()
    x += 1
    torch.testing.assert_close(counted(x, near), before + 1)
    x.resize_(N, 4)
    assert counted(x, near).shape == (N, 4)


@pytest.mark.parametrize("what", ["its lists", "the training"])
def test_nothing_outlives(what):
    counted, x, near = Counted(), torch.randn(N, 5), lists()
    with remembering():
        result = weakref.ref(counted(x, near))
        assert result() is not None
        if what == "its lists":
            del near
            gc.collect()
            assert result() is None
    gc.collect()
    assert result() is None


def test_outside_of_training_nothing_is_remembered():
    counted, values = Counted(), torch.zeros(N, 5).numpy()
    x = torch.from_numpy(values)
    before = counted(x).clone()
    values += 1  # which torch cannot see
    torch.testing.assert_close(counted(x), before + 1)


def test_inputs_that_need_a_gradient_get_one(inside):
    counted, x = Counted(), torch.randn(N, 5)
    counted(x)
    x.requires_grad_()
    assert counted(x).requires_grad
    assert counted.calls == 2


def test_inference_mode_leaves_nothing_behind(inside):
    counted, x = Counted(), torch.randn(N, 5)
    for each in (x, None):
        with torch.inference_mode():
            counted(torch.randn(N, 5) if each is None else each)
    assert not counted(x).is_inference()


@pytest.mark.parametrize("edge_dim", [None, 2])
def test_a_network_follows_what_it_is_given(edge_dim, inside):
    model = network("grand", 5, 3, num_layers=2, node_dropout=0.0, edge_dim=edge_dim)
    model = model.double().eval()
    x, edges = torch.rand(N, 5, dtype=torch.double), random_edges(N, 20)
    features = () if edge_dim is None else (None, torch.rand(edges.size(1), 2, dtype=torch.double))

    def fresh(edges):
        return copy.deepcopy(model)(x.detach().clone(), edges.clone(), *features)

    first = model(x, edges, *features)
    assert torch.equal(model(x, edges, *features), first)
    with torch.no_grad():
        x[0] = 9.0
    assert torch.equal(model(x, edges, *features), fresh(edges))
    assert not torch.equal(model(x, edges, *features), first)
    if edge_dim is not None:  # the weights of the edges are learnt
        before = model(x, edges, *features)
        with torch.no_grad():
            model.hop.edge_map.weight += 1
        assert not torch.equal(model(x, edges, *features), before)
        assert torch.equal(model(x, edges, *features), fresh(edges))
        model(x, edges, *features).square().sum().backward()
        assert model.hop.edge_map.weight.grad.abs().sum() > 0
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(model(x, edges, *features).sum(), x)
    assert gradient.abs().sum() > 0


def test_training_computes_the_hops_once_and_the_same_weights(monkeypatch):
    hops = []
    layer = GRAND.layer
    monkeypatch.setattr(GRAND, "layer", lambda *args: hops.append(1) or layer(*args))
    plan = recipe(
        "grand",
        training={"epochs": 5, "device": "cpu"},
        node_dropout=0.0,
        views=1,
        num_layers=2,
        norm="batch",
    )
    kept = train_once(tiny_dataset(), plan)
    once = len(hops)
    monkeypatch.setattr("deepgat.nn.remembered._can_remember", lambda *_: False)
    plain = train_once(tiny_dataset(), plan)
    assert len(hops) - once > once
    for a, b in zip(
        kept.model.state_dict().values(), plain.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b)
