"""Plugins that answer anything and raise anything: each breaks itself, and nothing beside it."""

from __future__ import annotations

import importlib.metadata
import types
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm
from devmem import plugins
from devmem.memory import Limit, PoolMemory, Scrub, Statistics
from devmem.spi import SPI_VERSION

from .conftest import ANYTHING, INTEGERS, attempt

ERRORS = st.sampled_from(
    [
        SystemExit(3),
        SystemExit(),
        KeyError("a"),
        AttributeError("b"),
        MemoryError("all gone"),
        RecursionError("c"),
        OSError(5, "d"),
    ]
).map(lambda error: ("raise", error))
#: What a call of a plugin comes to: an answer or an error.
ANSWERS = ANYTHING.map(lambda value: ("return", value)) | ERRORS
PARTS = {
    "name": "fuzzed",
    "spi_version": SPI_VERSION,
    "unavailable": ("return", None),
    "device_count": ("return", 1),
    "open": ("raise", OSError(5, "nothing is opened here")),
    "configure": ("return", None),
}


def calls(answer: tuple[str, Any]) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        if answer[0] == "raise":
            raise type(answer[1])(*answer[1].args)  # a new one: a traceback would keep what the frames have
        return answer[1]

    return call


class Entry:
    """An entry point of a distribution that is not installed."""

    def __init__(self, name: str, load: Any) -> None:
        self.name, self.value, self.dist, self.load = name, f"{name}_module", None, load


class Sound:
    """A backend that works, as far as it is asked here."""

    name, spi_version = "sound", SPI_VERSION

    def unavailable(self) -> None:
        return None

    def device_count(self) -> int:
        return 3

    def open(self, ordinal: int) -> Any:
        raise dm.BackendUnavailable("nothing is opened here")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: {"name": ANYTHING, "spi_version": ANYTHING, "open": ERRORS}.get(name, ANSWERS) for name in PARTS
        },
    ),
    st.sampled_from(["import", "hook", "backend", "resources", "compilers"]),
    ANSWERS,
)
@pytest.mark.filterwarnings("ignore")
def test_any_plugin_breaks_itself_alone(parts: dict[str, Any], where: str, answer: tuple[str, Any]) -> None:
    said = {**PARTS, **parts}
    backend = types.SimpleNamespace(
        **{name: value if name in ("name", "spi_version") else calls(value) for name, value in said.items()}
    )
    hooks: dict[str, Any] = {"devmem_backends": lambda: [backend]}
    if where == "hook":
        hooks["devmem_backends"] = calls(answer)
    elif where in ("resources", "compilers"):
        hooks[{"resources": "devmem_memory_resources", "compilers": "devmem_kernel_compilers"}[where]] = calls(answer)
    broken = Entry("broken", calls(answer) if where == "import" else lambda: types.SimpleNamespace(**hooks))
    sound = Entry("zsound", lambda: types.SimpleNamespace(devmem_backends=lambda: [Sound()]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", lambda *, group: [broken, sound])
        patch.setattr(plugins, "registry", plugins.Registry())

        def run() -> None:
            found = {each.name: each for each in dm.backends()}
            assert (found["sound"].usable, found["sound"].devices, found["host"].usable) == (True, 3, True)
            assert all(each.reason is None or isinstance(each.reason, str) for each in found.values())
            assert any(each.backend == "sound" for each in dm.devices())
            name = said["name"]
            if isinstance(name, str) and name not in found:
                with pytest.raises((dm.ConfigError, dm.PluginError)):
                    dm.use_backend(name)
            elif isinstance(name, str) and name not in plugins.BUILT_IN and found[name].devices:
                with dm.use_backend(name):
                    dm.memory_info()

        attempt(run)
        plugins.registry.configure(("broken",))  # blocked, it is not even imported
        blocked = plugins.Registry(block=("broken",))
        assert "sound" in blocked.every_backend()
        assert not blocked.failures.keys() & {"broken"}


class Resource:
    """A third party's, over the driver's, whose verbs answer something else now and then."""

    def __init__(self, answers: dict[str, tuple[str, Any]], facts: dict[str, Any]) -> None:
        self.upstream = dm.memory.DriverMemory()
        self.answers = answers
        for name, value in facts.items():
            setattr(self, name, value)

    def said(self, verb: str) -> Any:
        answer = self.answers.pop(verb, None)
        return None if answer is None else [calls(answer)()]

    def bind(self, driver: Any) -> None:
        self.upstream.bind(driver)
        self.said("bind")

    def allocate(self, nbytes: int, stream: int) -> Any:
        said = self.said("allocate")
        return said[0] if said else self.upstream.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        self.upstream.deallocate(ptr, nbytes, stream)
        self.said("deallocate")

    def trim(self, keep_bytes: int) -> None:
        self.said("trim")

    def forget_stream(self, stream: int) -> None:
        self.said("forget_stream")


@given(
    st.dictionaries(st.sampled_from(["bind", "allocate", "deallocate", "trim", "forget_stream"]), ANSWERS, max_size=2),
    st.dictionaries(st.sampled_from(["stream_ordered", "cached_bytes", "largest_free_block"]), ANYTHING, max_size=1),
    st.sampled_from([lambda below: below, Statistics, PoolMemory, Scrub, lambda below: Limit(below, "1GiB")]),
)
def test_any_resource_breaks_itself_alone(answers: dict[str, Any], facts: dict[str, Any], over: Any) -> None:
    if "allocate" in answers and type(answers["allocate"][1]) is int and 0 < answers["allocate"][1] < 2**64 - 2**20:
        answers["allocate"] = ("return", 0)  # an address that could be right is the resource's word
    allowed = [type(answer[1]) for answer in answers.values() if answer[0] == "raise"]

    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dm.DevmemWarning)
            with dm.use_memory(over(Resource(answers, facts))), dm.use_memory(Statistics()) as beside:
                mine = dm.zeros(10, "u1")
            stack = over(Resource(answers, facts))
            with dm.use_memory(stack):
                for _ in range(3):
                    array = dm.to_device(np.arange(5))
                    assert array.tolist() == [0, 1, 2, 3, 4]
                    del array
                dm.trim()
            assert mine.tolist() == [0] * 10
            del mine
            dm.trim()
            assert beside.current_bytes == 0

    def run_to_the_end() -> None:
        try:
            run()
        finally:
            answers.clear()  # `trim` tells what a resource raises there, also when it is asked behind the example

    attempt(run_to_the_end, *(kind for kind in allowed if kind is not SystemExit))


@given(st.sampled_from(["factory", "attribute"]), ANSWERS | INTEGERS.map(lambda value: ("return", value)))
@pytest.mark.filterwarnings("ignore")
def test_any_factory_of_a_resource_is_one_or_told(how: str, answer: tuple[str, Any]) -> None:
    resources = {"fuzzed": calls(answer) if how == "factory" else answer[1]}
    entry = Entry("broken", lambda: types.SimpleNamespace(devmem_memory_resources=lambda: resources))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", lambda *, group: [entry])
        patch.setattr(plugins, "registry", plugins.Registry())
        told = attempt(lambda: dm.use_memory("fuzzed"))
        assert told.startswith(("PluginError", "ConfigError", "MemoryError")), told
