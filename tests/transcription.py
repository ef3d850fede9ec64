"""A literal, slow transcription of the models, for checking the fast ones against.

Everything is written as the algorithms of "Deep Graph Attention Networks" are printed: loops over
nodes, neighbours and heads; dense ``rm_diag(Â^k)``; aggregate first, then project; double
precision. Nothing here is meant to be fast, and nothing here imports the library: an agreement
between the two is then evidence, not a tautology.

All arithmetic is on torch tensors, so ``backward`` gives the gradient of every parameter. There is
no dropout and no batch normalisation. Parameters of another precision are cast to float64 inside
the graph: their gradients still arrive.

Names: ``v`` is the node that attends, ``u`` one of its neighbours; layers count from 1; ``h^0`` is
``x``; ``[n, H*D]`` matrices of concatenated heads are head-major (head 0's D columns come first).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from torch import Tensor

Neighbours = list[list[int]]
Attention = dict[tuple[int, int], Tensor]

SCORES = {
    "deepgat": ("dp", "sd"),
    "gat": ("dp", "sd", "ad"),
    "gcn": ("row", "symmetric"),
    "oracle": ("softmax", "sum"),
    "sage": ("mean",),
}


@dataclass
class LayerParams:
    """The parameters of one layer.

    ``F_in`` is the width of the layer's input: with ``label_input="layer"`` that includes the
    labels. ``F_pred`` is what a class head sees: ``F_in``, plus C in the layers that see labels
    under ``label_input="prediction"``. ``F_out`` is ``H * D_out`` in hidden layers, ``D_out`` in
    the last, where the heads are averaged.
    """

    W2: Tensor  # [H, D_out, F_in] value projection per head
    W1: Tensor | None = None  # [H, C, F_pred] class head per head: DeepGAT and the oracle
    bias: Tensor | None = None  # [F_out]
    att_target: Tensor | None = None  # [H, D_out] AD: the half of w that meets q, of the node v
    att_source: Tensor | None = None  # [H, D_out] AD: the half that meets k, of the neighbour u
    skip_weight: Tensor | None = None  # [F_out, F_in] linear skip, added before the norm
    skip_bias: Tensor | None = None  # [F_out]
    norm_weight: Tensor | None = None  # [F_out] LayerNorm, when given
    norm_bias: Tensor | None = None  # [F_out]


@dataclass
class Options:
    """Which model, and which side of each difference between paper and authors' code.

    The defaults are the paper's side. ``score`` is one of ``SCORES[model]``.
    """

    model: Literal["deepgat", "gat", "gcn", "oracle", "sage"]
    score: Literal["dp", "sd", "ad", "row", "symmetric", "softmax", "sum", "mean"]
    sd_scale: Literal["width", "sqrt-output-width"] = "width"
    label_input: Literal["prediction", "layer"] = "prediction"
    label_hops: int = 3
    first_labels: Literal["zero", "neighbor-counts"] = "zero"
    class_activation: Literal["softmax", "sigmoid"] = "softmax"
    output_activation: bool = True
    heads_in: list[int] = field(default_factory=list)  # per layer; for label_input="layer" only


@dataclass
class Result:
    """What a run gives back. ``layer_logits`` has key L always, keys 0..L-1 given class heads."""

    logits: Tensor  # [n, C]
    layer_logits: dict[int, Tensor]
    hidden: list[Tensor]  # h^1..h^L; the last one is ``logits``
    attention: list[Attention]  # per layer: (v, u) -> [H]
    model: str


# --------------------------------------------------------------------------- the graph


def neighbours(edge_index: Tensor, n: int) -> Neighbours:
    """N_v for every v: the sources u of the edges u -> v, and v itself; each once, in order."""
    sets = [{v} for v in range(n)]
    for source, target in zip(edge_index[0].tolist(), edge_index[1].tolist(), strict=True):
        if not (0 <= source < n and 0 <= target < n):
            raise ValueError(f"edge {source} -> {target} leaves a graph of {n} nodes")
        sets[target].add(source)
    return [sorted(members) for members in sets]


def rm_diag_power(nbrs: Neighbours, k: int) -> Tensor:
    """rm_diag(Â^k), dense [n, n], where Â_vu = 1/|N_v| for u in N_v."""
    n = len(nbrs)
    A_hat = torch.zeros(n, n, dtype=torch.float64)
    for v in range(n):
        for u in nbrs[v]:
            A_hat[v, u] = 1.0 / len(nbrs[v])
    power = torch.linalg.matrix_power(A_hat, k)
    for v in range(n):
        power[v, v] = 0.0
    return power


def neighbour_counts(nbrs: Neighbours, Y: Tensor) -> Tensor:
    """A Y without self-loops: how often each label occurs among the other nodes of N_v."""
    rows = []
    for v in range(len(nbrs)):
        count = torch.zeros_like(Y[v])
        for u in nbrs[v]:
            if u != v:
                count = count + Y[u]
        rows.append(count)
    return torch.stack(rows)


def label_inputs(
    nbrs: Neighbours, Y: Tensor, hops: int, first: Literal["zero", "neighbor-counts"]
) -> list[Tensor]:
    """z_1..z_hops, where z_l = rm_diag(Â^(l-1)) Y.

    The paper's z_1 = rm_diag(I) Y is zero; with ``first="neighbor-counts"`` it is the authors'.
    """
    if first not in ("zero", "neighbor-counts"):
        raise ValueError(f"first labels: {first!r}")
    Y = Y.double()
    zs = []
    for layer in range(1, hops + 1):
        if layer == 1 and first == "neighbor-counts":
            zs.append(neighbour_counts(nbrs, Y))
        else:
            zs.append(rm_diag_power(nbrs, layer - 1) @ Y)
    return zs


# --------------------------------------------------------------------------- elementary functions


def inner(q: Tensor, k: Tensor) -> Tensor:
    """<q, k>."""
    return (q * k).sum()


def softmax(p: Tensor) -> Tensor:
    """exp(p_i) / Σ_j exp(p_j), shifted by the maximum so as not to overflow."""
    e = torch.exp(p - p.detach().max())
    return e / e.sum()


def log_softmax(p: Tensor) -> Tensor:
    """p_i - log Σ_j exp(p_j), shifted by the maximum so as not to overflow."""
    shifted = p - p.detach().max()
    return shifted - torch.log(torch.exp(shifted).sum())


def log_sigmoid(p: Tensor) -> Tensor:
    """log σ(p) = -log(1 + exp(-p)) = -log(exp(0) + exp(-p))."""
    return -torch.logaddexp(torch.zeros_like(p), -p)


def sigmoid(p: Tensor) -> Tensor:
    """1 / (1 + exp(-p)), through its logarithm so that neither end overflows."""
    return torch.exp(log_sigmoid(p))


def elu(h: Tensor) -> Tensor:
    """h where h > 0, exp(h) - 1 elsewhere."""
    return torch.where(h > 0, h, torch.expm1(torch.clamp(h, max=0.0)))


def leaky_relu(s: Tensor) -> Tensor:
    """s where s > 0, 0.2 s elsewhere."""
    return torch.where(s > 0, s, 0.2 * s)


def layer_norm(h_v: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """One node's features to mean 0 and (population) variance 1; then scale and shift."""
    mean = h_v.sum() / h_v.numel()
    variance = ((h_v - mean) ** 2).sum() / h_v.numel()
    normed = (h_v - mean) / torch.sqrt(variance + 1e-5)
    if weight is not None:
        normed = weight * normed
    if bias is not None:
        normed = normed + bias
    return normed


