"""A model that keeps its graph: from Python, in its folder, and what spoils it."""

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import deepgat
from deepgat import Model
from deepgat.data import FeaturePlan, from_pandas
from deepgat.data.node_ids import NodeIds
from deepgat.errors import UserError
from tiny import tiny_dataset, tiny_labels

QUICK = {"epochs": 3, "device": "cpu"}


@pytest.fixture(scope="module")
def model():
    """DeepGAT, which also reads the labels of training nodes."""
    return deepgat.fit(tiny_dataset(), "deepgat", num_layers=2, training=QUICK)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    return model.save(tmp_path_factory.mktemp("kept") / "model", keep_graph=True)


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


X = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))
LINKS = torch.tensor([[3, 60, 9, 61, 60, 61], [60, 3, 61, 9, 61, 60]])


def whole(graph: Data, x=X, links=LINKS) -> Data:
    """The training graph with the new nodes."""
    n, new = graph.num_nodes, len(x)
    old = graph.x if graph.x.layout == torch.strided else graph.x.to_dense()
    made = Data(
        x=torch.cat([old, x]),
        edge_index=torch.cat([graph.edge_index, links], 1),
        y=torch.cat([graph.y, torch.full((new,), -1)]),
    )
    for name in ("train_mask", "val_mask", "test_mask"):
        made[name] = torch.cat([graph[name], torch.zeros(new, dtype=torch.bool)])
    assert made.num_nodes == n + new
    return made


# ------------------------------------------------------------------------------------ predictions


def test_a_kept_graph_is_mapped_and_predicts_like_the_whole_graph(model, saved):
    truth = model.predict(whole(model.training_data.graph))
    loaded = Model.load(saved)
    assert all(isinstance(array, np.memmap) for array in loaded.kept.arrays.values())
    for one in (model, loaded):
        found = one.predict_new(X, LINKS)
        torch.testing.assert_close(found.probabilities, truth.probabilities[60:], rtol=0, atol=1e-6)
        assert found.labels.tolist() == truth.labels[60:].tolist()
    assert "training_data" not in vars(loaded)  # the graph was not read by its name


def test_chosen_nodes(model, saved):
    data = model.training_data
    truth = model.predict(data)
    for found in (
        Model.load(saved).predict(nodes=[5, 40]),
        Model.load(saved).predict(nodes=["5", "40"]),
        Model.load(saved).predict(nodes=torch.tensor([5, 40])),
        model.predict(data, nodes=np.array([5, 40])),
        model.predict(data.graph, nodes=[5, 40]),
    ):
        torch.testing.assert_close(
            found.probabilities, truth.probabilities[[5, 40]], rtol=0, atol=1e-6
        )
    assert model.predict().labels.tolist() == truth.labels.tolist()


def test_early_exit_of_some_nodes(model):
    policy = model.exit_policy(0.3)
    truth, found = model.predict(early_exit=policy), model.predict(None, policy, nodes=[4, 7])
    assert found.layers.tolist() == truth.layers[[4, 7]].tolist()
    torch.testing.assert_close(found.probabilities, truth.probabilities[[4, 7]], rtol=0, atol=1e-6)
    assert found.computed == 2


def test_sparse_features(tmp_path):
    made = deepgat.fit(tiny_dataset(sparse=True), "gcn", training=QUICK)
    loaded = Model.load(made.save(tmp_path / "model", keep_graph=True))
    x = X * (X > 0.5)
    truth = made.predict(whole(made.training_data.graph, x))
    for given in (x, x.to_sparse_csr(), x.numpy()):
        found = loaded.predict_new(given, LINKS).probabilities
        torch.testing.assert_close(found, truth.probabilities[60:], rtol=0, atol=1e-6)


def test_pairnorm_gets_the_whole_graph(tmp_path):
    made = deepgat.fit(tiny_dataset(), "pairnorm", training=QUICK)
    truth = made.predict(whole(made.training_data.graph))
    found = Model.load(made.save(tmp_path / "model", keep_graph=True)).predict_new(X, LINKS)
    torch.testing.assert_close(found.probabilities, truth.probabilities[60:], rtol=0, atol=1e-6)


