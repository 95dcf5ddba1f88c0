"""A ladder on a GPU: each level checked against fp64, timed by events, and judged by the roofline.

Every call reads the same operands: small ones come out of L2, so that a memory's share can look better than it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutegemm.device import DeviceSpec
from cutegemm.errors import CuteGemmError
from cutegemm.ladder.rungs import Rung, judge, peak
from cutegemm.roofline import gemm_intensity

if TYPE_CHECKING:
    from torch import Tensor

#: Runs something so many times and returns the milliseconds that the device took.
Clock = Callable[[int], float]
#: Problems of more multiplications than this are checked by whole rows and columns, `SAMPLE` of each.
WHOLE, SAMPLE = 2048**3, 128
#: Calls shorter than this, in ms, are replayed from a CUDA graph of `GRAPHED`: launching them takes the host as long.
SHORT_MS, GRAPHED = 0.2, 20
_ITEMSIZE = {"fp32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A row: times in microseconds, `share` of the `unit`'s peak, `speedup` over the row before that was timed.

    `excess` is the largest error over what K and the dtype allow, `correct` that it is at most 1. `intensity` is FLOP
    per byte that the level's threads load; of `gemm` and `torch.mm`, whose tiles are their own affair, per byte of A, B
    and D once. A row that couldn't run has `refused` and nothing else.
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


def climb(ladder: list[Rung], gpu: DeviceSpec) -> Iterator[Measurement]:
    """A row for each level, then `gemm` and `torch.mm` in each dtype of them; rows come as they are finished."""
    before: float | None = None
    for rung in ladder:
        row = _row(rung, gpu, before)
        before = row.us or before
        yield row
    for dtype in dict.fromkeys(rung.dtype for rung in ladder):
        for name in ("gemm", "torch.mm"):
            row = _last(name, dtype, ladder[0].n, gpu, before)
            before = row.us or before
            yield row


def vector_add(gpu: DeviceSpec) -> VectorAdd:
    """Measured on vectors that together exceed L2 at least twelve times."""
    import torch

    count = max(4 * gpu.l2_bytes, 2**28) // 4
    x, y, z = (torch.ones(count, device="cuda") for _ in range(3))
    us = time_us(_clock(lambda: torch.add(x, y, out=z)))
    moved = 12 * count
    rate = moved / us * 1e6
    return VectorAdd(moved, us, rate * 1e-9, rate / gpu.hbm_bytes_per_s)


def time_us(
    clock: Clock, *, warm_ms: float = 20.0, sample_ms: float = 20.0, samples: int = 5, budget_ms: float = 3000.0
) -> float:
    """Median microseconds of one call: warmed up for `warm_ms`, then samples of at least `sample_ms`.

    Where samples would take more than `budget_ms` together there are fewer, at least one: a call of many seconds runs
    twice.
    """
    repeats, spent = 1, 0.0
    while True:
        ms = clock(repeats)
        spent += ms
        if spent >= warm_ms:
            break
        repeats *= 2
    once = max(ms / repeats, 1e-6)
    repeats = max(1, math.ceil(sample_ms / once))
    samples = max(1, min(samples, int(budget_ms / (repeats * once))))
    return 1e3 * statistics.median(clock(repeats) / repeats for _ in range(samples))


def excess(result: Tensor, a: Tensor, b: Tensor) -> float:
    """The largest error of `result` = A @ B against fp64, over what is allowed: right if at most 1; inf for a NaN.

    With S = |A| |B|, an fp32 sum of K products strays by about sqrt(K) u S (Higham and Mary 2019; here with a factor of
    4), and by K/8 u S more on tensor cores, which truncate once per 16 products; fp32 products round themselves. Then
    the sum is rounded to the result's dtype.
    """
    import torch

    if bool(result.isnan().any()):
        return math.inf
    m, k, n = len(a), a.shape[1], b.shape[1]
    if m * n * k <= WHOLE:
        return _excess(result, a, b)
    rows, columns = (
        torch.linspace(0, size - 1, min(SAMPLE, size), dtype=torch.float64, device=a.device).long() for size in (m, n)
    )
    return max(_excess(result[rows], a[rows], b), _excess(result[:, columns], a, b[:, columns]))


def _excess(result: Tensor, a: Tensor, b: Tensor) -> float:
    import torch

    k = a.shape[1]
    a64, b64 = a.double(), b.double()
    exact, magnitude = a64 @ b64, a64.abs() @ b64.abs()
    products = 2 if a.dtype == torch.float32 else 0
    room = magnitude * ((4 * math.sqrt(k) + k / 8 + products + 4) * 2.0**-24)
    # One rounding to the result's dtype, of the largest number that the sum may be.
    room += (exact.abs() + room) * (torch.finfo(result.dtype).eps / 2) + torch.finfo(result.dtype).tiny
    worst = float(((result.double() - exact).abs() / room).max())
    return worst if worst == worst else math.inf


def _row(rung: Rung, gpu: DeviceSpec, before: float | None) -> Measurement:
    level = rung.level
    refused = rung.refused(gpu)
    if refused is not None:
        return Measurement(level.name, rung.dtype, level.unit, refused=refused.reason)
    from cutegemm import gemm

    def call(a: Tensor, b: Tensor, out: Tensor) -> Any:
        return gemm(a, b, out=out, kernel=f"hand:{level}")

    empty = Measurement(level.name, rung.dtype, level.unit, expected=level.share, intensity=rung.intensity)
    return _timed(empty, rung.n, call, gpu, before)


def _last(name: str, dtype: str, n: int, gpu: DeviceSpec, before: float | None) -> Measurement:
    import torch

    from cutegemm import gemm

    def production(a: Tensor, b: Tensor, out: Tensor) -> Any:
        return gemm(a, b, out=out)

    def library(a: Tensor, b: Tensor, out: Tensor) -> Any:
        return torch.mm(a, b, out=out)

    unit = "fp32" if dtype == "fp32" else "wgmma"
    empty = Measurement(name, dtype, unit, intensity=gemm_intensity(n, n, n, _ITEMSIZE[dtype]))
    return _timed(empty, n, production if name == "gemm" else library, gpu, before)


def _timed(
    row: Measurement, n: int, call: Callable[[Tensor, Tensor, Tensor], Any], gpu: DeviceSpec, before: float | None
) -> Measurement:
    """`row` with what was measured of `call`, or with why it couldn't run."""
    import torch

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[row.dtype]
    draw = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randn(n, n, device="cuda", generator=draw).to(dtype) for _ in range(2))
    out = torch.full((n, n), torch.nan, dtype=dtype, device="cuda")
    try:
        call(a, b, out)
    except CuteGemmError as refusal:
        return Measurement(row.name, row.dtype, row.unit, refused=str(refusal))
    error = excess(out, a, b)
    us = time_us(_clock(lambda: call(a, b, out)))
    return finished(row, n, us, error, gpu, before)