# --------------------------------------------------------------------------- scores and attention


def sd_divisor(q: Tensor, output_width: int, options: Options) -> float:
    """What SD divides <q, k> by: dim(q) in the paper, sqrt(D_out) in the authors' code."""
    if options.sd_scale == "width":
        return float(q.numel())
    if options.sd_scale == "sqrt-output-width":
        return float(output_width) ** 0.5
    raise ValueError(f"sd_scale {options.sd_scale!r}")


def score(q: Tensor, k: Tensor, head: int, params: LayerParams, options: Options) -> Tensor:
    """AD, DP or SD of q (of the node v) and k (of its neighbour u)."""
    if options.score == "dp":
        return inner(q, k)
    if options.score == "sd":
        return inner(q, k) / sd_divisor(q, params.W2.shape[1], options)
    if options.score == "ad":
        if params.att_target is None or params.att_source is None:
            raise ValueError("AD needs att_target and att_source")
        return leaky_relu(inner(params.att_target[head], q) + inner(params.att_source[head], k))
    raise ValueError(f"score {options.score!r}")


def attend(
    queries: list[list[Tensor]], nbrs: Neighbours, params: LayerParams, options: Options
) -> Attention:
    """α_vu = softmax over u in N_v of score(q_v, q_u), per head. ``queries[head][v]`` is q_v."""
    alpha: Attention = {}
    for v in range(len(nbrs)):
        per_head = []
        for head in range(len(queries)):
            q = queries[head]
            scores = [score(q[v], q[u], head, params, options) for u in nbrs[v]]
            per_head.append(softmax(torch.stack(scores)))
        for i, u in enumerate(nbrs[v]):
            alpha[v, u] = torch.stack([weights[i] for weights in per_head])
    return alpha


