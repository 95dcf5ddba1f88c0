"""`cutegemm walk`: what one thread of a hand-written level loads, waits for, multiplies and stores, step by step."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from cutegemm import device, dtypes
from cutegemm.cli.output import Subcommands, console, print_json, subcommand
from cutegemm.errors import ArgumentError
from cutegemm.hand_kernels import LEVELS, find
from cutegemm.hand_kernels.levels import Level
from cutegemm.hand_kernels.walk import Move, Scheme, scheme
from cutegemm.hand_kernels.walk_mma import FragmentLoad, Warps
from cutegemm.planner.plan import DEFAULT_GPU

_MMA_K = 16


def add(subcommands: Subcommands) -> None:
    parser = subcommand(
        subcommands,
        "walk",
        "what one thread of a hand-written level does in each step along K",
        "Prints the loads, waits, products and stores of a thread, with indices and byte addresses, for packed "
        "row-major matrices A (M, K), B (K, N), D (M, N). Needs no GPU.",
    )
    parser.add_argument("level", metavar="LEVEL", help=f"one of {', '.join(level.name for level in LEVELS)}")
    parser.add_argument("--block", type=_pair, default=(0, 0), metavar="X,Y", help="the tile's column and row (0,0)")
    parser.add_argument("--thread", type=_pair, default=(0, 0), metavar="X,Y", help="threadIdx x and y (0,0)")
    parser.add_argument("--size", type=_size, default=(512, 512, 512), metavar="M,N,K", help="or one number (512)")
    parser.add_argument("--dtype", help="of A, B and D (default: fp32, or bf16 on the tensor cores)")
    parser.add_argument("--step", type=int, metavar="K", help="this step along K alone (default: first and last)")
    help = f"whose SMs decide if level9 splits K (default: {DEFAULT_GPU})"
    parser.add_argument("--arch", metavar="GPU", default=DEFAULT_GPU, help=help)
    parser.set_defaults(run=run)


def _pair(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:,(\d+))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected X,Y such as 5,3, got {text!r}")
    return int(match[1]), int(match[2] or 0)


def _size(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"(\d+)(?:,(\d+),(\d+))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected M,N,K or one number for all three, got {text!r}")
    m, n, k = int(match[1]), int(match[2] or match[1]), int(match[3] or match[1])
    return m, n, k


def run(args: argparse.Namespace) -> int:
    try:
        level = find(args.level)
    except KeyError as error:
        raise ArgumentError(str(error.args[0])) from None
    sm_count = device.lookup(args.arch).sm_count
    m, n, k = args.size
    walk = scheme(level, m, n, k, None if args.dtype is None else dtypes.lookup(args.dtype).name)
    _refuse_split(walk, sm_count, args.arch)
    if args.step is not None:
        walk.turn(args.step)
        steps = [args.step]
    else:
        steps = list(dict.fromkeys(sorted((0, walk.steps - 1), key=walk.turn)))
    walked = describe(walk, args.block, args.thread, steps)
    if args.json:
        print_json(walked)
        return 0
    out = console()
    for line in _lines(walk, walked):
        out.print(line, markup=False, no_wrap=True, crop=False, overflow="ignore")
    return 0


def _refuse_split(walk: Scheme, sm_count: int, gpu: str) -> None:
    level: Level = walk.level
    splits = level.splits(walk.m, walk.n, walk.k, walk.dtype, sm_count)
    if splits > 1:
        raise ArgumentError(
            f"{level} splits K over {splits} blocks a tile here ({level.blocks(walk.m, walk.n)} tiles on the "
            f"{sm_count} SMs of {gpu}), which a walk doesn't serve: ask for more tiles, or for level8, whose blocks do "
            "the same over the whole of K"
        )


def describe(walk: Scheme, block: tuple[int, int], thread: tuple[int, int], steps: list[int]) -> dict[str, Any]:
    """What `thread` of `block` does in `steps`, as JSON-serialisable data. Addresses and places are in bytes.

    Raises `ArgumentError` for a block, thread or step that there isn't.
    """
    row, column = walk.origin(block)
    number = walk.linear(thread)
    return {
        "level": walk.level.name,
        "title": walk.level.title,
        "dtype": walk.dtype,
        "m": walk.m,
        "n": walk.n,
        "k": walk.k,
        "block": {"x": block[0], "y": block[1], "index": walk.block_index(block), "row": row, "column": column},
        "thread": {"x": thread[0], "y": thread[1], "number": number, "warp": number // 32, "lane": number % 32},
        "steps": walk.steps,
        "depth": walk.depth,
        "stages": walk.level.stages,
        "outputs": _sums(walk, thread),
        "walked": [_step(walk, block, thread, step) for step in steps],
        "stores": [asdict(move) for move in walk.stores(block, thread)],
    }


def _sums(walk: Scheme, thread: tuple[int, int]) -> list[tuple[int, int]]:
    """The elements of the tile that the thread has sums of, while it multiplies; none are known for wmma."""
    if isinstance(walk, Warps):
        held = getattr(walk, "sums", None)
        return [] if held is None else held(thread)
    return walk.outputs(thread)


def _step(walk: Scheme, block: tuple[int, int], thread: tuple[int, int], step: int) -> dict[str, Any]:
    end = min(walk.k, (step + 1) * walk.depth)
    found: dict[str, Any] = {
        "step": step,
        "k": [step * walk.depth, end - 1],
        "turn": walk.turn(step),
        "stage": walk.stage(step),
        "started": walk.started(step),
        "loads": [asdict(move) for move in walk.loads(block, thread, step)],
        "waits": list(walk.waits(step)),
    }
    if isinstance(walk, Warps):
        found["fragments"] = {
            k: [asdict(load) for load in walk.fragment_loads(thread, step, k)] for k in range(0, walk.depth, _MMA_K)
        }
    else:
        found["reads"] = {k: [asdict(read) for read in walk.reads(thread, step, k)] for k in range(walk.depth)}
    return found


def _lines(walk: Scheme, walked: dict[str, Any]) -> Iterator[str]:
    block, thread, level = walked["block"], walked["thread"], walk.level
    yield f"{level.name}, {level.title}: {walk.dtype}, M {walk.m}, N {walk.n}, K {walk.k}"
    yield (
        f"block x {block['x']}, y {block['y']} (blockIdx.x {block['index']}): D's rows from {block['row']}, columns "
        f"from {block['column']}, {level.tile_m} x {level.tile_n}"
    )
    yield (
        f"thread x {thread['x']}, y {thread['y']}: number {thread['number']} of {level.threads}, lane {thread['lane']} "
        f"of warp {thread['warp']}"
    )
    stages = f", in {level.stages} stages of {walk.stage_bytes} bytes" if walk.stage_bytes else ""
    yield f"K in {walk.steps} steps of {walk.depth}{stages}; it has {_held_sums(walked['outputs'], block)}"
    if isinstance(walk, Warps):
        (row, column), (height, width) = walk.warp_origin((thread["x"], thread["y"])), walk.warp_shape
        yield f"its warp computes {height} x {width} of the tile, from row {row}, column {column}"
    for step in walked["walked"]:
        yield ""
        stage = f", turn {step['turn']} of the loop, in stage {step['stage']}" if walk.stage_bytes else ""
        yield f"step {step['step']}: k {step['k'][0]} to {step['k'][1]}{stage}"
        yield f"  loads, {step['started']}"
        yield from _moves(step["loads"], walk.itemsize)
        yield "  waits for"
        yield from (f"    {text}" for text in step["waits"])
        yield "  computes"
        yield from _fragments(walk, step) if isinstance(walk, Warps) else _products(walk, walked, step)
    yield ""
    yield "stores, after the last step"
    yield from _moves(walked["stores"], walk.itemsize)


def _held_sums(outputs: list[tuple[int, int]], block: dict[str, int]) -> str:
    if not outputs:
        return "sums whose places wmma leaves undefined"
    (row, column), count = outputs[0], len(outputs)
    first = f"D[{block['row'] + row}][{block['column'] + column}]"
    return f"the sum of {first}" if count == 1 else f"{count} sums, of {first} first"


def _moves(moves: list[dict[str, Any]], itemsize: int) -> Iterator[str]:
    if not moves:
        yield "    nothing: its outputs lie outside of D"
    for move in (Move(**move) for move in moves):
        name, last = move.matrix.upper(), move.column + move.elements - 1
        what = f"{name}[{move.row}][{move.column}{f'..{last}' if move.elements > 1 else ''}]"
        missing = move.elements - move.valid
        instead = "left out" if move.matrix == "d" else "zero"
        outside = f", {missing} of {move.elements} outside: {instead}" if missing else ""
        into = f" -> {_places(move)}" if move.places else ""
        size = move.valid * itemsize
        accesses = f"{size} bytes" if size in (0, move.width) else f"{size} bytes, {move.width} at a time"
        where = f"at {move.matrix} + {move.address}" if move.valid else "not read"
        yield f"    {move.instruction:<21} {what:<22} {where:<16} {accesses}{into}{outside}"


def _places(move: Move) -> str:
    steps = {b - a for a, b in zip(move.places, move.places[1:], strict=False)}
    if len(steps) <= 1 and (not steps or steps.pop() <= 4):
        return f"{move.array} + {move.places[0]}"
    return f"{move.array} + {', '.join(map(str, move.places))}"


def _products(walk: Scheme, walked: dict[str, Any], step: dict[str, Any]) -> Iterator[str]:
    count, depth = len(walked["outputs"]), min(walk.depth, walk.k - step["k"][0])
    yield f"    {depth} x {count} products: for each k, an element of A for each row and one of B for each column"
    reads = step["reads"][0]
    if not reads:
        yield "    out of registers"
        return
    yield f"    for k {step['k'][0]} it reads, by rows and columns of the step's tiles"
    for read in reads:
        name = f"{read['array']} + {read['place']}"
        yield f"      {name:<21} {read['size']:>2} bytes   {read['what']}"


def _fragments(walk: Scheme, step: dict[str, Any]) -> Iterator[str]:
    assert isinstance(walk, Warps)
    height, width = walk.warp_shape
    for k, loads in step["fragments"].items():
        how = "wmma::mma_sync m16n16k16" if not loads[0]["holds"] else "mma.sync m16n8k16"
        count = height // 16 * (width // (8 if loads[0]["holds"] else 16))
        yield f"    k {k} to {k + _MMA_K - 1} of the step: {count} {how}, of fragments by"
        for load in (FragmentLoad(**load) for load in loads):
            name = f"{load.matrix.upper()}[{load.row}..{load.row + 15}][{load.column}..{load.column + 15}]"
            if load.pitch is not None:
                yield f"      {load.instruction} {name:<22} at stages + {load.place}, rows {load.pitch} bytes apart"
                continue
            registers = "  ".join(
                f"r{i} {' '.join(f'[{r}][{c}]' for r, c in pair)}" for i, pair in enumerate(load.holds)
            )
            yield f"      {load.instruction:<17} {name:<20} gives stages + {load.place:<7} has {registers}"
