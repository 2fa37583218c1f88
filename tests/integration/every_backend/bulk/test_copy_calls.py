"""The calls for copies that vendors have more of: the one that takes no longer is taken, chosen as the device opens."""

from __future__ import annotations

import pytest

from devmem.testing import emulator

#: Copies of 32 KiB in page-locked memory, where the calls of each round seem to take so long, in turns.
SCRIPT = """
import itertools, numpy as np, devmem as dm
from devmem.testing import emulator
from devmem.toolkit import copy_calls
times = itertools.cycle(TIMES)
copy_calls.time_of = lambda call: (call(), next(times))[1]
device = dm.current_device()
told = device.info.facts["copy_calls"]
assert ("several copies take one call: 32 of them take " in told) == TOGETHER, told
assert ("batch_copy" in device.info.capabilities) == TOGETHER
hosts = [dm.pinned_array(1 << 15, np.uint8) for _ in range(9)]
for number, host in enumerate(hosts):
    host[...] = number
control = emulator.control(device.backend)
control.reset()
up = dm.to_device_many(hosts, dm.stream(non_blocking=True))
calls = {name: count for name, count in control.calls().items() if "Memcpy" in name}
[count] = calls.values()
assert (count, "Batch" in next(iter(calls))) == ((1, True) if TOGETHER else (9, False)), calls
dm.synchronize()
assert [int(each.copy_to_host().max()) for each in up] == list(range(9))
"""


@pytest.fixture
def calls_of(device, python):
    """Run the script, in a fresh interpreter: `calls_of(times, together)`."""
    if not device.info.facts.get("copy_calls"):
        pytest.skip(f"{device} has one call for each copy")
    try:
        emulator.control(device.backend)
    except emulator.EmulatorNotLoaded:
        pytest.skip(f"the library of {device} is not emulated: it counts no calls")

    def run(times, together):
        script = SCRIPT.replace("TIMES", str(times)).replace("TOGETHER", str(together))
        done = python(script)
        assert (done.returncode, done.stderr) == (0, "")

    return run


@pytest.mark.parametrize(("times", "together"), [((2e-6, 1e-6), True), ((1e-6, 1e-6), True), ((1e-6, 1.01e-6), False)])
def test_batches_are_made_by_one_call_where_that_is_no_slower(calls_of, times, together):
    calls_of(times, together)


def test_what_else_the_machine_does_once_does_not_decide(calls_of):
    """Five rounds in which the one call seems slower, and one in which it is not."""
    calls_of([1e-6, 2e-6] * 5 + [1e-6, 1e-6], True)


UNMEASURED = """
import devmem as dm
from devmem.testing import emulator
device = dm.device()
emulator.load(device.backend)
control = emulator.control(device.backend)
[name] = [each for each in control.functions() if each in (FUNCTION, FUNCTION + "_v2")][-1:]
control.fail(name, 1, 2)
told = device.info.facts["copy_calls"]
assert "could not be measured" in told, told
assert dm.to_device([1, 2]).tolist() == [1, 2]
dm.close()
assert control.live() == (0, 0), control.live()
"""


@pytest.mark.parametrize(
    "function",
    [
        *("cuMemAlloc", "cuMemHostAlloc", "cuStreamCreateWithPriority", "cuMemcpyBatchAsync"),
        *("hipMalloc", "hipHostMalloc", "hipStreamCreateWithPriority", "hipMemcpyBatchAsync"),
    ],
)
def test_a_device_opens_where_the_calls_cannot_be_measured(calls_of, device, python, function):
    if function not in emulator.control(device.backend).functions():
        pytest.skip(f"the library of {device} has no such function")
    done = python(UNMEASURED.replace("FUNCTION", repr(function)))
    assert (done.returncode, done.stderr) == (0, "")
