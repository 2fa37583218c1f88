"""One run, its steps, and the time that each of them has."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .vendors import VENDORS, Vendor

ROOT = Path(__file__).resolve().parents[2]
#: What children are started with: this run's own script, `--child NAME`.
SCRIPT = ROOT / "benchmarks" / "gpu_report.py"
#: Seconds for everything, and for each step if the others use all of theirs.
TOTAL = 465.0
SHARES = {
    "contract": 75.0,
    "api": 85.0,
    "truth": 45.0,
    "kernels": 35.0,
    "allocators": 40.0,
    "memcheck": 45.0,
    "bandwidth": 100.0,
    "overhead": 35.0,
}
LONGEST_TAIL = 3000


@dataclass
class Step:
    """What one step showed."""

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
    """The whole, and what the steps need."""

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
        """Seconds that a step may take: all that the steps after it do not have a claim to."""
        claimed = sum(SHARES[each] for each in self.chosen[self.chosen.index(name) + 1 :])
        return max(5.0, self.ends - time.monotonic() - claimed)


def clean(text: str) -> str:
    """Without the folders of this machine, which are nobody's business."""
    text = re.sub(r"[^\s'\"]*gpu-check-\w+/", "", text)
    text = f"test_resources.py{text}" if text.startswith("::") else text  # outside the sources, pytest names no file
    for path, name in ((ROOT, "."), (Path(sys.prefix), "<python>"), (Path.home(), "~")):
        if len(str(path)) > 1:
            text = text.replace(f"{path}/", f"{name}/")
    return text.replace("./devmem", "devmem").replace("./tests", "tests")
