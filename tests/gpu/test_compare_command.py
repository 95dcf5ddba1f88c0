"""`cutegemm compare` on a GPU: everything that is served is right, timed, and no faster than the floor allows."""

from __future__ import annotations

import json

import pytest

from cutegemm import cli
from cutegemm.device import DeviceSpec

pytestmark = pytest.mark.gpu


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    code = cli.main(["compare", *argv, "--json"])
    out = capsys.readouterr().out
    assert code == 0, out
    return json.loads(out)


@pytest.mark.parametrize(
    "options",
    [
        "1024 1024 1024 --layout nn",
        "1000 1016 520 --layout nn --dtype fp16 --epilogue bias_gelu",
        "512 512 512 --layout nn --dtype fp32",
        "16 4096 4096",
        "512 1024 512 --epilogue swiglu",
        "512 1024 512 --epilogue bias_gelu_aux --kernels level5,sm80_multistage,torch --layout nn",
        "512 1024 512 --epilogue clamp --kernels level9,sm80_multistage,torch --layout nn",
    ],
)
def test_what_is_served_is_right_and_timed(capsys: pytest.CaptureFixture[str], options: str) -> None:
    made = report(capsys, *options.split())
    assert made["timing"] == "measured" and made["gpu"] == DeviceSpec.query(0).name
    for entry in made["entries"]:
        if entry["refused"] is None:
            assert entry["ok"] and entry["excess"] <= 1 and entry["us"] > 0, entry
            assert entry["share"] < 1.1, entry  # the floor is a datasheet's: clocks above it are possible, not by much
    names = {entry["contender"] for entry in made["entries"] if entry["us"] is not None}
    assert "torch" in names and len(names) > 1


def test_a_named_gpu_is_modelled_beside_a_real_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "512", "512", "512", "--arch", "A100")["timing"] == "modelled"


def test_the_table_has_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "256", "256", "256", "--kernels", "level9,torch", "--layout", "nn"]) == 0
    out = capsys.readouterr().out
    assert "measured: medians by turns" in out and " ok " in out and "WRONG" not in out
