"""Families whose kernels the CuTe DSL does not make: what compiles theirs, what loads it, and what its sources are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cutegemm.cutlass_cpp import build as cutlass_cpp
from cutegemm.cutlass_cpp import emit
from cutegemm.hand_kernels import build as hand

if TYPE_CHECKING:
    from cutegemm.compiler.spec import Spec


class _Compile(Protocol):
    def __call__(self, spec: Spec) -> tuple[bytes, bytes, float]:
        """The kernel file's contents, the cubin, and the seconds that it took."""


class _Load(Protocol):
    def __call__(self, path: Path, spec: Spec, symbol: str) -> Any:
        """The function that launches the kernel in a file."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """How a family's kernels come about.

    `source` is the text that is compiled, `patience` what to say of how long that takes, if it is long. `missing` says
    what compiling lacks here, if anything. A kernel file ends in `suffix`. `folders` hold sources besides the package's
    own compiler and kernels, `packages` make machine code of them: both are part of a kernel's key.
    """

    source: Callable[[Spec], str]
    compile: _Compile
    missing: Callable[[], str | None]
    load: _Load
    patience: str | None
    suffix: str
    folders: tuple[Path, ...]
    packages: tuple[str, ...]

    def sources(self) -> Iterator[tuple[Path, list[Path]]]:
        """The files of every folder, sorted."""
        for folder in self.folders:
            yield folder, sorted(path for path in folder.iterdir() if path.suffix in (".py", ".cu", ".cuh"))


def _compile_hand(spec: Spec) -> tuple[bytes, bytes, float]:
    code, seconds = hand.compile(spec)
    return code, code, seconds


def _load_hand(path: Path, spec: Spec, symbol: str) -> Any:
    from cutegemm.hand_kernels.run import HandKernel

    return HandKernel(spec, path.read_bytes(), symbol)


def _load_cutlass(path: Path, spec: Spec, symbol: str) -> Any:
    from cutegemm.cutlass_cpp.run import CutlassKernel

    return CutlassKernel(spec, path, symbol)


#: By family. What nvcc's release is does not show in what a kernel computes: it is not part of the key, so that a
#: filled cache serves machines without one.
TOOLCHAINS: dict[str, Toolchain] = {
    hand.FAMILY: Toolchain(
        hand.source,
        _compile_hand,
        lambda: None,  # NVRTC says for itself what it lacks
        _load_hand,
        None,
        ".cubin",
        (hand.FOLDER,),
        ("nvidia-cuda-nvrtc", "nvidia-cuda-crt", "cuda-core"),
    ),
    cutlass_cpp.FAMILY: Toolchain(
        emit.source,
        cutlass_cpp.compile,
        cutlass_cpp.missing,
        _load_cutlass,
        ", with nvcc: some ten seconds, about a minute for Hopper's TMA and wgmma",
        ".so",
        (cutlass_cpp.FOLDER, hand.FOLDER),
        ("nvidia-cutlass",),
    ),
}
