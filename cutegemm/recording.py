"""Recorded runs: with `CUTEGEMM_LOG=FILE` the first CUDA call of each kind appends what it asks for to FILE, as one
line of JSON, and `cutegemm build --from-log FILE` builds the kernels for it.

A line holds the problem whole, its epilogue's graph included: building needs none of the program that ran.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cutegemm.errors import ArgumentError, CuteGemmError
from cutegemm.fusion import serial
from cutegemm.problem import Access, Problem, Signature

SCHEMA = 2

_SIZES = ("m", "n", "k", "batch")
_written: set[tuple[str, Problem, str | None]] = set()
_guard = threading.Lock()


class Recorded(NamedTuple):
    """A call of a recorded run: its problem, and the `kernel=` string that it was pinned to, if any."""

    problem: Problem
    kernel: str | None


def record(problem: Problem, kernel: str | None) -> None:
    """Append a call to the file that `CUTEGEMM_LOG` names, unless this process has written it there already.

    A file that can't be written to is no error, and is warned of once.
    """
    path = os.environ.get("CUTEGEMM_LOG")
    if not path or (path, problem, kernel) in _written:
        return
    line = json.dumps(to_data(problem, kernel)) + "\n"
    with _guard:
        if (path, problem, kernel) in _written:
            return
        _written.add((path, problem, kernel))
        try:
            with open(path, "ab", buffering=0) as file:  # one write a line: processes may share the file
                file.write(line.encode())
        except OSError as error:
            warnings.warn(f"CUTEGEMM_LOG={path!r}: calls are not recorded: {error}", RuntimeWarning, stacklevel=2)


def to_data(problem: Problem, kernel: str | None = None) -> dict[str, Any]:
    """A call as JSON-serialisable data."""
    return {
        "schema": SCHEMA,
        **{name: getattr(problem, name) for name in _SIZES},
        **problem.signature.to_data(),
        "epilogue": serial.to_data(problem.signature.epilogue),
        "kernel": kernel,
    }


def read(path: Path) -> list[Recorded]:
    """The calls in a log, each once, in order.

    Raises `ArgumentError` naming the line that is not one of a log, or the file that can't be read or holds none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"the log {path} can't be read: {error}") from None
    calls: dict[Recorded, None] = {}
    for number, line in enumerate(lines, 1):
        try:
            calls[from_data(json.loads(line))] = None
        except (CuteGemmError, TypeError, KeyError, ValueError) as error:
            raise ArgumentError(f"{path}, line {number} is not of a recorded run: {error!r}") from None
    if not calls:
        raise ArgumentError(f"the log {path} holds no calls")
    return list(calls)


def from_data(data: Mapping[str, Any]) -> Recorded:
    """The call that `to_data` made `data` of. Raises `ArgumentError`, `EpilogueError`, `KeyError` or `TypeError` for
    any other data."""
    if data["schema"] != SCHEMA:
        raise ArgumentError(f"schema {data['schema']!r}: this cutegemm reads {SCHEMA}")
    m, n, k, batch = sizes = [data[name] for name in _SIZES]
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ArgumentError(f"sizes {sizes}: expected ints of at least 0")
    signature = Signature(
        a=_access(data["a"]),
        b=_access(data["b"]),
        c=None if data["c"] is None else _access(data["c"]),
        outputs=tuple(map(_access, data["outputs"])),
        epilogue=(graph := serial.from_data(data["epilogue"])),
        operands=tuple(map(_access, data["operands"])),
        alpha=_text(data["alpha"]),
        beta=_text(data["beta"]),
        precision=None if data["precision"] is None else _text(data["precision"]),
    )
    given, wanted = ((len(s.outputs), len(s.operands)) for s in (signature, graph))
    if given != wanted:
        raise ArgumentError(f"{given} outputs and operands: the epilogue has {wanted}")
    return Recorded(Problem(m, n, k, batch, signature), None if data["kernel"] is None else _text(data["kernel"]))


def _access(data: Mapping[str, Any]) -> Access:
    if type(data["align"]) is not int:
        raise ArgumentError(f"align={data['align']!r}: expected an int")
    return Access(_text(data["dtype"]), _text(data["major"]), data["align"])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ArgumentError(f"{value!r}: expected text")
    return value
