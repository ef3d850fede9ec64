"""A literal transcription of the systems beside DeepGAT, for checking the fast ones against.

As in ``transcription.py``: loops and dense matrices in double precision, one function per system,
written from the papers, and nothing of the library imported. ``w`` holds the parameters by the
names they have in the library's state dict.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from transcription import Neighbours, leaky_relu, softmax

Weights = dict[str, Tensor]


# --------------------------------------------------------------------------- propagation matrices


def dense(nbrs: Neighbours, weight: Callable[[int, int], Tensor | float]) -> Tensor:
    """P [n, n] with P_vu = weight(v, u) for u in N_v."""
    rows = []
    for v in range(len(nbrs)):
        row = [torch.zeros((), dtype=torch.float64) for _ in nbrs]
        for u in nbrs[v]:
            row[u] = torch.as_tensor(weight(v, u), dtype=torch.float64)
        rows.append(torch.stack(row))
    return torch.stack(rows)


def symmetric(nbrs: Neighbours) -> Tensor:
    """D^(-1/2) (A + I) D^(-1/2)."""
    return dense(nbrs, lambda v, u: 1 / math.sqrt(len(nbrs[v]) * len(nbrs[u])))


def mean_of_others(nbrs: Neighbours) -> Tensor:
    """1/(|N_v| − 1) for u ≠ v; a row of zeros for a node without others."""
    return dense(nbrs, lambda v, u: 0.0 if u == v else 1 / (len(nbrs[v]) - 1))


def class_attention(nbrs: Neighbours, q: Tensor, tau: float, rows: bool) -> Tensor:
    """e_vu = exp(τ Σ_a q_va q_ua); e_vu / d_v, or e_vu / sqrt(d_v d_u); d_v = Σ_u e_vu."""
    e = dense(nbrs, lambda v, u: torch.exp(tau * (q[v] * q[u]).sum()))
    d = e.sum(1)
    return e / d[:, None] if rows else e / torch.sqrt(d[:, None] * d[None, :])


def scattered(x: int) -> int:
    """A 32-bit hash: xor-shift, multiply, twice."""
    x %= 2**32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) % 2**32
    x = ((x ^ (x >> 15)) * 0x846CA68B) % 2**32
    return x ^ (x >> 16)


def given_classes(y: Tensor, seed: int, right: float, classes: int) -> Tensor:
    """One-hot rows [n, C]: the true class, or with probability 1 − p one of the others."""
    rows = torch.zeros(len(y), classes, dtype=torch.float64)
    golden = 0x9E3779B9
    for v, true in enumerate(y.tolist()):
        draw = scattered(scattered(seed ^ v) + golden)
        wrong = draw < int((1 - right) * 2**32)
        others = [c % classes for c in range(true + 1, true + classes)]
        rows[v, others[scattered(draw + golden) % (classes - 1)] if wrong else true] = 1
    return rows


def additive_attention(nbrs: Neighbours, Wh: Tensor, target: Tensor, source: Tensor) -> Tensor:
    """softmax over N_v of LeakyReLU(<t, Wh_v> + <s, Wh_u>), one head."""
    rows = []
    for v in range(len(nbrs)):
        scores = [leaky_relu((target * Wh[v]).sum() + (source * Wh[u]).sum()) for u in nbrs[v]]
        alpha = softmax(torch.stack(scores))
        row = [torch.zeros((), dtype=torch.float64) for _ in nbrs]
        for i, u in enumerate(nbrs[v]):
            row[u] = alpha[i]
        rows.append(torch.stack(row))
    return torch.stack(rows)


def softmax_rows(p: Tensor) -> Tensor:
    return torch.stack([softmax(row) for row in p])


def relu(h: Tensor) -> Tensor:
    return torch.where(h > 0, h, torch.zeros_like(h))


def affine(h: Tensor, w: Weights, name: str) -> Tensor:
    return h @ w[f"{name}.weight"].t() + w[f"{name}.bias"]


# --------------------------------------------------------------------------- the systems


def place(layer: int, layers: int, depth: int) -> int:
    """⌈l d/L⌉ of more than d layers: the smallest k with k L ≥ l d."""
    if not 0 < depth < layers:
        return layer
    return next(k for k in range(1, depth + 1) if k * layers >= layer * depth)


def gcnii(
    x: Tensor,
    nbrs: Neighbours,
    w: Weights,
    layers: int,
    alpha: float,
    theta: float,
    attention: Callable[[int, Tensor], Tensor] | None = None,
    depth: int = 0,
) -> tuple[Tensor, list[Tensor]]:
    """(logits, [h^0 … h^L]); ``attention(l, h^(l-1))`` gives another P than GCN's.

    ``depth`` d > 0: of more layers each goes d/L of the way, with the β of layer ⌈l d/L⌉.
    """
    step = depth / layers if 0 < depth < layers else 1.0
    h0 = h = relu(affine(x, w, "encoder"))
    states = [h0]
    for layer in range(1, layers + 1):
        P = symmetric(nbrs) if attention is None else attention(layer, h)
        W = w[f"maps.{layer - 1}.weight"]
        beta = math.log(theta / place(layer, layers, depth) + 1)
        mixed = (1 - alpha) * (P @ h) + alpha * h0
        new = relu(mixed @ ((1 - beta) * torch.eye(W.shape[0], dtype=torch.float64) + beta * W))
        h = (1 - step) * h + step * new
        states.append(h)
    return affine(h, w, "classifier"), states


def g2_gate(tau_hat: Tensor, nbrs: Neighbours, p: float, mean: bool) -> Tensor:
    """tanh of the sum, or mean over the others, of |τ̂_v − τ̂_u|^p."""
    rows = []
    for v in range(len(nbrs)):
        others = [u for u in nbrs[v] if u != v]
        total = torch.zeros_like(tau_hat[v])
        for u in others:
            total = total + torch.abs(tau_hat[v] - tau_hat[u]) ** p
        rows.append(torch.tanh(total / max(len(others), 1) if mean else total))
    return torch.stack(rows)


def g2(
    x: Tensor,
    nbrs: Neighbours,
    w: Weights,
    layers: int,
    p: float,
    mean: bool,
    conv: Callable[[str, Tensor], Tensor],
    own: bool,
) -> tuple[Tensor, list[Tensor]]:
    """(logits, [h^0 … h^L]); ``conv(name, h)`` is the layer inside before σ."""
    h = relu(affine(x, w, "encoder"))
    states = [h]
    for _ in range(layers):
        new = relu(conv("conv", h))
        tau_hat = relu(conv("gate_conv", h)) if own else new
        tau = g2_gate(tau_hat, nbrs, p, mean)
        h = (1 - tau) * h + tau * new
        states.append(h)
    return affine(h, w, "classifier"), states


def gcn_conv(nbrs: Neighbours, w: Weights) -> Callable[[str, Tensor], Tensor]:
    def conv(name: str, h: Tensor) -> Tensor:
        return symmetric(nbrs) @ h @ w[f"{name}.weight"].t() + w[f"{name}.bias"]

    return conv


def sage_conv(nbrs: Neighbours, w: Weights) -> Callable[[str, Tensor], Tensor]:
    def conv(name: str, h: Tensor) -> Tensor:
        neighbours = mean_of_others(nbrs) @ h @ w[f"{name}.weight"].t()
        return neighbours + affine(h, w, f"{name}.res")

    return conv


def gat_conv(nbrs: Neighbours, w: Weights) -> Callable[[str, Tensor], Tensor]:
    """One head."""

    def conv(name: str, h: Tensor) -> Tensor:
        Wh = h @ w[f"{name}.weight"].t()
        target, source = (w[f"{name}.score.{end}"][0] for end in ("target", "source"))
        return additive_attention(nbrs, Wh, target, source) @ Wh + w[f"{name}.bias"]

    return conv


def deepgat_conv(nbrs: Neighbours, w: Weights) -> Callable[[str, Tensor], Tensor]:
    """One head, no labels."""

    def conv(name: str, h: Tensor) -> Tensor:
        q = softmax_rows(h @ w[f"{name}.class_weight"].t())
        alpha = class_attention(nbrs, q, 1.0, rows=True)
        return alpha @ h @ w[f"{name}.weight"].t() + w[f"{name}.bias"]

    return conv


def predictor(x: Tensor, w: Weights) -> Tensor:
    """The MLP before the hops: σ(XW + b) W' + b'."""
    return affine(relu(affine(x, w, "lin1")), w, "lin2")


def appnp(
    x: Tensor, nbrs: Neighbours, w: Weights, hops: int, alpha: float
) -> tuple[Tensor, list[Tensor]]:
    h0 = h = predictor(x, w)
    states = [h0]
    for _ in range(hops):
        h = (1 - alpha) * (symmetric(nbrs) @ h) + alpha * h0
        states.append(h)
    return h, states


def dagnn(x: Tensor, nbrs: Neighbours, w: Weights, hops: int) -> tuple[Tensor, list[Tensor]]:
    h = predictor(x, w)
    states = [h]
    for _ in range(hops):
        h = symmetric(nbrs) @ h
        states.append(h)
    total = torch.zeros_like(h)
    for state in states:
        gate = 1 / (1 + torch.exp(-affine(state, w, "gate")))
        total = total + gate * state
    return total, states


def unit_rows(x: Tensor) -> Tensor:
    """Every row divided by the sum of its absolute values; rows of zeros stay."""
    sums = [sum(abs(value) for value in row.tolist()) for row in x]
    return torch.stack([row / total if total else row for row, total in zip(x, sums, strict=True)])


def grand(
    x: Tensor, nbrs: Neighbours, w: Weights, hops: int, norm: Callable[[Tensor, str], Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """An MLP on the mean of P^k x, k = 0 … K; the states are the sums of the first powers."""
    power = total = unit_rows(x) / (hops + 1)
    states = [total]
    for _ in range(hops):
        power = symmetric(nbrs) @ power
        total = total + power
        states.append(total)
    h = relu(affine(norm(total, "input_norm"), w, "lin1"))
    return affine(norm(h, "hidden_norm"), w, "lin2"), states


def grand_projected(
    x: Tensor, nbrs: Neighbours, w: Weights, hops: int, norm: Callable[[Tensor, str], Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The same with W before the hops, and the norm and b after them."""
    total = power = unit_rows(x) @ w["lin1.weight"].t() / (hops + 1)
    states = [total]
    for _ in range(hops):
        power = symmetric(nbrs) @ power
        total = total + power
        states.append(total)
    h = relu(norm(total, "input_norm") + w["lin1.bias"])
    return affine(norm(h, "hidden_norm"), w, "lin2"), states


