"""What the scripts of verbs share: a list of functions, each a verb, and a report of what became of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

VERBS: list[tuple[str, Callable[[], str | None]]] = []


def verb(name: str) -> Callable[[Callable[[], str | None]], None]:
    """Put a function into the list. It returns what to report, if that is not "runs"; an exception is a failure."""
    return lambda function: VERBS.append((name, function))


def child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in another process."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=140, check=False
    )


def report(library: str) -> None:
    """Call every function, and print one line of JSON."""
    found = {}
    for name, function in VERBS:
        try:
            found[name] = function() or "runs"
        except Exception as error:  # the test tells which
            found[name] = f"fails: {type(error).__name__}: {error}"
    print(json.dumps({"library": library, "verbs": found}))
