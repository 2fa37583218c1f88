"""One CUDA device: the parts of its driver put together, and their end."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

from cuda.bindings import driver as cu

from ...spi.errors import BackendError
from ...spi.types import LEGACY_STREAM, Capability, DeviceInfo, MemoryKind
from ...toolkit.copy_calls import CopyCalls
from ...toolkit.deferred_errors import FirstError, fresh_copy
from ...toolkit.driver_parts import ComposedDriver, DriverState, Part, Taken
from ...toolkit.graphs import Graphs
from ...toolkit.handles import DEFAULT_STREAMS, Handles
from ...toolkit.memory import READ_AND_WRITE, ForeignMemory, MemoryPool, PoolSharing
from ...toolkit.streams import WORD_BYTES, Events, StreamHolds, Streams
from ...toolkit.vendor_functions import (
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_SUPPORTED,
    RelaxedCapture,
    StatusErrors,
    VendorFunctions,
)
from .binding import STICKY, bind, bind_recorded, code_of, describe
from .copies import ATTRIBUTES_SINCE, Copies, contexts, pools
from .info import device_info
from .kernels import Kernels
from .memory import DEVICE_MAP, Memory, access_of, ipc_bytes, ipc_handle, pointer_data
from .table import FUNCTIONS, table_of

#: CU_EVENT_DISABLE_TIMING, and CU_STREAM_WAIT_VALUE_GEQ.
DISABLE_TIMING, WAIT_UNTIL_AT_LEAST = 2, 0
#: CUDA_ERROR_NOT_PERMITTED.
NOT_PERMITTED = 800
FILE_DESCRIPTOR = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
DEVICE_ORDINAL = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
# Called as it is: a checked call would cost a frame in every verb.
_get_current = cu.cuCtxGetCurrent


class PrimaryContext(Part):
    """The context that all libraries of the process share: retained while the device is open, current during each verb."""

    def __init__(self, state: DriverState) -> None:
        super().__init__(state)
        self.device = state.functions.DeviceGet(state.ordinal)
        self.primary: Any = None
        self._taken = Taken()

    def retain(self) -> None:
        """Hold the context."""
        self.primary = self._taken.take(self._recorded.DevicePrimaryCtxRetain, self.device)

    def enter(self) -> Any:
        if self._errors.lost is not None:
            raise fresh_copy(self._errors.lost)
        try:
            error, current = _get_current()
        except ValueError as unknown:
            error, current = code_of(unknown), None
        if current == self.primary:
            return None
        if error:
            self._errors.fail("cuCtxGetCurrent", int(error))
        self._functions.CtxSetCurrent(self.primary)
        return current

    def exit(self, token: Any) -> None:
        if token is not None:
            self._functions.CtxSetCurrent(token)

    def synchronize(self) -> None:
        self._functions.CtxSynchronize()

    def stream_refusal(self, stream: int) -> str:
        # For a stream of a green context the second form gives the primary context, whose memory and rules are the green one's.
        try:
            context, _ = self._functions.StreamGetCtx_v2(stream)
        except BackendError as error:
            if error.code != INVALID_HANDLE:
                raise
            return "it is no stream that the driver knows, or was destroyed"
        if context == self.primary:
            return ""
        return (
            f"it belongs to another context than the primary one of device {self._ordinal}: make it with that device, and not "
            f"a context of cuCtxCreate's, current; or let its work be waited for, with an event, on a stream made there"
        )

    def release(self) -> None:
        """Let go of the context."""
        self._taken.give_back(lambda ended, _: self._recorded.DevicePrimaryCtxRelease(ended, self.device))


class CudaDriver(ComposedDriver):
    """A device through its primary context, which other libraries in the process share."""

    def __init__(self, ordinal: int) -> None:
        errors = StatusErrors("cuda", describe, STICKY)
        functions = VendorFunctions("cu", partial(bind, fail=errors.fail), partial(bind_recorded, fail=errors.fail))
        state = DriverState(
            ordinal,
            functions,
            errors,
            RelaxedCapture(cu.cuThreadExchangeStreamCaptureMode, cu.CUstreamCaptureMode),
            Handles(cu.CUstream, DEFAULT_STREAMS),
            Handles(cu.CUevent),
        )
        self.state, self.context = state, PrimaryContext(state)
        self.pool = pool = MemoryPool(state, cu.CUmemPool_attribute, cu.cuuint64_t, cu.CUmemoryPool)
        streams, self.memory, self.kernels = Streams(state), Memory(state, pool), Kernels(state)
        self.table_blocks = self.memory.blocks
        self.graphs = Graphs(state, self)
        self.sharing = PoolSharing(
            state, pool, ipc_bytes, pointer_data, FILE_DESCRIPTOR, partial(_grant, functions, ordinal), "MemFree"
        )
        self.copies = Copies(state, self.context.device, streams, self.memory)
        self.pool_decompressible = partial(_make_decompressible, pool, ordinal)
        self.compose(
            self.context,
            self.graphs,
            self.memory,
            self.copies,
            streams,
            Events(state, "EventCreate", (DISABLE_TIMING, 0)),
            pool,
            self.kernels,
            self.sharing,
            ForeignMemory(state, ipc_bytes, ipc_handle, partial(_device_of, functions)),
            StreamHolds(
                state,
                self.memory,
                lambda: functions.MemHostAlloc(WORD_BYTES, DEVICE_MAP),
                lambda word: functions.MemFreeHost(word),
                WAIT_UNTIL_AT_LEAST,
            ),
        )
        self.synchronize = partial(self.graphs.synchronize, self.context.synchronize)
        self.begin()  # nothing has been taken yet
        try:
            self._take()
        except BaseException:
            with suppress(BackendError):
                self.close()
            raise

    def _take(self) -> None:
        """Take the context and the pool, and find out what the device is."""
        context, state, ordinal = self.context, self.state, self.state.ordinal
        context.retain()
        token = context.enter()
        try:
            info = device_info(state.functions, context.device, ordinal)
            if info.facts["memory_pools"]:
                info = _with_pool(self.pool, info)
            self.memory.node = int(info.facts["pinned_node"])
            newer = int(info.facts["driver_version"]) >= ATTRIBUTES_SINCE
            newer = newer and hasattr(cu, "cuMemcpyWithAttributesAsync")
            calls = CopyCalls(self)
            calls.choose(self.state, info.capabilities, self.copies.take_attributes if newer else None)
        finally:
            context.exit(token)
        self.info = dataclasses.replace(
            info,
            facts=MappingProxyType({**info.facts, "copy_calls": "; ".join(calls.told)}),
            capabilities=info.capabilities - calls.slower,
        )
        self.table = table_of(state, context.primary, self.pool, not self.copies.with_attributes)
        pools[ordinal], contexts[ordinal] = self.pool, context.primary

    def table_refused(self, call: int, status: int) -> NoReturn:
        """Raise for a function of the table."""
        self.state.errors.fail([*FUNCTIONS.values()][call], status)

    def close(self) -> None:
        """Give back each piece that is still out, the pool and the primary context.

        The context may outlive this driver, and so would what is in it. Where host memory could not be given back the context is
        kept: releasing the last reference to it would unmap that. The context of a lost device is released: otherwise the device
        could not be used again.
        """
        lost = self.state.errors.lost is not None
        with FirstError() as first:
            first.attempt(self._give_back)
            first.attempt(self.pool.destroy)
            if lost or not (self.memory.host_blocks or self.memory.managed_blocks):
                first.attempt(self.context.release)
            if lost and isinstance(first.error, BackendError):
                first.error = None  # every call fails on a lost device

    def _give_back(self) -> None:
        """Give back what is in the tables: nothing uses it any more."""
        memory = self.memory
        left = [
            (give_back, handle)
            for give_back, handles in (
                (lambda start: memory.host_unregister(start, 0), memory.registered),
                (self.graphs.graph_destroy, self.graphs.graphs),
                (self.kernels.unload, self.kernels.functions),
                (self.stream_destroy, self.state.streams.live()),
                (self.event_destroy, self.state.events.live()),
                (self.pool_close, self.sharing.imported),
                (lambda block: memory.virtual_free(block.start, 0, LEGACY_STREAM), memory.mapped.ranges),
                (lambda ptr: memory.free(ptr, 0, LEGACY_STREAM), memory.blocks),
                (lambda ptr: memory.free(ptr, 0, LEGACY_STREAM, MemoryKind.MANAGED), memory.managed_blocks),
                (lambda ptr: memory.free(ptr, 0, LEGACY_STREAM, MemoryKind.PINNED), memory.host_blocks),
            )
            for handle in list(handles)
        ]
        if not (left or self.graphs.captured or self.graphs.undestroyed):
            return
        token = self.enter()
        try:
            self.synchronize()
            with FirstError() as first:
                for give_back, handle in left:
                    first.attempt(give_back, handle)
                first.attempt(self.graphs.destroy_captured)
        finally:
            self.exit(token)


def _device_of(functions: VendorFunctions, ptr: int) -> int | None:
    """The device of an address; the driver has negative numbers for memory that is no device's."""
    ordinal = int(functions.PointerGetAttribute(DEVICE_ORDINAL, ptr))
    return ordinal if ordinal >= 0 else None


