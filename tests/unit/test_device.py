"""The GPU facts: the data file, look-up by name and architecture, and the driver's absence and presence."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver

from cutegemm import device
from cutegemm.device import DeviceSpec, arch_name, known, lookup
from cutegemm.errors import ArgumentError, DeviceError, UnsupportedArchitectureError

DATA = json.loads((Path(device.__file__).with_name("devices.json")).read_text(encoding="utf-8"))
KIB = 1024


@pytest.mark.parametrize(
    ("cc", "arch"),
    [
        ((7, 5), "sm_75"),
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 3), "sm_103a"),
        ((12, 0), "sm_120a"),
        ((12, 1), "sm_121a"),
    ],
)
def test_arch_names(cc: tuple[int, int], arch: str) -> None:
    assert arch_name(cc) == arch
    assert lookup(arch).compute_capability == cc
    assert lookup(arch.removesuffix("a")) == lookup(arch)


@pytest.mark.parametrize(
    ("name", "sms", "block_kib", "sm_kib"),
    [
        ("T4", 40, 64, 64),
        ("A100", 108, 163, 164),
        ("A10", 72, 99, 100),
        ("RTX 3090", 82, 99, 100),
        ("RTX 4090", 128, 99, 100),
        ("L4", 58, 99, 100),
        ("H100", 132, 227, 228),
        ("H200", 132, 227, 228),
        ("B200", 148, 227, 228),
        ("RTX 5090", 170, 99, 100),
        ("GB10", 48, 99, 100),
    ],
)
def test_sizes(name: str, sms: int, block_kib: int, sm_kib: int) -> None:
    spec = lookup(name)
    assert (spec.sm_count, spec.smem_per_block, spec.smem_per_sm) == (sms, block_kib * KIB, sm_kib * KIB)


@pytest.mark.parametrize(
    ("name", "tflops"),  # dense fp16 with fp32 accumulation, from the datasheets
    [
        ("T4", 65),
        ("A100", 312),
        ("A30", 165),
        ("A10", 125),
        ("A10G", 70),
        ("RTX 3090", 71),
        ("L4", 121),
        ("L40S", 362),
        ("RTX 4090", 165.2),
        ("H100 PCIe", 756),
        ("B200", 2250),
        ("RTX 5090", 209.5),
        ("RTX PRO 6000", 503.8),
    ],
)
def test_peak_rates_match_datasheets(name: str, tflops: float) -> None:
    assert lookup(name).peak_flops == pytest.approx(tflops * 1e12, rel=0.02)


def test_measured_rates_of_the_h200() -> None:
    spec = lookup("H200")
    assert spec.mma_flops == pytest.approx(645e12, rel=0.001)
    assert spec.hbm_bytes_per_s == 4.65e12


def test_known_gpus_are_distinct_and_consistent() -> None:
    specs = known()
    assert len({spec.name for spec in specs}) == len(specs) >= 30
    for spec in specs:
        assert spec.mma_flops <= spec.peak_flops, spec.name
        assert spec.hbm_bytes_per_s < spec.l2_bytes_per_s, spec.name
        assert lookup(spec.name) == spec


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h200", "H200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert lookup(spelling).name == name


def test_unknown_names() -> None:
    with pytest.raises(ArgumentError, match=r"unknown GPU 'H20O': did you mean H200"):
        lookup("H20O")
    for arch in ("sm_61", "sm_90b", "sm_75a"):
        with pytest.raises(UnsupportedArchitectureError, match=rf"unknown architecture '{arch}'.*sm_90a"):
            lookup(arch)


# ---------------------------------------------------------------- the schema: every mutant is named


def _mutant(path: list[Any], value: object) -> str:
    data = json.loads(json.dumps(DATA))
    at = data
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["schema"], 2, "schema must be 1, got 2"),
        (["gpus", 3, "sm_count"], "132", r"gpus\[3\].sm_count must be int"),
        (["gpus", 3, "sm_count"], True, r"gpus\[3\].sm_count must be int"),
        (["gpus", 3, "sm_count"], 0, r"gpus\[3\].sm_count must be int of at least 1, got 0"),
        (["gpus", 3, "l2_mib"], None, r"gpus\[3\].l2_mib must be present"),
        (["gpus", 3, "sm_cuont"], 1, r"gpus\[3\].sm_cuont must be one of"),
        (["gpus", 3, "aliases"], [1], r"gpus\[3\].aliases must be list"),
        (["gpus", 3, "aliases"], ["T4"], r"gpus\[3\].name must be a name used once, got 'T4'"),
        (["gpus", 3, "compute_capability"], "9.9", "compute_capability must be one of the architectures"),
        (["gpus", 3, "compute_capability"], "nine", "compute_capability must be such as"),
        (["architectures", "9.0", "arch"], "sm_90", "arch must be 'sm_90a', got 'sm_90'"),
        (["architectures", "9.0", "representative"], "T4", "representative must be a GPU of this one"),
        (["architectures", "9.0", "smem_per_block"], 233472, "smem_per_block must be at most"),
        (["architectures", "9.0", "registers_per_sm"], -1, "registers_per_sm must be int"),
    ],
)
def test_schema_violations_are_named(path: list[Any], value: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        device._parse(_mutant(path, value))


def test_unmutated_file_parses() -> None:
    assert device._parse(json.dumps(DATA)).gpus == known()


# ---------------------------------------------------------------- the driver, played by a fake


_Result = driver.CUresult

H200_ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "CLOCK_RATE": 1980000,
    "MEMORY_CLOCK_RATE": 3201000,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "L2_CACHE_SIZE": 62914560,
}


class FakeDriver(types.ModuleType):
    """As much of `cuda.bindings.driver` as is asked for: GPUs as (name, attributes), and a current one.

    Enumerations and handles are the real ones, which need no driver.
    """

    CUresult = driver.CUresult
    CUdevice_attribute = driver.CUdevice_attribute

    def __init__(self, gpus: list[tuple[str, dict[str, int]]], current: int | None = None) -> None:
        super().__init__("cuda.bindings.driver")
        self.gpus, self.context = gpus, current

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (_Result.CUDA_SUCCESS if self.gpus else _Result.CUDA_ERROR_NO_DEVICE,)

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return _Result.CUDA_SUCCESS, 13020

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return _Result.CUDA_SUCCESS, len(self.gpus)

    def cuDeviceGet(self, index: int) -> tuple[Any, ...]:
        return _Result.CUDA_SUCCESS, driver.CUdevice(index)

    def cuDeviceGetName(self, size: int, handle: Any) -> tuple[Any, ...]:
        return _Result.CUDA_SUCCESS, self.gpus[int(handle)][0].encode().ljust(size, b"\0")

    def cuDeviceGetAttribute(self, attribute: Any, handle: Any) -> tuple[Any, ...]:
        name = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        return _Result.CUDA_SUCCESS, self.gpus[int(handle)][1][name]

    def cuCtxGetDevice(self) -> tuple[Any, ...]:
        if self.context is None:
            return _Result.CUDA_ERROR_INVALID_CONTEXT, driver.CUdevice(0)
        return _Result.CUDA_SUCCESS, driver.CUdevice(self.context)


def play(monkeypatch: pytest.MonkeyPatch, *gpus: tuple[str, dict[str, int]], current: int | None = None) -> None:
    bindings = types.ModuleType("cuda.bindings")
    bindings.driver = FakeDriver(list(gpus), current)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings.driver)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _forget_queries() -> Any:
    device._query.cache_clear()
    yield
    device._query.cache_clear()


def test_query_takes_known_rates_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, ("NVIDIA H200", H200_ATTRIBUTES))
    spec = DeviceSpec.query(0)
    assert (spec.name, spec.arch) == ("NVIDIA H200", "sm_90a")
    assert spec.mma_flops == lookup("H200").mma_flops
    assert spec.smem_per_block == 232448
    assert DeviceSpec.query(0) is spec


def test_query_scales_a_mig_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_ = {**H200_ATTRIBUTES, "MULTIPROCESSOR_COUNT": 33, "L2_CACHE_SIZE": 15728640}
    play(monkeypatch, ("NVIDIA H200 MIG 2g.35gb", slice_))
    spec = DeviceSpec.query(0)
    assert spec.sm_count == 33
    assert spec.l2_bytes == 15728640
    assert spec.mma_flops == pytest.approx(lookup("H200").mma_flops / 4)


def test_query_derives_rates_of_an_unlisted_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, ("NVIDIA H300", H200_ATTRIBUTES))
    spec = DeviceSpec.query(0)
    assert spec.hbm_bytes_per_s == pytest.approx(2 * 3.201e9 * 6144 / 8)
    assert spec.peak_flops == pytest.approx(4096 * 132 * 1.98e9)
    assert "sm_90a" in spec.source


def test_query_of_an_architecture_newer_than_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    future = {**H200_ATTRIBUTES, "COMPUTE_CAPABILITY_MAJOR": 14, "MEMORY_CLOCK_RATE": 0, "CLOCK_RATE": 0}
    play(monkeypatch, ("NVIDIA R100", future))
    spec = DeviceSpec.query(0)
    assert spec.arch == "sm_140a"
    assert spec.mma_flops > 0
    assert spec.hbm_bytes_per_s > 0


def test_index_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, ("NVIDIA H200", H200_ATTRIBUTES))
    for index in (1, -1):
        with pytest.raises(DeviceError, match=rf"no GPU {index}: the driver shows 1"):
            DeviceSpec.query(index)


def test_gpus_and_current(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = [("NVIDIA H200", H200_ATTRIBUTES), ("NVIDIA H300", H200_ATTRIBUTES)]
    play(monkeypatch, *pair, current=1)
    assert [spec.name for spec in device.gpus()] == ["NVIDIA H200", "NVIDIA H300"]
    assert device.current().name == "NVIDIA H300"
    play(monkeypatch, *pair, current=None)
    assert device.current().name == "NVIDIA H200"
    assert device.driver_version() == (13, 2)


def test_a_driver_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)
    assert device.gpus() == ()
    with pytest.raises(DeviceError, match="CUDA_ERROR_NO_DEVICE"):
        device.current()


def test_no_driver_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)

    def missing(*args: object) -> None:
        raise RuntimeError("libcuda.so.1: cannot open shared object file")

    for name in ("cuInit", "cuDriverGetVersion"):
        monkeypatch.setattr(sys.modules["cuda.bindings.driver"], name, missing)
    for ask in (DeviceSpec.query, device.driver_version, device.gpus, device.current):
        with pytest.raises(DeviceError, match="no NVIDIA driver.*Install the driver"):
            ask()


def test_no_cuda_python_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceError, match="pip install 'cuda-python"):
        DeviceSpec.query(0)


@pytest.mark.gpu
def test_the_gpu_here() -> None:
    spec = DeviceSpec.query(0)
    assert spec.arch == arch_name(spec.compute_capability)
    assert spec.smem_per_block + spec.smem_reserved_per_block <= spec.smem_per_sm
    assert device.current() == spec
    assert device.driver_version() >= (12, 0)
    listed = next((gpu for gpu in known() if gpu.name == spec.name.removeprefix("NVIDIA ")), None)
    if listed is not None:
        assert (listed.sm_count, listed.smem_per_block, listed.l2_bytes) == (
            spec.sm_count,
            spec.smem_per_block,
            spec.l2_bytes,
        )
