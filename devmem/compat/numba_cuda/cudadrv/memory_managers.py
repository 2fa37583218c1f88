"""External Memory Management plugins, interface version 1: their base classes, and the selected plugin."""

from __future__ import annotations

import importlib
import os
import weakref
from abc import ABCMeta, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import devmem

from ...._core.lifetime.allocation import Allocation
from ....spi.errors import DevmemError
from ....spi.types import AllocFlags, MemoryKind
from .error import OUT_OF_MEMORY, CudaAPIError, translated
from .ipc import GetIpcHandleMixin
from .pointers import AutoFreePointer, HostBytes, ManagedMemory, MappedMemory, PinnedMemory
from .state import contexts_in_use

VERSION = 1
#: numba.cuda's environment variables: the module of the manager, and the limits of the queue of deferred frees.
MANAGER = "NUMBA_CUDA_MEMORY_MANAGER"
COUNT_VARIABLE = "NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT"
RATIO_VARIABLE = "NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO"

#: The advice for plugins in third-party files.
RMM_ADVICE = 'devmem supports RMM itself: devmem.use_memory("rmm") or DEVMEM_MEMORY_MANAGER=rmm'


class MemoryInfo(NamedTuple):
    """Free and total memory of a device, in bytes."""

    free: int
    total: int


