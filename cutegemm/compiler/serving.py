"""The bundles that serve this process: those that `load_bundle` read, `CUTEGEMM_BUNDLE` names, or packages install.

The environment is read when a CUDA call first asks, and the packages' entry points (group `cutegemm.bundles`, each the
path of a bundle) then or by `load_bundle`. A bundle that was named and is not right is an error; one that a package
installed is left out with a warning, for nobody asked for it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from cutegemm.compiler import bundle, loader
from cutegemm.compiler.bundle import Bundle
from cutegemm.compiler.spec import Spec
from cutegemm.errors import BundleError

GROUP = "cutegemm.bundles"
NEAREST = 3  # kernels that an error names

_loaded: tuple[Bundle, ...] = ()
_guard = threading.Lock()


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Serve `gemm` from the bundle at `path`, from now on and before anything is compiled; calls that were made before
    keep their kernels.

    Every file is verified here; a kernel is loaded when it is first needed. Raises `BundleError` for a bundle that is
    damaged, or was not built for this machine or by this version. Needs no GPU; whether the bundle has kernels for the
    GPU is seen when one is used.
    """
    global _loaded
    loaded = bundle.read(path)
    # What takes milliseconds, and the first call need not wait for.
    loader.warm_up()
    _installed()
    import_module("cutegemm.launch")  # it is above this module
    with _guard:
        _loaded = (*(b for b in _loaded if b.path != loaded.path), loaded)
    return loaded


def forget() -> None:
    """Load no more kernels of the bundles that were loaded, and read the environment again."""
    global _loaded
    with _guard:
        _loaded = ()
    _from_environment.cache_clear()
    _installed.cache_clear()


def bundles(arch: str, gpu: str) -> tuple[Bundle, ...]:
    """The bundles with kernels for a GPU.

    Raises `BundleError` where bundles were named and none of them, nor an installed one, has any.
    """
    named = (*_loaded, *_from_environment())
    able = tuple(b for b in (*named, *_installed()) if arch in b.archs)
    if named and not able:
        there = "; ".join(f"{b.path} is for {', '.join(b.archs)}" for b in named)
        raise BundleError(f"{gpu} is {arch}, and no bundle has kernels for it: {there}. Build with --arch {arch}")
    return able


def function(spec: Spec) -> Any | None:
    """The function of `spec`'s kernel in a bundle, loaded now; None where no bundle has it."""
    for b in _all():
        kernel = b.find(spec)
        if kernel is not None:
            try:
                return loader.load(kernel.path, spec, kernel.symbol)
            except (OSError, RuntimeError, AttributeError, ValueError) as error:
                raise BundleError(f"{kernel.path} does not load: {error}") from error
    return None


def has(spec: Spec) -> bool:
    """Whether a bundle has `spec`'s kernel."""
    return any(b.find(spec) is not None for b in _all())


def nearest(spec: Spec) -> Iterator[str]:
    """Lines on the kernels of bundles that differ the least from `spec`, saying in what; none without bundles."""
    wanted = dict(_fields(spec.describe()))
    near = []
    for b in _all():
        for kernel in b.kernels:
            have = dict(_fields(kernel.description))
            names = sorted(name for name in have.keys() | wanted.keys() if have.get(name) != wanted.get(name))
            differing = ", ".join(f"{name} {_shown(have, name)}, not {_shown(wanted, name)}" for name in names)
            near.append((len(names), kernel.path.name, f"  {kernel.path}: {differing}"))
    if near:
        yield "Nearest in the bundles:"
    for _, _, text in sorted(near)[:NEAREST]:
        yield text


def _shown(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "none")
    return str(value)[:12] if name == "epilogue" else str(value)


def _fields(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a description, by dotted names."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield name, value
        return
    for key, item in items:
        yield from _fields(item, f"{name}.{key}" if name else str(key))


def _all() -> tuple[Bundle, ...]:
    return (*_loaded, *_from_environment(), *_installed())


@cache
def _from_environment() -> tuple[Bundle, ...]:
    paths = os.environ.get("CUTEGEMM_BUNDLE", "").split(os.pathsep)
    return tuple(bundle.read(path) for path in paths if path)


@cache
def _installed() -> tuple[Bundle, ...]:
    found = []
    for entry_point in entry_points(group=GROUP):
        try:
            found.append(bundle.read(entry_point.load()))
        except Exception as error:  # what an entry point raises is up to the package that has it
            text = f"the bundle of {entry_point.value!r} is left out: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
    return tuple(found)
