"""Compiling a level: its source and what stands in front of it, by NVRTC, for any architecture and with no GPU.

Kernels are kept by `cutegemm.compiler.cache`, like those of every other family.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cutegemm.errors import CuteGemmError
from cutegemm.hand_kernels import glue
from cutegemm.hand_kernels.levels import Level

if TYPE_CHECKING:
    from cutegemm.compiler import Spec

#: The family's name in specs and `kernel=` strings.
FAMILY = "hand"
#: Where the sources are.
FOLDER = Path(__file__).parent
_HEADERS = "nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"


def source(spec: Spec) -> str:
    """The whole text that NVRTC is given: one kernel, named `spec.symbol`."""
    level = level_of(spec)
    return glue.prefix(level, spec.signature, spec.symbol) + f'#include "{level.source}"\n'


def compile(spec: Spec) -> tuple[bytes, float]:
    """The cubin of `spec`'s kernel, and the seconds that compiling took: about half of one.

    Raises `CuteGemmError` with NVRTC's log for a source that does not compile, and naming the packages where NVRTC or
    the headers that the level includes are missing.
    """
    core = _core()
    folders: Sequence[str] = (str(FOLDER), *(toolkit_headers() if level_of(spec).headers else ()))
    # Line numbers in the cubin are what the profiler shows its counts beside; they cost nothing at run time.
    options = core.ProgramOptions(arch=spec.arch, std="c++17", lineinfo=True, include_path=folders)
    started = time.perf_counter()
    try:
        code: bytes = core.Program(source(spec), "c++", options).compile("cubin").code
    except Exception as error:  # cuda.core has an exception of its own for every tool
        raise CuteGemmError(f"{spec} does not compile: {error}") from error
    return code, time.perf_counter() - started


def level_of(spec: Spec) -> Level:
    """The level that a spec of the family `hand` is of."""
    if not isinstance(spec.config, Level):
        raise TypeError(f"{spec} is not a hand-written kernel")
    return spec.config


@cache
def toolkit_headers() -> tuple[str, ...]:
    """The folders of CUDA's own headers: mma.h and what it includes. Raises `CuteGemmError` where they are missing."""
    from cuda import pathfinder

    found = (pathfinder.find_nvidia_header_directory(part) for part in ("cudart", "nvcc", "cccl"))
    folders = tuple(dict.fromkeys(str(folder) for folder in found if folder is not None))
    if not any((Path(folder) / "crt" / "mma.h").exists() for folder in folders):
        raise CuteGemmError(f"mma.h, which this level includes, is missing: pip install {_HEADERS}")
    return folders


@cache
def _core() -> ModuleType:
    from cuda import core, pathfinder

    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except pathfinder.DynamicLibNotFoundError as error:
        raise CuteGemmError("NVRTC, which compiles these kernels, is missing: pip install nvidia-cuda-nvrtc") from error
    module: ModuleType = core
    return module
