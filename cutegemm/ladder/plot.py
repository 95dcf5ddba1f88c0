"""The roofline as a picture, by matplotlib (`pip install 'cutegemm[plots]'`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError, NotAvailableError

_ROOFS = {"fp32": ("CUDA cores, fp32", "tab:blue"), "mma": ("mma.sync", "tab:orange"), "wgmma": ("peak", "tab:red")}


class Point(NamedTuple):
    """A kernel: FLOP per byte, FLOP/s, and the unit whose roof it is under."""

    name: str
    intensity: float
    flops: float
    unit: str


def check(path: Path) -> None:
    """Raises `NotAvailableError` where matplotlib is missing, `ArgumentError` where it can't write `path`: worth
    knowing before an hour's measurements."""
    figure = _figure_module().Figure()
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in known:
        raise ArgumentError(f"plot {path}: expected a name that ends in one of {', '.join(sorted(known))}")
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"plot {path}: there is no folder {path.absolute().parent}")


def draw(points: Sequence[Point], gpu: DeviceSpec, title: str, path: Path) -> None:
    """Draws `points` under the roofs of the units that they have, log-log, into `path`."""
    figure = _figure_module().Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.add_subplot()
    low, high = axis([point.intensity for point in points])
    tops = {"fp32": gpu.fp32_flops, "mma": gpu.mma_flops, "wgmma": gpu.peak_flops}
    units = [unit for unit in _ROOFS if any(point.unit == unit for point in points)]
    for unit in units:
        label, color = _ROOFS[unit]
        ridge = tops[unit] / gpu.hbm_bytes_per_s
        xs = [low, min(max(ridge, low), high), high]
        ys = [min(tops[unit], x * gpu.hbm_bytes_per_s) * 1e-12 for x in xs]
        axes.loglog(xs, ys, color=color, label=f"{label}: {tops[unit] * 1e-12:.0f} TFLOP/s")
    for i, point in enumerate(points):
        axes.loglog([point.intensity], [point.flops * 1e-12], "o", color=_ROOFS[point.unit][1])
        # Neighbours of the ladder are often neighbours here: names go to the right and to the left in turn.
        side, ha = ((7, -3), "left") if i % 2 == 0 else ((-7, -3), "right")
        at = (point.intensity, point.flops * 1e-12)
        axes.annotate(point.name, at, xytext=side, ha=ha, textcoords="offset points", fontsize=8)
    axes.set_xlim(low, high)
    axes.set_xlabel("intensity, FLOP per byte loaded")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{title}; memory {gpu.hbm_bytes_per_s * 1e-9:.0f} GB/s")
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def axis(intensities: Sequence[float]) -> tuple[float, float]:
    """The ends of the intensity axis: the points' range and room on both sides, at least 0.1 to 1000 FLOP/B."""
    return min(0.1, *(x / 2 for x in intensities)), max(1000.0, *(2 * x for x in intensities))


def _figure_module() -> ModuleType:
    try:
        from matplotlib import figure
    except ImportError as error:
        text = f"--plot draws with matplotlib, which can't be imported ({error}): pip install 'cutegemm[plots]'"
        raise NotAvailableError(text) from error
    module: ModuleType = figure
    return module
