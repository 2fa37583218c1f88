"""What every command prints with: one table, one JSON document, one line for what went wrong."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import IO, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from devmem import DevmemWarning

#: Exit codes that mean the same for every command.
OK, FAILED, UNUSABLE = 0, 1, 2

#: Where nobody looks at a terminal nothing is cut off to fit one.
WIDE = 240

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "MISMATCH": "bold red", "error": "red", "yes": "green"}


def console(stream: IO[str] | None = None) -> Console:
    """A console on the stream as it is now, so that redirecting it (as tests do) is seen."""
    stream = stream or sys.stdout
    return Console(file=stream, width=None if stream.isatty() else WIDE, highlight=False, soft_wrap=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", right: str = "") -> None:
    """Print rows under columns; those named in ``right`` (comma separated) are numbers. Text is never markup."""
    table = Table(title=title or None, title_justify="left", title_style="bold")
    numbers = set(right.split(","))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell), style=STYLES.get(str(cell), "")) for cell in row))
    console().print(table)


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document on the standard output, and nothing else goes there."""
    print(json.dumps(document, indent=2, default=_plain, allow_nan=False))


def complain(message: str) -> None:
    """One line about what went wrong, on the standard error."""
    print(f"devmem: {' '.join(message.split())}", file=sys.stderr)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect devmem's warnings as sentences instead of letting Python print them with a line of source."""
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


def size(nbytes: int) -> str:
    """Bytes for people, in units of 1024."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


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
