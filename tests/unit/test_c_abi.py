"""Libraries of kernels for C: what they export, what they check, and what they hand to a kernel.

Three functions are built for up to two architectures. They run against `fake_cudart.c`, which writes launches down.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cutegemm import Col, Row, Scalar, epilogue, epilogues, ops, plan
from cutegemm.compiler import Spec, c_source
from cutegemm.compiler.c_abi import Library, build_library
from cutegemm.compiler.c_source import Function
from cutegemm.errors import ArgumentError, CuteGemmError
from cutegemm.kernels import abi
from cutegemm.problem import Access

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "c"
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
MNK = (300, 512, 264)
C_TYPES = {"int64_t": "c_int64", "float": "c_float"}

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def spec(arch: str, **keywords: Any) -> Spec:
    p = plan(*MNK, arch=arch, **keywords)
    return Spec(p.family, p.config, p.problem.signature, p.device.arch)


GELU = [spec(arch, epilogue=epilogues.bias_gelu) for arch in ("sm_90a", "sm_80")]
NAMED: dict[str, Spec | list[Spec]] = {
    "linear_gelu": GELU,
    "also_gelu": GELU[1],
    "glu": spec("sm_80", epilogue=epilogues.swiglu, layout="nn", align=4, out_dtype="fp32"),
}


@epilogue
def scale_and_clamp(acc: Any, low: Scalar, high: Col) -> Any:
    return ops.minimum(ops.maximum(acc, low), high)


def cc(*arguments: object, compiler: str = "cc") -> str:
    done = subprocess.run([compiler, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return build_library(NAMED, tmp_path_factory.mktemp("c") / "library", jobs=2)


@pytest.fixture(scope="module")
def runtime(library: Library) -> Path:
    """The fake runtime: the functions that `fake_cudart.c` defines, and a stub for every other that is asked for."""
    folder = library.path.parent / "runtime"
    folder.mkdir()
    source = (HERE / "fake_cudart.c").read_text()
    wanted = re.findall(r"U (cuda\w+)", cc("-D", "--undefined-only", library.path, compiler="nm"))
    missing = [name for name in wanted if not re.search(rf"\b{name}\(", source)]
    stubs = [f'int {name}(void) {{ UNEXPECTED("{name}"); }}' for name in missing]
    (folder / "cudart.c").write_text("\n".join((source, *stubs)))
    made = folder / "libcudart.so.13"
    cc("-shared", "-fPIC", *STRICT, f"-Wl,-soname,{made.name}", "-o", made, folder / "cudart.c")
    return made


def function(library: Library, name: str) -> Function:
    return next(f for f in library.functions if f.name == name)


def contiguous(f: Function, mnk: tuple[int, int, int] = MNK, **changes: int | float | None) -> dict[str, Any]:
    """Arguments of a call on contiguous matrices at made-up addresses, by parameter; `changes` replace some."""
    tensors = {t.name: t for t in c_source._tensors(f.signature)}
    sizes = {**dict(zip("mnk", mnk, strict=True)), "batch": 1, "outer": 1}
    values: dict[str, Any] = {}
    for i, p in enumerate(f.parameters):
        if p.c_type.endswith("*"):
            values[p.name] = 4096 * (i + 1)
        elif p.c_type == "float":
            values[p.name] = 1.0
        elif p.argument.startswith("stride."):
            tensor = next(t for t in tensors.values() if p.name.startswith(f"{t.name}_stride_"))
            major = tensor.argument.access.major
            line = sizes[major] // 2 if major == "n" and tensor.argument.paired else sizes[major]
            values[p.name] = 0 if p.name.endswith(("_batch", "_outer")) else line
        else:
            values[p.name] = sizes[p.name]
    assert changes.keys() <= values.keys()
    return values | changes


def request(f: Function, values: Mapping[str, Any], **fake: int) -> dict[str, Any]:
    kinds = {"address": "q", "stride": "q", "size": "i", "float": "f"}
    return {
        "symbol": f.symbol,
        "types": [C_TYPES.get(p.c_type, "c_void_p") for p in f.parameters],
        "values": [values[p.name] for p in f.parameters],
        "kernel": "".join(kinds[a.kind] for a in abi.arguments(f.signature)),
        "fake": fake,
    }


def run(runtime: Path, library: Library, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of calls that one process makes in turn."""
    command = [sys.executable, HERE / "c_abi_caller.py", runtime, library.path]
    done = subprocess.run(command, input=json.dumps(requests), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def test_it_exports_its_functions_and_nothing_else(library: Library) -> None:
    defined = re.findall(r" [A-Z] (\w+)", cc("-D", "--defined-only", library.path, compiler="nm"))
    functions = {"cutegemm_gemm_also_gelu", "cutegemm_gemm_glu", "cutegemm_gemm_linear_gelu"}
    assert set(defined) == {*functions, "cutegemm_last_error", "cutegemm_load"}
    assert {f.symbol for f in library.functions} == functions
    assert library.archs == ("sm_80", "sm_90a")


def test_it_needs_the_cuda_runtime_and_the_c_library(library: Library) -> None:
    needed = re.findall(r"NEEDED +(\S+)", cc("-p", library.path, compiler="objdump"))
    assert needed[0] == "libcudart.so.13"
    assert all(name.startswith(("libc.so", "ld-linux", "libpthread")) for name in needed[1:])


def test_the_same_kernels_make_the_same_files(library: Library, tmp_path: Path) -> None:
    again = build_library(dict(reversed(NAMED.items())), tmp_path, jobs=1)
    assert again.path.read_bytes() == library.path.read_bytes()
    assert again.header.read_bytes() == library.header.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cutegemm.h", "libcutegemm.so"]


@pytest.mark.parametrize(("language", "standard"), [("c", "c99"), ("c", "c17"), ("c++", "c++11"), ("c++", "c++20")])
def test_the_header_is_clean(library: Library, language: str, standard: str) -> None:
    if language == "c++" and shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    compiler = "c++" if language == "c++" else "cc"
    cc(*STRICT, "-fsyntax-only", f"-std={standard}", "-x", language, library.header, compiler=compiler)


def test_the_header_says_what_each_argument_is(library: Library) -> None:
    text = library.header.read_text()
    for line in (
        "linear_gelu: for acc = alpha * sum over k of a[m, k] * b[n, k],",
        "    t0 = acc + bias",
        "a        bf16 [m, k], contiguous along k; address a multiple of 16 bytes, strides of 8 elements",
        "b        bf16 [n, k], contiguous along n; address a multiple of 4 bytes, strides of 2 elements",
        "out      fp32 [m, n / 2], written, contiguous along n; address a multiple of 4 bytes",
        "bias     bf16 [n], contiguous along n; address a multiple of 16 bytes, strides of 8 elements",
        "n must be even",
        f"sm_80: {GELU[1].family}:{GELU[1].config}",
    ):
        assert f" * {line}\n" in text, line


def test_the_source_is_clean(library: Library, tmp_path: Path) -> None:
    plain = spec("sm_80", epilogue=scale_and_clamp, batch=3)
    access = plain.signature.outputs[0]
    everything = replace(
        plain,
        signature=replace(
            plain.signature,
            a=replace(plain.signature.a, major="strided", align=2),
            c=access,
            operands=tuple(Access("bf16", "tensor", 2) if x.major == "float" else x for x in plain.signature.operands),
            alpha="fp32",
        ),
    )
    functions = [*library.functions, Function("everything", (everything,))]
    hosts = {s: c_source.Host(s.symbol, "host") for f in functions for s in f.specs}
    text = c_source.source(functions, hosts)
    (tmp_path / "library.c").write_text(text)
    (tmp_path / "cutegemm.h").write_text(c_source.header(functions))
    cc(*STRICT[:-1], "-std=gnu11", "-O2", "-fsyntax-only", tmp_path / "library.c")
    names = [p.name for p in functions[-1].parameters if "stride" not in p.name]
    assert names == ["a", "b", "c", "out", "high", "alpha", "low", "m", "n", "k", "batch", "outer", "beta", "stream"]
    assert 'cutegemm_pointer("low", low, 2)' in text and 'cutegemm_pointer("alpha", alpha, 4)' in text
    assert 'cutegemm_stride("a_stride_k", a_stride_k, k, 1)' in text
    assert 'cutegemm_lines("a_stride' not in text.partition("int cutegemm_gemm_everything")[2]


def test_arguments_reach_the_kernel_by_name(library: Library, runtime: Path) -> None:
    f = function(library, "linear_gelu")
    values = contiguous(f, batch=3, outer=2, alpha=0.75, stream=7, a_stride_m=272, out_stride_m=520)
    values |= {p: 4096 + 8 * i for i, p in enumerate(values) if p.endswith(("_batch", "_outer"))}
    first, second = run(runtime, library, request(f, values), request(f, values | {"batch": 1, "outer": 1}))
    own = {p.argument: values[p.name] for p in f.parameters} | {"sm_count": 108}
    assert [first["returned"], first["launches"], first["stream"]] == [0, 1, 7]
    assert first["passed"] == [own[a.name] for a in abi.arguments(f.signature)]
    config = f.specs[0].config
    assert first["grid"] == -(-300 // config.tile_m) * -(-512 // config.tile_n) * 6
    assert first["block"] == config.threads
    # A batch of one has no stride, and a kernel is loaded once.
    single = {name: 0 if name.endswith((".l0", ".l1")) else own[name] for name in own} | {"l0": 1, "l1": 1}
    assert second["passed"] == [single[a.name] for a in abi.arguments(f.signature)]
    assert [second["launches"], second["libraries"], second["loads"]] == [2, 1, 1]


def test_persistent_kernels_get_the_gpus_sm_count(library: Library, runtime: Path) -> None:
    f = function(library, "linear_gelu")
    config: Any = f.specs[1].config
    values = contiguous(f, (4096, 8192, 264))
    grids = [
        result["grid"]
        for result in run(
            runtime, library, *(request(f, values, capability=90, sm_count=count) for count in (132, 78, 4))
        )
    ]
    size = config.cluster_m * config.cluster_n
    assert grids == [count // size * size for count in (132, 78, 4)]


NULL, SIZE, STRIDE, MISALIGNED, NO_KERNEL = -1, -2, -3, -4, -5


@pytest.mark.parametrize(
    ("name", "changes", "code", "message"),
    [
        ("linear_gelu", {"a": None}, NULL, "a is NULL"),
        ("linear_gelu", {"bias": None}, NULL, "bias is NULL"),
        ("linear_gelu", {"out": 4104}, MISALIGNED, "out=0x1008: expected a multiple of 16 bytes"),
        ("linear_gelu", {"m": -1}, SIZE, "m=-1: expected 0 to 2147418112"),
        ("linear_gelu", {"n": 2**31}, SIZE, "n=2147483648: expected 0 to 2147418112"),
        ("linear_gelu", {"k": 0}, SIZE, "k=0: expected 1 to 2147418112"),
        ("linear_gelu", {"outer": -2}, SIZE, "outer=-2: expected 0 to"),
        ("linear_gelu", {"batch": 2**30, "outer": 2**30}, SIZE, "at most 2147418112 in one call"),
        ("linear_gelu", {"a_stride_m": 268}, STRIDE, "a_stride_m=268: expected a multiple of 8"),
        ("linear_gelu", {"a_stride_m": -264}, STRIDE, "a_stride_m=-264: expected a multiple of 8, not negative"),
        ("linear_gelu", {"b_stride_n": 256}, STRIDE, "b_stride_n=256: lines of 264 elements would overlap"),
        ("linear_gelu", {"out_stride_m": 0}, STRIDE, "out_stride_m=0: lines of 512 elements would overlap"),
        ("linear_gelu", {"batch": 2, "bias_stride_batch": 4}, STRIDE, "bias_stride_batch=4: expected a multiple of 8"),
        ("glu", {"n": 511}, SIZE, "n=511: the epilogue pairs columns"),
        ("glu", {"out_stride_m": 255}, STRIDE, "out_stride_m=255: lines of 256 elements would overlap"),
        ("glu", {"b": 4098}, MISALIGNED, "b=0x1002: expected a multiple of 4 bytes"),
        ("glu", {"a_stride_m": 100, "k": 263}, STRIDE, "a_stride_m=100: lines of 263 elements would overlap"),
    ],
)
def test_a_bad_argument_is_named_and_nothing_is_launched(
    library: Library, runtime: Path, name: str, changes: dict[str, Any], code: int, message: str
) -> None:
    f = function(library, name)
    (result,) = run(runtime, library, request(f, contiguous(f, **changes)))
    assert result["returned"] == code
    assert message in result["error"]
    assert result["launches"] == result["loads"] == 0


@pytest.mark.parametrize(
    ("name", "changes", "launches"),
    [
        ("linear_gelu", {"m": 0, "a": None, "out": None}, 0),
        ("linear_gelu", {"batch": 0}, 0),
        ("linear_gelu", {"m": 1, "a_stride_m": 3, "out_stride_m": -1}, 1),
        ("linear_gelu", {"a_stride_batch": 3, "out_stride_outer": -1}, 1),
        ("glu", {"k": 0, "a": None, "b": 1}, 1),
        ("glu", {"a_stride_m": 0}, 1),
    ],
)
def test_what_means_nothing_is_not_checked(
    library: Library, runtime: Path, name: str, changes: dict[str, Any], launches: int
) -> None:
    f = function(library, name)
    (result,) = run(runtime, library, request(f, contiguous(f, **changes)))
    assert [result["returned"], result["launches"]] == [0, launches]


def test_a_gpu_without_a_kernel_is_named(library: Library, runtime: Path) -> None:
    f, glu = function(library, "linear_gelu"), function(library, "glu")
    values = contiguous(glu)
    other, hopper, load = run(
        runtime,
        library,
        request(f, contiguous(f), capability=89),
        request(glu, values, capability=90),
        {"symbol": "cutegemm_load", "fake": {"capability": 89}},
    )
    for result, capability in ((other, "8.9"), (hopper, "9.0"), (load, "8.9")):
        assert result["returned"] == NO_KERNEL and result["launches"] == 0
        assert f"compute capability {capability}" in result["error"]


def test_errors_of_cuda_are_returned_and_loading_is_tried_again(library: Library, runtime: Path) -> None:
    f = function(library, "linear_gelu")
    values = contiguous(f)
    failures = {"device_result": 35, "load_result": 209, "launch_result": 719}
    results = run(runtime, library, *(request(f, values, **{name: code}) for name, code in failures.items()))
    assert [result["returned"] for result in results] == [35, 209, 719]
    assert [result["error"] for result in results] == ["CUDA: no driver", "CUDA: another error", "CUDA: another error"]
    assert [result["launches"] for result in results] == [0, 0, 1]


def test_loading_ahead_of_time(library: Library, runtime: Path) -> None:
    f = function(library, "linear_gelu")
    other = function(library, "also_gelu")
    load, *calls = run(runtime, library, {"symbol": "cutegemm_load"}, *(request(x, contiguous(x)) for x in (f, other)))
    # Three functions have two kernels for this GPU between them.
    assert [load["returned"], load["libraries"], load["loads"], load["launches"]] == [0, 2, 2, 0]
    assert [[call[key] for key in ("returned", "loads", "launches")] for call in calls] == [[0, 2, 1], [0, 2, 2]]


def test_the_example_compiles_and_tells_a_wrong_result(library: Library, runtime: Path, tmp_path: Path) -> None:
    for path in (library.path, library.header):
        shutil.copy(path, tmp_path)
    make = ["make", "-C", EXAMPLE, f"BUILD={tmp_path}", f"CUDA_LIB={runtime.parent}", "run"]
    environment = {**os.environ, "MAKEFLAGS": "--old-file=kernels.py"}
    done = subprocess.run(make, env=environment, capture_output=True, text=True, check=False)
    # The fake runtime launches nothing: the output stays what it was filled with.
    assert "300x512x264: " in done.stdout and done.returncode != 0, done.stdout + done.stderr
    assert subprocess.run([tmp_path / "gemm"], capture_output=True, check=False).returncode == 1


def test_the_document_shows_what_is_built(tmp_path: Path) -> None:
    text = (HERE.parents[1] / "docs" / "deploy.md").read_text()
    (program,) = re.findall(r"^```py\n(.*?)^```$", text, re.M | re.S)
    (prototype,) = re.findall(r"^```c\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "build_kernels.py").write_text(program)
    subprocess.run([sys.executable, "build_kernels.py"], cwd=tmp_path, check=True)
    declared = (tmp_path / "build" / "kernels" / "cutegemm.h").read_text()
    assert prototype in declared


def test_what_a_kernel_has_no_blocks_for_is_refused() -> None:
    few = plan(8, 512, 264, arch="sm_90a", kernel="small_m:tile=8x32x64")
    made = Function("few", (Spec("small_m", few.config, few.problem.signature, "sm_90a"),))
    source = c_source.source([made], {made.specs[0]: c_source.Host("x", "y")})
    assert 'cutegemm_size("m", m, 0, 8)' in source and 'cutegemm_size("batch", batch, 0, 65535)' in source
    assert 'cutegemm_size("n", n, 0, 2147418112)' in source
    assert "m must be at most 8" in c_source.header([made])


def test_names_that_c_has_other_uses_for_are_replaced() -> None:
    @epilogue
    def odd(acc: Any, m: Row, int: Row, größe: Row, size_t: Row, a_stride_m: Row, bias: Row, operand0: Scalar) -> Any:
        return ((acc + m + int + größe) * operand0 + size_t + a_stride_m) * bias

    own = spec("sm_80", epilogue=odd)
    names = [p.name for p in Function("f", (own,)).parameters]
    assert names[2:9] == ["out", "operand0", "operand1", "operand2", "operand3", "operand4", "bias"]
    assert names[-3:] == ["alpha", "operand0_", "stream"]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("named", "jobs", "message"),
    [
        ({}, None, "named is empty"),
        ({"a-b": spec("sm_80")}, None, "'a-b': expected ASCII letters, digits and underscores"),
        ({"f": []}, None, "f has no kernel"),
        ({"f": [spec("sm_80"), spec("sm_80")]}, None, "f has two kernels for sm_80"),
        ({"f": [spec("sm_80"), spec("sm_90a", dtype="fp16")]}, None, "f has kernels of different signatures"),
        ({"f": spec("sm_80")}, 0, "jobs=0: expected at least 1"),
    ],
)
def test_what_cannot_be_built_is_refused(named: Any, jobs: int | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        build_library(named, tmp_path / "out", jobs=jobs)
    assert not (tmp_path / "out").exists()


def test_without_a_c_compiler_nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CuteGemmError, match="needs a C compiler"):
        build_library({"f": spec("sm_80")}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_kernel_of_another_configuration_is_another_library(library: Library) -> None:
    own = function(library, "glu").specs[0]
    config: Any = own.config
    other = replace(own, config=replace(config, raster=config.raster + 1))
    assert c_source.header([Function("glu", (own,))]) != c_source.header([Function("glu", (other,))])
