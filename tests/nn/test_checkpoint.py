"""Activations computed again: the same bits, less memory, and the right choice of how much."""

import math

import pytest
import torch
from torch import Tensor

from deepgat.machine import free_memory
from deepgat.models import SYSTEMS, DeepGAT
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.nn.checkpoint import CHECKPOINTS, choose_checkpoint, segment_length
from deepgat.ops import Neighbors
from deepgat.training.memory import TRUST
from deepgat.training.portfolio import PORTFOLIO
from deepgat.training.recipes import recipe
from deepgat.training.run import train_once
from networks import network
from tiny import tiny_dataset

from graphs import random_edges

MODELS = [
    *((name, {}) for name in SYSTEMS if name not in ("deep", LABEL_PROPAGATION)),
    ("deep", {"step_depth": 4, "attention_from": 2}),
    ("deep-oracle", {"right": 0.6, "attention_from": 2}),
    ("deepgat", {"preset": "authors", "heads": 1}),
    ("gat", {"preset": "authors", "heads": 1}),
    ("gcnii", {"conv": "deepgat"}),
    ("g2", {"conv": "deepgat"}),
    ("prenorm", {"conv": "deepgat", "drop_edge": 0.2, "input_norm": "batch"}),
]
NODES = 200
AUTHORS = SYSTEMS["deepgat"].presets["authors"]


def made(system, chosen, layers):
    """The network in training, with dropout wherever it has a setting for it."""
    torch.manual_seed(0)
    rates = {} if system == "g2" else {"dropout": 0.5}
    sizes = {"num_layers": layers, "hidden_channels": 6}
    return network(system, 6, 3, **rates, **sizes, **chosen).train()


def gradients(model: torch.nn.Module, segment: int) -> list[Tensor]:
    """Loss, every layer's prediction and every gradient of one step with dropout."""
    torch.manual_seed(3)
    n = 15
    x, y = torch.randn(n, 6), torch.arange(n) % 3
    z = torch.rand(n, 3, 3)
    near = Neighbors.from_edge_index(random_edges(n, 30), n)
    outputs = model.run(x, near, z, y if model.needs_labels else None, segment=segment)
    loss = model.loss(outputs.layer_logits, y, torch.arange(9))
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    predictions = [outputs.layer_logits[k].detach() for k in sorted(outputs.layer_logits)]
    return [loss.detach(), *predictions, *(g for g in found if g is not None)]


@pytest.mark.parametrize("segment", [1, 2, 5])
@pytest.mark.parametrize(("system", "chosen"), MODELS, ids=str)
def test_the_same_bits(system, chosen, segment):
    model = made(system, chosen, layers=5)
    kept, again = gradients(model, 0), gradients(model, segment)
    assert len(kept) == len(again)
    assert all(map(torch.equal, kept, again))


def test_batch_statistics_are_counted_once():
    buffers = []
    for segment in (0, 2):
        torch.manual_seed(0)
        model = DeepGAT(6, 3, 4, 3, **{**AUTHORS, "heads": 2, "norm": "batch"}).train()
        gradients(model, segment)
        buffers.append({name: item.clone() for name, item in model.named_buffers()})
    assert buffers[0]
    assert all(torch.equal(item, buffers[1][name]) for name, item in buffers[0].items())


@pytest.mark.parametrize("choice", ["projections", "layer", "sqrt"])
def test_a_whole_training_is_the_same(choice):
    histories = []
    for checkpoint in ("none", choice):
        training = {"epochs": 6, "device": "cpu", "checkpoint": checkpoint}
        sizes = {"num_layers": 5, "hidden_channels": 4, "heads": 2}
        plan = recipe("deepgat", preset="authors", training=training, **sizes)
        histories.append(train_once(tiny_dataset(), plan, seed=1).fitted.history)
    assert histories[0] == histories[1]


def saved_bytes(
    model: torch.nn.Module, segment: int = 0, width: int = 6, sparse: bool = False
) -> int:
    """What autograd holds on to between the forward and the backward pass."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    near = Neighbors.from_edge_index(random_edges(NODES, 400), NODES)
    torch.manual_seed(0)
    x = torch.randn(NODES, width)
    x = x.to_sparse_csr() if sparse else x
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model.run(x, near, segment=segment)
    del outputs
    return sum(seen.values())


@pytest.mark.parametrize("width", [6, 100])
@pytest.mark.parametrize(
    "member", ["grand", "grand-sparse", "grand-wide", "grand-wide-sparse", "wide-gat", "deep"]
)
def test_estimates_are_trusted_within_their_factor(member, width):
    """More is kept for less than is estimated: a search would train what does not fit."""
    settings = PORTFOLIO[member].settings
    model = network(PORTFOLIO[member].system, width, 3, **settings).train()
    estimate = model.num_layers * model.layer_bytes(NODES)[0]
    found = saved_bytes(model, width=width, sparse=member.endswith("sparse"))
    assert found < TRUST * estimate


def test_segments_keep_less():
    model = DeepGAT(6, 8, 16, 3, **AUTHORS).train()
    kept, by_layer, by_root = (saved_bytes(model, segment) for segment in (0, 1, 4))
    assert by_layer < kept / 3
    assert by_root < by_layer


@pytest.mark.parametrize(
    ("choice", "free", "expected"),
    [
        ("none", 0, "none"),
        ("sqrt", math.inf, "sqrt"),
        ("auto", math.inf, "none"),
        ("auto", 2 * 100 * 8, "none"),
        ("auto", 2 * 100 * 8 - 1, "projections"),
        ("auto", 2 * (100 * 4 + 8), "projections"),
        ("auto", 2 * (100 * 4 + 8) - 1, "layer"),
        ("auto", 2 * (100 + 8), "layer"),
        ("auto", 2 * (100 + 8) - 1, "sqrt"),
    ],
)
def test_how_much_is_forgotten(choice, free, expected):
    assert choose_checkpoint(choice, 100, kept_bytes=8, input_bytes=1, free_bytes=free) == expected


def test_layers_per_segment():
    assert [segment_length(choice, 100) for choice in CHECKPOINTS[1:]] == [0, 0, 1, 10]


@pytest.mark.parametrize(("system", "chosen"), MODELS, ids=str)
def test_projections_come_back_to_the_bit(system, chosen):
    model = made(system, chosen, layers=3)
    kept = gradients(model, 0)
    model.forget_projections(True)
    assert all(map(torch.equal, kept, gradients(model, 0)))


def test_without_projections_less_is_kept():
    model = DeepGAT(6, 8, 8, 3, **AUTHORS).train()
    kept = saved_bytes(model, 0)
    model.forget_projections(True)
    assert saved_bytes(model, 0) < 0.8 * kept


def test_free_memory_is_a_number():
    assert free_memory(torch.device("cpu")) > 2**20
