"""An edge of weight 0 is as good as none: what GPUs drop edges by, against lists that are cut."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from deepgat import ops
from deepgat.models import SYSTEMS, Network
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.nn.drop_edge import DropEdge, all_edges, no_edges, recordable
from deepgat.nn.scores import HeadShape, NeighborMeanScore, ScoreInputs
from deepgat.ops import Neighbors, use_backend
from deepgat.training.loop import train
from deepgat.training.settings import TrainSettings
from networks import PAPER_SCORES, network
from tiny import tiny_dataset

from graphs import edges, graphs, random_edges, undirected

D_IN, CLASSES = 5, 4
SHARES = (0.0, 0.5, 0.9)
SIZES = {"hidden_channels": 4, "num_layers": 3}
DROPPING = {**SIZES, "heads": 2, "attention_dropout": 0.3, "unit_features": False}
SCORED = [(system, score) for system, scores in PAPER_SCORES.items() for score in scores]
OTHERS = [name for name in SYSTEMS if name not in (*PAPER_SCORES, LABEL_PROPAGATION)]


def awkward_edges() -> Tensor:
    """Of 30 nodes: a hub of most, self-loops, a directed edge, 25 to 29 isolated."""
    hub = undirected(edges(*[(0, u) for u in range(1, 20)]))
    return torch.cat([hub, random_edges(25, 30), edges((3, 3), (4, 4), (5, 6))], 1)


def computed(model: Network, near: Neighbors, multi_label: bool) -> dict[str, Tensor]:
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
    system: str,
    chosen: dict,
    near: Neighbors,
    shares: tuple[float, ...] = SHARES,
    multi_label: bool = False,
) -> None:
    """On lists that are cut, and on lists whose dropped edges weigh 0."""
    torch.manual_seed(0)
    edge_dim = None if near.features is None else near.features.size(1)
    made = network(system, D_IN, CLASSES, multi_label=multi_label, edge_dim=edge_dim, **chosen)
    model = made.double().train()
    for share in shares:
        keep = DropEdge(share).kept(near)
        cut = computed(model, near.select(keep, near.symmetric), multi_label)
        found = computed(model, near.masked(~keep), multi_label)
        assert cut.keys() == found.keys()
        for name, tensor in cut.items():
            assert tensor.isfinite().all(), name
            torch.testing.assert_close(
                found[name], tensor, rtol=1e-7, atol=1e-9, msg=lambda text, at=name: f"{at}: {text}"
            )


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["paper", "authors"])
@pytest.mark.parametrize(("system", "score"), SCORED)
def test_any_score(system, score, preset):
    chosen = {**DROPPING, "preset": preset, "score": score}
    assert_same_on_both(system, chosen, Neighbors.from_edge_index(awkward_edges(), 30))


@pytest.mark.parametrize("system", OTHERS)
def test_any_other_system(system):
    assert_same_on_both(system, SIZES, Neighbors.from_edge_index(awkward_edges(), 30))


def weighted_lists() -> Neighbors:
    """Undirected lists with weights, some of them 0, and features."""
    edge_index = random_edges(20, 40)
    torch.manual_seed(2)
    weight = torch.rand(80).masked_fill(torch.rand(80) < 0.2, 0.0).double()
    features = torch.randn(80, 2, dtype=torch.double)
    near = Neighbors.from_edge_index(edge_index, 20)
    near = near.with_values(edge_index, weight, features)
    itself = (near.source == near.target).unsqueeze(1)
    return replace(near, log_weight=near.log_weight.masked_fill(itself, 0.0))


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(("system", "score"), SCORED)
def test_any_score_with_edge_values_on_any_backend(system, score, backend):
    with use_backend(backend):
        assert_same_on_both(system, {**DROPPING, "score": score}, weighted_lists())


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("system", ["gcn", "deep", "sage"])
def test_symmetric_normalisation_and_means_with_edge_values(system, backend):
    with use_backend(backend):
        assert_same_on_both(system, SIZES, weighted_lists())


@pytest.mark.parametrize(
    ("system", "choices"),
    [
        ("g2", {"reduction": "sum"}),
        ("g2", {"conv": "gat", "gate_conv": "own", "power": 1.0}),
        ("gcnii", {"conv": "deepgat"}),
        ("deep", {"attention_from": 1}),
        ("deepgat", {**DROPPING, "preset": "authors", "norm": "batch"}),
    ],
)
def test_other_settings(system, choices):
    near = Neighbors.from_edge_index(awkward_edges(), 30)
    assert_same_on_both(system, {**SIZES, **choices}, near)


@pytest.mark.parametrize("system", ["deepgat", "gat", "gcn", "oracle", "sage"])
def test_several_labels_per_node(system):
    chosen = DROPPING if system in PAPER_SCORES else SIZES
    near = Neighbors.from_edge_index(awkward_edges(), 30)
    assert_same_on_both(system, chosen, near, multi_label=True)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    graph=graphs(),
    share=st.sampled_from(SHARES),
    body=st.sampled_from(
        [("sage", {}), ("gcnii", {}), ("g2", {}), ("g2", {"conv": "gat"}), ("deep", {})]
    ),
)
def test_any_graph(graph, share, body):
    (n, edge_index), (system, choices) = graph, body
    chosen = {"hidden_channels": 4, "num_layers": 2, **choices}
    assert_same_on_both(system, chosen, Neighbors.from_edge_index(edge_index, n), (share,))


def test_a_training_has_the_same_losses():
    """The whole loop, the sampler of GPUs in the place of the CPU's: the same edges are drawn."""
    data, drop = tiny_dataset(), DropEdge(0.5)

    def as_on_a_gpu(near: Neighbors) -> Neighbors:
        return near.masked(~drop.kept(near))

    for name, chosen in {"dropedge": {}, "sage": {"drop_edge": 0.5}, "g2": {}, "deep": {}}.items():
        found = []
        for sampler in (drop, as_on_a_gpu):
            torch.manual_seed(0)
            model = network(name, 6, 3, num_layers=3, **chosen)
            assert model.edge_sampler == (all_edges if name in ("g2", "deep") else drop)
            model.edge_sampler = sampler
            history = train(model, data, TrainSettings(epochs=8, device="cpu", seed=4)).history
            found.append([(epoch.loss, epoch.val_loss) for epoch in history])
        torch.testing.assert_close(*map(torch.tensor, found), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------------- recording


def test_nothing_in_a_draw_waits_for_its_numbers():
    """Fake tensors have none: whatever asked for one, or for a size that depends on it, fails."""
    near = Neighbors.from_edge_index(awkward_edges(), 30)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        lists = {name: mode.from_tensor(t) for name, t in vars(near).items() if torch.is_tensor(t)}
        near = replace(near, **lists)
        left = near.masked(~DropEdge(0.5).kept(near))
        assert left.num_edges == near.num_edges
        assert left.others.shape == (30,)
        x = torch.randn(30, 4)
        assert ops.neighbor_differences(left, x, 2.0).shape == (30, 4)
        NeighborMeanScore(HeadShape(1, 4))(ScoreInputs(left, x.unsqueeze(1)))
        with pytest.raises(Exception, match="nonzero"):  # what cutting the lists comes to
            near.select(DropEdge(0.5).kept(near), near.symmetric)


def test_which_samplers_can_be_recorded():
    assert all(map(recordable, (all_edges, no_edges, DropEdge(0.5))))
    assert not recordable(lambda near: near)
