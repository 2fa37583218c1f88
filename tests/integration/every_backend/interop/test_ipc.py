"""Device memory that another process opens: what it sees, and who lets go."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import pickle
import re
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from two_processes import data, of_both

import devmem as dm
from devmem._core.interop import sharing

pytestmark = pytest.mark.usefixtures("tidy", "shared")


def open_files():
    """What this process has open, and how often."""
    found = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing itself, and what another thread has closed since
            found[str(link.readlink())] += 1
    return found


LAYOUTS = {
    "C": lambda d: d,
    "F": lambda d: d.T,
    "an offset": lambda d: d[2:, 3:],
    "negative strides": lambda d: d[::-1, ::-2],
    "0-d": lambda d: d[1:2, 2:3].reshape(()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_processes_see_the_memory(there, layout):
    array = LAYOUTS[layout](dm.to_device(data()))
    there(
        """
handle, expected = given
seen = dm.open_ipc_array(handle)
assert (seen.shape, seen.dtype, seen.strides) == (handle.shape, handle.dtype, handle.strides)
np.testing.assert_array_equal(seen.copy_to_host(), expected)
seen[...] = 7
seen.free()
raises(dm.ClosedError, "was freed", seen.copy_to_host)
assert live() == 0
""",
        (array.get_ipc_handle(), array.copy_to_host()),
    )
    np.testing.assert_array_equal(array.copy_to_host(), np.full(array.shape, 7, "f4"))


def test_what_was_enqueued_is_done(there, need_kind):
    need_kind("pinned")
    stream, source = dm.stream(non_blocking=True), dm.pinned_array((4, 6), "f4")
    source[...] = data()
    array = dm.zeros((4, 6), "f4")
    array.copy_to_device(source, stream=stream)
    handle = array.get_ipc_handle()
    assert stream.query()
    there("np.testing.assert_array_equal(dm.open_ipc_array(given[0]).copy_to_host(), given[1])", (handle, data()))


@of_both
def test_the_last_view_lets_go(there):
    array = dm.to_device(data())
    there(
        """
array = dm.open_ipc_array(given)
view = array[1:, ::2]
assert live() == given.nbytes
del array
gc.collect()
assert live() == given.nbytes
np.testing.assert_array_equal(view.copy_to_host(), np.arange(24, dtype="f4").reshape(4, 6)[1:, ::2])
del view
gc.collect()
assert live() == 0
raises(dm.UnsupportedError, "only plain memory", dm.open_ipc_array(given).get_ipc_handle)
""",
        array.get_ipc_handle(),
    )


@of_both
def test_memory_that_is_opened_twice_is_let_go_of_twice(there):
    array = dm.to_device(data())
    there(
        """
control = controlled()
dm.close()
before = control and control.live()
one, two = dm.open_ipc_array(given), dm.open_ipc_array(given)
one[0, 0] = 9
assert dm.memory_info().live == 2 * given.nbytes
one.free()
assert two[0, 0] == 9
assert live() >= given.nbytes
two.free()
assert live() == 0
one, two = dm.open_ipc_array(given), dm.open_ipc_array(given)
dm.close()
raises(dm.ClosedError, "", two.copy_to_host)
if control is not None:
    assert control.live() == before
assert dm.open_ipc_array(given)[0, 0] == 9
""",
        array.get_ipc_handle(),
    )


@of_both
def test_work_on_it_has_passed_before_it_is_let_go_of(there, need, need_kind):
    need("hold")
    need_kind("pinned")
    array = dm.to_device(data())
    there(
        """
stream, back = dm.stream(non_blocking=True), dm.pinned_array((4, 6), "f4")
back[...] = 0
seen = dm.open_ipc_array(given)
with hold(stream, patience=0.3, tolerant=True) as latch:
    seen.copy_to_host(back, stream=stream)
    seen.free()
    dm.trim()
    assert latch.expired, "the memory was closed while a copy still waited to read it"
stream.synchronize()
np.testing.assert_array_equal(back, np.arange(24, dtype="f4").reshape(4, 6))
del back
gc.collect()
assert live() == 0
""",
        array.get_ipc_handle(),
    )


def test_another_layout_has_to_fit(there):
    array = dm.to_device(data())[1:]
    there(
        """
