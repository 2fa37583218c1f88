"""The conformance suite of a backend: subclass, name the backend, run pytest."""

from __future__ import annotations

from .driver_copies import CopyChecks
from .driver_device import DeviceChecks
from .driver_errors import ErrorChecks
from .driver_events import EventChecks
from .driver_host_functions import HostFunctionChecks
from .driver_memory import MemoryChecks
from .driver_optional import BatchChecks, StreamOrderedChecks, StridedChecks, VolumeChecks
from .driver_sharing import HostMemoryChecks, ManagedChecks, NeighbourChecks
from .driver_streams import StreamChecks


class DriverTests(
    DeviceChecks,
    MemoryChecks,
    CopyChecks,
    StreamChecks,
    EventChecks,
    StreamOrderedChecks,
    StridedChecks,
    VolumeChecks,
    BatchChecks,
    HostFunctionChecks,
    HostMemoryChecks,
    ManagedChecks,
    NeighbourChecks,
    ErrorChecks,
):
    """Everything that `devmem.spi.driver` says, as tests.

    ::

        class TestMyDriver(DriverTests):
            def make_backend(self):
                return MyBackend()

    pytest collects classes by their prefix, so it runs the subclass and not this class. Each test opens, enters and
    closes a driver of its own. What the device cannot do is skipped, with the capability that it lacks. Asynchrony is
    tested with the capability HOLD and nothing else: a driver without it is tested for results alone.

    Attributes
    ----------
    ordinal : int
        The device under test; 0.
    strict : bool
        Wrong calls are promised to fail cleanly. Set it where your driver checks its arguments; ``checks_handles`` and
        ``checks_addresses`` narrow it.

    Methods
    -------
    make_backend()
        The backend; called for each test.
    peek(driver, ptr, nbytes)
        Device memory by a side door; default None, read it by a copy.
    current()
        What the vendor says is current on this thread, by a side door; default NotImplemented.
    wrap(driver)
        Put something between the tests and the driver, `FaultyDriver` say.
    """
