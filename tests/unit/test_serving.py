"""What serves a call: memory, bundles, the disk cache; what an error says of a kernel that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cutegemm
from cutegemm import KernelNotBuiltError, epilogues, launch, load_bundle
from cutegemm.compiler import Bundle, Spec, bundle, cache, get, loader, serving
from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError, BundleError
from cutegemm.kernels.wgmma_config import WgmmaConfig
from cutegemm.normalize import Call
from cutegemm.planner import contiguous_problem, plan_problem
from tests.bundles import ABSENT, BIASED, OLDER, PLAIN, SMALL, bf16, call, first, flip, forget, kernels

pytestmark = pytest.mark.usefixtures("fresh_process")


@pytest.mark.usefixtures("no_compiler")
def test_memory_then_bundle_then_disk(folder: Path) -> None:
    with pytest.raises(AssertionError, match="was to come from a bundle"):
        get(PLAIN)
    load_bundle(folder)
    kernel = get(PLAIN)
    assert kernel.origin == "bundle" and callable(kernel.function)
    serving.forget()
    assert get(PLAIN) is kernel  # what a process has, it keeps
    cache.clear_memory()
    with pytest.raises(AssertionError, match="was to come from a bundle"):
        get(PLAIN)


def test_a_bundle_comes_before_the_disk_cache(folder: Path) -> None:
    assert get(OLDER).origin == "compiled"
    cache.clear_memory()
    assert get(OLDER).origin == "disk"
    cache.clear_memory()
    load_bundle(folder)
    assert get(OLDER).origin == "bundle"


@pytest.mark.usefixtures("no_compiler")
def test_the_environment_names_bundles(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    bundle.write(one, kernels()[:1])
    bundle.write(other, kernels()[1:])
    monkeypatch.setenv("CUTEGEMM_BUNDLE", f"{one}{os.pathsep}{other}{os.pathsep}")
    assert [get(s).origin for s in (PLAIN, BIASED, OLDER)] == ["bundle"] * 3
    assert [b.path for b in serving.bundles("sm_90a", "H200")] == [one, other]
    flip(first(other), 0.5)
    assert serving.bundles("sm_80", "A100")[0].path == other  # read once
    forget()
    for _ in range(2):  # it stays an error
        with pytest.raises(BundleError, match=f"{other}.*was changed"):
            get(PLAIN)


def test_loading_again_replaces(folder: Path) -> None:
    load_bundle(folder)
    again = load_bundle(str(folder))
    assert serving.bundles("sm_90a", "H200") == (again,)


class EntryPoint:
    def __init__(self, path: object) -> None:
        self.value, self.path = "llm:BUNDLE", path

    def load(self) -> object:
        return self.path


@pytest.mark.usefixtures("no_compiler")
def test_installed_bundles_are_found_and_broken_ones_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(folder / "nowhere"), EntryPoint(3), EntryPoint(folder)]
    monkeypatch.setattr(serving, "entry_points", lambda group: points if group == "cutegemm.bundles" else [])
    with pytest.warns(RuntimeWarning, match="the bundle of 'llm:BUNDLE' is left out") as caught:
        assert get(PLAIN).origin == "bundle"
    assert len(caught) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert serving.bundles("sm_120a", "RTX 5090") == ()  # nobody asked for these


def test_a_bundle_for_other_gpus_is_refused_when_one_is_used(folder: Path) -> None:
    load_bundle(folder)
    message = f"RTX 4090 is sm_89, .*{folder} is for sm_80, sm_90a. Build with --arch sm_89"
    with pytest.raises(BundleError, match=message):
        serving.bundles("sm_89", "RTX 4090")


def test_a_kernel_that_does_not_load_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, spec: Spec, symbol: str) -> None:
        raise OSError("undefined symbol: x")

    load_bundle(folder)
    monkeypatch.setattr(loader, "load", fail)
    with pytest.raises(BundleError, match=r"kernels/sm_90a-.*\.so does not load: undefined symbol: x"):
        get(PLAIN)


# ---------------------------------------------------------------- calls


def sized(m: int, **keywords: Any) -> Call:
    return call(bf16(m, 512), bf16(512, 512).t(), **keywords)


@pytest.mark.usefixtures("no_compiler", "h200")
def test_the_bundles_best_kernel_serves_where_the_plans_own_is_not_there(folder: Path, h200: DeviceSpec) -> None:
    plan = plan_problem(contiguous_problem(512, 512, 512), h200)
    own = Spec(plan.family, plan.config, PLAIN.signature, "sm_90a")
    assert own != PLAIN
    assert launch.choose(sized(512)).spec == own
    load_bundle(folder)
    for m in (1, 77, 512, 4096):
        assert launch.choose(sized(m)).spec == PLAIN
        launch.prepare(sized(m))
    assert get(PLAIN).origin == "bundle"
    bias = bf16(512)
    assert launch.choose(sized(64, epilogue=epilogues.bias(bias))).spec == BIASED
    assert launch.choose(sized(64, epilogue=epilogues.relu())).spec.family == "sm90_wgmma"  # in no bundle
    assert launch.choose(sized(512, kernel=plan.kernel)).spec == own  # a pin is served as it is


@pytest.mark.usefixtures("no_compiler", "h200")
def test_a_bundled_split_serves_sizes_whose_own_plan_would_not_try_it(folder: Path) -> None:
    split = replace(PLAIN, config=replace(SMALL, split=7))
    assert launch.choose(sized(128)).spec.config.options().get("split") != "7"
    bundle.write(folder, [kernels()[0]._replace(spec=split)])
    load_bundle(folder)
    for m in (1, 128, 4096):
        assert launch.choose(sized(m)).spec == split
    assert launch.choose(sized(128, split_k=1)).spec != split


@pytest.mark.usefixtures("no_compiler", "h200")
def test_a_bundled_stream_k_kernel_serves_sizes_whose_own_plan_would_not_try_it(folder: Path) -> None:
    config = WgmmaConfig(128, 256, stages=4, stream=True)
    streamed = replace(PLAIN, family="sm90_wgmma", config=config)
    bundle.write(folder, [kernels()[0]._replace(spec=streamed)])
    load_bundle(folder)
    for m in (1, 128, 4096):
        assert launch.choose(sized(m)).spec == streamed
    assert launch.choose(sized(128, split_k="stream")).spec == streamed
    assert launch.choose(sized(128, split_k=2)).spec != streamed


@pytest.mark.usefixtures("h200")
def test_of_two_kernels_in_bundles_the_plans_order_decides(
    folder: Path, h200: DeviceSpec
) -> None:
    candidates = [c for c in plan_problem(contiguous_problem(512, 512, 512), h200).candidates if c.refusal is None]
    order = [c.config for c in candidates if c.family == "sm80_multistage"]
    better = replace(PLAIN, config=order[order.index(SMALL) - 1])
    load_bundle(folder)
    assert launch.choose(sized(512)).spec == PLAIN
    bundle.write(folder.parent / "more", [kernels()[0]._replace(spec=better)])
    load_bundle(folder.parent / "more")
    assert launch.choose(sized(512)).spec == better


@pytest.mark.usefixtures("no_compiler", "h200")
@pytest.mark.parametrize("how", ["jit", "CUTEGEMM_JIT"])
def test_a_kernel_that_is_not_there_and_may_not_be_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    load_bundle(folder)
    if how == "CUTEGEMM_JIT":
        monkeypatch.setenv("CUTEGEMM_JIT", "0")
    pin = "sm80_multistage:tile=64x64x64,stages=4"
    with pytest.raises(KernelNotBuiltError) as caught:
        launch.prepare(sized(96, kernel=pin, jit="forbid" if how == "jit" else None))
    wanted = launch.choose(sized(96, kernel=pin)).spec
    lines = str(caught.value).splitlines()
    reason = "jit='forbid'" if how == "jit" else "CUTEGEMM_JIT=0"
    assert f"is not built, and {reason}: expected it in" in lines[0] and wanted.key in lines[0]
    assert lines[1] == "Nearest in the bundles:"
    name = bundle._file_name("sm_90a", "sm80_multistage", PLAIN.key, ".so")
    assert lines[2] == f"  {folder / name}: config.tile_k 32, not 64"
    assert "arch sm_80, not sm_90a, config.tile_k 32, not 64" in lines[3]
    assert "epilogue " in lines[4] and "signature.operands.0.align 16, not none" in lines[4]
    added = ["[[problem]]", "m = 96", "n = 512", "k = 512", f'kernel = "{pin}"']
    assert lines[5:] == ["To build it ahead of time, add to the spec of `cutegemm build`:", *added]
    launch.prepare(sized(96))  # what the bundle has is served


@pytest.mark.usefixtures("no_compiler", "h200")
def test_a_call_that_no_spec_can_say_is_to_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTEGEMM_JIT", "0")
    with pytest.raises(KernelNotBuiltError, match="record the call with CUTEGEMM_LOG=FILE") as caught:
        launch.prepare(sized(64, c=bf16(64, 512)))
    assert "Nearest" not in str(caught.value)  # there is no bundle


@pytest.mark.parametrize("value", ["yes", "00", "false"])
def test_a_strange_setting_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUTEGEMM_JIT", value)
    with pytest.raises(ArgumentError, match=f"CUTEGEMM_JIT='{value}': expected 0, which forbids compiling, or 1"):
        get(ABSENT)


@pytest.mark.usefixtures("no_compiler")
def test_without_the_compiler_the_error_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "can_compile", lambda: False)
    for setting in ("", "1"):
        monkeypatch.setenv("CUTEGEMM_JIT", setting)
        with pytest.raises(KernelNotBuiltError, match="nvidia-cutlass-dsl, which compiles, is not installed"):
            get(ABSENT)


# A process that can import nothing of the DSL and start no program, as in a slim container.
SERVED = """
import os, sys
os.environ["PATH"] = os.environ["CC"] = ""
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cutlass", "nvidia_cutlass_dsl"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
sys.modules["cutlass"] = None
started = []
sys.addaudithook(lambda event, about: started.append(about[1]) if event == "subprocess.Popen" else None)
import cutegemm, tvm_ffi
from cutegemm import compiler, epilogues
from cutegemm.compiler import Spec
from cutegemm.kernels.config import Config
from cutegemm.planner import contiguous_problem
bundle = cutegemm.load_bundle(sys.argv[1])
for epilogue in (None, epilogues.bias):
    signature = contiguous_problem(512, 512, 512, epilogue=epilogue).signature
    spec = Spec("sm80_multistage", Config(64, 64, 32, stages=4, warps_m=2, warps_n=2), signature, "sm_90a")
    kernel = compiler.get(spec)
    assert kernel.origin == "bundle", kernel
    assert isinstance(kernel.function, tvm_ffi.Function), kernel
    assert tvm_ffi.load_module(str(bundle.find(spec).path))[bundle.find(spec).symbol] is not None
assert not [name for name in sys.modules if name.split(".")[0] == "cutlass" and sys.modules[name] is not None]
started = [command for command in started if command[0] != "/sbin/ldconfig"]  # how ctypes finds libraries
assert not started, started
print("served")
"""


def test_a_bundle_serves_without_the_dsl_and_without_a_c_compiler(folder: Path) -> None:
    env = {**os.environ, "CUTEGEMM_JIT": "0", "CUTEGEMM_RUNTIME_LIBRARY": str(loader.runtime_library())}
    done = subprocess.run([sys.executable, "-c", SERVED, folder], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "served\n", done.stderr


def test_the_public_names_are_the_compilers() -> None:
    assert cutegemm.load_bundle is load_bundle and cutegemm.Bundle is Bundle
