"""`scripts/soak` and `scripts/signals` for seconds: they run, they judge, and they say so."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from waits import patience

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("soak")


def run(script, *arguments):
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(140), check=False)


def test_a_soak_of_a_few_seconds():
    done = run("soak.py", 0.05, "--shift", 1, "--threads", 3, "--resets", "between", "--seed", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failures, seed 1" in done.stdout


@pytest.mark.exhaustive
def test_signals_of_a_few_seconds(tmp_path):
    report = tmp_path / "signals.md"
    done = run("signals.py", 500, "--backend", "host", "--seed", 1, "--report", report)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| upload and download |" in report.read_text(encoding="utf-8")


@pytest.mark.parametrize(("step", "flat"), [(0, True), (1 << 20, False)])
def test_what_grows_is_not_flat(soak, step, flat):
    found = soak.Run("host", 1, seconds=100.0)
    names = [field.name for field in fields(soak.Sample) if field.name != "seconds"]
    for second in range(100):
        found.samples.append(soak.Sample(second, **dict.fromkeys(names, (100 << 20) + second * step)))
    assert all(soak.grown(found, name) is not flat for name in names)


def test_what_caches_hold_between_two_resets_is_flat(soak):
    """However often the draw of the shifts has them full in the end."""
    found = soak.Run("host", 1, seconds=100.0)
    names = [field.name for field in fields(soak.Sample) if field.name != "seconds"]
    for second in range(100):
        full = second > 60 and second % 5
        found.samples.append(soak.Sample(second, **dict.fromkeys(names, (200 if full else 100) << 20)))
    assert not any(soak.grown(found, name) for name in names)


def test_a_failure_is_told_with_what_repeats_it(soak):

    judged = soak.Soak.__new__(soak.Soak)
    judged.run, judged.number, judged.mood, judged.control = soak.Run("host", 5), 3, "with resets", None
    judged.lock, judged.things = soak.threading.RLock(), [None]
    judged.judge(0, "views", AssertionError("byte 7 is wrong"))
    [failure] = judged.run.failures
    assert "byte 7 is wrong" in failure
    assert "--seed 5 --first 3" in failure
    judged.judge(0, "views", soak.dm.ClosedError("was reset"))
    assert judged.run.refused == {"ClosedError, reset": 1}
    assert len(judged.run.failures) == 1
