"""Devices and backends: looking them up, choosing one for a while, resetting and closing."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import devmem as dm
from devmem._core.device import opening
from devmem._core.ordering.completions import leaked
from devmem.memory import DriverMemory
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")


# -- looking up --------------------------------------------------------------------------------------------------------


def test_devices_are_those_of_every_usable_backend(device):
    found = dm.devices()
    assert device in found
    assert all(type(each) is dm.Device for each in found)
    counts = {status.name: status.devices for status in dm.backends() if status.usable}
    assert [(each.backend, each.ordinal) for each in found] == [
        (name, i) for name, n in counts.items() for i in range(n)
    ]


def test_a_device_has_a_name_and_facts(device):
    assert str(device) == f"{device.backend}:{device.ordinal}"
    assert str(device) in repr(device)
    assert device.id == device.ordinal == device.info.ordinal
    assert device.name == device.info.name
    assert device.info.backend == device.backend
    assert device.info.total_bytes > 0
    assert device.info.uuid
    assert device.memory_info() == dm.memory_info()


def test_every_spelling_finds_the_same_device(device):
    for what in (None, device, device.ordinal, np.int64(device.ordinal), str(device), str(device.ordinal)):
        assert dm.device(what) == device
    assert dm.device() is dm.current_device()
    assert dm.device(device.backend) == dm.device(f"{device.backend}:0")
    assert dm.device(str(device)) is dm.device(str(device))


def test_devices_compare_and_hash_and_pickle(device, second):
    assert device == dm.device(str(device))
    assert device != second
    assert device != str(device)
    assert len({device, dm.device(str(device)), second}) == 2
    assert pickle.loads(pickle.dumps(device)) is dm.device(str(device))


def test_unknown_devices_are_refused_with_what_there_is(device):
    count = len([each for each in dm.devices() if each.backend == device.backend])
    for bad in (9999, -1, f"{device.backend}:9999", "9999"):
        with pytest.raises(
            dm.ConfigError, match=rf"no device {bad!r}: the backend '{device.backend}' has {count}, numbered from 0"
        ):
            dm.device(bad)
    for bad in (f"{device.backend}:", f"{device.backend}:x", f"{device.backend}:-1", f"{device.backend}:1:2"):
        with pytest.raises(dm.ConfigError, match="write a backend and an ordinal"):
            dm.device(bad)
    for bad in ("nonsense", "", "nonsense:0", " "):
        with pytest.raises(
            dm.ConfigError, match=rf"no backend is named .*give one of .*{device.backend}.*the devices here: .*{device}"
        ):
            dm.device(bad)
    for bad in (True, 1.5, object(), [0], b"x"):
        with pytest.raises(TypeError, match="a device is"):
            dm.device(bad)


@pytest.mark.parametrize(
    "verb",
    [dm.select_device, dm.reset, dm.memory_info, lambda d: dm.trim(device=d), lambda d: dm.use_memory("driver", d)],
)
def test_every_verb_that_takes_a_device_checks_it(verb):
    with pytest.raises(dm.ConfigError, match="9999"):
        verb(9999)
    with pytest.raises(TypeError, match="a device is"):
        verb(1.5)


# -- with device and select_device -------------------------------------------------------------------------------------


def test_a_device_in_with_is_current_inside(device, second):
    with second as entered:
        assert entered == dm.current_device() == second
        assert dm.zeros(3).device == second
        with device:
            assert dm.zeros(3).device == device
            with second, second:
                assert dm.current_device() == second
            assert dm.current_device() == device
        assert dm.current_device() == second
    assert dm.current_device() == device


def test_with_a_device_that_raises(device, second):
    with pytest.raises(ZeroDivisionError), second:
        raise ZeroDivisionError
    assert dm.current_device() == device


def test_with_a_device_holds_for_this_thread_alone(device, second, in_thread):
    with second:
        assert in_thread(dm.current_device) == dm.device(f"{device.backend}:0")
        assert dm.current_device() == second


def test_scopes_hold_for_one_task_alone(device, second):
    async def work(where):
        with where, dm.stream() as s, dm.use_memory(DriverMemory()):
            for _ in range(5):
                await asyncio.sleep(0)
                assert dm.current_device() == where
                assert dm.zeros(3).device == where
                assert not s.closed
        return dm.current_device()

    async def main():
        return await asyncio.gather(work(second), work(device), work(second))

    assert asyncio.run(main()) == [device] * 3


def test_select_device_from_now_on(device, second):
    try:
        chosen = dm.select_device(second.ordinal)
        assert chosen == second
        assert dm.current_device() == second
        assert dm.zeros(3).device == second
    finally:
        dm.select_device(device)
    assert dm.current_device() == device


def test_select_device_in_with_puts_back_what_was(device, second):
    with dm.select_device(second) as entered:
        assert entered == second
        assert dm.current_device() == second
        with dm.select_device(device):
            assert dm.current_device() == device
        assert dm.current_device() == second
    assert dm.current_device() == device


def test_select_device_in_a_thread_stays_there(device, second, in_thread):
    def choose():
        dm.select_device(second)
        return dm.current_device()

    assert in_thread(choose) == second
    assert dm.current_device() == device


def test_a_failed_choice_changes_nothing(device):
    for bad in ("nonsense:0", 9999):
        for verb in (dm.select_device, dm.use_backend):
            with pytest.raises((dm.ConfigError, TypeError)):
                verb(bad)
    assert dm.current_device() == device


def test_arrays_of_two_devices_side_by_side(device, second):
    here, there = dm.to_device(np.arange(4.0)), dm.to_device(-np.arange(4.0), device=second)
    with second:
        assert here.tolist() == [0, 1, 2, 3]
        here[0] = 9
        assert here[1:].copy().device == device
    assert there.tolist() == [0, -1, -2, -3]
    assert there.copy().device == there.reshape(2, 2).T.reshape(4).device == second


# -- use_backend -------------------------------------------------------------------------------------------------------


def test_use_backend_in_with(recorded, devmem_backend):
    assert dm.current_device().backend == "recording"
    with dm.use_backend(devmem_backend) as name:
        assert name == devmem_backend
        assert dm.current_device().backend == devmem_backend
        with dm.use_backend("recording"):
            assert dm.zeros(3).device.backend == "recording"
        assert dm.current_device().backend == devmem_backend
    assert dm.current_device().backend == "recording"


def test_use_backend_from_now_on(recorded, devmem_backend):
    scope = dm.use_backend(devmem_backend)
    assert dm.current_device().backend == devmem_backend
    with scope:
        assert dm.current_device().backend == devmem_backend
    assert dm.current_device().backend == "recording"


def test_the_last_choice_counts_of_device_and_backend(recorded, devmem_backend):
    with dm.use_backend(devmem_backend):
        with dm.device("recording:0"):
            assert dm.current_device().backend == "recording"
            with dm.use_backend(devmem_backend):
                assert dm.current_device().backend == devmem_backend
            assert dm.current_device().backend == "recording"
        assert dm.current_device().backend == devmem_backend


def test_use_backend_holds_for_this_thread_alone(recorded, devmem_backend, in_thread):
    def other():
        with dm.use_backend(devmem_backend):
            return dm.current_device().backend

    assert in_thread(other) == devmem_backend
    assert dm.current_device().backend == "recording"


def test_use_backend_of_an_unknown_name_is_refused():
    with pytest.raises(dm.ConfigError, match=r"no backend is named 'nonsense'.*use_backend.*give one of"):
        dm.use_backend("nonsense")


def test_use_backend_that_cannot_be_used_says_why():
    unusable = [status for status in dm.backends() if not status.usable]
    if not unusable:
        pytest.skip("every backend can be used here")
    for status in unusable:
        with pytest.raises(dm.BackendUnavailable) as caught:
            dm.use_backend(status.name)
        assert status.reason in str(caught.value)
        assert isinstance(caught.value, ImportError)


def test_arrays_cross_between_backends(recorded, devmem_backend):
    host = np.arange(12.0).reshape(3, 4)
    here = dm.to_device(host)
    there = dm.to_device(here, device=f"{devmem_backend}:0")
    assert there.device.backend == devmem_backend
    np.testing.assert_array_equal(there.copy_to_host(), host)
    here[1] = 0
    here.T[::2].copy_to_device(there.T[::2])
    np.testing.assert_array_equal(here.copy_to_host()[:, ::2], host[:, ::2])
    with pytest.raises(dm.LayoutError, match="cannot order work on"):
        there.fill(1, stream=dm.stream())


# -- registering a backend by hand -------------------------------------------------------------------------------------


def test_a_registered_backend_is_listed_and_can_be_taken_back(recorded):
    [status] = [each for each in dm.backends() if each.name == "recording"]
    assert status.usable
    assert status.origin == "register_backend()"
    d = dm.zeros(3)
    dm.unregister_backend("recording")
    with pytest.raises(dm.ClosedError, match="was reset"):
        d.tolist()
    with pytest.raises(dm.ConfigError, match="no backend is named 'recording'"):
        dm.device("recording:0")
    assert recorded.live().bytes == 0


def test_a_name_that_is_taken_is_refused(recorded, devmem_backend):
    with pytest.raises(
        dm.PluginError,
        match=r"two backends are named 'recording': one from register_backend\(\), one from register_backend\(\)",
    ):
        dm.register_backend(recorded)
    name, recorded.name = recorded.name, devmem_backend
    try:
        with pytest.raises(dm.PluginError, match=rf"two backends are named '{devmem_backend}'.*DEVMEM_BLOCK_PLUGINS"):
            dm.register_backend(recorded)
    finally:
        recorded.name = name


# -- reset and close ---------------------------------------------------------------------------------------------------


def handles():
    d = dm.to_device(np.arange(6.0).reshape(2, 3))
    s, e = dm.stream(), dm.event()
    return {
        "array": lambda: d.copy_to_host(),
        "view": lambda v=d.T: v.copy_to_host(),
        "element": lambda: d[0, 0],
        "ptr": lambda: d.ptr,
        "free": d.free,
        "write": lambda: d.copy_to_device(np.zeros((2, 3))),
        "fill": lambda: d.fill(0),
        "reshape": lambda: d.reshape(6),
        "stream": s.synchronize,
        "stream query": s.query,
        "stream argument": lambda: dm.zeros(3, stream=s),
        "with stream": s.__enter__,
        "event": e.record,
        "event query": e.query,
        "wait": lambda: dm.stream().wait(e),
    }


@pytest.mark.parametrize(
    ("end", "says"),
    [(dm.reset, "was reset"), (dm.close, "was closed"), (lambda: dm.current_device().reset(), "was reset")],
)
def test_handles_of_a_closed_device_say_so(end, says):
    uses = handles()
    end()
    for name, use in uses.items():
        with pytest.raises(dm.ClosedError, match=rf"{says} since this handle was made: make a new one"):
            pytest.fail(f"{name} gave {use()!r}")


@pytest.mark.parametrize("end", [dm.reset, dm.close])
def test_the_device_can_be_used_again_at_once(end, device):
    for _ in range(3):
        d = dm.to_device(np.arange(1000.0))
        assert d.tolist()[-1] == 999
        end()
        assert dm.memory_info()[2:4] == (0, 0)
        assert dm.current_device() == device


@pytest.mark.parametrize("end", [dm.reset, dm.close])
def test_everything_goes_back_to_the_driver(recorded, end):
    kept = [dm.zeros(100), dm.stream(), dm.event(), dm.stream().record(), dm.zeros(100)[1:]]
    driver = dm.current_device().driver()
    end()
    ledger = driver.live()
    assert ledger.bytes == ledger.streams == ledger.events == 0
    assert driver.calls["close"] == 1
    assert driver.mistakes == []
    del kept


def test_dropping_dead_handles_is_harmless(recorded):
    kept = [dm.zeros(100), dm.stream(), dm.event()]
    dm.reset()
    fresh = dm.zeros(100)
    kept.clear()
    dm.trim()
    assert fresh.tolist() == [0] * 100
    assert recorded.mistakes() == []


def test_the_context_manager_of_a_dead_array_ends_quietly():
    with dm.zeros(3):
        dm.reset()
    s = dm.stream()
    with s:
        dm.reset()
    assert dm.zeros(3).tolist() == [0, 0, 0]


def test_reset_of_one_device_leaves_the_other_alone(device, second):
    here, there = dm.zeros(3), dm.to_device(np.arange(3), device=second)
    dm.reset(second)
    with pytest.raises(dm.ClosedError, match=f"{second} was reset"):
        there.tolist()
    assert here.tolist() == [0, 0, 0]
    dm.reset(device)
    with pytest.raises(dm.ClosedError, match=f"{device} was reset"):
        here.tolist()


def test_close_closes_all(device, second):
    arrays = [dm.zeros(3), dm.to_device(np.arange(3), device=second)]
    dm.close()
    for d in arrays:
        with pytest.raises(dm.ClosedError, match="was closed"):
            d.tolist()
    dm.close()


def test_a_device_that_cannot_be_waited_for_is_closed_and_its_copies_keep_what_they_use(device, second, monkeypatch):
    class Failing:
        def __getattr__(self, name):
            return getattr(sound, name)

        def synchronize(self):
            raise dm.BackendError("it failed", backend="x", call="synchronize", code=1, name="FAILED")

    other, opened, source = dm.to_device(np.ones(3), device=second), device.opened(), np.ones(3)
    sound, used, before = opened.handle.driver, weakref.ref(source), len(leaked)
    with device.entered():
        opened.completions.keep_until_complete(opened.streams.default, source)
    del source
    monkeypatch.setattr(opened.handle, "driver", Failing())
    with pytest.raises(dm.BackendError, match="it failed"):
        dm.close()
    with pytest.raises(dm.ClosedError, match="was closed"):
        other.tolist()
    gc.collect()
    assert used() is not None
    del leaked[before:]


def test_facts_and_repr_survive():
    d, s = dm.zeros(3), dm.stream()
    dm.reset()
    assert "closed" in repr(d)
    assert "closed" in repr(s)
    assert s.closed
    assert (d.shape, d.nbytes) == ((3,), 24)


def test_reset_waits_for_work(need, need_kind):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    d, a = dm.zeros(100), dm.pinned_array(100)
    d.copy_to_device(a, stream=s)
    s.synchronize()
    with hold(s, patience=0.3, tolerant=True) as latch:
        d.copy_to_device(a, stream=s)
        dm.reset()
        assert latch.expired
    a[...] = 1
    assert a.sum() == 100


def test_the_settings_are_read_again_after_close(with_settings, unscoped, device, second):
    for each in (second, device):
        with_settings(BACKEND=device.backend, DEVICE=str(each.ordinal))
        assert unscoped(dm.current_device) == each
        with dm.use_backend(device.backend):
            assert dm.current_device() == each


def test_a_device_setting_that_does_not_exist_is_named(with_settings, unscoped, device):
    with_settings(BACKEND=device.backend, DEVICE="9999")
    with pytest.raises(dm.ConfigError, match=r"DEVMEM_DEVICE=9999.*numbered from 0"):
        unscoped(lambda: dm.zeros(3))


def test_the_setting_of_how_many_devices_there_are_is_named():
    name = dm.current_device().backend
    there = [setting.name for setting in dm.settings()]
    count = len([each for each in dm.devices() if each.backend == name])
    with pytest.raises(
        dm.ConfigError, match=f"no device {count}: the backend '{name}' has {count}, numbered"
    ) as caught:
        dm.device(count)
    setting = f"DEVMEM_{name.upper()}_DEVICES"
    assert (f"{setting} sets how many" in str(caught.value)) == (setting in there)


def test_an_ordinal_of_any_length_is_told():
    backend = dm.current_device().backend
    with pytest.raises(dm.ConfigError, match="there is no device"):
        dm.device(f"{backend}:{'9' * 5000}")


@pytest.mark.parametrize("at", ["_open_driver", "OpenDevice"])
def test_a_handler_may_come_while_a_device_is_opened(at, monkeypatch):
    dm.reset()
    call, made = getattr(opening, at), []

    def interrupted(*arguments):
        result = call(*arguments)
        if not made:
            made.append(None)
            made[0] = dm.to_device(np.arange(3))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(opening, at, interrupted)
        array = dm.zeros(3, int)
    assert array.open_device is made[0].open_device
    array.copy_to_device(made[0])
    assert array.copy_to_host().tolist() == [0, 1, 2]


def test_what_is_known_of_a_device_can_be_sent(device):
    info = device.info
    for sent in (pickle.loads(pickle.dumps(info)), copy.deepcopy(info)):
        assert sent == info
        assert hash(sent) == hash(info)
        assert str(sent) == str(info)
