"""One problem, every kernel that could compute it: who contends, the floor no one can pass, and the results as data.

Nothing here needs a GPU: `cutegemm.contest` measures, and where nothing is measured the planner's models give the
times. FLOP, bytes and rates are those of `cutegemm.roofline`; times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.errors import ArgumentError, CuteGemmError, DTypeError
from cutegemm.fusion import registry
from cutegemm.fusion.trace import Epilogue
from cutegemm.hand_kernels import LEVELS, Level
from cutegemm.planner import FAMILIES, PINNED, contiguous_problem, keeps_order, plan_problem, refusal
from cutegemm.problem import Problem
from cutegemm.roofline import gemm_flops, intensity, ridge_point, roofline_time

#: What A and B may be: a contender that serves another of the planner's dtypes has no fp64 bound here.
DTYPES = ("bf16", "fp16", "fp32")
#: The contender that is no kernel of this package: torch.mm, and separate calls for an epilogue.
TORCH = "torch"
_HAND = PINNED["hand"]


@dataclass(frozen=True, slots=True)
class Case:
    """D (m, n) = epilogue(A (m, k) @ B (k, n)) on contiguous tensors.

    `layout` is that of `cutegemm.plan`, `epilogue` the name of a registered one or None. Raises `DTypeError` for a
    `dtype` beyond `DTYPES`; `problem` raises what `cutegemm.plan` does.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    layout: str = "nt"
    epilogue: str | None = None

    def __post_init__(self) -> None:
        if lookup(self.dtype).name not in DTYPES:
            raise DTypeError(f"dtype={self.dtype!r}: expected one of {', '.join(DTYPES)}")

    @property
    def fused(self) -> Epilogue | None:
        """The epilogue, its operands not bound. Raises `EpilogueError` for a name that is not registered."""
        return None if self.epilogue is None else registry.lookup(self.epilogue)

    @property
    def problem(self) -> Problem:
        """What the planner is asked."""
        sizes = (self.m, self.n, self.k)
        return contiguous_problem(*sizes, dtype=self.dtype, layout=self.layout, epilogue=self.fused)


