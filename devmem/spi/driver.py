"""What a backend supplies: a `Backend` for the plugin, a `Driver` for each open device.

A driver speaks integers. Addresses and handles go in, integers come out; it never sees an array, a shape, a pool, a
finalizer or NumPy. It does not queue, retry, cache or remember for the caller: that is done once, above it, for every
backend. What it must do is tell the truth about order and about when the host side of a copy is free.

The rules that hold for every call of a driver:

* It is made between ``enter()`` and ``exit(token)`` of the same driver on the same thread; only ``info`` and ``close`` are not.
* ``stream`` is ``LEGACY_STREAM``, ``PER_THREAD_STREAM``, a handle of ``stream_create``, or a handle that the user vouched for.
* Sizes are positive, addresses non-zero: empty copies never arrive. The memory verbs alone take zero bytes, because they serve
  as a resource as they are: ``alloc`` and ``alloc_async`` return 0 for them, ``free`` and ``free_async`` do nothing with 0.
* It fails by raising `devmem.spi.errors.BackendError` or one of its children, with the vendor's call, code and name,
  and then nothing has been handed out. Calls that give something back (``free``, ``*_destroy``) have given it back even if they
  then raise, because vendors report earlier asynchronous failures there.
* It may be called from several threads at once, and releases the GIL where it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from .types import AllocFlags, Capability, CopyKind, DeviceInfo, Extent, MemoryKind


class Backend(Protocol):
    """One vendor's way in. Stateless, except for options that were given to it before its first use."""

    name: str
    spi_version: int

    def unavailable(self) -> str | None:
        """Why this backend cannot be used here, with the command that would help; ``None`` if it can.

        Cheap, silent, and never raises: it is asked on machines that have no driver at all.
        """

    def device_count(self) -> int:
        """The number of devices; only asked of a backend that is available."""

    def open(self, ordinal: int) -> Driver:
        """A driver for the device; opening the same one again later gives a fresh driver."""


@runtime_checkable
class Configurable(Protocol):
    """A backend with settings: ``DEVMEM_HOST_STRICT`` reaches the backend ``host`` as ``{"strict": True}``."""

    def configure(self, options: Mapping[str, object]) -> None: ...


class Driver(Protocol):
    """One open device."""

    @property
    def info(self) -> DeviceInfo:
        """What this device is."""

    def enter(self) -> object:
        """Make the device current on this thread; the token says what was current before.

        ``None`` says that nothing had to be changed: then ``exit`` need not be called, and does nothing if it is.
        """

    def exit(self, token: object) -> None:
        """Make current what was current before the matching ``enter``."""

    # The two memory verbs take their arguments in the order of `devmem.spi.memory.MemoryResource`, so that a driver's
    # bound method *is* the plain resource and costs no frame of its own.
    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        """Allocate; usable at once from every stream. Addresses are aligned to at least 256 bytes.

        For host kinds the address is the host's. Raises `OutOfMemory`.
        """

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give back what ``alloc`` returned. May wait for the device; work enqueued before on any stream stays valid."""

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        """Copy bytes, ordered on the stream.

        With ``blocking`` the copy is complete on return. Returns True if the host side may still be touched after the
        call has returned: never for a blocking copy or within the device. A copy of pinned memory that is not blocking
        does not wait for the stream. Managed memory counts as device memory. Overlapping device ranges are the caller's
        mistake.
        """

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        """Store ``count`` times the ``width``-byte (1, 2 or 4) unsigned ``value``; ``dst`` is aligned to ``width``."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        """A new stream. A non-blocking one does not wait for the legacy default stream, nor that one for it."""

    def stream_destroy(self, stream: int) -> None:
        """Destroy a stream; what was enqueued on it still runs, and may be waited for."""

    def stream_synchronize(self, stream: int) -> None:
        """Wait until all that was enqueued on the stream is done."""

    def stream_query(self, stream: int) -> bool:
        """True when all that was enqueued on the stream is done."""

    def stream_wait(self, stream: int, event: int) -> None:
        """Make later work on the stream wait for what the event captured; an unrecorded event captures nothing."""

    def event_create(self, timing: bool) -> int:
        """A new event, not recorded yet."""

    def event_destroy(self, event: int) -> None:
        """Destroy an event; work that already waits for it is not disturbed."""

    def event_record(self, event: int, stream: int) -> None:
        """Capture what is enqueued on the stream now; an event can be recorded again."""

    def event_query(self, event: int) -> bool:
        """True when the captured work is done, or nothing was ever captured.

        False also where it may not be asked just now, as some other library captures a graph. UnsupportedError where the event
        was recorded while its stream was capturing one: it tells of nothing that is done.
        """

    def event_synchronize(self, event: int) -> None:
        """Wait until the captured work is done. UnsupportedError as for ``event_query``."""

    def event_elapsed(self, start: int, end: int) -> float:
        """Milliseconds between two completed events that were created with ``timing``."""

    def synchronize(self) -> None:
        """Wait until the whole device is idle."""

    def close(self) -> None:
        """Let go of the device. What was not freed by then is the driver's to drop; every later call is a mistake."""


