"""Is the transcription itself right? By hand, by other libraries, and by finite differences."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transcription import (
    LayerParams,
    Options,
    Result,
    binary_cross_entropy,
    cross_entropy,
    elu,
    gamma,
    join_labels,
    label_inputs,
    layer_norm,
    leaky_relu,
    log_sigmoid,
    loss,
    neighbours,
    oracle,
    rm_diag_power,
    run,
    sigmoid,
    softmax,
)

LN3 = math.log(3.0)
# The path 0 - 1 - 2.
PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
# Six nodes: a triangle with tails, a self-loop (3), a double edge (0 -> 1), a lone node (5).
SMALL = torch.tensor(
    [[0, 1, 0, 1, 2, 0, 2, 2, 3, 3, 3, 4], [1, 0, 1, 2, 1, 2, 0, 3, 2, 3, 4, 3]],
)
# Directed, so that mixing up source and target shows.
DIRECTED = torch.tensor([[0, 1, 2, 3, 3, 4, 0], [1, 2, 0, 0, 4, 2, 4]])


def tensor(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def draw_layer(
    H: int, D: int, F_in: int, last: bool, *, seed: int, C: int = 3, z: int = 0
) -> LayerParams:
    """A layer with every parameter; its class heads see ``z`` more columns than W2 does."""
    F_out = D if last else H * D
    return LayerParams(
        W2=draw(H, D, F_in, seed=seed),
        W1=draw(H, C, F_in + z, seed=seed + 1),
        bias=draw(F_out, seed=seed + 2),
        att_target=draw(H, D, seed=seed + 3),
        att_source=draw(H, D, seed=seed + 4),
        skip_weight=draw(F_out, F_in, seed=seed + 5),
        skip_bias=draw(F_out, seed=seed + 6),
        norm_weight=draw(F_out, seed=seed + 7),
        norm_bias=draw(F_out, seed=seed + 8),
    )


# --------------------------------------------------------------------------- graph and labels


def test_neighbours_hold_sources_and_the_node_itself_once() -> None:
    assert neighbours(PATH, 3) == [[0, 1], [0, 1, 2], [1, 2]]
    assert neighbours(SMALL, 6) == [[0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [2, 3, 4], [3, 4], [5]]
    assert neighbours(torch.tensor([[0], [1]]), 2) == [[0], [0, 1]]  # 0 -> 1: only 1 hears of 0
    with pytest.raises(ValueError, match="leaves a graph"):
        neighbours(PATH, 2)


def test_rm_diag_power_by_hand() -> None:
    nbrs = neighbours(PATH, 3)
    torch.testing.assert_close(rm_diag_power(nbrs, 0), torch.zeros(3, 3, dtype=torch.float64))
    # Â = [1/2 1/2 0; 1/3 1/3 1/3; 0 1/2 1/2]
    third = 1 / 3
    torch.testing.assert_close(
        rm_diag_power(nbrs, 1), tensor([0, 0.5, 0], [third, 0, third], [0, 0.5, 0])
    )
    # Â²: row 0 = (row 0 + row 1)/2 = (5/12, 5/12, 1/6); row 1 = (5/18, 4/9, 5/18); row 2 mirrors 0
    torch.testing.assert_close(
        rm_diag_power(nbrs, 2),
        tensor([0, 5 / 12, 1 / 6], [5 / 18, 0, 5 / 18], [1 / 6, 5 / 12, 0]),
    )


def test_label_inputs_by_hand() -> None:
    """Node 0 is of class 0, node 2 of class 1, node 1 is not labelled."""
    nbrs = neighbours(PATH, 3)
    Y = tensor([1, 0], [0, 0], [0, 1])
    zero, one_hop, two_hops = label_inputs(nbrs, Y, 3, "zero")
    torch.testing.assert_close(zero, torch.zeros_like(Y))
    torch.testing.assert_close(one_hop, tensor([0, 0], [1 / 3, 1 / 3], [0, 0]))
    torch.testing.assert_close(two_hops, tensor([0, 1 / 6], [5 / 18, 5 / 18], [1 / 6, 0]))

    counts, second = label_inputs(nbrs, Y, 2, "neighbor-counts")
    torch.testing.assert_close(counts, tensor([0, 0], [1, 1], [0, 0]))
    torch.testing.assert_close(second, one_hop)
    assert label_inputs(nbrs, Y, 0, "zero") == []


@pytest.mark.parametrize("first", ["zero", "neighbor-counts"])
def test_no_node_sees_its_own_label(first: str) -> None:
    Y = draw(6, 2).requires_grad_()
    for z in label_inputs(neighbours(SMALL, 6), Y, 4, first):
        for v in range(6):
            (gradient,) = torch.autograd.grad(z[v].sum(), Y, retain_graph=True)
            assert gradient[v].abs().max() == 0.0


def test_join_labels_repeats_them_per_head() -> None:
    joined = join_labels(tensor([1, 2, 3, 4]), tensor([8, 9]), heads_in=2)
    assert joined.tolist() == [[1, 2, 8, 9, 3, 4, 8, 9]]


# --------------------------------------------------------------------------- elementary functions


def test_elementary_functions_and_their_slopes_equal_torch() -> None:
    pairs = [
        (softmax, lambda t: F.softmax(t, 0)),
        (elu, F.elu),
        (leaky_relu, lambda t: F.leaky_relu(t, 0.2)),
        (sigmoid, torch.sigmoid),
        (log_sigmoid, F.logsigmoid),
    ]
    t = torch.tensor([-800.0, -3.0, -1e-3, 0.0, 0.5, 4.0, 800.0], dtype=torch.float64)
    for ours, theirs in pairs:
        a, b = t.clone().requires_grad_(), t.clone().requires_grad_()
        out_a, out_b = ours(a), theirs(b)
        torch.testing.assert_close(out_a, out_b)
        weights = draw(7)
        (out_a * weights).sum().backward()
        (out_b * weights).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    h, weight, bias = draw(5), draw(5, seed=1), draw(5, seed=2)
    torch.testing.assert_close(layer_norm(h, weight, bias), F.layer_norm(h, (5,), weight, bias))


# --------------------------------------------------------------------------- DeepGAT by hand


X_HAND = tensor([0, 0], [LN3, 0], [0, LN3])
Y_HAND = tensor([0, 0], [0, 0], [1, 0])  # node 2 is a training node of class 0
# The class head copies h and takes ln 3 off for every unit of label.
W1_HAND = tensor([[1, 0, -LN3, 0], [0, 1, 0, -LN3]])


def test_deepgat_by_hand_paper() -> None:
    """One layer, one head, z = 0.

    p = x, so ŷ_0 = (1/2, 1/2), ŷ_1 = (3/4, 1/4), ŷ_2 = (1/4, 3/4). Scores:
    <0,0> = <0,1> = 1/2, <1,1> = <2,2> = 10/16 = 5/8, <1,2> = 6/16 = 3/8.
    α_0 = (1/2, 1/2).
    α_1 = (e^.5, e^.625, e^.375)/Σ = (1.648721, 1.868246, 1.454991)/4.971958
        = (0.331604, 0.375757, 0.292639).
    α_2 = (e^.375, e^.625)/Σ = (1, e^.25)/(1 + 1.284025) = (0.437823, 0.562177).
    W2 = [1 0; 0 -1]: h_v = ELU(a_v[0], -a_v[1]), a_v = Σ α_vu x_u:
    h_0 = (ln3/2, 0), h_1 = (0.375757 ln3, exp(-0.292639 ln3) - 1), and so on.
    """
    params = LayerParams(W2=tensor([[1, 0], [0, -1]]), W1=W1_HAND)
    options = Options("deepgat", "dp")
    result = run(X_HAND, PATH, [params], options, train_labels=Y_HAND)
    alpha = {pair: weights.item() for pair, weights in result.attention[0].items()}
    assert alpha == pytest.approx(
        {
            (0, 0): 0.5,
            (0, 1): 0.5,
            (1, 0): 0.331604,
            (1, 1): 0.375757,
            (1, 2): 0.292639,
            (2, 1): 0.437823,
            (2, 2): 0.562177,
        },
        abs=2e-6,
    )
    a, b, c, d = (alpha[pair] for pair in [(1, 1), (1, 2), (2, 1), (2, 2)])
    expected = tensor(
        [LN3 / 2, 0],
        [a * LN3, 3**-b - 1],  # exp(-b ln3) = 3^-b
        [c * LN3, 3**-d - 1],
    )
    torch.testing.assert_close(result.logits, expected)
    torch.testing.assert_close(result.layer_logits[0], X_HAND)  # the prediction of layer 0 is p
    assert set(result.layer_logits) == {0, 1}
    assert result.layer_logits[1] is result.logits is result.hidden[0]
    # Without the last ELU.
    options.output_activation = False
    plain = run(X_HAND, PATH, [params], options, train_labels=Y_HAND).logits
    torch.testing.assert_close(
        plain, tensor([LN3 / 2, 0], [a * LN3, -b * LN3], [c * LN3, -d * LN3])
    )


def test_deepgat_by_hand_authors() -> None:
    """The same with raw neighbour label counts, which W2 sees as well.

    z_1 = (1, 0), z_0 = z_2 = 0. p_1 = (ln3 - ln3, 0), so ŷ_1 = (1/2, 1/2) and every score with
    node 1 is 1/2: α_0 and α_1 are uniform, α_2 = (e^.5, e^.625)/Σ = (1, e^.125)/(1 + e^.125).
    W2 reads z[0] alone, so h_v = α_v1: 1/2, 1/3, 1/(1 + e^.125) = 0.468791.
    """
    params = LayerParams(W2=tensor([[0, 0, 1, 0], [0, 0, 0, 1]]), W1=W1_HAND)
    options = Options(
        "deepgat",
        "dp",
        label_input="layer",
        first_labels="neighbor-counts",
        heads_in=[1],
    )
    result = run(X_HAND, PATH, [params], options, train_labels=Y_HAND)
    expected = tensor([1 / 2, 0], [1 / 3, 0], [1 / (1 + math.exp(0.125)), 0])
    torch.testing.assert_close(result.logits, expected)
    assert expected[2, 0].item() == pytest.approx(0.468791, abs=1e-6)
    # Under "prediction" the same labels reach the attention, but not the values.
    options.label_input = "prediction"
    params = LayerParams(W2=tensor([[1, 0], [0, 1]]), W1=W1_HAND)
    paper = run(X_HAND, PATH, [params], options, train_labels=Y_HAND)
    assert paper.attention[0].keys() == result.attention[0].keys()
    for pair, weights in paper.attention[0].items():
        torch.testing.assert_close(weights, result.attention[0][pair])
    # a_1 = (x_0 + x_1 + x_2)/3
    torch.testing.assert_close(paper.logits[1], tensor([LN3 / 3, LN3 / 3])[0])


def test_sd_scales_by_hand() -> None:
    """α_2: scores 3/8 and 5/8, divided by dim ŷ = 2 or by the root of the width of W2's output."""
    for D_out, scale, divisor in [
        (2, "width", 2.0),
        (9, "width", 2.0),
        (2, "sqrt-output-width", 2**0.5),
        (9, "sqrt-output-width", 3.0),
    ]:
        params = LayerParams(W2=draw(1, D_out, 2), W1=W1_HAND[:, :, :2])
        result = run(X_HAND, PATH, [params], Options("deepgat", "sd", sd_scale=scale))
        ratio = result.attention[0][2, 2] / result.attention[0][2, 1]
        assert ratio.item() == pytest.approx(math.exp(0.25 / divisor))
    # GAT's q is W h, of the output's width: 9 against 3.
    params = LayerParams(W2=draw(1, 9, 2))
    q = X_HAND @ params.W2[0].T
    for scale, divisor in [("width", 9.0), ("sqrt-output-width", 3.0)]:
        result = run(X_HAND, PATH, [params], Options("gat", "sd", sd_scale=scale))
        ratio = result.attention[0][2, 2] / result.attention[0][2, 1]
        assert ratio.item() == pytest.approx(math.exp((q[2] @ q[2] - q[2] @ q[1]) / divisor))


