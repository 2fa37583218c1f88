"""What `scripts/mutate.py` adds to pytest: a survey of which tests run which lines, and chosen tests in a chosen order."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

#: A JSON list of node ids: only these tests run, in this order.
CHOSEN = os.environ.get("MUTATE_CHOSEN")
#: Without an ending: the survey writes its coverage beside it (.coverage) and each test's outcome and seconds (.json).
SURVEY = os.environ.get("MUTATE_SURVEY")
#: The test that began last, for the caller: with ``-x``, the one that failed, hung or ended the process.
KILLER = os.environ.get("MUTATE_KILLER")

if SURVEY:
    import coverage

    # Started as this plugin is loaded, which is before anything imports devmem.
    measured = coverage.Coverage(f"{SURVEY}.coverage", config_file=False, include=["devmem/_core/*"], messages=False)
    measured.start()
    results: dict[str, tuple[str, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
        """Count the lines that run during a test as that test's."""
        if sys.gettrace() is None:  # a test that traces ended the measurement
            measured.stop()
            measured.start()
        measured.switch_context(item.nodeid)
        return (yield)

    def pytest_sessionfinish() -> None:
        """Write both files."""
        measured.stop()
        measured.save()
        Path(f"{SURVEY}.json").write_text(json.dumps(results), encoding="utf-8")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say which test begins."""
    if KILLER:
        Path(KILLER).write_text(nodeid, encoding="utf-8")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcome and the seconds of a test."""
    if SURVEY:
        outcome, seconds = results.get(report.nodeid, ("passed", 0.0))
        bad = report.outcome if report.outcome != "passed" else outcome
        results[report.nodeid] = (bad, seconds + report.duration)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the chosen tests only, in the order in which they were chosen."""
    if CHOSEN:
        order = {name: at for at, name in enumerate(json.loads(Path(CHOSEN).read_text(encoding="utf-8")))}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
