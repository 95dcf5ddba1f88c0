"""From a planned kernel to a function that launches it: memory, then the disk cache, then the CuTe DSL's compiler.

`spec` says what is compiled and names it, `jit` compiles, `cache` keeps and loads, `sass` reads the machine code.
"""

from cutegemm.compiler.cache import Kernel, cache_directory, get
from cutegemm.compiler.jit import Artifact, build
from cutegemm.compiler.spec import Spec

__all__ = ["Artifact", "Kernel", "Spec", "build", "cache_directory", "get"]
