"""Which configuration was fastest where it has been measured: one JSON file a GPU, which overrides the model.

A file holds products alone (no epilogue, no C) of contiguous tensors aligned to 16 bytes: 16-bit ones, and fp32 ones in
a precision each. Times in microseconds order configurations of one problem, that were measured by turns in one process;
they are not figures to quote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cutegemm.device import DeviceSpec, lookup
from cutegemm.errors import ArgumentError
from cutegemm.fusion.graph import IDENTITY
from cutegemm.problem import MAX_ALIGN, Problem

#: m, n, k, layout and precision of an entry.
Place = tuple[int, int, int, str, str | None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one problem: microseconds by `kernel=` string. `precision` is that of fp32 tensors, one of
    `problem.PRECISIONS`, and None for 16-bit ones."""

    m: int
    n: int
    k: int
    layout: str
    us: Mapping[str, float]
    precision: str | None = None

    @property
    def place(self) -> Place:
        """What distinguishes it from the other entries of a file."""
        return self.m, self.n, self.k, self.layout, self.precision


def file_name(gpu: str) -> str:
    """The name of a GPU's file, by any of its names. Raises `ArgumentError` for a GPU that is not known."""
    return f"{lookup(gpu).name.lower().replace(' ', '_')}.json"


@cache
def measured(gpu: str) -> tuple[Measured, ...]:
    """The table of a GPU by any of its names; empty where there is none."""
    try:
        file = resources.files(__name__) / file_name(gpu)
    except ArgumentError:  # a GPU that is not known, or a part of one
        return ()
    if not file.is_file():
        return ()
    return tuple(Measured(**entry) for entry in json.loads(file.read_text())["problems"])


def place(problem: Problem) -> Place | None:
    """Where a file would have `problem`; None if it is of a kind that files do not hold."""
    signature = problem.signature
    tensors = (signature.a, signature.b, *signature.outputs)
    if signature.epilogue != IDENTITY or signature.c is not None or problem.batch != 1:
        return None
    dtypes = {x.dtype for x in tensors}
    # What has no contiguous dimension is aligned to its element.
    if any(x.align < MAX_ALIGN for x in tensors) or not (dtypes <= {"fp16", "bf16"} or dtypes == {"fp32"}):
        return None
    if signature.outputs[0].major != "n":
        return None
    layout = ("n" if signature.a.major == "k" else "t") + ("t" if signature.b.major == "k" else "n")
    return problem.m, problem.n, problem.k, layout, signature.precision


def times(problem: Problem, device: DeviceSpec) -> Mapping[str, float]:
    """Measured microseconds of `problem` on `device` by `kernel=` string; empty where it has not been measured."""
    wanted = place(problem)
    return {} if wanted is None else next((x.us for x in measured(device.name) if x.place == wanted), {})
