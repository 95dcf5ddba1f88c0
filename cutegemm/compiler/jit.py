"""Compiling a spec, with the CuTe DSL, NVRTC or nvcc, on any machine: no GPU and no driver are needed."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.compiler.spec import Spec
from cutegemm.compiler.toolchains import TOOLCHAINS
from cutegemm.kernels import abi, kernel_class

# The DSL builds its modules in process-wide state: one compilation at a time.
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled kernel: an ELF object whose function `spec.symbol` follows the TVM-FFI calling convention, or what the
    family's own toolchain makes.

    `cubin` is the GPU's part alone, kept on request; `seconds` is what compiling took.
    """

    spec: Spec
    elf: bytes
    cubin: bytes | None
    seconds: float


def build(spec: Spec, *, keep_cubin: bool = False) -> Artifact:
    """Compile `spec`. Takes 1 to 10 seconds, most of them in the assembler; with nvcc 10 to 100."""
    toolchain = TOOLCHAINS.get(spec.family)
    if toolchain is not None:
        return Artifact(spec, *toolchain.compile(spec))
    with _LOCK, tempfile.TemporaryDirectory(prefix="cutegemm-") as scratch:
        started = time.perf_counter()
        options = "--enable-tvm-ffi" + (f" --keep-cubin --dump-dir {scratch}" if keep_cubin else "")
        compiled = compile_for(spec, options)
        path = Path(scratch) / "kernel.o"
        compiled.export_to_c(str(path), function_name=spec.symbol)
        cubin = next(Path(scratch).glob("*.cubin")).read_bytes() if keep_cubin else None
        return Artifact(spec, path.read_bytes(), cubin, time.perf_counter() - started)


def compile_for(spec: Spec, options: str) -> Any:
    """What the DSL makes of `spec` with `options` beside the architecture. Not for several threads at a time."""
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_stream

    types = {"address": cutlass.Int64, "size": cutlass.Int32, "stride": cutlass.Int64, "float": cutlass.Float32}
    arguments = [types[argument.kind](0) for argument in abi.arguments(spec.signature)]
    kernel = kernel_class(spec.family)(spec.signature, spec.config)
    return cute.compile(kernel, *arguments, make_fake_stream(), options=f"--gpu-arch {spec.arch} {options}")
