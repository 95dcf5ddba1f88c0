"""Barriers of the levels that share memory: with all of them no race, without any one of them a race."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from cutegemm.compiler import Spec
from cutegemm.hand_kernels import build, find
from cutegemm.planner import contiguous_problem
from tests import on_host

#: The barriers of each level in the order of its source; K has a step more than there are stages. Level 9 is level 8's
#: loop, and a barrier between the blocks of a tile, which the host runs one after the other.
BARRIERS = {"level3": 2, "level4": 2, "level4-padded": 2, "level5": 2, "level6": 4, "level7": 1, "level8": 2}
#: Where they are, if not in the level's own source.
SOURCES = {"level8": "multistage.cuh"}


def source(name: str) -> str:
    return SOURCES.get(name, find(name).source)


@pytest.fixture(scope="module", params=BARRIERS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int | None, bool]:
    """Whether there is a race in a level: with all its barriers (None), and without each of them."""
    name: str = request.param
    level = find(name)
    dtype = level.dtypes[0]
    m, n, k = 24, 24, (level.stages + 1) * level.depth(dtype)
    signature = contiguous_problem(m, n, k, dtype=dtype, layout="nn", out_dtype="fp32").signature
    spec = Spec(build.FAMILY, level, signature, "sm_90a")
    block, folder = on_host.block(tmp_path_factory.getbasetemp()), tmp_path_factory.mktemp(name)
    program = on_host.program_for_races(spec, m, n, k, source(name), block, folder)
    left_out = (None, *range(BARRIERS[name]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(left_out, pool.map(partial(on_host.races, program), left_out), strict=True))


def test_every_barrier_is_listed() -> None:
    for name, count in BARRIERS.items():
        text = (build.FOLDER / source(name)).read_text()
        code = "\n".join(line.partition("//")[0] for line in text.splitlines())
        assert code.count("__syncthreads();") + code.count("__syncwarp();") == count


def test_there_are_no_races(found: dict[int | None, bool]) -> None:
    assert not found[None]


def test_no_barrier_can_be_left_out(found: dict[int | None, bool]) -> None:
    assert [barrier for barrier, race in found.items() if not race] == [None]
