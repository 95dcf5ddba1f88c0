"""Ready-made epilogues, found through the entry-point group `cutegemm.epilogues` of every installed
distribution.

An entry point names a module, whose public `Epilogue`s register under their own names, or one `Epilogue`,
which registers under the entry point's name. The package's own epilogues come in by the same door.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from cutegemm.errors import EpilogueError
from cutegemm.fusion.trace import Epilogue

GROUP = "cutegemm.epilogues"


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered epilogue and where it came from."""

    name: str
    epilogue: Epilogue
    distribution: str
    source: str


@functools.cache
def registered() -> dict[str, tuple[Registered, ...]]:
    """Every registered epilogue by name, sorted; a name with two entries is a collision, reported by
    `lookup`.

    Reads the installed metadata and imports what it names, once a process (`registered.cache_clear()`
    forgets). A provider that can't be imported is skipped with a `RuntimeWarning`.
    """
    found: dict[str, dict[int, Registered]] = {}
    for entry_point in entry_points(group=GROUP):
        for name, epilogue in _load(entry_point):
            distribution = entry_point.dist.name if entry_point.dist else "an unnamed distribution"
            entry = Registered(name, epilogue, distribution, entry_point.value)
            found.setdefault(name, {}).setdefault(id(epilogue), entry)
    return {name: tuple(found[name].values()) for name in sorted(found)}


def lookup(name: str) -> Epilogue:
    """The epilogue registered as `name`.

    Raises `EpilogueError` if no distribution or more than one provides it; the message names them.
    """
    entries = registered().get(name, ())
    if len(entries) == 1:
        return entries[0].epilogue
    if entries:
        providers = " and ".join(f"{e.distribution} ({e.source})" for e in entries)
        raise EpilogueError(
            f"epilogue {name!r} is provided by {providers}: uninstall one, or import it from its module"
        )
    known = ", ".join(registered()) or f"none: no installed distribution has entry points in the group {GROUP}"
    raise EpilogueError(f"no epilogue is called {name!r}; registered: {known}")


def _load(entry_point: EntryPoint) -> Iterator[tuple[str, Epilogue]]:
    try:
        provided = entry_point.load()
    except Exception as error:
        warnings.warn(f"epilogues of {entry_point.value!r} can't be loaded: {error!r}", RuntimeWarning, stacklevel=3)
        return
    if isinstance(provided, Epilogue):
        yield entry_point.name, provided
    elif isinstance(provided, ModuleType):
        for name, value in vars(provided).items():
            # Epilogues that a module imported from elsewhere are not its own to register.
            if isinstance(value, Epilogue) and not name.startswith("_") and value.__module__ == provided.__name__:
                yield name, value
    else:
        kind = type(provided).__name__
        warnings.warn(
            f"{entry_point.value!r} is a {kind}: expected a module or an Epilogue",
            RuntimeWarning,
            stacklevel=3,
        )
