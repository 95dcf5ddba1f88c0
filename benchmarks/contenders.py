"""What is compared: each contender makes a call out of one set of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.suites import Case
from cutegemm.eager import EAGER
from cutegemm.problem import STRICT

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

    `precision` is that of fp32 products, strict unless the name ends in `@` and another. `kernel` says what computes a
    case. `loose` says that a result may be rounded more often than ours: between
    separate calls, in a library's own activations, or where torch lets it add partial sums in the output's type.
    """

    name: str
    prepare: Callable[[Case, Inputs], Call | None]
    kernel: Callable[[Case], str]
    loose: bool = False
    precision: str = STRICT


def bind(case: Case, operands: tuple[Tensor, ...]) -> Any:
    """The case's epilogue with its operands bound; None for `"none"`."""
    if case.epilogue == "none":
        return None
    from cutegemm import epilogues

    return getattr(epilogues, case.epilogue)(*operands)


def ours(pin: str | None = None, precision: str = STRICT) -> Contender:
    """`cutegemm.gemm` on the planner's choice, or on a pinned kernel (`family[:key=value,…]`): with
    `deterministic=False` where that adds parts in any order."""
    from cutegemm import epilogues, gemm, plan
    from cutegemm.planner import keeps_order

    def mode(case: Case) -> Any:
        return {"deterministic": keeps_order(pin)} | ({"precision": precision} if case.dtype == "fp32" else {})

    def prepare(case: Case, inputs: Inputs) -> Call:
        bound, given = bind(case, inputs.operands), mode(case)
        return lambda: gemm(inputs.a, inputs.b, epilogue=bound, out=inputs.out, kernel=pin, **given)

    def kernel(case: Case) -> str:
        epilogue = None if case.epilogue == "none" else getattr(epilogues, case.epilogue)
        given: Any = {"dtype": case.dtype, "layout": case.layout, "epilogue": epilogue, "kernel": pin, **mode(case)}
        return plan(case.m, case.n, case.k, **given).kernel

    return Contender(_at(f"cutegemm:{pin}" if pin else "cutegemm", precision), prepare, kernel, precision=precision)


def _at(name: str, precision: str) -> str:
    return name if precision == STRICT else f"{name}@{precision}"


def _preferring(library: str, call: Call, tf32: bool = False) -> Call:
    """`call`, during which torch prefers the BLAS `library`, in TF32 if wanted; a graph keeps what was called at its
    capture."""
    prefer, matmul = torch.backends.cuda.preferred_blas_library, torch.backends.cuda.matmul

    def run() -> Tensor:
        before = prefer(), matmul.allow_tf32
        prefer(library)
        matmul.allow_tf32 = tf32
        try:
            return call()
        finally:
            prefer(before[0])
            matmul.allow_tf32 = before[1]

    return run


def _cublas(case: Case, inputs: Inputs, tf32: bool = False) -> Call | None:
    if case.epilogue != "none" or (tf32 and case.dtype != "fp32"):
        return None
    return _preferring("cublas", lambda: torch.mm(inputs.a, inputs.b, out=inputs.out), tf32)


#: What torch computes in one call of cuBLASLt: a bias of one dimension is added, and activated, by the library.
_CUBLASLT: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "none": ("torch.mm(out=)", torch.mm),
    "bias": ("torch.addmm(out=)", torch.addmm),
    "bias_relu": ("torch._addmm_activation(out=)", torch._addmm_activation),
    "bias_gelu_tanh": (
        "torch._addmm_activation(use_gelu=True, out=)",
        partial(torch._addmm_activation, use_gelu=True),
    ),
}


def _cublaslt(case: Case, inputs: Inputs) -> Call | None:
    if case.epilogue not in _CUBLASLT:
        return None
    _, compute = _CUBLASLT[case.epilogue]
    return _preferring("cublaslt", lambda: compute(*inputs.operands, inputs.a, inputs.b, out=inputs.out))


def _unfused(case: Case, inputs: Inputs) -> Call | None:
    eager = EAGER.get(case.epilogue)
    return None if eager is None else lambda: eager(inputs.a, inputs.b, *inputs.operands)


CUBLAS = Contender("cublas", _cublas, lambda case: "torch.mm(out=)", loose=True)
CUBLASLT = Contender("cublaslt", _cublaslt, lambda case: _CUBLASLT[case.epilogue][0], loose=True)
UNFUSED = Contender("unfused", _unfused, lambda case: "torch, separate calls", loose=True)
CUBLAS_TF32 = Contender(
    "cublas@tf32", partial(_cublas, tf32=True), lambda case: "torch.mm(out=)", loose=True, precision="tf32"
)
_TORCH = {contender.name: contender for contender in (CUBLAS, CUBLASLT, UNFUSED, CUBLAS_TF32)}
NAMES = ("cutegemm", "cutegemm:PIN", "cutegemm[:PIN]@PRECISION", *_TORCH)


def named(name: str) -> Contender:
    """The contender called `name`, one of `NAMES`. Raises ValueError for another name."""
    if name == "cutegemm" or name.startswith(("cutegemm:", "cutegemm@")):
        pin, _, precision = name.removeprefix("cutegemm").removeprefix(":").partition("@")
        return ours(pin or None, precision or STRICT)
    if name in _TORCH:
        return _TORCH[name]
    raise ValueError(f"no contender {name!r}: expected one of {', '.join(NAMES)}")
