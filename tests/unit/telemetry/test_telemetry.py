"""Counting copies, and the trace's file: each alone, with numbers given by hand."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from waits import patience, together

import devmem as dm
from devmem._core.telemetry import copy_statistics as statistics
from devmem._core.telemetry import trace as tracefile
from devmem._core.telemetry.copy_statistics import SAMPLED, CopyStatistics, LockedStatistics, begin, copy_statistics
from devmem._core.telemetry.trace import TraceFile

ROOT = Path(__file__).parents[3]


def counted(timed_from: int = 1000) -> CopyStatistics:
    """Statistics of no device, which is only named in a trace."""
    made = copy_statistics(None, None, threading.RLock())  # type: ignore[arg-type]
    made.timed_from = timed_from
    return made


def add_small(stats: CopyStatistics, path: str, nbytes: int, seconds: float) -> None:
    """Count a small copy that was timed."""
    stats.count(path, nbytes, perf_counter() - seconds, 0.0)


def events(path: Path) -> list[dict[str, Any]]:
    """What is in a trace: an array without its last bracket."""
    found: list[dict[str, Any]] = json.loads(path.read_text() + "]")
    return found


# -- counters ----------------------------------------------------------------------------------------------------------


def test_paths_add_up():
    stats = counted()
    stats.add("h2d packed", 1, 10, 0.5, 0.25)
    stats.add("h2d packed", 2, 20, 1.0, 0.0)
    stats.add("fill", 1, 7, 2.0, 2.0)
    assert stats.take(False) == {
        "fill": {"copies": 1, "bytes": 7, "seconds": 2.0, "waited_seconds": 2.0},
        "h2d packed": {"copies": 3, "bytes": 30, "seconds": 1.5, "waited_seconds": 0.25},
    }


def test_small_ones_that_were_not_timed_count_as_those_that_were():
    stats = counted()
    for _ in range(4):
        add_small(stats, "h2d direct", 100, 0.5)
    stats.small["h2d direct"][0] += 12
    stats.small["h2d direct"][1] += 1200
    stats.add("h2d direct", 1, 5000, 3.0, 0.0)
    [(path, numbers)] = stats.take(False).items()
    assert (path, numbers["copies"], numbers["bytes"], numbers["waited_seconds"]) == ("h2d direct", 17, 6600, 0.0)
    assert numbers["seconds"] == pytest.approx(11, abs=1)


def test_a_reset_takes_what_it_told_and_keeps_the_lists():
    stats = counted()
    hot = stats.small["d2h direct"]
    add_small(stats, "d2h direct", 8, 0.5)
    stats.add("x", 1, 1, 1.0, 1.0)
    told = stats.take(True)
    assert set(told) == {"d2h direct", "x"}
    assert stats.take(False) == {}
    hot[0] += 1
    hot[1] += 16
    assert stats.take(False)["d2h direct"]["bytes"] == 16


def test_no_count_is_lost_between_threads():
    """Switching as often as possible, while one thread resets all the time."""
    stats, told = counted(), []
    each, threads = 20000, 4
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        over = threading.Event()

        def work() -> None:
            for _ in range(each):
                stats.add("a", 1, 3, 1.0, 1.0)
                add_small(stats, "h2d direct", 2, 1.0)

        def take() -> None:
            while not over.is_set():
                told.append(stats.take(True))

        def add() -> None:
            together(*[work] * threads)
            over.set()

        together(add, take)
    finally:
        sys.setswitchinterval(before)
    told.append(stats.take(True))
    assert len(told) > 2
    for path, nbytes in (("a", 3), ("h2d direct", 2)):
        parts = [each[path] for each in told if path in each]
        assert sum(part["copies"] for part in parts) == each * threads
        assert sum(part["bytes"] for part in parts) == each * threads * nbytes
        assert sum(part["seconds"] for part in parts) >= 0.999 * each * threads


def test_what_a_copy_waits_is_this_threads_since_it_began():
    stats = counted()
    with stats.waiting("something earlier"):
        pass
    statistics.waits.seconds = 5.0
    began = begin()
    assert statistics.waits.seconds == 0.0

    def wait_elsewhere() -> None:
        statistics.waits.seconds += 1000.0

    with stats.waiting("a slot"):
        together(wait_elsewhere)
    waited = statistics.waits.seconds
    assert 0 < waited < 1000
    seconds = stats.count("x", 10_000, began)
    numbers = stats.take(False)["x"]
    assert numbers["waited_seconds"] == waited
    assert seconds == pytest.approx(numbers["seconds"] - waited)
    assert numbers["seconds"] >= waited


def test_waits_that_are_given_and_what_comes_later():
    stats = counted()
    began = begin()
    stats.count("x", 10, began - 3, 2.0)
    stats.count_more("x", began - 1)
    numbers = stats.take(False)["x"]
    assert (numbers["copies"], numbers["bytes"], numbers["waited_seconds"]) == (1, 10, 2.0)
    assert numbers["seconds"] > 4


def test_small_direct_ones_apart_from_the_others():
    stats = counted()
    for nbytes in (999, 1000):
        stats.count("d2h direct", nbytes, begin())
    stats.count("d2h packed", 1, begin())
    assert stats.small["d2h direct"][:3] == [1, 999, 1]
    assert stats.take(False)["d2h direct"]["copies"] == 2


@pytest.mark.skipif(not SAMPLED, reason="without a GIL each is timed")
def test_sixteen_of_4096_are_timed():
    timed = [number for number in range(9000) if not number & SAMPLED]
    assert timed == [*range(16), *range(4096, 4112), *range(8192, 8208)]


# -- the trace's file --------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[TraceFile]:
    made = TraceFile(tmp_path / "trace.json")
    yield made
    made.close()


def test_it_is_whole_after_every_event(trace):
    assert [event["name"] for event in events(trace.path)] == ["process_name"]
    for number in range(3):
        trace.span(f"copy {number}", "copy", 1.5, 1.75, {"bytes": number, "why": 'said "so"'})
        assert events(trace.path)[-1]["name"] == f"copy {number}"
    last = events(trace.path)[-1]
    assert (last["ph"], last["ts"], last["dur"]) == ("X", 1_500_000, 250_000)
    assert (last["pid"], last["tid"]) == (os.getpid(), threading.get_native_id())
    assert last["args"] == {"bytes": 2, "why": 'said "so"'}


def test_threads_are_named_once(trace):
    def work() -> None:
        for _ in range(3):
            trace.span("part", "staging", 0.0, 1.0, {})

    thread = threading.Thread(target=work, name="devmem-staging-7")
    thread.start()
    thread.join(patience())
    work()
    names = [event for event in events(trace.path) if event["name"] == "thread_name"]
    assert [event["args"]["name"] for event in names] == ["devmem-staging-7", threading.current_thread().name]
    assert len({event["tid"] for event in names}) == 2


def test_many_threads_at_once(trace):
    def work() -> None:
        for number in range(200):
            trace.span("part", "staging", number, number + 1, {"text": "x" * number})

    together(*[work] * 4)
    assert sum(event["name"] == "part" for event in events(trace.path)) == 800


@pytest.mark.parametrize("failure", ["refused", "cut short"])
def test_where_it_cannot_go_on(trace, monkeypatch, failure):
    """It warns once, and copies go on."""
    fd = trace._fd
    trace.span("before", "copy", 0.0, 1.0, {})

    def write(fd: int, data: bytes) -> int:
        if failure == "refused":
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data) - 1

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.warns(
            dm.DevmemWarning, match=r"the trace .*trace\.json ends here: (No space left|\d+ of \d+ bytes)"
        ):
            trace.span("lost", "copy", 0.0, 1.0, {})
    trace.span("after", "copy", 0.0, 1.0, {})
    assert [event["name"] for event in events(trace.path)][-1] == "before"
    os.write(fd, b" ")  # what another thread is about to write goes there still, and into no other file
    assert trace.path.read_text().endswith(" ")
    os.close(fd)


def test_no_file_for_no_name():
    assert tracefile.tracefile("") is None


@pytest.fixture
def nothing_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tracefile, "_open", None)
    yield
    if tracefile._open is not None:
        tracefile._open.close()


@pytest.mark.usefixtures("nothing_open")
def test_one_file_for_one_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = tracefile.tracefile("a.json")
    assert first is not None
    first.span("kept", "copy", 0.0, 1.0, {})
    monkeypatch.chdir("/")
    assert tracefile.tracefile(str(tmp_path / "a.json")) is first
    second = tracefile.tracefile(str(tmp_path / "b.json"))
    assert second is not first
    first.span("too late", "copy", 0.0, 1.0, {})
    assert [event["name"] for event in events(tmp_path / "a.json")][-1] == "kept"


@pytest.mark.usefixtures("nothing_open")
def test_an_older_file_is_emptied(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("something else " * 1000)
    tracefile.tracefile(str(path))
    assert [event["name"] for event in events(path)] == ["process_name"]


@pytest.mark.usefixtures("nothing_open")
@pytest.mark.parametrize("name", ["missing/trace.json", "."])
def test_a_file_that_cannot_be_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        dm.ConfigError, match=rf"DEVMEM_TRACE='{name}' cannot be written \(.+\): give the path of a file"
    ):
        tracefile.tracefile(name)


def test_a_second_process_has_a_file_of_its_own(trace):
    """The first process keeps the name."""
    pytest.importorskip("fcntl")
    script = textwrap.dedent(f"""
        from devmem._core.telemetry.trace import tracefile
        tracefile({str(trace.path)!r}).span("theirs", "copy", 0.0, 1.0, {{}})
        import os; print(os.getpid())
    """)
    trace.span("ours", "copy", 0.0, 1.0, {})
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert events(trace.path)[-1]["name"] == "ours"
    assert events(trace.path.with_name(f"trace.{run.stdout.strip()}.json"))[-1]["name"] == "theirs"


# -- without a GIL -----------------------------------------------------------------------------------------------------


def test_each_change_of_a_count_is_made_under_the_lock():
    """No other thread changes a count between its being read and being written."""
    stats = LockedStatistics(None, None, threading.RLock())  # type: ignore[arg-type]
    free: list[bool] = []

    class Watched(list[Any]):
        def __setitem__(self, *change: Any) -> None:
            free.extend(together(lambda: stats.lock.acquire(blocking=False)))
            super().__setitem__(*change)

    for counters in (stats.small, stats._paths):
        for path in ("h2d direct", "d2h direct"):
            counters[path] = Watched([0, 0, 0, 0.0])
    stats.count("h2d direct", 1, begin())
    stats.add("d2h direct", 1, 2, 0.0, 0.0)
    assert stats.take(True)["d2h direct"]["bytes"] == 2
    assert free and not any(free)
    assert stats.take(False) == {}
