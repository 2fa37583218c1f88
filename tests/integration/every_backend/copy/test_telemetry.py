"""What copies tell of themselves: counts and the trace."""

from __future__ import annotations

import json
import os
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import blocked, patience

import devmem as dm
from devmem._core.copy.staging import workers

MIB = 1 << 20


@pytest.fixture
def staged(with_settings, need_kind):
    """Everything from 1 KiB on passes through small slots; more settings as keywords."""
    need_kind("pinned")

    def change(**more: str) -> None:
        size = {"STAGING_THRESHOLD": "1024", "STAGING_SLOT_BYTES": "4096", "STAGING_SLOTS": "3", "STAGING_THREADS": "2"}
        with_settings(**{**size, **more})

    return change


@pytest.fixture
def traced(staged, tmp_path):
    """The events of copies so far, with the file that they are in: ``traced()``."""
    path = tmp_path / "trace.json"
    staged(TRACE=str(path))

    def read(sort: str = "copy") -> list[dict[str, Any]]:
        dm.current_device().opened()  # opened at first use
        return [event for event in events(path) if event.get("cat") == sort]

    return read


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text() + "]")
    return found


def counted() -> dict[str, tuple[int, int]]:
    return {path: (numbers["copies"], numbers["bytes"]) for path, numbers in dm.transfer_stats().items()}


# -- counts ------------------------------------------------------------------------------------------------------------

SQUARE = np.arange(64 * 64, dtype="f4").reshape(64, 64)


class Room:
    """Arrays to copy between, and a stream."""

    def __init__(self) -> None:
        self.there, self.other = dm.to_device(SQUARE), dm.to_device(SQUARE)
        self.wide = dm.zeros((64, 128), "f4")
        self.here = np.empty((64, 128), "f4")
        self.stream = dm.stream()


#: A copy of 16 KiB of every kind.
COPIES: dict[str, Callable[[Room], object]] = {
    "up": lambda room: dm.to_device(SQUARE),
    "up, turned": lambda room: room.other.copy_to_device(SQUARE.T),
    "up, with gaps": lambda room: room.wide[:, ::2].copy_to_device(SQUARE),
    "up, rows": lambda room: room.wide[:, :64].copy_to_device(SQUARE),
    "down": lambda room: room.there.copy_to_host(),
    "down, turned": lambda room: room.there.T.copy_to_host(),
    "down, with gaps": lambda room: room.there.copy_to_host(room.here[:, ::2]),
    "down, far apart": lambda room: room.wide[:, ::2].copy_to_host(),
    "on a stream": lambda room: (room.there.copy_to_host(stream=room.stream), room.stream.synchronize()),
    "in the background": lambda room: dm.copy_async(room.there).result(),
    "up in the background": lambda room: dm.copy_async(SQUARE, room.other).result(),
    "on the device": lambda room: room.other.copy_to_device(room.there),
    "on the device, turned": lambda room: room.other.copy_to_device(room.there.T),
    "onto itself, turned": lambda room: room.there.copy_to_device(room.there.T),
    "fill": lambda room: room.other.fill(1),
    "fill with gaps": lambda room: room.wide[:, 1::2].fill(2),
    "many": lambda room: dm.to_device_many([SQUARE]),
}


@pytest.mark.parametrize("how", ["direct", "staged"])
@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_copy_is_counted_once_however_it_is_done(staged, copy, how):
    staged(**({} if how == "staged" else {"STAGING_SLOTS": "0"}))
    room = Room()
    dm.transfer_stats(reset=True)
    copy(room)
    [(_, (copies, nbytes))] = counted().items()
    assert (copies, nbytes) == (1, SQUARE.nbytes)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["up", "down", "across", "fill"]),
        st.integers(0, 40),
        st.integers(1, 40),
        st.sampled_from([1, 2, -1]),
    ),
    max_size=12,
)


@given(STEPS)
@settings(max_examples=60)
def test_the_bytes_of_all_paths_are_the_bytes_that_were_moved(devmem_backend, steps):
    base = dm.zeros((80, 80), "u2")
    dm.transfer_stats(reset=True)
    moved = 0
    for what, rows, columns, step in steps:
        device = base[:rows, ::step][:, :columns]
        match what:
            case "up":
                device.copy_to_device(np.zeros(device.shape, "u2", order="F"))
            case "down":
                device.copy_to_host()
            case "across":
                base[40 : 40 + rows, 40 : 40 + device.shape[1]].copy_to_device(device)
            case "fill":
                device.fill(3)
        moved += device.nbytes
    assert sum(numbers["bytes"] for numbers in dm.transfer_stats().values()) == moved