def gcn_attention(nbrs: Neighbours, heads: int, options: Options) -> Attention:
    """1/|N_v| ("row") or 1/sqrt(|N_v| |N_u|) ("symmetric"), the same in every head."""
    alpha: Attention = {}
    for v in range(len(nbrs)):
        for u in nbrs[v]:
            if options.score == "row":
                weight = 1.0 / len(nbrs[v])
            else:
                weight = 1.0 / (len(nbrs[v]) * len(nbrs[u])) ** 0.5
            alpha[v, u] = torch.full((heads,), weight, dtype=torch.float64)
    return alpha


def sage_attention(nbrs: Neighbours, heads: int) -> Attention:
    """1/(|N_v| − 1) for the others, 0 for the node itself: GraphSAGE's mean."""
    alpha: Attention = {}
    for v in range(len(nbrs)):
        for u in nbrs[v]:
            weight = 0.0 if u == v else 1.0 / (len(nbrs[v]) - 1)
            alpha[v, u] = torch.full((heads,), weight, dtype=torch.float64)
    return alpha


def oracle(y: Tensor, v: int, u: int) -> float:
    """o(v, u): 1 if same class else 0; <y_v, y_u> for label vectors, at least 1 where u is v."""
    if y.dim() == 1:
        return 1.0 if int(y[v]) == int(y[u]) else 0.0
    shared = float((y[v].double() * y[u].double()).sum())
    return max(1.0, shared) if v == u else shared


def oracle_attention(nbrs: Neighbours, heads: int, y: Tensor, options: Options) -> Attention:
    """softmax(o) over N_v ("softmax") or o/Σo ("sum"), the same in every head."""
    alpha: Attention = {}
    for v in range(len(nbrs)):
        o = torch.tensor([oracle(y, v, u) for u in nbrs[v]], dtype=torch.float64)
        weights = softmax(o) if options.score == "softmax" else o / o.sum()
        for i, u in enumerate(nbrs[v]):
            alpha[v, u] = torch.stack([weights[i]] * heads)
    return alpha


# --------------------------------------------------------------------------- one layer


def join_labels(h: Tensor, z: Tensor, heads_in: int) -> Tensor:
    """The authors' layer input: every input head's block becomes (h_head ‖ z)."""
    if h.shape[1] % heads_in != 0:
        raise ValueError(f"width {h.shape[1]} is not made of {heads_in} heads")
    width = h.shape[1] // heads_in
    rows = []
    for v in range(h.shape[0]):
        blocks = []
        for head in range(heads_in):
            blocks.append(h[v, head * width : (head + 1) * width])
            blocks.append(z[v])
        rows.append(torch.cat(blocks))
    return torch.stack(rows)


def class_logits(seen: Tensor, W1: Tensor) -> list[list[Tensor]]:
    """p_v = W1 (what the class head sees at v), as ``[head][v]``."""
    return [[W1[head] @ seen[v] for v in range(seen.shape[0])] for head in range(W1.shape[0])]


def mean_over_heads(p: list[list[Tensor]]) -> Tensor:
    """The layer's prediction: the logits averaged over the heads, [n, C]."""
    heads, n = len(p), len(p[0])
    return torch.stack([sum(p[head][v] for head in range(heads)) / heads for v in range(n)])