def test_sigmoid_class_activation_by_hand() -> None:
    """σ(0) = 1/2, σ(ln3) = 3/4: <2,2> = 1/4 + 9/16 = 13/16, <2,1> = 3/8 + 3/8 = 3/4."""
    params = LayerParams(W2=draw(1, 2, 2), W1=W1_HAND[:, :, :2])
    result = run(X_HAND, PATH, [params], Options("deepgat", "dp", class_activation="sigmoid"))
    ratio = result.attention[0][2, 2] / result.attention[0][2, 1]
    assert ratio.item() == pytest.approx(math.exp(1 / 16))


# --------------------------------------------------------------------------- attention


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("deepgat", "dp"),
        ("deepgat", "sd"),
        ("gat", "dp"),
        ("gat", "sd"),
        ("gat", "ad"),
        ("gcn", "row"),
        ("oracle", "softmax"),
        ("oracle", "sum"),
    ],
)
def test_attention_is_a_distribution_over_the_neighbours(model: str, name: str) -> None:
    layers = [draw_layer(2, 4, 5, False, seed=1), draw_layer(3, 3, 8, True, seed=20)]
    y = torch.tensor([0, 0, 1, 2, 1, 0]) if model == "oracle" else None
    result = run(draw(6, 5), SMALL, layers, Options(model, name), y=y)
    nbrs = neighbours(SMALL, 6)
    for alpha, heads in zip(result.attention, [2, 3], strict=True):
        assert set(alpha) == {(v, u) for v in range(6) for u in nbrs[v]}
        for v in range(6):
            total = sum(alpha[v, u] for u in nbrs[v])
            torch.testing.assert_close(total, torch.ones(heads, dtype=torch.float64))
            assert all((alpha[v, u] >= 0).all() for u in nbrs[v])
    with_heads = model in ("deepgat", "oracle")
    assert sorted(result.layer_logits) == ([0, 1, 2] if with_heads else [2])
    assert [tuple(h.shape) for h in result.hidden] == [(6, 8), (6, 3)]


