"""What `cutegemm ladder --profile` runs under ncu: `python -m cutegemm.ladder.profiled 1024 level3:fp32 level7:bf16`.

Each level multiplies once to be compiled and once between the profiler's start and stop.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cutegemm.comparison import Case, Entrant


def main(argv: Sequence[str]) -> int:
    """Runs the levels in `argv`: N, then LEVEL:DTYPE each."""
    import torch

    from cutegemm.contest import call_of, draw

    n = int(argv[0])
    for name in argv[1:]:
        level, dtype = name.split(":")
        case = Case(n, n, n, dtype, "nn")
        call = call_of(case, Entrant(level, f"hand:{level}", ""), draw(case))
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
