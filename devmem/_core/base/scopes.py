"""Every scope of devmem: what is current, in this thread or task.

All are ContextVars, so that a scope entered in one thread or task is not seen by another. The exception is deferral of
cleanup, which counts for the whole process: its promise is that nothing is freed meanwhile, by anybody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

    from ..device.device import Device
    from ..device.open_device import Context
    from ..lifetime.allocation import Heap
    from ..ordering.stream import Stream
    from .simulation import Simulation

T = TypeVar("T")

device: ContextVar[Device | None] = ContextVar("devmem_device", default=None)
stream: ContextVar[Stream | None] = ContextVar("devmem_stream", default=None)
saved_streams: ContextVar[tuple[Stream | None, Any] | None] = ContextVar("devmem_saved_streams", default=None)
saved_devices: ContextVar[tuple[Device | None, Any] | None] = ContextVar("devmem_saved_devices", default=None)
simulation: ContextVar[Simulation | None] = ContextVar("devmem_simulation", default=None)
#: By device, and kind for other memory than the device's.
heaps: ContextVar[dict[Any, Heap] | None] = ContextVar("devmem_heaps", default=None)


class Scope(Generic[T]):
    """A choice that holds from the call on, or in ``with`` until the end of the block."""

    __slots__ = ("_undo", "value")

    def __init__(self, value: T, undo: Callable[[], None]) -> None:
        self.value = value
        self._undo: Callable[[], None] | None = undo

    def __enter__(self) -> T:
        return self.value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


def choose(variable: ContextVar[T], value: T) -> Callable[[], None]:
    """Set a variable; the result puts back what was there before."""
    before = variable.get()
    variable.set(value)

    def undo() -> None:
        variable.set(before)

    return undo


class MemoryScope(Scope[Any]):
    """A stack for one kind of a device's memory: from the call on for everybody; in ``with``, for this thread or task alone."""

    __slots__ = ("context", "heap")

    def __init__(self, context: Context, heap: Heap) -> None:
        self.context = context
        self.heap = heap
        context.install(heap)
        super().__init__(heap.resource, lambda: None)

    def __enter__(self) -> Any:
        self.heap.scopes += 1  # first, or another thread may take the heap for one that nobody uses
        self.context.uninstall(self.heap)
        before = heaps.get()
        heaps.set({**(before or {}), self.context.scope_key(self.heap.kind): self.heap})
        self.context.scoped_heaps += 1
        self._undo = lambda: self._leave(before)
        return self.value

    def _leave(self, before: dict[Any, Heap] | None) -> None:
        heaps.set(before)
        self.context.scoped_heaps -= 1
        self.heap.scopes -= 1
        self.context.forget_idle_heaps()


class Deferral:
    """How many ``defer_cleanup()`` blocks are open in the process."""

    __slots__ = ("depth", "lock")

    def __init__(self) -> None:
        self.depth = 0
        self.lock = threading.Lock()

    def enter(self) -> None:
        with self.lock:
            self.depth += 1

    def leave(self) -> bool:
        """True when this was the outermost block."""
        with self.lock:
            self.depth -= 1
            return self.depth == 0


deferral = Deferral()
