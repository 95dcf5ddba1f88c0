"""The expression graph behind every epilogue: plain, hashable, pickleable data with a canonical form.

A graph is a flat tuple of nodes in topological order. Building one is building its canonical form: each
distinct sub-expression exists once, the arguments of commutative operations are sorted by a digest of what
they compute, nodes that reach no output are dropped, and the rest are numbered in depth-first order from the
outputs. Two spellings of one expression therefore end as the same tuples, whatever order they were written in
and in whatever process.

Algebra that changes an fp32 result (re-association, distribution, `x / c` against `x * (1 / c)`) is left
alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import keyword
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, SupportsFloat

from cutegemm import dtypes
from cutegemm.errors import EpilogueError

Kind = Literal["row", "col", "tile", "scalar"]
Type = Literal["f32", "bool"]

#: What `cast` may round to.
CAST_DTYPES = ("fp16", "bf16")


class Op(NamedTuple):
    """One kind of node: the types of its arguments and of its result, and how it prints."""

    takes: tuple[Type, ...]
    gives: Type
    commutative: bool = False
    infix: str = ""


def _real(count: int, *, commutative: bool = False, infix: str = "") -> Op:
    takes: list[Type] = ["f32"] * count
    return Op(tuple(takes), "f32", commutative, infix)


#: Every kind of node. `acc`, `operand` and `const` are leaves; `even` and `odd` are the two halves of `pair`.
OPS: dict[str, Op] = {
    "acc": _real(0),
    "operand": _real(0),
    "const": _real(0),
    "neg": _real(1),
    "abs": _real(1),
    "exp": _real(1),
    "log": _real(1),
    "sqrt": _real(1),
    "rsqrt": _real(1),
    "tanh": _real(1),
    "erf": _real(1),
    "normcdf": _real(1),
    "sigmoid": _real(1),
    "cast": _real(1),
    "even": _real(1),
    "odd": _real(1),
    "add": _real(2, commutative=True, infix="+"),
    "sub": _real(2, infix="-"),
    "mul": _real(2, commutative=True, infix="*"),
    "div": _real(2, infix="/"),
    "minimum": _real(2, commutative=True),
    "maximum": _real(2, commutative=True),
    "lt": Op(("f32", "f32"), "bool", infix="<"),
    "le": Op(("f32", "f32"), "bool", infix="<="),
    "eq": Op(("f32", "f32"), "bool", True, "=="),
    "ne": Op(("f32", "f32"), "bool", True, "!="),
    "and": Op(("bool", "bool"), "bool", True, "&"),
    "or": Op(("bool", "bool"), "bool", True, "|"),
    "not": Op(("bool",), "bool"),
    "where": Op(("bool", "f32", "f32"), "f32"),
}


@dataclass(frozen=True, slots=True)
class Node:
    """One operation on earlier nodes.

    `attr` is the operand's position for `operand`, the dtype's name for `cast`, and for `const` the value in
    hexadecimal (`float.hex`): text tells -0.0 from 0.0 and lets NaN equal itself, which `==` on floats does
    not.
    """

    op: str
    args: tuple[int, ...] = ()
    attr: str = ""

    @property
    def value(self) -> float:
        """The value of a `const` node; exact in fp32."""
        return float.fromhex(self.attr)


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """An operand: its parameter's name, its declared kind, and whether its N extent is N/2 (after a
    `pair`)."""

    name: str
    kind: Kind
    paired: bool = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output: its name, the node that computes it, and whether its N extent is N/2 (after a `pair`)."""

    name: str
    node: int
    paired: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """An epilogue as data. Equality and hash follow `identity`, so operand names do not take part in them.

    Built by `Builder.finish`; never by hand.
    """

    operands: tuple[OperandSpec, ...]
    outputs: tuple[OutputSpec, ...]
    nodes: tuple[Node, ...]
    identity: str = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def has_pair(self) -> bool:
        """Whether `pair` occurs, so that N has to be even and some extents are N/2."""
        return any(node.op in ("even", "odd") for node in self.nodes)

    def then(self, following: Graph) -> Graph:
        """`following` applied to this graph's primary output; the other outputs are carried along after it.

        Raises `EpilogueError` when an output's name occurs twice, or when the widths do not fit (two
        `pair`s).
        """
        return _composed((self, self._names), (following, following._names))

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.operands)

    def _then(self, following: Graph) -> Graph:
        builder = Builder()
        earlier = builder.replay(self, None, 0)
        primary, *carried = ((spec.name, earlier[spec.node]) for spec in self.outputs)
        later = builder.replay(following, primary[1], len(self.operands))
        last, *added = ((spec.name, later[spec.node]) for spec in following.outputs)
        names = _unique_names([spec.name for spec in (*self.operands, *following.operands)])
        kinds = [spec.kind for spec in (*self.operands, *following.operands)]
        return builder.finish(list(zip(names, kinds, strict=True)), [last, *carried, *added])

    def transposed(self) -> Graph:
        """The same function of the transposed problem: rows become columns and columns rows.

        Raises `EpilogueError` if the graph has a `pair`: its columns would have to be paired along M.
        """
        if self.has_pair:
            raise EpilogueError("an epilogue with pair() can't be transposed: it pairs columns of N, not rows of M")
        swap: dict[Kind, Kind] = {"row": "col", "col": "row", "tile": "tile", "scalar": "scalar"}
        builder = Builder()
        index = builder.replay(self, None, 0)
        return builder.finish(
            [(spec.name, swap[spec.kind]) for spec in self.operands],
            [(spec.name, index[spec.node]) for spec in self.outputs],
        )

    def describe(self) -> list[str]:
        """A listing, one line a computed node: `str(graph)` joins it."""
        return _listing(self)

    def __str__(self) -> str:
        return "\n".join(self.describe())


