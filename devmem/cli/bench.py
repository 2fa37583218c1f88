"""``devmem bench``: how fast this machine moves arrays, by every way that devmem knows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click

import devmem

from . import plot
from .bench_cases import WAYS, Direction
from .bench_runner import QUICK_SIZES, SIZES, Bench, Cell
from .doctor import WITHOUT_GPU
from .emulate import is_emulated
from .info import versions
from .output import FAILED, OK, UNUSABLE, collected_warnings, complain, json_text, print_table, progress, size
from .roundtrip import choose

#: What a shell returns for a command that was ended from the keyboard.
INTERRUPTED = 130
#: What `--json` without a file means.
STANDARD_OUTPUT = "-"
TITLES = {
    Direction.UP: "Host to device, GB/s",
    Direction.DOWN: "Device to host, GB/s",
    Direction.INSIDE: "Within one memory, GB/s",
}
OF_LIMIT = "% of pinned limit"


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and smaller arrays, in a few seconds.")
@click.option("--seconds", type=click.FloatRange(min=0), help="How long to measure, about.  [default: 60; quick: 8]")
@click.option("--backend", help="Backend to use, instead of DEVMEM_BACKEND or the first usable one.")
@click.option("--device", help="Device to use, as shown by `devmem info`: host:0.")
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
    """Measure how fast arrays move between host and device, by size and by every way.

    All ways take turns in one run, and the best of each counts; rates are in 10^9 bytes a second. Where there is a bus between
    the memories, they are told as parts of the most that page-locked memory reaches in large copies, which is the limit of the
    bus. Ctrl-C ends it, and what was measured is kept.

    Exit code 0: measured; sizes for which there is too little memory are named. 1: something went wrong; the rest was measured.
    2: nothing was measured, or a file could not be written. 130: interrupted.
    """
    try:
        _check_files(as_json, picture)
        with collected_warnings() as warnings:
            chosen = choose(backend, device)
            notes = _nature(chosen)
            sizes = QUICK_SIZES if quick else SIZES
            with progress("ways", len(sizes) * len(WAYS)) as advance:
                measured = Bench(chosen, advance, WAYS, bus=not notes)
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
    """Raise if what is to be written could not be: a measurement takes a minute, and would be lost."""
    if picture is not None:
        plot.check(picture)
    for path in [*([Path(as_json)] if as_json not in (None, STANDARD_OUTPUT) else []), *([picture] if picture else [])]:
        folder = path.absolute().parent
        if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise OSError(f"{path} cannot be written: name a file in a folder that is there and yours")


def _nature(device: devmem.Device) -> list[str]:
    """What the numbers are not, where they are no bus's."""
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
        sizes = sorted({cell.nbytes for _, cells in rows for cell in cells})
        if not rows:
            continue
        names = [_short(nbytes) for nbytes in sizes]
        limit = measured.limit(direction)
        last = [OF_LIMIT] if limit is not None else []
        print_table(
            ("way", *names, *last),
            ((name, *_rates(cells, sizes), *([_percent(measured, cells)] if last else [])) for name, cells in rows),
            title=TITLES[direction] + (f" (pinned limit: {limit:.3g})" if limit is not None else ""),
            right=",".join([*names, *last]),
            optional=_least_missed(names),
        )
    if any(measured.limit(direction) is not None for direction in Direction):
        print(f"{OF_LIMIT}: the largest size, against the most that page-locked memory reached in large copies.")


def _rates(cells: list[Cell], sizes: Iterable[int]) -> list[str]:
    found = {cell.nbytes: cell.gb_per_s for cell in cells}
    return [_number(found[nbytes]) if nbytes in found else "–" for nbytes in sizes]


def _percent(measured: Bench, cells: list[Cell]) -> str:
    percent = measured.percent(cells[-1])
    return "–" if percent is None else f"{percent:.0f}"


def _least_missed(names: list[str]) -> list[str]:
    """Sizes to leave out of a narrow terminal: every other one first, never the largest."""
    return [*names[-2::-2], *names[-3::-2]]


def _number(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _short(nbytes: int) -> str:
    return size(nbytes).replace(".0 ", " ")


def _write(measured: Bench, notes: list[str], warnings: list[str], as_json: str | None, picture: Path | None) -> bool:
    """The document and the picture; whether both are where they should be."""
    well = True
    if as_json is not None:
        text = json_text(_document(measured, notes, warnings))
        if as_json == STANDARD_OUTPUT:
            print(text)
        else:
            well &= _saved(Path(as_json), lambda part: part.write_text(text + "\n", encoding="utf-8"))
    if picture is not None and measured.cells:
        kind = picture.suffix.lower().removeprefix(".")
        title = f"{measured.device.info.name} ({measured.device}), devmem {devmem.__version__}"
        well &= _saved(picture, lambda part: plot.save(part, kind, measured, title, notes))
    return well


def _saved(path: Path, write: Callable[[Path], object]) -> bool:
    """The whole file or the one that was there; whether it is the new one."""
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
                "direction": cell.direction,
                "way": cell.way,
                "bytes": cell.nbytes,
                "seconds": cell.seconds,
                "gb_per_s": cell.gb_per_s,
                "percent_of_pinned_limit": measured.percent(cell),
                "repetitions": cell.repetitions,
                "path": cell.path,
            }
            for direction in Direction
            for _, cells in measured.measured(direction)
            for cell in cells
        ],
    }


def _exit_code(measured: Bench, written: bool) -> int:
    if measured.interrupted:
        return INTERRUPTED
    if not measured.cells or not written:
        return UNUSABLE
    return FAILED if measured.failed else OK
