"""The compiled core's verbs on several threads at once, for the thread sanitizer: ``python core_threads.py ROUNDS [BACKEND]``.

Each thread has arrays, streams and events of its own; all share the device, one array, and the queue of what was dropped. Without
a BACKEND over drivers of the tests' own, whose functions are Python's, so that each holds the interpreter's lock for a while.
"""

from __future__ import annotations

import sys

import numpy as np
from exchange_table import Table, end, exported, pointer_in
from table_driver import TableBackend
from waits import together

import devmem as dm
from devmem._core.device.device import current_open_device

THREADS = 4


def verbs(shared, table):
    host = np.arange(16.0)
    array = dm.to_device(host)
    array.copy_to_host()
    array.copy_to_host(host)
    dm.to_device(host, to=array)
    array[3:9].reshape(2, 3)
    dm.from_dlpack(array)
    end(exported(table, array))
    dm.to_device_many([host, host[:5]])
    dm.to_device(host)
    shared.copy_to_host()
    with dm.use_memory("pool"):
        dm.device_array(16)
    array.free()
    stream, event = dm.stream(), dm.event()
    event.record(stream)
    event.close()
    stream.close()


def use(backend, rounds):
    """Run the verbs on every thread, on a device that is opened for it and closed afterwards."""
    table = Table.from_address(pointer_in(dm.DeviceNDArray.__dlpack_c_exchange_api__))

    def run():
        with dm.use_backend(backend):
            for _ in range(rounds):
                verbs(shared, table)

    with dm.use_backend(backend):
        shared = dm.to_device(np.arange(8.0))
        together(*[run] * THREADS, limit=600)
        taken = current_open_device().statistics.compiled(False)
        dm.close()
    assert sum(each[0] for each in taken) > rounds, "the core copied nothing"


def main(rounds, *backends):
    for made in (
        () if backends else [TableBackend(f"threads-{flag}", copies_take_stream=flag) for flag in (False, True)]
    ):
        dm.register_backend(made)
        backends = (*backends, made.name)
    for name in backends:
        use(name, rounds)
    print(f"{rounds} rounds on {THREADS} threads over {', '.join(backends)}")


if __name__ == "__main__":
    sys.setswitchinterval(1e-6)
    main(int(sys.argv[1]), *sys.argv[2:])
