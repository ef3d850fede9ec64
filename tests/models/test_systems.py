"""Every other system against its literal transcription: outputs, loss and all gradients."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.nn import APPNP, GCN2Conv, JumpingKnowledge, PairNorm, SAGEConv

import systems
from deepgat.errors import UserError
from deepgat.models import G2, GCNII, SYSTEMS, ConvStack, Deep, Network, PreNorm
from deepgat.models.registry import LABEL_PROPAGATION
from deepgat.nn import NeighborAttention
from deepgat.nn.conv_output import ConvOutput
from deepgat.nn.losses import ViewsLoss
from deepgat.ops.deterministic import lerp
from deepgat.training.recipes import recipe
from networks import ORACLES, network

import transcription
from graphs import AWKWARD, graphs, random_edges, undirected

D_IN, CLASSES, WIDTH = 5, 3, 4
TOLERANCE = {"rtol": 0, "atol": 1e-10}
SIZES = {"dropout": 0.0, "hidden_channels": WIDTH}
TRAINED = [name for name in SYSTEMS if name not in (LABEL_PROPAGATION, *ORACLES)]

Literal = Callable[[Tensor, transcription.Neighbours, systems.Weights, int], tuple]


def class_logits(w, name, h):
    """W₁ h, and b₁ where there is one; one head."""
    p, bias = h @ w[f"{name}.class_weight"].t(), w.get(f"{name}.class_bias")
    return p if bias is None else p + bias[0]


def deep_literal(
    tau=3.0,
    first=1,
    rows=False,
    detach=True,
    far=0.2,
    depth=0,
    loss="output-and-layers",
    right=None,
):
    """Class attention inside GCNII; with ``right``, a share of true classes takes q's place."""

    def run(x, nbrs, w, layers):
        def attention(number, h):
            p = class_logits(w, f"convs.{number - 1}", h)
            if systems.place(number, layers, depth) < first:
                return systems.class_attention(nbrs, torch.zeros_like(p), 0.0, rows)
            if right is None:
                q = systems.softmax_rows(p.detach() if detach else p)
            else:
                q = systems.given_classes(w["labels"], int(w["seed"]), right, CLASSES)
            return systems.class_attention(nbrs, q, tau, rows)

        out, states = systems.gcnii(x, nbrs, w, layers, far, 0.5, attention, depth)
        before = {i: class_logits(w, f"convs.{i}", h) for i, h in enumerate(states[:-1])}
        return out, states, before, loss

    return run


def g2_literal(conv, p=2.5, mean=True, own=False):
    def run(x, nbrs, w, layers):
        out, states = systems.g2(x, nbrs, w, layers, p, mean, conv(nbrs, w), own)
        if "conv.class_weight" not in w:
            return out, states
        before = {i: class_logits(w, "conv", h) for i, h in enumerate(states[:-1])}
        return out, states, before, "every-layer"

    return run


def conv_stack_literal(conv):
    """h^l = σ(conv(h^(l-1))), then the linear readout."""

    def run(x, nbrs, w, layers):
        h, states, before = x, [], {}
        for number in range(layers):
            if f"convs.{number}.class_weight" in w:
                before[number] = class_logits(w, f"convs.{number}", h)
            h = systems.relu(conv(nbrs, w)(f"convs.{number}", h))
            states.append(h)
        return systems.affine(h, w, "classifier"), states, before, "every-layer"

    return run


def gcn_literal(**options):
    return lambda x, nbrs, w, layers: systems.gcn(x, systems.symmetric(nbrs), w, layers, **options)


def normed_features(scale):
    """PairNorm of the features, h^0, before a plain stack."""

    def run(x, nbrs, w, layers):
        first = systems.pair_norm(x, scale, False)
        out, states = systems.gcn(first, systems.symmetric(nbrs), w, layers)
        return out, [first, *states]

    return run


def prenorm_literal(conv, norm=lambda x, w: x):
    """``conv(nbrs, w)`` gives the neighbours' share; ``norm`` is that of the features."""

    def run(x, nbrs, w, layers):
        out, states, inputs = systems.prenorm(norm(x, w), w, layers, conv(nbrs, w))
        if "convs.0.class_weight" not in w:
            return out, states
        before = {i: class_logits(w, f"convs.{i}", nu) for i, nu in enumerate(inputs)}
        return out, states, before, "output-and-layers"

    return run


def sage_share(nbrs, w):
    return systems.propagated(systems.mean_of_others(nbrs), w)


