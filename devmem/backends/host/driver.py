"""The driver of a host device.

A call checks what it was given, and refuses what a GPU would refuse or get wrong: `AddressSpace` checks addresses, `StreamEngine`
handles, `CurrentDevice` the thread. What the call does then is a job on a stream of the engine; a blocking call with nothing to
wait for runs its job on the calling thread. The methods are those of `devmem.spi.driver`, and are documented there. Those that
concern streams and events alone are the engine's.
"""

from __future__ import annotations

import os
import platform
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from ctypes import memmove, memset
from types import MappingProxyType
from typing import NoReturn

from devmem.spi.driver import PROTOCOLS
from devmem.spi.types import (
    LEGACY_STREAM,
    AllocFlags,
    Box,
    Capability,
    CopyKind,
    DeviceInfo,
    Exchange,
    MemoryKind,
    PlaceKind,
)
from devmem.spi.types import Place as ManagedPlace
from devmem.toolkit.driver_parts import ADVICE, ComposedDriver
from devmem.toolkit.host_functions import this_thread
from devmem.toolkit.replayed_graphs import ReplayedGraphs

from .address_space import AddressSpace, Place, refuse_overlap
from .error_codes import host_error
from .page_locks import page_locks
from .stream_engine import StreamEngine
from .streams import Job, Run, Stream, Use, copy_rows, fill_words, no_work, read_bytes, read_rows

#: Moves so many bytes between a file and a place; how many it moved.
FileTransfer = Callable[[Place, int], int]

_open_drivers: weakref.WeakSet[HostDriver] = weakref.WeakSet()


#: What the bytes of discarded memory become, so that no program relies on them.
DISCARDED = 0xDB


class _Thread(threading.local):
    """The key of the device that is current on the calling thread; at first of none."""

    key: object = object()


thread = _Thread()


