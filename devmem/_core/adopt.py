"""Using memory of other libraries in place: what DLPack and the CUDA Array Interface say of it, checked.

What is found is given as what a device array is made of, ``(allocation, address, shape, dtype, strides)``; this module makes no
arrays, so that arrays can ask it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..spi.errors import ConfigError, LayoutError, UnsupportedError
from ..spi.types import Capability
from . import dlpack
from .allocation import Borrowed
from .config import settings
from .device import checked_device, current_context, open_contexts
from .dlpack import HOST_TYPES, IS_COPIED, READ_ONLY, DeviceType
from .layout import Shape, contiguous_strides, span

if TYPE_CHECKING:
    from .context import Context

Parts = tuple[Borrowed, int, Shape, "np.dtype[Any]", Shape | None]

#: The newest version of the CUDA Array Interface whose meaning this code knows.
INTERFACE_VERSION = 3


def device_memory(obj: object) -> Parts | None:
    """Device memory that an object of another library has; None of what has none, ordinary arrays and lists among it."""
    if isinstance(obj, np.ndarray):
        return None
    if hasattr(type(obj), "__dlpack_device__"):
        if device_of_tensor(obj)[0] in HOST_TYPES:
            return None
        if not hasattr(obj, "__cuda_array_interface__"):
            return by_dlpack(obj)
        try:
            return by_dlpack(obj)
        except BufferError:  # DLPack has no records, and some have both
            return by_interface(obj)
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
        kind, number = said = obj.__dlpack_device__()
        return operator.index(kind), operator.index(number)
    except AttributeError:
        raise TypeError(
            f"a {type(obj).__name__} has no __dlpack__ and __dlpack_device__: copy it with devmem.to_device()"
        ) from None
    except (TypeError, ValueError):
        said = locals().get("said", "what is no pair")
        raise BufferError(f"__dlpack_device__ of a {type(obj).__name__} returned {said!r}, not two integers") from None


def by_dlpack(obj: Any, copy: bool | None = None) -> Parts:
    """The memory of an object on a device of ours, made ready for the stream that is current there.

    Raises
    ------
    BufferError
        It is on no device of ours; its producer refuses; what it hands over cannot be.
    """
    kind, number = device_of_tensor(obj)
    context = current_context()
    if (kind, number) != context.dlpack_device:
        context = _context_of(kind, number, context)
    ours = context.stream_of(None)
    handle = ours.handle
    driver = context.driver
    token = driver.enter()  # producers refuse tensors of a device that is not current
    try:
        if context.info.exchange.streams is None:
            name = None
        else:
            name = context.stream_names.get(handle, handle)
            if name == 2 and handle not in context.stream_names:
                # The vendor has no number for the thread's own default stream, which waits for the legacy one.
                ours = context.legacy
                name = context.stream_names[ours.handle]
        ptr, device, shape, steps, dtype, flags, owner = dlpack.take(_capsule_of(obj, name, copy))
        if device != (kind, number) and (device[0] != kind or kind not in HOST_TYPES):
            raise BufferError(
                f"a {type(obj).__name__} says that it is on DLPack device {(kind, number)} and hands over memory of {device}"
            )
        if copy is False and flags & IS_COPIED:
            raise BufferError(f"a {type(obj).__name__} was asked for its memory, copy=False, and hands over a copy")
        itemsize = dtype.itemsize
        strides = None if steps is None else tuple([step * itemsize for step in steps])
        nbytes = 0
        if ptr:
            low, high = span(shape, contiguous_strides(shape, itemsize) if strides is None else strides, itemsize)
            nbytes = high - low
            if Capability.POINTER_INFO in context.capabilities and kind not in HOST_TYPES:
                _check_memory(context, ptr + low, nbytes, obj)
    finally:
        if token is not None:
            driver.exit(token)
    borrowed = Borrowed(context, ptr, nbytes, owner, ours, bool(flags & READ_ONLY))
    return borrowed, ptr, shape, dtype, strides


def host_tensor(obj: Any, copy: bool | None = None) -> npt.NDArray[Any]:
    """An ndarray of the host memory that an object exports by DLPack, of any type that DLPack has; it keeps the memory alive."""
    kind, _ = device_of_tensor(obj)
    tensor = dlpack.take(_capsule_of(obj, None, copy))
    ptr, device, shape, steps, dtype, flags, _ = tensor
    if device[0] != kind:
        raise BufferError(
            f"a {type(obj).__name__} says that its memory is of DLPack type {kind} and hands over {device[0]}"
        )
    if not ptr:
        return np.empty(shape, dtype)
    strides = tuple(step * dtype.itemsize for step in (contiguous_strides(shape, 1) if steps is None else steps))
    low, high = span(shape, strides, dtype.itemsize)
    raw = np.asarray(_HostMemory(ptr + low, high - low, bool(flags & READ_ONLY), tensor))
    return np.ndarray(shape, dtype, raw, -low, strides)


class _HostMemory:
    """Makes an ndarray of bytes of the host, and keeps their owner as long as it lives."""

    def __init__(self, ptr: int, nbytes: int, read_only: bool, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (ptr, read_only), "version": 3}


def _capsule_of(obj: Any, stream: int | None, copy: bool | None) -> Any:
    """Ask for a capsule, as new as the producer can be asked for."""
    try:
        if copy is False:
            return obj.__dlpack__(stream=stream, max_version=dlpack.VERSION, copy=False)
        return obj.__dlpack__(stream=stream, max_version=dlpack.VERSION)
    except TypeError:  # from before DLPack 1.0, when nobody copied
        return obj.__dlpack__(stream=stream) if stream is not None else obj.__dlpack__()


def _context_of(kind: int, number: int, current: Context) -> Context:
    """The open device that DLPack's numbers name, the current one or one of its kind before all others."""
    for context in [current, *open_contexts()]:
        exchange = context.info.exchange
        if kind not in (exchange.device_type, exchange.managed_type):
            continue
        if exchange.device_type == DeviceType.CPU or number == context.info.ordinal:
            return context
        try:
            return checked_device(context.info.backend, number, f"{context.info.backend}:{number}").context()
        except ConfigError as error:
            raise BufferError(f"the memory is on DLPack device {(kind, number)}, but {error}") from None
    if kind in HOST_TYPES and current.info.exchange.device_type == DeviceType.CPU:
        return current
    name = DeviceType(kind).name if kind in DeviceType._value2member_map_ else "a type that devmem does not know"
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
    interface = obj.__cuda_array_interface__
    ptr, read_only, shape, dtype, strides, stream = _parsed(interface, obj)
    itemsize = dtype.itemsize
    current = current_context()
    if 0 in shape or not itemsize:
        return Borrowed(current, 0, 0, obj, None, read_only), 0, shape, dtype, None
    if not ptr:
        raise LayoutError(f"{_of(obj)} describes an array of shape {shape} at address 0")
    low, high = span(shape, contiguous_strides(shape, itemsize) if strides is None else strides, itemsize)
    context = _context_around(ptr + low, high - low, current, obj)
    ours = context.stream_of(None)
    if stream is not None and settings().cuda_array_interface_sync:
        theirs = _handle_of(context, stream, obj)
        if theirs != ours.handle:
            _order(context, ours.handle, theirs)
    return Borrowed(context, ptr, high - low, obj, ours, read_only), ptr, shape, dtype, strides


