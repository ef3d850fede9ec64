"""Triton kernels for neighbour attention. Equations and names are those of ops/definition.py.

For a node v with neighbours u ∈ N_v:
    s_vu = score + bias,   a_vu = exp(s_vu − L_v)             (row)
                           a_vu = exp(s_vu − (L_v + L_u)/2)   (symmetric),   L_v = log Σ_u exp(s_vu)
    out_v = Σ_u m_vu a_vu V_u,   m the dropout mask, already divided by the keep probability.
The backward pass reads L and out. With G = dOut, r_v = <G_v, out_v>, c_v = <dV_v, V_v>:
    row:        ds_vu = a_vu (m_vu <G_v, V_u> − r_v)
    symmetric:  ds_vu = m_vu a_vu <G_v, V_u> − exp(s_vu − L_v) (r_v + c_v)/2
    dV_u = Σ_v m_vu a_vu G_v.

One program handles one piece of a list and a block of HB heads, EB neighbours at a time; a tile is
[EB, HB, channels]. Lists longer than a piece leave partial results, which a second kernel adds in a
fixed order instead of by atomics, so results are deterministic. Sums use ACC (float32, or float64
for float64 data) for any storage type.
"""

import triton
import triton.language as tl

from deepgat.ops.gpu.shared import exact, keep, named, store_sum

NONE: tl.constexpr = tl.constexpr(0)
DOT: tl.constexpr = tl.constexpr(1)
ADDITIVE: tl.constexpr = tl.constexpr(2)
SOFTMAX: tl.constexpr = tl.constexpr(1)
SIGMOID: tl.constexpr = tl.constexpr(2)
ROW: tl.constexpr = tl.constexpr(0)
"""Forward stage: weights normalised over the list."""
LOG_SUM: tl.constexpr = tl.constexpr(1)
"""Forward stage: L only."""
WEIGHTED: tl.constexpr = tl.constexpr(2)
"""Forward stage: the sum, given every node's L (symmetric normalisation)."""


