"""Device memory that another process opens: what it sees, who lets go, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy", "shared")

THERE = """
import gc, pickle, warnings
import numpy as np
import devmem as dm
from devmem.testing import emulator, hold

given = pickle.loads(bytes.fromhex({given!r}))

def live():
    dm.synchronize()
    dm.trim()
    return dm.memory_info().live

def controlled():
    "How to make the driver fail; None if it is a real one."
    try:
        return emulator.control(dm.current_device().backend)
    except emulator.EmulatorNotLoaded:
        return None

def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"{{kind.__name__}} was not raised")

"""


@pytest.fixture
def shared(need):
    """Skips where memory cannot be shared; what is allocated in the test can be."""
    need("ipc")
    with dm.use_memory(dm.memory.DriverMemory()):
        yield


@pytest.fixture
def there(python):
    """Run a script in another process, where ``given`` is what it was given; what it raises fails the test."""

    def run(script, given):
        done = python(THERE.format(given=pickle.dumps(given).hex()) + script)
        assert done.returncode == 0, done.stderr

    return run


def data():
    return np.arange(24, dtype="f4").reshape(4, 6)


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
raises(dm.UnsupportedError, "plain memory", dm.open_ipc_array(given).get_ipc_handle)
""",
        array.get_ipc_handle(),
    )


def test_memory_that_is_opened_twice_is_let_go_of_twice(there):
    array = dm.to_device(data())
    there(
        """
control = controlled()
dm.close()
before = control and control.live()
one, two = dm.open_ipc_array(given), dm.open_ipc_array(given)
one[0, 0] = 9
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


def test_a_handle_that_lies(there):
    array = dm.to_device(data())
    handle = array.get_ipc_handle()
    lies = [
        dataclasses.replace(handle, nbytes=10**9, shape=(10**8,), strides=(4,)),
        dataclasses.replace(handle, nbytes=10**9),
    ]
    there(
        """
handle, lies = given
info = dm.current_device().info
for each in lies:
    if "pointer_info" in info.capabilities:
        raises(dm.LayoutError, "the driver has opened", lambda: dm.open_ipc_array(each))
import dataclasses
for changes, kind in [
    ({"raw": b"short"}, Exception), ({"raw": bytes(64)}, dm.BackendError), ({"offset": 10**6}, dm.LayoutError),
    ({"offset": -8}, dm.LayoutError), ({"uuid": "another"}, dm.UnsupportedError), ({"backend": "none"}, dm.UnsupportedError),
]:
    raises(kind, "", lambda: dm.open_ipc_array(dataclasses.replace(handle, **changes)))
for what in (None, 3, b"handle", handle.raw):
    raises(TypeError, "get_ipc_handle", lambda: dm.open_ipc_array(what))
assert live() == 0
assert dm.open_ipc_array(handle).shape == (4, 6)
""",
        (handle, lies),
    )


def test_a_handle_travels():
    handle = dm.to_device(data()).get_ipc_handle()
    assert pickle.loads(pickle.dumps(handle)) == copy.deepcopy(handle) == handle
    assert "raw" not in repr(handle)


def test_the_same_process_is_refused():
    array = dm.to_device(data())
    with pytest.raises(dm.UnsupportedError, match="made in this process: use the array itself"):
        dm.open_ipc_array(array.get_ipc_handle())


def test_only_plain_memory_is_shared():
    array = dm.to_device(data())
    with pytest.raises(dm.LayoutError, match="no memory to share"):
        array[:0].get_ipc_handle()
    with pytest.raises(dm.UnsupportedError, match=r"use_memory\(devmem.memory.DriverMemory\(\)\)"):
        dm.from_dlpack(array).get_ipc_handle()
    with (
        dm.use_memory(dm.memory.PoolMemory()),
        pytest.raises(dm.UnsupportedError, match=r"use_memory\(devmem.memory.DriverMemory\(\)\)"),
    ):
        dm.zeros(3).get_ipc_handle()


def test_memory_of_the_driver_s_pool_is_not_shared(need):
    need("stream_ordered")
    with (
        dm.use_memory(dm.memory.StreamOrderedMemory()),
        pytest.raises(dm.UnsupportedError, match=r"use_memory\(devmem.memory.DriverMemory\(\)\)"),
    ):
        dm.zeros(3).get_ipc_handle()


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
        if "Close" in name:
            before = control.live()  # what refuses to close is not asked again: it may have closed
        assert control.live() == before, (name, nth)
assert failed > 3
""",
        handle,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", np.dtype("O")),
        ("dtype", "f8"),
        ("shape", (-5,)),
        ("shape", (1.5,)),
        ("shape", [3]),
        ("shape", (1,) * 65),
        ("strides", (8, 8)),
        ("strides", (1 << 80,)),
        ("nbytes", float("nan")),
        ("nbytes", -1),
        ("offset", -8),
        ("offset", 1.0),
        ("raw", "text"),
        ("uuid", None),
        ("process", "1"),
    ],
)
def test_a_forged_handle_is_refused_before_the_driver_is_asked(name, value, recorded):
    with dm.use_memory(dm.memory.DriverMemory()):
        array = dm.to_device(np.arange(3.0))
    handle = array.get_ipc_handle()
    forged = dataclasses.replace(handle, **{"process": handle.process + 1, name: value})
    with recorded.during() as seen, pytest.raises(dm.LayoutError):
        dm.open_ipc_array(forged)
    assert not [call for call in seen if call.method == "ipc_open"]
