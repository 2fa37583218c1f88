"""Every lock of devmem is reentrant, and stands in the table of locks in ARCHITECTURE.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
KINDS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "OuterLock"}
#: What a job of the host backend is waited for by. No code runs while it is locked but the job itself.
GATE = ("backends/host/streams.py", "Lock")


def locks() -> dict[str, list[str]]:
    """The kinds of locks that each file makes."""
    found = defaultdict(list)
    for path in sorted((ROOT / "devmem").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for maker in (node.func, *(each.value for each in node.keywords)) if isinstance(node, ast.Call) else ():
                name = maker.attr if isinstance(maker, ast.Attribute) else getattr(maker, "id", "")
                if name in KINDS:
                    found[path.relative_to(ROOT / "devmem").as_posix()].append(name)
    return found


def test_a_thread_can_take_each_lock_again():
    """A signal's handler, or a finalizer, may call devmem while the thread that it runs on has any of them."""
    # A condition is no lock that an interrupt leaves whole: see devmem/_core/base/changes.py.
    assert [
        (file, kind) for file, kinds in locks().items() for kind in kinds if kind not in ("RLock", "OuterLock")
    ] == [GATE]


def test_the_table_has_every_lock():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Locks")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\|[^|]+\| `([\w/.]+)` \|", table, flags=re.MULTILINE))
    assert named == set(locks())
