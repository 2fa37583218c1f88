"""Another library captures a graph in the default mode: what devmem does by the way, on any thread, must not spoil it."""

import ctypes
import gc
import mmap
import threading
import warnings

import numpy as np
import pytest
from vendors import exchange_capture_mode
from waits import patience

import devmem as dm
from devmem.spi.errors import BackendError
from devmem.testing import emulator, hold

#: The vendor's library, and what its functions for streams, captures and graphs are called.
LIBRARIES = {
    "cuda": ("libcuda.so.1", "cuStreamCreate", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphDestroy"),
    "roc": (
        "libamdhip64.so",
        "hipStreamCreateWithFlags",
        "hipStreamBeginCapture",
        "hipStreamEndCapture",
        "hipGraphDestroy",
    ),
}
PREFIXES = {"cuda": "cu", "roc": "hip"}
NON_BLOCKING, INVALIDATED = 1, 901
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
DATA = np.arange(1000, dtype=np.int32)


class Foreign:
    """A capture on a thread of its own, on a stream that devmem has never seen, or on `of`, which is one of devmem's."""

    of = None

    def __init__(self, device, library, create, begin, end, destroy):
        calls = ctypes.CDLL(library)
        create, begin, self.end, self.destroy = (getattr(calls, name) for name in (create, begin, end, destroy))
        self.asked, self.told, self.result, self.nodes = threading.Event(), threading.Event(), None, None
        count = getattr(calls, "cuGraphGetNodes", None)
        stream, graph = self.stream, _ = ctypes.c_void_p(), ctypes.c_void_p()

        def run():
            with dm.use_backend(device.backend), device.entered():
                if self.of is None:
                    assert create(ctypes.byref(stream), NON_BLOCKING) == 0
                else:
                    stream.value = device.opened().handle.stream_numbers.get(self.of.handle, self.of.handle)
                assert begin(stream, GLOBAL) == 0
                self.told.set()
                assert self.asked.wait(patience())
                self.result = self.end(stream, ctypes.byref(graph))
                if not self.result:
                    self.nodes, found = 0, ctypes.c_size_t()
                    if count is not None:  # not every emulated library has it
                        assert count(graph, None, ctypes.byref(found)) == 0
                        self.nodes = found.value
                    assert self.destroy(graph) == 0

        self.thread = threading.Thread(target=run)

    def __enter__(self):
        self.thread.start()
        assert self.told.wait(patience())
        return self

    def __exit__(self, *_):
        self.asked.set()
        self.thread.join(patience())


@pytest.fixture
def foreign(device):
    if device.backend not in LIBRARIES:
        pytest.skip(f"{device} is no vendor's, so no other library captures graphs on it")
    gc.collect()  # what tests before left in cycles may be memory whose end waits for the device, which a capture forbids
    dm.trim()
    dm.synchronize()
    yield Foreign(device, *LIBRARIES[device.backend])
    dm.close()  # memory that a graph may use stays until then, and later tests count what is live


#: What cannot be captured, of the `Captured` things.
REFUSED = {
    "synchronize": lambda w: w.stream.synchronize(),
    "query": lambda w: w.stream.query(),
    "close": lambda w: w.stream.close(),
    "add_callback": lambda w: w.stream.add_callback(print),
    "pageable upload": lambda w: w.array.copy_to_device(DATA, stream=w.stream),
    "pageable download": lambda w: w.array.copy_to_host(stream=w.stream),
    "pageable rows": lambda w: w.array.reshape(2, 500)[:, :250].copy_to_device(
        DATA.reshape(2, 500)[:, 250:], stream=w.stream
    ),
    "gathered upload": lambda w: w.array.copy_to_device(DATA[::-1], stream=w.stream),
    "many pageable ones": lambda w: dm.to_device_many([DATA, DATA[::2]], w.stream),
    "many, one of them pageable": lambda w: dm.to_device_many([w.locked, DATA], w.stream),
    "many, one of them to be gathered": lambda w: dm.to_device_many([w.locked, w.locked[::-1]], w.stream),
    "partly page-locked upload": lambda w: w.array.copy_to_device(w.partly, stream=w.stream),
    "partly page-locked download": lambda w: w.array.copy_to_host(w.partly, stream=w.stream),
    "in the background": lambda w: dm.copy_async(w.locked, w.array, stream=w.stream),
    "to the host in the background": lambda w: dm.copy_async(w.array, w.locked, stream=w.stream),
    "anew in the background": lambda w: dm.copy_async(w.locked, stream=w.stream),
    "made on another stream": lambda w: w.array.copy_to_device(w.elsewhere, stream=w.stream),
    "made on another stream, filled": lambda w: w.elsewhere.fill(0, stream=w.stream),
    "declared work on what another stream made": lambda w: w.elsewhere.record_stream(w.stream),
    "to wait for another stream": lambda w: w.stream.wait(w.other),
    "to wait for an event": lambda w: w.stream.wait(w.event),
    "lent to the capture": lambda w: w.elsewhere.__dlpack__(stream=w.stream.handle),
    "to be sent": lambda w: w.array.get_ipc_handle(),
    "prefetch": lambda w: dm.prefetch_managed([w.managed], stream=w.stream),
    "prefetch to a place": lambda w: dm.prefetch_managed([w.managed], numa_node=0, stream=w.stream),
    "discard": lambda w: dm.discard_managed([w.managed], stream=w.stream),
}
NEEDS = {
    "partly page-locked upload": ("host_register",),
    "partly page-locked download": ("host_register",),
    "to be sent": ("ipc",),
    "prefetch": ("managed",),
    "prefetch to a place": ("managed", "managed_places"),
    "discard": ("managed", "managed_places"),
}


class Captured:
    """What the calls use, ready before the capture; nothing runs."""

    def __init__(self, stream, needs):
        self.stream, self.other = stream, dm.stream(non_blocking=True)
        self.managed = dm.managed_array(1000) if "managed" in needs else None
        self.locked = dm.pinned_array_like(DATA)
        pages = np.zeros(3 * mmap.PAGESIZE, np.uint8)
        start = -pages.ctypes.data % mmap.PAGESIZE + mmap.PAGESIZE - DATA.nbytes // 2  # half of it in the next page
        self.partly = pages[start : start + DATA.nbytes].view(DATA.dtype)
        if "host_register" in needs:
            dm.register(self.partly[:500])
        self.elsewhere = dm.to_device(DATA)
        self.event = dm.event()
        self.event.record(self.other)
        self.array = dm.to_device(DATA, stream=stream)
        dm.to_device_many([DATA, DATA[::2]], stream)  # what it needs is there
        dm.to_device(DATA, stream=stream)
        dm.synchronize()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_is_refused_and_spoils_nothing(foreign, need, name):
    """By the verb, before anything of it is in the graph."""
    needs = NEEDS.get(name, ())
    need(*needs)
    foreign.of = stream = dm.stream(non_blocking=True)
    with dm.use_memory("driver" if name == "to be sent" else "pool"):
        ready = Captured(stream, needs)
        with foreign:
            with pytest.raises(dm.UnsupportedError, match=r"is capturing a graph|cannot discard"):
                REFUSED[name](ready)
            trimmed_meanwhile()
    assert (foreign.result, foreign.nodes) == (0, 0)
    assert not stream.closed
    stream.synchronize()
    assert np.array_equal(ready.array.copy_to_host(), DATA)
    if "host_register" in needs:
        dm.deregister(ready.partly[:500])


#: What cannot be captured of pageable memory of the host that is used in place, of a device array and page-locked memory.
IN_PLACE = {
    "read": lambda array, other, locked, stream: other.copy_to_device(array, stream=stream),
    "written": lambda array, other, locked, stream: array.copy_to_device(other, stream=stream),
    "rows": lambda array, other, locked, stream: other[::2].copy_to_device(array[::2], stream=stream),
    "download": lambda array, other, locked, stream: array.copy_to_host(locked, stream=stream),
    "upload": lambda array, other, locked, stream: array.copy_to_device(locked, stream=stream),
    "rows uploaded": lambda array, other, locked, stream: array.reshape(2, 500)[:, :250].copy_to_device(
        locked.reshape(2, 500)[:, :250], stream=stream
    ),
    "overlapping": lambda array, other, locked, stream: array[1:].copy_to_device(array[:-1], stream=stream),
    "pattern": lambda array, other, locked, stream: array.view("c16").fill(1j, stream=stream),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_pageable_memory_used_in_place_is_refused_and_spoils_nothing(monkeypatch, request, with_settings, name):
    monkeypatch.setenv("DEVMEM_EMULATOR_COHERENCE", "2")
    monkeypatch.setenv("HSA_XNACK", "1")
    with_settings()
    foreign = request.getfixturevalue("foreign")
    if not dm.current_device().info.coherence:
        pytest.skip("this device takes no addresses of the host's memory")
    foreign.of = stream = dm.stream(non_blocking=True)
    with dm.use_memory("pool"):
        array, other = dm.to_device(DATA.copy(), stream, copy=False), dm.to_device(DATA, stream)
        dm.to_device(DATA, stream)
        locked = dm.pinned_array_like(DATA)
        dm.synchronize()
        with foreign, pytest.raises(dm.UnsupportedError, match=r"is capturing a graph.*pageable"):
            IN_PLACE[name](array, other, locked, stream)
    assert (foreign.result, foreign.nodes) == (0, 0)
    stream.synchronize()
    assert np.array_equal(array.copy_to_host(), DATA)
    assert np.array_equal(other.copy_to_host(), DATA)


def trimmed_meanwhile():
    dm.memory_info()
    dm.trim()


@pytest.mark.parametrize("memory", ["driver", "pool", "stream_ordered"])
def test_memory_is_trimmed_while_another_library_captures_a_stream_of_ours(foreign, need, memory):
    if memory == "stream_ordered":
        need("stream_ordered")
    foreign.of = stream = dm.stream(non_blocking=True)
    with dm.use_memory(memory):
        arrays = [dm.to_device(DATA, stream=each) for each in (stream, 0, dm.stream())]
        dm.copy_async(DATA).result()  # by slots that grow
        with foreign:
            arrays.clear()
            gc.collect()
            dm.trim()
    assert foreign.result == 0


def uploads(stream, source):
    for _ in range(4):
        dm.to_device(source, stream=stream)
        stream.synchronize()


def test_uploads_on_a_stream_ask_for_the_earlier_ones(foreign):
    stream, source = dm.stream(), dm.pinned_array(DATA.shape, DATA.dtype)
    uploads(stream, source)  # what they need is there
    with foreign:
        uploads(stream, source)
    assert foreign.result == 0


@pytest.mark.parametrize("memory", ["driver", "pool", "driver's pool"])
def test_dropped_memory_is_freed(foreign, memory, device, need):
    if memory == "driver's pool":
        need("stream_ordered")
        memory = "stream_ordered"
    with dm.use_memory(memory):
        arrays = [dm.to_device(DATA) for _ in range(30)]
        pinned = [dm.pinned_array(1000) for _ in range(30)]
        with foreign:
            arrays.clear()
            pinned.clear()
            gc.collect()
            assert device.memory_info().pending
            dm.stream()  # sees to it, as so much waits
            assert not device.memory_info().pending
    assert foreign.result == 0


def test_host_memory_is_made(foreign, need_kind):
    need_kind("pinned")
    with foreign:
        dm.pinned_array(1000)
    assert foreign.result == 0


def test_large_uploads_make_their_slots(foreign, with_settings, device):
    large = np.arange(1 << 20, dtype=np.uint8)
    with_settings(STAGING_THRESHOLD="1000", STAGING_SLOT_BYTES="100000")
    stream, array = dm.stream(), dm.device_array(large.shape, large.dtype)
    with foreign:
        array.copy_to_device(large, stream=stream)
        stream.synchronize()
    assert foreign.result == 0
    assert device.opened().ring.made
    assert np.array_equal(array.copy_to_host(), large)


def test_how_much_memory_there_is_may_be_asked(foreign):
    with foreign:
        dm.memory_info()
    assert foreign.result == 0


def test_events_are_asked_and_waited_for(foreign):
    stream = dm.stream()
    event = dm.event()
    event.record(stream)
    with foreign:
        event.synchronize()
        assert event.query()
    assert foreign.result == 0


def test_an_event_of_a_graph_tells_nothing(foreign):
    event = dm.event()
    with foreign:
        stream = dm.external_stream(foreign.stream.value)
        event.record(stream)
        with pytest.raises(dm.UnsupportedError, match="recorded while its stream was capturing a graph"):
            event.query()
        with pytest.raises(dm.UnsupportedError, match="recorded while its stream was capturing a graph"):
            event.synchronize()
    event.record(dm.stream())
    event.synchronize()


def test_memory_that_a_graph_may_use_is_kept_and_holds_up_nothing(foreign, device):
    """It is unknown when the graph will have run for the last time; an event in it would pull our streams into the capture."""
    heap, home = device.opened().memory.stacks.heap, dm.stream()
    array, source = dm.device_array(1000, stream=home), dm.pinned_array(1000)
    array.copy_to_device(source, stream=home)
    ptr = array.ptr
    with foreign:
        stream = dm.external_stream(foreign.stream.value)
        array.copy_to_device(source, stream=stream)
        del array
        gc.collect()
    dropped = [dm.to_device(DATA, stream=home) for _ in range(10)]
    dropped.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", dm.DevmemWarning)
        dm.trim()
    assert foreign.result == 0
    assert not device.memory_info().pending
    assert ptr in {each for each, _, _ in heap.live.blocks()}


def test_what_a_graph_does_is_no_race(with_settings, request):
    """It may run at any time: it is not ordered behind what is on our streams, and was not enqueued either."""
    with_settings(RACES="1")
    foreign = request.getfixturevalue("foreign")
    home, source = dm.stream(), dm.pinned_array_like(DATA)
    array = dm.to_device(DATA, stream=home)
    dm.synchronize()
    with hold(home) as latch:
        array.fill(1, stream=home)
        with foreign:
            array.copy_to_device(source, stream=dm.external_stream(foreign.stream.value))
        array.fill(2, stream=home)
        latch.release()
    assert foreign.result == 0
    dm.synchronize()


def test_memory_that_a_graph_may_use_is_lent_to_others_still(foreign):
    """Their stream waits for what is on ours, not for what is in a graph."""
    home, consumer = dm.stream(), dm.stream()
    array = dm.to_device(DATA, stream=home)
    with foreign:
        array.copy_to_device(dm.pinned_array_like(DATA), stream=dm.external_stream(foreign.stream.value))
    assert foreign.result == 0
    array.__dlpack__(stream=consumer.handle)
    array.bind(home).copy_to_host()


@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_an_interrupt_leaves_no_thread_relaxed(foreign, device, monkeypatch, mode, when):
    """Ctrl-C comes just before the mode is exchanged, or just behind that, before the earlier mode was stored."""
    library, name = (
        ctypes.CDLL(LIBRARIES[device.backend][0]),
        f"{PREFIXES[device.backend]}ThreadExchangeStreamCaptureMode",
    )
    event, found = dm.event(), ctypes.c_int(mode)
    with device.entered() as driver:
        relaxed_capture = driver.state.relaxed_capture
    sound, interrupted = relaxed_capture.exchange, []

    def exchange(*arguments):
        if interrupted:
            return sound(*arguments)
        interrupted.append(True)
        if when == "behind":
            sound(*arguments)
        raise KeyboardInterrupt

    with device.entered():
        getattr(library, name)(ctypes.byref(found))
        monkeypatch.setattr(relaxed_capture, "exchange", exchange)
        with pytest.raises(KeyboardInterrupt):
            event.query()
        getattr(library, name)(ctypes.byref(found))
    assert interrupted
    assert found.value in {mode, GLOBAL}


def test_a_mode_that_was_left_is_noticed(foreign, device):
    """By the fixture that looks after each test."""
    with device.entered():
        assert exchange_capture_mode(device.backend, RELAXED) == GLOBAL
    assert exchange_capture_mode(device.backend, GLOBAL) == RELAXED
    assert exchange_capture_mode(device.backend, GLOBAL) == GLOBAL


def test_an_event_that_may_not_be_asked_for_has_not_passed(device):
    """Some runtimes allow it to no thread at all. It is asked by the way; nothing is wrong with what is done."""
    functions = {"cuda": "cuEventQuery", "roc": "hipEventQuery"}
    if device.backend not in functions:
        pytest.skip(f"{device} is no vendor's, so no other library captures graphs on it")
    try:
        control = emulator.control(device.backend)
    except emulator.EmulatorNotLoaded:
        pytest.skip(f"the library of {device} is not emulated: it cannot be made to fail")
    stream = dm.stream()
    event = dm.event()
    event.record(stream)
    stream.synchronize()
    control.fail(functions[device.backend], 1, 900)
    assert not event.query()
    assert event.query()


def test_new_plain_memory_is_for_the_program_to_avoid(foreign):
    """It asked for it, and is told; the capture notices, as it was to."""
    with dm.use_memory("driver"), foreign, pytest.raises(BackendError) as caught:
        dm.device_array(1000)
    assert caught.value.code == 900
    assert foreign.result == INVALIDATED
