"""What tests compare results with: an fp64 oracle with an error bound, and outputs laid in guarded memory.

The bound follows from K, the dtypes and the data, so a test has no tolerance to choose. A result passes when
it is the rounding of some value within the bound of the oracle; NaN passes nowhere, except where a test asks
for it and the oracle is NaN too. `test_helpers.py` holds the mutants that all of this has to reject.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm import reference
from cutegemm.fusion import IDENTITY
from cutegemm.fusion.to_torch import evaluate
from cutegemm.normalize import Arguments, Operand, parse
from cutegemm.options import Options

#: The unit roundoff of fp32, in which every path accumulates and computes its epilogue.
U32 = 2.0**-24
#: That of TF32, to which fp32 operands are rounded where that is asked for.
UTF32 = 2.0**-11
#: Roundings of an epilogue's value that are allowed for besides those of the accumulator and the operands.
EPILOGUE_ROUNDINGS = 16
#: What an epilogue may lose when an intermediate value underflows: one below 2**-126 may count as 0, and be
#: multiplied by up to 2**14 afterwards (a gate by its own value and by the unit that it gates).
UNDERFLOW = 2.0**-108
#: Where the normal distribution function is below this, kernels may give anything from 0 to it (`fusion.approx`); it is
#: multiplied by the accumulator, and in a gated unit by another.
NORMCDF_TAIL = 1.3e-12


class Expectation(NamedTuple):
    """One output's range: any result that is a rounding of a number in [low, high] is right. All fp64."""

    name: str
    value: Tensor
    low: Tensor
    high: Tensor


def expect(a: Tensor, b: Tensor, **keywords: Any) -> list[Expectation]:
    """What `gemm` may give for these arguments (keywords: epilogue, c, alpha, beta, precision), output by output."""
    named: dict[str, Any] = {"epilogue": None, "c": None, "alpha": 1.0, "beta": None} | keywords
    options = Options(precision=named.pop("precision", None))
    arguments = parse(a, b, **named, out=None, out_dtype=None, options=options)
    with torch.no_grad():
        acc = reference.accumulate(arguments, torch.float64)
        spread = _accumulator_error(arguments)
        values = evaluate(arguments.graph, acc, arguments.operands, dtype=torch.float64)
        lows, highs = _range(arguments, acc, spread, values)
    outputs = zip(arguments.graph.outputs, values, lows, highs, strict=True)
    return [Expectation(spec.name, value, low, high) for spec, value, low, high in outputs]


def check(result: Tensor | Sequence[Tensor], a: Tensor, b: Tensor, *, nan: bool = False, **keywords: Any) -> None:
    """Assert that `result` is a right result of `gemm(a, b, **keywords)`, in its own dtype.

    `nan=True` asks for NaN exactly where the oracle has it; otherwise a NaN there is the test's mistake.
    """
    expected = expect(a, b, **keywords)
    results = [result] if isinstance(result, Tensor) else list(result)
    assert len(results) == len(expected), f"{len(results)} outputs, expected {len(expected)}"
    for output, expectation in zip(results, expected, strict=True):
        assert_within(output, expectation, nan=nan)


def assert_within(result: Tensor, expected: Expectation, *, nan: bool = False) -> None:
    """Assert that every element of `result` is in `expected`'s range, rounded to the result's dtype."""
    name, value, low, high = expected
    assert result.shape == value.shape, f"{name} has shape {tuple(result.shape)}, expected {tuple(value.shape)}"
    is_nan = value.isnan()
    assert nan or not is_nan.any(), f"{name}: the oracle has NaN; say nan=True if that is what is tested"
    # Rounding is monotone, so the range's ends round to the range of right results, infinities included.
    right = (reference.cast(low, result.dtype) <= result) & (result <= reference.cast(high, result.dtype))
    right = torch.where(is_nan, result.isnan(), right)
    if right.all():
        return
    wrong = (~right).nonzero()
    first = tuple(wrong[0].tolist())
    got, wanted, least, most = (t[first].item() for t in (result, value, low, high))
    raise AssertionError(
        f"{name}: {len(wrong)} of {right.numel()} elements are wrong; first at {first}: {got!r}, "
        f"expected {wanted!r} in [{least!r}, {most!r}]; last at {tuple(wrong[-1].tolist())}"
    )


def _accumulator_error(arguments: Arguments) -> Tensor:
    """A bound on |fp32 accumulator - exact|, element by element.

    With S = |alpha| |A| |B|: the K products are exact in fp32 (of 16-bit inputs); a sum in fp32 strays by
    about sqrt(K) u S (Higham and Mary 2019, with a factor of 4), and by K/8 u S more where a tensor core
    truncates once per 16 products instead of rounding. Scaling and adding C round a few times more. int8 is
    exact until it is converted. TF32 operands are rounded to 11 bits each, and summed by 4 or 8.
    """
    magnitude = replace(
        arguments,
        a=arguments.a.double().abs(),
        b=arguments.b.double().abs(),
        c=None if arguments.c is None else arguments.c.double().abs(),
        alpha=_magnitude(arguments.alpha),
        beta=_magnitude(arguments.beta),
    )
    k = arguments.a.shape[-1]
    if arguments.a.dtype == torch.float64:
        roundings = (k + 8) * 2.0**-53
    elif arguments.a.dtype == torch.int8:
        roundings = 8 * U32
    else:
        products = 2 if arguments.a.dtype == torch.float32 else 0  # of which fp32 rounds each
        roundings = (4 * math.sqrt(k) + k / 8 + products + 4) * U32
        if arguments.options.precision == "tf32":
            roundings += 2 * UTF32 + UTF32**2 + k / 8 * U32
    return reference.accumulate(magnitude, torch.float64) * roundings


