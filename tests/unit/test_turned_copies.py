"""Copies that lie along another dimension than their operand, without a GPU: where they lie, which are planned, and
what the kernel's own code puts there."""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from cutegemm import plan
from cutegemm.device import lookup
from cutegemm.errors import ArgumentError, UnsupportedArchitectureError
from cutegemm.kernels import abi, surroundings, turning, workspace
from cutegemm.kernels.padding import THREADS, PadRows
from cutegemm.kernels.turning import TurnRows
from cutegemm.planner import contiguous_problem
from cutegemm.planner.plan import plan_problem
from cutegemm.problem import Access, Signature

PIN = "simt_f32:tile=128x256x16,stages=4,thread=8x16"
#: Strides of one matrix of `lines` x `length`, `length` along a row of its copy: as it lies, and its access.
SOURCES: dict[str, tuple[Callable[[int, int], tuple[int, int]], str]] = {
    "across": (lambda lines, length: (1, lines + 3), "k"),
    "strided": (lambda lines, length: (2, 2 * lines + 1), "strided"),
    "strided the other way": (lambda lines, length: (2 * length + 1, 2), "strided"),
}


def pick(condition: bool, x: Any, y: Any) -> Any:
    return x if condition else y


class Fragment(list):  # type: ignore[type-arg]
    """Four numbers in each of some places, as [number, place] or, all of a place, [None, place]."""

    def __init__(self, shape: tuple[int, int], _: Any) -> None:
        super().__init__([None] * shape[0] for _ in range(shape[1]))

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at[1])

    def __setitem__(self, at: Any, value: Any) -> None:
        super().__getitem__(at[1])[at[0]] = value


