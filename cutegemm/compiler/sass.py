"""What a kernel came to in machine code: instructions, registers, spills and shared memory of a cubin.

Reading it takes `cuobjdump` and `nvdisasm`, plain binaries that need neither a toolkit nor a GPU. Those of the PyPI
packages are taken first, since they know every architecture that the DSL compiles for; then those on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from cutegemm.errors import CuteGemmError

_PACKAGES = {"cuobjdump": "nvidia-cuda-cuobjdump", "nvdisasm": "nvidia-cuda-nvdisasm"}
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
# /*0180*/  @!P1 LDGSTS.E.BYPASS.128 … : the offset, a predicate, the operation with its modifiers.
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?\w+\s+)?([A-Z][A-Z0-9_]*)(?:\.|\s|;)", re.MULTILINE)
_SPILLS = ("LDL", "STL")


@dataclass(frozen=True, slots=True)
class Sass:
    """The machine code of a cubin's kernels.

    `opcodes` counts the instructions of all by operation, modifiers dropped ("LDGSTS", "HMMA"); of the other figures
    each is the largest. `registers` is per thread; `local_bytes` is what a thread keeps in local memory, spilled
    registers among it; `static_shared_bytes` is the shared memory that the code reserves, beside which comes what a
    launch asks for.
    """

    opcodes: Mapping[str, int]
    registers: int
    local_bytes: int
    static_shared_bytes: int

    @property
    def spills(self) -> int:
        """Instructions that load from or store to local memory."""
        return sum(self.opcodes.get(opcode, 0) for opcode in _SPILLS)


def read(cubin: bytes) -> Sass:
    """Disassemble the kernels in `cubin` (`Artifact.cubin`): one, and those around it if K is split or operands copied.

    Raises `CuteGemmError` naming the package to install where a tool is missing, and with the tool's own words where
    it can't read `cubin`.
    """
    tools = {name: _tool(name) for name in _PACKAGES}
    with tempfile.TemporaryDirectory(prefix="cutegemm-") as scratch:
        path = Path(scratch) / "kernel.cubin"
        path.write_bytes(cubin)
        # cuobjdump starts nvdisasm, which it looks for on PATH.
        search = os.pathsep.join((str(tools["nvdisasm"].parent), os.environ.get("PATH", os.defpath)))
        done = subprocess.run(
            [tools["cuobjdump"], "-sass", "-res-usage", path],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": search},
        )
    usage = _USAGE.findall(done.stdout)
    opcodes = Counter(_INSTRUCTION.findall(done.stdout))
    if done.returncode or not usage or not opcodes:
        said = (done.stderr or done.stdout).strip()[:500]
        raise CuteGemmError(f"{tools['cuobjdump']} can't read this cubin: {said or 'it said nothing'}")
    registers, stack, shared, local = (max(map(int, column)) for column in zip(*usage, strict=True))
    return Sass(dict(opcodes), registers, stack + local, shared)


@cache
def _tool(name: str) -> Path:
    """The executable `name` of its PyPI package, else that on PATH."""
    package = _PACKAGES[name]
    try:
        installed = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        installed = ()
    for file in installed:
        path = Path(str(file.locate()))
        if path.name == name and os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    if found is None:
        raise CuteGemmError(f"{name}, which reads SASS, is missing: pip install {' '.join(_PACKAGES.values())}")
    return Path(found)
