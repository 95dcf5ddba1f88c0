"""A bundle: kernels in a folder, for machines where nothing is compiled.

```
manifest.json            what was built of which sources, each kernel's checksum, spec and problems, the epilogues
kernels/<name>.so        one file a kernel; .o where the builder had no C compiler
```
The same kernels give the same files, byte for byte. Kernels are code: `read` looks at every file, and at who may write
there, before anything is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import cutegemm
from cutegemm.compiler import files, loader
from cutegemm.compiler.spec import Spec, build_identity, key_of, runs, symbol_of
from cutegemm.compiler.toolchains import TOOLCHAINS
from cutegemm.errors import BundleError

SCHEMA = 1
MANIFEST = "manifest.json"
FOLDER = "kernels"

_DESCRIPTION = ("arch", "family", "config", "signature", "epilogue")  # what `Spec.describe` gives
_KERNEL = frozenset(("file", "sha256", "bytes", "key", "symbol", "problems", *_DESCRIPTION))


@dataclass(frozen=True, slots=True, eq=False)
class BundledKernel:
    """A kernel of a bundle: where it lies, its spec as `Spec.describe` gives it, and the problems it was built for."""

    path: Path
    symbol: str
    key: str
    description: Mapping[str, Any]
    problems: tuple[str, ...]
    bytes: int

    @property
    def arch(self) -> str:
        """The architecture that it runs on."""
        return str(self.description["arch"])


@dataclass(frozen=True, eq=False, repr=False)
class Bundle:
    """A verified bundle. `epilogues` holds the listing of each epilogue's graph by its identity; `build` is what
    `build_identity` was where the kernels were compiled."""

    path: Path
    kernels: tuple[BundledKernel, ...]
    epilogues: Mapping[str, Sequence[str]]
    version: str
    build: Mapping[str, str]

    @cached_property
    def archs(self) -> tuple[str, ...]:
        """The architectures that it has kernels for, sorted."""
        return tuple(sorted({kernel.arch for kernel in self.kernels}))

    @cached_property
    def _places(self) -> dict[str, BundledKernel]:
        return {_place(kernel.description): kernel for kernel in self.kernels}

    def find(self, spec: Spec) -> BundledKernel | None:
        """The kernel of `spec`. Found by what it is, not by its key, which needs the compiler's version."""
        return self._places.get(_place(spec.describe()))

    def __repr__(self) -> str:
        size = sum(kernel.bytes for kernel in self.kernels)
        kernels = f"{len(self.kernels)} kernel{'s' * (len(self.kernels) != 1)} for {', '.join(self.archs)}"
        return f"<bundle {self.path}: {kernels}, {size / 1e6:.1f} MB, built by cutegemm {self.version}>"


def _place(description: Mapping[str, Any]) -> str:
    return json.dumps(description, sort_keys=True)


class BuiltKernel(NamedTuple):
    """What `write` takes: a spec, its kernel file as `loader.link` gives it, and the problems it is for."""

    spec: Spec
    suffix: str
    data: bytes
    problems: tuple[str, ...]


def write(folder: Path, kernels: Iterable[BuiltKernel]) -> None:
    """Write a bundle; one that is there already is replaced, other files in `folder` stay.

    Kernel files come first and the manifest after them, each renamed into place. Raises `BundleError` as `check_target`
    does, before anything is written.
    """
    stale = check_target(folder)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    entries, listings = [], {}
    for spec, suffix, data, problems in kernels:
        name = _file_name(spec.arch, spec.family, spec.key, suffix)
        files.write(folder / name, data)
        graph = spec.signature.epilogue
        listings[graph.identity] = graph.describe()
        entries.append(
            {
                "file": name,
                "sha256": hashlib.sha256(data).hexdigest(),
                "bytes": len(data),
                "key": spec.key,
                "symbol": spec.symbol,
                "problems": list(problems),
                **spec.describe(),
            }
        )
    manifest = {
        "schema": SCHEMA,
        "cutegemm": cutegemm.__version__,
        "build": build_identity(),
        "toolchains": {name: build_identity(name) for name in {e["family"] for e in entries} if name in TOOLCHAINS},
        "kernels": sorted(entries, key=lambda entry: str(entry["file"])),
        "epilogues": listings,
    }
    sealed = {**manifest, "sha256": _digest(manifest)}
    files.write(folder / MANIFEST, (json.dumps(sealed, indent=1, sort_keys=True) + "\n").encode())
    for name in stale - {str(entry["file"]) for entry in entries}:
        (folder / name).unlink(missing_ok=True)


def check_target(folder: Path) -> set[str]:
    """The kernel files of the bundle that a new one in `folder` would replace.

    Raises `BundleError` for a file, and for a folder that holds anything and is no bundle: nothing there is touched.
    """
    if not folder.exists():
        return set()
    if not folder.is_dir():
        raise BundleError(f"{folder} is a file: expected a folder, or a path where there is nothing yet")
    if not any(folder.iterdir()):
        return set()
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        names = {entry["file"] for entry in manifest["kernels"]} if isinstance(manifest["schema"], int) else None
    except (OSError, ValueError, TypeError, KeyError):
        names = None
    if names is None:
        raise BundleError(f"{folder} holds files and is no bundle: expected a bundle, an empty folder or nothing")
    return {name for name in names if isinstance(name, str) and _is_kernel_file(name)}


def _is_kernel_file(name: str) -> bool:
    path = Path(name)
    return path.parts == (FOLDER, path.name) and path.suffix in loader.SUFFIXES


