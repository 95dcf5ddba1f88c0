"""The kernel cache: what counts as built, what is built anew, and that concurrent callers build once.

Two kernels are really compiled; tests that count compiles put one of those in the compiler's place.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cutegemm.compiler import Artifact, Kernel, Spec, build, cache, cache_directory, files, get, jit
from cutegemm.errors import KernelNotBuiltError
from cutegemm.kernels.config import Config
from cutegemm.planner import contiguous_problem

CONFIG = Config(64, 64, 32, stages=4, warps_m=2, warps_n=2)
SPEC = Spec("sm80_multistage", CONFIG, contiguous_problem(512, 512, 512).signature, "sm_90a")
OTHER = replace(SPEC, config=replace(CONFIG, stages=3))


@dataclass
class Compiler:
    """Stands in for the compiler: hands out kernels compiled before, and keeps count."""

    artifacts: dict[Spec, Artifact]
    built: list[Spec] = field(default_factory=list)
    seconds: float = 0.0

    def __call__(self, spec: Spec) -> Artifact:
        self.built.append(spec)
        time.sleep(self.seconds)
        return self.artifacts[spec]


@pytest.fixture(scope="module")
def artifacts() -> dict[Spec, Artifact]:
    return {spec: build(spec) for spec in (SPEC, OTHER)}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, artifacts: dict[Spec, Artifact]) -> Compiler:
    stand_in = Compiler(artifacts)
    monkeypatch.setattr(jit, "build", stand_in)
    return stand_in


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache directory, and a process that remembers no kernel and no directory."""
    path = tmp_path / "kernels"
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(path))
    for forget in (cache.clear_memory, cache._usable.cache_clear, cache._scratch.cache_clear):
        forget()
    yield path
    cache.clear_memory()


def get_anew(spec: Spec = SPEC, **options: str) -> Kernel:
    """What a new process would get."""
    cache.clear_memory()
    return get(spec, **options)


def test_memory_then_disk_then_the_compiler(compiler: Compiler, folder: Path) -> None:
    first = get(SPEC)
    assert (first.origin, first.spec) == ("compiled", SPEC)
    assert get(SPEC) is first
    again = get_anew()
    assert again.origin == "disk"
    assert callable(again.function)
    assert compiler.built == [SPEC]
    assert {path.suffix for path in folder.iterdir()} >= {".json", ".so"}
    assert not list(folder.glob(".write-*"))


def test_an_entry_describes_itself(compiler: Compiler, folder: Path) -> None:
    get(SPEC)
    described = json.loads(entry(folder, ".json").read_text())
    assert described["arch"] == "sm_90a"
    assert described["config"]["tile_m"] == 64
    assert described["signature"]["a"] == {"dtype": "bf16", "major": "k", "align": 16}
    assert described["epilogue"] == SPEC.signature.epilogue.identity


def test_others_may_read_what_the_umask_lets_them(compiler: Compiler, folder: Path) -> None:
    before = os.umask(0o022)
    try:
        get(SPEC)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (entry(folder, ".so"), entry(folder, ".json"))} == {0o644}


def put(file: Path, data: bytes) -> None:
    """`data` in a new file: this process has the old one mapped, and writing into that would end it."""
    file.unlink()
    file.write_bytes(data)


def entry(folder: Path, suffix: str, spec: Spec = SPEC) -> Path:
    """The one file of `spec`'s entry that ends so."""
    (file,) = folder.glob(f"{spec.key}*{suffix}")
    return file


