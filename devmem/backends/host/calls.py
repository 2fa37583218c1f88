"""What every call to a host device needs: the device's state, whether it is current, and looking up what it is given."""

from __future__ import annotations

import threading
import weakref

from devmem.spi.errors import BackendError
from devmem.toolkit.host_functions import this_thread

from .address_space import AddressSpace
from .error_codes import host_error
from .stream_engine import Engine
from .streams import Stream


class Calls:
    """The state that the calls of one device share.

    Methods that are called most look at ``current`` themselves: a frame less.
    """

    def __init__(self, ordinal: int, *, strict: bool, devices: int) -> None:
        if not 0 <= ordinal < devices:
            raise host_error("open", "INVALID_DEVICE", f"there is no device {ordinal}; there are {devices}")
        self._ordinal = ordinal
        self._devices = devices
        self._space = AddressSpace(strict)
        self._memory = self._space.device
        self._engine = Engine()
        self._engine.at_exit = self._space.keep_mapped
        self._key = object()  # what the thread-local says while this device is current; a new one closes all doors
        self._closed = False
        opened.add(self)

    # -- context -----------------------------------------------------------------------------------------------------

    def enter(self) -> object:
        if self._closed:
            raise self._no_context("enter")
        before = current.key
        if before is self._key:
            return None
        if this_thread.runs_host_function:
            why = "a kernel, or what else runs for a stream, cannot launch another one, allocate, copy or wait"
            raise host_error("enter", "NOT_PERMITTED", f"{why}: do that on the host, and give it arrays as arguments")
        current.key = self._key
        return _NOBODY if before is None else before

    def exit(self, token: object) -> None:
        if token is not None:
            current.key = None if token is _NOBODY else token

    def close(self) -> None:
        """Stop the threads after the jobs that they are running; held and waiting jobs are abandoned."""
        if self._closed:
            return
        self._closed = True
        self._key = object()
        self._engine.close()
        opened.discard(self)
        self._space.close(in_use=self._engine.used_elsewhere())
        self._engine.warn()

    # -- checks ------------------------------------------------------------------------------------------------------

    def _check(self, call: str) -> None:
        if current.key is not self._key:
            raise self._no_context(call)

    def _stream(self, handle: int, call: str) -> Stream:
        if current.key is not self._key:
            raise self._no_context(call)
        return self._engine.stream(handle, call)

    def _no_context(self, call: str) -> BackendError:
        if self._closed:
            return host_error(call, "DEVICE_CLOSED", f"device {self._ordinal} was closed")
        return host_error(
            call, "INVALID_CONTEXT", f"device {self._ordinal} is not current on this thread; enter() it first"
        )


class _Current(threading.local):
    """What is current on a thread: the key of a driver, or nothing."""

    key: object = None


current = _Current()
#: The token that stands for nothing having been current; None says that nothing was changed.
_NOBODY = object()
#: All that are open: memory of one may be given to another.
opened: weakref.WeakSet[Calls] = weakref.WeakSet()
