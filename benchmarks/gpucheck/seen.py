"""Collects test results from the events that the test processes wrote."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from .step import Step, clean

#: Further failures are reported without their output.
MOST_TAILS = 40


class Seen:
    """The results of all processes of a step."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.started: set[str] = set()
        self.running: str | None = None
        self.collected: set[str] = set()
        self.deselected: set[str] = set()
        self.broken: list[dict[str, str]] = []
        self.failures: dict[str, dict[str, str]] = {}
        self.skips: Counter[str] = Counter()
        self.lost = False

    def take(self, events: Path) -> int | None:
        """Add the events of one process; return its exit status, or None if it did not finish."""
        finished = None
        for line in events.read_text(encoding="utf-8").splitlines() if events.exists() else []:
            with contextlib.suppress(ValueError):  # the last line may be incomplete
                event = json.loads(line)
                if event["event"] == "finished":
                    finished = event["status"]
                else:
                    getattr(self, f"_{event['event']}")(event)
        return finished

    def crash(self, how: str, tail: str) -> None:
        """Record that the running test, if any, killed the process."""
        if self.running is not None:
            self.outcomes[self.running] = "crashed"
            self.failures[self.running] = {"id": clean(self.running), "message": how, "tail": tail}
        self.running = None

    def cut(self) -> str:
        """Record that the running test did not finish within the time limit."""
        name, self.running = self.running, None
        if name is None:
            return ""
        if self.outcomes.get(name, "passed") == "passed":  # of its phases so far
            self.outcomes[name] = "cut off"
        return f" in {clean(name)}"

    def bad(self) -> bool:
        return bool(self.broken) or not {"failed", "error", "crashed"}.isdisjoint(self.outcomes.values())

    def into(self, step: Step) -> None:
        """Write the sums."""
        step.counts = dict(Counter(self.outcomes.values()))
        if self.broken:
            step.counts["files not collected"] = len(self.broken)
        if missing := len(self.collected - self.outcomes.keys()):
            step.counts["not run"] = missing
        if self.deselected:
            step.counts["left out"] = len(self.deselected)
        step.failures = self.broken + list(self.failures.values())
        for at, failure in enumerate(step.failures):
            if at >= MOST_TAILS:
                failure["tail"] = ""
        step.skips = dict(self.skips.most_common())

    def _collected(self, event: dict[str, Any]) -> None:
        self.collected.update(event["ids"])
        self.deselected.update(event["deselected"])

    def _not_collected(self, event: dict[str, Any]) -> None:
        if event["outcome"] == "skipped":
            self.skips[clean(event["text"])[-300:]] += 1
        elif event["id"] not in [each["id"] for each in self.broken]:
            self.broken.append({"id": clean(event["id"]), "message": "not collected", "tail": clean(event["text"])})

    def _started(self, event: dict[str, Any]) -> None:
        self.started.add(event["id"])
        self.running = event["id"]

    def _report(self, event: dict[str, Any]) -> None:
        name, outcome = event["id"], event["outcome"]
        if outcome in ("failed", "error") and name not in self.failures:
            self.failures[name] = {"id": clean(name), "message": clean(event["message"]), "tail": clean(event["text"])}
        if outcome == "skipped":
            self.skips[clean(event["text"])] += 1
        worse = ["passed", "xfailed", "skipped", "error", "failed"]
        known = self.outcomes.get(name, "passed")
        self.outcomes[name] = max(known, outcome, key=worse.index)
        if event["when"] == "teardown":
            self.running = None

    def _lost(self, event: dict[str, Any]) -> None:
        self.lost = True
        self.running = None
