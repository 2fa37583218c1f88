"""External Memory Management plugins, interface version 1: what they derive from, and which one is in force."""

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

VERSION = 1
#: The module that names a manager, and the thresholds of the queue, as numba.cuda's users set them.
MANAGER = "NUMBA_CUDA_MEMORY_MANAGER"
COUNT_VARIABLE = "NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT"
RATIO_VARIABLE = "NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO"

#: What to do about plugins in somebody else's files.
RMM_ADVICE = 'devmem knows RMM by itself, devmem.use_memory("rmm") or DEVMEM_MEMORY_MANAGER=rmm'


class MemoryInfo(NamedTuple):
    """Free and total memory of a device, in bytes."""

    free: int
    total: int


class BaseCUDAMemoryManager(metaclass=ABCMeta):
    """What a plugin has to have. One instance is made for each device, with its context."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "context" not in kwargs:
            raise RuntimeError("Memory manager requires a context")
        self.context = kwargs.pop("context")

    @abstractmethod
    def memalloc(self, size: int) -> Any:
        """A `MemoryPointer` to so many bytes of device memory."""

    @abstractmethod
    def memhostalloc(self, size: int, mapped: bool, portable: bool, wc: bool) -> Any:
        """A `PinnedMemory` of so many bytes, or, ``mapped``, a `MappedMemory`."""

    @abstractmethod
    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool) -> Any:
        """A `PinnedMemory` or `MappedMemory` of memory that exists, page-locked until it dies."""

    @abstractmethod
    def initialize(self) -> None:
        """Get ready: called when a context is about to be used, and again then."""

    @abstractmethod
    def get_ipc_handle(self, memory: Any) -> Any:
        """An `IpcHandle` of memory."""

    @abstractmethod
    def get_memory_info(self) -> MemoryInfo:
        """Free and total bytes; NotImplementedError where that cannot be told."""

    @abstractmethod
    def reset(self) -> None:
        """Give back all that was allocated in the context."""

    @abstractmethod
    def defer_cleanup(self) -> AbstractContextManager[None]:
        """A block in which nothing is given back."""

    @property
    @abstractmethod
    def interface_version(self) -> int:
        """1."""


class HostOnlyCUDAMemoryManager(BaseCUDAMemoryManager):
    """A plugin with the host's part done: pinned, mapped, managed and registered memory come from devmem."""

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
        """Memory that exists, page-locked until the result dies; ``owner`` is kept alive as long."""
        locked = _PageLocked(owner, pointer, size)
        context = weakref.proxy(self.context)
        if not mapped:
            return PinnedMemory(context, pointer, size, owner=owner, finalizer=locked.end)
        return self._kept(pointer, MappedMemory(context, pointer, size, owner=owner, finalizer=locked.end))

    def initialize(self) -> None:
        """Nothing."""

    def reset(self) -> None:
        """Give back all host memory of the context."""
        self.allocations.clear()
        self.deallocations.clear()

    @contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """A block in which no host memory is given back."""
        with self.deallocations.disable():
            yield

    def _attempt_allocation(self, allocator: Callable[[], Any]) -> Any:
        """Call an allocator; once more, after what waits was given back, if memory ran out."""
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
        # Runs in the collector: the block only joins devmem's queue, by losing its last reference.
        return partial(_forget, self._blocks, self.allocations, block.ptr)

    def _kept(self, key: int, memory: Any) -> Any:
        self.allocations[key] = memory
        return memory.own()


class NumbaCUDAMemoryManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):
    """The manager where none is set: devmem's memory stack."""

    def memalloc(self, size: int) -> Any:
        """Device memory from the stack in force; a CudaAPIError that is an OutOfMemory if it does not fit."""
        if not size:
            return AutoFreePointer(self.context, 0, 0)
        block = self._allocate(size, MemoryKind.DEVICE)
        context = weakref.proxy(self.context)
        return self._kept(block.ptr, AutoFreePointer(context, block.ptr, size, finalizer=self._finalizer(block)))

    def get_memory_info(self) -> MemoryInfo:
        """Free and total bytes, as the driver says."""
        info = devmem.memory_info(self.context.device.native)
        return MemoryInfo(info.free, info.total)

    @property
    def interface_version(self) -> int:
        """1."""
        return VERSION


class PendingDeallocs:
    """What was dropped and is not given back yet: devmem's queue, as far as one kind of thing goes, and what plugins add."""

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
            native.free_queue.safe_point()
        return len(self._added) + sum(isinstance(item, self._kind) for item in list(native.free_queue.pending))

    def add_item(self, dtor: Callable[[Any], object], handle: Any, size: int = 0) -> None:
        """Call ``dtor(handle)`` when the queue is next emptied, as what has so many bytes."""
        self._added.append((dtor, handle, int(size)))
        native = self._native()
        if native is not None and (
            len(self._added) > native.free_queue.max_count
            or sum(item[2] for item in self._added) > native.free_queue.max_bytes
        ):
            self.clear()

    def clear(self) -> None:
        """Give back all that waits, unless that is deferred."""
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
        """A block in which nothing is given back; blocks nest."""
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
        """Bytes of the device."""
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
    """Host memory that is page-locked until `end` is called."""

    def __init__(self, owner: Any, pointer: int, size: int) -> None:
        self.owner = owner
        self.bytes = np.asarray(HostBytes.at(pointer, size))
        self.registration = _translating(devmem.register, self.bytes)

    def end(self) -> None:
        """Unlock it, after the copies that use it."""
        self.registration.close()
        self.owner = None


_manager: Any = None


def set_memory_manager(mm_plugin: Any) -> None:
    """Make a plugin's class the manager of the contexts that are opened from now on; None: devmem's own again.

    Raises
    ------
    RuntimeError
        It is written for another version of the interface.
    TypeError
        It is of Numba's own interface, which allocates for Numba's contexts, and not of this one.
    """
    global _manager
    if mm_plugin is not None:
        _refuse_numba_classes(mm_plugin)
        version = mm_plugin(context=None).interface_version
        if version != VERSION:
            raise RuntimeError(f"EMM Plugin interface has version {version} - version {VERSION} required")
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
    """Refuse a class that is derived from Numba's own, in a file that imports Numba: it knows nothing of our contexts."""
    classes = plugin.__mro__ if isinstance(plugin, type) else ()
    if any(each.__module__.partition(".")[0] == "numba" for each in classes):
        raise TypeError(
            f"{plugin.__module__}.{plugin.__qualname__} is a memory manager for Numba's own contexts, since its file imports "
            f"Numba: change the import there, if it is yours; {RMM_ADVICE}"
        )


def _translating(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except DevmemError as error:
        raise translated(error) from error


def _forget(blocks: dict[int, Allocation], allocations: dict[Any, Any], ptr: int) -> None:
    blocks.pop(ptr, None)
    allocations.pop(ptr, None)
