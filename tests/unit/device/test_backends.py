"""Which backend is used, and what is said of those that are not."""

from __future__ import annotations

import warnings

import pytest

from devmem import plugins
from devmem._core.base import config
from devmem._core.device import backends
from devmem.spi import SPI_VERSION
from devmem.spi.errors import BackendUnavailable, ConfigError, DevmemWarning, PluginError


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
    for name in ("BACKEND", "BLOCK_PLUGINS", "DEVICE"):
        monkeypatch.delenv(f"DEVMEM_{name}", raising=False)
    config.forget()

    def make(**reasons):
        for name, reason in {"cuda": "no driver", "roc": "no library", "host": None, **reasons}.items():
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


def test_usable_backend_gives_it_or_says_why_not(world):
    registry = world(cuda=None)
    assert backends.usable_backend("cuda") is registry.backends["cuda"].backend
    with pytest.raises(BackendUnavailable, match="the backend 'roc' cannot be used: no library"):
        backends.usable_backend("roc")
    with pytest.raises(
        ConfigError, match=r"no backend is named 'gpu' \(DEVMEM_BACKEND, use_backend\): give one of cuda, host, roc"
    ):
        backends.usable_backend("gpu")


def test_a_plugin_that_failed_to_load_is_raised_to_who_asks_for_it(world):
    world().failures["mine"] = plugins.Failure("mine 1.0", "plugin 'mine' (mine 1.0): ImportError: no")
    with pytest.raises(PluginError, match=r"plugin 'mine' \(mine 1.0\): ImportError: no"):
        backends.usable_backend("mine")


def test_statuses_tell_of_each_backend(world):
    registry = world(cuda=None, other=None)
    registry.failures["broken"] = plugins.Failure("broken 1.0", "plugin 'broken': no")
    found = {status.name: status for status in backends.statuses()}
    assert list(found) == ["cuda", "roc", "host", "other", "broken"]
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
    assert seen == [{"strict": False, "devices": 5}]


def test_a_warning_is_a_devmem_warning(world):
    world()
    with pytest.warns(DevmemWarning, match="no GPU backend can be used"):
        backends.first_usable()
