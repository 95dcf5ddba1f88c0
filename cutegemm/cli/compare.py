"""`cutegemm compare`: one problem by every level, every family and torch, against the floor."""

from __future__ import annotations

import argparse

from rich.markup import escape
from rich.table import Table

from cutegemm import device as devices
from cutegemm import plots
from cutegemm.cli.output import Subcommands, console, print_json, subcommand
from cutegemm.comparison import DTYPES, Case, Comparison, Entry, modelled, split_names
from cutegemm.errors import DeviceError
from cutegemm.planner.plan import DEFAULT_GPU


def add(subcommands: Subcommands) -> None:
    parser = subcommand(
        subcommands,
        "compare",
        "one problem by every hand-written level, every kernel family and torch",
        "Computes D = epilogue(A @ B) with A (M, K) and B (K, N) by everything that can: the hand-written levels, each "
        "family's best plan, torch (cuBLAS, with separate calls for an epilogue). On this machine's GPU each result "
        "is checked against fp64, then timed by turns with cold caches; the slow levels take their time on large "
        "problems. Without a GPU, or for one that is named, times are the planner's models. Exits with 1 where a "
        "result is wrong.",
    )
    parser.add_argument("m", type=int, metavar="M")
    parser.add_argument("n", type=int, metavar="N")
    parser.add_argument("k", type=int, metavar="K")
    parser.add_argument("--dtype", default="bf16", help=f"of every tensor: {', '.join(DTYPES)} (default: bf16)")
    parser.add_argument(
        "--layout",
        default="nt",
        help="as in `cutegemm plan` (default: nt, as in x @ weight.t()); the hand-written levels serve nn",
    )
    parser.add_argument("--epilogue", metavar="NAME", help="one of `cutegemm epilogues`")
    parser.add_argument(
        "--kernels",
        metavar="A,B,...",
        help="only these: hand (every level), a level (level5), a family, a pin as in gemm(kernel=...), torch",
    )
    parser.add_argument(
        "--arch",
        "--gpu",
        metavar="NAME",
        help="model an architecture (sm_90a) or a GPU (H200) instead of measuring on the one here",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the rates to FILE, say rates.png (needs matplotlib)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.plot is not None:
        plots.ready(args.plot)
    case = Case(args.m, args.n, args.k, args.dtype, args.layout, args.epilogue)
    names = None if args.kernels is None else split_names(args.kernels)
    result = compare(case, names, args.arch)
    if args.plot is not None:
        plots.bars(result, args.plot)
    if args.json:
        print_json(result.to_dict())
    else:
        _print(result)
    return int(bool(result.wrong))


def compare(case: Case, names: list[str] | None, arch: str | None) -> Comparison:
    """Measured on the GPU here, unless `arch` names one to model; modelled for `DEFAULT_GPU` where there is none.

    A GPU that torch can't use is an error, not a reason to model.
    """
    if arch is not None:
        return modelled(case, devices.lookup(arch), names)
    try:
        found = bool(devices.gpus())
        why = "the driver shows none"
    except DeviceError as error:
        found, why = False, str(error).split(".")[0]
    if not found:
        assumed = f"assumed, with no GPU named and none here ({why})"
        return modelled(case, devices.lookup(DEFAULT_GPU), names, assumed)
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("torch can't use the GPU here: `cutegemm doctor` says why; --arch models a GPU instead")
    from cutegemm import contest

    return contest.measured(case, names)


def _print(result: Comparison) -> None:
    out = console()
    for line in _heading(result):
        out.print(line, markup=False)
    out.print()
    if result.served or result.wrong:
        out.print(table(result))
    refused = [entry for entry in result.entries if entry.refused is not None]
    if refused:
        out.print("\nnot in the table", markup=False)
        width = max(len(entry.contender) for entry in refused)
        for entry in refused:
            out.print(f"  {entry.contender:<{width}}  {entry.refused}", markup=False)


def _heading(result: Comparison) -> list[str]:
    case, floor, gpu = result.case, result.floor, result.device
    epilogue = "" if case.epilogue is None else f", epilogue {case.epilogue}"
    lines = [
        f"m n k      {case.m} {case.n} {case.k}, {case.dtype} {case.layout}{epilogue}",
        f"gpu        {gpu.name} ({gpu.arch})" + ("" if result.assumed is None else f": {result.assumed}"),
        f"floor      {floor.us:.1f} us, bound by {floor.bound}: {floor.flops / 1e9:.3g} GFLOP at "
        f"{floor.peak / 1e12:.0f} TFLOP/s ({floor.unit}), {floor.moved_bytes / 1e6:.3g} MB at "
        f"{floor.bandwidth / 1e12:.3g} TB/s",
    ]
    if result.timing == "modelled":
        return [*lines, "times      MODELLED by the planner, not measured; nothing was computed"]
    return [*lines, "times      measured: medians by turns, inputs not in L2 where memory allows"]


def table(result: Comparison) -> Table:
    """Those with a time, the fastest first, then those whose result is wrong."""
    measured = result.timing == "measured"
    made = Table(box=None, pad_edge=False)
    made.add_column("contender", no_wrap=True)
    for title in ("us" if measured else "us (modelled)", "TFLOP/s", "of floor"):
        made.add_column(title, justify="right", no_wrap=True)
    if measured:
        made.add_column("error", justify="right", no_wrap=True)
        made.add_column("", no_wrap=True)
    made.add_column("plan")
    for entry in (*result.served, *result.wrong):
        cells = [entry.contender, *_figures(entry), *(_verdict(entry) if measured else ()), entry.plan]
        made.add_row(*map(escape, cells))
    return made


def _figures(entry: Entry) -> tuple[str, str, str]:
    if entry.us is None or entry.tflops is None or entry.share is None:
        return "", "", ""
    rate = f"{entry.tflops:.0f}" if entry.tflops >= 100 else f"{entry.tflops:.2f}"
    share = f"{entry.share:.1%}" if entry.share >= 0.01 else f"{entry.share:.2%}"
    return f"{entry.us:.1f}", rate, share


def _verdict(entry: Entry) -> tuple[str, str]:
    return "NaN" if entry.rel_err is None else f"{entry.rel_err:.1e}", "ok" if entry.ok else "WRONG"

