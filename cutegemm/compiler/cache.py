"""Kernels that are built: in memory, and on disk across processes.

An entry on disk is a kernel file and, written after it, a JSON file with the kernel file's checksum: an entry whose
checksum does not match, or whose JSON is missing or malformed, counts as absent and is built anew. Files are written
under another name and renamed into place; one file lock a key makes concurrent processes build a kernel once.
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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from cutegemm.compiler import loader
from cutegemm.compiler.spec import Spec
from cutegemm.errors import KernelNotBuiltError

log = logging.getLogger("cutegemm")

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that is ready to launch: call `function` with the values of `abi.arguments`, then a stream handle.

    `origin` is "disk" or "compiled".
    """

    spec: Spec
    function: Any
    origin: str


_kernels: dict[Spec, Kernel] = {}
_guard = threading.Lock()
_building: dict[Spec, threading.Lock] = {}


def get(spec: Spec, *, jit: str | None = None) -> Kernel:
    """The kernel of `spec`: from memory, from disk, or compiled now.

    Raises `KernelNotBuiltError` where it would have to be compiled and `jit` is "forbid".
    """
    kernel = _kernels.get(spec)
    if kernel is not None:
        return kernel
    with _guard:
        building = _building.setdefault(spec, threading.Lock())
    with building:
        kernel = _kernels.get(spec)
        if kernel is None:
            kernel = _kernels[spec] = _from_disk_or_compiler(spec, jit)
    return kernel


def clear_memory() -> None:
    """Forget every kernel that this process holds; those on disk stay."""
    with _guard:
        _kernels.clear()
        _building.clear()


def _from_disk_or_compiler(spec: Spec, jit: str | None) -> Kernel:
    directory = cache_directory()
    function = _load(directory, spec)
    if function is not None:
        return Kernel(spec, function, "disk")
    if jit == "forbid":
        raise KernelNotBuiltError(
            f"{spec} is not built, and jit='forbid': expected it in {directory} ({spec.key})"
        )
    with FileLock(directory / f"{spec.key}.lock"):
        function = _load(directory, spec)  # another process may have built it while this one waited
        if function is not None:
            return Kernel(spec, function, "disk")
        from cutegemm.compiler.jit import build

        log.info("compiling %s", spec)
        artifact = build(spec)
        log.info("compiled in %.1f s", artifact.seconds)
        store(directory, spec, artifact.symbol, artifact.elf)
    function = _load(directory, spec)
    if function is None:
        raise KernelNotBuiltError(f"{spec} was compiled, but can't be read back from {directory}")
    return Kernel(spec, function, "compiled")


def store(directory: Path, spec: Spec, symbol: str, elf: bytes) -> None:
    """Write an entry; whoever reads it sees all of it or none."""
    suffix, data = loader.link(elf)
    name = f"{spec.key}{suffix}"
    _write(directory / name, data)
    entry = {
        "schema": _SCHEMA,
        "file": name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "symbol": symbol,
        **spec.describe(),
    }
    _write(directory / f"{spec.key}.json", json.dumps(entry, indent=1).encode())


def _load(directory: Path, spec: Spec) -> Any | None:
    """The function of a valid entry, or None."""
    try:
        entry = json.loads((directory / f"{spec.key}.json").read_bytes())
        path = directory / f"{spec.key}{Path(entry['file']).suffix}"
        valid = (
            entry["schema"] == _SCHEMA
            and isinstance(entry["symbol"], str)
            and hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not valid:
        log.warning("%s is damaged and will be rebuilt", path)
        return None
    return loader.load(path, entry["symbol"])


def _write(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".write-", delete=False) as file:
        try:
            file.write(data)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def cache_directory() -> Path:
    """Where kernels are kept: `CUTEGEMM_CACHE_DIR`, or `cutegemm` under `XDG_CACHE_HOME` or `~/.cache`.

    Where that can't be written to, a folder that lasts as long as this process; a warning says so, once.
    """
    wanted = os.environ.get("CUTEGEMM_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _usable(Path(wanted) if wanted else Path(base).expanduser() / "cutegemm")


@cache
def _usable(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as error:
        warnings.warn(
            f"kernels can't be kept in {directory} ({error.strerror or error}): they are compiled anew in each process. "
            "Set CUTEGEMM_CACHE_DIR to a folder that can be written to.",
            RuntimeWarning,
            stacklevel=2,
        )
    scratch = Path(tempfile.mkdtemp(prefix="cutegemm-cache-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return scratch
