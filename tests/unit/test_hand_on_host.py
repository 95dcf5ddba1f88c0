"""Every level of the ladder, compiled as host code and run: right at any size, and free of races.

The sources are the GPU's, `ptx.cuh` and CUDA's own names aside (`tests.on_host`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import Col, Row, Scalar, Tile, epilogue, epilogues, ops
from cutegemm.hand_kernels import LEVELS, Level
from tests import on_host
from tests.helpers import Guarded, check

TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
#: Beside, at and across the edges of tiles and of runs; M, N, K.
SIZES = [(1, 1, 1), (3, 3, 431), (33, 431, 3), (130, 70, 65), (129, 257, 17), (64, 128, 32)]


@epilogue
def everything(acc, bias: Row, scale: Col, residual: Tile, slope: Scalar):  # type: ignore[no-untyped-def]
    x = acc * scale + bias
    return {"out": ops.maximum(x, slope * x) + residual, "pre": x}


def matrix(rows: int, columns: int, dtype: torch.dtype, pitch: int | None = None) -> Tensor:
    """Random numbers, in memory that is NaN elsewhere."""
    pitch = columns if pitch is None else pitch
    memory = torch.full(((rows + 2) * pitch + columns,), torch.nan, dtype=dtype)
    view = memory.as_strided((rows, columns), (pitch, 1), pitch)
    return view.copy_(torch.randn(rows, columns))


Cases = list[tuple[Tensor, Tensor, dict[str, Any]]]


def ragged(dtype: torch.dtype) -> Cases:
    """Sizes at which a pitch is aligned to 16 bytes, and at which it isn't."""
    unit = 16 // dtype.itemsize
    made: Cases = []
    for m, n, k in SIZES:
        made.append((matrix(m, k, dtype), matrix(k, n, dtype), {}))
        pitches = [-(-size // unit) * unit + unit for size in (k, n)]
        made.append((matrix(m, k, dtype, pitches[0]), matrix(k, n, dtype, pitches[1]), {}))
    return made


def scaled(dtype: torch.dtype) -> Cases:
    """alpha, beta and C: floats, device scalars, C not read, A and B not read, no K at all."""
    m, n, k = 70, 132, 36
    a, b, c = matrix(m, k, dtype, 40), matrix(k, n, dtype, 144), matrix(m, n, dtype, 144)
    unread = torch.full((m, n), torch.nan, dtype=dtype)
    nan = torch.full((m, k), torch.nan, dtype=dtype)
    return [
        (a, b, {"alpha": 2.0, "beta": 0.5, "c": c}),
        (a, b, {"alpha": torch.tensor(1.5), "beta": torch.tensor(-0.25, dtype=dtype), "c": c.float()}),
        (a, b, {"beta": 0.0, "c": unread}),
        (nan, b, {"alpha": 0.0, "c": c}),
        (a[:, :0], b[:0], {"beta": 0.5, "c": c}),
    ]


def fused(dtype: torch.dtype) -> Cases:
    """Epilogues with every kind of operand, several outputs, other dtypes and strided vectors."""
    m, n, k = 37, 134, 20
    a, b, tile = matrix(m, k, dtype), matrix(k, n, dtype, 136), matrix(m, n, dtype, 136)
    row, col = torch.randn(n).to(dtype), torch.randn(m).to(dtype)
    return [
        (a, b, {"epilogue": epilogues.bias_gelu(row)}),
        (a, b, {"epilogue": everything(row, col, tile, 0.25)}),
        (a, b, {"epilogue": everything(torch.randn(2 * n)[::2], torch.randn(1).expand(m), tile.float(), 0.25)}),
        (a, b, {"epilogue": everything(row.float(), col, tile, torch.tensor(0.25)), "c": tile, "beta": 2.0}),
        (a, b, {"epilogue": epilogues.bias_gelu_aux(row)}),
    ]


def paired(dtype: torch.dtype) -> Cases:
    """Gated units: two columns make one."""
    m, n, k = 37, 134, 20
    a, b = matrix(m, k, dtype), matrix(k, n, dtype, 136)
    bound = (epilogues.bias_swiglu(torch.randn(n).to(dtype)), epilogues.geglu())
    return [(a, b, {"epilogue": epilogue}) for epilogue in bound]


def verify(level: Level, cases: Cases, block: Path, folder: Path) -> None:
    """Run and check every case, each as soon as its kernel is there; these are compiled once for each signature."""
    calls = []
    for i, (a, b, keywords) in enumerate(cases):
        plain = on_host.prepared(a, b, **keywords)
        # Outputs in guarded memory: aligned rows, then odd ones, in turn.
        outs = [
            Guarded(out.shape, out.dtype, strides=(-(-out.shape[1] // 8) * 8 + (i % 2), 1), offset=i % 2)
            for out in plain.results
        ]
        calls.append((on_host.prepared(a, b, out=tuple(out.tensor for out in outs), **keywords), outs))
    specs = [on_host.spec_of(call, level.name) for call, _ in calls]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kernels = {spec: pool.submit(on_host.HostKernel, spec, block, folder) for spec in dict.fromkeys(specs)}
        for (a, b, keywords), (call, outs), spec in zip(cases, calls, specs, strict=True):
            on_host.run(call, kernels[spec].result())
            check([out.tensor for out in outs], a, b, **keywords)
            for out in outs:
                out.assert_intact()


def split(dtype: torch.dtype) -> Cases:
    """K long enough to be shared out, over tiles that are whole and that aren't; the parts' ends are not K's."""
    m, n, k = 257, 129, 600
    a, b = matrix(m, k, dtype), matrix(k, n, dtype, 136)
    return [
        (a[:256], b[:, :128], {}),
        (a[:256, :512], b[:512, :128], {}),
        (a, b, {"epilogue": epilogues.bias_gelu(torch.randn(n)), "c": matrix(m, n, dtype), "beta": 0.5}),
    ]


KINDS: dict[str, Callable[[torch.dtype], Cases]] = {
    "ragged": ragged,
    "scaled": scaled,
    "fused": fused,
    "paired": paired,
    "split": split,
}


def chosen() -> Iterator[tuple[Level, str, str]]:
    """What is run of all levels, dtypes and kinds of cases: to compile them takes most of the time.

    Ragged sizes go through every level, in one of the 16-bit types, which share all code but a conversion and an
    instruction, and in fp32 through the first of each source. Variants differ in how tiles are computed, not in how
    sums become D: the other kinds of cases take the first of them, in one dtype. Dtypes take turns, so that each source
    is compiled with all of its.
    """
    levels = [level for level in LEVELS if level.only is None]  # nothing on a host stands in for what the others use
    first = {level.source: level for level in reversed(levels)}.values()
    for i, level in enumerate(levels):
        if level in first and "fp32" in level.dtypes:
            yield level, "fp32", "ragged"
        yield level, ("fp16", "bf16")[i % 2], "ragged"
    for i, level in enumerate(first):
        kinds = {"scaled": True, "fused": True, "paired": level.columns % 2 == 0, "split": level.split_k}
        for j, kind in enumerate(kinds):
            if kinds[kind]:
                yield level, level.dtypes[(i + j) % len(level.dtypes)], kind


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return on_host.block(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """There is little to check, and the cores are the compilers'."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("barrier", "ends"), [("__syncthreads", True), ("__syncwarp", False)])
def test_threads_that_never_come(barrier: str, ends: bool, block: Path, tmp_path: Path) -> None:
    """One that has returned leaves the block's barrier; a warp's is waited for in vain, which is noticed."""
    kernel = f"[](const void*) {{ if (threadIdx.x % 2 == 0) {barrier}(); }}"
    text = f'extern "C" int run() {{ return launch({kernel}, nullptr, 1, 32, 1); }}'
    assert on_host.library(text, tmp_path / "kernel.so", block).run() == ends


@pytest.mark.parametrize(("level", "dtype", "kind"), list(chosen()), ids=str)
def test_level(level: Level, dtype: str, kind: str, block: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    verify(level, KINDS[kind](TORCH[dtype]), block, tmp_path)
