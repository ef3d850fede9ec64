"""Mini-batches: what a batch holds, what a training with them is, and what it refuses."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from deepgat.cli import app
from deepgat.errors import UserError
from deepgat.model import Model
from deepgat.model_folder import load_run, save_run
from deepgat.models import find_system
from deepgat.ops import Neighbors, SparseMatrix, use_backend
from deepgat.training.evaluate import evaluate
from deepgat.training.inputs import GraphInputs, prepare
from deepgat.training.loop import train
from deepgat.training.minibatch import ClusterSampler, NeighborSampler, SampledInputs, in_chunks
from deepgat.training.recipes import Recipe, recipe
from deepgat.training.resume import Progress
from deepgat.training.run import ModelCard, train_once
from deepgat.training.settings import TrainSettings
from tiny import tiny_dataset, tiny_labels

CPU = torch.device("cpu")
CLUSTERS = {"batches": "clusters", "clusters": 6, "batch_size": 2, "most_nodes": 25}
NEIGHBOURS = {"batches": "neighbours", "batch_size": 4, "fan_out": "3,2", "most_nodes": 25}
KINDS = {"clusters": CLUSTERS, "neighbours": NEIGHBOURS}
both = pytest.mark.parametrize("kind", list(KINDS))


def plan(model="deepgat", preset="authors", **training) -> Recipe:
    small = {"hidden_channels": 4, "heads": 2, "dropout": 0.3, "num_layers": 2}
    known = find_system(model).config.kinds()
    small = {name: value for name, value in small.items() if name in known}
    settings = recipe(model, preset=preset, **small).settings
    usual = {"lr": 0.02, "epochs": 6, "device": "cpu"}
    return Recipe(model, settings, TrainSettings(**usual | training))


def sampled(data, kind, **changes) -> tuple[SampledInputs, list[GraphInputs]]:
    made = plan(**KINDS[kind] | changes)
    model = ModelCard.of(data, made).build()
    graphs = prepare(model, data, CPU)
    return SampledInputs(model, graphs, made.training, CPU), graphs


# ---------------------------------------------------------------------------------- what is in it


@both
def test_every_training_node_is_a_seed_once_an_epoch(kind):
    inputs, (graph,) = sampled(tiny_dataset(), kind)
    ((_, sampler),) = inputs.samplers
    for _ in range(3):
        batches = [sampler.batch(start) for start in sampler.draw()]
        seeds = torch.cat([batch.nodes[batch.seeds] for batch in batches])
        assert torch.equal(seeds.sort().values, graph.nodes["train"])
        assert all(batch.nodes.numel() <= inputs.most_nodes for batch in batches)
        assert len(batches) > 1


@both
@pytest.mark.parametrize("sparse", [False, True])
def test_a_batch_is_its_nodes_with_all_edges_among_them(kind, sparse):
    data = tiny_dataset(sparse=sparse)
    inputs, (graph,) = sampled(data, kind)
    ((_, sampler),) = inputs.samplers
    for start in sampler.draw():
        batch = sampler.batch(start)
        inside = torch.zeros(graph.y.numel(), dtype=torch.bool)
        inside[batch.nodes] = True
        assert inside[start].all()
        source, target = graph.neighbors.edge_index
        among = inside[source] & inside[target]
        expected = torch.stack([source[among], target[among]])
        assert torch.equal(batch.nodes[batch.neighbors.edge_index], expected)
        assert batch.neighbors.symmetric == graph.neighbors.symmetric


def test_what_the_model_is_given_are_the_rows_of_the_batch():
    data = tiny_dataset()
    graph = data.graph.clone()
    graph.x = graph.x.to_sparse_csr()  # no two rows are the same
    inputs, (graph,) = sampled(replace(data, graphs=(graph,)), "clusters")
    assert isinstance(graph.x, SparseMatrix)
    rows = {tuple(row): v for v, row in enumerate(graph.x.to_dense().tolist())}
    for batch in inputs.training():
        nodes = torch.tensor([rows[tuple(row)] for row in batch.x.to_dense().tolist()])
        assert torch.equal(batch.y, graph.y[nodes])
        assert torch.equal(batch.label_features, graph.label_features[nodes])
        assert set(nodes[batch.nodes["train"]].tolist()) <= set(graph.nodes["train"].tolist())


def test_all_clusters_together_are_the_whole_graph():
    inputs, (graph,) = sampled(tiny_dataset(), "clusters", batch_size=6)
    (batch,) = inputs.training()
    assert torch.equal(batch.x, graph.x)
    for name in ("ptr", "source", "target", "by_source"):
        assert torch.equal(getattr(batch.neighbors, name), getattr(graph.neighbors, name))
    assert torch.equal(batch.nodes["train"], graph.nodes["train"])


def test_with_all_neighbours_the_seeds_have_the_outputs_of_the_whole_graph():
    """Two layers look two hops far: nothing is missing there, and weights are per list."""
    data, made = tiny_dataset(), plan(**NEIGHBOURS | {"fan_out": "60", "most_nodes": 60})
    model = ModelCard.of(data, made).build().eval()
    (graph,) = prepare(model, data, CPU)
    whole = graph.run(model).logits
    sampler = NeighborSampler(graph.neighbors, graph.nodes["train"], 1, [60, 60], 60)
    sizes = set()
    for start in sampler.draw():
        batch = sampler.batch(start)
        sizes.add(batch.nodes.numel())
        z = graph.label_features[batch.nodes]
        logits = model(graph.x[batch.nodes], batch.neighbors, label_features=z)
        torch.testing.assert_close(logits[batch.seeds], whole[start])
    assert min(sizes) < 60


def test_clusters_are_drawn_anew():
    near = prepare_lists()
    sampler = ClusterSampler(near, torch.arange(60), 6, 2)
    first = [set(start.tolist()) for start in sampler.draw()]
    others = [[set(start.tolist()) for start in sampler.draw()] for _ in range(4)]
    assert any(other != first for other in others)
    assert sum(map(len, first)) == 60


def prepare_lists() -> Neighbors:
    data = tiny_dataset()
    return Neighbors.from_edge_index(data.graph.edge_index, 60)


def test_a_deep_network_does_not_bring_along_more_than_the_limit():
    sampler = NeighborSampler(prepare_lists(), torch.arange(10), 3, [50] * 16, 20)
    for start in sampler.draw():
        batch = sampler.batch(start)
        assert batch.nodes.numel() == 20
        assert torch.equal(batch.nodes[batch.seeds], start.sort().values)


# -------------------------------------------------------------------------------------- training


@pytest.mark.parametrize(
    ("kind", "model", "preset"),
    [
        ("clusters", "deepgat", "authors"),
        ("neighbours", "deepgat", "authors"),
        ("clusters", "deep", None),
        ("neighbours", "dropedge", None),
        ("clusters", "prenorm", None),
        ("neighbours", "oracle", "paper"),
    ],
)
def test_the_same_seed_gives_the_same_bits_with_any_backend_of_the_sampler(kind, model, preset):
    data = tiny_dataset()
    made = plan(model, preset, **KINDS[kind], epochs=2)
    first = train_once(data, made, seed=2)
    torch.manual_seed(99)
    again = train_once(data, made, seed=2)
    assert first.fitted.history == again.fitted.history
    for mine, theirs in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with use_backend("reference"):
        slow = train_once(data, made, seed=2)
    assert [e.loss for e in slow.fitted.history] == pytest.approx(
        [e.loss for e in first.fitted.history], rel=1e-3
    )


@both
def test_it_learns(kind):
    data = tiny_dataset(120)
    made = plan(epochs=40, **KINDS[kind] | {"most_nodes": 200, "lr": 0.05})
    run = train_once(data, made)
    assert run.fitted.history[-1].loss < 0.7 * run.fitted.history[0].loss
    assert run.evaluation.micro_f1["train"] > 0.9
    assert run.evaluation.micro_f1["test"] > 0.6


@both
def test_scores_are_those_of_the_whole_graph(kind):
    data = tiny_dataset()
    run = train_once(data, plan(**KINDS[kind]))
    whole = evaluate(run.model, data, "cpu")
    assert run.evaluation.micro_f1 == whole.micro_f1
    assert run.evaluation.loss == pytest.approx(whole.loss, rel=1e-5)
    torch.testing.assert_close(run.evaluation.logits[0], whole.logits[0])
    assert run.fitted.best.val_f1 == pytest.approx(whole.micro_f1["val"])


@both
def test_several_graphs_of_several_labels(kind):
    data = tiny_labels()
    made = plan(**KINDS[kind])
    made = made._replace(settings=replace(made.settings, label_hops=0))
    run = train_once(data, made)
    whole = evaluate(run.model, data, "cpu")
    assert [len(x) for x in run.evaluation.logits] == [12, 13, 14, 15]
    assert run.evaluation.micro_f1 == pytest.approx(whole.micro_f1)


@both
def test_it_goes_on_from_where_it_was_kept(kind, tmp_path):
    data, made = tiny_dataset(), plan(**KINDS[kind])
    through = train_once(data, made)
    path = tmp_path / "progress"
    early = made._replace(training=replace(made.training, epochs=3))
    model = ModelCard.of(data, made).build()
    train(model, data, early.training, progress=Progress(path, 3, key="x"))
    model = ModelCard.of(data, made).build()
    train(model, data, made.training, progress=Progress(path, 3, key="x", resume=True))
    for mine, theirs in zip(model.parameters(), through.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_clusters_without_training_nodes_take_no_step():
    data = tiny_dataset()
    graph = data.graph.clone()
    graph.train_mask = torch.zeros(60, dtype=torch.bool)
    graph.train_mask[7], graph.val_mask[7], graph.test_mask[7] = True, False, False
    inputs, _ = sampled(replace(data, graphs=(graph,)), "clusters")
    (batch,) = inputs.training()
    assert batch.counts == {"train": 1}


def test_settings_survive_saving(tmp_path):
    data = tiny_dataset()
    run = train_once(data, plan(**NEIGHBOURS))
    save_run(tmp_path / "run", run, data)
    _, card = load_run(tmp_path / "run")
    assert card == run.card
    saved = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert saved["training"]["fan_out"] == "3,2"


def test_one_chunk_or_many_score_the_same():
    data = tiny_dataset()
    model = ModelCard.of(data, plan()).build().eval()
    (graph,) = prepare(model, data, CPU)
    one, many = (in_chunks(graph, most, CPU).run(model).logits for most in (60, 7))
    torch.testing.assert_close(one, many)


# --------------------------------------------------------------------------------------- mistakes


def test_the_default_size_of_a_batch():
    assert TrainSettings(batches="clusters").per_batch == 4
    assert TrainSettings(batches="neighbours").per_batch == 512
    assert TrainSettings(batches="neighbours", batch_size=9).per_batch == 9


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batches": "cluster"}, "unknown batches 'cluster': did you mean 'clusters'"),
        ({"clusters": 0}, "clusters is 0: expected 1 or more"),
        ({"most_nodes": -1}, "most_nodes is -1: expected 1 or more"),
        ({"fan_out": "0"}, "fan_out is '0': expected a number of neighbours above 0"),
        ({"fan_out": "3,,2"}, "fan_out is '3,,2': expected"),
        ({"fan_out": 3}, "fan_out is 3: expected"),
    ],
)
def test_settings_that_mean_nothing(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        TrainSettings(**changes)


def test_a_fan_out_for_other_layers():
    made = plan(**NEIGHBOURS | {"fan_out": "3,2,1"})
    with pytest.raises(UserError, match="3 numbers, but the model has 2 layers"):
        train_once(tiny_dataset(), made)


QUICK = ("--model", "gcn", "--epochs", "3", "--quiet", "--json")


def command(*words):
    return CliRunner().invoke(app, ["train", "csbm", *QUICK, *words])


def test_the_command():
    given = ["--train", "batches=clusters", "--train", "clusters=8", "--train", "batch-size=3"]
    done = command(*given)
    assert done.exit_code == 0, done.output
    training = json.loads(done.output)["training"]
    assert [training[key] for key in ("batches", "clusters", "batch_size")] == [
        "clusters",
        8,
        3,
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--train", "batches"], "expected NAME=VALUE"),
        (["--train", "batch=clusters"], "unknown training setting 'batch'"),
        (["--train", "clusters=many"], "--train clusters=many: expected a whole number"),
        (["--train", "seed=3"], "say it as --seeds 3"),
    ],
)
def test_mistakes_on_the_command_line(given, sentence):
    with pytest.raises(UserError, match=sentence):
        raise command(*given).exception


def test_a_last_seed_alone_joins_the_batch_before():
    lists = Neighbors.from_edge_index(torch.empty(2, 0, dtype=torch.long), 9)
    sampler = NeighborSampler(lists, torch.arange(9), 4, [2], 9)
    assert sorted(len(start) for start in sampler.draw()) == [4, 5]
    batch = sampler.batch(sampler.draw()[-1])
    assert batch.nodes.numel() <= sampler.most_nodes
    made = plan(**NEIGHBOURS | {"batch_size": 1})
    normed = replace(made.settings, norm="batch")
    with pytest.raises(UserError, match="batch_size is 1, and a batch norm"):
        train_once(tiny_dataset(), made._replace(settings=normed))


def test_weights_of_training_nodes_are_refused_rather_than_dropped():
    data = tiny_dataset()
    data.graph["train_weight"] = torch.ones(data.graph.num_nodes)
    with pytest.raises(UserError, match="train_weight is for steps on the whole graph"):
        train_once(data, plan(**CLUSTERS))


def test_a_divergence_claims_nothing_about_layers_that_were_not_kept():
    with pytest.raises(UserError, match=r"the validation loss became \S+ at epoch \d+;"):
        train_once(tiny_dataset(), plan(lr=1e25, **CLUSTERS | {"batch_size": 6}))


@both
def test_a_model_predicts_in_chunks_as_it_was_evaluated(kind):
    data = tiny_dataset()
    run = train_once(data, plan(**KINDS[kind]))
    outputs = Model(run.model, run.card).outputs(data)
    torch.testing.assert_close(outputs.logits, run.evaluation.logits[0], atol=1e-6, rtol=1e-6)
    assert not outputs.hidden
