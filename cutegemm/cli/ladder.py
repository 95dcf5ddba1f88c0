"""`cutegemm ladder`: the hand-written levels side by side, measured here, or predicted where there is no GPU."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cutegemm import device
from cutegemm.cli.output import Subcommands, console, print_json, subcommand
from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError, CuteGemmError, DeviceError
from cutegemm.ladder import diagnose, plot, profile
from cutegemm.ladder.diagnose import Diagnosis, Expected, Metrics
from cutegemm.ladder.measure import Measurement, VectorAdd, climb, vector_add
from cutegemm.ladder.predict import Prediction, predict
from cutegemm.ladder.rungs import Rung, rungs
from cutegemm.planner.plan import DEFAULT_GPU
from cutegemm.roofline import Occupancy, occupancy, ridge_point

SIZE = 4096
_UNITS = {"fp32": "fp32", "mma": "mma", "wgmma": "peak"}
_MEASURED = (
    f"{'':<20} {'dtype':<5} {'us':>10} {'TFLOP/s':>8} {'of peak':>12} {'expected':>9} {'speed-up':>8}  right  verdict"
)
_PREDICTED = (
    f"{'':<20} {'dtype':<5} {'us':>10} {'TFLOP/s':>8} {'expected':>12} {'GB loaded':>9} {'FLOP/B':>7} {'roof':>6} "
    f"{'regs':>5} {'smem':>7} {'occupancy':>10}  by"
)


def add(subcommands: Subcommands) -> None:
    parser = subcommand(
        subcommands,
        "ladder",
        "the hand-written levels side by side: time, share of peak, the roofline's verdict, the profiler's",
        "Checks and times each level, the production kernel and torch.mm on the GPU here, a line as each finishes. "
        "Without a GPU, or with --arch, it predicts them and compiles each kernel for its registers, shared memory and "
        "occupancy.",
    )
    parser.add_argument("--size", type=int, default=SIZE, metavar="N", help=f"M, N and K (default: {SIZE})")
    parser.add_argument("--levels", metavar="NAMES", help="such as level1,level4-padded; all: with every variant")
    parser.add_argument("--dtype", help="of every level (default: fp32 on CUDA cores, bf16 on tensor cores)")
    parser.add_argument("--arch", "--gpu", metavar="GPU", help="predict for this architecture (sm_90a) or GPU (H200)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the roofline too (needs matplotlib)")
    parser.add_argument(
        "--profile", action="store_true", help="count each level's bytes, sectors, conflicts and pipes with ncu"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    ladder = rungs(args.levels, args.dtype, args.size)
    if args.plot is not None:
        plot.check(args.plot)
    if args.profile:
        for option in ("plot", "arch"):
            if getattr(args, option) is not None:
                raise ArgumentError(f"--profile measures the GPU here and takes no --{option}")
        return _profile(args, ladder)
    if args.arch is None and _usable():
        return _measure(args, ladder)
    return _predict(args, ladder)


def _usable() -> bool:
    import torch

    return torch.cuda.is_available()


# ---------------------------------------------------------------- on a GPU


def _measure(args: argparse.Namespace, ladder: list[Rung]) -> int:
    gpu = device.current()
    quiet = args.json
    _say(quiet, f"{gpu.name}: M = N = K = {args.size}")
    memory = vector_add(gpu)
    _say(quiet, memory_line(memory))
    _say(quiet, f"\n{_MEASURED}")
    rows = []
    for row in climb(ladder, gpu):
        rows.append(row)
        _say(quiet, measured_line(row))
    points = [plot.Point(r.name, r.intensity, r.tflops * 1e12, r.unit) for r in rows if r.tflops and r.intensity]
    _plot(args, points, gpu, f"{gpu.name}, measured, N = {args.size}")
    if quiet:
        _print(gpu, args, vector_add=asdict(memory), rows=[asdict(row) for row in rows])
    else:
        _say(quiet, f"\n{_LEGEND}")
    return int(any(row.correct is False for row in rows))


_LEGEND = (
    "of peak: of fp32 on CUDA cores, of what mma.sync reaches, or of the GPU's peak. Verdicts go by the bytes that a\n"
    "level's threads load (of gemm and torch.mm: A, B and D once); caches can carry a level over that slope."
)


def memory_line(memory: VectorAdd) -> str:
    """The vector add beside which the memory-bound are judged."""
    rate = f"{memory.gb_per_s:.0f} GB/s, {memory.share:.0%} of the memory's"
    return f"vector add, fp32, {memory.bytes / 1e9:.1f} GB: {rate}"


def measured_line(row: Measurement) -> str:
    """A row as fixed-width text."""
    head = f"{row.name:<20} {row.dtype:<5}"
    if row.refused is not None or row.us is None or row.tflops is None or row.share is None:
        return f"{head} not run: {row.refused}"
    right = "yes" if row.correct else "WRONG"
    peak = f"{row.share:.1%} {_UNITS[row.unit]}"
    return (
        f"{head} {row.us:>10.1f} {row.tflops:>8.2f} {peak:>12} {_span(row.expected):>9} {_times(row.speedup):>8}  "
        f"{right:<5}  {row.verdict}"
    )


# ---------------------------------------------------------------- without one


def _predict(args: argparse.Namespace, ladder: list[Rung]) -> int:
    gpu, assumed = _gpu(args.arch)
    quiet = args.json
    _say(quiet, f"{gpu.name} ({gpu.arch}), predicted{assumed}: M = N = K = {args.size}")
    ridges = [f"{name} {ridge_point(top, gpu.hbm_bytes_per_s):.0f}" for name, top in _tops(gpu)]
    _say(quiet, f"memory {gpu.hbm_bytes_per_s / 1e9:.0f} GB/s; ridges, in FLOP/B: {', '.join(ridges)}")
    _say(quiet, f"\n{_PREDICTED}")
    rows = []
    for rung in ladder:
        rows.append(predict(rung, gpu))
        _say(quiet, predicted_line(rows[-1]))
    points = [plot.Point(r.level, r.intensity, r.tflops * 1e12, r.unit) for r in rows if r.tflops and r.intensity]
    _plot(args, points, gpu, f"{gpu.name}, predicted, N = {args.size}")
    if quiet:
        _print(gpu, args, assumed=bool(assumed), rows=[asdict(row) for row in rows])
    else:
        for missing in dict.fromkeys(row.unread for row in rows if row.unread):
            _say(quiet, f"\nnot compiled or not read: {missing}")
        _say(quiet, f"\n{_PREDICTED_LEGEND}")
    return 0


_PREDICTED_LEGEND = (
    "us, TFLOP/s: at the middle of the expected share of peak. GB loaded: by the threads, 2 N^3 / B elements\n"
    "for tiles of B. roof: TFLOP/s that memory allows at that FLOP/B, where no cache helps. smem: bytes a block.\n"
    "occupancy: blocks that an SM holds, their share of its warps, and what limits them."
)


def _gpu(name: str | None) -> tuple[DeviceSpec, str]:
    if name is not None:
        return device.lookup(name), ""
    return device.lookup(DEFAULT_GPU), f" ({DEFAULT_GPU} is assumed: torch has no GPU here; --arch names another)"


def _tops(gpu: DeviceSpec) -> Iterator[tuple[str, float]]:
    yield from (("fp32", gpu.fp32_flops), ("mma", gpu.mma_flops), ("peak", gpu.peak_flops))


def predicted_line(row: Prediction) -> str:
    """A row as fixed-width text."""
    head = f"{row.level:<20} {row.dtype:<5}"
    if row.refused is not None:
        return f"{head} not served: {row.refused}"
    share = f"{_span(row.expected)} {_UNITS[row.unit]}"
    text = (
        f"{head} {row.us:>10.1f} {row.tflops:>8.2f} {share:>12} {_gb(row.loaded_bytes):>9} {row.intensity:>7.2f} "
        f"{row.attainable_tflops:>6.0f} "
    )
    if row.registers is None or row.occupancy is None:
        return f"{text}{'?':>5} {row.smem_bytes:>7} {'?':>10}"
    spilled = f", {row.local_bytes} bytes of local memory a thread" if row.local_bytes else ""
    held = f"{row.blocks_per_sm} x, {row.occupancy:.0%}"
    return f"{text}{row.registers:>5} {row.smem_bytes:>7} {held:>10}  {' and '.join(row.limited_by)}{spilled}"


# ---------------------------------------------------------------- under the profiler


def _profile(args: argparse.Namespace, ladder: list[Rung]) -> int:
    profile.tool()
    if not _usable():
        raise DeviceError("--profile needs a GPU, and torch has none here")
    gpu = device.current()
    able = [rung for rung in ladder if rung.refused(gpu) is None]
    if not able:
        raise ArgumentError(f"no level to profile: {ladder[0].level} {ladder[0].refused(gpu)}")
    counted, missing = profile.profile(able)
    found = []
    for rung, metrics in zip(able, counted, strict=True):
        wanted, held = diagnose.expected(rung), _occupancy(rung, gpu)
        found.append((rung, metrics, wanted, diagnose.diagnose(rung, metrics, wanted, gpu, held)))
    if args.json:
        rows = [
            {"level": r.level.name, "dtype": r.dtype, **asdict(m), "expected": asdict(w), "diagnosis": asdict(d)}
            for r, m, w, d in found
        ]
        _print(gpu, args, not_counted=missing, rows=rows)
        return 0
    out = console()
    out.print(f"{gpu.name}, under ncu with cold caches: M = N = K = {args.size}\n", markup=False)
    for rung in ladder:
        if (refused := rung.refused(gpu)) is not None:
            out.print(f"{rung.level} {rung.dtype}: not run: {refused.reason}", markup=False)
    for line in profile_lines(found):
        out.print(line, markup=False)
    for name in missing:
        out.print(f"ncu has no counter here for {name}", markup=False)
    return 0


def _occupancy(rung: Rung, gpu: DeviceSpec) -> Occupancy | None:
    """By the model, from the compiled kernel's registers; None where nothing here can read them."""
    row = predict(rung, gpu)
    if row.registers is None:
        return None
    return occupancy(gpu, threads=rung.level.threads, registers=row.registers, smem=rung.level.smem_bytes)


