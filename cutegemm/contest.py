"""Measuring on this machine's GPU: inputs, each contender checked against fp64, and times by turns.

`Bench.run` makes a comparison of it, `cutegemm.ladder.measure` a ladder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cutegemm.comparison import TORCH, Case, Comparison, Entrant, Entry, entrants, floor, timed
from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.eager import EAGER
from cutegemm.errors import CuteGemmError
from cutegemm.fusion.graph import IDENTITY, Graph
from cutegemm.fusion.to_torch import evaluate
from cutegemm.planner import keeps_order
from cutegemm.timing import Clock, Effort, Replay, capture, contest, event_clock, input_sets

#: Enough to rank by; `benchmarks` is for figures to quote.
EFFORT = Effort(min_ms=10.0, lead_ms=10.0, rounds=5)
#: All of D is compared with fp64 up to the size of a cube of `WHOLE`; of what is larger as many rows as make no more
#: products and elements than that one has, at least `SAMPLE`: evenly spread, all columns of each.
WHOLE, SAMPLE = 4096, 256
#: Roundings of the largest magnitude that torch is allowed besides, of partial sums; and one for each of the epilogue's
#: nodes, which may be a call of its own.
LOOSE_ROUNDINGS = 4
_U32 = 2.0**-24
TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
#: A value for every Scalar operand that has no default.
_SCALARS = {"low": -1.0, "high": 1.25}

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Inputs:
    """One call's a (m, k) and b (k, n), the epilogue's operands in order, and an output for each of the epilogue's."""

    a: Tensor
    b: Tensor
    operands: tuple[Any, ...]
    outs: tuple[Tensor, ...]

    @property
    def read_bytes(self) -> int:
        """Bytes that a call reads."""
        return sum(t.nbytes for t in (self.a, self.b, *self.operands) if isinstance(t, Tensor))

    @property
    def bytes(self) -> int:
        """Bytes that the set takes."""
        return self.read_bytes + sum(out.nbytes for out in self.outs)


