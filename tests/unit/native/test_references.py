"""Objects that calls of the compiled core leave behind, over many calls: none."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from exchange_table import Table, end, exported, pointer_in
from table_driver import TableBackend

import devmem as dm
from devmem import _native
from devmem._core.interop.dlpack import NUMPY_IS_VERSIONED

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)
ROUNDS = 20_000
#: Objects that the interpreter makes and keeps meanwhile: of its caches, say.
SLACK = 200


@pytest.fixture(scope="module")
def backend():
    made = TableBackend("references")
    dm.register_backend(made)
    with dm.use_backend(made.name):
        yield made


def left_after(once, rounds=ROUNDS):
    """Blocks of memory that the interpreter has more after so many calls."""
    for _ in range(50):
        once()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(rounds):
        once()
    gc.collect()
    return sys.getallocatedblocks() - before


def refused(call):
    try:
        call()
    except Exception:
        return
    raise AssertionError("it was not refused")


@pytest.fixture
def verbs(backend):
    host, out, other = np.arange(16.0), np.empty(16), np.empty(5, "i2")
    array, empty, stream = dm.to_device(host), dm.device_array((0, 3)), dm.stream()
    array.copy_to_device(host, stream)  # the first on a stream is Python's
    if not NUMPY_IS_VERSIONED:
        pytest.skip("NumPy before 2.1 makes no versioned capsules: devmem offers no table")
    table = Table.from_address(pointer_in(dm.DeviceNDArray.__dlpack_c_exchange_api__))

    def failing(name):
        backend.driver.fail(name, 1, 5)
        refused(lambda: dm.to_device(host))
        backend.driver.calls.clear()

    return {
        "upload": lambda: dm.to_device(host).free(),
        "upload, dropped": lambda: dm.to_device(host),
        "allocate": lambda: dm.device_array(16).free(),
        "download": array.copy_to_host,
        "download into": lambda: array.copy_to_host(out),
        "upload into": lambda: dm.to_device(host, to=array),
        "many": lambda: dm.to_device_many([host, out[:0], other]),
        "part": lambda: array[3:9],
        "reshape": lambda: array.reshape(4, -1),
        "part of nothing": lambda: empty[1:],
        "from_dlpack": lambda: dm.from_dlpack(array),
        "capsule": lambda: array.__dlpack__(max_version=(1, 0)),
        "unversioned capsule": array.__dlpack__,
        "table": lambda: end(exported(table, array)),
        "stream": lambda: dm.stream().close(),
        "stream, closed twice": lambda: [each.close() for each in [dm.stream(non_blocking=True)] * 2],
        "event": lambda: [event := dm.event(), event.record(), event.close()],
        "event on a stream": lambda: [event := dm.event(False), event.record(stream), event.close()],
        "upload on a stream": lambda: array.copy_to_device(host, stream),
        "download on a stream": lambda: array.copy_to_host(out, stream),
        "copies, synchronized": lambda: [
            *[array.copy_to_device(host, stream) for _ in range(3)],
            stream.synchronize(),
        ],
        "address": lambda: _native.core.address(host),
        "wrong destination": lambda: refused(lambda: array.copy_to_host(other)),
        "wrong shape": lambda: refused(lambda: array.reshape(3, 5)),
        "allocation that fails": lambda: failing("allocate"),
        "copy that fails": lambda: failing("copy_up"),
    }


NAMES = ["upload", "upload, dropped", "allocate", "download", "download into", "upload into", "many", "part", "reshape"]
NAMES += ["from_dlpack", "capsule", "unversioned capsule", "table"]
NAMES += ["stream", "stream, closed twice", "event", "event on a stream"]
NAMES += ["upload on a stream", "download on a stream", "copies, synchronized"]
NAMES += ["part of nothing", "address", "wrong destination", "wrong shape", "allocation that fails", "copy that fails"]


def test_no_verb_is_left_out(verbs):
    assert sorted(NAMES) == sorted(verbs)


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left(verbs, backend, name, many):
    rounds = ROUNDS * 5 if many or name in ("part", "reshape", "address") else ROUNDS // (40 if "fails" in name else 10)

    def once():
        verbs[name]()
        backend.driver.calls.clear()

    assert left_after(once, rounds) < SLACK


@pytest.mark.parametrize("name", ["freed", "dropped", "never filled", "copy that fails"])
def test_hits_of_a_pool_leave_nothing(name):
    made, host = TableBackend("references-pool"), np.arange(16.0)

    def failing():
        made.driver.fail("copy_up", 1, 5)
        refused(lambda: dm.to_device(host))

    verbs = {
        "freed": lambda: dm.to_device(host).free(),
        "dropped": lambda: dm.to_device(host),
        "never filled": lambda: dm.device_array(16).free(),
        "copy that fails": failing,
    }
    dm.register_backend(made)
    try:
        with dm.use_backend(made.name):
            dm.use_memory(dm.memory.PoolMemory())

            def once():
                verbs[name]()
                made.driver.calls.clear()

            assert left_after(once, 500 if "fails" in name else ROUNDS // 10) < SLACK
    finally:
        dm.unregister_backend(made.name)
