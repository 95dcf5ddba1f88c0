"""Random calls of `gemm`, reproducible by number: any shape, layout, pitch, offset, batch and library epilogue."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import gemm
from cutegemm.compiler import Spec
from cutegemm.fusion.registry import registered
from cutegemm.fusion.trace import Epilogue
from tests import ahead
from tests.helpers import Guarded, check

COUNT = 300
_DTYPES = (torch.bfloat16, torch.float16)
#: How a matrix lies in memory: contiguous; rows padded to 16 bytes; odd rows at an odd offset; two strides above 1.
_PLACEMENTS = ("packed", "padded", "odd", "strided")


@dataclass
class Problem:
    """The arguments of one call, and the guarded outputs that it writes to."""

    a: Tensor
    b: Tensor
    keywords: dict[str, Any]
    outs: list[Guarded]
    text: str
    #: The keywords that `tests.helpers.check` takes.
    meaning: dict[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Any:
        return self.outs[0].tensor if len(self.outs) == 1 else tuple(out.tensor for out in self.outs)


def library() -> list[Epilogue]:
    """Every epilogue that the package ships."""
    return [entries[0].epilogue for entries in registered().values() if entries[0].distribution == "cutegemm"]


def make(number: int, device: str = "cuda", precision: str | None = None) -> Problem:
    """The `number`-th problem, of 16-bit inputs or, given a `precision`, of fp32. Every fifth is large; epilogues take
    turns, so that `COUNT` problems cover them all."""
    rng = random.Random(number)
    torch.manual_seed(number)
    large = number % 5 == 4
    low, high = (4000, 9000) if large else (1, 700)
    m, n, k = (rng.randint(low, high) for _ in range(3))
    if large and rng.random() < 0.5:  # long in one direction only
        m, n, k = (size if i == number % 3 else rng.randint(1, 700) for i, size in enumerate((m, n, k)))
    batch: tuple[int, ...] = () if large else rng.choice(((), (), (), (3,), (2, 3)))
    dtype = rng.choice(_DTYPES) if precision is None else torch.float32
    choices = [None, *library()]
    epilogue = choices[number % len(choices)]
    if epilogue is not None and epilogue.graph.has_pair:
        n += n % 2
    placements = [rng.choice(_PLACEMENTS) for _ in range(3)]
    a_batch, b_batch = rng.sample((_some_of(rng, batch), batch), 2)
    a = _matrix(rng, (*a_batch, m, k), dtype, placements[0], device)
    b = _matrix(rng, (*b_batch, k, n), dtype, placements[1], device)

    meaning: dict[str, Any] = {"epilogue": _bind(rng, epilogue, batch, m, n, dtype, device)}
    meaning["alpha"] = rng.choice((1.0, 1.0, -0.5, torch.tensor(1.5, device=device)))
    if precision is not None:
        meaning["precision"] = precision
    if rng.random() < 0.4:
        c_dtype = rng.choice((dtype, torch.float32))
        meaning["c"] = _matrix(rng, (*batch, m, n), c_dtype, rng.choice(_PLACEMENTS), device)
        meaning["beta"] = rng.choice((1.0, 0.25, 0.0, torch.tensor(-0.75, device=device)))
    outs = []
    for paired in [output.paired for output in epilogue.graph.outputs] if epilogue is not None else [False]:
        out_dtype = rng.choice((dtype, dtype, torch.float32))
        outs.append(_out(rng, (*batch, m, n // 2 if paired else n), out_dtype, placements[2], device))
    name = "none" if epilogue is None else epilogue.name
    text = f"{batch} {m}x{n}x{k} {dtype} {placements} {name}"
    return Problem(a, b, dict(meaning), outs, text, meaning)


def spec_of(problem: Problem, **pins: Any) -> Spec:
    """The kernel that `gemm` will choose for a problem, with `pins` as well."""
    return ahead.spec_of(problem.a, problem.b, out=problem.out, **problem.keywords, **pins)


def built(request: pytest.FixtureRequest, spec: Callable[[dict[str, Any]], Spec]) -> str | None:
    """What to pass as `jit`: "forbid", once the kernels of all selected tests of the requesting module that have a
    `number` are built in parallel, each the `spec` of the test's parameters.

    None in a pytest-xdist worker, where kernels are built as they are called for.
    """
    if ahead.in_worker():
        return None
    selected = [item for item in request.session.items if item.path == request.node.path]
    parameters = [item.callspec.params for item in selected if hasattr(item, "callspec")]
    ahead.build(spec(x) for x in parameters if "number" in x)
    return "forbid"


def _some_of(rng: random.Random, batch: tuple[int, ...]) -> tuple[int, ...]:
    """`batch`, or a part of it that broadcasts to it."""
    if batch and rng.random() < 0.5:
        return batch[1:] if rng.random() < 0.5 else (1, *batch[1:])
    return batch


def _strides(rng: random.Random, shape: Sequence[int], placement: str, itemsize: int) -> tuple[tuple[int, ...], int]:
    """Strides (innermost the last or the last but one dimension, by chance) and an offset, in elements."""
    step = 2 if placement == "strided" else 1
    pitch = {"packed": lambda x: x, "padded": lambda x: -(-x // 8) * 8 + 16 // itemsize}.get(placement)
    offset = 0 if pitch else rng.randint(0, 7)
    order = list(range(len(shape)))
    if rng.random() < 0.5:
        order[-2], order[-1] = order[-1], order[-2]
    strides = [0] * len(shape)
    for place, dim in enumerate(reversed(order)):
        strides[dim] = step
        step *= shape[dim]
        if place == 0:
            step = pitch(step) if pitch else step + rng.randint(1, 5)
    return tuple(strides), offset


def _matrix(rng: random.Random, shape: Sequence[int], dtype: torch.dtype, placement: str, device: str) -> Tensor:
    strides, offset = _strides(rng, shape, placement, dtype.itemsize)
    size = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return torch.randn(size, device=device).to(dtype).as_strided(tuple(shape), strides, offset)


def _out(rng: random.Random, shape: Sequence[int], dtype: torch.dtype, placement: str, device: str) -> Guarded:
    strides, offset = _strides(rng, shape, placement, dtype.itemsize)
    return Guarded(shape, dtype, strides=strides, offset=offset, device=device)


def _bind(rng: random.Random, epilogue: Epilogue | None, batch: tuple[int, ...], m: int, n: int, dtype: torch.dtype,
          device: str) -> Any:  # fmt: skip
    if epilogue is None:
        return None
    operands: list[Any] = []
    for spec in epilogue.graph.operands:
        width = n // 2 if spec.paired else n
        own = {"row": (width,), "col": (m,), "tile": (m, width), "scalar": ()}[spec.kind]
        kind = rng.choice((dtype, torch.float32))
        if spec.kind == "scalar":
            value = {"low": -1.0, "high": 1.25}.get(spec.name, 0.3)
            operands.append(rng.choice((value, torch.tensor(value, device=device))))
        elif spec.kind == "tile":
            operands.append(_matrix(rng, (*batch, *own), kind, rng.choice(_PLACEMENTS), device))
        else:
            outer = batch if rng.random() < 0.5 else ()
            values = torch.randn(math.prod((*outer, *own)) * 2, device=device).to(kind)
            step = rng.choice((1, 2))  # a strided vector now and then
            operands.append(values[:: 3 - step][: math.prod((*outer, *own))].reshape(*outer, *own))
    return epilogue(*operands)


def run(problem: Problem, jit: str | None, **pins: Any) -> None:
    """Compares the GPU's results of `problem` with the reference's; `pins` say how they are made."""
    gemm(problem.a, problem.b, out=problem.out, jit=jit, **problem.keywords, **pins)  # type: ignore[arg-type]
    results = [out.tensor for out in problem.outs]
    try:
        check(results[0] if len(results) == 1 else results, problem.a, problem.b, **problem.meaning)
        for out in problem.outs:
            out.assert_intact()
    except AssertionError as wrong:
        raise AssertionError(f"{problem.text}: {wrong}") from None
