"""Libraries of kernels for C on the GPU that is here: results, streams, graphs, and the example program."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, gemm
from cutegemm.compiler.c_abi import Library, build_library
from cutegemm.compiler.c_source import Function
from cutegemm.device import DeviceSpec
from tests.ahead import spec_of
from tests.helpers import Guarded, check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "c"
FAMILIES = {"sm80": "sm80_multistage", "sm90": "sm90_wgmma"}


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def case(name: str, family: str) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """A call of `gemm` by the name of its function: A, B and keywords."""
    a, w = randn(3, 200, 264), randn(3, 328, 264)
    keywords: dict[str, dict[str, Any]] = {
        "plain": {},
        "gelu": {"epilogue": epilogues.bias_gelu_aux(randn(328))},
        "glu": {"epilogue": epilogues.swiglu()},
        "scaled": {"c": randn(3, 200, 328), "alpha": torch.tensor(0.75, device="cuda"), "beta": -2.0},
    }
    return a, w.transpose(-1, -2), {"kernel": family, **keywords[name]}


CASES = ("plain", "gelu", "glu", "scaled")


def families() -> list[str]:
    return ["sm80", *(["sm90"] if DeviceSpec.query(0).arch == "sm_90a" else [])]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Library:
    named = {}
    for family in families():
        for name in CASES:
            a, b, keywords = case(name, FAMILIES[family])
            named[f"{family}_{name}"] = spec_of(a, b, **keywords)
    return build_library(named, tmp_path_factory.mktemp("c_abi"))


@pytest.fixture(scope="module")
def library(built: Library) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(built.path))
    loaded.cutegemm_last_error.restype = ctypes.c_char_p
    return loaded


def function(built: Library, name: str) -> Function:
    return next(f for f in built.functions if f.name == name)


def call(
    library: ctypes.CDLL,
    f: Function,
    tensors: Mapping[str, Tensor],
    floats: Mapping[str, float],
    stream: int | None = None,
) -> int:
    """Call `f` on matrices with one batch dimension and (n,) rows; B as `gemm` takes it."""
    a, b = tensors["a"], tensors["b"]
    sizes = {"m": a.shape[-2], "n": b.shape[-1], "k": a.shape[-1], "batch": a.shape[0], "outer": 1}
    values: list[Any] = []
    types: list[Any] = []
    for p in f.parameters:
        if p.name == "stream":
            values.append(torch.cuda.current_stream().cuda_stream if stream is None else stream)
            types.append(ctypes.c_void_p)
        elif p.c_type.endswith("*"):
            values.append(tensors[p.name].data_ptr())
            types.append(ctypes.c_void_p)
        elif p.c_type == "float":
            values.append(floats[p.name])
            types.append(ctypes.c_float)
        elif "_stride_" in p.name:
            name, _, dim = p.name.partition("_stride_")
            values.append(stride(tensors[name], name, dim))
            types.append(ctypes.c_int64)
        else:
            values.append(sizes[p.name])
            types.append(ctypes.c_int64)
    symbol = getattr(library, f.symbol)
    symbol.argtypes = types
    returned: int = symbol(*values)
    return returned


def stride(tensor: Tensor, name: str, dim: str) -> int:
    if dim == "outer" or (dim == "batch" and tensor.ndim < 3):
        return 0
    own = {"a": "mk", "b": "kn"}.get(name, "mn")
    return tensor.stride(0) if dim == "batch" else tensor.stride(own.index(dim) - 2)


def arguments(
    f: Function, a: Tensor, b: Tensor, keywords: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, float], list[str]]:
    """Tensors by parameter, outputs allocated; floats by parameter; the outputs' names."""
    tensors, floats = {"a": a, "b": b}, {"alpha": 1.0}
    graph = f.signature.epilogue
    for name in ("c", "alpha", "beta"):
        value = keywords.get(name)
        if isinstance(value, Tensor):
            tensors[name] = value
        elif value is not None:
            floats[name] = value
    if graph.operands:
        tensors |= {s.name: o for s, o in zip(graph.operands, keywords["epilogue"].operands, strict=True)}
    shape = (*a.shape[:-1], b.shape[-1])
    for output in graph.outputs:
        width = shape[-1] // 2 if output.paired else shape[-1]
        tensors[output.name] = torch.full((*shape[:-1], width), torch.nan, device="cuda", dtype=torch.bfloat16)
    return tensors, floats, [output.name for output in graph.outputs]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_gemms_own(built: Library, library: ctypes.CDLL, family: str, name: str) -> None:
    if family not in families():
        pytest.skip(f"{FAMILIES[family]} has no kernels for this GPU")
    a, b, keywords = case(name, FAMILIES[family])
    f = function(built, f"{family}_{name}")
    tensors, floats, outputs = arguments(f, a, b, keywords)
    assert call(library, f, tensors, floats) == 0, library.cutegemm_last_error()
    results = [tensors[output] for output in outputs]
    check(results if len(results) > 1 else results[0], a, b, **{k: v for k, v in keywords.items() if k != "kernel"})
    expected = gemm(a, b, **keywords)
    for result, wanted in zip(results, [expected] if isinstance(expected, Tensor) else expected, strict=True):
        assert torch.equal(result, wanted)


