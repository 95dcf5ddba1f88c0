"""Parts of K added up by clusters on a GPU: right everywhere, the same bits each time, with a workspace or without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, gemm
from cutegemm.device import DeviceSpec
from cutegemm.kernels.wgmma_config import CONFIGS, WgmmaConfig
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from tests.gpu.test_split_and_pad import built, on_the_gpu, operands, run, served
from tests.helpers import check
from tests.semantics.inputs import everything, in_nan, randn

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

__all__ = ["on_the_gpu"]
FAMILY = FAMILIES["sm90_wgmma"]
CLUSTERED = [config for config in CONFIGS if config.cluster_k > 1]
#: m, n, k, batch: whole tiles; ragged ones, and rows of D that TMA can't store; batches; a last part of K that is
#: nearly empty; and more tiles than the GPU holds clusters, whose memory for sums is used again: soon, if K is short.
SIZES = (
    *((256, 256, 4096, ()), (33, 130, 4360, ()), (65, 136, 4160, (3,)), (300, 72, 1544, ()), (2000, 3000, 1544, ())),
    (4096, 4096, 512, ()),
)


def pinned(config: WgmmaConfig, **changes: Any) -> str:
    return served(f"{FAMILY.name}:{replace(config, **changes)}")


@pytest.mark.parametrize("config", CLUSTERED, ids=str)
def test_every_cluster_on_ragged_problems(config: WgmmaConfig) -> None:
    device, calls = DeviceSpec.query(0), []
    for m, n, k, batch in SIZES:
        for parts in (1, 3):
            kernel = pinned(config, split=parts * config.cluster_k)
            problem = contiguous_problem(m, n, k, batch=batch[0] if batch else 1)
            if refusal(problem, FAMILY, replace(config, split=parts * config.cluster_k), device) is None:
                calls.append((kernel, *operands(m, n, k, batch, "nt", 16), {}))
    assert len(calls) >= 8
    built(calls)
    for call in calls:
        run(*call[:3])


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_layouts_and_copies(layout: str) -> None:
    calls = []
    for config in (CLUSTERED[0], CLUSTERED[3]):
        calls.append((pinned(config), *operands(264, 136, 1032, (), layout, 16), {}))
        kernel = pinned(config, pad="ab", split=2 * config.cluster_k)
        calls.append((kernel, *operands(201, 75, 1031, (), layout, 2), {}))
    built(calls)
    for call in calls:
        run(*call[:3])


@pytest.mark.parametrize("config", [CLUSTERED[0], CLUSTERED[5], CLUSTERED[-2]], ids=str)
def test_the_epilogue_is_run_once_on_the_whole_sum(config: WgmmaConfig) -> None:
    m, n, k = 133, 264, 1096
    a, b = operands(m, n, k, (), "nt", 16)
    row, col, tile, c = randn(n, seed=3), randn(m, seed=4), in_nan(randn(m, n, seed=5)), in_nan(randn(m, n, seed=6))
    wide, once = randn(m, n, seed=7), torch.full_like(c, torch.nan)
    cases: list[dict[str, Any]] = [
        {"epilogue": epilogues.bias_gelu(row)},
        {"epilogue": everything(row, col, tile, torch.tensor(0.5))},
        {"epilogue": epilogues.bias_gelu_aux(row), "c": wide, "beta": 0.5, "alpha": torch.tensor(2.0)},
        {"c": c, "alpha": torch.tensor(0.5), "beta": torch.tensor(-1.0)},
        {"c": once, "beta": 0.0},
    ]
    if not config.swap_ab:
        cases.append({"epilogue": epilogues.bias_swiglu(row)})
    kernel = pinned(config)
    built([(kernel, a, b, keywords) for keywords in cases])
    for keywords in cases:
        results = gemm(a, b, kernel=kernel, **keywords)
        check(results if isinstance(results, Tensor) else list(results), a, b, **keywords)


@pytest.mark.parametrize("parts", [1, 4])
def test_sums_are_kept_in_fp32_and_the_same_each_time(parts: int) -> None:
    four = next(config for config in CLUSTERED if config.cluster_k == 4)
    kernel = pinned(four, split=4 * parts)
    x, ones = torch.zeros(130, 4096, dtype=torch.bfloat16), torch.ones(4096, 136, dtype=torch.bfloat16)
    x[:, 0], x[:, 3], x[:, 4095] = 256, 1, -256
    assert torch.equal(gemm(x, ones, kernel=kernel), torch.ones_like(x[:, :136]))
    a, b = operands(200, 264, 8192, (), "nt", 16)
    first = gemm(a, b, kernel=kernel)
    check(first, a, b)
    assert all(torch.equal(gemm(a, b, kernel=kernel), first) for _ in range(1000))


def test_streams_side_by_side() -> None:
    four = next(config for config in CLUSTERED if config.cluster_k == 4)
    kernels = [pinned(four), pinned(four, split=12)]
    a, b = operands(520, 264, 4104, (), "nt", 16)
    wanted = [gemm(a, b, kernel=kernel) for kernel in kernels]
    torch.cuda.synchronize()
    streams: list[torch.cuda.Stream] = [torch.cuda.Stream() for _ in kernels]
    made: list[list[Tensor]] = [[], []]
    for _ in range(200):
        for kernel, stream, results in zip(kernels, streams, made, strict=True):
            with torch.cuda.stream(stream):
                results.append(gemm(a, b, kernel=kernel))
    torch.cuda.synchronize()
    for results, right in zip(made, wanted, strict=True):
        assert all(torch.equal(one, right) for one in results)
