"""Output shared by the commands: tables, JSON documents, error lines, progress bars."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import IO, TextIO

from rich.console import Console, JustifyMethod
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from devmem import DevmemWarning

#: Exit codes that mean the same for every command.
OK, FAILED, UNUSABLE = 0, 1, 2

#: Output that does not go to a terminal is folded at this width, unless COLUMNS is set.
WIDE = 240
#: Text columns narrower than this are unreadable: a table that would need them is printed as lines instead.
READABLE = 16
#: Words of at most so many characters, names and stacks for the most part, are never broken. Longer ones, paths say, may be.
NAME = 44

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "MISMATCH": "bold red", "error": "red", "yes": "green"}


def console(stream: IO[str] | None = None) -> Console:
    """A console on the current ``sys.stdout``, which a test may have redirected, or on ``stream``."""
    stream = stream or sys.stdout
    fitted = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(file=stream, width=None if fitted else WIDE, highlight=False, soft_wrap=False)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    right: str = "",
    optional: Sequence[str] = (),
) -> None:
    """Print rows under columns; those named in ``right`` (comma separated) are numbers. Text is never markup.

    A narrow terminal folds text between words, but not numbers. If text columns become too narrow, ``optional`` columns are
    left out in their order, which the output says; if that does not suffice, each row is printed as lines of a name and a value.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    numbers = set(right.split(","))
    out = console()

    least = [
        widths[at] if columns[at] in numbers else max(min(widths[at], READABLE), *map(_longest_name, column))
        for at, column in enumerate(zip(columns, *cells, strict=True))
    ]

    def fits(shown: Sequence[int]) -> bool:
        return sum(least[at] for at in shown) + 3 * len(shown) + 1 <= out.width

    shown, dropped = list(range(len(columns))), list[str]()
    for name in optional:
        if not fits(shown):
            dropped.append(name)
            shown.remove(columns.index(name))
    if not fits(shown):
        _print_rows(out, columns, cells, title)
        return
    table = Table(title=title or None, title_justify="left", title_style="bold")
    room = out.width - 3 * len(shown) - 1
    for at, width in zip(shown, _fitted([least[at] for at in shown], [widths[at] for at in shown], room), strict=True):
        number = columns[at] in numbers
        side: JustifyMethod = "right" if number else "left"
        table.add_column(columns[at], justify=side, overflow="fold", no_wrap=number, width=width)
    for row in cells:
        table.add_row(*(_styled(row[at]) for at in shown))
    out.print(table)
    if dropped:
        out.print(f"Left out for want of room: {'; '.join(dropped)}.", overflow="fold")


def _print_rows(out: Console, columns: Sequence[str], cells: Sequence[Sequence[str]], title: str) -> None:
    """Print each row as lines of a name and a value, without empty values; side by side where that breaks no name."""
    if title:
        out.print(Text(title, style="bold"), overflow="fold")
    room = out.width - max(map(len, columns)) - 1
    for row in cells:
        if any(_longest_name(cell) > room for cell in row):
            for column, cell in zip(columns, row, strict=True):
                if cell:
                    out.print(Text.assemble((column, "dim"), " ", _styled(cell)), overflow="fold")
            out.print()
            continue
        lines = Table.grid(padding=(0, 1))
        lines.add_column(no_wrap=True)
        lines.add_column(overflow="fold")
        for column, cell in zip(columns, row, strict=True):
            if cell:
                lines.add_row(Text(column, style="dim"), _styled(cell))
        out.print(lines)
        out.print()


def _fitted(least: list[int], most: list[int], room: int) -> list[int]:
    """Widths of columns between the least and what each would take, which share the room."""
    found, left = list(least), room - sum(least)
    while left > 0 and (short := [at for at, width in enumerate(found) if width < most[at]]):
        for at in short:
            more = min(max(left // len(short), 1), most[at] - found[at], left)
            found[at], left = found[at] + more, left - more
    return found


def _longest_name(cell: str) -> int:
    return max((len(word) for word in cell.split() if len(word) <= NAME), default=0)


def _styled(cell: str) -> Text:
    return Text(cell, style=STYLES.get(cell, ""))


def example(*lines: str) -> str:
    """Return the text below the options in ``--help``: commands, each on a line of its own."""
    return "\b\nExample:\n" + "\n".join(f"  $ {line}" for line in lines)


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document on the standard output."""
    print(json_text(document))


def json_text(document: Mapping[str, object]) -> str:
    """A document in the format of all commands."""
    return json.dumps(document, indent=2, default=_plain, allow_nan=False)


def complain(message: str) -> None:
    """Print an error as one line on the standard error."""
    print(f"devmem: {' '.join(message.split())}", file=sys.stderr)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect the texts of devmem's warnings, which Python would print with a line of source."""
    messages: list[str] = []

    with warnings.catch_warnings():
        warnings.simplefilter("always", DevmemWarning)
        show_others = warnings.showwarning

        def keep(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, DevmemWarning):
                messages.append(str(message))
            else:
                show_others(message, category, filename, lineno, file, line)

        warnings.showwarning = keep
        yield messages


@contextmanager
def progress(what: str, steps: int) -> Iterator[Callable[[], object]]:
    """A progress bar on the standard error if that is a terminal; call the yielded function after each step."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with Progress(console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=steps)
        yield lambda: bar.advance(task)


def _plain(value: object) -> object:
    if isinstance(value, StrEnum):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return str(value)
