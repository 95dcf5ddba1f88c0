"""Figures that are not a time per problem: host time per call, a process's first call, compiled or bundled, a build."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from cutegemm.timing import host_us

#: The first call of a process that has torch and a CUDA context; prints its seconds.
_FIRST_CALL = """
import time, torch
a = torch.randn(4096, 4096, device="cuda").bfloat16()
torch.cuda.synchronize()
start = time.perf_counter()
from cutegemm import gemm
gemm(a, a.t())
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""

#: The same from the bundle that it is given; prints the seconds up to the first result, and of the first call alone.
_BUNDLE = """
import sys, time, torch
a = torch.randn(4096, 4096, device="cuda").bfloat16()
torch.cuda.synchronize()
start = time.perf_counter()
import cutegemm
cutegemm.load_bundle(sys.argv[1])
gemm = cutegemm.gemm
loaded = time.perf_counter()
gemm(a, a.t(), jit="forbid")
torch.cuda.synchronize()
print(time.perf_counter() - start, time.perf_counter() - loaded)
"""


def host() -> dict[str, float]:
    """Host microseconds of a warm 64x64x64 call into `out`, ours and torch's by turns in one process."""
    from cutegemm import gemm

    a, b, out = (torch.randn(64, 64, device="cuda").bfloat16() for _ in range(3))
    calls: dict[str, Callable[[], object]] = {
        "host_us_gemm_out": lambda: gemm(a, b, out=out),
        "host_us_torch_mm_out": lambda: torch.mm(a, b, out=out),
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(7):
        for name, call in calls.items():
            samples[name].append(host_us(call, torch.cuda.synchronize))
    return {name: statistics.median(times) for name, times in samples.items()}


def first_call() -> dict[str, float]:
    """Seconds of a new process's first call, kernel cache empty and filled; medians of 3."""
    cold, warm = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(_first_call(cache))
            warm.append(_first_call(cache))
    return {"first_call_cold_s": statistics.median(cold), "first_call_warm_s": statistics.median(warm)}


def _first_call(cache: str) -> float:
    (seconds,) = _printed(_FIRST_CALL, env={"CUTEGEMM_CACHE_DIR": cache})
    return seconds


def bundle() -> dict[str, float]:
    """A new process's import, loading of a bundle and first result, in seconds, and the first `gemm` after loading, in
    milliseconds; medians of 3. Nothing is compiled: the kernel cache is empty."""
    from cutegemm import device, planner
    from cutegemm.deploy import builder, spec_file

    problem = planner.contiguous_problem(4096, 4096, 4096)
    totals, firsts = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        builder.build([spec_file.Wanted(problem, None, "square")], [device.current()], path, jobs=1)
        for _ in range(3):
            env = {"CUTEGEMM_CACHE_DIR": str(Path(folder) / "cache"), "CUTEGEMM_BUNDLE": ""}
            total, first = _printed(_BUNDLE, str(path), env=env)
            totals.append(total)
            firsts.append(first)
    return {"bundle_first_result_s": statistics.median(totals), "bundle_first_gemm_ms": 1e3 * statistics.median(firsts)}


def build() -> dict[str, float]:
    """Seconds and megabytes of a bundle of 50 kernels on each of two architectures, compiled by two processes."""
    from cutegemm import device, epilogues, planner
    from cutegemm.deploy import builder, spec_file
    from cutegemm.fusion import Epilogue

    library = [x for name in dir(epilogues) if isinstance(x := getattr(epilogues, name), Epilogue)]
    wanted = [
        spec_file.Wanted(planner.contiguous_problem(4096, 4096, 4096, dtype=dtype, epilogue=epilogue), None, dtype)
        for epilogue in library[:25]
        for dtype in ("fp16", "bf16")
    ]
    with tempfile.TemporaryDirectory() as folder:
        made = builder.build(wanted, [device.lookup("A100"), device.lookup("H200")], Path(folder) / "bundle", jobs=2)
    return {"build_kernels": float(sum(made.kernels.values())), "build_s": made.seconds, "build_mb": made.bytes / 1e6}


def _printed(code: str, *arguments: str, env: Mapping[str, str]) -> list[float]:
    """The numbers that a new process prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env={**os.environ, **env}, check=True, stdout=subprocess.PIPE)
    return [float(number) for number in done.stdout.split()]


SCALARS = {"host": host, "first_call": first_call, "bundle": bundle, "build": build}