def _with_pool(pool: MemoryPool, info: DeviceInfo) -> DeviceInfo:
    """Make the pool, so that other processes can be given its memory if the driver lets it; returns what holds then."""
    if Capability.POOL_IPC in info.capabilities:
        try:
            pool.create(_pool_properties(info.ordinal, FILE_DESCRIPTOR))
            return info
        except (
            BackendError
        ) as error:  # what the device says it can, a container or another system around it may not allow
            if error.code not in (INVALID_VALUE, NOT_PERMITTED, NOT_SUPPORTED):
                raise
            pool.destroy()
    pool.create(_pool_properties(info.ordinal, cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE))
    return dataclasses.replace(info, capabilities=info.capabilities - {Capability.POOL_IPC})


def _make_decompressible(pool: MemoryPool, ordinal: int) -> None:
    if pool.decompressible is None:
        properties = _pool_properties(ordinal, cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE)
        properties.usage = cu.CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS
        pool.create(properties, "decompressible")


def _grant(functions: VendorFunctions, ordinal: int, pool: Any) -> None:
    """Give the device access to an imported pool, unless it has: which of the two, the vendor does not say."""
    access = access_of(ordinal)
    if int(functions.MemPoolGetAccess(pool, access.location)) != READ_AND_WRITE:
        functions.MemPoolSetAccess(pool, [access], 1)


def _pool_properties(ordinal: int, handles: Any) -> Any:
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = handles
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = ordinal
    return properties
