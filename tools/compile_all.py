"""Compiles every legal kernel configuration for every architecture and reads its SASS: `make compile-all`.

Needs no GPU. Exits with 1 where a kernel spills registers or does without the unit that it is for.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

from cutegemm import device
from cutegemm.compiler import Spec, build, sass
from cutegemm.fusion.registry import lookup
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.problem import STRICT

#: A kernel depends on layouts and dtypes, not on sizes: any that has whole vectors will do. Some have few rows only.
ROWS, SIZE = 8, 4096
SHOWN = ("HMMA", "HGMMA", "FFMA", "LDSM", "LDGSTS", "UTMALDG")
TENSOR = ("HMMA", "HGMMA")
DTYPES = ("bf16", "fp32")


def specs(archs: list[str] | None, layouts: list[str], dtypes: Sequence[str], epilogue: str) -> Iterator[Spec]:
    """What is to be compiled, without what the planner's predicate refuses; fp32 in every precision of a family."""
    fused = lookup(epilogue)
    for family in FAMILIES.values():
        kinds = [(dtype, p) for dtype in dtypes for p in (family.precisions if dtype == "fp32" else (None,))]
        for arch, layout, (dtype, precision) in product(archs or family.architectures, layouts, kinds):
            gpu = device.lookup(arch)
            sizes = (ROWS, SIZE, SIZE)
            problem = contiguous_problem(*sizes, dtype=dtype, layout=layout, epilogue=fused, precision=precision)
            for config in family.configs:
                if refusal(problem, family, config, gpu) is None:
                    yield Spec(family.name, config, problem.signature, gpu.arch)


def compile_one(spec: Spec) -> tuple[str, bool]:
    """Compiles `spec`; gives a line about it and whether it is as it should be."""
    artifact = build(spec, keep_cubin=True)
    code = sass.read(artifact.cubin or b"")
    counts = "  ".join(f"{code.opcodes[name]:4} {name}" for name in SHOWN if name in code.opcodes)
    a, b = spec.signature.a.major, spec.signature.b.major
    text = (
        f"{spec.arch:8} {spec.family}:{str(spec.config):64} A {a}-major B {b}-major  "
        f"{code.registers:3} registers {code.spills:3} spills {spec.config.smem_bytes / 1024:6.1f} KiB shared  "
        f"{counts}  {artifact.seconds:5.1f} s"
    )
    units = ("FFMA",) if spec.signature.precision == STRICT else TENSOR
    return text, code.spills == 0 and any(name in code.opcodes for name in units)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="compile_all", description="Compiles every kernel, with no GPU.")
    parser.add_argument("--arch", nargs="+", help="only these architectures or GPUs (default: all)")
    parser.add_argument("--layout", nargs="+", default=["nt"], choices=["nn", "nt", "tn", "tt"])
    parser.add_argument("--dtype", nargs="+", default=DTYPES)
    parser.add_argument("--epilogue", default="bias_gelu")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args(argv)
    wanted = list(specs(args.arch, args.layout, args.dtype, args.epilogue))
    bad = 0
    # New processes, not forks: the DSL starts threads.
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for text, good in pool.map(compile_one, wanted):
            bad += not good
            print(text if good else f"{text}  <- wrong", flush=True)
    print(f"{len(wanted)} kernels, {bad} wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
