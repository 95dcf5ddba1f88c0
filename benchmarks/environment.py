"""Where and with what a measurement is made."""

from __future__ import annotations

import ctypes
import datetime
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks.results import Results
from cutegemm import device

ROOT = Path(__file__).parent.parent
_PACKAGES = ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi")


def here(suite: str, measured: str | None = None) -> Results:
    """Empty results of `suite` on this machine's GPU, of the commit that is checked out unless `measured` names one.

    Raises RuntimeError, saying what to do, where there is no commit to name or no GPU.
    """
    named = measured or commit()
    if named is None:
        raise RuntimeError("no git checkout here: say what is measured with --commit")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA GPU: cutegemm doctor says what is missing")
    return Results(
        gpu=torch.cuda.get_device_name(),
        driver=device.driver_release() or "unknown",
        versions=versions(),
        commit=named,
        date=today(),
        suite=suite,
    )


def versions() -> dict[str, str]:
    """Versions of what computes: packages that are installed, and the cuBLAS that torch has loaded."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # kernels built ahead of time run without the DSL
            continue
    cublas = _cublas_version()
    return found if cublas is None else {**found, "cublas": cublas}


def _cublas_version() -> str | None:
    """Read from the library itself: wheels and system packages name it differently."""
    for major in (13, 12):
        try:
            library = ctypes.CDLL(f"libcublas.so.{major}")
        except OSError:
            continue
        parts = []
        for which in range(3):
            value = ctypes.c_int()
            library.cublasGetProperty(which, ctypes.byref(value))
            parts.append(str(value.value))
        return ".".join(parts)
    return None


def commit() -> str | None:
    """The commit that is checked out, "-dirty" appended where files differ from it; None without git."""
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def today() -> str:
    """The date in UTC, as 2026-01-31."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def folder(gpu: str) -> str:
    """The results folder of a GPU: "h200" of "NVIDIA H200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "").replace("geforce", "")).strip("-")
