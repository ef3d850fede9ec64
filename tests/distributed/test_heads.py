"""Heads divided among processes: what one process computes, to 1e-10 in double precision."""

import pytest
import torch

from deepgat.distributed import LiveHeads, Team
from deepgat.errors import UserError
from deepgat.nn import build_model
from deepgat.ops import use_backend, use_heads
from deepgat.training.loop import fit, prepare
from deepgat.training.recipes import recipe

from together import CASES, Job, apart, dataset, together, train_all

CPU = torch.device("cpu")
EXTRA = {
    "wide": {"preset": "authors", "layers": 2, "hidden": 3, "heads": 16},
    "two-out": {"preset": "authors", "layers": 3, "hidden": 4, "heads": 4, "output_heads": 2},
    "deep-heads": {"preset": "deep", "layers": 3, "hidden": 4, "heads": 4},
    "deep-shared-steps": {"preset": "deep", "layers": 5, "hidden": 4, "heads": 4, "step_depth": 4,
                          "shared_steps": True},
    "deep-steps": {"preset": "deep", "layers": 5, "hidden": 4, "heads": 4, "step_depth": 4},
    "shared": {"preset": "deep", "layers": 3, "hidden": 4, "heads": 2, "class_head": "shared",
               "detach_attention": False, "clean_attention": False},
    "shared-clean": {"preset": "deep", "layers": 3, "hidden": 4, "heads": 2,
                     "class_head": "shared", "detach_attention": False, "clean_attention": True},
    "own-clean": {"preset": "deep", "layers": 3, "hidden": 4, "heads": 2, "class_head": "layer",
                  "detach_attention": False, "clean_attention": True},
    "gat-heads": {"model": "gat", "score": "ad", "preset": "gcnii", "layers": 3, "hidden": 4,
                  "heads": 2},
    "g2-heads": {"preset": "g2", "layers": 3, "hidden": 4, "heads": 2},
    "learned": {"preset": "paper", "layers": 2, "hidden": 4, "heads": 2, "learn_temperature": True},
}  # fmt: skip
FEW = [
    Job(("paper-sd", "oracle", "two-out", "shared-clean", "gat-heads", "learned")),
    Job(("authors",), drop=False),
    Job(("gat",), "values"),
    Job(("authors",), checkpoint="layer"),
]
ALL = [
    Job(("paper", "paper-sd", "authors", "gat", "oracle", *EXTRA)),
    Job(("paper", "authors", "deep-heads"), drop=False),
    Job(("authors", "gat"), "values"),
    Job(("authors",), "sparse"),
    Job(("paper",), "labels"),
    Job(("authors",), "many"),
    Job(("authors", "shared"), checkpoint="layer"),
    Job(("authors",), checkpoint="projections"),
]


def train_heads(team: Team | None, jobs: list[Job]) -> dict:
    CASES.update(EXTRA)
    if team is not None:
        team.parallel = "heads"
    return train_all(team, jobs)


def check(size: int, jobs: list[Job]) -> None:
    alone, team = train_heads(None, jobs), together(size, train_heads, jobs)
    for name, expected in alone.items():
        assert apart(expected, [found[name] for found in team]) < 1e-10, name


def test_two_processes_train_as_one():
    check(2, FEW)


@pytest.mark.distributed
def test_any_system_in_two_processes():
    check(2, ALL)


@pytest.mark.distributed
def test_four_processes_train_as_one():
    names = ("paper-sd", "wide", "two-out", "deep-heads", "deep-steps")
    check(4, [Job(names, drop=drop) for drop in (True, False)])


def attention(team: Team | None, backend: str) -> dict[str, torch.Tensor]:
    data = dataset()
    torch.manual_seed(0)
    model = build_model(recipe(**CASES["paper-sd"]).model, 7, 3).double().eval()
    (graph,) = prepare(model, data, CPU)
    share = None if team is None else LiveHeads(team, model)
    with use_heads(share), use_backend(backend), torch.no_grad():
        outputs = graph.run(model, with_attention=True)
    return {str(layer): item.weight for layer, item in enumerate(outputs.attention)}


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_attention_of_all_heads_is_known_to_all(backend):
    expected = attention(None, backend)
    for found in together(2, attention, backend):
        for layer, weight in expected.items():
            torch.testing.assert_close(found[layer], weight, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "processes"), [("paper-sd", 3), ("gcnii", 2)])
def test_heads_that_do_not_divide_are_refused(name, processes):
    plan = recipe(dataset="digits", **CASES[name])
    model = build_model(plan.model, 7, 3)
    team = Team(0, processes, CPU, "heads")
    with pytest.raises(UserError, match=f"cannot be shared equally by {processes} processes"):
        fit(model, dataset(), plan.training.with_changes({"device": "cpu"}), team=team)


def test_what_can_be_divided():
    with pytest.raises(UserError, match="unknown way to divide the work 'head'"):
        Team(0, 1, CPU, "head")
