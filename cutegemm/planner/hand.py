"""The hand-written ladder's part of planning: the limits that each level declares, and the model of its time."""

from __future__ import annotations

import itertools

from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.errors import ArgumentError, DTypeError, ShapeError
from cutegemm.hand_kernels.levels import LEVELS, Level
from cutegemm.planner.legality import INT32_MAX, Refusal, extent_refusal, matrices, tensor_dtypes
from cutegemm.planner.model import LAUNCH_US, Estimate
from cutegemm.problem import MAX_ALIGN, Problem

#: Levels are CUDA C++, which NVRTC compiles for any of these; each level says where it starts.
ARCHITECTURES = (
    "sm_75",
    "sm_80",
    "sm_86",
    "sm_87",
    "sm_89",
    "sm_90a",
    "sm_100a",
    "sm_103a",
    "sm_120a",
    "sm_121a",
)
_BF16_SINCE = 80
_UNROLLED = 64  # no level goes further along K in one step


def refuse(problem: Problem, level: Level, device: DeviceSpec) -> Refusal | None:
    """The limits that `level` declares, the hardware's first."""
    capability = 10 * device.compute_capability[0] + device.compute_capability[1]
    if level.only is not None and device.arch != level.only:
        return Refusal("architecture", f"{level} is for {level.only}, and {device.name} is {device.arch}")
    if capability < level.since:
        return Refusal("architecture", f"{level} needs sm_{level.since} or newer, and {device.name} is {device.arch}")
    signature = problem.signature
    if signature.a.dtype not in level.dtypes:
        served = ", ".join(level.dtypes)
        return Refusal("operand dtype", f"a and b are {signature.a.dtype}: {level} serves {served}", DTypeError)
    for name, dtype in (*tensor_dtypes(problem), ("alpha", signature.alpha), ("beta", signature.beta)):
        if dtype == "bf16" and capability < _BF16_SINCE:
            reason = f"{name} is bf16, which {device.arch} has no conversion to: expected fp16 or fp32"
            return Refusal("operand dtype", reason, DTypeError)
    if problem.batch != 1:
        return Refusal("batch", f"batch={problem.batch}: {level} takes matrices without a batch", ShapeError)
    for name, access, fast, size in matrices(problem):
        if access.major != fast and size > 1:
            along = access.major.upper()
            how = "has no contiguous dimension" if access.major == "strided" else f"is contiguous along {along}"
            reason = f"{name} {how}: {level} takes row-major matrices, with any leading dimension"
            return Refusal("layout", reason, ArgumentError)
    if level.boxes is not None and problem.k > 0:
        for name, access, fast, _ in itertools.islice(matrices(problem), 2):
            aligned = access.align if access.major == fast else lookup(access.dtype).itemsize
            if aligned < MAX_ALIGN:
                reason = f"{name}'s address and rows are aligned to {aligned} bytes: {level}'s TMA needs {MAX_ALIGN}"
                return Refusal("alignment", reason, ArgumentError)
    if signature.epilogue.has_pair and level.columns % 2:
        able = ", ".join(other.name for other in LEVELS if other.columns % 2 == 0)
        reason = f"the epilogue pairs columns, and a thread of {level} has only one: {able} have neighbours"
        return Refusal("pair", reason, ArgumentError)
    if level.smem_bytes > device.smem_per_block:
        reason = f"{level} takes {level.smem_bytes} bytes of shared memory: {device.name} has {device.smem_per_block}"
        return Refusal("shared memory", reason)
    if level.blocks(problem.m, problem.n) > INT32_MAX:
        blocks = level.blocks(problem.m, problem.n)
        return Refusal("size", f"{level} would take {blocks} blocks: a grid has at most {INT32_MAX}", ShapeError)
    return extent_refusal(problem, level.tile_m, level.tile_n, max(_UNROLLED, level.depth(signature.a.dtype)))


class LevelModel:
    """The time of a level: the share of its unit's peak that is expected of it, or what device memory allows."""

    def __init__(self, problem: Problem, device: DeviceSpec) -> None:
        self.problem, self.device = problem, device

    def estimate(self, level: Level) -> Estimate:
        problem, device = self.problem, self.device
        peak = {"fp32": device.fp32_flops, "mma": device.mma_flops, "wgmma": device.peak_flops}[level.unit]
        share = max(sum(level.share) / 2, 0.005)
        item = lookup(problem.signature.a.dtype).itemsize
        moved = (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n) * item
        terms = {
            "expected share of peak": problem.flops / (share * peak) * 1e6,
            "device memory": moved / device.hbm_bytes_per_s * 1e6,
            "launch": LAUNCH_US,
        }
        tiles = level.blocks(problem.m, problem.n)
        return Estimate(sum(terms.values()), terms, tiles, 1, tiles / device.sm_count, 1.0)
