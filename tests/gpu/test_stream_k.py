"""Stream-K of `sm90_wgmma` on a GPU: right for every kind of tail, in any workspace, the same bits each time."""

from __future__ import annotations

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

#: Tile and cluster of each kernel, and its pin.
KERNELS = {
    (128, 256, 1, 1): "sm90_wgmma:tile=128x256x64,stages=4,cluster=1x1,schedule=cooperative,split=stream",
    (128, 128, 2, 1): "sm90_wgmma:tile=128x128x64,stages=6,cluster=2x1,schedule=cooperative,split=stream",
    (256, 160, 1, 2): "sm90_wgmma:tile=256x160x64,stages=3,cluster=1x2,schedule=cooperative,split=stream",
}
SMALL = KERNELS[128, 128, 2, 1]
LARGE = KERNELS[128, 256, 1, 1]


@pytest.fixture(scope="module", autouse=True)
def on_the_gpu() -> Iterator[None]:
    device = DeviceSpec.query(0)
    if device.arch not in FAMILIES["sm90_wgmma"].architectures:
        pytest.skip(f"sm90_wgmma is not for {device.arch}")
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def operands(m: int, n: int, k: int, batch: tuple[int, ...] = (), align: int = 16) -> tuple[Tensor, Tensor]:
    """A and the transposed view of B, both K-major, in memory that is NaN elsewhere where there is no batch."""
    a, b = randn(*batch, m, k, seed=k), randn(*batch, n, k, seed=k + 1)
    if not batch:
        a, b = in_nan(a, align), in_nan(b, align)
    return a, b.mT


