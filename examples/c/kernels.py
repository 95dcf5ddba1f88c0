"""Build the C library that gemm.c calls: python kernels.py FOLDER [ARCH…]"""

from __future__ import annotations

import sys
from pathlib import Path

from cutegemm import epilogues, plan
from cutegemm.compiler import Spec
from cutegemm.compiler.c_abi import build_library


def spec(arch: str) -> Spec:
    """The kernel for `arch` of a bf16 linear layer with bias and GELU."""
    p = plan(300, 512, 264, dtype="bf16", layout="nt", epilogue=epilogues.bias_gelu, arch=arch)
    return Spec(p.family, p.config, p.problem.signature, p.device.arch)


if __name__ == "__main__":
    folder, *archs = sys.argv[1:]
    library = build_library({"linear_gelu": [spec(arch) for arch in archs or ("sm_80", "sm_90a")]}, Path(folder))
    print(f"{library.path} for {', '.join(library.archs)}: {library.seconds:.1f} s")
