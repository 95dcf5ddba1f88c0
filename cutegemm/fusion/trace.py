"""Tracing: an epilogue's Python function runs once, on values that record what is done to them.

`@epilogue` builds the graph when the function is defined. Whatever a graph can't hold (a branch on a value,
`math` or torch functions, captured tensors, an operand without a kind) is refused there and then, naming the
operation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NoReturn

from cutegemm.errors import EpilogueError
from cutegemm.fusion.graph import OPS, Builder, Graph, Kind

#: numpy's names of the operators, and whether to swap sides: `numpy.float64(2) * acc` asks numpy first.
_UFUNCS = {
    "add": ("add", False),
    "subtract": ("sub", False),
    "multiply": ("mul", False),
    "divide": ("div", False),
    "less": ("lt", False),
    "less_equal": ("le", False),
    "greater": ("lt", True),
    "greater_equal": ("le", True),
    "equal": ("eq", False),
    "not_equal": ("ne", False),
}


class Value:
    """A value of an epilogue while it is traced: an fp32 number of every element, or a comparison's result.

    Numbers take `+ - * /`, unary `-`, `abs`, `** 2`, `** 3`, and comparisons; comparisons combine with `&`,
    `|`, `~` and choose in `ops.where`. Python numbers mix in as fp32 constants. Everything else raises
    `EpilogueError`.
    """

    __slots__ = ("_builder", "_index")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, builder: Builder, index: int) -> None:
        self._builder = builder
        self._index = index

    def __add__(self, other: Value | float) -> Value:
        return apply("add", self, other)

    def __radd__(self, other: float) -> Value:
        return apply("add", other, self)

    def __sub__(self, other: Value | float) -> Value:
        return apply("sub", self, other)

    def __rsub__(self, other: float) -> Value:
        return apply("sub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return apply("mul", self, other)

    def __rmul__(self, other: float) -> Value:
        return apply("mul", other, self)

    def __truediv__(self, other: Value | float) -> Value:
        return apply("div", self, other)

    def __rtruediv__(self, other: float) -> Value:
        return apply("div", other, self)

    def __neg__(self) -> Value:
        return apply("neg", self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return apply("abs", self)

    def __pow__(self, exponent: int) -> Value:
        if isinstance(exponent, int | float) and exponent in (2, 3):
            return self * self if exponent == 2 else self * self * self
        raise EpilogueError(f"** {exponent!r} on a traced value: only ** 2 and ** 3 are served (ops has sqrt and exp)")

    def __lt__(self, other: Value | float) -> Value:
        return apply("lt", self, other)

    def __le__(self, other: Value | float) -> Value:
        return apply("le", self, other)

    def __gt__(self, other: Value | float) -> Value:
        return apply("lt", other, self)

    def __ge__(self, other: Value | float) -> Value:
        return apply("le", other, self)

    def __eq__(self, other: Value | float) -> Value:  # type: ignore[override]
        return apply("eq", self, other)

    def __ne__(self, other: Value | float) -> Value:  # type: ignore[override]
        return apply("ne", self, other)

    def __and__(self, other: Value) -> Value:
        return apply("and", self, other)

    def __or__(self, other: Value) -> Value:
        return apply("or", self, other)

    def __invert__(self) -> Value:
        return apply("not", self)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise EpilogueError(f".{name} on a traced value: it has operators only; functions are in cutegemm.ops")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Value:
        if ufunc.__name__ not in _UFUNCS or method != "__call__" or kwargs:
            raise EpilogueError(f"numpy.{ufunc.__name__} on a traced value: {_instead(ufunc.__name__)}")
        op, swap = _UFUNCS[ufunc.__name__]
        # A numpy scalar in a comparison arrives as an array without dimensions.
        left, right = (x if isinstance(x, Value) or getattr(x, "shape", None) != () else x.item() for x in inputs)
        return apply(op, right, left) if swap else apply(op, left, right)

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise EpilogueError(f"numpy.{function.__name__} on a traced value: {_instead(function.__name__)}")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> NoReturn:
        name = getattr(function, "__name__", str(function))
        raise EpilogueError(
            f"torch's {name} on a traced value: {_instead(name)}; "
            "a tensor has to be an operand (Row, Col, Tile or Scalar), not captured"
        )


class Row(Value):
    """Kind of an operand of shape (N,) or (*batch, N): one number a column (N/2 of them after a `pair`)."""


class Col(Value):
    """Kind of an operand of shape (M,) or (*batch, M): one number a row."""


class Tile(Value):
    """Kind of an operand of shape (…, M, N): one number an element (width N/2 after a `pair`)."""


class Scalar(Value):
    """Kind of an operand that is one run-time number: a float, or a 0-d tensor on the device."""


_KINDS: dict[str, tuple[type[Value], Kind]] = {
    "Row": (Row, "row"),
    "Col": (Col, "col"),
    "Tile": (Tile, "tile"),
    "Scalar": (Scalar, "scalar"),
}
_BY_KIND = {kind: cls for cls, kind in _KINDS.values()}


def _instead(name: str) -> str:
    return f"use cutegemm.ops.{name}" if name in OPS else "use operators and cutegemm.ops"


def _refuse(method: str, what: str) -> None:
    def refuse(self: Value, *_: Any) -> NoReturn:
        raise EpilogueError(f"{what}: an epilogue is traced once and can't look at values")

    setattr(Value, method, refuse)


for _method, _what in {
    "__bool__": "truth of a traced value (if, and, or, not, min, max, a < b < c); use ops.where and & | ~",
    "__float__": "float() of a traced value (math functions call it); use cutegemm.ops",
    "__int__": "int() of a traced value",
    "__index__": "a traced value as an index",
    "__complex__": "complex() of a traced value",
    "__round__": "round() of a traced value",
    "__trunc__": "math.trunc of a traced value",
    "__floor__": "math.floor of a traced value",
    "__ceil__": "math.ceil of a traced value",
    "__len__": "len() of a traced value",
    "__iter__": "iteration over a traced value",
    "__contains__": "`in` a traced value",
    "__getitem__": "indexing [] a traced value",
    "__setitem__": "assignment to an element of a traced value",
    "__mod__": "% on a traced value",
    "__rmod__": "% on a traced value",
    "__floordiv__": "// on a traced value",
    "__rfloordiv__": "// on a traced value",
    "__divmod__": "divmod of a traced value",
    "__rdivmod__": "divmod of a traced value",
    "__matmul__": "@ on a traced value",
    "__rmatmul__": "@ on a traced value",
    "__lshift__": "<< on a traced value",
    "__rlshift__": "<< on a traced value",
    "__rshift__": ">> on a traced value (it composes epilogues, outside of their bodies)",
    "__rrshift__": ">> on a traced value (it composes epilogues, outside of their bodies)",
    "__xor__": "^ on a traced value",
    "__rxor__": "^ on a traced value",
    "__rpow__": "** by a traced value; use ops.exp",
    "__array__": "a traced value as a numpy array",
}.items():
    _refuse(_method, _what)


def apply(op: str, *args: Value | float, attr: str = "") -> Value:
    """Record the operation `op` on traced values and Python numbers; one argument at least is a traced value.

    Raises `EpilogueError` for anything else (a captured tensor, a bool, a value of another epilogue).
    """
    builder = next((arg._builder for arg in args if isinstance(arg, Value)), None)
    if builder is None:
        given = ", ".join(type(arg).__name__ for arg in args)
        raise EpilogueError(f"{op} outside of an epilogue's body: expected a traced value, got {given}")
    indices = [_index_of(arg, builder, op) for arg in args]
    return Value(builder, builder.cast(indices[0], attr) if op == "cast" else builder.add(op, indices, attr))


def _index_of(arg: Any, builder: Builder, op: str) -> int:
    if isinstance(arg, Value):
        if arg._builder is not builder:
            raise EpilogueError(f"{op} on a value that belongs to another epilogue: pass it as an operand")
        return arg._index
    if isinstance(arg, Real) and not isinstance(arg, bool):
        return builder.constant(arg)
    if hasattr(arg, "dtype") and hasattr(arg, "shape"):
        raise EpilogueError(f"{op} on a captured {type(arg).__name__}: make it an operand (Row, Col, Tile or Scalar)")
    raise EpilogueError(f"{op} on a {type(arg).__name__} ({arg!r}): expected a traced value or a number")


class Epilogue:
    """A traced epilogue whose operands are not bound yet: `f(v)` or `f(bias=v)` binds them, `f >> g`
    composes.

    `name`, `graph`, `defaults` (of Scalar operands) and the function's `__doc__` and `__module__` are kept;
    the function is not, so an epilogue can be pickled.
    """

    def __init__(self, name: str, graph: Graph, defaults: Mapping[str, float], doc: str | None, module: str) -> None:
        self.name = name
        self.graph = graph
        self.defaults = dict(defaults)
        self.__doc__ = doc
        self.__module__ = module

    @property
    def signature(self) -> str:
        """How it is called, as text: `leaky_relu(slope: Scalar = 0.01)`."""
        parts = [
            f"{spec.name}: {spec.kind.capitalize()}"
            + (f" = {self.defaults[spec.name]:g}" if spec.name in self.defaults else "")
            for spec in self.graph.operands
        ]
        return f"{self.name}({', '.join(parts)})"

    def __call__(self, *args: Any, **kwargs: Any) -> BoundEpilogue:
        """Bind operands by position or name. Raises `EpilogueError` for missing, unknown or impossible
        ones."""
        specs = self.graph.operands
        if len(args) > len(specs):
            raise EpilogueError(f"{self.signature} takes {len(specs)} operands, got {len(args)}")
        given = dict(zip((spec.name for spec in specs), args, strict=False))
        for name, operand in kwargs.items():
            if name in given:
                raise EpilogueError(f"{self.signature}: operand {name!r} is given twice")
            given[name] = operand
        if unknown := [name for name in given if name not in {spec.name for spec in specs}]:
            raise EpilogueError(f"{self.signature} has no operand {unknown[0]!r}")
        bound = {**self.defaults, **given}
        if missing := [spec.name for spec in specs if spec.name not in bound]:
            raise EpilogueError(f"{self.signature}: operand {missing[0]!r} is not given")
        for spec in specs:
            _check_operand(f"{self.name}: operand {spec.name!r}", spec.kind, bound[spec.name])
        return BoundEpilogue(self.graph, tuple(bound[spec.name] for spec in specs))

    def __rshift__(self, following: Epilogue | BoundEpilogue) -> BoundEpilogue:
        return self() >> following

    def __repr__(self) -> str:
        return f"<epilogue {self.signature}>"


@dataclass(frozen=True, slots=True, eq=False)
class BoundEpilogue:
    """A graph and its operands, in the graph's order: what `gemm` takes. `f >> g` applies g to f's primary
    output."""

    graph: Graph
    operands: tuple[Any, ...]

    def __rshift__(self, following: Epilogue | BoundEpilogue) -> BoundEpilogue:
        other = as_bound(following)
        return BoundEpilogue(self.graph.then(other.graph), self.operands + other.operands)

    def __repr__(self) -> str:
        return f"<bound epilogue {self.graph.describe()[0]}>"


def as_bound(candidate: object) -> BoundEpilogue:
    """`candidate` as a bound epilogue; an `Epilogue` that needs no operand binds itself.

    Raises `EpilogueError` for an unbound operand and for anything that is not an epilogue.
    """
    if isinstance(candidate, BoundEpilogue):
        return candidate
    if isinstance(candidate, Epilogue):
        return candidate()
    hint = "decorate it with @cutegemm.epilogue" if callable(candidate) else "expected an epilogue"
    raise EpilogueError(f"{candidate!r} is not an epilogue: {hint}")


def _check_operand(what: str, kind: Kind, operand: Any) -> None:
    if isinstance(operand, Value):
        raise EpilogueError(f"{what} is a traced value: epilogues compose with >>; bodies use cutegemm.ops")
    is_number = isinstance(operand, Real) and not isinstance(operand, bool)
    is_tensor = hasattr(operand, "dtype") and hasattr(operand, "shape")
    if kind == "scalar":
        if not is_number and not (is_tensor and len(operand.shape) == 0):
            raise EpilogueError(f"{what} is a Scalar: expected a number or a 0-d tensor, got {_summary(operand)}")
    elif not is_tensor:
        raise EpilogueError(f"{what} is a {kind.capitalize()}: expected a tensor, got {_summary(operand)}")


def _summary(operand: Any) -> str:
    shape = getattr(operand, "shape", None)
    return f"{type(operand).__name__} {operand!r}" if shape is None else f"a tensor of shape {tuple(shape)}"


def epilogue(function: Callable[..., Any]) -> Epilogue:
    """Trace `function(acc, operands…)` into an `Epilogue`.

    Every parameter after the first is an operand, annotated `Row`, `Col`, `Tile` or `Scalar`; a `Scalar` may
    have a number as its default. The body uses operators and `cutegemm.ops` and returns one value (an output
    named "out"), or a dict of name to value, the first being the primary output: the one that `>>` continues
    from.

    Raises `EpilogueError` (a `TypeError`), naming the operation, for what a graph can't hold;
    `NotAvailableError` for an operation that this version does not serve yet.
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        kinds, defaults = _parameters(function)
        builder = Builder()
        acc = Value(builder, builder.add("acc"))
        operands = {
            parameter: _BY_KIND[kind](builder, builder.add("operand", attr=str(i)))
            for i, (parameter, kind) in enumerate(kinds)
        }
        outputs = _outputs(function(acc, **operands), builder)
        graph = builder.finish(kinds, outputs)
    except EpilogueError as error:
        raise EpilogueError(f"epilogue {name!r}: {error}") from error
    return Epilogue(name, graph, defaults, function.__doc__, function.__module__)


