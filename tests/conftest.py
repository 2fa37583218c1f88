"""Settings of the whole suite: the strict host backend, a marker for each folder, bounded property tests."""

import contextlib
import ctypes
import gc
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import campaign
import interrupts
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from waits import patience

# Before anything reads a setting. What the caller has set stays: the same suite runs on a GPU with DEVMEM_BACKEND=cuda.
os.environ.setdefault("DEVMEM_BACKEND", "host")
os.environ.setdefault("DEVMEM_HOST_STRICT", "1")
os.environ.setdefault("DEVMEM_HOST_DEVICES", "2")

# Some tests want a process to crash: the core file would hold the memory of its devices, gigabytes that take minutes to write.
with contextlib.suppress(ImportError):  # Windows
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

# An installed devmem brings its plugin by entry point; from a bare checkout it is named here, and never twice.
if not any(entry.name == "devmem" for entry in importlib.metadata.entry_points(group="pytest11")):
    pytest_plugins = ["devmem.testing.plugin"]

FOLDERS = frozenset({"unit", "contract", "property", "fuzz", "integration", "leaks", "docs", "peers"})
#: Folders whose tests go through every case there is (each call of the driver fails once, each verb runs ten thousand times), or
#: run a whole benchmark. `scripts/test` leaves them to `scripts/test --all`.
EXHAUSTIVE = {"leaks", "failures", "emulated", "gpu_check"}
#: Folders, and how files begin, whose tests compute, or compile, all the time, or start a browser: tens of seconds where others
#: want the processors too. They get more of it (in seconds), less than `faulthandler_timeout`.
BUSY, LONG = {"property", "fuzz", "leaks", "emulated", "emulator", "browser"}, 300
BUSY_FILES = ("test_emulator_", "test_interrupts", "test_schedules")

# No deadline: two slow cores under load are not a bug. Function-scoped fixtures of the leak plugin are meant to span examples.
settings.register_profile(
    "devmem", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
#: The same examples each time, and fewer than with `scripts/test --all`: what stands before every change.
settings.register_profile("gate", settings.get_profile("devmem"), derandomize=True, max_examples=50)
settings.register_profile("thorough", settings.get_profile("devmem"), max_examples=1000)
#: What `scripts/campaign fuzz` runs again and again: other examples each time, from its seeds.
settings.register_profile(
    "campaign", settings.get_profile("devmem"), max_examples=200, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "devmem"))
# Some of what is drawn are constants in the source of the modules that are imported by then, which depends on the tests that
# ran before: none are, or the examples would be others with each order.
providers._get_local_constants = providers.Constants


def pytest_configure() -> None:
    import lock_order  # which imports devmem

    lock_order.install()


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """What exists by now need not be looked at thousands of times: collections were a third of the suite's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def own_memory() -> Iterator[None]:
    """Memory that a file's tests have installed for a whole device would serve all later tests, which may wait as it is freed."""
    yield
    if (devices := sys.modules.get("devmem._core.device.opening")) is None:
        return
    stacks = [(each, each.memory.stacks) for each in devices.open_devices()]
    left = [(each, of.heap) for each, of in stacks if of.heap is not of._installed["device"][0]]
    # The drop-in for numba.cuda chooses plain memory for a device that it opens: other processes can open that.
    told = [text for _, heap in left if not (text := repr(heap.resource)).startswith("DriverMemory(")]
    for each, _ in left:
        each.close("was left with memory that a test has installed")
    assert told == [], "tests have left memory installed: close the device, or take it back"


@pytest.hookimpl(tryfirst=True)  # before tests are selected by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = campaign.drawn(items)
    here = Path(__file__).parent
    smoke: dict[Path, pytest.Item] = {}
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        folders = item.path.relative_to(here).parts[:-1]
        if folders and folders[0] in FOLDERS:
            item.add_marker(folders[0])
        if not EXHAUSTIVE.isdisjoint(folders):
            item.add_marker("exhaustive")
        if {"every_backend", "compat"} <= set(folders):
            item.add_marker("translation")
        if "interrupt" in item.path.stem:
            item.add_marker("interrupts")
        if not BUSY.isdisjoint(folders) or item.path.name.startswith(BUSY_FILES):
            item.add_marker(pytest.mark.timeout(LONG))
        set_limit(item)
        races = item.get_closest_marker("races")
        if races is not None and os.environ.get("DEVMEM_RACES") == "1":
            item.add_marker(pytest.mark.skip(reason=f"races are looked for: {races.args[0]}"))
        if is_slow(item):
            continue
        if folders[:1] == ("unit",) and "house" not in folders:
            item.add_marker("quick")
        elif "every_backend" in folders:
            smoke[item.path] = min(
                item, smoke.get(item.path, item), key=lambda each: (each.location[1] or 0, each.name)
            )
    for item in smoke.values():  # the first test of each file, in whatever order they run
        item.add_marker("quick")


