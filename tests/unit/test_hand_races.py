"""Barriers of the levels that share memory: with all of them no race, without any one of them a race."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutegemm.compiler import Spec
from cutegemm.hand_kernels import build, find
from cutegemm.planner import contiguous_problem
from tests import on_host

#: The barriers of each level in the order of its source; K has a step more than there are stages. Level 9 is level 8's
#: loop, and a barrier between the blocks of a tile, which the host runs one after the other.
BARRIERS = {"level3": 2, "level4": 2, "level4-padded": 2, "level5": 1, "level6": 4, "level7": 1, "level8": 2}
#: Where they are, if not in the level's own source.
SOURCES = {"level8": "multistage.cuh"}


def source(name: str) -> str:
    return SOURCES.get(name, find(name).source)


def races(name: str, folder: Path, without_barrier: int | None = None) -> bool:
    level = find(name)
    dtype = level.dtypes[0]
    m, n, k = 40, 40, (level.stages + 1) * level.depth(dtype)
    signature = contiguous_problem(m, n, k, dtype=dtype, layout="nn", out_dtype="fp32").signature
    spec = Spec(build.FAMILY, level, signature, "sm_90a")
    return on_host.races(spec, m, n, k, folder, source=source(name), without_barrier=without_barrier)


def test_every_barrier_is_listed() -> None:
    for name, count in BARRIERS.items():
        text = (build.FOLDER / source(name)).read_text()
        code = "\n".join(line.partition("//")[0] for line in text.splitlines())
        assert code.count("__syncthreads();") + code.count("__syncwarp();") == count


@pytest.mark.parametrize("name", BARRIERS)
def test_there_are_no_races(name: str, tmp_path: Path) -> None:
    assert not races(name, tmp_path)


@pytest.mark.parametrize(("name", "barrier"), [(name, i) for name, n in BARRIERS.items() for i in range(n)])
def test_no_barrier_can_be_left_out(name: str, barrier: int, tmp_path: Path) -> None:
    assert races(name, tmp_path, without_barrier=barrier)
