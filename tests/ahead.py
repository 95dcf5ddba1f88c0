"""Building many tests' kernels in parallel before the first test runs: a build takes seconds, a test far less."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from cutegemm import compiler, reference
from cutegemm.normalize import Arguments, allocate, check, parse, prepare
from cutegemm.options import Options


def in_worker() -> bool:
    """Whether this is one of several pytest-xdist workers: they build in parallel by themselves."""
    return "PYTEST_XDIST_WORKER" in os.environ


def spec_of(
    a: Tensor, b: Tensor, *, kernel: str | None = None, precision: str | None = None,
    padding: Literal["auto", "predicate", "copy"] = "auto", deterministic: bool = True, **keywords: Any,
) -> compiler.Spec:  # fmt: skip
    """The kernel that `gemm` will choose for these arguments as CUDA tensors on the current GPU.

    Keywords: epilogue, c, alpha, beta, out, out_dtype.
    """
    named: dict[str, Any] = {"epilogue": None, "c": None, "alpha": 1.0, "beta": None, "out": None, "out_dtype": None}
    chosen = Options(kernel=kernel, precision=precision, padding=padding, deterministic=deterministic)
    return _spec(parse(a, b, **named | keywords, options=chosen))


def build(specs: Iterable[compiler.Spec]) -> None:
    """Build kernels into the kernel cache, one process for each core but one."""
    distinct = set(specs)
    if not distinct:
        return
    workers = min(len(distinct), max(1, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(_build, distinct))


@contextmanager
def recorded() -> Iterator[set[compiler.Spec]]:
    """Collects the kernels that CPU calls of `gemm` in this context would take as CUDA calls."""
    specs: set[compiler.Spec] = set()
    run = reference.run

    def recording(arguments: Arguments, results: tuple[Tensor, ...]) -> None:
        with suppress(TypeError, ValueError, RuntimeError):  # what no kernel serves
            specs.add(_spec(arguments))
        run(arguments, results)

    reference.run = recording
    try:
        yield specs
    finally:
        reference.run = run


def rehearse(item: Any) -> None:
    """Run a test that is parametrised over `device` on the CPU, for the calls that it makes; it may fail there."""
    parameters = {**item.callspec.params, "device": "cpu"}
    wanted = inspect.signature(item.obj).parameters
    if wanted.keys() <= parameters.keys():
        with torch.device("cpu"), suppress(Exception, pytest.fail.Exception, pytest.skip.Exception):
            item.obj(**{name: parameters[name] for name in wanted})


def _spec(arguments: Arguments) -> compiler.Spec:
    from cutegemm import launch

    request, sizes = check(arguments)
    return launch.choose(prepare(arguments, request, sizes, allocate(arguments, sizes))).spec


def _build(spec: compiler.Spec) -> None:
    compiler.get(spec)
