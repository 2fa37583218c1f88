"""The pytest plugin: devmem's backends and a leak check as fixtures.

``--devmem-backend NAME`` (may be given several times; ``host`` by default) names the backends that a test with the
fixture ``devmem_backend`` runs on: on the machine's real devices, or, with ``--devmem-emulate NAME``, over that vendor's emulated
driver. Nothing of devmem is imported before a fixture is used, but for that.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .stream_hold import HasHandle, Latch


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("devmem")
    group.addoption(
        "--devmem-backend",
        action="append",
        default=None,
        metavar="NAME",
        help="backend for tests that use the fixture devmem_backend; may be given several times "
        "(default: those that are emulated, else host)",
    )
    group.addoption(
        "--devmem-emulate",
        action="append",
        default=[],
        metavar="NAME",
        help="put an emulated driver in the place of a vendor's, here and in what the tests start: cuda or roc; may be given "
        "several times (default: real devices)",
    )


def pytest_configure(config: pytest.Config) -> None:
    names = config.getoption("--devmem-emulate")
    if not names:
        return
    from . import emulator

    try:
        os.environ.update(emulator.environment(",".join(names)))  # for processes that the tests start
        for name in names:
            emulator.load(name)  # for this one, whose loader has read its variables already
    except emulator.BuildError as error:
        raise pytest.UsageError(f"--devmem-emulate: {error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "devmem_backend" in metafunc.fixturenames:
        option = metafunc.config.getoption
        names = list(dict.fromkeys(option("--devmem-backend") or option("--devmem-emulate") or ["host"]))
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
    from .stream_hold import hold

    return hold


def _in_use() -> int:
    import devmem

    gc.collect()
    devmem.trim()
    info = devmem.memory_info()
    return info.live + info.pending
