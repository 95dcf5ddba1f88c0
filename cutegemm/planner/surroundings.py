"""Split K and copied operands in the planner: which splits and copies a configuration is tried with, what they may not
be, and what they cost beside the product.

A family that has them (`Family.surrounds`) is planned for as if the product stood alone: of aligned copies, of parts of
K that are entries of a batch, into fp32 sums. To its time come the copies, which move each operand out of device memory
and back (one and a half times over where it is split into pieces), and the sum of the parts, which passes through L2,
or zeros for them to be added to and the one sum; each is a launch more.

"estimated" marks constants that no measurement has settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.kernels import pieces, workspace
from cutegemm.kernels.config import Pad
from cutegemm.kernels.stream_k import LEAST_K_TILES
from cutegemm.kernels.wgmma_config import clusters_at_once
from cutegemm.planner.legality import Wish, needed_copies, turned
from cutegemm.planner.model import Estimate, epilogue_costs
from cutegemm.problem import Problem

if TYPE_CHECKING:
    from cutegemm.planner.families import Family

#: Microseconds that a kernel more takes on the stream, most of its launch hidden by the one before (estimated).
FOLLOWING_US = 1.2
#: Share of device memory's rate at which rows are copied, reads and writes together (estimated).
COPY_RATE = 0.8
#: Share of L2's rate at which parts are added up (estimated).
SUM_RATE = 0.5
#: Fewest k-tiles of a part that is tried unasked.
_LEAST_DEPTH = 4
#: A workspace is not made larger than this unasked: a call should fit where its tensors do.
_MOST_BYTES = 8 << 30
#: Waves of blocks up to which a tail is worth splitting.
_FEW_WAVES = 3
#: Time of whole waves over that of full ones from which stream-K is tried unasked, and the least depth of a tile for
#: it, in ranges of the least that a cluster gets.
_WASTE, _LEAST_TAIL = 1.1, 4
#: Elements of a tile from which on stream-K is tried unasked: smaller ones fill a wave more evenly by themselves.
_LARGE = 128 * 160


def wish(split_k: int | str, padding: str) -> Wish:
    """The wish that `gemm`'s keywords express."""
    pads: dict[str, Literal["no", "copy"] | None] = {"auto": None, "predicate": "no", "copy": "copy"}
    split: Any = None if split_k == "auto" else split_k
    return Wish(split, pads[padding])


def variants(
    problem: Problem, family: Family[Any], configs: Iterable[Any], device: DeviceSpec, asked: Wish
) -> Iterator[Any]:
    """Each of `configs` with every split and copy that is worth a try, or that is asked for."""
    if family.surrounds:
        pads: dict[tuple[str, str], tuple[Pad, ...]] = {}
        bits = _bits(problem)
        streamed = {"stream": True} if asked.split == "stream" and family.streams else {}
        for config in configs:
            read = getattr(config, "along_k", ""), turned(config)
            if read not in pads:
                pads[read] = _pads(problem, family, *read, asked)
            if getattr(config, "bits", bits) != bits:
                yield replace(config, pad=pads[read][0], **streamed)  # to be refused, however K is split
            else:
                yield from _splittings(problem, family, config, device, asked, pads[read])
    elif family.splits is not None and asked.split is not None:
        for config in configs:
            splits = family.splits(config, asked.split) if config.splitting == 1 else ()
            yield from tuple(splits) or (config,)
    else:
        yield from configs


def _pads(problem: Problem, family: Family[Any], along_k: str, turned: str, asked: Wish) -> tuple[Pad, ...]:
    """The copies to try: none, where a family can do without; those that are needed, of operands `along_k` too; and
    those of any that may be `turned`, where nothing needs them each on its own as well: either is worth it by the
    other's extent."""
    needed, helpful = needed_copies(problem, along_k), needed_copies(problem, turned)
    if asked.pad is not None:
        return (helpful if asked.pad == "copy" else asked.pad,)
    pads: tuple[Any, ...] = ("no", needed) if family.unaligned else (needed,)
    if family.unaligned:
        pads += tuple(name for name in turned if name in helpful)
    fitting = [pad for pad in (*pads, helpful) if _copied_bytes(problem, pad) <= _MOST_BYTES]
    return tuple(dict.fromkeys(fitting)) if fitting and asked.workspace else ("no",)


def _splittings(
    problem: Problem, family: Family[Any], config: Any, device: DeviceSpec, asked: Wish, pads: tuple[Pad, ...]
) -> Iterator[Any]:
    splits = _splits(problem, config, device) if asked.workspace else (config.split,)
    streams = _streams(family, config) and asked.split is None and asked.workspace and _tail(problem, config, device)
    if isinstance(asked.split, int):
        splits = (asked.split,)
    elif asked.split == "stream":
        splits, streams = () if family.streams else (1,), family.streams
    for pad in pads:
        for split in splits:
            yield from _reductions(_surrounded_by(config, pad, split), asked)
        if streams:
            yield from _reductions(replace(config, pad=pad, stream=True), asked)


@lru_cache(maxsize=4096)
def _surrounded_by(config: Any, pad: Pad, split: int) -> Any:
    return replace(config, pad=pad, split=split)


def _bits(problem: Problem) -> int:
    """Of an element of the operands, or of their pieces."""
    split_up = pieces.emulated(problem.signature)
    return 8 * pieces.PIECE_BYTES if split_up else lookup(problem.signature.a.dtype).bits


