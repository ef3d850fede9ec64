"""On a GPU: the numbers of the CPU, the same bits twice, bfloat16, and models that travel."""

import copy
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import PairNorm as WholePairNorm

from deepgat import ops
from deepgat.cli import main
from deepgat.data import NodeDataset, load_graph
from deepgat.model_folder import load_run, save_run
from deepgat.models import SYSTEMS, Network, build_network
from deepgat.models.config import Config
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.nn import ClassScore, DropEdge, NeighborAttention
from deepgat.nn.drop_edge import EdgeSampler, all_edges, no_edges
from deepgat.nn.norms import PairNorm
from deepgat.ops import (
    Additive,
    DotProduct,
    EdgeScore,
    Neighbors,
    Normalization,
    SparseMatrix,
    Uniform,
    fused_layer,
)
from deepgat.ops.attention_operator import kernel_lists
from deepgat.training.cuda_graph import Recorded
from deepgat.training.evaluate import evaluate
from deepgat.training.inputs import prepare
from deepgat.training.loop import train
from deepgat.training.recipes import Recipe, recipe
from deepgat.training.run import ModelCard, train_once
from deepgat.training.settings import TrainSettings
from networks import PAPER_SCORES, settings_of
from tiny import tiny_dataset, tiny_labels

from graphs import AWKWARD, random_edges

pytestmark = pytest.mark.gpu

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SCORED = [(system, score) for system, scores in PAPER_SCORES.items() for score in scores]
PRESETS = ("paper", "authors")
OTHERS = [name for name in SYSTEMS if name not in (*PAPER_SCORES, LABEL_PROPAGATION)]
TRAINED = [
    *((system, {}) for system in OTHERS),
    *(("deepgat", {"preset": preset}) for preset in PRESETS),
    ("gcnii", {"conv": "deepgat"}),
    ("g2", {"conv": "deepgat"}),
]
SIZES = {"hidden_channels": 4, "heads": 2}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
H, A, D = 2, 3, 4


def same_model(system: str, settings: Config, data: NodeDataset) -> list[Network]:
    """One model on the CPU and its copy on the GPU."""
    torch.manual_seed(0)
    model = build_network(
        system, settings, data.num_features, data.num_classes, multi_label=data.multi_label
    )
    return [model, copy.deepcopy(model).to(GPU)]


def outputs_and_gradients(model: Network, data: NodeDataset, device: torch.device):
    """{name: tensor on the CPU} of all that the first graph gives."""
    graph = prepare(model, data, device)[0]
    outputs = graph.run(model, with_attention=True)
    assert outputs.logits.device.type == device.type
    loss = model.loss(outputs.layer_logits, graph.y, graph.nodes["train"])
    loss.backward()
    found = {f"logits of layer {layer}": t for layer, t in outputs.layer_logits.items()}
    found |= {f"hidden {i}": t for i, t in enumerate(outputs.hidden)}
    found |= {f"attention {i}": a.weight for i, a in enumerate(outputs.attention)}
    found |= {"loss": loss}
    found |= {  # a weight that nothing depends on may have no gradient, or one of zeros
        f"gradient of {name}": torch.zeros_like(parameter)
        if parameter.grad is None
        else parameter.grad
        for name, parameter in model.named_parameters()
    }
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


def assert_same_on_both(system: str, settings: Config, data: NodeDataset) -> None:
    model, moved = same_model(system, settings, data)
    here, there = (
        outputs_and_gradients(model, data, CPU),
        outputs_and_gradients(moved, data, GPU),
    )
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        torch.testing.assert_close(
            there[name], tensor, **CLOSE, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("system", "score"), SCORED)
def test_cuda_gives_what_the_cpu_gives(system, score, preset, sparse):
    chosen = {**SIZES, "num_layers": 3, **NO_DROPOUT, "unit_features": False}
    settings = settings_of(system, preset, score=score, **chosen)
    assert_same_on_both(system, settings, tiny_dataset(sparse=sparse))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("system", OTHERS)
