"""Which levels a ladder has, in which dtype, and what each is judged by."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm import dtypes
from cutegemm.compiler import Spec
from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError
from cutegemm.hand_kernels import LEVELS, Level, build, find
from cutegemm.planner import PINNED, Refusal, contiguous_problem, refusal
from cutegemm.problem import Problem
from cutegemm.roofline import Verdict, verdict

#: A rate from which a unit's peak counts as reached; `roofline.verdict` has the same.
NEAR = 0.8


@dataclass(frozen=True, slots=True)
class Rung:
    """A level on a square problem of `n`, with A, B and D of `dtype`."""

    level: Level
    dtype: str
    n: int

    @property
    def problem(self) -> Problem:
        """The problem, of packed row-major matrices."""
        return contiguous_problem(self.n, self.n, self.n, dtype=self.dtype, layout="nn")

    @property
    def flops(self) -> int:
        """FLOP of the product."""
        return 2 * self.n**3

    @property
    def loaded_bytes(self) -> int:
        """Bytes that its threads load from global memory, by the traffic formula: 2 N^3 / B elements."""
        return self.level.loaded_bytes(self.n, self.n, self.n, self.dtype)

    @property
    def intensity(self) -> float:
        """FLOP per byte loaded."""
        return self.level.intensity(self.n, self.n, self.n, self.dtype)

    def refused(self, gpu: DeviceSpec) -> Refusal | None:
        """Why the level can't serve this on `gpu`, or None."""
        return refusal(self.problem, PINNED["hand"], self.level, gpu)

    def spec(self, gpu: DeviceSpec) -> Spec:
        """The kernel that `gpu` would run."""
        return Spec(build.FAMILY, self.level, self.problem.signature, gpu.arch)


def rungs(names: str | None, dtype: str | None, n: int) -> list[Rung]:
    """The levels in `names`, comma-separated: None is level1 to the last, "all" the variants too.

    `dtype` None is fp32 for CUDA-core levels and bf16 for those on tensor cores.
    Raises `ArgumentError` for a level that there isn't and for `n` below 1, `DTypeError` for an unknown dtype.
    """
    if n < 1:
        raise ArgumentError(f"size={n}: expected at least 1")
    if names is None:
        levels = [level for level in LEVELS if "-" not in level.name]
    elif names == "all":
        levels = list(LEVELS)
    else:
        try:
            levels = [find(name.strip()) for name in names.split(",")]
        except KeyError as error:
            raise ArgumentError(f"levels: {error.args[0]}") from None
    named = None if dtype is None else dtypes.lookup(dtype).name
    return [Rung(level, named or ("fp32" if level.unit == "fp32" else "bf16"), n) for level in levels]


def peak(unit: str, gpu: DeviceSpec) -> float:
    """FLOP/s of a level's unit on `gpu`: CUDA cores, mma.sync, or wgmma, which stands for the fastest there is."""
    return {"fp32": gpu.fp32_flops, "mma": gpu.mma_flops, "wgmma": gpu.peak_flops}[unit]


def judge(achieved: float, intensity: float, peak: float, bandwidth: float) -> Verdict:
    """The roofline's verdict on a kernel that loads `intensity` FLOP a byte: `roofline.verdict`, but a kernel near the
    peak is on the roof also left of the ridge, where caches have provided what its loads ask of memory."""
    return Verdict.ROOF if achieved >= NEAR * peak else verdict(achieved, intensity, peak, bandwidth, near=NEAR)