# -- what a device may be able to do beyond that -----------------------------------------------------------------------


@runtime_checkable
class SupportsStreamOrdered(Protocol):
    """Allocation that is ordered on a stream: memory is valid for work after ``alloc_async`` on that stream, and is
    given back when the stream passes ``free_async``. Neither waits.
    """

    def alloc_async(self, nbytes: int, stream: int) -> int: ...

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None: ...

    def pool_cached(self) -> int:
        """Bytes that the driver's pool holds and that are not in use."""

    def pool_trim(self, keep_bytes: int) -> None:
        """Give pool memory back until at most ``keep_bytes`` of it are held unused."""

    def pool_threshold(self, nbytes: int) -> None:
        """Let the pool hold more bytes than this, counting those in use, only until the next wait for the device.

        Until this is called it holds all that it has. What it gives back then it may have to ask the system for again.
        """


@runtime_checkable
class SupportsStridedCopy(Protocol):
    """Copies of equally long rows that lie a pitch apart."""

    def copy_2d(
        self,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        kind: CopyKind,
        stream: int,
        *,
        blocking: bool,
    ) -> bool:
        """Copy ``height`` rows of ``width`` bytes; pitches are at least ``width``. Returns what ``copy`` does."""


@runtime_checkable
class SupportsVolumeCopy(Protocol):
    """Copies of equally long rows that lie a pitch apart, in slices that lie a number of pitches apart."""

    def copy_3d(
        self,
        dst: int,
        dst_pitch: int,
        dst_rows: int,
        src: int,
        src_pitch: int,
        src_rows: int,
        width: int,
        height: int,
        depth: int,
        kind: CopyKind,
        stream: int,
        *,
        blocking: bool,
    ) -> bool:
        """Copy ``depth`` slices of ``height`` rows of ``width`` bytes.

        Slices begin ``rows`` pitches apart, and have at least ``height`` of them. Returns what ``copy`` does.
        """


@runtime_checkable
class SupportsBatchCopy(Protocol):
    """Many copies in one driver call."""

    def copy_batch(
        self, dsts: Sequence[int], srcs: Sequence[int], sizes: Sequence[int], kind: CopyKind, stream: int
    ) -> bool: ...


@runtime_checkable
class SupportsHostRegister(Protocol):
    """Page-locking memory that the user allocated. Ranges that arrive here are whole pages and never overlap.

    Locking is the process's: what one device of the backend has locked is locked for all of them.
    """

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        """Lock a range. ``mapped``: devices may ask for an address of it (asked whenever the device can map memory)."""

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        """Undo this driver's own ``host_register`` of exactly this range. May wait for the device."""


@runtime_checkable
class SupportsMapped(Protocol):
    """Host memory with an address for the device."""

    def device_pointer(self, host: int) -> int:
        """The device's address of a byte of mapped memory, or of memory that was registered with ``mapped``."""


@runtime_checkable
class SupportsManaged(Protocol):
    """Hints for managed memory."""

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None: ...

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        """``advice``: ``[un]set_`` + ``read_mostly``, ``preferred_location`` or ``accessed_by``."""


@runtime_checkable
class SupportsPeer(Protocol):
    """Copies between devices of one backend that do not pass through the host."""

    def can_access(self, ordinal: int) -> bool: ...

    def copy_peer(
        self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int, *, blocking: bool
    ) -> None: ...


@runtime_checkable
class SupportsIpc(Protocol):
    """Sharing device memory with another process."""

    def ipc_export(self, ptr: int) -> bytes: ...

    def ipc_open(self, handle: bytes) -> int: ...

    def ipc_close(self, ptr: int) -> None: ...


@runtime_checkable
class SupportsCapture(Protocol):
    """Streams can record a graph instead of running."""

    def capturing(self, stream: int) -> bool: ...


