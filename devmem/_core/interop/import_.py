"""Using memory of other libraries in place: what DLPack and the CUDA Array Interface say of it, checked.

What is found is given as what a device array is made of, ``(allocation, address, shape, dtype, strides)``; this module makes no
arrays, so that arrays can ask it.
"""

from __future__ import annotations

import operator
import re
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import ConfigError, LayoutError, UnsupportedError
from ...spi.types import PER_THREAD_STREAM
from ..base.config import settings
from ..base.device_handle import CurrentDevice
from ..base.layout import Shape, contiguous_strides, normal_strides, span
from ..device.device import checked_device, current_open_device, open_devices
from ..device.open_device import OpenDevice
from ..lifetime.allocation import ForeignAllocation
from . import dlpack
from .dlpack import HOST_TYPES, IS_COPIED, MOST_AXES, READ_ONLY, VERSION, Layout, take

Parts = tuple[OpenDevice, ForeignAllocation, int, Shape, "np.dtype[Any]", Shape | None]

#: The newest version of the CUDA Array Interface whose meaning this code knows.
INTERFACE_VERSION = 3
_TYPE = re.compile(r"[<>|=][a-zA-Z][0-9]{1,9}(\[[0-9]*[a-z]+\])?")


def device_memory(obj: object) -> Parts | None:
    """Device memory that an object of another library has; None of what has none, ordinary arrays and lists among it."""
    if isinstance(obj, np.ndarray):
        return None
    if hasattr(type(obj), "__dlpack_device__"):
        said = device_of_tensor(obj)
        if said[0] in HOST_TYPES:
            return None
        try:
            return by_dlpack(obj, said)
        except BufferError:  # DLPack has no records, and some have both
            if not hasattr(obj, "__cuda_array_interface__"):
                raise
    return by_interface(obj) if hasattr(obj, "__cuda_array_interface__") else None


def has_device_memory(obj: object) -> bool:
    """Whether an object of another library says that it has device memory; it is not asked for it."""
    if isinstance(obj, np.ndarray):
        return False
    if hasattr(type(obj), "__dlpack_device__") and device_of_tensor(obj)[0] not in HOST_TYPES:
        return True
    return hasattr(obj, "__cuda_array_interface__")


# -- DLPack ------------------------------------------------------------------------------------------------------------


def device_of_tensor(obj: Any) -> tuple[int, int]:
    """(type, number) of the device that an object says it is on."""
    try:
        ask, _ = obj.__dlpack_device__, obj.__dlpack__
    except AttributeError:
        raise TypeError(f"{_a(obj)} has no __dlpack__ and __dlpack_device__: copy it with devmem.to_device()") from None
    said = ask()
    try:
        kind, number = said
        if type(kind) is int and type(number) is int:
            return kind, number
        return operator.index(kind), operator.index(number)
    except (TypeError, ValueError):
        raise BufferError(f"__dlpack_device__ of {_a(obj)} returned {said!r}, not two integers") from None


