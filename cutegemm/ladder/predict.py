"""A ladder without a GPU: traffic and time by the models, and what each kernel takes, from its compiled code."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.compiler import build, sass
from cutegemm.device import DeviceSpec
from cutegemm.errors import CuteGemmError
from cutegemm.ladder.rungs import Rung, peak
from cutegemm.planner import PINNED
from cutegemm.roofline import attainable, occupancy, ridge_point


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the models say of a level on a GPU, and the compiled kernel's resources.

    `us` and `tflops` follow from the middle of `expected`, the share of the `unit`'s peak that the literature leads to
    expect. `attainable_tflops` is the roofline at `intensity`, where no cache helps. `registers` are a thread's,
    `local_bytes` what it keeps in local memory, `smem_bytes` a block's, `blocks_per_sm` and `occupancy` by the
    occupancy model, `limited_by` what sets them. Without a compiler or a tool to read its code these are None and
    `unread` says what is missing. A level that can't serve has `refused` and nothing else.
    """

    level: str
    dtype: str
    unit: str
    expected: tuple[float, float] | None = None
    us: float | None = None
    tflops: float | None = None
    loaded_bytes: int | None = None
    intensity: float | None = None
    attainable_tflops: float | None = None
    memory_bound: bool | None = None
    smem_bytes: int | None = None
    registers: int | None = None
    local_bytes: int | None = None
    blocks_per_sm: int | None = None
    occupancy: float | None = None
    limited_by: tuple[str, ...] = ()
    unread: str | None = None
    refused: str | None = None


def predict(rung: Rung, gpu: DeviceSpec) -> Prediction:
    """The prediction for `rung` on `gpu`; compiles its kernel, which takes about a second and needs no GPU."""
    level = rung.level
    refused = rung.refused(gpu)
    if refused is not None:
        return Prediction(level.name, rung.dtype, level.unit, refused=refused.reason)
    top = peak(level.unit, gpu)
    us = PINNED["hand"].model(rung.problem, gpu).estimate(level).us
    registers = local_bytes = blocks = share = unread = None
    limited_by: tuple[str, ...] = ()
    try:
        code = sass.read(build(rung.spec(gpu)).elf)
    except CuteGemmError as missing:  # a tool or a header: the models need neither
        unread = str(missing).splitlines()[0]
    else:
        registers, local_bytes = code.registers, code.local_bytes
        held = occupancy(gpu, threads=level.threads, registers=registers, smem=level.smem_bytes)
        blocks, share, limited_by = held.blocks, held.share, held.limited_by
    return Prediction(
        level.name,
        rung.dtype,
        level.unit,
        expected=level.share,
        us=us,
        tflops=rung.flops / us * 1e-6,
        loaded_bytes=rung.loaded_bytes,
        intensity=rung.intensity,
        attainable_tflops=attainable(rung.intensity, top, gpu.hbm_bytes_per_s) * 1e-12,
        memory_bound=rung.intensity < ridge_point(top, gpu.hbm_bytes_per_s),
        smem_bytes=level.smem_bytes,
        registers=registers,
        local_bytes=local_bytes,
        blocks_per_sm=blocks,
        occupancy=share,
        limited_by=limited_by,
        unread=unread,
    )
