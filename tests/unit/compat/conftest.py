"""The drop-ins install memory for the whole device when they are first used."""

from collections.abc import Iterator

import pytest

import devmem as dm


@pytest.fixture(scope="module", autouse=True)
def closed_afterwards() -> Iterator[None]:
    """Devices are closed when the tests of a file have run."""
    yield
    dm.close()
