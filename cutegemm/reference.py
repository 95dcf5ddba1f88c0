"""The reference on torch: what `gemm` runs on CPU tensors, and the fp64 oracle of every test."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cutegemm import options
from cutegemm.fusion.to_torch import evaluate
from cutegemm.normalize import Arguments, Operand, gather, parse

_ROUNDED = (torch.int8, torch.int32)


def run(arguments: Arguments, results: tuple[Tensor, ...]) -> None:
    """Compute checked arguments into `results` as the contract says: in fp32, or fp64 for fp64 inputs.

    int8 is multiplied and summed in int32, then converted. Casting to int8 or int32 rounds to nearest even
    and saturates. Nothing is written before everything is computed.
    """
    dtype = torch.float64 if arguments.a.dtype == torch.float64 else torch.float32
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for result, value in zip(results, _outputs(arguments, dtype), strict=True):
            result.copy_(cast(value, result.dtype))


def gemm64(
    a: Tensor,
    b: Tensor,
    *,
    epilogue: Any = None,
    c: Tensor | None = None,
    alpha: Operand = 1.0,
    beta: Operand | None = None,
) -> Any:
    """The oracle: `gemm`'s result computed in fp64 throughout, before the cast to the outputs' dtypes.

    Takes and returns what `gemm` does (a tensor, or a NamedTuple of several), on any device; every output is
    fp64. An explicit `cast` in the epilogue rounds here too.
    """
    arguments = parse(
        a,
        b,
        epilogue=epilogue,
        c=c,
        alpha=alpha,
        beta=beta,
        out=None,
        out_dtype=None,
        options=options.Options(),
    )
    with torch.no_grad(), torch.autocast(a.device.type, enabled=False):
        values = _outputs(arguments, torch.float64)
    return gather(arguments.graph, tuple(values))


def accumulate(arguments: Arguments, dtype: torch.dtype) -> Tensor:
    """alpha * (A @ B) + beta * C in `dtype`, with nothing read that a zero alpha or beta leaves out."""
    a, b, c, alpha, beta = arguments.a, arguments.b, arguments.c, arguments.alpha, arguments.beta
    if alpha == 0 and not isinstance(alpha, Tensor):
        a, b = a[..., :0], b[..., :0, :]
    precise = a.dtype == torch.float64
    product = _scaled(_matmul(a, b, dtype), alpha, precise)
    if c is None or (beta == 0 and not isinstance(beta, Tensor)):
        return product
    return product + _scaled(c.to(dtype), beta, precise)


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The contract's one rounding. Integers: to nearest even, saturating, NaN to 0."""
    if dtype not in _ROUNDED:
        return value.to(dtype)
    limits = torch.iinfo(dtype)
    return value.double().round().nan_to_num(nan=0.0).clamp(limits.min, limits.max).to(dtype)


def _outputs(arguments: Arguments, dtype: torch.dtype) -> tuple[Tensor, ...]:
    operands = arguments.operands
    if arguments.a.dtype == torch.float64:  # a number passed to evaluate is rounded to fp32, as kernels take it
        operands = tuple(torch.tensor(o, dtype=dtype, device="cpu") if isinstance(o, float) else o for o in operands)
    return evaluate(arguments.graph, accumulate(arguments, dtype), operands, dtype=dtype)


def _scaled(value: Tensor, factor: Operand, precise: bool) -> Tensor:
    """`value * factor`, a number being rounded to fp32 first, as kernels take it, unless `precise`."""
    if isinstance(factor, Tensor):
        return torch.where(factor == 0, torch.zeros_like(value), value * factor.to(value.dtype))
    if factor == 1:
        return value
    rounded = torch.tensor(factor, dtype=torch.float64 if precise else torch.float32, device="cpu").item()
    return value * rounded


def _matmul(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    if not a.is_floating_point():
        return (a.to(torch.int32) @ b.to(torch.int32)).to(dtype)
    if dtype == torch.float32 and not _strict_matmul():
        return (a.double() @ b.double()).float()
    return a.to(dtype) @ b.to(dtype)


def _strict_matmul() -> bool:
    """Whether torch multiplies fp32 on the CPU in fp32: a setting lets oneDNN round to bf16 or TF32 first."""
    try:
        precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
        return precision in ("none", "ieee")
    except RuntimeError:  # torch's old and new settings were mixed, and it won't tell
        return False
