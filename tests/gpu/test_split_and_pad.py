"""Split K and copied operands on a GPU: right everywhere, in any workspace, the same bits each time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, gemm, plan
from cutegemm.device import DeviceSpec
from cutegemm.planner import FAMILIES
from tests import ahead
from tests.gpu.concurrency import agree_in_a_graph, agree_on_streams
from tests.helpers import Guarded, check
from tests.semantics.inputs import everything, in_nan, randn

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

HOPPER = (
    "sm90_wgmma:tile=128x128x64,stages=6,cluster=1x1,schedule=cooperative",
    "sm90_wgmma:tile=128x192x64,stages=4,cluster=2x1,schedule=pingpong",
    "sm90_wgmma:tile=256x128x64,stages=4,cluster=1x2,schedule=cooperative",
    "sm90_wgmma:tile=64x32x64,stages=14,cluster=1x1,schedule=pingpong,swap_ab=yes",
)
OLDER = ("sm80_multistage:tile=64x64x64,stages=4,warps=2x2", "sm80_multistage:tile=64x64x32,stages=4,warps=2x2")
SPLITS = ((2, 17), (5, 64))
#: m, n, k, batch: whole tiles, ragged ones, fewer rows than a tile, and a K whose last part is nearly empty.
SIZES = ((256, 256, 4096, ()), (33, 130, 4360, ()), (300, 72, 4097, ()), (65, 136, 4160, (3,)))


def served(kernel: str) -> str:
    """`kernel`, or a skipped test where the GPU has none of its family."""
    family, device = FAMILIES[kernel.partition(":")[0]], DeviceSpec.query(0)
    if device.arch not in family.architectures:
        pytest.skip(f"{family.name} is not for {device.arch}")
    return kernel


@pytest.fixture(scope="module", autouse=True)
def on_the_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def operands(m: int, n: int, k: int, batch: tuple[int, ...], layout: str, align: int) -> tuple[Tensor, Tensor]:
    """A and B; matrices in memory that is NaN elsewhere, their rows aligned to `align` bytes and no more."""
    a = randn(*batch, m, k, seed=k) if layout[0] == "n" else randn(*batch, k, m, seed=k)
    b = randn(*batch, k, n, seed=k + 1) if layout[1] == "n" else randn(*batch, n, k, seed=k + 1)
    if not batch:
        a, b = in_nan(a, align), in_nan(b, align)
    return (a if layout[0] == "n" else a.mT), (b if layout[1] == "n" else b.mT)


def run(kernel: str, a: Tensor, b: Tensor, **keywords: Any) -> None:
    out = Guarded((*a.shape[:-1], b.shape[-1]), a.dtype)
    gemm(a, b, out=out.tensor, kernel=kernel, **keywords)
    check(out.tensor, a, b, **keywords)
    out.assert_intact()


def built(calls: list[tuple[str, Tensor, Tensor, dict[str, Any]]]) -> None:
    """Build the kernels of all calls in parallel."""
    if ahead.in_worker():
        return
    ahead.build(ahead.spec_of(a, b, kernel=kernel, **keywords) for kernel, a, b, keywords in calls)


@pytest.mark.parametrize("kernel", [*HOPPER, OLDER[0]])
def test_every_split_of_ragged_problems(kernel: str) -> None:
    served(kernel)
    calls = []
    shared = zip(SIZES, itertools.cycle(SPLITS), strict=False)
    for m, n, k, batch, split in ((*size, split) for size, splits in shared for split in splits):
        align = 16 if k % 8 == 0 else 2
        pad = ",pad=ab" if align < 16 and kernel in HOPPER else ""
        calls.append((f"{kernel},split={split}{pad}", *operands(m, n, k, batch, "nt", align), {}))
    built(calls)
    for call in calls:
        run(*call[:3])


@pytest.mark.parametrize("kernel", [HOPPER[0], HOPPER[2], *OLDER])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_copies_of_every_alignment_and_layout(kernel: str, layout: str) -> None:
    served(kernel)
    calls = []
    for align, split, (m, n, k) in ((2, 1, (70, 74, 71)), (4, 2, (129, 257, 1030)), (8, 1, (129, 257, 1030))):
        calls.append((f"{kernel},split={split},pad=ab", *operands(m, n, k, (), layout, align), {}))
    built(calls)
    for call in calls:
        run(*call[:3])


def test_one_operand_of_the_two_and_strides_without_end() -> None:
    kernel = served(HOPPER[0])
    a, b = operands(100, 128, 1000, (), "nt", 16)
    odd, gaps = operands(100, 128, 1000, (), "nt", 2)[0], torch.randn(100, 3000).bfloat16()[:, ::3]
    run(f"{kernel},pad=a", odd, b)
    run(f"{kernel},pad=a,split=4", gaps, b)
    run(f"{kernel},pad=b", a, torch.randn(1000, 256).bfloat16()[:, ::2])
    # A batch that is broadcast is copied once; one of three modes takes several launches.
    wide, one = operands(40, 72, 333, (2, 3), "nt", 2)[0], operands(40, 72, 333, (1,), "nt", 2)[1]
    run(f"{kernel},pad=ab,split=2", wide, one.expand(2, 3, 333, 72))
    many = randn(2, 3, 2, 5, 40, 331, seed=1)[:, ::2, :, ::2]
    run(f"{kernel},pad=a,split=2", many, randn(331, 72, seed=2))


@pytest.mark.parametrize("kernel", [HOPPER[0], HOPPER[1], HOPPER[3], OLDER[0]])
def test_the_epilogue_is_run_once_on_the_whole_sum(kernel: str) -> None:
    served(kernel)
    m, n, k = 133, 264, 1096
    a, b = operands(m, n, k, (), "nt", 16)
    row, col, tile = randn(n, seed=3), randn(m, seed=4), in_nan(randn(m, n, seed=5))
    c = in_nan(randn(m, n, seed=6))
    cases: list[dict[str, Any]] = [
        {"epilogue": epilogues.bias_gelu(row)},
        {"epilogue": everything(row, col, tile, torch.tensor(0.5))},
        {"epilogue": epilogues.bias_swiglu(row)},
        {"epilogue": epilogues.bias_gelu_aux(row), "c": c, "beta": 0.5, "alpha": torch.tensor(2.0)},
        {"c": c, "alpha": torch.tensor(0.5), "beta": torch.tensor(-1.0)},
        {"c": torch.full_like(c, torch.nan), "beta": 0.0},
    ]
    built([(f"{kernel},split=4", a, b, keywords) for keywords in cases])
    for keywords in cases:
        results = gemm(a, b, kernel=f"{kernel},split=4", **keywords)
        check(results if isinstance(results, Tensor) else list(results), a, b, **keywords)


def test_sums_are_kept_in_fp32_and_the_same_each_time() -> None:
    for kernel in (HOPPER[0], OLDER[0]):
        served(kernel)
        x, ones = torch.zeros(130, 4096, dtype=torch.bfloat16), torch.ones(4096, 136, dtype=torch.bfloat16)
        x[:, 0], x[:, 3], x[:, 4095] = 256, 1, -256
        assert torch.equal(gemm(x, ones, kernel=f"{kernel},split=16"), torch.ones_like(x[:, :136]))
        a, b = operands(200, 264, 8192, (), "nt", 16)
        first = gemm(a, b, kernel=f"{kernel},split=16")
        assert all(torch.equal(gemm(a, b, kernel=f"{kernel},split=16"), first) for _ in range(1000))


def test_two_streams_and_a_graph_share_no_workspace() -> None:
    kernel = served(HOPPER[0]) + ",split=8,pad=ab"
    pairs = [operands(200, 264, 4097 + 16 * i, (), "nt", 2) for i in range(2)]
    wanted = [gemm(a, b, kernel=kernel) for a, b in pairs]
    calls = [partial(gemm, a, b, kernel=kernel) for a, b in pairs]
    agree_on_streams(calls, wanted, turns=200)
    agree_in_a_graph(calls, wanted, replays=3)


def test_keywords_choose() -> None:
    arch = DeviceSpec.query(0).name
    a, b = operands(256, 264, 4095, (), "nt", 2)
    for keywords in ({"padding": "copy"}, {"padding": "predicate"}, {"split_k": 4}, {"split_k": 1, "padding": "copy"}):
        made = plan(256, 264, 4095, arch=arch, **keywords)  # type: ignore[arg-type]
        assert made.config.options()["split"] == str(keywords.get("split_k", made.config.options()["split"]))
        out = Guarded((256, 264), a.dtype, strides=(267, 1), offset=1)
        gemm(a, b, out=out.tensor, **keywords)  # type: ignore[arg-type]
        check(out.tensor, a, b)
        out.assert_intact()
