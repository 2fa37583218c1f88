"""The devices in use and their contexts.

A device is prepared at its first use here: it gets a context, numba.cuda's limits of the queue and the selected memory manager.
The module of the contexts sets the function that does so, as it imports this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import devmem

from ....toolkit.locks import Rank, lock


class PrimaryContext(Protocol):
    """The attributes of a `contexts.Context` that modules use which it imports."""

    device: Any
    memory_manager: Any

    def pop(self) -> None:
        """Make current again what was current before the context."""

    def reset(self) -> None:
        """Free all memory of the context."""


#: The open devices that were prepared.
ready: set[Any] = set()
#: The context of each device, until `close` ends it.
contexts: dict[devmem.Device, Any] = {}

current_device = devmem.current_device
_lock = lock("drop-in devices", Rank.COMPILE)


def ready_device() -> Any:
    """The current open device of devmem, prepared."""
    found = current_device().opened()
    if found not in ready:
        prepare(found)
    return found


def context_of(native: Any) -> Any:
    """The context of an open device."""
    if native not in ready:
        prepare(native)
    return contexts[native.device]


def prepare(native: Any) -> None:
    """Prepare an open device for use here."""
    with _lock:
        if native in ready:
            return
        for old in [each for each in ready if each.handle.dead is not None]:
            ready.discard(old)
        ready.add(native)  # first, as a plugin's initialize() may ask for the context
        try:
            _open(native)
        except BaseException:
            ready.discard(native)
            raise


def forget(device: devmem.Device) -> None:
    """Have a device prepared again at its next use."""
    for each in [each for each in ready if each.device == device]:
        ready.discard(each)


def contexts_in_use() -> list[Any]:
    """The contexts of the open devices that are prepared."""
    return [each for each in contexts.values() if each.native_if_open() is not None]


def set_open_function(function: Callable[[Any], None]) -> None:
    """Set the function that prepares a device; called by the module of the contexts."""
    global _open
    _open = function


def _not_imported(native: Any) -> None:
    raise RuntimeError("devmem.compat.numba_cuda was not imported as a whole")


_open: Callable[[Any], None] = _not_imported
