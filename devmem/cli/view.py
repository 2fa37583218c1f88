"""``devmem view``: one page, without network, of what memory did and what was copied.

It takes snapshots (`devmem.memory_snapshot().save`), logs of allocations (`devmem.memory.Log`) and traces of copies
(``DEVMEM_TRACE``), and puts what they say as JSON into one HTML file. The script in the page draws it; nothing is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from ..api.memory_reports import SNAPSHOT_FORMAT
from ..api.replay import allocations
from ..spi.sizes import exact_size
from .output import OK, UNUSABLE, complain, example

#: The most blocks, and the most copies, of a file that a page holds: those of the most bytes. A page of more is slow to open.
MOST = 100_000
#: Where the data goes in the page.
PLACE = "{{DATA}}"


class NotShown(Exception):
    """A file is nothing that a page can be made of; the message says why."""


@click.command(
    epilog=example(
        "DEVMEM_MEMORY_MANAGER='log:run.log;frames=8,pool' python program.py", "devmem view run.log -o run.html"
    )
)
@click.argument("inputs", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("devmem.html"), show_default=True)
@click.pass_context
def view(context: click.Context, inputs: tuple[Path, ...], output: Path) -> None:
    """Make one HTML page of snapshots, logs of allocations and traces of copies.

    FILE is what devmem.memory_snapshot().save(FILE) wrote, what the stack "log:FILE;frames=8" wrote, or a trace
    (DEVMEM_TRACE=FILE). The page needs no network and no other file.

    Exit code 2: a file cannot be read, or is none of these; no page is written.
    """
    try:
        written = page([document(path) for path in inputs])
        output.write_text(written, encoding="utf-8")
    except (NotShown, OSError) as error:
        complain(str(error))
        context.exit(UNUSABLE)
    print(f"{output}: {exact_size(len(written.encode()))}, open it in a browser")
    context.exit(OK)


def page(documents: list[dict[str, Any]]) -> str:
    """The page of some documents."""
    # "</script>" in a file's name would end the element that holds the data.
    data = f"[{', '.join(map(_json, documents))}]".replace("<", "\\u003c")
    template = files(__package__).joinpath("view_page.html").read_text(encoding="utf-8")
    return template.replace(PLACE, data)


def _json(document: dict[str, Any]) -> str:
    try:
        return json.dumps(document, allow_nan=False)
    except ValueError as error:
        raise NotShown(f"{document['file']}: a number in it is none that a page can show ({error})") from None


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("too deep for JSON of devmem's") from None


def document(path: Path) -> dict[str, Any]:
    """Return one file's document for the page: ``kind`` is "snapshot", "log" or "trace".

    Raises
    ------
    NotShown
        The file is none of them.
    OSError
        It cannot be read.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    start = text.lstrip()[:1]
    if start == "[":
        found = _trace(path, text)
    elif f'"{SNAPSHOT_FORMAT}"' in text[:200]:
        found = _snapshot(path, text)
    else:
        found = _log(path)
    return {"file": str(path), **found}


def _snapshot(path: Path, text: str) -> dict[str, Any]:
    try:
        loaded = _loaded(text)
        blocks = [
            [each["address"], each["nbytes"], _frame_text(each["site"]), f"{each['device']} {each['kind']}"]
            for each in loaded["blocks"]
        ]
        devices = loaded["devices"]
        kept, left_out = _largest(blocks, 1)
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise NotShown(f"{path} begins like a snapshot, but cannot be read ({error!r}): save it again") from None
    return {"kind": "snapshot", "taken_at": loaded.get("taken_at", 0), "devices": devices, "blocks": kept, **left_out}


def _log(path: Path) -> dict[str, Any]:
    """Blocks as [from, until or null, bytes, index of the frames]: times in seconds since the log began."""
    names: dict[tuple[str, ...], int] = {}
    live: dict[int, list[Any]] = {}
    blocks: list[list[Any]] = []
    ended = 0.0
    try:
        for record in allocations(path):
            ended = record.t
            if record.op == "allocate":
                frames = tuple(map(_frame_text, record.frames))
                block = [record.t, None, record.nbytes, names.setdefault(frames, len(names))]
                blocks.append(block)
                live[record.address] = block
            elif record.address in live:  # otherwise it came from before the log
                live.pop(record.address)[1] = record.t
        kept, left_out = _largest(blocks, 2)
    except (TypeError, ValueError) as error:
        raise NotShown(
            f"{error}; a page is made of a snapshot (devmem.memory_snapshot().save), a log of allocations "
            f"(the stack 'log:FILE;frames=8') or a trace of copies (DEVMEM_TRACE)"
        ) from None
    if not blocks:
        raise NotShown(f"{path} has no allocation in it: nothing was allocated while it was written")
    return {"kind": "log", "ended": ended, "frames": [list(key) for key in names], "blocks": kept, **left_out}


def _trace(path: Path, text: str) -> dict[str, Any]:
    """Copies as [from, until, bytes, index of the path, index of the thread]: times in seconds since the first."""
    try:
        events = _loaded(text.rstrip().rstrip(",") + ("" if text.rstrip().endswith("]") else "]"))
    except ValueError as error:
        raise NotShown(f"{path} begins like a trace, but is not JSON ({error})") from None
    spans = [each for each in events if isinstance(each, dict) and each.get("ph") == "X"]
    if not spans:
        raise NotShown(f"{path} has no copy in it: nothing was copied while DEVMEM_TRACE named it")
    paths: dict[str, int] = {}
    threads: dict[int, int] = {}
    try:
        first = min(float(each["ts"]) for each in spans)
        copies = [
            [
                (each["ts"] - first) / 1e6,
                (each["ts"] + each["dur"] - first) / 1e6,
                int(each.get("args", {}).get("bytes", 0)),
                paths.setdefault(str(each["name"]), len(paths)),
                threads.setdefault(each["tid"], len(threads)),
            ]
            for each in spans
        ]
        kept, left_out = _largest(copies, 2)
        named = {each["tid"]: each["args"]["name"] for each in events if each.get("name") == "thread_name"}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise NotShown(f"{path} begins like a trace of copies, but cannot be read ({error!r})") from None
    return {
        "kind": "trace",
        "paths": list(paths),
        "threads": [str(named.get(tid, tid)) for tid in threads],
        "copies": kept,
        **left_out,
    }


def _largest(rows: list[list[Any]], size_at: int) -> tuple[list[list[Any]], dict[str, int]]:
    """The rows of the most bytes, in their order, and how many were left out."""
    if len(rows) <= MOST:
        return rows, {"left_out": 0}
    order = sorted(range(len(rows)), key=lambda at: -rows[at][size_at])[:MOST]
    return [rows[at] for at in sorted(order)], {"left_out": len(rows) - MOST}


def _frame_text(site: Iterable[object] | None) -> str:
    if site is None:
        return ""
    file, line, function = site
    return f"{file}:{line} ({function})"
