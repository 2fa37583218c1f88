"""Facts and tables as people see them: text for a terminal, HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ...spi.sizes import exact_size, time_text


def with_unit(name: str, value: object) -> str:
    """A value as people see it: bytes and seconds, which names tell, with their unit."""
    if isinstance(value, int) and name.endswith(("bytes", "largest_free_block", "redzone")):
        return exact_size(value)
    return time_text(value) if isinstance(value, float) and name.endswith("seconds") else repr(value)


class Report:
    """A dataclass of numbers: ``print`` shows them with their units, a notebook as a table."""

    __slots__ = ()

    def _shown(self: Any) -> dict[str, str]:
        return {field.name: with_unit(field.name, getattr(self, field.name)) for field in fields(self)}

    def __str__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._shown().items())})"

    def _repr_html_(self) -> str:
        return html_facts(type(self).__name__, self._shown())


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table with a row of headings, and perhaps a line above it."""
    from html import escape  # on first use: its table of entities takes a twentieth of `import devmem`

    def row(tag: str, cells: Sequence[object]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    above = f"<p>{escape(caption)}</p>" if caption else ""
    body = "".join(row("td", cells) for cells in rows)
    return f"{above}<table>{row('th', columns)}{body}</table>" if body else above


def html_facts(caption: str, facts: Mapping[str, object]) -> str:
    """A table of names and values; values that say nothing are left out."""
    return html_table(("what", "value"), [(name, value) for name, value in facts.items() if value != ""], caption)


def text_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lines with the cells below their headings, the first column to the left, numbers and the rest to the right."""
    cells = [list(map(str, columns)), *(list(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
