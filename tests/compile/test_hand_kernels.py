"""The SASS of the hand-written levels: the instructions that each is about, no local memory, barriers for everybody."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from cutegemm import device, epilogues
from cutegemm.compiler import Spec, sass
from cutegemm.errors import CuteGemmError
from cutegemm.fusion import Graph
from cutegemm.hand_kernels import LEVELS, Level, build, find
from cutegemm.planner import contiguous_problem

EPILOGUES: dict[str, Graph | None] = {"identity": None, "bias_gelu_aux": epilogues.bias_gelu_aux.graph}
RESERVED = {"sm_75": 0, "sm_80": 0, "sm_90a": 1024}  # what cuobjdump counts beside the kernel's own
MAIN = {level.source: level for level in reversed(LEVELS)}.values()
#: Architecture, dtype, epilogue and alignment.
Kind = tuple[str, str, str, int]


def kinds(level: Level) -> list[Kind]:
    """What is compiled of a level: a kernel takes up to three seconds.

    Each first level of a source in its dtypes (of 16-bit ones, which share all but a conversion and an instruction, one
    by turns), on the oldest architecture that it serves, and with a heavy epilogue on unaligned rows. Of variants,
    which are other sizes in the same source, what is not.
    """
    sixteen = ("fp16", "bf16")[LEVELS.index(level) % 2]
    first = "fp32" if "fp32" in level.dtypes else sixteen
    heavy = ("sm_90a", first, "bias_gelu_aux", 4 if level.boxes is None else 16)
    if level not in MAIN:
        return [("sm_90a", first, "identity", 16)]
    made = [("sm_90a", dtype, "identity", 16) for dtype in dict.fromkeys((first, sixteen))]
    if level.source != "level8_tuned.cu":  # level 9 has its loop and its epilogue
        made.append(heavy)
    if level.only is None and not level.split_k:
        made.append((f"sm_{level.since}", first, "identity", 16))
    return made


@cache
def compiled(level: Level, arch: str, dtype: str, epilogue: str, align: int) -> bytes:
    problem = contiguous_problem(
        4095, 4096, 4096, dtype=dtype, layout="nn", epilogue=EPILOGUES[epilogue], align=align
    )
    try:
        return build.compile(Spec(build.FAMILY, level, problem.signature, arch))[0]
    except CuteGemmError as error:
        if "is missing" in str(error):
            pytest.skip(str(error))
        raise


def printed(cubin: bytes, tool: str, option: str) -> str:
    """What a tool says of a cubin. To start nvdisasm takes longer than to compile most kernels; cuobjdump's resources
    are there at once."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        return subprocess.run([sass._tool(tool), option, file.name], capture_output=True, text=True, check=True).stdout


