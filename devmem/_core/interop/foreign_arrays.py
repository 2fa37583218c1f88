"""Using memory of other libraries in place: what DLPack and the CUDA Array Interface say about it, checked.

The result is what a device array is made of, ``(open device, allocation, address, shape, dtype, strides)``. This module makes no
arrays, so that arrays can use it. Which of the two is asked:

===============  ==========================================  ===============================================================
the object has   asked                                       where that refuses
===============  ==========================================  ===============================================================
DLPack alone     DLPack                                      its error
interface alone  the interface                               its error
both             DLPack, which says for whom memory is       the interface, if DLPack has no type for what it describes:
                 ready, and of what kind it is               records, dates, text, long double, another byte order; else
                                                             DLPack's error stands, whatever its reason is
===============  ==========================================  ===============================================================
"""

# Decision: docs/adr/0007-exchange-follows-dlpack.md
from __future__ import annotations

import operator
import re
import reprlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spi.driver import FullDriver
from ...spi.errors import ConfigError, LayoutError, UnsupportedError
from ...spi.sizes import exact_size
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from ..base.address import bytes_at
from ..base.arguments import foreign_attribute, integers_of
from ..base.config import settings
from ..base.device_handle import CurrentDevice, known_bytes
from ..base.layout import Shape, new_host
from ..device.device import checked_device, current_open_device
from ..device.open_device import OpenDevice
from ..device.opening import open_devices
from ..lifetime.allocation import ForeignAllocation
from ..ordering.stream import Stream
from ..ordering.stream_table import NO_ADDRESS
from .dlpack import DEVICE_NAMES, HOST_TYPES, IS_COPIED, READ_ONLY, VERSION, Layout, check_address, layout_of, take
from .dlpack_types import has_type

Parts = tuple[OpenDevice, ForeignAllocation, int, Shape, "np.dtype[Any]", Shape | None]

#: The newest version of the CUDA Array Interface that is read.
INTERFACE_VERSION = 3
_TYPESTR = re.compile(r"[<>|=][a-zA-Z][0-9]{1,9}(\[[0-9]*[a-zA-Z]+\])?")


def device_memory(obj: object) -> Parts | None:
    """The device memory of an object of another library; None if it has none, as ordinary arrays and lists."""
    if isinstance(obj, np.ndarray):
        return None
    if is_tensor(obj):
        device = device_of_tensor(obj)
        if device[0] in HOST_TYPES:
            return None
        try:
            return by_dlpack(obj, device)
        except BufferError:
            interface = foreign_attribute(obj, "__cuda_array_interface__")
            if not _is_beyond_dlpack(interface):
                raise
    else:
        interface = foreign_attribute(obj, "__cuda_array_interface__")
    return None if interface is None else _by_interface(obj, interface)


def has_device_memory(obj: object) -> bool:
    """Whether an object of another library says that it has device memory; it does not have to export it."""
    if isinstance(obj, np.ndarray):
        return False
    if is_tensor(obj):
        return device_of_tensor(obj)[0] not in HOST_TYPES
    return foreign_attribute(obj, "__cuda_array_interface__") is not None


# -- DLPack ------------------------------------------------------------------------------------------------------------


def is_tensor(obj: object) -> bool:
    """Whether the class of an object has DLPack's methods; None in place of one says that it has not, as everywhere in Python."""
    kind = type(obj)
    return getattr(kind, "__dlpack_device__", None) is not None and getattr(kind, "__dlpack__", None) is not None


def device_of_tensor(obj: Any, instead: str = "give numpy.asarray(x)") -> tuple[int, int]:
    """(type, number) of the DLPack device that an object says it is on; TypeError, with what to do ``instead``, if none."""
    try:
        ask, export = obj.__dlpack_device__, obj.__dlpack__
    except Exception:
        ask = export = None
    if ask is None or export is None:
        lacking = f"__dlpack__ and __dlpack_device__: {instead}"
        if type(obj).__name__ == "PyCapsule":
            lacking = "__dlpack_device__: give the object that made it"
        raise TypeError(f"{_type(obj)} has no {lacking}")
    answer = ask()
    try:
        kind, number = answer
        return operator.index(kind), operator.index(number)
    except (TypeError, ValueError):
        raise BufferError(f"__dlpack_device__ of {_type(obj)} returned {answer!r}, not two integers") from None


