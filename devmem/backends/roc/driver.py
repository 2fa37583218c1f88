"""One HIP device: the parts of its driver put together, and their end."""

# Decision: docs/adr/0009-housekeeping-does-not-disturb-foreign-captures.md
from __future__ import annotations

import ctypes
import dataclasses
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from ...spi.errors import DevmemError
from ...spi.types import LEGACY_STREAM, Capability, MemoryKind
from ...toolkit.deferred_errors import FirstError, fresh_copy
from ...toolkit.driver_parts import ComposedDriver, DriverState, Part
from ...toolkit.graphs import Graphs
from ...toolkit.handles import DEFAULT_STREAMS, Handles
from ...toolkit.memory import POSIX_FILE, READ_AND_WRITE, ForeignMemory, MemoryPool, PoolSharing
from ...toolkit.module_loader import ModuleLoader
from ...toolkit.streams import WORD_BYTES, Events, StreamHolds, Streams
from ...toolkit.vendor_functions import RelaxedCapture
from .copies import Copies
from .functions import POOL_SHARING, POOLS
from .info import device_info
from .memory import ACCESS, COHERENT, POINTER, Memory, page_locked, pool_is_sound
from .providers import IpcHandle
from .runtime import Runtime
from .table import FUNCTIONS, table_of

#: Flags of events, all with hipEventReleaseToSystem: what the host finds complete it can read, in memory of either coherence.
TIMED, UNTIMED = 0x8000_0000, 0x8000_0002
#: Threads along one axis of a grid, as HIP documents.
MOST_THREADS = (1 << 32) - 1
EXCHANGE = "hipThreadExchangeStreamCaptureMode"
WAIT_UNTIL_EQUAL, ALL_BITS = 1, 0xFFFF_FFFF


class CurrentOrdinal(Part):
    """HIP has one context for each device, and what is current is a thread's ordinal."""

    def enter(self) -> int | None:
        if self._errors.lost is not None:
            raise fresh_copy(self._errors.lost)
        current: int = self._functions.GetDevice()
        if current == self._ordinal:
            return None
        self._functions.SetDevice(self._ordinal)
        return current

    def exit(self, token: Any) -> None:
        if token is not None:
            self._functions.SetDevice(token)

    def synchronize(self) -> None:
        self._functions.DeviceSynchronize()