def class_share(nbrs, w):
    """Deep's attention: sharpness 3, over rows, no gradient to the class predictions."""

    def conv(name, h):
        q = systems.softmax_rows(class_logits(w, name, h).detach())
        return systems.propagated(systems.class_attention(nbrs, q, 3.0, rows=True), w)(name, h)

    return conv


def unseen(x, w, name="input_norm", eps=1e-5):
    """Batch norm before any training: mean 0, deviation 1."""
    return x / (1 + eps) ** 0.5 * w[f"{name}.weight"] + w[f"{name}.bias"]


def uneven(x, w, name):
    """The same with a large ε for the features, the usual one for the hidden layer."""
    return unseen(x, w, name, 0.5 if name == "input_norm" else 1e-5)


def grand_literal(norm=None, literal=systems.grand):
    def run(x, nbrs, w, layers):
        normed = (lambda h, name: h) if norm is None else (lambda h, name: norm(h, w, name))
        return *literal(x, nbrs, w, layers, normed), {}, "views"

    return run


def row_normalised(nbrs):
    return systems.dense(nbrs, lambda v, u: 1 / len(nbrs[v]))


def identity_matrix(nbrs):
    return torch.eye(len(nbrs), dtype=torch.double)


CASES: dict[str, tuple[dict, Literal]] = {
    "gcnii": (
        {"system": "gcnii"},
        lambda x, nbrs, w, layers: systems.gcnii(x, nbrs, w, layers, 0.1, 0.5),
    ),
    "gcnii, other α and θ": (
        {"system": "gcnii", "alpha": 0.3, "theta": 1.5},
        lambda x, nbrs, w, layers: systems.gcnii(x, nbrs, w, layers, 0.3, 1.5),
    ),
    "g2 sage": ({"system": "g2"}, g2_literal(systems.sage_conv)),
    "g2 gcn": ({"system": "g2", "conv": "gcn"}, g2_literal(systems.gcn_conv)),
    "g2 gat": ({"system": "g2", "conv": "gat"}, g2_literal(systems.gat_conv)),
    "g2 deepgat": ({"system": "g2", "conv": "deepgat"}, g2_literal(systems.deepgat_conv)),
    "g2 sum, p=1, own layer": (
        {"system": "g2", "reduction": "sum", "power": 1.0, "gate_conv": "own"},
        g2_literal(systems.sage_conv, p=1.0, mean=False, own=True),
    ),
    "appnp": (
        {"system": "appnp"},
        lambda x, nbrs, w, layers: systems.appnp(x, nbrs, w, layers, 0.1),
    ),
    "dagnn": ({"system": "dagnn"}, systems.dagnn),
    "grand": ({"system": "grand"}, grand_literal()),
    "grand, normalised": ({"system": "grand", "norm": "batch"}, grand_literal(unseen)),
    "grand, normalised with another ε": (
        {"system": "grand", "norm": "batch", "norm_eps": 0.5},
        grand_literal(uneven),
    ),
    "grand, projected first": (
        {"system": "grand", "project_first": True},
        grand_literal(literal=systems.grand_projected),
    ),
    "grand, projected first and normalised": (
        {"system": "grand", "project_first": True, "norm": "batch"},
        grand_literal(unseen, systems.grand_projected),
    ),
    "gcn": ({"system": "gcn"}, gcn_literal()),
    "gcn over rows": (
        {"system": "gcn", "normalization": "row"},
        lambda x, nbrs, w, layers: systems.gcn(x, row_normalised(nbrs), w, layers),
    ),
    "residual": ({"system": "residual"}, gcn_literal(residual=True)),
    "pairnorm-si": (
        {"system": "pairnorm", "norm_scale": 1.5},
        gcn_literal(norm=lambda h: systems.pair_norm(h, 1.5, True)),
    ),
    "pairnorm": (
        {"system": "pairnorm", "norm": "pairnorm", "norm_scale": 0.7},
        gcn_literal(norm=lambda h: systems.pair_norm(h, 0.7, False)),
    ),
    "pairnorm-input": (
        {"system": "pairnorm-input", "norm_scale": 2.0},
        normed_features(2.0),
    ),
    "mlp": (
        {"system": "mlp"},
        lambda x, nbrs, w, layers: systems.gcn(x, identity_matrix(nbrs), w, layers, name="lins"),
    ),
    "jk cat": ({"system": "jk"}, gcn_literal(jump=lambda hs: torch.cat(hs, 1))),
    "jk max": (
        {"system": "jk", "mode": "max"},
        gcn_literal(jump=lambda hs: torch.stack(hs).amax(0)),
    ),
    "sage": ({"system": "sage"}, systems.sage),
    "deep": ({"system": "deep"}, deep_literal(first=4)),
    "deep from the first layer on": (
        {"system": "deep", "attention_from": 1},
        deep_literal(),
    ),
    "deep from the second layer on, other α and τ": (
        {"system": "deep", "attention_from": 2, "alpha": 0.3, "sharpness": 1.5},
        deep_literal(tau=1.5, first=2, far=0.3),
    ),
    "deep in smaller steps": (
        {"system": "deep", "attention_from": 2, "step_depth": 3},
        deep_literal(first=2, depth=3),
    ),
    "deep in the smallest steps": (
        {"system": "deep", "attention_from": 1, "step_depth": 1},
        deep_literal(depth=1),
    ),
    "deep-oracle": ({"system": "deep-oracle"}, deep_literal(first=4, right=1.0)),
    "deep-oracle, some classes wrong": (
        {"system": "deep-oracle", "attention_from": 2, "right": 0.6, "sharpness": 1.5},
        deep_literal(tau=1.5, first=2, right=0.6),
    ),
    "deep-oracle in smaller steps, most classes wrong": (
        {"system": "deep-oracle", "attention_from": 1, "right": 0.1, "step_depth": 2},
        deep_literal(depth=2, right=0.1),
    ),
    "deepgat in gcnii": (
        {"system": "gcnii", "conv": "deepgat"},
        deep_literal(1.0, rows=True, detach=False, far=0.1, loss="every-layer"),
    ),
    "gat in gcnii": (
        {"system": "gcnii", "conv": "gat"},
        lambda x, nbrs, w, layers: systems.gcnii(
            x,
            nbrs,
            w,
            layers,
            0.1,
            0.5,
            lambda layer, h: systems.additive_attention(
                nbrs,
                h,
                w[f"convs.{layer - 1}.score.target"][0],
                w[f"convs.{layer - 1}.score.source"][0],
            ),
        ),
    ),
    "prenorm": ({"system": "prenorm"}, prenorm_literal(sage_share)),
    "prenorm gcn": (
        {"system": "prenorm", "conv": "gcn"},
        prenorm_literal(lambda nbrs, w: systems.propagated(systems.symmetric(nbrs), w)),
    ),
    "prenorm gat, two heads": (
        {"system": "prenorm", "conv": "gat", "heads": 2},
        prenorm_literal(systems.two_heads),
    ),
    "prenorm deepgat": ({"system": "prenorm", "conv": "deepgat"}, prenorm_literal(class_share)),
    "prenorm, normalised features": (
        {"system": "prenorm", "input_norm": "batch"},
        prenorm_literal(sage_share, unseen),
    ),
    **{
        f"{conv} in a stack": ({"system": ConvStack, "conv": conv, "norm": "none"}, literal)
        for conv, literal in {
            "gcn": conv_stack_literal(systems.gcn_conv),
            "gat": conv_stack_literal(systems.gat_conv),
            "sage": conv_stack_literal(systems.sage_conv),
            "deepgat": conv_stack_literal(systems.deepgat_conv),
        }.items()
    },
}
"""Name → (system and settings, transcription)."""


