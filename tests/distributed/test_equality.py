"""Several processes compute what one does, to 1e-10 in double precision after five steps."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from deepgat.data import load_graph
from deepgat.distributed import HaloPart, Team, cut, owners
from deepgat.ops import Neighbors, PartNeighbors, use_backend, use_part
from deepgat.training.evaluate import evaluate
from deepgat.training.loop import train
from deepgat.training.recipes import recipe

from together import (
    CASES,
    Job,
    apart,
    dataset,
    network_of,
    odd_graph,
    plan_of,
    together,
    train_all,
)

MAIN = ("paper", "authors", "deep", "gcnii", "g2")
JOBS = [
    Job(tuple(CASES)),
    Job(MAIN, drop=False),
    Job(("authors", "deep"), "sparse"),
    Job(("paper", "authors-batch"), "labels"),
    Job(("paper", "deep"), "many"),
    Job(("deep", "authors", "g2"), "few"),
    Job(("deep", "g2", "authors-batch"), checkpoint="layer"),
    Job((*MAIN, "gat-in-gcnii", "gat", "dropedge"), "values"),
    Job(("authors",), checkpoint="sqrt"),
    Job(("authors",), checkpoint="projections"),
]


def check(size: int, jobs: list[Job]) -> None:
    team = together(size, train_all, jobs)
    for name, expected in {k: v for job in jobs for k, v in trained_alone(job).items()}.items():
        assert apart(expected, [found[name] for found in team]) < 1e-10, name


@cache
def trained_alone(job: Job) -> dict[str, dict[str, Any]]:
    return train_all(None, [job])


def test_two_processes_train_as_one():
    check(2, [Job(("authors", "deep"), "values")])


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("size", "jobs"),
    [
        (1, [Job(MAIN)]),
        (2, JOBS),
        (3, [*JOBS[:2], Job(("paper", "deep"), "many"), Job(MAIN, "values")]),
        # three nodes are too few for a batch norm: gradients that are nothing but rounding
        (4, [Job(MAIN), Job(tuple(name for name in CASES if "batch" not in name), "few")]),
    ],
)
def test_any_number_of_processes_trains_as_one(size, jobs):
    check(size, jobs)


def train_in_two_stages(team: Team | None) -> dict[str, torch.Tensor]:
    """Long enough for the second stage to keep a best epoch of its own, after its targets grew."""
    data = dataset()
    plan = recipe(
        "deep",
        num_layers=3,
        hidden_channels=8,
        attention_from=1,
        training={"patience": 2, "lr": 0.2, "epochs": 90, "device": "cpu"},
    )
    torch.manual_seed(0)
    model = network_of(plan, data).double()
    fitted = train(model, data, plan.training, team=team)
    return {
        "losses": torch.tensor([[e.loss, e.val_loss] for e in fitted.history]),
        "best": torch.tensor([e.best_number for e in fitted.history]),
        "weights": torch.cat([item.flatten() for item in model.state_dict().values()]),
    }


@pytest.mark.distributed
def test_two_processes_keep_the_second_stage_s_own_best_epoch():
    alone, team = train_in_two_stages(None), together(2, train_in_two_stages)
    assert alone["best"][10] < 10  # the first stage's
    assert alone["best"][-1] > 50  # the second's, which began at 4 and whose targets grew until 54
    for found in team:
        assert torch.equal(found["best"], alone["best"])
        torch.testing.assert_close(found["losses"], alone["losses"], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found["weights"], alone["weights"], rtol=1e-6, atol=1e-8)


def train_with_weights(team: Team | None) -> dict[str, torch.Tensor]:
    """Weights of classes, in both stages, and a metric of all validation nodes together."""
    data, found = dataset(), {}
    for monitor in ("average_precision", "loss-and-errors"):
        plan = recipe(
            "deep",
            num_layers=2,
            hidden_channels=8,
            training={"patience": 2, "epochs": 8, "device": "cpu", "monitor": monitor,
                      "class_weight": "balanced"},
        )  # fmt: skip
        torch.manual_seed(0)
        model = network_of(plan, data).double()
        history = train(model, data, plan.training, team=team).history
        found[monitor] = torch.tensor([[e.loss, e.val_loss, e.val_score] for e in history])
        scored = evaluate(model, data, team=team).metrics
        found[f"{monitor} metrics"] = torch.tensor([[*parts.values()] for parts in scored.values()])
    return found


@pytest.mark.distributed
def test_two_processes_weigh_classes_as_one():
    alone, team = train_with_weights(None), together(2, train_with_weights)
    for found in team:
        for name, values in alone.items():
            torch.testing.assert_close(found[name], values, rtol=1e-6, atol=1e-7)


def train_on_cora(team: Team | None) -> dict[str, dict[str, torch.Tensor]]:
    data = load_graph("cora")
    graph = data.graph.clone()
    graph.x = graph.x.to(torch.float64)
    data = replace(data, graphs=(graph,))
    results = {}
    for name in MAIN:
        case = {key: CASES[name][key] for key in ("model", "preset") if key in CASES[name]}
        plan = recipe(dataset="cora", num_layers=4, **case)
        torch.manual_seed(0)
        model = network_of(plan, data).double()
        training = replace(plan.training, epochs=5, monitor="train-loss", device="cpu")
        history = train(model, data, training, team=team).history
        results[name] = {
            "history": torch.tensor([[e.loss, e.val_loss, e.val_f1] for e in history]),
            "weights": {key: item.clone() for key, item in model.state_dict().items()},
            "scores": torch.zeros(1),
            "logits": [torch.zeros(1)],
        }
    return results


@pytest.mark.data
@pytest.mark.distributed
def test_cora_in_parts():
    alone, team = train_on_cora(None), together(3, train_on_cora)
    for name, expected in alone.items():
        assert apart(expected, [found[name] for found in team]) < 1e-10, name


def attention_of_parts(team: Team, backend: str) -> dict[str, torch.Tensor]:
    """{layer and model: what this process's edges weigh, by their numbers in the whole graph}."""
    graph = odd_graph()
    part = cut(graph, owners(graph.edge_index, graph.num_nodes, team.size), team.rank, team.size)
    live = HaloPart.meet(team, part.own, part.ids, part.halo_counts.tolist(), part.num_nodes)
    neighbors = PartNeighbors.of(Neighbors.from_edge_index(part.edge_index, len(part.ids)), live)
    found = {}
    for name in ("deep", "authors", "gat-in-gcnii", "sage"):
        torch.manual_seed(0)
        model = network_of(plan_of(name), dataset()).double().eval()
        with use_part(live), use_backend(backend), torch.no_grad():
            outputs = model.run(part.x, neighbors, with_attention=True)
        for layer, (edge_index, weight) in enumerate(outputs.attention):
            found[f"{name} {layer}"] = torch.cat([edge_index.t().double(), weight], 1)
    return found


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_attention_of_parts_is_that_of_the_whole(backend):
    graph, parts = odd_graph(), together(3, attention_of_parts, backend)
    for name in ("deep", "authors", "gat-in-gcnii", "sage"):
        torch.manual_seed(0)
        model = network_of(plan_of(name), dataset()).double().eval()
        with torch.no_grad():
            outputs = model.run(graph.x, graph.edge_index, with_attention=True)
        for layer, (edge_index, weight) in enumerate(outputs.attention):
            rows = torch.cat([part[f"{name} {layer}"] for part in parts])
            order = torch.argsort(rows[:, 1] * graph.num_nodes + rows[:, 0])
            expected = torch.cat([edge_index.t().double(), weight], 1)
            torch.testing.assert_close(rows[order], expected, rtol=0, atol=1e-12)
