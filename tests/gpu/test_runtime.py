"""What happens around a launch on a GPU: streams, devices, the second call, concurrency, very large strides."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cutegemm import compiler, epilogues, errors, gemm, warm
from cutegemm.compiler import cache
from cutegemm.cutlass_cpp import build
from cutegemm.device import DeviceSpec
from cutegemm.planner import FAMILIES
from tests.ahead import spec_of
from tests.helpers import check

pytestmark = pytest.mark.gpu


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a warm call compiled")

    monkeypatch.setattr(compiler.jit, "build", refuse)
    monkeypatch.setattr(cache, "_from_disk_or_compiler", refuse)


_CALLS: dict[str, Callable[..., object]] = {
    "plain": lambda a, b, v, t: gemm(a, b),
    "bias_gelu": lambda a, b, v, t: gemm(a, b, epilogue=epilogues.bias_gelu(v)),
    "composed": lambda a, b, v, t: gemm(a, b, epilogue=epilogues.bias(v) >> epilogues.gelu() >> epilogues.add(t)),
    "c": lambda a, b, v, t: gemm(a, b, c=t, alpha=2.0, beta=0.5),
    "scalar tensors": lambda a, b, v, t: gemm(a, b, c=t, alpha=v.sum(), beta=v[0]),
    "out is c": lambda a, b, v, t: gemm(a, b, c=t, out=t),
    "several outputs": lambda a, b, v, t: gemm(a, b, epilogue=epilogues.bias_gelu_aux(v)),
}


@pytest.mark.parametrize("name", _CALLS)
def test_a_second_call_neither_compiles_nor_synchronises(name: str, request: pytest.FixtureRequest) -> None:
    a, b, v, t = randn(96, 64), randn(64, 128), randn(128), randn(96, 128)
    call = _CALLS[name]
    before = t.clone()
    first = call(a, b, v, t)
    first = first.clone() if isinstance(first, torch.Tensor) else tuple(x.clone() for x in first)
    t.copy_(before)
    request.getfixturevalue("no_compiler")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        second = call(a, b, v, t)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    firsts, seconds = (x if isinstance(x, tuple) else (x,) for x in (first, second))
    for x, y in zip(firsts, seconds, strict=True):
        assert torch.equal(x, y)


_VIEWS: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "packed": lambda: (randn(256, 64), randn(64, 128)),
    "transposed": lambda: (randn(64, 256).t(), randn(128, 64).t()),
    "narrow": lambda: (randn(256, 512)[:, :3], randn(3, 128)),
    "strided": lambda: (randn(40, 60)[::2, ::2], randn(60, 512)[::2, ::7]),
    "expanded": lambda: (randn(64).expand(128, 64), randn(64, 1).expand(64, 48)),
    "batch": lambda: (randn(3, 1, 24, 16), randn(5, 16, 40).mT.contiguous().mT),
}


@pytest.mark.parametrize("name", _VIEWS)
def test_a_call_allocates_its_output_and_nothing_else(name: str) -> None:
    a, b = _VIEWS[name]()
    out = torch.empty_like(gemm(a, b))
    for given, expected in ((None, 1), (out, 0)):
        gemm(a, b, out=given)  # builds the kernel
        for forget in (True, False):  # the full path, then the warm one
            if forget:
                warm._entries.clear()
            torch.cuda.synchronize()
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            result = gemm(a, b, out=given)
            assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == expected
            check(result, a, b)


def test_a_warm_call_still_checks_what_the_key_leaves_open() -> None:
    pool = randn(4 * 64 * 64)
    a, b, out = (pool[i * 4096 : (i + 1) * 4096].view(64, 64) for i in range(3))
    for _ in range(2):
        gemm(a, b, out=out)
    before = pool.clone()
    with pytest.raises(errors.OverlapError, match="out"):
        gemm(a, b, out=a)
    with pytest.raises(errors.OverlapError, match="out"):
        gemm(a, b, out=pool[2048:6144].view(64, 64))
    with pytest.raises(errors.NotAvailableError, match="grad"):
        gemm(a.detach().requires_grad_(), b, out=out)
    with pytest.raises(errors.ArgumentError, match="split_k"):
        gemm(a, b, out=out, split_k=True)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="beta"):
        gemm(a, b, out=out, beta=0.5)
    torch.cuda.synchronize()
    assert torch.equal(pool, before)


def test_it_runs_on_the_callers_stream() -> None:
    a, b = torch.zeros(512, 512, device="cuda", dtype=torch.bfloat16), randn(512, 512)
    value = randn(512, 512)
    gemm(a, b)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        a.copy_(value)
        result = gemm(a, b)
    assert not stream.query(), "the call waited for the stream"
    stream.synchronize()
    check(result, value, b)


def test_it_can_be_captured_in_a_graph() -> None:
    a, b, out = randn(200, 300), randn(300, 100), randn(200, 100)
    gemm(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(a, b, out=out)
    a.copy_(randn(200, 300))
    graph.replay()
    torch.cuda.synchronize()
    check(out, a, b)


def test_a_host_operand_is_refused_and_the_next_call_works() -> None:
    a, b = randn(64, 64), randn(64, 64)
    with pytest.raises(errors.DeviceError, match="cpu"):
        gemm(a, b.cpu())
    check(gemm(a, b), a, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_operands_device_decides_not_the_current_one() -> None:
    a, b = (torch.randn(130, 130, device="cuda:1").bfloat16() for _ in range(2))
    for _ in range(2):  # the full path, then the warm one
        result = gemm(a, b)
        assert result.device == a.device
        assert torch.cuda.current_device() == 0
        check(result, a, b)
    with pytest.raises(errors.DeviceError, match="cuda:0"):
        gemm(a, b.to("cuda:0"))


@pytest.mark.parametrize(("m", "n", "k"), [(16, 2560, 8192), (512, 1536, 1024)])
def test_runs_are_bit_equal(m: int, n: int, k: int) -> None:
    a, b = randn(m, k), randn(n, k).t()
    first = gemm(a, b)
    out = torch.empty_like(first)
    differing = torch.zeros((), device="cuda", dtype=torch.int64)
    for _ in range(1000):
        gemm(a, b, out=out)
        differing += (out != first).sum()
    assert differing.item() == 0
    check(first, a, b)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kernel_waits_for_what_the_one_before_writes(family: str) -> None:
    """A chain of short calls, each on the result of the one before: permutations, so that it is exact."""
    if DeviceSpec.query(0).arch not in FAMILIES[family].architectures:
        pytest.skip(f"{family} has no kernels for this GPU")
    if family == "cutlass_cpp" and (reason := build.missing()) is not None:
        pytest.skip(reason)
    rows = 64 if family == "small_m" else 384  # as many as one of its tiles holds
    dtype = torch.bfloat16 if "bf16" in FAMILIES[family].operand_dtypes else torch.float32
    start, order = randn(rows, 512, dtype=dtype), torch.randperm(512, device="cuda")
    permute = torch.eye(512, device="cuda", dtype=dtype)[order]
    buffers, links = (torch.empty_like(start), torch.empty_like(start)), 300
    for _ in range(3):
        x = start
        for i in range(links):
            x = gemm(x, permute, out=buffers[i % 2], kernel=family)
        expected = start
        for _ in range(links):
            expected = expected[:, torch.argsort(order)]
        assert torch.equal(x, expected)


def test_a_residual_stream_in_place() -> None:
    """The output is the Tile operand, call after call: each reads what the one before wrote, and then overwrites it."""
    x, weight = torch.zeros(300, 264, device="cuda", dtype=torch.float32), torch.eye(264, device="cuda").bfloat16()
    step = torch.ones(300, 264, device="cuda", dtype=torch.bfloat16)
    for _ in range(300):
        gemm(step, weight, epilogue=epilogues.add(x), out=x)
    assert torch.equal(x, torch.full_like(x, 300.0))


def test_more_batch_modes_than_a_kernel_walks() -> None:
    a = randn(3, 1, 2, 1, 5, 24, 16).expand(3, 4, 2, 3, 5, 24, 16)
    b = randn(1, 4, 1, 3, 1, 16, 40)
    check(gemm(a, b), a, b)


def test_offsets_beyond_32_bits() -> None:
    torch.cuda.empty_cache()  # what earlier tests left there counts as used
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GB of free GPU memory")
    wide = torch.randn(40_000, 65_536, device="cuda", dtype=torch.bfloat16)
    b = randn(64, 256)
    check(gemm(wide[:, :64], b)[-300:], wide[-300:, :64], b)
    del wide
    a, b = randn(65_537, 64), randn(64, 32_768)
    check(gemm(a, b)[-200:], a[-200:], b)


def test_calls_that_differ_in_one_thing_need_distinct_kernels() -> None:
    a, b, v = randn(24, 64), randn(64, 40), randn(40)
    odd = randn(24 * 64 + 1).as_strided((24, 64), (64, 1), 1)
    bound = (epilogues.relu(), epilogues.gelu(), epilogues.gelu_tanh(), epilogues.bias(v), epilogues.bias(v.float()))
    specs = [spec_of(a, b), *(spec_of(a, b, epilogue=e) for e in bound), spec_of(a.half(), b.half()), spec_of(odd, b)]
    specs += [spec_of(a.t().contiguous().t(), b), spec_of(a, b, out_dtype=torch.float32), spec_of(a, b, alpha=v[0])]
    assert len(set(specs)) == len({spec.key for spec in specs}) == len(specs)
    assert spec_of(a, b, alpha=2.0) == spec_of(randn(24, 64), b, alpha=-1.0) == specs[0]


def test_concurrent_first_calls_from_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    cache.clear_memory()
    warm._entries.clear()
    built: list[compiler.Spec] = []
    build = compiler.jit.build
    monkeypatch.setattr(compiler.jit, "build", lambda spec: built.append(spec) or build(spec))
    a, b = randn(72, 88), randn(88, 104)
    results: list[torch.Tensor] = []
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def first() -> None:
        try:
            start.wait(60)
            results.append(gemm(a, b, epilogue=epilogues.silu()))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not failures and len(results) == 8
    for result in results:
        check(result, a, b, epilogue=epilogues.silu())
    assert len(built) == 1


_PROCESS = """
import torch
from cutegemm import gemm, epilogues, compiler
build = compiler.jit.build
compiler.jit.build = lambda spec: print("built", flush=True) or build(spec)
torch.manual_seed(0)
a, b = (torch.randn(80, 80, device="cuda").bfloat16() for _ in range(2))
result = gemm(a, b, epilogue=epilogues.tanh())
expected = torch.tanh(a.double() @ b.double())
assert (result.double() - expected).abs().max() < 5e-3
"""


def test_concurrent_first_calls_from_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "CUTEGEMM_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", _PROCESS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [subprocess.Popen(command, env=environment, text=True, **pipes) for _ in range(8)]  # type: ignore[call-overload]
    try:
        outputs = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, messages) in zip(started, outputs, strict=True):
        assert process.returncode == 0, messages
    assert sum(output.count("built") for output, _ in outputs) == 1
