"""From `gemm`'s arguments to a `Call`: validated, with its recipe and the tensors as a kernel takes them.

`cutegemm.request` decides what follows from metadata alone. Here is what every call has to look at again:
kinds of argument, lazily negated views, devices, grad mode, and where the tensors lie in memory.
"""

from __future__ import annotations

import numbers
from collections import namedtuple
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from cutegemm import dtypes
from cutegemm.errors import ArgumentError, DeviceError, DTypeError, NotAvailableError, OverlapError
from cutegemm.fusion import IDENTITY, Graph, as_bound
from cutegemm.layout import View, overlaps
from cutegemm.options import Options
from cutegemm.planner.pin import parse_pin
from cutegemm.problem import STRICT
from cutegemm.request import (
    SERVED,
    Layout,
    Meta,
    Recipe,
    Request,
    Scalar,
    Sizes,
    describe,
    lower,
    out_name,
    validate,
)

Named = tuple[str, Tensor]
Operand = Tensor | float


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """`gemm`'s arguments after parsing: right in kind, not yet checked against each other."""

    a: Tensor
    b: Tensor
    c: Tensor | None
    alpha: Operand
    beta: Operand
    graph: Graph
    operands: tuple[Operand, ...]
    outs: tuple[Tensor | str | None, ...]  # a given output, or the dtype that a fresh one is to have
    options: Options

    def inputs(self) -> list[Named]:
        """Every tensor that is read, under the name that errors give it."""
        named: list[tuple[str, Any]] = [("a", self.a), ("b", self.b), ("c", self.c)]
        named += [("alpha", self.alpha), ("beta", self.beta)]
        named += [(describe(spec), o) for spec, o in zip(self.graph.operands, self.operands, strict=True)]
        return [(name, value) for name, value in named if isinstance(value, Tensor)]

    def outputs(self) -> list[Named]:
        """Every output that was given."""
        return [(out_name(self.graph, i), out) for i, out in enumerate(self.outs) if isinstance(out, Tensor)]

    @property
    def abstract(self) -> Tensor | None:
        """A tensor that has no data, if there is one: then there is nothing to compute."""
        return next((t for _, t in (*self.inputs(), *self.outputs()) if is_abstract(t)), None)

    def request(self) -> Request:
        """The call's metadata."""
        return Request(
            self.a.device.type,
            meta(self.a),
            meta(self.b),
            None if self.c is None else meta(self.c),
            self.graph,
            tuple(_scalar(operand) for operand in self.operands),
            tuple(meta(out) if isinstance(out, Tensor) else out for out in self.outs),
            _scalar(self.alpha),
            _scalar(self.beta),
            self._precision,
        )

    @property
    def _precision(self) -> str | None:
        """How fp32 operands are multiplied: as `precision=` says, or torch's own setting for CUDA. The reference on a
        CPU is strict whatever either says."""
        if self.a.dtype != torch.float32:
            return None
        return self.options.precision or (fp32_precision() if self.a.device.type == "cuda" else STRICT)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A validated call on real tensors, ready to run.

    `a` (*modes, M, K), `b` (*modes, K, N), `c` (*modes, M, N) or None, `outs` and Tiles (*modes, M, N or
    N/2), Rows (*modes, N or N/2), Cols (*modes, M) are views that share their tensors' memory: the batch is
    broadcast with stride 0 and collapsed, jointly over all of them, to the fewest modes. K is 0 when `alpha`
    is the float 0. Scalars, `alpha` and `beta` are floats or 0-d tensors. `c` is None when it is absent or
    `beta` is the float 0. `results` are the outputs in the caller's shapes, on the same memory as `outs`.
    """

    recipe: Recipe
    device: torch.device
    a: Tensor
    b: Tensor
    c: Tensor | None
    operands: tuple[Operand, ...]
    outs: tuple[Tensor, ...]
    alpha: Operand
    beta: Operand
    options: Options
    results: tuple[Tensor, ...]

    @property
    def graph(self) -> Graph:
        """The epilogue."""
        return self.recipe.problem.signature.epilogue


def parse(
    a: Any,
    b: Any,
    *,
    epilogue: Any,
    c: Any,
    alpha: Any,
    beta: Any,
    out: Any,
    out_dtype: Any,
    options: Options,
) -> Arguments:
    """Check every argument's kind, bind the epilogue and fill in defaults.

    Raises `ArgumentError`, or `EpilogueError` for an epilogue whose operands are not all bound.
    """
    graph, values = _bind(epilogue)
    operands = tuple(
        _number(describe(spec), value) if spec.kind == "scalar" else _input(describe(spec), value)
        for spec, value in zip(graph.operands, values, strict=True)
    )
    matrix = None if c is None else _input("c", c)
    beta_value = _number("beta", (0.0 if c is None else 1.0) if beta is None else beta)
    if c is None and (isinstance(beta_value, Tensor) or beta_value != 0):
        raise ArgumentError(f"beta={beta!r} without c: give c, or leave beta out")
    return Arguments(
        a=_input("a", a),
        b=_input("b", b),
        c=matrix,
        alpha=_number("alpha", alpha),
        beta=beta_value,
        graph=graph,
        operands=operands,
        outs=_outs(graph, out, out_dtype),
        options=options,
    )


def check_devices(named: Iterable[Named]) -> torch.device:
    """The one device of all tensors. Raises `DeviceError` for several, or for a kind that nothing serves."""
    (first, tensor), *others = named
    for name, other in others:
        if other.device != tensor.device:
            raise DeviceError(f"{first} is on {tensor.device}, {name} on {other.device}: expected one device for all")
    if tensor.device.type not in SERVED:
        raise DeviceError(f"{first} is on {tensor.device}: expected tensors on cuda or cpu")
    return tensor.device


def check_grad(named: Iterable[Named]) -> None:
    """Raises `NotAvailableError` for a tensor that autograd, in either direction, would have to follow."""
    for name, tensor in named:
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotAvailableError(f"{name} has a tangent, and forward-mode autograd is not available yet")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise NotAvailableError(
                f"{name} requires grad, and autograd is not available yet: expected a detached tensor, or a "
                "call under torch.no_grad()"
            )


def check_overlap(outputs: Sequence[Named], inputs: Iterable[Named], elementwise: Collection[str]) -> None:
    """Raises `OverlapError` for an output that shares bytes with an input or another output.

    It may be the very elements of an input in `elementwise` (C, the Tiles): each is read before written.
    """
    read = list(inputs)
    for i, (name, out) in enumerate(outputs):
        region = _view(out)
        for other_name, other in (*outputs[:i], *read):
            if not _same_memory(out, other) or not overlaps(region, _view(other)):
                continue
            if other_name in elementwise and region.same_elements(_view(other)):
                continue
            raise OverlapError(
                f"{name} {tuple(out.shape)} shares memory with {other_name} {tuple(other.shape)}: "
                "expected memory of its own, or exactly c's or a Tile operand's"
            )


def check(arguments: Arguments) -> tuple[Request, Sizes]:
    """Everything that can be wrong with parsed arguments; nothing has been allocated or launched yet."""
    inputs, outputs, options = arguments.inputs(), arguments.outputs(), arguments.options
    device = check_devices((*inputs, *outputs))
    request = arguments.request()
    sizes = validate(request)
    if options.precision is not None and request.a.dtype != "fp32":
        raise ArgumentError(
            f"precision={options.precision!r} is for fp32 inputs, and a is {request.a.dtype}: leave it out"
        )
    if options.kernel is not None:
        _check_kernel(options.kernel, device)
    for name, value, neutral in (
        ("split_k", options.split_k, ("auto", 1)),
        ("padding", options.padding, ("auto", "predicate")),
    ):
        if device.type == "cpu" and value not in neutral:
            expected = " or ".join(map(repr, neutral))
            raise ArgumentError(f"{name}={value!r} needs CUDA tensors, and a is on cpu: expected {expected}")
    check_grad((*inputs, *outputs))
    _check_inference(outputs)
    _check_addresses((*inputs, *outputs))
    tiles = [describe(spec) for spec in arguments.graph.operands if spec.kind == "tile"]
    check_overlap(outputs, inputs, ("c", *tiles))
    return request, sizes


def allocate(arguments: Arguments, sizes: Sizes) -> tuple[Tensor, ...]:
    """The outputs: those given, and fresh contiguous ones for the rest, without data if the inputs are."""
    abstract = arguments.abstract
    like = arguments.a if abstract is None else abstract
    return tuple(
        out if isinstance(out, Tensor) else like.new_empty(shape, dtype=torch_dtype(dtype))
        for out, (shape, dtype) in zip(arguments.outs, sizes.outputs, strict=True)
    )


def prepare(arguments: Arguments, request: Request, sizes: Sizes, results: tuple[Tensor, ...]) -> Call:
    """The `Call` of checked arguments on real tensors."""
    recipe = lower(request, sizes)
    operands = tuple(
        operand if layout is None or not isinstance(operand, Tensor) else _as(operand, layout)
        for operand, layout in zip(arguments.operands, recipe.operands, strict=True)
    )
    return Call(
        recipe=recipe,
        device=arguments.a.device,
        a=_as(arguments.a, recipe.a),
        b=_as(arguments.b, recipe.b),
        c=None if arguments.c is None or recipe.c is None else _as(arguments.c, recipe.c),
        operands=operands,
        outs=tuple(_as(out, layout) for out, layout in zip(results, recipe.outs, strict=True)),
        alpha=arguments.alpha,
        beta=arguments.beta,
        options=arguments.options,
        results=results,
    )


def is_abstract(tensor: Tensor) -> bool:
    """Whether a tensor has metadata but no data: on the meta device, or fake."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def meta(tensor: Tensor) -> Meta:
    """A tensor's metadata. A tensor without data counts as starting at an aligned storage."""
    strides = tensor.stride()
    if is_abstract(tensor):
        return Meta(dtype_name(tensor.dtype), tensor.shape, strides, 0)
    return Meta(dtype_name(tensor.dtype), tensor.shape, strides, tensor.data_ptr() % 16)


