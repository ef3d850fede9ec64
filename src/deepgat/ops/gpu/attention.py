"""Neighbour attention on a GPU: launches the Triton kernels."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from deepgat.ops.attention_operator import NONE, Inputs, register_kernels
from deepgat.ops.gpu.attention_plan import PIECES, Grads, Pass, Plan, plan_for
from deepgat.ops.gpu.prepared import current_stream
from deepgat.ops.joint_product import blocks_of, side_by_side

ROW, LOG_SUM, WEIGHTED = 0, 1, 2
Gradients = tuple[Tensor | None, Tensor | None, Tensor, Tensor | None]


class _Lists(NamedTuple):
    """The lists of :data:`deepgat.ops.attention_operator.LISTS`."""

    ptr: Tensor
    source: Tensor
    pieces: Tensor
    hubs: Tensor
    source_ptr: Tensor
    target_by_source: Tensor
    by_source: Tensor
    source_pieces: Tensor
    source_hubs: Tensor


def forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """(out [n, H, D], L [n, H]) of ``deepgat::attend``."""
    value = x.value
    stream = current_stream(value)
    if value.is_cuda and value.device.index != torch.cuda.current_device():
        with torch.cuda.device(value.device):
            return forward(x)
    p, lists = plan_for(x), _Lists(*x.lists)
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
    if value.is_cuda and value.device.index != torch.cuda.current_device():
        with torch.cuda.device(value.device):
            return backward(grad, out, log_sum, x, want_scores, want_bias, joint)
    p, lists = plan_for(x), _Lists(*x.lists)
    scores, edges = want_scores and x.kind != NONE, want_bias and x.bias is not None
    separate_value = symmetric and (scores or edges)
    if joint and scores and side_by_side((value, x.query)) is not None:
        widths = [block.size(1) * block.size(2) for block in (value, x.query)]
        both = value.new_empty((value.size(0), sum(widths)))
        grad_value, of_query = blocks_of(both, widths, p.heads)
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
    of_query, of_key, of_bias = (
        grad_value if item is None else item for item in (grad_query, grad_key, grad_bias)
    )
    grads = Grads(grad, of_query, of_key, grad_value, of_bias, log_sum, row_dot, log_sum)
    passes = _Passes(p, x, lists, query, stream)
    if separate_value:
        passes.launch(grads, not x.undirected, Pass(value=True))
        grads = grads._replace(column_dot=p.dot(grad_value, value, stream))
    if x.undirected:
        wanted = Pass(scores, scores, not separate_value, edges, finish=scores)
        passes.launch(grads, False, wanted)
        return found
    if scores or edges:
        finish = scores and not x.shared
        passes.launch(grads, False, Pass(query=scores, edges=edges, finish=finish))
    if scores or not separate_value:
        wanted = Pass(key=scores, value=not separate_value, add=scores and x.shared, finish=scores)
        passes.launch(grads, True, wanted)
    return found


class _Passes(NamedTuple):
    """The passes of the backward kernel over the lists."""

    p: Plan
    x: Inputs
    lists: _Lists
    query: Tensor
    stream: int | None

    def launch(self, grads: Grads, by_source: bool, wanted: Pass) -> None:
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
