"""Kernels that are built: in memory, in bundles, and on disk across processes.

An entry on disk is a kernel file and, written after it, a JSON file with the kernel file's checksum; the source of
kernels that are CUDA C++ lies beside them. An entry whose checksum does not match, whose JSON is malformed, or whose
kernel file does not load or is another kernel's counts as absent and is built anew. Files are written under another
name and renamed into place; one file lock a key makes concurrent processes build a kernel once. A cache that can only
be read is read.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutegemm.compiler import files, loader, serving
from cutegemm.compiler.spec import Spec
from cutegemm.compiler.toolchains import TOOLCHAINS
from cutegemm.errors import ArgumentError, KernelNotBuiltError

if TYPE_CHECKING:
    from cutegemm.compiler.jit import Artifact

log = logging.getLogger("cutegemm")

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that is ready to launch: call `function` with the values of `abi.arguments`, then a stream handle.

    `origin` is "bundle", "disk" or "compiled".
    """

    spec: Spec
    function: Any
    origin: str


_kernels: dict[Spec, Kernel] = {}
_guard = threading.Lock()
_building: dict[Spec, threading.Lock] = {}


def get(spec: Spec, *, jit: str | None = None) -> Kernel:
    """The kernel of `spec`: from memory, from a bundle, from disk, or compiled now.

    Raises `KernelNotBuiltError` where it would have to be compiled and `jit` is "forbid", or None while
    `CUTEGEMM_JIT` is 0, or the compiler is not installed.
    """
    kernel = _kernels.get(spec)
    if kernel is not None:
        return kernel
    with _guard:
        building = _building.setdefault(spec, threading.Lock())
    with building:
        kernel = _kernels.get(spec)
        if kernel is None:
            kernel = _kernels[spec] = _from_bundle(spec) or _from_disk_or_compiler(spec, jit)
    return kernel


def clear_memory() -> None:
    """Forget every kernel that this process holds; those on disk stay."""
    with _guard:
        _kernels.clear()
        _building.clear()


def jit_reason(jit: str | None, family: str = "") -> str | None:
    """Why no kernel of `family` may be compiled in this process for a call with this `jit=`, or None where it may.

    Raises `ArgumentError` for a value of `CUTEGEMM_JIT` other than 0 and 1.
    """
    if jit == "forbid":
        return "jit='forbid'"
    setting = os.environ.get("CUTEGEMM_JIT", "1") or "1"
    if setting not in ("0", "1"):
        raise ArgumentError(f"CUTEGEMM_JIT={setting!r}: expected 0, which forbids compiling, or 1")
    if setting == "0":
        return "CUTEGEMM_JIT=0"
    toolchain = TOOLCHAINS.get(family)
    if toolchain is not None:
        return toolchain.missing()
    return None if loader.can_compile() else "nvidia-cutlass-dsl, which compiles, is not installed"


def obtainable(spec: Spec) -> bool:
    """Whether `get` would have a kernel that is not made by the DSL: one that is built, or can be."""
    if spec in _kernels or serving.has(spec) or (_wanted_directory() / f"{spec.key}.json").exists():
        return True
    return TOOLCHAINS[spec.family].missing() is None


def _from_bundle(spec: Spec) -> Kernel | None:
    function = serving.function(spec)
    return None if function is None else Kernel(spec, function, "bundle")


def _from_disk_or_compiler(spec: Spec, jit: str | None) -> Kernel:
    wanted = _wanted_directory()
    # It may be a filled cache that can only be read.
    function = _load(wanted, spec) if files.trusted(wanted) else None
    if function is not None:
        return Kernel(spec, function, "disk")
    if (reason := jit_reason(jit, spec.family)) is not None:
        text = f"{spec} is not built, and {reason}: expected it in {wanted} ({spec.key})"
        raise KernelNotBuiltError("\n".join((text, *serving.nearest(spec))))
    directory = cache_directory()
    with _building_in(directory, spec):
        function = _load(directory, spec)  # another process may have built it while this one waited
        if function is not None:
            return Kernel(spec, function, "disk")
        from cutegemm.compiler.jit import build

        patience = TOOLCHAINS[spec.family].patience if spec.family in TOOLCHAINS else None
        log.log(logging.WARNING if patience else logging.INFO, "compiling %s%s", spec, patience or "")
        artifact = build(spec)
        log.info("compiled in %.1f s", artifact.seconds)
        try:
            path = store(directory, artifact)
        except OSError as error:  # such as a full disk
            _warn_not_kept(directory, error)
            path = store(_scratch(), artifact)
    return Kernel(spec, loader.load(path, spec, spec.symbol), "compiled")