# ---------------------------------------------------------------- the floor


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time that a problem can take on a GPU: arithmetic at `peak` FLOP/s and `moved_bytes` at `bandwidth`
    B/s, fully overlapped. `unit` says what `peak` is of."""

    flops: int
    moved_bytes: int
    peak: float
    bandwidth: float
    unit: str

    @property
    def us(self) -> float:
        """The longer of the two, in microseconds."""
        return roofline_time(self.flops, self.moved_bytes, self.peak, self.bandwidth) * 1e6

    @property
    def intensity(self) -> float:
        """FLOP per byte that has to be moved."""
        return intensity(self.flops, self.moved_bytes)

    @property
    def bound(self) -> str:
        """What binds there: "arithmetic" from the ridge on, "memory" left of it."""
        return "arithmetic" if self.intensity >= ridge_point(self.peak, self.bandwidth) else "memory"


def floor(case: Case, device: DeviceSpec) -> Floor:
    """The floor of `case`: 16-bit products at the rate of the GPU's fastest matrix instruction, fp32 ones at that of
    its CUDA cores."""
    fp32 = lookup(case.dtype).name == "fp32"
    peak, unit = (device.fp32_flops, "fp32 FMA") if fp32 else (device.peak_flops, "matrix instructions")
    flops = gemm_flops(case.m, case.n, case.k)
    return Floor(flops, moved_bytes(case.problem), peak, device.hbm_bytes_per_s, unit)


def moved_bytes(problem: Problem) -> int:
    """Bytes that can't be avoided: A, B and tensor operands of the epilogue read once, every output written once."""
    signature, graph = problem.signature, problem.signature.epilogue
    m, n, k = problem.m, problem.n, problem.k
    total = m * k * lookup(signature.a.dtype).itemsize + k * n * lookup(signature.b.dtype).itemsize
    for output, access in zip(graph.outputs, signature.outputs, strict=True):
        total += m * (n // 2 if output.paired else n) * lookup(access.dtype).itemsize
    for operand, access in zip(graph.operands, signature.operands, strict=True):
        columns = n // 2 if operand.paired else n
        elements = {"tile": m * columns, "row": columns, "col": m, "scalar": 0}[operand.kind]
        total += elements * lookup(access.dtype).itemsize
    return problem.batch * total


# ---------------------------------------------------------------- contenders


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contender: what it is called, the `kernel=` string that runs it (None: torch) and what that is in words.

    `modelled_us` is the planner's time for it. A contender that can't serve the case has `refused`, the reason, and no
    `kernel`.
    """

    name: str
    kernel: str | None
    plan: str
    modelled_us: float | None = None
    refused: str | None = None


def split_names(text: str) -> list[str]:
    """The contenders in `a,b,…`: a part with a `=` and no `:` is a further key of the pin before it.

    "level5,sm80_multistage:tile=128x128x32,stages=3" names two. Raises `ArgumentError` for an empty name.
    """
    names: list[str] = []
    for part in text.split(","):
        if not part.strip():
            raise ArgumentError(f"--kernels {text}: a name is empty")
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part.strip()}"
        else:
            names.append(part.strip())
    return names


def entrants(case: Case, device: DeviceSpec, names: Sequence[str] | None = None) -> list[Entrant]:
    """Who contends for `case` on `device`: every level, every family with its best plan, torch; or those in `names`.

    A name is "torch", "hand" (every level), a level ("level5"), a family, or a pin as in `gemm(kernel=...)`. One that
    serves nothing here is listed with its refusal. Raises what `parse_pin` does for a name that is none of these.
    """
    problem = case.problem
    wanted = [_HAND.name, *FAMILIES, TORCH] if names is None else names
    found = {entrant.name: entrant for name in wanted for entrant in _named(name, case, problem, device)}
    return list(found.values())


def _named(name: str, case: Case, problem: Problem, device: DeviceSpec) -> Iterator[Entrant]:
    levels = {level.name: level for level in LEVELS}
    if name == TORCH:
        yield Entrant(TORCH, None, "torch.mm" if case.epilogue is None else "torch.mm, then separate calls")
    elif name == _HAND.name:
        yield from (_level(level, problem, device) for level in LEVELS)
    elif name.removeprefix(f"{_HAND.name}:") in levels:
        yield _level(levels[name.removeprefix(f"{_HAND.name}:")], problem, device)
    else:
        ordered = keeps_order(name)  # a wrong name is the caller's mistake, a refusal is an answer
        try:
            made = plan_problem(problem.computed, device, kernel=name, deterministic=ordered)
        except CuteGemmError as error:
            reason = str(error).removeprefix(f"kernel={name!r} can't serve this problem: ")
            yield Entrant(name, None, "", refused=reason)
        else:
            yield Entrant(name, made.kernel, str(made.config), made.us)


def _level(level: Level, problem: Problem, device: DeviceSpec) -> Entrant:
    name = f"{_HAND.name}:{level}"
    refused = refusal(problem, _HAND, level, device)
    if refused is not None:
        return Entrant(name, None, "", refused=refused.reason)
    dtype = problem.signature.a.dtype
    splits = level.splits(problem.m, problem.n, problem.k, dtype, device.sm_count)
    plan = f"{level.tile_m}x{level.tile_n}x{level.depth(dtype)}, {level.threads} threads"
    plan += f", K in {splits} parts" if splits > 1 else ""
    return Entrant(name, name, plan, _HAND.model(problem, device).estimate(level).us)


# ---------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender's result. `us` is measured or modelled, as `Comparison.timing` says; None where there is neither.

    `share` is the floor's time over its own. `rel_err` is the largest error against fp64 over the largest magnitude;
    `excess` the largest error over what K and the dtypes allow there, so that `ok` is at most 1. All three are None
    where nothing was computed; `rel_err` and `excess` are None and `ok` false where the result had a NaN.
    """

    contender: str
    plan: str
    kernel: str | None = None
    us: float | None = None
    tflops: float | None = None
    share: float | None = None
    rel_err: float | None = None
    excess: float | None = None
    ok: bool | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every contender on one case. `timing` is "measured" or "modelled"; `assumed` says why the GPU is not one that was
    asked for, if so."""

    case: Case
    device: DeviceSpec
    floor: Floor
    timing: str
    entries: tuple[Entry, ...]
    assumed: str | None = None

    @property
    def served(self) -> list[Entry]:
        """Those with a time, the fastest first."""
        return sorted((entry for entry in self.entries if entry.us is not None), key=lambda entry: entry.us or 0.0)

    @property
    def wrong(self) -> list[Entry]:
        """Those whose result is wrong; they are not timed."""
        return [entry for entry in self.entries if entry.ok is False]

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-serialisable data."""
        bound = {"us": self.floor.us, "bound": self.floor.bound, "intensity": self.floor.intensity}
        return {
            "case": asdict(self.case),
            "gpu": self.device.name,
            "arch": self.device.arch,
            "assumed": self.assumed,
            "timing": self.timing,
            "floor": {**asdict(self.floor), **bound},
            "entries": [asdict(entry) for entry in self.entries],
        }


def timed(entry: Entry, us: float, floor: Floor) -> Entry:
    """`entry` with a time of `us` and what follows from it."""
    return replace(entry, us=us, tflops=floor.flops / us * 1e-6, share=floor.us / us)


def modelled(
    case: Case, device: DeviceSpec, names: Sequence[str] | None = None, assumed: str | None = None
) -> Comparison:
    """The comparison by the planner's models alone. torch has none, and is listed so."""
    least, entries = floor(case, device), []
    for entrant in entrants(case, device, names):
        reason = "no model of its time: it is measured on a GPU only" if entrant.name == TORCH else entrant.refused
        entry = Entry(entrant.name, entrant.plan, entrant.kernel, refused=reason)
        entries.append(entry if entrant.modelled_us is None else timed(entry, entrant.modelled_us, least))
    return Comparison(case, device, least, "modelled", tuple(entries), assumed)
