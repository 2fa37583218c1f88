"""The plot of `devmem bench`. Imports matplotlib only when a plot is asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ..spi.sizes import size_text
from .bench_cases import Direction
from .bench_runner import Bench, Measurement

TITLES = {
    Direction.UPLOAD: "Host to device",
    Direction.DOWNLOAD: "Device to host",
    Direction.WITHIN: "Within one memory",
}
MARKERS = "osD^vP*X<>"


class CannotPlot(Exception):
    """The plot cannot be made; the message says why."""


def check(path: Path) -> None:
    """Raise CannotPlot, before anything is measured, unless matplotlib is installed and knows the file's format."""
    if importlib.util.find_spec("matplotlib") is None:
        raise CannotPlot("--plot needs matplotlib, which is not installed: pip install 'devmem-arrays[bench]'")
    from matplotlib.figure import Figure

    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in formats:
        raise CannotPlot(f"--plot {path}: not a picture format: end the name in .png, or {', '.join(sorted(formats))}")


def save(path: Path, kind: str, bench: Bench, title: str, notes: list[str]) -> None:
    """Draw rate against size into a file of format ``kind`` (``png``): a line for each case, the pinned limits dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(18, 7), layout="constrained")
    figure.suptitle(title)
    if notes:
        figure.supxlabel("\n".join(notes), fontsize="small")
    for axes, direction in zip(figure.subplots(1, len(Direction)), Direction, strict=True):
        _draw(axes, bench, direction)
    figure.savefig(path, format=kind, dpi=100)


def _draw(axes: Any, bench: Bench, direction: Direction) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    sizes: set[int] = set()
    for (name, measurements), marker in zip(bench.measured(direction), MARKERS * 2, strict=False):
        axes.plot(*_points(measurements), marker=marker, markersize=4, label=name)
        sizes |= {row.nbytes for row in measurements}
    limit = bench.limit(direction)
    if limit is not None:
        axes.axhline(limit, linestyle="--", color="black", label=f"pinned limit, {limit:.3g} GB/s")
    axes.set_title(TITLES[direction])
    axes.set_xlabel("size")
    axes.set_ylabel("GB/s")
    if sizes:
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(sizes), [size_text(nbytes).replace(".0 ", " ") for nbytes in sorted(sizes)], rotation=60)
        # Rates grow a hundredfold from 4 KiB to 1 GiB: on a linear scale all small sizes would lie at the bottom.
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def _points(measurements: list[Measurement]) -> tuple[list[int], list[float]]:
    return [row.nbytes for row in measurements], [row.gb_per_s for row in measurements]
