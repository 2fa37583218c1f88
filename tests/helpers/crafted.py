"""DLPack capsules made by hand, right and wrong: what no library should hand out, and what one of them does."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_TENSOR = [
    ("data", ctypes.c_void_p),
    ("device_type", ctypes.c_int32),
    ("device_id", ctypes.c_int32),
    ("ndim", ctypes.c_int32),
    ("code", ctypes.c_uint8),
    ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16),
    ("shape", ctypes.c_void_p),
    ("strides", ctypes.c_void_p),
    ("byte_offset", ctypes.c_uint64),
]


class Legacy(ctypes.Structure):
    """``DLManagedTensor``."""

    _fields_ = [*_TENSOR, ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        *_TENSOR,
    ]


class Crafted:
    """A tensor as it is to be, and how often it was let go of.

    Parameters
    ----------
    ptr : int
        The address.
    shape, strides : tuple of int
        Strides in elements; None for NULL.
    fields : dict
        Any fields of the structure, in place of what is right.
    """

    def __init__(
        self,
        ptr: int,
        shape: tuple[int, ...] = (4,),
        strides: tuple[int, ...] | None = (1,),
        *,
        device: tuple[int, int] = (1, 0),
        versioned: bool = True,
        dtype: str = "f4",
        deleter: bool = True,
        name: bytes | None = None,
        fields: Mapping[str, int | None] = MappingProxyType({}),
    ) -> None:
        self.deleted = 0
        kind = np.dtype(dtype)
        self.tensor: Any = (Versioned if versioned else Legacy)()
        self._words = [(ctypes.c_int64 * max(len(each), 1))(*each) for each in (shape, strides or ())]
        self._callback = _deleter(self._delete)
        told = {
            "data": ptr,
            "device_type": device[0],
            "device_id": device[1],
            "ndim": len(shape),
            "code": {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}[kind.kind],
            "bits": 8 * kind.itemsize,
            "lanes": 1,
            "shape": ctypes.addressof(self._words[0]) if shape else None,
            "strides": ctypes.addressof(self._words[1]) if strides is not None else None,
            "deleter": ctypes.cast(self._callback, ctypes.c_void_p).value if deleter else None,
            **({"major": 1, "minor": 1} if versioned else {}),
            **fields,
        }
        for field, value in told.items():
            setattr(self.tensor, field, value)
        self.device = device
        self._name = ctypes.create_string_buffer(
            name if name is not None else b"dltensor_versioned" if versioned else b"dltensor"
        )
        self.capsule = _new(ctypes.addressof(self.tensor), ctypes.addressof(self._name), None)

    @property
    def taken(self) -> bool:
        """Whether a consumer has said that the tensor is now its own."""
        return bytes(_name_of(self.capsule)).startswith(b"used_")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: object) -> Any:
        self.asked = asked
        return self.capsule

    def _delete(self, at: int) -> None:
        assert at == ctypes.addressof(self.tensor)
        self.deleted += 1


class Producer:
    """Another library's array: passes on what an inner array says, and records what it is asked."""

    def __init__(self, array: Any, **answers: Any) -> None:
        self.array = array
        self.asked: dict[str, object] = {}
        self.answers = answers

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.answers.get("device", self.array.__dlpack_device__())

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked = asked
        before: Callable[[], None] | None = self.answers.get("before")
        if before is not None:
            before()
        return self.array.__dlpack__(**asked)


class OlderProducer(Producer):
    """One from before DLPack 1.0."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:  # type: ignore[override]
        return super().__dlpack__(stream=stream)


class Interface:
    """Another library's array, with the CUDA Array Interface and nothing else."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        self.changes = changes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # Of any device array: not all of ours have an interface of their own.
        whole = {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.array.ptr, False),
            "strides": None if self.array.is_c_contiguous() else self.array.strides,
            "version": 3,
            "stream": None,
            **self.changes,
        }
        return {name: value for name, value in whole.items() if value is not ...}


@contextmanager
def everything_let_go(*tensors: Crafted, times: int = 1) -> Iterator[None]:
    """At the end of the block each tensor has been let go of, exactly that often."""
    yield
    gc.collect()
    assert [each.deleted for each in tensors] == [times] * len(tensors)