def test_seconds_of_few_small_copies_are_theirs(device, with_settings):
    with_settings()
    source = np.arange(16.0)
    began = time.perf_counter()
    for _ in range(5000):
        dm.to_device(source).copy_to_host()
    took = time.perf_counter() - began
    stats = dm.transfer_stats()
    for path in ("h2d direct", "d2h direct"):
        assert stats[path]["copies"] == 5000
        assert stats[path]["bytes"] == 5000 * 128
        # 32 copies are timed, and their mean stands for all: a wait for the processor in one of them counts 156 times.
        assert 0 < stats[path]["seconds"] < 156 * took
    statistics = device.opened().statistics
    compiled = statistics.compiled(False) if statistics.compiled else ([0] * 4, [0] * 4)
    for counter, found in zip(statistics.small.values(), compiled, strict=True):
        assert 32 <= counter[2] + found[2] < 48  # each counts its own: Python those for which a pool looked for a block


def test_waiting_for_a_slot_is_told(staged, need, hold, device, in_background):
    """The whole ring is on a stream that stands still: the copy waits until that goes on."""
    need("hold")
    staged()
    stream = dm.stream()
    array, source = dm.zeros(5 * 4096, "u1"), np.zeros(5 * 4096, "u1")
    array.copy_to_device(source)
    dm.transfer_stats(reset=True)
    ring = device.opened().ring
    with hold(stream) as latch:
        done = in_background(lambda: array.copy_to_device(source, stream=stream))
        # A slot that still is on a stream, and that no other copy can have: it is being waited for.
        while len(ring.free_slots()) == len(ring.made) or not all(slot.event for slot in list(ring.made)):
            assert done.is_alive(), "it did not wait for a slot"
        blocked(done, "it did not wait for a slot")
        latch.release()
        assert done.wait(patience())
    stream.synchronize()
    assert not done.errors
    numbers = dm.transfer_stats()["h2d staged"]
    assert numbers["copies"] == 1
    assert 0 < numbers["waited_seconds"] <= numbers["seconds"]


def test_finishing_a_background_download_is_part_of_its_time(staged):
    staged()
    array = dm.to_device(SQUARE)
    dm.transfer_stats(reset=True)
    under_way = dm.copy_async(array)
    before = dm.transfer_stats()["d2h staged"]
    under_way.result()
    after = dm.transfer_stats()["d2h staged"]
    assert (after["copies"], after["bytes"]) == (before["copies"], before["bytes"]) == (1, SQUARE.nbytes)
    assert after["seconds"] > before["seconds"]


def test_each_device_counts_its_own(second):
    dm.transfer_stats(True)
    dm.transfer_stats(True, device=second)
    array = dm.to_device(SQUARE)
    dm.to_device(array, device=second)
    assert sum(nbytes for _, nbytes in counted().values()) == SQUARE.nbytes
    theirs = dm.transfer_stats(device=second)
    assert [(path.startswith("peer"), numbers["copies"], numbers["bytes"]) for path, numbers in theirs.items()] == [
        (True, 1, SQUARE.nbytes)
    ]


# -- the trace ---------------------------------------------------------------------------------------------------------


def test_every_copy_is_there_with_all_that_is_known(traced):
    stream = dm.stream()
    small = np.arange(4, dtype="i8")
    array = dm.to_device(small, stream=stream)
    stream.synchronize()
    array.copy_to_host()
    up, down = traced()
    assert (up["name"], down["name"]) == ("h2d direct", "d2h direct")
    assert (up["ph"], up["pid"], up["tid"]) == ("X", os.getpid(), threading.get_native_id())
    assert up["ts"] + up["dur"] <= down["ts"]
    assert up["args"] == {
        "bytes": 32,
        "device": str(dm.current_device()),
        "stream": f"{stream.handle:#x}",
        "waited_us": 0.0,
        "why": "too small for the way through page-locked slots to pay",
        "shape": [4],
        "strides": [8],
        "dtype": "int64",
    }