@triton.jit
def _rows(
    base, node, h, c, STRIDE: tl.constexpr, H: tl.constexpr, C: tl.constexpr, HB: tl.constexpr,
    CB: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """[HB, CB]: one node's row of [n, H, C]; STRIDE is (node, head, channel)."""
    at = base + node * STRIDE[0] + h[:, None] * STRIDE[1] + c[None, :] * STRIDE[2]
    return tl.load(at, mask=_inside(h, c, H, C, HB, CB), other=0).to(ACC)


@triton.jit
def _tile(
    base, nodes, ok, h, c, STRIDE: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
    HB: tl.constexpr, CB: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """[EB, HB, CB]: the rows of EB nodes."""
    at = base + nodes[:, None, None] * STRIDE[0]
    at = at + h[None, :, None] * STRIDE[1] + c[None, None, :] * STRIDE[2]
    inside = ok[:, None, None] & _inside(h, c, H, C, HB, CB)[None, :, :]
    return tl.load(at, mask=inside, other=0).to(ACC)


@triton.jit
def _inside(h, c, H: tl.constexpr, C: tl.constexpr, HB: tl.constexpr, CB: tl.constexpr):
    """[HB, CB]: bounds mask of a block; a constant if all are inside, to allow wide loads."""
    inside = tl.full([HB, CB], True, tl.int1)
    if H % HB != 0:
        inside = inside & (h < H)[:, None]
    if C != CB:
        inside = inside & (c < C)[None, :]
    return inside


@triton.jit
def _numbers(base, nodes, ok, h, H: tl.constexpr):
    """[EB, HB]: a number per head of EB nodes, from [n, H]."""
    return tl.load(
        base + nodes[:, None] * H + h[None, :], mask=ok[:, None] & (h < H)[None, :], other=0
    )


@triton.jit
def _score(q, k, scale, slope, KIND: tl.constexpr, ACC: tl.constexpr):
    """(s, its derivative's factor), [EB, HB] each, from rows that broadcast to [EB, HB, AB]."""
    if KIND == DOT:
        s = tl.sum(q * k, axis=2) * exact(scale, ACC)
        steep = tl.zeros_like(s) + exact(scale, ACC)
    else:
        x = tl.sum(q + k, axis=2)  # AB is 1
        steep = tl.where(x > 0, 1.0, exact(slope, ACC))
        s = x * steep
    return s, steep


@triton.jit
def forward(
    pieces, source, query, key, value, bias, seed, out, log_sum, part_sum, part_top, part_total,
    scale, slope, threshold, factor,
    QS: tl.constexpr, KS: tl.constexpr, VS: tl.constexpr, BS: tl.constexpr,
    H: tl.constexpr, A: tl.constexpr, D: tl.constexpr,
    KIND: tl.constexpr, STAGE: tl.constexpr,
    BIAS: tl.constexpr, DROP: tl.constexpr, NAMED: tl.constexpr,
    ACC: tl.constexpr, EB: tl.constexpr, HB: tl.constexpr, AB: tl.constexpr, DB: tl.constexpr,
):  # fmt: skip
    """Each of the EB places of a tile keeps a running softmax; the end combines them."""
    piece = pieces + tl.program_id(0).to(tl.int64) * 4
    v, begin, end, slot = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2), tl.load(piece + 3)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    a, d = tl.arange(0, AB), tl.arange(0, DB)
    if KIND != NONE:
        q = _rows(query, v, h, a, QS, H, A, HB, AB, ACC)[None, :, :]
    if STAGE == WEIGHTED:
        log_v = tl.load(log_sum + v * H + h, mask=h < H, other=0)[None, :]
    if DROP:
        drawn, v_name = tl.load(seed), named(seed, v, NAMED)
    tops = tl.full([EB, HB], float("-inf"), ACC)
    totals = tl.zeros([EB, HB], ACC)
    sums = tl.zeros([EB, HB, DB], ACC)
    for first in range(begin, end, EB):
        e = first + tl.arange(0, EB)
        ok = e < end
        u = tl.load(source + e, mask=ok, other=0).to(tl.int64)
        s = tl.zeros([EB, HB], ACC)
        if KIND != NONE:
            k = _tile(key, u, ok, h, a, KS, H, A, HB, AB, ACC)
            s, _ = _score(q, k, scale, slope, KIND, ACC)
        if BIAS:
            at = e[:, None] * BS[0] + h[None, :] * BS[1]
            s += tl.load(bias + at, mask=ok[:, None] & (h < H)[None, :], other=0).to(ACC)
        s = tl.where(ok[:, None], s, float("-inf"))
        if STAGE == WEIGHTED:
            w = tl.exp(s - (log_v + _numbers(log_sum, u, ok, h, H)) * 0.5)
        else:
            higher = tl.maximum(tops, s)
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            smaller = tl.exp(tops - shift)
            w = tl.exp(s - shift)
            totals = totals * smaller + w
            if STAGE == ROW:
                sums = sums * smaller[:, :, None]
            tops = higher
        if STAGE != LOG_SUM:
            if DROP:
                w *= keep(drawn, v_name, named(seed, u, NAMED), h, threshold, factor, ACC)
            sums += w[:, :, None] * _tile(value, u, ok, h, d, VS, H, D, HB, DB, ACC)
    here = _inside(h, d, H, D, HB, DB)
    within = h[:, None] * D + d[None, :]
    if STAGE != WEIGHTED:
        top = tl.max(tops, axis=0)
        shift = tl.where(top == float("-inf"), 0.0, top)
        smaller = tl.exp(tops - shift[None, :])
        total = tl.sum(totals * smaller, axis=0)
    if STAGE == ROW:
        sums = sums * smaller[:, :, None]
    if STAGE != LOG_SUM:
        acc = tl.sum(sums, axis=0)
    if slot < 0:
        if STAGE != WEIGHTED:
            tl.store(log_sum + v * H + h, shift + tl.log(total), mask=h < H)
        if STAGE == ROW:
            acc = acc / total[:, None]
        if STAGE != LOG_SUM:
            tl.store(out + v * H * D + within, acc, mask=here)
    else:
        if STAGE != WEIGHTED:
            tl.store(part_top + slot * H + h, top, mask=h < H)
            tl.store(part_total + slot * H + h, total, mask=h < H)
        if STAGE != LOG_SUM:
            tl.store(part_sum + slot * H * D + within, acc, mask=here)


@triton.jit
def count(
    pieces, log_sum, part_top, part_total, number,
    H: tl.constexpr, ACC: tl.constexpr, RB: tl.constexpr,
):  # fmt: skip
    """Stage LOG_SUM of RB pieces if all scores are 0: exp(L_v) is the number of neighbours."""
    place = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB)
    here = place < number
    piece = pieces + place * 4
    v, slot = tl.load(piece, mask=here, other=0), tl.load(piece + 3, mask=here, other=0)
    end, begin = tl.load(piece + 2, mask=here, other=1), tl.load(piece + 1, mask=here, other=0)
    total = (end - begin).to(ACC)
    whole, part = here & (slot < 0), here & (slot >= 0)
    for h in tl.static_range(H):
        tl.store(log_sum + v * H + h, tl.log(total), mask=whole)
        tl.store(part_top + slot * H + h, tl.zeros_like(total), mask=part)
        tl.store(part_total + slot * H + h, total, mask=part)


