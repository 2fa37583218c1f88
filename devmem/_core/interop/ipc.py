"""Device memory that two processes use: what one hands to the other, and who lets go of it there."""

from __future__ import annotations

import dataclasses
import os
import reprlib
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from ...spi.errors import BackendError, LayoutError, UnsupportedError
from ...spi.types import Capability
from ...toolkit.locks import Rank
from ..base.advice import IPC, Listed, advise
from ..base.arguments import layout_of
from ..base.array_view import ArrayView
from ..base.device_handle import CurrentDevice
from ..base.interrupts import CannotWait
from ..base.layout import Shape, check_size, span
from ..base.outer_lock import OuterLock
from ..device.backends import usable_backend
from ..device.device import checked_device, current_open_device
from ..device.opening import open_devices
from ..lifetime.allocation import Allocation, ForeignAllocation
from ..memory.adaptor import chain, largest_free_block
from ..memory.direct import DriverMemory, StreamOrderedMemory, VirtualMemory

if TYPE_CHECKING:
    from ...spi.driver import Driver
    from ..device.open_device import OpenDevice
    from .sharing import Descriptor

#: Bytes of a key; nothing longer is sent anywhere.
LONGEST_KEY = 64
#: How to have memory that can be shared.
PLAIN = "allocate it inside `with devmem.use_memory(devmem.memory.DriverMemory()):`"


if TYPE_CHECKING:
    _Advice = Listed
else:
    _Advice = advise(IPC)


@dataclass(frozen=True)
class IpcHandle(_Advice):
    """Device memory of this process, for another one: pickle it, send it, and give it to `open_ipc_array` there.

    The memory stays this process's: keep the array until the other process has let go of its own.

    Attributes
    ----------
    backend, uuid : str
        Whose device it is, and which.
    nbytes, offset : int
        The driver's allocation: its size, and where in it the array begins.
    shape, dtype, strides
        The array's, where `open_ipc_array` is not told otherwise; strides in bytes.
    process : int
        The number of the process that it was made in.
    owner, key
        Where that process answers, and by what it knows the memory: it is asked, before anything is mapped, whether the memory
        is still there, unless it is in another network namespace. Empty where the system has no such sockets, and in handles
        made of the driver's bytes alone.
    pooled, virtual : bool
        Whether the memory is of the driver's own pool, or virtual memory. Both are opened by a file descriptor, which that
        process sends with its answer; but virtual memory with a fabric handle by that, on other machines too.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.DriverMemory()):
    ...     d = dm.zeros(3)
    >>> handle = d.get_ipc_handle()             # pickle it, and send it
    >>> handle.shape
    (3,)
    """

    backend: str
    uuid: str
    nbytes: int
    offset: int
    shape: Shape
    dtype: np.dtype[Any]
    strides: Shape
    raw: bytes = field(repr=False)
    process: int = field(default_factory=os.getpid)
    owner: str = ""
    key: bytes = field(default=b"", repr=False)
    pooled: bool = False
    virtual: bool = False

    @property
    def by_file(self) -> bool:
        """Whether it is opened by a file descriptor."""
        return self.pooled or (self.virtual and not self.raw)

    @property
    def digest(self) -> bytes:
        """A few bytes for what it says of the driver's allocation."""
        from .sharing import digest_of  # late, as below: sockets and a thread are for programs that share

        return digest_of(self.backend, self.uuid, self.nbytes, self.raw, self.pooled, self.virtual)


class Opened:
    """Memory of other processes, as a resource that only takes back. It closes what the driver has opened."""

    stream_ordered = False
    driver: Driver

    def bind(self, driver: Driver) -> None:
        """Take the device."""
        self.driver = driver

    def allocate(self, nbytes: int, stream: int) -> int:
        """Not possible: it is opened instead."""
        raise UnsupportedError("memory of another process is opened with open_ipc_array(), not allocated")

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Let go of the memory; every stream has passed it."""
        self.driver.ipc_close(ptr)  # type: ignore[attr-defined]


class OpenedVirtual(Opened):
    """Virtual memory of other processes: each time it is opened it is mapped once more."""

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Unmap the memory; every stream has passed it."""
        self.driver.virtual_free(ptr, nbytes, stream)  # type: ignore[attr-defined]


