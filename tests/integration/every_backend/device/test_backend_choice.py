"""Which backend: DEVMEM_BACKEND, else the first GPU that works, else the host with one warning. In fresh interpreters."""

from __future__ import annotations

import pytest

import devmem as dm

GPUS = ("cuda", "roc")


@pytest.fixture(scope="module")
def usable():
    return {status.name: status for status in dm.backends()}


def unusable_gpu(usable):
    for name in GPUS:
        if not usable[name].usable:
            return usable[name]
    pytest.skip("every GPU backend can be used here")
    return None


def test_devmem_backend_says_which(python, devmem_backend):
    done = python("import devmem as dm; print(dm.zeros(3).device.backend)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == devmem_backend


@pytest.mark.races("the setting itself is in what it reads")
def test_without_a_gpu_the_host_with_one_warning_that_has_the_reasons(python, usable):
    if any(usable[name].usable for name in GPUS):
        pytest.skip("a GPU backend can be used here")
    script = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import devmem as dm
    dm.zeros(3), dm.current_device(), dm.zeros(3)
    dm.close()
    dm.zeros(3)
print(dm.current_device().backend, len(seen), seen[0].category.__name__)
print(seen[0].message)
"""
    done = python(script, BACKEND=None)
    assert done.returncode == 0, done.stderr
    first, message = done.stdout.strip().split("\n", 1)
    assert first == "host 1 DevmemWarning"
    for name in GPUS:
        assert f"{name}: {usable[name].reason.partition(' (')[0]}" in message
    assert "DEVMEM_BACKEND=host" in message


def test_naming_the_host_silences_the_warning(python):
    done = python("import warnings; warnings.simplefilter('error'); import devmem as dm; dm.zeros(3)", BACKEND="host")
    assert done.returncode == 0, done.stderr


def test_an_empty_setting_is_as_none(python, usable):
    if any(usable[name].usable for name in GPUS):
        pytest.skip("a GPU backend can be used here")
    done = python("import devmem as dm; print(dm.zeros(3).device.backend)", BACKEND="")
    assert done.stdout.strip() == "host"
    assert "DevmemWarning" in done.stderr


def test_with_a_gpu_it_is_chosen_silently(python, usable):
    first = next((name for name in GPUS if usable[name].usable), None)
    if first is None:
        pytest.skip("no GPU backend can be used here")
    done = python(
        "import warnings; warnings.simplefilter('error'); import devmem as dm; print(dm.zeros(3).device.backend)",
        BACKEND=None,
    )
    assert done.stdout.strip() == first, done.stderr


SAY = """
import devmem as dm
try:
    {call}
except Exception as error:
    print(type(error).__name__, "|", error)
"""
CALLS = [
    "dm.zeros(3)",
    "dm.to_device([1])",
    "dm.stream()",
    "dm.current_device()",
    "dm.memory_info()",
    "dm.device(0)",
    "dm.event()",
    "dm.synchronize()",
]


@pytest.mark.parametrize("call", CALLS)
def test_asking_for_a_gpu_that_is_not_there_raises(python, usable, call):
    status = unusable_gpu(usable)
    done = python(SAY.format(call=call), BACKEND=status.name)
    kind, _, message = done.stdout.strip().partition(" | ")
    assert kind == "BackendUnavailable", done.stderr
    assert f"the backend '{status.name}' cannot be used: {status.reason}" in message


@pytest.mark.parametrize("call", CALLS[:4])
def test_an_unknown_backend_is_a_config_error_that_names_the_variable(python, call):
    done = python(SAY.format(call=call), BACKEND="nonsense")
    kind, _, message = done.stdout.strip().partition(" | ")
    assert kind == "ConfigError", done.stderr
    assert "'nonsense'" in message
    assert "DEVMEM_BACKEND" in message
    assert "host" in message


def test_import_alone_reads_nothing_and_opens_nothing(python):
    done = python("import devmem as dm; print(dm.__version__)", BACKEND="nonsense", DEVICE="what", HOST_STRICT="maybe")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_bad_setting_is_raised_by_name_at_first_use(python):
    done = python(SAY.format(call="dm.zeros(3)"), MAX_PENDING_DEALLOCS_RATIO="2")
    kind, _, message = done.stdout.strip().partition(" | ")
    assert kind == "ConfigError"
    assert "DEVMEM_MAX_PENDING_DEALLOCS_RATIO='2'" in message
    assert "a number from 0 to 1" in message


def test_backends_are_listed_with_their_state(usable):
    assert list(usable)[:3] == ["cuda", "roc", "host"]
    assert usable["host"].usable
    assert usable["host"].devices >= 1
    for status in usable.values():
        assert status.usable == (status.reason is None)
        assert status.usable or status.devices == 0
        assert status.origin
