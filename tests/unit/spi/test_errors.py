"""The tree of errors: what each also is, what it carries, and that it survives a pickle."""

from __future__ import annotations

import pickle

import pytest

import devmem as dm
from devmem import errors
from devmem.spi import errors as spi_errors

BUILTIN = {
    "BackendUnavailable": ImportError,
    "BackendError": RuntimeError,
    "OutOfMemory": MemoryError,
    "DeviceLost": RuntimeError,
    "UnsupportedError": NotImplementedError,
    "LayoutError": ValueError,
    "ClosedError": ValueError,
    "ForkedError": RuntimeError,
    "TransferGuardError": RuntimeError,
    "SimulatorError": RuntimeError,
    "PluginError": RuntimeError,
    "ConfigError": ValueError,
}


@pytest.mark.parametrize(("name", "builtin"), BUILTIN.items())
def test_every_error_is_ours_and_what_a_caller_would_catch(name, builtin):
    kind = getattr(errors, name)
    assert issubclass(kind, errors.DevmemError)
    assert issubclass(kind, builtin)
    assert getattr(dm, name) is kind is getattr(spi_errors, name)


def test_nothing_is_missing_from_the_public_module():
    kinds = {n for n, v in vars(spi_errors).items() if isinstance(v, type) and issubclass(v, (Exception, Warning))}
    assert set(errors.__all__) == kinds
    assert kinds <= set(dm.__all__)


def test_the_driver_errors_are_one_family():
    assert issubclass(errors.OutOfMemory, errors.BackendError)
    assert issubclass(errors.DeviceLost, errors.BackendError)
    assert issubclass(errors.DevmemWarning, RuntimeWarning)
    assert not issubclass(errors.DevmemWarning, errors.DevmemError)


@pytest.mark.parametrize("kind", [errors.BackendError, errors.OutOfMemory, errors.DeviceLost])
def test_backend_errors_carry_the_drivers_words_and_keep_them(kind):
    error = kind("message", backend="b", call="bAlloc", code=2, name="B_OUT_OF_MEMORY")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert type(each) is kind
        assert str(each) == "message"
        assert (each.backend, each.call, each.code, each.name) == ("b", "bAlloc", 2, "B_OUT_OF_MEMORY")
    plain = kind("message")
    assert (plain.backend, plain.call, plain.code, plain.name) == ("", "", 0, "")


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_every_error_survives_a_pickle(name):
    error = getattr(errors, name)("what failed, and what to do")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
