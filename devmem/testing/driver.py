"""The conformance suite of a backend: subclass, name the backend, run pytest."""

from __future__ import annotations

from .driver_copies import CopyChecks
from .driver_device import DeviceChecks
from .driver_errors import ErrorChecks
from .driver_events import EventChecks
from .driver_host_functions import HostFunctionChecks
from .driver_memory import MemoryChecks
from .driver_optional import BatchChecks, StreamOrderedChecks, StridedChecks, VolumeChecks
from .driver_sharing import HostMemoryChecks, ManagedChecks, PeerAndIpcChecks
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
    PeerAndIpcChecks,
    ErrorChecks,
):
    """The requirements of `devmem.spi.driver`, as tests.

    ::

        class TestMyDriver(DriverTests):
            def make_backend(self):
                return MyBackend()

    pytest collects classes whose names begin with ``Test``, so it runs the subclass and not this class. Each test opens
    and closes its own driver. A test of an optional capability is skipped where the device lacks it. Tests of asynchrony
    need the capability HOLD: without it a driver is tested for results only.

    Attributes
    ----------
    ordinal : int
        The device under test; 0.
    strict : bool
        Set it if your driver raises an error for wrong calls; ``checks_handles`` and ``checks_addresses`` make
        exceptions.

    Methods
    -------
    make_backend()
        The backend; called for each test.
    peek(driver, ptr, nbytes)
        Read device memory without the driver; by default the tests read it by a copy.
    current()
        Ask the vendor's library which device is current on this thread; default NotImplemented.
    wrap(driver)
        Return the driver that the tests use in place of this one, a `FaultyDriver` for example.
    """
