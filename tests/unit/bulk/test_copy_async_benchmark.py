"""What `benchmarks/copy_async.py` judges of the times of a call."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def judged(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("copy_async").judged


def test_a_call_that_waits_every_other_time_falls_short(judged):
    row = judged("a call", "host", 0.001, [0.001, 0.5] * 8)
    assert row.verdict == "FALLS SHORT"
    assert row.detail == "least 1.00 ms, first 1.00 ms"
    assert judged("a call", "host", 0.5, [0.001] * 15 + [0.5]).verdict == "PASS"


def test_a_pageable_source_may_be_read(judged):
    times, memcpys = [0.050] * 5, [0.030] * 5
    assert judged("a call", "host", 0.050, times).verdict == "FALLS SHORT"
    row = judged("a call", "host", 0.050, times, memcpys)
    assert row.verdict == "PASS"
    assert row.target == "<= 55.00 ms"
