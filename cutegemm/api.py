"""`gemm` and what its callers need beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from cutegemm import options, reference, warm
from cutegemm.errors import ArgumentError, DTypeError, ShapeError
from cutegemm.kernels.workspace import aligned
from cutegemm.normalize import allocate, check, dense_tensor, gather, meta, parse, prepare
from cutegemm.problem import MAX_ALIGN, access

if TYPE_CHECKING:
    from cutegemm.fusion.trace import BoundEpilogue, Epilogue

_AUTO: Literal["auto"] = "auto"


def gemm(
    a: Tensor,
    b: Tensor,
    *,
    epilogue: Epilogue | BoundEpilogue | None = None,
    c: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    beta: float | Tensor | None = None,
    out: Tensor | Sequence[Tensor] | Mapping[str, Tensor] | None = None,
    out_dtype: torch.dtype | Sequence[torch.dtype | None] | Mapping[str, torch.dtype] | None = None,
    precision: str | None = None,
    split_k: int | Literal["auto", "stream"] = _AUTO,
    padding: Literal["auto", "predicate", "copy"] = _AUTO,
    deterministic: bool = True,
    batch_invariant: bool = False,
    kernel: str | None = None,
    jit: Literal["forbid"] | None = None,
) -> Any:
    """D = cast(epilogue(alpha * (A @ B) + beta * C, operands…)), the epilogue fused into the kernel.

    Args:
        a: (…, M, K), any strides. fp16, bf16 or fp32; fp64 and int8 on the CPU too.
        b: (…, K, N), of `a`'s dtype and device; batches broadcast as in `torch.matmul`.
        epilogue: a function under `@epilogue` with its operands bound, or several composed with `>>`. Row is
            (N,) or (*batch, N), Col (M,) or (*batch, M), Tile (M, N) or (*batch, M, N), Scalar a number or a
            0-d tensor; N is N/2 after a `pair`.
        c: (…, M, N) exactly, before any pairing. Not read when `beta` is 0.
        alpha: a number, or a 0-d tensor on `a`'s device, which is never synchronised on. Scales the product
            alone; at 0, `a` and `b` are not read.
        beta: likewise for `c`; 1 by default where `c` is given.
        out: where to write: any view without self-overlap that shares memory with no input, or exactly `c` or
            a Tile operand. For several outputs a sequence in their order, or a mapping by name.
        out_dtype: the outputs' dtype, or one for each (sequence, mapping). By default `a`'s; fp32 for int8.
        precision: how fp32 inputs are multiplied on CUDA: "ieee" (strictly, in fp32), "tf32" (rounded to TF32 first,
            to nearest), or None for what torch is set to (`torch.backends.cuda.matmul.fp32_precision`; "ieee" unless it
            says "tf32"). "bf16x6" and "bf16x9" split each number into three of bf16 and sum six or all nine of their
            products on Hopper's tensor cores, about as exact as fp32; the pieces take 6 bytes of memory for each
            element of `a` and `b` while the call runs (docs/precision.md). A kernel serves what is asked for or
            refuses; on the CPU all of them are strict.
        split_k: into how many parts K is split, to be computed side by side and added up: a number up to that of the
            kernel's steps along K; "auto", which leaves it to the planner; or "stream", for equal shares of the
            steps for every block, whichever tiles they are of (`sm90_wgmma` and `cutlass_cpp` have it).
        padding: what becomes of an `a` or `b` that is not contiguous along a dimension (for some kernels, along K; in
            strict fp32, along M or N) and aligned to 16 bytes: "predicate" has the kernel read it as it is, "copy" has
            it copied into aligned rows first, and "auto" leaves it to the planner. `out` is written where it is,
            whatever its alignment.
        deterministic: True has the same inputs give the same bits, every time. False lets the planner also choose
            kernels that add up parts of K in no fixed order, which differ from time to time by roundings of fp32.
        batch_invariant: True is not available yet.
        kernel: None, or `family[:key=value,…]`, a pin that is served as it is or refused, such as "hand:level5" of
            `cutegemm.hand_kernels`; "reference" on CPU.
        jit: "forbid" makes a kernel that is not built an error instead of compiling it; None does so where the
            environment has `CUTEGEMM_JIT=0`.

    Returns:
        A tensor (…, M, N), N/2 for a paired output; for several outputs a NamedTuple in declaration order.
        Products are summed in fp32 (int8: in int32, then converted; fp64: in fp64) and the epilogue computes
        in fp32: the one rounding is the cast to each output's dtype. Casts to int8 and int32 round to nearest
        even and saturate.

    Raises:
        ShapeError, DTypeError, OverlapError, ArgumentError, EpilogueError, DeviceError: for an argument that
            can't be right; the message names it and what would be.
        NotAvailableError: for what this version does not serve yet, an input that requires grad included.
        UnsupportedArchitectureError, KernelNotBuiltError: no kernel for this GPU, or none built and none to be
            compiled. BundleError: a bundle that was named is damaged, or not for this GPU, machine or version.
        Each before anything is launched or written.

    Meta and fake tensors are checked alike, and give a result like the real one without computing it.
    """
    keywords: tuple[Any, ...] = ()
    if (
        precision is not None
        or split_k is not _AUTO
        or padding is not _AUTO
        or deterministic is not True
        or batch_invariant is not False
        or kernel is not None
        or jit is not None
    ):
        given = (precision, split_k, padding, deterministic, batch_invariant, kernel, jit)
        keywords = tuple((type(value), value) for value in given)
    result = warm.serve(a, b, epilogue, c, alpha, beta, out, out_dtype, keywords)
    if result is not None:
        return result
    chosen = options.check(
        precision=precision,
        split_k=split_k,
        padding=padding,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
        kernel=kernel,
        jit=jit,
    )
    arguments = parse(
        a, b, epilogue=epilogue, c=c, alpha=alpha, beta=beta, out=out, out_dtype=out_dtype, options=chosen
    )
    request, sizes = check(arguments)
    results = allocate(arguments, sizes)
    if not sizes.empty and arguments.abstract is None:
        if request.device == "cuda":
            from cutegemm import launch  # the DSL, which only a CUDA call needs

            launcher = launch.run(prepare(arguments, request, sizes, results))
            plain = warm.plain(a, b, epilogue, c, alpha, beta, out, out_dtype, keywords)
            if plain is not None:
                warm.keep(plain, launcher, arguments.graph, results)
        else:
            reference.run(arguments, results)
    return gather(arguments.graph, results)


def interleave(w_gate: Tensor, w_up: Tensor) -> Tensor:
    """One (…, 2N, K) weight of two (…, N, K): even rows the gate, odd rows the other, as `pair` splits them.

    `gemm(x, interleave(w_gate, w_up).mT, epilogue=epilogues.swiglu())` is
    `silu(x @ w_gate.mT) * (x @ w_up.mT)`. Raises `ShapeError` or `DTypeError` when the two are not alike.
    """
    for name, weight in (("w_gate", w_gate), ("w_up", w_up)):
        if not isinstance(weight, Tensor):
            raise ArgumentError(f"{name} is {type(weight).__name__}: expected a torch.Tensor")
    if w_gate.ndim < 2 or w_gate.shape != w_up.shape:
        raise ShapeError(
            f"w_gate has shape {tuple(w_gate.shape)} and w_up {tuple(w_up.shape)}: expected one shape, (N, K)"
        )
    if w_gate.dtype != w_up.dtype:
        raise DTypeError(f"w_gate is {w_gate.dtype} and w_up is {w_up.dtype}: expected one dtype for both")
    return torch.stack((w_gate, w_up), dim=-2).flatten(-3, -2)


def prepare_weight(weight: Tensor) -> Tensor:
    """`weight` itself, (…, N, K), where `gemm` reads it at full speed as it is; else its copy in rows that are aligned.

    A weight whose rows are not multiples of 16 bytes, or that is contiguous along neither dimension, is copied by
    every call that multiplies by it, or read slowly; a copy made once saves that. Like `weight` it is a tensor of
    shape (…, N, K), contiguous along K, its rows apart by a multiple of 16 bytes: `gemm(x, prepare_weight(w).mT)`.
    In TF32 on Hopper calls may copy a weight that is contiguous along N along K, and so what this gives for one that is
    aligned: keep it contiguous along K. In strict fp32 it is the other way: large products copy a weight that is
    contiguous along K, as this gives it, along N in every call. `w.mT.contiguous().mT`, with N a multiple of 4, is read
    as it is.
    Raises `ShapeError` for fewer than 2 dimensions and `ArgumentError` for what is no tensor.
    """
    dense_tensor("weight", weight)
    if weight.ndim < 2:
        raise ShapeError(f"weight has shape {tuple(weight.shape)}: expected at least 2 dimensions, (N, K)")
    dtype, shape, strides, address = meta(weight.mT)
    if aligned(access("b", dtype, shape, strides, address=address)):
        return weight
    *batch, n, k = weight.shape
    unit = max(1, MAX_ALIGN // weight.itemsize)
    memory = weight.new_zeros((*batch, n, -(-k // unit) * unit))
    return memory[..., :k].copy_(weight)
