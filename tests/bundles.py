"""For tests of bundles: three kernels that are really compiled, once a process, and calls short of their launch."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cutegemm import device, epilogues, ops, recording
from cutegemm.compiler import Spec, build, cache, loader, serving
from cutegemm.compiler.bundle import BuiltKernel
from cutegemm.fusion import Col, Row, Scalar, epilogue
from cutegemm.kernels.config import Config
from cutegemm.normalize import Call, allocate, check, parse, prepare
from cutegemm.options import Options
from cutegemm.planner import contiguous_problem

SMALL = Config(64, 64, 32, stages=4, warps_m=2, warps_n=2)
PLAIN = Spec("sm80_multistage", SMALL, contiguous_problem(512, 512, 512).signature, "sm_90a")
BIASED = replace(PLAIN, signature=contiguous_problem(512, 512, 512, epilogue=epilogues.bias).signature)
OLDER = replace(PLAIN, arch="sm_80")
ABSENT = replace(PLAIN, config=replace(SMALL, stages=3))
H200 = device.lookup("H200")


@functools.cache
def kernels() -> tuple[BuiltKernel, ...]:
    """The kernels of PLAIN, BIASED and OLDER."""
    problems = ("m 1..64 n 512 k 512 bf16 nt none",)
    return tuple(BuiltKernel(s, *loader.link(s, build(s).elf), problems) for s in (PLAIN, BIASED, OLDER))


def forget() -> None:
    """Make this process one that has no kernels, bundles or recorded calls yet."""
    cache.clear_memory()
    cache._usable.cache_clear()
    serving.forget()
    recording._written.clear()


@epilogue
def softened(acc, shift: Row, gain: Col, limit: Scalar = 3.0):
    """An epilogue that nobody registered."""
    x = (acc - shift) * gain / 7
    return {"out": ops.minimum(x, limit), "sign": ops.where(x < -0.0, -1.0, 1.0)}


def call(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    kernel: str | None = None,
    jit: Any = None,
    split_k: Any = "auto",
    **keywords: Any,
) -> Call:
    """What `gemm` makes of these arguments before it launches anything."""
    named = {"epilogue": None, "c": None, "alpha": 1.0, "beta": None, "out": None, "out_dtype": None, **keywords}
    arguments = parse(a, b, **named, options=Options())
    request, sizes = check(arguments)
    prepared = prepare(arguments, request, sizes, allocate(arguments, sizes))
    # These are checked against the tensors' device.
    return replace(prepared, options=Options(kernel=kernel, jit=jit, split_k=split_k))


def bf16(*shape: int) -> torch.Tensor:
    """Ones."""
    return torch.ones(*shape, dtype=torch.bfloat16)


def first(folder: Path) -> Path:
    """A kernel file of a bundle."""
    return next((folder / "kernels").iterdir())


def flip(path: Path, where: float) -> None:
    """Change a bit of a file, `where` from 0 to 1 of its length."""
    data = bytearray(path.read_bytes())
    data[int(where * (len(data) - 1))] ^= 1
    path.write_bytes(bytes(data))
