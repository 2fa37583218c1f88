"""Stacks as text, for every kind of memory, from the environment and by plugins; what is said when memory runs out."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import gc
import re
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from waits import blocked, patience, together

import devmem as dm
from devmem import memory, plugins
from devmem._core.stacks.installed import MemoryScope
from devmem.spi.types import Capability
from devmem.testing import FaultyBackend, FaultyDriver

pytestmark = pytest.mark.usefixtures("tidy")

HOST_KINDS = {"pinned": dm.pinned_array, "mapped": dm.mapped_array, "managed": dm.managed_array}
BOTTOM = {"pinned": memory.PinnedMemory, "mapped": memory.MappedMemory, "managed": memory.ManagedMemory}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``package(source)`` writes a module that can be imported, and gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def write(source: str) -> str:
        name = f"allocator_{len(made)}_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(source)
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


MINE = """
from devmem.memory import DriverMemory

class Mine:
    def __init__(self, upstream=None, size=""):
        self.upstream = upstream or DriverMemory()
        self.size = size
    def bind(self, driver):
        self.upstream.bind(driver)
    def allocate(self, nbytes, stream):
        return self.upstream.allocate(nbytes, stream)
    def deallocate(self, ptr, nbytes, stream):
        self.upstream.deallocate(ptr, nbytes, stream)
