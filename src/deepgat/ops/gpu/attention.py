"""Neighbour attention on a GPU: launches the Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from deepgat.ops import dropout_masks
from deepgat.ops.attention import NONE, Inputs, register_kernels
from deepgat.ops.gpu import attention_kernels as kernels
from deepgat.ops.gpu.launch import Tiles, compute_type, sum_type, tiles_for, two_floats
from deepgat.ops.gpu.prepared import Launcher, current_stream
from deepgat.ops.joint_product import blocks_of, side_by_side

ROW, LOG_SUM, WEIGHTED = 0, 1, 2
PIECES = 512
"""Pieces per program of the counting kernel."""
MOST_PLANS = 1024
"""Signatures whose plans are kept."""
_NOTHING = (0, 0, 0)

Gradients = tuple[Tensor | None, Tensor | None, Tensor, Tensor | None]


class _Lists(NamedTuple):
    """The lists of :data:`deepgat.ops.attention.LISTS`."""

    ptr: Tensor
    source: Tensor
    pieces: Tensor
    hubs: Tensor
    source_ptr: Tensor
    target_by_source: Tensor
    by_source: Tensor
    source_pieces: Tensor
    source_hubs: Tensor


class _Pass(NamedTuple):
    """What one pass of the backward kernel computes: its constants of the same names."""

    query: bool = False
    key: bool = False
    value: bool = False
    edges: bool = False
    add: bool = False
    finish: bool = False


class _Plan:
    """What calls of one signature share: tiles, constants of the kernels, and launchers.

    A signature is all that Triton compiles for, but the alignment of tensors and the number of
    rows: dtypes, strides, and the settings of :class:`Inputs`.
    """

    def __init__(self, x: Inputs, tiles: Tiles) -> None:
        value, bias, kind = x.value, x.bias, x.kind
        _, self.heads, self.channels = value.shape
        self.tiles, self.activation, self.shared = tiles, x.activation, x.shared
        self.symmetric = x.symmetric_normalization
        self.acc, self.sums = compute_type(value), sum_type(value)
        self.score_channels = x.query.size(2) if kind != NONE else 1
        """A, unpadded."""
        width = tiles.score_channels if x.activation else self.score_channels
        query = x.query.stride() if kind != NONE else _NOTHING
        self.query_stride = (self.heads * width, width, 1) if x.activation else query
        key = x.key.stride() if kind != NONE and not x.shared else self.query_stride
        self.numbers = {
            "scale": two_floats(x.scale),
            "slope": two_floats(x.slope),
            "threshold": dropout_masks.threshold(x.dropout),
            "factor": two_floats(1 / (1 - x.dropout) if x.dropout < 1 else 0.0),
        }
        self.shape: dict[str, Any] = {
            "H": self.heads, "D": self.channels, "A": width,
            "QS": self.query_stride, "KS": key,
            "VS": value.stride(), "BS": _NOTHING if bias is None else bias.stride(),
            "KIND": kind, "BIAS": bias is not None, "DROP": x.dropout > 0,
            "NAMED": x.dropout > 0 and x.seed.numel() > 1, "ACC": self.acc,
            "EB": tiles.edges, "HB": tiles.heads,
            "AB": tiles.score_channels, "DB": tiles.channels,
        }  # fmt: skip
        self.logits_stride = x.query.stride()
        self._launchers: dict[Any, Launcher] = {}

    def _launcher(self, key: Any, make: Callable[[], Launcher]) -> Launcher:
        found = self._launchers.get(key)
        if found is None:
            found = self._launchers[key] = make()
        return found

    def activate(self, logits: Tensor, stream: int | None) -> Tensor:
        """ŷ = softmax or sigmoid of the logits: [n, H, A padded to the tile]."""
        width, n = self.tiles.score_channels, logits.size(0)
        y = logits.new_empty((n, self.heads, width))
        block = max(1, 1024 // width)
        launch = self._launcher(
            "activate",
            lambda: Launcher(
                kernels.activate,
                {"heads": self.heads, "channels": self.score_channels,
                 "STRIDE": self.logits_stride, "ACTIVATION": self.activation, "ACC": self.acc,
                 "RB": block, "CB": width},
            ),
        )  # fmt: skip
        rows = n * self.heads
        launch((-(-rows // block), 1), stream, (logits, y), rows)
        return y

    def dot(self, x: Tensor, y: Tensor, stream: int | None) -> Tensor:
        """<x, y> per node and head: [n, H]."""
        n = x.size(0)
        out = x.new_empty((n, self.heads), dtype=self.sums)
        width = self.tiles.channels
        block = max(1, 1024 // width)
        strides = x.stride(), y.stride()
        launch = self._launcher(
            ("dot", *strides, x.dtype, y.dtype),
            lambda: Launcher(
                kernels.row_dot,
                {"heads": self.heads, "channels": self.channels, "XS": strides[0],
                 "YS": strides[1], "ACC": self.acc, "RB": block, "CB": width},
            ),
        )  # fmt: skip
        rows = n * self.heads
        launch((-(-rows // block), 1), stream, (x, y, out), rows)
        return out

    def parts(self, like: Tensor, pieces: Tensor, hubs: Tensor, width: int) -> Tensor:
        """A buffer for the partial results of split lists: [slots, H, width]."""
        if not hubs.size(0):
            return like  # no piece has a slot, so nothing is stored
        slots = pieces.size(0) - like.size(0) + hubs.size(0)  # a hub of p pieces adds p − 1
        return like.new_empty((slots, self.heads, width))

    def count(self) -> Launcher:
        return self._launcher(
            "count",
            lambda: Launcher(kernels.count, {"H": self.heads, "ACC": self.acc, "RB": PIECES}),
        )

    def forward(self, stage: int) -> Launcher:
        return self._launcher(
            ("forward", stage),
            lambda: Launcher(
                kernels.forward,
                {**self.numbers, **self.shape, "STAGE": stage},
                num_warps=self.tiles.warps,
            ),
        )

    def merge_forward(self, stage: int) -> Launcher:
        return self._launcher(
            ("merge_forward", stage),
            lambda: Launcher(
                kernels.merge_forward,
                {"heads": self.heads, "channels": self.channels, "STAGE": stage, "ACC": self.acc,
                 "HB": self.tiles.heads, "DB": self.tiles.channels},
            ),
        )  # fmt: skip

    def backward(self, wanted: _Pass, grads: _Grads) -> Launcher:
        grad = grads.upstream
        strides = grad.stride(), grads.query.stride(0), grads.value.stride(0)
        types = grad.dtype, grads.query.dtype, grads.key.dtype, grads.bias.dtype
        return self._launcher(
            ("backward", wanted, strides, types),
            lambda: Launcher(
                kernels.backward,
                {**self.numbers, **self.shape, "GS": strides[0], "DQ": strides[1],
                 "DV": strides[2], "CHANNELS": self.score_channels, "ACTIVATION": self.activation,
                 "SHARED": self.shared, "SYMMETRIC": self.symmetric, "QUERY": wanted.query,
                 "KEY": wanted.key, "VALUE": wanted.value, "EDGES": wanted.edges,
                 "ADD": wanted.add, "FINISH": wanted.finish},
                num_warps=self.tiles.warps,
            ),
        )  # fmt: skip

    def merge_sums(self, target: Tensor, block: int, add: bool, activation: int) -> Launcher:
        width, distance = target.size(2), target.stride(0)
        return self._launcher(
            ("merge_sums", width, distance, target.dtype, block, add, activation),
            lambda: Launcher(
                kernels.merge_sums,
                {"heads": self.heads, "channels": width, "DT": distance, "YS": self.query_stride,
                 "ADD": add, "ACTIVATION": activation, "ACC": self.acc,
                 "HB": self.tiles.heads, "CB": block},
            ),
        )  # fmt: skip


class _Grads(NamedTuple):
    """The gradient of the output, and buffers for those of the inputs; unused ones are any."""

    upstream: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor
    log_sum: Tensor
    row_dot: Tensor
    column_dot: Tensor


_plans: dict[Any, _Plan] = {}


def _plan(x: Inputs) -> _Plan:
    """The plan for inputs like these."""
    value, query, key, bias, seed, kind = x.value, x.query, x.key, x.bias, x.seed, x.kind
    n, heads, channels = value.shape
    edges = x.lists[1].numel()
    width = query.size(2) if kind != NONE else 1
    tiles = tiles_for(heads, channels, width, edges / max(n, 1))
    signature = (
        tiles, heads, channels, width, value.device, value.dtype, value.stride(),
        query.dtype, query.stride(), key.dtype, key.stride(),
        None if bias is None else (bias.dtype, bias.stride()), seed.dtype, seed.numel() > 1,
        *x[6:12], x.dropout, *[tensor.dtype for tensor in x.lists],
    )  # fmt: skip
    found = _plans.get(signature)
    if found is None:
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        found = _plans[signature] = _Plan(x, tiles)
    return found


def forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """(out [n, H, D], L [n, H]) of ``deepgat::attend``."""
    value = x.value
    stream = current_stream(value)
    if stream is not None and value.device.index != torch.cuda.current_device():
        with torch.cuda.device(value.device):
            return forward(x)
    p, lists = _plan(x), _Lists(*x.lists)
    out = value.new_empty(value.shape)
    log_sum = value.new_empty((value.size(0), p.heads), dtype=p.sums)
    if not value.numel():
        return out, log_sum
    query = p.activate(x.query, stream) if x.activation else x.query
    key = query if x.shared else x.key
    pieces, hubs = lists.pieces, lists.hubs
    part_sum, part_top, part_total = (
        p.parts(log_sum, pieces, hubs, width) for width in (p.channels, 1, 1)
    )
    results = out, log_sum, part_sum, part_top, part_total
    for stage in (LOG_SUM, WEIGHTED) if x.symmetric_normalization else (ROW,):
        if stage == LOG_SUM and x.kind == NONE and x.bias is None:
            number = pieces.size(0)
            buffers = pieces, log_sum, part_top, part_total
            p.count()((triton.cdiv(number, PIECES), 1), stream, buffers, number)
        else:
            bias = value if x.bias is None else x.bias
            tensors = pieces, lists.source, query, key, value, bias, x.seed, *results
            p.forward(stage)((pieces.size(0), p.tiles.head_blocks), stream, tensors)
        if hubs.size(0):
            p.merge_forward(stage)((hubs.size(0), p.tiles.head_blocks), stream, (hubs, *results))
    return out, log_sum


def backward(
    grad: Tensor, out: Tensor, log_sum: Tensor, x: Inputs, want_scores: bool, want_bias: bool,
    joint: bool = False,
) -> Gradients:  # fmt: skip
    """The gradients of ``deepgat::attend_backward``; None for each one not needed.

    On an undirected graph one launch suffices, since a node's list serves both directions of its
    edges. On a directed graph the lists by target and by source need a launch each. With symmetric
    normalisation dV comes first, since the other gradients need c_v = <dV_v, V_v>.

    With ``joint``, the gradients of a value and a query that are columns of one matrix are too.
    """
    value, symmetric = x.value, x.symmetric_normalization
    stream = current_stream(value)
    if stream is not None and value.device.index != torch.cuda.current_device():
        with torch.cuda.device(value.device):
            return backward(grad, out, log_sum, x, want_scores, want_bias, joint)
    p, lists = _plan(x), _Lists(*x.lists)
    scores, edges = want_scores and x.kind != NONE, want_bias and x.bias is not None
    separate_value = symmetric and (scores or edges)
    if joint and scores and side_by_side((value, x.query)) is not None:
        widths = [block.size(1) * block.size(2) for block in (value, x.query)]
        grad_value, of_query = blocks_of(value.new_empty((len(value), sum(widths))), widths, p.heads)
        grad_query: Tensor | None = of_query
    else:
        grad_value = value.new_empty(value.shape)
        grad_query = x.query.new_empty(x.query.shape) if scores else None
    grad_key = x.key.new_empty(x.key.shape) if scores and not x.shared else None
    grad_bias = x.bias.new_empty(x.bias.shape) if edges and x.bias is not None else None
    found = grad_query, grad_key, grad_value, grad_bias
    if not value.numel():
        return found
    query = p.activate(x.query, stream) if x.activation else x.query
    row_dot = p.dot(grad, out, stream) if scores or edges else log_sum
    grads = _Grads(
        grad, *(grad_value if item is None else item for item in found), log_sum, row_dot, log_sum
    )
    passes = _Passes(p, x, lists, query, stream)
    if separate_value:
        passes.launch(grads, not x.undirected, _Pass(value=True))
        grads = grads._replace(column_dot=p.dot(grad_value, value, stream))
    if x.undirected:
        wanted = _Pass(scores, scores, not separate_value, edges, finish=scores)
        passes.launch(grads, False, wanted)
        return found
    if scores or edges:
        finish = scores and not x.shared
        passes.launch(grads, False, _Pass(query=scores, edges=edges, finish=finish))
    if scores or not separate_value:
        wanted = _Pass(
            key=scores, value=not separate_value, add=scores and x.shared, finish=scores
        )
        passes.launch(grads, True, wanted)
    return found


class _Passes(NamedTuple):
    """The passes of the backward kernel over the lists."""

    p: _Plan
    x: Inputs
    lists: _Lists
    query: Tensor
    stream: int | None

    def launch(self, grads: _Grads, by_source: bool, wanted: _Pass) -> None:
        """One pass over the lists by target or by source; combines split lists."""
        p, x, lists = self.p, self.x, self.lists
        pieces, hubs, other = lists.pieces, lists.hubs, lists.source
        if by_source:
            pieces, hubs = lists.source_pieces, lists.source_hubs
            other = lists.target_by_source
        part_query, part_key, part_value = (
            p.parts(grads.log_sum, pieces, hubs, width)
            for width in (p.score_channels, p.score_channels, p.channels)
        )
        p.backward(wanted, grads)(
            (pieces.size(0), p.tiles.head_blocks),
            self.stream,
            (
                pieces, other, lists.by_source, self.query, self.query if x.shared else x.key,
                x.value, x.value if x.bias is None else x.bias, x.seed, grads.upstream,
                grads.log_sum, grads.row_dot, grads.column_dot,
                grads.query, grads.key, grads.value, grads.bias, part_query, part_key, part_value,
            ),
        )  # fmt: skip
        if not hubs.size(0):
            return
        finish = x.activation if wanted.finish else 0
        both = wanted.query or (wanted.key and x.shared)
        tiles = p.tiles
        for needed, part, target, block, add, activation in (
            (both, part_query, grads.query, tiles.score_channels, wanted.add, finish),
            (wanted.key and not x.shared, part_key, grads.key, tiles.score_channels, False, 0),
            (wanted.value, part_value, grads.value, tiles.channels, False, 0),
        ):
            if needed:
                p.merge_sums(target, block, add, activation)(
                    (hubs.size(0), tiles.head_blocks), self.stream,
                    (hubs, part, target, self.query),
                )  # fmt: skip


register_kernels("cuda", forward, backward, eager_backward=partial(backward, joint=True))