def _parameters(function: Callable[..., Any]) -> tuple[list[tuple[str, Kind]], dict[str, float]]:
    """The operands' names and kinds, and the Scalars' defaults."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise EpilogueError("expected the accumulator as the first parameter, got no parameter")
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise EpilogueError(f"parameter {p.name!r} stands for any number of operands: name each one")
    first, *rest = parameters
    if first.kind is first.KEYWORD_ONLY or first.default is not first.empty:
        raise EpilogueError(f"the first parameter, {first.name!r}, is the accumulator: expected a plain parameter")
    kinds: list[tuple[str, Kind]] = []
    defaults: dict[str, float] = {}
    for p in rest:
        if p.kind is p.POSITIONAL_ONLY:
            raise EpilogueError(f"operand {p.name!r} is positional-only: operands are bound by name too")
        kind = _kind(p.annotation, function)
        if kind is None:
            shown = "no annotation" if p.annotation is p.empty else f"the annotation {p.annotation!r}"
            raise EpilogueError(f"operand {p.name!r} has {shown}: expected Row, Col, Tile or Scalar")
        kinds.append((p.name, kind))
        if p.default is not p.empty:
            if kind != "scalar" or not isinstance(p.default, Real) or isinstance(p.default, bool):
                raise EpilogueError(
                    f"operand {p.name!r} has the default {p.default!r}: only a Scalar has one, a number"
                )
            defaults[p.name] = float(p.default)
    return kinds, defaults


def _kind(annotation: Any, function: Callable[..., Any]) -> Kind | None:
    """The declared kind, also when `from __future__ import annotations` made it text."""
    if isinstance(annotation, str):
        # A name that can't be evaluated (imported inside an enclosing function, say) still ends in its kind.
        scope = {**getattr(function, "__globals__", {}), **inspect.getclosurevars(function).nonlocals}
        last = annotation.strip("'\"").rpartition(".")[2]
        annotation = scope.get(annotation.strip("'\""), _KINDS[last][0] if last in _KINDS else None)
    return next((kind for cls, kind in _KINDS.values() if annotation is cls), None)


def _outputs(returned: Any, builder: Builder) -> Sequence[tuple[str, int]]:
    if isinstance(returned, Value):
        returned = {"out": returned}
    if not isinstance(returned, dict) or not returned:
        raise EpilogueError(
            f"the body returned {type(returned).__name__} ({returned!r}): "
            "expected one value, or a dict of name to value"
        )
    for name, value in returned.items():
        if not isinstance(name, str):
            raise EpilogueError(f"output name {name!r} is a {type(name).__name__}: expected text")
        if not isinstance(value, Value):
            raise EpilogueError(f"output {name!r} is a {type(value).__name__} ({value!r}): expected a traced value")
    return [(name, _index_of(value, builder, f"output {name!r}")) for name, value in returned.items()]
