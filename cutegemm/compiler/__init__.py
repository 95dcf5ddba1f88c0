"""From a planned kernel to a function that launches it: memory, bundles, the disk cache, then a compiler.

`spec` says what is compiled and names it, `jit` compiles, `cache` keeps and loads, `bundle` is the form in which
kernels travel to other machines and `serving` what this process has of them, `sass` reads the machine code.
"""

from cutegemm.compiler.bundle import Bundle
from cutegemm.compiler.cache import Kernel, cache_directory, get, obtainable
from cutegemm.compiler.jit import Artifact, build
from cutegemm.compiler.serving import load_bundle
from cutegemm.compiler.spec import Spec

__all__ = [
    "Artifact",
    "Bundle",
    "Kernel",
    "Spec",
    "build",
    "cache_directory",
    "get",
    "load_bundle",
    "obtainable",
]
