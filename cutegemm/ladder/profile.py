"""A ladder under Nsight Compute: each level launched once by `profiled`, its counters read from ncu's CSV."""

from __future__ import annotations

import csv
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cutegemm.errors import CuteGemmError, NotAvailableError
from cutegemm.ladder.diagnose import Metrics
from cutegemm.ladder.rungs import Rung

#: What each field of `Metrics` is read from: alternatives, the first that this ncu knows is taken; several are summed.
#: cp.async is counted by itself too: whether the count of loads has it is up to the GPU (`Metrics.loaded_bytes`).
COUNTERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "time_us": (("gpu__time_duration.sum",),),
    "ld_bytes": (("l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum",),),
    "cp_async_bytes": (
        ("sm__sass_data_bytes_mem_global_op_ldgsts.sum",),
        (
            "l1tex__t_bytes_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
            "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_ldgsts_cache_bypass.sum",
        ),
    ),
    "sectors_per_request": (("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",),),
    "bank_conflicts": (("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),),
    "shared_wavefronts": (("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),),
    "l1_share": (("l1tex__throughput.avg.pct_of_peak_sustained_active",),),
    "fma_share": (("sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",),),
    "tensor_share": (
        ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",),
        ("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",),
    ),
    "dram_bytes": (("dram__bytes_read.sum",),),
}
#: To bytes, nanoseconds and percent, from the units that ncu may print.
_UNITS = {"byte": 1, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12}
_UNITS |= {"nsecond": 1, "usecond": 1e3, "msecond": 1e6, "second": 1e9, "ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
_MODULE = "cutegemm.ladder.profiled"


@dataclass(frozen=True, slots=True)
class Launch:
    """A profiled launch: the kernel's name, and its metrics in bytes, nanoseconds, percent and counts."""

    kernel: str
    metrics: Mapping[str, float]


def tool() -> str:
    """Where ncu is. Raises `NotAvailableError` where it isn't on PATH."""
    found = shutil.which("ncu")
    if found is None:
        raise NotAvailableError(
            "--profile needs ncu, which is not on PATH: install NVIDIA Nsight Compute, or a CUDA toolkit with it"
        )
    return found


def profile(ladder: Sequence[Rung]) -> tuple[list[Metrics], list[str]]:
    """The metrics of each rung's kernel, and the names of counters that this ncu doesn't know.

    Every kernel runs once, after a call that is not counted, on caches that ncu has emptied, at the clocks that there
    are. Raises `NotAvailableError` without ncu and `CuteGemmError` with ncu's own words where it fails.
    """
    ncu = tool()
    names, missing = choose(_known(ncu))
    argv = [ncu, "--csv", "--clock-control", "none", "--print-units", "base", "--profile-from-start", "off"]
    argv += ["--kernel-name", "regex:^cutegemm_", "--metrics", ",".join(names)]
    argv += [sys.executable, "-m", _MODULE, str(ladder[0].n), *(f"{r.level}:{r.dtype}" for r in ladder)]
    # Compiling is not for a process that is being profiled.
    warm = subprocess.run(argv[argv.index(sys.executable) :], capture_output=True, text=True, env=os.environ)
    if warm.returncode:
        raise CuteGemmError(f"{_MODULE} failed: {_last_lines(warm.stderr)}")
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ)
    launches = parse(done.stdout)
    if done.returncode or len(launches) != len(ladder):
        said = "\n".join(line for line in done.stdout.splitlines() if line.startswith("==")) or done.stderr
        raise CuteGemmError(f"ncu counted {len(launches)} of {len(ladder)} kernels: {_last_lines(said)}")
    return [metrics(launch) for launch in launches], missing


def choose(known: frozenset[str]) -> tuple[list[str], list[str]]:
    """The metrics to ask for among the base names that ncu knows, and the fields of `Metrics` that none serves.

    Where nothing is known, the first choice of each.
    """
    names: list[str] = []
    missing: list[str] = []
    for field, alternatives in COUNTERS.items():
        able = [a for a in alternatives if not known or all(name.split(".")[0] in known for name in a)]
        if able:
            names += able[0]
        else:
            missing.append(f"{field} ({' or '.join('+'.join(a) for a in alternatives)})")
    return names, missing


def parse(text: str) -> list[Launch]:
    """The launches in what `ncu --csv` printed, in order; what isn't CSV in it (the program's, "==PROF==") is skipped.

    Values come with thousands separators and, unless asked otherwise, in units that suit them.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    launches: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(lines[start:]):
        _, found = launches.setdefault(row["ID"], (row["Kernel Name"], {}))
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except ValueError:  # "n/a"
            continue
        if math.isfinite(value):  # a ratio of nothing to nothing is "nan"
            found[row["Metric Name"]] = value * _UNITS.get(row["Metric Unit"].lower(), 1)
    return [Launch(kernel, found) for kernel, found in launches.values()]


def metrics(launch: Launch) -> Metrics:
    """`launch`'s counters by what they mean; None for what it has none of."""

    def value(field: str) -> float | None:
        for names in COUNTERS[field]:
            if all(name in launch.metrics for name in names):
                return sum(launch.metrics[name] for name in names)
        return None

    def share(field: str) -> float | None:
        percent = value(field)
        return None if percent is None else percent / 100

    time_ns, ld, cp_async = (value(field) for field in ("time_us", "ld_bytes", "cp_async_bytes"))
    if time_ns is None:
        raise CuteGemmError(f"ncu gave no time for {launch.kernel}: it has {', '.join(launch.metrics) or 'nothing'}")
    return Metrics(
        time_us=time_ns / 1e3,
        ld_bytes=ld,
        cp_async_bytes=cp_async,
        sectors_per_request=value("sectors_per_request"),
        bank_conflicts=value("bank_conflicts"),
        shared_wavefronts=value("shared_wavefronts"),
        l1_share=share("l1_share"),
        fma_share=share("fma_share"),
        tensor_share=share("tensor_share"),
        dram_bytes=value("dram_bytes"),
    )


def _known(ncu: str) -> frozenset[str]:
    """The base names of the metrics that ncu has for the GPUs here; none where it doesn't say."""
    done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True)
    return known(done.stdout.splitlines())


def known(lines: Iterable[str]) -> frozenset[str]:
    """The names that begin the lines of `ncu --query-metrics`."""
    firsts = (line.split()[0] for line in lines if line.strip())
    return frozenset(name for name in firsts if "__" in name)


def _last_lines(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-6:]) or "it said nothing"
