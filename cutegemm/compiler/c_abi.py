"""A library of kernels for programs without Python: one shared library, one C header.

Each named kernel becomes a function `cutegemm_gemm_NAME` (`c_source`). One library holds a function's kernels for
several architectures and picks by the GPU that it finds, so that the caller has one name to call and one file to ship.
The machine that runs it needs the CUDA runtime and a driver; neither is needed here.

The DSL writes an object with a C interface only for the architecture that its environment named when it was imported:
each architecture is compiled in processes of its own.
"""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import starmap
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from cutegemm.compiler import c_source, files, jit, loader
from cutegemm.compiler.c_source import Function, Host
from cutegemm.compiler.spec import Spec
from cutegemm.errors import ArgumentError, CuteGemmError

HEADER, LIBRARY = "cutegemm.h", "libcutegemm.so"

#: The host code's target, by machine: every CPU of the kind, where the DSL's own default is the CPU that it runs on.
_HOST_TARGETS = {
    "x86_64": "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64",
    "aarch64": "linux-aarch64",
}


@dataclass(frozen=True, slots=True)
class Library:
    """A built library: its files, its functions, and what building it took in seconds."""

    path: Path
    header: Path
    functions: tuple[Function, ...]
    seconds: float

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures that it holds kernels for."""
        return tuple(sorted({spec.arch for function in self.functions for spec in function.specs}))


class _Object(NamedTuple):
    """A compiled kernel: an ELF object, and how it is called."""

    elf: bytes
    host: Host


def build_library(named: Mapping[str, Spec | Sequence[Spec]], out: Path, *, jobs: int | None = None) -> Library:
    """Write `libcutegemm.so` and `cutegemm.h` into the folder `out`, which is made; files of these names are replaced.

    `named` holds for each function's name a kernel, or one for each of several architectures; names may share kernels.
    Up to `jobs` processes compile at a time (default: one for each core). The same kernels make the same files.

    Raises `ArgumentError` for a name that is no C identifier, for a name's kernels that differ in their signature or
    share an architecture, and for `jobs` below 1; `CuteGemmError` without a C compiler or the DSL, where linking fails,
    and on a machine whose CPUs the DSL writes no objects for. Nothing has been written then.
    """
    started = time.perf_counter()
    functions = tuple(starmap(_function, sorted(named.items())))
    if not functions:
        raise ArgumentError("named is empty: expected a kernel by name")
    if jobs is not None and jobs < 1:
        raise ArgumentError(f"jobs={jobs}: expected at least 1")
    compiler, target, runtime = _c_compiler(), _host_target(), _runtime()
    specs = dict.fromkeys(spec for function in functions for spec in function.specs)
    objects: dict[Spec, _Object] = {}
    for arch in sorted({spec.arch for spec in specs}):
        own = [spec for spec in specs if spec.arch == arch]
        workers = min(len(own), jobs or os.cpu_count() or 1)
        with ProcessPoolExecutor(
            workers, mp_context=get_context("spawn"), initializer=_compile_for, initargs=(arch,)
        ) as pool:
            objects |= zip(own, pool.map(_compile, own, [target] * len(own)), strict=True)
    header, library = _link(compiler, runtime, functions, objects)
    out.mkdir(parents=True, exist_ok=True)
    files.write(out / HEADER, header, mode=0o644)
    files.write(out / LIBRARY, library, mode=0o755)
    return Library(out / LIBRARY, out / HEADER, functions, time.perf_counter() - started)


def _function(name: str, kernels: Spec | Sequence[Spec]) -> Function:
    specs = (kernels,) if isinstance(kernels, Spec) else tuple(sorted(kernels, key=lambda spec: spec.arch))
    if not c_source.NAME.fullmatch(name):
        raise ArgumentError(f"name {name!r}: expected ASCII letters, digits and underscores, for {c_source.PREFIX}NAME")
    if not specs:
        raise ArgumentError(f"{name} has no kernel")
    for before, after in zip(specs, specs[1:], strict=False):
        if before.arch == after.arch:
            raise ArgumentError(f"{name} has two kernels for {before.arch}: {before} and {after}")
        if before.signature != after.signature:
            raise ArgumentError(f"{name} has kernels of different signatures: {before} and {after}")
    return Function(name, specs)


def _compile_for(arch: str) -> None:
    """Runs in a compiling process, before the DSL is imported there."""
    os.environ["CUTE_DSL_ARCH"] = arch


def _compile(spec: Spec, target: str) -> _Object:
    compiled = jit.compile_for(spec, f"--host-target '{target}'")
    return _Object(compiled.dump_to_object(spec.symbol), Host(spec.symbol, compiled.function_name))


def _link(
    compiler: str, runtime: tuple[Path, str], functions: Sequence[Function], objects: Mapping[Spec, _Object]
) -> tuple[bytes, bytes]:
    """The header and the library."""
    archive, cudart = runtime
    header = c_source.header(functions).encode()
    exported = "; ".join((*c_source.COMMON, *(f.symbol for f in functions)))
    with tempfile.TemporaryDirectory(prefix="cutegemm-") as scratch:
        folder = Path(scratch)
        (folder / HEADER).write_bytes(header)
        (folder / "library.c").write_text(c_source.source(functions, {spec: o.host for spec, o in objects.items()}))
        (folder / "exported.map").write_text(f"{{ global: {exported}; local: *; }};\n")
        (folder / "empty.c").write_text("")
        for spec, compiled in objects.items():
            (folder / f"{spec.symbol}.o").write_bytes(compiled.elf)
        # An empty library in the CUDA runtime's place: its name is all that linking takes from it.
        soname = "-Wl,-soname,"
        _run(compiler, "-shared", "-nostdlib", f"{soname}{cudart}", "empty.c", "-o", cudart, folder=folder)
        _run(
            compiler, "-shared", "-fPIC", "-O2", "-std=gnu11", "-s", f"{soname}{LIBRARY}", "library.c",
            *(f"{spec.symbol}.o" for spec in objects), str(archive), "-pthread",
            "-Wl,--no-as-needed", cudart, "-Wl,--as-needed", "-Wl,--version-script=exported.map",
            # Loaded kernels and threads that are launching would not survive its being unloaded.
            "-Wl,-z,nodelete", "-o", LIBRARY, folder=folder,
        )  # fmt: skip
        return header, (folder / LIBRARY).read_bytes()


def _runtime() -> tuple[Path, str]:
    """The DSL's archive that objects call, and the name of the CUDA runtime library that the archive calls."""
    found = loader.dsl_library("libcuda_dialect_runtime_static.a")
    if found is None:
        raise CuteGemmError("libcuda_dialect_runtime_static.a is missing: install nvidia-cutlass-dsl[cu13]")
    archive, toolkit = found
    return archive, f"libcudart.so.{toolkit}"


def _run(*command: str, folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CuteGemmError(f"{command[0]} failed with status {done.returncode}: {done.stderr.strip()[:2000]}")


def _c_compiler() -> str:
    found = loader.c_compiler()
    if found is None:
        raise CuteGemmError("a C library needs a C compiler: install gcc or clang, or name one in CC")
    return found


def _host_target() -> str:
    machine = platform.machine()
    if machine not in _HOST_TARGETS:
        raise CuteGemmError(f"this machine is {machine}: C libraries are built on {' and '.join(_HOST_TARGETS)}")
    return _HOST_TARGETS[machine]
