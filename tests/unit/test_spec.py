"""The key that names a kernel on disk: it holds all that the machine code depends on, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path

import pytest

from cutegemm import Col, Row, Tile, epilogue, epilogues, ops
from cutegemm.compiler import Spec, spec
from cutegemm.compiler.toolchains import TOOLCHAINS
from cutegemm.hand_kernels import find
from cutegemm.kernels.config import Config
from cutegemm.planner import contiguous_problem
from cutegemm.problem import Access, Signature

CONFIG = Config(64, 64, 32, stages=4, warps_m=2, warps_n=2)


def signature(epilogue: object = None, **options: object) -> Signature:
    return contiguous_problem(512, 512, 512, epilogue=epilogue, **options).signature  # type: ignore[arg-type]


PLAIN = Spec("sm80_multistage", CONFIG, signature(), "sm_90a")


@epilogue
def two_outputs(acc, bias: Row):
    return {"out": ops.relu(acc + bias), "pre": acc + bias}


@epilogue
def renamed_outputs(acc, bias: Row):
    return {"out": ops.relu(acc + bias), "before": acc + bias}


def leaky(slope: float) -> object:
    @epilogue
    def leaky(acc):
        return ops.maximum(acc, acc * slope)

    return leaky


def signed(**changes: object) -> Spec:
    return replace(PLAIN, signature=replace(PLAIN.signature, **changes))  # type: ignore[arg-type]


def variants() -> Iterator[tuple[str, Spec]]:
    """Specs of which no two may share a key."""
    yield "plain", PLAIN
    for arch in ("sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a"):
        yield arch, replace(PLAIN, arch=arch)
    yield "family", replace(PLAIN, family="sm90_wgmma")
    for field in fields(Config):
        changed = {field.name: 2 * getattr(CONFIG, field.name)}
        yield field.name, replace(PLAIN, config=replace(CONFIG, **changed))
    for name in ("a", "b"):
        other = "m" if name == "a" else "n"
        for access in (Access("fp16", "k", 16), Access("bf16", other, 16), Access("bf16", "strided", 2)):
            yield f"{name} {access}", signed(**{name: access})
        for align in (2, 4, 8):
            yield f"{name} {align}", signed(**{name: Access("bf16", "k", align)})
    for access in (Access("bf16", "n", 16), Access("fp32", "n", 16), Access("bf16", "m", 16), Access("bf16", "n", 2)):
        yield f"c {access}", signed(c=access)
    for access in (Access("fp32", "n", 16), Access("fp16", "n", 16), Access("bf16", "m", 16), Access("bf16", "n", 4)):
        yield f"out {access}", signed(outputs=(access,))
    yield "alpha", signed(alpha="fp32")
    yield "alpha64", signed(alpha="fp64")
    yield "beta", signed(c=Access("bf16", "n", 16), beta="fp32")
    for fused in (epilogues.relu, epilogues.gelu, epilogues.gelu_tanh, epilogues.bias, epilogues.add, epilogues.mul):
        yield str(fused), replace(PLAIN, signature=signature(fused))
    for fused in (two_outputs, renamed_outputs):
        yield str(fused), replace(PLAIN, signature=signature(fused))
    biased = signature(epilogues.bias)
    for access in (Access("fp32", "n", 16), Access("bf16", "strided", 2), Access("bf16", "n", 8)):
        yield f"bias {access}", replace(PLAIN, signature=replace(biased, operands=(access,)))
    for name, slope in (("one slope", 0.01), ("another", 0.02)):
        yield name, replace(PLAIN, signature=signature(leaky(slope)))


def test_whatever_changes_the_kernel_changes_the_key() -> None:
    seen: dict[str, str] = {}
    for name, varied in variants():
        assert seen.setdefault(varied.key, name) == name
        assert varied.symbol != PLAIN.symbol or varied == PLAIN
    assert len(seen) > 40


def test_names_of_operands_and_spelling_do_not_change_the_key() -> None:
    @epilogue
    def one(acc, bias: Row, residual: Tile, scale: Col):
        return ops.gelu(acc + bias) * scale + residual

    @epilogue
    def other(x, b: Row, r: Tile, s: Col):
        activated = ops.gelu(b + x)
        return r + s * activated

    first, second = (replace(PLAIN, signature=signature(fused)) for fused in (one, other))
    assert first.key == second.key
    assert first == second
    assert str(first) == str(second)


def test_values_that_come_at_run_time_are_not_in_the_key() -> None:
    sizes = [contiguous_problem(m, n, k, batch=b).signature for m, n, k, b in ((64, 64, 64, 1), (4096, 8, 512, 3))]
    assert len({replace(PLAIN, signature=s).key for s in sizes}) == 1


def test_another_process_has_the_same_key() -> None:
    code = (
        "from cutegemm import epilogues\nfrom cutegemm.compiler import Spec\n"
        "from cutegemm.kernels.config import Config\n"
        "from cutegemm.planner import contiguous_problem\n"
        "s = contiguous_problem(512, 512, 512, epilogue=epilogues.bias_gelu_aux).signature\n"
        "print(Spec('sm80_multistage', Config(64, 64, 32, stages=4, warps_m=2, warps_n=2), s, 'sm_90a').key)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == replace(PLAIN, signature=signature(epilogues.bias_gelu_aux)).key


@pytest.fixture
def fresh_identity() -> Iterator[None]:
    spec.build_identity.cache_clear()
    yield
    spec.build_identity.cache_clear()


@pytest.mark.usefixtures("fresh_identity")
@pytest.mark.parametrize("package", ["nvidia-cutlass-dsl", "apache-tvm-ffi"])
def test_versions_are_in_the_key(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    before = PLAIN.key
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "99.0" if name == package else version(name))
    spec.build_identity.cache_clear()
    assert PLAIN.key != before


@pytest.mark.usefixtures("fresh_identity")
def test_the_machine_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = PLAIN.key
    monkeypatch.setattr(spec.platform, "machine", lambda: "riscv64")
    spec.build_identity.cache_clear()
    assert PLAIN.key != before


V2 = "fpu sse4_1 sse4_2 ssse3 popcnt cx16 lahf_lm"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "machine"),
    [
        ("fpu", "x86_64-v1"),
        (V2, "x86_64-v2"),
        (V3, "x86_64-v3"),
        (V3.replace(" abm", ""), "x86_64-v2"),
        (V4, "x86_64-v4"),
        (V4.replace(" ssse3", ""), "x86_64-v1"),
    ],
)
def test_a_machine_has_a_level(monkeypatch: pytest.MonkeyPatch, flags: str, machine: str) -> None:
    monkeypatch.setattr(spec.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(spec, "_cpu_flags", lambda: frozenset(flags.split()))
    assert spec.machine() == machine


def test_host_code_runs_on_its_own_level_and_those_above() -> None:
    assert spec.runs("x86_64-v3", "x86_64-v3") and spec.runs("x86_64-v2", "x86_64-v4")
    assert not spec.runs("x86_64-v4", "x86_64-v3")
    assert spec.runs("aarch64", "aarch64") and not spec.runs("aarch64", "x86_64-v3")


def test_sources_are_in_the_key(tmp_path: Path) -> None:
    package = Path(spec.__file__).parent.parent
    assert spec.build_identity()["sources"] == spec._digest(package)
    for name in spec._SOURCES:
        if name.endswith(".py"):
            shutil.copy(package / name, tmp_path)
        else:
            shutil.copytree(package / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    digests = [spec._digest(tmp_path)]
    assert digests == [spec._digest(package)]
    for changed in ("compiler/jit.py", "fusion/to_cute.py", "kernels/tile_loader.py", "problem.py"):
        with (tmp_path / changed).open("a") as file:
            file.write("\n")
        digests.append(spec._digest(tmp_path))
    (tmp_path / "kernels" / "abi.py").rename(tmp_path / "kernels" / "abi2.py")
    digests.append(spec._digest(tmp_path))
    assert len(set(digests)) == 6


def test_what_the_sources_import_is_in_the_key_too() -> None:
    package = Path(spec.__file__).parent.parent
    # An error makes no kernel, and what the DSL does not make is in the keys of its own family.
    listed = {name.removesuffix(".py") for name in spec._SOURCES} | {"errors", "hand_kernels", "cutlass_cpp"}
    for name in spec._SOURCES:
        for path in (package / name).rglob("*.py") if (package / name).is_dir() else [package / name]:
            imported = set(re.findall(r"^\s*from cutegemm\.(\w+)", path.read_text(), re.MULTILINE))
            imported |= set(re.findall(r"^\s*import cutegemm\.(\w+)", path.read_text(), re.MULTILINE))
            assert imported <= listed, path


@pytest.mark.usefixtures("fresh_identity")
def test_hand_written_kernels_have_their_own_sources_in_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signature = contiguous_problem(64, 64, 64, layout="nn").signature
    level = Spec("hand", find("level3"), signature, "sm_90a")
    before, other = level.key, PLAIN.key
    toolchain = TOOLCHAINS["hand"]
    folder = tmp_path / "hand_kernels"
    shutil.copytree(*toolchain.folders, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setitem(TOOLCHAINS, "hand", replace(toolchain, folders=(folder,)))
    spec.build_identity.cache_clear()
    assert level.key == before
    with (folder / "ptx.cuh").open("a") as source:
        source.write("\n")
    spec.build_identity.cache_clear()
    assert level.key != before and PLAIN.key == other