def profile_lines(found: list[tuple[Rung, Metrics, Expected, Diagnosis]]) -> Iterator[str]:
    """The counters as a table, and below it what they say of each level together."""
    yield (
        f"{'':<20} {'us':>9} {'GB loaded':>9} {'formula':>8} {'sectors/req':>11} {'conflicts':>10} {'L1':>5} "
        f"{'FMA':>5} {'tensor':>6} {'GB DRAM':>8}"
    )
    for rung, m, wanted, _ in found:
        conflicts = "-" if m.bank_conflicts is None else f"{m.bank_conflicts:.3g}"
        sectors = "-" if not m.sectors_per_request else f"{m.sectors_per_request:.2f}"
        yield (
            f"{rung.level.name:<20} {m.time_us:>9.1f} {_gb(m.loaded_bytes):>9} {wanted.formula_bytes / 1e9:>8.2f} "
            f"{sectors:>11} {conflicts:>10} {_share(m.l1_share):>5} {_share(m.fma_share):>5} "
            f"{_share(m.tensor_share):>6} {_gb(m.dram_bytes):>8}"
        )
    yield ""
    for rung, _, _, diagnosis in found:
        after = f"read {diagnosis.next}" if diagnosis.next else "nothing above"
        yield f"{rung.level.name}: {diagnosis.bottleneck} -> {diagnosis.remedy}; {after}"
        yield from (f"    {text}" for text in diagnosis.evidence)


# ---------------------------------------------------------------- what all of them print with


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        console().print(text, markup=False, no_wrap=True, crop=False, overflow="ignore")


def _print(gpu: DeviceSpec, args: argparse.Namespace, **found: Any) -> None:
    head = {"gpu": gpu.name, "arch": gpu.arch, "size": args.size, "measured": "assumed" not in found}
    print_json({**head, **found, "plot": None if args.plot is None else str(args.plot)})


def _plot(args: argparse.Namespace, points: list[plot.Point], gpu: DeviceSpec, title: str) -> None:
    if args.plot is not None:
        try:
            plot.draw(points, gpu, title, args.plot)
        except OSError as error:
            raise CuteGemmError(f"plot {args.plot}: {error}") from error
        _say(args.json, f"\nroofline in {args.plot}")


def _span(share: tuple[float, float] | None) -> str:
    return "-" if share is None else f"{share[0]:.0%}-{share[1]:.0%}".replace("%-", "-")


def _times(speedup: float | None) -> str:
    return "-" if speedup is None else f"{speedup:.2f}x"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _gb(moved: float | None) -> str:
    return "-" if moved is None else f"{moved / 1e9:.2f}"
