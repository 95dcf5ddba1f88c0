"""Measures a suite on this machine's GPU: `python -m benchmarks.run --suite standard`.

Every contender's result is compared with fp64 before it is timed; one that is wrong is recorded as wrong and
not timed. Results go to `benchmarks/results/<gpu>/<name>.json` after each problem, and join what that file
holds from the same commit, machine and versions.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import environment, suites
from benchmarks.contenders import NAMES, Call, Contender, Inputs, bind, named
from benchmarks.gate import Gate, Verdict
from benchmarks.results import RESULTS, Results, Row
from benchmarks.scalars import SCALARS
from benchmarks.suites import Case
from cutegemm import device
from cutegemm.timing import FULL, SWEEP, Clock, Effort, Replay, capture, contest, event_clock, input_sets
from tests.helpers import Guarded

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Bench:
    """What measuring takes of a device; the defaults are the CUDA device's, and its L2 has to be named."""

    l2_bytes: int
    device: str = "cuda"
    effort: Effort = FULL
    capture: Callable[[Sequence[Call]], Replay] = capture
    clock: Clock = event_clock

    def rows(self, cases: Sequence[Case], contenders: Sequence[Contender]) -> list[Row]:
        """Checks every contender that has a way of computing each of `cases`, then times all of them by turns.

        `cases` are of one size: what an epilogue costs is a ratio of two times, which a warmer GPU would blur.
        """
        fresh = {case: self._inputs(case) for case in cases}
        verdicts = {case: self._verdicts(case, inputs, contenders) for case, inputs in fresh.items()}
        sets = max(input_sets(_bytes(inputs), self.l2_bytes) for inputs in fresh.values())
        # A graph holds addresses: what is at them has to live until the last replay.
        inputs = {case: [first] + [self._inputs(case) for _ in range(sets - 1)] for case, first in fresh.items()}
        replays: dict[tuple[Case, str], Replay] = {}
        for case, contender in itertools.product(cases, contenders):
            verdict = verdicts[case].get(contender.name)
            if verdict is not None and verdict.ok:
                calls = [_call(contender, case, each) for each in inputs[case]]
                replays[case, contender.name] = self.capture(calls)
        times = contest(replays, sets, self.clock, self.effort)
        return [
            Row(
                group=case.group,
                m=case.m,
                n=case.n,
                k=case.k,
                batch=1,
                dtype=case.dtype,
                layout=case.layout,
                epilogue=case.epilogue,
                contender=contender.name,
                kernel=contender.kernel(case),
                us=times.get((case, contender.name)),
                ok=verdicts[case][contender.name].ok,
                rel_err=verdicts[case][contender.name].rel_err,
            )
            for case in cases
            for contender in contenders
            if contender.name in verdicts[case]
        ]

    def _verdicts(self, case: Case, inputs: Inputs, contenders: Sequence[Contender]) -> dict[str, Verdict]:
        gate = Gate(inputs.a, inputs.b, bind(case, inputs.operands))
        verdicts = {}
        for contender in contenders:
            guarded = Guarded(inputs.out.shape, inputs.out.dtype, device=self.device)
            call = contender.prepare(case, replace(inputs, out=guarded.tensor))
            if call is None:
                continue
            verdict = gate.judge(call(), loose=contender.loose, precision=contender.precision)
            try:
                guarded.assert_intact()
            except AssertionError as wrong:
                verdict = Verdict(False, verdict.rel_err, str(wrong))
            verdicts[contender.name] = verdict
            if not verdict.ok:
                print(f"{contender.name} is wrong on {case}: {verdict.why}", file=sys.stderr)
        return verdicts

    def _inputs(self, case: Case) -> Inputs:
        """A set of standard-normal inputs, and an output of its own."""
        dtype = DTYPES[case.dtype]

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, device=self.device).to(dtype)

        def matrix(rows: int, columns: int, layout: str) -> Tensor:
            return normal(rows, columns) if layout == "n" else normal(columns, rows).t()

        a, b = matrix(case.m, case.k, case.layout[0]), matrix(case.k, case.n, case.layout[1])
        if case.epilogue == "none":
            return Inputs(a, b, (), torch.empty(case.m, case.n, dtype=dtype, device=self.device))
        from cutegemm import epilogues

        graph = getattr(epilogues, case.epilogue).graph
        operands = []
        for spec in graph.operands:
            n = case.n // 2 if spec.paired else case.n
            shapes = {"row": (n,), "col": (case.m,), "tile": (case.m, n), "scalar": ()}
            operands.append(normal(*shapes[spec.kind]))
        n = case.n // 2 if graph.outputs[0].paired else case.n
        return Inputs(a, b, tuple(operands), torch.empty(case.m, n, dtype=dtype, device=self.device))


def _bytes(inputs: Inputs) -> int:
    """Bytes that a call reads."""
    return sum(t.nbytes for t in (inputs.a, inputs.b, *inputs.operands))


def _call(contender: Contender, case: Case, inputs: Inputs) -> Call:
    call = contender.prepare(case, inputs)
    assert call is not None  # it had a way for the first set, which is alike
    return call


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Exits with 1 where a result was wrong."""
    args = _parse(argv)
    try:
        results = environment.here(args.suite, args.commit)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    path = args.output or RESULTS / environment.folder(results.gpu) / f"{args.name or args.suite}.json"
    if path.exists():
        results = results.joined(Results.read(path))
    contenders = [named(name) for name in args.contender]
    bench = Bench(device.current().l2_bytes, effort=SWEEP if args.sweep else FULL)
    wrong = False
    for _, alike in itertools.groupby(suites.load(args.suite, args.group), key=_size):
        rows = bench.rows(list(alike), contenders)
        wrong |= not all(row.ok for row in rows)
        results = replace(results, rows=tuple(rows)).joined(results)
        results.write(path)
        for title, of_case in itertools.groupby(rows, key=_title):
            times = "  ".join(f"{row.contender} {row.us or math.nan:.1f}" for row in of_case)
            print(f"{title}, us: {times}", flush=True)
    for name in args.scalar:
        found = SCALARS[name]()
        results = replace(results, rows=(), scalars=found).joined(results)
        results.write(path)
        print("  ".join(f"{key} {value:.3g}" for key, value in found.items()), flush=True)
    print(f"written to {path}")
    return int(wrong)


def _size(case: Case) -> tuple[object, ...]:
    """What cases that are timed together have in common: all but the epilogue."""
    return case.group, case.m, case.n, case.k, case.dtype, case.layout


def _title(row: Row) -> str:
    return f"{row.group} {row.m}x{row.n}x{row.k} {row.epilogue}"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measures a suite here.")
    parser.add_argument("--suite", default="standard", choices=suites.names())
    parser.add_argument("--group", action="append", help="only this group of the suite; may be repeated")
    parser.add_argument(
        "--contender",
        nargs="+",
        default=["cutegemm", "cublas", "cublaslt", "unfused"],
        help=f"{', '.join(NAMES)}; the report compares the others with the first",
    )
    parser.add_argument("--scalar", nargs="*", default=[], choices=sorted(SCALARS), help="more figures")
    parser.add_argument("--sweep", action="store_true", help="short timings, to choose what to measure in full")
    parser.add_argument("--commit", help="what is measured, where there is no git checkout")
    parser.add_argument("--name", help="the results file's name (default: the suite's)")
    parser.add_argument("--output", type=Path, help="the results file, instead of one under benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
