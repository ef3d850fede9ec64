"""The scikit-learn estimator: its checks, its labels, and the same numbers as the command line."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import deepgat
from deepgat import DeepGATClassifier, UserError, load_graph, recipe, train_once
from test_cli import run as command  # noqa: F401 - a fixture
from tiny import tiny_dataset

QUICK = {
    "num_layers": 2,
    "hidden_channels": 8,
    "epochs": 8,
    "random_state": 0,
    "device": "cpu",
}

NOT_FOR_US = {
    "check_classifiers_classes": "it has a class named -1, which here means unlabelled",
    **dict.fromkeys(
        (
            "check_sample_weight_equivalence_on_dense_data",
            "check_sample_weight_equivalence_on_sparse_data",
        ),
        "a row that is repeated is another node, and other nodes are drawn for validation",
    ),
}
"""Checks of scikit-learn that make no sense for a semi-supervised classifier, and why."""


@pytest.mark.slow
@parametrize_with_checks(
    [
        DeepGATClassifier(
            "deep", num_layers=4, epochs=20, random_state=0, device="cpu", lr=0.1,
            hidden_channels=16, dropout=0.0,
        ),
        DeepGATClassifier(quality="fast", epochs=20, random_state=0, device="cpu"),
    ],
    expected_failed_checks=lambda estimator: NOT_FOR_US,
)  # fmt: skip
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture
def graph():
    return tiny_dataset().graph


def labels_of(graph):
    return np.where(graph.train_mask | graph.val_mask, graph.y, -1)


def fitted(graph, y=None, **changes):
    y = labels_of(graph) if y is None else y
    classifier = DeepGATClassifier(**{**QUICK, **changes})
    return classifier.fit(graph.x, y, graph.edge_index)


@pytest.mark.parametrize("name", ["csbm", pytest.param("cora", marks=pytest.mark.data)])
def test_the_score_is_the_command_lines(name, monkeypatch):
    data = load_graph(name)
    graph = data.graph
    run = train_once(data, recipe(num_layers=3, training={"epochs": 5, "device": "cpu"}), seed=2)
    classifier = DeepGATClassifier(num_layers=3, epochs=5, random_state=2, device="cpu")
    classifier.fit(graph.x, labels_of(graph), graph.edge_index, validation=graph.val_mask)
    test = np.where(graph.test_mask, graph.y, -1)
    assert classifier.score(graph.x, test, graph.edge_index) == run.evaluation.micro_f1["test"]
    torch.testing.assert_close(
        torch.from_numpy(classifier.predict_proba(graph.x)),
        (run.evaluation.logits[0] / run.evaluation.calibration.temperature).softmax(1),
    )
    assert classifier.history_["val_loss"] == [epoch.val_loss for epoch in run.fitted.history]


@pytest.mark.data
def test_the_score_on_cora_is_what_deepgat_train_writes(command, tmp_path):  # noqa: F811
    options = ("--layers", 2, "--epochs", 5, "--seeds", 3, "--device", "cpu", "--quiet")
    assert command("train", "cora", *options, "--out", tmp_path / "model").code == 0
    written = json.loads((tmp_path / "model" / "metrics.json").read_text())
    graph = load_graph("cora").graph
    classifier = DeepGATClassifier(num_layers=2, epochs=5, random_state=3, device="cpu")
    classifier.fit(graph.x, labels_of(graph), graph.edge_index, validation=graph.val_mask)
    test = np.where(graph.test_mask, graph.y, -1)
    assert classifier.score(graph.x, test, graph.edge_index) == written["micro_f1"]["test"]


@pytest.mark.slow
def test_edge_weights_are_those_of_the_training_loop(graph):
    """Given beside the edges, as an adjacency's values, or held; a weight of 0 is no edge."""
    weight = torch.rand(graph.edge_index.size(1)) + 0.5
    weight[::7] = 0
    y, there = labels_of(graph), weight > 0
    classifier = DeepGATClassifier(**QUICK)
    classifier.fit(graph.x, y, graph.edge_index, graph.val_mask, edge_weight=weight)
    shares = classifier.predict_proba(graph.x)
    plain = DeepGATClassifier(**QUICK).fit(graph.x, y, graph.edge_index, graph.val_mask)
    assert not np.allclose(shares, plain.predict_proba(graph.x), atol=1e-3)
    whole = graph.clone()
    whole.edge_index, whole.edge_weight = graph.edge_index[:, there], weight[there]
    data = replace(tiny_dataset(), graphs=(whole,))
    small = {"num_layers": 2, "hidden_channels": 8}
    by_hand = train_once(data, recipe(**small, training={"epochs": 8, "device": "cpu"}), seed=0)
    np.testing.assert_allclose(shares, by_hand.evaluation.logits[0].double().softmax(1), atol=1e-6)
    matrix = sp.coo_matrix((weight.numpy(), graph.edge_index.numpy()), shape=(60, 60))
    again = DeepGATClassifier(**QUICK).fit(graph.x, y, matrix, graph.val_mask)
    np.testing.assert_allclose(again.predict_proba(graph.x), shares, atol=1e-6)
    nodes = np.flatnonzero(y != -1)
    for held in ((graph.x, graph.edge_index, weight), whole, data):
        holder = DeepGATClassifier(graph=held, **QUICK)
        holder.fit(nodes, y[nodes], validation=graph.val_mask.numpy()[nodes])
        np.testing.assert_allclose(holder.predict_proba(nodes), shares[nodes], atol=1e-6)
    same = classifier.predict_proba(graph.x, graph.edge_index, weight)
    np.testing.assert_array_equal(same, shares)
    assert classifier.score(graph.x, y, graph.edge_index, edge_weight=weight) > 0
    with pytest.raises(UserError, match="trained with weights of the edges"):
        classifier.predict(graph.x, graph.edge_index)
    ones = classifier.predict_proba(graph.x, graph.edge_index, np.ones(len(weight)))
    assert not np.allclose(ones, shares, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_sample_weights_weigh_the_loss(graph, several):
    """Twice the weights are the same; 0 is unlabelled; a heavy node is the one that is learnt."""
    y = labels_of(graph)
    if several:
        y = np.where(y[:, None] == -1, -1, np.stack([y == 0, y <= 1], 1))
    rows = np.flatnonzero(graph.train_mask)
    weight = np.ones(60)
    call = {"edge_index": graph.edge_index, "validation": graph.val_mask}

    def shares(y, weight):
        made = DeepGATClassifier(**QUICK).fit(graph.x, y, sample_weight=weight, **call)
        return made.predict_proba(graph.x)

    plain = DeepGATClassifier(**QUICK).fit(graph.x, y, **call).predict_proba(graph.x)
    np.testing.assert_allclose(shares(y, weight), plain, atol=1e-4)
    weight[rows[0]] = 0
    hidden = y.copy()
    hidden[rows[0]] = -1
    without = DeepGATClassifier(**QUICK).fit(graph.x, hidden, **call).predict_proba(graph.x)
    np.testing.assert_allclose(shares(y, weight), without, atol=1e-4)
    heavy = np.full(60, 1e-3)
    heavy[rows[0]] = 1
    found = shares(y, heavy)
    np.testing.assert_allclose(shares(y, 2 * heavy), found, atol=1e-4)
    assert not np.allclose(found, plain, atol=1e-2)


def test_the_weighted_loss_is_the_weighted_mean_of_every_node():
    from deepgat.nn import LayerwiseLoss, OutputAndLayersLoss, OutputLoss

    logits = {layer: torch.randn(7, 3) for layer in range(3)}
    nodes, weight = torch.tensor([1, 4, 6]), torch.tensor([1.0, 2.0, 5.0])
    for y in (torch.arange(7) % 3, (torch.rand(7, 3) > 0.5).float()):
        for loss in (OutputLoss(), LayerwiseLoss(0.4), OutputAndLayersLoss(0.4, 0.3)):
            each = torch.stack([loss(logits, y, nodes[i : i + 1]) for i in range(3)])
            expected = (weight * each).sum() / weight.sum()
            torch.testing.assert_close(loss(logits, y, nodes, weight), expected)


def test_unlabelled_texts_and_numbers_give_the_same(graph):
    numbers = fitted(graph)
    kinds = np.array(["ant", "bee", "cow"], dtype=object)
    hidden, names = labels_of(graph) == -1, kinds[graph.y.numpy()]
    texts = [fitted(graph, np.where(hidden, none, names)) for none in (None, np.nan)]
    floats = fitted(graph, np.where(labels_of(graph) == -1, np.nan, graph.y))
    for other in texts:
        assert list(other.classes_) == ["ant", "bee", "cow"]
        assert list(other.transduction_) == list(kinds[numbers.transduction_])
    assert list(floats.transduction_) == list(numbers.transduction_)
    assert numbers.n_features_in_ == 6
    assert numbers.n_iter_ == len(numbers.history_["loss"]) == 8


def test_a_fit_repeats_itself_and_the_score_counts_labelled_rows_only(graph):
    y = labels_of(graph)
    classifier = fitted(graph, y)
    shown = graph.y.numpy()
    np.testing.assert_array_equal(
        classifier.predict_proba(graph.x), fitted(graph, y.copy()).predict_proba(graph.x)
    )
    hidden = y == -1
    accuracy = (classifier.predict(graph.x)[hidden] == shown[hidden]).mean()
    assert classifier.score(graph.x, np.where(hidden, shown, -1)) == pytest.approx(accuracy)


def test_sparse_features_are_the_same_as_dense(graph):
    x = np.where(graph.x.numpy() > 0.5, graph.x.numpy(), 0)
    classifier = DeepGATClassifier(**QUICK)
    dense = classifier.fit(x, labels_of(graph), graph.edge_index).predict_proba(x)
    rows = sp.csr_matrix(x)
    sparse = classifier.fit(rows, labels_of(graph), graph.edge_index).predict_proba(rows)
    np.testing.assert_allclose(sparse, dense, atol=1e-4)


def test_an_adjacency_matrix_is_as_good_as_edges(graph):
    source, target = graph.edge_index.numpy()
    adjacency = sp.coo_matrix((np.ones(len(source)), (source, target)), shape=(60, 60))
    classifier = DeepGATClassifier(**QUICK).fit(graph.x, labels_of(graph), adjacency.tocsr())
    np.testing.assert_array_equal(classifier.transduction_, fitted(graph).transduction_)


def test_several_labels_per_node(graph):
    y = np.stack([graph.y == 0, graph.y <= 1], 1).astype(float)
    y[~(graph.train_mask | graph.val_mask).numpy()] = -1
    classifier = fitted(graph, y)
    predicted, shares = classifier.predict(graph.x), classifier.predict_proba(graph.x)
    assert predicted.shape == shares.shape == (60, 2)
    np.testing.assert_array_equal(predicted, shares > 0.5)
    assert 0 <= classifier.score(graph.x, y) <= 1


def test_another_graph_is_predicted_without_known_labels(graph):
    classifier = fitted(graph)
    part = graph.subgraph(torch.arange(30))
    probabilities = classifier.predict_proba(part.x, part.edge_index)
    network = classifier.run_.model.eval()
    with torch.no_grad():
        expected = network(part.x, part.edge_index).double().softmax(1)
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)


