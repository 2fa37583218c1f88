"""A device that is reset or closed while other threads work: DevmemErrors there, and a usable device."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem._core.base import device_handle
from devmem._core.device import open_device

VALUES = np.arange(1000)


@pytest.fixture(params=["reset", "close"])
def end(request, device, recorded):
    return getattr(dm, request.param)


@pytest.fixture
def paused(recorded):
    """``inside, go = paused("fill")``: the next such call of the driver sets the first event, and waits for the second."""

    def pause(method):
        inside, go = threading.Event(), threading.Event()
        driver = dm.current_device().driver()
        call = getattr(driver, method)

        def paused_call(*arguments, **keywords):
            setattr(driver, method, call)
            inside.set()
            assert go.wait(patience())
            return call(*arguments, **keywords)

        setattr(driver, method, paused_call)
        return inside, go

    return pause


def usable():
    assert np.array_equal(dm.to_device(VALUES).copy_to_host(), VALUES)


@pytest.mark.parametrize("method", ["copy", "enter"])
def test_it_waits_for_the_calls_of_other_threads_and_refuses_new_ones(end, method, paused, in_background, monkeypatch):
    monkeypatch.setattr(device_handle, "LET_CLOSE", 0.01)
    kept = dm.to_device(VALUES)
    driver = dm.current_device().driver()
    inside, go = paused(method)
    found = []
    call = in_background(lambda: found.append(dm.to_device(VALUES).copy_to_host()))
    assert inside.wait(patience())
    ending = in_background(end)
    while type(kept.open_device.handle.entry) is not device_handle.ClosedEntry:
        assert ending.is_alive()
    with pytest.raises(dm.ClosedError, match="is being closed by another thread"):
        dm.to_device(VALUES)
    with pytest.raises(dm.ClosedError, match="is being closed by another thread"):
        kept.copy_to_host()
    assert ending.is_alive()
    assert driver.calls["close"] == 0
    go.set()
    assert ending.wait(patience())
    assert call.wait(patience())
    assert not ending.errors
    assert all(isinstance(error, dm.ClosedError) for error in call.errors)  # what began before it was ended as it would
    assert bool(found) != bool(call.errors)
    assert driver.calls["close"] == 1
    assert not driver.mistakes
    usable()


def test_it_can_be_called_inside_a_call(end, device):
    with dm.current_device().entered():
        end()
    usable()


def test_two_threads_may_do_it_at_once(end, paused, in_background):
    inside, go = paused("synchronize")
    both = [in_background(end), in_background(end)]
    assert inside.wait(patience())
    go.set()
    assert all(each.wait(patience()) for each in both)
    assert not [error for each in both for error in each.errors]
    usable()


def test_an_array_of_two_streams_is_not_freed_beside_the_close(end, paused, in_background, monkeypatch):
    monkeypatch.setattr(device_handle, "LET_CLOSE", 0.01)
    stream = dm.stream()
    array = dm.to_device(VALUES)
    array.fill(1, stream=stream)
    stream.synchronize()
    inside, go = paused("copy")
    call = in_background(lambda: dm.to_device(VALUES))
    assert inside.wait(patience())
    ending = in_background(end)
    while type(array.open_device.handle.entry) is not device_handle.ClosedEntry:
        assert ending.is_alive()
    with pytest.raises(dm.ClosedError, match="is being closed by another thread"):
        array.free()
    go.set()
    assert ending.wait(patience())
    assert call.wait(patience())
    assert not ending.errors
    usable()


def test_it_is_refused_in_the_middle_of_a_call_of_the_same_thread(end, monkeypatch):
    """By a handler, say: the call has the handles of streams, and goes on with them."""
    driver, refused = dm.current_device().driver(), []
    copy = driver.copy

    def interrupted(*arguments, **keywords):
        with pytest.raises(dm.DevmemError, match="in the middle of another call on it") as error:
            end()
        refused.append(error.type)
        return copy(*arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(driver, "copy", interrupted)
        usable()
    assert refused
    assert set(refused) == {dm.DevmemError}
    end()
    usable()


def test_an_interrupt_while_it_waits_leaves_the_device_open(end, monkeypatch):
    array = dm.to_device(VALUES)

    def interrupted(done, timeout):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(device_handle, "until", interrupted)
        end()
    assert np.array_equal(array.copy_to_host(), VALUES)
    end()
    usable()


def test_a_call_that_does_not_end_makes_it_say_so_and_nothing_is_taken_from_it(end, paused, in_background, monkeypatch):
    driver = dm.current_device().driver()
    inside, go = paused("copy")
    call = in_background(lambda: dm.to_device(VALUES))
    assert inside.wait(patience())
    monkeypatch.setattr(open_device, "PATIENCE", 0.05)
    with pytest.raises(dm.DevmemError, match="another thread was inside a call"):
        end()
    assert driver.calls["close"] == driver.calls["free"] == driver.calls["free_async"] == 0
    monkeypatch.undo()
    go.set()
    assert call.wait(patience())
    assert all(isinstance(error, dm.ClosedError) for error in call.errors)
    usable()
    open_device.leaked.pop()[1].close()


def test_threads_at_work_are_told_that_it_was_closed_and_nothing_else(end, need):
    need("host_register")
    wrong, threads, kept = [], [], []
    done, worked = threading.Event(), threading.Event()

    def work():
        pinned = np.zeros(3000)
        with dm.use_backend("recording"):
            while not done.is_set():
                try:
                    stream = dm.stream()
                    array = dm.to_device(VALUES, stream=stream)
                    kept.append(array)  # arrays of devices that are gone stay referenced
                    assert np.array_equal(array.copy_to_host(), VALUES)
                    with dm.pinned(pinned):
                        dm.to_device(pinned, stream=stream)
                    dm.memory_info()
                    worked.set()
                except dm.ClosedError:
                    continue
                except BaseException as error:
                    wrong.append(error)
                    return

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        worked.wait(1)
        worked.clear()
        end()
    done.set()
    for thread in threads:
        thread.join(patience())
        assert not thread.is_alive()
    assert not wrong
    usable()


def test_an_interrupt_as_a_thread_left_a_call_does_not_count_as_a_call(end, at_point, in_thread, monkeypatch):
    monkeypatch.setattr(open_device, "PATIENCE", 0.5)
    leaving = device_handle.CurrentDevice.__exit__.__code__
    dm.synchronize()  # opens it
    with at_point(1, lambda code: code is leaving) as point:
        dm.synchronize()
    assert point.left == 0
    in_thread(end)
    usable()