def test_many_calls_from_many_threads_do_not_read_the_folder_again(folder):
    loaded = Model.load(folder)
    expected = loaded.predict_new(X, LINKS).probabilities
    (folder / "model.json").unlink()
    shutil.rmtree(folder / "graph")  # mapped files live on until they are closed

    def call(_):
        return loaded.predict_new(X, LINKS).probabilities

    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, expected) for found in pool.map(call, range(24)))


def test_tables_of_new_nodes():
    """Data frames and dictionaries go through the training graph's plan; edges run both ways."""
    old = pd.DataFrame({
        "id": [f"p{k}" for k in range(30)], "age": range(20, 50), "town": ["A", "B", "C"] * 10,
        "label": ["x", "y"] * 15,
    })  # fmt: skip
    links = pd.DataFrame({"source": [f"p{k}" for k in range(29)],
                          "target": [f"p{k + 1}" for k in range(29)],
                          "weight": 1.5})  # fmt: skip
    made = deepgat.fit(from_pandas(old, links), "deep", num_layers=3, training=QUICK)
    nodes = [{"id": "q", "age": 33, "town": "B"}, {"id": "r", "age": 80, "town": "nowhere"}]
    edges = [
        {"source": "q", "target": "p7", "weight": 2},
        {"source": "r", "target": "q", "weight": 0.5},
        {"source": "r", "target": "q", "weight": 0.5},
    ]
    more = pd.concat([old, pd.DataFrame(nodes)], ignore_index=True)
    bigger = from_pandas(
        more, pd.concat([links, pd.DataFrame(edges)]), plan=FeaturePlan.of(made.card.feature_plan)
    )
    truth = made.predict(bigger).probabilities[30:]
    found = made.predict_new(nodes, edges)
    torch.testing.assert_close(found.probabilities, truth, rtol=0, atol=1e-6)
    frames = made.predict_new(pd.DataFrame(nodes), pd.DataFrame(edges))
    assert torch.equal(frames.probabilities, found.probabilities)
    new = made.read_new(nodes, edges)
    assert new.ids == ("q", "r")
    assert any("'nowhere'" in note for note in new.notes)
    assert "1 repeated edge merged" in new.notes
    assert torch.equal(made.predict_new(new).probabilities, found.probabilities)
    alone = made.predict_new(nodes)
    assert not torch.allclose(alone.probabilities, found.probabilities)
    assert made.predict(nodes=["p3", 3]).labels.unique().numel() == 1


def test_another_graph_to_add_nodes_to(model):
    other = tiny_dataset(nodes=80)
    links = torch.tensor([[3, 80], [80, 3]])
    found = model.with_graph(other).predict_new(X[:1], links)
    truth = model.predict(whole(other.graph, X[:1], links))
    torch.testing.assert_close(found.probabilities, truth.probabilities[80:], rtol=0, atol=1e-6)


def test_ids_are_found_by_their_bytes():
    texts = ["", "b", "a,b", "ä", "a", "10", "9", "𝔊", "ab", "\n"]
    ids = NodeIds.of(texts)
    assert [ids.find(text) for text in texts] == list(range(len(texts)))
    assert [ids[number] for number in range(len(texts))] == texts
    assert [ids.find(text) for text in ("c", "aa", "A", "09", "\ud800")] == [-1] * 5
    with pytest.raises(UserError, match="id_order names nodes that do not exist"):
        NodeIds(ids.ptr, ids.text, ids.order + 10).find("a")