class RocDriver(ComposedDriver):
    """A device of the process.

    The runtime trusts its caller, and crashes on what is gone. So a driver remembers what it handed out, and refuses the rest.
    """

    def __init__(
        self, found: Runtime, ordinal: int, stream_ordered: bool = False, cuda_array_interface: bool = False
    ) -> None:
        self.found, self.provider = found, found.provider
        errors, has = found.errors(), found.provider.has
        functions = found.functions(errors)
        state = DriverState(
            ordinal,
            functions,
            errors,
            RelaxedCapture(functions.ThreadExchangeStreamCaptureMode if has(EXCHANGE) else None),
            # Older runtimes know the legacy stream as 0 only.
            Handles(lambda stream: 0 if stream == LEGACY_STREAM else stream, DEFAULT_STREAMS, errors.refuse),
            Handles(int, refuse=errors.refuse, what="event", foreign=False),
        )
        current, streams = CurrentOrdinal(state), Streams(state, synchronizes_before_destroy=True)
        self.pool = MemoryPool(
            state,
            partial(found.provider.member, "hipMemPoolAttr"),
            lambda nbytes: ctypes.byref(ctypes.c_uint64(nbytes)),
        )
        self.memory, self.kernels = Memory(state, self.pool, found.provider), _kernel_loader(state)
        self.copies = Copies(state, streams, found.provider, self.memory.is_page_locked)
        self.graphs = Graphs(state, self)
        self.holds = StreamHolds(
            state,
            self.memory,
            lambda: functions.HostMalloc(WORD_BYTES, COHERENT),
            lambda word: functions.HostFree(word),
            WAIT_UNTIL_EQUAL,
            ALL_BITS,
        )
        self.sharing = PoolSharing(
            state,
            self.pool,
            bytes,
            lambda raw: ctypes.byref(IpcHandle.from_buffer_copy(raw)),
            POSIX_FILE,
            lambda pool: functions.MemPoolSetAccess(pool, ACCESS(1, ordinal, READ_AND_WRITE), 1),
            "Free",
        )
        self.state = state
        self.compose(
            current,
            self.graphs,
            self.memory,
            self.copies,
            streams,
            Events(state, "EventCreateWithFlags", (UNTIMED, TIMED)),
            self.pool,
            self.kernels,
            self.sharing,
            ForeignMemory(
                state,
                bytes,
                IpcHandle.from_buffer_copy,
                lambda ptr: _device_of(functions.PointerGetAttributes(ptr), ptr),
            ),
            self.holds,
        )
        self.synchronize = partial(self.graphs.synchronize, current.synchronize)
        token = current.enter()
        self.begin()  # nothing has been taken yet
        try:
            self.info = device_info(found, functions, ordinal, cuda_array_interface)
            can_pool = all(map(has, POOLS))
            can_share = all(map(has, POOL_SHARING))
            wanted = stream_ordered and self.info.facts["memory_pools"] and can_pool
            if wanted and pool_is_sound(self, self.memory, self.pool, ordinal, POSIX_FILE if can_share else 0):
                pools = {Capability.STREAM_ORDERED, Capability.POOL_CONTROL}
                pools |= {Capability.SHARED_POOL} if has("hipMallocAsync") else set()
                pools |= {Capability.POOL_IPC} if can_share else set()
                capabilities = self.info.capabilities | pools
                self.info = dataclasses.replace(self.info, capabilities=capabilities, default_memory="")
            self.table = table_of(state, found.library, self.pool)
        except BaseException:
            with suppress(DevmemError):  # what comes first is told
                self.close()
            raise
        finally:
            current.exit(token)

    def table_refused(self, call: int, status: int) -> NoReturn:
        """Raise for a function of the table."""
        self.state.errors.fail([*FUNCTIONS.values()][call], status)

    def close(self) -> None:
        """Give back each piece that is still out: resetting the device would take it from other libraries too."""
        memory = self.memory
        try:
            token = self.enter()
        except DevmemError:
            for start in memory.registered:
                page_locked.remove(start)
            if self.state.errors.lost is not None:  # every call fails, and the first one has said why
                return
            raise
        with FirstError() as first:
            first.attempt(self.synchronize)
            for give_back, handles in (
                (lambda start: memory.host_unregister(start, 0), memory.registered),
                (self.graphs.graph_destroy, self.graphs.graphs),
                (self.kernels.unload, self.kernels.functions),
                (self.stream_destroy, self.state.streams.live()),
                (self.event_destroy, self.state.events.live()),
                (self.pool_close, self.sharing.imported),
                (lambda block: memory.virtual_free(block.start, 0, LEGACY_STREAM), memory.mapped.ranges),
                (lambda ptr: memory.free_async(ptr, 0, LEGACY_STREAM), memory.pooled),
                (lambda ptr: memory.free(ptr, 0, LEGACY_STREAM), memory.blocks),
                (lambda ptr: memory.free(ptr, 0, LEGACY_STREAM, MemoryKind.MANAGED), memory.managed_blocks),
                (lambda ptr: memory.free(ptr, 0, LEGACY_STREAM, MemoryKind.PINNED), memory.host_blocks),
                (self.state.functions.HostFree, self.holds.words),
            ):
                for handle in list(handles):
                    first.attempt(give_back, handle)
            first.attempt(self.graphs.destroy_captured)
            first.attempt(self.pool.destroy)
            self.exit(token)


def _device_of(attributes: bytes, ptr: int) -> int | None:
    """The device that an address belongs to; None for host memory that the device knows under another address."""
    _, ordinal, address, _ = POINTER.unpack_from(attributes)
    return ordinal if address == ptr else None


def _kernel_loader(state: DriverState) -> ModuleLoader:
    """The loader of code objects; the runtime takes code and names by address."""

    def load_module(made: list[Any], image: bytes) -> None:
        code = ctypes.create_string_buffer(image)
        state.functions.recorded.ModuleLoadData(made, ctypes.addressof(code))

    def find_function(module: int, name: str) -> int:
        text = ctypes.create_string_buffer(name.encode())
        return int(state.functions.ModuleGetFunction(module, ctypes.addressof(text)))

    return ModuleLoader(state, load_module, find_function, "ModuleLaunchKernel", MOST_THREADS)
