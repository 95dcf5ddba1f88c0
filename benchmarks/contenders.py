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

    `kernel` says what computes a case. `loose` says that a result may be rounded more often than ours: between
    separate calls, in a library's own activations, or where torch lets it add partial sums in the output's type.
    """

    name: str
    prepare: Callable[[Case, Inputs], Call | None]
    kernel: Callable[[Case], str]
    loose: bool = False


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
        chosen = plan(case.m, case.n, case.k, dtype=case.dtype, layout=case.layout, epilogue=epilogue, kernel=pin)
        return chosen.kernel

    return Contender(f"cutegemm:{pin}" if pin else "cutegemm", prepare, kernel)


def _preferring(library: str, call: Call) -> Call:
    """`call`, during which torch prefers the BLAS `library`; a graph keeps what was called at its capture."""
    prefer = torch.backends.cuda.preferred_blas_library

    def run() -> Tensor:
        before = prefer()
        prefer(library)
        try:
            return call()
        finally:
            prefer(before)

    return run


def _cublas(case: Case, inputs: Inputs) -> Call | None:
    if case.epilogue != "none":
        return None
    return _preferring("cublas", lambda: torch.mm(inputs.a, inputs.b, out=inputs.out))


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
_TORCH = {contender.name: contender for contender in (CUBLAS, CUBLASLT, UNFUSED)}
NAMES = ("cutegemm", "cutegemm:PIN", *_TORCH)


def named(name: str) -> Contender:
    """The contender called `name`, one of `NAMES`. Raises ValueError for another name."""
    if name == "cutegemm" or name.startswith("cutegemm:"):
        return ours(name.removeprefix("cutegemm").removeprefix(":") or None)
    if name in _TORCH:
        return _TORCH[name]
    raise ValueError(f"no contender {name!r}: expected one of {', '.join(NAMES)}")
