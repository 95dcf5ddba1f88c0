"""Hand-written kernels as host code on CPU tensors: a C++ compiler takes them with `cuda.hpp` in CUDA's place.

What a GPU computes follows from the same source; what it costs, and what only hardware can get wrong, is not seen here.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from cutegemm.compiler import Spec
from cutegemm.device import lookup
from cutegemm.hand_kernels import build, glue
from cutegemm.hand_kernels.run import Workspace, arguments_struct
from cutegemm.kernels import abi
from cutegemm.launch import _constants, floats_of, tensors_of
from cutegemm.normalize import Call, allocate, check, parse, prepare
from cutegemm.options import Options
from cutegemm.planner import plan_problem

GPU = lookup("H200")
HERE = Path(__file__).parent
# -Og: compiling takes longer than running. A fortified longjmp doesn't leave the stack that it is on.
_FLAGS = ("-std=c++20", "-Og", "-fPIC", "-w", "-U_FORTIFY_SOURCE")
_LIBRARIES = ("-nostdlib", "-lgcc")  # linked sooner so; what else it needs, the library of `block` brings along
_ENTRY = """
extern "C" unsigned long size_of_arguments() {{ return sizeof(Arguments); }}
extern "C" bool run(const Arguments* arguments, unsigned blocks, unsigned x, unsigned y) {{
    const auto kernel = [](const void* arguments) {{ {symbol}(*static_cast<const Arguments*>(arguments)); }};
    return launch(kernel, arguments, blocks, x, y);
}}
"""
# What races are looked for in. Its barriers are numbered from 1, and one may be left out.
_MAIN = """
int left_out;
static Element a[{m} * {k}], b[{k} * {n}];
static fp32 d[{m} * {n}];
int main(int, char** given) {{
    left_out = *given[1] - '0';
    const Arguments arguments = {{a, b, {k}, {n}, {m}, {n}, {k}, 1, nullptr, nullptr, {{d, {n}, 1.0f}}}};
    const auto kernel = [](const void* given) {{ {symbol}(*static_cast<const Arguments*>(given)); }};
    return launch(kernel, &arguments, {blocks}, {x}, {y}) ? 0 : {deadlock};
}}
"""
_BARRIER = re.compile(r"__sync(?:threads|warp)\(\);")
_RACE, _DEADLOCK = 66, 67


def compiler() -> str:
    """A C++ compiler that knows `_Float16`, or a skipped test."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@cache
def block(session: Path) -> Path:
    """What all kernels share, as a library, and the headers beside it: compiled once for a session's folder."""
    folder = session / "block"
    folder.mkdir()
    _copy_headers(folder)
    library = folder / "block.so"
    _run([compiler(), *_FLAGS, "-O2", "-shared", "-o", str(library), str(HERE / "block.cpp")])
    return library


def library(text: str, target: Path, block: Path) -> ctypes.CDLL:
    """`text`, behind what stands in for CUDA, compiled as the library `target`."""
    source = target.with_suffix(".cpp")
    source.write_text('#include "cuda.hpp"\n' + text)
    command = [compiler(), *_FLAGS, "-shared", "-I", str(block.parent), "-o", str(target), str(source), str(block)]
    _run([*command, *_LIBRARIES])
    return ctypes.CDLL(str(target))


def program_for_races(spec: Spec, m: int, n: int, k: int, source: str, block: Path, folder: Path) -> Path:
    """A program for `races`: the kernel of `spec`, which has no epilogue and gives fp32, at one size. Barriers of the
    file `source` can be left out."""
    _copy_headers(folder)
    path, number = folder / source, itertools.count(1)
    path.write_text(_BARRIER.sub(lambda match: f"if (left_out != {next(number)}) {match[0]}", path.read_text()))
    level = build.level_of(spec)
    x, y = level.block
    values = {"m": m, "n": n, "k": k, "blocks": level.blocks(m, n), "x": x, "y": y, "symbol": spec.symbol}
    main, program = folder / "kernel.cpp", folder / "kernel"
    text = build.source(spec) + _MAIN.format(**values, deadlock=_DEADLOCK)
    main.write_text('#include "cuda.hpp"\nextern int left_out;\n' + text)
    flags = (*_FLAGS, "-g", "-fsanitize=thread", "-I", str(folder))
    _run([compiler(), *flags, "-o", str(program), str(main), str(block)])
    return program