class BaseCUDAMemoryManager(metaclass=ABCMeta):
    """The interface of a plugin. One instance is made for each device, with its context."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "context" not in kwargs:
            raise RuntimeError("Memory manager requires a context")
        self.context = kwargs.pop("context")

    @abstractmethod
    def memalloc(self, size: int) -> Any:
        """A `MemoryPointer` to ``size`` bytes of device memory."""

    @abstractmethod
    def memhostalloc(self, size: int, mapped: bool, portable: bool, wc: bool) -> Any:
        """A `PinnedMemory` of ``size`` bytes, or with ``mapped`` a `MappedMemory`."""

    @abstractmethod
    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool) -> Any:
        """A `PinnedMemory` or `MappedMemory` over existing memory, page-locked until it dies."""

    @abstractmethod
    def initialize(self) -> None:
        """Prepare the manager: called, possibly repeatedly, before a context is used."""

    @abstractmethod
    def get_ipc_handle(self, memory: Any) -> Any:
        """An `IpcHandle` of memory."""

    @abstractmethod
    def get_memory_info(self) -> MemoryInfo:
        """Free and total bytes; NotImplementedError if unknown."""

    @abstractmethod
    def reset(self) -> None:
        """Free all memory of the context."""

    @abstractmethod
    def defer_cleanup(self) -> AbstractContextManager[None]:
        """A context manager during which nothing is freed."""

    @property
    @abstractmethod
    def interface_version(self) -> int:
        """1."""


class HostOnlyCUDAMemoryManager(BaseCUDAMemoryManager):
    """A plugin whose host memory is implemented: pinned, mapped, managed and registered memory come from devmem."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allocations: dict[Any, Any] = {}
        self.deallocations = PendingDeallocs(self.context, Allocation)
        self._blocks: dict[int, Allocation] = {}

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        """Page-locked host memory."""
        flags = AllocFlags(AllocFlags.PORTABLE * bool(portable) | AllocFlags.WRITE_COMBINED * bool(wc))
        block = self._allocate(size, MemoryKind.MAPPED if mapped else MemoryKind.PINNED, flags)
        context, finalizer = weakref.proxy(self.context), self._finalizer(block)
        if not mapped:
            return PinnedMemory(context, block.ptr, size, finalizer=finalizer)
        return self._kept(block.ptr, MappedMemory(context, block.ptr, size, finalizer=finalizer))

    def memallocmanaged(self, size: int, attach_global: bool) -> Any:
        """Memory with one address for host and device."""
        flags = AllocFlags.NONE if attach_global else AllocFlags.ATTACH_HOST
        block = self._allocate(size, MemoryKind.MANAGED, flags)
        context = weakref.proxy(self.context)
        return self._kept(block.ptr, ManagedMemory(context, block.ptr, size, finalizer=self._finalizer(block)))

    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool = False) -> Any:
        """Existing memory, page-locked until the result dies; ``owner`` is kept alive until then."""
        locked = _PageLocked(owner, pointer, size)
        context = weakref.proxy(self.context)
        if not mapped:
            return PinnedMemory(context, pointer, size, owner=owner, finalizer=locked.end)
        return self._kept(pointer, MappedMemory(context, pointer, size, owner=owner, finalizer=locked.end))

    def initialize(self) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Free all host memory of the context."""
        self.allocations.clear()
        self.deallocations.clear()

    @contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """A ``with`` block in which no host memory is freed."""
        with self.deallocations.disable():
            yield

    def _attempt_allocation(self, allocator: Callable[[], Any]) -> Any:
        """Call an allocator; if memory runs out, free what is deferred and call it again."""
        try:
            return allocator()
        except CudaAPIError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            self.deallocations.clear()
            return allocator()

    def _allocate(self, size: int, kind: MemoryKind, flags: AllocFlags = AllocFlags.NONE) -> Allocation:
        native = self.context.device.native.opened()
        try:
            native.handle.require_kind(kind)
            with native.device.entered():
                if kind is MemoryKind.DEVICE:
                    block: Allocation = native.memory.allocate(size, native.streams.stream_of(None), True)
                else:
                    block = native.memory.allocate_host(size, kind, flags, native.streams.legacy)
        except DevmemError as error:
            raise translated(error) from error
        self._blocks[block.ptr] = block
        return block

    def _finalizer(self, block: Allocation) -> Callable[[], object]:
        # May run in the garbage collector: dropping the last reference only queues the block for its free.
        return partial(_forget, self._blocks, self.allocations, block.ptr)

    def _kept(self, key: int, memory: Any) -> Any:
        self.allocations[key] = memory
        return memory.own()


class NumbaCUDAMemoryManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):
    """The default manager: devmem's memory stack."""

    def memalloc(self, size: int) -> Any:
        """Device memory from the installed stack; an error that is a CudaAPIError and an OutOfMemory if it does not fit."""
        if not size:
            return AutoFreePointer(self.context, 0, 0)
        block = self._allocate(size, MemoryKind.DEVICE)
        context = weakref.proxy(self.context)
        return self._kept(block.ptr, AutoFreePointer(context, block.ptr, size, finalizer=self._finalizer(block)))

    def get_memory_info(self) -> MemoryInfo:
        """Free and total bytes, from the driver."""
        info = devmem.memory_info(self.context.device.native)
        return MemoryInfo(info.free, info.total)

    @property
    def interface_version(self) -> int:
        """1."""
        return VERSION


class PendingDeallocs:
    """The queue of deferred frees: devmem's own, restricted to one kind of object, and the items that plugins add."""

    def __init__(self, context: Any, kind: Any) -> None:
        self._context = None if context is None else weakref.ref(context)
        self._kind = kind
        self._added: deque[tuple[Callable[[Any], object], Any, int]] = deque()
        self._deferred = 0

    def __len__(self) -> int:
        native = self._native()
        if native is None:
            return len(self._added)
        with native.device.entered():
            native.free_queue.free_if_due()
        waiting = *native.free_queue.dropped, *native.free_queue.pending
        return len(self._added) + sum(isinstance(item, self._kind) for item in waiting)

    def add_item(self, dtor: Callable[[Any], object], handle: Any, size: int = 0) -> None:
        """Call ``dtor(handle)`` when the queue is next emptied; ``size`` bytes count towards its limit."""
        self._added.append((dtor, handle, int(size)))
        native = self._native()
        if native is not None and (
            len(self._added) > native.free_queue.max_count
            or sum(item[2] for item in self._added) > native.free_queue.max_bytes
        ):
            self.clear()

    def clear(self) -> None:
        """Free all items, unless cleanup is deferred."""
        if self.is_disabled:
            return
        while self._added:
            dtor, handle, _ = self._added.popleft()
            dtor(handle)
        native = self._native()
        if native is not None:
            with native.device.entered():
                native.completions.poll()
                native.free_queue.drain()

    @contextmanager
    def disable(self) -> Iterator[None]:
        """A ``with`` block in which nothing is freed; blocks nest."""
        self._deferred += 1
        try:
            with devmem.defer_cleanup():
                yield
        finally:
            self._deferred -= 1

    @property
    def is_disabled(self) -> bool:
        """Whether cleanup is deferred."""
        return self._deferred > 0

    @property
    def memory_capacity(self) -> int:
        """Total bytes of the device's memory."""
        native = self._native()
        return 0 if native is None else native.handle.info.total_bytes

    @property
    def _max_pending_bytes(self) -> int:
        native = self._native()
        return 0 if native is None else native.free_queue.max_bytes

    @property
    def _size(self) -> int:
        native = self._native()
        return sum(item[2] for item in self._added) + (0 if native is None else native.free_queue.waiting_bytes())

    def _native(self) -> Any:
        context = None if self._context is None else self._context()
        return None if context is None else context.native_if_open()


