"""Every lock of devmem comes from the factory, and stands in the table of locks in ARCHITECTURE.md with its name and rank."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from devmem.toolkit.locks import Rank

ROOT = Path(__file__).parents[3]
FACTORIES = {"lock", "OuterLock"}
#: What only the factory makes; a condition is no lock that an interrupt leaves whole: see devmem/_core/base/changes.py.
KINDS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"}
#: The factory, and what a job of the host backend is waited for by. No code runs while that one is locked but the job itself.
OTHERS = [("backends/host/streams.py", "Lock"), ("toolkit/locks.py", "RLock")]
#: Tools of tests.
TESTING = "testing/"


def calls() -> list[tuple[str, str, list[ast.expr]]]:
    """The file, the name and the arguments of each call; of a `partial` those of what it calls."""
    found = []
    for path in sorted((ROOT / "devmem").rglob("*.py")):
        file = path.relative_to(ROOT / "devmem").as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                made = [(node.func, node.args), *((each.value, []) for each in node.keywords)]
                if node.args:
                    made.append((node.args[0], node.args[1:]))
                for maker, arguments in made:
                    name = maker.attr if isinstance(maker, ast.Attribute) else getattr(maker, "id", "")
                    found.append((file, name, arguments))
    return found


def test_only_the_factory_makes_locks():
    """A signal's handler, or a finalizer, may call devmem while the thread that it runs on has any of them."""
    assert (
        sorted({(file, name) for file, name, _ in calls() if name in KINDS and not file.startswith(TESTING)}) == OTHERS
    )


def test_the_table_has_every_lock():
    made = {
        (arguments[0].value, arguments[1].attr, file)
        for file, name, arguments in calls()
        if name in FACTORIES and len(arguments) > 1 and isinstance(arguments[0], ast.Constant)
    }
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Locks")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|`]+?) \| `(\w+)` \| `([\w/.]+)` \| [^|]+ \|$", table, flags=re.MULTILINE)
    assert set(rows) == made
    ranks = [Rank[rank] for _, rank, _ in rows]
    assert ranks == sorted(ranks)
    assert len(rows) == len({name for name, *_ in rows})
