"""Every hand-written level on a GPU, through `gemm(..., kernel="hand:…")`: right at any size, its outputs guarded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, gemm, interleave
from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError, DTypeError, ShapeError, UnsupportedArchitectureError
from cutegemm.hand_kernels import LEVELS, Level, find
from cutegemm.planner import PINNED, contiguous_problem, refusal
from tests.gpu.concurrency import agree_in_a_graph, agree_on_streams
from tests.helpers import Guarded, check
from tests.semantics.inputs import everything, in_nan, randn

pytestmark = pytest.mark.gpu

TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SERVED = [(level, dtype) for level in LEVELS for dtype in level.dtypes]
#: M, N and K: rows 6 and 36 of the sizes that kernels have failed on, and the edges of every tile.
SIZES = (
    (1, 1, 1),
    (3, 3, 431),
    (33, 431, 3),
    (4097, 1, 4097),
    (1, 4097, 65),
    (127, 129, 31),
    (128, 128, 128),
    (129, 257, 65),
    (300, 520, 136),
    (512, 256, 256),
    (16 * 65535 + 16, 8, 8),
)


@pytest.fixture(scope="module", autouse=True)
def on_the_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


@pytest.fixture(params=SERVED, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def served(request: pytest.FixtureRequest) -> tuple[Level, torch.dtype]:
    """A level and a dtype that this GPU serves; a declared limit is seen to be raised as an error."""
    level, dtype = request.param
    problem = contiguous_problem(64, 64, 64, dtype=dtype, layout="nn")
    if refusal(problem, PINNED["hand"], level, DeviceSpec.query(0)) is None:
        return level, TORCH[dtype]
    with pytest.raises((UnsupportedArchitectureError, DTypeError), match=level.name):
        gemm(torch.ones(64, 64, dtype=TORCH[dtype]), torch.ones(64, 64, dtype=TORCH[dtype]), kernel=f"hand:{level}")
    pytest.skip("not on this GPU")


def operands(m: int, n: int, k: int, dtype: torch.dtype, align: int | None = 16) -> tuple[Tensor, Tensor]:
    """A and B, packed, or in memory that is NaN elsewhere with rows aligned to `align` bytes and no more."""
    a, b = randn(m, k, dtype=dtype, seed=k), randn(k, n, dtype=dtype, seed=k + 1)
    return (a, b) if align is None else (in_nan(a, align), in_nan(b, align))


def refused(level: Level, a: Tensor, b: Tensor) -> bool:
    """Whether the rows of A or B are aligned to less than the level's TMA takes; that is then seen to be raised."""
    aligned = all(x.data_ptr() % 16 == 0 and (len(x) == 1 or x.stride(0) * x.element_size() % 16 == 0) for x in (a, b))
    if level.boxes is None or aligned:
        return False
    with pytest.raises(ArgumentError, match=f"{level.name}'s TMA needs 16"):
        gemm(a, b, kernel=f"hand:{level}")
    return True


