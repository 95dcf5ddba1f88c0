"""CUTLASS C++ kernels in the planner: what they can serve, by CUTLASS's own rules, and the model of their time.

The model orders configurations: rates are CUTLASS's usual share of the instruction's peak. Which family serves a
problem is not left to it: these kernels are taken where nothing else serves, where they are pinned, and where a table
of measurements says so.
"""

from __future__ import annotations

import itertools
from math import ceil

from cutegemm.cutlass_cpp import emit
from cutegemm.cutlass_cpp.config import CutlassConfig
from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.errors import ArgumentError, DTypeError, ShapeError
from cutegemm.kernels import workspace
from cutegemm.planner.legality import INT32_MAX, Refusal, extent_refusal, matrices, tensor_dtypes
from cutegemm.planner.model import LAUNCH_US, Estimate, epilogue_costs
from cutegemm.problem import MAX_ALIGN, Problem

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a")
#: Share of the instruction's peak that a full wave of large tiles reaches (estimated).
_SHARE = 0.8
#: Share of device memory's rate at which operands are copied (estimated).
_COPY_RATE = 0.7
#: Registers of a thread: ptxas gives these kernels nearly all that it may.
_REGISTERS = 255
#: The largest grid along y and z, where CUTLASS 2 puts tile columns and parts of K.
_GRID = 65535


def refuse(problem: Problem, config: CutlassConfig, device: DeviceSpec) -> Refusal | None:
    """CUTLASS's rules for a kernel of this configuration, the hardware's first."""
    capability = 10 * device.compute_capability[0] + device.compute_capability[1]
    signature = problem.signature
    dtype = signature.a.dtype
    if config.hopper and device.arch != "sm_90a":
        return Refusal("architecture", f"{config.schedule} is for sm_90a, and {device.name} is {device.arch}")
    if (config.schedule == "twostage") != (capability < 80):
        reason = f"{config.schedule} is for {'sm_75' if config.since == 75 else 'sm_80 and newer'}"
        return Refusal("architecture", f"{reason}, and {device.name} is {device.arch}")
    if capability < 80:
        for name, found in tensor_dtypes(problem):
            if found == "bf16" or (found == "fp32" and name in "ab"):
                reason = f"{name} is {found}: {device.arch} multiplies fp16, and has no conversion to bf16"
                return Refusal("operand dtype", reason, DTypeError)
    if config.smem_bytes > device.smem_per_block:
        reason = f"{config} takes {config.smem_bytes} bytes of shared memory: {device.name} has {device.smem_per_block}"
        return Refusal("shared memory", reason)
    return (
        _layout_refusal(problem, config)
        or _alignment_refusal(problem, config)
        or _size_refusal(problem, config)
        or extent_refusal(problem, config.tile_m, config.tile_n, config.depth(dtype) * config.split)
    )


def _layout_refusal(problem: Problem, config: CutlassConfig) -> Refusal | None:
    signature = problem.signature
    for name, operand in (("a", signature.a), ("b", signature.b)):
        if operand.major == "strided" and name not in config.pack:
            reason = f"{name} has no contiguous dimension: CUTLASS takes row- or column-major"
            return Refusal("layout", reason, ArgumentError)
    if config.hopper and config.pack != (needed := _to_pack(problem)):
        names = {"no": "neither operand", "ab": "both operands"}.get(needed, f"{needed} alone")
        reason = f"pack={config.pack}: TMA and wgmma take {names} only from a copy contiguous along K and aligned"
        return Refusal("layout", reason, ArgumentError)
    for name, access, _, columns in itertools.islice(matrices(problem), 2, None):
        if access.major != "n" and columns > 1:
            reason = f"{name} is not contiguous along N: its rows are stored and read as vectors"
            return Refusal("layout", reason, ArgumentError)
    return None


def _to_pack(problem: Problem) -> str:
    """The operands that Hopper's kernels take only from a copy: 16-bit ones that are not aligned, and of TF32 ones
    those, too, that are not contiguous along K."""
    found = ""
    for name, access in (("a", problem.signature.a), ("b", problem.signature.b)):
        turned = access.dtype == "fp32" and access.major != "k"
        if turned or access.align < MAX_ALIGN or access.major == "strided":
            found += name
    return found or "no"


def _alignment_refusal(problem: Problem, config: CutlassConfig) -> Refusal | None:
    if config.hopper:
        return None  # what is not aligned is copied
    signature = problem.signature
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k}
    for name, access in (("a", signature.a), ("b", signature.b)):
        elements = emit.alignment(access, config)
        if elements * lookup(access.dtype).itemsize < config.align:
            reason = (
                f"{name}'s address and rows are aligned to {access.align} bytes: align={config.align} asks for more"
            )
            return Refusal("alignment", reason, ArgumentError)
        size = sizes[access.major]
        if size % elements:
            # Its copies are predicated by whole vectors, of elements all of which are there.
            reason = (
                f"{access.major}={size} is not a multiple of the {elements} elements that {config} copies of {name}"
            )
            return Refusal("alignment", reason, ArgumentError)
    per = MAX_ALIGN // lookup(signature.outputs[0].dtype).itemsize
    if not emit.form_of(signature, config).visited and problem.n % per:
        reason = f"n={problem.n} is not a multiple of the {per} elements that {config} stores at once"
        return Refusal("alignment", reason, ArgumentError)
    return None