def test_cuda_gives_what_the_cpu_gives_in_every_system(system, sparse):
    kinds = SYSTEMS[system].config.kinds()
    off = {name for name in kinds if name.endswith("dropout")}
    chosen = {"num_layers": 3, "hidden_channels": 8, **dict.fromkeys(off, 0.0)}
    assert_same_on_both(system, settings_of(system, **chosen), tiny_dataset(sparse=sparse))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("system", PAPER_SCORES)
def test_cuda_gives_what_the_cpu_gives_for_many_labels(system, preset):
    chosen = {**SIZES, "num_layers": 2, **NO_DROPOUT, "unit_features": False}
    settings = settings_of(system, preset, residual="linear", **chosen)
    assert_same_on_both(system, settings, tiny_labels())


# ----------------------------------------------------------------------------------- operators


def forms(n: int, count: int, device: torch.device) -> dict:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device).requires_grad_()

    return {
        "dot": DotProduct(draw(n, H, A), draw(n, H, A), 0.5),
        "additive": Additive(draw(n, H), draw(n, H)),
        "edge": EdgeScore(draw(count, H)),
        "edge for all heads": EdgeScore(draw(count, 1)),
        "uniform": Uniform(),
    }


GRAPHS = {**AWKWARD, "no nodes": (0, torch.zeros(2, 0, dtype=torch.long))}
GRAPHS["large"] = (3000, random_edges(3000, 20_000))
STAR = torch.stack([torch.arange(1, 2001), torch.zeros(2000, dtype=torch.long)])


@pytest.mark.parametrize("normalization", list(Normalization))
@pytest.mark.parametrize("kind", ["dot", "additive", "edge", "edge for all heads", "uniform"])
@pytest.mark.parametrize("name", list(GRAPHS))
def test_attention_on_cuda_equals_that_on_the_cpu(name, kind, normalization):
    n, edge_index = GRAPHS[name]
    value = torch.randn(n, H, D)
    direction = torch.randn(n, H, D)
    results = []
    for device in (CPU, GPU, GPU):
        near = Neighbors.from_edge_index(edge_index, n).to(device)
        form = forms(n, near.num_edges, device)[kind]
        leaves = [part for part in vars(form).values() if isinstance(part, Tensor)]
        leaves.append(value.to(device).requires_grad_())
        out = ops.neighbor_attention(near, leaves[-1], form, normalization)
        gradients = torch.autograd.grad(out, leaves, direction.to(device))
        weights = ops.attention_weights(near, form, normalization).detach()
        results.append([tensor.detach().cpu() for tensor in (weights, out, *gradients)])
    for cpu, cuda, again in zip(*results, strict=True):
        torch.testing.assert_close(cuda, cpu, **CLOSE)
        assert torch.equal(cuda, again), "CUDA gave other bits the second time"


