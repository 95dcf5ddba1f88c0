"""`small_m`: every configuration, pinned, on up to as many rows as it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, gemm
from cutegemm.device import DeviceSpec
from cutegemm.errors import ShapeError, UnsupportedArchitectureError
from cutegemm.kernels.small_m_config import CONFIGS, SmallMConfig
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.problem import Problem
from tests import ahead
from tests.helpers import Guarded, check
from tests.semantics.inputs import BATCHES, BF16, FP16, FP32, everything, in_nan, randn, swiglu_aux

pytestmark = pytest.mark.gpu

FAMILY = FAMILIES["small_m"]
KERNELS = {f"small_m:{config}": config for config in CONFIGS}
TAILS = (*range(1, 66), 127, 129, 200, 255, 321, 1000, 2047)
#: The first configuration of each height, which every GPU of the family serves, and those that are split.
HEIGHTS = tuple({config.tile_m: f"small_m:{config}" for config in reversed(CONFIGS)}.values())
SPLITS = tuple(kernel for kernel, config in KERNELS.items() if config.split > 1)
#: One configuration of each tile: what B's layout decides.
TILES = tuple({(config.tile_m, config.tile_n): f"small_m:{config}" for config in reversed(CONFIGS)}.values())
LAYOUTS = ("nn", "tn", "tt")


@pytest.fixture(scope="module", autouse=True)
def on_the_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def problem(config: SmallMConfig, layout: str = "nt") -> Problem:
    return contiguous_problem(config.tile_m, 200, 1000, layout=layout)


def refused(kernel: str, layout: str = "nt") -> str | None:
    found = refusal(problem(KERNELS[kernel], layout), FAMILY, KERNELS[kernel], DeviceSpec.query(0))
    return None if found is None else found.rule


@pytest.fixture(scope="module")
def built() -> None:
    """The kernels that serve most problems below, built in parallel."""
    if ahead.in_worker():
        return
    able = [kernel for kernel in KERNELS if not refused(kernel)]
    specs = [ahead.spec_of(*operands(1, 200, 136), kernel=kernel) for kernel in able]
    for kernel in set(able) & set(TILES):
        layouts = [layout for layout in LAYOUTS if not refused(kernel, layout)]
        specs += [ahead.spec_of(*operands(5, 200, 136, layout), kernel=kernel) for layout in layouts]
    for kernel in set(able) & set(HEIGHTS):
        specs += [ahead.spec_of(*operands(5, 200, 136, align=align), kernel=kernel) for align in (8, 4, 2)]
    for kernel in able:
        m, n = rows_of(kernel) - 1, 200
        outs = torch.empty(m, n, dtype=BF16), torch.empty(m, n, dtype=FP32)
        specs.append(ahead.spec_of(*operands(m, n, 520), kernel=kernel, epilogue=fused(m, n), out=outs))
    ahead.build(specs)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, built: None) -> str:
    return served(request.param)


def served(kernel: str) -> str:
    """A pin; skips what this GPU refuses."""
    rule = refused(kernel)
    if rule is None:
        return kernel
    with pytest.raises(UnsupportedArchitectureError):
        gemm(*operands(1, 200, 136), kernel=kernel)
    pytest.skip(f"refused: {rule}")


def operands(m: int, n: int, k: int, layout: str = "nt", align: int = 16, dtype: torch.dtype = BF16,
             seed: int = 0) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A and B in memory that is NaN elsewhere, rows aligned to `align` bytes and no more."""
    a = randn(m, k, dtype=dtype, seed=seed + k) if layout[0] == "n" else randn(k, m, dtype=dtype, seed=seed + k)
    b = randn(k, n, dtype=dtype, seed=seed + k + 1) if layout[1] == "n" else randn(n, k, dtype=dtype, seed=seed + k + 1)
    a, b = in_nan(a, align), in_nan(b, align)
    return a if layout[0] == "n" else a.t(), b if layout[1] == "n" else b.t()