def made(choices: dict) -> Network:
    """The network of a case; dropout off, whatever its settings call it."""
    system = choices["system"]
    kinds = (SYSTEMS[system].network if isinstance(system, str) else system).Config.kinds()
    chosen = {name: value for name, value in choices.items() if name in kinds}
    assert {*choices} - {*chosen} <= {"system", "dropout"}
    if isinstance(system, str):
        return network(system, D_IN, CLASSES, **chosen)
    return system(in_channels=D_IN, out_channels=CLASSES, **chosen)


class Case:
    """A model, its inputs, and what the transcription makes of them."""

    def __init__(self, name: str, n: int, edge_index: Tensor, layers: int = 3) -> None:
        choices, self.literal = CASES[name]
        self.model = made({**SIZES, "num_layers": layers, **choices}).double().eval()
        for parameter in self.model.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
        self.edge_index, self.layers = edge_index, layers
        self.x = torch.randn(n, D_IN, dtype=torch.double)
        self.y = torch.randint(CLASSES, (n,))
        self.mask = torch.rand(n) < 0.6
        self.mask[0] = True
        self.labels = self.y if self.model.needs_labels else None

    def transcribed(self) -> tuple[Tensor, list[Tensor], dict[int, Tensor], str]:
        weights = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        weights["labels"] = self.labels
        nbrs = transcription.neighbours(self.edge_index, len(self.x))
        found = self.literal(self.x, nbrs, weights, self.layers)
        return found if len(found) == 4 else (*found, {}, "output")

    def literal_loss(self, logits: Tensor, before: dict[int, Tensor], kind: str) -> Tensor:
        nodes = self.mask.nonzero().view(-1).tolist()
        loss = transcription.cross_entropy(logits, self.y, nodes)
        if kind == "views":  # of which there is one
            return loss + systems.disagreement([logits], 0.5)
        if not before:
            return loss
        if kind == "every-layer":  # Algorithm 1's
            result = transcription.Result(
                logits, {**before, self.layers: logits}, [], [], "deepgat"
            )
            return transcription.loss(result, self.y, self.mask, 0.4, terms="from-1")
        gammas = [transcription.gamma(layer, 0.4) for layer in before]
        for gamma, p in zip(gammas, before.values(), strict=True):
            term = transcription.cross_entropy(p, self.y, nodes)
            loss = loss + 0.3 * gamma / sum(gammas) * term
        return loss


