"""Split K and copied operands in the planner: which splits and copies a configuration is tried with, what they may not
be, and what they cost beside the product.

A family that has them (`Family.surrounds`) is planned for as if the product stood alone: of aligned copies, of parts of
K that are entries of a batch, into fp32 sums. To its time come the copies, which move each operand out of device memory
and back (one and a half times over where it is split into pieces), and the sum of the parts, which passes through L2;
each is a launch more.

"estimated" marks constants that no measurement has settled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.kernels import pieces, workspace
from cutegemm.kernels.config import Pad
from cutegemm.planner.legality import Wish, needed_copies
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


def wish(split_k: int | str, padding: str) -> Wish:
    """The wish that `gemm`'s keywords express."""
    pads: dict[str, Literal["no", "copy"] | None] = {"auto": None, "predicate": "no", "copy": "copy"}
    split: Any = None if split_k == "auto" else split_k
    return Wish(split, pads[padding])


def variants(problem: Problem, family: Family[Any], config: Any, device: DeviceSpec, asked: Wish) -> Iterator[Any]:
    """`config` with every split and copy that is worth a try, or that is asked for."""
    if not family.surrounds:
        if family.splits is not None and asked.split is not None and config.splitting == 1:
            yield from tuple(family.splits(config, asked.split)) or (config,)
        else:
            yield config
        return
    needed = needed_copies(problem, family)
    pads: tuple[Pad, ...] = ("no", needed) if family.unaligned and needed != "no" else (needed,)
    if not asked.workspace or _copied_bytes(problem, needed) > _MOST_BYTES:
        pads = ("no",)
    if asked.pad is not None:
        pads = (needed if asked.pad == "copy" else asked.pad,)
    splits = _splits(problem, config, device) if asked.workspace else (1,)
    if isinstance(asked.split, int):
        splits = (asked.split,)
    for pad in pads:
        for split in splits:
            yield replace(config, pad=pad, split=split)


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
    if config.split > 1:
        read = 4 * config.split * problem.batch * problem.m * problem.n
        written, _ = epilogue_costs(problem, device, device.sm_count * device.clock_hz)
        through = read / (SUM_RATE * device.l2_bytes_per_s) + written / device.hbm_bytes_per_s
        terms["sum of parts"] = FOLLOWING_US + 1e6 * through
    if not terms:
        return alone
    return replace(alone, us=alone.us + sum(terms.values()), terms={**alone.terms, **terms})


def workspace_bytes(problem: Problem, family: Family[Any] | None, config: Any) -> int:
    """Bytes of the copies, pieces and sums of parts that `config` keeps beside a call's tensors, none of which is
    broadcast."""
    if family is None or not family.surrounds:
        return 0
    v = {"m": problem.m, "n": problem.n, "k": problem.k, "l0": problem.batch, "l1": 1}
    v |= {f"stride.{name}.{mode}": 1 for name in "ab" for mode in ("l0", "l1")}
    return int(workspace.layout(problem.signature, config.pad, config.split, v, lambda c, x, y: x if c else y)[1])


def _splits(problem: Problem, config: Any, device: DeviceSpec) -> tuple[int, ...]:
    """1, and the numbers of parts that fill the GPU where tiles of D leave a good part of it idle."""
    cluster = getattr(config, "cluster_size", 1)
    options = config.options()
    rows, columns = (problem.n, problem.m) if options.get("swap_ab") == "yes" else (problem.m, problem.n)
    tall = config.tile_m * getattr(config, "cluster_m", 1)
    wide = config.tile_n * getattr(config, "cluster_n", 1)
    tiles = max(1, ceil(rows / tall) * ceil(columns / wide) * problem.batch)
    slots = max(1, device.sm_count // cluster)
    most = ceil(problem.k / config.tile_k) // _LEAST_DEPTH
    found = {1}
    if tiles < slots:
        filling = slots // tiles
        found |= {filling, ceil(filling / 2)}
    if slots / 2 < tiles < _FEW_WAVES * slots:
        found |= {2, 3, 4}
    most = min(most, _MOST_BYTES // (4 * max(1, problem.m * problem.n * problem.batch)))
    return tuple(sorted(split for split in found if split == 1 or split <= most))


def _copied_bytes(problem: Problem, pad: str) -> int:
    """Bytes of the operands that `pad` names; one that is broadcast over the batch counts as often as it is used."""
    rows = sum(problem.m if name == "a" else problem.n for name in workspace.operands(pad))
    return rows * problem.k * problem.batch * lookup(problem.signature.a.dtype).itemsize