def by_dlpack(
    obj: object, device: tuple[int, int], copy: bool | None = None, opened: OpenDevice | None = None
) -> Parts:
    """The memory of an object, made ready for the current stream; BufferError if it cannot be had, or is impossible.

    ``device`` is the DLPack device that the object says; ``opened``, where it is known already, the open device.
    """
    if opened is None:
        opened = open_device_of_type(*device)
    handle = opened.handle
    stream, number = current_number(opened)
    with CurrentDevice(handle) as driver:  # producers refuse tensors of a device that is not current
        ptr, exported, (shape, strides, low, nbytes), dtype, flags, owner = take(_capsule_of(obj, number, copy))
        if exported != device and (exported[0] != device[0] or device[0] not in HOST_TYPES):
            raise BufferError(
                f"{_type(obj)} says that it is on DLPack device {device} and exports memory of {exported}"
            )
        if copy is False and flags & IS_COPIED:
            raise BufferError(f"{_type(obj)} was asked for its memory, copy=False, and exports a copy")
        if ptr and handle.checks_memory:
            _check_memory(driver, ptr + low, nbytes, obj, BufferError)
    allocation = opened.memory.foreign(ptr, nbytes, owner, stream, bool(flags & READ_ONLY))
    return opened, allocation, ptr, shape, dtype, strides


def current_number(opened: OpenDevice) -> tuple[Stream, int | None]:
    """The stream on which memory is made ready, and the number that its producer knows that by; None: it knows none."""
    handle = opened.handle
    stream = opened.streams.stream_of(None)
    if not handle.stream_numbers:
        return stream, None
    number = handle.stream_numbers.get(stream.handle, stream.handle)
    if number == PER_THREAD_STREAM and number not in handle.stream_numbers:
        # The vendor has no number for the thread's own default stream, which waits for the legacy one.
        stream = opened.streams.legacy
        number = handle.stream_numbers[stream.handle]
    return stream, number


def is_known(opened: OpenDevice, ptr: int, nbytes: int) -> bool:
    """Whether the driver knows all of this memory of another library, as far as it can be asked."""
    handle = opened.handle
    if not handle.checks_memory:
        return True
    try:
        with CurrentDevice(handle) as driver:
            _check_memory(driver, ptr, nbytes, None, BufferError)
    except BufferError:
        return False
    return True


def host_tensor(obj: object) -> npt.NDArray[Any]:
    """An ndarray of the host memory that an object exports by DLPack, of any DLPack type; it keeps the memory alive."""
    kind, _ = device_of_tensor(obj)
    ptr, device, (shape, strides, low, nbytes), dtype, flags, owner = take(_capsule_of(obj, None, None))
    if device[0] != kind:
        raise BufferError(f"{_type(obj)} says that its memory is of DLPack type {kind} and exports {device[0]}")
    if not ptr:
        return new_host(shape, dtype)
    raw = bytes_at(ptr + low, nbytes, read_only=bool(flags & READ_ONLY), owner=owner)
    return np.ndarray(shape, dtype, raw, -low, strides)


def _capsule_of(obj: Any, stream: int | None, copy: bool | None) -> Any:
    """The object's capsule. copy=True is not passed on: devmem makes such copies itself.

    BufferError for a tensor of PyTorch whose elements are negated when they are read, the imaginary part of a lazily conjugated
    one: PyTorch exports the elements as they are in memory. Lazily conjugated tensors it refuses itself.
    """
    if getattr(type(obj), "is_neg", None) is not None and obj.is_neg():
        raise BufferError(f"{_type(obj)} is negated only when it is read: give its resolve_neg()")
    try:
        if copy is False:
            return obj.__dlpack__(stream=stream, max_version=VERSION, copy=False)
        return obj.__dlpack__(stream=stream, max_version=VERSION)
    except TypeError:  # from before DLPack 1.0, when no producer copied
        return obj.__dlpack__() if stream is None else obj.__dlpack__(stream=stream)


