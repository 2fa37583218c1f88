"""Settings: every variable, its default, what it takes, and that anything else is refused by name."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import os
import re
import types
from typing import ClassVar

import pytest

from devmem import plugins
from devmem._core.base import config
from devmem.backends.host.hooks import HostBackend
from devmem.backends.roc.hooks import RocBackend
from devmem.spi.errors import ConfigError, DevmemWarning
from devmem.spi.types import Option
from devmem.toolkit.settings import choice, count, flag

DEFAULTS = {
    "BACKEND": "",
    "DEVICE": 0,
    "MEMORY_MANAGER": "",
    "PINNED_MEMORY_MANAGER": "",
    "MAX_PENDING_DEALLOCS_COUNT": 10,
    "MAX_PENDING_DEALLOCS_RATIO": 0.2,
    "DEFAULT_STREAM": "legacy",
    "STAGING_SLOTS": 4,
    "STAGING_SLOT_BYTES": 16 << 20,
    "STAGING_THREADS": None,
    "STAGING_THRESHOLD": None,
    "STAGING_LIMIT": 512 << 20,
    "BLOCK_PLUGINS": (),
    "HOST_STRICT": False,
    "HOST_DEVICES": 1,
    "ROC_PROVIDER": "auto",
    "ROC_LIBRARY": "",
    "OPENCL_PLATFORM": "",
    "ROC_STREAM_ORDERED": False,
    "ROC_CUDA_ARRAY_INTERFACE": False,
    "CUDA_ARRAY_INTERFACE_SYNC": True,
    "TRANSFER_GUARD": "allow",
    "KERNEL_COMPILER": "",
    "RACES": False,
    "SIM": "exact",
    "SIM_RACE_CHECK": False,
    "SIM_SHUFFLE": None,
    "SIM_WAVE_SIZE": 32,
    "SIM_NEGATIVE": "wrap",
    "SIM_LOG": "",
    "TRACE": "",
    "NATIVE": True,
    "LOG_LEVEL": "WARNING",
}

GOOD = [
    ("BACKEND", " cuda ", "cuda"),
    ("DEVICE", "3", 3),
    ("MEMORY_MANAGER", "limit:4GiB,pool", "limit:4GiB,pool"),
    ("PINNED_MEMORY_MANAGER", " pinned_pool ", "pinned_pool"),
    ("MAX_PENDING_DEALLOCS_COUNT", "0", 0),
    ("MAX_PENDING_DEALLOCS_COUNT", "20", 20),
    ("MAX_PENDING_DEALLOCS_RATIO", "0", 0.0),
    ("MAX_PENDING_DEALLOCS_RATIO", "1", 1.0),
    ("MAX_PENDING_DEALLOCS_RATIO", "0.5", 0.5),
    ("STAGING_SLOTS", "0", 0),
    ("STAGING_SLOT_BYTES", "1", 1),
    ("STAGING_SLOT_BYTES", "16MiB", 16 << 20),
    ("STAGING_THRESHOLD", "1.5 MB", 1_500_000),
    ("STAGING_LIMIT", "1GiB", 1 << 30),
    ("STAGING_THREADS", "8", 8),
    ("STAGING_THRESHOLD", "0", 0),
    ("STAGING_LIMIT", "0", 0),
    ("DEFAULT_STREAM", "per-thread", "per-thread"),
    ("DEFAULT_STREAM", "LEGACY", "legacy"),
    ("BLOCK_PLUGINS", "a, b ,,c", ("a", "b", "c")),
    ("BLOCK_PLUGINS", "*", ("*",)),
    ("BLOCK_PLUGINS", "", ()),
    *(("HOST_STRICT", text, True) for text in ("1", "true", "Yes", "ON")),
    *(("HOST_STRICT", text, False) for text in ("0", "false", "No", "OFF")),
    ("HOST_DEVICES", "4", 4),
    ("ROC_PROVIDER", "ctypes", "ctypes"),
    ("ROC_LIBRARY", " /some where/a.so", "/some where/a.so"),
    ("OPENCL_PLATFORM", " portable", "portable"),
    ("ROC_STREAM_ORDERED", "1", True),
    ("ROC_CUDA_ARRAY_INTERFACE", "1", True),
    ("CUDA_ARRAY_INTERFACE_SYNC", "0", False),
    ("TRANSFER_GUARD", "log", "log"),
    ("TRANSFER_GUARD", "DISALLOW", "disallow"),
    ("SIM", "Fast", "fast"),
    ("KERNEL_COMPILER", " numba_cuda ", "numba_cuda"),
    ("RACES", "1", True),
    ("SIM_RACE_CHECK", "1", True),
    ("SIM_SHUFFLE", "-7", -7),
    ("SIM_WAVE_SIZE", "64", 64),
    ("SIM_NEGATIVE", "Report", "report"),
    ("SIM_LOG", " launches.jsonl ", "launches.jsonl"),
    ("TRACE", " some where/t.json ", "some where/t.json"),
    ("NATIVE", "off", False),
    ("LOG_LEVEL", "debug", "DEBUG"),
]

BAD = [
    ("DEVICE", "-1", "an ordinal, 0 or more"),
    ("DEVICE", "cuda:1", "an ordinal"),
    ("MAX_PENDING_DEALLOCS_COUNT", "-1", "a whole number, 0 or more"),
    ("MAX_PENDING_DEALLOCS_COUNT", "1.5", "a whole number"),
    ("MAX_PENDING_DEALLOCS_COUNT", "", "a whole number"),
    ("MAX_PENDING_DEALLOCS_RATIO", "1.1", "a number from 0 to 1"),
    ("MAX_PENDING_DEALLOCS_RATIO", "-0.1", "a number from 0 to 1"),
    ("MAX_PENDING_DEALLOCS_RATIO", "nan", "a number from 0 to 1"),
    ("MAX_PENDING_DEALLOCS_RATIO", "20%", "a number from 0 to 1"),
    *((f"STAGING_{name}", "-1", "or more") for name in ("SLOTS", "SLOT_BYTES", "THREADS", "THRESHOLD")),
    *((f"STAGING_{name}", "16 MiBs", "with a unit") for name in ("SLOT_BYTES", "THRESHOLD", "LIMIT")),
    ("STAGING_SLOT_BYTES", "0KiB", "1 or more"),
    *((f"STAGING_{name}", "1048576.5", "a whole number of bytes") for name in ("SLOT_BYTES", "THRESHOLD", "LIMIT")),
    ("STAGING_LIMIT", "0.8", "a whole number of bytes"),
    ("STAGING_LIMIT", "1.5b", "a whole number of bytes"),
    ("STAGING_LIMIT", "0.0001KiB", "a whole number of bytes"),
    ("DEFAULT_STREAM", "2", r"legacy \| per-thread"),
    ("DEFAULT_STREAM", "per_thread", r"legacy \| per-thread"),
    ("HOST_STRICT", "maybe", r"0 \| 1"),
    ("HOST_STRICT", "", r"0 \| 1"),
    ("HOST_DEVICES", "0", "1 or more"),
    ("HOST_DEVICES", "two", "1 or more"),
    ("ROC_PROVIDER", "hip-python", r"auto \| rocm \| hip \| ctypes"),
    ("ROC_STREAM_ORDERED", "perhaps", r"0 \| 1"),
    ("CUDA_ARRAY_INTERFACE_SYNC", "often", r"0 \| 1"),
    ("TRANSFER_GUARD", "deny", r"allow \| log \| disallow"),
    ("SIM", "quick", "exact"),
    ("SIM_SHUFFLE", "", "a whole number"),
    ("SIM_WAVE_SIZE", "0", "1 or more"),
    ("NATIVE", "perhaps", "0 | 1"),
    ("LOG_LEVEL", "loud", "level of the logging module"),
]


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Settings of this test alone; those of the suite come back."""
    monkeypatch.setattr(config, "_handed_over", set())
    level = logging.getLogger("devmem").level
    for name in [n for n in os.environ if n.startswith("DEVMEM_")]:
        monkeypatch.delenv(name)
    config.forget()
    yield
    monkeypatch.undo()
    config.forget()
    logging.getLogger("devmem").setLevel(level)


