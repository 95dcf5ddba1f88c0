"""Parts of K added up in no fixed order, on a GPU: right everywhere, whatever was in the workspace before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, gemm
from tests import ahead
from tests.gpu.test_split_and_pad import HOPPER, SIZES, on_the_gpu, operands, served
from tests.helpers import check
from tests.semantics.inputs import randn

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

__all__ = ["on_the_gpu"]
CLUSTERED = "sm90_wgmma:tile=128x64x64,stages=7,cluster=1x1x2,schedule=cooperative"
ATOMIC = [f"{kernel},split=6,reduction=atomic" for kernel in (*HOPPER, CLUSTERED)]
ANY_ORDER: dict[str, Any] = {"deterministic": False}


@pytest.mark.parametrize("kernel", ATOMIC)
def test_ragged_problems(kernel: str) -> None:
    served(kernel)
    calls = []
    for m, n, k, batch in SIZES:
        align = 16 if k % 8 == 0 else 2
        calls.append((kernel if align == 16 else f"{kernel},pad=ab", *operands(m, n, k, batch, "nt", align)))
    if not ahead.in_worker():
        ahead.build(ahead.spec_of(a, b, kernel=pin, **ANY_ORDER) for pin, a, b in calls)
    for pin, a, b in calls:
        for _ in range(3):
            check(gemm(a, b, kernel=pin, **ANY_ORDER), a, b)


def test_epilogues_and_two_streams() -> None:
    kernel = served(ATOMIC[1])
    a, b = operands(133, 264, 4104, (), "nt", 16)
    row, c = randn(264, seed=3), randn(133, 264, seed=4)
    for keywords in ({"epilogue": epilogues.bias_swiglu(row)}, {"c": c, "alpha": torch.tensor(0.5), "beta": -1.0}):
        check(gemm(a, b, kernel=kernel, **ANY_ORDER, **keywords), a, b, **keywords)
    streams: list[torch.cuda.Stream] = [torch.cuda.Stream() for _ in range(2)]
    made: list[Tensor] = []
    torch.cuda.synchronize()
    for _ in range(100):
        for stream in streams:
            with torch.cuda.stream(stream):
                made.append(gemm(a, b, kernel=kernel, **ANY_ORDER))
    torch.cuda.synchronize()
    for one in made:
        check(one, a, b)


def test_what_is_chosen_without_a_pin() -> None:
    a, b = operands(200, 264, 65536, (), "nt", 16)
    for keywords in ({}, {"split_k": 8}):
        check(gemm(a, b, **ANY_ORDER, **keywords), a, b)
