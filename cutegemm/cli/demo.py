"""`cutegemm demo`: one fused GEMM checked and timed on this machine, then planned and compiled for Hopper."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cutegemm.cli.output import Subcommands, console, print_json, subcommand
from cutegemm.errors import CuteGemmError
from cutegemm.planner import Plan, plan

if TYPE_CHECKING:
    from torch import Tensor

TARGET = "sm_90a"
#: (M, N, K) of the checked call: a GPU's worth of work, or what a laptop does in a blink.
GPU_SIZE, CPU_SIZE = (4096, 4096, 4096), (512, 1024, 768)
TIMED_CALLS = 20
SHOWN_OPCODES = {
    "HGMMA": "wgmma",
    "UTMALDG": "TMA",
    "HMMA": "mma.sync",
    "LDSM": "ldmatrix",
    "LDGSTS": "cp.async",
}


@dataclass(frozen=True, slots=True)
class Check:
    """A fused call against torch's separate ones: errors are the largest against fp64, times are medians."""

    where: str
    path: str
    m: int
    n: int
    k: int
    error: float
    torch_error: float
    excess: float
    us: float
    torch_us: float

    @property
    def right(self) -> bool:
        """Whether every element is within what bf16 and fp32 accumulation allow."""
        return self.excess <= 1.0


def add(subcommands: Subcommands) -> None:
    parser = subcommand(
        subcommands,
        "demo",
        "a fused GEMM checked and timed here, then planned and compiled for a Hopper GPU",
        "Runs gemm(x, w.t(), epilogue=bias(v) >> gelu() >> add(r)) in bf16 on the GPU, or on the CPU through "
        f"the reference, against torch and fp64; then plans it for {TARGET} and compiles that kernel.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.json:
        check, chosen = compare(), _plan()
        checked = {**asdict(check), "right": check.right}
        print_json({"check": checked, "plan": chosen.to_dict(), "build": build(chosen)})
        return int(not check.right)
    out = console()
    check = compare()
    out.print(f"[bold]1. gemm(x, w.t(), epilogue=bias(v) >> gelu() >> add(r))[/] on {check.where}")
    for line in _check_lines(check):
        out.print(f"   {line}", markup=False)
    out.print(f"\n[bold]2. The same call planned for {TARGET}[/], which needs no GPU")
    chosen = _plan()
    out.print(chosen.explain(), markup=False)
    out.print(f"\n[bold]3. Its kernel compiled for {TARGET}[/], which needs no GPU either")
    for line in _build_lines(build(chosen)):
        out.print(f"   {line}", markup=False)
    return int(not check.right)


def compare() -> Check:
    """The fused call and torch's separate ones on this machine's GPU, or CPU where there is none."""
    import torch
    import torch.nn.functional as F

    from cutegemm import epilogues, gemm
    from cutegemm.reference import gemm64

    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    m, n, k = GPU_SIZE if on_gpu else CPU_SIZE
    draw = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=draw)

    x, w = normal(m, k).bfloat16(), (normal(n, k) / k**0.5).bfloat16()
    v, r = normal(n).bfloat16(), normal(m, n).bfloat16()
    fused_epilogue = epilogues.bias(v) >> epilogues.gelu() >> epilogues.add(r)

    def fused() -> Tensor:
        result: Tensor = gemm(x, w.t(), epilogue=fused_epilogue)
        return result

    def separate() -> Tensor:
        return F.gelu(F.linear(x, w, v)) + r

    exact = gemm64(x, w.t(), epilogue=fused_epilogue)
    error, torch_error = ((f().double() - exact).abs() for f in (fused, separate))
    # One rounding to bf16, and K additions in fp32; gelu's slope is below 1.13.
    summed = x.double().abs() @ w.t().double().abs()
    allowed = exact.abs() * 2**-8 + 1.13 * k * 2**-24 * summed
    excess = (error / allowed).max().item()
    return Check(
        where=torch.cuda.get_device_name() if on_gpu else "the CPU",
        path=plan(m, n, k, epilogue=fused_epilogue).kernel if on_gpu else "the reference, in fp32",
        m=m,
        n=n,
        k=k,
        error=error.max().item(),
        torch_error=torch_error.max().item(),
        excess=excess if excess == excess else float("inf"),
        us=_time_us(fused, on_gpu),
        torch_us=_time_us(separate, on_gpu),
    )


def _time_us(call: Callable[[], object], on_gpu: bool) -> float:
    """Median microseconds of a warm call."""
    import torch

    samples = []
    for _ in range(TIMED_CALLS):
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if on_gpu:
            torch.cuda.synchronize()
        samples.append(1e6 * (time.perf_counter() - start))
    return statistics.median(samples)


def _check_lines(check: Check) -> list[str]:
    verdict = "right" if check.right else "WRONG"
    return [
        f"m n k      {check.m} {check.n} {check.k}, bf16, by {check.path}",
        f"result     {verdict}: largest error against fp64 {check.error:.2e}; torch's separate calls, which "
        f"round in between, {check.torch_error:.2e}",
        f"time       {check.us / 1e3:.3g} ms a call; torch's separate calls {check.torch_us / 1e3:.3g} ms",
    ]


def _plan() -> Plan:
    from cutegemm import epilogues

    m, n, k = GPU_SIZE
    epilogue = epilogues.bias.graph.then(epilogues.gelu.graph).then(epilogues.add.graph)
    return plan(m, n, k, dtype="bf16", arch=TARGET, layout="nt", epilogue=epilogue)


def build(chosen: Plan) -> dict[str, Any]:
    """Compiles the plan's kernel, which takes neither a GPU nor a driver, and reads its machine code."""
    from cutegemm import compiler
    from cutegemm.compiler import sass

    spec = compiler.Spec(chosen.family, chosen.config, chosen.problem.signature, chosen.device.arch)
    artifact = compiler.build(spec, keep_cubin=True)
    cubin = artifact.cubin or b""
    built = {
        "kernel": chosen.kernel,
        "arch": spec.arch,
        "seconds": artifact.seconds,
        "cubin_bytes": len(cubin),
    }
    try:
        code = sass.read(cubin)
    except CuteGemmError as missing:  # the kernel is built all the same
        return {**built, "unread": str(missing)}
    opcodes = dict(sorted(code.opcodes.items(), key=lambda item: -item[1]))
    return {**built, "registers": code.registers, "spills": code.spills, "opcodes": opcodes}


def _build_lines(built: dict[str, Any]) -> list[str]:
    lines = [
        f"kernel     {built['kernel']}",
        f"compiled   in {built['seconds']:.1f} s to {built['cubin_bytes'] / 1024:.0f} KiB",
    ]
    if "unread" in built:
        return [*lines, f"SASS       {built['unread']}"]
    found = built["opcodes"]
    shown = [f"{found[name]} {name} ({what})" for name, what in SHOWN_OPCODES.items() if name in found]
    spills = f"{built['spills']} spills" if built["spills"] else "no spills"
    return [*lines, f"SASS       {built['registers']} registers a thread, {spills}; {', '.join(shown)}"]
