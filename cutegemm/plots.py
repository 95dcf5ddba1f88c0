"""Pictures of what commands print, by matplotlib, which the extra `plots` installs. None opens a window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutegemm.errors import ArgumentError, CuteGemmError

if TYPE_CHECKING:
    from cutegemm.comparison import Comparison
    from cutegemm.fragments import Fragment

#: By kind of contender: hand-written, CuTe, torch.
_COLOURS = {"hand": "#d98e3f", "torch": "#8a8a8a", "": "#3f7fbf"}
_CELL = 0.55  # of a fragment's element, in inches


def ready(path: str) -> None:
    """Raises `CuteGemmError` where matplotlib is missing and `ArgumentError` for a `path` that can't be written, before
    any work is done for a picture."""
    figure = _figure(1, 1)
    target, formats = Path(path), figure.canvas.get_supported_filetypes()
    if target.suffix[1:] not in formats:
        raise ArgumentError(f"--plot {path}: expected a file ending in one of {', '.join(sorted(formats))}")
    if not target.parent.is_dir():
        raise ArgumentError(f"--plot {path}: there is no folder {target.parent}")


def bars(comparison: Comparison, path: str) -> None:
    """Writes the contenders' rates in TFLOP/s to the file `path`, the fastest on top, with the floor's as a line."""
    case, floor = comparison.case, comparison.floor
    served = comparison.served[::-1]
    figure = _figure(9, 1.6 + 0.3 * len(served))
    axes = figure.add_subplot()
    rates = [entry.tflops for entry in served]
    kinds = [entry.contender.partition(":")[0] for entry in served]
    drawn = axes.barh(
        [entry.contender for entry in served], rates, color=[_COLOURS.get(kind, _COLOURS[""]) for kind in kinds]
    )
    axes.bar_label(drawn, [f"{entry.us:.1f} µs, {entry.share:.0%}" for entry in served], padding=3, fontsize=8)
    axes.axvline(floor.flops / floor.us * 1e-6, color="black", linestyle="--", linewidth=1)
    axes.set_xlim(0, 1.2 * max([floor.flops / floor.us * 1e-6, *(rate or 0.0 for rate in rates)]))
    axes.set_xlabel(f"TFLOP/s, {comparison.timing}; dashed: the floor, {floor.us:.1f} µs, bound by {floor.bound}")
    epilogue = "" if case.epilogue is None else f", {case.epilogue}"
    axes.set_title(f"{case.m}x{case.n}x{case.k} {case.dtype} {case.layout}{epilogue} on {comparison.device.name}")
    axes.tick_params(axis="y", labelsize=8)
    _save(figure, path)


def grid(found: Fragment, rows: Sequence[int], columns: Sequence[int], path: str) -> None:
    """Writes the elements of `rows` and `columns` of a fragment to the file `path`: lane and register in each cell, a
    colour for each register, so that the blocks stand out."""
    figure = _figure(1.2 + _CELL * len(columns), 1.2 + 0.8 * _CELL * len(rows))
    axes = figure.add_subplot()
    from matplotlib import colormaps

    colours = colormaps["tab20"]
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            place = found[row, column]
            axes.add_patch(_rectangle((j, i), colours(place.register % 20)))
            half = ("l", "h")[place.half] if found.bits == 16 else ""
            text = f"T{place.lane}\nr{place.register}{half}"
            axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=7)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([j + 0.5 for j in range(len(columns))], [str(column) for column in columns])
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [str(row) for row in rows])
    axes.xaxis.tick_top()
    axes.set_xlabel(found.axes[1])
    axes.xaxis.set_label_position("top")
    axes.set_ylabel(found.axes[0])
    axes.set_title(f"{found.instr}, {found.operand}: T lane, r register")
    _save(figure, path)


def _figure(width: float, height: float) -> Any:
    """A figure of so many inches, drawn by no display."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CuteGemmError("--plot needs matplotlib: pip install 'cutegemm[plots]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def _rectangle(corner: tuple[int, int], colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", alpha=0.7)


def _save(figure: Any, path: str) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ArgumentError(f"--plot {path}: {error}") from error