def disagreement(views: list[Tensor], temperature: float) -> Tensor:
    """The mean over views and nodes of ‖p − p̄'‖², p̄' the sharpened mean of the views' p."""
    p = [softmax_rows(view) for view in views]
    total = torch.zeros((), dtype=torch.float64)
    for v in range(len(views[0])):
        mean = (sum(each[v] for each in p) / len(p)).detach()
        sharp = mean ** (1 / temperature) / (mean ** (1 / temperature)).sum()
        for each in p:
            total = total + ((each[v] - sharp) ** 2).sum()
    return total / len(views[0]) / len(views)


def length(row: Tensor) -> Tensor:
    """‖row‖; at 0, where it has no gradient, that is taken to be 0."""
    square = (row * row).sum()
    return torch.sqrt(square) if float(square.detach()) > 0 else square


def pair_norm(h: Tensor, scale: float, individually: bool) -> Tensor:
    """x̃ = x − mean over nodes; s x̃ / sqrt(mean ‖x̃‖²), or s x̃_v / ‖x̃_v‖. PyG's ε = 1e-5."""
    n = h.shape[0]
    centred = h - sum(h[v] for v in range(n)) / n
    if individually:
        return torch.stack([scale * row / (1e-5 + length(row)) for row in centred])
    mean_square = sum((row * row).sum() for row in centred) / n
    return scale * centred / torch.sqrt(mean_square + 1e-5)