def _streams(family: Family[Any], config: Any) -> bool:
    """Whether `config` can share out k-tiles among clusters: not one whose clusters split K themselves."""
    return family.streams and getattr(config, "cluster_k", 1) == 1


def _reductions(config: Any, asked: Wish) -> Iterator[Any]:
    """`config` with every way of adding up its parts that is worth a try, or with the one that is asked for."""
    if not hasattr(config, "reduction"):
        yield config
    elif asked.reduction is not None:
        yield replace(config, reduction=asked.reduction)
    else:
        yield config
        if workspace.parts(config) > 1 and not asked.deterministic:
            yield replace(config, reduction="atomic")


def surrounded(problem: Problem, config: Any, device: DeviceSpec, alone: Estimate) -> Estimate:
    """The estimate of all launches, from that of the product `alone`."""
    terms: dict[str, float] = {}
    copied = workspace.copied(problem.signature, config.pad)
    if copied:
        name, moved = "copies", 2 * _copied_bytes(problem, config.pad)
        if pieces.emulated(problem.signature):
            item = lookup(problem.signature.a.dtype).itemsize + pieces.PIECES * pieces.PIECE_BYTES
            name, moved = "pieces", item * (problem.m + problem.n) * problem.k * problem.batch
        terms[name] = len(copied) * FOLLOWING_US + 1e6 * moved / (COPY_RATE * device.hbm_bytes_per_s)
    parts = workspace.parts(config)
    if parts > 1:
        one = 4 * problem.batch * problem.m * problem.n
        if workspace.atomic(config):
            terms["zeros"] = FOLLOWING_US + 1e6 * one / (SUM_RATE * device.l2_bytes_per_s)
        read = one * workspace.sums(config)
        through = read / (SUM_RATE * device.l2_bytes_per_s) + _written(problem, device) / device.hbm_bytes_per_s
        terms["sum of parts"] = FOLLOWING_US + 1e6 * through
    if not terms:
        return alone
    us, terms = alone.us + sum(terms.values()), {**alone.terms, **terms}
    return Estimate(us, terms, alone.tiles, alone.blocks_per_sm, alone.waves, alone.efficiency)


@lru_cache(maxsize=64)
def _written(problem: Problem, device: DeviceSpec) -> float:
    return epilogue_costs(problem, device, device.sm_count * device.clock_hz)[0]


def workspace_bytes(problem: Problem, family: Family[Any] | None, config: Any, device: DeviceSpec) -> int:
    """Bytes of the copies, pieces and sums of parts that `config` keeps beside a call's tensors, none of which is
    broadcast, and of what stream-K's blocks hand to each other."""
    if family is None or not family.surrounds:
        return 0
    v = {"m": problem.m, "n": problem.n, "k": problem.k, "l0": problem.batch, "l1": 1, "sm_count": device.sm_count}
    v |= {f"stride.{name}.{mode}": 1 for name in "ab" for mode in ("l0", "l1")}
    return int(workspace.size(problem.signature, config, v, workspace.pick))


def _splits(problem: Problem, config: Any, device: DeviceSpec) -> tuple[int, ...]:
    """1, and the numbers of parts that fill the GPU where tiles of D leave a good part of it idle; multiples of those
    that a cluster adds up."""
    together = getattr(config, "cluster_k", 1)
    tiles, slots = _waves(problem, config, device)
    most = ceil(problem.k / config.tile_k) // _LEAST_DEPTH // together
    found = {1}
    if tiles < slots:
        filling = slots // tiles
        found |= {filling, ceil(filling / 2)}
    if slots / 2 < tiles < _FEW_WAVES * slots:
        found |= {2, 3, 4}
    most = min(most, _MOST_BYTES // (4 * max(1, problem.m * problem.n * problem.batch)))
    return tuple(sorted(together * parts for parts in found if parts == 1 or parts <= most))


def _tail(problem: Problem, config: Any, device: DeviceSpec) -> bool:
    """Whether a few waves of large tiles leave so much of the last one empty that stream-K is worth a try."""
    if config.tile_m * config.tile_n < _LARGE or getattr(config, "pingpong", False):
        return False
    tiles, slots = _waves(problem, config, device)
    deep = ceil(problem.k / config.tile_k) >= _LEAST_TAIL * LEAST_K_TILES
    return deep and slots < 2 * tiles < 2 * _FEW_WAVES * slots and ceil(tiles / slots) * slots > _WASTE * tiles


def _waves(problem: Problem, config: Any, device: DeviceSpec) -> tuple[int, int]:
    """How many tiles there are for clusters, or blocks, and how many run at a time."""
    cluster = getattr(config, "cluster_size", 1)
    turned = getattr(config, "swap_ab", False)
    rows, columns = (problem.n, problem.m) if turned else (problem.m, problem.n)
    tall = config.tile_m * getattr(config, "cluster_m", 1)
    wide = config.tile_n * getattr(config, "cluster_n", 1)
    tiles = max(1, ceil(rows / tall) * ceil(columns / wide) * problem.batch)
    return tiles, max(1, clusters_at_once(device.sm_count, cluster))


def _copied_bytes(problem: Problem, pad: str) -> int:
    """Bytes of the operands that `pad` names; one that is broadcast over the batch counts as often as it is used."""
    rows = sum(problem.m if name == "a" else problem.n for name in workspace.operands(pad))
    return rows * problem.k * problem.batch * lookup(problem.signature.a.dtype).itemsize