def test_without_variables_every_setting_has_its_default():
    assert {each.name: each.value for each in config.describe()} == {
        f"DEVMEM_{name}": DEFAULTS[name] for name in DEFAULTS
    }


def value_of(name):
    [found] = [each.value for each in config.describe() if each.name == f"DEVMEM_{name}"]
    return found


def test_only_backends_have_settings_that_begin_with_a_backends_name():
    """But for an interface that every backend has."""
    names = [each.name for each in dataclasses.fields(config.Settings)]
    assert [name for name in names if name.partition("_")[0] in plugins.BUILT_IN] == ["cuda_array_interface_sync"]


def test_every_setting_is_tried():
    assert {name for name, _, _ in GOOD} == DEFAULTS.keys()


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_good_values_are_parsed(monkeypatch, name, text, value):
    monkeypatch.setenv(f"DEVMEM_{name}", text)
    got = value_of(name)
    assert got == value
    assert type(got) is type(value) or isinstance(got, str)


@pytest.mark.parametrize(("name", "text", "allowed"), BAD)
def test_bad_values_are_refused_by_name_with_what_is_allowed(monkeypatch, name, text, allowed):
    monkeypatch.setenv(f"DEVMEM_{name}", text)
    for _ in range(2):  # and again: a refused value is not remembered as anything
        with pytest.raises(ConfigError, match=rf"DEVMEM_{name}='{text}' is not allowed: give .*{allowed}.*unset it"):
            config.settings()
    monkeypatch.delenv(f"DEVMEM_{name}")
    assert value_of(name) == DEFAULTS[name]


