"""The injection loop at the functions of the CUDA driver: each function that a verb calls fails, at each of its calls in turn.

The verbs are those of `test_injection`, which fails the methods of the driver's contract; here the failures come from below
it, through the real binding. After each the emulator's books must say what they said before, and the verb must work.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import devmem as dm
from devmem.backends.cuda.hooks import CudaBackend
from devmem.spi.errors import DevmemError, DevmemWarning
from devmem.testing import emulator

_reason = CudaBackend().unavailable()
pytestmark = [
    pytest.mark.skipif(_reason is not None, reason=f"no CUDA driver, real or emulated: {_reason}"),
    pytest.mark.skipif("DEVMEM_EMULATOR" not in os.environ, reason="needs the emulator's control"),
]
cu: Any = importlib.import_module("cuda.bindings.driver") if _reason is None else None


def _table() -> ModuleType:
    """The table of verbs, from the file beside this one; it is a test module and no package's."""
    name = "devmem_table_of_verbs"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("test_injection.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


table = _table()
World = table.World

#: About other backends, or none.
ELSEWHERE = {"unregister_backend", "backends", "devices", "settings"}
NAMES = sorted(table.ENTRIES.keys() - ELSEWHERE)

UNKNOWN, OUT_OF_MEMORY = 999, 2
ALLOCATE = ("cuMemAlloc", "cuMemAllocFromPoolAsync", "cuMemHostAlloc", "cuMemAllocManaged")
#: These have given back what they were asked to give back even if they report an error: it may be one of earlier work.
GIVE_BACK = (
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuStreamDestroy",
    "cuEventDestroy",
    "cuMemPoolDestroy",
    "cuDevicePrimaryCtxRelease",
)
#: Asked before anything is done for the user, and told as a reason why the backend cannot be used.
BEFORE = {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress"}


class Backend(table.Backend):  # type: ignore[name-defined, misc]
    """CUDA behind the ledger that the table looks at, with the emulator's faults as what `disarm` disarms."""

    def __init__(self) -> None:
        super().__init__(CudaBackend(), "faulty")
        self.control = emulator.control("cuda")
        self.disarmed = False  #: which a verb that met the failure may have done, to clear up

    def disarm(self) -> None:
        self.disarmed = True
        self.control.reset()
        super().disarm()

    def forgotten(self) -> list[object]:
        """Whether drivers were closed is told by the primary context's count instead."""
        return []


class Books:
    """What the emulator says is out, everywhere."""

    def __init__(self, control: emulator.Control) -> None:
        self.control = control
        self.before = control.live()

    def check(self) -> None:
        assert self.control.live() == self.before, "bytes and handles that are out, now and before"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    dm.close()
    cu.cuInit(0)
    cu.cuCtxSetCurrent(0)
    for function in GIVE_BACK:
        monkeypatch.setattr(cu, function, _gives_back_anyway(getattr(cu, function)))
    made = Backend()
    dm.register_backend(made)
    # Another library holds the contexts, so that what is left behind is not dropped with them and goes unseen.
    for ordinal in range(2):
        cu.cuDevicePrimaryCtxRetain(ordinal)
    gc.collect()
    gc.freeze()  # what exists by now need not be looked at hundreds of times
    try:
        with dm.use_backend("faulty"):
            yield made
    finally:
        made.disarm()
        gc.unfreeze()
        dm.unregister_backend("faulty")
        dm.close()
        for ordinal in range(2):
            cu.cuDevicePrimaryCtxReset(ordinal)  # no error of this test is met by the next
            cu.cuDevicePrimaryCtxRetain(ordinal)  # in use again by whoever else holds it
            for _ in range(2):
                cu.cuDevicePrimaryCtxRelease(ordinal)
        cu.cuCtxSetCurrent(0)


def _gives_back_anyway(call: Callable[..., Any]) -> Callable[..., Any]:
    """Where the emulator refuses by plan, it has done nothing; the vendor's driver has."""

    def wrapper(*arguments: object) -> Any:
        result = call(*arguments)
        if int(result[0]) in (UNKNOWN, OUT_OF_MEMORY):
            again = call(*arguments)
            assert not again[0], again[0]
        return result

    return wrapper


def attempt(call: Callable[[], object]) -> BaseException | None:
    """What it raises; a typed error, or the test fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DevmemWarning)  # the channel for what cannot be raised: also right
            call()
    except (DevmemError, MemoryError) as error:
        return error
    return None


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
    call()  # made once, what is made only once is there
    env.check()
    rest()
    cu.cuCtxSetCurrent(0)
    books = Books(control)
    injected = 0
    for function, count in functions_of(control, call).items():
        if function in BEFORE or (functions is not None and function not in functions):
            continue
        for nth in range(1, count + 1):
            env.check()
            control.reset()
            backend.disarmed = False
            control.fail(function, nth, code, repeat=repeat)
            where = f"with call {nth} of {count} of {function} failing with {code}"
            try:
                attempt(call)
                met = backend.disarmed or control.calls().get(function, 0) >= nth
            except BaseException as error:
                error.add_note(where)
                raise
            finally:
                control.reset()
            injected += met
            try:
                # Leaving the device may have been what failed: then it is current still, which is not a leak.
                cu.cuCtxSetCurrent(0)
                rest()
                env.check()
                books.check()
                call()
                env.check()
                rest()
                books.check()
                assert int(cu.cuCtxGetCurrent()[1]) == 0
            except BaseException as error:
                error.add_note(f"after the call {where}")
                raise
    return injected


def prepared(backend: Backend, name: str, world: Any) -> tuple[Any, Callable[[], object]]:
    env = table.Env(backend, world, bare=name in table.BARE)
    if name in ENDS:
        return env, functools.partial(use_and_end, backend, ENDS[name])
    if name == "trim":
        return env, functools.partial(trim, env)
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
    assert inject(backend, env, call, UNKNOWN) or not functions_of(backend.control, call).keys() - BEFORE


@pytest.mark.parametrize("world", [World(), World("columns", stream=True), World("rows", memory="driver")], ids=str)
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


@pytest.mark.parametrize("memory", ["stream_ordered", "driver"])
@pytest.mark.parametrize("repeat", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("name", sorted(set(NAMES) - table.BARE))
def test_every_allocation_fails(name: str, repeat: bool, memory: str, backend: Backend) -> None:
    """Out of memory, which is looked at again once and then raised."""
    env, call = prepared(backend, name, World("rows", stream=True, memory=memory))
    inject(backend, env, call, OUT_OF_MEMORY, ALLOCATE, repeat=repeat)


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
    dm.use_memory(memory)
    dm.to_device(np.zeros(1000)).free()
    rest()
    before = control.live()
    for drop in (False, True):
        array = dm.to_device(np.zeros(1000, np.uint8))
        address = array.ptr
        control.fail("cuMemFree" if memory == "driver" else "cuMemFreeAsync", 1, UNKNOWN)
        if drop:
            del array
            with pytest.warns(DevmemWarning, match="CUDA_ERROR_UNKNOWN"):
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
            assert not cu.cuMemFree(address)[0]
        assert control.live() == before


# -- the context, at every verb ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["nothing", "the same device", "the other device"])
@pytest.mark.parametrize("name", NAMES)
def test_every_verb_puts_the_context_back(name: str, other: str, backend: Backend) -> None:
    """Whatever another library has made current is current after the verb, also after one that failed at its last call."""
    env, call = prepared(backend, name, World("rows", stream=True))
    call()
    theirs: Any = 0
    if other == "the same device":
        try:
            theirs = cu.cuCtxCreate(None, 0, 0)[1]
        except TypeError:  # the binding of CUDA 12
            theirs = cu.cuCtxCreate(0, 0)[1]
    elif other == "the other device":
        theirs = cu.cuDevicePrimaryCtxRetain(1)[1]
    cu.cuCtxSetCurrent(theirs)
    try:
        call()
        assert int(cu.cuCtxGetCurrent()[1]) == int(theirs)
        for function, count in functions_of(backend.control, call).items():
            if function in BEFORE or function.startswith("cuCtx"):
                continue
            backend.control.fail(function, count, UNKNOWN)
            attempt(call)
            backend.control.reset()
            assert int(cu.cuCtxGetCurrent()[1]) == int(theirs), function
    finally:
        cu.cuCtxSetCurrent(0)
        if other == "the same device":
            cu.cuCtxDestroy(theirs)
        elif other == "the other device":
            cu.cuDevicePrimaryCtxRelease(1)
    env.settle()
