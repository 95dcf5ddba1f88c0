"""The problems that a bundle is built for, as a TOML file:

```toml
schema = 1

[[problem]]
m = "1..512"                      # an int, "lo..hi" or "lo..hi step s" (ends included), or several: "1..64, 96"
n = 14336
k = 4096
epilogue = ["none", "bias_gelu"]  # one of `cutegemm epilogues`, several composed with >>, or a list; default "none"
```
Other keys are `plan`'s arguments, with its defaults: `dtype`, `out_dtype`, `layout`, `batch`, `align`, `kernel`,
`precision`; and `name`, by which a C library calls the problem's function (of a list of epilogues, each with its own
name after it).
"""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cutegemm.compiler.c_source import NAME
from cutegemm.dtypes import lookup as lookup_dtype
from cutegemm.errors import ArgumentError, CuteGemmError
from cutegemm.fusion import IDENTITY, Graph
from cutegemm.fusion.registry import lookup, registered
from cutegemm.planner import contiguous_problem
from cutegemm.planner.pin import parse_pin
from cutegemm.problem import STRICT, Problem
from cutegemm.recording import Recorded

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1
MOST_M = 1 << 16  # values of M in one problem: more is a slip of the pen

_REQUIRED = ("m", "n", "k")
_DEFAULTS: dict[str, Any] = {
    "dtype": "bf16",
    "out_dtype": None,
    "layout": "nt",
    "batch": 1,
    "align": 16,
    "precision": None,
}
_KEYS = (*_REQUIRED, *_DEFAULTS, "epilogue", "kernel", "name")
_TEXT = ("dtype", "out_dtype", "layout", "kernel", "name", "precision")
_RANGE = re.compile(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*(?:step\s+(\d+)\s*)?)?")


class Wanted(NamedTuple):
    """A problem to have a kernel for. `label` describes it but for its M; `kernel` is a `kernel=` string, if any, and
    `name` what C code calls it, if it is to."""

    problem: Problem
    kernel: str | None
    label: str
    name: str | None = None


def read(path: Path) -> list[Wanted]:
    """The problems in a spec file, in order.

    Raises `ArgumentError`, or the planner's own error, naming the file, the problem by its number, and the key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"the spec {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"the spec {path} is not TOML: {error}") from None
    _check_keys(str(path), data, ("schema", "problem"))
    if data.get("schema") != SCHEMA or isinstance(data["schema"], bool):
        raise ArgumentError(f"{path}: schema={data.get('schema')!r}: this cutegemm reads schema = {SCHEMA}")
    problems = data.get("problem")
    if not isinstance(problems, list) or not problems or not all(isinstance(p, dict) for p in problems):
        raise ArgumentError(f"{path}: expected one [[problem]] table or more")
    wanted: list[Wanted] = []
    for number, problem in enumerate(problems, 1):
        where = f"{path}, problem {number}"
        _check_keys(where, problem, _KEYS)
        try:
            wanted += _expand(problem)
        except CuteGemmError as error:
            raise type(error)(f"{where}: {error}") from None
    return wanted


def recorded(calls: Iterable[Recorded]) -> list[Wanted]:
    """The problems of a recorded run."""
    return [Wanted(problem, kernel, label(problem, kernel)) for problem, kernel in calls]


def _check_keys(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArgumentError(f"{where}: unknown key {key!r}: {hint}known are {', '.join(known)}")


def _expand(table: Mapping[str, Any]) -> Iterator[Wanted]:
    for key in _REQUIRED:
        if key not in table:
            raise ArgumentError(f"{key} is missing")
    for key in _TEXT:
        if key in table and not isinstance(table[key], str):
            raise ArgumentError(f"{key}={table[key]!r}: expected text")
    kernel = table.get("kernel")
    if kernel is not None:
        parse_pin(kernel)
    sizes = values_of_m(table["m"])
    arguments = {key: table.get(key, default) for key, default in _DEFAULTS.items()}
    arguments |= {"n": table["n"], "k": table["k"]}
    names = _names(table.get("epilogue", "none"))
    for name in names:
        graph = _graph(name)
        text = _label({**arguments, "epilogue": name, "kernel": kernel})
        function = table.get("name")
        if function is not None and not NAME.fullmatch(function):
            raise ArgumentError(f"name={function!r}: expected ASCII letters, digits and underscores")
        if function is not None and len(names) > 1:
            function = "_".join((function, *re.findall(r"\w+", name)))
        for m in sizes:
            yield Wanted(contiguous_problem(m, epilogue=graph, **arguments), kernel, text, function)


def values_of_m(given: Any) -> list[int]:
    """Every M that a spec file's `m` means, sorted. Raises `ArgumentError`."""
    values: set[int] = set()
    listed = given if isinstance(given, list) and given else [given]
    for item in [part for x in listed for part in (x.split(",") if isinstance(x, str) else [x])]:
        match = _RANGE.fullmatch(item) if isinstance(item, str) else None
        if match is not None:
            low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            if low > high or step < 1:
                raise ArgumentError(f"m={item!r}: expected lo..hi with lo at most hi, and a step of at least 1")
            if (high - low) // step >= MOST_M:
                raise ArgumentError(f"m={item!r}: expected at most {MOST_M} values; give a step")
            values.update(range(low, high + 1, step))
        elif isinstance(item, int) and not isinstance(item, bool):
            values.add(item)
        else:
            raise ArgumentError(f"m={item!r}: expected an int, 'lo..hi', 'lo..hi step s', or several of these")
    if len(values) > MOST_M:
        raise ArgumentError(f"m means {len(values)} values: expected at most {MOST_M}")
    return sorted(values)


