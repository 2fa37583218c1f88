"""The memory of a device: shared virtual memory, whose addresses are the same on the host.

Device memory is coarse-grained: the host reaches it in copies, or while it is mapped. All other kinds are fine-grained, where the
device has that, else Intel's unified memory: host and device reach them at any time, so they are what page-locked, mapped and
managed memory is elsewhere.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import pyopencl as cl
from pyopencl import _cl

from ...spi.errors import OutOfMemory
from ...spi.types import AllocFlags, DeviceInfo, MemoryKind, Place, PlaceKind
from ...toolkit.driver_parts import ADVICE
from ...toolkit.locks import Rank, lock
from ...toolkit.ranges import RangeTable
from .queues import Queues
from .runtime import CODE, at, checked, is_done, refuse
from .unified import UnifiedAllocation

READ_WRITE, FINE = cl.svm_mem_flags.READ_WRITE, cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
TO_HOST, UNDEFINED = cl.mem_migration_flags.HOST, cl.mem_migration_flags.CONTENT_UNDEFINED
NO_MEMORY = CODE.MEM_OBJECT_ALLOCATION_FAILURE
HOST_KINDS = frozenset({MemoryKind.PINNED, MemoryKind.MAPPED})


class Block:
    """One allocation."""

    def __init__(self, owner: Memory, memory: Any, nbytes: int, kind: MemoryKind) -> None:
        self.owner, self.memory, self.kind = owner, memory, kind
        self.start = int(memory.svm_ptr)
        self.stop = self.start + nbytes
        self.buffers: dict[bool, Any] = {}

    def buffer(self, written: bool) -> Any:
        """The block as a buffer, which copies of rectangles want; one to read and one to write.

        Within one buffer OpenCL copies no rectangle whose pitches differ on the two sides.
        """
        found = self.buffers.get(written)
        if found is None:
            memory = (ctypes.c_ubyte * (self.stop - self.start)).from_address(self.start)
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
            with checked("clCreateBuffer"):
                found = self.buffers[written] = cl.Buffer(self.owner.context, flags, hostbuf=memory)
        return found


@functools.cache
def blocks_of(device: Any) -> RangeTable[Block]:
    """The allocations of all drivers of a device, one of which is left open while others use its memory."""
    return RangeTable()


class Memory:
    """Allocate memory on a device, and give hints for managed memory."""

    def __init__(self, device: Any, info: DeviceInfo, queues: Queues) -> None:
        self._info, self._queues, self.context, self._device = info, queues, queues.context, device
        self._most = device.max_mem_alloc_size
        self._lock = lock("OpenCL memory", Rank.LEAF)
        self._used = 0
        #: Freed in stream order: what the stream has to pass, and the block. PoCL 3 crashes in clEnqueueSVMFree.
        self._ending: list[tuple[Any, Block]] = []
        self.blocks = blocks_of(device)

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if nbytes <= 0 or kind not in self._info.memory_kinds:
            if nbytes == 0:
                return 0
            refuse("alloc", CODE.INVALID_VALUE, f"{nbytes} bytes of {kind} memory")
        free = self.memory_info()[0]  # behind which nothing waits to be freed
        if nbytes > (self._most if kind in HOST_KINDS else min(free, self._most)):
            refuse("alloc", NO_MEMORY, f"{nbytes} bytes: {free} are free, {self._most} in one block", OutOfMemory)
        try:
            if kind is MemoryKind.DEVICE or self._info.facts["fine_grained"]:
                fine = kind is not MemoryKind.DEVICE and FINE
                memory = cl.SVMAllocation(self.context, nbytes, 0, READ_WRITE | fine)
            else:
                memory = UnifiedAllocation(self.context, self._device, nbytes, kind)
        except (cl.Error, MemoryError) as error:
            refuse("alloc", NO_MEMORY, f"{nbytes} bytes: {error}", OutOfMemory)
        block = Block(self, memory, nbytes, kind)
        self._count(block, 1)
        self.blocks.add(block)
        return block.start

    def alloc_async(self, nbytes: int, stream: int) -> int:
        self._queues.find(stream)
        return self.alloc(nbytes, stream)

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if ptr:
            self._release(self._take("free", ptr, kind))  # no work on it is pending: devmem has waited for that

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        queue = self._queues.find(stream)
        if ptr:
            block = self._take("free_async", ptr, MemoryKind.DEVICE)
            passed, _ = self._queues.before(queue)
            with self._lock:
                self._ending.append((passed, block))
            self._free_passed()

    # There is no pool to be controlled: what was freed is not held.
    def pool_cached(self) -> int:
        return 0

    def pool_trim(self, keep_bytes: int) -> None:
        pass

    def pool_threshold(self, nbytes: int) -> None:
        pass

    def memory_info(self) -> tuple[int, int]:
        self._free_passed()
        total = self._info.total_bytes
        return max(0, total - self._used), total

    def pointer_range(self, ptr: int) -> tuple[int, int] | None:
        block = self.blocks.containing(ptr, ptr + 1)
        return (block.start, block.stop - block.start) if block else None

    def pointer_device(self, ptr: int) -> int | None:
        return self._info.ordinal if self.blocks.containing(ptr, ptr + 1) else None

    def device_pointer(self, host: int) -> int:
        block = self.blocks.containing(host, host + 1)
        if block is None or block.kind is MemoryKind.DEVICE:
            refuse("device_pointer", CODE.INVALID_VALUE, f"{host:#x} is no mapped memory of this device")
        return host

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None:
        self._migrate("prefetch", [ptr], [nbytes], TO_HOST if to_host else 0, stream)

    def prefetch_to(self, ptrs: Sequence[int], sizes: Sequence[int], to: Place, stream: int, *, discard: bool) -> None:
        flags = self._place("prefetch_to", to) | (discard and UNDEFINED)
        self._migrate("prefetch_to", ptrs, sizes, flags, stream)

    def discard(self, ptrs: Sequence[int], sizes: Sequence[int], stream: int) -> None:
        self._migrate("discard", ptrs, sizes, UNDEFINED, stream)

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        """Check the advice: OpenCL has no call to pass it on."""
        self._managed("advise", ptr, nbytes)
        if advice not in ADVICE:
            refuse("advise", CODE.INVALID_VALUE, f"{advice!r} is not one of {', '.join(sorted(ADVICE))}")

    def advise_for(self, ptr: int, nbytes: int, advice: str, to: Place) -> None:
        self._place("advise_for", to)
        self.advise(ptr, nbytes, advice, False)

    def side(self, call: str, ptr: int, nbytes: int, on_host: bool = False) -> Any:
        """The block around one side of a copy; None for pageable memory of the host. Mapped memory may be either side."""
        block = self.blocks.containing(ptr, ptr + nbytes) if nbytes > 0 else None
        if on_host and block is None and not self.blocks.overlapping(ptr, ptr + nbytes):
            return None
        if block is None or block.kind is (MemoryKind.DEVICE if on_host else MemoryKind.PINNED):
            where = "the host's memory" if on_host else "one block of this device"
            refuse(call, CODE.INVALID_VALUE, f"{nbytes} bytes at {ptr:#x} are not in {where}")
        return block

    def drop(self) -> None:
        """Free everything that this driver has allocated."""
        ended = [block for _, block in self._ending] + [each for each in self.blocks.ranges if each.owner is self]
        self._ending = []
        for block in ended:
            self.blocks.discard(block)
            self._release(block)

    def _free_passed(self) -> None:
        """Free what was freed in stream order on streams that have passed it."""
        if self._ending:
            with self._lock:
                passed = [block for event, block in self._ending if is_done(event)]
                self._ending = [each for each in self._ending if each[1] not in passed]
            for block in passed:
                self._release(block)

    def _release(self, block: Block) -> None:
        self._count(block, -1)
        block.buffers.clear()  # first: OpenCL leaves undefined what a buffer on freed memory does
        block.memory.release()

    def _managed(self, call: str, ptr: int, nbytes: int) -> None:
        if self.side(call, ptr, nbytes).kind is not MemoryKind.MANAGED:
            refuse(call, CODE.INVALID_VALUE, f"{ptr:#x} is not managed memory")

    def _place(self, call: str, to: Place) -> int:
        if to.number < 0 or (to.kind is PlaceKind.DEVICE and to.number != self._info.ordinal):
            why = f"memory of device {self._info.ordinal} moves between it and the host, not to {to.kind} {to.number}"
            refuse(call, CODE.INVALID_DEVICE, why)
        return 0 if to.kind is PlaceKind.DEVICE else int(TO_HOST)  # OpenCL's host has no parts

    def _migrate(self, call: str, ptrs: Sequence[int], sizes: Sequence[int], flags: int, stream: int) -> None:
        queue, ranges = self._queues.find(stream), list(zip(ptrs, sizes, strict=True))
        for ptr, nbytes in ranges:
            self._managed(call, ptr, nbytes)
        if ranges and self._info.facts["fine_grained"]:  # the call takes no unified memory, and what it gives is a hint
            memory = [at(ptr, nbytes) for ptr, nbytes in ranges]
            self._queues.enqueue(
                queue, "clEnqueueSVMMigrateMem", lambda on: _cl._enqueue_svm_migrate_mem(on, memory, flags)
            )

    def _take(self, call: str, ptr: int, kind: MemoryKind) -> Block:
        block = self.blocks.containing(ptr, ptr + 1)
        if block is None or block.start != ptr or block.kind is not kind or block.owner is not self:
            refuse(call, CODE.INVALID_VALUE, f"{ptr:#x} is no live block of {kind} memory")
        self.blocks.discard(block)
        return block

    def _count(self, block: Block, sign: int) -> None:
        if block.kind not in HOST_KINDS:
            with self._lock:
                self._used += sign * (block.stop - block.start)