@triton.jit
def merge_forward(
    hubs, out, log_sum, part_sum, part_top, part_total, heads, channels,
    STAGE: tl.constexpr, ACC: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr,
):  # fmt: skip
    """Combine the partial results of one hub."""
    hub = hubs + tl.program_id(0).to(tl.int64) * 3
    v, begin, end = tl.load(hub), tl.load(hub + 1), tl.load(hub + 2)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    here = (h < heads)[:, None] & (d < channels)[None, :]
    within = h[:, None] * channels + d[None, :]
    top = tl.full([HB], float("-inf"), ACC)
    total = tl.zeros([HB], ACC)
    acc = tl.zeros([HB, DB], ACC)
    for slot in range(begin, end):
        if STAGE != WEIGHTED:
            theirs = tl.load(part_top + slot * heads + h, mask=h < heads, other=float("-inf"))
            higher = tl.maximum(top, theirs)
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            mine, factor = tl.exp(top - shift), tl.exp(theirs - shift)
            part = tl.load(part_total + slot * heads + h, mask=h < heads, other=0)
            total = total * mine + part * factor
            top = higher
        if STAGE != LOG_SUM:
            x = tl.load(part_sum + slot * heads * channels + within, mask=here, other=0)
            if STAGE == ROW:
                acc = acc * mine[:, None] + x * factor[:, None]
            else:
                acc += x
    if STAGE != WEIGHTED:
        shift = tl.where(top == float("-inf"), 0.0, top)
        tl.store(log_sum + v * heads + h, shift + tl.log(total), mask=h < heads)
    if STAGE == ROW:
        acc = acc / total[:, None]
    if STAGE != LOG_SUM:
        tl.store(out + v * heads * channels + within, acc, mask=here)


