"""Which backend is used, and what is said of those that are not."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest

import devmem as dm
from devmem import plugins
from devmem._core.base import config
from devmem._core.base.device_handle import checked_driver
from devmem._core.device import backends
from devmem._core.device.device import device_at
from devmem.spi import SPI_VERSION
from devmem.spi.driver import REQUIRED
from devmem.spi.errors import BackendUnavailable, ConfigError, DevmemWarning, PluginError
from devmem.spi.types import Capability, DeviceInfo
from devmem.toolkit.settings import flag


class Backend:
    spi_version = SPI_VERSION

    def __init__(self, name, reason=None, count=2):
        self.name = name
        self.reason = reason
        self.count = count

    def unavailable(self):
        return self.reason

    def device_count(self):
        assert self.reason is None, "only asked of a backend that is available"
        return self.count

    def open(self, ordinal):
        raise AssertionError("nothing is opened here")


@pytest.fixture
def world(monkeypatch):
    """Say which backends there are: ``world(cuda="no driver", roc=None)``; a reason makes one unusable."""
    registry = plugins.Registry(third_parties_loaded=True)
    monkeypatch.setattr(plugins, "registry", registry)
    monkeypatch.setattr(backends, "_fallen_back", False)
    for name in ("BACKEND", "BLOCK_PLUGINS", "DEVICE", "HOST_DEVICES", "HOST_STRICT"):
        monkeypatch.delenv(f"DEVMEM_{name}", raising=False)
    config.forget()

    def make(**reasons):
        absent = {"cuda": "no driver", "roc": "no library", "host": None, "opencl": "no runtime"}
        for name, reason in {**absent, **reasons}.items():
            registry.backends[name] = plugins.LoadedBackend(
                Backend(name, reason), "built in" if name in plugins.BUILT_IN else "elsewhere"
            )
        return registry

    yield make
    monkeypatch.undo()
    config.forget()


def chosen():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        return backends.chosen_name(), [str(w.message) for w in seen]


def test_the_plugins_that_the_settings_block_are_not_loaded(world, monkeypatch):
    registry = world()
    monkeypatch.setenv("DEVMEM_BLOCK_PLUGINS", "one,other")
    config.forget()
    assert chosen()[0] == "host"
    assert registry.block == ("one", "other")


@pytest.mark.parametrize(
    ("reasons", "want"),
    [({"cuda": None, "roc": None}, "cuda"), ({"cuda": None}, "cuda"), ({"roc": None}, "roc")],
)
def test_the_first_usable_gpu_backend_silently(world, reasons, want):
    world(**reasons)
    assert chosen() == (want, [])


def test_the_host_with_one_warning_that_lists_the_reasons(world):
    world()
    name, said = chosen()
    assert name == "host"
    assert len(said) == 1
    assert "cuda: no driver; roc: no library" in said[0]
    assert "DEVMEM_BACKEND=host" in said[0]
    assert chosen() == ("host", [])


def test_a_third_party_is_not_chosen_without_being_asked_for(world):
    world(other=None)
    assert chosen()[0] == "host"


def test_the_setting_wins(world, monkeypatch):
    world(cuda=None)
    monkeypatch.setenv("DEVMEM_BACKEND", "host")
    config.forget()
    assert chosen() == ("host", [])


def test_what_is_used_by_name_only_is_not_chosen_and_not_missed(world):
    world(opencl=None)
    name, [message] = chosen()
    assert name == "host"
    assert "opencl" not in message
    assert backends.usable_backend("opencl").backend.name == "opencl"
    assert {each.name for each in backends.statuses() if each.by_name_only} == {"opencl"}


def test_usable_backend_gives_it_or_says_why_not(world):
    registry = world(cuda=None)
    assert backends.usable_backend("cuda") is registry.backends["cuda"]
    with pytest.raises(BackendUnavailable, match="the backend 'roc' cannot be used: no library"):
        backends.usable_backend("roc")
    with pytest.raises(
        ConfigError,
        match=r"no backend is named 'gpu' \(DEVMEM_BACKEND, use_backend\): give one of cuda, host, opencl, roc",
    ):
        backends.usable_backend("gpu")


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("CUDA", "names are lower case, 'cuda'$"),
        ("cpu", r"copy_to_host\(\).*'host' is the backend"),
        ("rocm", "AMD's is 'roc'$"),
    ],
)
def test_a_name_of_other_libraries_says_what_it_is_here(world, name, cure):
    world(cuda=None)
    with pytest.raises(ConfigError, match=rf"no backend is named '{name}'.*{cure}"):
        backends.usable_backend(name)


def test_a_plugin_that_failed_to_load_is_raised_to_who_asks_for_it(world):
    world().failures["mine"] = plugins.Failure("mine 1.0", "plugin 'mine' (mine 1.0): ImportError: no")
    with pytest.raises(PluginError, match=r"plugin 'mine' \(mine 1.0\): ImportError: no"):
        backends.usable_backend("mine")


def test_statuses_tell_of_each_backend(world):
    registry = world(cuda=None, other=None)
    registry.failures["broken"] = plugins.Failure("broken 1.0", "plugin 'broken': no")
    found = {status.name: status for status in backends.statuses()}
    assert list(found) == ["cuda", "roc", "host", "opencl", "other", "broken"]
    assert (found["cuda"].usable, found["cuda"].reason, found["cuda"].devices, found["cuda"].origin) == (
        True,
        None,
        2,
        "built in",
    )
    assert (found["roc"].usable, found["roc"].reason, found["roc"].devices) == (False, "no library", 0)
    assert found["other"].origin == "elsewhere"
    assert not found["broken"].usable
    assert found["broken"].reason == "plugin 'broken': no"


def test_options_are_handed_over_before_the_backend_is_asked(world, monkeypatch):
    registry = world()
    seen = []

    class Configurable(Backend):
        options: ClassVar = {"strict": flag("out of reach"), "devices": "how many"}

        def configure(self, options):
            seen.append(dict(options))

        def unavailable(self):
            assert seen, "asked before it was configured"
            return

    registry.backends["host"] = plugins.LoadedBackend(Configurable("host"), "built in")
    monkeypatch.setenv("DEVMEM_HOST_DEVICES", "5")
    monkeypatch.setenv("DEVMEM_HOST_STRICT", "0")
    config.forget()
    backends.usable_backend("host")
    assert seen == [{"strict": False, "devices": "5"}]


class Pocl(Backend):
    """A third party's backend with one setting."""

    options: ClassVar = {"fast": "0 | 1: skip the checks"}

    def configure(self, options):
        if options.get("fast", "0") not in ("0", "1"):
            raise ConfigError(f"DEVMEM_POCL_FAST={options['fast']!r} is not allowed: give 0 or 1")
        self.given = dict(options)


