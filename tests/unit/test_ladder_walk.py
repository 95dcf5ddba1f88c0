"""Walks against brute force: a block's loads cover a step's tiles once, its stores D once, and its products are right.

A block is run by the walk alone: shared memory is filled at the places that the loads name, and read at those that the
reads, or the fragments' lanes, name.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from torch import Tensor

from cutegemm import cli
from cutegemm.errors import ArgumentError, DTypeError
from cutegemm.fragments import fragment
from cutegemm.hand_kernels import LEVELS, Level, find
from cutegemm.hand_kernels.walk import Move, Scheme, Thread, scheme
from cutegemm.hand_kernels.walk_mma import Warps

#: Whole tiles and 16-byte accesses; ragged tiles with rows that are aligned to one element.
WHOLE, RAGGED = (512, 256, 128), (267, 403, 101)
CUDA_CORES = [level for level in LEVELS if level.unit == "fp32"]
#: Level 9's and the other configurations' of level 8 are level 8's.
SCHEMES = [*CUDA_CORES, *(find(name) for name in ("level6", "level7", "level8-128x128x32", "level8"))]
SERVED = [(level, level.dtypes[0], WHOLE) for level in SCHEMES]
SERVED += [(level, "bf16", RAGGED) for level in SCHEMES if level.name not in ("level8", "level4-conflicting")]


def threads(level: Level) -> list[Thread]:
    return [(x, y) for y in range(level.block[1]) for x in range(level.block[0])]


def last_block(walk: Scheme) -> tuple[int, int]:
    return walk.grid[0] - 1, walk.grid[1] - 1


def elements(move: Move) -> list[tuple[int, int]]:
    return [(move.row, move.column + i) for i in range(move.valid)]


@pytest.mark.parametrize(("level", "dtype", "size"), [x for x in SERVED if x[0].smem_bytes], ids=str)
def test_a_blocks_loads_fill_each_place_and_read_each_element_once(
    level: Level, dtype: str, size: tuple[int, int, int]
) -> None:
    walk = scheme(level, *size, dtype)
    m, n, k = size
    block = last_block(walk)
    row, column = walk.origin(block)
    for step in {walk.steps - 1} if size == RAGGED else {0}:
        moves = [move for thread in threads(level) for move in walk.loads(block, thread, step)]
        read = Counter((move.matrix, *at) for move in moves for at in elements(move))
        depths = range(step * walk.depth, min(k, (step + 1) * walk.depth))
        wanted = [("a", r, j) for r in range(row, min(m, row + level.tile_m)) for j in depths]
        wanted += [("b", j, c) for j in depths for c in range(column, min(n, column + level.tile_n))]
        assert read == Counter(wanted)
        # Every place of the tiles is written once, zeros among them, and holds what the formula says.
        base = walk.stage(step) * walk.stage_bytes
        places = Counter((move.array, move.matrix, place) for move in moves for place in move.places)
        first = step * walk.depth
        tiles = [
            (walk.arrays[0], "a", base + walk.a_place(r, j)) for r in range(level.tile_m) for j in range(walk.depth)
        ]
        tiles += [
            (walk.arrays[1], "b", base + walk.b_place(j, c)) for j in range(walk.depth) for c in range(level.tile_n)
        ]
        assert places == Counter(tiles)
        for move in moves[:: 1 + len(moves) // 64]:
            for i, place in enumerate(move.places):
                r, c = move.row, move.column + i
                at = walk.a_place(r - row, c - first) if move.matrix == "a" else walk.b_place(r - first, c - column)
                assert place == base + at
        assert max(place for _, _, place in tiles) < level.smem_bytes


@pytest.mark.parametrize(("level", "dtype", "size"), SERVED, ids=str)
def test_a_blocks_stores_cover_its_outputs_once(level: Level, dtype: str, size: tuple[int, int, int]) -> None:
    walk = scheme(level, *size, dtype)
    for block in [last_block(walk)]:
        row, column = walk.origin(block)
        moves = [move for thread in threads(level) for move in walk.stores(block, thread)]
        stored = Counter(at for move in moves for at in elements(move))
        rows, columns = range(row, min(size[0], row + level.tile_m)), range(column, min(size[1], column + level.tile_n))
        assert stored == Counter((r, c) for r in rows for c in columns)
        assert all(move.address == (move.row * size[1] + move.column) * walk.itemsize for move in moves)
        assert max(move.elements for move in moves) == (walk.per if level.name.startswith("level5") else level.columns)


def operands(m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(m)
    return tuple(torch.randint(-8, 9, shape, generator=draw).double() for shape in ((m, k), (k, n)))  # type: ignore[return-value]


Memory = dict[tuple[str | None, int], float]


def filled(walk: Scheme, block: tuple[int, int], step: int, a: Tensor, b: Tensor) -> Memory:
    """Shared memory after a block's loads of `step`."""
    memory: Memory = {}
    lists = {"a": a.tolist(), "b": b.tolist()}
    for thread in threads(walk.level):
        for move in walk.loads(block, thread, step):
            for i, place in enumerate(move.places):
                memory[move.array, place] = lists[move.matrix][move.row][move.column + i] if i < move.valid else 0.0
    return memory


