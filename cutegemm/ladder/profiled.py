"""What `cutegemm ladder --profile` runs under ncu: `python -m cutegemm.ladder.profiled 1024 level3:fp32 level7:bf16`.

Each level multiplies once to be compiled and once between the profiler's start and stop.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Runs the levels in `argv`: N, then LEVEL:DTYPE each."""
    import torch

    from cutegemm import gemm

    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    n = int(argv[0])
    for name in argv[1:]:
        level, dtype = name.split(":")
        a, b = (torch.randn(n, n, device="cuda").to(dtypes[dtype]) for _ in range(2))
        out = torch.empty(n, n, dtype=dtypes[dtype], device="cuda")
        gemm(a, b, out=out, kernel=f"hand:{level}")
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        gemm(a, b, out=out, kernel=f"hand:{level}")
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
