"""RAPIDS Memory Manager: its resources for devmem, and devmem's memory stack as a callback resource of RMM.

RMM's resources and streams are C++ objects behind Python ones. Every call names its stream, so both directions are stream-ordered
if the underlying resource is.
"""

from __future__ import annotations

from typing import Any

from ..spi.driver import Driver
from .foreign_resource import ForeignResource, Handle, import_library
from .lent_blocks import LentBlocks

INSTALL = "rmm-cu13"

#: RMM's resources that order the reuse of memory by stream. An adaptor is ordered if its upstream resource is.
ORDERED = ("CudaAsyncMemoryResource", "CudaAsyncViewMemoryResource", "PoolMemoryResource", "ArenaMemoryResource")


class RMMMemory(ForeignResource):
    """Memory from a resource of RMM.

    Parameters
    ----------
    resource : rmm.mr.DeviceMemoryResource, optional
        Any of RMM's resources for the device that uses this one; by default the resource that RMM has for the device when this
        one is bound.
    """

    install = INSTALL

    def __init__(self, resource: Any = None) -> None:
        super().__init__()
        self.resource = resource
        self._stream: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.resource!r})"

    @property
    def stream_ordered(self) -> bool:  # type: ignore[override]
        """Whether memory may be returned to RMM's resource while work on the stream still uses it."""
        return _ordered(self.resource)

    def _open(self, driver: Driver) -> None:
        mr, streams = self._load("rmm.mr"), self._load("rmm.pylibrmm.stream")
        if self.resource is None:
            self._check_default(driver)
            self.resource = mr.get_per_device_resource(driver.info.ordinal)
        self._stream = streams.Stream

    def _acquire(self, nbytes: int, stream: int) -> tuple[object, object]:
        # The resource owns the block: RMM may replace its current resource while the block is allocated.
        return self.resource.allocate(nbytes, self._stream(Handle(stream))), self.resource

    def _release(self, ptr: int, nbytes: int, stream: int, home: int, owner: object) -> None:
        owner.deallocate(ptr, nbytes, self._stream(Handle(stream)))  # type: ignore[attr-defined]


def callback_resource(device: Any = None) -> Any:
    """Make an ``rmm.mr.CallbackMemoryResource`` that allocates from a device's devmem memory stack.

    Install it with ``rmm.mr.set_per_device_resource(ordinal, resource)``, or under RMM's adaptors. Its memory counts in
    ``devmem.memory_info()``; when memory runs out, RMM raises MemoryError.

    Parameters
    ----------
    device : Device, int or str, optional
        The device whose memory stack to use; by default the current one. RMM must use the resource for the same device.

    Raises
    ------
    BackendUnavailable
        RMM is not installed.
    """
    mr = import_library("rmm.mr", INSTALL, "devmem.adapters.rmm.callback_resource()")
    lent = LentBlocks(device)

    def allocate(nbytes: int, stream: Any) -> int:
        return lent.lend(nbytes, stream.__cuda_stream__()[1])

    def deallocate(ptr: int, nbytes: int, stream: Any) -> None:
        # RMM's C++ cannot pass on an exception here: it would surface as a SystemError in an unrelated call.
        lent.take_back_or_warn(ptr, stream.__cuda_stream__()[1], "RMM")

    return mr.CallbackMemoryResource(allocate, deallocate)


def _ordered(resource: Any) -> bool:
    while resource is not None:
        if type(resource).__name__ in ORDERED:
            return True
        below = getattr(resource, "get_upstream", None)
        resource = below() if below is not None else None
    return False
