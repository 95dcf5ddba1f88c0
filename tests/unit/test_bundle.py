"""Bundles: what is verified before anything is loaded, what serves a call, and what an error says of a missing kernel.

Three kernels are really compiled, once; calls are prepared for launch as on an H200, and not launched.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import cutegemm
from cutegemm import CuteGemmError, KernelNotBuiltError, device, epilogues, launch, load_bundle
from cutegemm.compiler import Bundle, Spec, build, bundle, cache, get, jit, loader, serving, spec
from cutegemm.compiler.bundle import BuiltKernel
from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError, BundleError
from cutegemm.kernels.config import Config
from cutegemm.normalize import Call, allocate, check, parse, prepare
from cutegemm.options import Options
from cutegemm.planner import contiguous_problem, plan_problem

SMALL = Config(64, 64, 32, stages=4, warps_m=2, warps_n=2)
PLAIN = Spec("sm80_multistage", SMALL, contiguous_problem(512, 512, 512).signature, "sm_90a")
BIASED = replace(PLAIN, signature=contiguous_problem(512, 512, 512, epilogue=epilogues.bias).signature)
OLDER = replace(PLAIN, arch="sm_80")
ABSENT = replace(PLAIN, config=replace(SMALL, stages=3))


@pytest.fixture(scope="module")
def kernels() -> list[BuiltKernel]:
    problems = ("m 1..64 n 512 k 512 bf16 nt none",)
    return [BuiltKernel(s, *loader.link(build(s).elf), problems) for s in (PLAIN, BIASED, OLDER)]


@pytest.fixture
def folder(kernels: list[BuiltKernel], tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    bundle.write(path, kernels)
    return path


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process that has no kernels yet, an empty cache directory, and no compiler to fall back on unnoticed."""
    for name in ("CUTEGEMM_BUNDLE", "CUTEGEMM_JIT", "CUTEGEMM_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(serving, "entry_points", lambda group: ())
    forget()
    yield
    forget()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("this was to come from a bundle")

    monkeypatch.setattr(jit, "build", refuse)


def forget() -> None:
    cache.clear_memory()
    cache._usable.cache_clear()
    serving.forget()


# ---------------------------------------------------------------- the folder


def test_a_bundle_says_what_it_holds(folder: Path) -> None:
    loaded = bundle.read(folder)
    assert loaded.archs == ("sm_80", "sm_90a")
    assert len(loaded.kernels) == 3
    assert repr(loaded).startswith(f"<bundle {folder}: 3 kernels for sm_80, sm_90a, 0.")
    found = loaded.find(PLAIN)
    assert found is not None and found.symbol == PLAIN.symbol and found.key == PLAIN.key
    assert found.problems == ("m 1..64 n 512 k 512 bf16 nt none",)
    assert loaded.find(ABSENT) is None
    assert loaded.epilogues[BIASED.signature.epilogue.identity] == epilogues.bias.graph.describe()


def test_the_manifest_is_sorted_and_knows_no_place_or_time(folder: Path, kernels: list[BuiltKernel]) -> None:
    text = (folder / "manifest.json").read_text()
    data = json.loads(text)
    assert data.keys() == {"schema", "cutegemm", "build", "kernels", "epilogues", "sha256"}
    assert data["build"] == spec.build_identity() and data["cutegemm"] == cutegemm.__version__
    files = [entry["file"] for entry in data["kernels"]]
    assert files == sorted(files) and len(files) == 3
    assert str(folder.parent) not in text
    again = folder.parent / "elsewhere" / "other"
    bundle.write(again, reversed(kernels))
    assert contents(again) == contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_writing_replaces_a_bundle_and_leaves_other_files(folder: Path, kernels: list[BuiltKernel]) -> None:
    (folder / "NOTES").write_text("mine")
    bundle.write(folder, kernels[:1])
    (kernel,) = bundle.read(folder).kernels
    assert contents(folder).keys() == {"NOTES", "manifest.json", f"kernels/{kernel.path.name}"}


@pytest.mark.parametrize("there", ["a file", "a folder", "another manifest"])
def test_what_is_no_bundle_is_not_written_to(kernels: list[BuiltKernel], tmp_path: Path, there: str) -> None:
    out = tmp_path / "out"
    if there == "a file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / ("manifest.json" if there == "another manifest" else "thesis.tex")).write_text('{"schema": "mine"}')
    before = out.read_bytes() if out.is_file() else contents(out)
    with pytest.raises(BundleError, match=f"{out} (is a file|holds files and is no bundle)"):
        bundle.write(out, kernels)
    assert (out.read_bytes() if out.is_file() else contents(out)) == before


def test_a_manifest_can_not_have_files_elsewhere_removed(kernels: list[BuiltKernel], folder: Path) -> None:
    outside = folder.parent / "precious.so"
    outside.write_text("mine")
    reseal(folder, lambda m: m["kernels"].append({"file": "kernels/../../precious.so"}))
    bundle.write(folder, kernels)
    assert outside.read_text() == "mine"


# ---------------------------------------------------------------- what is refused


def first(folder: Path) -> Path:
    return next((folder / "kernels").iterdir())


def flip(path: Path, where: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(where * (len(data) - 1))] ^= 1
    path.write_bytes(bytes(data))


def reseal(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, and have its checksum say that it is right."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps({**data, "sha256": bundle._digest(data)}))


def other_build(**changes: str) -> Callable[[Path], None]:
    return lambda folder: reseal(folder, lambda m: m["build"].update(changes))


def entry(**changes: object) -> Callable[[Path], None]:
    return lambda folder: reseal(folder, lambda m: m["kernels"][0].update(changes))


def swapped(folder: Path) -> None:
    """Two kernels under each other's names, checksums and all."""

    def change(manifest: dict[str, Any]) -> None:
        one, other = manifest["kernels"][:2]
        for field in ("sha256", "bytes"):
            one[field], other[field] = other[field], one[field]
        one["symbol"], other["symbol"] = other["symbol"], one["symbol"]

    reseal(folder, change)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "is no bundle: it has no manifest.json"),
    "no folder": (shutil.rmtree, "is no bundle: it has no manifest.json"),
    "manifest cut short": (
        lambda f: (f / "manifest.json").write_bytes((f / "manifest.json").read_bytes()[:-40]),
        "manifest.json can't be read",
    ),
    "manifest of something else": (lambda f: (f / "manifest.json").write_text("[1]"), "it has no schema"),
    "manifest changed": (
        lambda f: (f / "manifest.json").write_text((f / "manifest.json").read_text().replace("1..64", "1..65")),
        "manifest.json was changed: its checksum is [0-9a-f]{64}, and it says '[0-9a-f]{64}'",
    ),
    "kernel flipped": (lambda f: flip(first(f), 0.5), r"\.so was changed: its checksum is \w+, and it was built with"),
    "kernel flipped at its end": (lambda f: flip(first(f), 1.0), r"\.so was changed"),
    "kernel cut short": (
        lambda f: first(f).write_bytes(first(f).read_bytes()[:1000]),
        r"\.so has 1000 bytes, and was built with \d+",
    ),
    "kernel missing": (lambda f: first(f).unlink(), r"\.so is missing"),
    "foreign file": (lambda f: (f / "kernels" / "x.so").write_text("?"), r"x\.so is not in manifest\.json"),
    "newer schema": (lambda f: reseal(f, lambda m: m.update(schema=2)), "newer cutegemm: schema 2, this one reads 1"),
    "other machine": (other_build(machine="sparc"), f"built for sparc, and this machine is {platform.machine()}"),
    "other sources": (other_build(sources="0" * 64), "of sources 0{16}, and this is cutegemm .* of sources \\w{16}:"),
    "other tvm-ffi": (other_build(**{"apache-tvm-ffi": "9.9"}), "built with apache-tvm-ffi 9.9, and .* is installed"),
    "other compiler": (other_build(**{"nvidia-cutlass-dsl": "9.9"}), "built with nvidia-cutlass-dsl 9.9, and "),
    "other symbol": (entry(symbol="main"), "has the symbol 'main'; its spec's is 'cutegemm_"),
    "other key": (entry(key="0" * 64), "has the key '0{64}'; its spec's is '"),
    "other arch": (entry(arch="sm_100a"), "has the key '.*'; its spec's is '"),
    "file elsewhere": (entry(file="kernels/../../../lib/libc.so"), r"has the file 'kernels/\.\./"),
    "kernels swapped": (swapped, "has the symbol"),
    "a field more": (entry(extra=1), "lacks, or has beside what it should: extra"),
    "a field less": (lambda f: reseal(f, lambda m: m["kernels"][0].pop("problems")), "what it should: problems"),
    "no kernels": (lambda f: reseal(f, lambda m: m.update(kernels=[])), "lacks kernels"),
    "kernels malformed": (lambda f: reseal(f, lambda m: m.update(kernels=[3])), "is not well-formed"),
    "no epilogues": (lambda f: reseal(f, lambda m: m.update(epilogues={})), "lacks epilogues"),
    "writable folder": (lambda f: f.chmod(0o777), "bundle belongs to another user, or anybody may write to it"),
    "writable kernels": (lambda f: (f / "kernels").chmod(0o777), "kernels belongs to another user, or anybody"),
    "writable kernel": (lambda f: first(f).chmod(0o666), r"\.so belongs to another user, or anybody"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_bundle_that_is_not_right_is_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def load(*_: object) -> None:
        raise AssertionError("something was loaded")

    monkeypatch.setattr(loader, "load", load)
    load_bundle(folder)
    damage, message = DAMAGE[name]
    damage(folder)
    with pytest.raises(BundleError, match=message) as caught:
        load_bundle(folder)
    assert str(folder) in str(caught.value)
    assert isinstance(caught.value, CuteGemmError) and isinstance(caught.value, ValueError)


def test_a_flipped_bit_anywhere_in_the_manifest_is_seen(folder: Path) -> None:
    path = folder / "manifest.json"
    right = path.read_bytes()
    for i in range(0, len(right), 37):
        wrong = bytearray(right)
        wrong[i] ^= 1
        path.write_bytes(bytes(wrong))
        with pytest.raises(BundleError):
            bundle.read(folder)
    path.write_bytes(right)
    assert len(bundle.read(folder).kernels) == 3


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_another_users_bundle_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getuid()
    os.chown(folder / "kernels", me + 1, -1)
    with pytest.raises(BundleError, match="kernels belongs to another user"):
        bundle.read(folder)
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    os.chown(folder, 0, -1)
    assert bundle.read(folder).archs == ("sm_80", "sm_90a")  # what is root's own is trusted


def test_where_the_compiler_is_not_installed_its_version_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def missing(name: str) -> str:
        if name == "nvidia-cutlass-dsl":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", missing)
    spec.build_identity.cache_clear()
    try:
        loaded = load_bundle(folder)
        assert loaded.find(PLAIN) is not None
        assert callable(get(PLAIN).function)  # the file's symbol is the builder's, not what the key would be here
        other_build(**{"apache-tvm-ffi": "9.9"})(folder)
        with pytest.raises(BundleError, match="apache-tvm-ffi 9.9"):
            bundle.read(folder)
    finally:
        spec.build_identity.cache_clear()


def test_objects_need_the_compiler_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.write(tmp_path / "objects", [BuiltKernel(PLAIN, ".o", build(PLAIN).elf, ())])
    load_bundle(tmp_path / "objects")
    assert get(PLAIN).origin == "bundle"
    monkeypatch.setattr(loader, "can_compile", lambda: False)
    with pytest.raises(BundleError, match=r"\.o is an object, for it was built without a C compiler: .*cutlass-dsl"):
        bundle.read(tmp_path / "objects")


def test_the_runtime_library_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = loader.runtime_library()
    loader.runtime_library.cache_clear()
    try:
        monkeypatch.setenv("CUTEGEMM_RUNTIME_LIBRARY", str(tmp_path / "none.so"))
        with pytest.raises(CuteGemmError, match=r"CUTEGEMM_RUNTIME_LIBRARY='.*none\.so': expected the path of"):
            loader.runtime_library()
        named = tmp_path / "libcute_dsl_runtime.so"
        named.symlink_to(installed)
        monkeypatch.setenv("CUTEGEMM_RUNTIME_LIBRARY", str(named))
        assert loader.runtime_library() == named
        monkeypatch.delenv("CUTEGEMM_RUNTIME_LIBRARY")
        loader.runtime_library.cache_clear()
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(CuteGemmError, match="missing: install .* or name the file in CUTEGEMM_RUNTIME_LIBRARY"):
            loader.runtime_library()
    finally:
        loader.runtime_library.cache_clear()


# ---------------------------------------------------------------- what serves


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
    folder: Path, kernels: list[BuiltKernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    bundle.write(one, kernels[:1])
    bundle.write(other, kernels[1:])
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
    def fail(path: Path, symbol: str) -> None:
        raise OSError("undefined symbol: x")

    load_bundle(folder)
    monkeypatch.setattr(loader, "load", fail)
    with pytest.raises(BundleError, match=r"kernels/sm_90a-.*\.so does not load: undefined symbol: x"):
        get(PLAIN)


# ---------------------------------------------------------------- calls


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> DeviceSpec:
    """Calls are prepared as on an H200, from CPU tensors."""
    spec = device.lookup("H200")
    monkeypatch.setattr(DeviceSpec, "query", staticmethod(lambda index=0: spec))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return spec


def call(m: int, n: int = 512, k: int = 512, *, kernel: str | None = None, jit: Any = None, **keywords: Any) -> Call:
    a, b = torch.ones(m, k, dtype=torch.bfloat16), torch.ones(n, k, dtype=torch.bfloat16).t()
    named = {"epilogue": None, "c": None, "alpha": 1.0, "beta": None, "out": None, "out_dtype": None, **keywords}
    arguments = parse(a, b, **named, options=Options())
    request, sizes = check(arguments)
    prepared = prepare(arguments, request, sizes, allocate(arguments, sizes))
    return replace(prepared, options=Options(kernel=kernel, jit=jit))  # a pin is checked against the tensors' device


@pytest.mark.usefixtures("no_compiler", "h200")
def test_the_bundles_best_kernel_serves_where_the_plans_own_is_not_there(folder: Path, h200: DeviceSpec) -> None:
    plan = plan_problem(contiguous_problem(512, 512, 512), h200)
    own = Spec(plan.family, plan.config, PLAIN.signature, "sm_90a")
    assert own != PLAIN
    assert launch.choose(call(512)).spec == own
    load_bundle(folder)
    for m in (1, 77, 512, 4096):
        assert launch.choose(call(m)).spec == PLAIN
        launch.prepare(call(m))
    assert get(PLAIN).origin == "bundle"
    bias = torch.ones(512, dtype=torch.bfloat16)
    assert launch.choose(call(64, epilogue=epilogues.bias(bias))).spec == BIASED
    assert launch.choose(call(64, epilogue=epilogues.relu())).spec.family == "sm90_wgmma"  # in no bundle
    assert launch.choose(call(512, kernel=plan.kernel)).spec == own  # a pin is served as it is


@pytest.mark.usefixtures("h200")
def test_of_two_kernels_in_bundles_the_plans_order_decides(
    folder: Path, kernels: list[BuiltKernel], h200: DeviceSpec
) -> None:
    candidates = [c for c in plan_problem(contiguous_problem(512, 512, 512), h200).candidates if c.refusal is None]
    order = [c.config for c in candidates if c.family == "sm80_multistage"]
    better = replace(PLAIN, config=order[order.index(SMALL) - 1])
    load_bundle(folder)
    assert launch.choose(call(512)).spec == PLAIN
    bundle.write(folder.parent / "more", [kernels[0]._replace(spec=better)])
    load_bundle(folder.parent / "more")
    assert launch.choose(call(512)).spec == better


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
        launch.prepare(call(96, kernel=pin, jit="forbid" if how == "jit" else None))
    wanted = launch.choose(call(96, kernel=pin)).spec
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
    launch.prepare(call(96))  # what the bundle has is served


@pytest.mark.usefixtures("no_compiler", "h200")
def test_a_call_that_no_spec_can_say_is_to_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTEGEMM_JIT", "0")
    with pytest.raises(KernelNotBuiltError, match="record the call with CUTEGEMM_LOG=FILE") as caught:
        launch.prepare(call(64, c=torch.ones(64, 512, dtype=torch.bfloat16)))
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
