"""The driver of an OpenCL device: streams are queues, events are markers, memory is shared virtual memory."""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pyopencl as cl
from devmem.spi.errors import BackendError, DeviceLost, OutOfMemory
from devmem.spi.types import AllocFlags, Capability, CopyKind, DeviceInfo, MemoryKind
from devmem.toolkit.handles import Handles

_cl = cl._cl
COMPLETE = cl.command_execution_status.COMPLETE
FINE, READ_WRITE = cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER, cl.svm_mem_flags.READ_WRITE
CODE = cl.status_code
LOST = {CODE.DEVICE_NOT_AVAILABLE, CODE.OUT_OF_RESOURCES}


@functools.cache
def context_of(device: Any) -> Any:
    """The one context of a device: shared memory and events mean nothing in another, so a user's queue has to be in it."""
    return cl.Context([device])


class OpenCLDriver:
    """One device in a context of its own. Queues are in order, and independent of each other."""

    def __init__(self, device: Any, ordinal: int) -> None:
        self._context = context_of(device)
        self._device = device
        fine = bool(device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_BUFFER)
        what = f"{device.platform.name}, {device.name}"
        self.info = DeviceInfo(
            "opencl",
            ordinal,
            name=what,
            uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{what}, {ordinal}")),
            total_bytes=device.global_mem_size,
            alignment=max(64, device.min_data_type_align_size),
            memory_kinds=frozenset({MemoryKind.DEVICE, *([MemoryKind.PINNED] if fine else [])}),
            capabilities=frozenset({Capability.HOLD, Capability.FOREIGN_STREAMS}),
            default_memory="pool",  # clSVMFree may wait, and devmem's pool does not
            facts={"platform": device.platform.version, "version": device.version, "fine_grained": fine},
        )
        self._lock = threading.RLock()
        self._handles = itertools.count(16)
        self._blocks: dict[int, tuple[Any, MemoryKind]] = {}
        self._used = 0
        self._queues: Handles[Any] = Handles(int, (), _refuse, what="queue", foreign=False)
        self._foreign: set[int] = set()
        #: The newest command of each queue, also of destroyed ones until it is done.
        self._newest: dict[int, Any] = {}
        #: Of each event, whether it has timing, and the marker as which it was recorded last.
        self._events: Handles[Any] = Handles(int, (), _refuse, what="event", foreign=False)
        self._done = cl.UserEvent(self._context)  # stands for what was never recorded
        self._done.set_status(COMPLETE)
        self._holds: dict[int, Any] = {}
        self._sources: list[tuple[Any, Any]] = []  # what copies still read, behind their events

    def enter(self) -> object:
        return None

    def exit(self, token: object) -> None:
        pass

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if not nbytes:
            return 0
        if kind not in self.info.memory_kinds:
            raise _error("alloc", CODE.INVALID_VALUE, f"no {kind} memory")
        fine = FINE if kind is MemoryKind.PINNED else 0
        free, most = self.memory_info()[0], self._device.max_mem_alloc_size
        try:
            if nbytes > (most if fine else min(free, most)):
                raise MemoryError(f"{free} are free, {most} in one block")
            block = cl.SVMAllocation(self._context, nbytes, 0, READ_WRITE | fine)
        except (cl.Error, MemoryError) as error:
            message = f"{nbytes} bytes: {error}"
            raise _error("clSVMAlloc", CODE.MEM_OBJECT_ALLOCATION_FAILURE, message, OutOfMemory) from error
        with self._lock:
            ptr = int(block.svm_ptr)
            self._blocks[ptr] = block, kind
            self._used += 0 if fine else nbytes
        return ptr

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if not ptr:
            return
        with self._lock:
            if ptr not in self._blocks:
                raise _error("free", CODE.INVALID_VALUE, f"{ptr:#x} is not an allocation")
            block, kind = self._blocks.pop(ptr)
            self._used -= block.size if kind is MemoryKind.DEVICE else 0
        block.release()  # no work on it is pending: devmem has waited for it

    def memory_info(self) -> tuple[int, int]:
        return self.info.total_bytes - self._used, self.info.total_bytes

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        host = dst if kind is CopyKind.D2H else src
        pageable = kind is not CopyKind.D2D and not self._is_pinned(host)
        wait = blocking or (pageable and kind is CopyKind.D2H)
        target, source = _at(dst, nbytes), _at(src, nbytes)
        if pageable and not wait:  # the caller may change its memory as soon as this returns
            source = cl.SVM(bytearray(ctypes.string_at(src, nbytes)))
        with self._lock:
            event = self._enqueue(stream, "clEnqueueSVMMemcpy", _cl._enqueue_svm_memcpy, False, target, source)
            if pageable and not wait:
                self._sources = [each for each in self._sources if not _is_done(each[0])] + [(event, source)]
        if wait:
            with _checked("clWaitForEvents"):
                event.wait()  # a blocking call of pyopencl's would keep the GIL
        return not (wait or pageable) and kind is not CopyKind.D2D

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        pattern = ctypes.create_string_buffer(value.to_bytes(width, "little"), width)
        self._enqueue(stream, "clEnqueueSVMMemFill", _cl._enqueue_svm_memfill, _at(dst, width * count), pattern)

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        with _checked("clCreateCommandQueue"):
            queue = cl.CommandQueue(self._context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        stream = next(self._handles)
        self._queues[stream] = queue
        return stream

    def stream_destroy(self, stream: int) -> None:
        self._queues.take(stream).flush()  # what is enqueued runs; its newest command is kept for `synchronize`
        for other, event in list(self._newest.items()):
            if other not in self._queues and _is_done(event):
                self._newest.pop(other, None)

    def stream_synchronize(self, stream: int) -> None:
        with _checked("clFinish"):
            self._queues[stream].finish()

    def stream_query(self, stream: int) -> bool:
        marker, limit = self._marker(stream), time.monotonic() + 1e-3
        while stream in self._foreign and not _is_done(marker) and time.monotonic() < limit:
            pass  # its marker is a new one, which on an idle queue is done in a moment
        return _is_done(marker)

    def stream_wait(self, stream: int, event: int) -> None:
        self._enqueue(stream, "clEnqueueBarrierWithWaitList", cl.enqueue_barrier, [self._events[event][1]])

    def stream_from(self, stream: object) -> int:
        if isinstance(stream, int) and self._queues[stream]:
            return stream
        if not isinstance(stream, cl.CommandQueue):
            raise TypeError(f"a stream of another library is a pyopencl.CommandQueue, not {stream!r}")
        out_of_order = stream.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        if stream.device != self._device or stream.context != self._context or out_of_order:
            why = "another device's or context's queue, or out of order"
            raise _error("stream_from", CODE.INVALID_COMMAND_QUEUE, why)
        handle = int(stream.int_ptr)  # an address: no handle of ours
        self._queues[handle] = stream
        self._foreign.add(handle)
        return handle

    def synchronize(self) -> None:
        with _checked("clWaitForEvents"):
            for event in list(self._newest.values()):
                event.wait()

    def event_create(self, timing: bool) -> int:
        event = next(self._handles)
        self._events[event] = [timing, self._done]
        return event

    def event_destroy(self, event: int) -> None:
        self._events.take(event)

    def event_record(self, event: int, stream: int) -> None:
        state = self._events[event]
        state[1] = self._marker(stream, state[0])

    def event_query(self, event: int) -> bool:
        return _is_done(self._events[event][1])

    def event_synchronize(self, event: int) -> None:
        with _checked("clWaitForEvents"):
            self._events[event][1].wait()

    def event_elapsed(self, start: int, end: int) -> float:
        (timed, begun), (timed_too, ended) = self._events[start], self._events[end]
        if not (timed and timed_too):
            raise _error("event_elapsed", CODE.PROFILING_INFO_NOT_AVAILABLE, "an event has no timing")
        with _checked("clGetEventProfilingInfo"):  # an error until both are done
            return float(ended.profile.end - begun.profile.end) * 1e-6

    def hold(self, stream: int) -> int:
        with _checked("clCreateUserEvent"):
            latch = cl.UserEvent(self._context)
        self._enqueue(stream, "clEnqueueBarrierWithWaitList", cl.enqueue_barrier, [latch])
        hold = next(self._handles)
        self._holds[hold] = latch
        return hold

    def release(self, hold: int) -> None:
        with _checked("clSetUserEventStatus"):
            self._holds.pop(hold).set_status(COMPLETE)

    def close(self) -> None:
        for hold in list(self._holds):
            self.release(hold)
        self.synchronize()
        self._blocks.clear()  # which frees them

    def _enqueue(self, stream: int, name: str, call: Callable[..., Any], *args: Any) -> Any:
        queue = self._queues[stream]
        with self._lock, _checked(name):  # the newest is the last in the queue, whatever other threads enqueue
            event = self._newest[stream] = call(queue, *args)
            queue.flush()  # or a command of another queue might wait for it forever
        return event

    def _is_pinned(self, ptr: int) -> bool:
        around = ((base, block.size) for base, (block, kind) in list(self._blocks.items()) if kind is MemoryKind.PINNED)
        return any(base <= ptr < base + size for base, size in around)

    def _marker(self, stream: int, of_its_own: bool = False) -> Any:
        """Return a command that is last on a queue: the newest that was enqueued here, or one of its own."""
        if of_its_own or stream in self._foreign:
            return self._enqueue(stream, "clEnqueueMarkerWithWaitList", cl.enqueue_marker)
        return self._queues[stream] and self._newest.get(stream, self._done)


def _at(ptr: int, nbytes: int) -> Any:
    """An address, device or host, as pyopencl takes it."""
    return cl.SVM((ctypes.c_ubyte * nbytes).from_address(ptr))


def _is_done(event: Any) -> bool:
    return int(event.command_execution_status) == COMPLETE


@contextmanager
def _checked(call: str) -> Iterator[None]:
    """Raise what the block's OpenCL call raises as an error of devmem's."""
    try:
        yield
    except cl.Error as error:
        raise _error(call, error.code, str(error), DeviceLost if error.code in LOST else BackendError) from error


def _refuse(what: str, status: int, why: str) -> NoReturn:
    raise _error(what, CODE.INVALID_VALUE, why)


def _error(call: str, code: int, message: str, kind: type[BackendError] = BackendError) -> BackendError:
    name = str(CODE.to_string(code, "an error %d"))
    return kind(f"{call}: {message}", backend="opencl", call=call, code=code, name=name)
