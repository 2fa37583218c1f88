"""cuda.core: its memory resources as ours, and our stack as one of them.

Both sides name the stream of every allocation and of every deallocation.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..spi.driver import Driver
from ..spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from .foreign_resource import ForeignResource, load
from .lent_blocks import LentBlocks

INSTALL = "cuda-core"

#: cuda.core's resources over the driver's stream-ordered pools. Of others it is not known that they do not wait, or need not.
ORDERED = ("DeviceMemoryResource", "ManagedMemoryResource")


class CudaCoreMemory(ForeignResource):
    """Memory from a resource of cuda.core.

    Parameters
    ----------
    resource : cuda.core.MemoryResource, optional
        Where Buffers come from; the resource of the device, ``cuda.core.Device(ordinal).memory_resource``, if not given.
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
        """Whether the resource takes memory back that work on the stream still uses."""
        return any(kind.__name__ in ORDERED for kind in type(self.resource).__mro__)

    def _open(self, driver: Driver) -> None:
        core = self._load("cuda.core")
        if self.resource is None:
            self._check_default(driver)
            device = core.Device(driver.info.ordinal)
            device.set_current()  # the primary context, which is current already: only cuda.core has to be told
            self.resource = device.memory_resource
        self._core = core

    def _take(self, nbytes: int, stream: int) -> tuple[object, object]:
        buffer = self.resource.allocate(nbytes, stream=self._stream(stream))
        return buffer.handle, buffer

    def _give(self, ptr: int, nbytes: int, stream: int, home: int, owner: object) -> None:
        owner.close(self._stream(stream))  # type: ignore[attr-defined]

    def _ran_out(self, error: Exception) -> bool:
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
        Whose memory stack; the current device's, if not given.

    Raises
    ------
    BackendUnavailable
        cuda.core is not installed.
    """
    return _resource_class()(LentBlocks(device))


@cache
def _resource_class() -> Any:
    core: Any = load("cuda.core", INSTALL, "devmem.adapters.cuda_core.memory_resource()")
    base: Any = core.MemoryResource

    class DevmemMemoryResource(base):  # type: ignore[misc]
        """Buffers from devmem's memory stack."""

        def __init__(self, loans: LentBlocks) -> None:
            self.loans = loans

        def allocate(self, size: int, *, stream: Any = None) -> Any:
            """A Buffer for work on the stream, the legacy default stream if none is given."""
            stream = core.LEGACY_DEFAULT_STREAM if stream is None else stream
            ptr = self.loans.lend(size, _handle(stream))
            try:
                return _buffer(core, ptr, size, self, stream)
            except BaseException:
                self.loans.take_back(ptr, _handle(stream))
                raise

        def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
            """Called by the Buffer that owns the memory, when it is closed or dropped."""
            self.loans.take_back(int(ptr), LEGACY_STREAM if stream is None else _handle(stream))

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
            return self.loans.device.ordinal

    return DevmemMemoryResource


def _buffer(core: Any, ptr: int, size: int, resource: Any, stream: Any) -> Any:
    return core.Buffer.from_handle(ptr, size, mr=resource, stream=stream)


def _handle(stream: Any) -> int:
    return int(stream.__cuda_stream__()[1])