def test_an_estimator_that_holds_the_graph_takes_node_numbers(graph):
    nodes = np.flatnonzero(graph.train_mask | graph.val_mask)
    validation = graph.val_mask.numpy()[nodes]
    holder = DeepGATClassifier(graph=graph, **QUICK)
    holder.fit(nodes, graph.y.numpy()[nodes], validation=validation)
    whole = DeepGATClassifier(**QUICK)
    whole.fit(graph.x, labels_of(graph), graph.edge_index, validation=graph.val_mask)
    np.testing.assert_array_equal(holder.transduction_, whole.transduction_)
    np.testing.assert_array_equal(holder.predict(nodes[::-1]), whole.predict(graph.x)[nodes[::-1]])
    assert holder.predict(nodes[:, None]).shape == nodes.shape


def test_clones_share_the_graph(graph):
    holder = DeepGATClassifier("gat", graph=graph, norm="layer", **QUICK)
    made = clone(holder)
    assert made.graph is graph
    mine, theirs = made.get_params(), holder.get_params()
    assert {**mine, "graph": None} == {**theirs, "graph": None}
    assert (mine["epochs"], mine["norm"]) == (8, "layer")


@pytest.mark.slow
def test_cross_validation_and_grid_search_over_nodes(graph):
    nodes = np.flatnonzero(graph.train_mask | graph.val_mask)
    y = graph.y.numpy()[nodes]
    holder = DeepGATClassifier(graph=graph, **QUICK)
    scores = cross_val_score(holder, nodes, y, cv=3)
    assert scores.shape == (3,)
    by_hand = clone(holder).fit(nodes[10:], y[10:])
    assert by_hand.score(nodes[:10], y[:10]) == np.mean(by_hand.predict(nodes[:10]) == y[:10])
    search = GridSearchCV(holder, {"num_layers": [1, 2]}, cv=2).fit(nodes, y)
    assert search.best_params_["num_layers"] in (1, 2)
    best = search.best_estimator_.run_.card.settings
    assert best.num_layers == search.best_params_["num_layers"]


