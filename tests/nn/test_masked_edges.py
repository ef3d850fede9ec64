"""An edge of weight 0 is as good as none: what GPUs drop edges by, against lists that are cut."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from deepgat.nn import AttentionStack, build_model, model_settings
from deepgat.nn.drop_edge import DropEdge, all_edges, masked, no_edges, recordable
from deepgat.nn.layers import neighbor_differences
from deepgat.nn.presets import PRESETS
from deepgat.nn.scores import HeadShape, OthersScore, ScoreInputs
from deepgat.nn.settings import SCORES, ModelSettings
from deepgat.ops import Neighbors, use_backend
from deepgat.training.loop import TrainSettings, fit
from tiny import tiny_dataset

from graphs import edges, graphs, random_edges, undirected

D_IN, CLASSES = 5, 4  # two heads divide the classes that APPNP passes on
SHARES = (0.0, 0.5, 0.9)
SYSTEMS = [(model, score) for model, scores in SCORES.items() for score in scores]
DROPPING = {"hidden": 4, "heads": 2, "layers": 3, "attention_dropout": 0.3}


def awkward_edges() -> Tensor:
    """Of 30 nodes: a hub of most, self-loops, a directed edge, 25 to 29 isolated."""
    hub = undirected(edges(*[(0, u) for u in range(1, 20)]))
    return torch.cat([hub, random_edges(25, 30), edges((3, 3), (4, 4), (5, 6))], 1)


def computed(model: AttentionStack, near: Neighbors, multi_label: bool) -> dict[str, Tensor]:
    """All that a training step makes of the lists; the same random numbers every time."""
    torch.manual_seed(1)
    n = near.num_nodes
    x = 0.1 * torch.randn(n, D_IN, dtype=torch.double)  # GAT's symmetric weights grow like exp(x)
    y = torch.randint(2, (n, CLASSES)).double() if multi_label else torch.randint(CLASSES, (n,))
    z = torch.rand(n, model.label_hops, CLASSES, dtype=torch.double) if model.label_hops else None
    outputs = model.run(x, near, z, y if model.needs_labels else None)
    loss = model.loss(outputs.layer_logits, y, torch.arange(max(1, n // 2)))
    parameters = dict(model.named_parameters())
    grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    found = {f"logits of layer {layer}": t for layer, t in outputs.layer_logits.items()}
    found |= {f"hidden {i}": t for i, t in enumerate(outputs.hidden)} | {"loss": loss}
    found |= {
        f"gradient of {name}": grad
        for name, grad in zip(parameters, grads, strict=True)
        if grad is not None
    }
    return {name: tensor.detach() for name, tensor in found.items()}


def assert_same_on_both(
    chosen: ModelSettings,
    near: Neighbors,
    shares: tuple[float, ...] = SHARES,
    multi_label: bool = False,
) -> None:
    """On lists that are cut, and on lists whose dropped edges weigh 0."""
    torch.manual_seed(0)
    channels = 0 if near.features is None else near.features.size(1)
    model = build_model(chosen, D_IN, CLASSES, multi_label, channels).double().train()
    for share in shares:
        keep = DropEdge(share).kept(near)
        cut = computed(model, near.select(keep, near.symmetric), multi_label)
        found = computed(model, masked(near, keep), multi_label)
        assert cut.keys() == found.keys()
        for name, tensor in cut.items():
            assert tensor.isfinite().all(), name
            torch.testing.assert_close(
                found[name], tensor, rtol=1e-7, atol=1e-9, msg=lambda text, at=name: f"{at}: {text}"
            )


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("model", "score"), SYSTEMS)
def test_any_score_in_any_body(model, score, preset):
    chosen = model_settings(model, preset, score, **DROPPING)
    assert_same_on_both(chosen, Neighbors.from_edge_index(awkward_edges(), 30))


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(("model", "score"), SYSTEMS)
def test_any_score_with_edge_values_on_any_backend(model, score, backend):
    """Undirected too, and with the symmetric normalisation."""
    edge_index = random_edges(20, 40)
    torch.manual_seed(2)
    weight = torch.rand(80).masked_fill(torch.rand(80) < 0.2, 0.0).double()
    features = torch.randn(80, 2, dtype=torch.double)
    near = Neighbors.from_edge_index(edge_index, 20)
    near = near.with_values(edge_index, weight, features)
    itself = (near.source == near.target).unsqueeze(1)
    near = replace(near, log_weight=near.log_weight.masked_fill(itself, 0.0))
    chosen = model_settings(model, "paper", score, normalization="symmetric", **DROPPING)
    with use_backend(backend):
        assert_same_on_both(chosen, near)


@pytest.mark.parametrize(
    ("model", "preset", "choices"),
    [
        ("sage", "g2", {"gate_reduction": "sum"}),
        ("gat", "g2", {"gate_layer": "own", "gate_power": 1.0}),
        ("deepgat", "deep", {"compatibility": "learnt", "learn_temperature": True}),
        ("deepgat", "deep", {"detach_attention": False, "attention_from": 1}),
        ("deepgat", "authors", {"norm": "batch"}),
    ],
)
def test_other_settings(model, preset, choices):
    chosen = model_settings(model, preset, **{**DROPPING, **choices})
    assert_same_on_both(chosen, Neighbors.from_edge_index(awkward_edges(), 30))


@pytest.mark.parametrize("model", SCORES)
def test_several_labels_per_node(model):
    chosen = model_settings(model, "paper", **DROPPING)
    near = Neighbors.from_edge_index(awkward_edges(), 30)
    assert_same_on_both(chosen, near, multi_label=True)


@settings(max_examples=60)
@given(
    graph=graphs(),
    share=st.sampled_from(SHARES),
    body=st.sampled_from(
        [("sage", "standard"), ("gcn", "gcnii"), ("sage", "g2"), ("gat", "g2"), ("deepgat", "deep")]
    ),
)
def test_any_graph(graph, share, body):
    n, edge_index = graph
    chosen = model_settings(*body, hidden=4, layers=2)
    assert_same_on_both(chosen, Neighbors.from_edge_index(edge_index, n), (share,))


def test_a_training_has_the_same_losses():
    """The whole loop, the sampler of GPUs in the place of the CPU's: the same edges are drawn."""
    data, drop = tiny_dataset(), DropEdge(0.5)

    def as_on_a_gpu(near: Neighbors) -> Neighbors:
        return masked(near, drop.kept(near))

    for name in ("dropedge", "g2", "sage", "deep"):
        found = []
        for sampler in (drop, as_on_a_gpu):
            torch.manual_seed(0)
            model = build_model(model_settings(name, layers=3, drop_edge=0.5), 6, 3)
            assert model.edge_sampler == drop
            model.edge_sampler = sampler
            history = fit(model, data, TrainSettings(epochs=8, device="cpu", seed=4)).history
            found.append([(epoch.loss, epoch.val_loss) for epoch in history])
        torch.testing.assert_close(*map(torch.tensor, found), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------------- recording


def test_nothing_in_a_draw_waits_for_its_numbers():
    """Fake tensors have none: whatever asked for one, or for a size that depends on it, fails."""
    near = Neighbors.from_edge_index(awkward_edges(), 30)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        lists = {name: mode.from_tensor(t) for name, t in vars(near).items() if torch.is_tensor(t)}
        near = replace(near, **lists)
        left = masked(near, DropEdge(0.5).kept(near))
        assert left.num_edges == near.num_edges
        assert left.others.shape == (30,)
        x = torch.randn(30, 4)
        assert neighbor_differences(x, left, 2.0, mean=True).shape == (30, 4)
        OthersScore(HeadShape(1, 4))(ScoreInputs(left, x.unsqueeze(1)))
        with pytest.raises(Exception, match="nonzero"):  # what cutting the lists comes to
            near.select(DropEdge(0.5).kept(near), near.symmetric)


def test_which_samplers_can_be_recorded():
    assert all(map(recordable, (all_edges, no_edges, DropEdge(0.5))))
    assert not recordable(lambda near: near)


def test_a_model_without_edges_drops_none():
    """Lists drawn anew would have to be cut down to self-loops anew, too."""
    assert build_model(model_settings("mlp", drop_edge=0.5), 6, 3).edge_sampler is all_edges
