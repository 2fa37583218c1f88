"""numba.cuda's contexts: one for each device, until `close`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import devmem

from ...._core.ordering.leases import OwnedHandle
from ....adapters.emm import EMMMemory, EMMPinnedMemory
from ....spi.errors import DevmemError
from ....spi.types import Capability, MemoryKind
from . import nvidia_driver, state
from .device import Device
from .error import CudaDriverError, CudaSupportError, translated
from .ipc import SUPPORTS_IPC
from .memory_managers import (
    COUNT_VARIABLE,
    RATIO_VARIABLE,
    HostOnlyCUDAMemoryManager,
    MemoryInfo,
    NumbaCUDAMemoryManager,
    PendingDeallocs,
    manager_class,
)
from .pointers import MemoryPointer
from .streams import DefaultStream, Event, NumberedStream, Stream, default_stream_object, with_class
from .switches import switch

#: The compute capability that numba.cuda requires.
MIN_REQUIRED_CC = (3, 5)
DISABLED = "NUMBA_DISABLE_CUDA"


class Context:
    """A device's context, shared by all threads. Further objects for the same device are equal to it."""

    def __init__(self, device: Any, handle: Any) -> None:
        self.device: Device = device if isinstance(device, Device) else Device(int(device))
        #: Empty, for code that reads them: memory is in ``memory_manager``, compiled code in the kernels.
        self.allocations: dict[Any, Any] = {}
        self.modules: dict[Any, Any] = {}
        self.extras: dict[Any, Any] = {}
        self.deallocations = PendingDeallocs(self, OwnedHandle)
        self._manager_class = manager_class()
        self.memory_manager = self._manager_class(context=self)
        self._opened: Any = None

    def __repr__(self) -> str:
        return f"<CUDA context {self.handle} of device {self.device.id:d}>"

    def __eq__(self, other: object) -> bool:
        return self.device == other.device if isinstance(other, Context) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.device)

    @property
    def handle(self) -> int:
        """The address of the driver's context, or a unique number if the driver has none."""
        return nvidia_driver.context_handle(self.device.native)

    def native(self) -> Any:
        """The open device of devmem, prepared for use here."""
        found = self.device.native.opened()
        if found not in state.ready:
            state.prepare(found)
        return found

    def native_if_open(self) -> Any:
        """The open device of devmem; None if it is not open."""
        found = self._opened
        return found if found is not None and found.handle.dead is None else None

    def open(self, native: Any) -> None:
        """Apply numba.cuda's limits of deferred frees, and the selected memory manager, to an open device."""
        chosen = manager_class()
        if chosen is not self._manager_class:  # another was set since the device was closed
            self.memory_manager.reset()
            self._manager_class, self.memory_manager = chosen, chosen(context=self)
        self._opened = native
        manager = self.memory_manager
        ours = isinstance(manager, NumbaCUDAMemoryManager)
        count = _setting(COUNT_VARIABLE, int)
        if count is not None or not ours:
            # A plugin has its own queue: dropped memory goes back to it at once.
            native.free_queue.max_count = count or 0
        ratio = _setting(RATIO_VARIABLE, float)
        if ratio is not None:
            native.free_queue.max_bytes = int(ratio * native.handle.info.total_bytes)
        if ours:
            _use_shareable_memory(native)
            return
        devmem.use_memory(EMMMemory(manager), native.device)
        if type(manager).memhostalloc is not HostOnlyCUDAMemoryManager.memhostalloc:
            devmem.use_memory(EMMPinnedMemory(manager), native.device, kind="pinned")

    # -- memory --------------------------------------------------------------------------------------------------------

    def memalloc(self, bytesize: int) -> Any:
        """Device memory, as an owning pointer."""
        return self._managed("memalloc", bytesize)

    def memallocmanaged(self, bytesize: int, attach_global: bool = True) -> Any:
        """Managed memory, as an owning pointer with a buffer."""
        return self._managed("memallocmanaged", bytesize, attach_global)

    def memhostalloc(self, bytesize: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        """Page-locked host memory, as an owning buffer."""
        return self._managed("memhostalloc", bytesize, mapped, portable, wc)

    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool = False) -> Any:
        """Existing host memory, page-locked until the result dies."""
        if mapped and not self.device.CAN_MAP_HOST_MEMORY:
            raise CudaDriverError(f"{self.device} cannot map host memory")
        return self._managed("mempin", owner, pointer, size, mapped)

    def get_memory_info(self) -> MemoryInfo:
        """Free and total bytes, from the memory manager."""
        return self._managed("get_memory_info")  # type: ignore[no-any-return]

    def get_ipc_handle(self, memory: Any) -> Any:
        """A handle of memory for another process; OSError if the system has none."""
        if not SUPPORTS_IPC:
            raise OSError("OS does not support CUDA IPC")
        return self._managed("get_ipc_handle", memory)

    def open_ipc_handle(self, handle: Any, size: int) -> MemoryPointer:
        """Memory of another process, open until the pointer dies."""
        native = self.native()
        try:
            native.handle.require(Capability.IPC, "open memory of another process", "copy it through the host")
            with native.device.entered() as driver:
                address = driver.ipc_open(bytes(handle))
        except DevmemError as error:
            raise translated(error) from error
        return MemoryPointer(self, address, size, finalizer=lambda: _close_ipc(native, address))

    def enable_peer_access(self, peer_context: Any, flags: int = 0) -> None:
        """Do nothing: devmem chooses the path of copies between devices itself."""
        assert flags == 0, "*flags* is reserved and MUST be zero"

    def can_access_peer(self, peer_device: int) -> bool:
        """Whether this device can access another one's memory directly."""
        native = self.native()
        if Capability.PEER not in native.handle.capabilities:
            return False
        try:
            with native.device.entered() as driver:
                return bool(driver.can_access(int(peer_device)))
        except DevmemError as error:
            raise translated(error) from error

    # -- streams and events --------------------------------------------------------------------------------------------

    def create_stream(self) -> Stream:
        """A new stream, which is synchronised with the legacy default stream in both directions."""
        try:
            return with_class(self.native().new_stream(0, False), Stream)  # type: ignore[no-any-return]
        except DevmemError as error:
            raise translated(error) from error

    def create_external_stream(self, ptr: int) -> Stream:
        """Another library's stream, by its address."""
        if not isinstance(ptr, int):
            raise TypeError(f"ptr for external stream must be an int, not {type(ptr).__name__}")
        native = self.native()
        found = native.streams.external_stream(ptr)
        return default_stream_object(found, NumberedStream) if found.is_default else with_class(found, Stream)  # type: ignore[no-any-return]

    def create_event(self, timing: bool = True) -> Event:
        """An event."""
        try:
            with self.device.native if self.native() is not state.ready_device() else ExitStack():
                return with_class(devmem.event(timing), Event)  # type: ignore[no-any-return]
        except DevmemError as error:
            raise translated(error) from error

    def get_default_stream(self) -> Stream:
        """The stream of work without a given stream."""
        return default_stream_object(self.native().streams.default, DefaultStream)  # type: ignore[no-any-return]

    def get_legacy_default_stream(self) -> Stream:
        """The legacy default stream."""
        return default_stream_object(self.native().streams.legacy, NumberedStream)  # type: ignore[no-any-return]

    def get_per_thread_default_stream(self) -> Stream:
        """The calling thread's own default stream."""
        return default_stream_object(self.native().streams.per_thread, NumberedStream)  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """Wait until all work on the device is done."""
        try:
            self.native().device.synchronize()
        except DevmemError as error:
            raise translated(error) from error

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def prepare_for_use(self) -> None:
        """Initialise the memory manager; may be called repeatedly."""
        self.native()
        with self.device.native.entered():
            self.memory_manager.initialize()

    def push(self) -> None:
        """Make the device current in this thread, until `pop`."""
        self.device.native.__enter__()
        self.prepare_for_use()

    def pop(self) -> None:
        """Make current again the device from before the last `push`; AssertionError if this one is not current."""
        assert devmem.current_device() == self.device.native, f"{self!r} is not the current one"
        self.device.native.__exit__(None, None, None)

    def reset(self) -> None:
        """Free all memory of the context; its arrays raise ClosedError afterwards. The context stays usable."""
        try:
            self.device.native.reset()
        except DevmemError as error:
            raise translated(error) from error
        finally:
            self.memory_manager.reset()
            self.modules.clear()
            self.deallocations.clear()

    @contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """A ``with`` block in which nothing is freed."""
        deferred: AbstractContextManager[None] = self.memory_manager.defer_cleanup()
        with deferred, self.deallocations.disable():
            yield

    # -- private -------------------------------------------------------------------------------------------------------

    def _managed(self, verb: str, *arguments: Any) -> Any:
        """Call the memory manager with the device current in the driver, as a plugin may call the driver itself."""
        self.prepare_for_use()
        with self.device.native.entered():
            return getattr(self.memory_manager, verb)(*arguments)


