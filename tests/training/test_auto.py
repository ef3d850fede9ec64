"""``auto``: what it looks at, what it tries, what it keeps, and that none of it is lost."""

import importlib
import json
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch_geometric.data import Data

import deepgat
from deepgat import DeepGATClassifier, NodeDataset, Run
from deepgat.analysis import choose_temperature
from deepgat.errors import UserError
from deepgat.model import Model
from deepgat.model_folder import load_run, save_run
from deepgat.models import GRAND, Deep, Ensemble
from deepgat.training import loop, memory
from deepgat.training.auto import train_auto
from deepgat.training.baselines import LARGEST_CLASS, PROPAGATION
from deepgat.training.ensembling import FEW_NODES, Candidate, joined, members_of, select
from deepgat.training.ensembling import Member as EnsembleMember
from deepgat.training.evaluate import evaluate
from deepgat.training.judge import Judge
from deepgat.training.leaderboard import Trial, warning_of
from deepgat.training.looks import look_at
from deepgat.training.portfolio import (
    CHEAP,
    COMPANIONS,
    LIGHT,
    MEMBERS,
    PORTFOLIO,
    Member,
    companion,
    ranked,
)
from deepgat.training.recipes import recipe, recipe_or_search
from deepgat.training.resume import Held
from deepgat.training.search import QUALITIES, Request
from deepgat.training.settings import TrainSettings
from deepgat.training.trainer import Trainer
from test_cli import assert_sentence
from test_cli import run as command  # noqa: F401 - a fixture
from tiny import PARTS, tiny_dataset, tiny_labels

AUTO = importlib.import_module("deepgat.training.auto")
EPOCHS = 4
TRAINING = {"epochs": EPOCHS, "device": "cpu"}


def make_small(patch: pytest.MonkeyPatch) -> dict[str, Member]:
    """Members of two narrow layers that are screened after two epochs."""
    sizes = {"num_layers": 2, "hidden_channels": 8}
    members = {m.name: replace(m, settings={**m.settings, **sizes}) for m in MEMBERS}
    patch.setattr(AUTO, "PORTFOLIO", members)
    patch.setattr(AUTO, "SCREENED", 2)
    patch.setattr(AUTO, "LONGER", 2)
    patch.setattr(AUTO, "EVERY", 1)
    patch.setattr(os, "fsync", lambda _: None)  # nothing of a test has to outlive the machine
    return members


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return make_small(monkeypatch)


def searched(data=None, quality="good", limit=None, seed=0, training=(), **more) -> Run:
    request = Request(quality, limit, {**TRAINING, **dict(training)})
    return train_auto(tiny_dataset() if data is None else data, request, seed, **more)


def tried(data=None, quality="good") -> set[str]:
    """The members that are tried."""
    looks = look_at(tiny_dataset() if data is None else data)
    beside = [*CHEAP, companion(looks)] if companion(looks) else CHEAP
    return {*ranked(looks)[: AUTO.TRIED[quality]], *beside}


def names(run: Run) -> list[str]:
    return [row["name"] for row in run.search.leaderboard if row["system"] != "baseline"]


def outcomes(run: Run) -> dict[str, str]:
    return {row["name"]: row["outcome"] for row in run.search.leaderboard}


def assert_same(found: Run, expected: Run) -> None:
    assert outcomes(found) == outcomes(expected)
    weights = found.model.state_dict(), expected.model.state_dict()
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert torch.equal(found.evaluation.logits[0], expected.evaluation.logits[0])


# --------------------------------------------------------------------------- looks


