"""A stream's handle stays valid as long as housekeeping on another thread may name it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")


def elsewhere(action):
    """Run an action on another thread, to its end."""
    failed = []

    def run():
        try:
            action()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def once(monkeypatch, driver, verb, action):
    """Run an action right before the driver's next call of a verb, when its arguments have been chosen."""
    original = getattr(driver, verb)

    def call(*arguments, **keywords):
        monkeypatch.setattr(driver, verb, original)
        action()
        return original(*arguments, **keywords)

    monkeypatch.setattr(driver, verb, call)


def on(stream):
    array = dm.to_device(np.arange(1000), stream=stream)
    stream.synchronize()
    return array


@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_a_stream_that_ends_while_all_streams_are_asked_for_captures(need, monkeypatch, end):
    need("capture")
    opened = dm.current_device().opened()
    streams = [dm.stream()]
    handle = streams[0].handle

    def close():
        if end == "closed":
            streams.pop().close()
        else:
            streams.clear()
            dm.trim()

    once(monkeypatch, opened.handle.driver, "capturing", lambda: elsewhere(close))
    with dm.current_device().entered():
        assert not opened.streams.any_capturing()
    dm.trim()
    assert handle not in opened.streams._handles


@pytest.mark.parametrize("last_use", ["home", "another"])
def test_a_stream_that_ends_while_a_block_is_given_back_behind_it(monkeypatch, last_use):
    opened = dm.current_device().opened()
    home, other = dm.stream(), dm.stream()
    array = on(home)
    array.copy_to_host(stream=other)
    other.synchronize()
    ending = home if last_use == "home" else other
    handle = ending.handle
    verb = "event_record" if opened.memory.heap.ordered else "stream_synchronize"
    once(monkeypatch, opened.handle.driver, verb, lambda: elsewhere(ending.close))
    array.free()
    assert ending.closed
    assert handle not in opened.streams._handles
    (other if last_use == "home" else home).close()


def test_a_lease_that_an_interrupt_left_behind_keeps_nothing():
    opened = dm.current_device().opened()
    opened.streams.leases.hold().__enter__()  # and dropped at once
    stream = dm.stream()
    handle = stream.handle
    stream.close()
    assert handle not in opened.streams._handles


def test_streams_that_come_and_go_in_several_threads():
    host = np.arange(1000)
    barrier = threading.Barrier(4)
    failed = []

    def work():
        barrier.wait(10)
        try:
            for _ in range(60):
                stream = dm.stream()
                array = dm.to_device(host, stream=stream)
                stream.synchronize()
                del array, stream
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failed
