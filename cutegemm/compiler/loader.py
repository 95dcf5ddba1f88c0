"""Linking a compiled object and loading it into the process.

With a C compiler on the machine an object becomes a shared library, which loads in about a millisecond without the
DSL. Without one the object is kept as it is, and the DSL, whose import takes a second or two, loads it. Either needs
the DSL's runtime library, which `CUTEGEMM_RUNTIME_LIBRARY` names where the DSL is not installed. Kernels that the
DSL does not make are loaded by what made them (`toolchains`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from cutegemm.compiler.spec import Spec
from cutegemm.compiler.toolchains import TOOLCHAINS
from cutegemm.errors import CuteGemmError

#: Kinds of kernel files: a shared library, an object, a cubin.
SUFFIXES = (".so", ".o", ".cubin")


def link(spec: Spec, elf: bytes) -> tuple[str, bytes]:
    """The kernel file that `load` takes, and its suffix: ".so" where a C compiler links it, else ".o"; or what the
    family's own toolchain made."""
    toolchain = TOOLCHAINS.get(spec.family)
    if toolchain is not None:
        return toolchain.suffix, elf
    compiler = c_compiler()
    if compiler is None:
        return ".o", elf
    import tvm_ffi

    with tempfile.TemporaryDirectory(prefix="cutegemm-") as scratch:
        source, target = Path(scratch) / "kernel.o", Path(scratch) / "kernel.so"
        source.write_bytes(elf)
        libraries = [str(runtime_library()), tvm_ffi.libinfo.find_libtvm_ffi()]
        command = [compiler, "-shared", "-o", str(target), str(source), *libraries]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return (".so", target.read_bytes()) if done.returncode == 0 else (".o", elf)


def load(path: Path, spec: Spec, symbol: str) -> Any:
    """The function `symbol`, which is `spec`'s, of a kernel file."""
    toolchain = TOOLCHAINS.get(spec.family)
    if toolchain is not None:
        return toolchain.load(path, spec, symbol)
    if path.suffix == ".o":
        from cutlass import cute

        return getattr(cute.runtime.load_module(str(path), enable_tvm_ffi=True), symbol)
    import tvm_ffi

    _load_runtime()
    return tvm_ffi.load_module(str(path.absolute()))[symbol]


def warm_up() -> None:
    """What `load` needs in the process besides the kernel, so that the first one does not wait for it.

    Raises `CuteGemmError` where the runtime library is missing.
    """
    import tvm_ffi  # noqa: F401

    _load_runtime()


@cache
def _load_runtime() -> ctypes.CDLL:
    # A kernel file names its libraries by soname alone, so that a cache outlives the environment that filled it;
    # the process has to hold them already. (tvm_ffi loads its own on import.)
    return ctypes.CDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)


def can_compile() -> bool:
    """Whether the CuTe DSL is installed; it is not imported."""
    return importlib.util.find_spec("cutlass") is not None


@cache
def runtime_library() -> Path:
    """`libcute_dsl_runtime.so`: what `CUTEGEMM_RUNTIME_LIBRARY` names, or that of the installed nvidia-cutlass-dsl,
    found without importing it. Raises `CuteGemmError` where there is none."""
    named = os.environ.get("CUTEGEMM_RUNTIME_LIBRARY")
    if named:
        if not os.path.isfile(named):
            raise CuteGemmError(f"CUTEGEMM_RUNTIME_LIBRARY={named!r}: expected the path of libcute_dsl_runtime.so")
        return Path(named).absolute()
    found = dsl_library("libcute_dsl_runtime.so")
    if found is None:
        raise CuteGemmError(
            "libcute_dsl_runtime.so is missing: install nvidia-cutlass-dsl[cu13], or name the file in "
            "CUTEGEMM_RUNTIME_LIBRARY"
        )
    return found[0]


def dsl_library(name: str) -> tuple[Path, int] | None:
    """A library of the installed nvidia-cutlass-dsl, and the CUDA version (13 or 12) that it is for; None where it is
    not installed. The DSL is not imported."""
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for toolkit in (13, 12):
            path = Path(root) / f"cu{toolkit}" / "lib" / name
            if path.exists():
                return path, toolkit
    return None


def c_compiler() -> str | None:
    """The C compiler's path: what CC names, or the first there is."""
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((found for name in names if name and (found := shutil.which(name))), None)