def test_oracle_by_hand() -> None:
    """Path 0 - 1 - 2, classes 0, 0, 1: o_1 = (1, 1, 0)."""
    params = LayerParams(W2=draw(1, 2, 2))
    y = torch.tensor([0, 0, 1])
    soft = run(X_HAND, PATH, [params], Options("oracle", "softmax"), y=y).attention[0]
    e = math.e
    assert soft[1, 0].item() == soft[1, 1].item() == pytest.approx(e / (2 * e + 1))
    assert soft[1, 2].item() == pytest.approx(1 / (2 * e + 1))
    assert (soft[1, 0] / soft[1, 2]).item() == pytest.approx(e)  # the most that o can do
    assert soft[2, 2].item() == pytest.approx(e / (e + 1))
    share = run(X_HAND, PATH, [params], Options("oracle", "sum"), y=y).attention[0]
    assert [share[1, u].item() for u in range(3)] == [0.5, 0.5, 0.0]
    assert [share[2, u].item() for u in (1, 2)] == [0.0, 1.0]


def test_softmax_oracle_differs_by_at_most_e() -> None:
    y = torch.tensor([0, 0, 1, 2, 1, 0])
    params = LayerParams(W2=draw(1, 3, 5))
    alpha = run(draw(6, 5), SMALL, [params], Options("oracle", "softmax"), y=y).attention[0]
    for v, members in enumerate(neighbours(SMALL, 6)):
        weights = [alpha[v, u].item() for u in members]
        assert max(weights) / min(weights) <= math.e * (1 + 1e-12)


