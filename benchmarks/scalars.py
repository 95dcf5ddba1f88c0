"""Figures that are not a time per problem: host time per call, and the first call of a process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

import torch

from benchmarks.timing import host_us

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
    env = {**os.environ, "CUTEGEMM_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-c", _FIRST_CALL], env=env, check=True, stdout=subprocess.PIPE)
    return float(done.stdout)


SCALARS = {"host": host, "first_call": first_call}