@contextmanager
def _building_in(directory: Path, spec: Spec) -> Iterator[None]:
    """Keeps other processes from building `spec` too, where the file system can lock."""
    from filelock import FileLock  # only compiling needs it, and importing it takes a while

    lock = FileLock(directory / f"{spec.key}.lock")
    try:
        directory.mkdir(parents=True, exist_ok=True)  # it may have been deleted since this process chose it
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        log.warning("building without a lock in %s: %s", directory, error)
    try:
        yield
    finally:
        lock.release()


def store(directory: Path, artifact: Artifact) -> Path:
    """Write an entry and return its kernel file; whoever reads the entry sees all of it or none."""
    spec = artifact.spec
    suffix, data = loader.link(spec, artifact.elf)
    entry = {"schema": _SCHEMA, "suffix": suffix, "sha256": hashlib.sha256(data).hexdigest(), **spec.describe()}
    path = _kernel_file(directory, spec, entry)
    files.write(path, data)
    if (toolchain := TOOLCHAINS.get(spec.family)) is not None:
        files.write(directory / f"{spec.key}.cu", toolchain.source(spec).encode())  # to be read, not to be loaded
    files.write(directory / f"{spec.key}.json", json.dumps(entry, indent=1).encode())
    return path


def _kernel_file(directory: Path, spec: Spec, entry: Mapping[str, Any]) -> Path:
    # Other contents have another name: the dynamic linker takes a path that it has loaded before for the same library.
    return directory / f"{spec.key}-{entry['sha256'][:16]}{entry['suffix']}"


def _load(directory: Path, spec: Spec) -> Any | None:
    """The function of a valid entry, or None."""
    described = directory / f"{spec.key}.json"
    try:
        entry = json.loads(described.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s can't be read and will be rebuilt: %s", described, error)
        return None
    try:
        if entry["schema"] != _SCHEMA or entry["suffix"] not in loader.SUFFIXES:
            raise ValueError("of another schema")
        path = _kernel_file(directory, spec, entry)
        if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
            raise ValueError("its checksum differs")
        # The symbol holds the key: a kernel file that is valid but another kernel's has no such function.
        return loader.load(path, spec, spec.symbol)
    except Exception as error:  # what loading a strange library raises is up to the libraries that load it
        log.warning("%s is damaged and will be rebuilt: %s", described, error)
        return None


def cache_directory() -> Path:
    """Where kernels are kept: `CUTEGEMM_CACHE_DIR`, or `cutegemm` under `XDG_CACHE_HOME` or `~/.cache`.

    Where that can't be written to, a folder that lasts as long as this process; a warning says so, once.
    """
    return _usable(_wanted_directory())


def _wanted_directory() -> Path:
    explicit = os.environ.get("CUTEGEMM_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(explicit or os.path.join(base, "cutegemm")))


@cache
def _usable(directory: Path) -> Path:
    try:
        if directory.parts[:1] == ("~",):  # left over where the user has no home directory
            raise FileNotFoundError("there is no home directory")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not files.trusted(directory):
            raise PermissionError("others own it or may write to it")
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as error:
        _warn_not_kept(directory, error)
        return _scratch()


def _warn_not_kept(directory: Path, error: OSError) -> None:
    warnings.warn(
        f"kernels can't be kept in {directory} ({error.strerror or error}): they are compiled anew in each process. "
        "Set CUTEGEMM_CACHE_DIR to a folder that can be written to.",
        RuntimeWarning,
        stacklevel=2,
    )


@cache
def _scratch() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="cutegemm-cache-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
