"""Layer by layer, some nodes at a time: what the whole graph at once gives, and in less memory."""

import sys
import weakref
from pathlib import Path

import pytest
import torch

from deepgat.models import Deep, build_network
from deepgat.models.chunked import Chunks
from deepgat.ops import use_backend
from deepgat.training.inputs import prepare
from deepgat.training.recipes import recipe

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
from together import CASES, dataset

CPU = torch.device("cpu")
EXTRA = {
    "jump": {"model": "jk", "mode": "lstm", "num_layers": 3, "hidden_channels": 4},
    "mlp": {"model": "mlp", "num_layers": 3, "hidden_channels": 8},
    "appnp": {"model": "appnp", "num_layers": 4, "hidden_channels": 8},
    "sage-in-gcnii": {"model": "gcnii", "conv": "sage", "num_layers": 3, "hidden_channels": 8},
    "steps": {"model": "deep", "num_layers": 9, "hidden_channels": 8, "step_depth": 4},
    "labels-in-layers": {"model": "deepgat", "num_layers": 3, "hidden_channels": 4,
                         "label_input": "layer", "label_hops": 2},
    "g2-own": {"model": "g2", "num_layers": 3, "hidden_channels": 8, "gate_conv": "own"},
}  # fmt: skip


def check(name, kind="odd", most=17, backend="auto", exactly=False):
    data = dataset(kind)
    plan = recipe(dataset="digits", **(CASES | EXTRA)[name])
    model = build_network(
        plan.system,
        plan.settings,
        7,
        3,
        multi_label=data.multi_label,
        edge_dim=data.num_edge_features,
    ).double()
    for module in model.modules():  # statistics that matter
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    model.eval()
    (graph,) = prepare(model, data, CPU)
    with use_backend(backend), torch.no_grad():
        expected = graph.run(model).logits
        chunks = Chunks(graph.x, graph.neighbors, most)
        labels = graph.y if model.needs_labels else None
        found = [chunks.logits(model, graph.label_features, labels) for _ in range(2)]
    assert expected.isfinite().all()
    torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(found[0], found[1])
    assert not exactly or torch.equal(found[0], expected)


@pytest.mark.parametrize("name", [*CASES, *EXTRA])
def test_every_system_in_chunks(name):
    check(name)


@pytest.mark.parametrize("kind", ["sparse", "values", "labels", "few"])
@pytest.mark.parametrize("name", ["authors", "deep", "gat-in-gcnii"])
def test_every_kind_of_data_in_chunks(name, kind):
    check(name, kind)


def test_a_graph_that_fits_is_one_chunk_to_the_bit():
    check("deep", most=60, exactly=True)
    check("pairnorm", most=1000, exactly=True)


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 31, 59])
def test_chunks_of_any_size(most):
    check("deep", most=most)
    check("authors", most=most, backend="reference")


def test_what_is_held_does_not_grow_with_depth(monkeypatch):
    """Of the states of all nodes three are alive at most: h^0, and those of two layers."""
    data = dataset()
    model = Deep(7, 8, 12, 3).double().eval()
    (graph,) = prepare(model, data, CPU)
    chunks = Chunks(graph.x, graph.neighbors, 20)
    alive: list[weakref.ref] = []
    most = 0
    each = Chunks._each

    def watched(self, step):
        nonlocal most
        found = each(self, step)
        alive.append(weakref.ref(found))
        most = max(most, sum(ref() is not None for ref in alive))
        return found

    monkeypatch.setattr(Chunks, "_each", watched)
    chunks.logits(model, graph.label_features)
    assert len(alive) == 1 + 12 + 1  # the encoder, the layers, the readout
    assert most <= 3
