"""The second call: from a call's metadata straight to the launcher that its first call made.

A key holds all that planning and validation depend on: every tensor's shape, strides, dtype, device and address modulo
16, the epilogue's identity, which scalars are 0 or tensors, the keywords, and torch's setting for fp32 inputs. What
equal keys leave open is looked at on every call: grad mode, lazily negated views, kinds of tensor, and overlap. A call
that is not plain in one of these takes the full path, which serves it or raises the error.

Every attribute of a tensor costs a tenth of a microsecond here, and a warm call has a few microseconds in all: hence
the flat lists, and one loop over the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from cutegemm.fusion.trace import BoundEpilogue, Epilogue
from cutegemm.normalize import fp32_precision, gather

if TYPE_CHECKING:
    from cutegemm.fusion import Graph
    from cutegemm.launch import Launcher

#: Calls remembered; when there are more, all are forgotten. Kernels stay in `compiler.cache`.
CAPACITY = 8192

_PLAIN = frozenset((Tensor, Parameter))  # subclasses, fake tensors among them, have a behaviour of their own


@dataclass(slots=True, eq=False)
class Entry:
    """What a key comes to: a launcher, the outputs to allocate, and how far each tensor reaches from its address.

    `fresh` holds shape and dtype of each output that is not given; `reaches` are in bytes; `elementwise` lists
    pairs of positions, an output and C or a Tile of the same shape, strides and dtype, which it may be. `apart` are the
    addresses that were last found not to overlap: calls in a loop mostly have the same ones.
    """

    launcher: Launcher
    graph: Graph
    fresh: tuple[tuple[torch.Size, torch.dtype], ...]
    reaches: tuple[int, ...]
    elementwise: frozenset[tuple[int, int]]
    apart: list[int] | None = None


_entries: dict[Any, Entry] = {}


class Plain(NamedTuple):
    """A call that a key can stand for: its tensors in the launcher's order but for outputs that are to be allocated,
    their addresses, the floats among its scalars, and which tensors are given outputs (`first` to `last`)."""

    key: tuple[Any, ...]
    tensors: list[Tensor]
    addresses: list[int]
    floats: list[float]
    first: int
    last: int


def serve(*arguments: Any) -> Any:
    """The result of a call that was made before, or None where the full path has to see it; arguments as in `plain`."""
    call = plain(*arguments)
    if call is None:
        return None
    key, tensors, addresses, floats, first, last = call
    try:
        entry = _entries.get(key)
    except TypeError:  # an unhashable keyword: the full path names what is wrong with it
        return None
    if entry is None:
        return None
    if entry.fresh:
        device = tensors[0].device
        results = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in entry.fresh]
        addresses[first:first] = [t.data_ptr() for t in results]
    else:
        if addresses != entry.apart:
            if _may_overlap(entry, addresses, first, last):
                return None
            entry.apart = addresses
        results = tensors[first:last]
        torch._C._increment_version(results)  # autograd has to notice what it saved being overwritten
    entry.launcher(addresses, floats)
    return results[0] if len(results) == 1 else gather(entry.graph, tuple(results))


def keep(call: Plain, launcher: Launcher, graph: Graph, results: tuple[Tensor, ...]) -> None:
    """Remember what the full path made of a call."""
    if len(_entries) >= CAPACITY:
        _entries.clear()
    own = range(call.first, call.last)
    layouts = [(t.shape, t.stride(), t.dtype) for t in call.tensors]
    alike = [
        (out, i)
        for out in own
        for i in range(2, len(layouts))
        if i not in own and len(layouts[i][0]) > 1 and layouts[i] == layouts[out]
    ]
    _entries[call.key] = Entry(
        launcher=launcher,
        graph=graph,
        fresh=() if own else tuple((t.shape, t.dtype) for t in results),
        reaches=tuple(map(_reach, call.tensors)),
        elementwise=frozenset(alike),
    )


def plain(
    a: Any, b: Any, epilogue: Any, c: Any, alpha: Any, beta: Any, out: Any, out_dtype: Any, keywords: tuple[Any, ...]
) -> Plain | None:
    """A call on CUDA tensors as a key can stand for it; None for any other, which takes the full path.

    `keywords` are those of `gemm`'s keywords that were given a value other than the default, with their types: 1, 1.0
    and True are equal as keys, and not all of them are valid.
    """
    if out_dtype is not None and type(out_dtype) is not torch.dtype:
        return None
    if forward_ad._current_level >= 0:
        return None
    tensors, scalars = [a, b], [alpha]
    if c is not None:
        if beta is None:
            beta = 1.0
        elif type(beta) is not Tensor and beta == 0:
            return None
        tensors.append(c)
        scalars.append(beta)
    elif beta is not None:
        return None
    first = len(tensors)
    if out is not None:
        if type(out) is tuple:
            if not out:
                return None
            tensors += out
        else:
            tensors.append(out)
    last = len(tensors)
    identity = None
    if epilogue is not None:
        if type(epilogue) is Epilogue and not epilogue.graph.operands:
            epilogue = epilogue()
        if type(epilogue) is not BoundEpilogue:
            return None
        identity = epilogue.graph.identity
        for spec, operand in zip(epilogue.graph.operands, epilogue.operands, strict=True):
            (scalars if spec.kind == "scalar" else tensors).append(operand)
    floats: list[float] = []
    key: list[Any] = [identity, first, last, out_dtype, keywords]
    for scalar in scalars:
        kind = type(scalar)
        if kind is float or (kind is int and -(2**53) < scalar < 2**53):
            floats.append(float(scalar))
            key.append(scalar == 0)
        elif kind is Tensor:
            tensors.append(scalar)
            key.append(None)
        else:
            return None
    addresses = []
    try:
        for t in tensors:
            if type(t) not in _PLAIN:
                return None
            device, address = t.get_device(), t.data_ptr()
            if device < 0 or t.is_neg() or (t.requires_grad and torch.is_grad_enabled()):
                return None
            addresses.append(address)
            key += (t.shape, t.stride(), t.dtype, device, address & 15)
    except RuntimeError:  # no strides or no storage: sparse and nested tensors
        return None
    if a.dtype is torch.float32:
        key.append(fp32_precision())
    return Plain(tuple(key), tensors, addresses, floats, first, last)


def _may_overlap(entry: Entry, addresses: list[int], first: int, last: int) -> bool:
    """Whether an output's byte range meets another tensor's; C and Tiles may be the very output."""
    reaches = entry.reaches
    for out in range(first, last):
        start = addresses[out]
        end = start + reaches[out]
        for i, address in enumerate(addresses):
            if address < end and start < address + reaches[i] and i != out:
                if address == start and (out, i) in entry.elementwise:
                    continue
                return True
    return False


def _reach(tensor: Tensor) -> int:
    """Bytes from a tensor's address to the end of its last element."""
    if tensor.numel() == 0:
        return 0
    return (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()
