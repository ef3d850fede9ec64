"""Neighbour attention on a GPU: launches the Triton kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from deepgat.ops import dropout_masks
from deepgat.ops.attention import LISTS, NONE, Inputs, register_kernels
from deepgat.ops.gpu import attention_kernels as kernels
from deepgat.ops.gpu.launch import compute_type, sum_type, tiles_for, two_floats

ROW, LOG_SUM, WEIGHTED = 0, 1, 2
PIECES = 512
"""Pieces per program of the counting kernel."""


class _Problem:
    """Kernel arguments that the forward and backward pass share."""

    def __init__(self, x: Inputs) -> None:
        value, bias, kind = x.value, x.bias, x.kind
        self.inputs = x
        self.lists = dict(zip(LISTS, x.lists, strict=True))
        self.n, self.heads, self.channels = value.shape
        self.acc, self.sums = compute_type(value), sum_type(value)
        self.score_channels = x.query.size(2) if kind != NONE else 1
        """A, unpadded."""
        degree = self.lists["source"].numel() / max(self.n, 1)
        self.tiles = tiles_for(self.heads, self.channels, self.score_channels, degree)
        self.query = self.activate(x.query) if x.activation else x.query
        key = self.query if x.shared else x.key
        self.numbers = {
            "scale": two_floats(x.scale),
            "slope": two_floats(x.slope),
            "threshold": dropout_masks.threshold(x.dropout),
            "factor": two_floats(1 / (1 - x.dropout) if x.dropout < 1 else 0.0),
        }
        nothing = (0, 0, 0)
        self.shape: dict[str, Any] = {
            "H": self.heads, "D": self.channels, "A": self.query.size(2) if kind != NONE else 1,
            "QS": self.query.stride() if kind != NONE else nothing,
            "KS": key.stride() if kind != NONE else nothing,
            "VS": value.stride(), "BS": nothing if bias is None else bias.stride(),
            "KIND": kind, "BIAS": bias is not None, "DROP": x.dropout > 0,
            "NAMED": x.dropout > 0 and x.seed.numel() > 1, "ACC": self.acc,
            "EB": self.tiles.edges, "HB": self.tiles.heads,
            "AB": self.tiles.score_channels, "DB": self.tiles.channels,
        }  # fmt: skip
        self.tensors = {
            "query": self.query, "key": key, "value": value,
            "bias": value if bias is None else bias, "seed": x.seed,
        }  # fmt: skip

    def activate(self, logits: Tensor) -> Tensor:
        """ŷ = softmax or sigmoid of the logits: [n, H, A padded to the tile]."""
        width = self.tiles.score_channels
        y = logits.new_empty(self.n, self.heads, width)
        rows = self.n * self.heads
        block = max(1, 1024 // width)
        if rows:
            kernels.activate[(triton.cdiv(rows, block),)](
                logits, y, rows, self.heads, self.score_channels, STRIDE=logits.stride(),
                ACTIVATION=self.inputs.activation, ACC=self.acc, RB=block, CB=width,
            )  # fmt: skip
        return y

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """<x, y> per node and head: [n, H]."""
        out = x.new_empty(self.n, self.heads, dtype=self.sums)
        rows = self.n * self.heads
        width = triton.next_power_of_2(self.channels)
        block = max(1, 1024 // width)
        kernels.row_dot[(triton.cdiv(rows, block),)](
            x, y, out, rows, self.heads, self.channels, XS=x.stride(), YS=y.stride(),
            ACC=self.acc, RB=block, CB=width,
        )  # fmt: skip
        return out

    def parts(self, hubs: Tensor, pieces: Tensor, width: int) -> Tensor:
        """A buffer for the partial results of split lists: [slots, H, width]."""
        slots = pieces.size(0) - self.n + hubs.size(0)  # a hub of p pieces adds p − 1 to the n
        return self.inputs.value.new_empty(slots, self.heads, width, dtype=self.sums)


def forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """(out [n, H, D], L [n, H]) of ``deepgat::attend``."""
    p, value = _Problem(x), x.value
    out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    log_sum = value.new_empty(p.n, p.heads, dtype=p.sums)
    if not value.numel():
        return out, log_sum
    pieces, hubs = p.lists["pieces"], p.lists["hubs"]
    parts = {
        "part_sum": p.parts(hubs, pieces, p.channels),
        "part_top": p.parts(hubs, pieces, 1),
        "part_total": p.parts(hubs, pieces, 1),
    }
    tiles = p.tiles
    for stage in (LOG_SUM, WEIGHTED) if x.symmetric_normalization else (ROW,):
        if stage == LOG_SUM and x.kind == NONE and x.bias is None:
            kernels.count[(triton.cdiv(pieces.size(0), PIECES),)](
                pieces, pieces.size(0), log_sum, parts["part_top"], parts["part_total"],
                H=p.heads, ACC=p.acc, RB=PIECES,
            )  # fmt: skip
        else:
            kernels.forward[(pieces.size(0), tiles.head_blocks)](
                pieces=pieces, source=p.lists["source"], out=out, log_sum=log_sum,
                **parts, **p.tensors, **p.numbers, **p.shape, STAGE=stage, num_warps=tiles.warps,
            )  # fmt: skip
        if hubs.size(0):
            kernels.merge_forward[(hubs.size(0), tiles.head_blocks)](
                hubs=hubs, out=out, log_sum=log_sum, **parts, heads=p.heads, channels=p.channels,
                STAGE=stage, ACC=p.acc, HB=tiles.heads, DB=tiles.channels,
            )  # fmt: skip
    return out, log_sum


def backward(
    grad: Tensor, out: Tensor, log_sum: Tensor, x: Inputs, want_scores: bool, want_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of ``deepgat::attend_backward``.

    On an undirected graph one launch suffices, since a node's list serves both directions of its
    edges. On a directed graph the lists by target and by source need a launch each. With symmetric
    normalisation dV comes first, since the other gradients need c_v = <dV_v, V_v>.
    """
    p = _Problem(x)
    scores, edges = want_scores and x.kind != NONE, want_bias and x.bias is not None
    separate_value = x.symmetric_normalization and (scores or edges)

    def empty(like: Tensor | None, wanted: bool) -> Tensor:
        if not wanted or like is None:
            return x.value.new_empty(0)
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)

    grads = {
        "grad_query": empty(x.query, scores),
        "grad_key": empty(x.key, scores and not x.shared),
        "grad_value": empty(x.value, True),
        "grad_bias": empty(x.bias, edges),
    }
    found = grads["grad_query"], grads["grad_key"], grads["grad_value"], grads["grad_bias"]
    if not x.value.numel():
        return found
    row_dot = p.dot(grad, out) if scores or edges else log_sum
    tensors = {**grads, "grad": grad, "log_sum": log_sum, "row_dot": row_dot, "column_dot": log_sum}
    if separate_value:
        _launch_backward(p, tensors, not x.undirected, value=True)
        tensors["column_dot"] = p.dot(grads["grad_value"], x.value)
    value = not separate_value
    if x.undirected:
        _launch_backward(
            p, tensors, False, query=scores, key=scores, value=value, edges=edges, finish=True
        )
        return found
    if scores or edges:
        _launch_backward(p, tensors, False, query=scores, edges=edges, finish=not x.shared)
    if scores or value:
        _launch_backward(
            p, tensors, True, key=scores, value=value, add=scores and x.shared, finish=True
        )
    return found


