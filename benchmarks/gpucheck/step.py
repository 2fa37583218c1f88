"""One run, its steps, and their time limits."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .vendors import VENDORS, Vendor

ROOT = Path(__file__).resolve().parents[2]
#: The script that children run, with `--child NAME`.
SCRIPT = ROOT / "benchmarks" / "gpu_report.py"
#: Seconds for the run, and for each step if the other steps use all of theirs.
TOTAL = 465.0
SHARES = {
    "contract": 75.0,
    "api": 80.0,
    "truth": 45.0,
    "assumptions": 15.0,
    "kernels": 35.0,
    "allocators": 40.0,
    "memcheck": 45.0,
    "bandwidth": 90.0,
    "overhead": 35.0,
}
LONGEST_TAIL = 3000


@dataclass
class Step:
    """The results of one step."""

    name: str
    title: str
    status: str = "not run"  # passed, failed, unfinished, broken, skipped
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    data: Any = None


@dataclass
class Run:
    """The state of the run that the steps need."""

    emulated: bool
    quick: bool
    work: Path
    env: dict[str, str]
    facts: dict[str, Any]
    ends: float
    chosen: list[str]
    vendor: Vendor = VENDORS["cuda"]
    steps: list[Step] = field(default_factory=list)

    def left(self, name: str) -> float:
        """Seconds that a step may take: the remaining time without the shares of later steps."""
        claimed = sum(SHARES[each] for each in self.chosen[self.chosen.index(name) + 1 :])
        return max(5.0, self.ends - time.monotonic() - claimed)


def clean(text: str) -> str:
    """The text without paths of this machine."""
    text = re.sub(r"[^\s'\"]*gpu-check-\w+/", "", text)
    text = f"test_resources.py{text}" if text.startswith("::") else text  # outside the sources, pytest names no file
    for path, name in ((ROOT, "."), (Path(sys.prefix), "<python>"), (Path.home(), "~")):
        if len(str(path)) > 1:
            text = text.replace(f"{path}/", f"{name}/")
    return text.replace("./devmem", "devmem").replace("./tests", "tests")
