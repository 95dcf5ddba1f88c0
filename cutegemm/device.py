"""What a GPU can do, as plain numbers: from the driver for a GPU that is here, from `devices.json` for one
that is not.

Nothing here needs torch, a GPU or a driver until a GPU is asked about: `known` and `lookup` read the data
file alone.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cutegemm.errors import ArgumentError, DeviceError, UnsupportedArchitectureError

__all__ = [
    "DeviceSpec",
    "arch_name",
    "current",
    "driver_release",
    "driver_version",
    "gpus",
    "known",
    "lookup",
]

_DATA = Path(__file__).with_name("devices.json")
_ACCELERATED = 90  # from sm_90 on, wgmma and what followed it exist on the `a` targets only


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """The facts that legality and the model need about one GPU.

    Sizes are in bytes, rates per second for the whole GPU. `smem_per_block` is the opt-in limit; a resident
    block also takes `smem_reserved_per_block` of `smem_per_sm`. `mma_flops` is the dense fp16/bf16 rate with
    fp32 accumulation that warp-level `mma.sync` reaches, `peak_flops` that of the GPU's fastest instruction
    (wgmma, tcgen05). `source` says where the rates come from.
    """

    name: str
    arch: str
    compute_capability: tuple[int, int]
    sm_count: int
    smem_per_block: int
    smem_per_sm: int
    smem_reserved_per_block: int
    registers_per_sm: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    l2_bytes: int
    hbm_bytes_per_s: float
    l2_bytes_per_s: float
    clock_hz: float
    mma_flops: float
    peak_flops: float
    fp32_flops: float
    source: str

    @staticmethod
    def query(index: int = 0) -> DeviceSpec:
        """The spec of GPU `index`, in the driver's order (`CUDA_VISIBLE_DEVICES` applies); cached per index.

        Sizes come from the driver. Rates come from the data file for a GPU it knows by name, scaled to the
        SMs present (a MIG slice has fewer), and from the driver's clocks for any other.
        Raises `DeviceError` without cuda-python, a driver, or a GPU of that index.
        """
        return _query(index)


def arch_name(compute_capability: tuple[int, int]) -> str:
    """The compilation target of a compute capability: (8, 6) is `"sm_86"`, (9, 0) `"sm_90a"`."""
    number = 10 * compute_capability[0] + compute_capability[1]
    return f"sm_{number}{'a' if number >= _ACCELERATED else ''}"


def bound_device() -> int:
    """The index of the device of this thread's context. A thread that has none yet, which torch may leave so until it
    launches something itself, gets the primary one of torch's current device.

    Raises `DeviceError` with the driver's word where neither works.
    """
    from cuda.bindings import driver

    error, device = driver.cuCtxGetDevice()
    if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
        import torch

        device = torch.cuda.current_device()
        error, context = driver.cuDevicePrimaryCtxRetain(device)
        if int(error) == 0:
            (error,) = driver.cuCtxSetCurrent(context)
    if int(error) != 0:
        raise DeviceError(f"no context to launch in: {error.name}")
    return int(device)


def known() -> tuple[DeviceSpec, ...]:
    """Every GPU in the data file, oldest architecture first."""
    return _table().gpus


def lookup(name: str) -> DeviceSpec:
    """The known GPU called `name`, or the representative one of an architecture.

    Accepts a GPU's name or the driver's name for it in any case and spacing (`"H200"`, `"NVIDIA
    A100-SXM4-80GB"`), and an architecture with or without its `a` (`"sm_90a"`, `"sm_90"`).
    Raises `UnsupportedArchitectureError` for an architecture, `ArgumentError` for a GPU, that is not in the
    file.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"arch={name!r}: expected an architecture such as 'sm_90a' or a GPU's name such as 'H200'")
    table = _table()
    if re.fullmatch(r"sm_\d+[a-z]?", name):
        found = next((cc for cc in table.architectures if name in (a := arch_name(cc), a.rstrip("a"))), None)
        if found is None:
            archs = ", ".join(arch_name(cc) for cc in table.architectures)
            raise UnsupportedArchitectureError(f"unknown architecture {name!r}: known are {archs}")
        return table.by_name[_key(table.architectures[found]["representative"])]
    spec = table.by_name.get(_key(name))
    if spec is None:
        near = difflib.get_close_matches(_key(name), table.by_name, n=3)
        hint = f"did you mean {', '.join(dict.fromkeys(table.by_name[k].name for k in near))}? " if near else ""
        names = ", ".join(gpu.name for gpu in table.gpus)
        raise ArgumentError(f"unknown GPU {name!r}: {hint}known are {names}, and architectures such as sm_90a")
    return spec