def ranges(values: Iterable[int]) -> str:
    """Values of M as a spec file has them: "1..64, 128..512 step 64"."""
    rest, parts = sorted(values), []
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        count = 1
        while count < len(rest) and rest[count] - rest[count - 1] == step:
            count += 1
        if count > 2:
            parts.append(f"{rest[0]}..{rest[count - 1]}{f' step {step}' if step > 1 else ''}")
        else:
            count = 1
            parts.append(str(rest[0]))
        rest = rest[count:]
    return ", ".join(parts)


def _names(given: Any) -> list[str]:
    names = given if isinstance(given, list) and given else [given]
    for name in names:
        if not isinstance(name, str):
            raise ArgumentError(f"epilogue={name!r}: expected 'none', a registered name, or a list of these")
    return names


def _graph(name: str) -> Graph:
    if name == "none":
        return IDENTITY
    parts = [lookup(part.strip()).graph for part in name.split(">>")]
    return functools.reduce(Graph.then, parts)


def label(problem: Problem, kernel: str | None) -> str:
    """A problem but for its M, in a line."""
    arguments = _arguments(problem)
    if arguments is not None:
        return _label({**arguments, "kernel": kernel})
    s = problem.signature
    tensors = [("a", s.a), ("b", s.b), ("c", s.c), *(("out", x) for x in s.outputs)]
    touched = " ".join(f"{name} {x.dtype}/{x.major}/{x.align}" for name, x in tensors if x is not None)
    text = f"n {problem.n} k {problem.k} batch {problem.batch} {touched} epilogue {s.epilogue.identity[:12]}"
    text = text if s.precision is None else f"{text} precision {s.precision}"
    return text if kernel is None else f"{text} kernel {kernel}"


def _label(arguments: Mapping[str, Any]) -> str:
    parts = [f"n {arguments['n']} k {arguments['k']}", *(arguments[key] for key in ("dtype", "layout", "epilogue"))]
    if (out_dtype := arguments["out_dtype"]) not in (None, arguments["dtype"]):
        parts.append(f"out_dtype {out_dtype}")
    parts += [f"{key} {arguments[key]}" for key in ("batch", "align") if arguments[key] != _DEFAULTS[key]]
    if lookup_dtype(arguments["dtype"]).name == "fp32":
        parts.append(f"precision {arguments['precision'] or STRICT}")
    if arguments.get("kernel") is not None:
        parts.append(f"kernel {arguments['kernel']}")
    return " ".join(parts)


def to_build(problem: Problem, kernel: str | None) -> str:
    """What to do so that `cutegemm build` makes a kernel for `problem`: lines for its spec, where a spec can say it."""
    arguments = _arguments(problem)
    if arguments is None:
        return (
            "To build it ahead of time, record the call with CUTEGEMM_LOG=FILE, which works where nothing may be "
            "compiled too, and give FILE to `cutegemm build --from-log`."
        )
    usual = {**_DEFAULTS, "out_dtype": problem.signature.a.dtype, "epilogue": "none", "kernel": None}
    if problem.signature.precision is not None:
        usual["precision"] = STRICT
    given = {"m": problem.m, **arguments, "kernel": kernel}
    lines = [
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
        for key, value in given.items()
        if key in _REQUIRED or value != usual[key]
    ]
    return "\n".join(("To build it ahead of time, add to the spec of `cutegemm build`:", "[[problem]]", *lines))


def _arguments(problem: Problem) -> dict[str, Any] | None:
    """The arguments of `contiguous_problem` that make `problem`, its M left out; None where none do."""
    signature = problem.signature
    names = {IDENTITY: "none"}
    names |= {entries[0].epilogue.graph: name for name, entries in registered().items() if len(entries) == 1}
    name = names.get(signature.epilogue)
    if name is None:
        return None
    arguments: dict[str, Any] = {"n": problem.n, "k": problem.k, "dtype": signature.a.dtype}
    arguments |= {"out_dtype": signature.outputs[0].dtype, "batch": problem.batch, "precision": signature.precision}
    for align in (16, 8, 4, 2, 1):
        for layout in ("nt", "nn", "tn", "tt"):
            try:
                made = contiguous_problem(
                    problem.m, epilogue=signature.epilogue, layout=layout, align=align, **arguments
                )
            except CuteGemmError:
                continue
            if made == problem:
                return {**arguments, "layout": layout, "align": align, "epilogue": name}
    return None