def by_dlpack(obj: Any, said: tuple[int, int], copy: bool | None = None, opened: OpenDevice | None = None) -> Parts:
    """The memory of an object on a device of ours, made ready for the stream that is current there; ``said``: its DLPack device.

    ``opened``: the device, where it is known already.

    Raises
    ------
    BufferError
        It is on no device of ours; its producer refuses; what it hands over cannot be.
    """
    if opened is None:
        opened = current_open_device()
        if said != opened.handle.dlpack_device:
            opened = _context_of(*said, opened)
    ours = opened.streams.stream_of(None)
    name = None
    if opened.handle.stream_numbers:
        name = opened.handle.stream_numbers.get(ours.handle, ours.handle)
        if name == PER_THREAD_STREAM and name not in opened.handle.stream_numbers:
            # The vendor has no number for the thread's own default stream, which waits for the legacy one.
            ours = opened.streams.legacy
            name = opened.handle.stream_numbers[ours.handle]
    driver = opened.handle.driver
    token = driver.enter()  # producers refuse tensors of a device that is not current
    try:
        try:
            if copy is False:
                capsule = obj.__dlpack__(stream=name, max_version=VERSION, copy=False)
            else:  # to copy is our own affair
                capsule = obj.__dlpack__(stream=name, max_version=VERSION)
        except TypeError:
            capsule = _older_capsule_of(obj, name)
        ptr, device, layout, dtype, flags, owner = take(capsule)
        shape, strides, low, nbytes = layout
        if device != said and (device[0] != said[0] or device[0] not in HOST_TYPES):
            raise BufferError(f"{_a(obj)} says that it is on DLPack device {said} and hands over memory of {device}")
        if copy is False and flags & IS_COPIED:
            raise BufferError(f"{_a(obj)} was asked for its memory, copy=False, and hands over a copy")
        if ptr and opened.handle.knows_pointers and not opened.handle.is_host:
            low += ptr
            found = driver.pointer_range(low)
            if found is None or low + nbytes > found[0] + found[1]:
                _check_memory(driver, low, nbytes, obj, BufferError)
    finally:
        if token is not None:
            driver.exit(token)
    allocation = opened.memory.foreign(ptr, nbytes, owner, ours, flags & READ_ONLY != 0)
    return opened, allocation, ptr, shape, dtype, strides


def host_tensor(obj: Any, copy: bool | None = None) -> npt.NDArray[Any]:
    """An ndarray of the host memory that an object exports by DLPack, of any type that DLPack has; it keeps the memory alive."""
    kind, _ = device_of_tensor(obj)
    ptr, device, layout, dtype, flags, owner = take(_capsule_of(obj, copy))
    if device[0] != kind:
        raise BufferError(f"{_a(obj)} says that its memory is of DLPack type {kind} and hands over {device[0]}")
    shape, strides, low, nbytes = layout
    if not ptr:
        return np.empty(shape, dtype)
    raw = np.asarray(_HostMemory(ptr + low, nbytes, bool(flags & READ_ONLY), owner))
    return np.ndarray(shape, dtype, raw, -low, strides)


class _HostMemory:
    """Makes an ndarray of bytes of the host, and keeps their owner as long as it lives."""

    def __init__(self, ptr: int, nbytes: int, read_only: bool, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (ptr, read_only), "version": 3}


def _capsule_of(obj: Any, copy: bool | None) -> Any:
    """Ask for a capsule of host memory."""
    try:
        return obj.__dlpack__(max_version=VERSION, **({"copy": False} if copy is False else {}))
    except TypeError:
        return _older_capsule_of(obj, None)


def _older_capsule_of(obj: Any, stream: int | None) -> Any:
    """Ask as before DLPack 1.0, when nobody copied."""
    return obj.__dlpack__() if stream is None else obj.__dlpack__(stream=stream)


def _context_of(kind: int, number: int, current: OpenDevice) -> OpenDevice:
    """The open device that DLPack's numbers name, the current one or one of its kind before all others."""
    for opened in [current, *open_devices()]:
        exchange = opened.handle.info.exchange
        if kind not in (exchange.device_type, exchange.managed_type):
            continue
        if opened.handle.is_host or number == opened.handle.info.ordinal:
            return opened
        try:
            return checked_device(opened.handle.info.backend, number, f"{opened.handle.info.backend}:{number}").opened()
        except ConfigError as error:
            raise BufferError(f"the memory is on DLPack device {(kind, number)}, but {error}") from None
    if kind in HOST_TYPES and current.handle.is_host:
        return current
    name = dlpack.DEVICE_NAMES.get(kind, "of a type that devmem does not know")
    raise BufferError(
        f"the memory is on DLPack device {(kind, number)} ({name}), and no device that devmem has open is that one: the current "
        f"one is {current.device}; choose its backend with devmem.use_backend(), or copy through the host"
    )


# -- the CUDA Array Interface ------------------------------------------------------------------------------------------


