"""Property tests run the same examples each time, so that a red build is red again; HYPOTHESIS_PROFILE=thorough digs deeper."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import devmem as dm
from devmem.spi.types import Capability
from devmem.testing import emulator, hold

settings.register_profile(
    "property",
    settings.get_profile("devmem"),
    derandomize=True,
    database=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
if "HYPOTHESIS_PROFILE" not in os.environ:
    settings.load_profile("property")

#: Microseconds: what a stream is held for, and what each operation waits besides, where the driver is emulated.
LATENESS = st.tuples(
    st.sampled_from([0, 0, 100, 1000]), st.sampled_from([0, 30]), st.sampled_from([0, 100]), st.integers(0, 999)
)


@pytest.fixture(scope="session")
def late() -> Callable[[Any, Any], contextlib.AbstractContextManager[None]]:
    """``with late(stream, data):`` what is enqueued in the block begins late, as chance has it.

    Only then does a missing wait show.
    """
    return _late


@contextlib.contextmanager
def _late(stream: Any, data: Any) -> Iterator[None]:
    held_for, delay, jitter, seed = data.draw(LATENESS)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(emulator.EmulatorNotLoaded):
            control = emulator.control()
            control.delay(delay, jitter, seed)
            stack.callback(control.delay, 0)
        if held_for and Capability.HOLD in dm.current_device().info.capabilities:
            # It opens by itself: what waits for the stream, as it may, goes on then.
            stack.enter_context(hold(stream or dm.legacy_default_stream(), patience=held_for / 1e6, tolerant=True))
        yield