def assert_cuda_equals_cpu(run: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """run(x) and its gradient: on both devices, and once more."""
    direction, results = torch.randn_like(x), []
    for device in (CPU, GPU, GPU):
        leaf = x.to(device).requires_grad_()
        out = run(leaf)
        (gradient,) = torch.autograd.grad(out, leaf, direction.to(device))
        results.append([out.detach().cpu(), gradient.cpu()])
    for cpu, cuda, again in zip(*results, strict=True):
        scale = max(1.0, float(cpu.abs().max())) if cpu.numel() else 1.0
        torch.testing.assert_close(cuda, cpu, rtol=1e-3, atol=1e-5 * scale)
        assert torch.equal(cuda, again), "CUDA gave other bits the second time"


def assert_recordable(step: Callable[[], tuple[Tensor, Tensor]]) -> None:
    expected = step()
    recorded = Recorded(step, enabled=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "cannot be recorded"
        for _ in range(6):
            found = recorded()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("p", [1.0, 2.0, 2.5, 3.7])
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("name", [*GRAPHS, "hub of 2,000"])
def test_differences_on_cuda_equal_those_on_the_cpu(name, directed, p):
    n, edge_index = {**GRAPHS, "hub of 2,000": (2001, STAR)}[name]
    if not directed:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    near = Neighbors.from_edge_index(edge_index, n)
    x = torch.randn(n, 70)
    assert_cuda_equals_cpu(lambda x: ops.neighbor_differences(near.to(x.device), x, p), x)


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
def test_differences_can_be_recorded(directed):
    edge_index = STAR if directed else torch.cat([STAR, STAR.flip(0)], 1)
    near = Neighbors.from_edge_index(edge_index, 2001).to(GPU)
    x = torch.randn(2001, 70, device=GPU, requires_grad=True)

    def step() -> tuple[Tensor, Tensor]:
        out = ops.neighbor_differences(near, x, 2.5)
        return out.detach(), torch.autograd.grad(out.sum(), x)[0]

    assert_recordable(step)


@pytest.mark.parametrize("individually", [False, True], ids=["one length", "each its own"])
@pytest.mark.parametrize(
    "shape", [(0, 4), (1, 1), (1, 7), (5, 1), (300, 70), (40_000, 64), (50, 9000)]
)
def test_pair_norm_on_cuda_equals_that_on_the_cpu(shape, individually):
    assert_cuda_equals_cpu(PairNorm(1.5, individually), torch.randn(shape) + 1)


@pytest.mark.parametrize("autocast", [False, True], ids=["as it is", "autocast"])
@pytest.mark.parametrize("individually", [False, True], ids=["one length", "each its own"])
def test_pair_norm_of_bf16_on_cuda(individually, autocast):
    x = torch.randn(300, 70, device=GPU).bfloat16().requires_grad_()
    leaf = x.detach().double().requires_grad_()
    expected = WholePairNorm(1.5, individually)(leaf)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        out = PairNorm(1.5, individually)(x)
        assert out.dtype == WholePairNorm(1.5, individually)(x).dtype
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-3)
    direction = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, x, direction)
    (theirs,) = torch.autograd.grad(expected, leaf, direction.double())
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient.double(), theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("individually", [False, True], ids=["one length", "each its own"])
def test_pair_norm_can_be_recorded(individually):
    x = torch.randn(2001, 70, device=GPU, requires_grad=True)
    direction, norm = torch.randn(2001, 70, device=GPU), PairNorm(1.5, individually)

    def step() -> tuple[Tensor, Tensor]:
        out = norm(x)
        return out.detach(), torch.autograd.grad(out, x, direction)[0]

    assert_recordable(step)


def test_lists_built_on_cuda_are_those_built_on_the_cpu():
    edge_index = random_edges(200, 2000, directed=True)
    here = Neighbors.from_edge_index(edge_index, 200)
    there = Neighbors.from_edge_index(edge_index.to(GPU), 200)
    assert there.device.type == "cuda"
    assert there.symmetric == here.symmetric
    for name in ("ptr", "source", "target", "source_ptr", "by_source"):
        assert torch.equal(getattr(there, name).cpu(), getattr(here, name)), name


def test_sparse_products_on_cuda_equal_those_on_the_cpu():
    dense = torch.randn(500, 300) * (torch.rand(500, 300) < 0.05)
    right, left = torch.randn(300, 16), torch.randn(500, 16)
    x = SparseMatrix.from_torch(dense.to_sparse_csr()).to(GPU)
    assert x.device.type == "cuda"
    torch.testing.assert_close(x.matmul(right.to(GPU)).cpu(), dense @ right, **CLOSE)
    torch.testing.assert_close(x.transposed_matmul(left.to(GPU)).cpu(), dense.t() @ left, **CLOSE)


def test_large_scores_stay_finite_on_cuda():
    near = Neighbors.from_edge_index(random_edges(50, 200), 50).to(GPU)
    score = 1e4 * torch.randint(-1, 2, (near.num_edges, H), device=GPU).float()
    value = torch.randn(50, H, D, device=GPU)
    assert ops.neighbor_attention(near, value, EdgeScore(score)).isfinite().all()


# ------------------------------------------------------------------------------------ training


