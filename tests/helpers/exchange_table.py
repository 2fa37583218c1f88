"""DLPack's table of C functions, as ctypes has it, and what a library in C does with it."""

from __future__ import annotations

import ctypes

from devmem._core.interop.dlpack_types import DLManagedTensorVersioned

Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Tell = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


class Table(ctypes.Structure):
    """``DLPackExchangeAPI`` of DLPack 1.3."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("before", ctypes.c_void_p),
        ("allocate", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, Tell)),
        ("from_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)),
        ("to_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("borrow", ctypes.c_void_p),
        ("work_stream", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)),
    )


def pointer_in(capsule, name=b"dlpack_exchange_api"):
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return get(capsule, name)


def exported(table, array):
    out = ctypes.c_void_p()
    assert table.from_object(array, ctypes.addressof(out)) == 0
    return DLManagedTensorVersioned.from_address(out.value)


def end(tensor):
    Deleter(tensor.deleter)(ctypes.addressof(tensor))