class _PageLocked:
    """Host memory, page-locked until `end` is called."""

    def __init__(self, owner: Any, pointer: int, size: int) -> None:
        self.owner = owner
        self.bytes = np.asarray(HostBytes.at(pointer, size))
        self.registration = _translating(devmem.register, self.bytes)

    def end(self) -> None:
        """Unlock the memory after the copies that use it."""
        self.registration.close()
        self.owner = None


_manager: Any = None


def set_memory_manager(mm_plugin: Any) -> None:
    """Make a plugin's class the manager of contexts opened from now on; None restores devmem's own.

    Raises
    ------
    RuntimeError
        It is written for another version of the interface; or a device is in use with another manager.
    TypeError
        It derives from Numba's own base classes, and so allocates for Numba's contexts.
    """
    global _manager
    if mm_plugin is not None:
        _refuse_numba_classes(mm_plugin)
        version = mm_plugin(context=None).interface_version
        if version != VERSION:
            raise RuntimeError(f"EMM Plugin interface has version {version} - version {VERSION} required")
        for context in contexts_in_use():
            used = type(context.memory_manager)
            if used is not mm_plugin:
                raise RuntimeError(
                    f"{context.device} is in use with the memory manager {used.__name__}, so {mm_plugin.__name__} comes too "
                    f"late: set the manager before the first use of a device, or call cuda.close() before"
                )
    _manager = mm_plugin


def manager_class() -> Any:
    """The class of the manager that is set, or that NUMBA_CUDA_MEMORY_MANAGER names.

    Raises
    ------
    RuntimeError
        The named module cannot be used.
    """
    if _manager is not None:
        return _manager
    name = os.environ.get(MANAGER, "default")
    if name in ("", "default"):
        return NumbaCUDAMemoryManager
    try:
        set_memory_manager(importlib.import_module(name)._numba_memory_manager)
    except Exception as error:
        advice = f"; {RMM_ADVICE}" if name.startswith("rmm.") and isinstance(error, ImportError) else ""
        raise RuntimeError(f"Failed to use memory manager from {name}: {error}{advice}") from error
    return _manager


def _refuse_numba_classes(plugin: Any) -> None:
    """Refuse a class derived from Numba's own base classes, which does not know this package's contexts."""
    classes = plugin.__mro__ if isinstance(plugin, type) else ()
    if any(each.__module__.partition(".")[0] == "numba" for each in classes):
        raise TypeError(
            f"{plugin.__module__}.{plugin.__qualname__} is a memory manager for Numba's own contexts, since its file imports "
            f"Numba: change that import, if the file is yours; {RMM_ADVICE}"
        )


def _translating(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except DevmemError as error:
        raise translated(error) from error


def _forget(blocks: dict[int, Allocation], allocations: dict[Any, Any], ptr: int) -> None:
    blocks.pop(ptr, None)
    allocations.pop(ptr, None)
