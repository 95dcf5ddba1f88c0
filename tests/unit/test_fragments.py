"""The fragment layouts: one-to-one, as the CuTe DSL has them, and such that ldmatrix feeds mma; and their command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from cutegemm import cli
from cutegemm.errors import ArgumentError
from cutegemm.fragments import Fragment, Place, fragment

MATRICES = [f"{op}matrix.x{n}{trans}" for op in ("ld", "st") for n in (1, 2, 4) for trans in ("", ".trans")]
WIDTHS = (8, 24, 128, 256)
WGMMA = [f"wgmma.m64n{n}k16" for n in WIDTHS]
EVERY = [
    *product(("mma.m16n8k16", "mma.m16n8k8"), "abc"),
    *((instr, operand) for instr in MATRICES for operand in ("abr" if instr[0] == "l" else "cr")),
    *product(WGMMA, "ac"),
]


@pytest.mark.parametrize(("instr", "operand"), EVERY)
def test_every_place_holds_one_element(instr: str, operand: str) -> None:
    found = fragment(instr, operand)
    rows, columns = found.shape
    assert set(found) == set(product(range(rows), range(columns)))
    halves = {16: 2, 32: 1}[found.bits]
    assert set(found.values()) == set(product(range(found.lanes), range(found.registers), range(halves)))
    assert len(found) == rows * columns == found.lanes * found.registers * halves


@pytest.mark.parametrize(
    ("instr", "operand", "shape"),
    [
        ("mma.m16n8k16", "a", (16, 16)),
        ("mma.m16n8k16", "b", (16, 8)),
        ("mma.m16n8k16", "c", (16, 8)),
        ("mma.m16n8k8", "a", (16, 8)),
        ("mma.m16n8k8", "b", (8, 8)),
        ("ldmatrix.x4", "a", (16, 16)),
        ("ldmatrix.x2", "b", (16, 8)),
        ("stmatrix.x4", "r", (32, 8)),
        ("wgmma.m64n256k16", "c", (64, 256)),
        ("wgmma.m64n8k16", "a", (64, 16)),
    ],
)
def test_shapes(instr: str, operand: str, shape: tuple[int, int]) -> None:
    assert fragment(instr, operand).shape == shape


@pytest.mark.parametrize(
    ("instr", "operand", "element", "place"),
    [
        # Read off the figures of the PTX ISA.
        ("mma.m16n8k16", "a", (8, 0), (0, 1, 0)),
        ("mma.m16n8k16", "a", (7, 9), (28, 2, 1)),
        ("mma.m16n8k16", "b", (15, 7), (31, 1, 1)),
        ("mma.m16n8k16", "c", (15, 0), (28, 2, 0)),
        ("mma.m16n8k8", "a", (0, 4), (0, 2, 0)),
        ("mma.m16n8k8", "b", (5, 2), (9, 1, 0)),
        ("ldmatrix.x4", "r", (9, 3), (5, 1, 1)),
        ("ldmatrix.x4.trans", "r", (9, 3), (12, 1, 1)),
        ("wgmma.m64n64k16", "c", (24, 8), (32, 6, 0)),
        ("wgmma.m64n64k16", "a", (63, 15), (127, 3, 1)),
    ],
)
def test_places(instr: str, operand: str, element: tuple[int, int], place: tuple[int, int, int]) -> None:
    assert fragment(instr, operand)[element] == place


# ---------------------------------------------------------------- ldmatrix and stmatrix move mma's fragments


def registers(instr: str, addresses: tuple[tuple[int, int], ...], along: int) -> dict[Place, tuple[int, int]]:
    """What ldmatrix leaves in each place, from its own definition: lane i's address gives row i of the matrices."""
    loaded = {}
    for (row, column), place in fragment(instr, "r").items():
        element = list(addresses[row])
        element[along] += column
        loaded[place] = (element[0], element[1])
    return loaded


def holds(found: Fragment) -> dict[Place, tuple[int, int]]:
    return {place: element for element, place in found.items()}


