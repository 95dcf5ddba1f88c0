"""Compiling a kernel's source with nvcc, on any machine that has one: no GPU and no driver are needed.

Two compilations run side by side: the device's code to a cubin, and the host's part to an object. What is linked of
both is a shared library that has the cubin in it, and functions that say what a launch passes to it.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cutegemm.cutlass_cpp import emit
from cutegemm.errors import CuteGemmError
from cutegemm.hand_kernels import build as hand

if TYPE_CHECKING:
    from cutegemm.compiler import Spec

#: The family's name in specs and `kernel=` strings.
FAMILY = "cutlass_cpp"
#: Where the sources are.
FOLDER = Path(__file__).parent
#: What the link editor calls the beginning and the end of the cubin.
IMAGE = ("_binary_image_start", "_binary_image_end")
_FLAGS = ("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-diag-suppress=177")
# Nothing of the host's part is for the device, whose compiler gets an empty text then.
_HOST = '#ifndef __CUDA_ARCH__\n#define HOST_PART\n#include "kernel.cu"\n#endif\n'


def compile(spec: Spec, *, ptx: bool = False) -> tuple[bytes, bytes, float]:
    """The library of `spec`'s kernel, its cubin, and the seconds that compiling took: 10 to 100, most of them in the
    C++ front end.

    With `ptx` the device's code is PTX, which drivers compile for newer GPUs than the spec's. Raises `CuteGemmError`
    with nvcc's own words for a source that does not compile, and naming what to install where nvcc is missing.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="cutegemm-") as scratch:
        at = Path(scratch)
        (at / "host.cu").write_text(_HOST)
        running = [_device(spec, at, ptx), _start([*_command(), *_host(spec)], at)]
        try:
            for process in running:
                _finish(process, spec)
        finally:  # of one that failed, the other is of no use
            for process in running:
                process.kill()
                process.wait()
        # The linker names the section's ends after the file.
        _finish(_start(["ld", "-r", "-z", "noexecstack", "-b", "binary", "-o", "image.o", "image"], at), spec)
        _finish(_start([nvcc(), "-shared", "-o", "kernel.so", "host.o", "image.o"], at), spec)
        return (at / "kernel.so").read_bytes(), (at / "image").read_bytes(), time.perf_counter() - started


def image(spec: Spec) -> bytes:
    """The cubin of `spec`'s kernel alone, to be read. Raises as `compile` does."""
    with tempfile.TemporaryDirectory(prefix="cutegemm-") as scratch:
        _finish(_device(spec, Path(scratch)), spec)
        return (Path(scratch) / "image").read_bytes()


@cache
def missing() -> str | None:
    """What compiling lacks here, and how to install it; None where it lacks nothing."""
    if importlib.util.find_spec("cutlass_library") is None:
        return emit.NO_LIBRARY
    try:
        nvcc()
    except CuteGemmError as error:
        return str(error)
    return None


@cache
def nvcc() -> str:
    """The path of nvcc: that of the environment's packages, or the system's. Raises `CuteGemmError` where there is
    none."""
    from cuda import pathfinder

    found = pathfinder.find_nvidia_binary_utility("nvcc") or shutil.which("nvcc")
    if found is None:
        raise CuteGemmError("nvcc, which compiles these kernels, is missing: pip install 'cutegemm[cutlass-cpp]'")
    for tool in ("g++", "ld"):
        if shutil.which(tool) is None:
            raise CuteGemmError(f"{tool}, which the host's part of these kernels needs, is missing: install g++")
    return str(found)


@cache
def include_folders() -> tuple[Path, ...]:
    """Where the headers are that nvcc does not find by itself: this package's, the hand-written kernels' (elements.cuh)
    and CUTLASS's."""
    library = emit.library()
    cutlass = Path(str(library.__file__)).parent / "source" / "include"
    if not (cutlass / "cutlass" / "cutlass.h").exists():
        raise CuteGemmError(f"{cutlass} has no cutlass/cutlass.h: pip install --force-reinstall nvidia-cutlass")
    return FOLDER, hand.FOLDER, cutlass


def _command() -> list[str]:
    return [nvcc(), *_FLAGS, *(f"-I{folder}" for folder in include_folders())]


def _device(spec: Spec, folder: Path, ptx: bool = False) -> subprocess.Popen[str]:
    """nvcc, making `image` in `folder`."""
    (folder / "kernel.cu").write_text(emit.source(spec))
    number = spec.arch.removeprefix("sm_")
    target = [f"-arch=compute_{number}", "-ptx"] if ptx else [*_target(spec), "-cubin"]
    return _start([*_command(), *target, "-o", "image", "kernel.cu"], folder)


def _host(spec: Spec) -> list[str]:
    return ["-c", "-Xcompiler=-fPIC", *_target(spec), "-o", "host.o", "host.cu"]


def _target(spec: Spec) -> list[str]:
    number = spec.arch.removeprefix("sm_")
    return [f"-gencode=arch=compute_{number},code=sm_{number}"]


def _start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _finish(process: subprocess.Popen[str], spec: Spec) -> None:
    said, _ = process.communicate()
    if process.returncode != 0:
        lines = [line for line in said.splitlines() if "error" in line] or said.splitlines()
        raise CuteGemmError(f"{spec} does not compile: " + "\n".join(line[:400] for line in lines[:20]))
