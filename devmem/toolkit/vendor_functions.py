"""A vendor's functions as checked calls: Python values in, outputs back, an error for a status that is not success.

`VendorFunctions` binds a function at its first use and keeps it as an attribute, under its name without the vendor's prefix:
``functions.StreamSynchronize`` is ``cuStreamSynchronize`` for CUDA and ``hipStreamSynchronize`` for HIP. The vendors' functions
have mostly the same names and arguments, so a part that is written once (`devmem.toolkit.streams`) serves several vendors. The
backend binds them: by `checked` and `checked_query` where a Python binding returns tuples ``(status, *outputs)``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection
from itertools import starmap
from typing import Any, NoReturn

from ..spi.errors import BackendError, DeviceLost, OutOfMemory

#: Statuses that CUDA's driver and AMD's HIP runtime number alike.
INVALID_VALUE, OUT_OF_MEMORY, INVALID_HANDLE, NOT_FOUND, NOT_READY, NOT_SUPPORTED = 1, 2, 400, 500, 600, 801
#: A stream or an event cannot be asked: a stream is capturing a graph, or the event was recorded in one.
CAPTURE_UNSUPPORTED, CAPTURED_EVENT, CAPTURE_STATUSES = 900, 907, range(900, 910)
#: Called with a function's name and a status that is not success; raises.
Fail = Callable[[str, int], Any]
#: Called with what a binding raised instead of returning a status: the status, or raises.
StatusOf = Callable[[Exception], int]
#: The vendors' default mode, in which every thread begins, and the relaxed one.
GLOBAL, RELAXED = 0, 2


def _nothing() -> None:
    pass


class VendorFunctions:
    """The functions of one open device. ``bind`` makes the checked call of a full name, or raises `UnsupportedError`.

    ``recorded`` has the same functions in the form of `recorded`, if the backend has one.
    """

    def __init__(
        self,
        prefix: str,
        bind: Callable[[str], Callable[..., Any]],
        bind_recorded: Callable[[str], Callable[..., Any]] | None = None,
    ) -> None:
        self._prefix = prefix
        self._bind = bind
        if bind_recorded is not None:
            self.recorded = VendorFunctions(prefix, bind_recorded)

    def __getattr__(self, name: str) -> Any:
        # Interned: Python's cache of attribute lookups keeps a name for each string object that it is asked for.
        call = self._bind(sys.intern(self._prefix + name))
        setattr(self, name, call)
        return call


class StatusErrors:
    """Raise for a status `OutOfMemory`, `DeviceLost` or `BackendError`, with the vendor's name and sentence.

    After the backend's ``sticky`` statuses every later call on the device fails too: the first of these errors is kept in
    ``lost``, and ``Driver.enter`` raises copies of it (`fresh_copy`) on every thread, without asking the vendor's library.

    ``describe`` gives the vendor's name of a status and its sentence. ``acknowledge`` is called after each failed call: some
    libraries keep the last status until they are asked for it.
    """

    def __init__(
        self,
        backend: str,
        describe: Callable[[int], tuple[str, str]],
        sticky: Collection[int],
        acknowledge: Callable[[], object] = lambda: None,
    ) -> None:
        self.lost: DeviceLost | None = None
        self._tell_lost: Callable[[], None] = _nothing
        self._backend = backend
        self._describe = describe
        self._sticky = sticky
        self.acknowledge = acknowledge

    def fail(self, call: str, status: int) -> NoReturn:
        """Raise for a function that returned a status."""
        self.acknowledge()
        name, sentence = self._describe(status)
        message = f"{call} failed with {name} ({status}): {sentence}"
        kind = OutOfMemory if status == OUT_OF_MEMORY else BackendError
        if status in self._sticky:
            message += "; the device is lost: devmem.reset() tries to start it afresh; if this comes again, restart the process"
            kind = DeviceLost
            self.lost = self.lost or DeviceLost(message, backend=self._backend, call=call, code=status, name=name)
            self._tell_lost()
        raise kind(message, backend=self._backend, call=call, code=status, name=name)

    def on_lost(self, call: Callable[[], None]) -> None:
        """Call it when the device is lost."""
        self._tell_lost = call

    def refuse(self, call: str, status: int, why: str) -> NoReturn:
        """Raise instead of calling a function with arguments that the vendor's library does not survive."""
        name, _ = self._describe(status)
        raise BackendError(f"{call} was not called: {why}", backend=self._backend, call=call, code=status, name=name)


