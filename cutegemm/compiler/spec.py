"""What is compiled, and the key that names it on disk."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from cutegemm.compiler.toolchains import TOOLCHAINS
from cutegemm.kernels.config import KernelConfig
from cutegemm.problem import Signature

#: What turns a spec into machine code: a change in any of these makes other kernels of the same spec.
_SOURCES = ("compiler", "fusion", "kernels", "dtypes.py", "problem.py")
_PACKAGES: tuple[str, ...] = ("nvidia-cutlass-dsl", "apache-tvm-ffi")


#: The levels of the x86-64 psABI by what /proc/cpuinfo calls their instructions.
_LEVELS = {
    2: frozenset(("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")),
    3: frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe")),
    4: frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
}


@dataclass(frozen=True, slots=True)
class Spec:
    """One kernel: a family's configuration for a signature on an architecture ("sm_90a")."""

    family: str
    config: KernelConfig
    signature: Signature
    arch: str

    def describe(self) -> dict[str, Any]:
        """The spec as JSON-serialisable data; the epilogue by its identity."""
        return {
            "arch": self.arch,
            "family": self.family,
            "config": asdict(self.config),
            "signature": self.signature.to_data(),
            "epilogue": self.signature.epilogue.identity,
        }

    @property
    def key(self) -> str:
        """A sha256 over the spec, the package's sources and the versions of what compiles and launches it."""
        return key_of(self.describe(), build_identity(self.family))

    @property
    def symbol(self) -> str:
        """The name of the kernel's host function: it holds the key, so that no other kernel can pass for this one."""
        return symbol_of(self.key)

    def __str__(self) -> str:
        s = self.signature
        accesses = ", ".join(f"{name} {x.dtype}/{x.major}/{x.align}" for name, x in (("a", s.a), ("b", s.b)))
        outputs = ", ".join(f"{x.dtype}/{x.major}/{x.align}" for x in s.outputs)
        precision = "" if s.precision is None else f", precision {s.precision}"
        touched = f"{accesses} -> {outputs}, epilogue {s.epilogue.identity[:12]}{precision}"
        return f"{self.family}:{self.config} for {self.arch} ({touched})"


def key_of(description: Mapping[str, Any], build: Mapping[str, str]) -> str:
    """`Spec.key` of what `Spec.describe` gives, for kernels made by `build` (`build_identity`)."""
    text = json.dumps({"spec": description, "build": build}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def symbol_of(key: str) -> str:
    """`Spec.symbol` of the spec with this key."""
    return f"cutegemm_{key[:32]}"


@cache
def build_identity(family: str = "") -> dict[str, str]:
    """Versions and a digest of the sources that a family's kernels are made by. Where only built kernels run, the
    compiler's package may be missing, and has no version here then."""
    package = Path(__file__).parent.parent
    made = {"sources": _digest(package), "machine": machine()}
    packages = _PACKAGES
    toolchain = TOOLCHAINS.get(family)
    if toolchain is not None:
        made |= {folder.name: _digest_of(folder, files) for folder, files in toolchain.sources()}
        packages = toolchain.packages
    return made | {name: version for name in packages if (version := _version(name)) is not None}


def machine() -> str:
    """The kind of CPU here: host code is compiled for the one that it is compiled on, and may end a process on one that
    lacks its instructions. On x86-64 with its level: "x86_64-v3" has AVX2, "x86_64-v4" AVX-512, and each runs what is
    made for those below it."""
    name = platform.machine()
    if name != "x86_64":
        return name
    flags = _cpu_flags()
    level = 1
    while level < 4 and _LEVELS[level + 1] <= flags:
        level += 1
    return f"{name}-v{level}"


def runs(built_for: str, here: str) -> bool:
    """Whether host code made on one `machine` runs on another."""
    (built_name, _, built_level), (name, _, level) = built_for.partition("-v"), here.partition("-v")
    return built_name == name and built_level <= level


def _cpu_flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
    except OSError:
        return frozenset()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _digest(package: Path) -> str:
    named = (package / name for name in _SOURCES)
    return _digest_of(package, (path for at in named for path in (sorted(at.rglob("*.py")) if at.is_dir() else [at])))


def _digest_of(root: Path, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        source = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(source)}\n".encode() + source)
    return digest.hexdigest()
