"""CUTLASS C++ kernels as nvcc makes them: the tensor cores' instructions of every architecture, no local memory, and a
host's part that agrees with the device's."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from cutegemm import device, epilogues
from cutegemm.compiler import Spec, sass
from cutegemm.cutlass_cpp import build, emit
from cutegemm.kernels import cuda_epilogue
from cutegemm.planner import contiguous_problem, plan_problem

MULTISTAGE = "tile=64x64x32,stages=6,warps=2x2,schedule=multistage"
HOPPER = "tile=128x128x64,cluster=2x1,schedule=cooperative"
#: Architecture, dtype, pin, epilogue, and the instruction that multiplies.
KERNELS = [
    ("sm_75", "fp16", "tile=64x64x32,stages=2,warps=2x2,schedule=twostage", "gelu", r"HMMA\.1688\.F32"),
    ("sm_80", "fp16", f"{MULTISTAGE},split=stream", "gelu", r"HMMA\.16816\.F32 "),
    ("sm_80", "bf16", f"{MULTISTAGE},split=2,reduction=parallel", "swiglu", r"HMMA\.16816\.F32\.BF16"),
    ("sm_80", "fp32", MULTISTAGE, None, r"HMMA\.1688\.F32\.TF32"),
    ("sm_89", "fp16", MULTISTAGE, "bias_relu_aux", r"HMMA\.16816\.F32 "),
    ("sm_89", "bf16", f"{MULTISTAGE},align=4", None, r"HMMA\.16816\.F32\.BF16"),
    ("sm_89", "fp32", MULTISTAGE, "gelu", r"HMMA\.1688\.F32\.TF32"),
    ("sm_120a", "fp16", MULTISTAGE, None, r"HMMA\.16816\.F32 "),
    ("sm_120a", "bf16", MULTISTAGE, "gelu", r"HMMA\.16816\.F32\.BF16"),
    ("sm_120a", "fp32", MULTISTAGE, None, r"HMMA\.1688\.F32\.TF32"),
    ("sm_90a", "fp16", HOPPER, "bias_gelu_aux", r"HGMMA\.64x128x16\.F32"),
    ("sm_90a", "bf16", HOPPER, "swiglu", r"HGMMA\.64x128x16\.F32\.BF16"),
    ("sm_90a", "fp32", f"{HOPPER},split=stream", None, r"HGMMA\.64x128x8\.F32\.TF32"),
]


def spec(arch: str, dtype: str, pin: str, epilogue: str | None) -> Spec:
    graph = None if epilogue is None else getattr(epilogues, epilogue).graph
    precision = {"precision": "tf32"} if dtype == "fp32" else {}
    problem = contiguous_problem(512, 512, 512, dtype=dtype, epilogue=graph, **precision)
    chosen = plan_problem(problem, device.lookup(arch), kernel=f"cutlass_cpp:{pin}")
    return Spec(chosen.family, chosen.config, problem.signature, arch)


def needs_nvcc() -> None:
    if (reason := build.missing()) is not None:
        pytest.skip(reason)


def said(cubin: bytes, tool: str, option: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        return subprocess.run([sass._tool(tool), option, file.name], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel[0]}-{kernel[1]}")
def test_every_dtype_and_architecture_has_its_instruction_and_no_local_memory(
    kernel: tuple[str, str, str, str | None, str],
) -> None:
    needs_nvcc()
    *made, instruction = kernel
    cubin = build.image(spec(*made))
    assert re.search(instruction, said(cubin, "nvdisasm", "-c"))
    usage = said(cubin, "cuobjdump", "--dump-resource-usage")
    assert not any(int(count) for count in re.findall(r"(?:STACK|LOCAL):(\d+)", usage)), usage


def test_the_hosts_part_knows_parameters_grid_and_workspace(tmp_path: Path) -> None:
    needs_nvcc()
    made = spec("sm_80", "fp16", f"{MULTISTAGE},split=3", None)
    library, cubin, seconds = build.compile(made)
    assert seconds > 0
    path = tmp_path / "kernel.so"
    path.write_bytes(library)
    loaded = ctypes.CDLL(str(path))
    start, end = (ctypes.addressof(ctypes.c_char.in_dll(loaded, name)) for name in build.IMAGE)
    assert ctypes.string_at(start, end - start) == cubin

    parameter_bytes, align, threads, shared = (ctypes.c_int64 * 4).in_dll(loaded, f"{made.symbol}_facts")
    assert (threads, shared) == (128, 6 * 2 * 64 * 64)
    constants = int(re.search(r"CONSTANT\[0\]:(\d+)", said(cubin, "cuobjdump", "--dump-resource-usage"))[1])
    assert constants == 352 + parameter_bytes  # on sm_80 parameters lie behind 352 bytes of the driver's
    fields = emit.call_fields(made.signature)
    sizes = {"m": 100, "n": 512, "k": 512, "lda": 512, "ldb": 512, "sm_count": 108, "blocks_per_sm": 2, "parts": 3}
    sizes |= {"alpha": 1, "out0_stride": 512, "swizzle": 1, "workspace": 0}
    call = cuda_epilogue.structure(fields)(*(sizes.get(field.name, 0) for field in fields))
    workspace = getattr(loaded, f"{made.symbol}_workspace")
    workspace.restype = ctypes.c_int64
    tiles = 2 * 8
    assert workspace(ctypes.byref(call)) > 3 * tiles * 64 * 64 * 4  # the sums of every block of a tile, and counters
    assert align <= 64
