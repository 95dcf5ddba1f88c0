"""The SASS of stream-K: a main loop for what is left and one for what is finished, sums that pass in whole vectors, one
release, one acquire, and no spills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cutegemm import epilogues
from cutegemm.compiler import Spec, build, sass
from cutegemm.device import lookup
from cutegemm.kernels.stream_k import Share, clusters_of
from cutegemm.kernels.wgmma_config import WgmmaConfig
from cutegemm.planner import contiguous_problem
from cutegemm.planner.plan import plan_problem
from tests.machine_code import count, disassemble, mnemonics

cutlass = pytest.importorskip("cutlass")

from cutlass import Int32, cute  # noqa: E402
from cutlass.cute.runtime import from_dlpack  # noqa: E402

from cutegemm.kernels.sm90_wgmma import _select  # noqa: E402

LARGE = "sm90_wgmma:tile=128x256x64,stages=4,cluster=2x1,schedule=cooperative,raster=16,split=stream"
FULLEST = "sm90_wgmma:tile=256x160x64,stages=3,cluster=1x2,schedule=cooperative,split=stream"
PIECES = "sm90_wgmma:tile=128x192x32,stages=3,cluster=1x1,schedule=cooperative,pieces=3,split=stream"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fused": (LARGE, {"epilogue": epilogues.bias_gelu}),
    "most accumulators, operands fetched": (FULLEST, {"epilogue": epilogues.bias_add}),
    "misaligned": (FULLEST, {"align": 2}),
    "pieces": (PIECES, {"dtype": "fp32", "precision": "bf16x6"}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_machine_code(case: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    kernel, keywords = case
    pad = ",pad=ab" if "align" in keywords else ""
    problem = contiguous_problem(512, 512 if not pad else 511, 4096 if not pad else 4097, **keywords)
    made = plan_problem(problem, lookup("H200"), kernel=kernel + pad)
    config = made.config
    assert isinstance(config, WgmmaConfig) and config.stream
    artifact = build(Spec(made.family, config, problem.signature, "sm_90a"), keep_cubin=True)
    assert artifact.cubin is not None
    code = sass.read(artifact.cubin)
    assert (code.spills, code.local_bytes) == (0, 0)
    products = 6 if config.pieces == 3 else 1
    assert code.opcodes["HGMMA"] == 2 * products * config.tile_k // 16 * (config.group_m // 64)
    (tmp_path / "k.cubin").write_bytes(artifact.cubin)
    found = mnemonics(disassemble(tmp_path / "k.cubin"))
    vectors = config.accumulators // 4
    assert count(found, "STG.E.128") >= vectors and found["LDG.E.128"] >= vectors
    # A flag goes up behind a fence of the GPU's, is waited for by one load, and comes down.
    assert (found["LDG.E.64.STRONG.GPU"], found["STG.E.64.STRONG.GPU"], found["MEMBAR.ALL.GPU"]) == (1, 2, 1)
    assert found["CCTL.IVALL"] >= 1


def test_the_arithmetic_is_the_same_in_the_kernel() -> None:
    """Run on the host, up to where 32 bits end; `tests/unit/test_stream_k.py` checks it on Python's integers."""
    def pick(condition: bool, x: int, y: int) -> int:
        return x if condition else y

    @cute.jit
    def walk(found: cute.Tensor, tiles: Int32, k_tiles: Int32, slots: Int32) -> None:
        count = clusters_of(tiles, k_tiles, slots, _select)
        at = Int32(0)
        for cluster in cutlass.range(count, unroll=1):
            share = Share.of(tiles, k_tiles, count, cluster, _select)
            for i in cutlass.range(share.unfinished + share.finished, unroll=1):
                tile, first, depth = share.walk(i)
                found[at, 0], found[at, 1], found[at, 2] = tile, first, depth
                found[at, 3] = share.helper
                at = at + 1

    compiled: Any = None
    deepest = (264, 2**31 // 264, 133)
    for sizes in ((136, 64, 132), (131, 64, 132), (263, 7, 66), (3, 1000, 132), (264, 64, 132), deepest):
        count = clusters_of(*sizes, pick)
        wanted = []
        for cluster in range(count):
            share = Share.of(*sizes[:2], count, cluster, pick)
            wanted += [(*share.walk(i), share.helper) for i in range(share.unfinished + share.finished)]
        found = torch.zeros(len(wanted), 4, dtype=torch.int32)
        arguments = (from_dlpack(found).mark_layout_dynamic(), *map(Int32, sizes))
        compiled = compiled or cute.compile(walk, *arguments)
        compiled(*arguments)
        assert [tuple(line) for line in found.tolist()] == wanted
