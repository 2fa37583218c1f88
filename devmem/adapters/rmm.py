"""RAPIDS Memory Manager: its resources as ours, and our stack as a callback resource.

RMM's resources and streams are C++ objects behind Python ones; every verb takes its stream explicitly, so both directions are
stream-ordered wherever the resource underneath is.
"""

from __future__ import annotations

from typing import Any

from ..spi.driver import Driver
from .foreign_resource import ForeignResource, Handle, load
from .lent_blocks import LentBlocks

INSTALL = "rmm-cu13"

#: RMM's resources that order the reuse of memory by stream. Those that stand over another are as it is.
ORDERED = ("CudaAsyncMemoryResource", "CudaAsyncViewMemoryResource", "PoolMemoryResource", "ArenaMemoryResource")


class RMMMemory(ForeignResource):
    """Memory from a resource of RMM.

    Parameters
    ----------
    resource : rmm.mr.DeviceMemoryResource, optional
        Any of RMM's resources, made for the device on which this one is used; RMM's current resource of that device, as it is
        when this one is bound, if not given.
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
        """Whether RMM's resource takes memory back that work on the stream still uses."""
        return _ordered(self.resource)

    def _open(self, driver: Driver) -> None:
        mr, streams = self._load("rmm.mr"), self._load("rmm.pylibrmm.stream")
        if self.resource is None:
            self._check_default(driver)
            self.resource = mr.get_per_device_resource(driver.info.ordinal)
        self._stream = streams.Stream

    def _take(self, nbytes: int, stream: int) -> tuple[object, object]:
        # The resource itself is what keeps the block alive: it may be replaced in RMM while the block is out.
        return self.resource.allocate(nbytes, self._stream(Handle(stream))), self.resource

    def _give(self, ptr: int, nbytes: int, stream: int, home: int, owner: object) -> None:
        owner.deallocate(ptr, nbytes, self._stream(Handle(stream)))  # type: ignore[attr-defined]


def callback_resource(device: Any = None) -> Any:
    """Make an ``rmm.mr.CallbackMemoryResource`` that allocates from a device's devmem memory stack.

    Install it with ``rmm.mr.set_per_device_resource(ordinal, resource)``, or put RMM's adaptors on top of it. Its memory is
    devmem's: it counts in ``devmem.memory_info()``, and running out of it raises MemoryError in RMM.

    Parameters
    ----------
    device : Device, int or str, optional
        Whose memory stack; the current device's, if not given. RMM must use the resource for the same device.

    Raises
    ------
    BackendUnavailable
        RMM is not installed.
    """
    mr = load("rmm.mr", INSTALL, "devmem.adapters.rmm.callback_resource()")
    loans = LentBlocks(device)

    def allocate(nbytes: int, stream: Any) -> int:
        return loans.lend(nbytes, stream.__cuda_stream__()[1])

    def deallocate(ptr: int, nbytes: int, stream: Any) -> None:
        # RMM's C++ cannot carry an exception here: it would surface as a SystemError of whatever comes next.
        loans.take_back_or_tell(ptr, stream.__cuda_stream__()[1], "RMM")

    return mr.CallbackMemoryResource(allocate, deallocate)


def _ordered(resource: Any) -> bool:
    while resource is not None:
        if type(resource).__name__ in ORDERED:
            return True
        below = getattr(resource, "get_upstream", None)
        resource = below() if below is not None else None
    return False
