"""What the tests of failures below the contract know of each vendor's library: names of functions, and what another library does.

The tests name no vendor; they are skipped where the process has no emulated library of the backend under test.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

import devmem as dm
from devmem._core.base.config import options_of
from devmem.spi.errors import BackendError
from devmem.testing import emulator

UNKNOWN, OUT_OF_MEMORY = 999, 2  # of both vendors


class Vendor(Protocol):
    """One vendor's library, beside devmem."""

    name: str
    #: Functions that memory comes from.
    allocate: tuple[str, ...]
    #: Device memory goes back through these: plain, and in stream order.
    free: dict[str, str]
    #: These have given back what they were asked to give back even if they report an error: it may be one of earlier work.
    give_back: tuple[str, ...]
    #: Asked before anything is done for the user, and told as a reason why the backend cannot be used.
    before: frozenset[str]
    #: How the functions begin that choose what is current on a thread.
    choosing: tuple[str, ...]
    #: How the name begins that a status of theirs has in a message.
    unknown: str

    def backend(self) -> Any:
        """A backend of devmem's, as its plugin makes it."""

    def leave(self) -> None:
        """Choose what a new thread has."""

    def at_rest(self) -> bool:
        """Whether that is what is current."""

    def current(self) -> int:
        """What is current on this thread, as a number."""

    def others(self) -> dict[str, Callable[[], contextlib.AbstractContextManager[None]]]:
        """What another library may have made current, by name; it is so within the block."""

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Another library uses the devices too, so that what is left behind is not dropped with them and goes unseen."""

    def renew(self) -> None:
        """No error of this test is met by the next."""

    def patch_give_back(self, patch: pytest.MonkeyPatch) -> None:
        """Let what gives back do so also where the emulator refuses by plan: it has done nothing, the vendor's library has."""

    def free_behind(self, address: int) -> None:
        """Free device memory behind devmem's back; its device is current."""


class Cuda:
    """NVIDIA's driver, through the binding."""

    name = "cuda"
    allocate = ("cuMemAlloc", "cuMemAllocFromPoolAsync", "cuMemHostAlloc", "cuMemAllocManaged")
    free: dict[str, str] = {"driver": "cuMemFree", "stream_ordered": "cuMemFreeAsync"}  # noqa: RUF012
    give_back = (
        "cuMemFree",
        "cuMemFreeAsync",
        "cuMemFreeHost",
        "cuMemHostUnregister",
        "cuStreamDestroy",
        "cuEventDestroy",
        "cuMemPoolDestroy",
        "cuDevicePrimaryCtxRelease",
    )
    before = frozenset(
        {
            "cuInit",
            "cuDriverGetVersion",
            "cuDeviceGetCount",
            "cuGetErrorName",
            "cuGetErrorString",
            "cuGetProcAddress",
        }
    )
    choosing = ("cuCtx",)
    unknown = "CUDA_ERROR_UNKNOWN"

    def __init__(self) -> None:
        self.cu: Any = importlib.import_module("cuda.bindings.driver")
        self.cu.cuInit(0)

    def backend(self) -> Any:
        return importlib.import_module("devmem.backends.cuda.hooks").CudaBackend()

    def leave(self) -> None:
        self.cu.cuCtxSetCurrent(0)

    def at_rest(self) -> bool:
        return self.current() == 0

    def current(self) -> int:
        return int(self.cu.cuCtxGetCurrent()[1])

    def others(self) -> dict[str, Callable[[], contextlib.AbstractContextManager[None]]]:
        return {
            "nothing": contextlib.nullcontext,
            "a context of the same device": self._second_context,
            "the other device": self._other_device,
        }

    @contextlib.contextmanager
    def _second_context(self) -> Iterator[None]:
        try:
            made = self.cu.cuCtxCreate(None, 0, 0)[1]
        except TypeError:  # the binding of CUDA 12
            made = self.cu.cuCtxCreate(0, 0)[1]
        self.cu.cuCtxSetCurrent(made)
        try:
            yield
        finally:
            self.leave()
            self.cu.cuCtxDestroy(made)

    @contextlib.contextmanager
    def _other_device(self) -> Iterator[None]:
        self.cu.cuCtxSetCurrent(self.cu.cuDevicePrimaryCtxRetain(1)[1])
        try:
            yield
        finally:
            self.leave()
            self.cu.cuDevicePrimaryCtxRelease(1)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        for ordinal in range(2):
            self.cu.cuDevicePrimaryCtxRetain(ordinal)
        try:
            yield
        finally:
            self.renew()
            for ordinal in range(2):
                self.cu.cuDevicePrimaryCtxRelease(ordinal)

    def renew(self) -> None:
        for ordinal in range(2):
            self.cu.cuDevicePrimaryCtxReset(ordinal)
            self.cu.cuDevicePrimaryCtxRetain(ordinal)  # in use again by its other holders
            self.cu.cuDevicePrimaryCtxRelease(ordinal)
        self.leave()

    def patch_give_back(self, patch: pytest.MonkeyPatch) -> None:
        for function in self.give_back:
            patch.setattr(self.cu, function, gives_back_anyway(getattr(self.cu, function)))

    def free_behind(self, address: int) -> None:
        assert not self.cu.cuMemFree(address)[0]