def product(walk: Scheme, block: tuple[int, int], step: int, a: Tensor, b: Tensor) -> Tensor:
    """The block's tile of A[:, step] @ B[step], zeros beyond D."""
    row, column = walk.origin(block)
    depths = slice(step * walk.depth, (step + 1) * walk.depth)
    part = a[row : row + walk.level.tile_m, depths] @ b[depths, column : column + walk.level.tile_n]
    right = torch.zeros(walk.level.tile_m, walk.level.tile_n, dtype=torch.float64)
    right[: part.shape[0], : part.shape[1]] = part
    return right


@pytest.mark.parametrize("size", [WHOLE, RAGGED], ids=str)
@pytest.mark.parametrize("level", [level for level in CUDA_CORES if level.smem_bytes], ids=str)
def test_a_block_multiplies_what_it_has_read(level: Level, size: tuple[int, int, int]) -> None:
    walk = scheme(level, *size, "fp32")
    a, b = operands(*size)
    block, step = last_block(walk), walk.steps - 1
    memory = filled(walk, block, step, a, b)
    right = product(walk, block, step, a, b).tolist()
    base = walk.stage(step) * walk.stage_bytes
    for thread in threads(level)[::7]:
        for row, column in walk.outputs(thread)[::3]:
            places = ((base + walk.a_place(row, k), base + walk.b_place(k, column)) for k in range(walk.depth))
            total = sum(memory[walk.arrays[0], x] * memory[walk.arrays[1], y] for x, y in places)
            assert total == right[row][column]
    owned = Counter(at for thread in threads(level) for at in walk.outputs(thread))
    assert owned == Counter((r, c) for r in range(level.tile_m) for c in range(level.tile_n))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("level", [level for level in CUDA_CORES if level.smem_bytes], ids=str)
def test_reads_are_of_what_the_products_take(level: Level, dtype: str) -> None:
    walk = scheme(level, 256, 256, 256, dtype)
    width = 4 if level.name < "level5" else walk.itemsize
    for thread in threads(level)[::37]:
        for k in range(walk.depth):
            reads = walk.reads(thread, 1, k)
            assert all(read.place % read.size == 0 for read in reads)
            given = {(r.matrix, place) for r in reads for place in range(r.place, r.place + r.size, width)}
            base = walk.stage(1) * walk.stage_bytes
            taken = {("a", base + walk.a_place(row, k)) for row, _ in walk.outputs(thread)}
            taken |= {("b", base + walk.b_place(k, column)) for _, column in walk.outputs(thread)}
            assert taken <= given
            assert dtype != "fp32" or level.name < "level5" or len(taken) == 8 + dict(level.parameters)["THREAD_N"]


