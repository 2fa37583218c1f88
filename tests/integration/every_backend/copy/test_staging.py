"""Large copies of pageable memory, by way of the ring: right in every layout, in order, and bounded."""

from __future__ import annotations

import os
import textwrap
from functools import partial

import numpy as np
import pytest
from waits import blocked, patience, together

import devmem as dm
from devmem.spi.types import MemoryKind

SLOT, SLOTS = 1024, 3
DATA = np.random.default_rng(1).integers(0, 256, (12, 20, 30), np.uint8).view("i2")

LAYOUTS = {
    "C": lambda a: a,
    "F": lambda a: a.T,
    "axes": lambda a: a.transpose(1, 0, 2),
    "rows": lambda a: a[::2, 1:],
    "columns": lambda a: a[..., ::3],
    "narrow": lambda a: a[:, :, 3:10],
    "reversed": lambda a: a[::-1, :, ::-2],
    "one axis": lambda a: a.ravel(),
    "new axes": lambda a: a[:, None, :, :, None],
}


#: An array of this shape without the last axis, in some layout.
SOURCES = {
    "contiguous": lambda a: np.ascontiguousarray(a[..., 0]),
    "turned": lambda a: np.asfortranarray(a[..., 0]),
    "with gaps": lambda a: a[..., 1],
    "reversed": lambda a: np.flip(a[..., 0]),
    "repeated": lambda a: np.broadcast_to(a[:1, ..., 0], a.shape[:-1]),
}


@pytest.fixture(autouse=True)
def staged(with_settings, need_kind):
    """Everything from 100 bytes on passes through a few small slots."""
    need_kind("pinned")
    with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(SLOT), STAGING_SLOTS=str(SLOTS), STAGING_THREADS="2")


def paths():
    return {path: numbers["copies"] for path, numbers in dm.transfer_stats().items()}


# -- right -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", LAYOUTS)
@pytest.mark.parametrize("here", SOURCES)
def test_into_every_layout_and_back(here, there):
    """The elements arrive, and not one byte between them is touched, on either side."""
    base = dm.to_device(np.full(DATA.shape, -9, "i2"))
    target = LAYOUTS[there](base) if there != "one axis" else base.reshape(-1)
    source = SOURCES[here](np.random.default_rng(2).integers(0, 99, (*target.shape, 2)).astype("i2"))
    target.copy_to_device(source)
    expected = np.full(DATA.shape, -9, "i2")
    LAYOUTS[there](expected)[...] = source
    assert np.array_equal(base.copy_to_host(), expected)
    room = np.full([2 * length for length in target.shape], -5, "i2")
    out = room[tuple(slice(0, 2 * length, 2) for length in target.shape)]
    target.copy_to_host(out)
    assert np.array_equal(out, source)
    out[...] = -5
    assert np.all(room == -5)
    assert {"h2d staged", "d2h staged"} <= set(paths())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_staged_both_ways(layout):
    host = LAYOUTS[layout](DATA)
    array = dm.to_device(host)
    assert np.array_equal(array.copy_to_host(), host)
    assert paths().get("h2d staged") == paths().get("d2h staged") == 1


def test_small_and_page_locked_arrays_go_directly():
    pinned = dm.pinned_array_like(DATA)
    pinned[...] = DATA
    array = dm.to_device(pinned)
    array.copy_to_host(pinned)
    dm.to_device(np.zeros(99, "u1"))
    assert not {path for path in paths() if path.endswith("staged")}
    assert np.array_equal(pinned, DATA)


def test_elements_that_no_slot_holds():
    wide = np.frombuffer(DATA.tobytes()[: 3 * (SLOT + 1)], f"V{SLOT + 1}")
    assert np.array_equal(dm.to_device(wide).copy_to_host(), wide)
    assert "h2d staged" not in paths()


def test_mapped_files_are_staged_both_ways(tmp_path):
    file = np.memmap(tmp_path / "data", "i2", "w+", shape=DATA.shape)
    file[...] = DATA
    array = dm.to_device(file)
    array[...] = DATA[::-1]
    array.copy_to_host(file)
    assert np.array_equal(np.fromfile(tmp_path / "data", "i2").reshape(DATA.shape), DATA[::-1])


def test_a_read_only_source():
    source = np.frombuffer(DATA.tobytes(), "i2")
    assert np.array_equal(dm.to_device(source).copy_to_host(), source)


# -- order -------------------------------------------------------------------------------------------------------------


def test_later_work_never_overtakes_a_block(need, hold, in_background):
    need("hold")
    stream = dm.stream()
    array, back = dm.zeros(DATA.shape, "i2"), dm.zeros(DATA.shape, "i2")
    dm.synchronize()

    def work():
        array.copy_to_device(DATA, stream=stream)
        back.copy_to_device(array, stream=stream)
        array.fill(7, stream=stream)

    with hold(stream) as latch:
        done = in_background(work)
        done.wait(0.1)  # it waits where its slots are all on the held stream; there is nothing to be seen from here
        latch.release()
        assert done.wait(patience())
    stream.synchronize()
    assert not done.errors
    assert np.array_equal(back.copy_to_host(), DATA)
    assert np.all(array.copy_to_host() == 7)


def test_a_download_takes_what_was_there_when_it_was_called(need, hold, in_background):
    need("hold")
    stream = dm.stream()
    array = dm.to_device(DATA)
    back = np.zeros_like(DATA)
    dm.synchronize()
    with hold(stream) as latch:
        done = in_background(lambda: array.copy_to_host(back, stream=stream))
        blocked(done, "it was complete before the stream went on")
        latch.release()
        assert done.wait(patience())
        assert not done.errors
        array.fill(7, stream=stream)
    stream.synchronize()
    assert np.array_equal(back, DATA)