def plan(model: str = "deepgat", preset: str = "authors", **training) -> Recipe:
    chosen = {**SIZES, "num_layers": 3, "dropout": 0.3, "unit_features": False}
    return Recipe(
        model,
        settings_of(model, preset, **chosen),
        TrainSettings(**{"lr": 0.02, "epochs": 20, "device": "cuda"} | training),
    )


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("model", PAPER_SCORES)
def test_the_same_seed_gives_the_same_bits_on_cuda(model, preset, sparse, precision):
    data = tiny_dataset(sparse=sparse)
    first, again = (
        train_once(data, plan(model, preset, precision=precision), seed=3) for _ in range(2)
    )
    assert first.fitted.history == again.fitted.history
    weights = again.model.state_dict()
    for name, tensor in first.model.state_dict().items():
        assert tensor.device.type == "cuda"
        assert torch.equal(tensor, weights[name]), name


def authors(num_layers: int, epochs: int) -> Recipe:
    training = {"epochs": epochs, "device": "cuda"}
    return recipe("deepgat", preset="authors", num_layers=num_layers, training=training)


def test_the_same_seed_gives_the_same_bits_on_cuda_at_size():
    """2,000 nodes, so that sums are split over many threads."""
    data = load_graph("csbm")
    made = authors(num_layers=4, epochs=10)
    first, again = (train_once(data, made, seed=1) for _ in range(2))
    assert first.fitted.history == again.fitted.history
    assert torch.equal(first.evaluation.logits[0], again.evaluation.logits[0])


def bags_of_words() -> NodeDataset:
    data = load_graph("csbm")
    graph = copy.copy(data.graph)
    words = torch.rand(graph.num_nodes, 2000, generator=torch.Generator().manual_seed(0))
    graph.x = (words < 0.01).float().to_sparse_csr()
    return replace(data, graphs=(graph,), num_features=2000)


def test_the_same_seed_gives_the_same_bits_on_cuda_for_bags_of_words():
    data = bags_of_words()
    made = authors(num_layers=2, epochs=10)
    first, again = (train_once(data, made, seed=1) for _ in range(2))
    assert first.fitted.history == again.fitted.history


@pytest.mark.parametrize(("system", "chosen"), TRAINED, ids=str)
def test_a_recorded_step_gives_the_bits_of_an_eager_one(system, chosen):
    data = load_graph("csbm")
    made = recipe(system, num_layers=4, training={"epochs": 12, "device": "cuda"}, **chosen)
    found = []
    for recorded in (True, False):
        model = ModelCard.of(data, made).build()
        found.append((train(model, data, made.training, cuda_graphs=recorded), model.state_dict()))
    (one, weights), (two, same_weights) = found
    assert one.history == two.history
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)


def test_the_second_stage_is_recorded_too():
    data = load_graph("csbm")
    made = recipe("deep", num_layers=4, training={"epochs": 30, "patience": 4, "device": "cuda"})
    assert made.training.self_training
    found = []
    for recorded in (True, False):
        model = ModelCard.of(data, made).build()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "cannot be recorded"
            found.append(train(model, data, made.training, cuda_graphs=recorded).history)
    assert found[0] == found[1]


BODIES = {
    "gcn": {"model": "dropedge"},
    "sage": {"model": "sage"},
    "gat": {"model": "gat"},
    "deepgat": {"model": "deepgat", "preset": "authors"},
    "deep": {"model": "deep"},
    "g2": {"model": "g2"},
    "mlp": {"model": "mlp"},
}
"""One for every way of weighing, or counting, neighbours."""
PAIR_NORMS = {name: {"model": "pairnorm", "norm": name} for name in ("pairnorm", "pairnorm-si")}


def trained(body: str, sampler: EdgeSampler, recorded: bool = True):
    """(history, weights) of a short training run in float32 with these edges in every step."""
    data = load_graph("csbm")
    made = recipe(
        **(BODIES | PAIR_NORMS)[body], num_layers=4, training={"epochs": 12, "device": "cuda"}
    )
    model = ModelCard.of(data, made).build()
    model.edge_sampler = sampler
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "cannot be recorded"
        history = train(model, data, made.training, cuda_graphs=recorded).history
    return history, model.state_dict()