def made(n=300, features=40, agree=0.9, train=0.5, x=None, seed=0, degree=4) -> NodeDataset:
    """Two classes; that share of the edges joins nodes of one class."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    source = torch.randint(n, (degree * n,), generator=draw)
    same = torch.rand(degree * n, generator=draw) < agree
    shift = 2 * torch.randint(n // 2, (degree * n,), generator=draw) + (~same).long()
    target = (source + shift) % n
    place = torch.rand(n, generator=draw)
    parts = place < train, (place >= train) & (place < train + 0.2), place >= train + 0.2
    if x is None:
        x = torch.randn(n, features, generator=draw) + y[:, None]
    graph = Data(
        x=x,
        edge_index=torch.stack([source, target]),
        y=y,
        **{f"{name}_mask": mask for name, mask in zip(PARTS, parts, strict=True)},
    )
    return NodeDataset("made", "Made", (graph,), x.size(1), 2, False, "public")


REGIMES = {
    "few labels": (lambda: made(train=0.1), "deep"),
    "few labels of poor features": (tiny_dataset, "deep"),
    "few labels, many neighbours": (lambda: made(train=0.1, degree=30), "deep-dense"),
    "many labels": (made, "wide-gat"),
    "many labels, neighbours that disagree": (lambda: made(600, agree=0.5), "gcn-deep"),
    "few nodes, neighbours that disagree": (lambda: made(agree=0.1), "wide-shallow"),
    "poor features": (lambda: made(features=7), "wide-deep"),
    "independent labels of several graphs": (tiny_labels, "deep"),
}


@pytest.mark.parametrize("regime", REGIMES)
def test_the_favourite_of_every_regime(regime):
    data, expected = REGIMES[regime][0](), REGIMES[regime][1]
    assert ranked(look_at(data))[0] == expected
    run = searched(data, "fast", training={"epochs": 1})
    light = LIGHT.get(expected, expected)
    assert names(run) == [light]
    assert outcomes(run)[light] == "chosen"


@pytest.mark.parametrize(
    ("quality", "device", "expected"),
    [("fast", "cpu", LIGHT["deep"]), ("fast", "cuda", "deep"), ("good", "cpu", "deep")],
)
def test_fast_takes_a_lighter_member_on_a_cpu(quality, device, expected, monkeypatch):
    monkeypatch.setattr(AUTO, "choose_device", lambda _: torch.device(device))
    search = AUTO._Auto(tiny_dataset(), Request(quality), 0, None, None, False)
    assert search.trials[0].name == expected


@pytest.mark.parametrize(
    ("quality", "device", "expected"),
    [("good", "cpu", 30), ("good", "cuda", 50), ("best", "cpu", 50)],
)
def test_patience_is_shorter_on_a_cpu(quality, device, expected, monkeypatch):
    monkeypatch.setattr(AUTO, "choose_device", lambda _: torch.device(device))
    search = AUTO._Auto(tiny_dataset(), Request(quality), 0, None, None, False)
    (deep,) = (trial for trial in search.trials if trial.name == "deep")
    assert deep.plan.training.patience == expected


def test_lighter_members_have_one_stage_and_fewer_layers():
    looks = look_at(tiny_dataset())
    for old, new in LIGHT.items():
        usual, light = (PORTFOLIO[name].recipe(looks, {}) for name in (old, new))
        assert light.training.self_training == 0 < usual.training.self_training
        assert light.settings.num_layers < usual.settings.num_layers


def test_looks_count_what_is_there():
    data = made()
    looks, graph = look_at(data), data.graph
    source, target = graph.edge_index
    known = graph.train_mask[source] & graph.train_mask[target] & (source != target)
    agree = (graph.y[source] == graph.y[target])[known].double().mean()
    assert (looks.nodes, looks.edges, looks.features, looks.classes) == (300, 1200, 40, 2)
    assert looks.homophily == pytest.approx(float(agree))
    assert looks.labels_per_class == int(graph.train_mask.sum()) / 2
    assert looks.labelled_share == pytest.approx(float(graph.train_mask.double().mean()))
    sizes = torch.bincount(graph.y[graph.train_mask]).double()
    assert looks.chance == pytest.approx(float((sizes / sizes.sum()).square().sum()))
    assert looks.largest_class == pytest.approx(float(sizes.max() / sizes.sum()))
    assert f"{looks.homophily:.0%} of neighbours agree" in looks.sentence()


def test_looks_read_no_label_of_validation_and_test_nodes():
    data = made()
    hidden = data.graph.clone()
    hidden.y = torch.where(hidden.train_mask, hidden.y, 1 - hidden.y)
    assert look_at(replace(data, graphs=(hidden,))) == look_at(data)


def test_several_graphs_are_seen_as_one():
    looks = look_at(tiny_labels())
    assert looks.nodes == 12 + 13 + 14 + 15
    assert looks.homophily is None
    assert not looks.unlike_neighbours


COUNTS = torch.arange(1200.0).reshape(300, 4) % 7
KINDS = {
    "binary": (COUNTS % 2, False),
    "counts": (COUNTS, False),
    "shares": ((COUNTS + 1) / (COUNTS + 1).sum(1, keepdim=True), False),
    "numbers": (COUNTS / 3 - 1, False),
    "numbers of uneven scales": ((COUNTS / 3 - 1) * torch.tensor([1.0, 1, 1, 1000]), True),
    "counts of uneven scales": (COUNTS * torch.tensor([1.0, 1, 1, 1000]), True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_features(kind):
    x, uneven = KINDS[kind]
    looks = look_at(made(x=x))
    assert looks.feature_kind == kind.split()[0]
    assert looks.uneven_scales == uneven
    wide = PORTFOLIO["wide"].recipe(looks, {}).settings
    assert wide.input_norm == ("batch" if uneven else "none")
    for sparse in (x.to_sparse_csr(), x.to_sparse_coo()):
        looks = look_at(made(x=sparse))
        assert looks.feature_kind == kind.split()[0]
        assert not looks.uneven_scales  # a mean taken off would fill the zeros


def test_a_graph_of_one_node_among_others_whose_features_are_normalised():
    alone, *others = tiny_labels(5).graphs
    alone = alone.subgraph(torch.tensor([0]))
    for graph in (alone, *others):
        graph.x = graph.x * torch.tensor([1.0, 1, 1, 1, 1000])
    data = replace(tiny_labels(), graphs=(*others[::-1], alone))
    assert look_at(data).uneven_scales
    assert set(names(searched(data, training={"epochs": 1}))) - {"ensemble"} == tried(data)


def test_sparse_features_are_trained_on():
    run = searched(tiny_dataset(sparse=True), training={"epochs": 1})
    assert len(names(run)) == len(tried())


# --------------------------------------------------------------------------- leaderboard


def test_the_leaderboard_has_all_that_was_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(Judge, "level", lambda _, trial, best: trial.name == best.name)
    model = deepgat.fit(tiny_dataset(), training=TRAINING)
    rows = model.leaderboard()
    assert {row["name"] for row in rows} == {
        *tried(),
        "the largest class",
        "label propagation",
    }
    (chosen,) = [row for row in rows if row["outcome"].startswith("chosen")]
    assert rows[0] is chosen
    assert chosen["system"] == model.card.system
    assert chosen["val"] == pytest.approx(model.scores["val"])
    assert chosen["epochs"] == EPOCHS
    ends = [row for row in rows if row["outcome"] == "trained to its end"]
    left = [row for row in rows if row["outcome"] == "left after 2 epochs"]
    assert len(ends) <= 3
    assert len(ends) + len(left) == len(tried()) - 1
    assert all(0 <= row["val"] <= 1 for row in rows)
    assert Model.load(model.save(tmp_path / "m")).leaderboard() == rows
    named = deepgat.fit(tiny_dataset(), "gcn", training=TRAINING)
    assert named.leaderboard() == []
    assert Model.load(named.save(tmp_path / "n")).leaderboard() == []


def test_one_recipe_is_enough_for_fast():
    run = searched(quality="fast")
    assert names(run) == [LIGHT["deep"]]
    assert (run.card.system, run.card.training.self_training) == ("deep", 0)


def test_best_tries_all_and_more_seeds():
    data = made()
    run = searched(data, quality="best", training={"epochs": 2})
    (first, *others) = names(run)
    assert first == "ensemble"
    every = tried(data, "best")
    assert len(every) > len(tried(data))
    assert {name for name in others if ", seed" not in name} == every
    assert sum(", seed" in name for name in others) == AUTO.MORE_SEEDS
    assert [text.startswith("chosen") for text in outcomes(run).values()].count(True) == 1


def test_the_same_seed_gives_the_same_bits():
    torch.manual_seed(5)
    first = searched(seed=3)
    torch.rand(7)
    assert_same(searched(seed=3), first)
    assert first.card.training.seed == 3


def test_the_metric_is_what_the_leaderboard_shows():
    n = 300
    y = (torch.arange(n) % 10 == 0).long()
    data = made(n)
    graph = data.graph.clone()
    graph.y, graph.x = y, graph.x + y[:, None]
    data = replace(data, graphs=(graph,))
    run = searched(data, training={"monitor": "roc_auc"})
    found = run.evaluation.metrics
    assert run.search.metric == run.card.training.monitor == "roc_auc"
    assert run.search.leaderboard[0]["val"] == pytest.approx(found["roc_auc"]["val"])
    assert found["roc_auc"]["val"] != pytest.approx(found["micro_f1"]["val"])
    largest = run.search.leaderboard[-2]
    assert (largest["name"], largest["val"]) == ("the largest class", 0.5)
    by_default = searched(replace(data, metric="roc_auc"))
    assert_same(by_default, run)


def test_an_error_is_shown_as_it_is():
    run = searched(training={"monitor": "brier"})
    rows = [row for row in run.search.leaderboard if row["outcome"].startswith(("chosen", "tr"))]
    assert rows[0]["val"] == pytest.approx(run.evaluation.metrics["brier"]["val"])
    assert all(row["val"] > 0 for row in run.search.leaderboard)


def test_labels_that_mean_nothing_are_told():
    draw = torch.Generator().manual_seed(0)
    data = made()
    graph = data.graph.clone()
    graph.y = (torch.rand(300, generator=draw) < 0.1).long()
    graph.x = torch.randn(300, 40, generator=draw)
    run = searched(replace(data, graphs=(graph,)))
    assert "the model does not beat the largest class" in run.search.warning
    assert "labels may be mixed up" in run.search.warning
    assert searched(made(agree=0.5)).search.warning == ""


@pytest.mark.parametrize(
    ("metric", "perfect", "less"), [("micro_f1", 1.0, 0.9), ("brier", 0.0, -0.1)]
)
def test_what_cannot_be_beaten_is_no_reason_to_warn(metric, perfect, less):
    assert warning_of(metric, perfect, {PROPAGATION: perfect}) == ""
    assert "beat label propagation" in warning_of(metric, less, {PROPAGATION: less})


def test_a_warning_names_what_the_beaten_baseline_speaks_for():
    both = {LARGEST_CLASS: 0.5, PROPAGATION: 0.98}
    assert "labels may be mixed up" in warning_of("micro_f1", 0.4, both)
    told = warning_of("micro_f1", 0.97, both)
    assert "(97.0 against 98.0)" in told
    assert "features may add nothing" in told
    assert "mixed up" not in told
    assert warning_of("micro_f1", 0.99, both) == ""


@pytest.mark.parametrize(("above", "chosen"), [(0.0, "plain"), (0.01, "deep")])
def test_a_favourite_no_better_than_the_largest_class_is_not_spared(above, chosen, monkeypatch):
    search = AUTO._Auto(made(train=0.1), Request("good", None, TRAINING), 0, None, None, False)
    monkeypatch.setattr(Judge, "margin", lambda *_: 1.0)  # so small a set that all may be chance
    for trial in search.trials:
        trial.fitted, trial.val = SimpleNamespace(stopped="patience"), 0.0
    favourite = search.trials[0]
    favourite.val = search.judge.baselines[LARGEST_CLASS] + above
    next(trial for trial in search.trials if trial.name == "plain").val = favourite.val + 0.2
    assert favourite.name == "deep"
    assert search._choose(favourite)[0].name == chosen


@pytest.mark.parametrize(
    ("train", "behind", "margin", "alike"),
    [
        (0.5, 0.0, 0.1, True),
        (0.5, 0.009, 0.1, True),
        (0.5, 0.011, 0.1, False),  # more than a point
        (0.5, 0.009, 0.005, False),  # more than a standard error
        (0.1, 0.0, 0.1, False),  # few labels
        (0.1, -0.1, 0.1, False),
    ],
)
def test_members_are_level_within_chance_and_a_point(train, behind, margin, alike, monkeypatch):
    search = AUTO._Auto(made(train=train), Request(), 0, None, None, False)
    monkeypatch.setattr(Judge, "margin", lambda *_: margin)
    chosen, other = search.trials[:2]
    assert not {chosen.name, other.name} & set(COMPANIONS)
    chosen.val, other.val = 0.8, 0.8 - behind
    assert search.judge.level(other, chosen) is alike
    assert search.judge.level(chosen, chosen)


@pytest.mark.parametrize(
    ("train", "device", "ended"),
    [(0.5, "cuda", True), (0.5, "cpu", False), (0.1, "cuda", False)],
)
def test_cheap_members_are_trained_to_their_end_at_once(train, device, ended, monkeypatch):
    monkeypatch.setattr(AUTO._Auto, "_frugal", device == "cpu")
    search = AUTO._Auto(made(train=train), Request("good", None, TRAINING), 0, None, None, False)
    search._screen()
    stopped = {trial.name: trial.fitted.stopped for trial in search.trials if trial.fitted}
    assert {stopped[name] == "epochs" for name in CHEAP} == {ended}
    assert stopped[search.trials[0].name] == "paused"


def test_what_is_level_is_averaged_where_labels_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(Judge, "level", lambda *_: True)
    monkeypatch.setattr(Judge, "worse", lambda *_: False)
    data = made()
    run = searched(data)
    ended = [row for row in run.search.leaderboard if row["outcome"].endswith("of the ensemble")]
    assert run.card.system == "ensemble"
    assert len(ended) > 1
    assert {row["outcome"] for row in ended} == {f"{1 / len(ended):.0%} of the ensemble"}
    assert run.search.leaderboard[0]["outcome"] == "chosen"
    assert len({member["weight"] for member in run.card.settings.members}) == 1
    best = max(ended, key=lambda row: row["val"])
    assert run.card.settings.members[0]["system"] == PORTFOLIO[best["name"]].system
    told = run.search.reason.split("; averaged with ")[1].split(", ")
    assert set(told) == {row["name"] for row in ended} - {best["name"]}
    alone = searched(data, "fast")
    assert alone.card.system != "ensemble"
    model = deepgat.fit(data, training=TRAINING)
    with pytest.raises(UserError, match="this model is a mean of several"):
        model.exit_policy()
    again = Model.load(model.save(tmp_path / "mean"))
    assert torch.equal(again.outputs(data).logits, model.outputs(data).logits)
    assert torch.equal(again.outputs(data).logits, run.evaluation.logits[0])


@pytest.mark.parametrize(("batches", "mean"), [("none", True), ("clusters", False)])
def test_recipes_trained_in_batches_are_not_averaged(batches, mean, monkeypatch):
    monkeypatch.setattr(Judge, "level", lambda *_: True)
    monkeypatch.setattr(Judge, "worse", lambda *_: False)
    asked = {"batches": batches, "clusters": 4, "batch_size": 2}
    run = searched(made(), training=asked if batches != "none" else {})
    assert (run.card.system == "ensemble") == mean


@pytest.mark.parametrize("useless", [False, True])
@pytest.mark.parametrize("frugal", [False, True])
def test_few_labels_end_what_is_behind_unless_the_favourite_is_useless(
    frugal, useless, monkeypatch
):
    monkeypatch.setattr(AUTO._Auto, "_frugal", frugal)
    monkeypatch.setattr(Judge, "useless", lambda *_: useless)
    monkeypatch.setattr(Judge, "margin", lambda *_: 1.0)
    search = AUTO._Auto(made(train=0.1), Request("good", None, TRAINING), 0, None, None, False)
    favourite = search._screen()
    search._train(favourite)
    favourite.val = 0.99  # all others are behind, none by more than chance
    monkeypatch.setattr(search, "_unbeatable", lambda _: False)
    search._finish_the_best(favourite)
    ended = [t.name for t in search.trials if t.finished and t is not favourite]
    assert ended.count("grand") == 1
    assert len(ended) - 1 == (AUTO.FINALISTS["good"] if useless else 0)


@pytest.mark.parametrize("why", ["memory forced it into batches", "it was stopped"])
def test_what_stays_out_of_the_mean(why, monkeypatch):
    monkeypatch.setattr(Judge, "level", lambda *_: True)
    search = AUTO._Auto(made(), Request("good", None, TRAINING), 0, None, None, False)
    favourite = search._screen()
    search._finish_the_best(favourite)
    chosen, _ = search._choose(favourite)
    other = next(t for t in search.trials if t.finished and t is not chosen)
    kept = len(members_of(chosen, search.trials, search.judge))
    if why == "it was stopped":
        other.fitted = replace(other.fitted, stopped="interrupted")
    else:
        other.card = replace(other.card, training=replace(other.card.training, batches="clusters"))
    assert len(members_of(chosen, search.trials, search.judge)) == kept - 1


@pytest.mark.parametrize(
    ("behind", "margin", "joins"),
    [
        (-0.3, 0.03, True),
        (0.0, 0.03, True),
        (0.029, 0.03, True),
        (0.031, 0.03, False),  # more than three points
        (0.019, 0.01, True),
        (0.021, 0.01, False),  # more than two standard errors
    ],
)
@pytest.mark.parametrize("train", [0.1, 0.5])
def test_a_companion_is_level_within_chance(train, behind, margin, joins, monkeypatch):
    monkeypatch.setattr(AUTO._Auto, "_frugal", False)
    monkeypatch.setattr(Judge, "margin", lambda *_: margin)
    search = AUTO._Auto(made(train=train), Request(), 0, None, None, False)
    (beside,) = [trial for trial in search.trials if trial.name in COMPANIONS]
    search.trials[0].val, beside.val = 0.8, 0.8 - behind
    assert search.judge.level(beside, search.trials[0]) is joins


def test_with_few_labels_companions_may_join_and_no_others(monkeypatch):
    search = AUTO._Auto(made(train=0.1), Request(), 0, None, None, False)
    monkeypatch.setattr(Judge, "margin", lambda *_: 0.03)
    chosen = search.trials[0]
    others = [search._trial(name, 0) for name in PORTFOLIO if name != chosen.name]
    for trial in (chosen, *others):
        trial.val = 0.8
    joining = {trial.name for trial in others if search.judge.level(trial, chosen)}
    assert joining == set(COMPANIONS)


@pytest.mark.parametrize("joins", [False, True])
def test_with_few_labels_the_companion_may_join_the_mean(joins, monkeypatch):
    monkeypatch.setattr(Judge, "margin", lambda *_: 0.02 if joins else -1.0)
    monkeypatch.setattr(Judge, "score", lambda *_: 0.8)
    run = searched(made(train=0.1))
    shares = {row for row, told in outcomes(run).items() if "ensemble" in told}
    if not joins:
        assert (run.card.system, shares) == ("deep", set())
        return
    assert run.card.system == "ensemble"
    assert [m["system"] for m in run.card.settings.members] == ["deep", "grand"]
    assert {m["weight"] for m in run.card.settings.members} == {0.5}
    assert shares == {"deep", "grand"}
    assert run.search.reason.endswith("; averaged with grand")


@pytest.mark.parametrize("train", [0.1, 0.5])
@pytest.mark.parametrize("frugal", [False, True])
def test_a_second_seed_of_the_companion_joins_where_the_first_does(train, frugal, monkeypatch):
    monkeypatch.setattr(AUTO._Auto, "_frugal", frugal)
    monkeypatch.setattr(Judge, "margin", lambda *_: 0.01)
    monkeypatch.setattr(Judge, "score", lambda *_: 0.8)
    run = searched(made(train=train))
    repeated = train == 0.1 and not frugal
    assert (f"grand, seed {AUTO.APART}" in names(run)) is repeated
    assert sum(", seed" in name for name in names(run)) == repeated
    if repeated:
        assert [m["system"] for m in run.card.settings.members] == ["deep", "grand", "grand"]
        assert len({m["weight"] for m in run.card.settings.members}) == 1


def with_few_labels(monkeypatch, scores) -> Run:
    """A search whose members have these scores; all others have .8."""
    train = AUTO._Auto._train

    def scored(self, trial, pause=0):
        train(self, trial, pause)
        trial.val = scores.get((trial.name, trial.seed), 0.8)
        return trial

    monkeypatch.setattr(AUTO._Auto, "_frugal", False)
    monkeypatch.setattr(AUTO._Auto, "_train", scored)
    monkeypatch.setattr(Judge, "margin", lambda *_: 0.01)
    monkeypatch.setattr(Judge, "worse", lambda *_: False)
    return searched(made(train=0.1))


def systems_of(run: Run) -> list[str]:
    """Of the members of its mean."""
    return [member["system"] for member in run.card.settings.members]


def test_a_companion_that_is_chosen_itself_has_a_second_seed(monkeypatch):
    assert systems_of(with_few_labels(monkeypatch, {("grand", 0): 0.9})) == ["grand", "grand"]


def test_every_seed_of_the_companion_has_to_be_level(monkeypatch):
    run = with_few_labels(monkeypatch, {("grand", AUTO.APART): 0.5})
    assert f"grand, seed {AUTO.APART}" in names(run)
    assert systems_of(run) == ["deep", "grand"]


def test_where_nothing_can_be_better_there_is_no_second_seed(monkeypatch):
    unbeatable = AUTO._Auto._unbeatable

    def at_last(self, leader):
        both = [t for t in self.trials if t.name in ("deep", "grand")]
        return all(t.finished for t in both) or unbeatable(self, leader)

    monkeypatch.setattr(AUTO._Auto, "_unbeatable", at_last)
    assert not any(", seed" in name for name in names(with_few_labels(monkeypatch, {})))


def test_progress_counts_no_second_seed_of_a_companion_that_failed():
    search = AUTO._Auto(made(train=0.1), Request("best"), 0, None, None, False)
    forecast = search.forecast
    forecast.more_seeds, forecast.repeated = 1, ["grand"]
    assert forecast._of_more_seeds() > 0
    (beside,) = [trial for trial in search.trials if trial.name in COMPANIONS]
    beside.outcome = "diverged"
    assert forecast._of_more_seeds() == 0


def test_a_companion_that_is_left_out_has_no_second_seed(monkeypatch):
    monkeypatch.setattr(AUTO._Auto, "_frugal", False)
    monkeypatch.setattr(Judge, "score", lambda *_: 0.8)
    monkeypatch.setattr(Judge, "level", lambda _, trial, best: trial is best)
    assert not any(", seed" in name for name in names(searched(made(train=0.1))))


@pytest.mark.parametrize("frugal", [False, True])
def test_the_companion_is_trained_to_its_end_unless_it_is_behind(frugal, monkeypatch):
    monkeypatch.setattr(AUTO._Auto, "_frugal", frugal)
    for budget in ("FOR_SCREENING", "IN_ALL"):  # as if the favourite had taken all the time
        monkeypatch.setattr(AUTO, budget, 0.0)
    for behind in (False, True):
        search = AUTO._Auto(made(train=0.1), Request("good", None, TRAINING), 0, None, None, False)
        favourite = search._screen()
        for place, trial in enumerate(search.trials):
            trial.val = 0.9 - place / 1000
        (beside,) = [trial for trial in search.trials if trial.name in COMPANIONS]
        beside.val = 0.5 if behind else 0.88  # the worst of all, but perhaps by chance
        monkeypatch.setattr(Judge, "margin", lambda *_: 0.02)
        monkeypatch.setattr(search, "_unbeatable", lambda _: False)
        monkeypatch.setattr(Judge, "score", lambda *_: 0.9)
        search._finish_the_best(favourite)
        assert beside.finished is not behind


@pytest.mark.parametrize(
    ("what", "expected", "on_a_cpu"),
    [
        ({"train": 0.1}, "grand", "grand"),
        ({"train": 0.5}, "grand-wide", None),  # many labels
        ({"train": 0.1, "agree": 0.1, "degree": 30}, None, None),  # neighbours that disagree
        ({"train": 0.5, "agree": 0.1, "degree": 30}, None, None),
    ],
)
def test_which_graphs_have_a_companion(what, expected, on_a_cpu, monkeypatch):
    data = made(**what)
    looks = look_at(data)
    assert (companion(looks), companion(looks, frugal=True)) == (expected, on_a_cpu)
    for frugal, name in ((False, expected), (True, on_a_cpu)):
        monkeypatch.setattr(AUTO._Auto, "_frugal", frugal)
        search = AUTO._Auto(data, Request(), 0, None, None, False)
        found = [trial.name for trial in search.trials if trial.name in COMPANIONS]
        assert found == ([] if name is None else [name])


def test_graphs_with_many_labels_have_a_companion_that_suits_their_features():
    looks = look_at(made(train=0.5))
    poor, many = replace(looks, features=32), replace(looks, features=1001)
    assert companion(replace(looks, homophily=None)) is None
    assert companion(replace(looks, nodes=10**6)) is None
    assert companion(poor) is None
    assert companion(many) == companion(replace(many, nodes=10**6)) == "grand-wide-sparse"
    assert companion(replace(many, uneven_scales=True)) is None
    for name, sparse in (("grand-wide", False), ("grand-wide-sparse", True)):
        assert PORTFOLIO[name].recipe(looks, {}).settings.project_first is sparse


@pytest.mark.parametrize(
    ("nodes", "features", "uneven", "dense"),
    [
        (10**4, 1000, False, True),
        (10**4, 1000, True, True),
        (10**4, 1001, False, False),
        (10**4 - 1, 1001, False, None),
        (10**6, 1000, False, None),
        (10**4, 1001, True, None),
    ],
)
def test_many_features_are_not_averaged_before_they_are_projected(nodes, features, uneven, dense):
    few = look_at(made(train=0.1))
    looks = replace(few, nodes=nodes, features=features, uneven_scales=uneven)
    name = {True: "grand", False: "grand-sparse", None: None}[dense]
    assert companion(looks) == name
    assert companion(looks, frugal=True) == ("grand" if dense else None)
    if name is not None:
        settings = PORTFOLIO[name].recipe(looks, {}).settings
        assert settings.project_first is not dense


def test_a_graph_of_many_features_has_its_companion(monkeypatch):
    portfolio = importlib.import_module("deepgat.training.portfolio")
    monkeypatch.setattr(portfolio, "MANY_FEATURES", 1)
    monkeypatch.setattr(portfolio, "LEAST_NODES", 1)
    monkeypatch.setattr(AUTO._Auto, "_frugal", False)
    monkeypatch.setattr(Judge, "score", lambda *_: 0.8)
    monkeypatch.setattr(Judge, "margin", lambda *_: 0.01)
    run = searched(made(train=0.1))
    assert run.search.reason.endswith("; averaged with grand-sparse")
    assert run.card.settings.members[1]["settings"]["project_first"] is True


@pytest.mark.parametrize("steps", [None, 1, 3])
def test_best_trains_as_many_seeds_of_the_companion(steps, monkeypatch):
    monkeypatch.setattr(Judge, "margin", lambda *_: 1.0)
    monkeypatch.setattr(Judge, "score", lambda *_: 0.8)
    more: list[tuple[str, int]] = []

    def on_step(step):
        if step.seed and (step.member, step.seed) not in more:
            more.append((step.member, step.seed))
            if len(more) == steps:
                raise KeyboardInterrupt

    run = searched(made(train=0.1), "best", training={"epochs": 2}, on_step=on_step)
    seeds = range(AUTO.APART, AUTO.APART * AUTO.MORE_SEEDS + 1, AUTO.APART)
    wanted = [(name, seed) for seed in seeds for name in ("deep", "grand")]
    assert more == wanted[:steps]
    assert run.search.reason.count("grand") == 1


@pytest.mark.parametrize("quality", ["good", "best"])
@pytest.mark.parametrize("batches", ["clusters", "neighbours"])
def test_nothing_is_trained_for_a_mean_that_is_not_made(quality, batches, monkeypatch):
    monkeypatch.setattr(Judge, "score", lambda *_: 0.8)
    asked = {"batches": batches, "clusters": 4, "batch_size": 1, "epochs": 1}
    run = searched(made(n=60, train=0.1), quality, training=asked)
    assert not set(COMPANIONS) & set(names(run))
    assert not any("seed" in name for name in names(run))


def test_a_companion_that_memory_forces_into_batches_is_left_out(monkeypatch):
    choose = AUTO.choose

    def little(model, *given, in_batches):
        with monkeypatch.context() as patch:
            if isinstance(model, GRAND):  # batches would fit
                patch.setattr(memory, "free_memory", lambda *_: 1.0)
                patch.setattr(memory._Need, "batches", lambda *_: (TrainSettings(), "none"))
            return choose(model, *given, in_batches=in_batches)

    monkeypatch.setattr(AUTO, "choose", little)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # none of a choice that is not taken
        run = searched(made(train=0.1))
    assert outcomes(run)["grand"] == "not tried: too little memory"


@pytest.mark.parametrize("as_asked", [False, True])
def test_a_member_that_a_gpu_has_no_memory_for_ends_alone(as_asked, monkeypatch):
    trained = AUTO.train

    def full(model, *given, **more):
        if isinstance(model, GRAND):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")
        return trained(model, *given, **more)

    monkeypatch.setattr(AUTO, "train", full)
    if as_asked:  # a stored run would not be the same again
        with pytest.raises(torch.OutOfMemoryError):
            searched(made(train=0.1), as_asked=True)
        return
    run = searched(made(train=0.1))
    assert outcomes(run)["grand"] == "not trained: too little memory"
    assert run.card.system != "ensemble"


def test_a_search_that_fits_nowhere_says_so(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")

    monkeypatch.setattr(AUTO, "train", full)
    with pytest.raises(UserError, match=r"the memory of the GPU is full \(2.50 GiB more"):
        searched()


def test_members_of_features_on_uneven_scales_do_not_divide_rows_by_their_sums():
    looks = look_at(made(train=0.1))
    usual, uneven = (
        PORTFOLIO["grand"].recipe(replace(looks, uneven_scales=uneven), {})
        for uneven in (False, True)
    )
    assert usual.settings.unit_features
    assert not uneven.settings.unit_features
    assert uneven.settings.norm == "batch"


@pytest.mark.parametrize(
    ("score", "epochs", "tried"),
    [(0.1, 60, {"deep-4", *CHEAP}), (0.9, 60, {"deep-4"}), (0.1, 2, {"deep-4"})],
    ids=["useless", "useful", "no time to learn"],
)
def test_fast_tries_the_cheap_members_after_a_useless_favourite(
    score, epochs, tried, small, monkeypatch
):
    light = small["deep-4"]
    small["deep-4"] = replace(light, training={**light.training, "patience": 1})
    monkeypatch.setattr(Judge, "score", lambda *_: score)
    run = searched(made(train=0.1), "fast", training={"epochs": epochs})
    assert set(names(run)) == tried


@pytest.mark.parametrize(("score", "ends"), [(1.0, True), (0.99, True), (0.9, False)])
def test_nothing_else_is_tried_beside_a_score_that_nothing_beats(score, ends, monkeypatch):
    monkeypatch.setattr(Judge, "score", lambda *_: score)
    data = made(n=600)
    tried = outcomes(searched(data))
    told = f"not tried: hardly anything beats the score of {CHEAP[0]}"
    others = set(tried.values()) - {"chosen", "baseline"}
    assert (others == {told}) == ends
    assert (told in others) == ends
    assert told not in outcomes(searched(data, quality="best", training={"epochs": 1})).values()


def test_three_wrong_of_few_validation_nodes_are_many():
    search = AUTO._Auto(tiny_dataset(), Request(), 0, None, None, False)
    trial = search.trials[0]
    trial.fitted = SimpleNamespace(stopped="paused", history=[])
    nodes = len(search.judge.labels)
    for wrong in range(4):
        trial.val = 1 - wrong / nodes
        assert search._unbeatable(trial) == (trial.val >= 0.98)


# --------------------------------------------------------------------------- members that fail


def test_a_favourite_that_diverges_is_told_and_the_next_one_taken(small, monkeypatch):
    bad = replace(small["deep"], training={"lr": 1e30, "self_training": 0.0})
    monkeypatch.setitem(small, "deep", bad)
    run = searched()
    assert outcomes(run)["deep"] == "diverged"
    assert run.card.system != "deep"
    assert names(run)[0] != "deep"
    (row,) = [row for row in run.search.leaderboard if row["name"] == "deep"]
    assert row["val"] is None
    json.dumps(run.record(), allow_nan=False)


def test_a_favourite_that_collapses_is_told_and_the_next_one_taken(monkeypatch):
    def train(model, *rest, **more):
        fitted = loop.train(model, *rest, **more)
        if isinstance(model, Deep):
            for parameter in model.parameters():
                parameter.data.zero_()
        return fitted

    monkeypatch.setattr(AUTO, "train", train)
    run = searched()
    assert outcomes(run)["deep"] == "collapsed: every node gets the same prediction"
    assert run.card.system != "deep"


def test_a_favourite_that_is_far_behind_is_left(small, monkeypatch):
    slow = replace(small["deep"], training={"lr": 1e-9, "self_training": 0.0})
    monkeypatch.setitem(small, "deep", slow)
    data = made(n=600, train=0.1)
    monkeypatch.setattr(AUTO, "EASY", 1.01)
    assert "end" in outcomes(searched(data, training={"epochs": 40}))["deep"]
    monkeypatch.setattr(AUTO, "EASY", 0.5)
    run = searched(data, training={"epochs": 40})
    assert outcomes(run)["deep"] == "left after 2 epochs"
    assert run.search.reason.endswith(f"{names(run)[0]} is the best on validation nodes")
    assert run.search.leaderboard[0]["val"] == max(row["val"] for row in run.search.leaderboard)


@pytest.mark.parametrize("metric", ["accuracy", "micro_f1"])
def test_accuracy_chooses_recipes_not_their_epochs(metric):
    asked, usual = searched(training={"monitor": metric}), searched()
    assert asked.search.metric == metric
    assert asked.card.training == usual.card.training
    assert_same(asked, usual)


def test_a_graph_that_tells_nothing_is_refused_with_what_was_tried():
    data = tiny_dataset()
    graph = data.graph.clone()
    graph.x, graph.edge_index = torch.zeros_like(graph.x), graph.edge_index[:, :0]
    with pytest.raises(UserError, match="no recipe could be trained on this graph: deep collapsed"):
        searched(replace(data, graphs=(graph,)))


# --------------------------------------------------------------------------- stopping


def test_a_time_limit_keeps_the_best_so_far():
    run = searched(limit=1e-9)
    first = CHEAP[0]
    assert outcomes(run)[first] == "chosen"
    assert run.fitted.stopped == "time"
    assert len(run.fitted.history) == 1
    others = [name for name in names(run) if name != first]
    assert {outcomes(run)[name] for name in others} == {"not tried: stopped"}
    graph = tiny_dataset().graph
    y = np.where(graph.train_mask | graph.val_mask, graph.y, -1)
    made = DeepGATClassifier(time_limit=1e-9, epochs=EPOCHS, device="cpu", random_state=0)
    made.fit(graph.x, y, graph.edge_index, validation=graph.val_mask)
    assert made.predict(graph.x, graph.edge_index).shape == (60,)


@pytest.mark.parametrize("steps", [1, 3, 20])
def test_an_ensemble_that_was_stopped_has_what_was_trained(steps):
    data = made(n=1500)
    assert int(data.graph.val_mask.sum()) >= FEW_NODES
    run = searched(data, "best", on_step=after(steps, KeyboardInterrupt)[0])
    assert run.fitted.stopped == "interrupted"
    assert sum(text.startswith("chosen") for text in outcomes(run).values()) == 1


def test_progress_heeds_the_time_limit(monkeypatch):
    monkeypatch.setattr(AUTO._Auto, "_seconds", lambda _: 90.0)
    shares = []
    searched(limit=100.0, on_step=lambda step: shares.append(step.share))
    assert min(shares) >= 0.9


@pytest.mark.parametrize("frugal", [False, True])
@pytest.mark.parametrize("quality", ["good", "best"])
def test_progress_counts_what_is_sure_to_come(quality, frugal, monkeypatch):
    monkeypatch.setattr(AUTO._Auto, "_frugal", frugal)
    monkeypatch.setattr(Judge, "margin", lambda *_: 1.0)
    monkeypatch.setattr(Judge, "score", lambda *_: 0.8)
    shares: dict[str, float] = {}

    def on_step(step):
        if not step.seed:
            shares[step.member] = step.share

    searched(made(train=0.1), quality, on_step=on_step)
    assert shares["deep"] < 1  # its companion is still to be trained to its end
    assert (shares["grand"] < 1) == (quality == "best" or not frugal)  # more seeds are


def test_progress_of_more_seeds_counts_each_of_their_members(monkeypatch):
    monkeypatch.setattr(Judge, "margin", lambda *_: 1.0)
    monkeypatch.setattr(Judge, "score", lambda *_: 0.8)
    shares = []
    searched(made(train=0.1), "best", on_step=lambda step: shares.append((step.seed, step.share)))
    assert {seed // AUTO.APART for seed, _ in shares} == set(range(5))
    assert all(share < 1 for seed, share in shares if seed < 4 * AUTO.APART)


@pytest.mark.parametrize("worse", [True, False])
def test_a_mean_behind_its_chosen_member_by_more_than_chance_is_not_kept(worse, monkeypatch):
    monkeypatch.setattr(Judge, "level", lambda *_: True)
    monkeypatch.setattr(Judge, "worse", lambda *_: worse)
    run = searched(made())
    assert (run.card.system == "ensemble") != worse
    assert any("of the ensemble" in row["outcome"] for row in run.search.leaderboard) != worse
    assert ("averaged with" in run.search.reason) != worse


def test_what_is_worse_by_more_than_chance():
    data = made(train=0.1)
    y = data.graph.y[data.graph.val_mask]
    right, wrong = F.one_hot(y, 2).float(), F.one_hot(1 - y, 2).float()
    judge = Judge("micro_f1", False, y, {}, look_at(data))
    trial = Trial("deep", None, 0, None, logits=right, val=1.0)
    assert judge.worse(wrong, trial)
    assert not judge.worse(right, trial)


@pytest.mark.parametrize("outcome", ["collapsed: all alike", "diverged"])
def test_fast_goes_on_where_its_favourite_fails(outcome, monkeypatch):
    train = AUTO._Auto._train

    def failing(self, trial, pause=0):
        if trial is self.trials[0]:
            trial.outcome = outcome
            return trial
        return train(self, trial, pause)

    monkeypatch.setattr(AUTO._Auto, "_train", failing)
    run = searched(quality="fast")
    assert run.search.leaderboard[0]["name"] in CHEAP


def test_ctrl_c_while_outputs_are_looked_at_loses_nothing(monkeypatch):
    look, calls = AUTO._Auto._look_at_outputs, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return look(self, *arguments)

    monkeypatch.setattr(AUTO._Auto, "_look_at_outputs", interrupted)
    run = searched()
    assert run.fitted.stopped == "interrupted"
    assert sum(row["epochs"] > 0 for row in run.search.leaderboard) == 2


def test_ctrl_c_at_the_very_end_loses_nothing(monkeypatch):
    calls = []

    def interrupted(*arguments, **more):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return evaluate(*arguments, **more)

    monkeypatch.setattr(AUTO, "evaluate", interrupted)
    run = searched()
    assert run.fitted.stopped == "interrupted"
    assert run.evaluation.micro_f1["test"] is not None


def test_what_has_collapsed_leads_nothing(monkeypatch):
    """Once one member is sound, a search whose time is up ends."""
    look, calls = AUTO._Auto._look_at_outputs, []

    def collapsing(self, *arguments):
        calls.append(1)
        logits, told = look(self, *arguments)
        return logits, "all alike" if len(calls) == 1 else told

    monkeypatch.setattr(AUTO._Auto, "_look_at_outputs", collapsing)
    monkeypatch.setattr(Judge, "score", lambda *_: 0.5)
    run = searched(limit=1e-9)
    assert sum(row["epochs"] > 0 for row in run.search.leaderboard) == 2
    assert run.fitted.stopped == "time"


def test_a_depth_that_was_asked_for_is_tried_or_refused():
    run = AUTO.train_auto(made(), Request("good", None, TRAINING, 3), 0)
    (deep,) = [row for row in run.search.leaderboard if row["system"] == "deep"]
    assert deep["num_layers"] == 3
    assert deep["epochs"] > 0
    with pytest.raises(UserError, match="num_layers is of the recipes of deep, but on this graph"):
        AUTO.train_auto(made(), Request("fast", None, TRAINING, 3), 0)


def test_training_settings_are_checked_before_a_graph_is_read():
    with pytest.raises(UserError, match="epochs is 0: expected 1 or more"):
        Request(training={"epochs": 0})


def test_one_fan_out_for_networks_of_all_depths():
    with pytest.raises(UserError, match="fan_out is '10,5', but the networks that auto tries"):
        Request(training={"fan_out": "10,5"})


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "10"])
def test_time_limits_that_are_none(limit):
    with pytest.raises(UserError, match=r"time_limit is .*: expected a number of seconds above 0"):
        Request(time_limit=limit)


def after(steps, error):
    """A callback that raises at its n-th call, and the members that it saw."""
    seen, shown = [], [0.0]

    def on_step(step):
        assert 0 <= step.share <= 1
        assert step.share >= shown[-1]
        shown.append(step.share)
        assert 1 <= step.number <= step.of
        seen.append(step.member)
        if len(seen) == steps:
            raise error

    return on_step, seen


@pytest.mark.parametrize("steps", [1, 5, 9, 17])
def test_ctrl_c_keeps_the_best_so_far(steps):
    on_step, seen = after(steps, KeyboardInterrupt)
    run = searched(on_step=on_step)
    assert len(seen) == steps  # and no epoch more
    assert run.fitted.stopped == "interrupted"
    rows = {row["name"]: row for row in run.search.leaderboard if row["system"] != "baseline"}
    assert len(rows) == len(tried())
    assert sum(row["outcome"] == "chosen" for row in rows.values()) == 1
    best = max(row["val"] for name, row in rows.items() if name in seen)
    assert run.search.leaderboard[0]["val"] <= best
    untouched = [row["outcome"] for name, row in rows.items() if name not in seen]
    assert set(untouched) <= {"not tried: stopped"}
    if rows[seen[-1]]["outcome"] != "chosen":
        assert rows[seen[-1]]["outcome"].startswith("stopped after ")
    for name in set(seen) - {seen[-1]}:
        assert rows[name]["outcome"] in ("chosen", "left after 2 epochs", "trained to its end")


def test_ctrl_c_before_anything_was_trained_ends_it(monkeypatch):
    def run_epoch(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run_epoch", run_epoch)
    with pytest.raises(KeyboardInterrupt):
        searched()


class KilledError(Exception):
    pass


@pytest.mark.parametrize("quality", ["good", "best"])
def test_a_search_that_was_killed_goes_on(tmp_path, quality):
    """Killed while others are screened, and in one that goes to its end."""
    on_step, seen = after(10**9, KilledError)
    expected = searched(quality=quality, on_step=on_step)
    screened = EPOCHS + 2 * (len(set(seen)) - 1)
    points = (EPOCHS + 3, screened + 1) if quality == "good" else (len(seen) - 1,)
    for killed in points:
        folder = tmp_path / str(killed)
        folder.mkdir()
        with pytest.raises(KilledError):
            searched(quality=quality, on_step=after(killed, KilledError)[0], folder=folder)
        assert list(folder.iterdir())
        on_step, again = after(10**9, KilledError)
        found = searched(quality=quality, on_step=on_step, folder=folder, resume=True)
        assert_same(found, expected)
        assert again == seen[killed - 1 :]  # the epoch that was not saved, and those after it
        assert list(folder.iterdir())  # until the model is saved
        AUTO.forget(folder)
        assert not folder.exists()


def test_a_search_without_resume_begins_anew(tmp_path):
    with pytest.raises(KilledError):
        searched(on_step=after(6, KilledError)[0], folder=tmp_path)
    on_step, seen = after(10**9, KilledError)
    searched(on_step=on_step, folder=tmp_path)
    assert seen[:4] == [CHEAP[0], CHEAP[0], CHEAP[1], CHEAP[1]]


# --------------------------------------------------------------------------- pausing


PLANS = {
    "gcn": recipe("gcn", num_layers=2, hidden_channels=8),
    "prenorm": recipe("prenorm", num_layers=2, hidden_channels=8, drop_edge=0.2),
    "second-stage": recipe(
        "deep",
        num_layers=3,
        hidden_channels=8,
        training={"self_training": 1.0, "ema": 0.9, "patience": 2, "lr": 0.2},
    ),
}


@pytest.mark.parametrize("pauses", [(1,), (2, 5, 12)])
@pytest.mark.parametrize("name", PLANS)
def test_pauses_change_nothing(name, pauses, tmp_path):
    data, plan = tiny_dataset(), PLANS[name]
    settings = replace(plan.training, epochs=14, device="cpu")
    card = AUTO.ModelCard.of(data, plan._replace(training=settings))
    whole = card.build()
    expected = loop.train(whole, data, settings)
    held = Held(tmp_path / "x", 10**9, to_the_end=True)
    for pause in (*pauses, 0):
        model = card.build()
        found = loop.train(model, data, settings, progress=replace(held, pause=pause))
        if pause and len(found.history) == pause:
            assert found.stopped == "paused"
    assert not (tmp_path / "x").exists()
    assert found.stopped == expected.stopped
    assert found.history == expected.history
    for a, b in zip(model.state_dict().values(), whole.state_dict().values(), strict=True):
        assert torch.equal(a, b)


# --------------------------------------------------------------------------- frequent classes


def uneven(labels=20, val=25, seed=0) -> NodeDataset:
    """A graph of which 80% are of the first class, with as many labels of either."""
    draw = torch.Generator().manual_seed(seed)
    n = 900
    y = (torch.rand(n, generator=draw) >= 0.8).long()
    source, target = torch.randint(n, (2, 3 * n), generator=draw)
    kept = (y[source] == y[target]) | (torch.rand(3 * n, generator=draw) < 0.3)
    masks = torch.zeros(3, n, dtype=torch.bool)
    for c in range(2):
        mine = (y == c).nonzero()[:, 0]
        for mask, part in zip(
            masks, mine.split([labels, val, len(mine) - labels - val]), strict=True
        ):
            mask[part] = True
    graph = Data(
        x=torch.randn(n, 8, generator=draw) + 1.5 * y[:, None],
        edge_index=torch.stack([source[kept], target[kept]]),
        y=y,
        **{f"{name}_mask": mask for name, mask in zip(PARTS, masks, strict=True)},
    )
    return NodeDataset("uneven", "Uneven", (graph,), 8, 2, False, "by class")


@pytest.mark.parametrize("alone", [False, True])
def test_frequent_classes_are_made_as_frequent_as_they_are(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(Judge, "level", lambda _, trial, best: not alone or trial is best)
    data = uneven()
    run = searched(data, training={"epochs": 30})
    factors = run.card.settings.class_factors
    assert factors[0] > 1 > factors[1]
    assert "each class's probability is multiplied by" in run.search.reason
    members = [dict(member) for member in run.card.settings.members]
    plain = replace(run.card, settings=replace(run.card.settings, class_factors=[])).build()
    plain.load_state_dict(run.model.state_dict())
    (graph,) = data.graphs
    with torch.no_grad():
        before = plain.eval()(graph.x, graph.edge_index).argmax(1) == graph.y
        after = run.model.cpu().eval()(graph.x, graph.edge_index).argmax(1) == graph.y
    assert after[graph.test_mask].float().mean() > before[graph.test_mask].float().mean()
    assert (len(members) == 1) is alone
    assert ("100% of the ensemble" in outcomes(run).values()) is alone
    folder = save_run(tmp_path / "m", run, data)
    readme = (folder / "README.md").read_text()
    assert ("One network, whose probabilities" in readme) is alone
    loaded, card = load_run(folder)
    assert card.settings.class_factors == factors
    assert card.settings.members == members
    assert torch.equal(loaded(graph.x, graph.edge_index), run.evaluation.logits[0])


@pytest.mark.parametrize(
    "why", ["fast", "macro_f1", "class weights", "several graphs", "few of a class", "many labels"]
)
def test_where_classes_stay_as_they_are(why):
    data, quality, training = uneven(), "good", {"epochs": 30}
    if why == "fast":
        quality = "fast"
    elif why == "macro_f1":
        training["monitor"] = "macro_f1"
    elif why == "class weights":
        training["class_weight"] = "balanced"
    elif why == "several graphs":
        data = replace(data, graphs=(data.graphs[0], uneven(seed=1).graphs[0]))
    elif why == "few of a class":
        data = uneven(val=9)
    else:
        data = uneven(labels=60)
    run = searched(data, quality, training=training)
    assert not getattr(run.card.settings, "class_factors", [])
    assert "multiplied" not in run.search.reason


# --------------------------------------------------------------------------- ensembles


@pytest.fixture(scope="module")
def ensemble() -> Run:
    """Only to be read."""
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        run = searched(quality="best")
    assert isinstance(run.model, Ensemble)
    return run


def test_an_ensemble_is_saved_and_loaded_to_the_bit(ensemble, tmp_path):
    data = tiny_dataset()
    before = Model(ensemble.model, ensemble.card, run=ensemble, dataset=data)
    loaded = Model.load(save_run(tmp_path / "m", ensemble, data))
    assert loaded.card == ensemble.card
    expected = before.outputs(data)
    found = loaded.outputs(data)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.logits.float(), ensemble.evaluation.logits[0])
    weights = [member["weight"] for member in ensemble.card.settings.members]
    assert len(weights) >= 2
    assert sum(weights) == pytest.approx(1)
    assert sum(loaded.network.shares) == pytest.approx(1)
    assert loaded.leaderboard() == ensemble.search.leaderboard
    told = loaded.explain(3, data)
    assert torch.equal(told.layers[max(told.layers)][0], before.predict(data).probabilities[3])


def test_an_ensemble_is_the_weighted_mean_of_its_members(ensemble):
    data = tiny_dataset()
    graph, total = data.graph, 0
    ensemble.model.eval()
    with torch.no_grad():
        members = zip(ensemble.model.members, ensemble.card.settings.members, strict=True)
        for member, told in members:
            logits = member(graph.x, graph.edge_index).double()
            total = total + told["weight"] * (logits / told["temperature"]).softmax(-1)
        found = ensemble.model(graph.x, graph.edge_index).double().exp()
    torch.testing.assert_close(found, total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alone", [False, True])
def test_an_ensemble_multiplies_the_probabilities_of_classes(ensemble, alone):
    data, factors = tiny_dataset(), [0.5, 1.0, 3.0]
    graph, card = data.graph, ensemble.card
    told = card.settings.members[:1] if alone else card.settings.members
    models = list(ensemble.model.members)[: len(told)]
    cards = [
        replace(card, system=each["system"], settings=model.config)
        for each, model in zip(told, models, strict=True)
    ]
    members = [
        EnsembleMember(one, model, each["weight"], each["temperature"])
        for one, model, each in zip(cards, models, told, strict=True)
    ]
    assert data.num_classes == len(factors)
    (_, plain), (_, model) = joined(card, members), joined(card, members, factors)
    with torch.no_grad():
        shares = plain(graph.x, graph.edge_index).double().softmax(-1)
        found = model(graph.x, graph.edge_index).double()
    expected = shares * torch.tensor(factors)
    expected /= expected.sum(1, keepdim=True)
    torch.testing.assert_close(found.exp(), expected, rtol=1e-5, atol=1e-6)


def test_an_ensemble_of_independent_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(Judge, "worse", lambda *_: False)
    data = tiny_labels()
    run = searched(data, "best")
    assert run.card.system == "ensemble"
    loaded, _ = load_run(save_run(tmp_path / "m", run, data))
    graph = data.graphs[0]
    with torch.no_grad():
        parts = [member(graph.x, graph.edge_index).double() for member in loaded.members]
        found = loaded(graph.x, graph.edge_index).double().sigmoid()
    told = zip(loaded.shares, parts, loaded.temperatures, strict=True)
    expected = sum(share * (x / t).sigmoid() for share, x, t in told)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(loaded(graph.x, graph.edge_index), run.evaluation.logits[0])


def gcn(**settings) -> dict:
    sizes = {"num_layers": 2, "hidden_channels": 4}
    return {"system": "gcn", "settings": {**sizes, **settings}, "weight": 0.5, "temperature": 1.0}


STRANGE = {
    "no members": ([], "members has 0 entries: expected 1 to 50"),
    "1000 members": ([gcn()] * 1000, "members has 1000 entries: expected 1 to 50"),
    "no list": ("many", "members"),
    "texts": (["gcn"], "not a table of system, settings"),
    "NaN": ([gcn() | {"weight": float("nan")}], "the last two from 1e-06 to 1,000,000"),
    "negative": ([gcn() | {"weight": -1.0}], "the last two from 1e-06 to 1,000,000"),
    "cold": ([gcn() | {"temperature": 0.0}], "the last two from 1e-06 to 1,000,000"),
    "another key": ([gcn() | {"code": "x"}], "not a table of system, settings"),
    "nested": ([gcn() | {"system": "ensemble"}], "is one network, not an ensemble"),
    "unknown": ([gcn() | {"system": "gnc"}], "unknown model 'gnc': did you mean 'gcn'"),
    "untrained": ([gcn() | {"system": "label-propagation", "settings": {}}], "has no weights"),
    "settings": ([gcn(layers=3)], "unknown setting of gcn 'layers'"),
    "a wrong value": ([gcn(dropout="much")], "dropout"),
    "sizes": ([gcn(hidden_channels=10**14)], "hidden_channels is 8: the largest of the members"),
    "others": ([gcn(hidden_channels=8)], "does not fit the settings"),
}


@pytest.fixture(scope="module")
def saved_gcn(tmp_path_factory) -> Path:
    data = tiny_dataset()
    plan = recipe("gcn", num_layers=2, hidden_channels=8, training=TRAINING)
    folder = tmp_path_factory.mktemp("gcn") / "m"
    return save_run(folder, deepgat.train_once(data, plan), data)


@pytest.mark.parametrize("case", STRANGE)
def test_the_ensemble_of_a_stranger(case, saved_gcn, tmp_path):
    members, sentence = STRANGE[case]
    assert_refused(saved_gcn, tmp_path, {"members": members}, sentence)


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        ([1.0], "class_factors has 1 entries: expected none, or one for each of 3 classes"),
        ([1.0, 1.0, 0.0], "class_factors are not numbers from 1e-06 to 1,000,000"),
        ([1.0, 1.0, float("nan")], "class_factors are not numbers from 1e-06 to 1,000,000"),
        ([1.0, 1.0, "2"], "class_factors are not numbers from 1e-06 to 1,000,000"),
        ("many", "class_factors"),
    ],
)
def test_the_class_factors_of_a_stranger(factors, sentence, saved_gcn, tmp_path):
    changes = {"members": [gcn(hidden_channels=8)], "class_factors": factors}
    assert_refused(saved_gcn, tmp_path, changes, sentence)


def assert_refused(saved_gcn: Path, tmp_path: Path, changes: dict, sentence: str) -> None:
    folder = shutil.copytree(saved_gcn, tmp_path / "m")
    told = json.loads((folder / "model.json").read_text())
    told["system"] = "ensemble"
    told["settings"] = {"num_layers": 2, "hidden_channels": 8, **changes}
    (folder / "model.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"the model folder .* is damaged: ") as caught:
        Model.load(folder)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def logits_of(
    nodes: int, candidates: int, classes: int = 3
) -> tuple[list[Candidate], torch.Tensor]:
    y = torch.randint(classes, (nodes,))
    found = []
    for number in range(candidates):
        x = torch.randn(nodes, classes) * (1 + number) + 1.5 * torch.eye(classes)[y]
        found.append(Candidate(x, choose_temperature(x, y, FEW_NODES)))
    return found, y


def losses_of(candidates, counts, y) -> np.ndarray:
    """−log Σ_m k_m p_m(y) / Σ_m k_m of every node."""
    shares = [(c.logits.double() / c.temperature).softmax(-1).numpy() for c in candidates]
    mean = sum(k * share for k, share in zip(counts, shares, strict=True)) / sum(counts)
    return -np.log(mean[np.arange(len(y)), y.numpy()])


@pytest.mark.parametrize(("candidates", "alike"), [(1, 1), (2, 1), (4, 1), (4, 3), (4, 4)])
def test_members_are_added_while_they_help_by_more_than_chance(candidates, alike):
    found, y = logits_of(250, candidates)
    counts = [int(place < alike) for place in range(candidates)]
    for _ in range(19):
        each = [[k + (i == j) for j, k in enumerate(counts)] for i in range(candidates)]
        more = min(each, key=lambda more: losses_of(found, more, y).mean())
        gains = losses_of(found, counts, y) - losses_of(found, more, y)
        if gains.mean() <= gains.std(ddof=1) / 250**0.5:
            break
        counts = more
    weights = select(found, y, False, alike)
    assert weights == pytest.approx([k / sum(counts) for k in counts])


def test_a_better_model_joins_and_a_worse_one_does_not():
    found, y = logits_of(400, 1)
    good = Candidate(found[0].logits + 3 * torch.eye(3)[y], 1.0)
    bad = Candidate(-good.logits, 1.0)
    weights = select([found[0], bad, good], y, False)
    assert weights[2] > weights[0] > 0 == weights[1]


def test_where_validation_nodes_are_few_the_chosen_recipe_stays_alone():
    found, y = logits_of(60, 3)
    good = Candidate(5 * torch.eye(3)[y], 1.0)
    assert select([found[0], found[1], good], y, False, 2) == [0.5, 0.5, 0.0]
    assert choose_temperature(100 * found[0].logits, y, FEW_NODES) == 1.0
    one = [Candidate(c.logits[:1], 1.0) for c in (found[0], good)]
    assert select(one, y[:1], False) == [1.0, 0.0]


def test_the_temperature_mends_what_is_too_sure():
    (first, *_), y = logits_of(300, 1)
    scaled = choose_temperature(8 * first.logits, y, FEW_NODES)
    assert scaled == pytest.approx(8 * choose_temperature(first.logits, y, FEW_NODES), rel=1e-5)


# --------------------------------------------------------------------------- what is asked


def test_requests_that_contradict_themselves():
    data = tiny_dataset()
    with pytest.raises(UserError, match="alpha is a setting of one recipe"):
        deepgat.fit(data, "auto", alpha=0.2)
    with pytest.raises(UserError, match="num_layers is 0"):
        deepgat.fit(data, "auto", num_layers=0)
    with pytest.raises(UserError, match="lr is a setting of one recipe"):
        deepgat.fit(data, "auto", training={"lr": 0.1})
    with pytest.raises(UserError, match="preset is of one system"):
        deepgat.fit(data, "auto", preset="paper")
    with pytest.raises(UserError, match="quality and time_limit are of auto"):
        deepgat.fit(data, "gcn", quality="best")
    with pytest.raises(UserError, match="quality and time_limit are of auto"):
        deepgat.fit(data, num_layers=3, time_limit=3)
    with pytest.raises(UserError, match="unknown quality 'god': did you mean 'good'"):
        deepgat.fit(data, quality="god")
    with pytest.raises(UserError, match="unknown quality '3'"):
        deepgat.fit(data, quality=3)
    with pytest.raises(UserError, match="set quality=best instead"):
        deepgat.fit(data, "ensemble")
    assert QUALITIES == ("fast", "good", "best")


def test_commands_that_contradict_themselves(command):  # noqa: F811
    told = "--quality and --time-limit are of auto"
    assert_sentence(command("train", "csbm", "--model", "gcn", "--quality", "fast"), told)
    assert_sentence(command("train", "csbm", "--layers", "3", "--time-limit", "9"), told)
    told = "--hidden is a setting of one recipe, and auto tries several: name a model too"
    assert_sentence(command("train", "csbm", "--model", "auto", "--hidden", "3"), told)
    told = "unknown quality 'besst': did you mean 'best'"
    assert_sentence(command("train", "csbm", "--quality", "besst"), told)
    assert_sentence(command("train", "csbm", "--time-limit", "-1"), "--time-limit is -1.0")


@pytest.mark.parametrize("quality", ["fast", "good"])
def test_auto_takes_a_depth_for_its_recipes_of_deep(quality, monkeypatch):
    monkeypatch.setattr(AUTO, "PORTFOLIO", PORTFOLIO)
    request = recipe_or_search("auto", {"num_layers": 24}, {}, quality=quality)
    search = AUTO._Auto(made(train=0.1), request, 0, None, None, False)
    depths = {trial.name: trial.plan.settings.num_layers for trial in search.trials}
    assert depths["deep"] == 24
    assert "deep-4" not in depths
    usual = {name: member.recipe(search.looks, {}) for name, member in PORTFOLIO.items()}
    for name, depth in depths.items():
        assert depth == (24 if name == "deep" else usual[name].settings.num_layers)


def test_settings_without_a_model_are_deeps():
    model = deepgat.fit(tiny_dataset(), num_layers=2, hidden_channels=4, training=TRAINING)
    assert (model.card.system, model.leaderboard()) == ("deep", [])
    model = deepgat.fit(tiny_dataset(), training={**TRAINING, "lr": 0.1, "epochs": 1})
    assert model.card.system == "deep"


# --------------------------------------------------------------------------- the commands


QUICK = ("--epochs", EPOCHS, "--device", "cpu")


def test_the_command_tells_what_was_tried(my_graph, command):  # noqa: F811
    first = command("train", my_graph, "--seeds", "0,1", "--json", *QUICK)
    assert [record["seed"] for record in first.records] == [0, 1]
    for record in first.records:
        found = record["auto"]
        assert sum(row["outcome"] == "chosen" for row in found["leaderboard"]) == 1
        assert found["leaderboard"][0]["system"] == record["system"]
        assert found["metric"] == "micro_f1"
        assert found["reason"]
        assert found["looks"]["nodes"] == 90
        assert found["request"]["quality"] == "good"
    shown = command("train", my_graph, "--seeds", "0,1", *QUICK)
    assert shown.code == 0
    for seed in (0, 1):
        assert f"what was tried, seed {seed}" in shown.out
    assert shown.out.count("Why: ") == 2
    assert shown.out.count("the largest class") == 2


def test_a_finished_search_is_found_again(my_graph, command, monkeypatch):  # noqa: F811
    words = ("train", my_graph, "--out", "model", "--resume", "--json", *QUICK)
    first = command(*words)
    assert sorted(path.name for path in my_graph.parent.iterdir()) == ["model", "my-graph"]
    cli = importlib.import_module("deepgat.cli.runs")
    trained = []

    def watched(*given):
        trained.append(given)
        return train_auto(*given)

    monkeypatch.setattr(cli, "train_auto", watched)
    second = command(*words)
    assert not trained
    assert second.records == first.records
    assert command(*words, "--quality", "fast").code == 0
    assert len(trained) == 1  # another request is another search
    assert command(*words, "--quality", "fast", "--seeds", "1").code == 0
    assert len(trained) == 2


def test_ctrl_c_of_the_command_keeps_the_best_and_resumes(my_graph, command, monkeypatch):  # noqa: F811
    cli = importlib.import_module("deepgat.cli.runs")
    words = ("train", my_graph, "--out", "model", "--resume", "--json", *QUICK)
    (expected,) = command("train", my_graph, "--json", *QUICK).records

    def interrupted(data, request, seed, on_step, *rest):
        return train_auto(data, request, seed, after(6, KeyboardInterrupt)[0], *rest)

    with monkeypatch.context() as patch:
        patch.setattr(cli, "train_auto", interrupted)
        result = command(*words)
    assert result.code == 130
    assert "interrupted: the last run kept its best weights so far" in result.err
    assert command("evaluate", "model").code == 0
    assert list((my_graph.parent / "model.auto").iterdir())
    (found,) = command(*words).records
    assert found["auto"]["leaderboard"][0]["val"] == expected["auto"]["leaderboard"][0]["val"]
    assert found["loss"] == expected["loss"]
    assert not (my_graph.parent / "model.auto").exists()


def test_a_time_limit_of_the_command_is_no_interruption(my_graph, command):  # noqa: F811
    result = command("train", my_graph, "--time-limit", "1e-9", "--seeds", "0,1", *QUICK)
    assert result.code == 0
    assert result.out.count("what was tried") == 2
    assert "the time limit" in result.out


def test_a_folder_of_an_ensemble_serves_every_command(my_graph, command, monkeypatch):  # noqa: F811
    monkeypatch.setattr(
        "deepgat.training.ensembling.select", lambda found, *_: [1 / len(found)] * len(found)
    )
    monkeypatch.setattr(Judge, "worse", lambda *_: False)
    result = command("train", my_graph, "--quality", "best", "--out", "model", "--json", *QUICK)
    (record,) = result.records
    assert record["system"] == "ensemble"
    evaluated = command("evaluate", "model", "--json")
    assert evaluated.code == 0
    assert evaluated.records[0]["micro_f1"] == pytest.approx(record["micro_f1"])
    predicted = command("predict", "model", "--out", "found.csv")
    assert predicted.code == 0, predicted.err
    saved = (my_graph.parent / "model" / "predictions.csv").read_text().splitlines()
    assert len((my_graph.parent / "found.csv").read_text().splitlines()) == len(saved)
    inspected = command("inspect", "model", "member-003", "--json")
    assert inspected.code == 0, inspected.err
    assert command("inspect", "model", "member-003").code == 0
    assert_sentence(command("predict", "model", "--early-exit"), "early exit")


def _member(changes):
    return lambda members: [{**members[0], **changes}, *members[1:]]


NUMBERS = (1e308, 5e-324, 10**400, 0, -1, True, "1", None, float("nan"))
DEEP = {"system": "gcn", "settings": {"num_layers": 10**4}, "weight": 1, "temperature": 1}
FORGED = [
    *(_member({name: value}) for name in ("weight", "temperature") for value in NUMBERS),
    _member({"system": "ensemble"}),
    _member({"system": "unknown"}),
    _member({"settings": {"num_layers": 10**6}}),
    _member({"settings": {"hidden_channels": 10**9}}),
    lambda members: members[:1] * 10**5,
    lambda _: [DEEP] * 50,
    lambda _: [DEEP],
    lambda _: [1],
    lambda _: [],
]


def test_forged_ensembles_are_refused_at_once(ensemble, tmp_path):
    folder = save_run(tmp_path / "m", ensemble, tiny_dataset())
    text = (folder / "model.json").read_text()
    for change in FORGED:
        found = json.loads(text)
        found["settings"]["members"] = change(found["settings"]["members"])
        (folder / "model.json").write_text(json.dumps(found))
        with pytest.raises(UserError, match="is damaged"):
            Model.load(folder)
    for name in ("num_layers", "hidden_channels"):
        found = json.loads(text)
        found["settings"][name] = 9999
        (folder / "model.json").write_text(json.dumps(found))
        with pytest.raises(UserError, match=f"{name} is 9999: the largest of the members is"):
            Model.load(folder)
