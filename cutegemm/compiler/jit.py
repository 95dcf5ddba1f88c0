"""Compiling a spec with the CuTe DSL, on any machine: no GPU and no driver are needed."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from cutegemm.compiler.spec import Spec
from cutegemm.kernels import abi, kernel_class

# The DSL builds its modules in process-wide state: one compilation at a time.
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled kernel: an ELF object whose function `spec.symbol` follows the TVM-FFI calling convention.

    `cubin` is the GPU's part alone, kept on request; `seconds` is what compiling took.
    """

    spec: Spec
    elf: bytes
    cubin: bytes | None
    seconds: float


def build(spec: Spec, *, keep_cubin: bool = False) -> Artifact:
    """Compile `spec`. Takes 1 to 10 seconds, most of them in the assembler."""
    with _LOCK:
        import cutlass
        from cutlass import cute
        from cutlass.cute.runtime import make_fake_stream

        started = time.perf_counter()
        types = {
            "address": cutlass.Int64,
            "size": cutlass.Int32,
            "stride": cutlass.Int64,
            "float": cutlass.Float32,
        }
        arguments = [types[argument.kind](0) for argument in abi.arguments(spec.signature)]
        kernel = kernel_class(spec.family)(spec.signature, spec.config)
        with tempfile.TemporaryDirectory(prefix="cutegemm-") as scratch:
            options = f"--gpu-arch {spec.arch} --enable-tvm-ffi"
            if keep_cubin:
                options += f" --keep-cubin --dump-dir {scratch}"
            compiled = cute.compile(kernel, *arguments, make_fake_stream(), options=options)
            path = Path(scratch) / "kernel.o"
            compiled.export_to_c(str(path), function_name=spec.symbol)
            cubin = next(Path(scratch).glob("*.cubin")).read_bytes() if keep_cubin else None
            return Artifact(spec, path.read_bytes(), cubin, time.perf_counter() - started)