# -------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m: m.predict(nodes=[60]), "no node 60: its nodes run from 0 to 59"),
        (lambda m: m.predict(nodes=["zoe"]), "no node 'zoe'"),
        (lambda m: m.predict(nodes=[]), "nodes is empty"),
        (lambda m: m.predict(nodes=[True]), "nodes holds True"),
        (lambda m: m.predict(nodes=[1.5]), "nodes holds 1.5"),
        (lambda m: m.predict(nodes=3.5), "nodes is float"),
        (lambda m: m.predict(hops=2), "give nodes too"),
        (lambda m: m.predict(nodes=[1], hops=-1), "hops is -1"),
        (lambda m: m.predict_new(X[:, :4], LINKS), "new nodes have 4 features per node"),
        (lambda m: m.predict_new(X[0]), "x has shape"),
        (lambda m: m.predict_new(X * torch.nan), "NaN or infinite"),
        (lambda m: m.predict_new(X, LINKS + 1), "names the nodes 4 to 62: expected 0 to 59"),
        (lambda m: m.predict_new(X, LINKS.float()), "edge_index is torch.float32"),
        (lambda m: m.predict_new(X, LINKS[:1]), "expected torch.int64 .2, edges"),
        (lambda m: m.predict_new(X, torch.tensor([[3], [4]])), "joins '3' and '4', which are both"),
        (lambda m: m.predict_new(X, LINKS, torch.ones(6)), "the model was trained without"),
        (lambda m: m.predict_new(X, LINKS, None, torch.ones(6, 2)), "edges have 2 features each"),
        (lambda m: m.predict_new([{"id": "a"}]), "no column 'x0'"),
        (lambda m: m.predict_new([]), "nodes is empty"),
        (lambda m: m.predict_new(7), "nodes is int: expected a pandas DataFrame"),
        (lambda m: m.predict_new([{"id": "a"}], None, X[0]), "are for an edge_index"),
        (lambda m: m.read_new([{"id": "a"}], scale="unit"), "scale was decided"),
    ],
)  # fmt: skip
def test_mistakes_are_told(model, call, sentence):
    with pytest.raises(UserError, match=sentence):
        call(model)


def test_a_graph_of_the_catalogue_has_columns_by_number(model):
    row = {f"x{k}": float(X[0, k]) for k in range(6)}
    found = model.predict_new([{"id": "a", **row}], [{"source": "a", "target": 3}])
    links = torch.tensor([[3, 60], [60, 3]])
    torch.testing.assert_close(found.probabilities, model.predict_new(X[:1], links).probabilities)
    with pytest.raises(UserError, match="row 1, column 'id': the id '3' is a node of the graph"):
        model.predict_new([{"id": 3, **row}])
    with pytest.raises(UserError, match="the id '99' is not among the nodes"):
        model.predict_new([{"id": "a", **row}], [{"source": "a", "target": 99}])
    with pytest.raises(
        UserError, match=r"edge between '[45]' and '[45]', which are both in the graph"
    ):
        model.predict_new([{"id": "a", **row}], [{"source": 4, "target": 5}])


def test_features_as_a_list(model):
    rows = [{"id": "a", "x": X[0].tolist()}, {"id": "b", "x": list(X[1].numpy())}]
    links = [{"source": "a", "target": 3}, {"source": "b", "target": 9},
             {"source": "a", "target": "b"}]  # fmt: skip
    found, truth = model.predict_new(rows, links), model.predict_new(X, LINKS)
    torch.testing.assert_close(found.probabilities, truth.probabilities, rtol=0, atol=1e-6)
    for spoilt in ([1.0] * 5, [1.0] * 5 + ["1"], [True] * 6, [None] * 6, [[1.0]] * 6):
        with pytest.raises(UserError, match="row 2, column 'x': expected a list of 6 numbers"):
            model.predict_new([rows[0], {"id": "b", "x": spoilt}])
    for large in (10**400, 10**39, float("nan")):
        with pytest.raises(UserError, match=r"too large|NaN or infinite"):
            model.predict_new([{"id": "b", "x": [large] * 6}])
    with pytest.raises(UserError, match="'id': the id '3' is a node of the graph"):
        model.predict_new([{"id": 3, "x": [1.0] * 6}])
    with pytest.raises(UserError, match="id"):
        model.predict_new([{"x": [1.0] * 6}])


def test_structural_features_need_the_whole_graph():
    nodes = pd.DataFrame({"id": range(30), "label": ["x", "y"] * 15})
    edges = pd.DataFrame({"source": range(29), "target": range(1, 30)})
    made = deepgat.fit(from_pandas(nodes, edges, structure="degree"), "gcn", training=QUICK)
    with pytest.raises(UserError, match=r"structural features \(degree\), which new edges change"):
        made.predict_new([{"id": "a"}])


def test_the_oracle_and_several_graphs_are_refused(tmp_path):
    oracle = deepgat.fit(tiny_dataset(), "oracle", training=QUICK)
    with pytest.raises(UserError, match="the oracle must be shown every label"):
        oracle.predict(nodes=[1])
    labels = deepgat.fit(tiny_labels(), "gcn", training=QUICK)
    with pytest.raises(UserError, match="a folder keeps one whole graph"):
        labels.save(tmp_path / "model", keep_graph=True)
    assert not (tmp_path / "model").exists()


