"""Whether a configuration can serve a problem on a GPU: one predicate, for the planner, the tuner and the
builder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError, CuteGemmError, DTypeError, ShapeError, UnsupportedArchitectureError
from cutegemm.kernels import pieces, workspace
from cutegemm.kernels.config import Pad, Reduction
from cutegemm.problem import Access, Problem, Signature
from cutegemm.roofline import MAX_REGISTERS, occupancy

if TYPE_CHECKING:
    from cutegemm.planner.families import Family

INT32_MAX = 2**31 - 1
MAX_SPLIT = 1024  # parts of a sum, whose adding up is unrolled
_COPYING = 2**18  # more than the warps that copy rows at a time, on any GPU
MAX_CLUSTER = 8  # blocks that every GPU with clusters runs together


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a configuration cannot serve a problem: the rule's name, the reason with both values, and the error
    it makes where nothing else can serve either."""

    rule: str
    reason: str
    error: type[CuteGemmError] = UnsupportedArchitectureError

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Wish:
    """What a call asks of split and copies: None leaves either to the planner. `pad` is "copy" where operands that are
    not aligned have to be copied, whichever they are; without a `workspace` there can be neither. Parts of K are added
    up by `reduction`, which is left to the planner likewise; in no fixed order only where nothing `deterministic` is
    asked for."""

    split: int | Literal["stream"] | None = None
    pad: Pad | Literal["copy"] | None = None
    workspace: bool = True
    reduction: Reduction | None = None
    deterministic: bool = True


ANYTHING = Wish()


def refusal(
    problem: Problem, family: Family[Any], config: Any, device: DeviceSpec, asked: Wish = ANYTHING
) -> Refusal | None:
    """Why `config` of `family` cannot serve `problem` on `device`, or not as `asked`; None where it can."""
    return (
        unservable(problem, family, device)
        or surroundings_refusal(problem, family, config, asked)
        or family.refuse(product(problem, family, config), config, device)
    )


def unservable(problem: Problem, family: Family[Any], device: DeviceSpec) -> Refusal | None:
    """Why no configuration of `family` can serve `problem` on `device`."""
    return _family_refusal(problem, family, device) or _size_refusal(problem)