def assert_same(case: Case) -> None:
    ours = case.model.run(case.x, case.edge_index, labels=case.labels)
    logits, states, before, kind = case.transcribed()
    torch.testing.assert_close(ours.logits, logits, **TOLERANCE)
    mine = ours.hidden if ours.initial is None else [ours.initial, *ours.hidden]
    for a, b in zip(mine, states, strict=True):
        torch.testing.assert_close(a, b, **TOLERANCE)
    for layer, p in before.items():
        torch.testing.assert_close(ours.layer_logits[layer], p, **TOLERANCE)
    assert torch.equal(ours.layer_logits[case.layers], ours.logits)

    my_loss = case.model.loss(ours.layer_logits, case.y, case.mask.nonzero().squeeze(1))
    literal_loss = case.literal_loss(logits, before, kind)
    torch.testing.assert_close(my_loss, literal_loss, **TOLERANCE)
    parameters = dict(case.model.named_parameters())
    got = torch.autograd.grad(my_loss, list(parameters.values()), allow_unused=True)
    want = torch.autograd.grad(literal_loss, list(parameters.values()), allow_unused=True)
    for name, a, b in zip(parameters, got, want, strict=True):
        zero = torch.zeros_like(parameters[name])
        torch.testing.assert_close(
            zero if a is None else a,
            zero if b is None else b,
            **TOLERANCE,
            msg=lambda text, name=name: f"gradient of {name}: {text}",
        )


@pytest.mark.parametrize("layers", [1, 5])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_transcription(name, layers):
    assert_same(Case(name, 9, random_edges(9, 14), layers))


@pytest.mark.parametrize("graph", AWKWARD)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_transcription_on_awkward_graphs(name, graph):
    assert_same(Case(name, *AWKWARD[graph]))


@pytest.mark.slow
@settings(max_examples=25)
@given(graph=graphs(), name=st.sampled_from(sorted(CASES)), layers=st.integers(1, 4))
def test_equals_the_transcription_on_any_graph(graph, name, layers):
    assert_same(Case(name, *graph, layers))


@pytest.mark.parametrize("layers", [1, 4])
def test_features_are_normalised_over_the_nodes_in_training(layers):
    case = Case("prenorm, normalised features", 9, random_edges(9, 14), layers)
    case.literal = prenorm_literal(sage_share, lambda x, w: systems.batch_norm(x, w, "input_norm"))
    case.model.train()
    assert_same(case)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("first", [False, True])
def test_grands_draws_agree_where_nothing_is_dropped(views, first):
    """In training, with batch norm over the nodes; draws that are all alike are as one."""
    case = Case("grand, normalised", 9, random_edges(9, 14))
    off = {"input_dropout": 0.0, "node_dropout": 0.0, "dropout": 0.0, "views": views}
    own = {"system": "grand", "norm": "batch", "project_first": first, **off}
    case.model = made({**SIZES, "num_layers": 3, **own}).double().train()
    literal = systems.grand_projected if first else systems.grand
    case.literal = grand_literal(systems.batch_norm, literal)
    assert_same(case)


def test_grand_may_multiply_before_or_after_the_hops():
    x, edge_index = double(30, D_IN), random_edges(30, 60)
    after, first = (built("grand", project_first=chosen) for chosen in (False, True))
    first.load_state_dict(after.state_dict())
    torch.testing.assert_close(first(x, edge_index), after(x, edge_index), **TOLERANCE)
    wide = first.run(x, edge_index).hidden[-1]
    assert wide.shape == (30, first.hidden_channels)


