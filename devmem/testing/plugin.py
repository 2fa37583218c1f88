"""The pytest plugin: devmem's backends and a leak check as fixtures.

``--devmem-backend NAME`` (may be given several times; ``host`` by default) names the backends that a test with the
fixture ``devmem_backend`` runs on. Nothing of devmem is imported before a fixture is used.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .latch import HasHandle, Latch


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("devmem")
    group.addoption(
        "--devmem-backend",
        action="append",
        default=None,
        metavar="NAME",
        help="backend for tests that use the fixture devmem_backend; may be given several times (default: host)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "devmem_backend" in metafunc.fixturenames:
        names = list(dict.fromkeys(metafunc.config.getoption("--devmem-backend") or ["host"]))
        metafunc.parametrize("devmem_backend", names, indirect=True)


@pytest.fixture
def devmem_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the backend that is in use for this test: each of those chosen on the command line in turn.

    One that was chosen and cannot be used is an error, not a skip.
    """
    import devmem

    with devmem.use_backend(request.param):
        yield request.param


@pytest.fixture
def no_device_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if device memory is still live or waiting to be freed when it ends."""
    if "devmem_backend" in request.fixturenames:
        request.getfixturevalue("devmem_backend")
    before = _in_use()
    yield
    after = _in_use()
    if after > before:
        pytest.fail(
            f"{after - before} bytes of device memory leaked: {before} in use before the test, {after} after it"
        )


@pytest.fixture
def hold() -> Callable[[HasHandle], Latch]:
    """``with hold(stream) as latch``: what is enqueued on the stream waits until ``latch.release()``."""
    from .latch import hold

    return hold


def _in_use() -> int:
    import devmem

    gc.collect()
    devmem.trim()
    info = devmem.memory_info()
    return info.live + info.pending
