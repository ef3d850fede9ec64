"""Calls that do not fit together: one sentence, the same from every backend, and never a crash."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from deepgat import ops
from deepgat.errors import UserError
from deepgat.ops import (
    Additive,
    ClassAgreement,
    DotProduct,
    EdgeScore,
    Neighbors,
    SparseMatrix,
    Uniform,
    sampling,
)
from deepgat.ops import (
    kernel_attention as attention,
)
from deepgat.ops.cpu import kernels

N, H, D, C = 600, 3, 8, 5
GENERATOR = torch.Generator().manual_seed(0)
NEAR = Neighbors.from_edge_index(torch.randint(N, (2, 4000), generator=GENERATOR), N)
E = NEAR.num_edges


def wrong(*sizes: int | str) -> Iterator[Any]:
    """What is not a floating-point tensor of these sizes; one that is a word may be any."""
    shape = [7 if isinstance(size, str) else size for size in sizes]
    for dim, size in enumerate(sizes):
        if not isinstance(size, str):
            for other in (size - 1, size + 1, 0, 50 * size):
                yield torch.randn(*shape[:dim], other, *shape[dim + 1 :])
    yield torch.randn(*shape, 1)
    yield torch.randn(shape[:-1])
    for dtype in (torch.int64, torch.bool, torch.complex64, torch.uint8):
        yield torch.ones(shape).to(dtype)
    yield torch.ones(shape, device="meta")
    yield torch.ones(shape).to_sparse()
    yield [[1.0]]


Call = Callable[[], Any]


def malformed() -> Iterator[tuple[str, Call]]:
    """(what is wrong, the call): each differs from a valid call in one argument."""
    value, query, logits = torch.randn(N, H, D), torch.randn(N, H, 4), torch.randn(N, H, C)
    column, x, weight = torch.randn(N, H), torch.randn(N, D), torch.randn(4, D)
    sparse = SparseMatrix.from_torch((x * (x > 1)).to_sparse_csr())

    def attend(form: Any, value: Any = value, near: Any = NEAR, **others: Any) -> Call:
        return lambda: ops.neighbor_attention(near, value, form, **others)

    def weights(form: Any, near: Any = NEAR, **others: Any) -> Call:
        return lambda: ops.attention_weights(near, form, **others)

    for item in wrong(N, "heads", "channels"):
        yield "value", attend(Uniform(), item)
        yield "value", attend(EdgeScore(torch.randn(E, 1)), item)
        yield "logits", weights(ClassAgreement(item))
        yield "query", weights(DotProduct(item, item))
    for item in wrong(N, H, "channels"):
        yield "logits", attend(ClassAgreement(item))
        yield "query", attend(DotProduct(item, item))
    for item in wrong(N, H, 4):
        yield "key", attend(DotProduct(query, item))
        yield "key", weights(DotProduct(query, item))
    for item in wrong(N, H):
        yield "target", attend(Additive(item, column))
        yield "source", attend(Additive(column, item))
        yield "source", weights(Additive(column, item))
    for item in wrong(E, H):
        yield "score", attend(EdgeScore(item))
        yield "bias", attend(ClassAgreement(logits), bias=item)
        yield "bias", weights(ClassAgreement(logits), bias=item)
    yield "key", attend(DotProduct(query, query.double()))
    yield "source", attend(Additive(column, column.double()))
    for form in (None, "uniform", Uniform, query):
        yield from (("form", attend(form)), ("form", weights(form)))
    for name in ("Symmetric", "symetric", "", None, 1, True):
        yield "normalization", attend(Uniform(), normalization=name)
        yield "normalization", weights(Uniform(), normalization=name)
    for share in (-1, -1e-9, 1, 1.0, 2, math.nan, math.inf, "0.5", None):
        yield "dropout", attend(Uniform(), dropout=share)
        for kind, training in ((x, True), (x, False), (sparse, True)):
            yield "dropout", partial(ops.dropout, kind, share, training)
    for near in (None, torch.zeros(2, 3, dtype=torch.long), "near"):
        yield "neighbors", attend(Uniform(), near=near)
        yield "neighbors", weights(Uniform(), near=near)
        yield "neighbors", partial(ops.neighbor_differences, near, x, 2.0)
    for item in wrong(N, "channels"):
        yield "x", partial(ops.neighbor_differences, NEAR, item, 2.0)
        yield "dense", partial(sparse.transposed_matmul, item)
    for power in (0.5, -1, math.nan):
        yield "power", partial(ops.neighbor_differences, NEAR, x, power)
    for item in wrong(D, "columns"):
        yield "dense", partial(sparse.matmul, item)
    for item in wrong("outputs", D):
        for kind in (x, sparse, ops.Columns((x,))):
            yield "weight", partial(ops.linear, kind, item)
    here = [item for item in wrong("nodes", "features") if not getattr(item, "is_meta", False)]
    for item in here:
        yield "x", partial(ops.dropout, item, 0.5, True)
    for item in (*here, torch.ones(9, 7).double(), torch.ones(9, 7).half()):
        yield "x", partial(ops.linear, item, torch.randn(4, 7))
    for item in (*wrong(4), torch.ones(4).double()):
        yield "bias", partial(ops.linear, x, weight, item)
        yield "bias", partial(ops.linear, sparse, weight, item)
    whole_numbers = replace(sparse, values=sparse.values.long())
    yield "x", partial(ops.linear, whole_numbers, weight)
    one = torch.ones(D)
    for item in (*wrong(D), one.double()):
        for function in (ops.layer_norm, ops.layer_norm_elu):
            yield "weight", partial(function, x, item, one, 1e-5)
            yield "bias", partial(function, x, one, item, 1e-5)
    for item in (*wrong(D, D), torch.eye(D).double()):
        yield "weight", partial(ops.identity_map, x, item, 0.5)
        yield "weight", partial(ops.residual_map, x, x, item, 0.2, 0.5)
    for item in (*wrong(N, D), torch.zeros(N, D).double()):
        yield "initial", partial(ops.residual_map, x, item, torch.eye(D), 0.2, 0.5)
    for item in (None, [[0], [1]], torch.zeros(3, 3), torch.zeros(2, 3), torch.full((2, 1), N)):
        yield "edge_index", partial(ops.as_neighbors, item, N)
    edges, weight_of, attr = NEAR.edge_index, torch.ones(E), torch.ones(E, 2)
    for near in (NEAR, edges):
        for item in (weight_of[1:], weight_of.repeat(2), weight_of[:0], attr, 1.0):
            yield "edge_weight", partial(ops.weighted_neighbors, near, N, item)
        for item in (attr[1:], attr.repeat(2, 1), attr[:0], weight_of, [[1.0]]):
            yield "edge_attr", partial(ops.weighted_neighbors, near, N, None, item)
        for bad in (-1.0, -1e-9, math.nan, math.inf, -math.inf):
            item = weight_of.clone()
            item[7] = bad
            yield "edge_weight", partial(ops.weighted_neighbors, near, N, item)


def hand_made() -> Iterator[tuple[str, Call]]:
    """Lists and samples that name nodes, edges or places which do not exist."""
    for name in ("source", "target", "target_by_source", "by_source", "pieces", "source_pieces"):
        for bad in (-2, 10**6):
            item = getattr(NEAR, name).clone()
            item.view(-1)[3] = bad
            yield name, partial(replace, NEAR, **{name: item})
    for name in ("ptr", "source_ptr"):
        for place, bad in ((0, 1), (5, -1), (5, 10**6), (-1, 10**6)):
            item = getattr(NEAR, name).clone()
            item[place] = bad
            yield name, partial(replace, NEAR, **{name: item})
    far = NEAR.source.long() + 10**6
    yield "source", partial(Neighbors.from_sorted, far, NEAR.target.long(), N)
    alone = NEAR.source.clone()
    alone[NEAR.source == NEAR.target] = 0
    yield "self-loop", partial(replace, NEAR, source=alone)
    places = sampling.no_places(N)
    for nodes in (torch.tensor([-1]), torch.tensor([N]), torch.tensor([1], dtype=torch.int32)):
        yield "nodes", partial(sampling.sample_neighbors, NEAR, nodes, 2, 1)
        yield "nodes", partial(sampling.sublists, NEAR, nodes, places)
        yield "nodes", partial(sampling.reach, NEAR, nodes, [2], 9, 1, places)
    for nodes in (torch.tensor([2, 1]), torch.tensor([1, 1])):
        yield "nodes", partial(sampling.sublists, NEAR, nodes, places)
    yield "neighbours", partial(sampling.sample_neighbors, NEAR, torch.tensor([1]), 0, 1)
    yield "places", partial(sampling.sublists, NEAR, torch.tensor([1]), places[1:])
    yield "places", partial(sampling.sublists, NEAR, torch.tensor([1]), places.long())


def sentence(call: Call, backend: str) -> str:
    with ops.use_backend(backend):
        try:
            call()
        except UserError as error:
            return str(error)
    return "accepted"


BACKENDS = ["reference", *(["native"] if kernels.available() else [])]


def test_every_backend_refuses_them_with_the_same_sentence():
    calls = [*malformed(), *hand_made()]
    assert len(calls) > 400
    for what, call in calls:
        found = {sentence(call, backend) for backend in BACKENDS}
        assert len(found) == 1, (what, found)
        assert what in found.pop()


@pytest.mark.gpu
def test_triton_refuses_them_with_the_same_sentence():
    near = NEAR.to("cuda")
    value = torch.randn(N, H, D, device="cuda")
    for item in (value[1:], value[:, 1:], value.long(), value.cpu()):
        call = lambda item=item: ops.neighbor_attention(near, item, DotProduct(value, value))  # noqa: E731
        assert "accepted" != sentence(call, "triton") == sentence(call, "reference")


def operators() -> Iterator[Call]:
    """``torch.ops.deepgat.*`` with one argument too short, too long, or of another type."""
    lists = [getattr(NEAR, name) for name in attention.LISTS]
    value, query, bias = torch.randn(N, H, D), torch.randn(N, H, 4), torch.randn(E, H)
    seed, raw = torch.tensor([1]), torch.ops.deepgat
    given = [lists, query, query.clone(), value, bias, seed]
    settings = (attention.DOT, 0, 1.0, 0.0, False, False, False, 0.5)
    out, log_sum = raw.attend(*given, *settings)
    for place in range(1, 6):
        for item in (given[place][:-1], given[place].double(), torch.cat([given[place]] * 2)):
            if place == 5 and item.numel() != 2 and item.dtype == torch.int64:
                continue
            one = [*given[:place], item, *given[place + 1 :]]
            yield lambda one=one: raw.attend(*one, *settings)
            yield lambda one=one: raw.attend_backward(
                out, out, log_sum, *one, *settings, True, True
            )
    for other in (out[1:], log_sum):
        yield lambda o=other: raw.attend_backward(o, out, log_sum, *given, *settings, True, True)
    for place, item in enumerate(lists):
        if attention.LISTS[place] in ("ptr", "source_ptr", "hubs", "source_hubs"):
            continue
        short = [*lists[:place], item[:-1], *lists[place + 1 :]]
        yield lambda short=short: raw.attend(short, *given[1:], *settings)
    names = ("source", "pieces", "hubs", "target_by_source", "source_pieces", "source_hubs")
    some, x = [getattr(NEAR, name) for name in names], torch.randn(N, D)
    for item in (x[1:], x.long(), torch.cat([x, x]), x[:, 0]):
        yield lambda item=item: raw.differences(some, item, 2.0, False)
        yield lambda item=item: raw.differences_backward(item, some, x, 2.0, False)
    m = SparseMatrix.from_torch((x * (x > 1)).to_sparse_csr())
    dense = torch.randn(D, 4)
    yield lambda: raw.sparse_matmul(*m.rows, None, m.values[1:], dense, None, 0.0)
    yield lambda: raw.sparse_matmul(*m.rows, None, m.values, dense, None, 0.5)
    yield lambda: raw.sparse_matmul(*m.rows, None, m.values, dense, torch.tensor([1, 2]), 0.5)
    yield lambda: raw.sparse_matmul(*m.rows, m.order[1:], m.values, dense, None, 0.0)
    yield lambda: raw.sparse_matmul(m.rows.ptr[1:], *m.rows[1:], None, m.values, dense, None, 0.0)
    yield lambda: raw.drop_entries(x, torch.tensor([1, 2]), 0.5)
    yield lambda: raw.drop_entries(x[0], torch.tensor([1]), 0.5)
    yield lambda: raw.drop_entries(x, torch.tensor([1]), 2.0)


@pytest.mark.skipif(not kernels.available(), reason="the native kernels are not built here")
def test_the_torch_operators_refuse_what_they_would_read_beyond_its_end():
    for call in operators():
        with pytest.raises(UserError):
            call()


@pytest.mark.slow
def test_no_malformed_call_ends_the_process():
    """In a process of its own, whose end would not be ours."""
    here = Path(__file__)
    program = f"""
import sys
sys.path[:0] = [{str(here.parent)!r}, {str(here.parents[1])!r}]
import test_malformed_calls as cases
for _, call in [*cases.malformed(), *cases.hand_made()]:
    for backend in cases.BACKENDS:
        cases.sentence(call, backend)
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "alive\n"
