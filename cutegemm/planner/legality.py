"""Whether a configuration can serve a problem on a GPU: one predicate, for the planner, the tuner and the
builder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from cutegemm.device import DeviceSpec
from cutegemm.errors import CuteGemmError, DTypeError, ShapeError, UnsupportedArchitectureError
from cutegemm.problem import Problem

if TYPE_CHECKING:
    from cutegemm.planner.families import Family

INT32_MAX = 2**31 - 1
MAX_CLUSTER = 8  # blocks that every GPU with clusters runs together


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a configuration cannot serve a problem: the rule's name, the reason with both values, and the error
    it makes where nothing else can serve either."""

    rule: str
    reason: str
    error: type[CuteGemmError] = UnsupportedArchitectureError

    def __str__(self) -> str:
        return self.reason


def refusal(problem: Problem, family: Family[Any], config: Any, device: DeviceSpec) -> Refusal | None:
    """Why `config` of `family` cannot serve `problem` on `device`, or None where it can."""
    return _family_refusal(problem, family, device) or _size_refusal(problem) or family.refuse(problem, config, device)


def extent_refusal(problem: Problem, rows: int, columns: int, depth: int) -> Refusal | None:
    """A rule for families to use: kernels count elements along a dimension in 32 bits, up to the edge of the last
    unit of `rows` x `columns` x `depth`."""
    for name, size, unit in (("m", problem.m, rows), ("n", problem.n, columns), ("k", problem.k, depth)):
        if ceil(size / unit) * unit > INT32_MAX:
            return Refusal("size", f"{name}={size}: rounded up to tiles it must be at most {INT32_MAX}", ShapeError)
    return None


def _family_refusal(problem: Problem, family: Family[Any], device: DeviceSpec) -> Refusal | None:
    """Rules that no configuration of the family can change."""
    signature = problem.signature
    # Instructions: each family is written in those of the architectures it lists.
    if device.arch not in family.architectures:
        served = ", ".join(family.architectures)
        reason = f"{family.name} has no kernels for {device.arch} ({device.name}), only for {served}"
        return Refusal("architecture", reason)
    # mma.sync takes both operands in one type, and a family is written for some types.
    if signature.a.dtype != signature.b.dtype:
        both = f"a is {signature.a.dtype} and b is {signature.b.dtype}"
        reason = f"{both}: {family.name} multiplies operands of one dtype"
        return Refusal("operand dtype", reason, DTypeError)
    if signature.a.dtype not in family.operand_dtypes:
        served = ", ".join(family.operand_dtypes)
        reason = f"a and b are {signature.a.dtype}: {family.name} serves {served}"
        return Refusal("operand dtype", reason, DTypeError)
    for name, dtype, accepted in _epilogue_dtypes(problem, family):
        if dtype not in accepted:
            reason = f"{name} is {dtype}: {family.name} serves {', '.join(accepted)}"
            return Refusal("epilogue dtype", reason, DTypeError)
    return None


def _size_refusal(problem: Problem) -> Refusal | None:
    # An empty D is returned without a launch: there is no grid to plan.
    if min(problem.m, problem.n, problem.batch) < 1 or problem.k < 0:
        sizes = f"m={problem.m}, n={problem.n}, k={problem.k}, batch={problem.batch}"
        return Refusal("size", f"{sizes}: m, n and batch must be at least 1 and k at least 0", ShapeError)
    # pair() takes columns 2i and 2i+1.
    if problem.n % 2 and problem.signature.epilogue.has_pair:
        return Refusal("size", f"n={problem.n}: an epilogue with pair() needs an even n", ShapeError)
    return None


def _epilogue_dtypes(problem: Problem, family: Family[Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Everything that the epilogue reads or writes: its name, its dtype, and the dtypes that are served."""
    signature = problem.signature
    graph = signature.epilogue
    # A scalar passed by value is fp32, whatever it was written as.
    if signature.alpha != "float":
        yield "alpha", signature.alpha, family.scalar_dtypes
    if signature.beta != "float":
        yield "beta", signature.beta, family.scalar_dtypes
    if signature.c is not None:
        yield "c", signature.c.dtype, family.epilogue_dtypes
    for output, access in zip(graph.outputs, signature.outputs, strict=True):
        yield f"output {output.name!r}", access.dtype, family.epilogue_dtypes
    for operand, access in zip(graph.operands, signature.operands, strict=True):
        if access.major != "float":
            accepted = family.scalar_dtypes if operand.kind == "scalar" else family.epilogue_dtypes
            yield f"operand {operand.name!r}", access.dtype, accepted
