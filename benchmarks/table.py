"""The rows of a table, and their output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Suffix of a library's minimum time among the numbers of a row.
LEAST = " least"


@dataclass
class Row:
    """One line: what was measured, where, and the verdict. Without a target it is only shown."""

    what: str
    where: str
    value: float | None
    unit: str
    detail: str = ""
    target: str = ""
    verdict: str = ""
    numbers: dict[str, float] | None = None

    def judged(self, limit: float, shown: str) -> Row:
        """The row with a verdict: met if the value is at most the limit."""
        self.target = f"<= {shown}"
        if self.value is not None:
            self.verdict = "PASS" if self.value <= limit else "FALLS SHORT"
        return self

    def judged_at_least(self, limit: float, shown: str) -> Row:
        """The row with a verdict: met if the value is at least the limit."""
        self.target = f">= {shown}"
        if self.value is not None:
            self.verdict = "PASS" if self.value >= limit else "FALLS SHORT"
        return self

    def skipped(self, reason: str) -> Row:
        """The row with the reason why it has no value."""
        self.value, self.verdict, self.detail = None, "skipped", reason
        return self


@dataclass
class Effort:
    """How long to measure."""

    rounds: int
    seconds: float
    levels: list[int]
    imports: int
    arrays: int


FULL = Effort(rounds=40, seconds=0.005, levels=[10, 1_000, 100_000, 1_000_000], imports=20, arrays=1_000_000)
QUICK = Effort(rounds=7, seconds=0.002, levels=[10, 1_000, 20_000], imports=10, arrays=20_000)


def number(row: Row) -> str:
    """The value of a row, without its unit."""
    if row.value is None:
        return "-"
    if row.unit == "B":
        return f"{row.value:,.0f}"
    return f"{row.value:,.2f}" if row.unit in ("us", "x", "ms") else f"{row.value:,.4g}"


def line(row: Row) -> str:
    """One row as text."""
    told = f"  {row.what:<52} {row.where:<9} {number(row):>9} {row.unit:<6}"
    if row.verdict:
        told += f"{row.verdict} ({row.target})  "
    return (told + row.detail).rstrip()


def markdown(title: str, about: Mapping[str, object], notes: list[str], sections: Mapping[str, list[Row]]) -> str:
    """All sections as Markdown; the JSON has every number."""
    lines = [f"# {title}", "", *notes, ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    for section, rows in sections.items():
        lines += ["", f"## {section}"]
        timed = [row for row in rows if f"devmem{LEAST}" in (row.numbers or {})]
        if timed:
            lines += ["", *_by_library(timed)]
        rest = [row for row in rows if row not in timed]
        if rest:
            lines += ["", "| what | where | value | target | verdict | |", "|---|---|--:|---|---|---|"]
        for row in rest:
            value = f"{number(row)} {row.unit}" if row.value is not None else "-"
            lines.append(f"| {row.what} | {row.where} | {value} | {row.target} | {row.verdict} | {row.detail} |")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _by_library(rows: list[Row]) -> list[str]:
    """A table with a column for each library: microseconds, minimum and (median)."""
    numbers = [row.numbers or {} for row in rows]
    libraries = list(
        dict.fromkeys(name.removesuffix(LEAST) for found in numbers for name in found if name.endswith(LEAST))
    )
    lines = ["Microseconds: minimum (median).", ""]
    lines += [f"| verb | where | {' | '.join(libraries)} |", "|---|---|" + "--:|" * len(libraries)]
    for row, found in zip(rows, numbers, strict=True):
        cells = [
            f"{found[name + LEAST]:.2f} ({found[name + ' median']:.2f})" if name + LEAST in found else ""
            for name in libraries
        ]
        lines.append(f"| {row.what} | {row.where} | {' | '.join(cells)} |")
    return lines