@pytest.mark.parametrize("sampler", [DropEdge(0.5), no_edges], ids=["dropped", "none"])
@pytest.mark.parametrize("body", [name for name in BODIES if name != "mlp"])
def test_steps_without_some_edges_are_recorded_too(body, sampler, monkeypatch):
    recordings = []
    record = Recorded._record
    monkeypatch.setattr(Recorded, "_record", lambda self: recordings.append(self) or record(self))
    one, weights = trained(body, sampler)
    assert len(recordings) == 2, "the step and the validation"
    two, same_weights = trained(body, sampler, recorded=False)
    assert len(recordings) == 2
    assert one == two
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)


@pytest.mark.parametrize("body", ["mlp", "pairnorm", "pairnorm-si"])
def test_bodies_with_all_edges_are_recorded_too(body, monkeypatch):
    recordings = []
    record = Recorded._record
    monkeypatch.setattr(Recorded, "_record", lambda self: recordings.append(self) or record(self))
    one, weights = trained(body, all_edges)
    assert len(recordings) == 2
    two, same_weights = trained(body, all_edges, recorded=False)
    assert one == two
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)


@pytest.mark.parametrize("body", [name for name in BODIES if name != "mlp"])
def test_edges_dropped_by_weight_train_as_edges_cut_out(body, monkeypatch):
    """The same seed drops the same; steps with a sampler from elsewhere are not recorded."""
    drop, recordings = DropEdge(0.5), []
    record = Recorded._record
    monkeypatch.setattr(Recorded, "_record", lambda self: recordings.append(self) or record(self))

    def cut(near: Neighbors) -> Neighbors:
        return near.select(drop.kept(near), near.symmetric)

    by_weight, _ = trained(body, drop)
    assert len(recordings) == 2
    cut_out, _ = trained(body, cut)
    assert len(recordings) == 3, "the validation alone"
    for name in ("loss", "val_loss"):
        found, expected = ([getattr(e, name) for e in each] for each in (by_weight, cut_out))
        assert found == pytest.approx(expected, rel=1e-3)


def test_steps_on_several_graphs_are_recorded_each():
    """The bits of steps that are not, in whatever order the graphs come."""
    data = load_graph("csbm")
    graphs = [copy.copy(data.graph) for _ in range(3)]
    for number, graph in enumerate(graphs):
        graph.x = graph.x + 0.1 * number
    data = replace(data, graphs=tuple(graphs))
    made = authors(num_layers=3, epochs=9)
    found = []
    for recorded in (True, False):
        model = ModelCard.of(data, made).build()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "cannot be recorded"
            result = train(model, data, made.training, cuda_graphs=recorded)
        found.append((result, model.state_dict()))
    (one, weights), (two, same_weights) = found
    assert one.history == two.history
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)


@pytest.mark.parametrize(("system", "chosen"), TRAINED, ids=str)
def test_training_on_bags_of_words_is_recorded(system, chosen):
    """Nothing in a step or in its validation waits for the GPU, whatever the body."""
    data = bags_of_words()
    made = recipe(system, num_layers=3, training={"epochs": 6, "device": "cuda"}, **chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "cannot be recorded"
        first, again = (train_once(data, made, seed=1) for _ in range(2))
    assert first.fitted.history == again.fitted.history


def test_what_cannot_be_recorded_runs_as_it_is():
    """And leaves the random numbers usable, for itself and for whoever comes after."""
    calls = []

    def step() -> int:
        calls.append(torch.rand(1, device=GPU).item())  # waits for the GPU: not recordable
        return len(calls)

    recorded = Recorded(step, enabled=True)
    with pytest.warns(UserWarning, match="cannot be recorded as a CUDA graph"):
        results = [recorded() for _ in range(6)]
    assert results[-1] == len(calls) >= 6
    assert len(set(calls)) == len(calls)
    torch.rand(1, device=GPU)


def test_cuda_starts_from_the_weights_of_the_cpu_and_trains_alike():
    data = tiny_dataset()
    losses = {}
    for device in ("cpu", "cuda"):
        training = {"lr": 0.02, "epochs": 5, "device": device}
        made = recipe("gcn", num_layers=3, dropout=0.0, training=training)
        losses[device] = [epoch.loss for epoch in train_once(data, made).fitted.history]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-3)