def test_grid_search_reaches_every_flat_parameter(graph):
    """Each candidate is the classifier with these parameters, fitted by itself."""
    nodes = np.flatnonzero(graph.train_mask | graph.val_mask)
    y = graph.y.numpy()[nodes]
    holder = DeepGATClassifier(graph=graph, **{**QUICK, "epochs": 2, "hidden_channels": 4})
    grid = {"num_layers": [1, 2], "dropout": [0.0, 0.5]}
    folds = [(np.arange(10, len(nodes)), np.arange(10))]
    search = GridSearchCV(holder, grid, cv=folds).fit(nodes, y)
    assert len(search.cv_results_["params"]) == 4
    train, test = folds[0]
    for given, score in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    ):
        alone = clone(holder).set_params(**given).fit(nodes[train], y[train])
        settings = alone.run_.card.settings
        assert (settings.num_layers, settings.dropout) == (given["num_layers"], given["dropout"])
        assert alone.score(nodes[test], y[test]) == score


def test_a_held_out_fold_reaches_neither_training_nor_label_propagation(graph):
    nodes = np.flatnonzero(graph.train_mask | graph.val_mask)
    y = graph.y.numpy()
    first = DeepGATClassifier(graph=graph, **QUICK).fit(nodes[5:], y[nodes[5:]])
    seen = first._fitted_on.graph
    assert (seen.y[nodes[:5]] == -1).all()
    assert not (seen.train_mask | seen.val_mask)[nodes[:5]].any()


