"""Every other system against its literal transcription: outputs, loss and all gradients."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.nn import APPNP, GCN2Conv, JumpingKnowledge, PairNorm, SAGEConv

import systems
from deepgat.errors import UserError
from deepgat.nn import AttentionStack, build_model, model_settings
from deepgat.nn.attention import ConvOutput
from deepgat.nn.layers import GatedLayer
from deepgat.nn.presets import DEFAULT_MODELS, PRESETS
from deepgat.nn.settings import SCORES
from deepgat.nn.updates import InitialResidual, LayerInputs
from deepgat.ops import as_neighbors

import transcription
from graphs import AWKWARD, graphs, random_edges, undirected

D_IN, CLASSES, WIDTH = 5, 3, 4
TOLERANCE = {"rtol": 0, "atol": 1e-10}
ACTIVE = {"dropout": 0.0, "hidden": WIDTH, "heads": 1}

Literal = Callable[[Tensor, transcription.Neighbours, systems.Weights, int], tuple]


def deep_literal(
    tau=2.0,
    ramp=0,
    first=1,
    last=99,
    soft=1.0,
    rows=False,
    detach=True,
    own_heads=False,
    layer_loss=True,
    far=0.2,
    depth=0,
):
    """The recipe: class attention inside GCNII."""

    def run(x, nbrs, w, layers):
        def logits_of(layer, h):
            if not own_heads:
                return systems.affine(h, w, "readout.linear")
            prefix = f"layers.{layer - 1}.conv."
            bias = w.get(prefix + "class_bias")
            p = h @ w[prefix + "class_weight"].t()
            return p if bias is None else p + bias[0]

        def attention(number, h):
            p = logits_of(number, h)
            layer = systems.place(number, layers, depth)
            if layer < first or layer > last:
                return systems.class_attention(nbrs, torch.zeros_like(p), 0.0, rows)
            q = systems.softmax_rows((p.detach() if detach else p) / soft)
            own = w.get(f"layers.{number - 1}.conv.score.temperature")
            factor = (tau if own is None else own) * (min(1, layer / ramp) if ramp else 1)
            M = w.get(f"layers.{number - 1}.conv.score.compatibility")
            M = None if M is None else 0.5 * M + 0.5 * M.t()
            return systems.class_attention(nbrs, q, factor, rows, M)

        out, states = systems.gcnii(x, nbrs, w, layers, far, 0.5, attention, depth)
        before = {i: logits_of(i + 1, h) for i, h in enumerate(states[:-1])}
        return (out, states, before) if layer_loss else (out, states)

    return run


def shared_by_place(literal: Literal, depth: int) -> Literal:
    """The same, where layer l has the weights that are stored for layer ⌈l d/L⌉."""

    def run(x, nbrs, w, layers):
        of_layers = {
            f"layers.{layer - 1}.{name.split('.', 2)[2]}": weight
            for layer in range(1, layers + 1)
            for name, weight in w.items()
            if name.startswith(f"layers.{systems.place(layer, layers, depth) - 1}.")
        }
        ends = {name: weight for name, weight in w.items() if not name.startswith("layers.")}
        return literal(x, nbrs, ends | of_layers, layers)

    return run


def g2_literal(conv, p=2.5, mean=True, own=False, shared=True):
    return lambda x, nbrs, w, layers: systems.g2(
        x, nbrs, w, layers, p, mean, conv(nbrs, w), own, shared
    )


def gcn_literal(**options):
    return lambda x, nbrs, w, layers: systems.gcn(x, systems.symmetric(nbrs), w, layers, **options)


def identity_matrix(nbrs):
    return torch.eye(len(nbrs), dtype=torch.double)


ONE_HEAD = {
    "model": "deep",
    "class_head": "shared",
    "class_bias": False,
    "temperature": 2.0,
    "attention_from": 1,
}
"""The readout predicts the classes of all layers, and all layers attend."""

CASES: dict[str, tuple[dict, Literal]] = {
    "gcnii": (
        {"model": "gcnii"},
        lambda x, nbrs, w, layers: systems.gcnii(x, nbrs, w, layers, 0.1, 0.5),
    ),
    "gcnii, other α and θ": (
        {"model": "gcnii", "initial_residual": 0.3, "identity_map": 1.5},
        lambda x, nbrs, w, layers: systems.gcnii(x, nbrs, w, layers, 0.3, 1.5),
    ),
    "g2 sage": ({"model": "g2"}, g2_literal(systems.sage_conv)),
    "g2 gcn": ({"model": "gcn", "preset": "g2"}, g2_literal(systems.gcn_conv)),
    "g2 gat": ({"model": "gat", "preset": "g2"}, g2_literal(systems.gat_conv)),
    "g2 deepgat": (
        {"model": "deepgat", "preset": "g2", "label_hops": 0, "loss": "output"},
        g2_literal(systems.deepgat_conv),
    ),
    "g2 sum, p=1, own layer, weights of its own": (
        {
            "model": "g2",
            "gate_reduction": "sum",
            "gate_power": 1.0,
            "gate_layer": "own",
            "shared_layers": False,
        },
        g2_literal(systems.sage_conv, p=1.0, mean=False, own=True, shared=False),
    ),
    "appnp": (
        {"model": "appnp"},
        lambda x, nbrs, w, layers: systems.appnp(x, nbrs, w, layers, 0.1),
    ),
    "dagnn": ({"model": "dagnn"}, systems.dagnn),
    "gcn": ({"model": "gcn", "preset": "standard"}, gcn_literal()),
    "residual": ({"model": "residual"}, gcn_literal(residual=True)),
    "pairnorm-si": (
        {"model": "pairnorm", "norm_scale": 1.5},
        gcn_literal(norm=lambda h: systems.pair_norm(h, 1.5, True)),
    ),
    "pairnorm": (
        {"model": "pairnorm", "norm": "pairnorm", "norm_scale": 0.7},
        gcn_literal(norm=lambda h: systems.pair_norm(h, 0.7, False)),
    ),
    "pairnorm-input": (
        {"model": "pairnorm-input", "norm_scale": 2.0},
        lambda x, nbrs, w, layers: systems.gcn(
            systems.pair_norm(x, 2.0, False), systems.symmetric(nbrs), w, layers
        ),
    ),
    "mlp": (
        {"model": "mlp"},
        lambda x, nbrs, w, layers: systems.gcn(x, identity_matrix(nbrs), w, layers),
    ),
    "jk cat": ({"model": "jk"}, gcn_literal(jump=lambda hs: torch.cat(hs, 1))),
    "jk max": (
        {"model": "jk", "readout": "jump-max"},
        gcn_literal(jump=lambda hs: torch.stack(hs).amax(0)),
    ),
    "sage": ({"model": "sage", "preset": "standard"}, systems.sage),
    "deep": ({"model": "deep"}, deep_literal(tau=3.0, first=4, own_heads=True)),
    "deep from the first layer on": (
        {"model": "deep", "attention_from": 1},
        deep_literal(tau=3.0, own_heads=True),
    ),
    "deep, attention in layers 2 and 3": (
        {"model": "deep", "attention_from": 2, "attention_to": 3},
        deep_literal(tau=3.0, first=2, last=3, own_heads=True),
    ),
    "deep in smaller steps": (
        {"model": "deep", "attention_from": 2, "step_depth": 3},
        deep_literal(tau=3.0, first=2, own_heads=True, depth=3),
    ),
    "deep in smaller steps, growing τ, attention in one place": (
        {
            "model": "deep",
            "attention_from": 1,
            "attention_to": 1,
            "temperature_ramp": 2,
            "step_depth": 2,
        },
        deep_literal(tau=3.0, ramp=2, last=1, own_heads=True, depth=2),
    ),
    "deep in smaller steps that share weights": (
        {"model": "deep", "attention_from": 2, "step_depth": 3, "shared_steps": True},
        shared_by_place(deep_literal(tau=3.0, first=2, own_heads=True, depth=3), 3),
    ),
    "deep, one class head": (ONE_HEAD, deep_literal()),
    "deep with gradients through the attention": (
        {**ONE_HEAD, "detach_attention": False, "temperature": 3.0},
        deep_literal(tau=3.0, detach=False),
    ),
    "deep with learned τ": (
        {**ONE_HEAD, "learn_temperature": True, "temperature": 1.5},
        deep_literal(),
    ),
    "deep with learnt compatibility": (
        {**ONE_HEAD, "compatibility": "learnt"},
        deep_literal(),
    ),
    "deep with learnt compatibility and τ, gradients, over rows": (
        {
            **ONE_HEAD,
            "compatibility": "learnt",
            "learn_temperature": True,
            "detach_attention": False,
            "normalization": "row",
        },
        deep_literal(detach=False, rows=True),
    ),
    "deep with growing τ, softened": (
        {**ONE_HEAD, "temperature_ramp": 3, "softening": 2.0, "temperature": 3.0},
        deep_literal(tau=3.0, ramp=3, soft=2.0),
    ),
    "deep, attention from layer 3 on, over rows": (
        {**ONE_HEAD, "attention_from": 3, "normalization": "row"},
        deep_literal(first=3, rows=True),
    ),
    "deepgat in gcnii": (
        {"model": "deepgat", "preset": "gcnii", "label_hops": 0, "loss": "output"},
        deep_literal(1.0, rows=True, detach=False, own_heads=True, layer_loss=False, far=0.1),
    ),
    "gat in gcnii": (
        {"model": "gat", "preset": "gcnii"},
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
                w[f"layers.{layer - 1}.conv.score.target"][0],
                w[f"layers.{layer - 1}.conv.score.source"][0],
            ),
        ),
    ),
}
"""Name → (settings, transcription)."""


class Case:
    """A model, its inputs, and what the transcription makes of them."""

    def __init__(self, name: str, n: int, edge_index: Tensor, layers: int = 3) -> None:
        choices, self.literal = CASES[name]
        self.settings = model_settings(**{**ACTIVE, "layers": layers, **choices})
        self.settings = self.settings.with_changes({"dropout": 0.0, "attention_dropout": 0.0})
        self.model = build_model(self.settings, D_IN, CLASSES).double().eval()
        for parameter in self.model.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
        self.edge_index, self.layers = edge_index, layers
        self.x = torch.randn(n, D_IN, dtype=torch.double)
        self.y = torch.randint(CLASSES, (n,))
        self.mask = torch.rand(n) < 0.6
        self.mask[0] = True

    def transcribed(self) -> tuple[Tensor, list[Tensor], dict[int, Tensor]]:
        weights = dict(self.model.named_parameters())
        nbrs = transcription.neighbours(self.edge_index, len(self.x))
        logits, states, *before = self.literal(self.x, nbrs, weights, self.layers)
        return logits, states, before[0] if before else {}

    def literal_loss(self, logits: Tensor, before: dict[int, Tensor]) -> Tensor:
        nodes = self.mask.nonzero().view(-1).tolist()
        loss = transcription.cross_entropy(logits, self.y, nodes)
        if before:
            gammas = [transcription.gamma(layer, 0.4) for layer in before]
            for gamma, p in zip(gammas, before.values(), strict=True):
                term = transcription.cross_entropy(p, self.y, nodes)
                loss = loss + 0.3 * gamma / sum(gammas) * term
        return loss


def assert_same(case: Case) -> None:
    ours = case.model.run(case.x, case.edge_index)
    logits, states, before = case.transcribed()
    torch.testing.assert_close(ours.logits, logits, **TOLERANCE)
    mine = ours.hidden if ours.initial is None else [ours.initial, *ours.hidden]
    for a, b in zip(mine, states, strict=True):
        torch.testing.assert_close(a, b, **TOLERANCE)
    for layer, p in before.items():
        torch.testing.assert_close(ours.layer_logits[layer], p, **TOLERANCE)
    assert torch.equal(ours.layer_logits[case.layers], ours.logits)

    my_loss = case.model.loss(ours.layer_logits, case.y, case.mask.nonzero().squeeze(1))
    literal_loss = case.literal_loss(logits, before)
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


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_transcription(name, layers):
    assert_same(Case(name, 9, random_edges(9, 14), layers))


@pytest.mark.parametrize("graph", AWKWARD)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_transcription_on_awkward_graphs(name, graph):
    assert_same(Case(name, *AWKWARD[graph]))


@settings(max_examples=25)
@given(graph=graphs(), name=st.sampled_from(sorted(CASES)), layers=st.integers(1, 4))
def test_equals_the_transcription_on_any_graph(graph, name, layers):
    assert_same(Case(name, *graph, layers))


# --------------------------------------------------------------------------- against PyG's classes


def double(n: int, width: int) -> Tensor:
    return torch.randn(n, width, dtype=torch.double)


def proper_edges(n: int = 20, count: int = 40) -> Tensor:
    """Undirected, no loops, no repeats: there PyG's conventions are ours."""
    edge_index = random_edges(n, count).unique(dim=1)
    return edge_index[:, edge_index[0] != edge_index[1]]