class Block:
    """What the kernel finds on a GPU, for one block whose threads are Python's: memory is a dictionary of numbers by
    address, shared memory a list."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: dict[int, Any]) -> None:
        self.memory, self.shared = memory, [None] * turning.TILE**2
        self.own, self.barrier = threading.local(), threading.Barrier(THREADS)
        arch = SimpleNamespace(
            thread_idx=lambda: (self.own.tid, 0, 0), block_idx=lambda: (0, 0, 0), grid_dim=lambda: (1, 1, 1),
            sync_threads=self.barrier.wait,
        )  # fmt: skip
        cute = SimpleNamespace(
            arch=arch, ceil_div=lambda x, y: -(-x // y), make_rmem_tensor=Fragment, autovec_copy=self._copy
        )
        cutlass = SimpleNamespace(
            range=lambda *bounds, unroll: range(*bounds), range_constexpr=range, const_expr=bool, min=min, select_=pick
        )
        fakes = {"cute": cute, "cutlass": cutlass, "Int64": int, "since_hopper": bool, "SmemAllocator": lambda: self}
        fakes |= {"_vector": self._vector, "_chunk": self._chunk}
        for name, fake in fakes.items():
            monkeypatch.setattr(turning, name, fake)

    def run(self, *arguments: Any) -> None:
        kernel = inspect.unwrap(TurnRows.kernel)  # as it is written, not as the DSL takes it

        def thread(tid: int) -> None:
            self.own.tid = tid
            try:
                kernel(*arguments)
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(thread, range(THREADS)))

    def allocate_array(self, *_: Any, **__: Any) -> None:
        return None

    def _vector(self, address: int, size: int) -> Any:
        assert address % (4 * size) == 0
        return [self.memory[address]] if size == 1 else (self.memory, [address + 4 * i for i in range(size)])

    def _chunk(self, _: None, line: int, chunk: int) -> Any:
        first = turning.place(line, chunk)
        return self.shared, list(range(first, first + 4))

    def _copy(self, source: Any, target: Any) -> None:
        values = [source[0][i] for i in source[1]] if isinstance(source, tuple) else list(source)
        if isinstance(target, tuple):
            for i, value in zip(target[1], values, strict=True):
                target[0][i] = value
        else:
            target[:] = values


@pytest.mark.parametrize(
    ("source", "lines", "length", "modes"),
    [
        ("across", 70, 131, (1, 1)),
        ("across", 65, 1, (1, 2)),
        ("strided", 1, 5, (2, 1)),
        ("strided the other way", 3, 66, (1, 1)),
    ],
    ids=str,
)
def test_the_kernel_turns_tiles(
    source: str, lines: int, length: int, modes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads meet nothing but the operand, which is all that is there; writes nothing but the copy, each row whole."""
    strides_of, major = SOURCES[source]
    across, along = strides_of(lines, length)
    apart = (lines - 1) * across + (length - 1) * along + 1
    strides, pitch = (across, along, apart, 3 * apart), -(-length // 8) * 8
    target, targets = 1 << 20, (pitch, pitch * lines, pitch * lines * modes[0], 0)
    places = list(itertools.product(range(lines), range(length), range(modes[0]), range(modes[1])))
    values = {p: 4 * sum(i * s for i, s in zip(p, strides, strict=True)) + 12 for p in places}
    block = Block(monkeypatch, {address: place for place, address in values.items()})
    block.run(TurnRows(Access("fp32", major, 4)), 12, strides, target, targets, lines, length, modes)
    for line, i, l0, l1 in places:
        address = target + 4 * (line * targets[0] + i + l0 * targets[1] + l1 * targets[2])
        assert block.memory.pop(address) == (line, i, l0, l1)
        block.memory.pop(values[line, i, l0, l1])
    rows = {target + 4 * (r * pitch + i) for r in range(lines * modes[0] * modes[1]) for i in range(length, pitch)}
    assert set(block.memory) <= rows


def signature_of(layout: str, align: int, strided: str = "", precision: str = "ieee") -> Signature:
    given: dict[str, Any] = {"dtype": "fp32", "layout": layout, "align": align, "precision": precision}
    made = contiguous_problem(8, 12, 16, **given).signature
    a, b = (Access("fp32", "strided", 4) if name in strided else getattr(made, name) for name in "ab")
    return Signature(a, b, None, made.outputs, made.epilogue, (), "float", "float", precision)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("align", [4, 16])
def test_strict_copies_lie_along_m_and_n(layout: str, align: int) -> None:
    for strided in ("", "a", "ab"):
        made = workspace.inner(signature_of(layout, align, strided), "ab", 1)
        assert (made.a, made.b) == (Access("fp32", "m", 16), Access("fp32", "n", 16))
        made = workspace.inner(signature_of(layout, align, strided, "tf32"), "ab", 1)
        assert made.a == made.b == Access("fp32", "k", 16)
        split_up = workspace.inner(signature_of(layout, align, strided, "bf16x6"), "no", 1)
        natural = {"n": "k", "t": "m"}[layout[0]], {"n": "n", "t": "k"}[layout[1]]
        wanted = ("k" if name in strided else major for name, major in zip("ab", natural, strict=True))
        assert (split_up.a.major, split_up.b.major) == tuple(wanted)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    ("strided", "broadcast"), [("", ()), ("", (("a", "l0"),)), ("", (("b", "l0"), ("b", "l1"))), ("ab", ())], ids=str
)
@pytest.mark.parametrize("split", [1, 3])
def test_what_is_copied_lies_where_the_product_reads(
    layout: str, strided: str, broadcast: tuple[tuple[str, str], ...], split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every batch entry, by launches that do what `PadRows.launch` says; along K only copies that turn nothing."""
    signature = signature_of(layout, 4, strided)
    v: dict[str, Any] = {"m": 5, "n": 9, "k": 11, "l0": 2, "l1": 3, "sm_count": 4, "alpha": 1.0}
    v |= {"ptr.a": 1 << 12, "ptr.b": 1 << 16, "ptr.out0": 1 << 18, "ptr.workspace": 1 << 20}
    v |= {f"stride.out0.{dim}": 1 for dim in ("m", "n", "l0", "l1")}
    elements: dict[str, dict[tuple[int, ...], int]] = {}
    for name, dims in (("a", ("m", "k")), ("b", ("k", "n"))):
        inner, outer = dims[::-1] if layout["ab".index(name)] == "n" else dims
        step = 2 if name in strided else 1
        steps = {inner: step, outer: step * v[inner] + 1}
        steps |= {"l0": steps[outer] * v[outer], "l1": 7 * steps[outer] * v[outer]}
        steps |= {mode: 0 for tensor, mode in broadcast if tensor == name}
        v |= {f"stride.{name}.{dim}": s for dim, s in steps.items() if s != 1 or dim in ("l0", "l1")}
        elements[name] = {
            place: v[f"ptr.{name}"] + 4 * sum(i * steps[dim] for i, dim in zip(place, (*dims, "l0", "l1"), strict=True))
            for place in itertools.product(*(range(v[dim]) for dim in (*dims, "l0", "l1")))
        }
    copied: dict[int, int] = {}
    kinds: list[type] = []

    def launch(self: PadRows, source: int, s: Any, target: int, t: Any, *sizes: Any) -> None:
        kinds.append(type(self))
        lines, length, modes, *_ = sizes
        for line, i, l0, l1 in itertools.product(*map(range, (lines, length, *modes))):
            there = target + 4 * (line * t[0] + i + l0 * t[1] + l1 * t[2])
            assert there not in copied
            copied[there] = source + 4 * (line * s[0] + i * s[1] + l0 * s[2] + l1 * s[3])

    monkeypatch.setattr(PadRows, "launch", launch)
    monkeypatch.setattr(surroundings, "cutlass", SimpleNamespace(select_=pick, Float32=float))
    monkeypatch.setattr(surroundings, "Int32", int)
    monkeypatch.setattr(surroundings, "Int64", int)
    config = SimpleNamespace(pad="ab", split=split)
    made = surroundings.before(signature, config, v, None)
    assert tuple(made) == tuple(a.name for a in abi.arguments(workspace.inner(signature, "ab", split)))
    for name, order in (("a", ("m", "k", "l0", "l1")), ("b", ("k", "n", "l0", "l1"))):
        walked = [made.get(f"stride.{name}.{dim}", 1) for dim in order]
        for place, address in elements[name].items():
            there = made[f"ptr.{name}"] + 4 * sum(i * s for i, s in zip(place, walked, strict=True))
            assert copied[there] == address
    natural = [layout[0] == "n" or "a" in strided, layout[1] == "t" or "b" in strided]  # along K
    assert kinds == [TurnRows if turned else PadRows for turned in natural]


@pytest.mark.parametrize(("layout", "pad"), [("nn", "a"), ("nt", "ab"), ("tn", "no"), ("tt", "b")])
def test_operands_along_k_are_turned_where_that_pays(layout: str, pad: str) -> None:
    for size in (4096, 8192):
        made = plan(size, size, size, dtype="fp32", layout=layout, arch="H200")
        assert (made.family, made.config.options()["pad"]) == ("simt_f32", pad)
        assert made.workspace == 4 * size**2 * (0 if pad == "no" else len(pad))
        terms = made.candidates[0].estimate.terms  # type: ignore[union-attr]
        assert ("copies" in terms) == (pad != "no") and ("64.0 MiB" in made.explain()) == (made.workspace == 64 << 20)
    for size in (64, 512, 1024):
        assert plan(size, size, size, dtype="fp32", layout=layout, arch="H200").config.options()["pad"] == "no"
    assert plan(4095, 4097, 4093, dtype="fp32", layout=layout, arch="H200").config.options()["pad"] == "ab"


def test_each_operand_is_weighed_by_what_it_is_multiplied_with() -> None:
    """What is used many times over is worth a copy, and what passes by once is not."""
    for sizes, layout, pad in (((16384, 64, 4096), "nt", "b"), ((256, 8192, 8192), "nt", "a")):
        assert plan(*sizes, dtype="fp32", layout=layout, arch="H200").config.options()["pad"] == pad


def test_copies_that_are_asked_for_and_refused() -> None:
    given: dict[str, Any] = {"dtype": "fp32", "arch": "H200"}
    for layout, pad in (("nn", "a"), ("nt", "ab"), ("tn", "no"), ("tt", "b")):
        assert plan(64, 64, 64, layout=layout, padding="copy", **given).config.options()["pad"] == pad
        assert plan(8192, 8192, 8192, layout=layout, padding="predicate", **given).config.options()["pad"] == "no"
    with pytest.raises(UnsupportedArchitectureError, match="pad=ab: b is aligned to 16 bytes as it is"):
        plan(256, 256, 256, layout="nn", kernel=f"{PIN},pad=ab", **given)
    with pytest.raises(ArgumentError, match="padding='copy' and kernel=.*which has pad=no: expected pad=a"):
        plan(256, 256, 256, layout="nn", kernel=PIN, padding="copy", **given)
    # Other families read along K as well, and no one asks them to turn what is aligned.
    for layout in ("nn", "nt"):
        assert plan(256, 256, 256, layout=layout, arch="H200", padding="copy").config.options()["pad"] == "no"
    made = plan_problem(contiguous_problem(4096, 4096, 4096, dtype="fp32"), lookup("H200"), workspace=False)
    assert (made.family, made.workspace) == ("simt_f32", 0)
