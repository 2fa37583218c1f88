"""The functions of the compiled core with arguments of any kind: ``python core_calls.py FIRST LAST`` runs those seeds.

Before them each function is called with one field of its objects that is missing, or holds something else.

What devmem hands to the core it has checked, but an object may be half made, of a program's own class, or changed meanwhile. The
core answers, or raises what is not SystemError; that it reads nothing else is for the address sanitizer to see.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import warnings

import numpy as np
from table_driver import TableBackend

import devmem as dm
from devmem import _native

CALLS = 60
#: What is no object of devmem's.
PLAIN = [
    None, True, False, 0, 1, -1, 16, 1 << 40, 1 << 70, 2.5, "C", "x", b"ab", bytearray(3), memoryview(b"abc"), object(), {}, [],
    [8], [24, 24], [np.arange(3.0)], (), (0,), (1,), (-1,), (2, 8), (1, 0), (1, "y"), (1 << 63,), (1 << 62, 4), slice(1, 3),
    slice(None), slice(None, None, 0), slice(1 << 70), slice("a"), np.arange(16.0), np.arange(16.0)[::2], np.zeros((3, 4)),
    np.zeros(0), np.array(None, object), np.array([object()]), np.float32(3), np.float64, np.dtype("f8"), np.dtype(object),
]  # fmt: skip
ARRAY = ("_ptr", "_shape", "_dtype", "_strides", "_stream", "allocation", "open_device")
#: All that the fields of addresses take: numbers.
ADDRESSES = [0, 1, 16, 1 << 40]
ALLOCATION = ("queue", "device_handle", "heap", "home", "ptr", "streams")
#: Fields of an array, its allocation, a stream, an event and the stream's record, which take anything and can be deleted.
OWNER = ("services", "device_handle", "handle", "owned", "_drop")
FIELDS = (
    ARRAY[1:],
    tuple(name for name in ALLOCATION if name != "ptr"),
    (*OWNER, "recorder"),
    OWNER,
    ("handle", "table", "key"),
)
MISSING = object()


def made(chance):
    """Objects of devmem's: whole, ended, with nothing in them, and with something else in some of their fields."""
    core = _native.core
    array, matrix, freed = dm.to_device(np.arange(16.0)), dm.to_device(np.ones((3, 4))), dm.to_device(np.arange(3.0))
    freed.free()
    pairs = [(dm.stream(), dm.event()), (dm.stream(), dm.event())]
    for each in pairs[1]:
        each.close()
    states = [
        core.ArrayState,
        core.AllocationState,
        core.HandleState,
        core.StreamState,
        core.EventState,
        core.RecordState,
    ]
    whole = [array, array.allocation, array.allocation.device_handle, *pairs[0], pairs[0][0].owned]
    empty = [object.__new__(type(each)) for each in whole[:3]] + [state() for state in states]
    odd = object.__new__(type(array)), object.__new__(type(array.allocation))
    for target, names, like in zip(odd, (ARRAY, ALLOCATION), (array, array.allocation), strict=True):
        for name in names:
            if chance.random() < 0.8:
                odd_ones = ADDRESSES if name in ("ptr", "_ptr") else [*PLAIN, *whole, *empty]
                setattr(target, name, chance.choice([getattr(like, name)] * 3 + odd_ones))
    odd[1].freed = True
    return [*whole, matrix, freed, *pairs[1], *empty, *odd, array.open_device]


def right(name, objects):
    """Arguments that the function takes."""
    array, allocation, _, stream, event, *_ = objects
    lists = [np.arange(3.0), np.arange(4.0)], [24, 32], [256, 256]
    return {
        "address": [np.arange(3.0)], "upload": [np.arange(5.0), 0, True, None, None], "part": [array, slice(1, 3)],
        "allocate": [(3,), np.dtype("f8"), None, 24, 0], "make": [4, float, None, "C", 0], "free": [allocation],
        "download": [array, None, 0, False], "upload_into": [array, np.arange(16.0), 0], "reshaped": [array, (4, 4)],
        "beside": [array.open_device, allocation, 4096, None, allocation, *lists], "adopt": [array],
        "export": [array, None, (1, 0), None, None], "take_stream": [0, False], "take_event": [True],
        "record_event": [event, stream], "close_stream": [stream], "close_event": [event], "synchronize": [stream],
        "upload_into, on a stream": [array, np.arange(16.0), stream],
        "download, on a stream": [array, np.zeros(16), stream, False],
    }[name]  # fmt: skip


NAMES = (
    "address", "upload", "allocate", "make", "free", "download", "upload_into", "part", "reshaped", "beside", "adopt",
    "export", "take_stream", "take_event", "record_event", "close_stream", "close_event", "synchronize",
    "upload_into, on a stream", "download, on a stream",
)  # fmt: skip


def call(name, arguments, told):
    try:
        getattr(_native.core, name.partition(",")[0])(*arguments)
    except SystemError as error:
        raise AssertionError(f"{told}: {name}{tuple(map(type, arguments))}") from error
    except Exception:
        return


def one_field(name, which, field, value):
    """Call a function with one field of one object missing, or of that value."""
    array, stream, event = dm.to_device(np.arange(16.0)), dm.stream(), dm.event()
    array.copy_to_device(np.arange(16.0), stream)  # the first is Python's
    block, record = array.allocation, stream.owned
    target, arguments = (array, block, stream, event, record)[which], right(name, [array, block, None, stream, event])
    before = getattr(target, field)
    if value is MISSING:
        delattr(target, field)
    else:
        setattr(target, field, value)
    call(name, arguments, f"{field} of a {type(target).__name__}: {value}")
    with contextlib.suppress(AttributeError):  # of one that the call has closed
        setattr(target, field, before)


def run(seed):
    chance = random.Random(seed)
    objects = made(chance)
    for _ in range(CALLS):
        name = chance.choice(NAMES)
        arguments = right(name, objects)
        for at in range(len(arguments)):
            if chance.random() < 0.4:
                arguments[at] = chance.choice([*objects, *PLAIN])
        if chance.random() < 0.1:
            arguments = [*arguments, None] if chance.random() < 0.5 else arguments[1:]
        call(name, arguments, f"seed {seed}")
    odd = objects[-2]
    if isinstance(getattr(odd, "device_handle", None), _native.core.HandleState):
        odd.ptr = 0  # or its finalizer would append it to the queue, which frees it


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    backend = TableBackend("any-call")
    dm.register_backend(backend)
    with dm.use_backend(backend.name):
        for _ in range(2):  # the first of each is made, and kept, by Python
            dm.stream().close()
            dm.event().close()
        for which, fields in enumerate(FIELDS):
            for name, field, value in itertools.product(NAMES, fields, (MISSING, None, 5, (1, "y"))):
                one_field(name, which, field, value)
        for number in range(int(sys.argv[1]), int(sys.argv[2])):
            run(number)
    print("ends")