def fp32_precision() -> str:
    """How torch is set to multiply fp32 on CUDA: "ieee" or "tf32".

    torch has two interfaces to one setting, and some of their getters (`get_float32_matmul_precision`, `allow_tf32`)
    raise once the other one was used. This is what `torch.backends.cuda.matmul.fp32_precision` reads, in a seventh of
    its time: it never raises, and both interfaces set it.
    """
    return "tf32" if torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32" else STRICT


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """The name that signatures give a torch dtype; torch's own for one that they never hold."""
    name = str(dtype).removeprefix("torch.")
    try:
        return dtypes.lookup(name).name
    except DTypeError:
        return name


@cache
def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name in signatures. Raises `DTypeError` for one that torch has not."""
    return next(dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and dtype_name(dtype) == name)


def gather(graph: Graph, results: tuple[Tensor, ...]) -> Any:
    """What `gemm` returns: the tensor of a single output, a NamedTuple of several."""
    if len(results) == 1:
        return results[0]
    return _result_type(tuple(output.name for output in graph.outputs))(*results)


@cache
def _result_type(names: tuple[str, ...]) -> Any:
    return namedtuple("GemmOutputs", names)


def _bind(epilogue: Any) -> tuple[Graph, tuple[Any, ...]]:
    if epilogue is None:
        return IDENTITY, ()
    bound = as_bound(epilogue)
    return bound.graph, bound.operands


def _input(name: str, value: Any) -> Tensor:
    """A dense tensor with lazy negation and conjugation resolved."""
    tensor = dense_tensor(name, value)
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def dense_tensor(name: str, value: Any) -> Tensor:
    """`value` if it is a strided torch tensor outside of torch.func's transforms; else an error that names it."""
    if not isinstance(value, Tensor):
        raise ArgumentError(f"{name} is {_kind(value)}: expected a torch.Tensor")
    if value.layout != torch.strided or value.is_nested:
        raise ArgumentError(f"{name} has layout {value.layout}{' (nested)' * value.is_nested}: expected a dense tensor")
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        raise NotAvailableError(f"{name} is under a torch.func transform (vmap, grad, jvp): not available yet")
    return value


