"""The contract of a backend: a `Backend` for the plugin, a `Driver` for each open device.

A driver speaks integers. Addresses and handles go in, integers come out; it never sees an array, a shape, a pool, a
finalizer or NumPy. It does not queue, retry, cache or remember for the caller: that is done once, above it, for every
backend. What it must do is tell the truth about order and about when the host side of a copy is free.

The rules that hold for every call of a driver:

* It is made between ``enter()`` and ``exit(token)`` of the same driver on the same thread; only ``info`` and ``close`` are not.
* ``stream`` is ``LEGACY_STREAM``, ``PER_THREAD_STREAM``, a handle of ``stream_create``, or a handle of another library's stream.
  A runtime that has no such default streams gets them from `devmem.toolkit.default_streams`.
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

from .types import AllocFlags, Box, Capability, CopyKind, DeviceInfo, Extent, MemoryKind, Option, Place


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
class Configurable(Backend, Protocol):
    """A backend with settings: ``DEVMEM_POCL_FAST=1`` reaches the backend ``pocl`` as ``{"fast": True}``.

    ``options`` has the names that it knows, in lower case, and for each what it is: ``{"fast": flag("skip the checks")}``.
    A text in place of an `Option` says what is allowed and meant; then the text of the variable is passed. devmem warns of
    variables with the backend's name that are none of these.
    """

    @property
    def options(self) -> Mapping[str, Option | str]: ...

    def configure(self, options: Mapping[str, object]) -> None:
        """Take what is set, before the backend is asked for anything; for an `Option` that is set no longer, its default.

        ConfigError for a name that ``options`` lacks, for a value of another type, and for one that is not allowed; then
        nothing has changed. `devmem.toolkit.settings` checks names and types.
        """


class Driver(Protocol):
    """One open device."""

    @property
    def info(self) -> DeviceInfo:
        """The properties of this device."""

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
        """Allocate; usable at once from every stream. Addresses are multiples of ``info.alignment``.

        For host kinds the address is the host's. Raises `OutOfMemory`.
        """

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give back what ``alloc`` returned; the memory may be given out again at once.

        devmem calls it when all work that it enqueued on the block is done, and it has waited for that. The driver need not wait,
        and may: for the whole device, as vendors do.
        """

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        """Copy bytes, ordered on the stream.

        With ``blocking`` the copy is complete on return. Returns True if the host side may still be touched after the
        call has returned: for page-locked memory alone, and never for a blocking copy or within the device. Pageable memory
        has been read, or written, on return, for which the call may wait for the stream; a copy of page-locked memory that is
        not blocking does not wait. What a driver keeps of pageable sources it keeps of each copy until the stream has passed it,
        whatever other threads enqueue meanwhile. While a graph is captured on the stream the result tells nothing, as the graph
        copies whenever it is launched. Managed memory counts as device memory. Overlapping device ranges are the caller's
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
        was recorded while its stream was capturing one: such an event says nothing of completed work.
        """

    def event_synchronize(self, event: int) -> None:
        """Wait until the captured work is done. UnsupportedError as for ``event_query``."""

    def event_elapsed(self, start: int, end: int) -> float:
        """Milliseconds between two completed events that were created with ``timing``."""

    def synchronize(self) -> None:
        """Wait until the whole device is idle."""

    def close(self) -> None:
        """Let go of the device. What was not freed by then is the driver's to drop; every later call is a mistake."""


#: The names that every driver has: a driver that lacks one is refused when its device opens.
REQUIRED = tuple(name for name in vars(Driver) if not name.startswith("_"))


# -- what a device may be able to do beyond that -----------------------------------------------------------------------


@runtime_checkable
class SupportsStreamOrdered(Protocol):
    """Allocation that is ordered on a stream: memory is valid for work after ``alloc_async`` on that stream, and is
    given back when the stream passes ``free_async``. Neither waits.
    """

    def alloc_async(self, nbytes: int, stream: int) -> int: ...

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None: ...


@runtime_checkable
class SupportsPoolControl(Protocol):
    """Say and bound what the pool of `SupportsStreamOrdered` keeps."""

    def pool_cached(self) -> int:
        """Bytes that the driver's pool holds and that are not in use."""

    def pool_trim(self, keep_bytes: int) -> None:
        """Give pool memory back until at most ``keep_bytes`` of it are held unused."""

    def pool_threshold(self, nbytes: int) -> None:
        """Let the pool hold more bytes than this, counting those in use, only until the next wait for the device.

        Until this is called it holds all that it has. What it gives back then it may have to ask the system for again.
        """