def test_settings_are_frozen_and_read_once(monkeypatch):
    first = config.settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.device = 3
    monkeypatch.setenv("DEVMEM_DEVICE", "3")
    assert config.settings() is first
    config.forget()
    assert config.settings().device == 3


def test_describe_says_where_each_value_came_from(monkeypatch):
    monkeypatch.setenv("DEVMEM_DEVICE", "2")
    found = {item.name: item for item in config.describe()}
    assert set(found) == {f"DEVMEM_{name}" for name in DEFAULTS}
    assert (found["DEVMEM_DEVICE"].value, found["DEVMEM_DEVICE"].source) == (2, "environment")
    assert (found["DEVMEM_BACKEND"].value, found["DEVMEM_BACKEND"].source) == ("", "default")
    assert all(item.allowed and item.help for item in found.values())


def test_a_backend_gets_the_settings_that_bear_its_name(monkeypatch):
    monkeypatch.setenv("DEVMEM_HOST_DEVICES", "3")
    assert config.options_of(HostBackend()) == {"devices": 3}
    assert config.options_of(RocBackend()) == {}


def test_settings_of_backends_are_read_once_too(monkeypatch):
    assert config.options_of(HostBackend()) == {}
    monkeypatch.setenv("DEVMEM_HOST_DEVICES", "3")
    assert config.options_of(HostBackend()) == {}
    config.forget()
    assert config.options_of(HostBackend())["devices"] == 3


class Copper:
    """A backend of another package, with a setting of each kind."""

    name, spi_version, unavailable, device_count, open, configure = "copper", 2, 1, 1, 1, 1
    options: ClassVar = {
        "fast": flag("skip the checks", True),
        "cards": count("number of cards", 4),
        "mode": choice("how it goes", "safe", "quick"),
        "bus": Option("which bus", "two letters", "ab", lambda text: {"xy": "XY"}[text]),
        "plain": "anything: what it likes",
    }


@pytest.fixture
def copper(monkeypatch):
    registry = plugins.Registry()
    registry.add_backend(Copper(), "a test")
    monkeypatch.setattr(plugins, "registry", registry)
    return registry.backends["copper"].backend


def test_another_packages_backend_declares_its_settings_as_the_built_in_ones_do(monkeypatch, copper):
    assert config.options_of(copper) == {}, "a program may have configured it"
    for name, text in (("FAST", "off"), ("CARDS", "7"), ("MODE", "Quick"), ("BUS", "xy"), ("PLAIN", " as it is ")):
        monkeypatch.setenv(f"DEVMEM_COPPER_{name}", text)
    config.forget()
    wanted = {"fast": False, "cards": 7, "mode": "quick", "bus": "XY", "plain": " as it is "}
    assert config.options_of(copper) == wanted
    rows = {each.name: each for each in config.describe() if each.name.startswith("DEVMEM_COPPER_")}
    assert {name.removeprefix("DEVMEM_COPPER_").lower(): row.value for name, row in rows.items()} == wanted
    assert {row.source for row in rows.values()} == {"environment"}
    bus = rows["DEVMEM_COPPER_BUS"]
    assert (bus.allowed, bus.help) == ("two letters", "copper backend: which bus")
    for name in rows:
        monkeypatch.delenv(name)
    config.forget()
    assert config.options_of(copper) == {"fast": True, "cards": 4, "mode": "safe", "bus": "ab"}, (
        "what was set is not any more"
    )
    rows = {each.name: each for each in config.describe() if each.name.startswith("DEVMEM_COPPER_")}
    assert [row.value for row in rows.values()] == [True, 4, "safe", "ab", ""]


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("FAST", "perhaps", "0 | 1"),
        ("CARDS", "0", "1 or more"),
        ("MODE", "", "safe | quick"),
        ("BUS", "ab", "two letters"),
    ],
)
def test_what_another_packages_backend_does_not_allow_is_refused_by_name(monkeypatch, copper, name, text, allowed):
    monkeypatch.setenv(f"DEVMEM_COPPER_{name}", text)
    with pytest.raises(
        ConfigError, match=re.escape(f"DEVMEM_COPPER_{name}={text!r} is not allowed: give ") + ".*" + re.escape(allowed)
    ):
        config.options_of(copper)


