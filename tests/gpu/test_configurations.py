"""Every configuration of the families for any M, pinned: whatever the planner would choose, all are right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import gemm
from cutegemm.device import DeviceSpec
from cutegemm.errors import ShapeError, UnsupportedArchitectureError
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.problem import Problem
from tests import ahead
from tests.helpers import Guarded, check
from tests.semantics.inputs import BF16, FP32, in_nan, randn

pytestmark = pytest.mark.gpu

#: `small_m` serves few rows, and has `test_small_m` for its own; those for pieces have `test_pieces`, those that split
#: K over a cluster `test_cluster_sum`, and kernels that nvcc compiles, for up to a minute each, `test_cutlass_cpp`.
CONFIGURATIONS = {
    f"{family.name}:{config}": (family, config)
    for family in FAMILIES.values()
    for config in family.configs
    if family.name not in ("small_m", "cutlass_cpp")
    and getattr(config, "pieces", 1) == getattr(config, "cluster_k", 1) == 1
}
#: In most problems below A and B are K-major and D N-major, all of one dtype at 16 bytes: one kernel a configuration
#: serves them. The other layouts have kernels of their own.
LAYOUTS = ("nn", "tn", "tt")
TAILS = (*range(1, 66), 127, 129, 200, 255, 321)


@pytest.fixture(scope="module", autouse=True)
def on_the_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def refused(kernel: str) -> str | None:
    """What a configuration is refused for on this GPU, or None: judged by what the driver and the family say."""
    family, config = CONFIGURATIONS[kernel]
    properties = torch.cuda.get_device_properties(0)
    if DeviceSpec.query(0).arch not in family.architectures:
        return "has no kernels for"
    if config.smem_bytes > properties.shared_memory_per_block_optin:
        return f"{config.smem_bytes} bytes of shared memory: .* has {properties.shared_memory_per_block_optin}"
    return None


@pytest.fixture(scope="module")
def built() -> None:
    """The kernels of all configurations, built in parallel."""
    if not ahead.in_worker():
        able = [kernel for kernel in CONFIGURATIONS if refused(kernel) is None]
        specs = []
        for kernel in able:
            for layout in ("nt", *layouts(kernel)):
                a, b = operands(kernel, 300, 520, 136, layout)
                specs.append(ahead.spec_of(a, b, kernel=kernel, precision=precision(kernel)))
        ahead.build(specs)


@pytest.fixture(params=CONFIGURATIONS)
def kernel(request: pytest.FixtureRequest, built: None) -> str:
    """A `kernel=` pin that this GPU serves."""
    reason = refused(request.param)
    if reason is None:
        return request.param
    with pytest.raises(UnsupportedArchitectureError, match=reason):
        run(request.param, *operands(request.param, 300, 520, 136))
    pytest.skip(reason)


def layouts(kernel: str) -> list[str]:
    """The layouts beside "nt" that a configuration serves."""
    family, config = CONFIGURATIONS[kernel]
    gpu = DeviceSpec.query(0)
    return [x for x in LAYOUTS if refusal(problem(kernel, 300, 520, 136, x), family, config, gpu) is None]


def precision(kernel: str) -> str | None:
    """What fp32 operands are multiplied in by a configuration that takes them, else None."""
    family, config = CONFIGURATIONS[kernel]
    serves = family.operand_dtypes == ("fp32",) or config.options().get("bits") == "32"
    return family.precisions[0] if serves else None


def dtype_of(kernel: str) -> torch.dtype:
    return BF16 if precision(kernel) is None else FP32


def problem(kernel: str, m: int, n: int, k: int, layout: str = "nt") -> Problem:
    dtype = "bf16" if precision(kernel) is None else "fp32"
    return contiguous_problem(m, n, k, dtype=dtype, layout=layout, precision=precision(kernel))


def run(kernel: str, a: Tensor, b: Tensor, **keywords: Any) -> Tensor:
    result: Tensor = gemm(a, b, kernel=kernel, precision=precision(kernel), **keywords)
    return result


def right(kernel: str, result: Tensor, a: Tensor, b: Tensor) -> None:
    check(result, a, b, precision=precision(kernel))


def operands(kernel: str, m: int, n: int, k: int, layout: str = "nt") -> tuple[Tensor, Tensor]:
    """A and B in memory that is NaN elsewhere, aligned to 16 bytes whatever K is."""
    dtype = dtype_of(kernel)
    a = randn(m, k, dtype=dtype, seed=k) if layout[0] == "n" else randn(k, m, dtype=dtype, seed=k)
    b = randn(k, n, dtype=dtype, seed=k + 1) if layout[1] == "n" else randn(n, k, dtype=dtype, seed=k + 1)
    a, b = in_nan(a), in_nan(b)
    return a if layout[0] == "n" else a.t(), b if layout[1] == "n" else b.t()


def test_this_gpu_serves_some_configuration_of_a_family() -> None:
    assert None in map(refused, CONFIGURATIONS)


def test_ragged_sizes(kernel: str) -> None:
    for m, n, k in ((300, 520, 136), (1, 1, 64), (257, 129, 72), (64, 64, 1000)):
        a, b = operands(kernel, m, n, k)
        out = Guarded((m, n), dtype_of(kernel), strides=(-(-n // 8) * 8, 1))
        run(kernel, a, b, out=out.tensor)
        right(kernel, out.tensor, a, b)
        out.assert_intact()


def test_every_layout(kernel: str) -> None:
    for layout in layouts(kernel):
        for m, n, k in ((300, 520, 136), (129, 257, 72)):
            a, b = operands(kernel, m, n, k, layout)
            out = Guarded((m, n), dtype_of(kernel), strides=(-(-n // 8) * 8, 1))
            run(kernel, a, b, out=out.tensor)
            right(kernel, out.tensor, a, b)
            out.assert_intact()


def test_every_tail_of_k(kernel: str) -> None:
    for k in TAILS:
        a, b = operands(kernel, 70, 72, k)
        right(kernel, run(kernel, a, b), a, b)


def test_short_tiles_in_a_row(kernel: str) -> None:
    """Many tiles for each block, and next to nothing to multiply: every store comes as soon after the one before as it
    can. Zeros that lengthen K give it time, and change no bit where one k-tile holds all the rest."""
    a, b = operands(kernel, 8192, 8192, min(32, CONFIGURATIONS[kernel][1].tile_k))
    zeros = a.new_zeros(8192, 2048 - a.shape[1])
    far = in_nan(torch.cat([a, zeros], 1)), in_nan(torch.cat([b.t(), zeros], 1)).t()
    expected = run(kernel, *far)
    for _ in range(3):
        assert torch.equal(run(kernel, a, b), expected)


def test_an_empty_k(kernel: str) -> None:
    family, config = CONFIGURATIONS[kernel]
    out = Guarded((70, 72), dtype_of(kernel))
    rule = refusal(problem(kernel, 70, 72, 0), family, config, DeviceSpec.query(0))
    if rule is not None:
        with pytest.raises(ShapeError, match="k=0: TMA reads no empty tensor"):
            run(kernel, *operands(kernel, 70, 72, 0), out=out.tensor)
        out.assert_untouched()
        return
    run(kernel, *operands(kernel, 70, 72, 0), out=out.tensor)
    assert torch.equal(out.tensor, torch.zeros_like(out.tensor))
    out.assert_intact()


def test_sums_are_kept_in_fp32(kernel: str) -> None:
    dtype = dtype_of(kernel)
    a, b = torch.zeros(130, 1024, dtype=dtype), torch.ones(136, 1024, dtype=dtype).t()
    # Row i has its -256 at column 4 + i, then at one of the second half, as two halves of K would meet it.
    a[:, 0], a[:, 3] = 256, 1
    rows = torch.arange(130)
    for column in (4 + rows, 512 + rows, 1023 - rows):
        x = a.clone()
        x[rows, column] = -256
        result = run(kernel, x, b)
        assert torch.equal(result, torch.ones_like(result))


def test_the_same_inputs_give_the_same_bits(kernel: str) -> None:
    a, b = operands(kernel, 300, 520, 1000)
    first = run(kernel, a, b)
    assert all(torch.equal(run(kernel, a, b), first) for _ in range(10))