# ------------------------------------------------------------------------------ the whole graph


def test_a_kept_graph_is_the_training_graph(model, saved):
    """Without the graph it was trained on, a model predicts, scores, stops early and explains."""
    loaded, truth = Model.load(saved), model.predict()
    torch.testing.assert_close(loaded.predict().probabilities, truth.probabilities)
    assert loaded.evaluate().micro_f1 == model.scores
    assert loaded.exit_policy(0.1) == model.exit_policy(0.1)
    found, expected = loaded.explain(7), model.explain(7)
    assert torch.equal(found.neighbors, expected.neighbors)
    torch.testing.assert_close(found.attention, expected.attention)
    for key in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(loaded.training_data.graph[key], model.training_data.graph[key])


@pytest.mark.parametrize("weights", [False, True])
def test_values_of_edges_and_loops_survive(weights, tmp_path):
    data = tiny_dataset()
    index = torch.cat([data.graph.edge_index, torch.tensor([[2, 5, 5], [2, 5, 5]])], 1)
    data.graph.edge_index = index
    draw = torch.Generator().manual_seed(3)
    data.graph.edge_attr = torch.randn(index.shape[1], 2, generator=draw)
    if weights:
        data.graph.edge_weight = torch.rand(index.shape[1], generator=draw)
        data.graph.edge_weight[:5] = 0
    made = deepgat.fit(data, "gat", training=QUICK)
    loaded = Model.load(made.save(tmp_path / "model", keep_graph=True))
    ours, theirs = loaded.predict().probabilities, made.predict().probabilities
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    loops = loaded.training_data.graph.edge_index
    assert set(loops[0, loops[0] == loops[1]].tolist()) == {2, 5}  # others come by themselves


def test_another_graph_for_new_nodes_is_not_the_training_graph(saved):
    loaded = Model.load(saved)
    other = loaded.training_data.graph.clone()
    other.x = other.x + 1
    moved = loaded.with_graph(other)
    assert torch.equal(moved.training_data.graph.x, loaded.training_data.graph.x)
    assert moved.exit_policy(0.1) == loaded.exit_policy(0.1)
    assert not torch.equal(moved.predict(nodes=[3]).probabilities,
                           loaded.predict(nodes=[3]).probabilities)  # fmt: skip


def test_what_needs_labels_says_so(saved):
    loaded = Model.load(saved)
    graph = loaded.training_data.graph
    with pytest.raises(UserError, match="has no labels to score: give a graph with labels"):
        loaded.evaluate(Data(x=graph.x, edge_index=graph.edge_index))
    arrays = dict(loaded.kept.arrays, part=np.zeros(60, np.int8), y=np.full(60, -1))
    bare = replace(loaded, kept=replace(loaded.kept, arrays=arrays))
    assert len(bare.predict().labels) == 60
    with pytest.raises(UserError, match="has no labels to score"):
        bare.evaluate()
    with pytest.raises(UserError, match="early exit is chosen on validation nodes"):
        bare.exit_policy()


def test_a_model_without_its_graph_says_how_to_keep_it(model, tmp_path):
    bare = Model.load(model.save(tmp_path / "model"))
    bare = replace(bare, card=replace(bare.card, dataset=str(tmp_path / "gone")))
    for ask in (bare.predict, bare.evaluate, lambda: bare.explain(3), bare.exit_policy):
        with pytest.raises(UserError, match="is not in the model folder and cannot be read again"):
            ask()
    with pytest.raises(UserError, match=r"keep_graph=True in Python, --keep-graph on the command"):
        bare.predict_new(X, LINKS)


# ---------------------------------------------------------------------------------------- damage