def set_limit(item: pytest.Item) -> None:
    """Let a test take as long as this machine's patience is; what it waits for itself has the same factor."""
    marker, config = item.get_closest_marker("timeout"), item.config
    limit = patience(float(marker.args[0] if marker else config.getoption("timeout") or config.getini("timeout")))
    last = float(config.getini("faulthandler_timeout"))
    if 0 < last <= limit:
        raise pytest.UsageError(
            f"{item.nodeid} may take {limit:g} s, but the process ends after {last:g} s: "
            f"run pytest with -o faulthandler_timeout={limit + 30:g}"
        )
    item.add_marker(pytest.mark.timeout(limit), append=False)


def is_slow(item: pytest.Item) -> bool:
    """Whether a test starts processes, or its file does, or draws examples: then it is not quick."""
    names = vars(getattr(item, "module", None) or pytest).keys()
    return bool({"subprocess", "given"} & names or {"python", "pytester"} & set(getattr(item, "fixturenames", ())))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked so on a thread of its own.

    An exception that a trace function raises in the middle of an ``except`` or ``with`` is left behind as the one that the thread
    is handling, for good. Every later error of the thread would refer to it.
    """
    if pyfuncitem.get_closest_marker("own_thread") is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    failed: list[BaseException] = []

    def run() -> None:
        try:
            pyfuncitem.obj(**arguments)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        thread.join()
    except BaseException:  # the time limit: the test ends too, or what it has replaced would meet all later tests
        for _ in range(50):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
            thread.join(0.1)
            if not thread.is_alive():
                raise
        pytest.exit(f"the thread of {pyfuncitem.nodeid} runs on after its time limit", returncode=3)
    if failed:
        raise failed.pop()
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    import lock_order

    result = yield
    wrong, lock_order.noted = lock_order.noted, []
    assert not wrong, "\n".join(wrong)
    return result


@pytest.hookimpl(specname="pytest_runtest_teardown")
def no_exception_is_left() -> None:
    assert sys.exc_info()[1] is None, "the test has left an exception behind: mark it with own_thread"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Look at the order of locks, but where the test raises between any two lines, or calls devmem there."""
    import lock_order

    asks = "at_point" in getattr(item, "fixturenames", ())
    lock_order.is_looking = not asks and not any(map(item.get_closest_marker, ("interrupts", "comes_between")))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """A stream, a device or memory that a test leaves in force would change later tests, in one order and not in another."""
    from devmem._core.ordering.stream import place
    from devmem._core.stacks.installed import stacks_of_blocks
    from devmem.kernels.simulation import in_force

    scopes = (place, stacks_of_blocks, in_force)
    before = [(each, each.get(), each.blocks.get(), each.chosen.choice) for each in scopes]
    result = yield
    left = {each.name: each.get() for each, value, *_ in before if each.get() is not value}
    for each, _, blocks, chosen in before:
        each.blocks.set(blocks)
        each._changing(True)
        each.chosen.choice = chosen
        each._changing(False)
    assert not left, f"the test has left in force: {left}"
    return result


@pytest.fixture
def at_point(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``with at_point(number, watched):`` interrupts the block at one point; a third argument is called there instead.

    An interrupt that comes into a finalizer is dropped: who keeps Python's report of it keeps the arrays of its frames.
    """
    report = sys.unraisablehook

    def tell(unraisable: Any) -> None:
        if unraisable.exc_type not in interrupts.INTERRUPTS:
            report(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", tell)
    return lambda number, watched, action=interrupts.interrupt: interrupts.AtPoint(number, action, watched)


@pytest.fixture
def line_of() -> Callable[[Callable[..., object], str], int]:
    """``line_of(function, text)``: the number of the one line of a function that has the text in it."""

    def find(function: Callable[..., object], text: str) -> int:
        lines, first = inspect.getsourcelines(function)
        [at] = [number for number, line in enumerate(lines) if text in line]
        return first + at

    return find
