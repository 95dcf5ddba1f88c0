"""Random problems against fp64, into guarded outputs, with every library epilogue: of 16-bit inputs, and of fp32 in
every precision."""

from __future__ import annotations

import pytest

from cutegemm.problem import PRECISIONS
from tests.gpu import problems

pytestmark = pytest.mark.gpu

FP32_COUNT = 200


@pytest.fixture(scope="module")
def jit(request: pytest.FixtureRequest) -> str | None:
    return problems.built(
        request, lambda x: problems.spec_of(problems.make(x["number"], precision=x.get("precision")))
    )


@pytest.mark.parametrize("number", range(problems.COUNT), ids=lambda number: f"{number:03d}")
def test_problem(number: int, jit: str | None) -> None:
    problems.run(problems.make(number), jit)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("number", range(FP32_COUNT), ids=lambda number: f"{number:03d}")
def test_fp32_problem(number: int, precision: str, jit: str | None) -> None:
    problems.run(problems.make(number, precision=precision), jit)
