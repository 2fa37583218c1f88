"""The current device: ``gpus``, `get_context`, `require_context`, `reset`. Each thread has its own current device."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import devmem

from ....spi.errors import DevmemError
from . import nvidia_driver, state
from .contexts import Context
from .device import Device
from .error import translated

F = TypeVar("F", bound=Callable[..., Any])


class _BoundDevice(threading.local):
    """The device that this thread is bound to while a function runs that requires a context."""

    device: devmem.Device | None = None


_bound_device = _BoundDevice()
_main = threading.main_thread()


class _DeviceContextManager:
    """A device in ``gpus``: in ``with gpus[1]:`` it is current; otherwise like the `Device`."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def __enter__(self) -> None:
        with _translated_errors():
            _check_switch(self._device.native)
            self._device.native.__enter__()
            state.ready_device()

    def __exit__(self, *_: object) -> None:
        self._device.native.__exit__(None, None, None)

    def __str__(self) -> str:
        return f"<Managed Device {self._device.id}>"


class _DeviceList:
    """The devices of the current backend, by number."""

    @property
    def lst(self) -> list[_DeviceContextManager]:
        """All devices."""
        with _translated_errors():
            return [_DeviceContextManager(_device(number)) for number in range(len(self))]

    def __getitem__(self, devnum: Any) -> Any:
        if isinstance(devnum, slice):
            return self.lst[devnum]
        number = int(devnum)
        if 0 <= number < len(self):
            return _DeviceContextManager(_device(number))
        return self.lst[number]

    def __len__(self) -> int:
        with _translated_errors():
            return devmem.device_count()

    def __iter__(self) -> Iterator[_DeviceContextManager]:
        return iter(self.lst)

    def __str__(self) -> str:
        return ", ".join(map(str, self))

    @property
    def current(self) -> Any:
        """The current device."""
        return self[devmem.current_device().ordinal]


gpus = _DeviceList()


def get_context(devnum: Any = None) -> Context:
    """The current context, or the context of device ``devnum``, which becomes current.

    Raises
    ------
    IndexError
        There is no such device.
    RuntimeError
        The current context is not a primary one; or a function under `require_context` would change the context.
    """
    with _translated_errors():
        if devnum is not None:
            native = gpus[int(devnum)].native
            _check_switch(native)
            if devmem.current_device() != native:
                devmem.select_device(native)
        native = state.ready_device()
        nvidia_driver.refuse_foreign_context(native.device)
        return state.contexts[native.device]  # type: ignore[no-any-return]


def require_context(fn: F) -> F:
    """Make a function run with a context that it cannot change."""

    @functools.wraps(fn)
    def with_context(*args: Any, **kws: Any) -> Any:
        before = _bound_device.device
        _bound_device.device = before or get_context().device.native
        try:
            return fn(*args, **kws)
        finally:
            _bound_device.device = before

    return with_context  # type: ignore[return-value]


def reset() -> None:
    """Close all contexts in the main thread; in another thread, only make its default device current again."""
    with _translated_errors():
        if threading.current_thread() is not _main:
            devmem.use_backend(devmem.current_device().backend)
            return
        contexts = list(state.contexts.values())
        state.contexts.clear()
        state.ready.clear()
        managers = [context.memory_manager for context in contexts]
        for context in contexts:
            context.device.native.reset()
        for manager in managers:
            manager.reset()


def _device(number: int) -> Device:
    known = state.contexts.get(devmem.device(number))
    return Device(number) if known is None else known.device


def _check_switch(native: devmem.Device) -> None:
    if _bound_device.device is not None and _bound_device.device != native:
        raise RuntimeError("Cannot switch CUDA-context.")


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate devmem's errors to numba.cuda's."""
    try:
        yield
    except DevmemError as error:
        raise translated(error) from error