def _magnitude(scalar: Operand) -> Operand:
    return scalar.abs() if isinstance(scalar, Tensor) else abs(scalar)


def _range(
    arguments: Arguments, acc: Tensor, spread: Tensor, values: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The least and greatest outputs as accumulator and operands move within their errors.

    Every output element depends on one accumulator, or on an even and its odd neighbour after a `pair`: they are moved
    together, apart and one by one, by their whole errors and by half. What a rounding of an operand makes of the
    outputs is found for each operand on its own, beside either end of the accumulator's range and in its middle, and
    added up: sums of which one rounds up and another down need not cancel as their terms do. An extremum between these
    points lies beyond them by less than an eighth of the range.
    """
    graph = arguments.graph
    if graph == IDENTITY:
        finite = acc.isfinite()
        return [torch.where(finite, acc - spread, acc)], [torch.where(finite, acc + spread, acc)]
    unit = 2.0**-53 if arguments.a.dtype == torch.float64 else U32
    operands = [o.double() if isinstance(o, Tensor) else o for o in arguments.operands]

    def outputs(even: float, odd: float, rounded: int | None = None) -> Sequence[Tensor]:
        """With the accumulators moved by so much of their errors, and operand `rounded` by a rounding."""
        moved = acc.clone()
        moved[..., 0::2] += even * spread[..., 0::2]
        moved[..., 1::2] += odd * spread[..., 1::2]
        own = [o * (1 + 4 * unit) if i == rounded else o for i, o in enumerate(operands)]
        return evaluate(graph, moved, own, dtype=torch.float64)

    lows, highs = list(values), list(values)
    directions = [(1.0, 1.0), *([(1.0, -1.0), (1.0, 0.0), (0.0, 1.0)] if graph.has_pair else [])]
    for (even, odd), step in itertools.product(directions, (-1.0, -0.5, 0.5, 1.0)):
        for i, value in enumerate(outputs(step * even, step * odd)):
            lows[i], highs[i] = torch.minimum(lows[i], value), torch.maximum(highs[i], value)
    points = {step: outputs(step, step) for step in (-1.0, 0.0, 1.0)} if operands else {}
    for operand in range(len(operands)):
        effects = [torch.zeros_like(value) for value in values]
        for step, point in points.items():
            for i, (value, rounded) in enumerate(zip(point, outputs(step, step, operand), strict=True)):
                effects[i] = torch.maximum(effects[i], (rounded - value).abs().nan_to_num(0.0, posinf=0.0))
        for i, effect in enumerate(effects):
            lows[i], highs[i] = lows[i] - effect, highs[i] + effect
    tail = NORMCDF_TAIL * (1 + float(acc.abs().nan_to_num(0.0, 0.0).max())) ** 2 if acc.numel() else 0.0
    lost = UNDERFLOW + (tail if any(node.op == "normcdf" for node in graph.nodes) else 0.0)
    for i, value in enumerate(values):
        rounding, between = value.abs() * EPILOGUE_ROUNDINGS * unit, (highs[i] - lows[i]) / 8
        room = rounding.nan_to_num(posinf=0.0) + between.nan_to_num(posinf=0.0) + lost
        # Where the oracle overflowed or is NaN there is no range: the result has to be that very thing.
        lows[i] = torch.where(value.isfinite(), lows[i] - room, value)
        highs[i] = torch.where(value.isfinite(), highs[i] + room, value)
    return lows, highs


class Guarded:
    """An output view in the middle of memory that is watched.

    `tensor` is what to pass as `out`: filled with NaN (integers: with the guard's pattern), so that an
    element nobody writes shows. Around it, and in the gaps of a strided view, lies a pattern that has to
    survive.
    """

    PATTERN = 0xA5

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        strides: Sequence[int] | None = None,
        offset: int = 0,
        device: str | torch.device | None = None,
        guard: int = 512,
    ) -> None:
        """`strides` and `offset` (to misalign the view) are in elements, `guard` in bytes at either end.

        Without `device`, on torch's default device.
        """
        if strides is None:
            strides = torch.empty(tuple(shape), device="meta").stride()
        extent = 1 + sum(s * (n - 1) for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        start = guard // dtype.itemsize + offset
        size = (start + extent) * dtype.itemsize + guard
        self._bytes = torch.full((-(-size // 16) * 16,), self.PATTERN, dtype=torch.uint8, device=device)
        self.tensor = self._bytes.view(dtype).as_strided(tuple(shape), tuple(strides), start)
        if dtype.is_floating_point:
            self.tensor.fill_(math.nan)
        inside = torch.zeros_like(self._bytes)
        scaled = (*(s * dtype.itemsize for s in strides), 1)
        inside.as_strided((*shape, dtype.itemsize), scaled, start * dtype.itemsize).fill_(1)
        self._outside = inside == 0
        self._before = self._bytes.clone()

    def assert_intact(self) -> None:
        """Assert that nothing outside the view was written."""
        changed = (self._outside & (self._bytes != self._before)).nonzero().flatten()
        assert not len(changed), f"{len(changed)} bytes outside of the output were written, first at {int(changed[0])}"

    def assert_untouched(self) -> None:
        """Assert that nothing was written at all."""
        changed = (self._bytes != self._before).nonzero().flatten()
        assert not len(changed), f"{len(changed)} bytes were written, first at {int(changed[0])}"
