"""``DEVMEM_RACES=1`` over an emulated driver: what a program does to page-locked memory itself beside a copy."""

import inspect
import json
import os
import signal
import subprocess
import sys

import host_races
import pytest
from host_races import IN_ORDER, RACES, TWICE, name
from waits import patience

from devmem.testing import emulator


def run(program, *arguments, **variables):
    return subprocess.run(
        [sys.executable, *program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DEVMEM_RACES": "1", **variables},
        capture_output=True,
        text=True,
        timeout=patience(100),
        check=False,
    )


@pytest.fixture
def emulated(device, need):
    """An emulated driver, which the processes that are started here have too."""
    need("graphs")
    device.memory_info()
    try:
        emulator.control(device.backend)
    except (emulator.EmulatorNotLoaded, KeyError):
        pytest.skip("the driver is no emulated one")


_found: dict[str, dict[str, list[object]]] = {}


@pytest.fixture
def found(emulated, device):
    """What is reported for each pair: one process for all of this file's tests."""
    if device.backend not in _found:
        done = run([host_races.__file__], DEVMEM_BACKEND=device.backend)
        assert done.returncode == 0, done.stderr
        _found[device.backend] = json.loads(done.stdout)
    return _found[device.backend]


def last_line(function):
    return inspect.getsource(function).splitlines()[-1].strip()


@pytest.mark.parametrize("pair", RACES, ids=name)
def test_an_access_of_the_program_beside_a_copy_is_reported_with_both_lines(found, pair):
    copy, access = pair
    [(copy_writes, copy_line, stream, line)] = found[name(pair)]
    assert copy_writes == copy.__name__.startswith("download") or copy is host_races.in_background
    assert (stream, line) == ("host", last_line(access))
    assert copy_line == last_line(copy)


@pytest.mark.parametrize("pair", TWICE, ids=name)
def test_accesses_to_two_neighbours_are_two_reports(found, pair):
    """Their pages are protected alike, and next to each other."""
    accesses = [line.strip() for line in inspect.getsource(pair[1]).splitlines()[1:]]
    assert [access for *_, access in found[name(pair)]] == accesses


@pytest.mark.parametrize("pair", IN_ORDER, ids=name)
def test_what_is_in_order_or_apart_is_not_reported(found, pair):
    assert found[name(pair)] == []


FAULT = """
import ctypes, faulthandler, sys
import numpy as np, devmem as dm
if sys.argv[1] == "before": faulthandler.enable()
host = dm.pinned_array(1 << 16, np.uint8)
host[...] = 1
dm.to_device(host)                     # from here on the emulator has a handler
if sys.argv[1] == "after": faulthandler.enable()
host.sum()
dm.to_device(host)
print("a fault", flush=True)
ctypes.string_at(8)
"""


@pytest.mark.parametrize("enabled", ["before", "after", "never"])
def test_a_fault_of_another_address_ends_the_process_as_it_does_without(emulated, device, enabled):
    """Python's faulthandler still tells of it, whichever handler came first."""
    done = run(["-c", FAULT], enabled, DEVMEM_BACKEND=device.backend)
    assert done.stdout == "a fault\n"
    assert done.returncode == -signal.SIGSEGV
    assert ("Segmentation fault" in done.stderr) == (enabled != "never")


FORK = """
import os, numpy as np, devmem as dm
from devmem.testing import hold
host, stream = dm.pinned_array(1 << 16, np.uint8), dm.stream(non_blocking=True)
host[...] = 1
device = dm.to_device(host)
with hold(stream) as latch:
    device.copy_to_device(host, stream=stream)
    child = os.fork()
    if not child:
        host[...] = 2                  # its own
        os._exit(int(host.sum()) != 2 << 16)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    latch.release()
stream.synchronize()
assert (host == 1).all() and (device.copy_to_host() == 1).all()
print("ends")
"""


LATER = """
import os, numpy as np, devmem as dm
host = dm.pinned_array(1 << 16, np.uint8)
dm.to_device(host)
host[...] = 1
(here, there), (before, after) = os.pipe(), os.pipe()
child = os.fork()
if not child:
    os.write(there, b".")
    os.read(before, 1)                 # the parent has written
    os._exit(int(host.sum()) != 1 << 16)
os.read(here, 1)
host[...] = 3
os.write(after, b".")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("ends")
"""


@pytest.mark.parametrize("program", [FORK, LATER], ids=["beside a copy", "while the parent writes"])
def test_the_child_of_a_fork_has_memory_of_its_own(emulated, device, program):
    done = run(["-W", "error::devmem.DevmemWarning", "-c", program], DEVMEM_BACKEND=device.backend)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
