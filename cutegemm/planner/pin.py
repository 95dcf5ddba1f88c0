"""`kernel=`: a family, and values that its configuration must have, as one string."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

from cutegemm.errors import ArgumentError
from cutegemm.kernels.config import Pad, Reduction
from cutegemm.planner.families import FAMILIES, PINNED, Family
from cutegemm.planner.legality import Wish


@dataclass(frozen=True, slots=True)
class Pin:
    """A family and those of its configurations that a `kernel=` string admits, in the family's order."""

    text: str
    family: Family[Any]
    configs: tuple[Any, ...]
    asked: Wish


def parse_pin(text: str) -> Pin:
    """Read `family[:key=value,…]`, such as `"sm80_multistage:tile=128x128x32,stages=4"`, or `hand:level`.

    Keys are those that a family's configurations spell themselves with (`Family.keys`), such as `tile` (MxNxK) and
    `stages`; of families that split K, `split` may be any number of parts, and `stream` of those with stream-K; of
    families that copy operands, `pad` names them: `no`, `a`, `b` or `ab`; of `sm90_wgmma` `reduction` says how parts
    are added up, `ordered` or `atomic`. Any may be left out.
    Raises `ArgumentError` for an unknown family, an unknown, repeated or malformed key, or values that no configuration
    has.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"kernel={text!r}: expected a string such as 'sm80_multistage:tile=128x128x32'")
    name, _, options = text.partition(":")
    families = {**FAMILIES, **PINNED}
    served = ", ".join(families)
    family = families.get(name)
    if family is None:
        raise ArgumentError(f"kernel={text!r}: unknown family {name!r}; available: {served}")
    if name in PINNED:
        return Pin(text, family, _named(text, options, family), Wish())
    wanted = _options(text, options, family) if ":" in text else {}
    asked: dict[str, Any] = _surroundings(text, wanted, family) if family.surrounds else {}
    options = ",".join(f"{key}={value}" for key, value in wanted.items())
    configs = tuple(c for c in _pool(text, wanted, family) if wanted.items() <= c.options().items())
    # A configuration's own text leaves out usual values, and is not to mean its neighbours of another.
    exact = tuple(c for c in configs if str(replace(c, split=1) if family.surrounds else c) == options)
    if exact and family.surrounds:
        asked = {"split": exact[0].split, "pad": "no", "reduction": "ordered"} | asked
    configs = exact or configs
    if not configs:
        registered = "; ".join(map(str, family.configs))
        raise ArgumentError(f"kernel={text!r}: no configuration of {name} has these values; it has {registered}")
    return Pin(text, family, configs, Wish(**asked))


def keeps_order(kernel: str | None) -> bool:
    """Whether what `kernel` pins, if anything, adds up in a fixed order: a call has to say `deterministic=False`
    otherwise. Raises what `parse_pin` does."""
    return kernel is None or parse_pin(kernel).asked.reduction != "atomic"


def _pool(text: str, wanted: dict[str, str], family: Family[Any]) -> tuple[Any, ...]:
    """The configurations that `wanted` may be of: with K split as it says, where the family does that itself."""
    split = wanted.get("split", "1")
    if family.splits is None or split == "1":
        return family.configs
    count: Any = split if split == "stream" else _parts(text, split)
    return tuple(config for each in family.configs for config in family.splits(each, count))


def _parts(text: str, count: str) -> int:
    if not (count.isascii() and count.isdigit() and len(count) < 10 and int(count) > 0):
        raise ArgumentError(f"kernel={text[:200]!r}: split={count[:20]}: expected a positive number of parts")
    return int(count)


def _surroundings(text: str, wanted: dict[str, str], family: Family[Any]) -> dict[str, Any]:
    """Takes what `wanted` says of split and copies out of it: no registered configuration has them."""
    asked: dict[str, Any] = {}
    if "split" in wanted:
        split = wanted.pop("split")
        asked["split"] = split if split == "stream" and family.streams else _parts(text, split)
    for key, values in (("pad", get_args(Pad)), ("reduction", get_args(Reduction))):
        if key in wanted:
            asked[key] = wanted.pop(key)
            if asked[key] not in values:
                raise ArgumentError(f"kernel={text!r}: {key}={asked[key]}: expected one of {', '.join(values)}")
    return asked


def _named(text: str, options: str, family: Family[Any]) -> tuple[Any, ...]:
    """The one configuration that a pin spells out: a family that is never chosen does not choose either."""
    configs = tuple(config for config in family.configs if str(config) == options)
    if not configs:
        names = ", ".join(map(str, family.configs))
        raise ArgumentError(f"kernel={text!r}: expected {family.name}: and one of {names}")
    return configs


def _options(text: str, options: str, family: Family[Any]) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for option in options.split(","):
        key, equals, value = option.partition("=")
        if key not in family.keys or not equals:
            keys = ", ".join(family.keys)
            raise ArgumentError(f"kernel={text!r}: {option!r} is not key=value with a key of {keys}")
        if key in wanted:
            raise ArgumentError(f"kernel={text!r}: {key} is given twice")
        wanted[key] = value
    return wanted