def built(**choices) -> AttentionStack:
    choices = {"hidden": 8, "heads": 1, "layers": 4, **choices}
    made = build_model(model_settings(**choices), D_IN, CLASSES).double().eval()
    for parameter in made.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return made


def test_gcnii_is_pygs_gcn2conv():
    ours, x, edge_index = built(model="gcnii"), double(20, D_IN), proper_edges()
    h = h0 = ours.encoder(x)
    for number, layer in enumerate(ours.layers, start=1):
        theirs = GCN2Conv(8, alpha=0.1, theta=0.5, layer=number).double()
        theirs.weight1.data = layer.update.rules[1].weight.data
        h = theirs(h, h0, edge_index).relu()
    torch.testing.assert_close(ours(x, edge_index), ours.readout.linear(h), rtol=0, atol=1e-10)


def test_appnp_is_pygs():
    ours, x, edge_index = built(model="appnp", layers=10), double(20, D_IN), proper_edges()
    theirs = APPNP(K=10, alpha=0.1)
    torch.testing.assert_close(
        ours(x, edge_index), theirs(ours.encoder(x), edge_index), rtol=0, atol=1e-10
    )


def test_sage_is_pygs():
    ours, x, edge_index = built(model="sage", preset="standard"), double(24, D_IN), proper_edges()
    h = x  # nodes 20 to 23 have no neighbours
    for number, layer in enumerate(ours.layers, start=1):
        theirs = SAGEConv(*layer.conv.weight.shape[::-1]).double()
        theirs.lin_l.weight.data = layer.conv.weight.data
        theirs.lin_l.bias.data = layer.update.linear.bias.data
        theirs.lin_r.weight.data = layer.update.linear.weight.data
        h = theirs(h, edge_index)
        h = h if number == len(ours.layers) else h.relu()
    torch.testing.assert_close(ours(x, edge_index), h, rtol=0, atol=1e-10)


