"""A trained model in use: fit, predict, explain, save and load."""

from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data

import deepgat
from deepgat import Model, UserError, recipe, train_once
from deepgat.data.names import Names
from deepgat.model_folder import harmless
from tiny import tiny_dataset, tiny_labels

QUICK = {"epochs": 6, "device": "cpu"}


@pytest.fixture(scope="module")
def data():
    return tiny_dataset()


@pytest.fixture(scope="module")
def model(data):
    return deepgat.fit(data, "deepgat", num_layers=3, training=QUICK)


def test_fit_gives_the_numbers_of_a_run(data, model):
    run = train_once(data, recipe("deepgat", preset="paper", num_layers=3, training=QUICK))
    assert model.scores == run.evaluation.micro_f1
    found = model.predict(data)
    torch.testing.assert_close(found.probabilities, run.evaluation.logits[0].softmax(1))
    assert torch.equal(found.labels, run.evaluation.logits[0].argmax(1))
    torch.testing.assert_close(found.confidence, found.probabilities.max(1).values)


def test_a_model_is_shown_in_a_line(model):
    assert repr(model) == "Model(system='deepgat', num_layers=3, dataset='csbm')"


def test_another_graph_has_no_known_labels(data, model):
    bare = Data(x=data.graph.x[:20], edge_index=torch.tensor([[0, 1], [1, 0]]))
    with torch.no_grad():
        expected = model.network(bare.x, bare.edge_index).softmax(1)
    torch.testing.assert_close(model.predict(bare).probabilities, expected)


def test_known_labels_of_the_graph_are_read_and_hidden_ones_are_not(data, model):
    changed = data.graph.clone()
    changed.y = torch.where(changed.train_mask, changed.y, (changed.y + 1) % 3)
    same = model.predict(changed)
    torch.testing.assert_close(same.probabilities, model.predict(data).probabilities)
    changed.train_mask = torch.zeros_like(changed.train_mask)
    assert not torch.equal(model.predict(changed).probabilities, same.probabilities)


def test_labels_of_another_task_are_no_labels(data, model):
    other = data.graph.clone()
    other.y = other.y + 7
    bare = Data(x=other.x, edge_index=other.edge_index)
    torch.testing.assert_close(
        model.predict(other).probabilities, model.predict(bare).probabilities
    )


def test_an_explanation_is_what_the_network_computes(data, model):
    node = 11
    found = model.explain(node)
    outputs = model.outputs(data, with_attention=True)
    assert found.neighbors[0] == node
    assert sorted(found.neighbors.tolist()) == sorted(
        {node, *data.graph.edge_index[0, data.graph.edge_index[1] == node].tolist()}
    )
    torch.testing.assert_close(found.attention.sum(1), torch.ones(3))
    edges, weight = outputs.attention[2]
    for place, neighbor in enumerate(found.neighbors.tolist()):
        edge = ((edges[0] == neighbor) & (edges[1] == node)).nonzero().item()
        assert found.attention[2, place] == pytest.approx(float(weight[edge].mean()))
        torch.testing.assert_close(
            found.layers[1][place], outputs.layer_logits[1][neighbor].softmax(0)
        )
    assert list(found.classes) == [0, 1, 2, 3]
    assert found.classes[3] == int(model.predict(data).labels[node])
    assert found.label == int(data.graph.y[node])


def test_early_exit_uses_fewer_layers_and_only_validation_nodes(data, model):
    policy = model.exit_policy(tolerance=0.2)
    found = model.predict(data, policy)
    assert found.layers.min() < 3
    assert found.layers.max() <= 3
    hidden = data.graph.clone()
    hidden.y = torch.where(hidden.test_mask, -1, hidden.y)
    blind = Model(model.network, model.card, dataset=deepgat.model_inputs.as_dataset(hidden, 3))
    assert blind.exit_policy(tolerance=0.2) == policy


def test_saved_and_loaded(data, model, tmp_path):
    again = Model.load(model.save(tmp_path / "m"))
    torch.testing.assert_close(again.predict(data).probabilities, model.predict(data).probabilities)
    with pytest.raises(UserError, match="copy that folder"):
        again.save(tmp_path / "n")
    with pytest.raises(UserError, match="score it with evaluate"):
        _ = again.scores


def test_a_model_of_labels_predicts_labels():
    data = tiny_labels()
    model = deepgat.fit(data, "deep", training=QUICK)
    found = model.predict(data.graphs[0])
    assert found.labels.shape == (12, 4)
    assert (found.confidence >= 0.5).all()
    with pytest.raises(UserError, match="one class per node"):
        model.exit_policy()
    with pytest.raises(UserError, match="4 graphs"):
        model.explain(0)


