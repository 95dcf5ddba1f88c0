"""Whether a configuration can serve a problem on a GPU: one predicate, for the planner, the tuner and the
builder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil

from cutegemm.device import DeviceSpec
from cutegemm.errors import CuteGemmError, DTypeError, ShapeError, UnsupportedArchitectureError
from cutegemm.kernels.config import CHUNK_BYTES, OPERAND_BYTES, Config, vector_elements
from cutegemm.planner.families import FAMILIES, UPCOMING, Family
from cutegemm.problem import Access, Problem, Signature

_INT32_MAX = 2**31 - 1
_MAX_THREADS = 1024  # of a block, on every architecture
_MAX_REGISTERS = 255  # of a thread, on every architecture
_VECTOR_READS, _ELEMENT_READS = 2, 17  # registers, fitted to ptxas as the rest of the estimate is
_WARP_TILE_MAX = 64  # a larger warp tile leaves no registers beside its accumulators


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a configuration cannot serve a problem: the rule's name, the reason with both values, and the error
    it makes where nothing else can serve either."""

    rule: str
    reason: str
    error: type[CuteGemmError] = UnsupportedArchitectureError

    def __str__(self) -> str:
        return self.reason


def refusal(problem: Problem, family: Family, config: Config, device: DeviceSpec) -> Refusal | None:
    """Why `config` of `family` cannot serve `problem` on `device`, or None where it can."""
    return (
        _family_refusal(problem, family, device)
        or _shape_refusal(problem, config)
        or _tile_refusal(config)
        or _device_refusal(problem, config, device)
    )


def _family_refusal(problem: Problem, family: Family, device: DeviceSpec) -> Refusal | None:
    """Rules that no configuration of the family can change."""
    signature = problem.signature
    # Instructions: each family is written in those of the architectures it lists.
    if device.arch not in family.architectures:
        return Refusal("architecture", _architecture_reason(family, device))
    # mma.sync takes both operands in one type, and a family is written for some types.
    if signature.a.dtype != signature.b.dtype:
        both = f"a is {signature.a.dtype} and b is {signature.b.dtype}"
        reason = f"{both}: {family.name} multiplies operands of one dtype"
        return Refusal("operand dtype", reason, DTypeError)
    if signature.a.dtype not in family.operand_dtypes:
        served = ", ".join(family.operand_dtypes)
        reason = f"a and b are {signature.a.dtype}: {family.name} serves {served}"
        return Refusal("operand dtype", reason, DTypeError)
    for name, dtype, accepted in _epilogue_dtypes(problem, family):
        if dtype not in accepted:
            reason = f"{name} is {dtype}: {family.name} serves {', '.join(accepted)}"
            return Refusal("epilogue dtype", reason, DTypeError)
    return None


def _shape_refusal(problem: Problem, config: Config) -> Refusal | None:
    # An empty D is returned without a launch: there is no grid to plan.
    if min(problem.m, problem.n, problem.batch) < 1 or problem.k < 0:
        sizes = f"m={problem.m}, n={problem.n}, k={problem.k}, batch={problem.batch}"
        return Refusal("size", f"{sizes}: m, n and batch must be at least 1 and k at least 0", ShapeError)
    # pair() takes columns 2i and 2i+1.
    if problem.n % 2 and problem.signature.epilogue.has_pair:
        return Refusal("size", f"n={problem.n}: an epilogue with pair() needs an even n", ShapeError)
    # Kernels count elements along a dimension, edges included, in 32 bits.
    sides = (
        ("m", problem.m, config.tile_m),
        ("n", problem.n, config.tile_n),
        ("k", problem.k, config.tile_k),
    )
    for name, size, tile in sides:
        if ceil(size / tile) * tile > _INT32_MAX:
            reason = f"{name}={size}: rounded up to tiles it must be at most {_INT32_MAX}"
            return Refusal("size", reason, ShapeError)
    # One block per tile on the grid's x dimension.
    tiles = ceil(problem.m / config.tile_m) * ceil(problem.n / config.tile_n) * problem.batch
    if tiles > _INT32_MAX:
        reason = f"{tiles} tiles of {config.tile_m}x{config.tile_n}: a grid holds {_INT32_MAX}"
        return Refusal("grid", reason, ShapeError)
    return None


