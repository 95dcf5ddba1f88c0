"""A graph as JSON-serialisable data and back: a recorded call needs none of the Python that made its epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cutegemm.errors import DTypeError, EpilogueError
from cutegemm.fusion.graph import OPS, Builder, Graph

KINDS = ("row", "col", "tile", "scalar")
T = TypeVar("T")


def to_data(graph: Graph) -> dict[str, Any]:
    """`graph` as dicts, lists, text and numbers."""
    return {
        "identity": graph.identity,
        "operands": [[spec.name, spec.kind] for spec in graph.operands],
        "nodes": [[node.op, list(node.args), node.attr] for node in graph.nodes],
        "outputs": [[spec.name, spec.node] for spec in graph.outputs],
    }


def from_data(data: Any) -> Graph:
    """The graph that `to_data` made `data` of, built and checked anew.

    Raises `EpilogueError` for data of another form, for what no graph can hold, and where the result is not the graph
    that the data names by its identity.
    """
    if not isinstance(data, dict) or data.keys() != {"identity", "operands", "nodes", "outputs"}:
        raise EpilogueError("an epilogue's graph needs identity, operands, nodes and outputs, and nothing else")
    operands = _each(data["operands"], "operand", _operand)
    builder = Builder()
    index: list[int] = []
    for op, arguments, attr in _each(data["nodes"], "node", _node):
        if not all(argument in range(len(index)) for argument in arguments):
            raise EpilogueError(f"node {len(index)} ({op}) takes {arguments}: expected nodes before it")
        if op == "operand" and attr not in map(str, range(len(operands))):
            raise EpilogueError(f"node {len(index)} is operand {attr!r}: there are {len(operands)}")
        index.append(_add(builder, op, [index[argument] for argument in arguments], attr))
    outputs = _each(data["outputs"], "output", _output)
    for name, node in outputs:
        if node not in range(len(index)):
            raise EpilogueError(f"output {name!r} is node {node}: there are {len(index)}")
    graph = builder.finish(operands, [(name, index[node]) for name, node in outputs])
    if graph.identity != data["identity"]:
        raise EpilogueError(f"the graph's identity is {graph.identity}, and the data says {data['identity']!r}")
    return graph


def _add(builder: Builder, op: str, arguments: Sequence[int], attr: str) -> int:
    if op == "const":
        try:
            return builder.constant(float.fromhex(attr))
        except (ValueError, OverflowError):
            raise EpilogueError(f"the constant {attr!r} is not a hexadecimal float") from None
    if op == "cast":
        try:
            return builder.cast(arguments[0], attr)
        except DTypeError as error:
            raise EpilogueError(str(error)) from None
    return builder.add(op, arguments, attr)


def _each(items: Any, what: str, read: Callable[..., T]) -> list[T]:
    if not isinstance(items, list):
        raise EpilogueError(f"{what}s: expected a list, got {items!r}")
    result = []
    for item in items:
        try:
            result.append(read(*item))
        except (TypeError, ValueError):
            raise EpilogueError(f"{what} {item!r} of a graph is not well-formed") from None
    return result


def _operand(name: Any, kind: Any) -> tuple[str, Any]:
    if not isinstance(name, str) or kind not in KINDS:
        raise ValueError
    return name, kind


def _output(name: Any, node: Any) -> tuple[str, int]:
    if not isinstance(name, str) or type(node) is not int:
        raise ValueError
    return name, node


def _node(op: Any, arguments: Any, attr: Any) -> tuple[str, list[int], str]:
    known = op in OPS and isinstance(attr, str) and isinstance(arguments, list)
    if not known or len(arguments) != len(OPS[op].takes) or not all(type(a) is int for a in arguments):
        raise ValueError
    if attr and op not in ("operand", "const", "cast"):
        raise ValueError
    return op, arguments, attr