def truncated(file: Path) -> None:
    data = file.read_bytes()
    put(file, data[: len(data) // 2])


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    put(file, bytes(data))


def replaced(data: bytes) -> Callable[[Path], None]:
    return lambda file: put(file, data)


def edited(**changes: object) -> Callable[[Path], None]:
    return lambda file: put(file, json.dumps({**json.loads(file.read_text()), **changes}).encode())


def sealed(data: bytes) -> Callable[[Path], None]:
    """`data` as the kernel file, with a checksum that says it is right."""

    def change(described: Path) -> None:
        digest = hashlib.sha256(data).hexdigest()
        entry(described.parent, ".so").rename(library := described.parent / f"{SPEC.key}-{digest[:16]}.so")
        put(library, data)
        edited(sha256=digest)(described)

    return change


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".so", truncated),
        (".so", flipped),
        (".so", replaced(b"")),
        (".so", Path.unlink),
        (".json", truncated),
        (".json", Path.unlink),
        (".json", replaced(b"")),
        (".json", replaced(b"[]")),
        (".json", replaced(b"null")),
        (".json", replaced(b"{}")),
        (".json", replaced(b"\xff\xfe\x00")),
        (".json", edited(schema=0)),
        (".json", edited(suffix="/../../strange.so")),
        (".json", edited(suffix=3)),
        (".json", edited(sha256=None)),
        (".json", edited(sha256="0" * 64)),
        (".json", sealed(b"not a library")),
        (".json", sealed(b"\x7fELF" + bytes(200))),
    ],
)
def test_a_damaged_entry_is_built_anew(
    compiler: Compiler, folder: Path, suffix: str, damage: Callable[[Path], None]
) -> None:
    get(SPEC)
    damage(entry(folder, suffix))
    with pytest.raises(KernelNotBuiltError):
        get_anew(jit="forbid")
    assert get_anew().origin == "compiled"
    assert compiler.built == [SPEC, SPEC]
    assert get_anew(jit="forbid").origin == "disk"


def test_a_damaged_entry_is_named_in_the_log(
    compiler: Compiler, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "cutegemm"):
        get(SPEC)
        assert not caplog.records
        truncated(entry(folder, ".so"))
        get_anew()
    assert f"{SPEC.key}.json is damaged and will be rebuilt: its checksum differs" in caplog.text


def test_another_kernel_under_this_name_is_built_anew(compiler: Compiler, folder: Path) -> None:
    get(SPEC)
    get(OTHER)
    library = entry(folder, ".so", OTHER)
    library.rename(folder / library.name.replace(OTHER.key, SPEC.key))
    entry(folder, ".json", OTHER).replace(folder / f"{SPEC.key}.json")
    assert get_anew().origin == "compiled"
    assert get_anew().origin == "disk"
    assert compiler.built == [SPEC, OTHER, SPEC]