def gcn(
    x: Tensor,
    P: Tensor,
    w: Weights,
    layers: int,
    norm: Callable[[Tensor], Tensor] = lambda h: h,
    residual: bool = False,
    jump: Callable[[list[Tensor]], Tensor] | None = None,
    name: str = "convs",
) -> tuple[Tensor, list[Tensor]]:
    """(logits, [h^1 … h^L]): the plain stack; with ``jump`` every layer is a hidden one."""
    h, states = x, []
    for layer in range(1, layers + 1):
        out = affine(P @ h, w, f"{name}.{layer - 1}")
        if layer < layers or jump is not None:
            out = relu(norm(out))
        h = out + h if residual and out.shape == h.shape else out
        states.append(h)
    return h if jump is None else affine(jump(states), w, "classifier"), states


def sage(x: Tensor, nbrs: Neighbours, w: Weights, layers: int) -> tuple[Tensor, list[Tensor]]:
    conv, h, states = sage_conv(nbrs, w), x, []
    for layer in range(layers):
        out = conv(f"convs.{layer}", h)
        h = out if layer == layers - 1 else relu(out)
        states.append(h)
    return h, states


# --------------------------------------------------------------------------- PreNorm


def layer_norm(h: Tensor, w: Weights, name: str) -> Tensor:
    """Every row less its mean, over its deviation; torch's ε = 1e-5."""
    rows = []
    for row in h:
        mean = row.sum() / len(row)
        variance = ((row - mean) ** 2).sum() / len(row)
        rows.append((row - mean) / torch.sqrt(variance + 1e-5))
    return torch.stack(rows) * w[f"{name}.weight"] + w[f"{name}.bias"]