def _size_refusal(problem: Problem, config: CutlassConfig) -> Refusal | None:
    if config.hopper and problem.k == 0:
        return Refusal("size", f"k=0: a tensor map has no empty dimension, as {config}'s TMA would need", ShapeError)
    steps = max(1, ceil(problem.k / config.depth(problem.signature.a.dtype)))
    if config.split > steps:
        reason = f"split={config.split}: K has {steps} steps of {config.depth(problem.signature.a.dtype)}"
        return Refusal("split", reason, ShapeError)
    if config.split > _GRID:
        return Refusal("split", f"split={config.split}: a grid has at most {_GRID} parts", ShapeError)
    rows, columns = ceil(problem.m / config.tile_m), ceil(problem.n / config.tile_n)
    if config.shares_tiles and rows * columns * steps > INT32_MAX:
        reason = f"{config} would share {rows} x {columns} x {steps} steps out: CUTLASS counts at most {INT32_MAX}"
        return Refusal("size", reason, ShapeError)
    if not config.hopper and columns > _GRID or rows * columns * config.split > INT32_MAX // 8:
        return Refusal("size", f"{config} would take {rows} x {columns} blocks: more than a grid has", ShapeError)
    return None


def workspace_bytes(problem: Problem, config: CutlassConfig, device: DeviceSpec) -> int:
    """Bytes beside the tensors: copies of operands, and the sums of parts, which for stream-K are those of as many
    blocks as the GPU holds. Counters, and what CUTLASS rounds up to, come on top."""
    item = lookup(problem.signature.a.dtype).itemsize
    packed = _packed_rows(problem, config) * ceil(problem.k * item / MAX_ALIGN) * MAX_ALIGN
    if config.reduction == "parallel":
        return packed + 4 * config.split * problem.m * ceil(problem.n / 4) * 4
    tiles = ceil(problem.m / config.tile_m) * ceil(problem.n / config.tile_n)
    shared = device.sm_count if config.stream else tiles * config.split if config.split > 1 else 0
    return packed + 4 * shared * config.tile_m * config.tile_n


def _packed_rows(problem: Problem, config: CutlassConfig) -> int:
    """Rows of K in the copies that `config` makes first."""
    return sum(problem.m if name == "a" else problem.n for name in workspace.operands(config.pack))


class CutlassModel:
    """The time of a configuration: whole waves of tiles at a usual rate, or what device memory allows."""

    def __init__(self, problem: Problem, device: DeviceSpec) -> None:
        self.problem, self.device = problem, device

    def estimate(self, config: CutlassConfig) -> Estimate:
        problem, device = self.problem, self.device
        signature = problem.signature
        dtype = signature.a.dtype
        item = lookup(dtype).itemsize
        peak = (device.peak_flops if config.hopper else device.mma_flops) * (2 / item)
        warps = config.threads // 32
        resident = (
            1
            if config.hopper
            else max(
                1,
                min(
                    device.smem_per_sm // (config.smem_bytes + device.smem_reserved_per_block),
                    device.registers_per_sm // (_REGISTERS * 32 * warps),
                ),
            )
        )
        tiles = ceil(problem.m / config.tile_m) * ceil(problem.n / config.tile_n)
        slots = device.sm_count * resident
        blocks = tiles * config.split
        waves = blocks / slots
        shares = waves if config.stream else max(1.0, ceil(waves))
        # A smaller tile reads more for each product, and a wave is as long as its tile.
        reuse = 1 / (1 / config.tile_m + 1 / config.tile_n)
        rate = _SHARE * peak * min(1.0, reuse / 64) ** 0.5
        depth = ceil(problem.k / config.split / config.depth(dtype)) * config.depth(dtype)
        flops = 2.0 * config.tile_m * config.tile_n * depth * slots * shares
        exchanged, _ = epilogue_costs(problem, device, device.sm_count * device.clock_hz)
        moved = (problem.m + problem.n) * problem.k * item + exchanged / problem.batch
        moved += 8.0 * config.split * problem.m * problem.n if config.split > 1 else 0.0
        packed = _packed_rows(problem, config) * problem.k * item
        terms = {
            "copies": 2e6 * packed / (_COPY_RATE * device.hbm_bytes_per_s),
            "products": 1e6 * flops / rate,
            "device memory": 1e6 * moved / device.hbm_bytes_per_s,
            "launch": LAUNCH_US * (2 if config.reduction == "parallel" else 1),
        }
        us = problem.batch * (terms["copies"] + max(terms["products"], terms["device memory"]) + terms["launch"])
        return Estimate(us, terms, tiles * problem.batch, resident, waves, min(1.0, waves / shares))