def run(kernel: str, a: Tensor, b: Tensor, pad: int = 8, dtype: torch.dtype = BF16, **keywords: Any) -> Tensor:
    """The checked result of a call into guarded memory, its rows at multiples of `pad` elements."""
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    pitch = -(-shape[-1] // pad) * pad
    strides = [pitch, 1]
    for size in reversed(shape[1:-1]):
        strides.insert(0, strides[0] * size)
    out = Guarded(shape, dtype, strides=strides[-len(shape) :])
    gemm(a, b, out=out.tensor, kernel=kernel, **keywords)
    check(out.tensor, a, b, **keywords)
    out.assert_intact()
    return out.tensor


def rows_of(kernel: str) -> int:
    return KERNELS[kernel].tile_m


def fused(m: int, n: int) -> Any:
    return everything(randn(n), randn(m, dtype=FP32), randn(m, n), torch.tensor(0.75))


def test_ragged_sizes(kernel: str) -> None:
    most = rows_of(kernel)
    for m in sorted({1, 2, most // 2 - 1, most // 2 + 1, most - 1, most}):
        for n, k in ((200, 1000), (1, 64), (129, 72), (520, 136), (4094, 512), (64, 4096)):
            run(kernel, *operands(m, n, k))


@pytest.mark.parametrize("kernel", HEIGHTS)
def test_every_number_of_rows(kernel: str, built: None) -> None:
    kernel = served(kernel)
    for m in range(1, rows_of(kernel) + 1):
        run(kernel, *operands(m, 136, 328, seed=m))


def test_every_tail_of_k(kernel: str) -> None:
    for k in TAILS:
        run(kernel, *operands(min(7, rows_of(kernel)), 72, k))


@pytest.mark.parametrize("kernel", HEIGHTS)
@pytest.mark.parametrize("align", [8, 4, 2])
def test_alignments(kernel: str, align: int, built: None) -> None:
    kernel = served(kernel)
    for n, k in ((105, 107), (72, 1000), (200, 64), (33, 5)):
        run(kernel, *operands(5, n, k, align=align), pad=1)


@pytest.mark.parametrize("kernel", TILES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(kernel: str, layout: str, built: None) -> None:
    kernel = served(kernel)
    if refused(kernel, layout):
        with pytest.raises(UnsupportedArchitectureError, match="a line of memory|registers"):
            gemm(*operands(5, 200, 136, layout), kernel=kernel)
        return
    for n, k in ((200, 1000), (72, 65), (130, 321)):
        run(kernel, *operands(5, n, k, layout))


@pytest.mark.parametrize("kernel", HEIGHTS)
def test_strided_operands(kernel: str, built: None) -> None:
    kernel = served(kernel)
    for m in (1, 6):
        a, b = operands(m, 200, 1000)
        wide, tall = torch.full((m, 2000), torch.nan, dtype=BF16), torch.full((400, 1000), torch.nan, dtype=BF16)
        wide[:, ::2], tall[::2] = a, b.t()
        run(kernel, a, tall[::2].t())
        run(kernel, a[:1].expand(m, 1000), b)
        if KERNELS[kernel].tile_m < 64:
            run(kernel, wide[:, ::2], b)
        else:
            with pytest.raises(UnsupportedArchitectureError, match="registers a thread"):
                gemm(wide[:, ::2], b, kernel=kernel)


def test_an_empty_k(kernel: str) -> None:
    bias = randn(72)
    run(kernel, *operands(5, 72, 0), epilogue=epilogues.bias(bias))
    assert torch.equal(run(kernel, *operands(5, 72, 0)), torch.zeros(5, 72, dtype=BF16))


def test_fused_epilogues(kernel: str) -> None:
    m, n = rows_of(kernel) - 1, 200
    a, b = operands(m, n, 520)
    out, pre = Guarded((m, n), BF16), Guarded((m, n), FP32)
    epilogue = fused(m, n)
    gemm(a, b, epilogue=epilogue, out=(out.tensor, pre.tensor), kernel=kernel)
    check((out.tensor, pre.tensor), a, b, epilogue=epilogue)
    out.assert_intact()
    pre.assert_intact()


@pytest.mark.parametrize("kernel", [*HEIGHTS, *SPLITS])
def test_pairs_c_and_scalars(kernel: str, built: None) -> None:
    kernel = served(kernel)
    m, n = rows_of(kernel), 136
    a, b = operands(m, n, 328, dtype=FP16)
    half, full = Guarded((m, n // 2), FP16), Guarded((m, n), FP32)
    gemm(a, b, epilogue=swiglu_aux, out=(half.tensor, full.tensor), kernel=kernel)
    check((half.tensor, full.tensor), a, b, epilogue=swiglu_aux)
    half.assert_intact()
    full.assert_intact()
    c = randn(m, n, dtype=FP32)
    run(kernel, a, b, dtype=FP32, c=c, alpha=torch.tensor(-0.5), beta=0.25)
    run(kernel, a, b, dtype=FP16, c=c.half(), alpha=2.0, beta=torch.tensor(1.5))
    run(kernel, a, b, dtype=FP16, c=torch.full((m, n), torch.nan), beta=0.0)


@pytest.mark.parametrize("kernel", [*HEIGHTS, *SPLITS])
def test_batches(kernel: str, built: None) -> None:
    kernel = served(kernel)
    for a_batch, b_batch in BATCHES:
        a, b = randn(*a_batch, 3, 200, seed=1), randn(*b_batch, 72, 200, seed=2).transpose(-1, -2)
        run(kernel, a, b)


def test_sums_are_kept_in_fp32(kernel: str) -> None:
    most = rows_of(kernel)
    a, b = torch.zeros(most, 1024, dtype=BF16), torch.ones(136, 1024, dtype=BF16).t()
    a[:, 0], a[:, 3] = 256, 1
    rows = torch.arange(most)
    for column in (4 + rows, 64 + rows, 512 + rows, 1023 - rows):  # in the same group's share of K and in others'
        x = a.clone()
        x[rows, column] = -256
        result = gemm(x, b, kernel=kernel)
        assert torch.equal(result, torch.ones_like(result))


def test_the_same_inputs_give_the_same_bits(kernel: str) -> None:
    a, b = operands(rows_of(kernel), 520, 4000)
    first = gemm(a, b, kernel=kernel)
    assert all(torch.equal(gemm(a, b, kernel=kernel), first) for _ in range(100))


def test_too_many_rows_are_refused(kernel: str) -> None:
    with pytest.raises(ShapeError, match=f"m={rows_of(kernel) + 1}: a tile of"):
        gemm(*operands(rows_of(kernel) + 1, 72, 64), kernel=kernel)


@pytest.mark.parametrize("m", [1, 2, 4, 8, 16, 32, 64])
def test_what_the_planner_takes_for_a_few_rows(m: int) -> None:
    for n, k in ((4096, 4096), (1024, 14336), (2560, 8192)):
        a, b = operands(m, n, k)
        first = gemm(a, b)
        check(first, a, b)
        assert all(torch.equal(gemm(a, b), first) for _ in range(10))