@pytest.mark.parametrize("individually", [False, True])
def test_pairnorm_is_pygs_in_every_hidden_layer(individually):
    ours = built(model="pairnorm", norm="pairnorm-si" if individually else "pairnorm")
    x, edge_index = double(20, D_IN), proper_edges()
    norm, h = PairNorm(scale_individually=individually), x
    for number, layer in enumerate(ours.layers, start=1):
        h = layer.conv(h, edge_index)
        h = h if number == len(ours.layers) else norm(h).relu()
    torch.testing.assert_close(ours(x, edge_index), h, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mode", ["cat", "max", "lstm"])
def test_jumping_knowledge_is_pygs(mode):
    ours, x, edge_index = (
        built(model="jk", readout=f"jump-{mode}"),
        double(20, D_IN),
        proper_edges(),
    )
    outputs = ours.run(x, edge_index)
    theirs = JumpingKnowledge(mode, 8, 4).double()
    theirs.load_state_dict(ours.readout.jump.state_dict())
    expected = ours.readout.linear(theirs(outputs.hidden))
    torch.testing.assert_close(outputs.logits, expected, rtol=0, atol=1e-10)


# --------------------------------------------------------------------------- all of them


ALL = [(model, preset) for preset in PRESETS for model in SCORES if model != "oracle"]


@pytest.mark.parametrize(("model", "preset"), ALL)
def test_any_score_goes_into_any_body(model, preset):
    network = build_model(model_settings(model, preset, layers=3), D_IN, CLASSES)
    x, edge_index = torch.randn(9, D_IN), random_edges(9, 14)
    outputs = network.train().run(x, edge_index, with_attention=True)
    assert outputs.logits.shape == (9, CLASSES)
    assert len(outputs.hidden) == len(outputs.attention) == 3
    assert max(outputs.layer_logits) == 3
    network.loss(outputs.layer_logits, torch.arange(9) % 3, torch.arange(6)).backward()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_body_takes_several_labels_per_node(preset):
    network = build_model(model_settings("deepgat", preset, layers=3), D_IN, CLASSES, True)
    outputs = network.train().run(torch.randn(9, D_IN), random_edges(9, 14))
    y = torch.randint(2, (9, CLASSES)).float()
    loss = network.loss(outputs.layer_logits, y, torch.arange(6))
    loss.backward()
    assert loss.isfinite()


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_128_layers_stay_finite_in_single_precision(preset):
    n = 20
    # A ring: where attention dropout takes all from a lone node, its features are zeros for good,
    # and each LayerNorm of the authors' recipe multiplies its gradient by 1/√1e-5.
    ring = torch.stack([torch.arange(n), torch.arange(1, n + 1) % n])
    x, edge_index = torch.rand(n, D_IN), torch.cat([undirected(ring), random_edges(n, 20)], 1)
    more = {"gcnii": {"deepgat"}, "g2": {"deepgat"}, "standard": set(SCORES) - {"oracle"}}
    for model in {DEFAULT_MODELS[preset], *more.get(preset, ())}:
        network = build_model(model_settings(model, preset, layers=128, hidden=4), D_IN, CLASSES)
        outputs = network.train().run(x, edge_index)
        network.loss(outputs.layer_logits, torch.arange(n) % 3, torch.arange(12)).backward()
        assert all(h.isfinite().all() for h in (*outputs.hidden, outputs.logits))
        for name, parameter in network.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_without_temperature_and_layer_loss_the_deep_recipe_is_gcnii():
    choices = {"layers": 6, "dropout": 0.0, "hidden": 8}
    torch.manual_seed(1)
    one_head = {**ONE_HEAD, "temperature": 0.0, "layer_loss": 0.0}
    deep = build_model(model_settings(**one_head, **choices), 5, 3)
    torch.manual_seed(1)
    gcnii = build_model(model_settings("gcnii", initial_residual=0.2, **choices), 5, 3)
    x, edge_index = double(20, 5), random_edges(20, 40)
    y, mask = torch.arange(20) % 3, torch.arange(20) < 12
    found = []
    for network in (deep.double(), gcnii.double()):
        outputs = network.run(x, edge_index)
        loss = network.loss(outputs.layer_logits, y, mask.nonzero().squeeze(1))
        parameters = dict(sorted(network.named_parameters()))
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        found.append(({*parameters}, [outputs.logits, *outputs.hidden, loss, *gradients]))
    assert found[0][0] == found[1][0]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_an_initial_residual_of_another_precision_is_joined_in_the_wider_one():
    rule = InitialResidual(4, 4, alpha=0.25)
    out, initial = torch.ones(3, 4, dtype=torch.bfloat16), torch.zeros(3, 4)
    inputs = LayerInputs(out, as_neighbors(torch.zeros(2, 0, dtype=torch.long), 3), out, initial)
    joined = rule.before_activation(out, inputs)
    assert joined.dtype == torch.float32
    assert torch.equal(joined, torch.full((3, 4), 0.75))


def test_a_gate_joins_what_has_another_precision_in_the_wider_one():
    state, out = torch.zeros(3, 4), torch.arange(12.0).reshape(3, 4).bfloat16()
    neighbors = as_neighbors(torch.tensor([[0, 1], [1, 0]]), 3)
    layer = GatedLayer(lambda: lambda inputs, with_attention: ConvOutput(out, None, None))
    joined = layer(LayerInputs(state, neighbors, state)).out
    assert joined.dtype == torch.float32
    assert torch.equal(joined[:2], out[:2].float())  # apart by 4 in every channel: tanh 16 is 1
    assert torch.equal(joined[2], state[2])


def shares_of(layers, **choices):
    """The dropout between layers, and at both ends."""
    network = build_model(model_settings("deep", layers=layers, dropout=0.6, **choices), 5, 3)
    return network.dropout, network.encoder.dropout, network.readout.dropout


def test_smaller_steps_average_noise_and_so_drop_more():
    assert shares_of(2) == shares_of(16) == (0.6, 0.6, 0.6)
    assert shares_of(64) == (pytest.approx(0.75), 0.6, 0.6)  # odds of 3 instead of 1.5
    assert shares_of(1600) == (pytest.approx(15 / 16), 0.6, 0.6)
    assert shares_of(64, input_dropout=0.1) == (pytest.approx(0.75), 0.1, 0.6)
    assert shares_of(64, step_depth=0) == (0.6, 0.6, 0.6)


@pytest.mark.parametrize(("layers", "sets"), [(2, 2), (3, 3), (4, 3), (7, 3)])
def test_steps_that_share_weights_have_those_of_so_many_layers(layers, sets):
    network = build_model(
        model_settings("deep", layers=layers, hidden=4, step_depth=3, attention_from=1,
                       shared_steps=True), 5, 3,
    )  # fmt: skip
    assert len(network.layers) == sets
    assert [network.place(layer) for layer in (1, layers)] == [1, sets]


def test_small_steps_survive_bf16():
    """Steps of 1/64 are below what bf16 tells apart from nothing."""
    torch.manual_seed(0)
    network = build_model(model_settings("deep", layers=256, hidden=8, step_depth=4), 5, 3).eval()
    x, edge_index = torch.rand(12, 5), random_edges(12, 20)
    with torch.no_grad():
        expected = network.run(x, edge_index).hidden[-1]
        with torch.autocast("cpu", torch.bfloat16):
            found = network.run(x, edge_index).hidden[-1]
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_layers_beyond_the_depth_that_dropout_is_for_drop_less():
    shares = partial(shares_of, dropout_depth=16)
    assert shares(2) == shares(16) == (0.6, 0.6, 0.6)
    assert shares(64) == (pytest.approx(1 - 0.4**0.5), 0.6, 0.6)
    assert shares(1600) == (pytest.approx(1 - 0.4**0.1), 0.6, 0.6)
    assert shares(64, input_dropout=0.1) == (pytest.approx(1 - 0.4**0.5), 0.1, 0.6)
    assert shares(64, dropout_depth=0) == shares_of(64)


def test_detached_attention_gives_its_class_heads_no_gradient_but_the_loss():
    choices = {"attention_from": 1, "layer_loss": 0.0, "layers": 3}
    x, edge_index = double(12, 5), random_edges(12, 20)
    for detach, expected in ((True, False), (False, True)):
        settings_ = model_settings("deep", detach_attention=detach, **choices)
        network = build_model(settings_, 5, 3).double().eval()
        network(x, edge_index).square().sum().backward()
        reached = [layer.conv.class_weight.grad is not None for layer in network.layers]
        assert reached == [expected] * 3


def test_clean_attention_ignores_dropout_and_the_layer_loss_does_not():
    x, edge_index = torch.randn(40, 5), random_edges(40, 80)
    weights, logits = [], []
    network = build_model(model_settings(**ONE_HEAD, layers=1, input_dropout=0.0), 5, 3).train()
    for _ in range(2):
        outputs = network.run(x, edge_index, with_attention=True)
        weights.append(outputs.attention[0].weight)
        logits.append(outputs.layer_logits[0])
    assert torch.equal(*weights)
    assert not torch.equal(*logits)
    unclean = model_settings(**ONE_HEAD, layers=1, clean_attention=False)
    dropped = build_model(unclean, 5, 3).train()
    seen = [dropped.run(x, edge_index, with_attention=True).attention[0].weight for _ in range(2)]
    assert not torch.equal(*seen)


@pytest.mark.parametrize("preset", PRESETS)
def test_renumbering_the_nodes_permutes_the_outputs(preset):
    n, order = 10, torch.randperm(10)
    place = torch.argsort(order)
    network = build_model(model_settings(None, preset, layers=3), D_IN, CLASSES).double().eval()
    x, edge_index = double(n, D_IN), random_edges(n, 15)
    before, after = network.run(x, edge_index), network.run(x[order], place[edge_index])
    for layer, logits in before.layer_logits.items():
        torch.testing.assert_close(after.layer_logits[layer], logits[order], **TOLERANCE)


@pytest.mark.parametrize("preset", PRESETS)
def test_sparse_features_give_what_dense_ones_give(preset):
    x = double(9, 6) * (torch.rand(9, 6) < 0.4)
    network = build_model(model_settings(None, preset, layers=3), 6, 3).double().eval()
    expected = network(x, random_edges(9, 14))
    torch.testing.assert_close(network(x.to_sparse_csr(), random_edges(9, 14)), expected)


@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in ("paper", "authors")])
def test_the_weights_of_the_convolutions_are_those_of_the_layers(preset):
    network = build_model(model_settings("gcn", preset, layers=3), D_IN, CLASSES)
    chosen = network.convolution_weights()
    names = {name for name, p in network.named_parameters() if any(p is q for q in chosen)}
    assert len(chosen) == len(names)
    assert names == {name for name, _ in network.named_parameters() if name.startswith("layers.")}