@pytest.mark.parametrize("m", [1, 63, 200, 515])
def test_any_size_and_nothing_outside_the_output(built: Library, library: ctypes.CDLL, m: int) -> None:
    f = function(built, f"{families()[-1]}_plain")
    a, b = randn(2, m, 88)[:, :, :72], randn(2, 120, 72).transpose(-1, -2)
    out = Guarded((2, m, 120), torch.bfloat16, strides=(m * 136 + 8, 136, 1), device="cuda")
    assert call(library, f, {"a": a, "b": b, "out": out.tensor}, {"alpha": 1.0}) == 0, library.cutegemm_last_error()
    torch.cuda.synchronize()
    check(out.tensor, a, b)
    out.assert_intact()


def test_a_shared_operand_has_a_batch_stride_of_0(built: Library, library: ctypes.CDLL) -> None:
    f = function(built, f"{families()[-1]}_plain")
    a, b = randn(4, 96, 128), randn(1, 80, 128).transpose(-1, -2).expand(4, 128, 80)
    out = torch.empty(4, 96, 80, device="cuda", dtype=torch.bfloat16)
    assert call(library, f, {"a": a, "b": b, "out": out}, {"alpha": 1.0}) == 0, library.cutegemm_last_error()
    check(out, a, b)


def test_a_call_is_asynchronous_on_its_stream(built: Library, library: ctypes.CDLL) -> None:
    f = function(built, f"{families()[-1]}_plain")
    a, b, value = torch.zeros(1, 512, 512, device="cuda").bfloat16(), randn(1, 512, 512), randn(1, 512, 512)
    b = b.transpose(-1, -2)
    out = torch.empty_like(a)
    assert library.cutegemm_load() == 0
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        a.copy_(value)
    assert call(library, f, {"a": a, "b": b, "out": out}, {"alpha": 1.0}, stream.cuda_stream) == 0
    assert not stream.query(), "the call waited for the stream"
    stream.synchronize()
    check(out, value, b)


def test_a_loaded_kernel_can_be_captured_in_a_graph(built: Library, library: ctypes.CDLL) -> None:
    f = function(built, f"{families()[-1]}_plain")
    a, b, value = randn(1, 200, 304), randn(1, 104, 304).transpose(-1, -2), randn(1, 200, 304)
    out = torch.empty(1, 200, 104, device="cuda", dtype=torch.bfloat16)
    assert library.cutegemm_load() == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        returned = call(library, f, {"a": a, "b": b, "out": out}, {"alpha": 1.0})
    assert returned == 0, library.cutegemm_last_error()
    a.copy_(value)
    graph.replay()
    check(out, value, b)


def test_first_calls_from_threads(built: Library) -> None:
    copy = built.path.with_name("copy.so")
    shutil.copy(built.path, copy)  # of which nothing is loaded yet
    library = ctypes.CDLL(str(copy))
    f = function(built, f"{families()[-1]}_plain")
    a, b = randn(1, 256, 256), randn(1, 256, 256).transpose(-1, -2)
    outs = [torch.empty_like(a) for _ in range(8)]
    torch.cuda.synchronize()
    start, returned = threading.Barrier(8), [-1] * 8

    def first(i: int) -> None:
        start.wait(60)
        returned[i] = call(library, f, {"a": a, "b": b, "out": outs[i]}, {"alpha": 1.0}, stream=0)

    threads = [threading.Thread(target=first, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert returned == [0] * 8
    torch.cuda.synchronize()
    for out in outs:
        check(out, a, b)


def runtime_folder() -> Path | None:
    """Where `libcudart.so.13` is: a toolkit's folder, or that of the package that torch depends on."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    folders = (Path("/usr/local/cuda/lib64"), packages / "cu13" / "lib", packages / "cuda_runtime" / "lib")
    return next((folder for folder in folders if (folder / "libcudart.so.13").exists()), None)


def test_the_example_program(tmp_path: Path) -> None:
    folder = runtime_folder()
    if folder is None or shutil.which("make") is None:
        pytest.skip("needs make and libcudart.so.13")

    arch = DeviceSpec.query(0).arch
    variables = [f"BUILD={tmp_path}", f"ARCHS={arch}", f"CUDA_LIB={folder}", f"PYTHON={sys.executable}"]
    done = subprocess.run(["make", "-C", EXAMPLE, *variables], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300x512x264: 0 of 153600 wrong" in done.stdout
