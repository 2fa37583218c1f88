"""Order on the host backend. Nothing sleeps: work is held by latches and let go."""

from __future__ import annotations

import ctypes
import random
import signal
import threading
from queue import SimpleQueue

import pytest
from waits import patience, together

from devmem.backends.host import driver as host_driver
from devmem.backends.host.hooks import HostBackend
from devmem.backends.host.stream_engine import SMALL, StreamEngine
from devmem.backends.host.streams import Job, read_bytes
from devmem.spi.errors import BackendError, DeviceLost
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Box, CopyKind, MemoryKind
from devmem.toolkit.host_functions import this_thread

H2D, D2H, D2D = CopyKind.H2D, CopyKind.D2H, CopyKind.D2D
LATE = patience()  # seconds after which something that should have happened has not


def open_device(ordinal=0, devices=1):
    backend = HostBackend()
    backend.configure({"strict": True, "devices": devices})
    return backend.open(ordinal)


@pytest.fixture
def driver():
    driver = open_device()
    token = driver.enter()
    yield driver
    driver.exit(token)
    driver.close()


def read(driver, ptr, nbytes, stream):
    out = ctypes.create_string_buffer(nbytes)
    driver.copy(ctypes.addressof(out), ptr, nbytes, D2H, stream, blocking=True)
    return out.raw


def in_thread(driver, function):
    """Run the function in a thread where the driver is current; return the thread and an event set at its end."""
    ended = threading.Event()

    def run():
        token = driver.enter()
        function()
        driver.exit(token)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    return ended


def ends_of_threads(monkeypatch):
    """A queue in which something is put when a stream's thread ends that starts from now on."""
    ended, work = SimpleQueue(), StreamEngine._work

    def watched(self, jobs):
        work(self, jobs)
        ended.put(True)

    monkeypatch.setattr(StreamEngine, "_work", watched)
    return ended


def test_pinned_sources_are_read_later(driver):
    stream = driver.stream_create(0, True)
    pinned = driver.alloc(8, stream, MemoryKind.PINNED)
    ptr = driver.alloc(8, stream)
    ctypes.memmove(pinned, b"too soon", 8)
    hold = driver.hold(stream)
    assert driver.copy(ptr, pinned, 8, H2D, stream, blocking=False) is True
    ctypes.memmove(pinned, b"in time!", 8)
    driver.release(hold)
    assert read(driver, ptr, 8, stream) == b"in time!"


def test_pageable_sources_are_read_before_return(driver):
    stream = driver.stream_create(0, True)
    ptr = driver.alloc(8, stream)
    source = ctypes.create_string_buffer(b"original", 8)
    hold = driver.hold(stream)
    assert driver.copy(ptr, ctypes.addressof(source), 8, H2D, stream, blocking=False) is False
    source.raw = b"changed!"
    assert not driver.stream_query(stream)
    driver.release(hold)
    assert read(driver, ptr, 8, stream) == b"original"


def test_pinned_destinations_are_written_later(driver):
    stream = driver.stream_create(0, True)
    ptr = driver.alloc(8, stream)
    driver.fill(ptr, 0x41, 1, 8, stream)
    driver.stream_synchronize(stream)
    pinned = driver.alloc(8, stream, MemoryKind.PINNED)
    ctypes.memmove(pinned, b"--------", 8)
    hold = driver.hold(stream)
    assert driver.copy(pinned, ptr, 8, D2H, stream, blocking=False) is True
    assert ctypes.string_at(pinned, 8) == b"--------"
    driver.release(hold)
    driver.stream_synchronize(stream)
    assert ctypes.string_at(pinned, 8) == b"AAAAAAAA"


@pytest.mark.parametrize("blocking", [True, False])
def test_pageable_destinations_are_complete_on_return(driver, blocking):
    stream = driver.stream_create(0, True)
    ptr = driver.alloc(4, stream)
    hold = driver.hold(stream)
    driver.fill(ptr, 7, 1, 4, stream)
    out = ctypes.create_string_buffer(4)

    def download():
        assert driver.copy(ctypes.addressof(out), ptr, 4, D2H, stream, blocking=blocking) is False

    ended = in_thread(driver, download)
    assert not ended.is_set()
    driver.release(hold)
    assert ended.wait(LATE)
    assert out.raw == b"\7\7\7\7"


