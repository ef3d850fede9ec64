"""A layer as one C++ autograd node (gpu/fused_layer.cpp), without a GPU: Triton interprets kernels.

The node calls a function of this file in the place of CUDA's cuLaunchKernel. It finds the kernel's
arguments as CUDA would, at the addresses that it is given.
"""

import ctypes
import gc
import inspect
import os
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from deepgat import ops
from deepgat.nn import AdditiveScore, ClassScore, NeighborAttention
from deepgat.ops import Neighbors, fused_layer

from graphs import random_edges
from ops.test_gpu_kernels import cut

pytest.importorskip("triton", reason="Triton is not installed here")
from deepgat.ops.gpu import extension, prepared, recording
from deepgat.ops.gpu import fused_layer as gpu_layer

pytestmark = [
    pytest.mark.slow,  # the node is compiled, which takes a minute
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/test_gpu.py launches real kernels"),
]

N, WIDTH, HEADS, CHANNELS, CLASSES = 4, 6, 2, 4, 3
SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
)  # fmt: skip
NUMBERS = {"i64": ctypes.c_int64, "fp32": ctypes.c_float}


class Kernel:
    """A compiled kernel as the recorder sees it; run by the interpreter at the addresses given."""

    known: ClassVar[list["Kernel"]] = []
    metadata = SimpleNamespace(num_warps=4, shared=0, num_ctas=1)

    def __init__(self, kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.kernel, self.example, self.options = kernel, arguments, options
        parameters = inspect.signature(kernel.fn).parameters.values()
        self.src = SimpleNamespace(
            signature={
                parameter.name: kind_of(parameter.annotation, argument)
                for parameter, argument in zip(parameters, arguments, strict=True)
            }
        )
        Kernel.known.append(self)
        self.function = len(Kernel.known)

    def run(self, grid: tuple[int, int], addresses: Any) -> None:
        kinds, given = list(self.src.signature.values()), []
        place = 0

        def read(kind: Any, example: Any) -> Any:
            nonlocal place
            if isinstance(kind, tuple):
                return tuple(read(*pair) for pair in zip(kind, example, strict=True))
            if kind == "constexpr":
                return example
            address = addresses[place]
            place += 1
            if not kind.startswith("*"):
                return ctypes.cast(address, ctypes.POINTER(NUMBERS[kind]))[0]
            where = ctypes.cast(address, ctypes.POINTER(ctypes.c_int64))[0]
            return tensor_at(where, example)

        for kind, example in zip(kinds, self.example, strict=True):
            given.append(read(kind, example))
        self.kernel[grid](*given, **self.options)


def kind_of(annotation: Any, argument: Any) -> Any:
    if "constexpr" in str(annotation):
        return "constexpr"
    if isinstance(argument, tuple):
        return tuple(kind_of("", item) for item in argument)
    return "*" if isinstance(argument, Tensor) else "fp32" if isinstance(argument, float) else "i64"


def tensor_at(address: int, like: Tensor) -> Tensor:
    storage = like.untyped_storage()
    size = storage.nbytes() - (like.data_ptr() - storage.data_ptr())
    flat = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=like.dtype)
    return flat.as_strided(like.shape, like.stride())


@SIGNATURE
def launch(function: int, x: int, y: int, z: int, *rest: Any) -> int:
    try:
        Kernel.known[function - 1].run((x, y), rest[-2])
    except BaseException as error:
        print(f"kernel {function}: {error!r}")
        return 1
    return 0


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The compiled node, on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if "XDG_CACHE_HOME" not in os.environ:
            patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        found = extension.wait()
        assert found is not None
        found.launch_by(ctypes.cast(launch, ctypes.c_void_p).value)
        patch.setitem(fused_layer.RUN, "cpu", gpu_layer.run)
        patch.setattr(torch.cuda, "current_device", lambda: None)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(prepared.Launcher, "__call__", told(prepared.Launcher.__call__))
        yield found