def batch_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    """Every column less its mean, over its deviation, as in training."""
    columns = []
    for column in x.t():
        mean = column.sum() / len(column)
        variance = ((column - mean) ** 2).sum() / len(column)
        columns.append((column - mean) / torch.sqrt(variance + 1e-5))
    return torch.stack(columns, 1) * w[f"{name}.weight"] + w[f"{name}.bias"]


def prenorm(
    x: Tensor,
    w: Weights,
    layers: int,
    neighbours: Callable[[str, Tensor], Tensor],
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """(logits, [h^0 … h^L], [ν(h^0) … ν(h^(L-1))]); ``neighbours(name, ν)`` is conv alone."""
    h, states, inputs = relu(affine(x, w, "encoder")), [], []
    states.append(h)
    for layer in range(layers):
        nu = layer_norm(h, w, f"norms.{layer}")
        own = affine(nu, w, f"convs.{layer}.res")
        h = h + relu(neighbours(f"convs.{layer}", nu) + own)
        inputs.append(nu)
        states.append(h)
    return affine(layer_norm(h, w, f"norms.{layers}"), w, "classifier"), states, inputs


def propagated(P: Tensor, w: Weights) -> Callable[[str, Tensor], Tensor]:
    """P h W, the same P in every layer."""
    return lambda name, h: P @ h @ w[f"{name}.weight"].t()


def two_heads(nbrs: Neighbours, w: Weights) -> Callable[[str, Tensor], Tensor]:
    """GAT's attention twice, each on its half of the channels, side by side."""

    def conv(name: str, h: Tensor) -> Tensor:
        halves = []
        for head, W in enumerate(w[f"{name}.weight"].chunk(2)):
            Wh = h @ W.t()
            target, source = (w[f"{name}.score.{end}"][head] for end in ("target", "source"))
            halves.append(additive_attention(nbrs, Wh, target, source) @ Wh)
        return torch.cat(halves, 1)

    return conv