@runtime_checkable
class SupportsLaunch(Protocol):
    """Code that a kernel compiler made for this device, and launching it."""

    def load(self, image: bytes, name: str) -> int:
        """A handle of the function of that name in an image: what the vendor's driver loads, PTX or a cubin or a code object."""

    def unload(self, function: int) -> None:
        """Give back what ``load`` took. Nothing of it is enqueued or runs any more."""

    def launch(self, function: int, grid: Extent, block: Extent, shared_bytes: int, stream: int, params: int) -> None:
        """Enqueue a loaded function.

        ``params`` is the address of an array of the arguments' addresses; the call reads all of them before it returns.
        """


@runtime_checkable
class SupportsHostFunction(Protocol):
    """Python functions that run in stream order: only where the host can reach the device's memory. The simulator needs it."""

    def launch_host_function(
        self, function: Callable[[Sequence[int]], None], ranges: Sequence[tuple[int, int]], stream: int
    ) -> None:
        """Call the function when the stream reaches it, with the addresses at which it may touch the ranges of device memory.

        ``ranges`` are (address, bytes), each in one live block. This call checks them as it would check those of a copy; the
        function may touch them until it returns. It runs on a thread of the driver's, where no device is current, and must not
        call the driver: ``enter`` raises there, and on every thread that `devmem.toolkit.host_functions` has marked.

        What the function raises is raised once: by the next call that waits for the stream behind it (``stream_synchronize``, a
        blocking copy, ``event_synchronize`` of an event recorded there), by ``synchronize``, or by the next
        ``launch_host_function`` on the stream, which then enqueues nothing. Each of these on the legacy stream is behind all
        blocking streams, and raises their errors too. An error that no call has raised becomes a DevmemWarning at ``close``, or
        when the interpreter ends. The device is not lost, and later work runs.

        If such a wait is interrupted (Ctrl-C), the functions that it waits for are ended: the waiting thread calls their
        attribute ``interrupt``, if they have one, whether they have begun or not. It returns as text what the function was
        doing, or "", and the function raises nothing from then on.
        """


@runtime_checkable
class SupportsHold(Protocol):
    """A latch for tests and debugging: work enqueued on a stream after ``hold`` waits until ``release``. Holds nest."""

    def hold(self, stream: int) -> int: ...

    def release(self, hold: int) -> None: ...


@runtime_checkable
class SupportsPointerInfo(Protocol):
    """Saying what an address is, whichever library allocated the memory.

    It is about addresses that work of this backend's devices can use in place: memory of any of its devices, managed memory, and
    host memory that a device reaches by that very address. Asked for each array that comes from elsewhere: it has to be cheap.
    """

    def pointer_range(self, ptr: int) -> tuple[int, int] | None:
        """(first address, bytes) of the allocation around an address; None where there is none."""

    def pointer_device(self, ptr: int) -> int | None:
        """The ordinal of the device whose memory it is, or that made it; None where there is none."""


#: The protocol behind each capability; a device that declares one without its methods is refused when it opens.
PROTOCOLS: Mapping[Capability, type] = {
    Capability.STREAM_ORDERED: SupportsStreamOrdered,
    Capability.STRIDED_COPY: SupportsStridedCopy,
    Capability.VOLUME_COPY: SupportsVolumeCopy,
    Capability.BATCH_COPY: SupportsBatchCopy,
    Capability.HOST_REGISTER: SupportsHostRegister,
    Capability.MAPPED: SupportsMapped,
    Capability.MANAGED: SupportsManaged,
    Capability.PEER: SupportsPeer,
    Capability.IPC: SupportsIpc,
    Capability.CAPTURE: SupportsCapture,
    Capability.LAUNCH: SupportsLaunch,
    Capability.HOST_FUNCTION: SupportsHostFunction,
    Capability.HOLD: SupportsHold,
    Capability.POINTER_INFO: SupportsPointerInfo,
}


class FullDriver(
    Driver,
    SupportsStreamOrdered,
    SupportsStridedCopy,
    SupportsVolumeCopy,
    SupportsBatchCopy,
    SupportsHostRegister,
    SupportsMapped,
    SupportsManaged,
    SupportsPeer,
    SupportsIpc,
    SupportsCapture,
    SupportsLaunch,
    SupportsHostFunction,
    SupportsHold,
    SupportsPointerInfo,
    Protocol,
):
    """Every method of the contract, as devmem's core sees a driver.

    A method of a ``Supports...`` protocol exists only where the device declares the capability: the core asks before it calls.
    """