def test_options_of_a_third_party_reach_it_and_are_listed(world, monkeypatch):
    backend = Pocl("pocl")
    world().backends["pocl"] = plugins.LoadedBackend(backend, "elsewhere")
    assert backends.usable_backend("pocl").backend.given == {}
    monkeypatch.setenv("DEVMEM_POCL_FAST", "1")
    config.forget()
    assert backends.usable_backend("pocl").backend.given == {"fast": "1"}
    [row] = [each for each in config.describe() if each.name == "DEVMEM_POCL_FAST"]
    assert (row.value, row.source, row.help) == ("1", "environment", "0 | 1: skip the checks")
    monkeypatch.setenv("DEVMEM_POCL_FAST", "very")
    config.forget()
    with pytest.raises(ConfigError, match="DEVMEM_POCL_FAST='very' is not allowed"):
        backends.usable_backend("pocl")


def test_an_option_that_a_third_party_does_not_know_is_told_once(world, monkeypatch):
    world().backends["pocl"] = plugins.LoadedBackend(Pocl("pocl"), "elsewhere")
    monkeypatch.setattr(config, "_told", set())
    monkeypatch.setenv("DEVMEM_POCL_FASTER", "1")
    config.forget()
    with pytest.warns(DevmemWarning, match="DEVMEM_POCL_FASTER is not a setting .* did you mean DEVMEM_POCL_FAST?"):
        backends.usable_backend("pocl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backends.usable_backend("pocl")


def test_a_backend_that_raises_when_it_is_asked_is_unavailable(world):
    class Raises(Backend):
        def unavailable(self):
            raise OSError("libpocl.so: cannot open")

    world().backends["pocl"] = plugins.LoadedBackend(Raises("pocl"), "devmem-pocl 1.0")
    with pytest.raises(
        PluginError, match=r"unavailable\(\) of the backend 'pocl' from devmem-pocl 1.0 raised OSError: libpocl"
    ):
        backends.usable_backend("pocl")


# -- what open() returned ----------------------------------------------------------------------------------------------

INFO = DeviceInfo("pocl", 0, "PoCL", "uuid", 1 << 30)


def driver_with(info=INFO, without=()):
    return SimpleNamespace(**{name: print for name in REQUIRED if name not in without} | {"info": info})


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (None, "opened device 3 with None, which lacks info, enter"),
        (driver_with(without=["stream_wait"]), "which lacks stream_wait "),
        (driver_with({"name": "PoCL"}), "an info that is {'name': 'PoCL'}"),
        (driver_with(replace(INFO, alignment=96)), "alignment=96: it is a power of two, at least 64"),
        (
            driver_with(replace(INFO, capabilities=frozenset({"time_travel"}))),
            "unknown capabilities time_travel; there are",
        ),
        (
            driver_with(replace(INFO, capabilities=frozenset({Capability.HOLD}))),
            "the capability 'hold', but without hold, release of SupportsHold",
        ),
    ],
)
def test_a_driver_that_breaks_the_contract_is_refused_by_name(driver, said):
    with pytest.raises(PluginError, match=f"the backend 'pocl' .*{re.escape(said)}"):
        checked_driver(driver, "pocl", 3)