def test_oracle_of_label_sets() -> None:
    y = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0]])
    assert oracle(y, 0, 1) == 1.0
    assert oracle(y, 0, 0) == 2.0
    assert oracle(y, 2, 2) == 1.0  # no label at all: the node still hears itself
    assert oracle(y, 2, 1) == 0.0
    one_hot, classes = torch.tensor([[1, 0], [1, 0], [0, 1]]), torch.tensor([0, 0, 1])
    for v in range(3):
        for u in range(3):
            assert oracle(one_hot, v, u) == oracle(classes, v, u)


def test_gcn_weights_by_hand() -> None:
    params = LayerParams(W2=draw(1, 2, 2))
    row = run(X_HAND, PATH, [params], Options("gcn", "row")).attention[0]
    assert [row[1, u].item() for u in range(3)] == pytest.approx([1 / 3] * 3)
    assert [row[0, u].item() for u in range(2)] == [0.5, 0.5]
    symmetric = run(X_HAND, PATH, [params], Options("gcn", "symmetric")).attention[0]
    assert symmetric[0, 1].item() == symmetric[1, 0].item() == pytest.approx(1 / 6**0.5)
    assert symmetric[1, 1].item() == pytest.approx(1 / 3)


# --------------------------------------------------------------------------- against others


@pytest.mark.parametrize("edge_index", [SMALL[:, [0, 1, 3, 4, 5, 6, 7, 8, 10, 11]], DIRECTED])
def test_gat_ad_equals_pyg(edge_index: Tensor) -> None:
    """Two layers, 3 heads concatenated and then 2 averaged, graphs both ways and one way."""
    conv = pytest.importorskip("torch_geometric.nn").GATConv
    torch.manual_seed(0)
    convs = [conv(4, 5, heads=3).double(), conv(15, 2, heads=2, concat=False).double()]
    layers = []
    for c, H, D in zip(convs, (3, 2), (5, 2), strict=True):
        torch.nn.init.normal_(c.bias)
        layers.append(
            LayerParams(
                W2=c.lin.weight.detach().view(H, D, -1),
                bias=c.bias.detach(),
                att_target=c.att_dst.detach()[0],
                att_source=c.att_src.detach()[0],
            )
        )
    x = draw(6, 4)
    result = run(x, edge_index, layers, Options("gat", "ad", output_activation=False))
    h, (pairs, alpha) = convs[0](x, edge_index, return_attention_weights=True)
    h = F.elu(h)
    torch.testing.assert_close(result.hidden[0], h)
    torch.testing.assert_close(result.logits, convs[1](h, edge_index))
    assert len(result.attention[0]) == alpha.shape[0]
    for (source, target), weights in zip(pairs.T.tolist(), alpha, strict=True):
        torch.testing.assert_close(result.attention[0][target, source], weights)


