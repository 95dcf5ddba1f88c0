"""`cutegemm doctor` tells the usable, the noteworthy and the broken apart, on stubbed machines."""

from __future__ import annotations

import email
import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from cutegemm import cli, device
from cutegemm.cli import doctor
from cutegemm.cli.doctor import Finding
from cutegemm.errors import DeviceError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Sets what the driver and torch show: GPUs by name, their CUDA versions, torch's architectures."""

    def set_up(*gpus: str, driver=(13, 0), cuda="13.0", built=("sm_80", "sm_90", "compute_90")) -> None:
        specs = tuple(device.lookup(name) for name in gpus)
        monkeypatch.setattr(device, "driver_version", lambda: driver)
        monkeypatch.setattr(device, "driver_release", lambda: "999.1")
        monkeypatch.setattr(device, "gpus", lambda: specs)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(specs))
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(built))

    return set_up


def states(findings) -> dict[str, str]:
    return {finding.subject: finding.state for finding in findings}


def find(subject: str) -> Finding:
    (found,) = [f for f in doctor.gpus() if f.subject == subject]
    return found


def test_a_served_gpu_lists_its_families(machine) -> None:
    machine("H200", "A100")
    assert states(doctor.gpus()) == {"driver": "ok", "GPU 0": "ok", "GPU 1": "ok", "torch and CUDA": "ok"}
    assert "sm_90a" in find("GPU 0").text and "runs sm90_wgmma, sm80_multistage" in find("GPU 0").text


def test_a_gpu_that_no_family_serves_is_named_with_what_would_be(machine) -> None:
    machine("V100", built=("sm_70",))
    found = find("GPU 0")
    assert found.state == "note"
    assert "UnsupportedArchitectureError" in found.text and "no kernel image" in found.text
    assert found.fix is not None and "sm_75" in found.fix and "sm_70" not in found.fix


def test_a_driver_older_than_cuda_13_is_broken_where_there_is_a_gpu(machine) -> None:
    machine("H200", driver=(12, 8))
    found = find("driver")
    assert found.state == "broken" and "12.8" in found.text and "580" in (found.fix or "")
    machine(driver=(12, 8))
    assert find("driver").state == "note"


def test_a_cpu_build_of_torch_beside_a_gpu_is_broken(machine) -> None:
    machine("H200", cuda=None)
    assert find("torch and CUDA").state == "broken" and "CPU build" in find("torch and CUDA").text


def test_torch_without_the_gpus_architecture_is_broken(machine) -> None:
    machine("B200", built=("sm_80", "sm_90a"))
    found = find("torch and CUDA")
    assert found.state == "broken" and "no kernel image for GPU 0" in found.text


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("compute_80", (12, 1), True),
        ("compute_90", (8, 9), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_120", (12, 1), True),
    ],
)
def test_which_builds_of_torch_run_where(built: str, capability: tuple[int, int], runs: bool) -> None:
    assert doctor._serves(built, capability) is runs


def test_no_driver_is_usable_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[int, int]:
        raise DeviceError("no NVIDIA driver")

    monkeypatch.setattr(device, "driver_version", missing)
    findings = list(doctor.gpus())
    assert findings == [Finding("driver", "note", "no NVIDIA driver")]
    assert doctor._verdict(findings, broken=False).startswith("Usable on CPU tensors")


REQUIRED = ["torch>=2.9", "dsl[cu13]>=4.8.1,<4.9", 'matplotlib>=3.8 ; extra == "plots"']
DSL_PARTS = ["base", "parts-cu13==4.8.1; extra == 'cu13'"]
IN_ORDER = {
    "cutegemm": "0.1",
    "torch": "2.13.0+cpu",
    "dsl": "4.8.1",
    "parts-cu13": "4.8.1",
    "matplotlib": "3.9",
}


@pytest.mark.parametrize(
    ("changed", "subject", "state", "text", "fix"),
    [
        ({}, "torch", "ok", "2.13.0+cpu", None),
        ({"torch": "2.8.0"}, "torch", "broken", "2.8.0 is not >=2.9", "pip install 'torch>=2.9'"),
        ({"torch": None}, "torch", "broken", "is not installed", "pip install 'torch>=2.9'"),
        (
            {"parts-cu13": None},
            "dsl",
            "broken",
            "4.8.1 lacks parts-cu13",
            "pip install 'dsl[cu13]<4.9,>=4.8.1'",
        ),
        ({}, "extra plots", "ok", "matplotlib 3.9", None),
        (
            {"matplotlib": None},
            "extra plots",
            "note",
            "matplotlib is not installed",
            "pip install 'cutegemm[plots]'",
        ),
        ({"cutegemm": None}, "cutegemm", "broken", "", "pip install -e . in that folder"),
    ],
)
def test_packages_missing_too_old_or_in_order(monkeypatch, changed, subject, state, text, fix) -> None:
    installed = IN_ORDER | changed

    def version(name: str) -> str:
        if installed.get(name) is None:
            raise PackageNotFoundError(name)
        return installed[name]

    def requires(name: str) -> list[str]:
        version(name)
        return {"cutegemm": REQUIRED, "dsl": DSL_PARTS}.get(name, [])

    extras = email.message_from_string("Provides-Extra: plots")
    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "requires", requires)
    monkeypatch.setattr(doctor, "metadata", lambda name: extras)
    (found,) = [f for f in doctor.packages() if f.subject == subject]
    assert (found.state, found.fix) == (state, fix) and text in found.text
    assert sum(f.state != "ok" for f in doctor.packages()) == len(changed)


def test_the_cache_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    for name in ("k.json", "k.so", "k.lock"):
        (tmp_path / name).write_bytes(b"x" * 500_000)
    assert doctor.cache() == Finding("kernel cache", "ok", f"{tmp_path}, 1 kernels, 1.5 MB")


def test_a_cache_that_can_not_be_kept_is_noted_with_what_to_set(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "file" / "folder"))
    found = doctor.cache()
    assert found.state == "note" and "CUTEGEMM_CACHE_DIR" in found.text and str(tmp_path) in found.text


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("empty_cache")
def test_this_environment_is_usable_and_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["usable"] is True and report["verdict"] in text
    subjects = {f["subject"] for f in report["findings"]}
    assert subjects >= {"python", "cutegemm", "torch", "driver", "kernel cache"}
    for finding in report["findings"]:
        assert finding["text"] in text


def test_something_broken_ends_with_1_and_a_fix(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    broken = Finding("torch", "broken", "not installed", "pip install torch")
    monkeypatch.setattr(doctor, "examine", lambda: iter([broken]))
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "broken torch: not installed" in out and "-> pip install torch" in out and "Not usable" in out
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["usable"] is False