def test_a_driver_that_keeps_the_contract_is_taken():
    driver = driver_with()
    assert checked_driver(driver, "pocl", 0) is driver


def test_a_refused_driver_is_closed():
    class Opens(Backend):
        def open(self, ordinal):
            return driver

    closed = []
    driver = driver_with(without=["fill", "close"])
    driver.close = lambda: closed.append(1)
    plugins.registry.add_backend(Opens("refused"), "a test")
    try:
        with pytest.raises(PluginError, match="lacks fill"):
            device_at("refused", 0).opened()
    finally:
        plugins.registry.remove_backend("refused")
    assert closed == [1]


def test_a_warning_is_a_devmem_warning(world):
    world()
    with pytest.warns(DevmemWarning, match="no GPU backend can be used"):
        backends.first_usable()


@pytest.mark.parametrize("error", [SystemExit(3), KeyError("a"), TypeError("b")])
@pytest.mark.parametrize("verb", ["unavailable", "device_count"])
def test_a_backend_that_fails_is_told_beside_the_others(world, verb, error):
    def fail():
        raise error

    registry = world(sound=None)
    broken = Backend("broken")
    setattr(broken, verb, fail)
    registry.backends["broken"] = plugins.LoadedBackend(broken, "elsewhere")
    found = {each.name: each for each in backends.statuses()}
    assert (found["sound"].usable, found["sound"].devices) == (True, 2)
    assert (found["broken"].usable, found["broken"].devices) == (False, 0)
    assert f"{verb}() of the backend 'broken' from elsewhere raised {type(error).__name__}" in found["broken"].reason


@pytest.mark.parametrize("asked", [99, "host:99", -1])
def test_a_device_that_is_not_there_names_the_setting_of_their_number(asked):
    with dm.use_backend("host"), pytest.raises(dm.ConfigError, match=r"there is no device .*DEVMEM_HOST_DEVICES sets"):
        dm.device(asked)


@pytest.mark.parametrize("verb", [dm.select_device, lambda device: dm.zeros(3, device=device)])
def test_so_do_verbs_that_take_a_device(verb):
    with dm.use_backend("host"), pytest.raises(dm.ConfigError, match="DEVMEM_HOST_DEVICES sets"):
        verb(99)


@pytest.mark.parametrize("place", [1, "host:1"])
def test_a_background_copy_to_another_device_says_to_device(place):
    with dm.use_backend("host"):
        array = dm.zeros(3, device=0)
        with pytest.raises(dm.LayoutError, match=rf"to_device\(array, stream, device={place!r}\) copies it there"):
            dm.copy_async(array, device=place)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("rocm", "AMD's is 'roc'"),
        ("AMD", "AMD's is 'roc'"),
        ("nvidia", "NVIDIA's is 'cuda'"),
        ("gpu", "the first usable one"),
        ("Host", "lower case, 'host'"),
        ("cuda:1", r"devmem\.device\('cuda:1'\), or DEVMEM_DEVICE"),
    ],
)
def test_another_name_of_a_backend_says_what_it_is_here(world, name, advice):
    world()
    with pytest.raises(ConfigError, match=f"no backend is named '{name}' .*; .*{advice}"):
        backends.usable_backend(name)
