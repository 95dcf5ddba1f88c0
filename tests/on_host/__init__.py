"""Hand-written kernels as host code on CPU tensors: a C++ compiler takes them with `cuda.hpp` in CUDA's place.

What a GPU computes follows from the same source; what it costs, and what only hardware can get wrong, is not seen here.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
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
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-pthread", "-w")
_ENTRY = """
extern "C" unsigned long size_of_arguments() {{ return sizeof(Arguments); }}
extern "C" void run(const Arguments* arguments, unsigned blocks, unsigned x, unsigned y) {{
    const auto kernel = [](const void* arguments) {{ {symbol}(*static_cast<const Arguments*>(arguments)); }};
    launch(kernel, arguments, blocks, x, y);
}}
"""


def compiler() -> str:
    """A C++ compiler that knows barriers and `_Float16`, or a skipped test."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def block(folder: Path, *flags: str) -> Path:
    """What all kernels share, as an object file in `folder`."""
    target = folder / "block.o"
    _run([compiler(), *_FLAGS, *flags, "-c", "-o", str(target), str(HERE / "block.cpp")])
    return target


def compile(spec: Spec, block: Path, folder: Path, *flags: str) -> Path:
    """The kernel of `spec` as a shared library in `folder`."""
    for path in (*build.FOLDER.glob("*.cu*"), *HERE.glob("*.cuh"), *HERE.glob("*.h*")):  # ours replace ptx.cuh
        shutil.copy(path, folder)
    source, library = folder / "kernel.cpp", folder / f"{spec.symbol}.so"
    source.write_text('#include "cuda.hpp"\n' + build.source(spec) + _ENTRY.format(symbol=spec.symbol))
    _run([compiler(), *_FLAGS, "-shared", "-I", str(folder), *flags, "-o", str(library), str(source), str(block)])
    return library


_MAIN = """
static Element a[{m} * {k}], b[{k} * {n}];
static fp32 d[{m} * {n}];
int main() {{
    const Arguments arguments = {{a, b, {k}, {n}, {m}, {n}, {k}, 1, nullptr, nullptr, {{d, {n}, 1.0f}}}};
    const auto kernel = [](const void* given) {{ {symbol}(*static_cast<const Arguments*>(given)); }};
    launch(kernel, &arguments, {blocks}, {x}, {y});
}}
"""


def races(
    spec: Spec, m: int, n: int, k: int, folder: Path, *, source: str | None = None, without_barrier: int | None = None
) -> bool:
    """Whether ThreadSanitizer finds a race in the kernel of `spec`, which has no epilogue and gives fp32, at one size.

    `without_barrier` takes the barrier of that number, in the order of the file `source` (default: the level's), out of
    it first.
    """
    level = build.level_of(spec)
    for path in (*build.FOLDER.glob("*.cu*"), *HERE.glob("*.cuh"), *HERE.glob("*.h*")):
        shutil.copy(path, folder)
    if without_barrier is not None:
        path = folder / (level.source if source is None else source)
        parts = re.split(r"(__sync(?:threads|warp)\(\);)", path.read_text())
        parts[2 * without_barrier + 1] = ""
        path.write_text("".join(parts))
    x, y = level.block
    main = _MAIN.format(m=m, n=n, k=k, blocks=level.blocks(m, n), x=x, y=y, symbol=spec.symbol)
    (folder / "kernel.cpp").write_text('#include "cuda.hpp"\n' + build.source(spec) + main)
    program, sources = str(folder / "kernel"), [str(folder / "kernel.cpp"), str(HERE / "block.cpp")]
    _run([compiler(), *_FLAGS, "-g", "-fsanitize=thread", "-I", str(folder), "-o", program, *sources])
    options = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1 exitcode=66 report_bugs=1"}
    done = subprocess.run([program], capture_output=True, text=True, check=False, env=options)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run under this kernel's address layout")
    assert done.returncode in (0, 66), done.stderr[:2000]
    return done.returncode == 66


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


class HostKernel:
    """What `hand_kernels.run.HandKernel` is on a GPU: called with the values of `abi.arguments`, and a stream."""

    def __init__(self, spec: Spec, library: Path) -> None:
        self.spec, self.library = spec, ctypes.CDLL(str(library))
        self.struct, self.sources = arguments_struct(spec.signature)
        assert self.library.size_of_arguments() == ctypes.sizeof(self.struct)

    def __call__(self, *values: Any) -> None:
        named = dict(zip((argument.name for argument in abi.arguments(self.spec.signature)), values, strict=False))
        level = build.level_of(self.spec)
        m, n, k = (named[size] for size in ("m", "n", "k"))
        splits = level.splits(m, n, k, self.spec.signature.a.dtype, GPU.sm_count)
        workspace = Workspace(level, m, n, splits, "cpu")
        named |= dict(zip(glue.LAUNCH, (splits, *workspace.addresses), strict=True))
        arguments = self.struct(*(1 if source is None else named[source] for source in self.sources))
        self.library.run(ctypes.byref(arguments), level.blocks(m, n) * splits, *level.block)


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
    kernel(*(t.data_ptr() for t in tensors_of(call)), *constants, *floats_of(call), 0)