def _file_name(arch: str, family: str, key: str, suffix: str) -> str:
    return f"{FOLDER}/{arch}-{family}-{key[:16]}{suffix}"


def _digest(manifest: Mapping[str, Any]) -> str:
    """A checksum over everything that a manifest says but the checksum."""
    said = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def read(path: str | os.PathLike[str]) -> Bundle:
    """The bundle at `path`, every file of it verified; nothing is loaded.

    Raises `BundleError`, naming the bundle and both values, where it is no bundle, was damaged or added to, is of a
    newer schema, was built for another machine or from other sources or versions, or can be written to by others.
    """
    folder = Path(path).absolute()
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise BundleError(f"{folder} is no bundle: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{folder / MANIFEST} can't be read: {error}") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if type(schema) is not int:
        raise BundleError(f"{folder / MANIFEST} is not the manifest of a bundle: it has no schema")
    if schema > SCHEMA:
        raise BundleError(f"{folder} was built by a newer cutegemm: schema {schema}, this one reads {SCHEMA}")
    if manifest.get("sha256") != (digest := _digest(manifest)):
        raise BundleError(
            f"{folder / MANIFEST} was changed: its checksum is {digest}, and it says {manifest.get('sha256')!r}"
        )
    try:
        # Families that the DSL does not make have an identity of their own.
        builds = {"": dict(manifest["build"]), **manifest["toolchains"]}
        for family, build in builds.items():
            _check_build(folder, str(manifest["cutegemm"]), build, family)
        kernels = tuple(
            _kernel(folder, entry, builds.get(entry["family"], builds[""])) for entry in manifest["kernels"]
        )
        bundle = Bundle(folder, kernels, dict(manifest["epilogues"]), manifest["cutegemm"], manifest["build"])
        missing = {str(kernel.description["epilogue"]) for kernel in kernels} - bundle.epilogues.keys()
    except (TypeError, KeyError, AttributeError) as error:
        raise BundleError(f"{folder / MANIFEST} is not well-formed: {error!r}") from None
    if not kernels or missing:
        raise BundleError(f"{folder / MANIFEST} lacks {'epilogues its kernels have' if kernels else 'kernels'}")
    _check_folder(folder, kernels)
    return bundle


def _check_build(folder: Path, version: str, build: Mapping[str, str], family: str) -> None:
    here = build_identity(family)
    if not runs(build["machine"], here["machine"]):
        both = f"was built on {build['machine']}, and this machine is {here['machine']}"
        raise BundleError(f"{folder} {both}: build it on one like this")
    # A kernel's argument list is a matter between it and the package that launches it.
    if build["sources"] != here["sources"]:
        raise BundleError(
            f"{folder} was built by cutegemm {version} of sources {build['sources'][:16]}, and this is cutegemm "
            f"{cutegemm.__version__} of sources {here['sources'][:16]}: build it again with this one"
        )
    for package in build.keys() - {"machine"}:
        used = build[package]
        if used != here.get(package, used):  # a compiler that is not here is not needed either
            raise BundleError(f"{folder} was built with {package} {used}, and {here[package]} is installed here")


def _kernel(folder: Path, entry: Mapping[str, Any], build: Mapping[str, str]) -> BundledKernel:
    """A kernel of the manifest, its file verified."""
    name = str(entry["file"])
    path = folder / name
    if entry.keys() != _KERNEL:
        odd = ", ".join(sorted(entry.keys() ^ _KERNEL))
        raise BundleError(f"{folder / MANIFEST}: the entry of {name} lacks, or has beside what it should: {odd}")
    description = {part: entry[part] for part in _DESCRIPTION}
    key, suffix = key_of(description, build), path.suffix
    wanted = _file_name(entry["arch"], entry["family"], key, suffix)
    named = {"key": key, "symbol": symbol_of(key), "file": wanted}
    for part, value in named.items():
        if entry[part] != value:
            raise BundleError(f"{folder / MANIFEST}: {name} has the {part} {entry[part]!r}; its spec's is {value!r}")
    if not _is_kernel_file(name):
        raise BundleError(f"{folder / MANIFEST}: {name!r} is not the name of a kernel file")
    if suffix == ".o" and not loader.can_compile():
        raise BundleError(
            f"{path} is an object, for it was built without a C compiler: loading it takes nvidia-cutlass-dsl, which "
            "is not installed here. Build the bundle where there is a C compiler"
        )
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise BundleError(f"{path} is missing") from None
    except OSError as error:
        raise BundleError(f"{path} can't be read: {error}") from None
    if len(data) != entry["bytes"]:
        raise BundleError(f"{path} has {len(data)} bytes, and was built with {entry['bytes']}")
    if (digest := hashlib.sha256(data).hexdigest()) != entry["sha256"]:
        raise BundleError(f"{path} was changed: its checksum is {digest}, and it was built with {entry['sha256']}")
    return BundledKernel(path, entry["symbol"], key, description, tuple(entry["problems"]), len(data))


def _check_folder(folder: Path, kernels: Sequence[BundledKernel]) -> None:
    """That nothing lies among the kernels that is not one, and that others can't put it there."""
    own = {kernel.path for kernel in kernels}
    for path in sorted((folder / FOLDER).iterdir()):
        if path not in own:
            raise BundleError(f"{path} is not in {MANIFEST}: somebody put it there")
    for path in (folder, folder / FOLDER, folder / MANIFEST, *own):
        if not files.trusted(path):
            raise BundleError(f"{path} belongs to another user, or anybody may write to it: kernels run as their user")
