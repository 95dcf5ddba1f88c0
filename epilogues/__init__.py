"""Ready-made epilogues, as attributes: `epilogues.bias_gelu(v)`, also those of other installed packages.

One short file per family; each is an entry point of the group `cutegemm.epilogues`, and
`cutegemm.fusion.registry` finds it there. `dir(epilogues)` lists the names; a name that two distributions
provide is an error naming both.
"""

from __future__ import annotations

import sys
from types import ModuleType

from cutegemm.fusion import registry
from cutegemm.fusion.trace import Epilogue


class _Library(ModuleType):
    """Attributes are the registry's. A class, because a module's own `__setattr__` is never asked."""

    def __getattr__(self, name: str) -> Epilogue:
        if name.startswith("_") or name not in registry.registered():
            raise AttributeError(f"no epilogue is called {name!r}; registered: {', '.join(dir(self))}")
        return registry.lookup(name)

    def __setattr__(self, name: str, value: object) -> None:
        # Importing a submodule binds it in its package, where `bias` has to stay the epilogue, not become
        # bias.py.
        if not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return list(registry.registered())


sys.modules[__name__].__class__ = _Library