expected = np.arange(24, dtype="f4")[6:]
np.testing.assert_array_equal(dm.open_ipc_array(given, shape=18).copy_to_host(), expected)
np.testing.assert_array_equal(dm.open_ipc_array(given, (2, 3), strides=(24, 8)).shape, (2, 3))
assert dm.open_ipc_array(given, 36, "u2").nbytes == 72
assert dm.open_ipc_array(given, (3, 0)).size == 0
for shape, dtype, strides in [(19, None, None), (18, "f8", None), ((2, 2), None, (72, 4)), (2**58, None, None)]:
    raises(dm.LayoutError, "the shared memory has 96", lambda: dm.open_ipc_array(given, shape, dtype, strides))
assert live() == 0
""",
        array.get_ipc_handle(),
    )


def test_a_handle_travels():
    handle = dm.to_device(data()).get_ipc_handle()
    assert pickle.loads(pickle.dumps(handle)) == copy.deepcopy(handle) == handle
    assert "raw" not in repr(handle)


def test_only_plain_memory_is_shared():
    array = dm.to_device(data())
    with pytest.raises(dm.LayoutError, match="no memory to share"):
        array[:0].get_ipc_handle()
    with pytest.raises(dm.UnsupportedError, match=r"use_memory\(devmem.memory.DriverMemory\(\)\)"):
        dm.from_dlpack(array).get_ipc_handle()
    with dm.use_memory(dm.memory.ManagedMemory()), pytest.raises(dm.UnsupportedError, match="use_memory"):
        dm.zeros(3).get_ipc_handle()


@pytest.mark.parametrize("shared", ["virtual"], indirect=True)
def test_virtual_memory_goes_when_it_is_freed(shared):
    """A descriptor that was made for other processes would keep it."""
    before, free = open_files(), dm.memory_info().free
    for stack in (shared, "pool,virtual"):
        with dm.use_memory(stack):
            array = dm.to_device(data())
            for _ in range(3):
                array.get_ipc_handle()
            assert sum((open_files() - before).values()) <= 3  # the memory, the descriptor, the answering socket
            array.free()
            dm.trim()
            left = {each for each in open_files() - before if not each.startswith("socket:")}
            assert not left and dm.memory_info().free == free


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("shared", ["stream_ordered", "virtual"], indirect=True)
def test_a_forked_child_has_no_descriptor(shared, there):
    """Else it would keep memory that its parent frees."""
    there(
        """
from collections import Counter