class HostDriver(ComposedDriver):
    """One open device."""

    def __init__(self, ordinal: int, *, strict: bool, devices: int) -> None:
        if not 0 <= ordinal < devices:
            raise host_error("open", "INVALID_DEVICE", f"there is no device {ordinal}; there are {devices}")
        self._ordinal, self._devices = ordinal, devices
        self._current = current = CurrentDevice(ordinal)
        self._space = AddressSpace(strict)
        self._engine = engine = StreamEngine(current.check, at_exit=self._space.keep_mapped)
        self._check, self._stream = current.check, engine.stream
        self._graphs = ReplayedGraphs(self, engine.stream, lambda call, why: host_error(call, "INVALID_HANDLE", why))
        self.compose(current, engine, self._graphs)
        self.info = self._describe()
        self._closed = False
        _open_drivers.add(self)
        self.begin()  # what it has by now goes with the last reference, but for what `close` ends

    def close(self) -> None:
        if not self._closed:
            self._current.key = None  # from now on it is current nowhere
            self._engine.stop()
            _open_drivers.discard(self)
            self._space.close(in_use=any(not job.done for job in self._engine.foreign))
            self._closed = True  # last: a close that was interrupted begins anew
            self._engine.warn_of_failures()

    # -- memory ------------------------------------------------------------------------------------------------------

    # The methods that are called most compare the keys themselves: a frame less.
    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if thread.key is not self._current.key:
            self._current.refuse("alloc")
        if nbytes <= 0:
            if nbytes == 0:
                return 0
            raise host_error("alloc", "INVALID_VALUE", f"{nbytes} bytes")
        return self._space.allocate(nbytes, kind)

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if thread.key is not self._current.key:
            self._current.refuse("free")
        if ptr:
            self._space.invalidate("free", ptr, nbytes, kind)
            ending = self._space.ending()  # with those whose end was interrupted
            if self._engine.drain():
                for arena, ended, end in ending:
                    arena.recycle(ended, end)

    def memory_info(self) -> tuple[int, int]:
        self._check("memory_info")
        memory = self._space.device
        return memory.size - memory.used, memory.size

    def alloc_async(self, nbytes: int, stream: int) -> int:
        self._stream(stream, "alloc_async")
        return self.alloc(nbytes, stream)

    alloc_shared = alloc_async  # there is no pool, so none of devmem's own

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        on = self._stream(stream, "free_async")
        if ptr:
            end = self._space.invalidate("free_async", ptr, nbytes, MemoryKind.DEVICE)
            for use in list(self._engine.foreign) if self._engine.foreign else ():
                if isinstance(use, Use) and ptr <= use.ptr < ptr + nbytes:
                    use.freed.append((ptr, end))
                    if not use.done:
                        return
            self._engine.start(on, 0, self._space.device.recycle_later, ptr, end)

    # There is no pool: what was freed is never held. But its pages may be resident until it is trimmed.
    def pool_cached(self) -> int:
        self._check("pool_cached")
        return 0

    def pool_trim(self, keep_bytes: int) -> None:
        self._check("pool_trim")
        if not keep_bytes:
            self._space.discard()

    def pool_threshold(self, nbytes: int) -> None:
        self._check("pool_threshold")

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None:
        on = self._stream(stream, "prefetch")
        self._space.check_managed("prefetch", ptr, nbytes)
        self._engine.start(on, 0, no_work)

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        self._check("advise")
        self._space.check_managed("advise", ptr, nbytes)
        if advice not in ADVICE:
            raise host_error("advise", "INVALID_VALUE", f"{advice!r} is not one of {', '.join(sorted(ADVICE))}")

    def prefetch_to(
        self, ptrs: Sequence[int], sizes: Sequence[int], to: ManagedPlace, stream: int, *, discard: bool
    ) -> None:
        on = self._not_legacy("prefetch_to", ptrs, sizes, stream)
        self._check_place("prefetch_to", to)
        if discard:
            self.discard(ptrs, sizes, stream)
        self._engine.start(on, 0, no_work)

    def discard(self, ptrs: Sequence[int], sizes: Sequence[int], stream: int) -> None:
        on = self._not_legacy("discard", ptrs, sizes, stream)
        for ptr, nbytes in zip(ptrs, sizes, strict=True):
            self._engine.start(on, nbytes, memset, self._space.device_side("discard", ptr, nbytes), DISCARDED, nbytes)

    def advise_for(self, ptr: int, nbytes: int, advice: str, to: ManagedPlace) -> None:
        self._check_place("advise_for", to)
        self.advise(ptr, nbytes, advice, False)

    def _not_legacy(self, call: str, ptrs: Sequence[int], sizes: Sequence[int], stream: int) -> Stream:
        """A stream other than the legacy one, for ranges of managed memory."""
        if stream == LEGACY_STREAM or not ptrs:
            raise host_error(call, "INVALID_VALUE", f"{len(ptrs)} ranges on stream {stream}")
        for ptr, nbytes in zip(ptrs, sizes, strict=True):
            self._space.check_managed(call, ptr, nbytes)
        return self._stream(stream, call)

    def _check_place(self, call: str, to: ManagedPlace) -> None:
        if to.number < 0 or (to.kind is PlaceKind.DEVICE and to.number >= self._devices):
            raise host_error(call, "INVALID_DEVICE", f"{to.kind} {to.number}")

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        self._check("host_register")
        self._space.register(ptr, nbytes, mapped)

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        self._check("host_unregister")
        page_locks.find(self._space, ptr, nbytes)
        self._engine.drain()
        page_locks.remove(self._space, ptr, nbytes)

    def device_pointer(self, host: int) -> int:
        self._check("device_pointer")
        return self._space.device_pointer(host)

    def pointer_range(self, ptr: int) -> tuple[int, int] | None:
        self._check("pointer_range")
        return self._space.block_around(ptr) or self._elsewhere(ptr)[0]

    def pointer_device(self, ptr: int) -> int | None:
        self._check("pointer_device")
        return self._ordinal if self._space.block_around(ptr) else self._elsewhere(ptr)[1]

    def ipc_export(self, ptr: int) -> bytes:
        self._check("ipc_export")
        return self._space.export(ptr)

    def ipc_open(self, handle: bytes) -> int:
        self._check("ipc_open")
        return self._space.open(handle)

    def ipc_close(self, ptr: int) -> None:
        self._check("ipc_close")
        self._engine.drain()
        self._space.close_opened(ptr)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if thread.key is not self._current.key:
            self._current.refuse("copy")
        if nbytes <= 0:
            raise host_error("copy", "INVALID_VALUE", f"{nbytes} bytes")
        engine = self._engine
        on = engine.streams.get(stream) or engine.stream(stream, "copy")
        to, source = self._space.copy_sides("copy", dst, nbytes, src, nbytes, kind)
        if kind is CopyKind.D2D:
            refuse_overlap("copy", to, nbytes, source, nbytes)
        if blocking:
            engine.run_and_wait(on, nbytes, memmove, to, source, nbytes)
            return False
        host = source if kind is CopyKind.H2D else to
        return self._start_copy(on, kind, host, nbytes, nbytes, memmove, to, source, nbytes)

    def copy_strided(self, box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        call = "copy_strided"
        on = self._stream(stream, call)
        dst_at, pitch, rows, src_at, src_pitch, src_rows, width, height, depth = box
        shape = width, height, depth
        step, src_step = rows * pitch, src_rows * src_pitch
        if min(shape) <= 0 or min(pitch, src_pitch) < width or min(rows, src_rows) < height:
            strides = f"{(pitch, step)}, {(src_pitch, src_step)}"
            why = f"{depth} slices of {height} rows of {width} bytes, from row to row and slice to slice {strides}"
            raise host_error(call, "INVALID_VALUE", why)
        to_slice, source_slice = (height - 1) * pitch + width, (height - 1) * src_pitch + width
        to_span, source_span = (depth - 1) * step + to_slice, (depth - 1) * src_step + source_slice
        to, source = self._space.copy_sides(call, dst_at, to_span, src_at, source_span, kind)
        for at in range(depth) if kind is CopyKind.D2D else ():
            refuse_overlap(call, to + at * step, to_slice, source + at * src_step, source_slice)
        nbytes, views = width * height * depth, ((to, pitch, step), (source, src_pitch, src_step), shape)
        if blocking:
            self._engine.run_and_wait(on, nbytes, copy_rows, *views)
            return False
        host, span = (source, source_span) if kind is CopyKind.H2D else (to, to_span)
        return self._start_copy(on, kind, host, span, nbytes, copy_rows, *views)

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        on = self._stream(stream, "fill")
        if width not in (1, 2, 4) or count <= 0 or not 0 <= value < 1 << 8 * width or dst % width:
            raise host_error("fill", "INVALID_VALUE", f"{count} times the {width}-byte value {value} at {dst:#x}")
        to = self._space.device_side("fill", dst, width * count)
        if width == 1:
            self._engine.start(on, count, memset, to, value, count)
        else:
            self._engine.start(on, width * count, fill_words, to, value, width, count)

    def can_access(self, ordinal: int) -> bool:
        self._check("can_access")
        return ordinal != self._ordinal and 0 <= ordinal < self._devices

    def peer_access(self, ordinal: int, enabled: bool) -> None:
        if not self.can_access(ordinal):
            raise host_error("peer_access", "INVALID_DEVICE", f"device {ordinal}")

    def copy_peer(
        self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int, *, blocking: bool
    ) -> None:
        on, engine = self._stream(stream, "copy_peer"), self._engine
        if nbytes <= 0:
            raise host_error("copy_peer", "INVALID_VALUE", f"{nbytes} bytes")
        there, to = _find_peer(dst_ordinal, dst, nbytes)
        here, source = _find_peer(src_ordinal, src, nbytes)
        refuse_overlap("copy_peer", to, nbytes, source, nbytes)
        if engine.run_if_idle(on, nbytes, memmove, to, source, nbytes):
            if blocking and engine.failures:
                engine.raise_failure(on)
            return
        others = [device._engine.foreign for device in (there, here) if device is not self]
        job = engine.enqueue(Job(on, memmove, (to, source, nbytes), touches=others))
        if blocking:
            engine.wait(job)

    def launch_host_function(
        self, function: Callable[[Sequence[int]], None], ranges: Sequence[tuple[int, int]], stream: int
    ) -> None:
        call = "launch_host_function"
        on, engine = self._stream(stream, call), self._engine
        if wrong := [f"{nbytes} bytes" for _, nbytes in ranges if nbytes <= 0]:
            raise host_error(call, "INVALID_VALUE", wrong[0])
        places = [self._space.device_side(call, ptr, nbytes) for ptr, nbytes in ranges]
        if engine.failures:
            engine.raise_failure(on)
        # Never on this thread: it may run for as long as it likes.
        engine.enqueue(Job(on, function, (places,), function=function))

    def move_file(self, call: str, ptr: int, nbytes: int, transfer: FileTransfer) -> int:
        """Move bytes between a file and memory that nothing enqueued uses, on this thread; return how many.

        Meanwhile the bytes stay taken, like those that another device's job touches, and mapped, also where the device is closed.
        """
        use = Use(self._engine.legacy, self._engine.foreign, ptr)
        try:
            try:
                self._engine.foreign.add(use)
                self._check(call)  # not before: `close` looks for uses when the device is current nowhere
                return transfer(self._space.place(call, ptr, nbytes), nbytes)
            finally:
                use.end()
                if use.freed and self._engine.drain():
                    for freed in use.freed:
                        self._space.device.recycle(*freed)
        except BaseException:
            use.end()  # that was interrupted
            raise

    def _start_copy(
        self, on: Stream, kind: CopyKind, host: int, span: int, nbytes: int, run: Run, *args: object
    ) -> bool:
        """Start a copy that the caller does not wait for; what that means depends on the host side."""
        engine = self._engine
        if kind is CopyKind.D2D:
            engine.start(on, nbytes, run, *args)
        elif (owner := self._page_locked_by(host, span)) is not None:
            # Always on the stream's thread: a caller that reuses the host side too early must be able to see it.
            engine.enqueue(Job(on, run, args, touches=[] if owner is self else [owner._engine.foreign]))
            return True
        elif kind is CopyKind.D2H:
            engine.run_and_wait(on, nbytes, run, *args)
        elif not engine.run_if_first(on, nbytes, run, *args):
            read: Callable[..., Run] = read_bytes if run is memmove else read_rows
            engine.enqueue(Job(on, read(*args)))
        return False

    def _page_locked_by(self, host: int, nbytes: int) -> HostDriver | None:
        """The device whose page-locked memory these bytes of the host are: that of one is page-locked for all."""
        devices = (self, *(each for each in list(_open_drivers) if each is not self))
        return next((each for each in devices if each._space.page_locked(host, nbytes)), None)

    def is_out(self, ptr: int) -> bool:
        lock = page_locks.locks.containing(ptr, ptr + 1)
        is_locked = lock is not None and lock.start is ptr and lock.owner is self._space  # not another one since
        tables = self._space.opened, self._engine.streams, self._engine.events, self._graphs.graphs
        arenas = self._space.device, self._space.host
        return is_locked or any(each.knows(ptr) for each in arenas) or any(ptr in table for table in tables)

    def live_counts(self) -> tuple[int, int, int, int]:
        """Return (bytes, blocks, streams, events) that were handed out and not given back; for tests."""
        blocks = [*self._space.device.live.values(), *self._space.host.live.values()]
        return sum(blocks), len(blocks), len(self._engine.streams) - 1, len(self._engine.events)

    def _elsewhere(self, ptr: int) -> tuple[tuple[int, int], int] | tuple[None, None]:
        """Return the block around an address, and the device, of an open device that reaches it."""
        for device in list(_open_drivers):
            if found := device._space.block_around(ptr):
                return found, device._ordinal
        return None, None

    def _describe(self) -> DeviceInfo:
        strict = self._space.strict
        offered = {each for each, protocol in PROTOCOLS.items() if isinstance(self, protocol)}
        if self._space.device.mapping.file < 0:
            offered.discard(Capability.IPC)  # this system has no files without names
        return DeviceInfo(
            backend="host",
            ordinal=self._ordinal,
            name=f"host memory {self._ordinal}",
            uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{platform.node()}/devmem-host/{self._ordinal}")),
            total_bytes=self._space.device.size,
            arch=platform.machine(),
            memory_kinds=frozenset(MemoryKind),
            capabilities=frozenset(offered),
            shares_stream_ordered=True,
            coherence="" if strict else "host",
            exchange=Exchange(device_type=12 if strict else 1),  # DLPack's kDLExtDev, and kDLCPU: the host can read it
            facts=MappingProxyType({"strict": strict, "cores": os.cpu_count() or 1}),
        )


def current_driver(call: str) -> HostDriver:
    """Return the device that is current on this thread."""
    found = next((each for each in list(_open_drivers) if each._current.key is thread.key), None)
    if found is None:
        raise host_error(call, "INVALID_CONTEXT", "no device is current on this thread")
    return found


def _find_peer(ordinal: int, ptr: int, nbytes: int) -> tuple[HostDriver, int]:
    """Return the device that memory came from, as one can be open more than once, and where the bytes can be touched."""
    drivers = [each for each in list(_open_drivers) if each._ordinal == ordinal]
    if not drivers:
        raise host_error("copy_peer", "INVALID_DEVICE", f"device {ordinal} is not open")
    found = next((each for each in drivers if each._space.block_around(ptr) is not None), drivers[0])
    return found, found._space.device_side("copy_peer", ptr, nbytes)


class CurrentDevice:
    """Makes one device current. A thread has at most one, between ``enter`` and ``exit``. A closed device has no key."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.key: object = object()

    def enter(self) -> object:
        if self.key is None:
            self.refuse("enter")
        before = thread.key
        if before is self.key:
            return None
        if this_thread.runs_host_function:
            why = "a kernel, or what else runs for a stream, cannot launch another one, allocate, copy or wait"
            raise host_error("enter", "NOT_PERMITTED", f"{why}: do that on the host, and give it arrays as arguments")
        thread.key = self.key
        return before

    def exit(self, token: object) -> None:
        if token is not None:
            thread.key = token

    def check(self, call: str) -> None:
        """Raise for a driver call unless the device is current on this thread."""
        if thread.key is not self.key:
            self.refuse(call)

    def refuse(self, call: str) -> NoReturn:
        """Raise for a driver call on a device that is not current."""
        if self.key is None:
            raise host_error(call, "DEVICE_CLOSED", f"device {self.ordinal} was closed")
        raise host_error(
            call, "INVALID_CONTEXT", f"device {self.ordinal} is not current on this thread; enter() it first"
        )