def _parsed(interface: Any, obj: object) -> tuple[int, bool, Shape, np.dtype[Any], Shape | None, object]:
    """Address, whether it is read-only, shape, dtype, strides and stream."""
    try:
        version = interface["version"]
        shape, (ptr, read_only), typestr = interface["shape"], interface["data"], interface["typestr"]
        shape = tuple(map(operator.index, shape))
        ptr = operator.index(ptr) if ptr is not None else 0
        strides = interface.get("strides")
        if strides is not None:
            strides = tuple(map(operator.index, strides))
        dtype = _dtype_of(typestr, interface.get("descr"))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise LayoutError(f"{_of(obj)} is not one: {type(error).__name__}: {error}") from None
    if not isinstance(version, int) or version > INTERFACE_VERSION:
        raise UnsupportedError(f"{_of(obj)} has version {version!r}, this devmem reads up to {INTERFACE_VERSION}")
    if interface.get("mask") is not None:
        raise UnsupportedError(f"{_of(obj)} has a mask, which would be lost: give its data and its mask by themselves")
    if shape and min(shape) < 0:
        raise LayoutError(f"{_of(obj)} has a negative length: shape {shape}")
    if strides is not None:
        if len(strides) != len(shape):
            raise LayoutError(f"{_of(obj)} has {len(shape)} axes and {len(strides)} strides")
        if strides == contiguous_strides(shape, dtype.itemsize):
            strides = None
    return ptr, bool(read_only), shape, dtype, strides, interface.get("stream") if version >= 3 else None


