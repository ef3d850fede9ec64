"""Classes of whole graphs: pooling, batches, folds, files and the command."""

import importlib
import json

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from deepgat import UserError
from deepgat.data.catalogue.graph_sets import GraphDataset, load_graphs
from deepgat.models import GIN, ConvStack, DeepGAT, GraphClassifier
from deepgat.training.cross_validation import build_classifier, cross_validate, folds
from deepgat.training.inputs import prepare_graph, side_by_side
from deepgat.training.settings import TrainSettings
from test_cli import assert_sentence, run  # noqa: F401 - a fixture

CROSSVAL = importlib.import_module("deepgat.training.cross_validation")
CPU = torch.device("cpu")


def rings_and_stars(count=18):
    """Two classes that differ in shape alone; one-hot features say nothing."""
    graphs = []
    for number in range(count):
        n = 6 + number % 4
        ring = number % 2 == 0
        ends = [(i + 1) % n for i in range(n)] if ring else [0] * n
        edges = torch.tensor([list(range(n)), ends])
        edges = torch.cat([edges, edges.flip(0)], 1)
        x = torch.zeros(n, 2)
        x[:, number % 3 % 2] = 1
        graphs.append(Data(x=x, edge_index=edges, y=torch.tensor([int(ring)])))
    return GraphDataset("shapes", tuple(graphs), 2, 2)


def write_tu(folder, data, name="SHAPES"):
    folder.mkdir(parents=True, exist_ok=True)
    lines = {"A": [], "graph_indicator": [], "graph_labels": [], "node_labels": []}
    start = 1
    for number, graph in enumerate(data.graphs, start=1):
        pairs = (graph.edge_index + start).t().tolist()
        lines["A"] += [f"{u}, {v}" for u, v in pairs]
        lines["graph_indicator"] += [str(number)] * graph.num_nodes
        lines["graph_labels"].append(str(2 * int(graph.y) - 1))
        lines["node_labels"] += map(str, graph.x.argmax(1).tolist())
        start += graph.num_nodes
    for part, text in lines.items():
        (folder / f"{name}_{part}.txt").write_text("\n".join(text) + "\n")
    return folder


@pytest.mark.parametrize("pool", ["mean", "sum", "max"])
@pytest.mark.parametrize("kind", ["deepgat", "gin"])
def test_a_batch_gives_what_each_graph_gives_by_itself(kind, pool):
    data = rings_and_stars(5)
    torch.manual_seed(0)
    gin = kind == "gin"
    body = GIN(2, 8, 3, 2) if gin else DeepGAT(2, 8, 3, 2, label_hops=0)
    model = GraphClassifier(body, pool).eval()
    together = side_by_side([prepare_graph(graph, CPU) for graph in data.graphs]).run(model)
    assert max(together.layer_logits) == 3
    assert len(together.layer_logits) == (4 if kind == "deepgat" else 1)
    reduce = {"mean": torch.mean, "sum": torch.sum, "max": torch.amax}[pool]
    for number, graph in enumerate(data.graphs):
        alone = body.run(graph.x, graph.edge_index)
        for layer, logits in together.layer_logits.items():
            expected = reduce(alone.layer_logits[layer], 0)
            torch.testing.assert_close(logits[number], expected)


def test_gin_equals_its_equation():
    torch.manual_seed(0)
    graph = rings_and_stars(2).graphs[1]
    model = GIN(2, 4, 2, 3).eval()
    adjacency = torch.zeros(graph.num_nodes, graph.num_nodes)
    source, target = graph.edge_index
    adjacency.index_put_((target, source), torch.ones(len(source)), accumulate=True)
    adjacency.fill_diagonal_(0)
    h, logits = graph.x, model.heads[0](graph.x)
    for conv, head in zip(model.convs, model.heads[1:], strict=True):
        h = conv.nn((1 + conv.eps) * h + adjacency @ h)
        logits = logits + head(h)
    torch.testing.assert_close(model.run(graph.x, graph.edge_index).logits, logits)


def test_every_graph_tests_once_and_parts_are_disjoint():
    y = rings_and_stars(18).y
    parts = folds(y, 3, seed=0)
    assert sorted(torch.cat([test for _, _, test in parts]).tolist()) == list(range(18))
    for train, val, test in parts:
        assert sorted(torch.cat([train, val, test]).tolist()) == list(range(18))
        assert y[test].float().mean() == 0.5


def test_all_nodes_of_the_set_count_for_the_decay(monkeypatch):
    """Whatever the fold: those of its validation and test graphs too."""
    data, seen = rings_and_stars(18), []
    trainer = CROSSVAL.Trainer

    def watched(model, inputs, training, nodes, **more):
        seen.append(nodes)
        return trainer(model, inputs, training, nodes, **more)

    monkeypatch.setattr(CROSSVAL, "Trainer", watched)
    settings = {"num_layers": 2, "hidden_channels": 8}
    training = TrainSettings(epochs=1, device="cpu")
    list(cross_validate(data, "gcnii", training, settings=settings, count=3, batch=8))
    assert seen == [sum(graph.num_nodes for graph in data.graphs)] * 3


