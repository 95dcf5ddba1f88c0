"""The CUDA C++ lowering, compiled for devices: by NVRTC without headers, by nvcc for host and device, and what the
instructions cost."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cutegemm import epilogues, ops
from cutegemm.fusion import Graph, epilogue
from cutegemm.fusion.to_cuda import lanes
from tests import lowered, machine_code
from tests.lowered import every_node
from tests.machine_code import ARITHMETIC, count, mnemonics

THREADS = 128
ARCHITECTURES = ("sm_75", "sm_80", "sm_90a", "sm_120")


GRAPHS: dict[str, Graph] = {
    "every_node": every_node.graph,
    "cast_fp16": epilogue(lambda acc: ops.cast(acc, "fp16")).graph,
    "cast_bf16": epilogue(lambda acc: ops.cast(acc, "bf16")).graph,
    **{f"library_{name}": getattr(epilogues, name).graph for name in dir(epilogues)},
}


def source() -> str:
    """A kernel for each graph that applies it to one element (or two neighbours) a thread."""
    signature = "__global__ void {}(const float* in, float* out)"
    return lowered.source(GRAPHS, signature, "{}", f"[{{}} * {THREADS} + threadIdx.x]")


def nvrtc(arch: str) -> bytes:
    core = pytest.importorskip("cuda.core")
    pathfinder = pytest.importorskip("cuda.pathfinder")
    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except pathfinder.DynamicLibNotFoundError:
        pytest.skip("NVRTC is not installed (nvidia-cuda-nvrtc)")
    code: bytes = core.Program(source(), "c++", core.ProgramOptions(arch=arch)).compile("cubin").code
    return code


def disassemble(cubin: bytes, folder: Path) -> dict[str, Counter[str]]:
    """The counts of mnemonics of each graph's kernel."""
    (folder / "lowered.cubin").write_bytes(cubin)
    listing = machine_code.disassemble(folder / "lowered.cubin")
    _, *pieces = re.split(r"^\.text\.run_(\w+):$", listing, flags=re.MULTILINE)
    return {name: mnemonics(piece) for name, piece in zip(pieces[0::2], pieces[1::2], strict=True)}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def compiled(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Counter[str]]]:
    arch: str = request.param
    return arch, disassemble(nvrtc(arch), tmp_path_factory.mktemp(arch))


def test_every_graph_compiles_without_slow_paths(compiled: tuple[str, dict[str, Counter[str]]]) -> None:
    _, kernels = compiled
    assert kernels.keys() == GRAPHS.keys()
    for name, found in kernels.items():
        assert count(found, "LDL", "STL", "CALL", "BSSY", "BRX") == 0, (name, found)
        assert count(found, "STG") == sum(lanes(GRAPHS[name]).outputs), (name, found)


# MUFU operations, and all arithmetic, comparisons and selects, of one element (of one pair in a gated unit): what the
# CuTe lowering takes too.
COSTS = {
    "relu": (0, 1),
    "leaky_relu": (0, 2),
    "clamp": (0, 2),
    "gelu": (1, 14),
    "bias_gelu": (1, 15),
    "bias_gelu_aux": (1, 15),
    "gelu_tanh": (2, 8),
    "silu": (2, 5),
    "bias_silu": (2, 6),
    "sigmoid": (2, 4),
    "tanh": (2, 16),
    "swiglu": (2, 6),
    "geglu": (1, 16),
    "bias_add": (0, 2),
    "scale": (0, 1),
}


def test_costs(compiled: tuple[str, dict[str, Counter[str]]]) -> None:
    arch, kernels = compiled
    for name, (mufu, arithmetic) in COSTS.items():
        found = kernels[f"library_{name}"]
        assert count(found, "MUFU") == mufu, (name, found)
        # Before sm_80 there is no minimum that propagates NaN: a comparison and a sum stand in for it.
        extra = 2 * count(found, "FMNMX") if arch == "sm_75" else 0
        assert count(found, *ARITHMETIC) <= arithmetic + extra, (name, found)


def test_the_hardware_converts_and_propagates_nan(compiled: tuple[str, dict[str, Counter[str]]]) -> None:
    arch, kernels = compiled
    assert count(kernels["cast_fp16"], "F2F") == 1
    assert count(kernels["cast_bf16"], "F2F") == (arch != "sm_75")
    assert count(kernels["library_relu"], "FMNMX.NAN") == (arch != "sm_75")


def test_nvcc_takes_it_for_host_and_device(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    on_host = "float on_host(float x) {\n    float y;\n    library_gelu::apply(x, y);\n    return y;\n}\n"
    (tmp_path / "lowered.cu").write_text(f"{source()}\n{on_host}")
    command = [nvcc, "-std=c++17", "-arch=sm_90a", "-Werror", "all-warnings", "-Xcompiler", "-Wall", "-c", "lowered.cu"]
    compiled = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr[:4000]
