"""`cutegemm plan`: the kernel that a problem would get on a GPU, and why, with no GPU needed."""

from __future__ import annotations

import argparse

from cutegemm.cli.output import Subcommands, print_json, subcommand
from cutegemm.errors import ArgumentError
from cutegemm.fusion.registry import lookup
from cutegemm.planner import Plan, plan


def add(subcommands: Subcommands) -> None:
    parser = subcommand(
        subcommands,
        "plan",
        "the kernel that a problem would get on a GPU, and why",
        "Plans D = epilogue(A @ B) with A (M, K) and B (K, N): the candidates with their modelled times, "
        "what was rejected and why. Needs no GPU.",
    )
    parser.add_argument("m", type=int, metavar="M")
    parser.add_argument("n", type=int, metavar="N")
    parser.add_argument("k", type=int, metavar="K")
    parser.add_argument("--dtype", default="bf16", help="of A, B and the epilogue's operands (default: bf16)")
    parser.add_argument("--out-dtype", help="of the outputs (default: that of A and B)")
    parser.add_argument("--arch", help="an architecture (sm_90a) or a GPU (H200); default: the one here")
    parser.add_argument("--batch", type=int, default=1, help="how many products of that size (default: 1)")
    parser.add_argument(
        "--layout",
        default="nt",
        help="for A, then B: n if contiguous as written, t if the transposed view of a contiguous matrix "
        "(default: nt, as in x @ weight.t())",
    )
    parser.add_argument("--align", type=int, default=16, help="of the pointers, in bytes (default: 16)")
    parser.add_argument("--epilogue", metavar="NAME", help="one of `cutegemm epilogues`")
    parser.add_argument("--kernel", metavar="PIN", help="family[:key=value,...], as in gemm(kernel=...)")
    parts = "of K, stream, or auto (the default)"
    parser.add_argument("--split-k", metavar="PARTS", type=_parts, default="auto", help=parts)
    parser.add_argument(
        "--padding",
        choices=("auto", "predicate", "copy"),
        default="auto",
        help="what becomes of A and B that are not aligned to 16 bytes (default: auto)",
    )
    parser.add_argument(
        "--any-order", action="store_true", help="allow sums in no fixed order, as gemm(deterministic=False) does"
    )
    parser.add_argument("--precision", help="of fp32 products, as in gemm(precision=...) (default: ieee)")
    parser.add_argument("--source", action="store_true", help="print the CUDA C++ of the kernel (cutlass_cpp and hand)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    chosen = plan(
        args.m,
        args.n,
        args.k,
        dtype=args.dtype,
        arch=args.arch,
        batch=args.batch,
        layout=args.layout,
        out_dtype=args.out_dtype,
        epilogue=None if args.epilogue is None else lookup(args.epilogue),
        align=args.align,
        kernel=args.kernel,
        split_k=args.split_k,
        padding=args.padding,
        precision=args.precision,
        deterministic=not args.any_order,
    )
    if args.source and args.json:
        print_json({"kernel": chosen.kernel, "source": _source(chosen)})
    elif args.source:
        print(_source(chosen))
    elif args.json:
        print_json(chosen.to_dict())
    else:
        print(chosen.explain())
    return 0


def _source(chosen: Plan) -> str:
    """The CUDA C++ of the chosen kernel. Raises `ArgumentError` for one that is not made of any."""
    from cutegemm.compiler import Spec
    from cutegemm.compiler.toolchains import TOOLCHAINS

    toolchain = TOOLCHAINS.get(chosen.family)
    if toolchain is None:
        able = ", ".join(TOOLCHAINS)
        raise ArgumentError(f"--source: {chosen.kernel} is not CUDA C++; --kernel pins one of {able}, which are")
    return toolchain.source(Spec(chosen.family, chosen.config, chosen.problem.signature, chosen.device.arch))


def _parts(text: str) -> int | str:
    """A number of parts, or a word for `plan` to judge."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