def open_files():
    return Counter(map(os.readlink, filter(os.path.islink, (f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")))))

warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which a fork leaves behind
with dm.use_memory(given):
    array = dm.zeros(3)
    before = open_files()
    array.get_ipc_handle()
    child = os.fork()
    if not child:
        left = open_files() - before
        os._exit(bool(left))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
        shared,
    )


@pytest.mark.parametrize("shared", ["virtual"], indirect=True)
def test_a_fabric_handle_is_opened_without_asking_and_on_another_device(there, shared, monkeypatch, device):
    """As on another machine, where neither the process nor the device is."""
    with (
        pytest.raises(dm.UnsupportedError, match="needs a device with fabric handles"),
        dm.use_memory("virtual:fabric"),
    ):
        dm.zeros(3)
    monkeypatch.setenv("DEVMEM_EMULATOR_FABRIC", "1")
    dm.close()
    if not dm.current_device().info.facts.get("fabric_handles"):
        pytest.skip("the device has no fabric handles")
    with dm.use_memory("virtual:fabric"):
        array = dm.to_device(data())
        handle = array.get_ipc_handle()
        assert len(handle.raw) == 64 and handle.virtual and not handle.by_file
        elsewhere = dataclasses.replace(handle, owner="devmem-1-1-gone", uuid="of another machine")
        forged = dataclasses.replace(elsewhere, raw=bytes(64))
        there(
            """
handle, elsewhere, forged = given
for each in (handle, elsewhere):
    seen = dm.open_ipc_array(each)
    assert seen[1, 1] == 7
    seen.free()
raises(dm.BackendError, "", lambda: dm.open_ipc_array(forged))
assert live() == 0
""",
            (handle, elsewhere, forged),
        )
        array.free()
    monkeypatch.delenv("DEVMEM_EMULATOR_FABRIC")
    dm.close()


def test_a_device_without_virtual_memory_says_so(device):
    if "virtual" in device.info.capabilities:
        pytest.skip("this one has it")
    with pytest.raises(dm.UnsupportedError, match="virtual memory management, which"), dm.use_memory("virtual"):
        dm.zeros(3)


STACKS = {
    "a pool": "pool",
    "a pool of virtual memory": "pool,virtual",
    "a pool with what counts and limits": "limit:64MiB,statistics,pool",
    "a guard": "guard,driver",
    "the driver's own pool": "stream_ordered",
    "the default": None,
}


@pytest.mark.parametrize("stack", STACKS)
def test_memory_of_a_pool_is_shared_with_what_is_around_it(there, stack, need, device):
    """One allocation of the driver is opened, whose parts belong to several arrays."""
    need("pointer_info")
    if stack == "the driver's own pool":
        need("stream_ordered")
    if stack == "a pool of virtual memory":
        need("virtual")
    with dm.use_memory(dm.memory.DriverMemory() if STACKS[stack] is None else STACKS[stack]):
        one, two = dm.to_device(data()), dm.to_device(data() + 100)
        if stack == "the driver's own pool" and not (
            device.info.shares_stream_ordered or "pool_ipc" in device.info.capabilities
        ):
            with pytest.raises(dm.UnsupportedError, match=r"use_memory\(devmem.memory.DriverMemory\(\)\)"):
                one.get_ipc_handle()
            return
        there(
            """
(one, two), (wanted, other) = given
first, second = dm.open_ipc_array(one), dm.open_ipc_array(two)
np.testing.assert_array_equal(first.copy_to_host(), wanted)
np.testing.assert_array_equal(second.copy_to_host(), other)
second[1:] = -1
first.free()
second.free()
assert live() == 0
""",
            ((one[:, 1:].get_ipc_handle(), two.T.get_ipc_handle()), (data()[:, 1:], data().T + 100)),
        )
        assert (two[:, 0].copy_to_host() == data()[:, 0] + 100).all()
        assert (two[:, 1:].copy_to_host() == -1).all()
        assert (one.copy_to_host() == data()).all()


@pytest.mark.timeout(300)  # 5 s; the two processes take turns, which takes long where others want the processors
@pytest.mark.exhaustive
@of_both
def test_ten_thousand_are_opened_and_closed(there):
    array = dm.to_device(data())
    there(
        """
import os
fds = lambda: len(os.listdir("/proc/self/fd"))
maps = lambda: sum(1 for _ in open("/proc/self/maps"))
for number in range(100):
    dm.open_ipc_array(given).free()
dm.trim()
before = fds(), maps()
for number in range(10_000):
    seen = dm.open_ipc_array(given)
    if number % 1000 == 0:
        assert seen[1, 1] == 7
    seen.free()
assert live() == 0
assert fds() <= before[0] + 2 and maps() <= before[1] + 20, (before, fds(), maps())
""",
        array.get_ipc_handle(),
        patience=250,
    )


def test_memory_of_another_pool_than_the_drivers_own_is_not_shared(need):
    need("pool_ipc", "shared_pool")
    with dm.use_memory("stream_ordered:current"), pytest.raises(dm.UnsupportedError, match="only plain memory"):
        dm.zeros(3).get_ipc_handle()


def test_the_shared_pool_keeps_its_descriptor_once(need):
    need("pool_ipc")
    with dm.use_memory("stream_ordered"):
        arrays = [dm.zeros(3) for _ in range(20)]
        arrays[0].get_ipc_handle()
        before = open_files()
        assert len({each.get_ipc_handle().key for each in arrays}) == 20
        assert not open_files() - before


@pytest.mark.parametrize("shared", ["stream_ordered", "virtual"], indirect=True)
def test_behind_an_interrupt_one_descriptor_stays_open_at_most(at_point, monkeypatch):
    """Of the pool where a handle is made, and of the answer where one is opened. The next call has its own."""
    monkeypatch.setattr(sys, "unraisablehook", lambda report: None)  # of a socket that is closed without `with`
    array = dm.to_device(data())
    handle = array.get_ipc_handle()
    if not handle.owner:
        pytest.skip("this system has no sockets that tell who asks")
    package = Path(dm.__file__).parent

    @functools.cache
    def is_ours(code):  # but for the race detector, which has more to do with every stream that there was
        path = Path(code.co_filename)
        return path.is_relative_to(package) and not path.is_relative_to(package / "toolkit")

    def open_descriptors():  # but for sockets, which the answering thread closes in its own time
        return sum(count for each, count in open_files().items() if not each.startswith("socket:"))

    def export():
        sharing._descriptors.clear()
        for each in getattr(array.allocation.heap.resource, "exported", {}).values():
            each.clear()
        return array.get_ipc_handle()

    def ask():
        return sharing.ask(handle.owner, handle.key, handle.digest, handle.process)

    for use in (export, ask):
        use()
        before, number, left = open_descriptors(), 0, 0
        while left <= 0:
            number += 1
            with at_point(number, is_ours) as point:
                use()
            left = point.left
            assert use() is not None
            before, last = open_descriptors(), before
            assert before - last in (0, 1), point.where
        assert before == last, "a call that was not interrupted leaves none"
        assert number > 10


def test_a_process_that_cannot_answer_says_so(monkeypatch):
    array = dm.to_device(data())
    if not array.get_ipc_handle().owner:
        pytest.skip("this system has no sockets that tell who asks")
    monkeypatch.setattr(sharing, "_listener", None)
    before = open_files()
    for name, error in (("socket.socket", OSError(24, "Too many open files")), ("Thread", RuntimeError("no thread"))):
        with monkeypatch.context() as patched:
            patched.setattr(
                f"devmem._core.interop.sharing.{name}", lambda *_, error=error, **__: (_ for _ in ()).throw(error)
            )
            with pytest.raises(dm.DevmemError, match=rf"cannot answer for the memory .*{re.escape(str(error))}"):
                array.get_ipc_handle()
    assert not open_files() - before


def test_memory_of_another_device(there, second):
    with second, dm.use_memory(dm.memory.DriverMemory()):
        array = dm.to_device(data())
    there(
        """
seen = dm.open_ipc_array(given[0])
assert seen.device.ordinal == given[1]
assert seen[0, 1] == 1
""",
        (array.get_ipc_handle(), second.ordinal),
    )


def test_a_process_that_ends_without_letting_go(there):
    array = dm.to_device(data())
    there("kept = dm.open_ipc_array(given); kept.fill(3)", array.get_ipc_handle())
    np.testing.assert_array_equal(array.copy_to_host(), np.full((4, 6), 3, "f4"))


@of_both
def test_every_function_of_the_driver_fails_once(there):
    """Exporting here, opening there: an error or success, nothing left open, and the next time it works."""
    from devmem.testing import emulator

    array = dm.to_device(data())
    try:
        control = emulator.control(array.device.backend)
    except emulator.EmulatorNotLoaded as error:
        pytest.skip(str(error))
    control.reset()
    handle = array.get_ipc_handle()
    calls = control.calls()
    for name, count in calls.items():
        for nth in range(1, count + 1):
            control.fail(name, nth, 999)
            try:
                array.get_ipc_handle()
            except dm.DevmemError:
                pass
            control.reset()
            assert array.get_ipc_handle().raw == handle.raw
    there(
        """
control = controlled()

def use():
    seen = dm.open_ipc_array(given)
    seen.free()
    live()

use()
before = control.live()
control.reset()
use()
calls = control.calls()
assert len(calls) > 3
failed = 0
for name, count in calls.items():
    for nth in range(1, count + 1):
        control.fail(name, nth, 999)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use()
        except dm.DevmemError:
            failed += 1
        control.reset()
        gc.collect()
        use()
        assert dm.memory_info().live == 0, (name, nth, dm.memory_info())
        if any(end in name for end in ("Close", "Destroy", "Unmap", "MemRelease", "AddressFree")):
            before = control.live()  # what refuses to close is not asked again: it may have closed
        assert control.live() == before, (name, nth)
assert failed > 3
""",
        handle,
    )