def test_the_log_level_is_set_only_if_a_setting_asks_for_it(monkeypatch):
    logger = logging.getLogger("devmem")
    logger.setLevel(logging.INFO)
    config.settings()
    assert logger.level == logging.INFO
    config.forget()
    monkeypatch.setenv("DEVMEM_LOG_LEVEL", "error")
    config.settings()
    assert logger.level == logging.ERROR


# -- unknown names ----------------------------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch):
    """As in a process where nothing was warned of yet."""
    monkeypatch.setattr(config, "_told", set())


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("DEVMEM_BAKCEND", "did you mean DEVMEM_BACKEND?"),
        ("DEVMEM_HOST_DEVICE", "did you mean DEVMEM_HOST_DEVICES?"),
        ("DEVMEM_TRANSFERGUARD", "did you mean DEVMEM_TRANSFER_GUARD?"),
        ("DEVMEM_MAX_PENDING_DEALLOC_COUNT", "did you mean DEVMEM_MAX_PENDING_DEALLOCS_COUNT?"),
        ("DEVMEM_COLOUR_OF_THE_SKY", "unset it; `devmem info` lists what there is"),
        ("DEVMEM_EMULATORS", "unset it"),
    ],
)
def test_a_misspelt_name_is_told_once_with_the_closest_one(monkeypatch, told, name, advice):
    monkeypatch.setenv(name, "1")
    with pytest.warns(DevmemWarning) as seen:
        config.settings()
    [warning] = seen
    assert str(warning.message).startswith(f"{name} is not a setting of devmem and does nothing: {advice}")
    assert warning.filename == __file__
    config.forget()
    config.settings()  # warnings are errors here: a second one would raise
    assert [(s.name, s.value, s.help) for s in config.describe() if s.source == "unknown"] == [
        (name, "1", str(warning.message))
    ]


def test_a_warning_that_is_an_error_does_not_keep_the_settings_from_being_read(monkeypatch, told):
    monkeypatch.setenv("DEVMEM_DEVISE", "2")
    monkeypatch.setenv("DEVMEM_DEVICE", "3")
    with pytest.raises(DevmemWarning, match="DEVMEM_DEVICE"):
        config.settings()
    assert config.settings().device == 3


def test_names_that_others_read_are_known(monkeypatch, told):
    class Tin:
        name, spi_version, unavailable, device_count, open = "tin-can", 2, 1, 1, 1

    for name in ("DEVMEM_EMULATOR", "DEVMEM_EMULATOR_MODE", "DEVMEM_TIN_CAN_PORT", "DEVMEM", "DEVMEMORY"):
        monkeypatch.setenv(name, "x")
    registry = plugins.Registry()
    registry.add_backend(Tin(), "a test")
    monkeypatch.setattr(plugins, "registry", registry)
    config.settings()
    assert not [s for s in config.describe() if s.source == "unknown"]


def test_an_installed_plugins_name_is_known_before_it_is_loaded(monkeypatch, told):
    entry = types.SimpleNamespace(name="copper", load=lambda: pytest.fail("nothing is imported to look at a name"))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    monkeypatch.setattr(plugins, "registry", plugins.Registry())
    monkeypatch.setenv("DEVMEM_COPPER_PORT", "x")
    config.settings()
    monkeypatch.setenv("DEVMEM_COPPERPORT", "x")
    config.forget()
    with pytest.warns(DevmemWarning, match="DEVMEM_COPPERPORT is not"):
        config.settings()


def test_a_built_in_backends_prefix_excuses_nothing(monkeypatch, told):
    monkeypatch.setenv("DEVMEM_HOST_STRCT", "1")
    with pytest.warns(DevmemWarning, match=r"DEVMEM_HOST_STRCT .* did you mean DEVMEM_HOST_STRICT\?"):
        config.settings()


def test_the_variable_of_an_option_is_named_where_the_backend_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.variable_of("host", "devices") == "DEVMEM_HOST_DEVICES"
    assert config.variable_of("cuda", "devices") == ""
    theirs = types.SimpleNamespace(name="my-cards", options={"devices": "how many"})
    monkeypatch.setattr(config, "_configurable", lambda: [theirs])
    monkeypatch.setenv("DEVMEM_MY_CARDS_FAST", "1")  # no setting
    assert config.variable_of("my-cards", "devices") == "DEVMEM_MY_CARDS_DEVICES"
    assert config.variable_of("my-cards", "fast") == ""
