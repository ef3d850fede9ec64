"""Chooses the implementation of an operator; all backends compute the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import Tensor

from deepgat.errors import UserError, unknown_name
from deepgat.ops import attention, definition, differences, dropout_masks, gpu
from deepgat.ops.cpu import differences as _cpu_differences  # noqa: F401  registers its kernels
from deepgat.ops.cpu import kernels
from deepgat.ops.neighbors import Neighbors
from deepgat.ops.partitioned import part_attention
from deepgat.ops.partitioned.lists import PartNeighbors
from deepgat.ops.score_forms import Normalization, ScoreForm

BACKENDS = ("auto", "reference", "native", "triton")
_HOW_TO_BUILD = (
    "install a C++ compiler with OpenMP, then deepgat again "
    "(pip install --force-reinstall --no-deps deepgat)"
)
_HOW_TO_GET_TRITON = "install triton (pip install triton), which torch's builds for GPUs include"
_HOW_TO = {"cpu": _HOW_TO_BUILD, "cuda": _HOW_TO_GET_TRITON}
_chosen = "auto"  # a plain global: torch.compile can read it


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run operators with one backend: "reference" (plain torch), "native" (C++) or "triton".

    "auto", the default, is the fastest for the tensors' device: native on CPUs, Triton on GPUs.
    """
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    if name == "native" and not kernels.available():
        raise UserError(f"the native backend is not built: {_HOW_TO_BUILD}")
    if name == "triton" and not gpu.available():
        raise UserError(f"the triton backend is not available: {_HOW_TO_GET_TRITON}")
    global _chosen
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def chosen() -> str:
    """The backend selected with :func:`use_backend`; "auto" by default."""
    return _chosen


def neighbor_attention(
    neighbors: Neighbors,
    value: Tensor,
    form: ScoreForm,
    normalization: Normalization = Normalization.ROW,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """out_v = Σ_{u∈N_v} α_vu value_u: [n, H, D] → [n, H, D].

    α is exp(s_vu + bias_vu), normalised over N_v or symmetrically. ``dropout`` is the share of
    weights to drop, seeded by torch's random generator. ``bias``: [E, H], or [E, 1] for all heads.
    """
    seed = dropout_masks.new_seed(value.device) if dropout else None
    run = _implementation(value)
    if isinstance(neighbors, PartNeighbors):
        run = partial(part_attention.neighbor_attention, run)
    return run(neighbors, value, form, normalization, dropout, seed, bias)


def neighbor_differences(neighbors: Neighbors, x: Tensor, power: float) -> Tensor:
    """out_v = Σ_{u∈N_v} |x_v − x_u|^p per channel, p ≥ 1: [n, D] → [n, D].

    Edges of weight 0 are ignored. Lists with weights use the reference implementation, which stores
    one number per edge and channel. Under autocast it runs in float32, like torch's ``pow``.
    """
    if x.dim() != 2 or x.size(0) != neighbors.num_nodes or not x.is_floating_point():
        raise UserError(
            f"x has shape {list(x.shape)} and dtype {x.dtype}: expected "
            f"[{neighbors.num_nodes}, channels] floating-point numbers, one row per list"
        )
    if not power >= 1:
        raise UserError(f"power is {power}: expected 1 or more, so that the gradient is finite")
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        x = x.float()
    run = definition.neighbor_differences
    if neighbors.square.log_weight is None:  # the kernels do not support weights
        run = _implementation(x, differences.neighbor_differences, run)
    return run(neighbors.square, neighbors.with_halo(x), float(power))[: x.size(0)]


def _implementation(
    value: Tensor,
    fast: Callable[..., Tensor] = attention.neighbor_attention,
    slow: Callable[..., Tensor] = definition.neighbor_attention,
) -> Callable[..., Tensor]:
    chosen, device = _chosen, value.device.type
    if chosen == "reference":
        return slow
    if torch.compiler.is_compiling():  # the checks below cannot be traced
        return fast if device in attention.KERNELS else slow
    if device == "cpu" and kernels.available() and chosen != "triton":
        return fast
    if device == "cuda" and gpu.available() and chosen != "native":
        return fast
    if chosen != "auto":
        raise UserError(f"the {chosen} backend does not run on {device} tensors: choose auto")
    if device in _HOW_TO:
        _say_once(device)
    return slow


@cache
def _say_once(device: str) -> None:
    warnings.warn(
        f"deepgat runs its slow path on the {device}, because its fast kernels are missing: "
        f"{_HOW_TO[device]}",
        stacklevel=4,
    )
