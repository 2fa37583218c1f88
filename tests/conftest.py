"""Settings of the whole suite: the strict host backend, a marker for each folder, bounded property tests."""

import gc
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# Before anything reads a setting. What the caller has set stays: the same suite runs on a GPU with DEVMEM_BACKEND=cuda.
os.environ.setdefault("DEVMEM_BACKEND", "host")
os.environ.setdefault("DEVMEM_HOST_STRICT", "1")
os.environ.setdefault("DEVMEM_HOST_DEVICES", "2")

# An installed devmem brings its plugin by entry point; from a bare checkout it is named here, and never twice.
if not any(entry.name == "devmem" for entry in importlib.metadata.entry_points(group="pytest11")):
    pytest_plugins = ["devmem.testing.plugin"]

FOLDERS = frozenset({"unit", "contract", "property", "integration", "leaks", "docs", "peers"})
#: Folders whose tests go through every case there is (each call of the driver fails once, each verb runs ten thousand times), or
#: run a whole benchmark. `scripts/test` leaves them to `scripts/test --all`.
EXHAUSTIVE = {"leaks", "failures", "emulated", "gpu_check"}
#: Folders, and how files begin, whose tests compute, or compile, all the time: tens of seconds where others want the processors
#: too. They get more of it (in seconds), less than `faulthandler_timeout`.
BUSY, LONG = {"property", "leaks", "emulated", "emulator"}, 140
BUSY_FILES = ("test_emulator_", "test_interrupts")

# No deadline: two slow cores under load are not a bug. Function-scoped fixtures of the leak plugin are meant to span examples.
settings.register_profile(
    "devmem", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
#: The same examples each time: what stands before every change.
settings.register_profile("gate", settings.get_profile("devmem"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("devmem"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "devmem"))
# Some of what is drawn are constants in the source of the modules that are imported by then, which depends on the tests that
# ran before: none are, or the examples would be others with each order.
providers._get_local_constants = providers.Constants


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """What exists by now need not be looked at thousands of times: collections were a third of the suite's time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before tests are selected by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
        if "interrupt" in item.path.stem:
            item.add_marker("interrupts")
        if not BUSY.isdisjoint(folders) or item.path.name.startswith(BUSY_FILES):
            item.add_marker(pytest.mark.timeout(LONG))
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
    thread.join()
    if failed:
        raise failed.pop()
    return True


def pytest_runtest_teardown() -> None:
    assert sys.exc_info()[1] is None, "the test has left an exception behind: mark it with own_thread"


@pytest.fixture
def at_point() -> Callable[..., Any]:
    """``with at_point(number, watched):`` interrupts the block at one point; a third argument is called there instead."""
    name = "devmem_tests_interrupts"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "helpers" / "interrupts.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    helper = sys.modules[name]
    return lambda number, watched, action=helper.interrupt: helper.AtPoint(number, action, watched)


@pytest.fixture
def line_of() -> Callable[[Callable[..., object], str], int]:
    """``line_of(function, text)``: the number of the one line of a function that has the text in it."""

    def find(function: Callable[..., object], text: str) -> int:
        lines, first = inspect.getsourcelines(function)
        [at] = [number for number, line in enumerate(lines) if text in line]
        return first + at

    return find
