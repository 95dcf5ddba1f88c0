"""A ladder on a GPU: each level checked against fp64 and timed as `cutegemm compare` does, and judged by the roofline.

Rows come one after the other, not by turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutegemm.comparison import TORCH, Case, Entrant
from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.ladder.rungs import Rung, judge, peak
from cutegemm.roofline import gemm_intensity
from cutegemm.timing import Effort, capture, contest, event_clock

if TYPE_CHECKING:
    from cutegemm.contest import Bench, Trial

#: How long a row is timed: a call of many seconds runs few times.
EFFORT = Effort(min_ms=20.0, lead_ms=20.0, rounds=5, budget_ms=3000.0)
#: The rows behind the levels: this package's choice, and torch's.
LAST = {"gemm": Entrant("gemm", None, ""), "torch.mm": Entrant(TORCH, None, "")}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A row: times in microseconds, `share` of the `unit`'s peak, `speedup` over the row before that was timed.

    `excess` is the largest error over what K and the dtype allow by `contest.Judge`, more of torch, and None where the
    result had a NaN; `correct` says that it is at most 1. `intensity` is FLOP per byte that the level's threads load;
    of `gemm` and `torch.mm`, whose tiles are their own affair, per byte of A, B and D once. A row that couldn't run has
    `refused` and nothing else.
    """

    name: str
    dtype: str
    unit: str
    us: float | None = None
    tflops: float | None = None
    share: float | None = None
    expected: tuple[float, float] | None = None
    speedup: float | None = None
    excess: float | None = None
    correct: bool | None = None
    intensity: float | None = None
    verdict: str | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class VectorAdd:
    """z = x + y in fp32, the memory's yardstick: bytes of the three vectors, and their rate over the memory's."""

    bytes: int
    us: float
    gb_per_s: float
    share: float


def climb(ladder: list[Rung], gpu: DeviceSpec, bench: Bench | None = None) -> Iterator[Measurement]:
    """A row for each level, then `gemm` and `torch.mm` in each dtype of them; rows come as they are finished.

    `bench` is what they are measured on: the current GPU.
    """
    from cutegemm.contest import Trial, current

    measured = bench or current(EFFORT)
    trials: dict[str, Trial] = {}
    before: float | None = None
    for row, n, entrant in _rows(ladder, gpu):
        refused = entrant.refused
        if refused is None:
            if row.dtype not in trials:
                trials[row.dtype] = Trial(measured, Case(n, n, n, row.dtype, "nn"))
            entry = trials[row.dtype].check(entrant)
            refused = entry.refused
        if refused is not None:
            yield Measurement(row.name, row.dtype, row.unit, refused=refused)
            continue
        us = trials[row.dtype].time([entrant])[entrant.name]
        yield finished(row, n, us, entry.excess, gpu, before)
        before = us


def _rows(ladder: list[Rung], gpu: DeviceSpec) -> Iterator[tuple[Measurement, int, Entrant]]:
    """Each row as it is known before it is measured, its size, and what computes it."""
    for rung in ladder:
        level, refused = rung.level, rung.refused(gpu)
        row = Measurement(level.name, rung.dtype, level.unit, expected=level.share, intensity=rung.intensity)
        yield row, rung.n, Entrant(level.name, f"hand:{level}", "", refused=None if refused is None else refused.reason)
    for dtype in dict.fromkeys(rung.dtype for rung in ladder):
        n, unit = ladder[0].n, "fp32" if dtype == "fp32" else "wgmma"
        intensity = gemm_intensity(n, n, n, lookup(dtype).itemsize)
        for name, entrant in LAST.items():
            yield Measurement(name, dtype, unit, intensity=intensity), n, entrant


def vector_add(gpu: DeviceSpec) -> VectorAdd:
    """Measured on vectors that together exceed L2 at least twelve times."""
    import torch

    count = max(4 * gpu.l2_bytes, 2**28) // 4
    x, y, z = (torch.ones(count, device="cuda") for _ in range(3))
    us = contest({"": capture([lambda: torch.add(x, y, out=z)])}, 1, event_clock, EFFORT)[""]
    moved = 12 * count
    rate = moved / us * 1e6
    return VectorAdd(moved, us, rate * 1e-9, rate / gpu.hbm_bytes_per_s)


def finished(
    row: Measurement, n: int, us: float, error: float | None, gpu: DeviceSpec, before: float | None = None
) -> Measurement:
    """`row` with what follows from its time of `us` for a product of `n`, and from its error, None where it had a
    NaN."""
    achieved, top = 2 * n**3 / us * 1e6, peak(row.unit, gpu)
    assert row.intensity is not None
    return replace(
        row,
        us=us,
        tflops=achieved * 1e-12,
        share=achieved / top,
        speedup=None if before is None else before / us,
        excess=error,
        correct=error is not None and error <= 1,
        verdict=str(judge(achieved, row.intensity, top, gpu.hbm_bytes_per_s)),
    )
