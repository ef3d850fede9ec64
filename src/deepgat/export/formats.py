"""The files that a program is written to, and how each is run."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram

from deepgat.errors import UserError
from deepgat.export.compiled import check_compiler, read_package, write_package
from deepgat.export.program import OUTPUTS
from deepgat.export.running import Run, quiet

METADATA = "metadata.json"
"""The name of the description inside a .pt2 file."""
OPSET = 18
"""The first version of ONNX's operators whose scatters take the maximum."""
LARGEST_ONNX = 2**31 - 2**20
"""Bytes: an ONNX file is one message of Protocol Buffers, which is shorter than 2 GiB."""


class Format(NamedTuple):
    """One kind of file."""

    meaning: str
    check: Callable[[], None]
    """Refuses what this machine lacks, before long work."""
    write: Callable[[ExportedProgram, Mapping[str, Any]], bytes]
    """(program, description) → the file."""
    read: Callable[[bytes], Run | None]
    """The file as it will be run; None where its runtime is not installed."""
    compiled: bool = False
    """Whether it is machine code, whose inputs the program has to check itself."""


def _nothing() -> None:
    """torch alone writes the file."""


def _write_pt2(program: ExportedProgram, about: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    bare = copy.copy(program)
    bare._example_inputs = None  # the file would keep them as a pickle
    with quiet():
        torch.export.save(bare, file, extra_files={METADATA: json.dumps(about, indent=1)})
    return file.getvalue()


def _read_pt2(data: bytes) -> Run:
    with quiet():
        module = torch.export.load(io.BytesIO(data)).module()
    return lambda inputs: module(**inputs)


def _check_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        raise UserError(
            f"the format onnx needs {' and '.join(missing)}, which {verb} not installed: "
            "pip install 'deepgat[export]'"
        )


def _write_onnx(program: ExportedProgram, about: Mapping[str, Any]) -> bytes:
    held = sum(x.numel() * x.element_size() for x in program.state_dict.values())
    if held > LARGEST_ONNX:
        raise UserError(
            f"the weights take {held / 2**30:.1f} GiB, but an ONNX file holds less than 2 GiB: "
            "export the model as pt2"
        )
    with quiet():
        made = torch.onnx.export(
            program,
            (),
            kwargs=program.example_inputs[1],
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            output_names=list(OUTPUTS),
        )
    assert made is not None
    proto = made.model_proto
    for node in proto.graph.node:  # where each came from in our source code
        del node.metadata_props[:]
        node.doc_string = ""
    del proto.graph.metadata_props[:]
    _name_sizes(proto.graph, about["inputs"])
    proto.producer_name, proto.producer_version = "deepgat", str(about["deepgat"])
    proto.doc_string = ""
    del proto.metadata_props[:]
    for name, value in about.items():
        text = value if isinstance(value, str) else json.dumps(value)
        proto.metadata_props.add(key=name, value=text)
    return bytes(proto.SerializeToString())


def _name_sizes(graph: Any, inputs: Mapping[str, Mapping[str, Any]]) -> None:
    """Name sizes that may change as the description does: "nodes" instead of "s77"."""

    def sizes(value: Any) -> Any:
        return value.type.tensor_type.shape.dim

    names: dict[str, str] = {}
    for value in graph.input:
        for size, name in zip(sizes(value), inputs[value.name]["shape"], strict=True):
            if size.dim_param.isidentifier() and isinstance(name, str):
                names[size.dim_param] = name
    for value in (*graph.input, *graph.output, *graph.value_info):
        for size in sizes(value):
            if size.dim_param:
                size.dim_param = re.sub(r"\w+", lambda m: names.get(m[0], m[0]), size.dim_param)


def _read_onnx(data: bytes) -> Run | None:
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = session.run(list(OUTPUTS), {name: x.numpy() for name, x in inputs.items()})
        return {name: torch.from_numpy(x) for name, x in zip(OUTPUTS, found, strict=True)}

    return run


FORMATS: Mapping[str, Format] = {
    "pt2": Format("torch.export, for PyTorch", _nothing, _write_pt2, _read_pt2),
    "onnx": Format("ONNX, for onnxruntime and others", _check_onnx, _write_onnx, _read_onnx),
    "aoti": Format(
        "AOTInductor, compiled for this machine's processor",
        check_compiler,
        write_package,
        read_package,
        compiled=True,
    ),
}
"""Name → format, the default first."""
EXTENSIONS: Mapping[str, str] = {".pt2": "pt2", ".onnx": "onnx"}
"""How a file name tells its format."""