def by_interface(obj: Any) -> Parts:
    """The memory of an object with ``__cuda_array_interface__``; our current stream waits for the one that it names.

    Raises
    ------
    LayoutError
        The interface says what cannot be.
    UnsupportedError
        It has a mask, is of an unknown version, or the memory is of no device that devmem has open.
    """
    ptr, read_only, dtype, layout, stream = _parsed(obj.__cuda_array_interface__, obj)
    shape, strides, low, nbytes = layout
    opened = current_open_device()
    if not nbytes:
        return opened, opened.memory.foreign(0, 0, obj, None, read_only), 0, shape, dtype, None
    if not ptr:
        raise LayoutError(f"{_of(obj)} describes an array of shape {shape} at address 0")
    if ptr + low <= 0 or ptr + low + nbytes > dlpack.END:
        raise LayoutError(f"{_of(obj)} describes an array beyond all addresses: {shape} at {ptr:#x}, strides {strides}")
    if not _is_on(opened, ptr + low, nbytes, obj):
        opened = _context_around(ptr + low, nbytes, opened, obj)
    ours = opened.streams.stream_of(None)
    if stream is not None and settings().cuda_array_interface_sync:
        theirs = _handle_of(opened, stream, obj)
        if theirs != ours.handle:
            _order(opened, ours.handle, theirs)
    return opened, opened.memory.foreign(ptr, nbytes, obj, ours, read_only), ptr, shape, dtype, strides


def _parsed(interface: Any, obj: object) -> tuple[int, bool, np.dtype[Any], Layout, object]:
    """Address, whether it is read-only, dtype, layout and stream."""
    try:
        version = operator.index(interface["version"])
        ptr, read_only = interface["data"]
        ptr, read_only = 0 if ptr is None else operator.index(ptr), bool(read_only)
        shape = tuple(map(operator.index, interface["shape"]))
        more = interface.get
        strides = more("strides")
        if strides is not None:
            strides = tuple(map(operator.index, strides))
        dtype = _dtype_of(interface["typestr"])
        if dtype.kind == "V":
            dtype = _with_fields(dtype, more("descr"))
        stream, mask = more("stream"), more("mask")
    except (TypeError, LookupError, ValueError, AttributeError, OverflowError) as error:
        raise LayoutError(f"{_of(obj)} is not one: {type(error).__name__}: {error}") from None
    if not 0 <= version <= INTERFACE_VERSION:
        raise UnsupportedError(f"{_of(obj)} has version {version!r}, this devmem reads up to {INTERFACE_VERSION}")
    if mask is not None:
        raise UnsupportedError(f"{_of(obj)} has a mask, which would be lost: give its data and its mask by themselves")
    try:
        layout = _layout(shape, strides, dtype.itemsize)
    except ValueError as error:
        raise LayoutError(f"{_of(obj)} {error}") from None
    return ptr, read_only, dtype, layout, stream if version >= 3 else None


@lru_cache(maxsize=1024)
def _layout(shape: Shape, strides: Shape | None, itemsize: int) -> Layout:
    """Shape, strides (None: contiguous), offset of the lowest byte, and bytes from there on. Most programs have few."""
    if len(shape) > MOST_AXES:
        raise ValueError(f"has {len(shape)} axes")
    if shape and min(shape) < 0:
        raise ValueError(f"has a negative length: shape {shape}")
    if strides is not None and len(strides) != len(shape):
        raise ValueError(f"has {len(shape)} axes and {len(strides)} strides")
    if 0 in shape or not itemsize:
        return shape, None, 0, 0
    contiguous = contiguous_strides(shape, itemsize)
    strides = contiguous if strides is None else normal_strides(shape, strides, itemsize)
    low, high = span(shape, strides, itemsize)
    return shape, None if strides == contiguous else strides, low, high - low


@lru_cache(maxsize=256)
def _dtype_of(typestr: str) -> np.dtype[Any]:
    # NumPy would make a dtype of much more.
    if not isinstance(typestr, str) or not _TYPE.fullmatch(typestr):
        raise TypeError(f"a typestr is a byte order, a kind and a number of bytes, not {typestr!r}")
    dtype = np.dtype(typestr)
    if dtype.hasobject:
        raise TypeError("Python objects mean nothing on a device")
    return dtype


