"""Which devices are in use here, and their contexts. Data, and one function to get at a device that is ready."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import devmem


class PrimaryContext(Protocol):
    """What other modules use of a `contexts.Context`, which imports them."""

    device: Any
    memory_manager: Any

    def pop(self) -> None:
        """Make current again what was current before the context."""

    def reset(self) -> None:
        """Free all memory of the context."""


#: Open devices of devmem's that were made ready: their queue has numba.cuda's thresholds, their memory the manager that is set.
ready: set[Any] = set()
#: Our context of each device, for as long as no `close` has ended it.
contexts: dict[devmem.Device, Any] = {}

current_device = devmem.current_device
_lock = threading.RLock()


def ready_device() -> Any:
    """The open device, as devmem has it, that is current here; made ready."""
    found = current_device().opened()
    if found not in ready:
        prepare(found)
    return found


def context_of(native: Any) -> Any:
    """Our context of an open device."""
    if native not in ready:
        prepare(native)
    return contexts[native.device]


def prepare(native: Any) -> None:
    """Make an open device ready."""
    with _lock:
        if native in ready:
            return
        for old in [each for each in ready if each.dead is not None]:
            ready.discard(old)
        ready.add(native)  # first: a plugin that is made ready may ask for the context
        try:
            _open(native)
        except BaseException:
            ready.discard(native)
            raise


def forget(device: devmem.Device) -> None:
    """Let a device be made ready again at its next use."""
    for each in [each for each in ready if each.device == device]:
        ready.discard(each)


def set_open_function(function: Callable[[Any], None]) -> None:
    """Tell how a device is made ready: by the module of the contexts, which knows all others."""
    global _open
    _open = function


def _not_imported(native: Any) -> None:
    raise RuntimeError("devmem.compat.numba_cuda was not imported as a whole")


_open: Callable[[Any], None] = _not_imported