@pytest.mark.parametrize("name", [".json", ".lock"])
def test_a_folder_in_a_files_place_does_not_stop_a_kernel(compiler: Compiler, folder: Path, name: str) -> None:
    (folder / f"{SPEC.key}{name}").mkdir(parents=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert get(SPEC).origin == "compiled"
    assert [w.category for w in caught] == ([] if name == ".lock" else [RuntimeWarning])


def test_a_cache_that_is_deleted_meanwhile_is_made_anew(compiler: Compiler, folder: Path) -> None:
    get(SPEC)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert get(SPEC).origin == "compiled"  # still in memory
    assert get_anew().origin == "compiled"
    assert get_anew().origin == "disk"
    assert compiler.built == [SPEC, SPEC]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/cutegemm"])
def test_where_nothing_can_be_written_kernels_work_and_a_warning_says_so(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    wanted = tmp_path / place
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(wanted))
    with pytest.warns(RuntimeWarning, match=f"can't be kept in {wanted} .*Set CUTEGEMM_CACHE_DIR"):
        assert get(SPEC).origin == "compiled"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert get_anew().origin == "disk"  # the folder lasts as long as the process
        assert cache_directory() != wanted
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_full_disk_is_no_error(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    write = files.write

    def full(path: Path, data: bytes) -> None:
        if path.parent == folder:
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(files, "write", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert get(SPEC).origin == "compiled"


def test_a_filled_cache_that_can_only_be_read_serves(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    get(SPEC)

    def read_only(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    cache._usable.cache_clear()
    monkeypatch.setattr(cache.tempfile, "TemporaryFile", read_only)  # root may write where others may not
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get_anew(jit="forbid").origin == "disk"
    with pytest.warns(RuntimeWarning, match="Permission denied"):
        assert get(OTHER).origin == "compiled"
    assert not (folder / f"{OTHER.key}.json").exists()


def test_without_a_home_directory_nothing_is_left_behind(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CUTEGEMM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(RuntimeWarning, match="no home directory"):
        assert get(SPEC).origin == "compiled"
    assert not (tmp_path / "~").exists()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    assert cache_directory() == folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == folder
    monkeypatch.delenv("CUTEGEMM_CACHE_DIR")
    assert cache_directory() == tmp_path / "xdg" / "cutegemm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / "home" / ".cache" / "cutegemm"


def test_forbidden_to_compile_the_kernel_and_its_place_are_named(compiler: Compiler, folder: Path) -> None:
    with pytest.raises(KernelNotBuiltError, match=f"64x64x32.*jit='forbid'.*{folder}.*{SPEC.key}"):
        get(SPEC, jit="forbid")
    assert compiler.built == []
    assert not folder.exists()


@pytest.mark.parametrize("missing", ["the compiler", "what it links"])
def test_without_a_c_compiler_the_object_itself_is_kept(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path, missing: str
) -> None:
    monkeypatch.setenv("CC", "" if missing == "the compiler" else "/bin/false")
    if missing == "the compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
    assert get(SPEC).origin == "compiled"
    assert {path.suffix for path in folder.iterdir()} == {".o", ".json", ".lock"}
    again = get_anew(jit="forbid")
    assert again.origin == "disk"
    assert callable(again.function)


def test_threads_compile_once(compiler: Compiler) -> None:
    compiler.seconds = 0.2
    start = threading.Barrier(8)
    kernels: list[Kernel] = []

    def call(spec: Spec) -> None:
        start.wait()
        kernels.append(get(spec))

    threads = [threading.Thread(target=call, args=((SPEC, OTHER)[i % 2],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(compiler.built, key=str) == sorted([SPEC, OTHER], key=str)
    assert len(kernels) == 8
    assert len({id(kernel) for kernel in kernels}) == 2
    assert all(kernel.spec in (SPEC, OTHER) for kernel in kernels)


def test_a_compile_that_fails_is_tried_again(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(spec: Spec) -> Artifact:
        raise RuntimeError("ptxas was killed")

    with monkeypatch.context() as patch:
        patch.setattr(jit, "build", broken)
        with pytest.raises(RuntimeError, match="ptxas was killed"):
            get(SPEC)
    assert get(SPEC).origin == "compiled"


# Forked from one process that has imported what all need, so that the race is for the kernel.
RACE = """
import logging, multiprocessing, sys
import tvm_ffi
from cutegemm.compiler import Spec, get
from cutegemm.kernels.config import Config
from cutegemm.planner import contiguous_problem

def race(start, origins):
    spec = Spec("sm80_multistage", Config(64, 64, 32, stages=4, warps_m=2, warps_n=2),
                contiguous_problem(512, 512, 512).signature, "sm_90a")
    start.wait()
    kernel = get(spec)
    origins.put(kernel.origin if callable(kernel.function) else "not a function")

logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
context = multiprocessing.get_context("fork")
start, origins = context.Barrier(8), context.Queue()
racers = [context.Process(target=race, args=(start, origins)) for _ in range(8)]
for racer in racers:
    racer.start()
for racer in racers:
    racer.join()
print(*sorted(origins.get() for _ in racers), *(racer.exitcode for racer in racers))
"""


def test_processes_that_race_on_an_empty_cache_compile_once(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["compiled", *["disk"] * 7, *["0"] * 8], done.stderr
    assert done.stderr.count("compiling sm80_multistage") == 1
    assert not list(folder.glob(".write-*"))
    assert get(SPEC, jit="forbid").origin == "disk"


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(shared))
    cache._usable.cache_clear()
    with pytest.warns(RuntimeWarning, match="others own it or may write to it"):
        assert cache.cache_directory() != shared
    shared.chmod(0o755)
    cache._usable.cache_clear()
    assert cache.cache_directory() == shared
