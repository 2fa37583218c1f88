"""``devmem bench``: how fast this machine moves arrays, for every way of copying that devmem has."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click

import devmem

from ..spi.sizes import size_text
from . import plot
from .bench_cases import CASES, Direction
from .bench_runner import QUICK_SIZES, SIZES, Bench, Measurement
from .doctor import WITHOUT_GPU
from .emulate import is_emulated
from .info import versions
from .output import FAILED, OK, UNUSABLE, collected_warnings, complain, example, json_text, print_table, progress
from .roundtrip import backend_option, choose, device_option

#: The exit code of a shell for a command that Ctrl-C ended.
INTERRUPTED = 130
#: The value of `--json` without a file.
STANDARD_OUTPUT = "-"
TITLES = {
    Direction.UPLOAD: "Host to device, GB/s",
    Direction.DOWNLOAD: "Device to host, GB/s",
    Direction.WITHIN: "Within one memory, GB/s",
}
PERCENT_COLUMN = "% of pinned limit"


@click.command(epilog=example("devmem bench --quick --plot rates.png"))
@click.option("--quick", is_flag=True, help="Fewer and smaller arrays, in a few seconds.")
@click.option("--seconds", type=click.FloatRange(min=0), help="How long to measure, about.  [default: 60; quick: 8]")
@backend_option
@device_option
@click.option(
    "--json",
    "as_json",
    is_flag=False,
    flag_value=STANDARD_OUTPUT,
    metavar="[FILE]",
    help="Write one JSON document into FILE; without FILE print it instead of tables.",
)
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw rate against size.")
@click.pass_context
def bench(
    context: click.Context,
    quick: bool,
    seconds: float | None,
    backend: str | None,
    device: str | None,
    as_json: str | None,
    picture: Path | None,
) -> None:
    """Measure how fast arrays move between host and device, for each size and each way of copying.

    The ways of copying take turns in one run, and the best time of each counts; rates are in 10^9 bytes a second. Where a bus
    connects the memories, each rate is also given as a percentage of the bus's limit: the best rate of large copies from or to
    page-locked memory. Ctrl-C ends the run and keeps what was measured.

    Exit code 0: measured; sizes that need more memory than is free are named. 1: something failed; the rest was measured.
    2: nothing was measured, or a file could not be written. 130: interrupted.
    """
    try:
        _check_files(as_json, picture)
        with collected_warnings() as warnings:
            chosen = choose(backend, device)
            notes = _caveats(chosen)
            sizes = QUICK_SIZES if quick else SIZES
            with progress("ways", len(sizes) * len(CASES)) as advance:
                measured = Bench(chosen, advance, CASES, has_bus=not notes)
                measured.run(sizes, seconds if seconds is not None else 8 if quick else 60)
    except (devmem.DevmemError, plot.CannotPlot, OSError) as error:
        complain(str(error))
        context.exit(UNUSABLE)
    on_screen = as_json != STANDARD_OUTPUT
    if on_screen:
        _show(measured)
    for note in [*notes, *measured.notes, *(f"warning: {' '.join(message.split())}" for message in warnings)]:
        print(note, file=sys.stdout if on_screen else sys.stderr)
    written = _write(measured, notes, warnings, as_json, picture)
    context.exit(_exit_code(measured, written))


def _check_files(as_json: str | None, picture: Path | None) -> None:
    """Raise before the measurement, which takes a minute, if its results could not be written afterwards."""
    if picture is not None:
        plot.check(picture)
    for path in [*([Path(as_json)] if as_json not in (None, STANDARD_OUTPUT) else []), *([picture] if picture else [])]:
        folder = path.absolute().parent
        if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise OSError(f"{path} cannot be written: name a file in a folder that is there and yours")


def _caveats(device: devmem.Device) -> list[str]:
    """Why the rates are not those of a bus; empty where they are."""
    backend = device.info.backend
    if backend == WITHOUT_GPU:
        return ["These are copies within this machine's memory (the host backend): no bus, no GPU."]
    if not is_emulated(backend):
        return []
    what = "copies within this machine's memory"
    if os.environ.get("DEVMEM_EMULATOR_MODE") == "null":
        what = "calls that copy nothing"
    return [f"The {backend} driver is the emulated one: these are {what}, and no bus's rates."]


def _show(measured: Bench) -> None:
    for direction in Direction:
        rows = list(measured.measured(direction))
        sizes = sorted({row.nbytes for _, measurements in rows for row in measurements})
        if not rows:
            continue
        names = [_size_label(nbytes) for nbytes in sizes]
        limit = measured.limit(direction)
        last = [PERCENT_COLUMN] if limit is not None else []
        print_table(
            ("way", *names, *last),
            (
                (name, *_rates(measurements, sizes), *([_percent(measured, measurements)] if last else []))
                for name, measurements in rows
            ),
            title=TITLES[direction] + (f" (pinned limit: {limit:.3g})" if limit is not None else ""),
            right=",".join([*names, *last]),
            optional=_least_missed(names),
        )
    if any(measured.limit(direction) is not None for direction in Direction):
        print(f"{PERCENT_COLUMN}: the largest size, against the most that page-locked memory reached in large copies.")


def _rates(measurements: list[Measurement], sizes: Iterable[int]) -> list[str]:
    found = {row.nbytes: row.gb_per_s for row in measurements}
    return [_number(found[nbytes]) if nbytes in found else "–" for nbytes in sizes]


def _percent(measured: Bench, measurements: list[Measurement]) -> str:
    percent = measured.percent(measurements[-1])
    return "–" if percent is None else f"{percent:.0f}"


def _least_missed(names: list[str]) -> list[str]:
    """Sizes to leave out of a narrow terminal, in that order: every second one first, never the largest."""
    return [*names[-2::-2], *names[-3::-2]]


def _number(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _size_label(nbytes: int) -> str:
    return size_text(nbytes).replace(".0 ", " ")


def _write(measured: Bench, notes: list[str], warnings: list[str], as_json: str | None, picture: Path | None) -> bool:
    """Write the JSON document and the plot; return whether both were written."""
    ok = True
    if as_json is not None:
        text = json_text(_document(measured, notes, warnings))
        if as_json == STANDARD_OUTPUT:
            print(text)
        else:
            ok &= _saved(Path(as_json), lambda part: part.write_text(text + "\n", encoding="utf-8"))
    if picture is not None and measured.measurements:
        kind = picture.suffix.lower().removeprefix(".")
        title = f"{measured.device.info.name} ({measured.device}), devmem {devmem.__version__}"
        ok &= _saved(picture, lambda part: plot.save(part, kind, measured, title, notes))
    return ok


def _saved(path: Path, write: Callable[[Path], object]) -> bool:
    """Replace the file at once, or keep the old one where writing fails; return whether it was replaced."""
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        complain(f"{path} could not be written: {error.strerror or error}")
        return False
    return True


def _document(measured: Bench, notes: list[str], warnings: list[str]) -> dict[str, object]:
    info = measured.device.info
    return {
        "device": {"device": str(measured.device), "name": info.name, "arch": info.arch, "facts": dict(info.facts)},
        "emulated": is_emulated(info.backend),
        "versions": versions(),
        "settings": {item.name: item.value for item in devmem.settings() if item.source != "unknown"},
        "interrupted": measured.interrupted,
        "notes": [*notes, *measured.notes],
        "warnings": warnings,
        "pinned_limit_gb_per_s": {direction: measured.limit(direction) for direction in Direction},
        "rows": [
            {
                "direction": row.direction,
                "way": row.case,
                "bytes": row.nbytes,
                "seconds": row.seconds,
                "gb_per_s": row.gb_per_s,
                "percent_of_pinned_limit": measured.percent(row),
                "repetitions": row.repetitions,
                "path": row.path,
            }
            for direction in Direction
            for _, measurements in measured.measured(direction)
            for row in measurements
        ],
    }


def _exit_code(measured: Bench, written: bool) -> int:
    if measured.interrupted:
        return INTERRUPTED
    if not measured.measurements or not written:
        return UNUSABLE
    return FAILED if measured.failed else OK