def test_ldmatrix_of_a_row_major_tile_is_mmas_a() -> None:
    # The usual addresses: lane l gives row l % 16 from column 0 or 8 on.
    addresses = tuple((lane % 16, lane // 16 * 8) for lane in range(32))
    assert fragment("ldmatrix.x4", "a").addresses == addresses
    assert registers("ldmatrix.x4", addresses, along=1) == holds(fragment("mma.m16n8k16", "a"))


def test_a_trans_too_many_gives_something_else() -> None:
    addresses = fragment("ldmatrix.x4", "a").addresses
    assert registers("ldmatrix.x4.trans", addresses, along=1) != holds(fragment("mma.m16n8k16", "a"))


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize(("count", "operand"), [(4, "a"), (2, "b")])
def test_either_order_in_memory_gives_mmas_operand(count: int, operand: str, trans: str) -> None:
    instr = f"ldmatrix.x{count}{trans}"
    found = fragment(instr, operand)
    assert found == fragment("mma.m16n8k16", operand)
    assert found.along == (found.axes["ab".index(operand)] if trans else "k")
    along = found.axes.index(found.along)
    assert registers(instr, found.addresses, along) == holds(found)


def test_x4_gives_two_neighbouring_b() -> None:
    two, one = fragment("ldmatrix.x4", "b"), fragment("mma.m16n8k16", "b")
    assert all(two[k, n] == one[k, n] for k, n in one)
    assert all(two[k, n + 8] == (lane, register + 2, half) for (k, n), (lane, register, half) in one.items())


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_stores_pairs_of_accumulators(trans: str) -> None:
    stored, accumulators = fragment(f"stmatrix.x2{trans}", "c"), fragment("mma.m16n8k16", "c")
    assert all(stored[e] == (lane, r // 2, r % 2) for e, (lane, r, _) in accumulators.items())
    assert stored.addresses[:8] == tuple((0, i) if trans else (i, 0) for i in range(8))
    assert stored.along == ("m" if trans else "n")


def test_each_lane_addresses_one_row_of_the_matrices() -> None:
    for instr in MATRICES:
        count = int(instr[10])
        assert fragment(instr, "r").addresses == tuple((row, 0) for row in range(8 * count)), instr
    assert fragment("mma.m16n8k16", "a").addresses == ()


# ---------------------------------------------------------------- the CuTe DSL's thread-value layouts


def table(layout: Any) -> dict[tuple[int, int], int]:
    """(thread, value) -> index of a two-mode CuTe layout, from its shape and stride."""

    def offsets(shape: Any, stride: Any) -> list[int]:
        if isinstance(shape, int):
            return [i * stride for i in range(shape)]
        every = [0]
        for inner, step in zip(shape, stride, strict=True):  # the first mode runs fastest
            every = [have + more for more in offsets(inner, step) for have in every]
        return every

    threads, values = map(offsets, layout.shape, layout.stride)
    return {(t, v): x + y for t, x in enumerate(threads) for v, y in enumerate(values)}


def elements(layout: Any, bits: int, *, rows: int, transposed: bool = False) -> dict[Place, tuple[int, int]]:
    """What a CuTe layout places where; its indices count down columns of `rows`, of the transposed tile for B."""
    per_register = 32 // bits
    found = {}
    for (thread, value), index in table(layout).items():
        column, row = divmod(index, rows)
        place = Place(thread, value // per_register, value % per_register)
        found[place] = (column, row) if transposed else (row, column)
    return found


@pytest.fixture(scope="module")
def dsl() -> Iterator[dict[tuple[str, str], dict[Place, tuple[int, int]]]]:
    """The DSL's layouts by instruction and operand; building them needs its compiler but no GPU."""
    cutlass = pytest.importorskip("cutlass")
    from cutlass import cute
    from cutlass.cute.nvgpu import OperandMajorMode, warp, warpgroup

    found = {}

    def collect() -> None:
        atoms = {
            "mma.m16n8k16": warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16)),
            "mma.m16n8k8": warp.MmaTF32Op((16, 8, 8)),
        }
        k_major, source = OperandMajorMode.K, warpgroup.OperandSource.RMEM
        for n in WIDTHS:
            shape = (64, n, 16)
            atoms[f"wgmma.m64n{n}k16"] = warpgroup.MmaF16BF16Op(
                cutlass.BFloat16, cutlass.Float32, shape, source, k_major, k_major
            )
        for instr, op in atoms.items():
            mma = cute.make_tiled_mma(op)
            rows = 64 if instr.startswith("wgmma") else 16
            bits = 32 if instr == "mma.m16n8k8" else 16
            found[instr, "a"] = elements(mma.tv_layout_A, bits, rows=rows)
            found[instr, "c"] = elements(mma.tv_layout_C, 32, rows=rows)
            if not instr.startswith("wgmma"):
                found[instr, "b"] = elements(mma.tv_layout_B, bits, rows=8, transposed=True)
        for trans, n in product((False, True), (1, 2, 4)):
            name = f"matrix.x{n}{'.trans' if trans else ''}"
            load = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(trans, n), cutlass.Float16)
            store = cute.make_copy_atom(warp.StMatrix8x8x16bOp(trans, n), cutlass.Float16)
            # Indices run along rows of eight; the registers are where ldmatrix puts and where stmatrix takes.
            found[f"ld{name}", "r"] = elements(load.layout_dst_tv, 16, rows=8, transposed=True)
            found[f"st{name}", "r"] = elements(store.layout_src_tv, 16, rows=8, transposed=True)

    @cute.jit
    def host() -> None:
        collect()

    cute.compile(host, options="--gpu-arch sm_90a")
    yield found


def test_the_cute_dsl_agrees(dsl: dict[tuple[str, str], dict[Place, tuple[int, int]]]) -> None:
    assert len(dsl) == 2 * 3 + len(WIDTHS) * 2 + 12
    for (instr, operand), theirs in dsl.items():
        assert holds(fragment(instr, operand)) == theirs, (instr, operand)


# ---------------------------------------------------------------- errors and the command


@pytest.mark.parametrize(
    ("instr", "operand", "words"),
    [
        ("wmma.m16n16k16", "a", "wmma.m16n16k16: the layout of a wmma fragment is opaque"),
        ("mma.m16n8k32", "a", "unknown instruction 'mma.m16n8k32': known are mma.m16n8k16"),
        ("ldmatrix.x3", "a", "unknown instruction 'ldmatrix.x3'"),
        ("wgmma.m64n12k16", "c", "unknown instruction 'wgmma.m64n12k16'.*N = 8, 16"),
        ("wgmma.m64n264k16", "c", "unknown instruction"),
        ("mma.m16n8k16", "d", "mma.m16n8k16 has no operand 'd' in registers: it has a, b, c$"),
        ("wgmma.m64n64k16", "b", "it has a, c; b is read from shared memory"),
        ("stmatrix.x4", "a", "it has c, r"),
    ],
)
def test_what_has_no_layout_is_refused_with_the_choices(
    instr: str, operand: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ArgumentError, match=words):
        fragment(instr, operand)
    assert cli.main(["fragments", "--instr", instr, "--operand", operand]) == 1
    assert re.search(words, capsys.readouterr().err.strip())


def grid(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, list[str]]:
    """The printed lines that have a heading: by heading, the cells."""
    assert cli.main(["fragments", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    return {line[:8].strip(): line[8:].split() for line in lines if re.match(r"(m|n|k|row) \d+ ", line)}


def test_the_grid_shows_each_element(capsys: pytest.CaptureFixture[str]) -> None:
    cells = grid(capsys, "--instr", "mma.m16n8k16", "--operand", "a")
    assert list(cells) == [f"m {row}" for row in range(16)]
    assert cells["m 0"][:3] == ["0.r0l", "0.r0h", "1.r0l"]
    assert cells["m 15"][8:10] == ["28.r3l", "28.r3h"]
    assert all(len(row) == 16 for row in cells.values())


def test_elements_of_32_bits_have_no_halves(capsys: pytest.CaptureFixture[str]) -> None:
    cells = grid(capsys, "--instr", "mma.m16n8k8", "--operand", "b")
    assert cells["k 5"] == [f"{4 * n + 1}.r1" for n in range(8)]


def test_columns_and_headings_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fragments", "--instr", "ldmatrix.x4.trans", "--operand", "b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ldmatrix.x4.trans, b (k, n): 16x16 elements of 16 bits in 4 registers of 32 lanes"
    assert "  lanes  8 to 15 point at k 8, n 0 to k 15, n 0" in lines
    (heading,) = [line for line in lines if line.startswith(" " * 8)]
    last = lines[-1]
    assert last[heading.index("n 3 ") :].startswith("15.r1h") and last[heading.index("n 15") :] == "31.r3h"


def test_a_wide_tile_is_shown_by_columns(capsys: pytest.CaptureFixture[str]) -> None:
    wide = ["fragments", "--instr", "wgmma.m64n128k16", "--operand", "c"]
    assert cli.main(wide) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "columns 0 to 7 of 128: --columns 8:16 shows the next"
    cells = grid(capsys, *wide[1:], "--columns", "120:999", "--rows", "63:64")
    assert cells == {"m 63": [f"{124 + n // 2}.r{62 + n % 2}" for n in range(8)]}
    assert cli.main([*wide, "--columns", "128:136"]) == 1
    assert "the tile has 128 columns" in capsys.readouterr().err


@pytest.mark.parametrize("span", ["8", "8:8", "9:8", "a:b", "-1:4"])
def test_a_span_that_is_none_ends_with_2(span: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["fragments", "--instr", "mma.m16n8k16", "--operand", "a", f"--rows={span}"])
    assert exit.value.code == 2 and "START:STOP such as 8:16" in capsys.readouterr().err


def test_json_has_every_element(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fragments", "--instr", "stmatrix.x2.trans", "--operand", "c", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    found = fragment("stmatrix.x2.trans", "c")
    assert {(r, c): tuple(x) for r, row in enumerate(data["elements"]) for c, x in enumerate(row)} == dict(found)
    assert data["addresses"][3] == [0, 3] and data["along"] == "m" and data["axes"] == ["m", "n"]
    assert (data["shape"], data["bits"], data["lanes"], data["registers"]) == ([16, 8], 16, 32, 2)