def class_scores(p: list[list[Tensor]], options: Options) -> list[list[Tensor]]:
    """ŷ = softmax(p), or sigmoid(p), per head and node."""
    if options.class_activation not in ("softmax", "sigmoid"):
        raise ValueError(f"class_activation {options.class_activation!r}")
    activation = softmax if options.class_activation == "softmax" else sigmoid
    return [[activation(p_v) for p_v in p_head] for p_head in p]


def propagate(h: Tensor, nbrs: Neighbours, alpha: Attention, W2: Tensor, last: bool) -> Tensor:
    """a_v = Σ_u α_vu h_u, then W2 a_v; heads concatenated, or averaged in the last layer."""
    rows = []
    for v in range(len(nbrs)):
        outs = []
        for head in range(W2.shape[0]):
            a_v = torch.zeros_like(h[v])
            for u in nbrs[v]:
                a_v = a_v + alpha[v, u][head] * h[u]
            outs.append(W2[head] @ a_v)
        rows.append(sum(outs) / len(outs) if last else torch.cat(outs))
    return torch.stack(rows)


def finish(out: Tensor, layer_input: Tensor, params: LayerParams, activate: bool) -> Tensor:
    """Bias, linear skip, LayerNorm (each where given), then σ = ELU."""
    rows = []
    for v in range(out.shape[0]):
        h_v = out[v]
        if params.bias is not None:
            h_v = h_v + params.bias
        if params.skip_weight is not None:
            h_v = h_v + params.skip_weight @ layer_input[v]
        if params.skip_bias is not None:
            h_v = h_v + params.skip_bias
        if params.norm_weight is not None or params.norm_bias is not None:
            h_v = layer_norm(h_v, params.norm_weight, params.norm_bias)
        rows.append(elu(h_v) if activate else h_v)
    return torch.stack(rows)


# --------------------------------------------------------------------------- the models


def run(
    x: Tensor,
    edge_index: Tensor,
    layers: list[LayerParams],
    options: Options,
    train_labels: Tensor | None = None,
    y: Tensor | None = None,
) -> Result:
    """The whole network on one graph.

    ``train_labels`` [n, C] holds the one-hot training rows, zero elsewhere; without it no layer
    sees labels, whatever ``label_hops`` says. ``y`` is for the oracle: [n] classes or [n, C] 0/1.
    """
    if options.score not in SCORES[options.model]:
        raise ValueError(f"{options.model} has no score {options.score!r}")
    if train_labels is not None and options.model in ("gat", "gcn", "sage"):
        raise ValueError(f"{options.model} takes no label inputs")
    if (y is not None) != (options.model == "oracle"):
        raise ValueError("y goes with the oracle, and only with it")
    n, L = x.shape[0], len(layers)
    nbrs = neighbours(edge_index, n)
    zs: list[Tensor] = []
    if train_labels is not None:
        zs = label_inputs(nbrs, train_labels, options.label_hops, options.first_labels)

    h = x.double()  # h^0
    layer_logits: dict[int, Tensor] = {}
    hidden: list[Tensor] = []
    attention: list[Attention] = []
    for layer in range(1, L + 1):
        params = _double(layers[layer - 1])
        last = layer == L
        z = zs[layer - 1] if layer <= len(zs) else None

        # 1. Who sees z: the class heads only (paper), or the whole layer (authors).
        seen = h
        if z is not None and options.label_input == "prediction":
            seen = torch.stack([torch.cat([h[v], z[v]]) for v in range(n)])
        elif z is not None and options.label_input == "layer":
            h = seen = join_labels(h, z, options.heads_in[layer - 1])
        elif z is not None:
            raise ValueError(f"label_input {options.label_input!r}")
        _check(params, h.shape[1], seen.shape[1], last)
        H = params.W2.shape[0]

        # 2. The prediction of layer l-1.
        p = None
        if options.model in ("deepgat", "oracle") and params.W1 is not None:
            p = class_logits(seen, params.W1)
            layer_logits[layer - 1] = mean_over_heads(p)

        # 3. Attention.
        if options.model == "deepgat":
            if p is None:
                raise ValueError("DeepGAT needs W1 in every layer")
            alpha = attend(class_scores(p, options), nbrs, params, options)
        elif options.model == "gat":
            Wh = [[params.W2[head] @ h[v] for v in range(n)] for head in range(H)]
            alpha = attend(Wh, nbrs, params, options)
        elif options.model == "gcn":
            alpha = gcn_attention(nbrs, H, options)
        elif options.model == "sage":
            alpha = sage_attention(nbrs, H)
        else:
            assert y is not None
            alpha = oracle_attention(nbrs, H, y, options)
        attention.append(alpha)

        # 4. Aggregate, project, activate.
        out = propagate(h, nbrs, alpha, params.W2, last)
        h = finish(out, h, params, activate=not last or options.output_activation)
        hidden.append(h)
    layer_logits[L] = h
    return Result(h, layer_logits, hidden, attention, options.model)


