"""cuda.core: its memory resources for devmem, and devmem's memory stack as one of them.

Both libraries name the stream of every allocation and deallocation.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..spi.driver import Driver
from ..spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from .foreign_resource import ForeignResource, import_library
from .lent_blocks import LentBlocks

INSTALL = "cuda-core"

#: cuda.core's resources over the driver's stream-ordered pools; others are treated as not stream-ordered.
ORDERED = ("DeviceMemoryResource", "ManagedMemoryResource")


class CudaCoreMemory(ForeignResource):
    """Memory from a resource of cuda.core.

    Parameters
    ----------
    resource : cuda.core.MemoryResource, optional
        The source of Buffers; by default the device's own, ``cuda.core.Device(ordinal).memory_resource``.
    """

    install = INSTALL

    def __init__(self, resource: Any = None) -> None:
        super().__init__()
        self.resource = resource
        self._core: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.resource!r})"

    @property
    def stream_ordered(self) -> bool:  # type: ignore[override]
        """Whether memory may be returned to the resource while work on the stream still uses it."""
        return any(kind.__name__ in ORDERED for kind in type(self.resource).__mro__)

    def _open(self, driver: Driver) -> None:
        core = self._load("cuda.core")
        if self.resource is None:
            self._check_default(driver)
            device = core.Device(driver.info.ordinal)
            device.set_current()  # the primary context is current already, but cuda.core has to know
            self.resource = device.memory_resource
        self._core = core

    def _acquire(self, nbytes: int, stream: int) -> tuple[object, object]:
        buffer = self.resource.allocate(nbytes, stream=self._stream(stream))
        return buffer.handle, buffer

    def _release(self, ptr: int, nbytes: int, stream: int, home: int, owner: object) -> None:
        owner.close(self._stream(stream))  # type: ignore[attr-defined]

    def _is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, MemoryError) or "CUDA_ERROR_OUT_OF_MEMORY" in str(error)

    def _stream(self, handle: int) -> Any:
        if handle == LEGACY_STREAM:
            return self._core.LEGACY_DEFAULT_STREAM
        if handle == PER_THREAD_STREAM:
            return self._core.PER_THREAD_DEFAULT_STREAM
        return self._core.Stream.from_handle(handle)


def memory_resource(device: Any = None) -> Any:
    """Make a ``cuda.core.MemoryResource`` that allocates from a device's devmem memory stack.

    Give it to ``cuda.core.Device(ordinal).memory_resource``, or call its ``allocate(size, stream=...)``.

    Parameters
    ----------
    device : Device, int or str, optional
        The device whose memory stack to use; by default the current one.

    Raises
    ------
    BackendUnavailable
        cuda.core is not installed.
    """
    return _resource_class()(LentBlocks(device))


@cache
def _resource_class() -> Any:
    core: Any = import_library("cuda.core", INSTALL, "devmem.adapters.cuda_core.memory_resource()")
    base: Any = core.MemoryResource

    class DevmemMemoryResource(base):  # type: ignore[misc]
        """Buffers from devmem's memory stack."""

        def __init__(self, lent: LentBlocks) -> None:
            self.lent = lent

        def allocate(self, size: int, *, stream: Any = None) -> Any:
            """A Buffer for work on the stream, by default the legacy default stream."""
            stream = core.LEGACY_DEFAULT_STREAM if stream is None else stream
            ptr = self.lent.lend(size, _handle(stream))
            try:
                return _buffer(core, ptr, size, self, stream)
            except BaseException:
                self.lent.take_back(ptr, _handle(stream))
                raise

        def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
            """Called by the owning Buffer when it is closed or dropped."""
            self.lent.take_back(int(ptr), LEGACY_STREAM if stream is None else _handle(stream))

        @property
        def is_device_accessible(self) -> bool:
            """True."""
            return True

        @property
        def is_host_accessible(self) -> bool:
            """False."""
            return False

        @property
        def device_id(self) -> int:
            """The device's ordinal."""
            return self.lent.device.ordinal

    return DevmemMemoryResource


def _buffer(core: Any, ptr: int, size: int, resource: Any, stream: Any) -> Any:
    return core.Buffer.from_handle(ptr, size, mr=resource, stream=stream)


def _handle(stream: Any) -> int:
    return int(stream.__cuda_stream__()[1])
