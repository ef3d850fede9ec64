"""What the operators refuse: shapes, types and devices that do not fit together.

Every public operator calls one of these functions before it chooses a backend, so that all backends
refuse the same calls with the same sentence. They cost O(1). The values of edges and the numbers of
nodes are checked once, when neighbour lists are built (``neighbors.py``).

The functions ``raw_…`` guard the operators ``torch.ops.deepgat.*`` on the CPU, whose kernels take
addresses. Their lists must come from :class:`~deepgat.ops.Neighbors` or
:class:`~deepgat.ops.SparseMatrix`: sizes are checked, the numbers inside the lists are not.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepgat.errors import UserError
from deepgat.ops.forward_lists import ForwardLists
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.score_forms import (
    Additive,
    ClassAgreement,
    DotProduct,
    EdgeScore,
    Normalization,
    ScoreForm,
    Uniform,
)

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_PER_EDGE = "one row per edge of the neighbour lists, which include self-loops, in their order"


def share(name: str, value: Any) -> None:
    """A share to drop, from 0 to below 1."""
    if type(value) is float and 0 <= value < 1:  # at once: this is called for every operator
        return
    number = isinstance(value, numbers.Real | torch.SymFloat)
    if not number or not 0 <= value < 1:
        raise UserError(f"{name} is {value!r}: expected a number of at least 0 and below 1")


def attention(
    neighbors: Neighbors,
    value: Tensor | None,
    form: ScoreForm,
    normalization: Normalization | str,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Normalization:
    """The arguments of attention; returns the normalisation, which may be given by its name."""
    _check_lists(neighbors)
    heads: int | str = "heads"
    if value is not None:
        _check("value", value, (neighbors.num_nodes, "heads", "channels"), neighbors.device)
        heads = value.size(1)
    heads = _check_form(neighbors, form, heads)
    if bias is not None:
        _check_per_edge("bias", bias, neighbors, heads)
    share("dropout", dropout)
    return Normalization.named(normalization)


def _check_form(neighbors: Neighbors, form: ScoreForm, heads: int | str) -> int | str:
    """The number of heads, where the form tells it."""
    n, device = neighbors.num_nodes, neighbors.device
    match form:
        case DotProduct(query, key):
            _check("query", query, (n, heads, "channels"), device)
            if key is not query:
                _check("key", key, query.shape, device)
                _same_dtype("key", key, "query", query)
            return query.size(1)
        case ClassAgreement(logits):
            _check("logits", logits, (n, heads, "classes"), device)
            return logits.size(1)
        case Additive(target, source):
            _check("target", target, (n, heads), device)
            _check("source", source, target.shape, device)
            _same_dtype("source", source, "target", target)
            return target.size(1)
        case EdgeScore(score):
            _check_per_edge("score", score, neighbors, heads)
            return heads if score.size(1) == 1 else score.size(1)
        case Uniform():
            return heads
    raise UserError(
        f"form is a {type(form).__name__}: expected DotProduct, ClassAgreement, Additive, "
        "EdgeScore or Uniform of deepgat.ops"
    )


def differences(neighbors: Neighbors, x: Tensor, power: float) -> None:
    _check_lists(neighbors)
    _check("x", x, (neighbors.num_nodes, "channels"), neighbors.device)
    if not power >= 1:
        raise UserError(f"power is {power}: expected 1 or more, so that the gradient is finite")


def features(x: Any) -> None:
    """Node features of any kind: [n, d] floating-point numbers."""
    for block in _blocks(x):
        if isinstance(block, Tensor):
            _check("x", block, ("nodes", "features"))
        elif not hasattr(block, "values"):
            raise UserError(
                f"x is a {type(block).__name__}: expected a tensor [nodes, features] or a "
                "SparseMatrix"
            )
        else:
            _floats("x", block.values)


def _blocks(x: Any) -> tuple[Any, ...]:
    return (x,) if isinstance(x, Tensor) else getattr(x, "blocks", (x,))


def dropout(x: Any, rows: int | None) -> None:
    """``rows``: the number of nodes of the part in use; None for a whole graph."""
    features(x)
    if rows is not None and x.size(0) != rows:
        raise UserError(f"x has {x.size(0)} rows, but the part in use has {rows} nodes")


def linear(x: Any, weight: Tensor, bias: Tensor | None) -> None:
    features(x)
    _check("weight", weight, ("outputs", x.size(1)), x.device)
    if bias is not None:
        _check("bias", bias, (weight.size(0),), x.device)
        _same_dtype("bias", bias, "weight", weight)
    for block in _blocks(x):
        if isinstance(block, Tensor):  # a sparse product is computed in the type of its values
            _same_dtype("x", block, "weight", weight)


def identity_map(x: Tensor, weight: Tensor) -> None:
    _check("x", x, ("nodes", "channels"))
    _check("weight", weight, (x.size(1), x.size(1)), x.device)
    _same_dtype("x", x, "weight", weight)


def residual_map(x: Tensor, initial: Tensor, weight: Tensor) -> None:
    identity_map(x, weight)
    _check("initial", initial, x.shape, x.device)
    _same_dtype("initial", initial, "x", x)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dim() != 1:
        _check("x", x, ("nodes", "channels"))
    _check("weight", weight, x.shape[-1:], x.device)
    _check("bias", bias, x.shape[-1:], x.device)
    _same_dtype("bias", bias, "weight", weight)
    if weight.dtype != torch.float32 or x.dtype == torch.float64:  # half x, single weight: fine
        _same_dtype("x", x, "weight", weight)


def product(dense: Tensor, rows: int, device: torch.device) -> None:
    """The right-hand side of a sparse product."""
    _check("dense", dense, (rows, "columns"), device)


def _check_lists(neighbors: Any) -> None:
    if not isinstance(neighbors, Neighbors):
        raise UserError(
            f"neighbors is a {type(neighbors).__name__}: expected Neighbors, such as "
            "Neighbors.from_edge_index(edge_index, num_nodes)"
        )
    if isinstance(neighbors, ForwardLists) and torch.is_grad_enabled():
        raise UserError(
            "neighbors serve predictions only: use torch.no_grad(), or Neighbors for gradients"
        )


def _check(
    name: str, x: Any, sizes: Sequence[int | str], device: torch.device | None = None
) -> None:
    """A dense floating-point tensor of these sizes; a size that is a word may be any."""
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        kind = f"a tensor of layout {x.layout}" if isinstance(x, Tensor) else type(x).__name__
        raise UserError(f"{name} is {kind}: expected a dense tensor {_shape(sizes)}")
    if not _fits(x.shape, sizes):
        raise UserError(f"{name} has shape {list(x.shape)}: expected {_shape(sizes)}")
    _floats(name, x)
    if device is not None:
        _on(name, x, device)


def _check_per_edge(name: str, x: Any, neighbors: Neighbors, heads: int | str) -> None:
    _check(name, x, ("edges", "heads"), neighbors.device)
    edges, given = x.shape
    if edges != neighbors.num_edges or (given != 1 and given != heads and heads != "heads"):
        wanted = f"{_shape((neighbors.num_edges, heads))} or [{neighbors.num_edges}, 1]"
        raise UserError(f"{name} has shape {list(x.shape)}: expected {wanted}, {_PER_EDGE}")


def _floats(name: str, x: Tensor) -> None:
    if x.dtype not in FLOATS:
        raise UserError(
            f"{name} holds {x.dtype} values: expected floating-point numbers; convert it with "
            f"{name}.float()"
        )


def _on(name: str, x: Tensor, device: torch.device) -> None:
    if x.device != device:
        raise UserError(
            f"{name} is on {x.device}, but what it goes with on {device}: move both to one device"
        )


def _same_dtype(name: str, x: Tensor, other: str, y: Tensor) -> None:
    if x.dtype != y.dtype and not torch.is_autocast_enabled(x.device.type):
        raise UserError(
            f"{name} holds {x.dtype} values, but {other} holds {y.dtype}: convert it with "
            f"{name}.to({y.dtype})"
        )


def _fits(shape: Sequence[int], sizes: Sequence[int | str]) -> bool:
    if len(shape) != len(sizes):
        return False
    for got, size in zip(shape, sizes, strict=True):  # a plain loop: called for every operator
        if got != size and not isinstance(size, str):
            return False
    return True


def _shape(sizes: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def raw(name: str, x: Tensor, dtype: torch.dtype, *sizes: int | str) -> None:
    """A tensor whose address a CPU kernel takes; only its strides are free."""
    if x.device.type != "cpu" or x.dtype != dtype or x.layout != torch.strided:
        raise UserError(
            f"{name} is a tensor of {x.dtype} values on {x.device}: expected dense {dtype} on cpu"
        )
    if not _fits(x.shape, sizes):
        raise UserError(f"{name} has shape {list(x.shape)}: expected {_shape(sizes)}")


def raw_lists(rows: int, *, pieces: Tensor, hubs: Tensor, **lists: Tensor) -> int:
    """Lists of ``rows`` nodes, split into pieces; returns how many entries they have.

    ``lists`` have an entry per edge, int64 where they name edges and int32 where they name nodes.
    """
    entries = next(iter(lists.values())).numel()
    for name, x in lists.items():
        by_edge = name in ("by_source", "position")
        raw(name, x, torch.int64 if by_edge else torch.int32, entries)
    raw("pieces", pieces, torch.int64, "pieces", 4)
    raw("hubs", hubs, torch.int64, "hubs", 3)
    parts = int(hubs[-1, 2]) if len(hubs) else 0
    if not all(x.is_contiguous() for x in (pieces, hubs, *lists.values())):
        raise UserError("the lists are not contiguous: take them from Neighbors as they are")
    if len(pieces) - parts + len(hubs) != rows:
        raise UserError(
            f"the lists are for {len(pieces) - parts + len(hubs)} nodes, but there are {rows} "
            "rows: build them from the same graph"
        )
    return entries


def raw_seed(seed: Tensor | None, rows: int, dropout: float) -> None:
    """``seed`` is one number, or one and the name of every row; it is read with dropout only."""
    share("dropout", dropout)
    if dropout and seed is None:
        raise UserError("dropout is given without a seed: pass a tensor of one number")
    if seed is not None and dropout:
        raw("seed", seed, torch.int64, 1 if seed.numel() == 1 else 1 + rows)
        if not seed.is_contiguous():
            raise UserError("seed is not contiguous: pass seed.contiguous()")