def open_device_of_type(kind: int, number: int) -> OpenDevice:
    """The open device with this DLPack type and number; BufferError if devmem has none open."""
    current = current_open_device()
    if (kind, number) == current.handle.dlpack_device:
        return current
    for opened in _candidates():
        info = opened.handle.info
        if kind in (info.exchange.device_type, info.exchange.managed_type):
            if opened.handle.is_host or number == info.ordinal:
                return opened
            try:
                return checked_device(info.backend, number, f"{info.backend}:{number}").opened()
            except ConfigError as error:
                raise BufferError(f"the memory is on DLPack device {(kind, number)}, but {error}") from None
    if kind in HOST_TYPES and current.handle.is_host:
        return current
    name = DEVICE_NAMES.get(kind, "of a type that devmem does not know")
    raise BufferError(
        f"the memory is on DLPack device {(kind, number)} ({name}), and no device that devmem has open is that one: the current "
        f"one is {current.device}; choose its backend with devmem.use_backend(), or copy through the host"
    )


# -- the CUDA Array Interface ------------------------------------------------------------------------------------------


def _is_beyond_dlpack(interface: Any) -> bool:
    """Whether an interface describes elements that DLPack has no type for.

    Bytes without names of fields may be anything: so the interface has bfloat16, too, which DLPack has a type for.
    """
    try:
        dtype = _element_type(interface)
    except (TypeError, LookupError, ValueError, AttributeError):
        return False  # it is none, or not a right one
    return not (dtype.kind == "V" and dtype.fields is None) and not has_type(dtype)


def _by_interface(obj: object, interface: dict[str, Any]) -> Parts:
    """The memory of an object with this ``__cuda_array_interface__``; the current stream waits for the stream in it."""
    ptr, read_only, dtype, layout, number = _parsed(interface, obj)
    shape, strides, low, nbytes = layout
    if not nbytes:
        opened = current_open_device()
        return opened, opened.memory.foreign(0, 0, obj, None, read_only), 0, shape, dtype, None
    opened = _open_device_of_memory(ptr + low, nbytes, obj)
    stream = opened.streams.stream_of(None)
    if number is not None and settings().cuda_array_interface_sync:
        handle = _stream_handle(opened, number, obj)
        if handle != stream.handle:
            with CurrentDevice(opened.handle):
                opened.completions.order(stream.handle, handle)
    return opened, opened.memory.foreign(ptr, nbytes, obj, stream, read_only), ptr, shape, dtype, strides


def _parsed(interface: dict[str, Any], obj: object) -> tuple[int, bool, np.dtype[Any], Layout, object]:
    """Address, whether it is read-only, dtype, layout and stream."""
    try:
        version = operator.index(interface["version"])
        ptr, read_only = interface["data"]
        ptr, read_only = 0 if ptr is None else operator.index(ptr), bool(read_only)
        shape = integers_of(interface["shape"], "its shape is made of integers")
        optional = interface.get
        strides = optional("strides")
        if strides is not None:
            strides = integers_of(strides, "its strides are integers")
        dtype = _element_type(interface)
        stream, mask = optional("stream"), optional("mask")
    except (TypeError, LookupError, ValueError, AttributeError, ArithmeticError, SyntaxError) as error:
        # NumPy reads parts of a dtype's text as Python's.
        raise LayoutError(f"{_interface(obj)} is not one: {type(error).__name__}: {error}") from None
    if not 0 <= version <= INTERFACE_VERSION:
        raise UnsupportedError(f"{_interface(obj)} has version {version}, this devmem reads up to {INTERFACE_VERSION}")
    if mask is not None:
        raise UnsupportedError(f"{_interface(obj)} has a mask, which would be lost: give data and mask by themselves")
    try:
        layout = layout_of(shape, strides, dtype.itemsize)
        check_address(ptr, layout)
    except ValueError as error:
        raise LayoutError(f"{_interface(obj)} {error}") from None
    return ptr, read_only, dtype, layout, stream if version >= 3 else None


def _element_type(interface: dict[str, Any]) -> np.dtype[Any]:
    dtype = _dtype_of(interface["typestr"])
    return _with_fields(dtype, interface.get("descr")) if dtype.kind == "V" else dtype