"""


# -- text --------------------------------------------------------------------------------------------------------------


def test_a_stack_is_written_outermost_first():
    with dm.use_memory(" limit:4GiB , statistics:owners, guard:512;quarantine_bytes=1MiB ,driver") as stack:
        assert repr(stack).startswith("Limit(Statistics(Guard(DriverMemory(")
        assert stack.max_bytes == 4 << 30
        guard = stack.upstream.upstream
        assert (guard.redzone, guard.quarantine_bytes) == (512, 1 << 20)
        array = dm.to_device(np.arange(100))
        assert stack.upstream.current_bytes == 800
        assert array.tolist() == list(range(100))
        array.free()
        assert stack.upstream.current_bytes == 0
        dm.trim()


def test_what_a_text_does_not_say_is_what_suits_the_device(device):
    suits = memory.StreamOrderedMemory if "stream_ordered" in device.info.capabilities else memory.DriverMemory
    if device.info.default_memory:
        pytest.skip(f"{device} has a default of its own")
    with dm.use_memory("statistics") as stack:
        assert type(stack.upstream) is suits
        dm.zeros(3).free()
        assert stack.total_count == 1


def test_a_backend_may_say_what_suits_its_device(devmem_backend):
    class Opinionated(FaultyBackend):
        def open(self, ordinal):
            driver = super().open(ordinal)
            driver._info = dataclasses.replace(driver.info, default_memory="statistics,driver")
            return driver

    dm.close()
    dm.register_backend(Opinionated(plugins.registry.backend(devmem_backend).backend, "opinionated"))
    try:
        with dm.use_backend("opinionated"):
            dm.zeros(3).free()
            with dm.use_memory("limit:1MiB") as stack:
                assert repr(stack).startswith("Limit(Statistics(DriverMemory(")
                assert dm.zeros(3).tolist() == [0, 0, 0]
    finally:
        dm.unregister_backend("opinionated")


def test_one_stack_for_a_text_and_device(second):
    with dm.use_memory("statistics,driver") as one:
        pass
    with dm.use_memory(" statistics,driver ") as again:
        pass
    with dm.use_memory("statistics,driver", second) as other:
        pass
    assert one is again
    assert other is not one


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("limit", "'limit' lacks max_bytes: limit:MAX_BYTES"),
        ("limit:", "'limit' lacks max_bytes: limit:MAX_BYTES"),
        ("guard:", r"'guard:' has a colon and no arguments: guard:\[redzone"),
        ("limit:4XiB", "does not take '4XiB' as max_bytes: give a whole number of bytes"),
        ("limit:0.5", r"does not take '0.5' as max_bytes: give a whole number of bytes, .* or a share .* \(80%\)"),
        ("pool:1.5", "does not take '1.5' as max_bytes: give a whole number of bytes"),
        ("guard:64.5", "does not take '64.5' as redzone: give a whole number of bytes"),
        ("limit:4GiB;5", "'limit' does not take '5'"),
        ("limit:120%", "does not take '120%' as max_bytes"),
        ("statistics:peak", r"'statistics' does not take 'peak': statistics:\[owners\]"),
        ("statistics:owners=maybe", "does not take 'maybe' as owners"),
        ("driver:5", "driver takes no arguments"),
        ("driver,statistics", "'driver' stands over nothing else, so it is the last: Statistics"),
        ("fail_nth:three", "does not take 'three' as n: give a number from 1"),
        ("statistics,,driver", "no memory resource is named ''"),
        ("statistics,nonsense", "no memory resource is named 'nonsense': give one of .*driver, fail_nth, guard"),
        ("scrub:256", "filled with a byte from 0 to 255"),
        ("limit:4GiB;max_bytes=8GiB", r"'limit' is given max_bytes twice: limit:MAX_BYTES"),
        ("statistics:owners;owners", "'statistics' is given owners twice"),
        ("pool()", r"no memory resource is named 'pool\(\)', did you mean 'pool'\?: give one of"),
        ("DriverMemory", "is named 'DriverMemory', did you mean 'driver'"),
        ("devmem.memory:PoolMemory", r"'devmem.memory:PoolMemory' is written 'pool' in a stack as text: pool:\["),
        (
            "statistics,pinned",
            r"Statistics\(PinnedMemory.*has pinned memory, so it cannot serve device memory.*kind='pinned'",
        ),
        ("mapped", "has mapped memory, so it cannot serve device memory: let it stand over devmem.memory.DriverMemory"),
    ],
)
def test_a_text_that_is_wrong(text, what):
    with pytest.raises(dm.ConfigError, match=what) as caught:
        dm.use_memory(text)
    assert str(caught.value).startswith(f"use_memory({text!r}): ")
    assert dm.zeros(2).tolist() == [0, 0]


def test_by_the_environment(with_settings):
    with_settings(MEMORY_MANAGER="limit:1MiB,statistics")
    assert dm.zeros(10).tolist() == [0.0] * 10
    with pytest.raises(dm.OutOfMemory, match=r"the limit is 1\.0 MiB \(1,048,576 bytes\), of which .* left \(Limit\)"):
        dm.zeros(1 << 20, "u1").copy()
    gc.collect()
    with_settings(MEMORY_MANAGER="limit:lots")
    with pytest.raises(dm.ConfigError, match="DEVMEM_MEMORY_MANAGER='limit:lots': 'limit' does not take 'lots'"):
        dm.zeros(3)
    with_settings(MEMORY_MANAGER="os:path")
    with pytest.raises(dm.PluginError, match=r"DEVMEM_MEMORY_MANAGER='os:path': 'os:path' .*is not a memory resource"):
        dm.zeros(3)


# -- modules -----------------------------------------------------------------------------------------------------------


def test_a_factory_is_called_with_the_device_and_what_is_below(package):
    name = package(MINE + "\ndef make(device, upstream=None):\n    return Mine(upstream, str(device))\n")
    with dm.use_memory(f"statistics,{name}:make") as stack:
        assert stack.upstream.size == str(dm.current_device())
        assert type(stack.upstream.upstream) is memory.DriverMemory
        assert dm.zeros(3).tolist() == [0, 0, 0]
    with dm.use_memory(f"{name}:make,statistics,driver") as stack:
        assert repr(stack.upstream).startswith("Statistics(DriverMemory(")
        assert dm.zeros(3).tolist() == [0, 0, 0]


def test_an_instance_and_a_module_alone(package):
    name = package(MINE + "\nready = Mine()\ndevmem_memory_manager = ready\n")
    with dm.use_memory(f"{name}:ready") as stack:
        assert type(stack).__name__ == "Mine"
    with dm.use_memory(name) as again:
        assert again is stack
    with pytest.raises(dm.ConfigError, match="is a resource already, so it is the last"):
        dm.use_memory(f"{name}:ready,driver")


BROKEN = {
    "import error": (
        "x = 1\nimport no_such_module_at_all\n",
        "make",
        r"cannot be loaded from module .*No module named 'no_such_module_at_all', .*\.py:2$",
    ),
    "attribute error": (
        "import math\nmath.nothing\n",
        "make",
        r"cannot be loaded.*has no attribute 'nothing', .*\.py:2$",
    ),
    "raises": ("x = 1\nraise ValueError('inside')\n", "make", r"cannot be loaded.*ValueError: inside, .*\.py:2"),
    "syntax": ("def (:\n", "make", "cannot be loaded.*SyntaxError"),
    "missing": ("x = 1\n", "make", "cannot be loaded.*has no attribute 'make'$"),
    "a number": ("make = 5\n", "make", "is not a memory resource: it needs allocate"),
    "no arguments": (
        "def make():\n    return 5\n",
        "make",
        r"failed when it was made, called with .*TypeError.*\.py:1",
    ),
    "factory raises": (
        "def make(d):\n    raise KeyError('k')\n",
        "make",
        r"failed when it was made.*KeyError: 'k', .*\.py:2",
    ),
    "makes nothing": ("def make(d):\n    return None\n", "make", "is not a memory resource"),
    "signature": (
        MINE.replace("def allocate(self, nbytes, stream)", "def allocate(self, nbytes)") + "make = Mine()\n",
        "make",
        r"allocate\(nbytes\) cannot be called as \(nbytes, stream\): too many positional arguments \(from module .*\.py:10\)",
    ),
    "keywords": (
        MINE.replace("def deallocate(self, ptr, nbytes, stream)", "def deallocate(self, ptr, *, stream)")
        + "make = Mine()\n",
        "make",
        r"deallocate\(ptr, \*, stream\) cannot be called as \(ptr, nbytes, stream\)",
    ),
    "not callable": (MINE + "make = Mine()\nmake.allocate = 5\n", "make", r"allocate is not callable \(from module"),
    "newer": (
        MINE + "make = Mine()\nmake.spi_version = 99\n",
        "make",
        "written for contract 99, this devmem has contract 2: upgrade devmem",
    ),
}


@pytest.mark.parametrize(("source", "attribute", "what"), BROKEN.values(), ids=BROKEN)
def test_a_module_that_is_broken_is_named_with_the_line(package, source, attribute, what):
    name = package(source)
    with pytest.raises(dm.PluginError, match=what) as caught:
        dm.use_memory(f"{name}:{attribute}")
    assert name in str(caught.value)
    assert dm.zeros(2).tolist() == [0, 0]


def test_a_name_that_is_misspelt_and_a_package_that_is_broken(package, tmp_path):
    with pytest.raises(dm.PluginError, match=r"from module limt, did you mean 'limit'\?: .*No module named 'limt'$"):
        dm.use_memory("limt:4GiB")
    name = f"broken_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("x = 1\nraise RuntimeError('boom')\n")
    for text in (f"{name}.part", f"{name}.part:make", name):
        with pytest.raises(dm.PluginError, match=rf"cannot be loaded from module {name}.*: boom, .*__init__\.py:2$"):
            dm.use_memory(text)


@pytest.mark.parametrize("text", ["os:path", "math", "json:loads", "devmem:__doc__"])
def test_a_module_that_is_something_else(text):
    with pytest.raises(dm.PluginError, match=f"use_memory\\('{text}'\\): "):
        dm.use_memory(text)


# -- plugins -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plugin(package, monkeypatch):
    """A factory that a plugin offers under the name "mine", and what it was called with."""
    calls = []
    module = __import__(package(MINE))

    def factory(*arguments):
        calls.append(arguments)
        return module.Mine(arguments[1] if arguments else None)

    monkeypatch.setitem(plugins.registry.resources, "mine", (factory, "pkg 1.0"))
    return calls


def test_a_name_of_a_plugin(plugin):
    with dm.use_memory("mine"):
        pass
    with dm.use_memory("statistics,mine"):
        pass
    with dm.use_memory("mine:4GiB"):
        pass
    with dm.use_memory("limit:80%,mine:a:b;c,driver"):
        assert dm.zeros(3).tolist() == [0, 0, 0]
    with dm.use_memory("mine,driver") as stack:
        pass
    assert plugin[:3] == [(), (), ("4GiB", None)]
    assert [arguments[0] for arguments in plugin[3:]] == ["a:b;c", ""]
    assert plugin[-1][1] is stack.upstream


def test_a_name_that_nothing_has_tells_which_plugins_could_not_be_loaded(monkeypatch):
    with pytest.raises(dm.ConfigError, match=r"no memory resource is named 'theirs': [^(]*$"):
        dm.use_memory("theirs")
    monkeypatch.setitem(plugins.registry.failures, "broken", plugins.Failure("pkg 1.0", "broken from pkg 1.0 failed"))
    with pytest.raises(dm.ConfigError, match=r"\(could not be loaded: broken from pkg 1.0 failed\)$"):
        dm.use_memory("theirs")


def test_a_factory_that_does_not_fit(monkeypatch):
    monkeypatch.setitem(plugins.registry.resources, "misfit", (lambda: 5, "pkg 1.0"))
    with pytest.raises(
        dm.PluginError, match=r"'misfit' from pkg 1.0 failed when it was made, called with \('4', None\)"
    ):
        dm.use_memory("misfit:4")
    with pytest.raises(dm.PluginError, match=r"'misfit' .from pkg 1.0. is not a memory resource"):
        dm.use_memory("misfit")


def test_an_exception_of_a_plugin_says_whose_it_is(package):
    name = package(MINE.replace("return self.upstream.allocate(nbytes, stream)", "raise ZeroDivisionError('oh')"))
    module = __import__(name)
    for stack in (module.Mine(), memory.Statistics(module.Mine())):
        with dm.use_memory(stack), pytest.raises(ZeroDivisionError, match="oh") as caught:
            dm.zeros(3)
        [note] = caught.value.__notes__
        assert re.search(
            rf"devmem: raised by the memory resource Mine \(module {name}\), .*{name}.py:\d+, in allocate", note
        )
    assert dm.memory_info().live == 0


def test_an_exception_when_memory_goes_back_says_whose_it_is(package):
    name = package(MINE.replace("self.upstream.deallocate(ptr, nbytes, stream)", "raise ZeroDivisionError('oh')"))
    resource = __import__(name).Mine()
    with dm.use_memory(resource):
        array = dm.zeros(3)
    ptr = array.ptr
    with pytest.raises(ZeroDivisionError) as caught:
        array.free()
    assert "deallocate of 24 bytes on" in caught.value.__notes__[0]
    assert dm.memory_info().live == 0
    with dm.current_device().entered():
        resource.upstream.deallocate(ptr, 24, 1)


def test_a_warning_about_a_dropped_array_says_whose_fault_it_is(package):
    name = package(MINE.replace("self.upstream.deallocate(ptr, nbytes, stream)", "raise ZeroDivisionError('oh')"))
    resource = __import__(name).Mine()
    with dm.use_memory(resource):
        array = dm.zeros(3)
    ptr = array.ptr
    del array
    with pytest.warns(
        dm.DevmemWarning, match=r"while freeing dropped memory on .*: oh; .*raised by the memory resource Mine"
    ):
        dm.trim()
    with dm.current_device().entered():
        resource.upstream.deallocate(ptr, 24, 1)


def test_a_plugin_that_fails_when_it_is_bound(package):
    name = package(MINE.replace("self.upstream.bind(driver)", "raise KeyError('device')"))
    for text in (name + ":Mine", "statistics," + name + ":Mine"):
        module = __import__(name)
        with pytest.raises(KeyError) as caught:
            dm.use_memory(memory.Statistics(module.Mine()) if "," in text else module.Mine())
        assert "raised by the memory resource Mine" in caught.value.__notes__[0]
    assert dm.zeros(2).tolist() == [0, 0]


# -- kinds -------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=HOST_KINDS)
def kind(request, need_kind):
    need_kind(request.param)
    return request.param


def test_a_stack_for_memory_that_the_host_sees(kind, in_thread):
    make, statistics = HOST_KINDS[kind], memory.Statistics(BOTTOM[kind]())
    with dm.use_memory(statistics, kind=kind):
        array = make(100)
        array[...] = 3
        assert statistics.current_bytes == 800
        in_thread(lambda: make(100).sum())
        device = dm.to_device(array)
        assert statistics.total_count == 1
        assert device.tolist() == [3] * 100
    outside = make(50)
    assert statistics.current_bytes == 800
    del array, outside
    device.free()
    gc.collect()
    dm.trim()
    assert statistics.current_bytes == 0


def test_a_text_for_memory_that_the_host_sees(kind):
    with dm.use_memory("limit:10KiB,statistics,guard", kind=kind) as stack:
        assert type(stack.upstream.upstream.upstream) is BOTTOM[kind]
        array = HOST_KINDS[kind](1000)
        array[...] = np.arange(1000)
        assert dm.to_device(array).tolist() == list(range(1000))
        with pytest.raises(
            dm.OutOfMemory,
            match=r"the limit is 10\.0 KiB \(10,240 bytes\), of which 7\.8 KiB \(8,000 bytes\) are in use",
        ):
            HOST_KINDS[kind](1000)
        del array
        gc.collect()
        dm.trim()
        assert stack.current_bytes == 0
        assert stack.upstream.upstream.reports == []


def test_from_the_call_on(kind, in_thread):
    statistics = memory.Statistics(BOTTOM[kind]())
    scope = dm.use_memory(statistics, kind=kind)
    in_thread(lambda: HOST_KINDS[kind](10).sum())
    assert statistics.total_count == 1
    with scope:
        pass
    HOST_KINDS[kind](10)
    dm.zeros(3)
    assert statistics.total_count == 1
    gc.collect()
    dm.trim()


def test_memory_of_another_kind_is_refused(kind):
    with pytest.raises(dm.ConfigError, match=f"has device memory, so it cannot serve {kind} memory"):
        dm.use_memory(memory.Statistics(), kind=kind)
    with pytest.raises(dm.ConfigError, match=r"kind='nothing'\): give one of device, pinned, mapped, managed"):
        dm.use_memory("driver", kind="nothing")


def test_flags_that_the_stack_does_not_have_are_served_beside_it(need_kind):
    need_kind("pinned")
    with dm.use_memory("statistics", kind="pinned") as statistics:
        dm.pinned_array(10, wc=True)
        dm.pinned_array(10, portable=True)
        assert statistics.total_count == 0
        dm.pinned_array(10)
        assert statistics.total_count == 1


def test_the_pinned_stack_of_the_environment(with_settings, need_kind, package):
    need_kind("pinned")
    with_settings(PINNED_MEMORY_MANAGER="limit:1000")
    array = dm.pinned_array(100)
    with pytest.raises(dm.OutOfMemory, match="the limit is 1000 bytes, of which 800 bytes are in use"):
        dm.pinned_array(100)
    with dm.use_memory("statistics", kind="pinned") as statistics:
        dm.pinned_array(1000)
        assert statistics.total_count == 1
    with pytest.raises(dm.OutOfMemory):
        dm.pinned_array(100)
    del array
    gc.collect()
    dm.trim()
    with_settings(PINNED_MEMORY_MANAGER="driver")
    with pytest.raises(dm.ConfigError, match=r"DEVMEM_PINNED_MEMORY_MANAGER='driver': .* cannot serve pinned memory"):
        dm.pinned_array(100)
    assert dm.zeros(2).tolist() == [0, 0]
    name = package("from devmem.memory import *\ndef make(device): return Limit(PinnedMemory(), 2000 + device.ordinal)")
    with_settings(PINNED_MEMORY_MANAGER=f"{name}:make")
    with pytest.raises(dm.OutOfMemory, match=r"the limit is 2\.0 KiB \(2,000 bytes\)"):
        dm.pinned_array(1000)


def test_host_memory_outlives_its_device(kind):
    statistics = memory.Statistics(BOTTOM[kind]())
    with dm.use_memory(statistics, kind=kind):
        array = HOST_KINDS[kind](100)
    array[...] = 5
    dm.reset()
    assert np.asarray(array).sum() == 500


# -- memory that runs out ----------------------------------------------------------------------------------------------


def test_the_largest_owners_are_named():
    with dm.use_memory("statistics:owners"):
        arrays = [
            dm.zeros(10),
            dm.zeros(1000),
            dm.zeros(30),
            dm.zeros(20),
            dm.zeros(50),
            dm.zeros(40),
        ]
        with pytest.raises(dm.OutOfMemory) as caught:
            dm.device_array(dm.memory_info().total * 4, "u1")
        owners = re.findall(
            r"([\d,]+) bytes\)? in 1 blocks from .*?test_stacks.py:(\d+) \(test_the_largest", str(caught.value)
        )
        assert [nbytes for nbytes, _ in owners] == ["8,000", "400", "320", "240", "160"]
        for array in arrays:
            array.free()


def test_the_largest_free_block_is_named():
    class Keeping(memory.Adaptor):
        largest_free_block = 4321

    with (
        dm.use_memory(memory.Statistics(Keeping())),
        pytest.raises(dm.OutOfMemory, match=r"largest free block 4\.2 KiB \(4,321 bytes\)"),
    ):
        dm.device_array(dm.memory_info().total * 4, "u1")


def test_a_stack_that_cannot_trim_does_not_stop_the_others():
    class Stubborn(memory.Adaptor):
        cached_bytes = 5
        broken = True

        def trim(self, keep_bytes):
            if self.broken:
                raise ZeroDivisionError("no")

    stubborn = Stubborn()
    failing = memory.FailNth(None, 1)
    with (
        dm.use_memory(stubborn),
        dm.use_memory(failing),
        pytest.warns(dm.DevmemWarning, match=r"while trimming .*Stubborn.*: no"),
    ):
        dm.zeros(3).free()
    stubborn.broken = False


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit(3)])
def test_a_trim_that_one_stack_fails_gives_back_what_the_others_keep(error):
    class Broken:
        def __init__(self):
            self.upstream = memory.DriverMemory()
            self.bind = self.upstream.bind

        def allocate(self, nbytes, stream):
            return self.upstream.allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            self.upstream.deallocate(ptr, nbytes, stream)

        def trim(self, keep_bytes):
            raise error

    with dm.use_memory(Broken()) as broken, dm.use_memory("statistics,pool") as pool:
        dm.zeros(3).free()
        assert pool.cached_bytes
        with pytest.raises((ZeroDivisionError, dm.PluginError)):
            dm.trim()
        assert not pool.cached_bytes
        broken.trim = lambda keep_bytes: None


def test_a_stack_has_an_end():
    with pytest.raises(dm.ConfigError, match="a stack has at most 64 parts"):
        dm.use_memory(",".join(["statistics"] * 5000))


def test_a_third_partys_memory_error_counts_as_out_of_memory(package):
    name = package(MINE.replace("return self.upstream.allocate(nbytes, stream)", "raise MemoryError('all gone')"))
    for stack in (__import__(name).Mine(), memory.Limit(__import__(name).Mine(), "1GiB")):
        with dm.use_memory(stack), pytest.raises(dm.OutOfMemory, match=r"asked for 24 bytes.*all gone"):
            dm.zeros(3)


def test_while_a_graph_is_captured_nothing_is_given_back_to_make_room(device, monkeypatch):
    context, stream = device.opened(), dm.stream()
    asked = []

    class Capturing:
        def __getattr__(self, name):
            asked.append(name)
            return getattr(driver, name)

        def capturing(self, handle):
            return handle == stream.handle

    driver = context.handle.driver
    with dm.use_memory(memory.FailNth(None, 1)), monkeypatch.context() as patch:
        patch.setattr(context.handle, "capabilities", context.handle.capabilities | {Capability.CAPTURE})
        patch.setattr(context.handle, "driver", Capturing())
        with pytest.raises(dm.OutOfMemory, match="nothing can be given back while a graph is captured"):
            dm.zeros(3)
    assert not {"synchronize", "stream_synchronize", "event_synchronize", "free"} & set(asked)
    stream.close()


def test_what_only_the_collector_finds_is_waited_for_before_it_is_trimmed(recorded: FaultyDriver):
    with dm.use_memory(memory.FailNth(None, 2)):
        gc.disable()  # or it may be found before it is looked for
        try:
            kept = [dm.device_array(100)]
            kept.append(kept)
            del kept
            with recorded.during() as seen:
                dm.device_array(200).free()
        finally:
            gc.enable()
    names = [call.method for call in seen]
    freed = next(at for at, name in enumerate(names) if name.startswith("free"))
    assert "synchronize" in names[:freed]
    assert "synchronize" in names[freed : names.index("alloc", freed)]


def test_the_answer_to_memory_that_ran_out_is_given_once_and_in_order(monkeypatch):
    """Freed what was dropped, waited, collected, trimmed, asked again: each once, but for what the collector finds."""
    steps = []

    class Scarce(memory.Adaptor):
        def allocate(self, nbytes, stream):
            steps.append("asked")
            if nbytes > 1000:
                raise MemoryError("scarce")
            return super().allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            steps.append("freed")
            super().deallocate(ptr, nbytes, stream)

        def trim(self, keep_bytes):
            steps.append(f"trimmed to {keep_bytes}")

    context, collect = dm.current_device().opened(), gc.collect
    wait = context.handle.driver.synchronize
    monkeypatch.setattr(gc, "collect", lambda *args: [steps.append("collected"), collect(*args)][1])
    with dm.use_memory(Scarce()):
        dropped = dm.device_array(100, "u1")
        del dropped
        steps.clear()
        with monkeypatch.context() as patch:
            patch.setattr(context.handle.driver, "synchronize", lambda: [steps.append("waited"), wait()][1])
            with pytest.raises(dm.OutOfMemory, match=r"asked for 2\.0 KiB \(2,000 bytes\).*scarce"):
                dm.device_array(2000, "u1")
    assert steps == ["asked", "freed", "waited", "collected", "waited", "trimmed to 0", "asked"]


# -- stacks that come and go -------------------------------------------------------------------------------------------


def test_a_stack_that_later_ones_pushed_out_can_still_be_used():
    early, context = memory.Statistics(), dm.current_device().opened()
    before = context.memory.stacks.heap
    scope = dm.use_memory(early)
    later = [dm.use_memory(memory.Statistics()) for _ in range(12)]
    try:
        with scope:
            array = dm.device_array(100, "u1")
            assert early.current_bytes == 100
            assert dm.memory_info().live == 100
            array.free()
    finally:
        for each in reversed(later):
            with each:
                pass
    assert context.memory.stacks.heap is before


def test_a_stack_is_known_from_its_installation_on():
    """Whatever other threads do between the making of its heap and its first use."""
    context = dm.current_device().opened()
    stack = memory.Statistics()
    heap = context.memory.stacks.bind(stack)
    context.memory.stacks.forget_idle_heaps()
    assert heap not in context.memory.stacks.heaps
    scope = MemoryScope(context.memory.stacks, heap)
    assert heap in context.memory.stacks.heaps
    with scope:
        context.memory.stacks.forget_idle_heaps()
        array = dm.device_array(100, "u1")
        assert dm.memory_info().live == 100
    del array
    dm.trim()
    assert stack.current_bytes == 0


def test_a_resource_is_asked_what_it_keeps_without_a_lock():
    """Another thread may have what the resource waits for, and may itself set up a stack."""
    other = []

    def set_up():
        with dm.use_memory(memory.Statistics()):
            pass

    class Asking(memory.Adaptor):
        @property
        def cached_bytes(self):
            if not other:
                other.append("asked")
                together(set_up)
            return 0

    with dm.use_memory(Asking()):
        dm.device_array(100, "u1").free()
    assert other


def test_a_resource_is_bound_without_a_lock():
    """Another thread may have what the resource waits for, and may itself set up a stack."""
    other = []

    def set_up():
        with dm.use_memory(memory.Statistics()):
            pass

    class Binding(memory.Adaptor):
        def bind(self, driver):
            super().bind(driver)
            if not other:
                other.append("bound")
                together(set_up, limit=10)

    with dm.use_memory(Binding()):
        dm.device_array(100, "u1").free()
    assert other


@pytest.mark.parametrize("fails", [False, True])
def test_two_threads_bind_a_resource_one_at_a_time(fails):
    """The second finds it bound; or binds it, where the first could not."""
    bound, binding, ended = [], threading.Event(), threading.Event()

    class Binding(memory.Adaptor):
        def bind(self, driver):
            bound.append(threading.get_ident())
            if len(bound) == 1:
                binding.set()
                blocked(ended)
                if fails:
                    raise ValueError("not yet")
            super().bind(driver)

    stack = Binding()

    def first():
        with contextlib.suppress(ValueError), dm.use_memory(stack):
            assert ended.wait(patience(10))

    def second():
        assert binding.wait(patience(10))
        with dm.use_memory(stack):
            ended.set()
            dm.device_array(100, "u1").free()

    together(first, second)
    assert len(bound) == 1 + fails


def test_work_that_was_begun_in_a_block_and_outlives_it_takes_what_is_in_force_then():
    inner, outer = memory.Statistics(), memory.Statistics()
    with dm.use_memory(inner):
        begun = contextvars.copy_context()
        begun.run(lambda: dm.device_array(1).free())
    assert inner.total_count == 1
    with dm.use_memory(outer):
        begun.run(lambda: dm.device_array(1).free())
    assert inner.total_count == 1
    dm.trim()


@pytest.mark.parametrize("keep", [-1, -(1 << 40)])
def test_fewer_than_no_bytes_cannot_be_kept(keep):
    with pytest.raises(dm.ConfigError, match=f"keep_bytes={keep}"):
        dm.trim(keep)


@pytest.mark.parametrize("keep", [(1 << 64) - 1, 1 << 70])
@pytest.mark.parametrize("stack", ["driver", "pool", "stream_ordered"])
def test_more_bytes_may_be_kept_than_there_are(need, stack, keep):
    if stack == "stream_ordered":
        need("stream_ordered")
    with dm.use_memory(stack):
        dm.zeros(3).free()
        dm.trim(keep)


def test_a_threshold_of_the_drivers_pool(need):
    need("stream_ordered")
    with dm.use_memory("statistics,stream_ordered:0") as stack:
        stream = dm.stream()
        arrays = [dm.device_array(1 << 20, "u1", stream=stream) for _ in range(4)]
        for each in arrays:
            each.free()
        stream.synchronize()
        dm.synchronize()
        with dm.current_device().entered():
            assert stack.cached_bytes == 0
    with dm.use_memory(memory.StreamOrderedMemory(release_threshold=(1 << 64) - 1)):
        dm.zeros(3).free()


def test_the_devices_current_pool_serves_if_it_is_asked_for(need, device, recorded):
    need("shared_pool")
    with recorded.during() as seen, dm.use_memory("statistics,stream_ordered:current") as stack:
        stream = dm.stream()
        array = dm.to_device(np.arange(1000.0), stream=stream)
        assert array.copy_to_host().tolist() == list(range(1000))
        array.free()
        stream.synchronize()
        with device.entered():
            assert stack.cached_bytes == 0, "what others keep there is not devmem's to count"
            stack.trim(0)
    methods = [call.method for call in seen]
    assert "alloc_shared" in methods
    assert not {"alloc_async", "pool_cached", "pool_trim", "pool_threshold"} & set(methods)
    with pytest.raises(dm.ConfigError, match="threshold is not devmem's to set"):
        dm.use_memory("stream_ordered:1GiB;current")


@pytest.mark.parametrize(("name", "pool"), [("current", "shared_pool"), ("hw_decompress", "decompress_pool")])
def test_a_device_without_such_a_pool_says_so(device, monkeypatch, name, pool):
    handle = device.opened().handle
    info = dataclasses.replace(handle.info, capabilities=handle.info.capabilities - {Capability(pool)})
    monkeypatch.setattr(handle.driver, "info", info)
    with pytest.raises(dm.UnsupportedError, match=rf"{pool}.*leave {name} out|stream-ordered"):
        dm.use_memory(f"stream_ordered:{name}")


def test_a_pool_for_the_decompression_engine(need, device, recorded):
    need("decompress_pool", "pool_control")
    with recorded.during() as seen, dm.use_memory("statistics,stream_ordered:64MiB;hw_decompress") as stack:
        stream = dm.stream()
        array = dm.to_device(np.arange(1000.0), stream=stream)
        assert array.copy_to_host().tolist() == list(range(1000))
        array.free()
        stream.synchronize()
        with device.entered():
            assert stack.cached_bytes > 0
            stack.trim(0)
            assert stack.cached_bytes == 0
    methods = [call.method for call in seen]
    assert "alloc_decompressible" in methods and "alloc_async" not in methods
    with pytest.raises(dm.ConfigError, match="leave one of the two out"):
        dm.use_memory("stream_ordered:current=1;hw_decompress")


def test_what_trim_keeps_is_kept_of_both_pools_together(need, device):
    need("decompress_pool", "pool_control")
    plain, other = memory.StreamOrderedMemory(), memory.StreamOrderedMemory(hw_decompress=True)
    for resource in (plain, other):
        with dm.use_memory(resource):
            dm.device_array(1 << 20, "u1").free()
    dm.synchronize()
    with device.entered():
        assert plain.cached_bytes == other.cached_bytes >= 2 << 20, "it is counted once, for both"
        plain.trim(1 << 20)
        assert 0 < plain.cached_bytes <= 1 << 20
        plain.trim(0)


# -- when memory goes back ---------------------------------------------------------------------------------------------


def test_a_stream_ordered_free_on_its_home_stream_waits_for_nothing(recorded: FaultyDriver, need):
    need("stream_ordered")
    stream = dm.stream()
    with dm.use_memory("statistics,stream_ordered"):
        arrays = [dm.device_array(100, stream=stream) for _ in range(30)]
        before = recorded.calls.copy()
        arrays.pop().free()
        del arrays
        dm.device_array(100, stream=stream)  # more wait than may
        done = recorded.calls - before
    assert done["free_async"] == 30
    assert not [name for name in done if "synchronize" in name or "event" in name or name == "stream_wait"]


def test_a_free_that_synchronises_is_put_off_and_done_at_once(recorded: FaultyDriver):
    stream = dm.stream()
    with dm.use_memory("statistics,driver"):
        arrays = [dm.device_array(100, stream=stream) for _ in range(20)]
        before = recorded.calls.copy()
        del arrays
        assert not recorded.calls - before
        dm.device_array(100, stream=stream)  # more wait than may
        done = recorded.calls - before
    assert done["free"] == 20
    assert done["stream_synchronize"] == 1  # once for all of them


def test_a_resource_that_cannot_say_what_it_keeps_does_not_stop_the_others():
    class Broken:
        def __init__(self):
            self.inner = dm.memory.DriverMemory()

        def bind(self, driver):
            self.inner.bind(driver)

        def allocate(self, nbytes, stream):
            raise MemoryError("no")

        def deallocate(self, ptr, nbytes, stream):
            self.inner.deallocate(ptr, nbytes, stream)

        @property
        def cached_bytes(self):
            raise RuntimeError("the library is broken")

    with (
        pytest.warns(dm.DevmemWarning, match=r"cannot say what it keeps: RuntimeError\('the library is broken'\)"),
        pytest.raises(dm.OutOfMemory, match="no"),
        dm.use_memory(Broken()),
    ):
        dm.zeros(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dm.DevmemWarning)
        with dm.use_memory("driver"):
            assert dm.zeros(10).copy_to_host().sum() == 0
        dm.memory_info()
        gc.collect()
        dm.trim()
        dm.close()


def test_a_pool_that_is_forgotten_names_no_stream_that_ends_meanwhile():
    """Bound again, it would ask a destroyed stream whether it captures, or record an event on it."""
    pool, stream = memory.PoolMemory(), dm.stream()
    with dm.use_memory(pool):
        dm.device_array(1000, stream=stream).free()
        stream.synchronize()
        dm.trim()
    assert pool not in [heap.resource for heap in dm.current_device().opened().memory.stacks.heaps]
    handle = stream.handle
    stream.close()
    with dm.use_memory(pool):
        dm.device_array(1000).free()
        dm.trim()
        assert handle not in pool._lists.by_stream


def test_a_pool_that_is_forgotten_as_a_block_comes_back_hears_of_the_end_of_streams():
    """Another thread, or a handler, may leave a scope while the block is in neither: not live any more, nor in the pool yet."""
    pool, stream = memory.PoolMemory(), dm.stream()
    with dm.use_memory(pool):
        array = dm.device_array(3 << 20, np.uint8, stream=stream)  # of a chunk of its own: nothing is cached
    [heap] = [each for each in dm.current_device().opened().memory.stacks.heaps if each.resource is pool]
    deallocate = heap.deallocate

    def late(*block):
        with dm.use_memory(memory.DriverMemory()):
            pass
        assert heap not in dm.current_device().opened().memory.stacks.heaps
        deallocate(*block)

    heap.deallocate = late
    array.free()
    handle = stream.handle
    stream.close()
    assert handle not in pool._lists.by_stream
    del stream
    dm.trim()  # destroys the stream
    dm.trim()
    assert pool.cached_bytes == 0


def test_a_pool_below_a_stack_of_others_hears_of_the_end_of_streams(package):
    """Their adaptor does not pass it on: the pool is told all the same."""
    module = package(MINE)
    pool, stream = memory.PoolMemory(), dm.stream()
    with dm.use_memory(__import__(module).Mine(pool)):
        dm.device_array(1000, stream=stream).free()
        handle = stream.handle
        stream.close()
        assert handle not in pool._lists.by_stream
    with dm.current_device().entered():
        pool.trim(0)


def test_a_pool_that_is_forgotten_keeps_no_event():
    """A program that makes a pool for each task would have all their events until the device is closed."""
    pool, (first, second) = memory.PoolMemory(), (dm.stream(), dm.stream())
    with dm.use_memory(pool):
        dm.device_array(1 << 20, np.uint8, stream=first).free()
        dm.device_array(1 << 20, np.uint8, stream=second).free()  # an event is recorded behind the other's block
        events = pool._reuse.events.events
        assert events
    dm.synchronize()
    del pool, first, second
    dm.trim()
    assert not events