def test_what_was_counted_is_what_was_traced(traced):
    room = Room()
    for copy in COPIES.values():
        copy(room)
    told: dict[str, tuple[int, int]] = {}
    for event in traced():
        if "bytes" in event["args"]:
            copies, nbytes = told.get(event["name"], (0, 0))
            told[event["name"]] = copies + 1, nbytes + event["args"]["bytes"]
    assert told == counted()


def test_why_a_strided_copy_went_its_way(staged, need, tmp_path):
    """Without slots, as the cost rule has it: rows as they lie, gathered on the host, or fetched with the gaps."""
    need("strided_copy")
    path = tmp_path / "trace.json"
    staged(TRACE=str(path), STAGING_SLOTS="0")
    host = np.zeros((256, 1024), "u1")
    device = dm.to_device(host)
    device.copy_to_device(host)
    device[:, :600].copy_to_device(host[:, 200:800])
    device.copy_to_device(np.zeros((1024, 256), "u1").T)
    device[:, ::2].copy_to_host()
    device[::, :4].copy_to_host()
    dm.zeros((1024, 256), "u1").copy_to_device(device.T)
    found = [
        (event["name"], event["args"]["why"], event["args"].get("width"))
        for event in events(path)
        if event.get("cat") == "copy"
    ]
    rows, narrow = (
        "rows are wide, and few calls of the driver copy them",
        "rows of less than 512 bytes are cheaper to gather on",
    )
    wide = ("h2d 2d", rows, 600)
    assert found[1][0] == "h2d direct"
    assert found[2] == wide
    assert found[3][0] == "h2d packed"
    assert found[3][1].startswith(narrow)
    assert found[3][2] == 1
    assert found[4][0] == "d2h span"
    assert found[5][0] == "d2h packed"
    assert found[-1][0] == "d2d staged"
    assert found[-1][1] == "the driver would be called more than 64 times"


def test_why_a_copy_was_staged(traced):
    device = dm.to_device(SQUARE)
    device[:, ::2].copy_to_host()
    whole, strided = [event for event in traced() if "bytes" in event["args"]]
    assert whole["args"]["why"] == "pageable memory, copied by the driver, leaves most of the bus unused"
    assert (strided["args"]["width"], strided["args"]["rows"]) == (4, 2048)


