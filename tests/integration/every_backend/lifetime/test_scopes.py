"""Scopes: each is for one block, and a second use of it says so instead of changing what holds afterwards."""

from __future__ import annotations

import warnings

import pytest

import devmem as dm
from devmem.toolkit.host_functions import this_thread

pytestmark = pytest.mark.usefixtures("tidy")

SCOPES = {
    "memory": lambda: dm.use_memory(dm.memory.Statistics()),
    "backend": lambda: dm.use_backend(dm.current_device().backend),
}


def in_force():
    return dm.current_device(), dm.current_device().opened().memory.current_heap()


@pytest.fixture(params=SCOPES.values(), ids=SCOPES)
def scope(request):
    return request.param


def test_a_scope_entered_twice_says_so_and_ends(scope):
    before = in_force()
    once = scope()
    with once, pytest.raises(dm.DevmemError, match="was entered before"):
        once.__enter__()
    assert in_force() == before


def test_a_scope_left_twice_says_so_and_changes_nothing(scope):
    once = scope()
    with once:
        pass
    before = in_force()
    with pytest.raises(dm.DevmemError, match="was left before"):
        once.__exit__(None, None, None)
    assert in_force() == before


@pytest.mark.own_thread  # the choice stays in its thread
def test_a_scope_whose_end_was_interrupted_ends_on_any_thread(scope, in_thread):
    """The collector drops it, perhaps on a thread that must call no driver and has choices of its own."""
    dropped, counted = [scope()], dm.current_device().opened().handle
    before = counted.scopes
    dropped[0].__enter__()

    def drop():
        with this_thread.running_host_function(), warnings.catch_warnings(action="error"):
            here = in_force()
            dropped.clear()
            assert in_force() == here

    in_thread(drop)
    assert counted.scopes == before
    dm.close()  # which ends what holds in this thread


def test_cleanup_that_is_left_twice_says_so_and_is_not_deferred_for_ever():
    deferred = dm.defer_cleanup()
    with deferred, deferred:
        pass
    with pytest.raises(dm.DevmemError, match="left more often"):
        deferred.__exit__(None, None, None)
    array = dm.device_array(10)
    before = dm.memory_info().live
    array.free()
    assert dm.memory_info()[2:4] == (before - 80, 0)


def test_a_block_left_twice_does_not_end_another(scope):
    with dm.defer_cleanup():
        other = dm.defer_cleanup()
        with other:
            pass
        with pytest.raises(dm.DevmemError):
            other.__exit__(None, None, None)
        dm.device_array(10).free()
        assert dm.memory_info().pending == 80


@pytest.mark.parametrize("keep", ["1MiB", 1.5, None])
def test_trim_takes_a_whole_number_of_bytes(keep):
    with pytest.raises(TypeError, match="whole number of bytes"):
        dm.trim(keep)
