"""Builds the CPU kernels with the package: plain C++ with OpenMP, no tie to Python or torch.

Where there is no compiler the package installs without them and says so when it first misses them.
"""

import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
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
    """Compiles each source once per instruction set; which copy runs is decided at run time."""

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
            objects, str(target), extra_postargs=["-fopenmp"], target_lang="c++"
        )


supported = sys.platform != "win32"
setup(
    ext_modules=[
        Extension(
            "deepgat.ops.cpu._kernels",
            [f"src/deepgat/ops/cpu/{name}.cpp" for name in SOURCES],
            depends=[f"src/deepgat/ops/cpu/{name}.h" for name in ("names", "simd")],
            optional=True,
        )
    ]
    if supported
    else [],
    cmdclass={"build_ext": BuildKernels},
)
