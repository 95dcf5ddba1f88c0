"""The keywords of `gemm` that choose how, not what: which values exist, and which of them are served yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cutegemm.errors import ArgumentError, NotAvailableError
from cutegemm.problem import PRECISIONS


@dataclass(frozen=True, slots=True)
class Options:
    """Checked values of `gemm`'s keywords. A value whose feature has not landed never gets this far."""

    precision: str | None = None
    kernel: str | None = None
    jit: Literal["forbid"] | None = None
    padding: Literal["auto", "predicate", "copy"] = "auto"
    split_k: int | Literal["auto", "stream"] = "auto"
    deterministic: bool = True


def check(
    *,
    precision: Any = None,
    split_k: Any = "auto",
    padding: Any = "auto",
    deterministic: Any = True,
    batch_invariant: Any = False,
    kernel: Any = None,
    jit: Any = None,
) -> Options:
    """The options that these keywords ask for.

    Raises `ArgumentError` for a value that no version accepts and `NotAvailableError` for one that has not
    landed.
    """
    _precision(precision)
    _split_k(split_k)
    _choice("padding", padding, served=("auto", "predicate", "copy"))
    for name, flag in (("deterministic", deterministic), ("batch_invariant", batch_invariant)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name}={flag!r}: expected True or False")
    if batch_invariant:
        raise NotAvailableError("batch_invariant=True is not available yet: leave it False")
    if kernel is not None and (not isinstance(kernel, str) or not kernel):
        raise ArgumentError(f"kernel={kernel!r}: expected None or a string, 'family' or 'family:key=value,…'")
    if jit is not None and not (isinstance(jit, str) and jit == "forbid"):
        raise ArgumentError(f"jit={jit!r}: expected None or 'forbid'")
    return Options(precision, kernel, None if jit is None else "forbid", padding, split_k, deterministic)


def _precision(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise ArgumentError(f"precision={value!r}: expected None, 'ieee' or another mode's name")
    if value not in PRECISIONS:
        served = ", ".join(map(repr, PRECISIONS))
        raise NotAvailableError(f"precision={value!r} is not available yet: {served} are served")


def _split_k(value: Any) -> None:
    named = value if isinstance(value, str) else None
    count = value if type(value) is int else 0
    if named in ("auto", "stream") or count >= 1:
        return
    raise ArgumentError(f"split_k={value!r}: expected 'auto', an int of at least 1, or 'stream'")


def _choice(name: str, value: Any, *, served: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in served:
        raise ArgumentError(f"{name}={value!r}: expected one of {', '.join(map(repr, served))}")
