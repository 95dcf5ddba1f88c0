"""The SASS of the hand-written levels: the instructions that each is about, no local memory, barriers for everybody."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from cutegemm import device, epilogues
from cutegemm.compiler import Spec, sass
from cutegemm.errors import CuteGemmError
from cutegemm.fusion import Graph
from cutegemm.hand_kernels import LEVELS, Level, build, find
from cutegemm.planner import PINNED, contiguous_problem, refusal

ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")
EPILOGUES: dict[str, Graph | None] = {"identity": None, "bias_gelu_aux": epilogues.bias_gelu_aux.graph}
RESERVED = {"sm_75": 0, "sm_80": 0, "sm_90a": 1024}  # what cuobjdump counts beside the kernel's own


def kernels() -> list[tuple[Level, str, str, str, int]]:
    """Level, architecture, dtype, epilogue and alignment of everything that is compiled, as far as it is legal."""
    listed = []
    for level in LEVELS:
        for arch in ARCHITECTURES:
            for dtype in level.dtypes:
                for name, align in (("identity", 16), ("bias_gelu_aux", 4 if level.boxes is None else 16)):
                    problem = contiguous_problem(4095, 4096, 4096, dtype=dtype, layout="nn", align=align)
                    if refusal(problem, PINNED["hand"], level, device.lookup(arch)) is None:
                        listed.append((level, arch, dtype, name, align))
    return listed


@cache
def compiled(level: Level, arch: str, dtype: str, epilogue: str = "identity", align: int = 16) -> bytes:
    problem = contiguous_problem(
        4095, 4096, 4096, dtype=dtype, layout="nn", epilogue=EPILOGUES[epilogue], align=align
    )
    try:
        return build.compile(Spec(build.FAMILY, level, problem.signature, arch))[0]
    except CuteGemmError as error:
        if "is missing" in str(error):
            pytest.skip(str(error))
        raise


def listing(cubin: bytes) -> list[str]:
    """The instructions with their modifiers and operands, in order."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        tool = sass._tool("nvdisasm")
        text = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout
    return [m[1] for m in re.finditer(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", text, re.MULTILINE)]


def count(instructions: list[str], pattern: str) -> int:
    return sum(bool(re.match(rf"(?:@!?U?P\w+ +)?{pattern}", instruction)) for instruction in instructions)


@pytest.mark.parametrize(
    ("level", "arch", "dtype", "epilogue", "align"), kernels(), ids=lambda value: str(value)
)
def test_no_local_memory_and_the_declared_resources(
    level: Level, arch: str, dtype: str, epilogue: str, align: int
) -> None:
    found = sass.read(compiled(level, arch, dtype, epilogue, align))
    assert found.local_bytes == 0 and found.spills == 0
    static = 0 if level.dynamic else level.smem_bytes
    assert found.static_shared_bytes == static + (RESERVED[arch] if level.smem_bytes else 0)
    assert found.registers * level.threads <= device.lookup(arch).registers_per_sm


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_barriers_are_never_predicated(level: Level, arch: str) -> None:
    if (level, arch, level.dtypes[0], "identity", 16) not in kernels():
        pytest.skip("a declared limit")
    instructions = listing(compiled(level, arch, level.dtypes[0]))
    assert count(instructions, r"BAR\.SYNC") == len([i for i in instructions if "BAR.SYNC" in i])
    assert not [i for i in instructions if i.startswith("@") and "BAR." in i]


def test_each_level_is_made_of_what_it_teaches() -> None:
    def of(name: str, dtype: str = "fp32", arch: str = "sm_90a", align: int = 16) -> list[str]:
        return listing(compiled(find(name), arch, dtype, align=align))

    assert count(of("level1"), r"LDG\.E\.(64|128)") == 0
    assert count(of("level1"), "LDS|STS|BAR") == 0
    assert count(of("level2"), r"LDG\.E\.128") >= 5  # four k of A, and four columns of B for each
    assert count(of("level2", "bf16"), r"LDG\.E\.64") >= 5
    assert count(of("level2", align=4), r"LDG\.E\.(64|128)") == 0
    assert count(of("level3"), r"BAR\.SYNC") == 2
    assert count(of("level3"), "LDG") == 8  # four elements of A and of B a thread, every one once
    level4 = of("level4")
    assert count(level4, r"BAR\.SYNC") == 2
    assert count(level4, r"LDS\.128") == 64  # eight rows of A for each of 32 k
    assert count(level4, r"STS\.128") == 1 and count(level4, r"STS ") == 4
    for name in ("level5", "level5-wide"):
        level5 = of(name)
        assert count(level5, r"LDGSTS\.E\.BYPASS\.128") == 2 * 2 * (256 // find(name).threads) * 2
        assert count(level5, "LDGDEPBAR") == 2 and count(level5, r"DEPBAR\.LE") == 1
        assert count(level5, r"BAR\.SYNC") == 1
        assert count(level5, r"STG\.E\.128") == 16 * (256 // find(name).threads)
        assert count(level5, "HMMA") == 0
    # 32 x 64 of a warp, 32 of K: 2 x 4 x 2 products of wmma, two instructions each.
    for dtype in ("fp16", "bf16"):
        assert count(of("level6", dtype), "HMMA.16816.F32") == 32
        assert count(of("level6", dtype), "LDGSTS") == 8
        assert count(of("level6", dtype), "WARPSYNC|NOP|BAR") >= 2
        # 2 x 8 products of a warp, 2 deep; fragments of them by 2 and 4 loads; three steps copied before, one after.
        level7 = of("level7", dtype)
        assert count(level7, "HMMA.16816.F32") == 32
        assert count(level7, r"LDSM\.16\.M88\.4") == 4 and count(level7, r"LDSM\.16\.MT88\.4") == 8
        assert count(level7, r"LDGSTS\.E\.BYPASS\.128") == 4 * 4
        assert count(level7, r"BAR\.SYNC") == 1 and count(level7, r"LDS(\.\w+)* R\d|STS") == 0
        assert count(level7, r"STG\.E\.128") == 8
        # 4 x 8 products of a warp, 4 deep, fragments by 4 and 4 loads, and those of the first depth before the loop.
        level8 = of("level8", dtype)
        assert count(level8, "HMMA.16816.F32") == 128
        assert count(level8, r"LDSM\.16\.M88\.4") == 20 and count(level8, r"LDSM\.16\.MT88\.4") == 20
        assert count(level8, r"LDGSTS\.E\.BYPASS\S*\.128") == 3 * 12
        assert count(level8, r"BAR\.SYNC") == 2 and count(level8, r"STG\.E\.128") == 16
        # Two such loops, one of them with nothing to fill up; the parts' sums stored once, and read.
        level9 = of("level9", dtype)
        assert count(level9, "HMMA.16816.F32") == 256
        assert count(level9, r"LDGSTS\.E\.BYPASS\S*\.128") == 2 * 3 * 12
        assert count(level9, r"LDGSTS\S*ZFILL") < 3 * 12
        assert count(level9, r"STG\.E\.128") == 16 + 32 and count(level9, r"LDG\.E\.128") == 32
        # Four products of a step, one copy of A's tile and two of B's; sums go to D from registers.
        level10 = of("level10", dtype)
        kind = {"fp16": "", "bf16": r"\.BF16"}[dtype]
        assert count(level10, rf"HGMMA\.64x256x16\.F32{kind} .*tnspB") == count(level10, "HGMMA") == 4
        assert count(level10, r"WARPGROUP\.ARRIVE") == 1 and count(level10, r"WARPGROUP\.DEPBAR\.LE") == 2
        assert count(level10, r"UTMALDG\.2D ") == 1 and count(level10, r"UTMALDG\.2D\.MULTICAST ") == 2
        assert count(level10, r"USETMAXREG\.(DEALLOC|TRY_ALLOC)") == 2
        assert count(level10, r"SYNCS\.PHASECHK\S*TRYWAIT") >= 2 and count(level10, r"SYNCS\.ARRIVE\S*RED") == 2
        assert count(level10, r"UCGABAR_ARV") == count(level10, "UCGABAR_WAIT") >= 2
        assert count(level10, r"LDS|STS|LDSM|LDGSTS|HMMA|LDL|STL|BAR") == 0 and count(level10, r"STG\.E\.128") == 16
        assert count(level9, r"ATOMG?\.\S*ADD|ATOM\S*") == 1 and count(level9, r"BAR\.RED") == 1


@pytest.mark.parametrize("align", [2, 4, 8])
def test_rows_of_any_alignment_compile(align: int) -> None:
    for level in LEVELS:
        if level.only is None and "bf16" in level.dtypes:
            instructions = listing(compiled(level, "sm_90a", "bf16", align=align))
            widths = {2: 0, 4: 32, 8: 64}[align]
            assert count(instructions, r"LDG\.E\.128") == (32 if level.split_k else 0)  # a split's sums, never A and B
            if level.since >= 80:
                assert (count(instructions, "LDGSTS") > 0) == (widths > 0)
                assert count(instructions, r"LDGSTS\.E\.BYPASS\.128") == 0