def test_a_fitted_estimator_survives_pickling(graph):
    classifier = fitted(graph)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict(graph.x), classifier.predict(graph.x))


def test_seeds(graph):
    assert not np.array_equal(
        fitted(graph).predict_proba(graph.x), fitted(graph, random_state=1).predict_proba(graph.x)
    )
    drawn = fitted(graph, random_state=np.random.RandomState(5))
    again = fitted(graph, random_state=np.random.RandomState(5))
    np.testing.assert_array_equal(drawn.predict_proba(graph.x), again.predict_proba(graph.x))


def test_ctrl_c_ends_a_search_too(graph, monkeypatch):
    classifier = DeepGATClassifier(**QUICK)
    real = train_once

    def train(dataset, plan, seed):
        def press(epoch):
            if epoch.number == 3:
                raise KeyboardInterrupt

        return real(dataset, plan, seed, press)

    monkeypatch.setattr("deepgat.estimator.train_once", train)
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(graph.x, labels_of(graph), graph.edge_index)
    assert classifier.n_iter_ == 3  # and what was learnt is kept


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"y": None}, "requires y to be passed"),
        ({"y": np.full(60, -1)}, "y labels no node"),
        ({"y": np.zeros(59)}, "y has 59 rows but X has 60"),
        ({"y": np.full((60, 2), 3)}, "expected 0 and 1"),
        ({"y": np.r_[1, np.full(59, -1)]}, "expected at least two"),
        ({"edge_index": [[0, 1, 2]]}, "edge_index has shape"),
        ({"edge_index": [[0], [60]]}, r"DeepGATClassifier\(graph=\(X, edge_index\)\)"),
        ({"edge_index": [[0.5], [1.5]]}, "expected whole numbers"),
        ({"edge_index": sp.eye(5)}, "adjacency of the 60 nodes"),
        ({"validation": np.zeros(60, dtype=bool)}, "validation must name some labelled rows"),
        ({"validation": [70]}, "expected a mask"),
        ({"edge_weight": [1.0]}, r"edge_weight has shape \[1\]"),
        ({"edge_weight": "x"}, "expected one finite number"),
        ({"edge_weight": "negative"}, "expected one finite number of at least 0 per edge"),
        ({"edge_weight": [1.0], "edge_index": None}, "edge_weight is given without edge_index"),
        ({"edge_weight": [1.0], "edge_index": sp.eye(60)}, "leave edge_weight out"),
        ({"sample_weight": np.ones(3)}, r"sample_weight has shape \[3\]"),
        (
            {"sample_weight": np.full(60, np.nan)},
            "finite number of at least 0 per row",
        ),
        ({"sample_weight": np.zeros(60)}, "zero for every labelled row"),
        ({"heads": 2}, "unknown setting of deep 'heads'"),
        ({"num_layers": 0}, "num_layers is 0: expected 1 or more"),
        ({"model": "oracle"}, "the oracle is shown every label"),
        ({"model": "deep-oracle"}, "the oracle is shown every label"),
        ({"validation_fraction": 1.5}, "validation_fraction is 1.5"),
        ({"graph": 3}, "graph is a int"),
        ({"graph": "held", "X": np.zeros((60, 6))}, "expected node numbers"),
        ({"graph": "held", "X": np.r_[0:59, 99]}, "the graph has 60"),
        ({"graph": "held", "X": np.zeros(60, dtype=int)}, "names a node twice"),
    ],
)
def test_mistakes_are_told_in_a_sentence(graph, change, sentence):
    call = {"X": graph.x, "y": labels_of(graph), "edge_index": graph.edge_index}
    if "graph" in change:
        call["edge_index"] = None
        change = {**change, "graph": graph if change["graph"] == "held" else change["graph"]}
    if isinstance(change.get("edge_weight"), str) and change["edge_weight"] == "negative":
        change = {"edge_weight": -torch.ones(graph.edge_index.size(1))}
    more = ("validation", "edge_weight", "sample_weight")
    call |= {key: change[key] for key in (*call, *more) if key in change}
    made = {key: value for key, value in change.items() if key not in call}
    with pytest.raises(UserError, match=sentence):
        DeepGATClassifier(**{**QUICK, **made}).fit(**call)