def resign(folder) -> None:
    """Make the checksums those of the files: what a malicious writer would do."""
    described = json.loads((folder / "graph" / "graph.json").read_text())
    if isinstance(described["arrays"], dict):
        for name in described["arrays"]:
            path = folder / "graph" / f"{name}.npy"
            content = path.read_bytes() if path.exists() else b""
            described["arrays"][name] = hashlib.sha256(content).hexdigest()
    text = json.dumps(described)
    (folder / "graph" / "graph.json").write_text(text)
    whole = json.loads((folder / "model.json").read_text())
    whole["graph_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "model.json").write_text(json.dumps(whole))


def edit(name, change):
    def harm(folder):
        path = folder / "graph" / f"{name}.npy"
        array = change(np.load(path).copy())
        np.save(path, array, allow_pickle=True)
        resign(folder)

    return harm


def put(index, value):
    def change(array):
        array[index] = value
        return array

    return change


def describe(**changes):
    def harm(folder):
        path = folder / "graph" / "graph.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        resign(folder)

    return harm


def cut(folder):
    path = folder / "graph" / "x.npy"
    path.write_bytes(path.read_bytes()[:-8])
    resign(folder)


def flip(folder):
    path = folder / "graph" / "x.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def replaced(make):
    def harm(folder):
        path = folder / "graph" / "source.npy"
        path.unlink()
        make(path)

    return harm


def huge(folder):
    """A header that claims far more than the file holds."""
    path = folder / "graph" / "x.npy"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"(60, 6)", b"(60, 6000000000)", 1))
    resign(folder)


DAMAGE = {
    "a bit": (flip, "x.npy is not the file that was saved"),
    "cut short": (cut, "x.npy cannot be read"),
    "huge": (huge, "x.npy cannot be read"),
    "no file": (replaced(lambda path: None), "source.npy is not there"),
    "a pipe": (replaced(os.mkfifo), "neither a regular file nor a folder"),
    "a folder": (replaced(os.mkdir), "is a folder"),
    "a device": (replaced(lambda path: path.symlink_to("/dev/zero")), "neither a regular file"),
    "objects": (edit("y", lambda a: np.array([{}] * 60, dtype=object)), "y.npy cannot be read"),
    "another type": (edit("source", lambda a: a.astype(np.int64)), "source is int64"),
    "another shape": (edit("x", lambda a: a[:, :5]), "x is float32 .60, 5., expected"),
    "fewer nodes": (edit("part", lambda a: a[:-1]), "part is int8"),
    "columns first": (edit("x", np.asfortranarray), "not in the order of C"),
    "pointers fall": (edit("ptr", put(5, 10**6)), "ptr does not rise from 0"),
    "pointers begin late": (edit("ptr", put(0, 1)), "ptr does not rise from 0"),
    "strange arrays": (describe(arrays={"../model": ""}), "is no array of a graph"),
    "arrays missing": (describe(arrays={}), "ptr is missing"),
    "no arrays": (describe(arrays=7), "is damaged"),
    "nodes": (describe(nodes="60"), "it has '60' nodes"),
    "features": (describe(features=7), "7 features, unlike the model"),
    "symmetric": (describe(symmetric=3), "both ways"),
    "format": (describe(format=9), "graph format 9 but this deepgat reads format 1"),
    "weights": (
        describe(arrays={"log_weight": "", "ptr": "", "source": "", "y": "", "part": "", "x": ""}),
        "log_weight.npy is not there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told(folder, name):
    harm, sentence = DAMAGE[name]
    harm(folder)
    with pytest.raises(UserError, match=sentence) as told:
        Model.load(folder)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("array", "change", "sentence"),
    [
        ("source", put(slice(None), 60), "names nodes that do not exist"),
        ("source", put(slice(None), -1), "names nodes that do not exist"),
        ("y", put(slice(None), 10**9), "has the class 1000000000"),
        ("x", put(slice(None), np.nan), "not finite|NaN or infinite"),
    ],
)
def test_numbers_are_checked_when_they_are_read(folder, array, change, sentence):
    edit(array, change)(folder)
    loaded = Model.load(folder)
    with pytest.raises(UserError, match=sentence):
        loaded.predict_new(X, LINKS)
    with pytest.raises(UserError, match=f"{sentence}|classes that the model does not have"):
        loaded.predict()


def test_a_folder_without_a_graph_falls_back_on_the_named_one(tmp_path):
    made = deepgat.fit("csbm", "gcn", training=QUICK)
    loaded = Model.load(made.save(tmp_path / "model"))
    assert loaded.kept is None
    truth = made.predict().probabilities[[1, 2]]
    torch.testing.assert_close(loaded.predict(nodes=[1, 2]).probabilities, truth)