def draw(case: Case, device: str = "cuda", seed: int = 0) -> Inputs:
    """Standard-normal A and operands, and B of variance 1/K, so that products are of order 1; outputs are NaN."""
    dtype = TORCH_DTYPES[lookup(case.dtype).name]
    graph = _graph(case)
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, device=device, generator=generator) * scale).to(dtype)

    def matrix(rows: int, columns: int, layout: str, scale: float = 1.0) -> Tensor:
        return normal(rows, columns, scale=scale) if layout == "n" else normal(columns, rows, scale=scale).t()

    defaults = {} if case.fused is None else case.fused.defaults
    operands: list[Any] = []
    for spec in graph.operands:
        columns = case.n // 2 if spec.paired else case.n
        if spec.kind == "scalar":
            operands.append(defaults.get(spec.name, _SCALARS.get(spec.name, 0.5)))
        else:
            operands.append(normal(*{"row": (columns,), "col": (case.m,), "tile": (case.m, columns)}[spec.kind]))
    outs = [
        torch.full((case.m, case.n // 2 if spec.paired else case.n), math.nan, dtype=dtype, device=device)
        for spec in graph.outputs
    ]
    a, b = matrix(case.m, case.k, case.layout[0]), matrix(case.k, case.n, case.layout[1], case.k**-0.5)
    return Inputs(a, b, tuple(operands), tuple(outs))


def call_of(case: Case, entrant: Entrant, inputs: Inputs) -> Callable[[], tuple[Tensor, ...]]:
    """What computes `case` on `inputs`, and returns the outputs."""
    return _torch(case, inputs) if entrant.name == TORCH else _ours(case, entrant.kernel, inputs)


def _ours(case: Case, kernel: str | None, inputs: Inputs) -> Callable[[], tuple[Tensor, ...]]:
    from cutegemm.api import gemm

    fused = case.fused
    bound = None if fused is None else fused(*inputs.operands)
    out = inputs.outs[0] if len(inputs.outs) == 1 else inputs.outs
    # Whatever torch is set to.
    given: Any = {"precision": case.problem.signature.precision, "deterministic": keeps_order(kernel)}

    def run() -> tuple[Tensor, ...]:
        gemm(inputs.a, inputs.b, epilogue=bound, out=out, kernel=kernel, **given)
        return inputs.outs

    return run


def _torch(case: Case, inputs: Inputs) -> Callable[[], tuple[Tensor, ...]]:
    """torch.mm, then what a torch user writes for the epilogue; where that is not known, a call for each of its nodes.

    torch has no `out=` for most of it, so that outputs are new tensors.
    """
    a, b, operands = inputs.a, inputs.b, inputs.operands
    if case.epilogue is None:
        return lambda: (torch.mm(a, b, out=inputs.outs[0]),)
    eager = EAGER.get(case.epilogue)
    if eager is not None:
        return lambda: (eager(a, b, *operands),)
    # Numbers become tensors here: copying one to the device is not possible in a graph.
    held = [x if isinstance(x, Tensor) else torch.tensor(x, dtype=a.dtype, device=a.device) for x in operands]
    return lambda: evaluate(_graph(case), torch.mm(a, b), held, dtype=a.dtype)


def _graph(case: Case) -> Graph:
    return IDENTITY if case.fused is None else case.fused.graph


# ---------------------------------------------------------------- errors


class Judge:
    """The fp64 outputs of all rows, or of a sample of them, and how far a result may be from each element.

    The accumulator's error is bounded by (4 sqrt(K) + K / 8 + 6) 2^-24 |A| |B|: a sum in fp32 strays by about sqrt(K)
    roundings (Higham and Mary 2019, with a factor of 4), and by K / 8 more where tensor cores truncate once per 16
    products. What that makes of the epilogue's value is found by moving the accumulator so far either way; one rounding
    to the output's dtype and a few of fp32 come on top.
    """

    def __init__(self, case: Case, inputs: Inputs) -> None:
        graph = _graph(case)
        rows = min(case.m, max(SAMPLE, WHOLE**3 // (max(case.n, 1) * max(case.k, WHOLE))))
        self._rows = torch.linspace(0, case.m - 1, rows, dtype=torch.float64).long().to(inputs.a.device)
        a, b = inputs.a[self._rows].double(), inputs.b.double()
        product = a @ b
        spread = (a.abs() @ b.abs()) * ((4 * math.sqrt(case.k) + case.k / 8 + 6) * _U32)
        operands = [
            x[self._rows] if spec.kind in ("col", "tile") else x
            for x, spec in zip(inputs.operands, graph.operands, strict=True)
        ]
        self._loose = LOOSE_ROUNDINGS + len(graph.nodes)
        self._exact = evaluate(graph, product, operands, dtype=torch.float64)
        room = [torch.zeros_like(value) for value in self._exact]
        for even, odd in ((1, 1), (-1, -1), *(((1, -1), (-1, 1)) if graph.has_pair else ())):
            moved = product.clone()
            moved[:, 0::2] += even * spread[:, 0::2]
            moved[:, 1::2] += odd * spread[:, 1::2]
            for i, value in enumerate(evaluate(graph, moved, operands, dtype=torch.float64)):
                room[i] = torch.maximum(room[i], (value - self._exact[i]).abs())
        self._allowed = []
        for value, by_sum, out in zip(self._exact, room, inputs.outs, strict=True):
            info = torch.finfo(out.dtype)
            rounding = value.abs() * (info.eps / 2 + 16 * _U32) + info.smallest_normal * info.eps
            # An eighth of the range besides for a function that bends in it, and what approximations of small values
            # may lose: 2^-30 of the largest.
            self._allowed.append(1.125 * by_sum + rounding + value.abs().max() * 2.0**-30)

    def judge(self, results: Sequence[Tensor], *, loose: bool = False) -> tuple[float | None, float | None]:
        """(rel_err, excess) of `Entry`; both None where a result has a NaN. `loose`: torch's roundings are allowed."""
        rel_err = excess = 0.0
        for result, exact, allowed in zip(results, self._exact, self._allowed, strict=True):
            if bool(result.isnan().any()):  # what nobody wrote is NaN, and may lie outside of the sample
                return None, None
            largest = exact.abs().max()
            error = (result[self._rows].double() - exact).abs()
            room = allowed + self._loose * torch.finfo(result.dtype).eps / 2 * largest if loose else allowed
            rel_err = max(rel_err, float((error / largest).max()) if float(largest) > 0 else 0.0)
            excess = max(excess, float((error / room).max()))
        return (rel_err, excess) if math.isfinite(excess) else (None, None)


# ---------------------------------------------------------------- the contest


def set_count(read_bytes: int, set_bytes: int, l2_bytes: int, free_bytes: int) -> int:
    """How many sets of inputs to go round by: enough to exceed three times the L2, in at most half of free memory."""
    return input_sets(read_bytes, l2_bytes, most=max(1, free_bytes // (2 * set_bytes)))


@dataclass(frozen=True, slots=True)
class Bench:
    """What measuring takes of a device; the defaults are the CUDA device's."""

    spec: DeviceSpec
    free_bytes: int
    device: str = "cuda"
    effort: Effort = EFFORT
    capture: Callable[[Sequence[Call]], Replay] = capture
    clock: Clock = event_clock

    def run(self, case: Case, names: Sequence[str] | None = None) -> Comparison:
        """Checks every contender against fp64, then times by turns those that are right.

        A contender that turns out not to run, for a missing package or kernel, is listed with the reason.
        """
        least = floor(case, self.spec)
        trial = Trial(self, case)
        entries: dict[str, Entry] = {}
        ready: list[Entrant] = []
        for entrant in entrants(case, self.spec, names):
            entries[entrant.name] = trial.check(entrant)
            if entries[entrant.name].ok:
                ready.append(entrant)
        for name, us in trial.time(ready).items():
            entries[name] = timed(entries[name], us, least)
        return Comparison(case, self.spec, least, "measured", tuple(entries.values()))


class Trial:
    """A case on a bench: what it is computed of, what is right, and how long a contender takes."""

    def __init__(self, bench: Bench, case: Case) -> None:
        self._bench, self._case = bench, case
        self._inputs = [draw(case, bench.device)]
        self._judge = Judge(case, self._inputs[0])

    def check(self, entrant: Entrant) -> Entry:
        """The entry of `entrant` with its errors, or with why it doesn't run."""
        entry = Entry(entrant.name, entrant.plan, entrant.kernel, refused=entrant.refused)
        if entrant.refused is not None:
            return entry
        inputs = self._inputs[0]
        for out in inputs.outs:
            out.fill_(math.nan)
        try:
            results = call_of(self._case, entrant, inputs)()
        except CuteGemmError as error:
            return replace(entry, refused=str(error))
        rel_err, excess = self._judge.judge(results, loose=entrant.name == TORCH)
        return replace(entry, rel_err=rel_err, excess=excess, ok=excess is not None and excess <= 1)

    def time(self, entrants: Sequence[Entrant]) -> dict[str, float]:
        """Microseconds of a call of each, by turns, on as many sets of inputs as L2 can't hold."""
        bench, first = self._bench, self._inputs[0]
        sets = set_count(first.read_bytes, first.bytes, bench.spec.l2_bytes, bench.free_bytes)
        self._inputs += [draw(self._case, bench.device, seed) for seed in range(len(self._inputs), sets)]
        calls = {e.name: [call_of(self._case, e, inputs) for inputs in self._inputs] for e in entrants}
        replays = {name: bench.capture(each) for name, each in calls.items()}
        return contest(replays, sets, bench.clock, bench.effort)


def current(effort: Effort = EFFORT) -> Bench:
    """That of the current GPU. Raises `DeviceError` where there is none."""
    spec = DeviceSpec.query(torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info()
    return Bench(spec, free, effort=effort)


def measured(case: Case, names: Sequence[str] | None = None) -> Comparison:
    """The comparison on the current GPU. Raises `DeviceError` where there is none, and what `entrants` raises."""
    return current().run(case, names)
