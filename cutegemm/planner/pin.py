"""`kernel=`: a family, and values that its configuration must have, as one string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cutegemm.errors import ArgumentError, NotAvailableError
from cutegemm.kernels.config import Config
from cutegemm.planner.families import FAMILIES, UPCOMING, Family

#: What each key of a pin says about a configuration, in the spelling that `str(config)` has.
_KEYS: dict[str, Callable[[Config], str]] = {
    "tile": lambda config: f"{config.tile_m}x{config.tile_n}x{config.tile_k}",
    "stages": lambda config: str(config.stages),
    "warps": lambda config: f"{config.warps_m}x{config.warps_n}",
    "raster": lambda config: str(config.raster),
}


@dataclass(frozen=True, slots=True)
class Pin:
    """A family and those of its configurations that a `kernel=` string admits, in the family's order."""

    text: str
    family: Family
    configs: tuple[Config, ...]


def parse_pin(text: str) -> Pin:
    """Read `family[:key=value,…]`, such as `"sm80_multistage:tile=128x128x32,stages=4"`.

    Keys are `tile` (MxNxK), `stages`, `warps` (MxN) and `raster`; any may be left out.
    Raises `NotAvailableError` for a family that this version does not have yet, and `ArgumentError` for an
    unknown family, an unknown, repeated or malformed key, or values that no registered configuration has.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"kernel={text!r}: expected a string such as 'sm80_multistage:tile=128x128x32'")
    name, _, options = text.partition(":")
    if name in UPCOMING:
        served = ", ".join(FAMILIES)
        raise NotAvailableError(f"kernel={text!r}: {name} is not part of this version; available: {served}")
    family = FAMILIES.get(name)
    if family is None:
        raise ArgumentError(f"kernel={text!r}: unknown family {name!r}; available: {', '.join(FAMILIES)}")
    wanted = _options(text, options) if ":" in text else {}
    configs = tuple(c for c in family.configs if all(_KEYS[key](c) == value for key, value in wanted.items()))
    if not configs:
        registered = "; ".join(map(str, family.configs))
        raise ArgumentError(f"kernel={text!r}: no configuration of {name} has these values; it has {registered}")
    return Pin(text, family, configs)


def _options(text: str, options: str) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for option in options.split(","):
        key, equals, value = option.partition("=")
        if key not in _KEYS or not equals:
            raise ArgumentError(f"kernel={text!r}: {option!r} is not key=value with a key of {', '.join(_KEYS)}")
        if key in wanted:
            raise ArgumentError(f"kernel={text!r}: {key} is given twice")
        wanted[key] = value
    return wanted
