"""Prints the tables as Markdown. Needs no driver."""

from __future__ import annotations

from typing import Any

from .expected import judged, predicted, speed


def markdown(found: dict[str, Any]) -> str:
    """All tables."""
    lines = []
    if found["emulated"]:
        lines += ["**EMULATED: these numbers test the script only.**", ""]
    for name, state in found["libraries"].items():
        lines.append(f"- {name}: {state}")
    groups = dict.fromkeys(row["group"] for row in found["rows"])
    for group in groups:
        rows = [row for row in found["rows"] if row["group"] == group]
        names = list(dict.fromkeys(name for row in rows for name in row["cells"]))
        lines += ["", f"### {group}", "", "median (best), and how many times as fast devmem is", ""]
        lines += [table_row(["", "unit", *names]), table_row(["---"] * (len(names) + 2))]
        for row in rows:
            lines.append(table_row([row["title"], row["unit"], *[cell_text(row, name) for name in names]]))
    lines += asked_table(judged(found["rows"], found["quick"]))
    if told := predicted(found["rows"], found["quick"], found["backend"]):
        lines += ["", "### Predicted and measured", "", "Predictions are for a PCIe Gen5 x16 machine (H100, H200).", ""]
        lines += ["| | library | predicted | measured | unit | | source |", "|---|---|---|---|---|---|---|"]
        for each in told:
            span = f"{each['low']:g}-{each['high']:g}"
            value = number(each["measured"])
            lines.append(
                table_row([each["title"], each["library"], span, value, each["unit"], each["verdict"], each["source"]])
            )
    errors = [
        (row["title"], name, c["error"]) for row in found["rows"] for name, c in row["cells"].items() if "error" in c
    ]
    if errors:
        lines += ["", "### Errors", "", *[f"- {title}, {name}: {error}" for title, name, error in errors]]
    if found.get("unfinished"):
        lines += ["", f"Not measured within the time limit: {', '.join(found['unfinished'])}"]
    return "\n".join(lines) + "\n"


def asked_table(asked: list[dict[str, Any]]) -> list[str]:
    """The targets for copies, with the path of devmem's copies."""
    lines = ["", "### Targets for copies", ""]
    lines += ["| | compared with | at least | measured | | devmem's path |", "|---|---|---|---|---|---|"]
    for each in asked:
        ratio = "-" if each["ratio"] is None else f"{each['ratio']:.2f}x"
        verdict = f"{each['verdict']}: {each['why']}" if "why" in each else each["verdict"]
        lines.append(table_row([each["title"], each["against"], f"{each['asked']:g}x", ratio, verdict, each["path"]]))
    return lines


def cell_text(row: dict[str, Any], name: str) -> str:
    """Median, best, and the ratio to devmem."""
    cell = row["cells"].get(name, {})
    if "median" not in cell:
        return "error" if "error" in cell else "-"
    ours, theirs = speed(row, "devmem"), speed(row, name)
    text = f"{number(cell['median'])} ({number(cell['best'])})"
    if name != "devmem" and ours and theirs:
        text += f" {ours / theirs:.2f}x"
    return text


def table_row(cells: list[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def one_line(error: BaseException) -> str:
    """An error, short."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