def test_order_on_one_stream(driver):
    stream = driver.stream_create(0, True)
    a, b = driver.alloc(4, stream), driver.alloc(4, stream)
    hold = driver.hold(stream)
    driver.fill(a, 1, 1, 4, stream)
    driver.copy(b, a, 4, D2D, stream, blocking=False)
    driver.fill(a, 2, 1, 4, stream)
    driver.release(hold)
    assert read(driver, b, 4, stream) == b"\1\1\1\1"
    assert read(driver, a, 4, stream) == b"\2\2\2\2"


def test_streams_run_beside_each_other(driver):
    held, free = driver.stream_create(0, False), driver.stream_create(0, False)
    hold = driver.hold(held)
    ptr = driver.alloc(4, free)
    driver.fill(ptr, 3, 1, 4, free)
    assert read(driver, ptr, 4, free) == b"\3\3\3\3"
    assert not driver.stream_query(held)
    driver.release(hold)
    driver.synchronize()
    assert driver.stream_query(held)


def test_large_work_runs_on_an_idle_stream(driver):
    stream = driver.stream_create(0, True)
    n = 1 << 20
    a, b = driver.alloc(n, stream), driver.alloc(n, stream)
    driver.fill(a, 0x0102, 2, n // 2, stream)
    driver.copy(b, a, n, D2D, stream, blocking=False)
    assert read(driver, b, n, stream) == b"\2\1" * (n // 2)


@pytest.mark.parametrize("busy", [False, True])
def test_a_large_pageable_source_is_copied_again_only_where_the_stream_is_busy(driver, monkeypatch, busy):
    n, read_ahead = SMALL + 256, []
    monkeypatch.setattr(host_driver, "read_bytes", lambda *copy: read_ahead.append(copy) or read_bytes(*copy))
    stream = driver.stream_create(0, True)
    ptr = driver.alloc(n, stream)
    source = ctypes.create_string_buffer(b"original" * (n // 8), n)
    hold = driver.hold(stream) if busy else None
    assert driver.copy(ptr, ctypes.addressof(source), n, H2D, stream, blocking=False) is False
    source.raw = b"changed!" * (n // 8)
    if hold is not None:
        driver.release(hold)
    assert read(driver, ptr, n, stream) == b"original" * (n // 8)
    assert len(read_ahead) == busy


class TestLegacy:
    def test_waits_for_blocking_streams(self, driver):
        stream = driver.stream_create(0, False)
        hold = driver.hold(stream)
        event = driver.event_create(False)
        driver.event_record(event, LEGACY_STREAM)
        assert not driver.event_query(event)
        driver.release(hold)
        driver.event_synchronize(event)
        assert driver.event_query(event)

    def test_is_waited_for_by_blocking_streams(self, driver):
        stream = driver.stream_create(0, False)
        hold = driver.hold(LEGACY_STREAM)
        event = driver.event_create(False)
        driver.event_record(event, stream)
        assert not driver.event_query(event)
        driver.release(hold)
        driver.event_synchronize(event)

    def test_means_nothing_to_non_blocking_streams(self, driver):
        stream = driver.stream_create(0, True)
        event = driver.event_create(False)
        hold = driver.hold(LEGACY_STREAM)
        driver.event_record(event, stream)
        assert driver.event_query(event)
        driver.release(hold)
        driver.synchronize()
        hold = driver.hold(stream)
        driver.event_record(event, LEGACY_STREAM)
        assert driver.event_query(event)
        driver.release(hold)

    def test_orders_two_blocking_streams(self, driver):
        first, second = driver.stream_create(0, False), driver.stream_create(0, False)
        ptr = driver.alloc(4, first)
        hold = driver.hold(first)
        driver.fill(ptr, 1, 1, 4, first)
        driver.fill(ptr, 2, 1, 4, LEGACY_STREAM)
        driver.fill(ptr, 3, 1, 4, second)
        driver.release(hold)
        driver.synchronize()
        assert read(driver, ptr, 4, LEGACY_STREAM) == b"\3\3\3\3"

    def test_cannot_be_destroyed(self, driver):
        for stream in (LEGACY_STREAM, PER_THREAD_STREAM):
            with pytest.raises(BackendError, match="INVALID_HANDLE"):
                driver.stream_destroy(stream)


class TestPerThread:
    def test_threads_have_streams_of_their_own(self, driver):
        hold = driver.hold(PER_THREAD_STREAM)
        ended = in_thread(driver, lambda: driver.stream_synchronize(PER_THREAD_STREAM))
        assert ended.wait(LATE)
        assert not driver.stream_query(PER_THREAD_STREAM)
        driver.release(hold)
        driver.stream_synchronize(PER_THREAD_STREAM)

    def test_legacy_waits_for_them(self, driver):
        hold = driver.hold(PER_THREAD_STREAM)
        event = driver.event_create(False)
        driver.event_record(event, LEGACY_STREAM)
        assert not driver.event_query(event)
        driver.release(hold)
        driver.event_synchronize(event)

    def test_streams_of_dead_threads_end(self, driver):
        def touch():
            driver.release(driver.hold(PER_THREAD_STREAM))
            driver.stream_synchronize(PER_THREAD_STREAM)

        for _ in range(20):
            together(lambda: (driver.enter(), touch()))
        assert len(driver._engine._per_thread) <= 2


class TestHandles:
    @pytest.mark.parametrize("handle", [0, -1, 3, 1 << 40])
    def test_unknown_streams_are_refused(self, driver, handle):
        ptr = driver.alloc(4, LEGACY_STREAM)
        event = driver.event_create(False)
        calls = [
            lambda: driver.fill(ptr, 0, 1, 4, handle),
            lambda: driver.copy(ptr, 1 << 20, 4, H2D, handle, blocking=True),
            lambda: driver.copy_strided(Box(ptr, 1, 4, 1 << 20, 1, 4, 1, 4, 1), H2D, handle, blocking=True),
            lambda: driver.stream_synchronize(handle),
            lambda: driver.stream_query(handle),
            lambda: driver.stream_destroy(handle),
            lambda: driver.stream_wait(handle, event),
            lambda: driver.event_record(event, handle),
            lambda: driver.hold(handle),
            lambda: driver.alloc_async(4, handle),
            lambda: driver.free_async(ptr, 4, handle),
        ]
        for call in calls:
            with pytest.raises(BackendError) as caught:
                call()
            assert caught.value.name == "INVALID_HANDLE"
            assert caught.value.backend == "host"
            assert caught.value.code == 400
        driver.free(ptr, 4, LEGACY_STREAM)

    def test_destroyed_streams_are_refused(self, driver):
        stream = driver.stream_create(0, False)
        driver.stream_destroy(stream)
        for call in (driver.stream_destroy, driver.stream_synchronize, driver.hold):
            with pytest.raises(BackendError, match="INVALID_HANDLE"):
                call(stream)

    def test_streams_of_another_device(self):
        one, two = open_device(0, 2), open_device(1, 2)
        token = one.enter()
        stream = one.stream_create(0, False)
        inner = two.enter()
        with pytest.raises(BackendError, match="INVALID_HANDLE"):
            two.stream_synchronize(stream)
        assert two.stream_create(0, False) != stream
        two.exit(inner)
        one.exit(token)
        one.close()
        two.close()

    def test_handles_are_not_used_twice(self, driver):
        seen = set()
        for _ in range(100):
            stream = driver.stream_create(0, False)
            assert stream > 2
            assert stream not in seen
            seen.add(stream)
            driver.stream_destroy(stream)

    def test_destroyed_streams_finish_their_work(self, driver):
        stream = driver.stream_create(0, True)
        ptr = driver.alloc(4, stream)
        event = driver.event_create(False)
        hold = driver.hold(stream)
        driver.fill(ptr, 9, 1, 4, stream)
        driver.event_record(event, stream)
        driver.stream_destroy(stream)
        driver.release(hold)
        driver.event_synchronize(event)
        assert read(driver, ptr, 4, LEGACY_STREAM) == b"\x09" * 4

    def test_threads_of_destroyed_streams_end(self, driver, monkeypatch):
        ended = ends_of_threads(monkeypatch)
        stream = driver.stream_create(0, True)
        driver.release(driver.hold(stream))
        driver.stream_destroy(stream)
        assert ended.get(timeout=LATE)

    def test_a_hold_is_released_once(self, driver):
        hold = driver.hold(LEGACY_STREAM)
        driver.release(hold)
        with pytest.raises(BackendError, match="INVALID_HANDLE"):
            driver.release(hold)


class TestEvents:
    def test_an_unrecorded_event_is_complete(self, driver):
        event = driver.event_create(True)
        assert driver.event_query(event)
        driver.event_synchronize(event)
        driver.stream_wait(LEGACY_STREAM, event)
        assert driver.stream_query(LEGACY_STREAM)
        with pytest.raises(BackendError, match="INVALID_HANDLE"):
            driver.event_elapsed(event, event)

    def test_captures_what_was_enqueued_and_no_more(self, driver):
        stream = driver.stream_create(0, True)
        event = driver.event_create(False)
        first = driver.hold(stream)
        driver.event_record(event, stream)
        second = driver.hold(stream)
        assert not driver.event_query(event)
        driver.release(first)
        driver.event_synchronize(event)
        assert driver.event_query(event)
        assert not driver.stream_query(stream)
        driver.release(second)

    def test_an_event_recorded_again_is_the_latest_record(self, driver):
        stream = driver.stream_create(0, True)
        event = driver.event_create(True)
        driver.event_record(event, stream)
        assert driver.event_query(event)
        hold = driver.hold(stream)
        driver.event_record(event, stream)
        assert not driver.event_query(event)
        driver.event_record(event, LEGACY_STREAM)
        assert driver.event_query(event)
        driver.release(hold)

    def test_makes_another_stream_wait(self, driver):
        one, two = driver.stream_create(0, True), driver.stream_create(0, True)
        ptr = driver.alloc(4, one)
        event = driver.event_create(False)
        hold = driver.hold(one)
        driver.fill(ptr, 1, 1, 4, one)
        driver.event_record(event, one)
        driver.stream_wait(two, event)
        driver.event_destroy(event)
        driver.fill(ptr, 2, 1, 4, two)
        assert not driver.stream_query(two)
        driver.release(hold)
        assert read(driver, ptr, 4, two) == b"\2\2\2\2"

    def test_of_another_device_can_be_waited_for(self):
        one, two = open_device(0, 2), open_device(1, 2)
        token = one.enter()
        event = one.event_create(False)
        stream = one.stream_create(0, True)
        hold = one.hold(stream)
        one.event_record(event, stream)
        inner = two.enter()
        two.stream_wait(LEGACY_STREAM, event)
        assert not two.stream_query(LEGACY_STREAM)
        with pytest.raises(BackendError, match="INVALID_HANDLE"):
            two.event_query(event)
        two.exit(inner)
        one.release(hold)
        inner = two.enter()
        two.synchronize()
        assert two.stream_query(LEGACY_STREAM)
        two.exit(inner)
        one.exit(token)
        one.close()
        two.close()

    def test_of_a_closed_device_delays_no_stream(self):
        one, two = open_device(0, 2), open_device(1, 2)
        one.enter()
        event = one.event_create(False)
        one.hold(LEGACY_STREAM)
        one.event_record(event, LEGACY_STREAM)
        token = two.enter()
        two.stream_wait(LEGACY_STREAM, event)
        one.close()
        two.synchronize()
        two.exit(token)
        two.close()

    def test_elapsed_time_needs_both_events_complete(self, driver):
        stream = driver.stream_create(0, True)
        start, end = driver.event_create(True), driver.event_create(True)
        driver.event_record(start, stream)
        hold = driver.hold(stream)
        driver.event_record(end, stream)
        with pytest.raises(BackendError) as caught:
            driver.event_elapsed(start, end)
        assert caught.value.name == "NOT_READY"
        driver.release(hold)
        driver.event_synchronize(end)
        assert 0 < driver.event_elapsed(start, end) < 1000 * LATE
        assert driver.event_elapsed(end, start) < 0

    def test_events_without_timing_have_no_elapsed_time(self, driver):
        event = driver.event_create(False)
        driver.event_record(event, LEGACY_STREAM)
        with pytest.raises(BackendError, match="INVALID_HANDLE"):
            driver.event_elapsed(event, event)

    def test_destroyed_events_are_refused(self, driver):
        event = driver.event_create(False)
        driver.event_destroy(event)
        calls = [
            lambda: driver.event_destroy(event),
            lambda: driver.event_query(event),
            lambda: driver.event_synchronize(event),
            lambda: driver.event_record(event, LEGACY_STREAM),
            lambda: driver.event_elapsed(event, event),
            lambda: driver.stream_wait(LEGACY_STREAM, event),
        ]
        for call in calls:
            with pytest.raises(BackendError, match="INVALID_HANDLE"):
                call()


class TestStreamOrdered:
    def test_the_block_comes_back_when_the_stream_passes(self, driver):
        stream = driver.stream_create(0, True)
        free, _ = driver.memory_info()
        ptr = driver.alloc_async(1 << 20, stream)
        driver.fill(ptr, 1, 1, 1 << 20, stream)
        driver.stream_synchronize(stream)
        hold = driver.hold(stream)
        driver.free_async(ptr, 1 << 20, stream)
        assert driver.memory_info()[0] == free - (1 << 20)
        with pytest.raises(BackendError, match="INVALID_ADDRESS"):
            driver.fill(ptr, 1, 1, 1, stream)
        with pytest.raises(BackendError, match="INVALID_ADDRESS"):
            driver.free_async(ptr, 1 << 20, stream)
        driver.release(hold)
        driver.stream_synchronize(stream)
        assert driver.memory_info()[0] == free

    def test_inline_when_idle(self, driver):
        ptr = driver.alloc_async(100, LEGACY_STREAM)
        driver.free_async(ptr, 100, LEGACY_STREAM)
        assert driver.alloc_async(100, LEGACY_STREAM) == ptr
        assert not driver.pool_cached()
        driver.pool_trim(0)

    def test_work_enqueued_before_is_valid(self, driver):
        stream = driver.stream_create(0, True)
        a, b = driver.alloc_async(8, stream), driver.alloc(8, stream)
        hold = driver.hold(stream)
        driver.fill(a, 5, 1, 8, stream)
        driver.copy(b, a, 8, D2D, stream, blocking=False)
        driver.free_async(a, 8, stream)
        driver.release(hold)
        assert read(driver, b, 8, stream) == b"\5" * 8


def test_free_waits_for_every_stream(driver):
    stream = driver.stream_create(0, True)
    ptr = driver.alloc(4, stream)
    hold = driver.hold(stream)
    driver.fill(ptr, 1, 1, 4, stream)
    ended = in_thread(driver, lambda: driver.free(ptr, 4, LEGACY_STREAM))
    assert not ended.is_set()
    driver.release(hold)
    assert ended.wait(LATE)
    assert driver.live_counts()[1] == 0


def test_close_abandons_what_is_held(driver, monkeypatch):
    ended = ends_of_threads(monkeypatch)
    stream = driver.stream_create(0, False)
    ptr = driver.alloc(4, stream)
    driver.hold(stream)
    driver.fill(ptr, 1, 1, 4, stream)
    driver.close()
    assert ended.get(timeout=LATE)


def test_close_frees_those_who_wait(driver, monkeypatch):
    driver.hold(LEGACY_STREAM)
    errors = []
    waiting = threading.Event()
    original = Job.wait

    def wait_for(job):
        if not this_thread.runs_host_function:
            waiting.set()
        original(job)

    monkeypatch.setattr(Job, "wait", wait_for)

    def wait():
        try:
            driver.synchronize()
        except BackendError as error:
            errors.append(error.name)

    ended = in_thread(driver, wait)
    assert waiting.wait(LATE)
    driver.close()
    assert ended.wait(LATE)
    assert errors == ["DEVICE_CLOSED"]


def test_a_failing_job_loses_the_device(driver):
    def fail():
        raise ZeroDivisionError

    driver._engine.enqueue(Job(driver._engine.legacy, fail))
    with pytest.raises(DeviceLost, match="ZeroDivisionError"):
        driver.stream_synchronize(LEGACY_STREAM)
    with pytest.raises(DeviceLost):
        driver.hold(LEGACY_STREAM)


def test_an_interrupted_wait_withdraws_its_job(driver, monkeypatch):
    stream = driver.stream_create(0, True)
    ptr = driver.alloc(4, stream)
    hold = driver.hold(stream)
    driver.fill(ptr, 1, 1, 4, stream)
    out = ctypes.create_string_buffer(b"----", 4)

    def interrupt(job):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(driver._engine, "_await", interrupt)
        with pytest.raises(KeyboardInterrupt):
            driver.copy(ctypes.addressof(out), ptr, 4, D2H, stream, blocking=True)
    driver.release(hold)
    driver.stream_synchronize(stream)
    assert out.raw == b"----"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_a_wait_can_be_interrupted(driver):
    hold = driver.hold(LEGACY_STREAM)
    interrupted = threading.Event()
    main = threading.get_ident()

    def handler(number, frame):
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def interrupt():
        # Again and again: Python misses a signal that comes just before it begins to wait for a lock.
        while not interrupted.wait(0.02):
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, handler)
    thread = threading.Thread(target=interrupt, daemon=True)
    try:
        with pytest.raises(KeyboardInterrupt):
            start_and(thread, driver.synchronize)
    finally:
        thread.join(patience())
        signal.signal(signal.SIGINT, before)
    driver.release(hold)
    driver.synchronize()


def test_an_interrupt_reaches_a_function_that_was_just_taken(driver):
    """The stream's thread stands still between taking it and calling it, for as long as the interrupt takes."""
    engine, taken, may_go = driver._engine, threading.Event(), threading.Event()

    class Function:
        asked = False

        def interrupt(self):
            self.asked = True

    def stand_still():
        taken.set()
        assert may_go.wait(LATE)

    function = Function()
    stream = engine.streams[driver.stream_create(0, True)]
    job = engine.enqueue(Job(stream, stand_still, function=function))
    assert taken.wait(LATE)
    engine.interrupt(job, KeyboardInterrupt())
    may_go.set()
    engine.wait(job)
    assert function.asked
    assert job.function is None


def start_and(thread, function):
    thread.start()
    function()


def test_many_threads_enqueue_without_deadlock_or_loss(driver):
    """Threads that enqueue on all kinds of streams, with events between them: no deadlock, nothing lost."""
    streams = [driver.stream_create(0, n % 2 == 0) for n in range(4)] + [LEGACY_STREAM, PER_THREAD_STREAM]
    failures = []

    def work(seed):
        choose = random.Random(seed)
        n = choose.choice([16, 4096, 200_000])
        pinned = driver.alloc(n, LEGACY_STREAM, MemoryKind.PINNED)
        for turn in range(60):
            stream, other = choose.choices(streams, k=2)
            ptr = driver.alloc_async(n, stream)
            value = (seed + turn) % 251
            driver.fill(ptr, value, 1, n, stream)
            event = driver.event_create(False)
            driver.event_record(event, stream)
            driver.stream_wait(other, event)
            driver.event_destroy(event)
            driver.copy(pinned, ptr, n, D2H, other, blocking=choose.random() < 0.5)
            driver.stream_synchronize(other)
            if ctypes.string_at(pinned, n) != bytes([value]) * n:
                failures.append((seed, turn))
            driver.free_async(ptr, n, other)
        driver.free(pinned, n, LEGACY_STREAM, MemoryKind.PINNED)

    ends = [in_thread(driver, lambda s=seed: work(s)) for seed in range(6)]
    assert all(end.wait(LATE) for end in ends)
    assert not failures
    driver.synchronize()
    assert driver.live_counts()[:2] == (0, 0)
    assert driver.memory_info()[0] == driver.memory_info()[1]


def test_many_threads_on_one_stream(driver):
    stream = driver.stream_create(0, False)
    ptrs = [driver.alloc(1 << 17, stream) for _ in range(4)]

    def work(ptr, value):
        for _ in range(50):
            driver.fill(ptr, value, 1, 1 << 17, stream)
            assert read(driver, ptr, 1 << 17, stream) == bytes([value]) * (1 << 17)

    ends = [in_thread(driver, lambda p=ptr, v=value: work(p, v)) for value, ptr in enumerate(ptrs)]
    assert all(end.wait(LATE) for end in ends)
