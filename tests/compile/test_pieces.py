"""The SASS of fp32 by bf16: wgmma for each pair of pieces, the sums of k-tiles added in registers, no spills."""

from __future__ import annotations

from typing import Any

import pytest

from cutegemm import epilogues
from cutegemm.compiler import Spec, build, sass
from cutegemm.device import lookup
from cutegemm.kernels import pieces
from cutegemm.kernels.wgmma_config import INSTRUCTION_M, OF_PIECES
from cutegemm.planner import contiguous_problem
from cutegemm.planner.plan import plan_problem

H200 = lookup("H200")
#: A configuration's number, and what is asked of it.
CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "largest": (0, "", {"epilogue": epilogues.bias_gelu}),
    "nine, M-major and N-major": (1, "", {"precision": "bf16x9", "layout": "tn", "epilogue": epilogues.bias_add}),
    "swapped, split, odd": (7, ",split=3", {"layout": "nn", "align": 4, "out_dtype": "bf16"}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_machine_code(case: tuple[int, str, dict[str, Any]]) -> None:
    number, options, keywords = case
    config = OF_PIECES[number]
    size = 4096 if keywords.get("align", 16) == 16 else 4095
    problem = contiguous_problem(size, size, size, dtype="fp32", **{"precision": "bf16x6"} | keywords)
    made = plan_problem(problem, H200, kernel=f"sm90_wgmma:{config}{options}")
    artifact = build(Spec(made.family, made.config, problem.signature, H200.arch), keep_cubin=True)
    assert artifact.cubin is not None
    code = sass.read(artifact.cubin)
    assert (code.spills, code.local_bytes) == (0, 0) and not {"LDL", "STL", "HMMA"} & set(code.opcodes)
    pairs = len(pieces.pairs(problem.signature))
    assert code.opcodes["HGMMA"] == pairs * config.tile_k // 16 * (config.group_m // INSTRUCTION_M)
    # What is left of a number after its first and its second piece; each accumulator to its sum.
    assert code.opcodes["FADD"] >= config.accumulators
    assert code.opcodes["UTMALDG"] >= 2 * pieces.PIECES and code.opcodes["USETMAXREG"] == 2