def _open(native: Any) -> None:
    """Prepare an open device for use here."""
    if disabled():
        raise CudaSupportError(
            f"CUDA is disabled due to setting {DISABLED}=1 in the environment, or DISABLE_CUDA in numba.config"
        )
    context = state.contexts.get(native.device)
    if context is None:
        device = Device(native.device.ordinal)
        if device.compute_capability < MIN_REQUIRED_CC and nvidia_driver.binding_of(native.device) is not None:
            raise CudaSupportError(f"{device} has compute capability < {MIN_REQUIRED_CC}")
        context = state.contexts[native.device] = Context(device, None)
    context.open(native)
    with native.device.entered():
        context.memory_manager.initialize()


state.set_open_function(_open)


def _use_shareable_memory(native: Any) -> None:
    """Use the driver's own allocations, which other processes can open, unless the user has chosen a memory stack."""
    chosen = len(native.memory.stacks.installed(MemoryKind.DEVICE)) > 1 or os.environ.get("DEVMEM_MEMORY_MANAGER")
    if Capability.IPC in native.handle.capabilities and not chosen:
        devmem.use_memory(devmem.memory.DriverMemory(), native.device)


def disabled() -> bool:
    """Whether the environment or Numba's settings disable CUDA."""
    return switch("DISABLE_CUDA", False)


def _setting(variable: str, kind: Any) -> Any:
    """The value of an environment variable of numba.cuda; None if it, or devmem's own variable, is not to be used."""
    text = os.environ.get(variable)
    if text is None or f"DEVMEM_{variable.removeprefix('NUMBA_CUDA_')}" in os.environ:
        return None
    try:
        return kind(text)
    except ValueError:
        # As in Numba, an invalid value causes a warning, and the default is used.
        warnings.warn(f"{variable}={text!r} is not a number and has no effect", devmem.DevmemWarning, stacklevel=2)
        return None


def _close_ipc(native: Any, address: int) -> None:
    if native.handle.dead is None:
        with native.device.entered() as driver:
            driver.synchronize()
            driver.ipc_close(address)