def _with_fields(dtype: np.dtype[Any], descr: Any) -> np.dtype[Any]:
    """The record that the fields make, if they make one of that size."""
    if not descr:
        return dtype
    fields = np.lib.format.descr_to_dtype(descr)  # as of a file: nameless fields are gaps
    if fields.hasobject:
        raise TypeError("Python objects mean nothing on a device")
    return fields if fields.fields is not None and fields.itemsize == dtype.itemsize else dtype


def _handle_of(opened: OpenDevice, stream: object, obj: object) -> int:
    """Our handle of the stream that an interface names."""
    try:
        if isinstance(stream, bool):
            raise TypeError
        number = operator.index(stream)  # type: ignore[arg-type]
    except TypeError:
        raise LayoutError(f"{_of(obj)} names its stream {stream!r}, not by an integer") from None
    names = opened.handle.info.exchange.streams or {}
    handle = names.get(number, number)
    if handle <= 0:
        raise LayoutError(
            f"{_of(obj)} names the stream {number}, which is not allowed: 1 is the legacy default stream, 2 the thread's own"
        )
    return handle


def _order(opened: OpenDevice, later: int, earlier: int) -> None:
    """Make one stream wait for another, by handle."""
    if later == opened.streams.legacy.handle and earlier in (later, 0):
        return
    driver = opened.handle.driver
    token = driver.enter()
    try:
        opened.completions.order(later, earlier)
    finally:
        if token is not None:
            driver.exit(token)


# -- whose memory is it? -----------------------------------------------------------------------------------------------


def _is_on(opened: OpenDevice, low: int, nbytes: int, obj: object) -> bool:
    """Whether it is memory of that very device; raises if some is, and not all.

    Where nobody can be asked, the object is believed if the device's arrays speak its language.
    """
    if not opened.handle.knows_pointers:
        return opened.handle.info.exchange.array_interface
    driver = opened.handle.driver
    token = driver.enter()
    try:
        if driver.pointer_device(low) != opened.handle.info.ordinal:
            return False
        found = driver.pointer_range(low)
        if found is None or low + nbytes > found[0] + found[1]:
            _check_memory(driver, low, nbytes, obj, LayoutError)
    finally:
        if token is not None:
            driver.exit(token)
    return True


def _context_around(low: int, nbytes: int, current: OpenDevice, obj: object) -> OpenDevice:
    """The device whose memory it is, by asking the drivers of those that are open: the interface does not say."""
    asked = [current, *(opened for opened in open_devices() if opened is not current)]
    for opened in asked:
        if opened.handle.knows_pointers:
            with CurrentDevice(opened.handle) as driver:
                ordinal = driver.pointer_device(low)
            if ordinal is not None and ordinal != opened.handle.info.ordinal:
                opened = checked_device(opened.handle.info.backend, ordinal, ordinal).opened()
        if _is_on(opened, low, nbytes, obj):
            return opened
    names = ", ".join(str(opened.device) for opened in asked)
    raise UnsupportedError(
        f"{_of(obj)} has memory at {low:#x} that no device of devmem's knows (asked: {names}): choose the backend of the library "
        f"that made it with devmem.use_backend()"
    )


def _check_memory(driver: Any, low: int, nbytes: int, obj: object, kind: type[Exception]) -> None:
    """Raise unless the entered driver knows all of the memory; one range of addresses may be of several allocations."""
    at = low
    while at < low + nbytes:
        found = driver.pointer_range(at)
        if found is None or found[0] + found[1] <= at:
            beyond = f"reaches {low + nbytes - at} bytes further than that" if at > low else "is no memory"
            raise kind(f"{_a(obj)} says that it has {nbytes} bytes at {low:#x}, which {beyond} on {driver.info.name}")
        at = found[0] + found[1]


def _a(obj: object) -> str:
    return f"a {type(obj).__name__}"


def _of(obj: object) -> str:
    return f"the __cuda_array_interface__ of {_a(obj)}"
