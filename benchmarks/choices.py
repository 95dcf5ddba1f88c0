"""Measures which configuration is fastest, for the planner: `python -m benchmarks.choices --suite hopper`.

Of every bf16 problem without an epilogue, or with `--precision` of every fp32 one, the configurations that the model
takes for the fastest and those that the table has already are compared with fp64 and timed. The table,
`cutegemm/planner/tables/<gpu>.json`, is written after each problem; problems that it has beside these stay. It is
installed with the package: planning reads it anywhere.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import environment, suites
from benchmarks.contenders import Contender, named
from benchmarks.run import Bench
from benchmarks.suites import Case
from cutegemm import device, plan
from cutegemm.compiler import Spec
from cutegemm.planner import FAMILIES, Candidate, Plan, tables
from cutegemm.planner.tables import Measured
from cutegemm.problem import PRECISIONS
from cutegemm.timing import Effort
from tests.ahead import build

#: The lead-in is longer than the sample: contenders draw unlike power, and a cool predecessor is worth 10%.
EFFORT = Effort(min_ms=20.0, lead_ms=60.0, rounds=4)


def candidates(case: Case, gpu: device.DeviceSpec, count: int, precision: str | None = None) -> list[str]:
    """`kernel=` strings: the `count` fastest by the model, for fp32 also as many of each family that comes `last`, then
    those of the table that these leave out."""
    made = _plan(case, gpu, precision)
    best = _fastest([c for c in made.candidates if not FAMILIES[c.family].last], count)
    for family in FAMILIES.values():
        if family.last and precision in family.precisions and gpu.arch in family.architectures:
            best += _fastest(_plan(case, gpu, precision, family.name).candidates, count)
    legal = {c.kernel for c in made.candidates if c.refusal is None}
    known = tables.times(made.problem, gpu)
    return best + [kernel for kernel in known if kernel in legal and kernel not in best]


def _fastest(candidates: Iterable[Candidate], count: int) -> list[str]:
    """The `count` of them that the model takes for the fastest."""
    us = {c.kernel: c.estimate.us for c in candidates if c.estimate is not None}
    return sorted(us, key=us.__getitem__)[:count]


def _plan(case: Case, gpu: device.DeviceSpec, precision: str | None, kernel: str | None = None) -> Plan:
    given: Any = {"dtype": case.dtype, "layout": case.layout, "precision": precision}
    return plan(case.m, case.n, case.k, arch=gpu.name, kernel=kernel, **given)


def _spec(case: Case, kernel: str, gpu: device.DeviceSpec, precision: str | None) -> Spec:
    made = _plan(case, gpu, precision, kernel)
    return Spec(made.family, made.config, made.problem.signature, gpu.arch)


def entry(case: Case, us: dict[str, float], precision: str | None = None) -> dict[str, Any]:
    """The table's entry of a problem: its size, layout and precision if it is fp32, and the times, fastest first."""
    times = {kernel: round(us[kernel], 2) for kernel in sorted(us, key=us.__getitem__)}
    mode = {} if precision is None else {"precision": precision}
    return {"m": case.m, "n": case.n, "k": case.k, "layout": case.layout, **mode, "us": times}


def joined(table: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`table` with `new` in place of its entry of the same problem, or at its end."""
    place = Measured(**new).place
    return {**table, "problems": [*(e for e in table["problems"] if Measured(**e).place != place), new]}


def held(case: Case, gpu: device.DeviceSpec, precision: str | None) -> bool:
    """Whether the table can hold `case`: a bf16 product, or with a precision an fp32 one, aligned to 16 bytes."""
    dtype = "bf16" if precision is None else "fp32"
    if (case.epilogue, case.dtype) != ("none", dtype):
        return False
    return tables.place(_plan(case, gpu, precision).problem) is not None


def contenders(kernels: Sequence[str], precision: str | None) -> list[Contender]:
    """`kernels` as contenders, and last cuBLAS: in TF32 for "tf32", strict for other precisions of fp32."""
    mode = "" if precision is None else f"@{precision}"
    theirs = "cublaslt" if precision is None else "cublas@tf32" if precision == "tf32" else "cublas"
    return [named(name) for name in (*(f"cutegemm:{kernel}{mode}" for kernel in kernels), theirs)]


def text(table: dict[str, Any]) -> str:
    """The table as JSON, a line for each time."""
    return json.dumps(table, indent=1) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    args = _parse(argv)
    gpu = device.current()
    name = device.lookup(gpu.name).name
    path = args.output or Path(tables.__file__).parent / tables.file_name(name)
    known = json.loads(path.read_text()) if path.exists() else {"problems": []}
    how = (
        f"{environment.today()[:7]}, bf16 or the precision named, inputs that L2 does not hold, medians of "
        f"{EFFORT.rounds} samples of {EFFORT.min_ms:.0f} ms by turns, each after {EFFORT.lead_ms:.0f} ms untimed"
    )
    table = {"gpu": name, "measured": how, "problems": known["problems"]}
    bench = Bench(gpu.l2_bytes, effort=EFFORT)
    cases = [case for case in suites.load(args.suite, args.group) if held(case, gpu, args.precision)]
    kernels_of = {case: candidates(case, gpu, args.count, args.precision) for case in cases}
    build(_spec(case, kernel, gpu, args.precision) for case, kernels in kernels_of.items() for kernel in kernels)
    for case, kernels in kernels_of.items():
        rows = bench.rows([case], contenders(kernels, args.precision))
        *ours, theirs = (row.us for row in rows)
        us = {kernel: t for kernel, t in zip(kernels, ours, strict=True) if t is not None}
        table = joined(table, entry(case, us, args.precision))
        path.write_text(text(table))
        best = sorted(us, key=us.__getitem__)[:4]
        shown = "  ".join(f"{kernel.partition(':')[2]} {us[kernel]:.1f}" for kernel in best)
        print(f"{case.m}x{case.n}x{case.k} {case.layout}, us: cuBLAS {theirs or 0:.1f}  {shown}", flush=True)
        torch.cuda.empty_cache()
    print(f"{len(table['problems'])} problems: written to {path}")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choices", description="Measures the planner's table.")
    parser.add_argument("--suite", default="hopper", choices=suites.names())
    parser.add_argument("--group", action="append", help="only this group of the suite; may be repeated")
    parser.add_argument("--precision", choices=PRECISIONS, help="measure the suite's fp32 problems, in this precision")
    parser.add_argument("--count", type=int, default=8, help="configurations that the model puts forward")
    parser.add_argument("--output", type=Path, help="the file to write, instead of the planner's own")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