@triton.jit
def backward(
    pieces, other, reverse, query, key, value, bias, seed, grad, log_sum, row_dot, column_dot,
    grad_query, grad_key, grad_value, grad_bias, part_query, part_key, part_value,
    scale, slope, threshold, factor,
    QS: tl.constexpr, KS: tl.constexpr, VS: tl.constexpr, GS: tl.constexpr, BS: tl.constexpr,
    DQ: tl.constexpr, DV: tl.constexpr,
    H: tl.constexpr, A: tl.constexpr, D: tl.constexpr, CHANNELS: tl.constexpr,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, SHARED: tl.constexpr, SYMMETRIC: tl.constexpr,
    BIAS: tl.constexpr, DROP: tl.constexpr, NAMED: tl.constexpr,
    QUERY: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, EDGES: tl.constexpr,
    ADD: tl.constexpr, FINISH: tl.constexpr,
    ACC: tl.constexpr, EB: tl.constexpr, HB: tl.constexpr, AB: tl.constexpr, DB: tl.constexpr,
):  # fmt: skip
    """Gradients of one node x over its list: as target (QUERY, EDGES) and as source (KEY, VALUE).

    On an undirected graph one launch computes both, since the list of x serves both directions of
    every edge; ``reverse`` is the opposite edge. On a directed graph the lists are by target, or by
    source with ``reverse`` as the number of the edge. SHARED: query is key, with one gradient for
    both. ADD: add to the result of the other launch. FINISH: apply the activation's derivative.
    CHANNELS is the unpadded width of query and key; A may be padded. DQ and DV are the distances of
    the rows of ``grad_query`` and ``grad_value``, which may be columns of one matrix.
    """
    piece = pieces + tl.program_id(0).to(tl.int64) * 4
    x, begin, end, slot = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2), tl.load(piece + 3)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    a, d = tl.arange(0, AB), tl.arange(0, DB)
    THERE: tl.constexpr = QUERY or EDGES
    BACK: tl.constexpr = KEY or VALUE
    if KIND != NONE:
        if THERE or SHARED:
            q = _rows(query, x, h, a, QS, H, A, HB, AB, ACC)
        if BACK and not SHARED:
            k = _rows(key, x, h, a, KS, H, A, HB, AB, ACC)[None, :, :]
    if THERE:
        g = _rows(grad, x, h, d, GS, H, D, HB, DB, ACC)[None, :, :]
        r_x = tl.load(row_dot + x * H + h, mask=h < H, other=0)[None, :]
        if SYMMETRIC:
            r_x += tl.load(column_dot + x * H + h, mask=h < H, other=0)[None, :]
    if THERE or SYMMETRIC:
        log_x = tl.load(log_sum + x * H + h, mask=h < H, other=0)[None, :]
    if KEY:
        mine = _rows(value, x, h, d, VS, H, D, HB, DB, ACC)[None, :, :]
    if DROP:
        drawn, x_name = tl.load(seed), named(seed, x, NAMED)
    dqs = tl.zeros([EB, HB, AB], ACC)
    dks = tl.zeros([EB, HB, AB], ACC)
    dvs = tl.zeros([EB, HB, DB], ACC)
    for first in range(begin, end, EB):
        e = first + tl.arange(0, EB)
        ok = e < end
        o = tl.load(other + e, mask=ok, other=0).to(tl.int64)
        full = ok[:, None] & (h < H)[None, :]
        if BACK or SYMMETRIC:
            log_o = _numbers(log_sum, o, ok, h, H)
        if KIND != NONE:
            if THERE or SHARED:
                k_o = _tile(key, o, ok, h, a, KS, H, A, HB, AB, ACC)
                s_there, steep_there = _score(q[None, :, :], k_o, scale, slope, KIND, ACC)
                s_back, steep_back = s_there, steep_there
                q_o = k_o
            if BACK and not SHARED:
                q_o = _tile(query, o, ok, h, a, QS, H, A, HB, AB, ACC)
                s_back, steep_back = _score(q_o, k, scale, slope, KIND, ACC)
        else:
            s_there = tl.zeros([EB, HB], ACC)
            s_back = s_there
        if BIAS and THERE:
            at = e[:, None] * BS[0] + h[None, :] * BS[1]
            s_there += tl.load(bias + at, mask=full, other=0).to(ACC)
        if BIAS and BACK:
            edge = tl.load(reverse + e, mask=ok, other=0)
            at = edge[:, None] * BS[0] + h[None, :] * BS[1]
            s_back += tl.load(bias + at, mask=full, other=0).to(ACC)
        if BACK:
            s_back = tl.where(ok[:, None], s_back, float("-inf"))
            if SYMMETRIC:
                w_back = tl.exp(s_back - (log_x + log_o) * 0.5)
            else:
                w_back = tl.exp(s_back - log_o)
            kept = w_back
            if DROP:
                m_back = keep(drawn, named(seed, o, NAMED), x_name, h, threshold, factor, ACC)
                kept = w_back * m_back
            g_o = _tile(grad, o, ok, h, d, GS, H, D, HB, DB, ACC)
            if VALUE:
                dvs += kept[:, :, None] * g_o
            if KEY:
                pull = tl.sum(g_o * mine, axis=2)
                r_o = _numbers(row_dot, o, ok, h, H)
                if SYMMETRIC:
                    r_o += _numbers(column_dot, o, ok, h, H)
                    ds_back = kept * pull - tl.exp(s_back - log_o) * r_o * 0.5
                else:
                    ds_back = kept * pull - w_back * r_o
                if not (SHARED and QUERY):
                    if KIND == DOT:
                        dks += (ds_back * steep_back)[:, :, None] * q_o
                    else:
                        dks += (ds_back * steep_back)[:, :, None]
        if THERE:
            s_there = tl.where(ok[:, None], s_there, float("-inf"))
            if SYMMETRIC:
                w_there = tl.exp(s_there - (log_x + log_o) * 0.5)
            else:
                w_there = tl.exp(s_there - log_x)
            x_o = _tile(value, o, ok, h, d, VS, H, D, HB, DB, ACC)
            pull_there = tl.sum(g * x_o, axis=2)
            if DROP:
                pull_there *= keep(drawn, x_name, named(seed, o, NAMED), h, threshold, factor, ACC)
            if SYMMETRIC:
                ds = w_there * pull_there - tl.exp(s_there - log_x) * r_x * 0.5
            else:
                ds = w_there * (pull_there - r_x)
            if EDGES:
                tl.store(grad_bias + e[:, None] * H + h[None, :], ds, mask=full)
            if QUERY:
                if SHARED and KEY:
                    ds += ds_back
                if KIND == DOT:
                    dqs += (ds * steep_there)[:, :, None] * k_o
                else:
                    dqs += (ds * steep_there)[:, :, None]
    in_scores = _inside(h, a, H, CHANNELS, HB, AB)
    of_scores = h[:, None] * CHANNELS + a[None, :]
    in_values = _inside(h, d, H, D, HB, DB)
    of_values = h[:, None] * D + d[None, :]
    if QUERY or (KEY and SHARED):
        if not QUERY:
            dqs = dks
        dq = tl.sum(dqs, axis=0)
        if slot < 0:
            at = grad_query + x * DQ + of_scores
            if ADD:
                dq += tl.load(at, mask=in_scores, other=0).to(ACC)
            if FINISH:
                dq = _through_activation(dq, q, ACTIVATION)
            tl.store(at, dq, mask=in_scores)
        else:
            tl.store(part_query + slot * H * CHANNELS + of_scores, dq, mask=in_scores)
    if KEY and not SHARED:
        dk = tl.sum(dks, axis=0)
        width: tl.constexpr = H * CHANNELS
        store_sum(grad_key, part_key, x, slot, width, width, of_scores, dk, in_scores)
    if VALUE:
        dv = tl.sum(dvs, axis=0)
        store_sum(grad_value, part_value, x, slot, DV, H * D, of_values, dv, in_values)


