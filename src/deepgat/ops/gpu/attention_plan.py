"""What calls of attention on a GPU share: tiles, constants of the kernels, and launchers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from deepgat.ops import dropout_masks
from deepgat.ops.attention_operator import NONE, Inputs
from deepgat.ops.gpu import attention_kernels as kernels
from deepgat.ops.gpu.launch import Tiles, compute_type, sum_type, tiles_for, two_floats
from deepgat.ops.gpu.prepared import Launcher

PIECES = 512
"""Pieces per program of the counting kernel."""
MOST_PLANS = 1024
"""Signatures whose plans are kept."""
_NOTHING = (0, 0, 0)


class Pass(NamedTuple):
    """What one pass of the backward kernel computes: its constants of the same names."""

    query: bool = False
    key: bool = False
    value: bool = False
    edges: bool = False
    add: bool = False
    finish: bool = False


class Grads(NamedTuple):
    """The gradient of the output, and buffers for those of the inputs; unused ones are any."""

    upstream: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor
    log_sum: Tensor
    row_dot: Tensor
    column_dot: Tensor


class Plan:
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

    def backward(self, wanted: Pass, grads: Grads) -> Launcher:
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


_plans: dict[Any, Plan] = {}


def plan_for(x: Inputs) -> Plan:
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
        found = _plans[signature] = Plan(x, tiles)
    return found
