"""``stream.add_callback``: on a thread of devmem's, behind what is on the stream, in order, and never for nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem._core.ordering import callbacks
from devmem.testing import hold

PATIENCE = patience()


def test_callbacks_come_in_order_behind_the_work(need):
    need("hold")
    stream, calls, done = dm.stream(), [], threading.Event()
    with hold(stream) as latch:
        for number in range(5):
            stream.add_callback(lambda error, number=number: calls.append((number, error)))
        stream.add_callback(lambda error: done.set())
        assert not calls
        latch.release()
    assert done.wait(PATIENCE)
    assert calls == [(number, None) for number in range(5)]


@pytest.mark.parametrize("which", ["stream", "default", "per thread"])
def test_a_callback_may_use_the_device_and_has_a_thread_of_python_s(device, which):
    streams = {"stream": dm.stream, "default": dm.default_stream, "per thread": dm.per_thread_default_stream}
    stream, found, done = streams[which](), [], threading.Event()
    array = dm.to_device(np.arange(4.0), stream=stream)

    def callback(error):
        found.append((threading.current_thread(), array.bind(0).copy_to_host().tolist()))
        done.set()

    stream.add_callback(callback)
    assert done.wait(PATIENCE)
    [(thread, values)] = found
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert values == [0, 1, 2, 3]


def test_a_callback_may_add_another_and_one_that_raises_is_told():
    stream, done = dm.stream(), threading.Event()

    def first(error):
        stream.add_callback(lambda error: done.set())
        raise RuntimeError("in the callback")

    caught = []
    with pytest.MonkeyPatch.context() as patch:  # warnings of another thread
        patch.setattr("warnings.warn", lambda message, category, stacklevel: caught.append((str(message), category)))
        stream.add_callback(first)
        assert done.wait(PATIENCE)
    assert caught == [("Exception in stream callback: RuntimeError('in the callback')", dm.DevmemWarning)]


def test_a_failed_wait_is_given_to_the_callback(device, monkeypatch):
    stream, found, done = dm.stream(), [], threading.Event()
    error = dm.BackendError("lost", backend="x", call="y", code=1, name="z")

    def refuse(event):
        raise error

    monkeypatch.setattr(dm.Event, "synchronize", refuse)
    stream.add_callback(lambda error: (found.append(error), done.set()))
    assert done.wait(PATIENCE)
    assert found == [error]


def test_nothing_that_cannot_be_called_later_is_taken(device):
    stream = dm.stream()
    with pytest.raises(TypeError, match="cannot be called"):
        stream.add_callback("f")
    stream.close()
    with pytest.raises(dm.ClosedError):
        stream.add_callback(lambda error: None)


def test_a_capturing_stream_takes_no_callback(device, monkeypatch):
    stream = dm.stream()
    if "capture" not in device.info.capabilities:
        pytest.skip(f"{device} captures no graphs")
    monkeypatch.setattr(device.driver(), "capturing", lambda handle: handle == stream.handle, raising=False)
    with pytest.raises(dm.UnsupportedError, match="capturing a graph"):
        stream.add_callback(lambda error: None)


@pytest.mark.comes_between
def test_a_handler_may_wait_for_a_callback_on_a_thread_that_adds_one():
    """The thread that calls callbacks takes no lock, which the interrupted caller may hold."""
    called, stream = threading.Event(), dm.stream()
    dm.trim()  # or the driver is called for what was dropped before
    with callbacks._lock:
        stream.add_callback(lambda *_: called.set())
        assert called.wait(PATIENCE)


@pytest.mark.parametrize("what", [SystemExit(3), KeyboardInterrupt(), ValueError("warnings are errors")])
@pytest.mark.filterwarnings("ignore::devmem.DevmemWarning", "ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_ends_its_thread_keeps_no_other_from_being_called(what, monkeypatch):
    stream, calls, done = dm.stream(), [], threading.Event()
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: None)

    def bad(error):
        calls.append("bad")
        raise what

    def refuse(message, category, stacklevel):
        raise category(message)

    if isinstance(what, ValueError):
        monkeypatch.setattr("warnings.warn", refuse)
    for _ in range(2):
        stream.add_callback(bad)
    stream.add_callback(lambda error: done.set())
    assert done.wait(PATIENCE)
    done.clear()
    stream.add_callback(lambda error: done.set())  # also one that is added later
    assert done.wait(PATIENCE)
    assert calls == ["bad", "bad"]