def guarded(m: int, n: int, dtype: torch.dtype, odd: bool = False) -> Guarded:
    return Guarded((m, n), dtype, strides=(-(-n // 8) * 8 + odd, 1), offset=int(odd))


def test_ragged_sizes(served: tuple[Level, torch.dtype]) -> None:
    level, dtype = served
    for (m, n, k), align in itertools.product(SIZES, (None, 16)):
        a, b = operands(m, n, k, dtype, align)
        if refused(level, a, b):
            continue
        out = guarded(m, n, dtype, odd=align is None)
        gemm(a, b, out=out.tensor, kernel=f"hand:{level}", precision="ieee" if dtype == torch.float32 else None)
        check(out.tensor, a, b)
        out.assert_intact()


def test_every_alignment_and_tail_of_k(served: tuple[Level, torch.dtype]) -> None:
    level, dtype = served
    for align in (2, 4, 8, 16):
        if align >= dtype.itemsize:
            for k in (*range(1, 36), 63, 64, 65, 127, 129):
                a, b = operands(70, 74, k, dtype, align)
                if not refused(level, a, b):
                    check(gemm(a, b, kernel=f"hand:{level}"), a, b)


def test_alpha_beta_and_c(served: tuple[Level, torch.dtype]) -> None:
    level, dtype = served
    a, b = operands(130, 70, 72, dtype)
    c = in_nan(randn(130, 70, dtype=dtype, seed=9))
    nan = torch.full((130, 70), torch.nan, dtype=dtype)
    half, quarter = torch.tensor(0.5), torch.tensor(0.25, dtype=dtype)
    calls: list[dict[str, Any]] = [
        {"alpha": 2.0},
        {"c": c, "alpha": 2.0, "beta": 0.5},
        {"c": c, "alpha": half, "beta": quarter},
        {"c": c.float(), "beta": -1.0},
        {"c": nan, "beta": 0.0},
    ]
    for keywords in calls:
        for out_dtype in (dtype, torch.float32):
            out = guarded(130, 70, out_dtype)
            gemm(a, b, out=out.tensor, kernel=f"hand:{level}", **keywords)
            check(out.tensor, a, b, **keywords)
            out.assert_intact()
    unread = torch.full_like(a, torch.nan)
    assert torch.equal(gemm(unread, b, c=c, alpha=0.0, kernel=f"hand:{level}"), c)
    assert torch.equal(gemm(a[:, :0], b[:0], c=c, kernel=f"hand:{level}"), c)
    out_is_c = c.clone()
    gemm(a, b, c=out_is_c, out=out_is_c, kernel=f"hand:{level}")
    check(out_is_c, a, b, c=c)


def test_epilogues(served: tuple[Level, torch.dtype]) -> None:
    level, dtype = served
    m, n = 133, 266
    a, b = operands(m, n, 40, dtype)
    row, col = randn(n, dtype=dtype, seed=3), randn(m, dtype=dtype, seed=4)
    tile = in_nan(randn(m, n, dtype=dtype, seed=5))
    bound: list[Any] = [
        epilogues.bias_gelu(row),
        epilogues.bias(row.float()) >> epilogues.gelu() >> epilogues.add(tile),
        everything(row, col, tile, torch.tensor(0.5)),
        everything(randn(2 * n, dtype=dtype)[::2], col[:1].expand(m), tile.float(), 0.25),
    ]
    if level.columns % 2 == 0:
        bound += [epilogues.swiglu(), epilogues.bias_swiglu(row), epilogues.swiglu_aux()]
    for epilogue in bound:
        results = gemm(a, b, epilogue=epilogue, kernel=f"hand:{level}")
        check(results, a, b, epilogue=epilogue)


def test_results_are_the_same_bits_each_time_and_kept_in_fp32(served: tuple[Level, torch.dtype]) -> None:
    level, dtype = served
    a, b = operands(300, 200, 1000, dtype)
    first = gemm(a, b, kernel=f"hand:{level}")
    assert all(torch.equal(gemm(a, b, kernel=f"hand:{level}"), first) for _ in range(10))
    x, ones = torch.zeros(130, 1024, dtype=dtype), torch.ones(1024, 136, dtype=dtype)
    x[:, 0], x[:, 3], x[:, 1023] = 256, 1, -256
    assert torch.equal(gemm(x, ones, kernel=f"hand:{level}"), torch.ones(130, 136, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_k_is_split_and_summed_in_order(dtype: torch.dtype) -> None:
    level = find("level9")
    if refusal(contiguous_problem(64, 64, 64, layout="nn"), PINNED["hand"], level, DeviceSpec.query(0)) is not None:
        pytest.skip("not on this GPU")
    for m, n, k in ((256, 128, 512), (257, 129, 600), (1, 1, 65536), (100, 60, 8191), (1024, 1024, 4096)):
        assert level.splits(m, n, k, "bf16", DeviceSpec.query(0).sm_count) > 1
        a, b = operands(m, n, k, dtype)
        c, bias = randn(m, n, dtype=dtype, seed=2), randn(n, dtype=dtype, seed=3)
        keywords: dict[str, Any] = {"c": c, "beta": 0.5, "epilogue": epilogues.bias_gelu(bias)}
        out = guarded(m, n, dtype)
        gemm(a, b, out=out.tensor, kernel="hand:level9", **keywords)
        check(out.tensor, a, b, **keywords)
        out.assert_intact()
        first = out.tensor.clone()
        for _ in range(100):
            assert torch.equal(gemm(a, b, kernel="hand:level9", **keywords), first)
    # The sums of a part are fp32: 256 and 1 in the first, -256 in the second.
    x, ones = torch.zeros(130, 1024, dtype=dtype), torch.ones(1024, 136, dtype=dtype)
    x[:, 0], x[:, 3], x[:, 1023] = 256, 1, -256
    assert torch.equal(gemm(x, ones, kernel="hand:level9"), torch.ones(130, 136, dtype=dtype))


def test_split_launches_share_no_workspace_and_are_captured() -> None:
    level = find("level9")
    if refusal(contiguous_problem(64, 64, 64, layout="nn"), PINNED["hand"], level, DeviceSpec.query(0)) is not None:
        pytest.skip("not on this GPU")
    pairs = [operands(256, 256, 8192 + 64 * i, torch.bfloat16, None) for i in range(4)]
    wanted = [gemm(a, b, kernel="hand:level9") for a, b in pairs]
    calls = [partial(gemm, a, b, kernel="hand:level9") for a, b in pairs]
    agree_on_streams(calls, wanted, turns=50)
    agree_in_a_graph(calls, wanted, replays=3)


def test_tiles_are_walked_by_every_cluster_and_maps_follow_their_tensors() -> None:
    level = find("level10")
    if refusal(contiguous_problem(64, 64, 64, layout="nn"), PINNED["hand"], level, DeviceSpec.query(0)) is not None:
        pytest.skip("not on this GPU")
    # Several tiles a cluster, the last wave ragged, a row of tiles without its second half, K with a tail.
    a, b = operands(2300, 5000, 712, torch.bfloat16)
    out = guarded(2300, 5000, torch.bfloat16)
    gemm(a, b, out=out.tensor, kernel="hand:level10")
    check(out.tensor, a, b)
    out.assert_intact()
    # A map is kept by what it says: the same memory with other sizes has another, and new numbers need none.
    x = torch.zeros(512, 512, dtype=torch.bfloat16)
    for _ in range(3):
        x.normal_()
        for rows, columns in ((512, 512), (200, 512), (512, 64), (1, 512), (200, 8)):
            part, other = x[:rows, :columns], x[:columns]
            check(gemm(part, other, kernel="hand:level10"), part, other)


def test_it_runs_on_the_callers_stream(served: tuple[Level, torch.dtype]) -> None:
    level, dtype = served
    a, b = operands(256, 256, 256, dtype)
    late = torch.zeros_like(a)
    gemm(late, b, kernel=f"hand:{level}")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(a)
        result = gemm(late, b, kernel=f"hand:{level}")
    stream.synchronize()
    check(result, a, b)


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_limits_are_refused_by_name(level: Level) -> None:
    dtype = TORCH[level.dtypes[-1]]
    a, b = torch.ones(64, 64, dtype=dtype), torch.ones(64, 64, dtype=dtype)
    kernel = f"hand:{level}"
    if refusal(contiguous_problem(64, 64, 64, layout="nn"), PINNED["hand"], level, DeviceSpec.query(0)) is not None:
        pytest.skip("not on this GPU")
    with pytest.raises(ArgumentError, match="b is contiguous along K"):
        gemm(a, b.t(), kernel=kernel)
    with pytest.raises(ArgumentError, match="a is contiguous along M"):
        gemm(a.t(), b, kernel=kernel)
    with pytest.raises(ShapeError, match="batch=3"):
        gemm(a.expand(3, 64, 64), b, kernel=kernel)
    if level.boxes is not None:
        with pytest.raises(ArgumentError, match=f"a's address and rows are aligned to 8 bytes: {level.name}'s TMA"):
            gemm(torch.ones(64, 68, dtype=dtype)[:, :64], b, kernel=kernel)
        with pytest.raises(ArgumentError, match=f"b's address and rows are aligned to 2 bytes: {level.name}'s TMA"):
            gemm(a, torch.ones(64, 72, dtype=dtype)[:, 1:65], kernel=kernel)
    if level.columns % 2:
        with pytest.raises(ArgumentError, match="pairs columns"):
            gemm(a, interleave(b, b)[:64].contiguous(), epilogue=epilogues.swiglu(), kernel=kernel)
