"""Which implementation runs: one operator, several backends with the same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from torch import Tensor

from deepgat.errors import UserError, unknown_name
from deepgat.ops import attention, draws, native, reference
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.scores import Normalization, ScoreForm

BACKENDS = ("auto", "reference", "native")
_HOW_TO_BUILD = (
    "install a C++ compiler with OpenMP, then deepgat again "
    "(pip install --force-reinstall --no-deps deepgat)"
)
_chosen: ContextVar[str] = ContextVar("deepgat_backend", default="auto")


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run the operators inside with one backend: "reference" (plain torch) or "native" (C++).

    "auto", the default, takes the fastest that fits the tensors.
    """
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    if name == "native" and not native.available():
        raise UserError(f"the native backend is not built: {_HOW_TO_BUILD}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def neighbor_attention(
    neighbors: Neighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """out_v = Σ_{u∈N_v} α_vu value_u: [n, H, D] → [n, H, D].

    α is exp(s_vu + bias_vu), normalised over N_v or symmetrically; a share ``dropout`` of the
    weights is dropped, drawn from torch's random numbers. ``bias``: [E, H], or [E, 1] for all
    heads.
    """
    seed = draws.new_seed(value.device) if dropout else None
    run = _implementation(value)
    return run(neighbors, value, form, normalization, dropout, seed, bias)


def _implementation(value: Tensor):  # type: ignore[no-untyped-def]
    chosen = _chosen.get()
    if chosen == "reference":
        return reference.neighbor_attention
    if native.supports(value):
        return attention.neighbor_attention
    if value.device.type == "cpu" and not native.available():
        _say_once()
    return reference.neighbor_attention


@cache
def _say_once() -> None:
    warnings.warn(
        f"deepgat runs its slow CPU path, because the fast kernels were not built: {_HOW_TO_BUILD}",
        stacklevel=4,
    )
