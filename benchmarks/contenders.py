"""What is compared: each contender makes a call out of one set of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.suites import Case

#: Computes the case and returns the result: `out`, or a new tensor where torch has no `out=` for it.
Call = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Inputs:
    """One call's a (m, k), b (k, n), operands of the epilogue in order, and where the result goes."""

    a: Tensor
    b: Tensor
    operands: tuple[Tensor, ...]
    out: Tensor


@dataclass(frozen=True, slots=True)
class Contender:
    """A way of computing cases. `prepare` gives None for a case that it has no way for.

    `separate` says that the result is rounded between calls; `kernel` says what computes a case.
    """

    name: str
    prepare: Callable[[Case, Inputs], Call | None]
    kernel: Callable[[Case], str]
    separate: bool = False


def bind(case: Case, operands: tuple[Tensor, ...]) -> Any:
    """The case's epilogue with its operands bound; None for `"none"`."""
    if case.epilogue == "none":
        return None
    from cutegemm import epilogues

    return getattr(epilogues, case.epilogue)(*operands)


def ours(pin: str | None = None) -> Contender:
    """`cutegemm.gemm` on the planner's choice, or on a pinned kernel (`family[:key=value,…]`)."""
    from cutegemm import epilogues, gemm, plan

    def prepare(case: Case, inputs: Inputs) -> Call:
        bound = bind(case, inputs.operands)
        return lambda: gemm(inputs.a, inputs.b, epilogue=bound, out=inputs.out, kernel=pin)

    def kernel(case: Case) -> str:
        epilogue = None if case.epilogue == "none" else getattr(epilogues, case.epilogue)
        chosen = plan(
            case.m, case.n, case.k, dtype=case.dtype, layout=case.layout, epilogue=epilogue, kernel=pin
        )
        return chosen.kernel

    return Contender(f"cutegemm:{pin}" if pin else "cutegemm", prepare, kernel)


def _cublas(case: Case, inputs: Inputs) -> Call | None:
    if case.epilogue != "none":
        return None
    return lambda: torch.mm(inputs.a, inputs.b, out=inputs.out)


def _swiglu(a: Tensor, b: Tensor) -> Tensor:
    both = torch.mm(a, b)
    return F.silu(both[:, 0::2]) * both[:, 1::2]


#: What a torch user writes for each epilogue; `addmm` is torch's one call for a product and a bias.
_EAGER: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b, other: torch.mm(a, b).add_(other),
    "bias": lambda a, b, bias: torch.addmm(bias, a, b),
    "bias_gelu": lambda a, b, bias: F.gelu(torch.addmm(bias, a, b)),
    "bias_gelu_tanh": lambda a, b, bias: F.gelu(torch.addmm(bias, a, b), approximate="tanh"),
    "bias_relu": lambda a, b, bias: torch.addmm(bias, a, b).relu_(),
    "bias_silu": lambda a, b, bias: F.silu(torch.addmm(bias, a, b), inplace=True),
    "gelu": lambda a, b: F.gelu(torch.mm(a, b)),
    "relu": lambda a, b: torch.mm(a, b).relu_(),
    "swiglu": _swiglu,
}


def _unfused(case: Case, inputs: Inputs) -> Call | None:
    eager = _EAGER.get(case.epilogue)
    return None if eager is None else lambda: eager(inputs.a, inputs.b, *inputs.operands)


CUBLAS = Contender("cublas", _cublas, lambda case: "torch.mm(out=)")
UNFUSED = Contender("unfused", _unfused, lambda case: "torch, separate calls", separate=True)


def named(name: str) -> Contender:
    """The contender called `name`: `cutegemm`, `cutegemm:PIN`, `cublas` or `unfused`.

    Raises ValueError for another name.
    """
    if name == "cutegemm" or name.startswith("cutegemm:"):
        return ours(name.removeprefix("cutegemm").removeprefix(":") or None)
    for contender in (CUBLAS, UNFUSED):
        if name == contender.name:
            return contender
    raise ValueError(f"no contender {name!r}: expected cutegemm, cutegemm:PIN, cublas or unfused")
