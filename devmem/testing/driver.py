"""The conformance suite of a backend: subclass, name the backend, run pytest."""

from __future__ import annotations

from .driver_copies import CopyChecks
from .driver_device import DeviceChecks
from .driver_errors import ErrorChecks
from .driver_events import EventChecks
from .driver_foreign_streams import ForeignStreamChecks
from .driver_graphs import GraphChecks
from .driver_held_copies import HeldCopyChecks
from .driver_host_functions import HostFunctionChecks
from .driver_launch import LaunchChecks
from .driver_memory import MemoryChecks
from .driver_optional import BatchChecks, StreamOrderedChecks, StridedChecks, VolumeBatchChecks
from .driver_sharing import HostMemoryChecks, ManagedChecks, PeerAndIpcChecks, PointerChecks
from .driver_streams import StreamChecks


class DriverTests(
    DeviceChecks,
    MemoryChecks,
    CopyChecks,
    StreamChecks,
    EventChecks,
    StreamOrderedChecks,
    StridedChecks,
    BatchChecks,
    VolumeBatchChecks,
    HeldCopyChecks,
    ForeignStreamChecks,
    GraphChecks,
    HostFunctionChecks,
    LaunchChecks,
    HostMemoryChecks,
    ManagedChecks,
    PeerAndIpcChecks,
    PointerChecks,
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
    stuck_after : float
        Seconds after which a test that has not ended ends the process, with the stacks of all threads; 300.
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
    kernel(driver)
        Code for ``launch``: an image that ``load`` takes, and the name of its function. None, the default: the driver is not
        tested for LAUNCH. The function adds to an array of the device's. In CUDA's words::

            void add(unsigned int *array, unsigned int count, unsigned char step)
            {
                unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
                if (i < count) array[i] += step + blockIdx.x;
            }

    foreign_stream(driver)
        Context manager: a stream that the vendor's library makes without the driver, on the driver's device. It yields what
        ``stream_from`` takes, and a function with which that library waits for the stream: one that releases the GIL, and
        raises if the stream is no more. The block ends after the driver is closed, and ends the stream. None, the default:
        the driver is not tested for FOREIGN_STREAMS.
    wrap(driver)
        Return the driver that the tests use in place of this one, a `FaultyDriver` for example.
    """
