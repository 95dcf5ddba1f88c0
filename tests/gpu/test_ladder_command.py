"""`cutegemm ladder` on a GPU: rows right and within what the GPU can do, ncu's counts what the walk says.

Nothing here asks for speed: other processes may have the GPU too.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from cutegemm import cli
from cutegemm.device import DeviceSpec
from cutegemm.errors import CuteGemmError
from cutegemm.ladder import profile
from cutegemm.ladder.diagnose import expected
from cutegemm.ladder.rungs import rungs

pytestmark = pytest.mark.gpu


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(["ladder", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def wrong(found: dict[str, Any]) -> list[tuple[str, str, float | None]]:
    """The rows that were judged wrong, with their errors over what is allowed."""
    return [(row["name"], row["dtype"], row["excess"]) for row in found["rows"] if row["correct"] is False]


def test_every_level_is_right_and_below_its_peak(capsys) -> None:
    code, found = report(capsys, "--size", "1024", "--levels", "all")
    gpu = DeviceSpec.query(0)
    assert wrong(found) == [] and code == 0 and found["measured"] and found["gpu"] == gpu.name
    assert 0 < found["vector_add"]["share"] < 1.1
    ran = [row for row in found["rows"] if row["refused"] is None]
    assert any(row["name"] == "level1" for row in ran) and any(row["name"] == "torch.mm" for row in ran)
    for row in ran:
        assert row["correct"] and 0 < row["share"] < 1.05, row
    assert ran[0]["speedup"] is None and all(row["speedup"] > 0 for row in ran[1:])


def test_slow_levels_and_odd_sizes_end(capsys) -> None:
    code, found = report(capsys, "--size", "1001", "--levels", "level1-uncoalesced,level2", "--dtype", "bf16")
    assert wrong(found) == [] and code == 0
    assert [row["name"] for row in found["rows"] if row["correct"]][-1] == "torch.mm"


def test_a_line_a_level_is_printed(capsys) -> None:
    assert cli.main(["ladder", "--size", "256", "--levels", "level1,level3"]) == 0
    out = capsys.readouterr().out
    assert "vector add" in out and "level3" in out and "torch.mm" in out and "yes" in out


@pytest.mark.skipif(shutil.which("ncu") is None, reason="ncu is not on PATH")
def test_the_profiler_counts_what_the_walk_says() -> None:
    gpu = DeviceSpec.query(0)
    every = rungs("level1,level1-uncoalesced,level3,level4-conflicting,level4,level5,level7", None, 1024)
    ladder = [rung for rung in every if rung.refused(gpu) is None]
    try:
        counted, _ = profile.profile(ladder)
    except CuteGemmError as error:
        if "ERR_NVGPUCTRPERM" in str(error):
            pytest.skip("the counters are for administrators here")
        raise
    for rung, metrics in zip(ladder, counted, strict=True):
        wanted = expected(rung)
        assert metrics.time_us > 0
        if metrics.loaded_bytes is not None and wanted.l1_bytes is not None:
            assert metrics.loaded_bytes == pytest.approx(wanted.l1_bytes, rel=0.1), rung.level.name
        if wanted.sectors_per_request is not None and metrics.sectors_per_request is not None:
            assert metrics.sectors_per_request == pytest.approx(wanted.sectors_per_request, rel=0.1), rung.level.name
        if rung.level.name == "level4-conflicting" and metrics.conflict_share is not None:
            assert metrics.conflict_share > 0.1