def test_a_held_stream_does_not_stop_another(need, hold):
    need("hold")
    held, other = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    small = DATA.ravel()[: SLOTS * SLOT // 2]
    one, two = dm.zeros(small.shape, "i2"), dm.zeros(DATA.shape, "i2")
    back = np.zeros_like(DATA)
    dm.synchronize()
    with hold(held) as latch:
        one.copy_to_device(small, stream=held)  # every slot is now on the held stream
        two.copy_to_device(DATA, stream=other)
        two.copy_to_host(back, stream=other)
        assert np.array_equal(back, DATA)
        latch.release()
    held.synchronize()
    assert np.array_equal(one.copy_to_host(), small)


def test_the_source_is_the_callers_again_when_an_upload_returns(need, hold):
    need("hold")
    stream = dm.stream()
    source = DATA.ravel()[: SLOTS * SLOT // 2].copy()
    array = dm.zeros(source.shape, "i2")
    dm.synchronize()
    with hold(stream) as latch:
        array.copy_to_device(source, stream=stream)
        keep = source.copy()
        source[...] = -1
        latch.release()
    stream.synchronize()
    assert np.array_equal(array.copy_to_host(), keep)


def test_a_captured_stream_goes_directly(device, seems_to_capture):
    stream = dm.stream()
    array = dm.zeros(DATA.shape, "i2")
    source = DATA.copy()
    before = paths().get("h2d staged", 0)
    with seems_to_capture(stream):
        array.copy_to_device(source, stream=stream)
    stream.synchronize()
    assert paths().get("h2d staged", 0) == before
    assert np.array_equal(array.copy_to_host(), DATA)


# -- threads, and the end ----------------------------------------------------------------------------------------------


def test_four_threads_up_and_down(device):
    backend = device.backend

    def work(seed):
        rng = np.random.default_rng(seed)
        with dm.use_backend(backend):
            stream = dm.stream() if seed % 2 else 0
            for _ in range(15):
                sent = rng.integers(0, 256, int(rng.integers(100, 9000)), np.uint8)
                array = dm.to_device(sent, stream=stream)
                if seed == 3:
                    under_way = dm.copy_async(array, stream=stream)
                    again = dm.copy_async(array, stream=stream)
                    assert np.array_equal(again.result(), sent)
                    assert np.array_equal(under_way.result(), sent)
                assert np.array_equal(array.copy_to_host(stream=stream), sent)

    together(*(partial(work, seed) for seed in range(4)))


def test_bounded_page_locked_memory(recorded, with_settings):
    """However much passes through, there are never more slots than were asked for."""
    sent = np.random.default_rng(3).integers(0, 256, 200 * SLOT, np.uint8)
    array = dm.to_device(sent)
    assert np.array_equal(array.copy_to_host(), sent)
    blocks = recorded.drivers[dm.current_device().ordinal].blocks().values()
    pinned = [nbytes for nbytes, kind in blocks if kind is MemoryKind.PINNED]
    assert 0 < sum(pinned) <= SLOTS * SLOT
    assert set(pinned) == {SLOT}
    dm.close()
    assert all(
        kind is not MemoryKind.PINNED for driver in recorded.drivers.values() for _, kind in driver.blocks().values()
    )


@pytest.mark.parametrize("end", ["close", "reset"])
def test_the_device_is_closed_while_slots_are_in_use(need, hold, end):
    stream = dm.stream()
    array = dm.to_device(DATA)
    back = np.zeros(DATA.shape, "i2")
    array.copy_to_device(DATA, stream=stream)
    small = array.reshape(-1)[: SLOT // 2]
    room = np.zeros(small.shape, "i2")
    under_way = dm.copy_async(small, room, stream=stream)
    if end == "close":
        dm.close()
    else:
        dm.current_device().reset()
    with pytest.raises(dm.ClosedError):
        under_way.result()
    again = dm.to_device(DATA)
    assert np.array_equal(again.copy_to_host(back), DATA)


SCRIPT = """
import gc, os, sys, threading
import numpy as np
import devmem as dm
data = np.arange(1 << 20, dtype="i4")
there = dm.to_device(data)
assert np.array_equal(there.copy_to_host(), data)
names = [thread.name for thread in threading.enumerate()]
assert any(name.startswith("devmem-staging") for name in names), names
under_way = dm.copy_async(there)
"""

BIG = {"STAGING_SLOT_BYTES": str(2 << 20), "STAGING_THRESHOLD": "4096"}


def test_the_interpreter_ends_with_workers_there(python):
    done = python(SCRIPT + "\nprint('end')", **BIG)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_with_workers_there(python):
    script = SCRIPT + textwrap.dedent(
        """
        import faulthandler, warnings
        warnings.simplefilter("ignore")
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(30, exit=True)
            try:
                under_way.result()
            except dm.ForkedError:
                print("child: forked")
            del under_way, there
            gc.collect()
            sys.exit(0)
        _, status = os.waitpid(pid, 0)
        print("child exited with", os.waitstatus_to_exitcode(status))
        assert np.array_equal(under_way.result(), data)
        assert np.array_equal(dm.to_device(data).copy_to_host(), data)
        """
    )
    done = python(script, **BIG)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["child: forked", "child exited with 0"]