def test_the_random_numbers_of_the_caller_are_left_alone_on_cuda():
    data = tiny_dataset()
    torch.cuda.manual_seed(5)
    expected = torch.rand(3, device=GPU)
    for device in ("cuda", "cpu"):
        torch.cuda.manual_seed(5)
        train_once(data, plan(device=device, epochs=2))
        assert torch.equal(torch.rand(3, device=GPU), expected), device
    torch.cuda.manual_seed(5)
    ModelCard.of(data, plan()).build()
    assert torch.equal(torch.rand(3, device=GPU), expected)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("system", "score"), SCORED)
def test_every_score_trains_in_bf16(system, score, preset, sparse):
    chosen = {**SIZES, "num_layers": 3, "dropout": 0.0, "unit_features": False}
    settings = settings_of(system, preset, score=score, **chosen)
    trains_in_bf16(system, settings, sparse)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("system", OTHERS)
def test_every_system_trains_in_bf16(system, sparse):
    trains_in_bf16(system, settings_of(system, num_layers=3), sparse)


def trains_in_bf16(system: str, settings: Config, sparse: bool) -> None:
    data = tiny_dataset(sparse=sparse)
    training = TrainSettings(lr=0.02, epochs=30, device="cuda", precision="bf16")
    made = Recipe(system, settings, training)
    network = ModelCard.of(data, made).build()
    fitted = train(network, data, made.training)
    losses = torch.tensor([epoch.loss for epoch in fitted.history])
    assert losses.isfinite().all()
    assert losses[-5:].mean() < losses[:5].mean()
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())


@pytest.mark.parametrize("preset", PRESETS)
def test_bf16_scores_like_float32(preset):
    data = load_graph("csbm")
    scores, first_losses = {}, {}
    for precision in ("float32", "bf16"):
        training = {"epochs": 150, "patience": 50, "device": "cuda", "precision": precision}
        run = train_once(data, recipe("deepgat", preset=preset, num_layers=2, training=training))
        scores[precision] = run.evaluation.micro_f1["test"]
        first_losses[precision] = run.fitted.history[0].loss
    assert first_losses["bf16"] != first_losses["float32"], "bf16 computed what float32 did"
    assert scores["bf16"] == pytest.approx(scores["float32"], abs=0.05)
    assert scores["float32"] > 0.5  # chance is 0.2


# -------------------------------------------------------------------------------------- saving


def test_a_model_saved_from_the_gpu_loads_on_the_cpu(tmp_path):
    data = tiny_dataset()
    run = train_once(data, plan())
    assert all(values.device == CPU for values in run.evaluation.logits)
    model, card = load_run(save_run(tmp_path / "model", run, data))
    assert card.training.device == "cuda"
    assert all(parameter.device == CPU for parameter in model.parameters())
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor.cpu()), name
    here = evaluate(model, data, "cpu")
    torch.testing.assert_close(here.logits[0], run.evaluation.logits[0], **CLOSE)
    there = evaluate(model, data, "cuda")
    assert torch.equal(there.logits[0], run.evaluation.logits[0])


def test_the_command_line_takes_the_gpu(monkeypatch, capsys):
    for device in ("cuda", "auto"):
        command = ["deepgat", "train", "csbm", "--epochs", "3", "--device", device, "--json"]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["hardware"] == torch.cuda.get_device_name()


