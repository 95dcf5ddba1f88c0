"""CUTLASS C++ kernels without a compiler: what is planned, pinned, refused and written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cutegemm import device, epilogues, plan
from cutegemm.cli import main
from cutegemm.compiler import Spec, bundle, cache
from cutegemm.cutlass_cpp import build, emit
from cutegemm.cutlass_cpp.config import CONFIGS
from cutegemm.errors import ArgumentError, CuteGemmError, DTypeError, KernelNotBuiltError
from cutegemm.planner import Plan, plan_problem, tables
from cutegemm.planner.pin import parse_pin

MULTISTAGE = "cutlass_cpp:tile=128x128x32,stages=4,warps=2x2,schedule=multistage"


def source_of(chosen: Plan) -> str:
    return emit.source(Spec(chosen.family, chosen.config, chosen.problem.signature, chosen.device.arch))


def test_it_serves_turing_and_leaves_other_gpus_to_the_others() -> None:
    assert plan(4096, 4096, 4096, dtype="fp16", arch="T4").family == "cutlass_cpp"
    for arch in ("A100", "H200"):
        chosen = plan(4096, 4096, 4096, dtype="fp16", arch=arch)
        assert "cutlass_cpp" not in {candidate.family for candidate in chosen.candidates}


def test_every_configuration_is_spelled_by_its_own_pin() -> None:
    assert len(set(map(str, CONFIGS))) == len(CONFIGS)
    for config in CONFIGS:
        assert parse_pin(f"cutlass_cpp:{config}").configs == (config,)


@pytest.mark.parametrize(
    ("text", "split", "stream", "reduction"),
    [
        ("split=3", 3, False, "turnstile"),
        ("split=stream", 1, True, "turnstile"),
        ("split=3,reduction=parallel", 3, False, "parallel"),
    ],
)
def test_pins_split_k(text: str, split: int, stream: bool, reduction: str) -> None:
    config = plan(256, 256, 8192, dtype="fp16", arch="A100", kernel=f"{MULTISTAGE},{text}").config
    assert (config.split, config.stream, config.reduction) == (split, stream, reduction)
    assert str(config) == f"{MULTISTAGE.partition(':')[2]},{text}"


def test_a_call_may_ask_for_parts_or_for_stream_k() -> None:
    chosen = plan(256, 256, 8192, dtype="fp16", arch="A100", split_k="stream")
    assert (chosen.family, chosen.config.stream) == ("cutlass_cpp", True)
    chosen = plan(256, 256, 8192, dtype="fp16", arch="T4", split_k=4)
    assert (chosen.family, chosen.config.split) == ("cutlass_cpp", 4)
    with pytest.raises(ArgumentError, match="split=0"):
        plan(256, 256, 8192, dtype="fp16", arch="A100", kernel=f"{MULTISTAGE},split=0")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"dtype": "bf16", "arch": "T4"}, DTypeError, "a is bf16"),
        (
            {"dtype": "fp16", "arch": "H200", "kernel": "cutlass_cpp:schedule=pingpong", "split_k": "stream"},
            CuteGemmError,
            "split_k=stream: cutlass_cpp splits K as its configurations say",
        ),
        ({"dtype": "fp16", "arch": "T4", "kernel": MULTISTAGE}, CuteGemmError, "sm_80 and newer, and T4 is sm_75"),
        ({"k": 1001, "dtype": "fp16", "arch": "A100", "kernel": MULTISTAGE}, ArgumentError, "aligned to 2 bytes"),
        ({"k": 8, "dtype": "fp16", "arch": "A100", "kernel": f"{MULTISTAGE},split=2"}, ValueError, "K has 1 steps"),
        (
            {"dtype": "fp16", "arch": "A100", "kernel": "cutlass_cpp:schedule=cooperative"},
            CuteGemmError,
            "cooperative is for sm_90a, and A100 is sm_80",
        ),
        (
            {"dtype": "fp16", "arch": "H200", "kernel": "cutlass_cpp:schedule=cooperative,pack=a"},
            ArgumentError,
            "pack=a: TMA and wgmma take neither operand only from a copy",
        ),
        ({"dtype": "fp32", "arch": "H200", "kernel": "cutlass_cpp"}, ArgumentError, "cutlass_cpp serves tf32"),
    ],
)
def test_what_it_can_not_serve_is_refused_by_name(given: dict, error: type[Exception], message: str) -> None:
    sizes = {"m": 512, "n": 512, "k": 512} | {key: given.pop(key) for key in ("k",) if key in given}
    with pytest.raises(error, match=message):
        plan(*sizes.values(), **given)


def test_on_hopper_operands_are_copied_as_tma_takes_them() -> None:
    def packed(**given: Any) -> str:
        k = given.pop("k", 512)
        return str(plan(512, 512, k, arch="H200", kernel="cutlass_cpp:schedule=cooperative", **given).config.pack)

    assert packed(dtype="bf16", layout="nn") == "no"
    assert packed(dtype="bf16", layout="nn", k=511) == "a"
    assert packed(dtype="fp32", precision="tf32", layout="nt") == "no"
    assert packed(dtype="fp32", precision="tf32", layout="nn") == "b"
    assert packed(dtype="fp32", precision="tf32", layout="tn") == "ab"


def test_a_plain_product_has_cutlass_own_epilogue_and_another_the_graph() -> None:
    written = source_of(plan(512, 512, 512, dtype="fp16", arch="A100", kernel=MULTISTAGE))
    assert "#define VISITED 0" in written
    assert "cutlass::gemm::GemmShape<128, 128, 32>" in written
    assert "LinearCombination" in written
    fused = source_of(plan(512, 512, 512, dtype="fp16", arch="A100", kernel=MULTISTAGE, epilogue=epilogues.gelu))
    assert "#define VISITED 1" in fused
    assert "cutegemm_maths::normcdf" in fused
    stream = source_of(plan(512, 512, 512, dtype="fp16", arch="A100", kernel=f"{MULTISTAGE},split=stream"))
    assert "ThreadblockSwizzleStreamK" in stream
    hopper = source_of(
        plan(512, 512, 512, arch="H200", kernel="cutlass_cpp:schedule=pingpong", epilogue=epilogues.swiglu)
    )
    assert "KernelTmaWarpSpecializedPingpong" in hopper
    assert "GraphVisitor" in hopper


def test_the_command_prints_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "512", "512", "512", "--arch", "A100", "--kernel", "cutlass_cpp", "--source"]) == 0
    assert "DefaultGemmUniversal" in capsys.readouterr().out
    assert main(["plan", "512", "512", "512", "--arch", "H200", "--source"]) != 0
    assert "is not CUDA C++" in capsys.readouterr().err


def test_a_bundle_with_its_kernels_is_read_again(tmp_path: Path) -> None:
    chosen = plan(512, 512, 512, dtype="fp16", arch="T4")
    spec = Spec(chosen.family, chosen.config, chosen.problem.signature, "sm_75")
    bundle.write(tmp_path / "bundle", [bundle.BuiltKernel(spec, ".so", b"code", ("512x512x512",))])
    found = bundle.read(tmp_path / "bundle").find(spec)
    assert found is not None and found.symbol == spec.symbol


def test_where_nothing_compiles_what_a_table_prefers_the_others_serve() -> None:
    signature = {"dtype": "fp32", "precision": "tf32", "arch": "H200"}
    pin = "cutlass_cpp:tile=128x256x64,cluster=2x1,schedule=cooperative,swizzle=8,raster=n"
    problem = plan(512, 512, 512, **signature).problem
    with mock.patch.object(tables, "times", lambda problem, device: {pin: 1.0, "sm80_multistage:bits=32": 2.0}):
        made = plan_problem(problem, device.lookup("H200"))
        assert (made.kernel, made.measured) == (pin, 1)
        assert plan_problem(problem, device.lookup("H200"), without=("cutlass_cpp",)).family == "sm90_wgmma"


def test_without_nvcc_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    from cuda import pathfinder

    monkeypatch.setattr(pathfinder, "find_nvidia_binary_utility", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    for known in (build.nvcc, build.missing):
        known.cache_clear()
    chosen = plan(512, 512, 512, dtype="fp16", arch="T4")
    try:
        with pytest.raises(KernelNotBuiltError, match=r"nvcc.*is missing: pip install 'cutegemm\[cutlass-cpp\]'"):
            cache.get(Spec(chosen.family, chosen.config, chosen.problem.signature, "sm_75"))
    finally:
        for known in (build.nvcc, build.missing):
            known.cache_clear()