def driver_version() -> tuple[int, int]:
    """The newest CUDA version that the installed driver supports, such as (13, 0). Raises `DeviceError`
    without one.
    """
    number = int(_call("cuDriverGetVersion"))
    return number // 1000, number % 1000 // 10


def driver_release() -> str | None:
    """The driver's own release, such as `"580.159.04"`, or None where NVML does not say."""
    try:
        from cuda.bindings import nvml

        nvml.init_v2()
        return str(nvml.system_get_driver_version())
    except Exception:  # NVML is a courtesy: absent in some containers, and its errors share no base class
        return None


def gpus() -> tuple[DeviceSpec, ...]:
    """The GPUs that the driver shows, in its order; empty where it shows none. Raises `DeviceError` without a
    driver.
    """
    driver = _driver()
    status, *_ = _invoke(driver, "cuInit", 0)
    if status == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        return ()
    _initialize()
    return tuple(DeviceSpec.query(index) for index in range(int(_call("cuDeviceGetCount"))))


def current() -> DeviceSpec:
    """The GPU of this thread's CUDA context, or GPU 0 where there is none. Raises `DeviceError` without a
    GPU.
    """
    driver = _driver()
    _initialize()
    status, *value = _invoke(driver, "cuCtxGetDevice")
    return DeviceSpec.query(int(value[0]) if status == driver.CUresult.CUDA_SUCCESS else 0)


# ---------------------------------------------------------------- the driver


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(f"cuda-python can't be imported ({error}): pip install 'cuda-python>=13,<14'") from error
    return driver


def _invoke(driver: Any, function: str, *args: Any) -> tuple[Any, ...]:
    try:
        result: tuple[Any, ...] = getattr(driver, function)(*args)
    except RuntimeError as error:  # what cuda-python raises when libcuda can't be loaded
        raise DeviceError(
            "no NVIDIA driver (libcuda) was found. Install the driver, or start the container with its GPUs "
            "(docker run --gpus all). Without one, plan(..., arch=...) and CPU tensors work."
        ) from error
    return result


def _call(function: str, *args: Any) -> Any:
    driver = _driver()
    status, *values = _invoke(driver, function, *args)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"the driver refused {function}: {status.name}. `cutegemm doctor` says what to check")
    return values[0] if values else None


def _initialize() -> None:
    _call("cuInit", 0)


@functools.cache
def _query(index: int) -> DeviceSpec:
    _initialize()
    count = int(_call("cuDeviceGetCount"))
    if not 0 <= index < count:
        raise DeviceError(f"no GPU {index}: the driver shows {count}, numbered from 0")
    handle = _call("cuDeviceGet", index)
    names = _driver().CUdevice_attribute

    def attribute(name: str) -> int:
        return int(_call("cuDeviceGetAttribute", getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), handle))

    raw = _call("cuDeviceGetName", 128, handle)
    cc = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    spec = replace(
        _rates(
            name=raw.split(b"\0")[0].decode(),
            cc=cc,
            sm_count=attribute("MULTIPROCESSOR_COUNT"),
            clock_hz=attribute("CLOCK_RATE") * 1e3,
            # Two transfers a clock: every memory since GDDR5 and HBM counts its clock so.
            hbm_bytes_per_s=2e3 * attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8,
        ),
        smem_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        smem_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        smem_reserved_per_block=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        registers_per_sm=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        max_threads_per_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        max_blocks_per_sm=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
    )
    return spec


