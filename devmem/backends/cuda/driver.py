"""One CUDA device: the parts of its driver put together, and their end."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from cuda.bindings import driver as cu

from ...spi.errors import BackendError
from ...toolkit.deferred_errors import fresh_copy
from ...toolkit.driver_parts import ComposedDriver, DriverState, Part
from ...toolkit.handles import DEFAULT_STREAMS, Handles
from ...toolkit.memory import ForeignMemory, MemoryPool
from ...toolkit.streams import WORD_BYTES, Events, StreamHolds, Streams
from ...toolkit.vendor_functions import RelaxedCapture, StatusErrors, VendorFunctions
from .binding import STICKY, bind, code_of, describe
from .copies import Copies
from .info import device_info
from .kernels import Kernels
from .memory import DEVICE_MAP, Memory, ipc_bytes, ipc_handle

#: CU_EVENT_DISABLE_TIMING, and CU_STREAM_WAIT_VALUE_GEQ.
DISABLE_TIMING, WAIT_UNTIL_AT_LEAST = 2, 0
DEVICE_ORDINAL = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
# Called as it is: a checked call would cost a frame in every verb.
_get_current = cu.cuCtxGetCurrent


class PrimaryContext(Part):
    """The context that all libraries of the process share: retained while the device is open, current during each verb."""

    def __init__(self, state: DriverState) -> None:
        super().__init__(state)
        self.device = state.functions.DeviceGet(state.ordinal)
        self.primary = state.functions.DevicePrimaryCtxRetain(self.device)

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

    def release(self) -> None:
        """Let go of the context."""
        self._functions.DevicePrimaryCtxRelease(self.device)


class CudaDriver(ComposedDriver):
    """A device through its primary context, which other libraries in the process share."""

    def __init__(self, ordinal: int) -> None:
        errors = StatusErrors("cuda", describe, STICKY)
        functions = VendorFunctions("cu", partial(bind, fail=errors.fail))
        state = DriverState(
            ordinal,
            functions,
            errors,
            RelaxedCapture(cu.cuThreadExchangeStreamCaptureMode, cu.CUstreamCaptureMode),
            Handles(cu.CUstream, DEFAULT_STREAMS),
            Handles(cu.CUevent),
        )
        self.context = context = PrimaryContext(state)
        self.pool = pool = MemoryPool(state, cu.CUmemPool_attribute, cu.cuuint64_t)
        try:
            token = context.enter()
            try:
                info = device_info(functions, context.device, ordinal)
                if info.facts["memory_pools"]:
                    pool.create(_pool_properties(ordinal))
            finally:
                context.exit(token)
        except BaseException:
            with suppress(BackendError):
                pool.destroy()
            with suppress(BackendError):
                context.release()
            raise
        streams, self.memory, self.kernels = Streams(state), Memory(state, pool), Kernels(state)
        self.state, self.info = state, info
        self.compose(
            context,
            self.memory,
            Copies(state, context.device, streams),
            streams,
            Events(state, lambda timing: functions.EventCreate(0 if timing else DISABLE_TIMING)),
            pool,
            self.kernels,
            ForeignMemory(
                state, ipc_bytes, ipc_handle, lambda ptr: int(functions.PointerGetAttribute(DEVICE_ORDINAL, ptr))
            ),
            StreamHolds(
                state,
                self.memory,
                lambda: functions.MemHostAlloc(WORD_BYTES, DEVICE_MAP),
                lambda word: functions.MemFreeHost(word),
                WAIT_UNTIL_AT_LEAST,
            ),
        )

    def close(self) -> None:
        """Let go of code, of the pool and of the primary context.

        The context is kept while host memory of it is in use: releasing the last reference to it would unmap memory that ndarrays
        point to. That of a lost device is released: otherwise the device could not be used again.
        """
        expected = () if self.state.errors.lost is None else (BackendError,)  # every call fails on a lost device
        try:
            with suppress(*expected):
                if self.kernels.functions:  # the context may outlive this driver, and so would they
                    token = self.enter()
                    try:
                        for function in list(self.kernels.functions):
                            self.kernels.unload(function)
                    finally:
                        self.exit(token)
                self.pool.destroy()
        finally:
            with suppress(*expected):
                if expected or not self.memory.host_blocks:
                    self.context.release()


def _pool_properties(ordinal: int) -> Any:
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = ordinal
    return properties