class OpenedPool(Opened):
    """Memory of other processes' pools. A block that is opened again is not imported again: the vendors do not count imports."""

    def __init__(self) -> None:
        self._lock = OuterLock(
            "opened pool memory",
            Rank.DRIVER,
            "memory of another process's pool, while another thread opens or closes some,",
        )
        self._blocks: dict[tuple[str, bytes], int] = {}
        #: How often each is open.
        self._times: defaultdict[int, int] = defaultdict(int)
        #: What is just being imported or closed, by the thread that has the lock.
        self._changing: set[tuple[str, bytes]] = set()

    def open(self, key: tuple[str, bytes], descriptor: int, data: bytes) -> int:
        """The address of a block, which is imported unless it is here already.

        Raises
        ------
        CannotWait
            This is a handler, and its own thread is just importing or closing the block.
        """
        with self._lock:
            if key in self._changing:
                raise CannotWait("this memory is just being opened or closed by a call that this one has interrupted")
            try:
                self._changing.add(key)
                if key not in self._blocks:
                    self._blocks[key] = self.driver.pool_open(descriptor, data)  # type: ignore[attr-defined]
                ptr = self._blocks[key]
                self._times[ptr] += 1
                return ptr
            finally:
                self._changing.discard(key)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Let go of the memory, with the last of those that have it open; every stream has passed it."""
        with self._lock:
            keys = {key for key, other in list(self._blocks.items()) if other == ptr}
            try:
                self._changing |= keys
                self._times[ptr] -= 1
                if self._times[ptr] <= 0:
                    # Forgotten first: it must not be opened again by an address that the driver has closed.
                    del self._times[ptr]
                    for key in keys:
                        self._blocks.pop(key, None)
                    self.driver.pool_close(ptr)  # type: ignore[attr-defined]
            finally:
                self._changing -= keys


_opened: dict[type[Opened], WeakKeyDictionary[OpenDevice, Opened]] = {
    Opened: WeakKeyDictionary(),
    OpenedPool: WeakKeyDictionary(),
    OpenedVirtual: WeakKeyDictionary(),
}


def handle_of(view: ArrayView[Any], allocation: Allocation) -> IpcHandle:
    """Return the handle by which another process opens an array's memory, after waiting for devmem's work on it.

    Raises
    ------
    UnsupportedError
        The device cannot share memory, or the array's is in no allocation of the driver that can be shared.
    LayoutError
        The array is empty.
    DevmemError
        The system gives no socket, or no thread, to answer other processes with.
    """
    from .sharing import offer, pool_descriptor, virtual_descriptor

    handle = allocation.device_handle
    allocation.check()
    handle.require(Capability.IPC, "share memory with another process", "copy it through the host")
    if not view._ptr:
        raise LayoutError(f"an array of shape {view.shape} has no memory to share")
    with CurrentDevice(handle) as driver:
        base, nbytes, source = _shareable(allocation)
        pooled, virtual = isinstance(source, StreamOrderedMemory), isinstance(source, VirtualMemory)
        allocation.wait()
        try:
            if isinstance(source, VirtualMemory):
                raw = bytes(driver.virtual_share(base)) if source.fabric else b""
                descriptors = [] if source.fabric else virtual_descriptor(driver, source, base)
            else:
                raw = driver.pool_export(base) if pooled else driver.ipc_export(base)
                descriptors = [pool_descriptor(handle)] if pooled else []
        except BackendError as error:
            raise UnsupportedError(f"the driver does not share this memory ({error}): {PLAIN}") from error
    made = IpcHandle(
        handle.info.backend,
        handle.info.uuid,
        nbytes,
        view._ptr - base,
        view.shape,
        view.dtype,
        view.strides,
        raw,
        pooled=pooled,
        virtual=virtual,
    )
    owner, key = offer(allocation, made.digest, descriptors)
    return dataclasses.replace(made, owner=owner, key=key)


def opened(
    handle: IpcHandle, shape: object, dtype: object, strides: object, sent: Descriptor | None = None
) -> tuple[Any, ...]:
    """Another process's memory, as what a device array is made of; it is let go of like memory of our own.

    ``sent``: the pool's file descriptor, where it came with the handle from a process that cannot be asked for it.

    Raises
    ------
    LayoutError
        The array that was asked for does not fit into the memory.
    UnsupportedError
        The handle is this process's own, its device is none of this process's, or its memory is of a driver's pool of a process
        in another network namespace.
    """
    from .sharing import ask, is_elsewhere, is_own

    if not isinstance(handle, IpcHandle):
        raise TypeError(f"memory is opened by what get_ipc_handle() returned, not by {handle!r}")
    _check_fields(handle)
    lengths, kind, steps = _layout(handle, shape, dtype, strides)
    nbytes = check_size(lengths, kind.itemsize)
    low, high = span(lengths, steps, kind.itemsize)
    if handle.offset + low < 0 or handle.offset + high > handle.nbytes or nbytes > handle.nbytes:
        raise LayoutError(
            f"an array of shape {lengths} and dtype {kind} has {nbytes} bytes and reaches over {high - low}; the shared memory "
            f"has {handle.nbytes}, of which the array's first is number {handle.offset}"
        )
    if is_own(handle.owner, handle.process):
        raise UnsupportedError("this handle was made in this process: use the array itself")
    opened = _open_device_of(handle)
    needed = Capability.VIRTUAL if handle.virtual else Capability.POOL_IPC if handle.pooled else Capability.IPC
    if handle.by_file and sent is None and is_elsewhere(handle.owner):
        raise UnsupportedError(
            f"the process {handle.process} is in another network namespace (another container?), from which it cannot send the "
            f"file descriptor of its memory: pass the array over a Unix socket of your own (send_ipc_array), let both use one "
            f"network namespace (in Docker: --network container:NAME, or host), or {PLAIN} in that process"
        )
    descriptor = ask(handle.owner, handle.key, handle.digest, handle.process)
    if handle.by_file and descriptor is None and is_elsewhere(handle.owner):
        descriptor = sent
    opened.handle.require(needed, "open memory of another process", "copy it through the host")
    if (descriptor is not None) != handle.by_file:
        raise UnsupportedError(
            "memory of a pool, and virtual memory, is opened by a file descriptor of it, which was not sent"
        )
    kind_of_resource = OpenedVirtual if handle.virtual else OpenedPool if handle.pooled else Opened
    resource = _opened[kind_of_resource].setdefault(opened, kind_of_resource())
    heap = opened.memory.stacks.bind(resource)
    home = opened.streams.stream_of(None)
    with CurrentDevice(opened.handle) as driver:
        opened.free_queue.free_if_due()
        if isinstance(resource, OpenedPool) and descriptor is not None:
            base = resource.open((handle.owner, handle.raw), int(descriptor), handle.raw)
        elif handle.virtual:  # the driver maps no more than there is
            base = driver.virtual_open(handle.raw or int(descriptor or 0), handle.nbytes)
        else:
            base = driver.ipc_open(handle.raw)
            try:
                _check_size(opened, base, handle)
            except BaseException:
                resource.deallocate(base, handle.nbytes, 0)
                raise
        # Made before the device is left, which can fail: then its end lets go of what was opened.
        allocation = Allocation(opened.free_queue, heap, base, handle.nbytes, home, unnamed=True)
        allocation.__class__ = opened.memory.owned
        heap.live.enter(allocation)
    return opened, allocation, base + handle.offset, lengths, kind, steps


def _check_size(opened: OpenDevice, base: int, handle: IpcHandle) -> None:
    """Raise unless the driver has opened as much as the handle says: it comes from elsewhere. The device is entered."""
    found = opened.handle.driver.pointer_range(base) if opened.handle.knows_pointers else None
    if found is not None and base + handle.nbytes > found[0] + found[1]:
        raise LayoutError(
            f"the handle says that {handle.nbytes} bytes are shared, and the driver has opened {found[0] + found[1] - base}: it "
            f"was not made by get_ipc_handle(), or was damaged on its way"
        )


def _check_fields(handle: IpcHandle) -> None:
    """Raise unless the fields can be what `handle_of` wrote: a handle comes from another process, and may have been forged."""
    given: dict[str, Any] = {name: getattr(handle, name, None) for name in handle.__dataclass_fields__}
    shape, strides, dtype, nbytes, offset = (given[name] for name in ("shape", "strides", "dtype", "nbytes", "offset"))
    expected = {
        "backend": isinstance(given["backend"], str),
        "uuid": isinstance(given["uuid"], str),
        "nbytes": type(nbytes) is int and 0 < nbytes <= sys.maxsize,
        "offset": type(offset) is int and 0 <= offset < sys.maxsize,
        "shape": _are_integers(shape) and all(count >= 0 for count in shape),
        "dtype": isinstance(dtype, np.dtype) and not dtype.hasobject and dtype.subdtype is None,
        "strides": _are_integers(strides) and _are_integers(shape) and len(strides) == len(shape),
        "raw": isinstance(given["raw"], bytes),
        "process": type(given["process"]) is int,
        "owner": isinstance(given["owner"], str),
        "key": isinstance(given["key"], bytes) and len(given["key"]) <= LONGEST_KEY,
        "pooled": type(given["pooled"]) is bool,
        "virtual": type(given["virtual"]) is bool and not (given["virtual"] and given["pooled"]),
    }
    wrong = [f"{name}={reprlib.repr(given[name])}" for name, is_right in expected.items() if not is_right]
    if wrong:
        raise LayoutError(
            f"this handle was not made by get_ipc_handle(), or was damaged on its way: {', '.join(wrong)}"
        )


def _are_integers(values: object) -> bool:
    return isinstance(values, tuple) and all(type(each) is int for each in values)


def _layout(handle: IpcHandle, shape: object, dtype: object, strides: object) -> tuple[Shape, np.dtype[Any], Shape]:
    if shape is None and dtype is None and strides is None:
        return handle.shape, handle.dtype, handle.strides
    lengths = handle.shape if shape is None else shape
    return layout_of(lengths, handle.dtype if dtype is None else dtype, strides, "C")[:3]


def _shareable(allocation: Allocation) -> tuple[int, int, DriverMemory | StreamOrderedMemory | VirtualMemory]:
    """(address, bytes) of what the driver allocated and knows how to share, around the block, and what it is shared as.

    A pool hands such memory out in parts: the whole is shared, and stays as long as one of its parts is out.
    """
    if not isinstance(allocation, ForeignAllocation):
        resource, handle = allocation.heap.resource, allocation.device_handle
        bottom = chain(resource)[-1]
        if isinstance(bottom, StreamOrderedMemory) and handle.info.shares_stream_ordered:
            bottom = DriverMemory()
        pooled = isinstance(bottom, StreamOrderedMemory) and Capability.POOL_IPC in handle.capabilities
        # The descriptor is that of the driver's own pool.
        pooled = pooled and not (bottom.current or bottom.hw_decompress)
        if isinstance(bottom, DriverMemory | VirtualMemory) or pooled:
            virtual = isinstance(bottom, VirtualMemory)
            if virtual or handle.knows_pointers:
                ask = handle.driver.virtual_range if virtual else handle.driver.pointer_range
                found = ask(allocation.ptr)
                if found is not None and allocation.ptr + allocation.nbytes <= found[0] + found[1]:
                    return *found, bottom
            elif largest_free_block(resource) is None:
                return allocation.ptr, allocation.nbytes, bottom
    raise UnsupportedError(
        f"only plain memory of the driver, whole or as a pool hands it out, can be shared with another process: {PLAIN}"
    )


def _open_device_of(handle: IpcHandle) -> OpenDevice:
    """The device of this process that is the handle's, whichever number it has here."""
    current = current_open_device()
    for opened in [current, *open_devices()]:
        if (opened.handle.info.backend, opened.handle.info.uuid) == (handle.backend, handle.uuid):
            return opened
    if current.handle.info.backend == handle.backend:
        for ordinal in range(usable_backend(handle.backend).device_count()):
            opened = checked_device(handle.backend, ordinal, ordinal).opened()
            if opened.handle.info.uuid == handle.uuid:
                return opened
        if handle.virtual and handle.raw and current.handle.info.facts.get("fabric_handles"):
            return current  # perhaps of another machine
    raise UnsupportedError(
        f"the memory is on the device {handle.uuid} of the backend {handle.backend!r}, which this process does not see; the "
        f"current one is {current.device} ({current.handle.info.uuid})"
    )
