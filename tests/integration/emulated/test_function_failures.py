"""The injection loop at the functions of a vendor's library: each function that a verb calls fails, at each of its calls in turn.

The verbs are those of `test_driver_failures`, which fails the methods of the driver's contract; here the failures come from below
it, through the real binding, on whichever emulated library the process has. After each the emulator's books must say what they
said before, and the verb must work.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vendors

import devmem as dm
from devmem._core.device.open_device import closing_drivers
from devmem.spi.errors import DevmemError, DevmemWarning
from devmem.testing import emulator

spec = importlib.util.spec_from_file_location(
    "devmem_tests_driver_failures", Path(__file__).parents[1] / "failures" / "test_driver_failures.py"
)
assert spec is not None and spec.loader is not None
table = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)

World = table.World
UNKNOWN, OUT_OF_MEMORY = vendors.UNKNOWN, vendors.OUT_OF_MEMORY

#: About other backends, or none.
ELSEWHERE = {"unregister_backend", "backends", "devices", "settings"}
NAMES = sorted(table.ENTRIES.keys() - ELSEWHERE)


class Backend(table.Backend):  # type: ignore[name-defined, misc]
    """The backend behind the ledger that the table looks at, with the emulator's faults as what `disarm` disarms."""

    def __init__(self, vendor: Any, control: emulator.Control) -> None:
        super().__init__(vendor.backend(), "faulty")
        self.vendor, self.control = vendor, control
        self.disarmed = False  #: which a verb that met the failure may have done, to clear up

    def disarm(self) -> None:
        self.disarmed = True
        self.control.reset()
        super().disarm()

    def forgotten(self) -> list[object]:
        """Whether drivers were closed is told by the emulator's books instead."""
        self.opened.clear()
        return []


class Books:
    """What the emulator says is out, everywhere."""

    def __init__(self, control: emulator.Control) -> None:
        self.control = control
        self.before = control.live()

    def check(self) -> None:
        assert self.control.live() == self.before, "bytes and handles that are out, now and before"