def _dtype_of(typestr: str, descr: Any) -> np.dtype[Any]:
    dtype = np.dtype(typestr)
    if dtype.kind == "V" and descr:
        fields = np.dtype(descr)
        if fields.fields is not None and fields.names != ("",) and fields.itemsize == dtype.itemsize:
            dtype = fields
    if dtype.hasobject:
        raise TypeError("Python objects mean nothing on a device")
    return dtype


def _handle_of(context: Context, stream: object, obj: object) -> int:
    """Our handle of the stream that an interface names."""
    try:
        if isinstance(stream, bool):
            raise TypeError
        number = operator.index(stream)  # type: ignore[arg-type]
    except TypeError:
        raise LayoutError(f"{_of(obj)} names its stream {stream!r}, not by an integer") from None
    names = context.info.exchange.streams or {}
    handle = names.get(number, number)
    if handle <= 0:
        raise LayoutError(
            f"{_of(obj)} names the stream {number}, which is not allowed: 1 is the legacy default stream, 2 the thread's own"
        )
    return handle


def _order(context: Context, later: int, earlier: int) -> None:
    """Make one stream wait for another, by handle."""
    if later == context.legacy.handle and earlier in (later, 0):
        return
    driver = context.driver
    token = driver.enter()
    try:
        context.reclaim.order(later, earlier)
    finally:
        if token is not None:
            driver.exit(token)


# -- whose memory is it? -----------------------------------------------------------------------------------------------


def _context_around(low: int, nbytes: int, current: Context, obj: object) -> Context:
    """The open device whose memory it is, by asking the drivers: the interface does not say."""
    asked = [current, *(context for context in open_contexts() if context is not current)]
    for context in asked:
        if Capability.POINTER_INFO not in context.capabilities:
            if context.info.exchange.array_interface:
                return context  # nobody can be asked: the object is believed
            continue
        found = _info(context, low)
        if found is None:
            continue
        ordinal, base, size = found
        if low + nbytes > base + size:
            _check_end(context, base + size, low + nbytes, obj)
        if ordinal == context.info.ordinal:
            return context
        return checked_device(context.info.backend, ordinal, ordinal).context()
    names = ", ".join(str(context.device) for context in asked)
    raise UnsupportedError(
        f"{_of(obj)} has memory at {low:#x} that no device of devmem's knows (asked: {names}): choose the backend of the library "
        f"that made it with devmem.use_backend()"
    )


def _check_memory(context: Context, low: int, nbytes: int, obj: object) -> None:
    """Raise BufferError unless a driver knows all of the memory; the device is entered."""
    found = context.driver.pointer_info(low)
    if found is None:
        raise BufferError(f"a {type(obj).__name__} hands over an address, {low:#x}, that is no memory of {context.device}")
    _, base, size = found
    if low + nbytes > base + size:
        try:
            _check_end(context, base + size, low + nbytes, obj)
        except LayoutError as error:
            raise BufferError(str(error)) from None


def _check_end(context: Context, at: int, end: int, obj: object) -> None:
    """Raise LayoutError unless the memory goes on to the end: what is one range of addresses may be several allocations."""
    while at < end:
        found = _info(context, at)
        if found is None or found[1] > at:
            raise LayoutError(
                f"a {type(obj).__name__} says that it reaches {end - at} bytes further than its memory on {context.device} does"
            )
        at = found[1] + found[2]


def _info(context: Context, ptr: int) -> tuple[int, int, int] | None:
    driver = context.driver
    token = driver.enter()
    try:
        found: tuple[int, int, int] | None = driver.pointer_info(ptr)
        return found
    finally:
        if token is not None:
            driver.exit(token)


def _of(obj: object) -> str:
    return f"the __cuda_array_interface__ of a {type(obj).__name__}"