def _number(name: str, value: Any) -> Operand:
    if isinstance(value, Tensor):
        return _input(name, value)
    if not isinstance(value, numbers.Real):
        raise ArgumentError(f"{name} is {_kind(value)}: expected a real number or a 0-d tensor")
    try:
        return float(value)
    except OverflowError:
        raise ArgumentError(f"{name} is beyond a float's range") from None


def _outs(graph: Graph, out: Any, out_dtype: Any) -> tuple[Tensor | str | None, ...]:
    """For each output the tensor that was given for it, or else the dtype that was asked for."""
    names = tuple(output.name for output in graph.outputs)
    wanted = [None if d is None else _dtype(d) for d in _per_output("out_dtype", names, out_dtype, spread=True)]
    if out is None:
        return tuple(wanted)
    if isinstance(out, Tensor) and len(names) > 1:
        raise ArgumentError(
            f"out is one tensor, and the epilogue has outputs {', '.join(names)}: expected one for each"
        )
    given = [out] if len(names) == 1 and isinstance(out, Tensor) else _per_output("out", names, out, spread=False)
    tensors = []
    for i, (value, dtype) in enumerate(zip(given, wanted, strict=True)):
        name = out_name(graph, i)
        tensor = dense_tensor(name, value)
        if tensor.is_neg() or tensor.is_conj():
            raise ArgumentError(f"{name} is a lazily negated or conjugated view: expected a plain one to write to")
        if dtype is not None and dtype_name(tensor.dtype) != dtype:
            raise DTypeError(f"{name} is {dtype_name(tensor.dtype)} and out_dtype asks for {dtype}: give one of them")
        tensors.append(tensor)
    return tuple(tensors)


