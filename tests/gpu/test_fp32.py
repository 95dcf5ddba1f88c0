"""fp32 on a GPU beyond what every configuration goes through: torch's setting, rounding, special values, split and
copied operands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import ArgumentError, epilogues, gemm
from tests import ahead
from tests.helpers import Guarded, check
from tests.semantics.inputs import FP32, everything, fp32_operands, in_nan, randn

pytestmark = pytest.mark.gpu

SIMT = (
    "simt_f32:tile=128x128x16,stages=4,thread=8x16",
    "simt_f32:tile=64x64x16,stages=4,thread=8x4",
)
TENSOR = "sm80_multistage:tile=64x64x32,stages=4,warps=2x2,bits=32"
KERNELS = {SIMT[0]: "ieee", SIMT[1]: "ieee", TENSOR: "tf32"}


@pytest.fixture(scope="module", autouse=True)
def on_the_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


@pytest.fixture
def setting() -> Iterator[Any]:
    """torch.backends.cuda.matmul, whose setting is put back."""
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    yield matmul
    matmul.fp32_precision = before


def run(kernel: str, a: Tensor, b: Tensor, **keywords: Any) -> None:
    precision = KERNELS[kernel.partition(",split")[0].partition(",pad")[0]]
    out = Guarded((*a.shape[:-1], b.shape[-1]), FP32)
    gemm(a, b, out=out.tensor, kernel=kernel, precision=precision, **keywords)
    check(out.tensor, a, b, precision=precision, **keywords)
    out.assert_intact()


def test_a_call_follows_torch_and_a_changed_setting_is_noticed(setting: Any) -> None:
    a, b = fp32_operands(300, 264, 512, "nn")
    made = {}
    for precision in ("ieee", "tf32", "ieee", "tf32"):
        setting.fp32_precision = precision
        result = gemm(a, b)
        assert torch.equal(result, made.setdefault(precision, result))
        assert torch.equal(result, gemm(a, b, precision=precision))
        check(result, a, b, precision=precision)
    assert not torch.equal(made["ieee"], made["tf32"])
    assert torch.equal(gemm(a, b, precision="ieee"), made["ieee"])
    with pytest.raises(ArgumentError, match="precision='tf32': simt_f32 serves ieee"):
        gemm(a, b, kernel=SIMT[0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_an_operand_is_rounded_to(kernel: str) -> None:
    """In all 32 lanes, for A and for B along either dimension, by what one product comes to."""
    half = 2.0**-11  # of TF32's unit at 1
    values = [1.0, 1 + half / 2, 1 + half, 1 + 1.5 * half, -1 - half, 1 + 2 * half, 2.0**-126, 2.0**-140, 3e38]
    values += [torch.inf, -torch.inf, torch.nan, 1 + 2.0**-23, 16777215.0]
    rounded = [1.0, 1.0, 1 + 2 * half, 1 + 2 * half, -1 - 2 * half, 1 + 2 * half, 2.0**-126, 0.0, None]
    rounded += [torch.inf, -torch.inf, torch.nan, 1.0, 16777216.0]
    for layout in ("nn", "nt", "tn", "tt"):
        for row, (value, tf32) in enumerate(zip(values, rounded, strict=True)):
            if KERNELS[kernel] == "tf32" and tf32 is None:
                continue
            wanted = torch.tensor(tf32 if KERNELS[kernel] == "tf32" else value)
            for k in (0, 5, 30):
                a, b = torch.zeros(96, 32), torch.ones(32, 96)
                a[row, k] = value
                for x, y, place in ((a, b, (row, slice(None))), (b.t(), a.t(), (slice(None), row))):
                    x = x if layout[0] == "n" else x.t().contiguous().t()
                    y = y if layout[1] == "n" else y.t().contiguous().t()
                    result = gemm(x, y, kernel=kernel, precision=KERNELS[kernel])[place]
                    assert torch.equal(result.nan_to_num(7.0), wanted.expand(96).nan_to_num(7.0)), (value, layout, k)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_alignment_split_and_copy(kernel: str, layout: str) -> None:
    calls = []
    sizes = ((4, (129, 257, 1031)), (8, (70, 74, 200)), (16, (300, 72, 1000)))
    for (align, (m, n, k)), extra in itertools.product(sizes, ("", ",split=3", ",pad=ab", ",split=2,pad=ab")):
        if align < 16 or "pad" not in extra:
            calls.append((kernel + extra, *fp32_operands(m, n, k, layout, align)))
    if not ahead.in_worker():
        ahead.build(ahead.spec_of(a, b, kernel=name, precision=KERNELS[kernel]) for name, a, b in calls)
    for call in calls:
        run(*call)


@pytest.mark.parametrize("kernel", KERNELS)
def test_batches_strides_and_epilogues(kernel: str) -> None:
    a, b = fp32_operands(65, 136, 416, "nt", batch=(2, 3))
    run(kernel, a, b[:, :1])
    run(kernel + ",split=4", a[:, ::2], b[:, ::2])
    wide = randn(130, 333, dtype=FP32)
    run(kernel, wide[::2, ::3], randn(222, 80, dtype=FP32)[::2, ::2])
    m, n, k = 133, 264, 1096
    a, b = fp32_operands(m, n, k, "nn")
    row, col, tile = (randn(*shape, dtype=FP32, seed=9) for shape in ((n,), (m,), (m, n)))
    c = in_nan(randn(m, n, dtype=FP32, seed=6))
    cases: list[dict[str, Any]] = [
        {"epilogue": everything(row, col, in_nan(tile), torch.tensor(0.5))},
        {"epilogue": epilogues.bias_swiglu(row)},
        {"epilogue": epilogues.bias_gelu_aux(row), "c": c, "beta": 0.5, "alpha": torch.tensor(2.0)},
        {"c": torch.full_like(c, torch.nan), "beta": 0.0, "alpha": -3.0},
        {"epilogue": epilogues.bias_gelu(row.bfloat16()), "out_dtype": torch.bfloat16},
    ]
    for extra, keywords in itertools.product(("", ",split=4"), cases):
        meaning = {key: value for key, value in keywords.items() if key != "out_dtype"}
        results = gemm(a, b, kernel=kernel + extra, precision=KERNELS[kernel], **keywords)
        results = results if isinstance(results, Tensor) else list(results)
        check(results, a, b, precision=KERNELS[kernel], **meaning)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scaled_inputs(scale: float) -> None:
    a, b = fp32_operands(257, 130, 4096, "nn")
    spread = torch.logspace(-1, 1, 4096) ** 3
    for kernel, precision in KERNELS.items():
        check(gemm(a * scale * spread, b / spread[:, None], kernel=kernel, precision=precision), a * scale * spread,
              b / spread[:, None], precision=precision)  # fmt: skip