def test_class_heads_are_not_convolution_weights():
    network = build_model(model_settings("deep", layers=2, class_head="layer"), D_IN, CLASSES)
    chosen = network.convolution_weights()
    names = {name for name, p in network.named_parameters() if any(p is q for q in chosen)}
    assert names == {f"layers.{i}.update.rules.1.weight" for i in range(2)}


def test_class_heads_are_those_of_the_layers_alone():
    for heads in ("layer", "shared"):
        network = build_model(model_settings("deep", layers=2, class_head=heads), D_IN, CLASSES)
        chosen = network.class_head_weights()
        names = {name for name, p in network.named_parameters() if any(p is q for q in chosen)}
        own = {f"layers.{i}.conv.class_{what}" for i in range(2) for what in ("weight", "bias")}
        assert names == (own if heads == "layer" else set())


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"model": "deepgat", "initial_residual": 0.1}, "initial_residual needs an encoder"),
        ({"model": "deepgat", "gate_power": 2.0}, "gate_power needs an encoder"),
        ({"model": "deepgat", "projection": False}, "projection=no needs an encoder"),
        ({"model": "deepgat", "class_head": "shared"}, "set readout=linear"),
        ({"model": "gcnii", "gate_power": 0.5}, "expected 1 or more, or 0"),
        ({"model": "gcnii", "drop_edge": 1.0}, "below 1"),
        ({"model": "deep", "dropout_depth": -1}, "dropout_depth is -1: expected 0 or more"),
        ({"model": "deep", "step_depth": -1}, "step_depth is -1: expected 0 or more"),
        ({"model": "deep", "dropout_depth": 16, "step_depth": 16}, "set one of them to 0"),
        ({"model": "gcnii", "shared_steps": True}, "shared_steps is for layers"),
        ({"model": "deep", "shared_steps": True, "shared_layers": True}, "shared_layers"),
        (
            {"model": "deep", "layers": 20, "attention_from": 17},
            "attention_from is 17, but 20 layers are steps on the way of 16: expected 1 to 16",
        ),
        ({"model": "gcnii", "preset": "authors"}, "leave the preset 'authors' away"),
        ({"model": "gcni"}, "did you mean 'gcnii'"),
        ({"model": "gcnii", "attention_from": 0}, "attention_from is 0"),
        ({"model": "deep", "softening": 0.0}, "softening is 0.0: expected a number above 0"),
        ({"model": "deep", "input_dropout": "much"}, "expected a value of type float"),
        ({"model": "deep", "temperature": -1.0}, "temperature is -1.0: expected 0 or more"),
    ],
)
def test_settings_refuse_what_has_no_meaning(choices, sentence):
    with pytest.raises(UserError, match=sentence):
        model_settings(**choices)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"model": "appnp", "heads": 2}, "3 do not divide into 2 heads"),
        ({"model": "gcnii", "readout": "hop-gate"}, "channels for the 3 classes"),
        ({"model": "gcnii", "readout": "last-layer"}, "channels for the 3 classes"),
        ({"model": "gcn", "preset": "standard", "layers": 3, "step_depth": 2}, "one width"),
        ({"model": "gcn", "preset": "standard", "shared_layers": True}, "share their weights"),
        (
            {
                "model": "deep",
                "layers": 5,
                "step_depth": 4,
                "shared_steps": True,
                "projection": True,
                "label_hops": 2,
                "label_input": "layer",
            },
            "would see labels in theirs: set label_hops=0",
        ),
        ({"model": "deepgat", "preset": "gcnii", "label_input": "layer"}, "keeps its width"),
    ],
)
def test_stacks_refuse_what_does_not_fit(choices, sentence):
    with pytest.raises(UserError, match=sentence):
        build_model(model_settings(**choices), D_IN, CLASSES)