@pytest.fixture
def backend(devmem_backend: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    dm.close()
    vendor, control = vendors.vendor_of(devmem_backend)
    dm.close()
    vendor.leave()
    vendor.patch_give_back(monkeypatch)
    made = Backend(vendor, control)
    dm.register_backend(made)
    with vendor.held():
        gc.collect()
        try:
            with dm.use_backend("faulty"):
                yield made
        finally:
            made.disarm()
            dm.unregister_backend("faulty")
            dm.close()
            monkeypatch.undo()
    closing_drivers.clear()  # the traceback of a test that was skipped refers to host memory, which the emulated driver has ended


def attempt(call: Callable[[], object]) -> BaseException | None:
    """What it raises; a typed error, or the test fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DevmemWarning)  # the channel for what cannot be raised: also right
            call()
    except (DevmemError, MemoryError) as error:
        return error
    return None


class Caller:
    """Something that a caller has in a variable."""


def keeps_no_caller(call: Callable[[], object], mistake: Callable[[Callable[[], object]], object]) -> bool:
    """Whether what failed lets go of the frames of its callers, and all that they have, without a collection."""

    def caller() -> weakref.ref[Caller]:
        found = Caller()
        mistake(call)
        return weakref.ref(found)

    gc.disable()
    try:
        return caller()() is None
    finally:
        gc.enable()


def functions_of(control: emulator.Control, call: Callable[[], object]) -> dict[str, int]:
    """Each function that something calls, and how often."""
    control.reset()
    call()
    found = control.calls()
    control.reset()
    return found


def rest() -> None:
    """Bring everything to rest, and what is cached back to the driver."""
    gc.collect()
    for ordinal in range(2):
        dm.device(ordinal).synchronize()
    dm.trim()


def supported(call: Callable[[], object]) -> None:
    """Call, or skip in the device's own words what it cannot do."""
    try:
        call()
    except dm.UnsupportedError as error:
        pytest.skip(str(error))


def inject(
    backend: Backend,
    env: Any,
    call: Callable[[], object],
    code: int,
    functions: tuple[str, ...] | None = None,
    *,
    repeat: bool = False,
) -> int:
    """Fail each function at each of its calls. How many failures there were."""
    control = backend.control
    env.check()
    supported(call)  # made once, what is made only once is there
    env.check()
    rest()
    backend.vendor.leave()
    books = Books(control)
    injected = 0
    for function, count in functions_of(control, call).items():
        if function in backend.vendor.before or (functions is not None and function not in functions):
            continue
        for nth in range(1, count + 1):
            env.check()
            control.reset()
            backend.disarmed = False
            control.fail(function, nth, code, repeat=repeat)
            where = f"with call {nth} of {count} of {function} failing with {code}"
            try:
                assert keeps_no_caller(call, attempt)
                met = backend.disarmed or control.calls().get(function, 0) >= nth
            except BaseException as error:
                error.add_note(where)
                raise
            finally:
                control.reset()
            injected += met
            try:
                # Leaving the device may have been what failed: then it is current still, which is not a leak.
                backend.vendor.leave()
                rest()
                env.check()
                books.check()
                call()
                env.check()
                rest()
                books.check()
                assert backend.vendor.at_rest()
            except BaseException as error:
                error.add_note(f"after the call {where}")
                raise
    return injected


def prepared(backend: Backend, name: str, world: Any) -> tuple[Any, Callable[[], object]]:
    env = table.Env(backend, world, bare=name in table.BARE)
    if name in ENDS:
        return env, functools.partial(use_and_end, backend, ENDS[name])
    if name in OTHERWISE:
        return env, functools.partial(OTHERWISE[name], env)
    return env, functools.partial(table.ENTRIES[name], env)


#: Not as in the table, which closes while the traceback of what failed still holds on to host memory: that is kept then.
ENDS: dict[str, Callable[[], object]] = {
    "close": dm.close,
    "reset": lambda: (dm.reset(), dm.close()),
    "Device.reset": lambda: (dm.device(0).reset(), dm.device(1).reset(), dm.close()),
}


def trim(env: Any) -> None:
    """As in the table, but with the order that the driver asks for: memory is used on another stream after it was made."""
    array = dm.to_device(env.host, stream=env.stream)
    if env.stream:
        env.side.wait(env.stream)
    array.copy(stream=env.side)
    dm.stream()
    del array
    dm.trim()


def use_memory(env: Any) -> None:
    """As in the table, but with memory that the device has."""
    ordered = "stream_ordered" in dm.current_device().info.capabilities
    with dm.use_memory("driver" if env.world.memory != "driver" else "stream_ordered" if ordered else "pool"):
        dm.to_device(env.host, stream=env.stream)


OTHERWISE = {"trim": trim, "use_memory": use_memory}


def use_and_end(backend: Backend, end: Callable[[], object]) -> None:
    failed = attempt(table.use_everything) is not None
    failed |= attempt(end) is not None
    if failed:
        backend.disarm()
        end()


# -- each function, each of its calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_driver_function_fails(name: str, backend: Backend) -> None:
    env, call = prepared(backend, name, World("rows", stream=True))
    assert inject(backend, env, call, UNKNOWN) or not functions_of(backend.control, call).keys() - backend.vendor.before


@pytest.mark.parametrize(
    "world", table.worlds(World(), World("columns", stream=True), World("rows", memory="driver")), ids=str
)
@pytest.mark.parametrize(
    "name",
    [
        "to_device",
        "DeviceNDArray.copy_to_host",
        "DeviceNDArray.copy_to_device",
        "DeviceNDArray.copy",
        "DeviceNDArray.reshape",
        "DeviceNDArray.__setitem__",
        "DeviceNDArray.free",
        "trim",
    ],
)
def test_every_driver_function_fails_in_other_worlds(name: str, world: Any, backend: Backend) -> None:
    env, call = prepared(backend, name, world)
    assert inject(backend, env, call, UNKNOWN)


@pytest.mark.parametrize("memory", ["default", "driver"])
@pytest.mark.parametrize("repeat", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("name", sorted(set(NAMES) - table.BARE))
def test_every_allocation_fails(name: str, repeat: bool, memory: str, backend: Backend) -> None:
    """Out of memory, which is looked at again once and then raised."""
    env, call = prepared(backend, name, World("rows", stream=True, memory=memory))
    inject(backend, env, call, OUT_OF_MEMORY, backend.vendor.allocate, repeat=repeat)


@pytest.mark.parametrize("name", sorted(table.BARE - ELSEWHERE))
def test_opening_and_closing(name: str, backend: Backend) -> None:
    """With device 1 too, and with the code of memory that ran out: contexts and pools want memory as well."""
    env, call = prepared(backend, name, World())
    assert inject(backend, env, call, OUT_OF_MEMORY)


# -- nothing but what was made to fail ---------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["stream_ordered", "driver"])
def test_memory_that_the_driver_will_not_take_back(
    memory: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal that is meant: that block is lost, and never handed out again or freed a second time; nothing else is."""
    monkeypatch.undo()
    control = backend.control
    needs(memory)
    dm.use_memory(memory)
    dm.to_device(np.zeros(1000)).free()
    rest()
    before = control.live()
    for drop in (False, True):
        array = dm.to_device(np.zeros(1000, np.uint8))
        address = array.ptr
        control.fail(backend.vendor.free[memory], 1, UNKNOWN)
        if drop:
            del array
            with pytest.warns(DevmemWarning, match=backend.vendor.unknown):
                dm.trim()
        else:
            with pytest.raises(dm.errors.BackendError):
                array.free()
            array.free()  # which is once and for all
        control.reset()
        rest()
        assert control.live() == (before[0] + 1000, before[1])
        assert dm.memory_info().live == 0
        others = [dm.to_device(np.zeros(1000, np.uint8)) for _ in range(3)]
        assert address not in {each.ptr for each in others}
        del others
        rest()
        with dm.current_device().entered():
            backend.vendor.free_behind(address)
        assert control.live() == before


LOST = 719


def test_a_lost_device_keeps_no_caller_alive(backend: Backend) -> None:
    """What went wrong at first is kept, and told at each later call."""
    array = dm.to_device(np.zeros(1000))
    for function in functions_of(backend.control, array.copy_to_host):
        backend.control.fail(function, 1, LOST)

    def lost(call: Callable[[], object]) -> None:
        with pytest.raises(dm.errors.DeviceLost, match=str(LOST)):
            call()

    for call in (array.copy_to_host, array.copy_to_host, dm.synchronize):
        assert keeps_no_caller(call, lost)
        backend.control.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DevmemWarning)  # nothing can be given back
        dm.close()
    backend.vendor.renew()  # as a new process would find it


# -- what is current, at every verb ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_puts_what_was_current_back(name: str, backend: Backend) -> None:
    """Whatever another library has made current is current after the verb, also after one that failed at its last call."""
    vendor = backend.vendor
    env, call = prepared(backend, name, World("rows", stream=True))
    supported(call)
    for what, other in vendor.others().items():
        with other():
            theirs = vendor.current()
            call()
            assert vendor.current() == theirs, f"{what} was current"
            for function, count in functions_of(backend.control, call).items():
                if function in vendor.before or function.startswith(vendor.choosing):
                    continue
                backend.control.fail(function, count, UNKNOWN)
                attempt(call)
                backend.control.reset()
                assert vendor.current() == theirs, f"{what} was current, and {function} failed"
        env.settle()


def needs(memory: str) -> None:
    """Skip where the device has no such memory."""
    if memory == "stream_ordered" and "stream_ordered" not in dm.current_device().info.capabilities:
        pytest.skip(f"{dm.current_device()} lacks the capability 'stream_ordered'")