def _per_output(keyword: str, names: tuple[str, ...], value: Any, *, spread: bool) -> Sequence[Any]:
    """`value` for each output, from a tuple in their order or a mapping by name.

    `spread`: a single value stands for all of them, and a mapping may leave some out.
    """
    listed = ", ".join(names)
    if isinstance(value, Mapping):
        unknown = [str(key) for key in value if key not in names]
        missing = [name for name in names if name not in value and not spread]
        if unknown or missing:
            raise ArgumentError(f"{keyword} has keys {', '.join(map(str, value))}: expected {listed}")
        return [value.get(name) for name in names]
    if isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", names)
        if len(value) != len(names) or fields != names:
            got = f"fields {', '.join(fields)}" if fields != names else f"{len(value)} entries"
            raise ArgumentError(f"{keyword} has {got}: expected one for each output: {listed}")
        return value
    if spread:
        return [value] * len(names)
    raise ArgumentError(f"{keyword} is {_kind(value)}: expected a tensor for each output: {listed}")


def _dtype(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, str):
        return dtypes.lookup(value).name
    raise DTypeError(f"out_dtype is {_kind(value)}: expected a torch.dtype")


def _check_kernel(kernel: str, device: torch.device) -> None:
    if device.type == "cpu" and kernel != "reference":
        raise ArgumentError(f"kernel={kernel!r} needs CUDA tensors, and a is on cpu: expected None or 'reference'")
    if device.type == "cuda" and kernel == "reference":
        raise ArgumentError(
            f"kernel='reference' runs on CPU tensors, and a is on {device}: expected a CUDA family or None"
        )
    if kernel != "reference":
        parse_pin(kernel)


def _check_inference(outputs: Iterable[Named]) -> None:
    """Outputs made in inference mode can be written there only, as torch has it."""
    for name, out in outputs:
        if out.is_inference() and not torch.is_inference_mode_enabled():
            raise ArgumentError(f"{name} was made in inference mode: expected a call in inference mode, or a clone")


def _check_addresses(named: Iterable[Named]) -> None:
    for name, tensor in named:
        if not is_abstract(tensor) and tensor.data_ptr() % tensor.element_size():
            raise ArgumentError(
                f"{name} starts at address {tensor.data_ptr():#x}, which {tensor.element_size()}-byte elements are not "
                "aligned to: expected a copy"
            )


def _scalar(value: Operand) -> Scalar:
    if isinstance(value, Tensor):
        return meta(value)
    return "zero" if value == 0 else "float"


def _as(tensor: Tensor, layout: Layout) -> Tensor:
    return tensor.as_strided(layout.shape, layout.strides)


def _view(tensor: Tensor) -> View:
    itemsize = tensor.element_size()
    address = tensor.storage_offset() * itemsize if is_abstract(tensor) else tensor.data_ptr()
    return View(int(address), itemsize, tuple(tensor.shape), tensor.stride())


def _same_memory(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors' addresses compare; without data, they do within one storage only."""
    if is_abstract(x) != is_abstract(y):
        return False
    return not is_abstract(x) or x.untyped_storage()._cdata == y.untyped_storage()._cdata


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
