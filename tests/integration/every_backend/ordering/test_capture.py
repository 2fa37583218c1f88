"""A call that would wait for a stream on which a graph is captured is refused before it enqueues anything."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import devmem as dm
from devmem.spi.types import Capability

DATA = np.arange(24, dtype="f4")


class Capturing:
    """A driver on one of whose streams a graph is captured; writes down what it is asked."""

    def __init__(self, driver):
        self.driver = driver
        self.stream = None
        self.asked = []

    def __getattr__(self, name):
        found = getattr(self.driver, name)
        if not callable(found):
            return found

        def call(*arguments, **options):
            if name != "event_record" or arguments[1] == self.stream:  # a pool records events on other streams
                self.asked.append(name)
            return found(*arguments, **options)

        return call

    def capturing(self, stream):
        return stream == self.stream


@pytest.fixture
def captured(device, monkeypatch):
    """A stream that is capturing, and what its driver was asked from then on."""
    context = device.opened()
    driver = Capturing(context.handle.driver)
    with monkeypatch.context() as patch:
        patch.setattr(context.handle, "capabilities", context.handle.capabilities | {Capability.CAPTURE})
        patch.setattr(context.handle, "driver", driver)
        stream = dm.stream()
        yield stream, driver
        driver.stream = None
        dm.trim()


def begin(driver, stream):
    # A pool that had to grow would record an event: it asks the driver itself, which knows nothing of this capture.
    dm.device_array(DATA.size, DATA.dtype, stream=stream).free()
    driver.stream = stream.handle
    driver.asked.clear()


CALLS = {
    "to_device": lambda array, out: dm.to_device(DATA),
    "to_device strided": lambda array, out: dm.to_device(DATA[::2]),
    "to_device into": lambda array, out: dm.to_device(DATA, to=array),
    "copy_to_host": lambda array, out: array.copy_to_host(),
    "copy_to_host into": lambda array, out: array.copy_to_host(out),
    "copy_to_device": lambda array, out: array.copy_to_device(DATA),
    "assign": lambda array, out: array.__setitem__(slice(0, 3), 1.0),
    "fill": lambda array, out: array.fill(1.0),
    "zeros": lambda array, out: dm.zeros(5),
    "copy": lambda array, out: array.copy(),
    "reshape that copies": lambda array, out: array.reshape(4, 6).T.reshape(24),
    "item": lambda array, out: array.item(3),
}
#: What touches the device without the stream's having anything of it.
HARMLESS = {"enter", "exit", "event_create", "event_query", "alloc", "alloc_async", "free", "free_async"}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("how", ["current", "bound"])
def test_a_call_that_waits_is_refused_before_it_begins(captured, name, how):
    stream, driver = captured
    array, out = dm.to_device(DATA), np.empty_like(DATA)
    if how == "bound":
        array = array.bind(stream)
        if name in ("to_device", "to_device strided", "zeros"):
            pytest.skip("makes an array of its own")
    begin(driver, stream)
    with pytest.raises(dm.UnsupportedError, match=r"is capturing a graph.*name the stream in the call"):
        if how == "current":
            with stream:
                CALLS[name](array, out)
        else:
            CALLS[name](array, out)
    assert set(driver.asked) <= HARMLESS
    if name != "zeros":
        assert not any(asked.startswith("alloc") for asked in driver.asked)
    driver.stream = None
    assert np.array_equal(array.copy_to_host(), DATA)


@pytest.mark.parametrize("verb", ["synchronize", "query", "close", "auto_synchronize"])
def test_a_stream_that_captures_is_neither_asked_nor_waited_for(captured, verb):
    stream, driver = captured
    begin(driver, stream)
    with pytest.raises(dm.UnsupportedError, match="is capturing a graph"):
        if verb == "auto_synchronize":
            with stream.auto_synchronize():
                pass
        else:
            getattr(stream, verb)()
    assert set(driver.asked) <= HARMLESS
    driver.stream = None
    stream.close()


def test_work_on_the_named_stream_goes_on(captured):
    stream, driver = captured
    array, pinned = dm.to_device(DATA), dm.pinned_array(24, "f4")
    pinned[...] = 7
    begin(driver, stream)
    array.copy_to_device(pinned, stream=stream)
    array.copy_to_host(pinned, stream=stream)
    array.fill(3, stream=stream)
    assert "stream_synchronize" not in driver.asked
    driver.stream = None
    stream.synchronize()
    assert set(array.tolist()) == {3.0}


@pytest.mark.parametrize("whose", ["ours", "foreign"])
def test_what_a_graph_reads_is_kept_for_good(captured, device, monkeypatch, whose):
    """It is unknown when it runs, and the event behind the copy can never be asked for; other work on the stream goes on."""
    ours, driver = captured
    stream, completions = ours, device.opened().completions
    if whose == "foreign":
        with device.entered() as below:
            stream = dm.external_stream(below.stream_create(0, True))
        stream.handle = ours.handle
    into_graph, asked, query = set(), [], driver.driver.event_query

    def record(event, handle):
        (into_graph.add if handle == driver.stream else into_graph.discard)(event)
        driver.driver.event_record(event, handle)

    def refuse(event):
        if event in into_graph:
            asked.append(event)
            raise dm.UnsupportedError("recorded into a graph")
        return query(event)

    monkeypatch.setattr(driver, "event_record", record, raising=False)
    monkeypatch.setattr(driver, "event_query", refuse, raising=False)
    graphs, later = DATA.copy(), DATA.copy()
    kept, let_go = weakref.ref(graphs), weakref.ref(later)
    with device.entered():
        begin(driver, ours)
        completions.keep_until_complete(stream, graphs)
        driver.stream = None
        completions.keep_until_complete(stream, later)
        del graphs, later
        ours.synchronize()
        completions.poll()
        assert (kept() is not None, let_go()) == (True, None)
        assert len(asked) == (whose == "ours"), "a foreign stream is asked whether it captures, before"
        assert not completions.in_flight


def test_what_is_gathered_on_the_host_cannot_be_captured_even_if_the_stream_is_named(captured):
    stream, driver = captured
    array = dm.to_device(np.arange(4096, dtype="u1"))
    begin(driver, stream)
    with pytest.raises(dm.UnsupportedError, match="need no gathering"):
        array[::3].copy_to_host(stream=stream)
    assert set(driver.asked) <= HARMLESS


def test_other_streams_and_the_default_are_not_asked_about_it(captured):
    stream, driver = captured
    begin(driver, stream)
    array = dm.to_device(DATA)
    with dm.stream():
        assert np.array_equal(array.copy_to_host(), DATA)
