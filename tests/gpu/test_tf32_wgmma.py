"""TF32 by wgmma: what an operand is rounded to, operands that do not lie along K, split K, batches and epilogues."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, gemm
from cutegemm.device import DeviceSpec
from cutegemm.kernels.wgmma_config import OF_TF32
from tests.helpers import Guarded, check
from tests.semantics.inputs import FP32, everything, in_nan, randn

pytestmark = pytest.mark.gpu

#: One of each schedule, and swapped ones; what is copied or split, or passes through registers, follows from the call.
KERNELS = (
    "sm90_wgmma:tile=128x128x32,cluster=2x1,schedule=cooperative,bits=32",
    "sm90_wgmma:tile=128x192x32,cluster=1x2,schedule=pingpong,bits=32",
    "sm90_wgmma:tile=128x32x32,swap_ab=yes,bits=32",
    "sm90_wgmma:tile=256x128x32,swap_ab=yes,bits=32",
    "sm90_wgmma:tile=128x160x32,schedule=pingpong,swap_ab=yes,bits=32",
)
LAYOUTS = ("nn", "nt", "tn", "tt")


@pytest.fixture(scope="module", autouse=True)
def on_the_gpu() -> Iterator[None]:
    if DeviceSpec.query(0).arch != "sm_90a":
        pytest.skip("wgmma is Hopper's")
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def laid_out(x: Tensor, turned: bool) -> Tensor:
    """The same matrix, contiguous as it is or as its transpose."""
    return x.mT.contiguous().mT if turned else x.contiguous()


def run(kernel: str, a: Tensor, b: Tensor, **keywords: Any) -> None:
    out = Guarded((*a.shape[:-1], b.shape[-1]), FP32)
    gemm(a, b, out=out.tensor, kernel=kernel, precision="tf32", **keywords)
    keywords.pop("split_k", None)
    check(out.tensor, a, b, precision="tf32", **keywords)
    out.assert_intact()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_an_operand_is_rounded_to(kernel: str, layout: str) -> None:
    """By what one product comes to. A number in the middle between two of TF32 becomes either."""
    unit = 2.0**-10
    values = {
        1.0: (1.0,),
        1 + unit / 4: (1.0,),
        1 + unit / 2: (1.0, 1 + unit),
        1 + 0.75 * unit: (1 + unit,),
        -1 - 0.75 * unit: (-1 - unit,),
        -1 - 1.25 * unit: (-1 - unit,),
        1 + 2.0**-23: (1.0,),
        16777215.0: (16777216.0,),
        2.0**-126: (2.0**-126,),
        torch.inf: (torch.inf,),
        -torch.inf: (-torch.inf,),
    }
    a, b = torch.zeros(96, 32), torch.ones(32, 96)
    for row, value in enumerate(values):
        a[row, 7 * row % 32] = value
    a[len(values), 5] = torch.nan
    for x, y, turned in ((a, b, False), (b.t(), a.t(), True)):
        x, y = laid_out(x, layout[0] == "t"), laid_out(y, layout[1] == "t")
        result = gemm(x, y, kernel=kernel, precision="tf32")
        result = result.t() if turned else result
        for row, allowed in enumerate(values.values()):
            assert any(torch.equal(result[row], torch.full((96,), value)) for value in allowed), (allowed, result[row])
        assert result[len(values)].isnan().all() and not result[len(values) + 1 :].any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_layout_alignment_and_split(kernel: str, layout: str) -> None:
    sizes = ((16, (300, 264, 1000)), (4, (129, 257, 1031)), (8, (70, 74, 202)), (16, (64, 64, 8)), (4, (65, 63, 1)))
    for (align, (m, n, k)), split in itertools.product(sizes, (1, 3)):
        if k < 32 * split and split > 1:
            continue
        a, b = randn(m, k, dtype=FP32, seed=k), randn(k, n, dtype=FP32, seed=k + 1)
        a = in_nan(a, align) if layout[0] == "n" else in_nan(a.t().contiguous(), align).t()
        b = in_nan(b, align) if layout[1] == "n" else in_nan(b.t().contiguous(), align).t()
        run(kernel, a, b, split_k=split)


@pytest.mark.parametrize("kernel", KERNELS)
def test_batches_broadcasts_and_strides(kernel: str) -> None:
    a, b = randn(2, 3, 65, 416, dtype=FP32), randn(2, 3, 416, 136, dtype=FP32, seed=1)
    run(kernel, a, b)
    run(kernel, a.mT.contiguous().mT, b[:, :1])
    run(kernel, a[:1].expand(2, 3, 65, 416), b.mT.contiguous().mT, split_k=2)
    wide = randn(130, 333, dtype=FP32)
    run(kernel, wide[::2, ::3], randn(222, 80, dtype=FP32)[::2, ::2])


@pytest.mark.parametrize("kernel", KERNELS)
def test_epilogues(kernel: str) -> None:
    m, n, k = 133, 264, 1096
    a, b = in_nan(randn(m, k, dtype=FP32)), in_nan(randn(k, n, dtype=FP32, seed=1))
    row, col, tile = (randn(*shape, dtype=FP32, seed=9) for shape in ((n,), (m,), (m, n)))
    c = in_nan(randn(m, n, dtype=FP32, seed=6))
    cases: list[dict[str, Any]] = [
        {"epilogue": everything(row, col, in_nan(tile), torch.tensor(0.5))},
        {"epilogue": epilogues.bias_gelu_aux(row), "c": c, "beta": 0.5, "alpha": torch.tensor(2.0)},
        {"c": torch.full_like(c, torch.nan), "beta": 0.0, "alpha": -3.0},
        {"epilogue": epilogues.bias_gelu(row.bfloat16()), "out_dtype": torch.bfloat16},
    ]
    if "swap_ab" not in kernel:
        cases.append({"epilogue": epilogues.bias_swiglu(row)})
    for split, keywords in itertools.product((1, 4), cases):
        meaning = {key: value for key, value in keywords.items() if key != "out_dtype"}
        results = gemm(a, b, kernel=kernel, precision="tf32", split_k=split, **keywords)
        results = results if isinstance(results, Tensor) else list(results)
        check(results, a, b, precision="tf32", **meaning)


def test_the_same_inputs_give_the_same_bits_from_every_tile_of_one_depth() -> None:
    """Sums are made in one order, whatever the tile is."""
    a, b = randn(300, 1000, dtype=FP32), randn(520, 1000, dtype=FP32, seed=1).t()
    first = None
    for config in OF_TF32:
        result = gemm(a, b, kernel=f"sm90_wgmma:{config}", precision="tf32")
        if first is None:
            first = result
        if not config.swap_ab:
            assert torch.equal(result, first), config
        check(result, a, b, precision="tf32")
