"""Writes the report as JSON and Markdown."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rates import tables

from .step import ROOT, Run, Step


def write(run: Run, about: dict[str, Any], folder: Path, stem: str) -> None:
    """Write both files atomically; to $OUT too if it is set, with the output of every step."""
    texts = {
        f"{stem}.json": json.dumps({**about, "steps": [asdict(step) for step in run.steps]}, indent=1) + "\n",
        f"{stem}.md": markdown(run, about),
    }
    for place in [folder, *out_folder()]:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            beside = place / f"{name}.part"
            beside.write_text(text, encoding="utf-8")
            beside.replace(place / name)
    for place in out_folder():
        with (place / f"{stem}.log").open("w", encoding="utf-8") as log:
            for step in run.steps:
                path = run.work / f"{step.name}.log"
                text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
                log.write(f"===== {step.name}\n{text[-2_000_000:]}\n")


def out_folder() -> list[Path]:
    """The second folder for the files, $OUT."""
    return [Path(os.environ["OUT"])] if os.environ.get("OUT") else []


def free_name(folders: list[Path], about: dict[str, Any]) -> str:
    """The name of the files without suffix, different from those of earlier runs of the day."""
    device = "emulated" if about["emulated"] else re.sub(r"[^a-z0-9]+", "-", about["device"]["name"].lower()).strip("-")
    stem = f"{about['backend']}-{device}-{about['date']}"
    names = [stem, *(f"{stem}-{n}" for n in range(2, 1000))]
    return next(name for name in names if not any((folder / f"{name}.json").exists() for folder in folders))


def markdown(run: Run, about: dict[str, Any]) -> str:
    """The report as Markdown."""
    device, version = about["device"], about["devmem"]
    key = (*run.vendor.versions, "numpy", "pluggy", "pytest", "pytest-timeout", "hypothesis")
    versions = {name.lower(): each for name, each in about["packages"].items()}
    emulated = "**EMULATED: no GPU was used. This tests the script only.**"
    lines = [f"# {f'Emulated {run.vendor.driver}' if about['emulated'] else device['name']}, {about['date']}", ""]
    lines += [emulated, ""] if about["emulated"] else []
    lines += ["Quick: a few tests of each kind, tiny sizes.", ""] if about["quick"] else []
    host_facts = about["host"]
    table = {
        "device": f"{device['name']}, {device['compute_capability'] or device['arch']}, "
        f"{device['memory_bytes'] / 2**30:.1f} GiB, {device['devices']} visible",
        "driver": f"{about['driver']}, for {device['version']}",
        "bus": ", ".join(f"{name} {value}" for name, value in about["tool"].items() if "pcie" in name) or "unknown",
        "devmem": f"{version['version']}, commit {version['commit']}, sources {version['sources_sha256'][:16]}",
        "Python": f"{about['python']}: " + ", ".join(f"{name} {versions[name]}" for name in key if name in versions),
        "host": ", ".join(f"{name} {value}" for name, value in host_facts.items()),
    }
    lines += ["| | |", "|---|---|", *[f"| {name} | {value} |" for name, value in table.items()]]
    lines += ["", "| step | | | seconds |", "|---|---|---|---|"]
    lines += [
        f"| {s.title} | {s.status.upper() if s.status != 'passed' else s.status} | {counted(s)} | {s.seconds:g} |"
        for s in run.steps
    ]
    for step in run.steps:
        lines += details(step)
    return "\n".join(lines) + "\n"


def details(step: Step) -> list[str]:
    """The details of one step."""
    lines: list[str] = []
    if step.notes or step.failures or step.skips or step.data:
        lines += ["", f"## {step.title}", "", *[f"- {' '.join(note.split())}" for note in step.notes]]
    if step.skips:
        lines += [
            "",
            "Skipped:",
            "",
            *[f"- {count} x {' '.join(reason.split())}" for reason, count in step.skips.items()],
        ]
    for failure in step.failures:
        lines += ["", f"**{failure['id']}**: {failure['message']}"]
        if failure["tail"]:
            lines += ["", "```", failure["tail"].replace("```", "'''")[-1500:], "```"]
    if step.data and step.name == "bandwidth":
        lines += ["", tables.markdown(step.data)]
    if step.data and step.name in ("overhead", "kernels"):
        lines += ["", "| | where | | | |", "|---|---|---|---|---|"]
        for section in step.data.get("sections", {}).values():
            for row in section:
                if not row["verdict"] and "cuda" not in str(row["where"]):
                    continue
                value = "-" if row["value"] is None else f"{row['value']:.4g}"
                told = [row["what"], row["where"], f"{value} {row['unit']}", row["verdict"], row["detail"]]
                lines.append("| " + " | ".join(str(each).replace("|", "/") for each in told) + " |")
    return lines


def counted(step: Step) -> str:
    """The counts of a step in one line."""
    return ", ".join(f"{count} {what}" for what, count in step.counts.items()) or "-"


def shown_path(path: Path) -> str:
    """A path relative to the sources' folder."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