@lru_cache(maxsize=256)
def _dtype_of(typestr: str) -> np.dtype[Any]:
    if not isinstance(typestr, str) or not _TYPESTR.fullmatch(typestr):  # numpy.dtype takes far more
        raise TypeError(f"a typestr is a byte order, a kind and a number of bytes, not {typestr!r}")
    return _without_objects(np.dtype(typestr))


def _with_fields(dtype: np.dtype[Any], descr: list[tuple[Any, ...]] | None) -> np.dtype[Any]:
    """The record with these fields, if it has the size of the dtype; else the dtype."""
    if not descr:
        return dtype
    try:
        if not _is_plain(descr):  # anything else might go on for ever
            raise TypeError(f"descr is made of lists, tuples, text and integers, not {reprlib.repr(descr)}")
        fields = _without_objects(np.lib.format.descr_to_dtype(descr))  # for which nameless fields are gaps
    except RecursionError:
        raise ValueError("descr has fields within fields without end") from None
    return fields if fields.fields and fields.itemsize == dtype.itemsize else dtype


def _is_plain(part: object) -> bool:
    return isinstance(part, str | int | np.integer) or (isinstance(part, list | tuple) and all(map(_is_plain, part)))


def _without_objects(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject:
        raise TypeError("Python objects mean nothing on a device")
    return dtype


def _stream_handle(opened: OpenDevice, stream: object, obj: object) -> int:
    """The handle by which devmem knows the stream in an interface."""
    if isinstance(stream, bool) or not hasattr(stream, "__index__"):
        raise LayoutError(f"{_interface(obj)} names its stream {stream!r}, not by an integer")
    number = operator.index(stream)
    handle = (opened.handle.info.exchange.streams or {}).get(number, number)
    if handle not in (LEGACY_STREAM, PER_THREAD_STREAM) and not NO_ADDRESS <= handle < 1 << 64:
        allowed = "1 is the legacy default stream, 2 the thread's own, others are addresses of 64 bits"
        raise LayoutError(f"{_interface(obj)} names the stream {number}, which is not allowed: {allowed}")
    return handle


def _candidates() -> Iterator[OpenDevice]:
    """The open devices, the current one first."""
    current = current_open_device()
    yield current
    yield from (opened for opened in open_devices() if opened is not current)


def _open_device_of_memory(low: int, nbytes: int, obj: object) -> OpenDevice:
    """The device of memory, by asking the drivers, because the interface does not say; LayoutError if it has only a part.

    Where a driver cannot be asked, the interface is believed if arrays on that device have one, too.
    """
    for opened in _candidates():
        info = opened.handle.info
        if not opened.handle.knows_pointers:
            if info.exchange.array_interface:
                return opened
            continue
        with CurrentDevice(opened.handle) as driver:
            ordinal = driver.pointer_device(low)
            if ordinal == info.ordinal:
                _check_memory(driver, low, nbytes, obj, LayoutError)
                return opened
        if ordinal is not None:
            opened = checked_device(info.backend, ordinal, ordinal).opened()
            with CurrentDevice(opened.handle) as driver:
                _check_memory(driver, low, nbytes, obj, LayoutError)
            return opened
    names = ", ".join(str(opened.device) for opened in _candidates())
    raise UnsupportedError(
        f"{_interface(obj)} has memory at {low:#x} that no device of devmem's knows (asked: {names}): choose the "
        f"backend of the library that made it with devmem.use_backend()"
    )


def _check_memory(driver: FullDriver, low: int, nbytes: int, obj: object, error: type[Exception]) -> None:
    """Raise unless the entered driver knows all of the memory, which may consist of several adjacent allocations."""
    known = known_bytes(driver, low, nbytes)
    if known < nbytes:
        beyond = f"reaches {exact_size(nbytes - known)} further than that" if known else "is no memory"
        what = f"{exact_size(nbytes)} at {low:#x}, which {beyond} on {driver.info.name}"
        raise error(f"{_type(obj)} says that it has {what}")


def _type(obj: object) -> str:
    return f"a {type(obj).__name__}"


def _interface(obj: object) -> str:
    return f"the __cuda_array_interface__ of {_type(obj)}"
