"""DeepGAT, GAT and the oracle against the transcription: outputs, attention, loss, gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv

from deepgat.data import propagate_labels
from deepgat.errors import UserError
from deepgat.models import GAT, SYSTEMS, DeepGAT, Oracle, build_network
from deepgat.models.config import Config
from deepgat.nn import AdditiveScore, ClassScore, NeighborAttention, UniformScore
from deepgat.ops import Neighbors, Normalization
from deepgat.training.recipes import recipe
from networks import PAPER_SCORES, settings_of

import transcription
from graphs import AWKWARD, graphs, random_edges

D_IN, CLASSES, HIDDEN, HEADS = 5, 3, 4, 2
PRESETS = ("paper", "authors")
SCORED = [(system, score) for system, scores in PAPER_SCORES.items() for score in scores]
TOLERANCE = {"rtol": 0, "atol": 1e-10}


IMPLIED = {
    "deepgat": {},
    "gat": {"label_hops": 0, "label_input": "prediction", "first_labels": "zero",
            "class_activation": "softmax", "delta": 0.4, "loss_layers": "from-1"},
    "oracle": {"sd_scale": "width", "class_activation": "by-task"},
}  # fmt: skip
"""What the transcription asks for and a system has no setting of: it changes nothing there."""


class Case:
    """A model, its inputs, and the same thing for the transcription."""

    def __init__(
        self,
        system: str,
        config: Config,
        n: int,
        edge_index: Tensor,
        multi_label: bool = False,
    ) -> None:
        self.system, self.n, self.edge_index = system, n, edge_index
        self.settings = {**IMPLIED[system], **config.to_dict()}
        self.multi_label = multi_label
        made = build_network(system, config, D_IN, CLASSES, multi_label=multi_label)
        self.model = made.double().eval()
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
                edge_index, self.one_hot, n, self.settings["label_hops"], self.model.first_labels
            )

    def run(self):
        labels = self.y if self.model.needs_labels else None
        return self.model.run(
            self.x, self.edge_index, self.label_features, labels, with_attention=True
        )

    def transcribed(self) -> transcription.Result:
        s = self.settings
        sigmoid = self.multi_label and s["class_activation"] == "by-task"
        options = transcription.Options(
            model=self.system,
            score=s["score"],
            sd_scale=s["sd_scale"],
            label_input=s["label_input"],
            label_hops=s["label_hops"],
            first_labels=s["first_labels"],
            class_activation="sigmoid" if sigmoid else "softmax",
            output_activation=s["output_activation"],
            heads_in=[1] + [s["heads"]] * (s["num_layers"] - 1),
        )
        pairs = zip(self.model.convs, self.model.norms, strict=True)
        layers = [self.parameters_of(conv, norm) for conv, norm in pairs]
        labels = self.y if self.system == "oracle" else None
        return transcription.run(self.x, self.edge_index, layers, options, self.one_hot, labels)

    def parameters_of(self, conv, norm) -> transcription.LayerParams:
        per_head = (conv.heads, -1)
        additive = isinstance(conv.score, AdditiveScore)
        norm = norm if isinstance(norm, torch.nn.LayerNorm) else None
        skip = conv.res
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
            self.settings["delta"],
            terms=self.settings["loss_layers"],
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


def small(system: str, preset: str, score: str, layers: int, **choices) -> tuple[str, Config]:
    sizes = {"num_layers": layers, "hidden_channels": HIDDEN, "heads": HEADS}
    plain = {"dropout": 0.0, "unit_features": False}
    return system, settings_of(system, preset, score=score, **sizes, **plain, **choices)


@pytest.mark.parametrize(("layers", "multi_label"), [(1, False), (2, True), (5, False), (5, True)])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("system", "score"), SCORED)
def test_equals_the_transcription(system, score, preset, layers, multi_label):
    case = Case(*small(system, preset, score, layers), 9, random_edges(9, 14), multi_label)
    assert_same(case)


@pytest.mark.parametrize("layers", [1, 3])
def test_gat_as_published_equals_the_transcription(layers):
    assert_same(Case(*small("gat", "published", "ad", layers), 9, random_edges(9, 14)))


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("system", "score"), SCORED)
def test_equals_the_transcription_on_awkward_graphs(system, score, preset, name):
    n, edge_index = AWKWARD[name]
    assert_same(Case(*small(system, preset, score, 3), n, edge_index))


@pytest.mark.slow
@settings(max_examples=40)
@given(
    graph=graphs(),
    scored=st.sampled_from(SCORED),
    preset=st.sampled_from(PRESETS),
    layers=st.integers(1, 4),
    multi_label=st.booleans(),
)
def test_equals_the_transcription_on_any_graph(graph, scored, preset, layers, multi_label):
    system, score = scored
    assert_same(Case(*small(system, preset, score, layers), *graph, multi_label))


CHOICES = [
    {"label_input": "layer"},
    {"first_labels": "neighbor-counts"},
    {"loss_layers": "from-0"},
    {"sd_scale": "sqrt-output-width"},
    {"norm": "layer"},
    {"bias": True},
    {"output_activation": False},
    {"residual": "linear"},
    {"output_heads": 3},
    {"label_hops": 0},
    {"label_hops": 5},
    {"delta": 2.0},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("score", ["dp", "sd"])
def test_every_choice_of_the_ledger_by_itself(score, choice):
    assert_same(Case(*small("deepgat", "paper", score, 4, **choice), 8, random_edges(8, 12)))


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
            observe(Case(*small("deepgat", "paper", "sd", 4, **choices), 8, random_edges(8, 12)))
        )
    assert not torch.equal(*seen)


def test_class_activation_matters_for_labels_only():
    def attention(multi_label: bool, activation: str) -> Tensor:
        torch.manual_seed(0)
        choices = small("deepgat", "paper", "dp", 2, class_activation=activation)
        return Case(*choices, 8, random_edges(8, 12), multi_label).run().attention[0].weight

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
@pytest.mark.parametrize(("system", "score"), SCORED)
def test_renumbering_the_nodes_permutes_the_outputs_and_nothing_else(system, score, preset):
    n = 10
    case = Case(*small(system, preset, score, 3), n, random_edges(n, 15))
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
    choices = {**SYSTEMS["deepgat"].presets[preset], "unit_features": False}
    model = DeepGAT(6, 8, 3, 3, **choices).double().eval()
    z = torch.rand(9, 3, 3, dtype=torch.double)
    gradients = []
    for features in (x, x.to_sparse_csr(), x.to_sparse_coo()):
        logits = model(features, edge_index, label_features=z)
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
    model = GAT(5, 8, 2, 3).eval()
    prepared = Neighbors.from_edge_index(edge_index, 9)
    assert torch.equal(model(x, edge_index), model(x, prepared))


def test_dropout_acts_in_training_only():
    x, edge_index = torch.randn(9, 5), random_edges(9, 14)
    for choice in ({"dropout": 0.5}, {"attention_dropout": 0.5}):
        model = DeepGAT(5, 8, 2, 3, **choice)
        assert not torch.equal(model(x, edge_index), model(x, edge_index))
        model.eval()
        assert torch.equal(model(x, edge_index), model(x, edge_index))


def test_readable_errors():
    x, edge_index = torch.randn(4, 5), random_edges(4, 6)
    gat = GAT(5, 8, 2, 3)
    with pytest.raises(UserError, match="made for 6 features"):
        GAT(6, 8, 2, 3)(x, edge_index)
    with pytest.raises(UserError, match="node numbers run from 0 to 3"):
        gat(x, edge_index + 1)
    with pytest.raises(UserError, match=r"expected \[2, number of edges\]"):
        gat(x, edge_index.t())
    with pytest.raises(UserError, match="num_classes"):
        NeighborAttention(5, 3, score=ClassScore)
    with pytest.raises(UserError, match="labels=y"):
        Oracle(5, 8, 2, 3)(x, edge_index)
    with pytest.raises(UserError, match="PropagateLabels"):
        DeepGAT(5, 8, 2, 3)(x, edge_index, label_features=torch.zeros(4, 1, 3))
    with pytest.raises(UserError, match="are for 4 nodes but x has 3 rows"):
        gat(x[:3], Neighbors.from_edge_index(edge_index, 4))


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"num_layers": 0}, "num_layers is 0: expected 1 or more"),
        ({"heads": -1}, "heads is -1"),
        ({"dropout": 1.0}, "below 1"),
        ({"score": "ad"}, "unknown score 'ad'"),
        ({"norm": "layers"}, "did you mean 'layer'"),
        ({"label_hop": 2}, "unknown setting of DeepGAT 'label_hop': did you mean 'label_hops'"),
        ({"num_layers": 2.5}, "expected a value of type int"),
        ({"bias": 1}, "expected a value of type bool"),
        ({"delta": -1.0}, "delta"),
        ({"label_hops": -1}, "label_hops"),
    ],
)
def test_settings_refuse_nonsense(choices, sentence):
    with pytest.raises(UserError, match=sentence):
        DeepGAT(**{"in_channels": 5, "hidden_channels": 8, "num_layers": 2, "out_channels": 3}
                | choices)  # fmt: skip


def test_systems_and_presets_refuse_misspelt_names():
    with pytest.raises(UserError, match="did you mean 'gat'"):
        recipe("gatt")
    with pytest.raises(UserError, match="did you mean 'authors'"):
        recipe("deepgat", preset="author")


def test_unit_features_are_features_divided_by_their_sum():
    x, edge_index = torch.rand(9, 5) * (torch.rand(9, 5) < 0.7), random_edges(9, 14)
    x[0] = 0.0
    torch.manual_seed(0)
    scaled = DeepGAT(5, 8, 2, 3, unit_features=True).eval()
    torch.manual_seed(0)
    plain = DeepGAT(5, 8, 2, 3).eval()
    by_hand = x / x.sum(1, keepdim=True).clamp(min=1e-12)
    expected = plain(by_hand, edge_index)
    torch.testing.assert_close(scaled(x, edge_index), expected)
    torch.testing.assert_close(scaled(x.to_sparse_csr(), edge_index), expected)
    assert not torch.allclose(plain(x, edge_index), expected)
