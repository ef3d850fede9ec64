"""AOTInductor packages: a program compiled to machine code by torch and a C++ compiler."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from deepgat.errors import UserError
from deepgat.export.running import Run, quiet

_OTHERS = "pt2 and onnx need no compiler"


def check_compiler() -> None:
    """Refuses a machine without a C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise UserError(
            "the format aoti needs a C++ compiler, and this machine has none: install g++ or "
            f"clang++, or name one in the variable CXX; {_OTHERS}"
        ) from error


def write_package(program: ExportedProgram, about: Mapping[str, Any]) -> bytes:
    """Compile a program, for as many threads as torch has when it is run."""
    from torch._inductor import aoti_compile_and_package

    texts = {key: v if isinstance(v, str) else json.dumps(v) for key, v in about.items()}
    settings = {"aot_inductor.metadata": texts, "cpp.dynamic_threads": True}
    with tempfile.TemporaryDirectory(prefix="deepgat-") as folder, quiet():
        file = str(Path(folder) / "model.pt2")
        try:
            path = aoti_compile_and_package(program, package_path=file, inductor_configs=settings)
        except RuntimeError as error:
            if "C++ compile error" not in str(error):
                raise
            raise UserError(
                f"the C++ compiler refused the program ({_first_error(str(error))}): name another "
                f"compiler in the variable CXX; {_OTHERS}"
            ) from error
        return Path(path).read_bytes()


def _first_error(text: str) -> str:
    """What a compiler says first, without the place."""
    found = re.search(r"error: (.*)", text)
    return found[1].strip() if found else "it does not say why"


def read_package(data: bytes) -> Run:
    from torch._inductor import aoti_load_package

    with tempfile.TemporaryDirectory(prefix="deepgat-") as folder, quiet():
        path = Path(folder) / "model.pt2"
        path.write_bytes(data)
        module = aoti_load_package(str(path))
    return lambda inputs: module(**inputs)