class Roc:
    """AMD's runtime: behind devmem's back through ctypes, whichever provider devmem itself calls it through."""

    name = "roc"
    allocate = ("hipMalloc", "hipMallocFromPoolAsync", "hipHostMalloc", "hipMallocManaged")
    free: dict[str, str] = {"driver": "hipFree", "stream_ordered": "hipFreeAsync"}  # noqa: RUF012
    give_back = (
        "hipFree",
        "hipFreeAsync",
        "hipHostFree",
        "hipHostUnregister",
        "hipStreamDestroy",
        "hipEventDestroy",
        "hipMemPoolDestroy",
    )
    before = frozenset({"hipGetDeviceCount", "hipGetErrorName", "hipGetErrorString", "hipGetLastError"})
    choosing = ("hipSetDevice", "hipGetDevice")
    unknown = "hipErrorUnknown"

    def __init__(self) -> None:
        [mapped] = importlib.import_module("devmem.backends.roc.runtime").mapped()
        self.library = ctypes.CDLL(mapped)
        self.leave()

    def backend(self) -> Any:
        made = importlib.import_module("devmem.backends.roc.hooks").RocBackend()
        made.configure(options_of(made))
        return made

    def leave(self) -> None:
        self.library.hipSetDevice(0)  # the runtime has no state in which none is current

    def at_rest(self) -> bool:
        return self.current() == 0

    def current(self) -> int:
        found = ctypes.c_int(-1)
        assert self.library.hipGetDevice(ctypes.byref(found)) == 0
        return found.value

    def others(self) -> dict[str, Callable[[], contextlib.AbstractContextManager[None]]]:
        return {"the first device": contextlib.nullcontext, "the other device": self._other_device}

    @contextlib.contextmanager
    def _other_device(self) -> Iterator[None]:
        self.library.hipSetDevice(1)
        try:
            yield
        finally:
            self.leave()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        try:
            yield  # a device has one context, and no caller can release it
        finally:
            self.renew()

    def renew(self) -> None:
        for ordinal in (1, 0):
            self.library.hipSetDevice(ordinal)
            self.library.hipDeviceReset()
        self.leave()
        self.library.hipGetLastError()

    def patch_give_back(self, patch: pytest.MonkeyPatch) -> None:
        runtime = importlib.import_module("devmem.backends.roc.calls").Runtime
        patch.setattr(runtime, "bind", self._anyway(runtime.bind))

    def _anyway(self, bind: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(runtime: Any, function: str, fail: Any, recorded: bool = False) -> Any:
            made = bind(runtime, function, fail, recorded)
            return raises_anyway(made) if function in self.give_back else made

        return wrapper

    def free_behind(self, address: int) -> None:
        assert not self.library.hipFree(ctypes.c_void_p(address))


def raises_anyway(call: Callable[..., Any]) -> Callable[..., Any]:
    """As `gives_back_anyway`, for what raises instead of returning a status."""

    def wrapper(*arguments: object) -> Any:
        try:
            return call(*arguments)
        except BackendError as error:
            if error.code in (UNKNOWN, OUT_OF_MEMORY):
                call(*arguments)
            raise

    return wrapper


def gives_back_anyway(call: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called again where it was made to fail; what it said first is what it says."""

    def wrapper(*arguments: object) -> Any:
        result = call(*arguments)
        if status(result) in (UNKNOWN, OUT_OF_MEMORY):
            again = call(*arguments)
            assert not status(again), again
        return result

    return wrapper


def status(result: Any) -> int:
    """Of a binding's tuple, or of a bare number."""
    return int(result[0] if isinstance(result, tuple) else result)


VENDORS: dict[str, Callable[[], Vendor]] = {"cuda": Cuda, "roc": Roc}


def vendor_of(backend: str) -> tuple[Vendor, emulator.Control]:
    """The vendor of a backend that can be used, and what steers its emulated library; skips where there is none."""
    if backend not in VENDORS:
        pytest.skip(
            f"the backend {backend!r} has no emulated library: devmem emulate BACKEND -- pytest --devmem-backend"
        )
    dm.memory_info()  # opens a device, and with it the library
    try:
        control = emulator.control(backend)
    except emulator.EmulatorNotLoaded as error:
        pytest.skip(str(error))
    return VENDORS[backend](), control


#: By backend: the library, and its function that exchanges a thread's capture mode.
CAPTURE_MODES = {
    "cuda": ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode"),
    "roc": ("libamdhip64.so", "hipThreadExchangeStreamCaptureMode"),
}


def exchange_capture_mode(backend: str | None, mode: int) -> int:
    """Change this thread's capture mode; returns the one before, or 0, the default, where no such library is in the process."""
    if backend not in CAPTURE_MODES:
        return 0
    library, name = CAPTURE_MODES[backend]
    try:
        exchange = getattr(ctypes.CDLL(library, os.RTLD_NOLOAD), name)
    except OSError:
        return 0
    exchanged = ctypes.c_int(mode)
    return 0 if exchange(ctypes.byref(exchanged)) else exchanged.value
