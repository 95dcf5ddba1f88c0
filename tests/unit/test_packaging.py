"""What the distribution declares is what the tree holds, and importing it asks little of a machine."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points, requires, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAPPED = {"cutegemm.epilogues": ROOT / "epilogues", "cutegemm.hand_kernels": ROOT / "hand_kernels"}


def declared_packages() -> list[str]:
    block = re.search(r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert block is not None
    return re.findall(r'"([\w.]+)"', block[1])


def test_every_package_of_the_tree_is_declared() -> None:
    tops = {"cutegemm": ROOT / "cutegemm", **MAPPED}
    in_tree = {
        ".".join([name, *module.parent.relative_to(folder).parts])
        for name, folder in tops.items()
        for module in folder.rglob("*.py")
    }
    assert sorted(in_tree) == sorted(declared_packages())


@pytest.mark.parametrize("name", sorted(MAPPED))
def test_mapped_folders_import_under_cutegemm(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__doc__
    assert Path(package.__file__ or "").parent.name == MAPPED[name].name


def test_the_command_and_the_epilogues_are_entry_points() -> None:
    (command,) = entry_points(group="console_scripts", name="cutegemm")
    assert command.value == "cutegemm.cli:main"
    registered = entry_points(group="cutegemm.epilogues")
    ours = {e.name: e.value for e in registered if e.dist and e.dist.name == "cutegemm"}
    assert ours == {name: f"cutegemm.epilogues.{name}" for name in ours}
    assert {"activations", "bias", "gated", "residual"} <= ours.keys()


def test_every_constraint_is_within_the_declared_range() -> None:
    from packaging.requirements import Requirement

    declared = [Requirement(text) for text in requires("cutegemm") or []]
    pins = [
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert pins
    for pin in pins:
        (exact,) = pin.specifier
        for requirement in declared:
            if requirement.name == pin.name:
                assert requirement.specifier.contains(exact.version), f"{pin} is outside {requirement}"


def test_the_version_is_that_of_the_distribution() -> None:
    import cutegemm

    assert cutegemm.__version__ == version("cutegemm")


def test_importing_needs_neither_the_dsl_nor_the_driver() -> None:
    code = (
        "import sys, cutegemm, cutegemm.epilogues, cutegemm.hand_kernels, cutegemm.cli\n"
        "loaded = [m for m in ('cutlass', 'tvm_ffi', 'cuda.bindings.driver') if m in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


def test_a_wheel_holds_every_package_and_imports(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("cutegemm", "epilogues", "hand_kernels"):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("cutegemm-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        names = set(archive.namelist())
    in_tree = {
        path.relative_to(source).as_posix()
        for path in (source / "cutegemm").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert in_tree <= names
    assert {"cutegemm/epilogues/bias.py", "cutegemm/hand_kernels/__init__.py"} <= names
    assert not [name for name in names if name.startswith(("epilogues/", "hand_kernels/", "tests/", "benchmarks/"))]
    code = (
        "import cutegemm, cutegemm.epilogues as e, cutegemm.hand_kernels as h, cutegemm.planner\n"
        "print(cutegemm.plan(64, 64, 64, arch='sm_90a', epilogue=e.bias_gelu).kernel)\n"
        "print(cutegemm.__file__, h.__file__, e.__file__, sep='\\n')"
    )
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=True)
    kernel, *files = done.stdout.splitlines()
    assert kernel.startswith(("sm80_multistage:", "sm90_wgmma:")) and all(file.startswith(str(site)) for file in files)