@pytest.mark.parametrize("edge_index", [SMALL[:, [0, 1, 3, 4, 5, 6, 7, 8, 10, 11]], DIRECTED])
def test_symmetric_gcn_equals_pyg(edge_index: Tensor) -> None:
    conv = pytest.importorskip("torch_geometric.nn").GCNConv(4, 3).double()
    torch.nn.init.normal_(conv.bias)
    layer = LayerParams(W2=conv.lin.weight.detach()[None], bias=conv.bias.detach())
    x = draw(6, 4)
    result = run(x, edge_index, [layer], Options("gcn", "symmetric", output_activation=False))
    torch.testing.assert_close(result.logits, conv(x, edge_index))


@pytest.mark.parametrize("label_input", ["prediction", "layer"])
def test_deepgat_equals_a_dense_form(label_input: str) -> None:
    """Three layers, labels in two, every option around the layer, written with matrices."""
    n, C, hops = 6, 3, 2
    x, heads, widths = draw(n, 4), [2, 3, 2], [5, 2, C]
    Y = F.one_hot(torch.tensor([0, 1, 2, 0, 1, 2]), C).double()
    Y[[1, 4]] = 0
    inside = label_input == "layer"
    heads_in, F_in, layers = [1, *heads[:2]], 4, []
    for i, (H, D) in enumerate(zip(heads, widths, strict=True)):
        labels = C if i < hops else 0
        layers.append(
            draw_layer(
                H,
                D,
                F_in + inside * heads_in[i] * labels,
                i == 2,
                seed=20 * i,
                z=0 if inside else labels,
            )
        )
        F_in = H * D
    options = Options(
        "deepgat",
        "dp",
        label_input=label_input,
        label_hops=hops,
        first_labels="neighbor-counts",
        heads_in=heads_in,
        output_activation=False,
    )
    result = run(x, SMALL, layers, options, train_labels=Y)

    linked = torch.eye(n).bool()
    linked[SMALL[1], SMALL[0]] = True
    A = linked.double()
    no_self = 1 - torch.eye(n).double()
    zs = [(A * no_self) @ Y, ((A / A.sum(1, keepdim=True)) * no_self) @ Y, None]
    h = x
    for i, (p, z) in enumerate(zip(layers, zs, strict=True)):
        if inside and z is not None:
            blocks = h.view(n, heads_in[i], -1)
            h = torch.cat([blocks, z[:, None].expand(n, heads_in[i], C)], 2).flatten(1)
        seen = h if inside or z is None else torch.cat([h, z], 1)
        logits = torch.einsum("hcf,nf->hnc", p.W1, seen)
        torch.testing.assert_close(result.layer_logits[i], logits.mean(0))
        q = logits.softmax(-1)
        alpha = (q @ q.mT).masked_fill(~linked, -math.inf).softmax(-1)
        out = torch.einsum("hvu,uf,hdf->vhd", alpha, h, p.W2)
        out = out.mean(1) if i == 2 else out.flatten(1)
        out = out + p.bias + h @ p.skip_weight.T + p.skip_bias
        h = F.layer_norm(out, out.shape[1:], p.norm_weight, p.norm_bias)
        h = h if i == 2 else F.elu(h)
        torch.testing.assert_close(result.hidden[i], h)
    assert set(result.layer_logits) == {0, 1, 2, 3}
    torch.testing.assert_close(result.logits, h)


