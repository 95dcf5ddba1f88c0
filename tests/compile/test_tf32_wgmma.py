"""The SASS of TF32 by wgmma: its instructions one behind the other, operands turned in shared memory, no spills."""

from __future__ import annotations

from typing import Any

import pytest

from cutegemm import epilogues
from cutegemm.compiler import Spec, build, sass
from cutegemm.device import lookup
from cutegemm.kernels.wgmma_config import INSTRUCTION_M, OF_TF32, WgmmaConfig
from cutegemm.planner import contiguous_problem
from cutegemm.planner.plan import plan_problem

H200 = lookup("H200")
LARGEST = OF_TF32[0]
ALTERNATING = next(config for config in OF_TF32 if config.pingpong and config.cluster_n == 2)
SWAPPED, *_, SMALL = (config for config in OF_TF32 if config.swap_ab)
FULLEST = next(config for config in OF_TF32 if config.accumulators == 160)
#: A configuration, and what is asked of it.
CASES: dict[str, tuple[WgmmaConfig, str, dict[str, Any]]] = {
    "largest": (LARGEST, "", {"epilogue": epilogues.bias_gelu}),
    "ping-pong, both turned, bf16 output": (ALTERNATING, ",pad=ab", {"layout": "tn", "out_dtype": "bf16"}),
    "through registers, swapped": (SWAPPED, "", {"layout": "nn"}),
    "through registers, as many as fit": (FULLEST, ",pad=a", {"layout": "tn", "epilogue": epilogues.bias_gelu_aux}),
    "swapped, split, odd": (SMALL, ",split=3,pad=ab", {"layout": "nn", "align": 4}),
}


@pytest.mark.parametrize("name", CASES)
def test_machine_code(name: str) -> None:
    config, options, keywords = CASES[name]
    size = 4096 if keywords.get("align", 16) == 16 else 4095
    problem = contiguous_problem(size, size, size, dtype="fp32", precision="tf32", **keywords)
    made = plan_problem(problem, H200, kernel=f"sm90_wgmma:{config}{options}")
    artifact = build(Spec(made.family, made.config, problem.signature, H200.arch), keep_cubin=True)
    assert artifact.cubin is not None
    code = sass.read(artifact.cubin)
    assert (code.spills, code.local_bytes) == (0, 0) and not {"LDL", "STL", "HMMA"} & set(code.opcodes)
    assert code.opcodes["HGMMA"] == config.tile_k // 8 * (config.group_m // INSTRUCTION_M)
    # Arrival, then waits for the k-tile before and for the last one: none between instructions of a k-tile. Where A
    # passes through registers it is so for each k-block, and a number is loaded once, beside those before the loop.
    through = "registers" in name
    assert code.opcodes["WARPGROUP"] == (2 * config.k_blocks + 1 if through else 3)
    assert not through or code.opcodes["LDS"] >= config.fragments + config.fragments // 2
    assert code.opcodes["UTMALDG"] >= 2 and code.opcodes["USETMAXREG"] == 2
    assert ("BAR" in code.opcodes) and (("LDG" in code.opcodes) or not options)
