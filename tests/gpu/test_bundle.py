"""A bundle on a GPU: its kernels' results are the compiler's bit for bit, in a process that can compile nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cutegemm import KernelNotBuiltError, epilogues, gemm, load_bundle, warm
from cutegemm.compiler import cache, loader, serving
from cutegemm.deploy import builder, spec_file
from cutegemm.device import DeviceSpec
from cutegemm.recording import read
from tests.helpers import check

pytestmark = pytest.mark.gpu

# Run in both processes, so that the calls are the same; it leaves their results in `results`.
CALLS = """
import torch
from cutegemm import Row, epilogue, epilogues, gemm, interleave, ops

@epilogue
def clipped(acc, shift: Row):
    return ops.minimum(acc - shift, 2.0)

draw = torch.Generator("cuda").manual_seed(0)
def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", generator=draw).to(dtype)

x, w, v, r = randn(300, 512), randn(384, 512), randn(384), randn(300, 384)
odd = randn(301, 77)[1:, 1:40]
half = randn(64, 256, dtype=torch.float16)
results = [
    gemm(x, w.t()),
    gemm(x[:3], w.t()),
    gemm(x, w.t(), epilogue=epilogues.bias_gelu(v)),
    gemm(x, interleave(w, w).t(), epilogue=epilogues.swiglu()),
    *gemm(x, w.t(), epilogue=epilogues.bias_gelu_aux(v)),
    gemm(x, w.t(), epilogue=clipped(v)),
    gemm(x, w.t(), c=r, alpha=2.0, beta=0.5, out_dtype=torch.float32),
    gemm(odd, randn(39, 50)),
    gemm(half, half.t()),
    gemm(x.view(3, 100, 512), w.t()),
    gemm(x, w.t(), kernel="sm80_multistage:tile=64x64x32"),
]
torch.cuda.synchronize()
"""

# `cutlass` can't be imported there, nor a C compiler found.
SERVED = f"""
import os, sys
os.environ["PATH"] = os.environ["CC"] = ""
sys.modules["cutlass"] = None
{CALLS}
from cutegemm.compiler import cache
assert not os.path.exists(os.environ["CUTEGEMM_CACHE_DIR"])
origins = {{kernel.origin for kernel in cache._kernels.values()}}
assert origins == {{"bundle"}}, origins
torch.save([t.cpu() for t in results], sys.argv[1])
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[torch.Tensor]]:
    """A bundle of the kernels that CALLS takes, built of a recorded run, and that run's results by the compiler."""
    folder = tmp_path_factory.mktemp("recorded")
    code = f"import sys\n{CALLS}\ntorch.save([t.cpu() for t in results], sys.argv[1])"
    run(code, folder / "compiled.pt", CUTEGEMM_CACHE_DIR=folder / "cache", CUTEGEMM_LOG=folder / "calls.jsonl")
    wanted = spec_file.recorded(read(folder / "calls.jsonl"))
    builder.build(wanted, [DeviceSpec.query(0)], folder / "bundle")
    return folder / "bundle", torch.load(folder / "compiled.pt")


def run(code: str, output: Path, **env: object) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CUTEGEMM_")}
    command = [sys.executable, "-c", code, output]
    done = subprocess.run(command, env=clean | {k: str(v) for k, v in env.items()}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_results_are_the_compilers_bit_for_bit_where_nothing_can_be_compiled(
    recorded: tuple[Path, list[torch.Tensor]], tmp_path: Path
) -> None:
    bundle, compiled = recorded
    run(
        SERVED,
        tmp_path / "served.pt",
        CUTEGEMM_BUNDLE=bundle,
        CUTEGEMM_JIT=0,
        CUTEGEMM_CACHE_DIR=tmp_path / "none",
        CUTEGEMM_RUNTIME_LIBRARY=loader.runtime_library(),
    )
    served = torch.load(tmp_path / "served.pt")
    assert len(served) == len(compiled) == 12
    for one, other in zip(served, compiled, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTEGEMM_BUNDLE", raising=False)

    def forget() -> None:
        warm._entries.clear()
        cache.clear_memory()
        cache._usable.cache_clear()
        serving.forget()

    forget()
    yield
    forget()


@pytest.mark.usefixtures("fresh")
def test_a_bundle_serves_sizes_that_it_was_not_built_for_and_no_other_epilogue(
    recorded: tuple[Path, list[torch.Tensor]],
) -> None:
    bundle = load_bundle(recorded[0])
    assert bundle.archs == (DeviceSpec.query(0).arch,)
    x, w = torch.randn(5000, 1024, device="cuda").bfloat16(), torch.randn(1000, 1024, device="cuda").bfloat16()
    first = gemm(x, w.t(), jit="forbid")
    assert torch.equal(gemm(x, w.t(), jit="forbid"), first)  # the warm call
    check(first, x, w.t())
    with pytest.raises(KernelNotBuiltError, match=r"(?s)jit='forbid'.*Nearest in the bundles:.*epilogue = \"relu\""):
        gemm(x, w.t(), epilogue=epilogues.relu(), jit="forbid")


@pytest.mark.usefixtures("fresh")
def test_without_a_bundle_nothing_is_compiled_where_that_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTEGEMM_JIT", "0")
    x = torch.randn(64, 64, device="cuda").bfloat16()
    with pytest.raises(KernelNotBuiltError, match=r"(?s)CUTEGEMM_JIT=0.*\[\[problem\]\]\nm = 64\nn = 64\nk = 64$"):
        gemm(x, x.t())
