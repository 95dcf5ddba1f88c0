"""Random problems against fp64, into guarded outputs, with every library epilogue."""

from __future__ import annotations

import os

import pytest
import torch

from cutegemm import gemm
from tests.gpu import problems
from tests.helpers import check

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def compiled_ahead(request: pytest.FixtureRequest) -> None:
    """All kernels of this module's selected problems, built in parallel before the first one runs."""
    selected = [item for item in request.session.items if item.fspath == request.node.fspath]
    numbers = [item.callspec.params["number"] for item in selected]  # type: ignore[attr-defined]
    problems.compile_ahead(map(problems.make, numbers), workers=max(1, (os.cpu_count() or 2) - 1))


@pytest.mark.parametrize("number", range(problems.COUNT), ids=lambda number: f"{number:03d}")
def test_problem(number: int, compiled_ahead: None) -> None:
    problem = problems.make(number)
    gemm(problem.a, problem.b, out=problem.out, jit="forbid", **problem.keywords)
    torch.cuda.synchronize()
    results = [out.tensor for out in problem.outs]
    try:
        check(results[0] if len(results) == 1 else results, problem.a, problem.b, **problem.meaning)
        for out in problem.outs:
            out.assert_intact()
    except AssertionError as wrong:
        raise AssertionError(f"{problem.text}: {wrong}") from None