@pytest.mark.slow
def test_gin_tells_rings_from_stars():
    settings = {"num_layers": 2, "hidden_channels": 8, "dropout": 0.0}
    training = TrainSettings(lr=0.02, weight_decay=5e-4, epochs=40, device="cpu")

    def validate():
        data = rings_and_stars(48)
        return list(cross_validate(data, "gin", training, settings=settings, count=3, batch=8))

    found = validate()
    assert [fold.number for fold in found] == [1, 2, 3]
    assert sum(fold.test for fold in found) / 3 > 0.9
    again = validate()
    assert [fold.test for fold in again] == [fold.test for fold in found]
    assert [fold.best_epoch for fold in again] == [fold.best_epoch for fold in found]


def test_files_of_the_tu_collection(tmp_path):
    data = rings_and_stars(6)
    found = load_graphs(write_tu(tmp_path / "shapes", data))
    assert (found.name, found.num_features, found.num_classes) == ("shapes", 2, 2)
    assert found.y.tolist() == data.y.tolist()
    for mine, theirs in zip(found.graphs, data.graphs, strict=True):
        assert torch.equal(mine.x, theirs.x)
        proper = theirs.edge_index[:, theirs.edge_index[0] != theirs.edge_index[1]]
        assert set(map(tuple, mine.edge_index.t().tolist())) == set(map(tuple, proper.t().tolist()))


@pytest.mark.data
@pytest.mark.parametrize(("name", "graphs", "features"), [("mutag", 188, 7), ("proteins", 1113, 3)])
def test_the_real_files(name, graphs, features):
    found = load_graphs(name)
    assert (len(found.graphs), found.num_features, found.num_classes) == (graphs, features, 2)


def test_the_command(run, tmp_path):  # noqa: F811
    folder = write_tu(tmp_path / "shapes", rings_and_stars(9 * 2))
    options = ("--folds", 3, "--epochs", 3, "--layers", 2, "--device", "cpu")
    told = json.loads(run("crossval", folder, *options, "--json").out)
    assert len(told["folds"]) == 3
    assert told["accuracy"] == pytest.approx(sum(f["test"] for f in told["folds"]) / 3)
    plain = json.loads(run("crossval", folder, *options, "--set", "unit-features=no", "--json").out)
    assert [fold["test"] for fold in plain["folds"]]
    result = run("crossval", folder, *options, "--model", "gin")
    assert "accuracy " in result.out
    assert "mean and deviation over 3 folds" in result.out
    assert told["deviation"] == pytest.approx(np.std([f["test"] for f in told["folds"]], ddof=1))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("nowhere", "there are no graphs in nowhere"),
        ("shapes --folds 2", "folds is 2: expected 3 or more"),
        ("shapes --folds 12", "fewer than the 12 folds"),
        ("shapes --pool median --folds 3", "unknown pool 'median'"),
        ("shapes --batch 1 --folds 3", "batch is 1"),
        ("shapes --set norm=pairnorm --folds 3", "unknown norm 'pairnorm'"),
        ("shapes --set unit_features=perhaps", "unit_features=perhaps: expected yes or no"),
        ("shapes --model gin --set heads=2", "unknown setting of gin 'heads'"),
        ("shapes --model pairnorm --folds 3", "PairNorm would mix the graphs"),
        ("shapes --model oracle --folds 3", "the oracle needs the classes of nodes"),
        ("shapes --model deep-oracle --folds 3", "the oracle needs the classes of nodes"),
        ("shapes --model nonsense", "unknown model 'nonsense'"),
        ("broken", "cannot be read"),
        ("lacking", "lacks SHAPES_A.txt"),
    ],
)
def test_mistakes_are_one_sentence(run, tmp_path, monkeypatch, arguments, sentence):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    write_tu(tmp_path / "shapes", rings_and_stars())
    write_tu(tmp_path / "broken", rings_and_stars())
    (tmp_path / "broken" / "SHAPES_A.txt").write_text("a, b\n")
    write_tu(tmp_path / "lacking", rings_and_stars())
    (tmp_path / "lacking" / "SHAPES_A.txt").unlink()
    assert_sentence(run("crossval", *arguments.split()), sentence)


def test_ctrl_c_keeps_the_finished_folds(run, tmp_path, monkeypatch):  # noqa: F811
    folder = write_tu(tmp_path / "shapes", rings_and_stars())
    real, seen = CROSSVAL.run_epochs, []

    def fit(*arguments, **named):
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr(CROSSVAL, "run_epochs", fit)
    result = run("crossval", folder, "--folds", 3, "--epochs", 2, "--json")
    assert result.code == 130
    assert len(json.loads(result.out)["folds"]) == 1
    assert "interrupted after 1 of 3 folds" in result.err


@pytest.mark.parametrize("conv", ["deepgat", "gat", "gcn", "sage"])
def test_the_convolutions_have_a_stack_of_their_own(conv):
    """Labels of nodes are not propagated there: graphs have their own."""
    made = build_classifier(rings_and_stars(), conv, {"num_layers": 2}, "sum", 0).network
    assert isinstance(made, ConvStack)
    assert (made.config.conv, made.num_layers, made.label_hops) == (conv, 2, 0)


def test_mistakes_in_the_settings_are_told():
    with pytest.raises(UserError, match="unknown pool"):
        build_classifier(rings_and_stars(), "deepgat", {}, "mode", 0)
    with pytest.raises(UserError, match="unknown setting of GIN 'heads'"):
        build_classifier(rings_and_stars(), "gin", {"heads": 2}, "sum", 0)
    with pytest.raises(UserError, match="unknown setting of ConvStack 'heads'"):
        build_classifier(rings_and_stars(), "gat", {"heads": 2}, "sum", 0)