def _launch_backward(
    p: _Problem,
    tensors: dict[str, Tensor],
    by_source: bool,
    *,
    query: bool = False,
    key: bool = False,
    value: bool = False,
    edges: bool = False,
    add: bool = False,
    finish: bool = False,
) -> None:
    """One pass over the lists by target or by source; combines split lists."""
    x, tiles, prefix = p.inputs, p.tiles, "source_" if by_source else ""
    pieces, hubs = p.lists[prefix + "pieces"], p.lists[prefix + "hubs"]
    finish = finish and (query or key)
    parts = {
        "part_query": p.parts(hubs, pieces, p.score_channels),
        "part_key": p.parts(hubs, pieces, p.score_channels),
        "part_value": p.parts(hubs, pieces, p.channels),
    }
    kernels.backward[(pieces.size(0), tiles.head_blocks)](
        pieces=pieces,
        other=p.lists["target_by_source" if by_source else "source"],
        reverse=p.lists["by_source"],
        **tensors, **parts, **p.tensors, **p.numbers, **p.shape, GS=tensors["grad"].stride(),
        CHANNELS=p.score_channels, ACTIVATION=x.activation, SHARED=x.shared,
        SYMMETRIC=x.symmetric_normalization, QUERY=query, KEY=key, VALUE=value, EDGES=edges,
        ADD=add, FINISH=finish, num_warps=tiles.warps,
    )  # fmt: skip
    if not hubs.size(0):
        return
    for name, wanted, block in (
        ("query", query or (key and x.shared), tiles.score_channels),
        ("key", key and not x.shared, tiles.score_channels),
        ("value", value, tiles.channels),
    ):
        if wanted:
            target = tensors[f"grad_{name}"]
            kernels.merge_sums[(hubs.size(0), tiles.head_blocks)](
                hubs, parts[f"part_{name}"], target, p.query, p.heads, target.size(2),
                YS=p.shape["QS"], ADD=name == "query" and add,
                ACTIVATION=x.activation if name == "query" and finish else 0,
                ACC=p.acc, HB=tiles.heads, CB=block,
            )  # fmt: skip


register_kernels("cuda", forward, backward)