def test_renaming_the_nodes_renames_the_answer() -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])  # new node i is old node order[i]
    place = torch.argsort(order)
    layers = [draw_layer(2, 4, 5, False, seed=1, z=3), draw_layer(3, 3, 8, True, seed=20, z=3)]
    x, Y = draw(6, 5), torch.eye(3).double()[[0, 1, 2, 2, 1, 0]]
    old = run(x, SMALL, layers, Options("deepgat", "dp"), train_labels=Y)
    new = run(x[order], place[SMALL], layers, Options("deepgat", "dp"), train_labels=Y[order])
    torch.testing.assert_close(new.logits, old.logits[order])


# --------------------------------------------------------------------------- the loss


def test_gamma_values() -> None:
    assert gamma(0, 0.4) == 2.0
    assert gamma(1, 0.4) == pytest.approx(1 + 2 / 7)  # .4/1.4
    assert gamma(2, 0.5) == pytest.approx(1.2)  # .5/2.5
    assert gamma(3, 0.0) == 1.0


def test_loss_by_hand() -> None:
    """Two classes, training nodes 0 (class 0) and 2 (class 1), δ = 1: γ = 2, 3/2, 4/3.

    Logits (ln3, 0) give probabilities (3/4, 1/4). CE of layer 0: both nodes 1/2, ln 2.
    Layer 1: node 0 has 3/4, node 2 has 1/4: mean of ln(4/3) and ln 4. Layer 2: both 3/4: ln(4/3).
    """
    p0 = torch.zeros(3, 2, dtype=torch.float64)
    p1 = tensor([LN3, 0], [99, -99], [LN3, 0])
    p2 = tensor([LN3, 0], [99, -99], [0, LN3])
    y, mask = torch.tensor([0, 1, 1]), torch.tensor([True, False, True])
    result = Result(p2, {0: p0, 1: p1, 2: p2}, [], [], "deepgat")
    ce0, ce1, ce2 = math.log(2), (math.log(4 / 3) + math.log(4)) / 2, math.log(4 / 3)
    paper = 1.5 * ce1 + 4 / 3 * ce2
    assert loss(result, y, mask, 1.0, "from-1").item() == pytest.approx(paper)
    assert loss(result, y, mask, 1.0, "from-0").item() == pytest.approx(2 * ce0 + paper)
    plain = Result(p2, {2: p2}, [], [], "gat")
    for terms in ("from-1", "from-0"):
        assert loss(plain, y, mask, 1.0, terms).item() == pytest.approx(ce2)


def test_multi_label_loss_by_hand() -> None:
    """σ(ln3) = 3/4, σ(0) = 1/2. Labels (1, 0) at logits (ln3, 0): (ln(4/3) + ln 2)/2."""
    p, y = tensor([LN3, 0]), torch.tensor([[1, 0]])
    bce = (math.log(4 / 3) + math.log(2)) / 2
    result = Result(p, {0: p, 1: p}, [], [], "deepgat")
    got = loss(result, y, torch.tensor([True]), 1.0, "from-0", multi_label=True)
    assert got.item() == pytest.approx(3.5 * bce)  # γ(0) + γ(1) = 2 + 1.5


