"""A layer on a GPU as one autograd node in C++ (``fused_layer.cpp``).

From Python a layer takes three autograd functions and some eight launches, and the host takes
longer than the GPU. The first call on a graph runs the kernels from Python and records their
launches. All later ones repeat them, with the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepgat.ops import dropout_masks, fused_layer
from deepgat.ops.attention_operator import (
    ADDITIVE,
    AS_IS,
    DOT,
    SIGMOID,
    SOFTMAX,
    Inputs,
    kernel_lists,
)
from deepgat.ops.fused_layer import Layer, Settings
from deepgat.ops.gpu import additive_score, attention, extension
from deepgat.ops.gpu.prepared import can_repeat
from deepgat.ops.gpu.recording import CannotRecordError, Recorder, recorded_by
from deepgat.ops.joint_product import blocks_of, side_by_side
from deepgat.ops.neighbors import Neighbors

MOST_STEPS = 64
"""Steps that are kept for a graph."""


def run(x: Tensor, neighbors: Neighbors, layer: Layer, settings: Settings) -> list[Tensor] | None:
    """out [n, H·D] and, with W₁, the class logits [n, H, C]; None where Python has to do it."""
    native = extension.loaded()
    if native is None or not _applies(x, layer):
        return None
    key, steps = _key(x, layer, settings), kernel_lists(neighbors).steps
    step = steps.get(key)
    if step is None:
        if key in steps or torch.cuda.is_current_stream_capturing():
            return None
        if len(steps) >= MOST_STEPS:
            steps.clear()
        try:
            step = _record(native, x, neighbors, layer, settings, torch.is_grad_enabled())
            steps[key] = step
        except CannotRecordError:
            steps[key] = None
            return None
    seed = dropout_masks.new_seed(x.device) if settings.dropout else None
    found: list[Tensor] = native.apply(x, *layer, step, seed)
    return found


def _applies(x: Tensor, layer: Layer) -> bool:
    weight = layer.weight
    return (
        x.dim() == 2
        and x.size(0) > 0
        and x.size(1) == weight.size(1)
        and x.device.index == torch.cuda.current_device()
        and all(
            item is None
            or (item.device == x.device and item.dtype == x.dtype and type(item) in _PLAIN)
            for item in (x, *layer)
        )
        and (layer.target is None or all(item.is_contiguous() for item in _vectors(layer)))
        and not torch.is_autocast_enabled("cuda")
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and can_repeat()
    )


_PLAIN = (Tensor, torch.nn.Parameter)


def _key(x: Tensor, layer: Layer, settings: Settings) -> Any:
    """All that the launches depend on, beside the graph."""
    weight, class_weight, target, source, _ = layer
    classes = None if class_weight is None else class_weight.size(0)
    aligned: Any = None
    if target is not None and source is not None:
        aligned = (target.data_ptr() | source.data_ptr()) & 15 == 0
    grad = torch.is_grad_enabled()
    return settings, weight.size(0), classes, aligned, x.dtype, x.device.index, grad


@torch.no_grad()
def _record(
    native: Any, x: Tensor, neighbors: Neighbors, layer: Layer, settings: Settings, twice: bool
) -> Any:
    """Run the kernels once; if ``twice``, also those of the backward pass."""
    lists, ptr = kernel_lists(neighbors), neighbors.ptr
    weight, class_weight = layer.weight, layer.class_weight
    joint = weight if class_weight is None else torch.cat((weight, class_weight))
    projected = torch.mm(x, joint.t())
    seed = torch.zeros(1, dtype=torch.long, device=x.device) if settings.dropout else None
    given = projected, layer.target, layer.source, seed
    recorder = Recorder(given, lists)
    with recorded_by(recorder):
        if class_weight is not None:
            widths = weight.size(0), class_weight.size(0)
            value, query = blocks_of(projected, widths, settings.heads)
            products: tuple[Tensor, ...] = ()
            key, kind = ptr, DOT
            activation = SIGMOID if settings.independent_labels else SOFTMAX
        else:
            value = projected.view(x.size(0), settings.heads, -1)
            products = additive_score.forward(value, *_vectors(layer))
            query, key = (item.unsqueeze(-1) for item in products)
            kind, activation = ADDITIVE, AS_IS
        inputs = Inputs(
            lists, query, key, value, None, ptr if seed is None else seed, kind, activation,
            settings.scale, settings.slope, settings.symmetric_normalization, kind == DOT,
            neighbors.symmetric, settings.dropout,
        )  # fmt: skip
        out, log_sum = attention.forward(inputs)
    results = out.flatten(1), log_sum, *products
    forward = native.Program(*recorder.program(results), list(lists))
    if not twice:
        return native.Step(forward, None, settings.heads)

    grad = torch.zeros_like(out)
    unused = (None,) * (4 - len(results))
    recorder = Recorder((*given, *results, *unused, grad), lists)
    with recorded_by(recorder):
        grads = _gradients(grad, out, log_sum, inputs, layer)
    backward = native.Program(*recorder.program(grads), list(lists))
    return native.Step(forward, backward, settings.heads)


def _gradients(
    grad: Tensor, out: Tensor, log_sum: Tensor, inputs: Inputs, layer: Layer
) -> list[Tensor]:
    """What ``fused_layer.cpp`` computes gradients of weights from: its ``Gradient``."""
    of_query, of_key, of_value, _ = attention.backward(
        grad, out, log_sum, inputs, True, False, joint=True
    )
    assert of_query is not None
    if inputs.kind == DOT:
        of_projected = side_by_side((of_value, of_query))
        assert of_projected is not None
        return [of_projected]
    assert of_key is not None
    of_scores = of_query.squeeze(-1), of_key.squeeze(-1)
    of_products = additive_score.backward_in_parts(inputs.value, *_vectors(layer), *of_scores)
    return [of_value, *of_products]


def _vectors(layer: Layer) -> tuple[Tensor, Tensor]:
    assert layer.target is not None
    assert layer.source is not None
    return layer.target, layer.source


fused_layer.RUN["cuda"] = run