@pytest.mark.parametrize("system", ["deepgat", "deep"])
@pytest.mark.parametrize(
    "batches",
    [
        {"batches": "clusters", "clusters": 6, "batch_size": 2},
        {"batches": "neighbours", "batch_size": 5, "fan_out": "3"},
    ],
)
def test_mini_batches_and_evaluation_in_chunks(system, batches):
    data = tiny_dataset(sparse=system == "deep")
    preset = "authors" if system == "deepgat" else None
    settings = settings_of(system, preset, hidden_channels=4, num_layers=3)
    training = TrainSettings(epochs=5, device="cuda", most_nodes=25, **batches)
    run, again = (train_once(data, Recipe(system, settings, training)) for _ in range(2))
    assert run.fitted.history == again.fitted.history
    whole = evaluate(run.model, data, "cuda")
    torch.testing.assert_close(run.evaluation.logits[0], whole.logits[0], **CLOSE)


@pytest.fixture(scope="module")
def native():
    """The layer as a C++ node, compiled."""
    from deepgat.ops.gpu import extension

    found = extension.wait()
    assert found is not None, "the C++ layer was not built"
    return found


STEPS = {
    "classes": {"num_classes": 5},
    "classes, symmetric": {"num_classes": 5, "normalization": "symmetric"},
    "labels": {"num_classes": 5, "score": partial(ClassScore, independent_labels=True)},
    "gat": {},
    "gat, symmetric": {"normalization": "symmetric"},
    "gat, dropout": {"dropout": 0.5},
    "classes, dropout, no bias": {"num_classes": 5, "dropout": 0.5, "bias": False},
    "one averaged head": {"heads": 1, "concat": False, "residual": True},
}


@pytest.mark.parametrize("options", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_layer_in_cpp_has_the_bits_of_python(native, options, directed, dtype, monkeypatch):
    torch.manual_seed(0)
    n = 3000
    edges = random_edges(n, 9000, directed=directed)
    star = torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.long)])  # a list that is cut
    near = Neighbors.from_edge_index(torch.cat([edges, star, star.flip(0)], 1).to(GPU), n)
    conv = NeighborAttention(24, 8, **{"heads": 4, **options}).to(GPU, dtype)
    x = torch.randn(n, 24, device=GPU, dtype=dtype, requires_grad=True)

    def results(seed):
        torch.manual_seed(seed)
        found = conv.run(x, near)
        outputs = [item for item in (found.out, found.class_logits) if item is not None]
        loss = sum(item.float().sin().sum() for item in outputs)
        return [*outputs, *torch.autograd.grad(loss, [x, *conv.parameters()])]

    with monkeypatch.context() as patch:
        patch.setitem(fused_layer.RUN, "cuda", lambda *call: None)
        expected = [results(seed) for seed in range(3)]
    before = len(kernel_lists(near).steps)
    found = [results(seed) for seed in range(3)]
    steps = kernel_lists(near).steps
    assert len(steps) == before + 1
    assert None not in steps.values()
    for one, other in zip(found, expected, strict=True):
        for item, wanted in zip(one, other, strict=True):
            assert torch.equal(item, wanted)


def test_a_layer_in_cpp_is_recorded_by_a_cuda_graph(native):
    conv = NeighborAttention(16, 8, 4, num_classes=3).to(GPU)
    x = torch.randn(500, 16, device=GPU, requires_grad=True)
    edges = random_edges(500, 2000).to(GPU)
    for _ in range(3):
        (wanted,) = torch.autograd.grad(conv(x, edges).pow(2).sum(), [x])
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        (grad,) = torch.autograd.grad(conv(x, edges).pow(2).sum(), [x])
    recorded.replay()
    torch.cuda.synchronize()
    assert torch.equal(grad, wanted)


def test_a_layer_in_cpp_runs_on_any_stream(native):
    conv = NeighborAttention(16, 8, 4, num_classes=3).to(GPU)
    x = torch.randn(500, 16, device=GPU, requires_grad=True)
    edges = random_edges(500, 2000).to(GPU)
    (wanted,) = torch.autograd.grad(conv(x, edges).pow(2).sum(), [x])
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            (found,) = torch.autograd.grad(conv(x, edges).pow(2).sum(), [x])
    torch.cuda.synchronize()
    assert torch.equal(found, wanted)