@cache
def listing(cubin: bytes) -> list[str]:
    """The instructions with their modifiers and operands, in order."""
    text = printed(cubin, "nvdisasm", "-c")
    return [m[1] for m in re.finditer(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", text, re.MULTILINE)]


def listings(kernels: Iterable[tuple[Level, Kind]]) -> list[list[str]]:
    """Each kernel's, read while the next is compiled."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reading = [pool.submit(listing, compiled(level, *kind)) for level, kind in kernels]
    return [found.result() for found in reading]


def count(instructions: list[str], pattern: str) -> int:
    return sum(bool(re.match(rf"(?:@!?U?P\w+ +)?{pattern}", instruction)) for instruction in instructions)


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_no_local_memory_and_the_declared_resources(level: Level) -> None:
    for kind in kinds(level):
        usage = printed(compiled(level, *kind), "cuobjdump", "-res-usage")
        found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
        assert found is not None, usage
        arch, (registers, stack, shared, local) = kind[0], map(int, found.groups())
        assert stack == local == 0, kind  # nor are registers spilled, which would lie there
        assert shared == (0 if level.dynamic else level.smem_bytes) + (RESERVED[arch] if level.smem_bytes else 0), kind
        assert registers * level.threads <= device.lookup(arch).registers_per_sm, kind


def test_barriers_are_never_predicated() -> None:
    for level, instructions in zip(MAIN, listings((level, kinds(level)[0]) for level in MAIN), strict=True):
        assert count(instructions, r"BAR\.SYNC") == len([i for i in instructions if "BAR.SYNC" in i]), level
        assert not [i for i in instructions if i.startswith("@") and "BAR." in i], level


def test_each_level_is_made_of_what_it_teaches() -> None:
    def of(name: str, dtype: str = "fp32", align: int = 16) -> list[str]:
        return listing(compiled(find(name), "sm_90a", dtype, "identity", align))

    def sixteen(name: str) -> str:
        """The 16-bit type in which all tests have the level."""
        return next(dtype for _, dtype, *_ in kinds(find(name)) if dtype != "fp32")

    assert count(of("level1"), r"LDG\.E\.(64|128)") == 0
    assert count(of("level1"), "LDS|STS|BAR") == 0
    # Four k of A, and four columns of B for each, two such turns unrolled: no load waits for a condition.
    loop = " ".join(i.partition(" ")[0] for i in of("level2") if re.match(r"@|LDG|BRA|BSSY|BSYNC", i))
    assert "LDG.E.128 " * 10 in loop
    assert count(of("level2", sixteen("level2")), r"LDG\.E\.64") >= 10
    assert count(of("level2", align=4), r"LDG\.E\.(64|128)") == 0
    assert count(of("level3"), r"BAR\.SYNC") == 2
    assert count(of("level3"), "LDG") == 8  # four elements of A and of B a thread, every one once
    level4 = of("level4")
    assert count(level4, r"BAR\.SYNC") == 2
    assert count(level4, r"LDS\.128") == 64  # eight rows of A for each of 32 k
    assert count(level4, r"STS\.128") == 1 and count(level4, r"STS ") == 4
    # Two steps are copied before the loop and one in it, whole ones with no bytes to fill; eight k of products in it.
    for name, copies, outputs in (("level5", 4, 128), ("level5-square", 3, 64)):
        level5 = of(name)
        assert count(level5, r"LDGSTS\.E\.BYPASS\.128") == 2 * count(level5, r"LDGSTS\S*ZFILL") == 3 * 2 * copies
        assert count(level5, "LDGDEPBAR") == 3 and count(level5, r"DEPBAR\.LE") == 2
        assert count(level5, r"BAR\.SYNC") == 2
        assert count(level5, r"LDS\.(64|128)") < 8 * outputs // 10
        assert count(level5, "FFMA") == 8 * outputs
        assert count(level5, r"STG\.E\.128") == outputs // 4
        assert count(level5, "HMMA") == 0
    # 32 x 64 of a warp, 32 of K: 2 x 4 x 2 products of wmma, two instructions each.
    level6 = of("level6", sixteen("level6"))
    assert count(level6, "HMMA.16816.F32") == 32 and count(level6, "LDGSTS") == 8
    assert count(level6, "WARPSYNC|NOP|BAR") >= 2
    # 2 x 8 products of a warp, 2 deep; fragments of them by 2 and 4 loads; three steps copied before, one after.
    level7 = of("level7", sixteen("level7"))
    assert count(level7, "HMMA.16816.F32") == 32
    assert count(level7, r"LDSM\.16\.M88\.4") == 4 and count(level7, r"LDSM\.16\.MT88\.4") == 8
    assert count(level7, r"LDGSTS\.E\.BYPASS\.128") == 4 * 4
    assert count(level7, r"BAR\.SYNC") == 1 and count(level7, r"LDS(\.\w+)* R\d|STS") == 0
    assert count(level7, r"STG\.E\.128") == 8
    # 4 x 8 products of a warp, 4 deep, fragments by 4 and 4 loads, and those of the first depth before the loop.
    level8 = of("level8", sixteen("level8"))
    assert count(level8, "HMMA.16816.F32") == 128
    assert count(level8, r"LDSM\.16\.M88\.4") == 20 and count(level8, r"LDSM\.16\.MT88\.4") == 20
    assert count(level8, r"LDGSTS\.E\.BYPASS\S*\.128") == 3 * 12
    assert count(level8, r"BAR\.SYNC") == 2 and count(level8, r"STG\.E\.128") == 16
    # Two such loops, one of them with nothing to fill up; the parts' sums stored once, and read.
    level9 = of("level9", sixteen("level9"))
    assert count(level9, "HMMA.16816.F32") == 256
    assert count(level9, r"LDGSTS\.E\.BYPASS\S*\.128") == 2 * 3 * 12
    assert count(level9, r"LDGSTS\S*ZFILL") < 3 * 12
    assert count(level9, r"STG\.E\.128") == 16 + 32 and count(level9, r"LDG\.E\.128") == 32
    assert count(level9, r"ATOMG?\.\S*ADD|ATOM\S*") == 1 and count(level9, r"BAR\.RED") == 1
    # Four products of a step, one copy of A's tile and two of B's; sums go to D from registers.
    for dtype in ("fp16", "bf16"):
        level10 = of("level10", dtype)
        kind = {"fp16": "", "bf16": r"\.BF16"}[dtype]
        assert count(level10, rf"HGMMA\.64x256x16\.F32{kind} .*tnspB") == count(level10, "HGMMA") == 4
        assert count(level10, r"WARPGROUP\.ARRIVE") == 1 and count(level10, r"WARPGROUP\.DEPBAR\.LE") == 2
        assert count(level10, r"UTMALDG\.2D ") == 1 and count(level10, r"UTMALDG\.2D\.MULTICAST ") == 2
        assert count(level10, r"USETMAXREG\.(DEALLOC|TRY_ALLOC)") == 2
        assert count(level10, r"SYNCS\.PHASECHK\S*TRYWAIT") >= 2 and count(level10, r"SYNCS\.ARRIVE\S*RED") == 2
        assert count(level10, r"UCGABAR_ARV") == count(level10, "UCGABAR_WAIT") >= 2
        assert count(level10, r"LDS|STS|LDSM|LDGSTS|HMMA|LDL|STL|BAR") == 0 and count(level10, r"STG\.E\.128") == 16


@pytest.mark.parametrize(
    ("align", "names"),
    [
        (2, ("level2", "level5", "level7")),
        (4, ("level2", "level5", "level7", "level9")),
        (8, ("level4", "level6", "level7")),
    ],
)
def test_rows_of_any_alignment_compile(align: int, names: tuple[str, ...]) -> None:
    """By loads of runs, and by copies of chunks, which a few functions have for all levels."""
    levels = [find(name) for name in names]
    # Those aligned to 4 bytes are there: with an epilogue, which has no wider accesses either.
    there = {level: [kind for kind in kinds(level) if kind[3] == align] for level in levels}
    kernels = [(level, *(found or [("sm_90a", "bf16", "identity", align)])) for level, found in there.items()]
    for level, instructions in zip(levels, listings(kernels), strict=True):
        assert count(instructions, r"LDG\.E\.128") == (32 if level.split_k else 0)  # a split's sums, never A and B
        if level.since >= 80:
            assert (count(instructions, "LDGSTS") > 0) == (align > 2)
            assert count(instructions, r"LDGSTS\.E\.BYPASS\.128") == 0