def product(problem: Problem, family: Family[Any], config: Any) -> Problem:
    """What the kernel in the middle multiplies: parts of K as further batch entries, those that a cluster adds up as
    one; copies or pieces of operands."""
    emulated = pieces.emulated(problem.signature)
    if not family.surrounds or ((workspace.parts(config), config.pad) == (1, "no") and not emulated):
        return problem
    parts = workspace.parts(config)
    depth = ceil(ceil(problem.k / config.tile_k) / config.split) * config.tile_k * (config.split // parts)
    return replace(
        problem,
        k=min(problem.k, depth),
        batch=problem.batch * parts,
        signature=workspace.inner(problem.signature, config.pad, parts),
    )


def needed_copies(problem: Problem, turned: str = "") -> Pad:
    """The operands that an aligned copy would help, those of `turned` also by lying as the copy does: none of those
    that pieces are made of."""
    if problem.k == 0 or pieces.emulated(problem.signature):
        return "no"
    names = "".join(name for name in "ab" if _copy_helps(problem.signature, name, turned))
    return names or "no"  # type: ignore[return-value]


def turned(config: Any) -> str:
    """The operands that `config` may have turned: along K or, in strict fp32, along M or N."""
    return str(getattr(config, "turned", ""))


def _copy_helps(signature: Signature, name: str, turned: str) -> bool:
    access: Access = getattr(signature, name)
    return access != workspace.padded(name, access, signature.precision if name in turned else None)


def extent_refusal(problem: Problem, rows: int, columns: int, depth: int) -> Refusal | None:
    """A rule for families to use: kernels count elements along a dimension in 32 bits, up to the edge of the last
    unit of `rows` x `columns` x `depth`."""
    for name, size, unit in (("m", problem.m, rows), ("n", problem.n, columns), ("k", problem.k, depth)):
        if ceil(size / unit) * unit > INT32_MAX:
            return Refusal("size", f"{name}={size}: rounded up to tiles it must be at most {INT32_MAX}", ShapeError)
    return None


def matrices(problem: Problem) -> Iterator[tuple[str, Access, str, int]]:
    """Every matrix, A and B first: its name, its access, the dimension that is contiguous in a row-major one, and how
    long that is."""
    signature, graph = problem.signature, problem.signature.epilogue
    yield "a", signature.a, "k", problem.k
    yield "b", signature.b, "n", problem.n
    if signature.c is not None:
        yield "c", signature.c, "n", problem.n
    for output, access in zip(graph.outputs, signature.outputs, strict=True):
        yield f"output {output.name!r}", access, "n", problem.n // 2 if output.paired else problem.n
    for operand, access in zip(graph.operands, signature.operands, strict=True):
        if operand.kind == "tile":
            yield f"operand {operand.name!r}", access, "n", problem.n // 2 if operand.paired else problem.n


def tensor_dtypes(problem: Problem) -> Iterator[tuple[str, str]]:
    """The dtypes of a call's tensors, with names: B has that of A."""
    signature = problem.signature
    yield "a", signature.a.dtype
    if signature.c is not None:
        yield "c", signature.c.dtype
    yield from (("out", access.dtype) for access in signature.outputs)
    yield from ((f"epilogue operand {i}", access.dtype) for i, access in enumerate(signature.operands))


def resource_refusal(config: Any, device: DeviceSpec, registers: int, purpose: str = "") -> Refusal | None:
    """A rule for families to use: a block's shared memory and its threads' `registers`, about so many, fit the GPU.
    `purpose` says what a thread needs them for."""
    # Shared memory above the opt-in limit fails at launch.
    if config.smem_bytes > device.smem_per_block:
        have = f"a block on {device.name} has {device.smem_per_block}"
        return Refusal("shared memory", f"{config.smem_bytes} bytes of shared memory: {have}")
    # More registers than a thread can have spill to local memory in the main loop.
    if registers > MAX_REGISTERS:
        return Refusal("registers", f"about {registers} registers a thread{purpose}: a thread has {MAX_REGISTERS}")
    # A block launches only if its threads' registers fit an SM together.
    if not occupancy(device, threads=config.threads, registers=registers).blocks:
        together = f"about {registers} registers for each of {config.threads} threads"
        return Refusal("registers", f"{together}: an SM of {device.name} has {device.registers_per_sm}")
    return None


def _family_refusal(problem: Problem, family: Family[Any], device: DeviceSpec) -> Refusal | None:
    """Rules that no configuration of the family can change."""
    signature = problem.signature
    # Instructions: each family is written in those of the architectures it lists.
    if device.arch not in family.architectures:
        served = ", ".join(family.architectures)
        reason = f"{family.name} has no kernels for {device.arch} ({device.name}), only for {served}"
        return Refusal("architecture", reason)
    # mma.sync takes both operands in one type, and a family is written for some types.
    if signature.a.dtype != signature.b.dtype:
        both = f"a is {signature.a.dtype} and b is {signature.b.dtype}"
        reason = f"{both}: {family.name} multiplies operands of one dtype"
        return Refusal("operand dtype", reason, DTypeError)
    if signature.a.dtype not in family.operand_dtypes:
        served = ", ".join(family.operand_dtypes)
        reason = f"a and b are {signature.a.dtype}: {family.name} serves {served}"
        return Refusal("operand dtype", reason, DTypeError)
    # A strict product is never made less so, nor another made stricter than it was asked for: errors would change.
    if signature.a.dtype == "fp32" and signature.precision not in family.precisions:
        reason = f"precision={signature.precision!r}: {family.name} serves {', '.join(family.precisions)}"
        return Refusal("precision", reason, ArgumentError)
    for name, dtype, accepted in _epilogue_dtypes(problem, family):
        if dtype not in accepted:
            reason = f"{name} is {dtype}: {family.name} serves {', '.join(accepted)}"
            return Refusal("epilogue dtype", reason, DTypeError)
    return None


def _size_refusal(problem: Problem) -> Refusal | None:
    # An empty D is returned without a launch: there is no grid to plan.
    if min(problem.m, problem.n, problem.batch) < 1 or problem.k < 0:
        sizes = f"m={problem.m}, n={problem.n}, k={problem.k}, batch={problem.batch}"
        return Refusal("size", f"{sizes}: m, n and batch must be at least 1 and k at least 0", ShapeError)
    # pair() takes columns 2i and 2i+1.
    if problem.n % 2 and problem.signature.epilogue.has_pair:
        return Refusal("size", f"n={problem.n}: an epilogue with pair() needs an even n", ShapeError)
    return None


def _epilogue_dtypes(problem: Problem, family: Family[Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Everything that the epilogue reads or writes: its name, its dtype, and the dtypes that are served."""
    signature = problem.signature
    graph = signature.epilogue
    # A scalar passed by value is fp32, whatever it was written as.
    if signature.alpha != "float":
        yield "alpha", signature.alpha, family.scalar_dtypes
    if signature.beta != "float":
        yield "beta", signature.beta, family.scalar_dtypes
    if signature.c is not None:
        yield "c", signature.c.dtype, family.epilogue_dtypes
    for output, access in zip(graph.outputs, signature.outputs, strict=True):
        yield f"output {output.name!r}", access.dtype, family.epilogue_dtypes
    for operand, access in zip(graph.operands, signature.operands, strict=True):
        if access.major != "float":
            accepted = family.scalar_dtypes if operand.kind == "scalar" else family.epilogue_dtypes
            yield f"operand {operand.name!r}", access.dtype, accepted


def surroundings_refusal(problem: Problem, family: Family[Any], config: Any, asked: Wish) -> Refusal | None:
    """Why `config` does not do what is `asked`, or why its own split or copies make no sense for `problem`."""
    if not family.surrounds:
        own = config.splitting if family.splits else getattr(config, "split", 1)
        if asked.split is not None and (own != asked.split or getattr(config, "split_k", False)):
            return Refusal("split", f"split_k={asked.split}: {family.name} splits K as its configurations say")
        if family.splits is not None and not asked.workspace:
            return Refusal("workspace", f"{family.name}: a C library's functions are kernels that the CuTe DSL makes")
        copies = getattr(config, "pack", "no")
        if asked.pad == "no" and copies != "no" and needed_copies(problem) != "no":
            return Refusal("padding", f"padding='predicate': {family.name} copies {copies} first")
        if asked.pad == "copy" and copies == "no" and needed_copies(problem) != "no":
            return Refusal("padding", f"padding='copy': {family.name} copies no operands")
        return None
    streamed = workspace.streamed(config)
    if asked.split == "stream" and not streamed:
        return Refusal("split", f"split_k='stream': {family.name} has no stream-K")
    emulated = pieces.emulated(problem.signature)
    if emulated and config.pad != "no":
        return Refusal("padding", f"pad={config.pad}: the pieces of a and b are aligned copies as they are")
    for name in workspace.copied(problem.signature, config.pad):
        if not emulated and not _copy_helps(problem.signature, name, turned(config)):
            return Refusal("padding", f"pad={config.pad}: {name} is aligned to 16 bytes as it is")
        across, along = workspace.rows(name, getattr(problem.signature, name), problem.signature.precision)
        lines, length = getattr(problem, across), getattr(problem, along)
        segments = ceil(length / workspace.SEGMENT)
        if max(segments * workspace.SEGMENT, lines * segments * problem.batch + _COPYING) > INT32_MAX:
            reason = f"{name} has {lines} rows of {length}, batch={problem.batch}: too many to copy by 32-bit counts"
            return Refusal("padding", reason, ShapeError)
    together = getattr(config, "cluster_k", 1)
    if together < 1 or config.split % together:
        own = f"cluster {config.cluster} adds up {together} parts at a time"
        return Refusal("split", f"split={config.split}: must be a multiple of {together}, for {own}")
    parts = workspace.parts(config)
    if workspace.atomic(config):
        if parts == 1:
            alone = "no sums of parts are left to be added in the workspace"
            split = "stream" if streamed else config.split
            return Refusal("reduction", f"reduction=atomic: with split={split} {alone}", ArgumentError)
        if asked.deterministic:
            order = "it adds parts in no fixed order, and deterministic is True: expected deterministic=False"
            return Refusal("reduction", f"reduction=atomic: {order}", ArgumentError)
    if not asked.workspace and emulated:
        own = f"precision={problem.signature.precision!r}"
        return Refusal("workspace", f"{own}: a function of a C library has no workspace to split a and b in")
    if not asked.workspace and (streamed or (parts, config.pad) != (1, "no")):
        own = f"split={'stream' if streamed else config.split}, pad={config.pad}"
        return Refusal("workspace", f"{own}: a function of a C library has no workspace to split K in or to copy to")
    k_tiles = max(1, ceil(problem.k / config.tile_k))
    if not 1 <= config.split <= min(k_tiles, MAX_SPLIT) and (problem.k > 0 or config.split > MAX_SPLIT):
        most = f"K has {k_tiles} steps of {config.tile_k}, and a sum at most {MAX_SPLIT} parts"
        # With as many parts as a cluster has it is the configuration that does not fit, and others may.
        error = UnsupportedArchitectureError if config.split == together > 1 else ShapeError
        return Refusal("split", f"split={config.split}: {most}", error)
    lines = problem.m * problem.batch * ceil(problem.n / workspace.PITCH) * workspace.lanes_of(parts)
    # The threads that add them up, or clear what is added to, count in steps of their number.
    if parts > 1 and lines + 2 * _COPYING > INT32_MAX:
        sizes = f"m={problem.m}, n={problem.n}, batch={problem.batch}"
        return Refusal("split", f"{sizes}: too many sums to count in 32 bits", ShapeError)
    return extent_refusal(problem, 1, 1, config.tile_k * config.split)
