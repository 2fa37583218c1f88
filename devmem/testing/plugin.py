"""The pytest plugin: fixtures for devmem's backends and for a leak check.

``--devmem-backend NAME`` (repeatable; ``host`` by default) names the backends on which a test with the fixture
``devmem_backend`` runs: on real devices, or, with ``--devmem-emulate NAME``, on that vendor's emulated driver. Without
``--devmem-emulate``, devmem is imported when a test first uses a fixture.

``--devmem-simulate`` has ``numba.cuda`` be devmem's drop-in on the host backend, for tests and code under test that are not
changed. ``--simulate`` is the same, except in a project that has an option of that name.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from devmem.spi.sizes import exact_size

if TYPE_CHECKING:
    from .stream_hold import HasHandle, StreamHold

#: A file descriptor of standard error that pytest's capturing leaves alone: for stacks, as the process ends.
STANDARD_ERROR = pytest.StashKey[int]()


SIMULATE, SHORT = "--devmem-simulate", "--simulate"


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
        help="replace a vendor's driver by an emulated one, in this process and in those that the tests start: cuda or roc; "
        "may be given several times (default: real devices)",
    )
    group.addoption(
        SIMULATE,
        action="store_true",
        help=f"{SHORT}, too: run code for numba.cuda, unchanged, without a GPU: here and in processes that the tests start "
        "numba.cuda and numba_cuda_mlir.cuda are devmem's drop-in, whose simulator runs the kernels",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Before conftest files, which may import what is simulated; then add the option's short name, if it is free."""
    known = early_config.known_args_namespace
    if known.devmem_simulate or SHORT in args:
        _simulate(known.devmem_emulate)
    found = yield
    try:
        free = SHORT in parser.parse_known_and_unknown_args([SHORT])[1]
    except pytest.UsageError:  # the project's takes a value
        free = False
    if free:
        parser.getgroup("devmem").addoption(SHORT, action="store_true", dest="devmem_simulate", help=f"as {SIMULATE}")
    elif SHORT in args:
        raise pytest.UsageError(
            f"{SHORT} is an option of this project and of devmem's plugin: give {SIMULATE} for devmem's, or "
            f"-p no:devmem for the project's"
        )
    return found


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say once what is simulated."""
    if config.getoption(SIMULATE):
        return "devmem: numba.cuda and numba_cuda_mlir.cuda are simulated on the host, without a GPU"
    return None


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(SIMULATE):  # again where a conftest file brings this plugin
        _simulate(config.getoption("--devmem-emulate"))
    copy = config.stash[STANDARD_ERROR] = os.dup(2)  # while nothing is captured yet
    config.add_cleanup(lambda: os.close(copy))
    names = config.getoption("--devmem-emulate")
    if not names:
        return
    from . import emulator

    try:
        os.environ.update(emulator.environment(",".join(names)))  # for processes that the tests start
        for name in names:
            emulator.load(name)  # for this process, whose loader has already read its variables
    except emulator.BuildError as error:
        raise pytest.UsageError(f"--devmem-emulate: {error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "devmem_backend" in metafunc.fixturenames:
        option = metafunc.config.getoption
        names = list(dict.fromkeys(option("--devmem-backend") or option("--devmem-emulate") or ["host"]))
        metafunc.parametrize("devmem_backend", names, indirect=True)


@pytest.fixture
def devmem_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the backend of this test, which runs once for each backend chosen on the command line.

    A chosen backend that is not available is an error, not a skip.
    """
    import devmem

    with devmem.use_backend(request.param):
        yield request.param


@pytest.fixture
def no_device_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if more device memory is live or waiting to be freed after it than before."""
    if "devmem_backend" in request.fixturenames:
        request.getfixturevalue("devmem_backend")
    before = _in_use()
    yield
    after = _in_use()
    if after > before:
        pytest.fail(
            f"{exact_size(after - before)} of memory leaked: {exact_size(before)} in use before the test, "
            f"{exact_size(after)} after it"
        )


@pytest.fixture
def hold() -> Callable[[HasHandle], StreamHold]:
    """``with hold(stream) as held``: work enqueued on the stream waits until ``held.release()``."""
    from .stream_hold import hold

    return hold


def _simulate(emulated: list[str]) -> None:
    from .. import simulate

    if emulated:
        raise pytest.UsageError(
            f"{SIMULATE} runs kernels on the host, and --devmem-emulate {emulated[0]} elsewhere: give one"
        )
    try:
        simulate.start()
    except RuntimeError as error:
        raise pytest.UsageError(f"{SIMULATE}: {error}: give `devmem simulate -- pytest` instead") from None


def _in_use() -> int:
    import devmem

    gc.collect()
    devmem.trim()
    info = devmem.memory_info()
    return info.live + info.pending + info.host.live + info.host.pending
