"""Waiting for the device beside threads that make graphs: `devmem.toolkit.graphs`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from devmem.spi.errors import UnsupportedError
from devmem.spi.types import Capability
from devmem.toolkit.driver_parts import DriverState
from devmem.toolkit.graphs import Graphs
from devmem.toolkit.handles import Handles
from devmem.toolkit.vendor_functions import RelaxedCapture, StatusErrors, VendorFunctions


@pytest.fixture
def made():
    """Graphs of a device with one stream, and the driver that says whether a graph is captured on it."""

    def bind(name):
        raise AssertionError(f"{name} is not called")

    errors = StatusErrors("test", lambda status: ("ERROR", "an error"), ())
    streams = Handles(int)
    state = DriverState(0, VendorFunctions("", bind, bind), errors, RelaxedCapture(None), streams, Handles(int))
    driver = SimpleNamespace(info=SimpleNamespace(capabilities={Capability.CAPTURE}))
    stream = streams.add(7)
    return Graphs(state, driver), driver, stream


def test_the_device_is_not_waited_for_while_another_library_captures_a_stream(made):
    graphs, driver, _ = made
    driver.capturing = lambda stream: True
    with pytest.raises(UnsupportedError, match="is capturing a graph"):
        graphs.synchronize(lambda: pytest.fail("it is waited for"))


def test_a_graph_that_is_made_meanwhile_is_not_taken_for_another_librarys_capture(made):
    graphs, driver, stream = made
    waited = []

    def capturing(asked):
        """Be asked while another thread makes a graph: begun behind the look at those that are made, over before the next one."""
        graphs.graph_create([], stream)
        return True

    driver.capturing = capturing
    graphs.synchronize(lambda: waited.append(True))
    assert waited == [True]


def test_the_vendor_destroys_no_stream_that_is_asked(made):
    """Some libraries read the memory behind a handle without a check: the process would end."""
    graphs, driver, stream = made
    destroyed, streams = [], graphs._streams

    def capturing(asked):
        streams.end(
            asked, lambda record, handle: destroyed.append(handle)
        )  # as another thread, or a signal's handler, does
        assert not destroyed and asked not in streams
        return False

    driver.capturing = capturing
    graphs.synchronize(lambda: None)
    assert destroyed == [stream]