class Builder:
    """Collects nodes, each distinct one once, and closes them into a `Graph`."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._digests: list[bytes] = []
        self._index: dict[Node, int] = {}

    def add(self, op: str, args: Iterable[int] = (), attr: str = "") -> int:
        """The index of this operation on these nodes. Raises `EpilogueError` for arguments of the wrong
        type."""
        arguments = tuple(args)
        rule = OPS[op]
        for arg, wanted in zip(arguments, rule.takes, strict=True):
            if OPS[self.nodes[arg].op].gives != wanted:
                raise EpilogueError(
                    f"{op} takes numbers, and got a comparison: use where(condition, x, y) to choose by one"
                    if wanted == "f32"
                    else f"{op} takes comparisons (x < y, x == y …), and got a number"
                )
        if rule.commutative:
            arguments = tuple(sorted(arguments, key=self._digests.__getitem__))
        node = Node(op, arguments, attr)
        if (found := self._index.get(node)) is not None:
            return found
        text = f"{op}:{attr}:".encode()
        self._digests.append(hashlib.sha256(text + b"".join(self._digests[a] for a in arguments)).digest())
        self.nodes.append(node)
        self._index[node] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def constant(self, value: SupportsFloat) -> int:
        """A constant, rounded to fp32: integers and floats of one value are one constant, -0.0 and 0.0 are
        two.

        Raises `EpilogueError` for a finite value beyond fp32's range.
        """
        try:
            rounded = _round_to_fp32(value)
        except OverflowError:
            raise EpilogueError(f"the constant {value!r} is beyond fp32's range (about 3.4e38)") from None
        return self.add("const", attr=rounded.hex())

    def cast(self, arg: int, dtype: str) -> int:
        """A rounding to `dtype`; rounding to fp32 is no operation, for values are fp32 already.

        Raises `DTypeError` for an unknown name and `EpilogueError` for a dtype that `cast` does not serve.
        """
        name = dtypes.lookup(dtype).name
        if OPS[self.nodes[arg].op].gives == "f32" and name == "fp32":
            return arg
        if name not in CAST_DTYPES:
            raise EpilogueError(f"cast to {name} is not served: expected one of {', '.join(CAST_DTYPES)}, fp32")
        return self.add("cast", (arg,), name)

    def replay(self, graph: Graph, acc: int | None, first_operand: int) -> list[int]:
        """Add all nodes of `graph`, its accumulator replaced by node `acc`, its operands numbered from
        `first_operand`."""
        index: list[int] = []
        for node in graph.nodes:
            if node.op == "acc" and acc is not None:
                index.append(acc)
            elif node.op == "operand":
                index.append(self.add("operand", attr=str(int(node.attr) + first_operand)))
            else:
                index.append(self.add(node.op, (index[a] for a in node.args), node.attr))
        return index

    def finish(self, operands: Sequence[tuple[str, Kind]], outputs: Sequence[tuple[str, int]]) -> Graph:
        """The canonical graph with these operands (name, kind) and outputs (name, node), the primary output
        first.

        Raises `EpilogueError` for an operand or accumulator that reaches no output, a bad or repeated output
        name, an output that is a comparison, and for operations that mix values of width N and N/2.
        """
        _check_names([name for name, _ in outputs])
        for name, output in outputs:
            if OPS[self.nodes[output].op].gives != "f32":
                raise EpilogueError(f"output {name!r} is a comparison: use where(condition, x, y) to make it a number")
        order = self._reachable([output for _, output in outputs])
        position = {old: new for new, old in enumerate(order)}
        nodes = tuple(
            Node(n.op, tuple(position[a] for a in n.args), n.attr) for n in (self.nodes[old] for old in order)
        )
        _check_used(nodes, operands)
        widths = _paired_nodes(nodes, [kind for _, kind in operands])
        used = {int(node.attr): widths[i] for i, node in enumerate(nodes) if node.op == "operand"}
        operand_specs = tuple(OperandSpec(name, kind, used[i]) for i, (name, kind) in enumerate(operands))
        output_specs = tuple(OutputSpec(name, position[out], widths[position[out]]) for name, out in outputs)
        return Graph(operand_specs, output_specs, nodes, _identity(operand_specs, output_specs, nodes))

    def _reachable(self, roots: Sequence[int]) -> list[int]:
        """Nodes below `roots`, arguments before uses, in depth-first order. Iterative: graphs may be deep."""
        order: dict[int, None] = {}
        stack = [(root, False) for root in reversed(roots)]
        while stack:
            node, arguments_done = stack.pop()
            if node in order:
                continue
            if arguments_done:
                order[node] = None
            else:
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(self.nodes[node].args))
        return list(order)


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise EpilogueError("an epilogue needs at least one output")
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise EpilogueError(f"output name {name!r} can't be a NamedTuple's field: expected a plain identifier")
        if names.count(name) > 1:
            raise EpilogueError(f"two outputs are called {name!r}: rename one")


def _check_used(nodes: Sequence[Node], operands: Sequence[tuple[str, Kind]]) -> None:
    used = {int(node.attr) for node in nodes if node.op == "operand"}
    for i, (name, kind) in enumerate(operands):
        if i not in used:
            raise EpilogueError(f"operand {name!r} ({kind}) reaches no output: remove the parameter or use it")
    if all(node.op != "acc" for node in nodes):
        raise EpilogueError("no output depends on the accumulator: nothing of A @ B would be kept")


def _paired_nodes(nodes: Sequence[Node], kinds: Sequence[Kind]) -> list[bool]:
    """For each node, whether its N extent is N/2.

    Row and Tile operands have the width of whatever they are combined with; constants, scalars and columns do
    not vary along N and fit both. So nodes that meet in one operation share a class, and a class has one
    width.
    """
    parent = list(range(len(nodes)))
    paired: dict[int, bool] = {}
    varies: list[bool] = []

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def settle(i: int, width: bool, op: str) -> None:
        if paired.setdefault(find(i), width) != width:
            raise EpilogueError(
                f"{op} mixes values of width N with values of width N/2 (after pair): split both, or neither"
                if op not in ("even", "odd")
                else "pair of a value that has width N/2 already: a value can be split once"
            )

    def merge(i: int, j: int, op: str) -> None:
        if find(i) in paired:
            settle(j, paired[find(i)], op)
        parent[find(i)] = find(j)

    for i, node in enumerate(nodes):
        varying = [a for a in node.args if varies[a]]
        splits = node.op in ("even", "odd")
        if node.op == "operand":
            varies.append(kinds[int(node.attr)] in ("row", "tile"))
        else:
            varies.append(node.op == "acc" or bool(varying))
        if splits and not varying:
            raise EpilogueError("pair of a value that does not vary along N: there is nothing to split")
        for arg in varying:
            if splits:
                settle(arg, False, node.op)
            else:
                merge(arg, i, node.op)
        if splits or node.op == "acc":
            settle(i, splits, node.op)
    return [paired.get(find(i), False) for i in range(len(nodes))]


def _identity(operands: Sequence[OperandSpec], outputs: Sequence[OutputSpec], nodes: Sequence[Node]) -> str:
    lines = ["graph 1"]
    lines += [f"operand {spec.kind} {spec.paired:d}" for spec in operands]
    lines += [f"{node.op} {node.attr} {' '.join(map(str, node.args))}" for node in nodes]
    lines += [f"output {spec.name} {spec.node} {spec.paired:d}" for spec in outputs]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _unique_names(names: Sequence[str]) -> list[str]:
    """`names` with `_2`, `_3` … added where one occurs again, as in `bias(v) >> relu >> bias(w)`."""
    taken: set[str] = set()
    result: list[str] = []
    for name in names:
        candidate, count = name, 1
        while candidate in taken or (candidate != name and candidate in names):
            count += 1
            candidate = f"{name}_{count}"
        taken.add(candidate)
        result.append(candidate)
    return result


def _round_to_fp32(value: SupportsFloat) -> float:
    """`value` rounded to fp32; raises `OverflowError` for a finite value that would become infinite."""
    return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def _shortest(value: float) -> str:
    """A short decimal that reads back as the fp32 number `value`."""
    for digits in range(1, 9):
        text = f"{value:.{digits}g}"
        with contextlib.suppress(OverflowError):
            if _round_to_fp32(float(text)) == value:
                return text
    return f"{value:.9g}"


def _listing(graph: Graph) -> list[str]:
    kinds = [f"{spec.name}: {spec.kind.capitalize()}{'[N/2]' * spec.paired}" for spec in graph.operands]
    results = [f"{spec.name}{'[N/2]' * spec.paired}" for spec in graph.outputs]
    lines = [f"({', '.join(['acc', *kinds])}) -> {', '.join(results)}"]
    names: list[str] = []
    count = 0
    for node in graph.nodes:
        if node.op == "acc":
            names.append("acc")
        elif node.op == "operand":
            names.append(graph.operands[int(node.attr)].name)
        elif node.op == "const":
            names.append(_shortest(node.value))
        else:
            arguments = [names[a] for a in node.args] + [node.attr] * bool(node.attr)
            infix = OPS[node.op].infix
            text = f" {infix} ".join(arguments) if infix else f"{node.op}({', '.join(arguments)})"
            names.append(f"t{count}")
            lines.append(f"  t{count} = {text}")
            count += 1
    lines += [f"  {spec.name} = {names[spec.node]}" for spec in graph.outputs]
    return lines


def _identity_graph() -> Graph:
    builder = Builder()
    return builder.finish([], [("out", builder.add("acc"))])


#: D = acc: the graph of a call without an epilogue.
IDENTITY = _identity_graph()


@functools.lru_cache(maxsize=1024)
def _composed(first: tuple[Graph, tuple[str, ...]], following: tuple[Graph, tuple[str, ...]]) -> Graph:
    """`first.then(following)`: callers compose anew on every call. Equal graphs may name their operands differently."""
    return first[0]._then(following[0])
