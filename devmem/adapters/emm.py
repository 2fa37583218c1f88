"""Numba's External Memory Management plugins, version 1, as memory resources: one for the device, one for pinned host memory.

RMM's plugin for Numba is such a class. The interface has no streams: memory is usable on every stream at once, and devmem frees
it only when no stream uses it.
"""

from __future__ import annotations

from typing import Any

from .._core.memory.foreign import package_of
from ..spi.driver import Driver
from ..spi.errors import DevmemError, PluginError
from ..spi.types import MemoryKind
from .foreign_resource import ForeignResource

VERSION = 1
#: The methods of a plugin.
VERBS = (
    "memalloc",
    "memhostalloc",
    "mempin",
    "initialize",
    "get_ipc_handle",
    "get_memory_info",
    "reset",
    "defer_cleanup",
)
#: CUDA_ERROR_OUT_OF_MEMORY and hipErrorOutOfMemory.
OUT_OF_MEMORY = 2


class _ManagerMemory(ForeignResource):
    """Memory from a manager with Numba's interface."""

    install = "numba-cuda"

    def __init__(self, manager: Any) -> None:
        super().__init__()
        self.manager = checked_manager(manager)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.manager).__name__})"

    def _open(self, driver: Driver) -> None:
        self.manager.initialize()  # the interface allows repeated calls

    def _is_out_of_memory(self, error: Exception) -> bool:
        try:
            return isinstance(error, MemoryError) or int(getattr(error, "code", 0)) == OUT_OF_MEMORY
        except (TypeError, ValueError):
            return False

    def _release(self, ptr: int, nbytes: int, stream: int, home: int, owner: object) -> None:
        pass  # `owner`, the manager's pointer, dies when the caller returns, which frees the memory


class EMMMemory(_ManagerMemory):
    """Device memory from a manager's ``memalloc``."""

    def get_ipc_handle(self, ptr: int) -> Any:
        """The manager's handle with which another process opens the block at an address.

        Raises
        ------
        DevmemError
            No allocated block begins there.
        """
        if ptr not in self._blocks:
            raise DevmemError(f"{self!r} has no block at {ptr:#x}: pass an address that allocate() returned")
        return self.manager.get_ipc_handle(self._blocks[ptr][0])

    def _acquire(self, nbytes: int, stream: int) -> tuple[object, object]:
        pointer = self.manager.memalloc(nbytes)
        return getattr(pointer, "device_pointer", None), pointer


class EMMPinnedMemory(_ManagerMemory):
    """Page-locked host memory from a manager's ``memhostalloc``, and registering through its ``mempin``."""

    kind = MemoryKind.PINNED

    def __init__(self, manager: Any) -> None:
        super().__init__(manager)
        self._pinned: dict[int, object] = {}

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        """Page-lock existing memory until `host_unregister`. The caller keeps it alive."""
        self._pinned[ptr] = self.manager.mempin(None, ptr, nbytes, mapped)

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        """Undo `host_register`."""
        if self._pinned.pop(ptr, None) is None:
            raise DevmemError(f"{self!r} did not register the memory at {ptr:#x}")

    def _acquire(self, nbytes: int, stream: int) -> tuple[object, object]:
        pointer = self.manager.memhostalloc(nbytes, False, False, False)
        return getattr(pointer, "host_pointer", None), pointer


def resources(manager: Any, context: Any = None) -> tuple[EMMMemory, EMMPinnedMemory]:
    """The two resources over a plugin: for device memory and for pinned host memory.

    Parameters
    ----------
    manager : type, module or instance
        The plugin's class, the module with it as ``_numba_memory_manager``, or an instance, such as
        ``numba.cuda.current_context().memory_manager``.
    context : object, optional
        Numba's context of the device, with which the class is instantiated.

    Raises
    ------
    PluginError
        It is not a plugin, lacks a part of the interface, or has another version of it.
    """
    manager = getattr(manager, "_numba_memory_manager", manager)
    if isinstance(manager, type):
        try:
            manager = manager(context=context)
        except TypeError as error:
            raise PluginError(f"{_named(manager)} cannot be instantiated with context=...: {error}") from error
    manager = checked_manager(manager)
    return EMMMemory(manager), EMMPinnedMemory(manager)


def checked_manager(manager: Any) -> Any:
    """The manager, checked for every part of the interface, version 1.

    Raises
    ------
    PluginError
        A part is missing; the message names the manager's package.
    """
    missing = [verb for verb in VERBS if not callable(getattr(manager, verb, None))]
    if missing:
        raise PluginError(
            f"{_named(type(manager))} is no memory manager of Numba's interface: it lacks {', '.join(missing)}"
        )
    version = getattr(manager, "interface_version", None)
    if version != VERSION:
        raise PluginError(
            f"{_named(type(manager))} has version {version!r} of Numba's interface: {VERSION} is supported"
        )
    return manager


def _named(kind: type) -> str:
    return f"{kind.__qualname__} (from {package_of(kind.__module__)})"