@runtime_checkable
class SupportsSharedPool(Protocol):
    """Allocation from the pool that is the device's current one for all libraries of the process."""

    def alloc_shared(self, nbytes: int, stream: int) -> int:
        """Allocate like ``alloc_async`` of `SupportsStreamOrdered`, from that pool; ``free_async`` takes the block back."""


@runtime_checkable
class SupportsDecompressPool(Protocol):
    """Allocation from a pool whose memory the device's decompression engine reads and writes.

    It is a second pool of the driver's; the methods of `SupportsPoolControl` are for both.
    """

    def pool_decompressible(self) -> None:
        """Make that pool, if there is none yet; it is there until ``close``."""

    def alloc_decompressible(self, nbytes: int, stream: int) -> int:
        """Allocate like ``alloc_async`` of `SupportsStreamOrdered`, from that pool; ``free_async`` takes the block back."""


@runtime_checkable
class SupportsStridedCopy(Protocol):
    """Copies of equally long rows that lie a pitch apart, in slices that lie a number of pitches apart."""

    def copy_strided(self, box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        """Copy a box, ordered on the stream. Bytes between its rows and slices do not change. Returns what ``copy`` does.

        A vendor whose library copies in two dimensions alone is called for each slice.
        """


#: The name in contract 1 for slices of rows.
SupportsVolumeCopy = SupportsStridedCopy


@runtime_checkable
class SupportsBatchCopy(Protocol):
    """Many copies in one driver call."""

    def copy_batch(
        self, dsts: Sequence[int], srcs: Sequence[int], sizes: Sequence[int], kind: CopyKind, stream: int
    ) -> bool:
        """Enqueue several copies, each like a non-blocking ``copy``, on any stream but the legacy one.

        Memory of the host is page-locked, or else may be read after the call, too. UnsupportedError, with nothing enqueued, where
        the device's driver turns out to have no such call: then ``copy`` is called for each.
        """


@runtime_checkable
class SupportsVolumeBatch(Protocol):
    """Many copies of rows and slices in one driver call."""

    def copy_3d_batch(self, boxes: Sequence[Box], kind: CopyKind, stream: int) -> bool:
        """Enqueue several boxes, each like a non-blocking ``copy_strided``, by the rules of ``copy_batch``.

        A box of one slice, or of one row, is allowed; boxes of one call have no byte of their destinations in common.
        """


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
class SupportsManagedPlaces(Protocol):
    """Hints for many ranges of managed memory, and for places other than this device and the host as a whole.

    ``stream`` is never the legacy one. UnsupportedError, with nothing enqueued,
    where the vendor's library has no such call for a place.
    """

    def prefetch_to(self, ptrs: Sequence[int], sizes: Sequence[int], to: Place, stream: int, *, discard: bool) -> None:
        """Move ranges, in any order. With ``discard`` their bytes need not be moved: they are undefined afterwards."""

    def discard(self, ptrs: Sequence[int], sizes: Sequence[int], stream: int) -> None:
        """Say that the bytes of ranges are not needed: they are undefined until they are written. UnsupportedError as above."""

    def advise_for(self, ptr: int, nbytes: int, advice: str, to: Place) -> None:
        """Give a hint like ``advise`` of `SupportsManaged`, for any place."""


@runtime_checkable
class SupportsPeer(Protocol):
    """Copies between devices of one backend that do not pass through the host."""

    def can_access(self, ordinal: int) -> bool: ...

    def copy_peer(
        self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int, *, blocking: bool
    ) -> None:
        """Copy bytes, ordered on a stream of this device. With ``blocking`` the copy is complete on return."""


@runtime_checkable
class SupportsPeerAccess(Protocol):
    """Allowing and forbidding a device to reach another's memory by itself."""

    def peer_access(self, ordinal: int, enabled: bool) -> None:
        """Let work of this device reach the memory of another one, which is open and which it can access; or no more.

        Nothing is enqueued between the two, and either may be asked for twice. Once it was forbidden, ``copy_peer`` does not
        allow it again by itself.
        """


@runtime_checkable
class SupportsPeerEvents(Protocol):
    """Order between streams of two devices of one backend, for which the host does not wait."""

    def stream_wait_peer(self, stream: int, event: int, ordinal: int) -> None:
        """Wait like ``stream_wait``, for an event of another device: the open one with this ordinal, which is not current."""


@runtime_checkable
class SupportsIpc(Protocol):
    """Sharing device memory with another process."""

    def ipc_export(self, ptr: int) -> bytes: ...

    def ipc_open(self, handle: bytes) -> int: ...

    def ipc_close(self, ptr: int) -> None: ...


@runtime_checkable
class SupportsPoolIpc(Protocol):
    """Sharing memory of ``alloc_async`` with another process: a file descriptor opens the pool, and data name a block of it."""

    def pool_descriptor(self) -> int:
        """A new file descriptor of the driver's own pool, which the caller closes. It may be sent over a Unix socket."""

    def pool_export(self, ptr: int) -> bytes:
        """Return a name of a live block, by its first address, for a process that has a descriptor of its pool."""

    def pool_open(self, descriptor: int, data: bytes) -> int:
        """The address of another process's block here; ``descriptor`` stays the caller's. A block is opened once at a time."""

    def pool_close(self, ptr: int) -> None:
        """Let go of what ``pool_open`` returned; every stream has passed it. A second call, behind an interrupt, does nothing."""


@runtime_checkable
class SupportsVirtual(Protocol):
    """Virtual memory: physical memory that is mapped here and, by a handle, in other processes."""

    def virtual_alloc(self, nbytes: int, stream: int, fabric: bool = False) -> int:
        """Memory of at least so many bytes; 0 for none. ``fabric``: for other machines too, else for processes of this one.

        It is there at once, and for as long as any process has it mapped or has a handle of it.
        """

    def virtual_free(self, ptr: int, nbytes: int, stream: int) -> None:
        """Give back what ``virtual_alloc`` or ``virtual_open`` returned; every stream has passed it."""

    def virtual_range(self, ptr: int) -> tuple[int, int] | None:
        """(address, bytes) of the virtual memory around an address; None if it is in none."""

    def virtual_share(self, ptr: int) -> int | bytes:
        """A new file descriptor of the memory around an address, which the caller closes; or the bytes of its fabric handle."""

    def virtual_open(self, given: int | bytes, nbytes: int) -> int:
        """Map so many bytes, all that it has, of what another process's ``virtual_share`` returned.

        A file descriptor stays the caller's. Opened again it has another address. LayoutError if it is of another device.
        """


@runtime_checkable
class SupportsCapture(Protocol):
    """Streams can record a graph instead of running."""

    def capturing(self, stream: int) -> bool: ...


@runtime_checkable
class SupportsGraphs(Protocol):
    """Work that is recorded once, and enqueued by one call as often as is wanted."""

    def graph_create(self, calls: Sequence[GraphCall], stream: int) -> int:
        """A graph of what these calls enqueue, one after the other: each is given a driver and the stream that it is to name.

        That is ``stream``, which does not block, and which nothing else is given: what is recorded is recorded there.

        The calls are ``copy`` and ``copy_strided`` that are not blocking, ``fill``, ``launch``, ``launch_host_function`` and the
        two below. Nothing runs now, and nothing of the host is read or written: sources and destinations on the host are
        page-locked, and stay in use as long as the graph is. The first call that cannot be recorded raises, and then no graph was
        made. No other stream and no other thread notices.
        """

    def graph_record_event(self, event: int, stream: int) -> None:
        """``event_record`` that takes place whenever the graph runs; for the calls of ``graph_create`` alone."""

    def graph_wait_event(self, stream: int, event: int) -> None:
        """``stream_wait`` for what the event captured last when the graph runs; for the calls of ``graph_create`` alone."""

    def graph_launch(self, graph: int, stream: int) -> None:
        """Enqueue the graph's work, in its order, on a stream of ``stream_create``. Later work there comes after all of it."""

    def graph_destroy(self, graph: int) -> None:
        """Give back what ``graph_create`` made. Nothing of it is enqueued or runs any more."""


@runtime_checkable
class SupportsLaunch(Protocol):
    """Code that a kernel compiler made for this device, and launching it."""

    def load(self, image: bytes, name: str) -> int:
        """A handle of the function of that name in an image: what the vendor's driver loads, PTX or a cubin or a code object."""

    def unload(self, function: int) -> None:
        """Give back what ``load`` took. Nothing of it is enqueued or runs any more."""

    def launch(
        self,
        function: int,
        grid: Extent,
        block: Extent,
        shared_bytes: int,
        stream: int,
        params: int,
        sizes: Sequence[int],
    ) -> None:
        """Enqueue a loaded function.

        ``params`` is the address of an array of the arguments' addresses, ``sizes`` has the bytes of each; the call reads all of
        them before it returns.
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


@runtime_checkable
class SupportsForeignStreams(Protocol):
    """Streams that another library made, by the vendor's own objects."""

    def stream_from(self, stream: object) -> int:
        """The handle of a stream of this device: of the vendor's object, or of a number that a user says is one.

        TypeError for what is no stream at all, BackendError for a number that is none. devmem never destroys such a stream; its
        handle differs from those of ``stream_create`` that are live.
        """


@runtime_checkable
class SupportsStreamOrigin(Protocol):
    """Saying where a stream of another library comes from."""

    def stream_refusal(self, stream: int) -> str:
        """Why no work of this device can be ordered on a stream, as a sentence's end; "" where it can.

        BackendError where the vendor finds that it is no live stream of its own. A vendor that does not check handles does not
        offer this.
        """


class TellsWhatIsOut(Protocol):
    """A driver that knows, whatever interrupted a call, whether the vendor's library was reached.

    Not a capability: of a driver without it, and of resources without such a method, devmem takes it that an interrupted call
    which gives something back has done so, because a leak is preferred to an address in use twice.
    """

    def is_out(self, ptr: int) -> bool:
        """Whether the very int that was handed out, or registered, is still out: not an equal one that was handed out since.

        Also asked of the handles of streams and events.
        """


#: The protocol behind each capability; a device that declares one without its methods is refused when it opens.
PROTOCOLS: Mapping[Capability, type] = {
    Capability.STREAM_ORDERED: SupportsStreamOrdered,
    Capability.POOL_CONTROL: SupportsPoolControl,
    Capability.SHARED_POOL: SupportsSharedPool,
    Capability.DECOMPRESS_POOL: SupportsDecompressPool,
    Capability.STRIDED_COPY: SupportsStridedCopy,
    Capability.BATCH_COPY: SupportsBatchCopy,
    Capability.VOLUME_BATCH: SupportsVolumeBatch,
    Capability.HOST_REGISTER: SupportsHostRegister,
    Capability.MAPPED: SupportsMapped,
    Capability.MANAGED: SupportsManaged,
    Capability.MANAGED_PLACES: SupportsManagedPlaces,
    Capability.PEER: SupportsPeer,
    Capability.PEER_ACCESS: SupportsPeerAccess,
    Capability.PEER_EVENTS: SupportsPeerEvents,
    Capability.IPC: SupportsIpc,
    Capability.POOL_IPC: SupportsPoolIpc,
    Capability.VIRTUAL: SupportsVirtual,
    Capability.CAPTURE: SupportsCapture,
    Capability.GRAPHS: SupportsGraphs,
    Capability.LAUNCH: SupportsLaunch,
    Capability.HOST_FUNCTION: SupportsHostFunction,
    Capability.HOLD: SupportsHold,
    Capability.POINTER_INFO: SupportsPointerInfo,
    Capability.FOREIGN_STREAMS: SupportsForeignStreams,
    Capability.STREAM_ORIGIN: SupportsStreamOrigin,
}


class FullDriver(
    Driver,
    SupportsStreamOrdered,
    SupportsPoolControl,
    SupportsSharedPool,
    SupportsDecompressPool,
    SupportsStridedCopy,
    SupportsBatchCopy,
    SupportsVolumeBatch,
    SupportsHostRegister,
    SupportsMapped,
    SupportsManaged,
    SupportsManagedPlaces,
    SupportsPeer,
    SupportsPeerAccess,
    SupportsPeerEvents,
    SupportsIpc,
    SupportsPoolIpc,
    SupportsVirtual,
    SupportsCapture,
    SupportsGraphs,
    SupportsLaunch,
    SupportsHostFunction,
    SupportsHold,
    SupportsPointerInfo,
    SupportsForeignStreams,
    SupportsStreamOrigin,
    Protocol,
):
    """Every method of the contract, as devmem's core sees a driver.

    A method of a ``Supports...`` protocol exists only where the device declares the capability: the core asks before it calls.
    """


#: What `SupportsGraphs` records: given the driver and a stream, it enqueues one piece of work there.
GraphCall = Callable[[FullDriver, int], object]