def run(kernel: str, a: Tensor, b: Tensor, **keywords: Any) -> Tensor:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = Guarded((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    gemm(a, b, out=out.tensor, kernel=kernel, **keywords)
    check(out.tensor, a, b, **keywords)
    out.assert_intact()
    return out.tensor


def slots(shape: tuple[int, int, int, int]) -> int:
    return DeviceSpec.query(0).sm_count // (shape[2] * shape[3])


@pytest.mark.parametrize("shape", KERNELS, ids=str)
def test_tails_of_every_length(shape: tuple[int, int, int, int]) -> None:
    """Tile counts that leave no, one, half a wave and all but one cluster's tiles, behind no, one and two waves; a K of
    one k-tile, of fewer than there are stages, of an odd number and with a ragged end."""
    tile_m, tile_n, cluster_m, cluster_n = shape
    wave = slots(shape)
    for tiles, k in (
        (wave, 328), (wave + 1, 328), (wave + 1, 64), (wave + 1, 8), (2 * wave - 1, 328), (2 * wave + wave // 2, 200),
        (3 * wave + 1, 712), (wave - 1, 1000), (wave // 2 + 1, 1032), (wave // 2 + 1, 192), (7, 2056), (1, 4096),
    ):  # fmt: skip
        # Clusters in a row: ragged along M, and the last cluster's last tile lies outside where it has two.
        run(KERNELS[shape], *operands(tile_m * cluster_m * (tiles - 1) + 3, tile_n * cluster_n - 8, k))


def test_tiles_in_both_directions_and_batches() -> None:
    for kernel in KERNELS.values():
        run(kernel, *operands(1500, 3000, 1096))
        run(kernel, *operands(300, 520, 968, (3, 5)))
        a, b = operands(700, 520, 968, (6,))
        run(kernel, a[:, None], b[None, :2])
    many = randn(2, 3, 2, 5, 40, 328, seed=1)[:, ::2, :, ::2]  # more batch modes than a launch walks
    run(SMALL, many, randn(328, 72, seed=2))


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_layouts(layout: str) -> None:
    m, n, k = 2184, 2056, 648
    a = in_nan(randn(m, k)) if layout[0] == "n" else in_nan(randn(k, m)).mT
    b = in_nan(randn(k, n)) if layout[1] == "n" else in_nan(randn(n, k)).mT
    run(LARGE, a, b)


def test_misaligned_operands_and_outputs() -> None:
    a, b = operands(2177, 2049, 649, align=2)
    run(f"{LARGE},pad=ab", a, b)
    out = Guarded((2177, 2049), a.dtype, strides=(2053, 1), offset=1)
    gemm(a, b, out=out.tensor, kernel=f"{LARGE},pad=ab")
    check(out.tensor, a, b)
    out.assert_intact()
    turned = Guarded((2177, 2049), a.dtype, strides=(1, 2184))  # contiguous along M
    gemm(a, b, out=turned.tensor, kernel=f"{LARGE},pad=ab")
    check(turned.tensor, a, b)
    turned.assert_intact()


@pytest.mark.parametrize("kernel", [SMALL, LARGE])
def test_the_epilogue_is_run_once_on_the_whole_sum(kernel: str) -> None:
    m, n, k = 2184, 2056, 648
    a, b = operands(m, n, k)
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
    if not ahead.in_worker():
        ahead.build(ahead.spec_of(a, b, kernel=kernel, **keywords) for keywords in cases)
    for keywords in cases:
        results = gemm(a, b, kernel=kernel, **keywords)
        check(results if isinstance(results, Tensor) else list(results), a, b, **keywords)
    given = c.clone()
    gemm(a, b, c=given, out=given, kernel=kernel)  # in place: a tile of C is read before it is written, once
    check(given, a, b, c=c)


def test_pieces_of_fp32() -> None:
    kernel = "sm90_wgmma:tile=128x192x32,stages=3,cluster=2x1,schedule=cooperative,pieces=3,split=stream"
    a, b = randn(2184, 650, dtype=torch.float32, seed=1), randn(2056, 650, dtype=torch.float32, seed=2).mT
    for precision in ("bf16x6", "bf16x9"):
        check(gemm(a, b, kernel=kernel, precision=precision), a, b, precision=precision)


def test_sums_are_kept_in_fp32() -> None:
    x, ones = torch.zeros(130, 4096, dtype=torch.bfloat16), torch.ones(4096, 136, dtype=torch.bfloat16)
    x[:, 0], x[:, 3], x[:, 4095] = 256, 1, -256
    for kernel in (SMALL, LARGE):  # one or two tiles, shared by several clusters
        assert torch.equal(gemm(x, ones, kernel=kernel), torch.ones_like(x[:, :136]))


@pytest.mark.parametrize("sizes", [(2184, 2056, 1032), (300, 400, 4096)], ids=str)
def test_the_same_bits_each_time(sizes: tuple[int, int, int]) -> None:
    a, b = operands(*sizes)
    first = run(LARGE, a, b)
    for turn in range(1000):
        if turn % 100 == 0:  # whatever the workspace held before
            held = torch.full((1 << 24,), (0, torch.nan, -1.0)[turn // 100 % 3])
            del held
        assert torch.equal(gemm(a, b, kernel=LARGE), first)


def test_two_streams_and_a_graph_share_no_workspace() -> None:
    pairs = [operands(2184, 2056 + 8 * i, 648 + 64 * i) for i in range(2)]
    wanted = [run(LARGE, a, b) for a, b in pairs]
    calls = [partial(gemm, a, b, kernel=LARGE) for a, b in pairs]
    for _ in range(20):
        agree_on_streams(calls, wanted, turns=10)
    agree_in_a_graph(calls, wanted, replays=20, times=2)


def test_beside_kernels_that_hold_some_of_the_gpu() -> None:
    """Clusters start as SMs fall free: those that wait for sums wait for ones that have started."""
    a, b = operands(2184, 2056, 1032)
    wanted = run(LARGE, a, b)
    x = torch.randn(4096, 4096).bfloat16()
    others = [torch.cuda.Stream() for _ in range(3)]
    for _ in range(20):
        for stream in others:
            with torch.cuda.stream(stream):
                x @ x
        assert torch.equal(gemm(a, b, kernel=LARGE), wanted)


def test_the_keyword() -> None:
    a, b = operands(2184, 2056, 1032)
    made = plan(2184, 2056, 1032, arch=DeviceSpec.query(0).name, split_k="stream")
    assert (made.family, made.config.options()["split"]) == ("sm90_wgmma", "stream")
    out = Guarded((2184, 2056), a.dtype)
    gemm(a, b, out=out.tensor, split_k="stream")
    check(out.tensor, a, b)
    out.assert_intact()