def test_another_x_without_edges_is_refused_after_a_graph_with_edges(graph):
    with pytest.raises(UserError, match="pass edge_index too"):
        fitted(graph).predict(graph.x[:20])


@pytest.mark.slow
def test_the_package_does_not_import_scikit_learn_for_nothing():
    import subprocess
    import sys

    code = "import sys, deepgat; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert deepgat.DeepGATClassifier is DeepGATClassifier


@pytest.mark.slow
@pytest.mark.parametrize("factor", [3e38, 1e-60, 1.0])
def test_sample_weights_of_any_size_say_the_same(graph, factor):
    y = labels_of(graph)
    call = {"edge_index": graph.edge_index, "validation": graph.val_mask}
    plain = DeepGATClassifier(**QUICK).fit(graph.x, y, **call).predict_proba(graph.x)
    weight = np.full(60, factor)
    found = DeepGATClassifier(**QUICK).fit(graph.x, y, sample_weight=weight, **call)
    np.testing.assert_allclose(found.predict_proba(graph.x), plain, atol=1e-4)


def test_a_sparse_adjacency_of_ones_is_told_its_weights(graph):
    n = graph.num_nodes
    source, target = graph.edge_index.numpy()
    weight = 1 + np.arange(len(source)) % 3
    adjacency = sp.csr_matrix((weight.astype(float), (source, target)), shape=(n, n))
    made = DeepGATClassifier(**QUICK).fit(graph.x, labels_of(graph), edge_index=adjacency)
    ones = sp.csr_matrix((np.ones(len(source)), (source, target)), shape=(n, n))
    ones.data[:] = 1.0
    assert len(made.predict(graph.x, ones)) == n