class RelaxedCapture:
    """Calls that go on while another thread of the process captures a graph.

    While any thread captures a graph in the vendors' default mode, no thread of the process may allocate, free or ask for an
    event: the call fails, and the capture with it. A thread in the relaxed mode is exempt: it says that what it does is no part
    of a graph. That is true of what a driver does for devmem, so `run` changes the mode of its thread for a call, and changes it
    back whatever interrupts the call.

    ``exchange`` sets the calling thread's mode and returns (0 or a status, the mode before), or raises BackendError or
    ValueError; None where the vendor's library has no such modes. ``mode`` gives a mode as ``exchange`` takes it.
    """

    def __init__(self, exchange: Callable[[Any], tuple[Any, Any]] | None, mode: Callable[[int], Any] = int) -> None:
        self.exchange = exchange
        self._default = mode(GLOBAL)
        #: The relaxed mode, as ``exchange`` takes it.
        self.relaxed = mode(RELAXED)

    def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call it in the relaxed mode."""
        exchange = self.exchange
        if exchange is None:
            return call(*arguments)
        before = self._default  # for an interrupt that comes before the mode is known: every thread begins in this one
        try:
            try:
                status, before = exchange(self.relaxed)
                if status:
                    before = None
            except (BackendError, ValueError):
                before = None  # the call itself reports what is wrong, and giving memory back has to go on
            return call(*arguments)
        finally:
            if before is not None:
                try:  # suppress() would cost more than the calls
                    exchange(before)
                except (BackendError, ValueError):
                    pass
                except BaseException:  # an interrupt may have come before it
                    exchange(before)
                    raise


def checked(
    name: str, call: Callable[..., Any], fail: Fail, status_of: StatusOf, convert: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """The function of a binding, checked: returns None, the one output, or a tuple of them; converted if there are any."""

    def checked_call(*arguments: Any) -> Any:
        try:
            result = call(*arguments)
        except (ValueError, RuntimeError) as error:
            result = (status_of(error),)
        if result[0]:
            fail(name, int(result[0]))
        if len(result) == 1:
            return None
        outputs = result[1] if len(result) == 2 else result[1:]
        return outputs if convert is None else convert(outputs)

    return checked_call


def recorded(name: str, call: Callable[..., Any], fail: Fail, status_of: StatusOf) -> Callable[..., None]:
    """The function of a binding that makes something, or ends it: checked, and its success recorded whatever interrupts it.

    The caller gives a list before the arguments. Once the vendor's function has been called, and has not failed, the list has
    the output; of a function without one, the first argument. What has been made can be given back, and what has not been ended
    can be ended again.
    """

    def recorded_call(record: list[Any], *arguments: Any) -> None:
        answers: list[tuple[Any, ...]] = []
        try:
            try:
                answers += starmap(call, (arguments,))  # stored before an interrupt can come
            except (ValueError, RuntimeError) as error:
                answers.append((status_of(error),))
            if answers[0][0]:
                fail(name, int(answers[0][0]))
        finally:
            for status, *outputs in answers:
                if not status:
                    record += outputs or arguments[:1]

    return recorded_call


def checked_query(name: str, call: Callable[..., Any], fail: Fail, status_of: StatusOf) -> Callable[..., bool]:
    """The function of a binding that asks whether work is done: True, or False for the status "not ready"."""

    def checked_call(*arguments: Any) -> bool:
        try:
            (status,) = call(*arguments)
        except (ValueError, RuntimeError) as error:
            status = status_of(error)
        if status and int(status) != NOT_READY:
            fail(name, int(status))
        return not status

    return checked_call


def unknown_status(error: Exception, enum: str) -> int:
    """The status that a binding raises ValueError for, because its enum has no member for it; any other error is raised."""
    found = re.match(rf"(-?\d+) is not a valid (?:\w+\.)*{enum}", str(error)) if isinstance(error, ValueError) else None
    if found is None:
        try:
            raise error
        finally:
            del error  # or its traceback and this frame would keep each other
    return int(found[1])