def test_cross_entropies_equal_torch() -> None:
    p = 300 * draw(5, 4)
    p[0] = 0.0  # where careless forms have the wrong slope
    nodes = [0, 2, 3]
    classes, sets = torch.tensor([3, 0, 1, 2, 2]), (draw(5, 4, seed=1) > 0).double()
    for ours, theirs, y in [
        (cross_entropy, F.cross_entropy, classes),
        (binary_cross_entropy, F.binary_cross_entropy_with_logits, sets),
    ]:
        a, b = p.clone().requires_grad_(), p.clone().requires_grad_()
        loss_a, loss_b = ours(a, y, nodes), theirs(b[nodes], y[nodes])
        torch.testing.assert_close(loss_a, loss_b)
        loss_a.backward()
        loss_b.backward()
        torch.testing.assert_close(a.grad, b.grad)


# --------------------------------------------------------------------------- gradients


@pytest.mark.parametrize(
    ("model", "name"), [("deepgat", "sd"), ("gat", "ad"), ("gcn", "row"), ("oracle", "softmax")]
)
def test_gradients_of_every_parameter(model: str, name: str) -> None:
    """Finite differences of the loss, through two layers with everything in them."""
    labelled = model in ("deepgat", "oracle")
    z = 2 if labelled else 0
    layers = [
        draw_layer(2, 2, 2, False, seed=1, C=2, z=z),
        draw_layer(2, 2, 4, True, seed=20, C=2, z=z),
    ]
    used = {"W2", "bias", "skip_weight", "skip_bias", "norm_weight", "norm_bias"}
    used |= {"W1"} if labelled else set()
    used |= {"att_target", "att_source"} if name == "ad" else set()
    names = [f.name for f in fields(LayerParams) if f.name in used]
    x, y, mask = draw(3, 2), torch.tensor([0, 1, 1]), torch.tensor([True, False, True])
    Y = tensor([1, 0], [0, 0], [0, 1])

    def value(x: Tensor, *flat: Tensor) -> Tensor:
        parts = [
            LayerParams(**dict(zip(names, flat[i : i + len(names)], strict=True)))
            for i in (0, len(names))
        ]
        result = run(
            x,
            PATH,
            parts,
            Options(model, name, first_labels="neighbor-counts"),
            train_labels=Y if labelled else None,
            y=y if model == "oracle" else None,
        )
        return loss(result, y, mask, 0.4, "from-0")

    flat = [getattr(layer, name) for layer in layers for name in names]
    inputs = [t.clone().requires_grad_() for t in (x, *flat)]
    assert torch.autograd.gradcheck(value, inputs)
    # gradcheck is content with zeros on both sides: see that each parameter takes part.
    for gradient in torch.autograd.grad(value(*inputs), inputs):
        assert gradient.abs().max() > 1e-8


def test_parameters_of_single_precision_receive_gradients() -> None:
    W1, W2 = (torch.randn(1, 2, 2, requires_grad=True) for _ in range(2))
    result = run(X_HAND, PATH, [LayerParams(W2=W2, W1=W1)], Options("deepgat", "dp"))
    assert result.logits.dtype == torch.float64
    loss(result, torch.tensor([0, 1, 1]), torch.ones(3).bool(), 0.4).backward()
    assert W1.grad is not None
    assert W2.grad is not None
    assert W1.grad.dtype == torch.float32


# --------------------------------------------------------------------------- refusals


def test_misuse_is_refused() -> None:
    good = LayerParams(W2=draw(1, 2, 2), W1=draw(1, 2, 2))
    with pytest.raises(ValueError, match="no score"):
        run(X_HAND, PATH, [good], Options("deepgat", "ad"))
    with pytest.raises(ValueError, match="no label inputs"):
        run(X_HAND, PATH, [good], Options("gat", "dp"), train_labels=Y_HAND)
    with pytest.raises(ValueError, match="oracle"):
        run(X_HAND, PATH, [good], Options("oracle", "sum"))
    with pytest.raises(ValueError, match="W1 has shape"):  # W1 has no room for z
        run(X_HAND, PATH, [good], Options("deepgat", "dp"), train_labels=Y_HAND)
    with pytest.raises(ValueError, match="bias has shape"):
        run(X_HAND, PATH, [LayerParams(W2=good.W2, bias=draw(1))], Options("gat", "dp"))