@triton.jit
def _through_activation(grad, y, ACTIVATION: tl.constexpr):
    """Backward pass of softmax or sigmoid, from its output y; rows [HB, AB]."""
    if ACTIVATION == SOFTMAX:
        grad = y * (grad - tl.sum(grad * y, axis=1)[:, None])
    if ACTIVATION == SIGMOID:
        grad = grad * y * (1.0 - y)
    return grad


@triton.jit
def merge_sums(
    hubs, part, target, activated, heads, channels,
    DT: tl.constexpr, YS: tl.constexpr, ADD: tl.constexpr, ACTIVATION: tl.constexpr,
    ACC: tl.constexpr, HB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Add the partial sums of one hub in order; DT is the distance of the rows of ``target``."""
    hub = hubs + tl.program_id(0).to(tl.int64) * 3
    v, begin, end = tl.load(hub), tl.load(hub + 1), tl.load(hub + 2)
    h, c = tl.program_id(1) * HB + tl.arange(0, HB), tl.arange(0, CB)
    here = (h < heads)[:, None] & (c < channels)[None, :]
    within = h[:, None] * channels + c[None, :]
    at = target + v * DT + within
    acc = tl.zeros([HB, CB], ACC)
    if ADD:
        acc += tl.load(at, mask=here, other=0).to(ACC)
    for slot in range(begin, end):
        acc += tl.load(part + slot * heads * channels + within, mask=here, other=0)
    if ACTIVATION != 0:
        at_y = v * YS[0] + h[:, None] * YS[1] + c[None, :] * YS[2]
        y = tl.load(activated + at_y, mask=here, other=0).to(ACC)
        acc = _through_activation(acc, y, ACTIVATION)
    tl.store(at, acc, mask=here)


@triton.jit
def activate(
    logits, out, rows, heads, channels, STRIDE: tl.constexpr, ACTIVATION: tl.constexpr,
    ACC: tl.constexpr, RB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """softmax or sigmoid over the channels of RB rows (node, head): [n, H, A] → [n, H, CB].

    Zeros pad the channels to CB, so that wide loads can gather rows.
    """
    row = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB)
    c = tl.arange(0, CB)
    real = (c < channels)[None, :]
    at = (row // heads) * STRIDE[0] + (row % heads) * STRIDE[1]
    at = at[:, None] + c[None, :] * STRIDE[2]
    x = tl.load(logits + at, mask=(row < rows)[:, None] & real, other=0).to(ACC)
    if ACTIVATION == SOFTMAX:
        x = tl.where(real, x, float("-inf"))
        x = tl.exp(x - tl.max(x, axis=1)[:, None])
        y = x / tl.sum(x, axis=1)[:, None]
    else:
        y = tl.where(real, 1.0 / (1.0 + tl.exp(-x)), 0.0)
    tl.store(out + row[:, None] * CB + c[None, :], y, mask=(row < rows)[:, None])


@triton.jit
def row_dot(
    x, y, out, rows, heads, channels, XS: tl.constexpr, YS: tl.constexpr,
    ACC: tl.constexpr, RB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """<x, y> over the channels of RB rows (node, head): [n, H, D] twice → [n, H]."""
    row = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB)
    c = tl.arange(0, CB)
    here = (row < rows)[:, None] & (c < channels)[None, :]
    node, head = row // heads, row % heads
    at_x = (node * XS[0] + head * XS[1])[:, None] + c[None, :] * XS[2]
    at_y = (node * YS[0] + head * YS[1])[:, None] + c[None, :] * YS[2]
    product = tl.load(x + at_x, mask=here, other=0).to(ACC)
    product *= tl.load(y + at_y, mask=here, other=0).to(ACC)
    tl.store(out + row, tl.sum(product, axis=1), mask=row < rows)