def _rates(*, name: str, cc: tuple[int, int], sm_count: int, clock_hz: float, hbm_bytes_per_s: float) -> DeviceSpec:
    """A spec with the best rates known for a GPU that the driver has named and counted."""
    table = _table()
    plain = table.by_name.get(_key(re.sub(r" MIG .*", "", name)))
    if plain is not None and plain.compute_capability == cc:
        share = sm_count / plain.sm_count
        return replace(
            plain,
            name=name,
            sm_count=sm_count,
            hbm_bytes_per_s=plain.hbm_bytes_per_s * share,
            l2_bytes_per_s=plain.l2_bytes_per_s * share,
            mma_flops=plain.mma_flops * share,
            peak_flops=plain.peak_flops * share,
            fp32_flops=plain.fp32_flops * share,
        )
    # An architecture newer than the file is described by the newest one it does know: a bound from below.
    nearest = max((have for have in table.architectures if have <= cc), default=min(table.architectures))
    facts = table.architectures[nearest]
    stand_in = table.by_name[_key(facts["representative"])]
    return _spec(
        facts,
        name=name,
        cc=cc,
        sm_count=sm_count,
        clock_hz=clock_hz or stand_in.clock_hz,
        hbm_bytes_per_s=hbm_bytes_per_s or stand_in.hbm_bytes_per_s * sm_count / stand_in.sm_count,
        l2_bytes=stand_in.l2_bytes,
        source=f"the driver's clocks and the rates per SM of {arch_name(nearest)}",
    )


# ---------------------------------------------------------------- the data file


@dataclass(frozen=True, slots=True)
class _Table:
    architectures: Mapping[tuple[int, int], Mapping[str, Any]]
    gpus: tuple[DeviceSpec, ...]
    by_name: Mapping[str, DeviceSpec]


_ARCHITECTURE: dict[str, type] = {
    "arch": str,
    "representative": str,
    "smem_per_block": int,
    "smem_per_sm": int,
    "smem_reserved_per_block": int,
    "registers_per_sm": int,
    "max_threads_per_sm": int,
    "max_blocks_per_sm": int,
    "fp32_lanes_per_sm": int,
    "mma_flop_per_clk_per_sm": int,
    "peak_flop_per_clk_per_sm": int,
    "l2_bytes_per_clk_per_sm": int,
    "source": str,
}
_GPU: dict[str, type] = {
    "name": str,
    "aliases": list,
    "compute_capability": str,
    "sm_count": int,
    "clock_mhz": float,
    "hbm_gb_per_s": float,
    "l2_mib": float,
    "source": str,
}
_GPU_OVERRIDES: dict[str, type] = {"mma_flop_per_clk_per_sm": int, "peak_flop_per_clk_per_sm": int}
_MAY_BE_ZERO = {"smem_reserved_per_block"}


@functools.cache
def _table() -> _Table:
    return _parse(_DATA.read_text(encoding="utf-8"))


def _parse(text: str) -> _Table:
    """The table in `text`. Raises `ArgumentError` naming the entry and the field that break the schema."""
    data = json.loads(text)
    if data.get("schema") != 1:
        raise ArgumentError(f"devices.json: schema must be 1, got {data.get('schema')!r}")
    architectures: dict[tuple[int, int], Mapping[str, Any]] = {}
    for key, facts in data["architectures"].items():
        where = f"architectures[{key!r}]"
        _check(where, facts, _ARCHITECTURE)
        cc = _capability(where, key)
        _require(facts["arch"] == arch_name(cc), where, "arch", facts["arch"], repr(arch_name(cc)))
        _require(
            facts["smem_per_block"] + facts["smem_reserved_per_block"] <= facts["smem_per_sm"],
            where,
            "smem_per_block",
            facts["smem_per_block"],
            "at most smem_per_sm less what is reserved",
        )
        architectures[cc] = facts
    gpus: list[DeviceSpec] = []
    by_name: dict[str, DeviceSpec] = {}
    for i, gpu in enumerate(data["gpus"]):
        where = f"gpus[{i}]"
        _check(where, gpu, _GPU, _GPU_OVERRIDES)
        cc = _capability(where, gpu["compute_capability"])
        _require(cc in architectures, where, "compute_capability", str(cc), "one of the architectures")
        spec = _spec(
            {**architectures[cc], **{key: gpu[key] for key in _GPU_OVERRIDES if key in gpu}},
            name=gpu["name"],
            cc=cc,
            sm_count=gpu["sm_count"],
            clock_hz=gpu["clock_mhz"] * 1e6,
            hbm_bytes_per_s=gpu["hbm_gb_per_s"] * 1e9,
            l2_bytes=int(gpu["l2_mib"] * 2**20),
            source=gpu["source"],
        )
        gpus.append(spec)
        for name in (gpu["name"], *gpu["aliases"]):
            _require(_key(name) not in by_name, where, "name", name, "a name used once")
            by_name[_key(name)] = spec
    for cc, facts in architectures.items():
        stand_in = by_name.get(_key(facts["representative"]))
        fits = stand_in is not None and stand_in.compute_capability == cc
        _require(fits, f"architectures[{cc}]", "representative", facts["representative"], "a GPU of this one")
    return _Table(architectures, tuple(gpus), by_name)