def finished(
    row: Measurement, n: int, us: float, error: float, gpu: DeviceSpec, before: float | None = None
) -> Measurement:
    """`row` with what follows from its time of `us` for a product of `n`, and from its error."""
    achieved, top = 2 * n**3 / us * 1e6, peak(row.unit, gpu)
    assert row.intensity is not None
    return Measurement(
        row.name,
        row.dtype,
        row.unit,
        us=us,
        tflops=achieved * 1e-12,
        share=achieved / top,
        expected=row.expected,
        speedup=None if before is None else before / us,
        excess=error,
        correct=error <= 1,
        intensity=row.intensity,
        verdict=str(judge(achieved, row.intensity, top, gpu.hbm_bytes_per_s)),
    )


def _clock(call: Callable[[], object]) -> Clock:
    """A clock on `call`, which has run before or may compile now."""
    import torch

    call()
    torch.cuda.synchronize()

    def timed(replay: Callable[[], object], repeats: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    if timed(call, 1) >= SHORT_MS:
        return lambda repeats: timed(call, repeats)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what a first call on a stream may do, a capture forbids
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPHED):
            call()


    def replayed(repeats: int) -> float:
        replays = -(-repeats // GRAPHED)
        return timed(graph.replay, replays) * repeats / (replays * GRAPHED)

    return replayed