def test_grand_that_multiplies_first_drops_features_before_they_spread():
    x, edge_index = torch.ones(4000, 1), torch.tensor([[0], [1]])
    choices = {"input_dropout": 0.25, "node_dropout": 0.0, "project_first": True}
    model = network("grand", 1, CLASSES, num_layers=1, unit_features=False, **choices).train()
    h = model.run(x, edge_index).initial
    gone = (h == 0).all(1)
    assert 0.2 < gone.float().mean() < 0.3
    expected = (model.lin1.weight[:, 0] / 2 / 0.75).expand_as(h[~gone])
    torch.testing.assert_close(h[~gone], expected)


@given(views=st.integers(1, 4), classes=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_loss_of_several_draws_is_the_papers(views, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(views, 6, classes, dtype=torch.double, generator=generator)
    logits = [view.requires_grad_() for view in drawn]
    y, nodes = torch.randint(classes, (6,), generator=generator), [0, 2, 5]
    mine = ViewsLoss(0.7, 0.3)(dict(enumerate(logits)), y, torch.tensor(nodes))
    literal = 0.7 * systems.disagreement(logits, 0.3)
    for view in logits:
        literal = literal + transcription.cross_entropy(view, y, nodes) / views
    torch.testing.assert_close(mine, literal, **TOLERANCE)
    for a, b in zip(
        torch.autograd.grad(mine, logits), torch.autograd.grad(literal, logits), strict=True
    ):
        torch.testing.assert_close(a, b, **TOLERANCE)


def test_a_draw_of_grand_drops_whole_nodes_and_keeps_the_mean():
    x, edge_index = torch.rand(2000, D_IN) + 0.1, random_edges(2000, 10)
    model = network("grand", D_IN, CLASSES, num_layers=1, node_dropout=0.25).train()
    h = model.run(x, edge_index).initial
    gone = (h == 0).all(1)
    assert 0.2 < gone.float().mean() < 0.3
    mean = x / x.sum(1, keepdim=True) / 2
    torch.testing.assert_close(h[~gone], mean[~gone] / 0.75)
    outputs = model.run(x, edge_index)
    draws = [outputs.layer_logits[number] for number in sorted(outputs.layer_logits)]
    assert len(draws) == 4
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(draws))


# --------------------------------------------------------------------------- against PyG's classes


def double(n: int, width: int) -> Tensor:
    return torch.randn(n, width, dtype=torch.double)


def proper_edges(n: int = 20, count: int = 40) -> Tensor:
    """Undirected, no loops, no repeats: there PyG's conventions are ours."""
    edge_index = random_edges(n, count).unique(dim=1)
    return edge_index[:, edge_index[0] != edge_index[1]]


def built(system: str, **choices) -> Network:
    choices = {"hidden_channels": 8, "num_layers": 4, **choices}
    ours = network(system, D_IN, CLASSES, **choices).double().eval()
    for parameter in ours.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return ours


def test_gcnii_is_pygs_gcn2conv():
    ours, x, edge_index = built("gcnii"), double(20, D_IN), proper_edges()
    h = h0 = ours.encoder(x).relu()
    for number, identity_map in enumerate(ours.maps, start=1):
        theirs = GCN2Conv(8, alpha=0.1, theta=0.5, layer=number).double()
        theirs.weight1.data = identity_map.weight.data
        h = theirs(h, h0, edge_index).relu()
    torch.testing.assert_close(ours(x, edge_index), ours.classifier(h), rtol=0, atol=1e-10)


def test_appnp_is_pygs():
    ours, x, edge_index = built("appnp", num_layers=10), double(20, D_IN), proper_edges()
    theirs = APPNP(K=10, alpha=0.1)
    torch.testing.assert_close(
        ours(x, edge_index), theirs(ours.encode(x), edge_index), rtol=0, atol=1e-10
    )


def test_sage_is_pygs():
    ours, x, edge_index = built("sage"), double(24, D_IN), proper_edges()
    h = x  # nodes 20 to 23 have no neighbours
    for number, conv in enumerate(ours.convs, start=1):
        theirs = SAGEConv(*conv.weight.shape[::-1]).double()
        theirs.lin_l.weight.data = conv.weight.data
        theirs.lin_l.bias.data = conv.res.bias.data
        theirs.lin_r.weight.data = conv.res.weight.data
        h = theirs(h, edge_index)
        h = h if number == len(ours.convs) else h.relu()
    torch.testing.assert_close(ours(x, edge_index), h, rtol=0, atol=1e-10)


@pytest.mark.parametrize("individually", [False, True])
def test_pairnorm_is_pygs_in_every_hidden_layer(individually):
    ours = built("pairnorm", norm="pairnorm-si" if individually else "pairnorm")
    x, edge_index = double(20, D_IN), proper_edges()
    norm, h = PairNorm(scale_individually=individually), x
    for number, conv in enumerate(ours.convs, start=1):
        h = conv(h, edge_index)
        h = h if number == len(ours.convs) else norm(h).relu()
    torch.testing.assert_close(ours(x, edge_index), h, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mode", ["cat", "max", "lstm"])
def test_jumping_knowledge_is_pygs(mode):
    ours, x, edge_index = built("jk", mode=mode), double(20, D_IN), proper_edges()
    outputs = ours.run(x, edge_index)
    theirs = JumpingKnowledge(mode, 8, 4).double()
    theirs.load_state_dict(ours.jump.state_dict())
    expected = ours.classifier(theirs(outputs.hidden))
    torch.testing.assert_close(outputs.logits, expected, rtol=0, atol=1e-10)


# --------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("system", TRAINED)
def test_every_system_gives_what_a_training_step_needs(system):
    model = network(system, D_IN, CLASSES, num_layers=3)
    x, edge_index = torch.randn(9, D_IN), random_edges(9, 14)
    outputs = model.train().run(x, edge_index, with_attention=True)
    assert outputs.logits.shape == (9, CLASSES)
    assert len(outputs.hidden) == 3
    assert len(outputs.attention) == (0 if system == "mlp" else 3)
    assert max(outputs.layer_logits) == 3
    model.loss(outputs.layer_logits, torch.arange(9) % 3, torch.arange(6)).backward()


@pytest.mark.parametrize("body", [GCNII, G2, ConvStack, PreNorm])
@pytest.mark.parametrize("conv", ["gcn", "gat", "deepgat", "sage"])
def test_any_convolution_goes_into_any_body(body, conv):
    model = body(D_IN, WIDTH, 3, CLASSES, conv=conv)
    outputs = model.run(torch.randn(9, D_IN), random_edges(9, 14), with_attention=True)
    assert outputs.logits.shape == (9, CLASSES)
    assert len(outputs.hidden) == len(outputs.attention) == 3
    assert ({*outputs.layer_logits} == {0, 1, 2, 3}) == (conv == "deepgat")
    model.loss(outputs.layer_logits, torch.arange(9) % 3, torch.arange(6)).backward()


@pytest.mark.parametrize(
    ("system", "conv"),
    [
        *((name, {}) for name in TRAINED),
        *((name, {"conv": "deepgat"}) for name in ("gcnii", "g2", "prenorm")),
    ],
)
def test_every_body_takes_several_labels_per_node(system, conv):
    model = network(system, D_IN, CLASSES, multi_label=True, num_layers=3, **conv)
    outputs = model.train().run(torch.randn(9, D_IN), random_edges(9, 14))
    y = torch.randint(2, (9, CLASSES)).float()
    loss = model.loss(outputs.layer_logits, y, torch.arange(6))
    loss.backward()
    assert loss.isfinite()


DEEP_STACKS = [
    *((name, {}) for name in TRAINED if name != "gat"),
    ("deepgat", {"preset": "authors"}),
    ("gat", {"attention_dropout": 0.0, "dropout": 0.5}),
    ("gcnii", {"conv": "deepgat"}),
    ("g2", {"conv": "deepgat"}),
    ("prenorm", {"conv": "deepgat"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("system", "chosen"), DEEP_STACKS, ids=str)
def test_128_layers_stay_finite_in_single_precision(system, chosen):
    n = 20
    # A ring: where attention dropout takes all from a lone node, its features are zeros for good,
    # and each LayerNorm of the authors' recipe multiplies its gradient by 1/√1e-5.
    ring = torch.stack([torch.arange(n), torch.arange(1, n + 1) % n])
    x, edge_index = torch.rand(n, D_IN), torch.cat([undirected(ring), random_edges(n, 20)], 1)
    model = network(system, D_IN, CLASSES, num_layers=128, hidden_channels=4, **chosen)
    outputs = model.train().run(x, edge_index)
    model.loss(outputs.layer_logits, torch.arange(n) % 3, torch.arange(12)).backward()
    assert all(h.isfinite().all() for h in (*outputs.hidden, outputs.logits))
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_without_sharpness_and_layer_loss_deep_is_gcnii():
    sizes = {"num_layers": 6, "dropout": 0.0, "hidden_channels": 8, "alpha": 0.2}
    deep = network("deep", 5, 3, sharpness=0.0, layer_loss=0.0, attention_from=1, **sizes).double()
    gcnii = network("gcnii", 5, 3, **sizes).double()
    heads = {name for name, _ in deep.named_parameters() if ".class_" in name}
    gcnii.load_state_dict({k: v for k, v in deep.state_dict().items() if k not in heads})
    x, edge_index = double(20, 5), random_edges(20, 40)
    y, mask = torch.arange(20) % 3, torch.arange(20) < 12
    found = []
    for model in (deep, gcnii):
        outputs = model.run(x, edge_index)
        loss = model.loss(outputs.layer_logits, y, mask.nonzero().squeeze(1))
        parameters = {k: p for k, p in sorted(model.named_parameters()) if k not in heads}
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        found.append(({*parameters}, [outputs.logits, *outputs.hidden, loss, *gradients]))
    assert found[0][0] == found[1][0]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_share_of_another_precision_is_joined_in_the_wider_one():
    joined = lerp(torch.ones(3, 4, dtype=torch.bfloat16), torch.zeros(3, 4), 0.25)
    assert joined.dtype == torch.float32
    assert torch.equal(joined, torch.full((3, 4), 0.75))


def test_a_gate_joins_what_has_another_precision_in_the_wider_one(monkeypatch):
    state, out = torch.zeros(3, 4), torch.arange(12.0).reshape(3, 4).bfloat16()
    model = G2(4, 4, 1, 3).eval()
    monkeypatch.setattr(model, "encode", lambda x: state)
    monkeypatch.setattr(model.conv, "run", lambda h, neighbors, with_attention: ConvOutput(out))
    joined = model.run(state, torch.tensor([[0, 1], [1, 0]])).hidden[0]
    assert joined.dtype == torch.float32
    # Nodes 0 and 1 are apart by 4 in every channel, and tanh(4^2.5) is 1.
    assert torch.equal(joined[:2], out[:2].float())
    assert torch.equal(joined[2], state[2])


def shares_of(layers, **choices):
    """The dropout between layers, and at both ends."""
    model = Deep(5, 2, layers, 3, dropout=0.6, **choices)
    return model.layer_dropout, model.dropout


def test_smaller_steps_average_noise_and_so_drop_more():
    assert shares_of(2) == shares_of(16) == (0.6, 0.6)
    assert shares_of(64) == (pytest.approx(0.75), 0.6)  # odds of 3 instead of 1.5
    assert shares_of(1600) == (pytest.approx(15 / 16), 0.6)
    assert shares_of(64, step_depth=0) == (0.6, 0.6)
    assert shares_of(16, layer_dropout=0.2) == (0.2, 0.6)
    assert shares_of(64, layer_dropout=0.2) == (pytest.approx(1 / 3), 0.6)  # odds of 1/2, not 1/4
    assert shares_of(16, layer_dropout=0.0) == (0.0, 0.6)


def test_h0_of_dropped_nodes_is_zero_in_every_layer_and_that_of_others_grows():
    torch.manual_seed(0)
    model = Deep(5, 8, 3, 3, dropout=0.0, node_dropout=0.25)
    x, edge_index = torch.rand(400, 5), random_edges(400, 20)
    whole = model.eval().run(x, edge_index).initial
    kept = model.train().run(x, edge_index).initial
    dropped = (kept == 0).all(1)
    assert 60 < dropped.sum() < 140
    torch.testing.assert_close(kept[~dropped], whole[~dropped] / 0.75)
    assert not torch.equal(model.run(x, edge_index).initial, kept)  # drawn anew


def test_small_steps_survive_bf16():
    """Steps of 1/64 are below what bf16 tells apart from nothing."""
    torch.manual_seed(0)
    model = Deep(5, 8, 256, 3, step_depth=4).eval()
    x, edge_index = torch.rand(12, 5), random_edges(12, 20)
    with torch.no_grad():
        expected = model.run(x, edge_index).hidden[-1]
        with torch.autocast("cpu", torch.bfloat16):
            found = model.run(x, edge_index).hidden[-1]
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_attention_gives_class_heads_no_gradient_in_deep_and_does_in_gcnii():
    x, edge_index = double(12, 5), random_edges(12, 20)
    for model, expected in (
        (Deep(5, 8, 3, 3, attention_from=1, layer_loss=0.0), False),
        (GCNII(5, 8, 3, 3, conv="deepgat"), True),
    ):
        model.double().eval()(x, edge_index).square().sum().backward()
        assert [conv.class_weight.grad is not None for conv in model.convs] == [expected] * 3


def test_deeps_attention_ignores_dropout_and_the_layer_loss_does_not():
    x, edge_index = torch.randn(40, 5), random_edges(40, 80)
    deep = Deep(5, 64, 1, 3, attention_from=1).train()
    h = deep.encode(x).detach()
    deep.encode = lambda x: h  # whose dropout would differ from run to run
    seen = [deep.run(x, edge_index, with_attention=True) for _ in range(2)]
    assert torch.equal(*(outputs.attention[0].weight for outputs in seen))
    assert not torch.equal(*(outputs.layer_logits[0] for outputs in seen))
    dropped = GCNII(5, 64, 1, 3, conv="deepgat").train()
    dropped.encode = lambda x: h
    seen = [dropped.run(x, edge_index, with_attention=True) for _ in range(2)]
    assert not torch.equal(*(outputs.attention[0].weight for outputs in seen))


@pytest.mark.parametrize("system", TRAINED)
def test_renumbering_the_nodes_permutes_the_outputs(system):
    n, order = 10, torch.randperm(10)
    place = torch.argsort(order)
    model = network(system, D_IN, CLASSES, num_layers=3).double().eval()
    x, edge_index = double(n, D_IN), random_edges(n, 15)
    before, after = model.run(x, edge_index), model.run(x[order], place[edge_index])
    for layer, logits in before.layer_logits.items():
        torch.testing.assert_close(after.layer_logits[layer], logits[order], **TOLERANCE)


@pytest.mark.parametrize(
    ("system", "choices"), [*((name, {}) for name in TRAINED), ("grand", {"project_first": True})]
)
def test_sparse_features_give_what_dense_ones_give(system, choices):
    x = double(9, 6) * (torch.rand(9, 6) < 0.4)
    model = network(system, 6, 3, num_layers=3, **choices).double().eval()
    expected = model(x, random_edges(9, 14))
    torch.testing.assert_close(model(x.to_sparse_csr(), random_edges(9, 14)), expected)


def names_of(model, chosen):
    names = {name for name, p in model.named_parameters() if any(p is q for q in chosen)}
    assert len(chosen) == len(names)
    return names


OF_LAYERS = {
    "gcn": "convs.", "sage": "convs.", "mlp": "lins.", "residual": "convs.", "pairnorm": "convs.",
    "pairnorm-input": "convs.", "dropedge": "convs.", "jk": "convs.", "gcnii": "maps.",
    "g2": "conv.", "appnp": None, "dagnn": None, "grand": None, "gat": "convs.",
    "prenorm": "convs.",
}  # fmt: skip


@pytest.mark.parametrize("system", OF_LAYERS)
def test_the_weights_of_the_convolutions_are_those_of_the_layers(system):
    model, prefix = network(system, D_IN, CLASSES, num_layers=3), OF_LAYERS[system]
    found = names_of(model, model.convolution_weights())
    scores = {name for name, _ in model.named_parameters() if ".score." in name}
    every = {name for name, _ in model.named_parameters() if prefix and name.startswith(prefix)}
    assert found == every - scores


def test_class_heads_are_not_convolution_weights():
    model = Deep(D_IN, WIDTH, 2, CLASSES)
    assert names_of(model, model.convolution_weights()) == {f"maps.{i}.weight" for i in range(2)}


def test_class_heads_are_those_of_the_layers_alone():
    model = Deep(D_IN, WIDTH, 2, CLASSES)
    own = {f"convs.{i}.class_{what}" for i in range(2) for what in ("weight", "bias")}
    assert names_of(model, model.class_head_weights()) == own


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"model": "deepgat", "alpha": 0.1}, "unknown setting of deepgat 'alpha'"),
        ({"model": "g2", "power": 0.5}, "power is 0.5: expected 1 or more"),
        ({"model": "gcnii", "drop_edge": 1.0}, "below 1"),
        ({"model": "deep", "step_depth": -1}, "step_depth is -1: expected 0 or more"),
        (
            {"model": "deep", "num_layers": 20, "attention_from": 17},
            "attention_from is 17, but 20 layers are steps on the way of 16: expected 1 to 16",
        ),
        ({"model": "gcnii", "preset": "authors"}, "leave preset 'authors' out"),
        ({"model": "gcni"}, "did you mean 'gcnii'"),
        ({"model": "deep", "attention_from": 0}, "attention_from is 0"),
        ({"model": "g2", "input_dropout": "much"}, "expected a value of type float"),
        ({"model": "deep", "sharpness": -1.0}, "sharpness is -1.0: expected 0 or more"),
        ({"model": "gcnii", "conv": "gatt"}, "did you mean 'gat'"),
    ],
)
def test_settings_refuse_what_has_no_meaning(choices, sentence):
    with pytest.raises(UserError, match=sentence):
        recipe(**choices)


def test_layers_without_a_projection_keep_their_width():
    with pytest.raises(UserError, match="3 channels do not make 2 concatenated heads of 3"):
        NeighborAttention(3, 3, heads=2, project=False)
