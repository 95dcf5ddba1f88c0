"""The second call: from a call's metadata straight to the launcher that its first call made.

A key holds all that planning and validation depend on: every tensor's shape, strides, dtype, device and address modulo
16, the epilogue's identity, which scalars are 0 or tensors, and the keywords. What equal keys leave open is looked at
on every call: grad mode, lazily negated views, kinds of tensor, and overlap. A call that is not plain in one of these
takes the full path, which serves it or raises the error.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from cutegemm.fusion.trace import BoundEpilogue
from cutegemm.normalize import gather

if TYPE_CHECKING:
    from cutegemm.fusion import Graph
    from cutegemm.launch import Launcher

#: Calls remembered; when there are more, all are forgotten. Kernels stay in `compiler.cache`.
CAPACITY = 8192

#: The values of `lookup`'s `keywords` when the caller gives none.
DEFAULTS = (None, "auto", "auto", True, False, None, None)

_PLAIN = (Tensor, Parameter)  # subclasses, fake tensors among them, have a behaviour of their own


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """What a key comes to: a launcher, the outputs to allocate, and how far each tensor reaches from its address.

    `fresh` holds shape and dtype of each output that is not given; `reaches` are in bytes; `elementwise` lists
    pairs of positions, an output and C or a Tile of the same shape, strides and dtype, which it may be.
    """

    launcher: Launcher
    graph: Graph
    fresh: tuple[tuple[torch.Size, torch.dtype], ...]
    reaches: tuple[int, ...]
    elementwise: frozenset[tuple[int, int]]


_entries: dict[Any, Entry] = {}


@dataclass(slots=True, eq=False)
class Lookup:
    """A plain call: its key, its tensors in the launcher's order but for outputs that are to be allocated, the floats
    among its scalars, and which tensors are given outputs (`first` to `last`)."""

    key: Any
    tensors: list[Tensor]
    addresses: list[int]
    floats: list[float]
    first: int
    last: int

    def run(self) -> Any:
        """The call's result, or None where there is no entry or the full path has to look at overlaps."""
        entry = _entries.get(self.key)
        if entry is None:
            return None
        addresses = self.addresses
        if entry.fresh:
            device = self.tensors[0].device
            results = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in entry.fresh]
            addresses[self.first : self.first] = [t.data_ptr() for t in results]
        else:
            results = self.tensors[self.first : self.last]
            if self._may_overlap(entry, addresses):
                return None
        entry.launcher(addresses, self.floats)
        return results[0] if len(results) == 1 else gather(entry.graph, tuple(results))

    def _may_overlap(self, entry: Entry, addresses: list[int]) -> bool:
        """Whether an output's byte range meets another tensor's; C and Tiles may be the very output."""
        reaches = entry.reaches
        for out in range(self.first, self.last):
            start = addresses[out]
            end = start + reaches[out]
            for i, address in enumerate(addresses):
                if address < end and start < address + reaches[i] and i != out:
                    if address == start and (out, i) in entry.elementwise:
                        continue
                    return True
        return False

    def keep(self, launcher: Launcher, graph: Graph, results: tuple[Tensor, ...]) -> None:
        """Remember what the full path made of this call."""
        if len(_entries) >= CAPACITY:
            _entries.clear()
        own = range(self.first, self.last)
        layouts = [(t.shape, t.stride(), t.dtype) for t in self.tensors]
        alike = [
            (out, i)
            for out in own
            for i in range(2, len(layouts))
            if i not in own and len(layouts[i][0]) > 1 and layouts[i] == layouts[out]
        ]
        _entries[self.key] = Entry(
            launcher=launcher,
            graph=graph,
            fresh=() if own else tuple((t.shape, t.dtype) for t in results),
            reaches=tuple(map(_reach, self.tensors)),
            elementwise=frozenset(alike),
        )


def lookup(
    a: Any,
    b: Any,
    *,
    epilogue: Any,
    c: Any,
    alpha: Any,
    beta: Any,
    out: Any,
    out_dtype: Any,
    keywords: tuple[Any, ...],
) -> Lookup | None:
    """The lookup of a plain CUDA call; None for any other, which takes the full path."""
    identity: str | None = None
    kinds: list[str] = []
    operands: tuple[Any, ...] = ()
    if epilogue is None:
        pass
    elif type(epilogue) is BoundEpilogue:
        identity = epilogue.graph.identity
        kinds, operands = [spec.kind for spec in epilogue.graph.operands], epilogue.operands
    else:
        return None
    if c is None:
        if beta is not None:
            return None
    elif beta is not None and type(beta) is not Tensor and beta == 0:
        return None
    tensors = [a, b] if c is None else [a, b, c]
    first = last = len(tensors)
    if out is not None:
        outputs = (out,) if isinstance(out, Tensor) else out
        if not isinstance(outputs, tuple):
            return None
        tensors += outputs
        last = len(tensors)
    scalars = [alpha] if c is None else [alpha, 1.0 if beta is None else beta]
    for kind, operand in zip(kinds, operands, strict=True):
        (scalars if kind == "scalar" else tensors).append(operand)
    floats = []
    for scalar in scalars:
        if isinstance(scalar, Tensor):
            tensors.append(scalar)
        elif type(scalar) is float:
            floats.append(scalar)
        elif type(scalar) is int and abs(scalar) < 2**53:
            floats.append(float(scalar))
        else:
            return None
    described, addresses = [], []
    grad = torch.is_grad_enabled()
    for t in tensors:
        if type(t) not in _PLAIN or not t.is_cuda or t.is_neg() or (grad and t.requires_grad):
            return None
        address = t.data_ptr()
        addresses.append(address)
        described.append((t.shape, t.stride(), t.dtype, t.get_device(), address & 15))
    by_value = tuple([type(s) is not Tensor for s in scalars])
    zeros = tuple([f == 0.0 for f in floats])
    # 1, 1.0 and True are equal as keys, and not all of them are valid: types are part of the key.
    chosen = None if all(map(operator.is_, keywords, DEFAULTS)) else tuple((type(k), k) for k in keywords)
    key = (tuple(described), identity, first, last, by_value, zeros, out_dtype, chosen)
    try:
        hash(key)
    except TypeError:  # an unhashable keyword: the full path names what is wrong with it
        return None
    return Lookup(key, tensors, addresses, floats, first, last)


def _reach(tensor: Tensor) -> int:
    """Bytes from a tensor's address to the end of its last element."""
    if tensor.numel() == 0:
        return 0
    return (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()
