"""Every model against the literal transcription: outputs, attention, loss and all gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv

from deepgat.data import propagate_labels
from deepgat.errors import UserError
from deepgat.nn import (
    GAT,
    AdditiveScore,
    AttentionStack,
    DeepGAT,
    NeighborAttention,
    UniformScore,
    build_model,
    model_settings,
)
from deepgat.nn.settings import SCORES, ModelSettings
from deepgat.ops import Neighbors, Normalization

import transcription
from graphs import AWKWARD, graphs, random_edges

D_IN, CLASSES, HIDDEN, HEADS = 5, 3, 4, 2
PRESETS = ("paper", "authors")
SYSTEMS = [(model, score) for model, scores in SCORES.items() for score in scores]
TOLERANCE = {"rtol": 0, "atol": 1e-10}


class Case:
    """A model, its inputs, and the same thing for the transcription."""

    def __init__(
        self, choices: ModelSettings, n: int, edge_index: Tensor, multi_label: bool = False
    ) -> None:
        self.settings, self.n, self.edge_index = choices, n, edge_index
        self.multi_label = multi_label
        self.model = build_model(choices, D_IN, CLASSES, multi_label).double().eval()
        for parameter in self.model.parameters():  # biases and norms start at 0 and 1: move them
            parameter.data += 0.3 * torch.randn_like(parameter)
        self.x = torch.randn(n, D_IN, dtype=torch.double)
        self.mask = torch.rand(n) < 0.6
        self.mask[0] = True
        if multi_label:
            self.y = torch.randint(2, (n, CLASSES)).double()
        else:
            self.y = torch.randint(CLASSES, (n,))
        self.label_features, self.one_hot = None, None
        if self.model.label_hops:
            self.one_hot = torch.nn.functional.one_hot(self.y, CLASSES).double()
            self.one_hot[~self.mask] = 0
            self.label_features = propagate_labels(
                edge_index, self.one_hot, n, choices.label_hops, choices.first_labels
            )

    def run(self):
        labels = self.y if self.model.needs_labels else None
        return self.model.run(
            self.x, self.edge_index, self.label_features, labels, with_attention=True
        )

    def transcribed(self) -> transcription.Result:
        s = self.settings
        sigmoid = self.multi_label and s.class_activation == "by-task"
        options = transcription.Options(
            model=s.model,
            score=s.score,
            sd_scale=s.sd_scale,
            label_input=s.label_input,
            label_hops=s.label_hops,
            first_labels=s.first_labels,
            class_activation="sigmoid" if sigmoid else "softmax",
            output_activation=s.output_activation,
            heads_in=[1] + [s.heads] * (s.layers - 1),
        )
        layers = [self.parameters_of(layer) for layer in self.model.layers]
        labels = self.y if s.model == "oracle" else None
        return transcription.run(self.x, self.edge_index, layers, options, self.one_hot, labels)

    def parameters_of(self, layer) -> transcription.LayerParams:
        conv = layer.conv
        per_head = (conv.heads, -1)
        additive = isinstance(conv.score, AdditiveScore)
        norm = layer.norm if isinstance(layer.norm, torch.nn.LayerNorm) else None
        skip = getattr(layer.update, "linear", None)
        return transcription.LayerParams(
            W2=conv.weight.view(*per_head, conv.in_channels),
            W1=(
                None
                if conv.class_weight is None
                else conv.class_weight.view(*per_head, conv.class_weight.size(1))
            ),
            bias=conv.bias,
            att_target=conv.score.target if additive else None,
            att_source=conv.score.source if additive else None,
            skip_weight=None if skip is None else skip.weight,
            skip_bias=None if skip is None else skip.bias,
            norm_weight=None if norm is None else norm.weight,
            norm_bias=None if norm is None else norm.bias,
        )

    def loss(self, layer_logits: dict[int, Tensor]) -> Tensor:
        return self.model.loss(layer_logits, self.y, self.mask.nonzero().squeeze(1))

    def transcribed_loss(self, result: transcription.Result) -> Tensor:
        return transcription.loss(
            result,
            self.y,
            self.mask,
            self.settings.delta,
            terms=self.settings.loss_layers,
            multi_label=self.multi_label,
        )


def assert_same(case: Case) -> None:
    ours, theirs = case.run(), case.transcribed()
    assert set(ours.layer_logits) == set(theirs.layer_logits)
    for layer, logits in theirs.layer_logits.items():
        torch.testing.assert_close(ours.layer_logits[layer], logits, **TOLERANCE)
    for mine, literal in zip(ours.hidden, theirs.hidden, strict=True):
        torch.testing.assert_close(mine, literal, **TOLERANCE)
    for (edge_index, weight), literal in zip(ours.attention, theirs.attention, strict=True):
        pairs = [(v, u) for u, v in edge_index.t().tolist()]
        assert sorted(pairs) == sorted(literal)
        expected = torch.stack([literal[pair] for pair in pairs])
        torch.testing.assert_close(weight, expected, **TOLERANCE)

    my_loss = case.loss(ours.layer_logits)
    literal_loss = case.transcribed_loss(theirs)
    torch.testing.assert_close(my_loss, literal_loss, **TOLERANCE)
    parameters = dict(case.model.named_parameters())
    mine = torch.autograd.grad(my_loss, list(parameters.values()), allow_unused=True)
    literal = torch.autograd.grad(literal_loss, list(parameters.values()), allow_unused=True)
    for name, a, b in zip(parameters, mine, literal, strict=True):
        zero = torch.zeros_like(parameters[name])
        torch.testing.assert_close(
            zero if a is None else a,
            zero if b is None else b,
            **TOLERANCE,
            msg=lambda text, name=name: f"gradient of {name}: {text}",
        )


def small(model: str, preset: str, score: str, layers: int, **choices) -> ModelSettings:
    return model_settings(
        model, preset, score, layers=layers, hidden=HIDDEN, heads=HEADS, dropout=0.0, **choices
    )


@pytest.mark.parametrize("multi_label", [False, True], ids=["classes", "labels"])
@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("model", "score"), SYSTEMS)
def test_equals_the_transcription(model, score, preset, layers, multi_label):
    case = Case(small(model, preset, score, layers), 9, random_edges(9, 14), multi_label)
    assert_same(case)


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("model", "score"), SYSTEMS)
def test_equals_the_transcription_on_awkward_graphs(model, score, preset, name):
    n, edge_index = AWKWARD[name]
    assert_same(Case(small(model, preset, score, 3), n, edge_index))


@settings(max_examples=40)
@given(
    graph=graphs(),
    system=st.sampled_from(SYSTEMS),
    preset=st.sampled_from(PRESETS),
    layers=st.integers(1, 4),
    multi_label=st.booleans(),
)
def test_equals_the_transcription_on_any_graph(graph, system, preset, layers, multi_label):
    model, score = system
    assert_same(Case(small(model, preset, score, layers), *graph, multi_label))


CHOICES = [
    {"label_input": "layer"},
    {"first_labels": "neighbor-counts"},
    {"loss_layers": "from-0"},
    {"sd_scale": "sqrt-output-width"},
    {"norm": "layer"},
    {"bias": True},
    {"output_activation": False},
    {"update": "linear-skip"},
    {"output_heads": 3},
    {"label_hops": 0},
    {"label_hops": 5},
    {"delta": 2.0},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("score", ["dp", "sd"])
def test_every_choice_of_the_ledger_by_itself(score, choice):
    assert_same(Case(small("deepgat", "paper", score, 4, **choice), 8, random_edges(8, 12)))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_every_choice_changes_something(choice):
    """No name is without effect: otherwise the test above would prove nothing."""
    if "delta" in choice or "loss_layers" in choice:
        observe = lambda case: case.loss(case.run().layer_logits)  # noqa: E731
    elif "sd_scale" in choice:
        observe = lambda case: case.run().attention[0].weight  # noqa: E731
    else:
        observe = lambda case: case.run().logits  # noqa: E731
    seen = []
    for choices in ({}, choice):
        torch.manual_seed(0)
        seen.append(
            observe(Case(small("deepgat", "paper", "sd", 4, **choices), 8, random_edges(8, 12)))
        )
    assert not torch.equal(*seen)


def test_class_activation_matters_for_labels_only():
    def attention(multi_label: bool, activation: str) -> Tensor:
        torch.manual_seed(0)
        choices = small("deepgat", "paper", "dp", 2, class_activation=activation)
        return Case(choices, 8, random_edges(8, 12), multi_label).run().attention[0].weight

    assert torch.equal(attention(False, "by-task"), attention(False, "softmax"))
    assert not torch.equal(attention(True, "by-task"), attention(True, "softmax"))


def test_gat_with_additive_scores_equals_pyg_gatconv():
    x, edge_index = torch.randn(20, 7, dtype=torch.double), random_edges(20, 40).unique(dim=1)
    ours = NeighborAttention(7, 4, 3, score=AdditiveScore).double()
    theirs = GATConv(7, 4, heads=3).double()
    ours.bias.data.normal_()
    theirs.lin.weight.data = ours.weight.data
    theirs.att_dst.data = ours.score.target.data.unsqueeze(0)
    theirs.att_src.data = ours.score.source.data.unsqueeze(0)
    theirs.bias.data = ours.bias.data
    out, (edges, weight) = ours(x, edge_index, return_attention_weights=True)
    expected, (their_edges, their_weight) = theirs(x, edge_index, return_attention_weights=True)
    torch.testing.assert_close(out, expected, **TOLERANCE)
    order = torch.argsort(their_edges[1] * 20 + their_edges[0])
    assert torch.equal(their_edges[:, order], edges)
    torch.testing.assert_close(weight, their_weight[order], **TOLERANCE)


def test_symmetric_gcn_equals_pyg_gcnconv():
    x, edge_index = torch.randn(20, 7, dtype=torch.double), random_edges(20, 40).unique(dim=1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    ours = NeighborAttention(
        7, 4, score=UniformScore, normalization=Normalization.SYMMETRIC
    ).double()
    theirs = GCNConv(7, 4).double()
    theirs.lin.weight.data = ours.weight.data
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index), **TOLERANCE)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("model", "score"), SYSTEMS)
def test_renumbering_the_nodes_permutes_the_outputs_and_nothing_else(model, score, preset):
    n = 10
    case = Case(small(model, preset, score, 3), n, random_edges(n, 15))
    order = torch.randperm(n)
    place = torch.empty_like(order)
    place[order] = torch.arange(n)
    labels = case.y if case.model.needs_labels else None
    before = case.model.run(case.x, case.edge_index, case.label_features, labels)
    after = case.model.run(
        case.x[order],
        place[case.edge_index],
        None if case.label_features is None else case.label_features[order],
        None if labels is None else labels[order],
    )
    for layer, logits in before.layer_logits.items():
        torch.testing.assert_close(after.layer_logits[layer], logits[order], **TOLERANCE)


@pytest.mark.parametrize("preset", PRESETS)
def test_sparse_features_give_what_dense_ones_give(preset):
    x = torch.randn(9, 6, dtype=torch.double) * (torch.rand(9, 6) < 0.4)
    edge_index = random_edges(9, 14)
    model = DeepGAT(6, 3, 3, preset=preset).double().eval()
    z = torch.rand(9, 3, 3, dtype=torch.double)
    gradients = []
    for features in (x, x.to_sparse_csr(), x.to_sparse_coo()):
        logits = model(features, edge_index, z)
        gradients.append(
            [
                logits,
                *torch.autograd.grad(logits.square().sum(), model.parameters(), allow_unused=True),
            ]
        )
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            if a is not None:
                torch.testing.assert_close(a, b, **TOLERANCE)


def test_prepared_neighbors_give_what_edge_index_gives():
    x, edge_index = torch.randn(9, 5), random_edges(9, 14)
    model = GAT(5, 3, 2)
    prepared = Neighbors.from_edge_index(edge_index, 9)
    assert torch.equal(model(x, edge_index), model(x, prepared))


def test_dropout_acts_in_training_only():
    x, edge_index = torch.randn(9, 5), random_edges(9, 14)
    for choice in ({"dropout": 0.5}, {"attention_dropout": 0.5}):
        model = DeepGAT(5, 3, 2, **choice)
        assert not torch.equal(model(x, edge_index), model(x, edge_index))
        model.eval()
        assert torch.equal(model(x, edge_index), model(x, edge_index))


def test_a_stack_takes_scores_as_values():
    model = AttentionStack(5, 3, layers=2, score=UniformScore)
    assert model(torch.randn(9, 5), random_edges(9, 14)).shape == (9, 3)


def test_readable_errors():
    x, edge_index = torch.randn(4, 5), random_edges(4, 6)
    with pytest.raises(UserError, match="made for 6 features"):
        GAT(6, 3)(x, edge_index)
    with pytest.raises(UserError, match="node numbers run from 0 to 3"):
        GAT(5, 3)(x, edge_index + 1)
    with pytest.raises(UserError, match=r"expected \[2, number of edges\]"):
        GAT(5, 3)(x, edge_index.t())
    with pytest.raises(UserError, match="num_classes"):
        NeighborAttention(5, 3)
    with pytest.raises(UserError, match="labels=y"):
        build_model(model_settings("oracle"), 5, 3)(x, edge_index)
    with pytest.raises(UserError, match="PropagateLabels"):
        DeepGAT(5, 3, 2)(x, edge_index, torch.zeros(4, 1, 3))
    with pytest.raises(UserError, match="are for 4 nodes but x has 3 rows"):
        GAT(5, 3)(x[:3], Neighbors.from_edge_index(edge_index, 4))


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"layers": 0}, "layers is 0: expected 1 or more"),
        ({"heads": -1}, "heads is -1"),
        ({"dropout": 1.0}, "below 1"),
        ({"model": "gatt"}, "did you mean 'gat'"),
        ({"preset": "author"}, "did you mean 'authors'"),
        ({"score": "ad"}, "unknown score for deepgat 'ad'"),
        ({"norm": "layers"}, "did you mean 'layer'"),
        ({"label_hop": 2}, "did you mean 'label_hops'"),
        ({"layers": 2.5}, "expected a value of type int"),
        ({"bias": 1}, "expected a value of type bool"),
        ({"delta": -1.0}, "delta"),
        ({"label_hops": -1}, "label_hops"),
    ],
)
def test_settings_refuse_nonsense(choices, sentence):
    with pytest.raises(UserError, match=sentence):
        model_settings(**choices)


def test_unit_features_are_features_divided_by_their_sum():
    x, edge_index = torch.rand(9, 5) * (torch.rand(9, 5) < 0.7), random_edges(9, 14)
    x[0] = 0.0
    torch.manual_seed(0)
    scaled = DeepGAT(5, 3, 2, unit_features=True).eval()
    torch.manual_seed(0)
    plain = DeepGAT(5, 3, 2).eval()
    by_hand = x / x.sum(1, keepdim=True).clamp(min=1e-12)
    expected = plain(by_hand, edge_index)
    torch.testing.assert_close(scaled(x, edge_index), expected)
    torch.testing.assert_close(scaled(x.to_sparse_csr(), edge_index), expected)
    assert not torch.allclose(plain(x, edge_index), expected)