def test_the_copy_threads_and_the_waits_are_there(staged, tmp_path, monkeypatch):
    path, begun, copy = tmp_path / "trace.json", threading.Event(), workers.copy_elements

    def together(*arguments: Any) -> None:
        """The caller could do it all before another thread gets a processor."""
        if threading.current_thread().name.startswith("devmem-staging-"):
            begun.set()
        else:
            assert begun.wait(patience())
        copy(*arguments)

    monkeypatch.setattr(workers, "copy_elements", together)
    staged(TRACE=str(path), STAGING_SLOT_BYTES=str(4 * MIB))
    source = np.zeros(20 * MIB, "u1")
    assert np.array_equal(dm.to_device(source).copy_to_host(), source)
    found = events(path)
    names = {event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"}
    assert any(name.startswith("devmem-staging-") for name in names.values())
    copiers = {names[event["tid"]] for event in found if event.get("cat") == "staging"}
    assert any(name.startswith("devmem-staging-") for name in copiers)
    assert {event["name"] for event in found if event.get("cat") == "wait"} >= {
        "wait for a slot",
        "wait for the stream",
    }
    [up] = [event for event in found if event["name"] == "h2d staged"]
    waits = [event for event in found if event.get("cat") == "wait" and up["ts"] <= event["ts"] <= up["ts"] + up["dur"]]
    assert sum(event["dur"] for event in waits) == pytest.approx(up["args"]["waited_us"], abs=1)


@pytest.mark.parametrize("name", ["no such folder/trace.json", "."])
def test_a_trace_that_cannot_be_written(with_settings, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    with_settings(TRACE=name)
    with pytest.raises(dm.ConfigError, match=rf"DEVMEM_TRACE='{name}' cannot be written"):
        dm.zeros(3)
    with_settings(TRACE=None)
    assert dm.zeros(3).tolist() == [0, 0, 0]


def test_the_trace_goes_on_after_close(traced):
    dm.to_device(SQUARE)
    dm.close()
    dm.to_device(SQUARE)
    assert len(traced()) == 2


SCRIPT = """
import os, sys, signal
import numpy as np
import devmem as dm
array = dm.to_device(np.arange(100))
"""


def test_a_process_that_dies_leaves_a_trace(python, tmp_path):
    path = tmp_path / "trace.json"
    done = python(SCRIPT + "array.copy_to_host()\nos.kill(os.getpid(), signal.SIGKILL)", TRACE=str(path))
    assert done.returncode == -9
    assert [event["name"] for event in events(path) if event.get("cat") == "copy"] == ["h2d direct", "d2h direct"]


def test_the_calls_that_were_chosen_as_the_device_opened_are_in_the_trace(device, python, tmp_path):
    if not device.info.facts.get("copy_calls"):
        pytest.skip("this backend has one call for each copy")
    path = tmp_path / "trace.json"
    done = python(SCRIPT, TRACE=str(path))
    assert (done.returncode, done.stderr) == (0, "")
    [chosen] = [event for event in events(path) if event["name"] == "calls chosen"]
    assert chosen["args"]["why"].startswith(("single copies", "several copies"))


def test_an_end_with_a_trace_is_quiet(python, tmp_path):
    path = tmp_path / "trace.json"
    done = python("import warnings\nwarnings.simplefilter('error')\n" + SCRIPT, TRACE=str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert [event["name"] for event in events(path) if event.get("cat") == "copy"] == ["h2d direct"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_child_of_a_fork_leaves_the_file_alone(python, tmp_path):
    """It has its own, if it copies at all."""
    path = tmp_path / "trace.json"
    script = SCRIPT + textwrap.dedent(
        """
        import warnings
        warnings.simplefilter("ignore")
        pid = os.fork()
        if pid == 0:
            try:
                array.copy_to_host()
            except (dm.ForkedError, dm.BackendUnavailable):
                pass
            from devmem._core.telemetry.trace import tracefile
            tracefile(os.environ["DEVMEM_TRACE"]).span("mine", "copy", 0.0, 1.0, {})
            os._exit(0)
        os.waitpid(pid, 0)
        array.copy_to_host()
        print(pid)
        """
    )
    done = python(script, TRACE=str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert [event["name"] for event in events(path) if event.get("cat") == "copy"] == ["h2d direct", "d2h direct"]
    own = path.with_name(f"trace.{done.stdout.strip()}.json")
    assert [event["name"] for event in events(own) if event["ph"] == "X"] == ["mine"]
    assert {event["pid"] for event in events(own)} == {int(done.stdout)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_child_of_a_fork_that_may_use_devices_has_a_file_of_its_own(python, tmp_path):
    """The parent had been in the file, and had no device open any more."""
    path = tmp_path / "trace.json"
    script = SCRIPT + textwrap.dedent(
        """
        import warnings
        warnings.simplefilter("ignore")
        del array
        dm.close()
        pid = os.fork()
        if pid == 0:
            try:
                dm.to_device([1, 2, 3])
            except (dm.ForkedError, dm.BackendUnavailable):
                os._exit(3)
            os._exit(0)
        print(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    done = python(script, TRACE=str(path))
    assert (done.returncode, done.stderr) == (0, "")
    pid, ended = done.stdout.split()
    if ended == "3":
        pytest.skip("the child of a fork may use no device here")
    assert ended == "0"
    assert len([event for event in events(path) if event["ph"] == "X"]) == 1
    own = path.with_name(f"trace.{pid}.json")
    assert [event["name"] for event in events(own) if event["ph"] == "X"] == ["h2d direct"]


@pytest.mark.parametrize("named", [False, True], ids=["no stream", "a stream"])
def test_the_trace_says_whether_several_copies_were_one_call(need, traced, recorded, named):
    need("batch_copy")
    arrays = [dm.pinned_array(1 << 20, "u1") for _ in range(4)]
    with recorded.during() as seen:
        dm.to_device_many(arrays, dm.stream() if named else 0)
    calls = [call.method for call in seen]
    whys = [event["args"]["why"] for event in traced() if event["name"] == "h2d batch"]
    if "copy_batch" in calls:
        assert calls.count("copy_batch") == 1
        assert whys == ["one call of the driver for several copies"]
    else:
        assert calls.count("copy") == 4
        assert len(whys) == 1
        assert whys[0].startswith("the driver is called for each: ")
