"""Measures how far each way of multiplying fp32 is from fp64: `python -m benchmarks.precision`.

Every mode of `gemm` and cuBLAS, strict and in TF32, multiply the same inputs of each kind and depth. The figures go to
`benchmarks/results/<gpu>/precision.json`, where `python -m tools.precision_tables` reads them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import environment
from benchmarks.contenders import Contender, Inputs, named
from benchmarks.results import RESULTS
from benchmarks.suites import Case
from cutegemm import CuteGemmError, device, plan
from cutegemm.compiler import Spec
from tests.ahead import build

SUITE = "precision"
#: Rows and columns of D.
SIZE = 1024
DEPTHS = (512, 4096, 16384)
#: What is compared, by the names of `contenders`.
CONTENDERS = ("cutegemm", "cutegemm@tf32", "cutegemm@bf16x6", "cutegemm@bf16x9", "cublas", "cublas@tf32")
#: The figures of a result: its error's root mean square and maximum, both relative to the element's sqrt(sum((a b)^2)),
#: and its largest error over the largest magnitude of the exact result.
MEASURES = ("rms", "max", "of largest")
#: What is left of sums that cancel, beside their terms.
REMAINDER = 1e-4

Pair = tuple[Tensor, Tensor]


def _normal(size: int, k: int, draw: torch.Generator) -> Pair:
    return _randn(draw, size, k), _randn(draw, k, size)


def _positive(size: int, k: int, draw: torch.Generator) -> Pair:
    return _rand(draw, size, k), _rand(draw, k, size)


def _cancelling(size: int, k: int, draw: torch.Generator) -> Pair:
    """Every term of the first half of K meets its negative in the second, but for `REMAINDER`."""
    a, b = _normal(size, k // 2, draw)
    return torch.cat((a, REMAINDER * _randn(draw, size, k // 2) - a), 1), torch.cat((b, b))


def _scaled(size: int, k: int, draw: torch.Generator) -> Pair:
    a, b = _normal(size, k, draw)
    return a * _magnitudes(draw, size, k), b * _magnitudes(draw, k, size)


def _scaled_rows(size: int, k: int, draw: torch.Generator) -> Pair:
    a, b = _normal(size, k, draw)
    return a * _magnitudes(draw, size, 1), b * _magnitudes(draw, 1, size)


#: A (size, k) and B (k, size) by kind.
KINDS: Mapping[str, Callable[[int, int, torch.Generator], Pair]] = {
    "normal": _normal,
    "positive": _positive,
    "ill-conditioned": _cancelling,
    "badly scaled": _scaled,
    "scaled rows": _scaled_rows,
}


def _randn(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=draw, device=draw.device)


def _rand(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=draw, device=draw.device)


def _magnitudes(draw: torch.Generator, *shape: int) -> Tensor:
    """10 to a power that is uniform between -6 and 6."""
    return 10.0 ** (12 * _rand(draw, *shape) - 6)


def name(kind: str, size: str, contender: str, measure: str) -> str:
    """What a results file calls a figure; `size` is MxNxK."""
    return f"{kind} {size} {contender} {measure}"


def read(scalars: Mapping[str, float]) -> dict[tuple[str, str], dict[tuple[str, str], float]]:
    """The figures of a results file by kind and size, then by contender and measure. Raises ValueError for a name that
    `name` does not make."""
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for text, value in scalars.items():
        match = re.fullmatch(rf"(.+) (\d+x\d+x\d+) (\S+) ({'|'.join(MEASURES)})", text)
        if match is None:
            raise ValueError(f"{text!r}: expected a kind, MxNxK, a contender and one of {', '.join(MEASURES)}")
        kind, size, contender, measure = match.groups()
        found.setdefault((kind, size), {})[contender, measure] = value
    return found


def errors(a: Tensor, b: Tensor, results: Mapping[str, Callable[[], Tensor]]) -> dict[str, tuple[float, ...]]:
    """The `MEASURES` of what each of `results` gives for A (m, k) times B (k, n), by its name."""
    wide_a, wide_b = a.double(), b.double()
    exact = wide_a @ wide_b
    natural = (wide_a.square() @ wide_b.square()).sqrt()
    found = {}
    for whose, result in results.items():
        wrong = result().double() - exact
        relative = wrong / natural
        figures = relative.square().mean().sqrt(), relative.abs().max(), wrong.abs().max() / exact.abs().max()
        found[whose] = tuple(float(figure) for figure in figures)
    return found


def measure(
    contenders: Sequence[Contender], *, size: int = SIZE, depths: Sequence[int] = DEPTHS, on: str = "cuda"
) -> Iterator[dict[str, float]]:
    """The figures by `name`, those of one kind of inputs and one depth at a time; inputs are the same every time."""
    for kind, inputs in KINDS.items():
        for k in depths:
            a, b = inputs(size, k, torch.Generator(on).manual_seed(k))
            case = Case(kind, size, size, k, "fp32", "nn", "none")
            calls = {}
            for contender in contenders:  # what nobody writes is NaN
                given = Inputs(a, b, (), torch.full((size, size), torch.nan, device=on))
                if (call := contender.prepare(case, given)) is not None:
                    calls[contender.name] = call
            found = errors(a, b, calls)
            yield {
                name(kind, f"{size}x{size}x{k}", whose, each): figure
                for whose, figures in found.items()
                for each, figure in zip(MEASURES, figures, strict=True)
            }


def served(gpu: device.DeviceSpec) -> list[Contender]:
    """The contenders that `gpu` has kernels for, which are built, side by side. Says which are left out, and why."""
    able, specs = [], []
    for contender in map(named, CONTENDERS):
        try:
            if contender.name.startswith("cutegemm"):
                for k in DEPTHS:
                    made = plan(SIZE, SIZE, k, dtype="fp32", layout="nn", arch=gpu.name, precision=contender.precision)
                    specs.append(Spec(made.family, made.config, made.problem.signature, gpu.arch))
            able.append(contender)
        except CuteGemmError as error:
            print(f"{contender.name} is left out: {error}", file=sys.stderr)
    build(specs)
    return able


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    args = _parse(argv)
    try:
        results = environment.here(SUITE, args.commit)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    found: dict[str, float] = {}
    for figures in measure(served(device.current())):
        found |= figures
        print("  ".join(f"{key} {value:.2g}" for key, value in figures.items() if key.endswith("rms")), flush=True)
    path = args.output or RESULTS / environment.folder(results.gpu) / f"{SUITE}.json"
    replace(results, scalars=found).write(path)
    print(f"written to {path}")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description="Measures errors of fp32.")
    parser.add_argument("--commit", help="what is measured, where there is no git checkout")
    parser.add_argument("--output", type=Path, help="the results file, instead of one under benchmarks/results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