def _double(params: LayerParams) -> LayerParams:
    """The same parameters in float64, still attached to the originals."""
    given = {f.name: getattr(params, f.name) for f in fields(params)}
    return replace(params, **{k: t.double() for k, t in given.items() if t is not None})


def _check(params: LayerParams, F_in: int, F_pred: int, last: bool) -> None:
    """Refuse wrong shapes, which broadcasting would otherwise hide."""
    H, D = params.W2.shape[0], params.W2.shape[1]
    F_out = D if last else H * D
    C = params.W1.shape[1] if params.W1 is not None else 0
    wanted = {
        "W2": (H, D, F_in),
        "W1": (H, C, F_pred),
        "bias": (F_out,),
        "att_target": (H, D),
        "att_source": (H, D),
        "skip_weight": (F_out, F_in),
        "skip_bias": (F_out,),
        "norm_weight": (F_out,),
        "norm_bias": (F_out,),
    }
    for name, shape in wanted.items():
        tensor = getattr(params, name)
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {shape}")


# --------------------------------------------------------------------------- the loss


def gamma(layer: int, delta: float) -> float:
    """γ(l) = δ/(l+δ) + 1."""
    return delta / (layer + delta) + 1.0


def cross_entropy(logits: Tensor, y: Tensor, nodes: list[int]) -> Tensor:
    """The mean over the nodes of -log softmax(p_v)[y_v]."""
    return sum(-log_softmax(logits[v])[int(y[v])] for v in nodes) / len(nodes)


def binary_cross_entropy(logits: Tensor, y: Tensor, nodes: list[int]) -> Tensor:
    """The mean over nodes and labels of -y log σ(p) - (1-y) log(1-σ(p)); 1-σ(p) = σ(-p)."""
    total = torch.zeros((), dtype=torch.float64)
    for v in nodes:
        y_v = y[v].double()
        terms = -y_v * log_sigmoid(logits[v]) - (1.0 - y_v) * log_sigmoid(-logits[v])
        total = total + terms.sum() / terms.numel()
    return total / len(nodes)


def loss(
    result: Result,
    y: Tensor,
    train_mask: Tensor,
    delta: float,
    terms: Literal["from-1", "from-0"] = "from-1",
    multi_label: bool = False,
) -> Tensor:
    """Σ_l γ(l) CE(ŷ^l on the training nodes), over the layers that predict.

    l = 1..L (paper, "from-1") or 0..L (authors, "from-0"). GAT and GCN predict at L only and
    their loss is the plain cross-entropy. ``y`` is [n] classes, [n, C] 0/1 if ``multi_label``.
    """
    if terms not in ("from-1", "from-0"):
        raise ValueError(f"terms {terms!r}")
    if train_mask.dtype != torch.bool:
        raise ValueError("train_mask is a boolean mask")
    nodes = [v for v in range(len(train_mask)) if bool(train_mask[v])]
    measure = binary_cross_entropy if multi_label else cross_entropy
    if result.model in ("gat", "gcn", "sage"):
        return measure(result.logits, y, nodes)
    total = torch.zeros((), dtype=torch.float64)
    for layer in sorted(result.layer_logits):
        if layer == 0 and terms == "from-1":
            continue
        weight = gamma(layer, delta)
        total = total + weight * measure(result.layer_logits[layer], y, nodes)
    return total
