"""Build the CPU kernels: plain C++ with OpenMP, linked with neither Python nor torch.

Without a compiler, the package installs without them and warns when it first needs one.

- ``DEEPGAT_REQUIRE_KERNELS=1``: fail instead when the kernels cannot be built.
- ``DEEPGAT_PURE=1``: leave the kernels out, for a wheel that installs everywhere.
"""

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# torch brings its own copy of LLVM's OpenMP to macOS, and a second one aborts the process. Without
# OpenMP the kernels give the same results on one thread.
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    *OPENMP,
    # infinities and NaN keep their meaning, and sums their order
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
]
SOURCES = ("attention", "differences", "matmul", "sampling")
INSTRUCTION_SETS = {
    "base": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma"],
}


class BuildKernels(build_ext):
    """Compile each source once per instruction set; the processor decides which copy runs."""

    def build_extension(self, ext: Extension) -> None:
        intel = platform.machine().lower() in ("x86_64", "amd64")
        wanted = [name for name in INSTRUCTION_SETS if intel or name == "base"]

        def compile_for(name: str) -> list[str]:
            return self.compiler.compile(
                ext.sources,
                output_dir=str(Path(self.build_temp) / name),
                extra_postargs=[*FLAGS, *INSTRUCTION_SETS[name], f"-DDEEPGAT_SUFFIX={name}"],
            )

        with ThreadPoolExecutor() as pool:
            objects = [item for made in pool.map(compile_for, wanted) for item in made]
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects, str(target), extra_postargs=OPENMP, target_lang="c++"
        )


class WheelForEveryPython(bdist_wheel):
    """Tag the wheel with its platform alone, because the kernels do not use Python's ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


KERNELS = Extension(
    "deepgat.ops.cpu._kernels",
    [f"src/deepgat/ops/cpu/{name}.cpp" for name in SOURCES],
    depends=[f"src/deepgat/ops/cpu/{name}.h" for name in ("names", "simd")],
    optional=os.environ.get("DEEPGAT_REQUIRE_KERNELS") != "1",
)
pure = os.environ.get("DEEPGAT_PURE") == "1" or sys.platform == "win32"
setup(
    ext_modules=[] if pure else [KERNELS],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelForEveryPython},
)