def races(program: Path, without_barrier: int | None = None) -> bool:
    """Whether ThreadSanitizer finds a race in the kernel.

    `without_barrier` takes out the barrier of that number, from 0 on in the order of the source.
    """
    symbolize = int(without_barrier is None)  # a race that is expected needs no line numbers, which take a while
    options = {**os.environ, "TSAN_OPTIONS": f"halt_on_error=1 exitcode={_RACE} symbolize={symbolize}"}
    left_out = 0 if without_barrier is None else without_barrier + 1
    done = subprocess.run([program, str(left_out)], capture_output=True, text=True, check=False, env=options)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run under this kernel's address layout")
    assert done.returncode != _DEADLOCK, "threads wait for others that never come"
    assert done.returncode in (0, _RACE), done.stderr[:2000]
    print(done.stderr)  # where the race is; shown if a test fails
    return done.returncode == _RACE


def _copy_headers(folder: Path) -> None:
    """The kernels' sources and what stands in for CUDA; our ptx.cuh replaces theirs."""
    for path in (*build.FOLDER.glob("*.cu*"), *HERE.glob("*.cuh"), *HERE.glob("*.h*")):
        shutil.copy(path, folder)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


class HostKernel:
    """What `hand_kernels.run.HandKernel` is on a GPU: called with the values of `abi.arguments`, and a stream.

    It is compiled first, in `folder`.
    """

    def __init__(self, spec: Spec, block: Path, folder: Path) -> None:
        text = build.source(spec) + _ENTRY.format(symbol=spec.symbol)
        self.spec, self.library = spec, library(text, folder / f"{spec.symbol}.so", block)
        self.struct, self.sources = arguments_struct(spec.signature)
        self.library.run.restype = ctypes.c_bool
        assert self.library.size_of_arguments() == ctypes.sizeof(self.struct)

    def __call__(self, *values: Any) -> None:
        named = dict(zip((argument.name for argument in abi.arguments(self.spec.signature)), values, strict=False))
        level = build.level_of(self.spec)
        m, n, k = (named[size] for size in ("m", "n", "k"))
        splits = level.splits(m, n, k, self.spec.signature.a.dtype, GPU.sm_count)
        workspace = Workspace(level, m, n, splits, "cpu")
        named |= dict(zip(glue.LAUNCH, (splits, *workspace.addresses), strict=True))
        arguments = self.struct(*(1 if source is None else named[source] for source in self.sources))
        ended = self.library.run(ctypes.byref(arguments), level.blocks(m, n) * splits, *level.block)
        assert ended, "threads wait for others that never come"


def prepared(a: Tensor, b: Tensor, **keywords: Any) -> Call:
    """The call that `gemm` makes of these arguments. Keywords: epilogue, c, alpha, beta, out, out_dtype."""
    named: dict[str, Any] = {"epilogue": None, "c": None, "alpha": 1.0, "beta": None, "out": None, "out_dtype": None}
    arguments = parse(a, b, **named | keywords, options=Options())
    request, sizes = check(arguments)
    return prepare(arguments, request, sizes, allocate(arguments, sizes))


def spec_of(call: Call, level: str, arch: str = GPU.arch) -> Spec:
    """The kernel that the level called `level` serves a call with. Raises what planning raises for CUDA tensors."""
    plan = plan_problem(call.recipe.problem, lookup(arch), kernel=f"hand:{level}")
    return Spec(plan.family, plan.config, call.recipe.problem.signature, arch)


def run(call: Call, kernel: HostKernel) -> None:
    """Compute a call of CPU tensors as `cutegemm.launch` would launch one of CUDA tensors."""
    constants, _ = _constants(call.recipe, GPU.sm_count)
    no_workspace = 0  # of the caller: a `HostKernel` has its own
    kernel(*(t.data_ptr() for t in tensors_of(call)), no_workspace, *constants, *floats_of(call), 0)