def test_mistakes(data, model):
    with pytest.raises(UserError, match="there is no node 60"):
        model.explain(60)
    with pytest.raises(UserError, match="4 features per node but the model was trained with 6"):
        model.predict(Data(x=torch.zeros(3, 4), edge_index=torch.zeros(2, 0, dtype=torch.long)))
    with pytest.raises(UserError, match="graph is a int"):
        deepgat.fit(3)
    oracle = deepgat.fit(data, "oracle", training=QUICK)
    with pytest.raises(UserError, match="cannot predict any"):
        oracle.predict(Data(x=data.graph.x, edge_index=data.graph.edge_index))


def test_names():
    names = Names(("ann", "bob"), ("x", "y"))
    assert (names.node(1), names.label(0), names.find("bob", 2)) == ("bob", "x", 1)
    assert Names().find("1", 2) == 1
    for text in ("2", "-1", "one", "²"):
        with pytest.raises(UserError, match="no node"):
            Names().find(text, 2)
    with pytest.raises(UserError, match="did you mean 'ann'"):
        names.find("anne", 2)


@pytest.mark.parametrize(
    ("text", "written"),
    [("=1+1", "'=1+1"), ("@x", "'@x"), ("+a", "'+a"), ("-1.5", "-1.5"), ("a=b", "a=b")],
)
def test_formulas_are_made_harmless(text, written):
    assert harmless(text) == written


def test_layers_that_no_node_asks_for_are_not_computed(data, model):
    """Nothing changes but the layers that are run; one unsure node asks for them all."""
    from deepgat.analysis import ExitPolicy

    depth = model.network.num_layers
    every = model.outputs(data).layer_logits
    temperatures = dict.fromkeys(every, 1.0)
    sure = {layer: each.double().softmax(1).max(1).values for layer, each in every.items()}
    for threshold, most in ((0.0, 1), (float(sure[0].min()), 1), (2.0, depth)):
        policy = ExitPolicy(temperatures, threshold)
        found = model.predict(data, policy)
        assert found.computed == most
        shares, stopped = policy.apply(every)
        assert torch.equal(found.probabilities, shares)
        assert torch.equal(found.layers, stopped)
    lowest = torch.stack([sure[layer] for layer in (0, 1)]).max(0).values.min()
    after = model.predict(data, ExitPolicy(temperatures, float(lowest)))
    assert after.computed == 2  # the second layer makes prediction 1, with which all are sure
    assert set(after.layers.tolist()) == {0, 1}
    short = {0: every[0]}
    with pytest.raises(UserError, match="the exits were chosen for"):
        ExitPolicy(temperatures, 2.0).apply(short)


def test_edges_need_weights_where_the_training_had_some(data):
    weighted = data.graph.clone()
    weighted.edge_weight = torch.rand(weighted.num_edges) + 0.5
    found = deepgat.fit(replace(data, graphs=(weighted,)), num_layers=2, training=QUICK)
    assert found.card.edge_weights
    with pytest.raises(UserError, match="trained with weights of the edges"):
        found.predict(data)
    assert len(found.predict(weighted).labels) == weighted.num_nodes


def test_nothing_named_is_deep_without_self_training_where_the_data_does_not_suit_it():
    """One graph of classes has it; several graphs of labels are trained without, unless asked."""
    quick = {"epochs": 2, "device": "cpu"}
    one = deepgat.fit(tiny_dataset(), hidden_channels=4, training=quick)
    assert one.card.settings.num_layers == 16
    assert one.card.training.self_training == 1
    several = deepgat.fit(tiny_labels(), hidden_channels=4, training=quick)
    assert several.card.settings.num_layers == 16
    assert several.card.training.self_training == 0
    with pytest.raises(UserError, match="self_training takes one graph"):
        deepgat.fit(tiny_labels(), hidden_channels=4, training={**quick, "self_training": 1.0})


def test_a_node_is_explained_by_its_id_too(my_graph):
    data = deepgat.load_graph(str(my_graph))
    model = deepgat.fit(data, "gcn", training=QUICK)
    number = data.node_ids.index("member-003")
    assert model.explain("member-003").node == model.explain(number).node == number
    with pytest.raises(UserError, match="the graph has no node 'member-3'"):
        model.explain("member-3")


def test_the_package_lists_what_it_offers():
    assert set(dir(deepgat)) == {*deepgat.__all__, "__version__"}