def _spec(
    facts: Mapping[str, Any],
    *,
    name: str,
    cc: tuple[int, int],
    sm_count: int,
    clock_hz: float,
    hbm_bytes_per_s: float,
    l2_bytes: int,
    source: str,
) -> DeviceSpec:
    clocks = sm_count * clock_hz
    return DeviceSpec(
        name=name,
        arch=arch_name(cc),
        compute_capability=cc,
        sm_count=sm_count,
        smem_per_block=facts["smem_per_block"],
        smem_per_sm=facts["smem_per_sm"],
        smem_reserved_per_block=facts["smem_reserved_per_block"],
        registers_per_sm=facts["registers_per_sm"],
        max_threads_per_sm=facts["max_threads_per_sm"],
        max_blocks_per_sm=facts["max_blocks_per_sm"],
        l2_bytes=l2_bytes,
        hbm_bytes_per_s=hbm_bytes_per_s,
        l2_bytes_per_s=facts["l2_bytes_per_clk_per_sm"] * clocks,
        clock_hz=clock_hz,
        mma_flops=facts["mma_flop_per_clk_per_sm"] * clocks,
        peak_flops=facts["peak_flop_per_clk_per_sm"] * clocks,
        fp32_flops=2 * facts["fp32_lanes_per_sm"] * clocks,
        source=source,
    )


def _key(name: str) -> str:
    """One spelling for "NVIDIA GeForce RTX 4090", "geforce rtx-4090" and "RTX4090"."""
    return re.sub(r"[\s_-]", "", re.sub(r"nvidia|geforce|tesla", "", name.lower()))


def _check(
    where: str,
    entry: Mapping[str, Any],
    schema: Mapping[str, type],
    optional: Mapping[str, type] | None = None,
) -> None:
    allowed = {**schema, **(optional or {})}
    for field in schema:
        _require(field in entry, where, field, None, "present")
    for field, value in entry.items():
        _require(field in allowed, where, field, value, f"one of {', '.join(allowed)}")
        kind = allowed[field]
        if kind in (int, float):
            number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
            least = 0 if field in _MAY_BE_ZERO else 1
            _require(number and value >= least, where, field, value, f"{kind.__name__} of at least {least}")
        else:
            _require(
                _is_text(value, kind),
                where,
                field,
                value,
                kind.__name__,
            )


def _is_text(value: object, kind: type) -> bool:
    """Whether `value` is a string, or a list of strings, as `kind` asks."""
    return isinstance(value, kind) and isinstance(value, (str, list)) and all(isinstance(v, str) for v in value)


def _capability(where: str, text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\.(\d)", text)
    _require(match is not None, where, "compute_capability", text, 'such as "9.0"')
    assert match is not None
    return int(match[1]), int(match[2])


def _require(held: bool, where: str, field: str, value: object, expected: str) -> None:
    if not held:
        raise ArgumentError(f"devices.json: {where}.{field} must be {expected}, got {value!r}")