def told(call: Callable[..., None]) -> Callable[..., None]:
    def run(self: Any, grid: Any, stream: Any, tensors: Any, *numbers: int) -> None:
        recorder, arguments = recording.current(), (*tensors, *numbers, *self._settings)
        self._kernel[grid](*arguments, **self._options)
        if recorder is not None:
            recorder.add(Kernel(self._kernel, arguments, self._options), grid, arguments)

    return run


@pytest.fixture
def calls(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every call of the node."""
    found: list[int] = []

    def apply(*arguments: Any) -> Any:
        found.append(1)
        return native.apply(*arguments)

    counted = SimpleNamespace(Program=native.Program, Step=native.Step, apply=apply)
    monkeypatch.setattr(extension, "loaded", lambda: counted)
    return found


SCORES = {
    "classes": {"num_classes": CLASSES},
    "labels": {
        "num_classes": CLASSES,
        "score": lambda shape: ClassScore(shape, independent_labels=True, sharpness=2.0),
    },
    "detached": {"num_classes": CLASSES, "score": lambda shape: ClassScore(shape, detached=True)},
    "gat": {"score": AdditiveScore},
}


def layer(score: str, **options: Any) -> NeighborAttention:
    conv = NeighborAttention(WIDTH, CHANNELS, HEADS, **SCORES[score] | options).double()  # type: ignore[arg-type]
    if conv.bias is not None:
        torch.nn.init.normal_(conv.bias)
    return conv


def graph(directed: bool = False, longest: int = 512) -> Neighbors:
    edges = random_edges(N, 6, directed=directed)
    return cut(Neighbors.from_edge_index(edges, N), longest)


def results(conv: NeighborAttention, x: Tensor, near: Neighbors, seed: int = 0) -> list[Tensor]:
    """Outputs and all gradients, of a loss that reads the logits too."""
    x = x.detach().requires_grad_()
    torch.manual_seed(seed)
    found = conv.run(x, near)
    outputs = [item for item in (found.out, found.class_logits) if item is not None]
    loss = sum((item * torch.arange(item.numel()).view_as(item).sin()).sum() for item in outputs)
    assert isinstance(loss, Tensor)
    return [*outputs, *torch.autograd.grad(loss, [x, *conv.parameters()])]


CASES = [
    ("classes", "row", False, 512, {}),
    ("labels", "symmetric", True, 2, {"dropout": 0.4, "bias": False}),
    ("gat", "row", True, 512, {"dropout": 0.4, "residual": True}),
    ("gat", "symmetric", False, 2, {"bias": False}),
]
"""Score, normalisation, directed, longest list that is not cut, options."""


@pytest.mark.parametrize(("score", "way", "directed", "longest", "options"), CASES)
def test_node_is_the_definition(
    score: str, way: str, directed: bool, longest: int, options: dict[str, Any], calls: list[int]
) -> None:
    conv, near, x = layer(score, normalization=way, **options), graph(directed, longest), rows()
    with ops.use_backend("reference"):
        expected = results(conv, x, near)
    assert not calls
    for found, wanted in zip(results(conv, x, near), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    other = rows()  # the launches are repeated, on other memory
    with ops.use_backend("reference"):
        expected = results(conv, other, near, seed=1)
    for found, wanted in zip(results(conv, other, near, seed=1), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert len(calls) == 2


def rows() -> Tensor:
    return torch.randn(N, WIDTH, dtype=torch.float64)


def test_only_the_gradients_that_are_needed(calls: list[int]) -> None:
    near, x = graph(), rows()
    for score in ("classes", "gat"):
        conv = layer(score)
        with ops.use_backend("reference"):
            wanted = dict(
                zip(names(conv), results(conv, x, near)[-len(names(conv)) :], strict=True)
            )
        x.requires_grad_()
        for name, parameter in [("x", x), *conv.named_parameters()]:
            found = conv.run(x, near)
            loss = sum(
                (item * torch.arange(item.numel()).view_as(item).sin()).sum()
                for item in found[:2]
                if item is not None
            )
            (grad,) = torch.autograd.grad(loss, [parameter])  # type: ignore[arg-type, list-item]
            torch.testing.assert_close(grad, wanted[name], rtol=1e-10, atol=1e-10)


def names(conv: NeighborAttention) -> list[str]:
    return ["x", *(name for name, _ in conv.named_parameters())]


def test_a_loss_of_the_logits_alone(calls: list[int]) -> None:
    """It can be differentiated twice, as a linear map can."""
    conv, near, x = layer("classes"), graph(), rows().requires_grad_()

    def twice() -> list[Tensor]:
        logits = conv.run(x, near).class_logits
        assert logits is not None
        (first,) = torch.autograd.grad(logits.pow(2).sum(), [x], create_graph=True)
        second = torch.autograd.grad(first.pow(2).sum(), [x, conv.class_weight])  # type: ignore[list-item]
        return [first, *second]

    found = twice()
    assert calls
    with ops.use_backend("reference"):
        expected = twice()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_no_second_gradient_through_the_attention(calls: list[int]) -> None:
    conv, near, x = layer("gat"), graph(), rows().requires_grad_()
    (first,) = torch.autograd.grad(conv(x, near).pow(2).sum(), [x], create_graph=True)
    expected = torch.autograd.grad(conv(x, near).pow(2).sum(), [x])[0]
    torch.testing.assert_close(first, expected, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("bias", [False, True])
def test_changes_in_place_are_seen(bias: bool, calls: list[int]) -> None:
    conv, near, x = layer("classes", bias=bias), graph(), rows()
    for change in ("weight", "logits", "x", "out"):
        given = x.clone()
        found = conv.run(given, near)
        assert found.class_logits is not None
        with torch.no_grad():
            {
                "weight": conv.class_weight,
                "logits": found.class_logits,
                "x": given,
                "out": found.out,
            }[change].mul_(2)  # type: ignore[union-attr]
        if change == "out" and bias:  # what is kept is the sum before the bias
            found.out.sum().backward()
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                found.out.sum().backward()
    assert calls


def test_what_the_node_leaves_to_python(calls: list[int]) -> None:
    near, x = graph(), rows()
    conv = layer("classes")
    for other in (
        layer("classes", class_bias=True),
        layer("classes", concat=False),
        layer("detached"),
        layer("gat", edge_dim=2),
    ):
        attr = torch.zeros(near.num_edges, 2, dtype=x.dtype) if other.edge_map else None
        other(x, near, attr)
    conv(x, near, edge_weight=torch.ones(near.num_edges, dtype=x.dtype))
    conv(x, near, return_attention_weights=True)
    with pytest.raises(RuntimeError, match="functorch"):  # as an autograd function of Python
        torch.func.grad(lambda scale: conv(x * scale, near).sum())(torch.ones(()).double())
    assert not calls
    conv(x, near)
    assert calls
    with torch.no_grad():
        assert not conv(x, near).requires_grad
    with torch.inference_mode():
        conv(x, near)
    assert len(calls) == 3


def test_two_calls_before_a_backward_pass(calls: list[int]) -> None:
    conv, near, x = layer("classes"), graph(), rows()

    def gradient() -> Tensor:
        loss = conv(x, near).pow(2).sum() + conv(2 * x, near).pow(3).sum()
        (found,) = torch.autograd.grad(loss, [conv.weight])  # type: ignore[list-item]
        return found

    found = gradient()
    assert len(calls) == 2
    with ops.use_backend("reference"):
        torch.testing.assert_close(found, gradient(), rtol=1e-10, atol=1e-10)


def test_lists_live_as_long_as_they_are_needed(calls: list[int]) -> None:
    conv, near, x = layer("classes"), graph(), rows()
    out = conv(x, near)
    gone = weakref.ref(near)
    del near
    gc.collect()
    assert gone() is None
    out.sum().backward()
    assert conv.weight is not None
    assert conv.weight.grad is not None
