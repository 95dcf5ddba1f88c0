"""Bundles: what is in one, and what is verified before anything of it is loaded."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import cutegemm
from cutegemm import CuteGemmError, epilogues, load_bundle
from cutegemm.compiler import build, bundle, get, loader, spec
from cutegemm.compiler.bundle import BuiltKernel
from cutegemm.errors import BundleError
from tests.bundles import ABSENT, BIASED, PLAIN, first, flip, kernels

pytestmark = pytest.mark.usefixtures("fresh_process")


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


def test_the_manifest_is_sorted_and_knows_no_place_or_time(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    data = json.loads(text)
    assert data.keys() == {"schema", "cutegemm", "build", "toolchains", "kernels", "epilogues", "sha256"}
    assert data["build"] == spec.build_identity() and data["cutegemm"] == cutegemm.__version__
    files = [entry["file"] for entry in data["kernels"]]
    assert files == sorted(files) and len(files) == 3
    assert str(folder.parent) not in text
    again = folder.parent / "elsewhere" / "other"
    bundle.write(again, reversed(kernels()))
    assert contents(again) == contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_writing_replaces_a_bundle_and_leaves_other_files(folder: Path) -> None:
    (folder / "NOTES").write_text("mine")
    bundle.write(folder, kernels()[:1])
    (kernel,) = bundle.read(folder).kernels
    assert contents(folder).keys() == {"NOTES", "manifest.json", f"kernels/{kernel.path.name}"}


@pytest.mark.parametrize("there", ["a file", "a folder", "another manifest"])
def test_what_is_no_bundle_is_not_written_to(tmp_path: Path, there: str) -> None:
    out = tmp_path / "out"
    if there == "a file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / ("manifest.json" if there == "another manifest" else "thesis.tex")).write_text('{"schema": "mine"}')
    before = out.read_bytes() if out.is_file() else contents(out)
    with pytest.raises(BundleError, match=f"{out} (is a file|holds files and is no bundle)"):
        bundle.write(out, kernels())
    assert (out.read_bytes() if out.is_file() else contents(out)) == before


def test_a_manifest_can_not_have_files_elsewhere_removed(folder: Path) -> None:
    outside = folder.parent / "precious.so"
    outside.write_text("mine")
    reseal(folder, lambda m: m["kernels"].append({"file": "kernels/../../precious.so"}))
    bundle.write(folder, kernels())
    assert outside.read_text() == "mine"


# ---------------------------------------------------------------- what is refused


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
    "other machine": (other_build(machine="sparc"), f"built on sparc, and this machine is {spec.machine()}"),
    "newer machine": (other_build(machine="x86_64-v9"), "built on x86_64-v9, and this machine is "),
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