@cache
def _tile_refusal(config: Config) -> Refusal | None:
    """Rules of the tile alone. No registered configuration breaks them; a pinned or a tuner's one may."""
    if min(config.tile_m, config.tile_n, config.tile_k, config.warps_m, config.warps_n, config.raster) < 1:
        return Refusal("tile", f"{config}: every size must be positive")
    # A pipeline needs a stage to compute on and one to fill.
    if config.stages < 2:
        return Refusal("stages", f"stages={config.stages}: a pipeline needs at least 2")
    if config.threads > _MAX_THREADS:
        return Refusal("threads", f"{config.threads} threads: a block holds {_MAX_THREADS}")
    # mma.sync m16n8k16, and ldmatrix.x4 that feeds two of them along N.
    if config.tile_m % (16 * config.warps_m) or config.tile_n % (16 * config.warps_n):
        reason = f"{config.warps_m}x{config.warps_n} warps must each own a multiple of 16x16 of the tile"
        return Refusal("warp tile", reason)
    if config.warp_m > _WARP_TILE_MAX or config.warp_n > _WARP_TILE_MAX:
        reason = f"warp tile {config.warp_m}x{config.warp_n}: at most {_WARP_TILE_MAX}x{_WARP_TILE_MAX}"
        return Refusal("warp tile", reason)
    # The epilogue transposes 32 columns of a warp tile at a time.
    if config.warp_n % 32:
        return Refusal("warp tile", f"warp tile width {config.warp_n}: must be a multiple of 32")
    # The swizzle permutes the 16-byte chunks of rows of 32, 64 or 128 bytes, whichever operand dimension they
    # run along.
    if config.tile_k not in (16, 32, 64):
        return Refusal("swizzle", f"tile_k={config.tile_k}: must be 16, 32 or 64")
    for name, tile in (("tile_m", config.tile_m), ("tile_n", config.tile_n)):
        if tile not in (16, 32) and tile % 64:
            return Refusal("swizzle", f"{name}={tile}: must be 16, 32 or a multiple of 64")
        # Every thread copies the same chunks of each row: a partial pass would need a predicate in the main loop.
        chunks = config.tile_k * min(tile, 64) * OPERAND_BYTES // CHUNK_BYTES
        if chunks % config.threads:
            reason = f"{name}={tile}: {chunks} copies of 16 bytes a pass do not divide among {config.threads} threads"
            return Refusal("copies", reason)
    return None


def _device_refusal(problem: Problem, config: Config, device: DeviceSpec) -> Refusal | None:
    # Shared memory above the opt-in limit fails at launch.
    if config.smem_bytes > device.smem_per_block:
        have = f"a block on {device.name} has {device.smem_per_block}"
        return Refusal("shared memory", f"{config.smem_bytes} bytes of shared memory: {have}")
    # More registers than a thread can have spill to local memory in the main loop.
    signature = problem.signature
    registers = config.registers(signature.a, signature.b) + _epilogue_registers(signature)
    if registers > _MAX_REGISTERS:
        copies = " and ".join(f"{name} {_copies(x)}" for name, x in (("a", signature.a), ("b", signature.b)))
        reason = f"about {registers} registers a thread to copy {copies}: a thread has {_MAX_REGISTERS}"
        return Refusal("registers", reason)
    # A block launches only if its threads' registers fit an SM together.
    together = 8 * ceil(registers / 8) * config.threads
    if together > device.registers_per_sm:
        reason = f"about {together} registers a block: an SM of {device.name} has {device.registers_per_sm}"
        return Refusal("registers", reason)
    return None


def _epilogue_registers(signature: Signature) -> int:
    """Registers for reading C and Tiles: many where columns are not adjacent, and each element has an address."""
    matrices = [] if signature.c is None else [signature.c]
    specs = signature.epilogue.operands
    matrices += [x for spec, x in zip(specs, signature.operands, strict=True) if spec.kind == "tile"]
    if not matrices:
        return 0
    return _VECTOR_READS if all(x.major == "n" for x in matrices) else _ELEMENT_READS


def _copies(access: Access) -> str:
    width = f"by {vector_elements(access) * OPERAND_BYTES} bytes"
    return f"strided {width}" if access.major == "strided" else width


def _epilogue_dtypes(problem: Problem, family: Family) -> Iterator[tuple[str, str, tuple[str, ...]]]:
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


def _architecture_reason(family: Family, device: DeviceSpec) -> str:
    served = ", ".join(family.architectures)
    text = f"{family.name} has no kernels for {device.arch} ({device.name}), only for {served}"
    others = [other.name for other in FAMILIES.values() if device.arch in other.architectures]
    if others:
        return f"{text}; use {', '.join(others)}"
    if device.compute_capability == (7, 5):
        return f"{text}; cutlass_cpp will serve {UPCOMING['cutlass_cpp']}, and is not part of this version"
    return f"{text}, and no other family serves it"