@pytest.mark.parametrize("name", ["level1", "level1-uncoalesced", "level2"])
def test_a_thread_without_shared_memory_loads_what_its_outputs_need(name: str) -> None:
    walk = scheme(find(name), 37, 131, 70, "fp32")
    row, column = walk.origin(block := last_block(walk))
    for thread in threads(walk.level):
        inside = [(row + r, column + c) for r, c in walk.outputs(thread) if row + r < 37 and column + c < 131]
        loaded = Counter(
            (move.matrix, *at)
            for step in range(walk.steps)
            for move in walk.loads(block, thread, step)
            for at in elements(move)
        )
        wanted = {x for k in range(70) for r, c in inside for x in (("a", r, k), ("b", k, c))}
        assert loaded == Counter(dict.fromkeys(wanted, 1))


@pytest.mark.parametrize(("name", "size"), [("level7", WHOLE), ("level8", RAGGED), ("level8-128x128x32", RAGGED)])
def test_warps_multiply_their_fragments(name: str, size: tuple[int, int, int]) -> None:
    """ldmatrix and mma.sync by the PTX ISA's layouts, from the addresses that the walk's lanes give."""
    walk = scheme(find(name), *size, "bf16")
    assert isinstance(walk, Warps)
    a, b = operands(*size)
    block, step = last_block(walk), walk.steps - 1
    memory = filled(walk, block, step, a, b)
    right = product(walk, block, step, a, b)
    for warp in [walk.level.threads // 32 - 1]:
        lanes = [(32 * warp + lane, 0) for lane in range(32)]
        (row, column), (height, width) = walk.warp_origin(lanes[0]), walk.warp_shape
        sums = torch.zeros(walk.level.tile_m, walk.level.tile_n, dtype=torch.float64)
        for k in range(0, walk.depth, 16):
            every = [walk.fragment_loads(lane, step, k) for lane in lanes]
            tiles: dict[tuple[str, int, int], Tensor] = {}
            for i, load in enumerate(every[0]):
                found = fragment(load.instruction, load.matrix)
                tile = torch.zeros(found.shape, dtype=torch.float64)
                for lane, (r, c) in enumerate(found.addresses):  # eight elements, from where each lane points
                    for e in range(8):
                        at = (r, c + e) if found.along == found.axes[1] else (r + e, c)
                        tile[at] = memory["stages", every[lane][i].place + 2 * e]
                tiles[load.matrix, load.row, load.column] = tile
                held = [at for lane in range(32) for pair in every[lane][i].holds for at in pair]
                assert sorted(held) == [(load.row + r, load.column + c) for r in range(16) for c in range(16)]
            for r in range(row, row + height, 16):
                for c in range(column, column + width, 16):
                    sums[r : r + 16, c : c + 16] += tiles["a", r, k] @ tiles["b", k, c]
        part = slice(row, row + height), slice(column, column + width)
        assert torch.equal(sums[part], right[part])
        for held in (walk.sums, walk.outputs):  # type: ignore[attr-defined]
            owned = Counter(at for lane in lanes for at in held(lane))
            assert owned == Counter((row + r, column + c) for r in range(height) for c in range(width))


def test_wmma_loads_its_fragments_by_their_pitch() -> None:
    walk = scheme(find("level6"), 256, 256, 64)
    assert isinstance(walk, Warps)
    for thread in ((0, 0), (255, 0)):
        for k in (0, 16):
            for load in walk.fragment_loads(thread, 1, k):
                assert load.place % 32 == 0 and load.pitch is not None and not load.holds
                place = walk.a_place if load.matrix == "a" else walk.b_place
                for r in range(16):
                    for c in range(16):
                        at = walk.stage_bytes + place(load.row + r, load.column + c)
                        assert at == load.place + r * load.pitch + 2 * c


def test_blocks_are_numbered_as_the_kernels_take_tiles() -> None:
    """`tile_of` of common.cuh, the other way round."""
    walk = scheme(find("level3"), 19 * 32, 5 * 32, 32)
    tiles_m, tiles_n = 19, 5
    for number in range(tiles_m * tiles_n):
        first = number // (8 * tiles_n) * 8
        rows, within = min(8, tiles_m - first), number % (8 * tiles_n)
        assert walk.block_index((within // rows, first + within % rows)) == number


def test_steps_are_computed_in_the_order_of_the_loop() -> None:
    plain, multistage = scheme(find("level7"), 256, 256, 200), scheme(find("level8"), 256, 256, 200)
    assert [plain.turn(step) for step in range(plain.steps)] == list(range(7))
    assert [multistage.turn(step) for step in range(multistage.steps)] == [1, 2, 3, 0]  # the one that may end past K
    assert plain.started(2) == "before the loop" and plain.started(3).startswith("while step 0 is computed")
    assert multistage.started(3) == "before the loop" and multistage.started(1).startswith("while step 3 is computed")


def test_what_a_walk_does_not_serve_is_named() -> None:
    walk = scheme(find("level3"), 64, 64, 64)
    with pytest.raises(ArgumentError, match="block x=2: the grid has 2 tiles along N"):
        walk.origin((2, 0))
    with pytest.raises(ArgumentError, match="thread y=8: a block of level3 has 8 along y"):
        walk.loads((0, 0), (0, 8), 0)
    with pytest.raises(ArgumentError, match="step 2: K=64 is 2 steps of 32"):
        walk.loads((0, 0), (0, 0), 2)
    with pytest.raises(DTypeError, match="level7 serves fp16, bf16"):
        scheme(find("level7"), 64, 64, 64, "fp32")
    with pytest.raises(ArgumentError, match="k=0"):
        scheme(find("level1"), 64, 64, 0)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(["walk", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_a_threads_steps(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "level3", "--block", "2,1", "--thread", "5,3")
    assert code == 0 and "number 101 of 256, lane 5 of warp 3" in out
    assert "step 0: k 0 to 31" in out and "step 15: k 480 to 511" in out and "step 1:" not in out
    load = next(line for line in out.splitlines() if "A[35][5]" in line)
    assert "a + 71700" in load and "a_tile + 404" in load  # (35 * 512 + 5) * 4; (3 * 32 + 5) * 4
    code, out, _ = run(capsys, "level7", "--thread", "37", "--size", "130,200,100", "--step", "3", "--dtype", "half")
    assert code == 0 and "step 3: k 96 to 99" in out and "stage 3" in out
    assert "8 of 8 outside: zero" in out and "cp.async.wait_group 2" in out and "ldmatrix.x4.trans" in out
    code, out, _ = run(capsys, "level6", "--step", "1")
    assert code == 0 and "wmma leaves undefined" in out and "rows 80 bytes apart" in out


@pytest.mark.parametrize("level", [level for level in LEVELS if not level.split_k and level.boxes is None], ids=str)
def test_every_level_has_a_walk(level: Level, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, level.name, "--thread", "3", "--json")
    walked = json.loads(out)
    assert code == 0 and len(walked["walked"]) == 2 and walked["stores"]
    assert all(step["loads"] and step["waits"] for step in walked["walked"])


def test_the_command_refuses_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in (
        (["level12"], "there are level1"),
        (["level9"], "level9 splits K over 2 blocks"),
        (["level10"], "level10 has no walk: its loads are TMA's"),
        (["level3", "--step", "16"], "16 steps of 32"),
        (["level3", "--dtype", "fp64"], "level3 serves fp32"),
        (["level3", "--arch", "nope"], "unknown GPU"),
    ):
        code, out, err = run(capsys, *argv)
        assert code == 1 and out == "" and words in err
    code, out, _ = run(capsys, "level9", "--size", "4096")
    assert code == 0 and "level9, specialized" in out
    with pytest.raises(SystemExit):
        cli.main(["walk", "level3", "--block", "x"])
