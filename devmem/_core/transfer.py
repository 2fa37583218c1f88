"""Moving bytes: host to device, device to host, device to device, in any layout.

Each function is called with the device entered, moves between two regions of the same shape and dtype, and picks a path:
``direct`` (one copy), ``2d`` (rows, by the driver), ``packed`` (gathered into a host buffer first), ``span`` (everything
between the first and the last element is fetched and gathered on the host), ``staged`` (by way of the host). No path writes
a byte that lies between the elements of its destination.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..spi.errors import BackendError, LayoutError, TransferGuardError
from ..spi.types import Capability, CopyKind
from .allocation import Using
from .args import assignable
from .config import TransferGuard, settings
from .entered import Entered
from .layout import (
    Rows,
    Shape,
    address,
    contiguous_strides,
    extent,
    is_contiguous,
    memory_order,
    overlap,
    rows,
    span,
)
from .paths import Path, choose
from .plans import calls, run, strided
from .registry import PAGE
from .staging import Download, upload

if TYPE_CHECKING:
    from .array import DeviceNDArray
    from .context import Context
    from .stream import Stream

#: Rows at least this wide are copied by the driver as they lie; narrower ones are cheaper to gather on the host.
WIDE_ROW = 512
#: Driver calls that a strided copy may take before it is done by way of a host buffer instead.
MANY_CALLS = 64
#: How many times the wanted bytes a span may have, to be fetched whole.
DENSE_SPAN = 8
#: Bytes of a fill pattern that are made on the host before doubling on the device begins.
PATTERN_BYTES = 4096

H2D, D2H, D2D = CopyKind.H2D, CopyKind.D2H, CopyKind.D2D  # an enum's attribute takes as long as a call

_guarded_sites: set[tuple[str, int]] = set()


def write(
    dst: DeviceNDArray[Any], src: npt.NDArray[Any], stream: Stream, *, blocking: bool, host_copy: bool = True
) -> None:
    """Copy host elements into device elements; shapes and dtypes are equal.

    Without ``host_copy`` it raises LayoutError rather than gather the source on the host first.
    """
    if not dst.nbytes:
        return
    if dst.nbytes >= dst.context.staged_from and host_copy and choose(dst.context, src, stream).path is Path.STAGED:
        _write_staged(dst, src, stream, blocking)
    else:
        _steadily(dst.context, src, partial(_write, dst, src, stream, blocking, host_copy))


def _write_staged(dst: DeviceNDArray[Any], src: npt.NDArray[Any], stream: Stream, blocking: bool) -> None:
    axes, flipped = memory_order(dst.shape, dst.strides)
    shape, strides = _in_memory_order(dst.shape, dst.strides, axes, flipped)
    source = _view(_raw(src), axes, flipped)
    low = dst.ptr + span(dst.shape, dst.strides, dst.itemsize)[0]
    if source.flags.c_contiguous and is_contiguous(shape, strides, dst.itemsize):
        source, strides = _bytes(source), (1,)
    upload(dst.context, low, strides, source, stream, blocking)
    _count(dst.context, "h2d staged", dst.nbytes)


def _write(dst: DeviceNDArray[Any], src: npt.NDArray[Any], stream: Stream, blocking: bool, host_copy: bool) -> None:
    context = dst.context
    if not context.registry.segments and src.flags.c_contiguous and dst.is_c_contiguous():
        # The commonest copy by far; what follows would find the same at ten times the price.
        nbytes = src.nbytes
        if context.driver.copy(dst.ptr, address(src), nbytes, H2D, stream.handle, blocking=blocking):
            context.reclaim.retire(stream, src)
        _count(context, "h2d direct", nbytes)
        return
    axes, flipped = memory_order(dst.shape, dst.strides)
    target = _in_memory_order(dst.shape, dst.strides, axes, flipped)
    source = _view(_raw(src), axes, flipped)
    low = dst.ptr + span(dst.shape, dst.strides, dst.itemsize)[0]
    plan = rows(target[0], dst.itemsize, target[1], source.strides)
    if not (plan.calls == plan.height == 1) and not _rows_pay(context, plan, source):
        if not host_copy:
            raise LayoutError(
                f"copy=False, but a source of shape {src.shape} with strides {src.strides} has to be gathered on the host "
                f"first: give numpy.ascontiguousarray(source), or copy=True"
            )
        packed = _scratch(source.shape, source.dtype)
        packed[...] = source
        source = packed
        plan = rows(target[0], dst.itemsize, target[1], source.strides)
        path = "packed"
    else:
        path = "direct" if plan.height == 1 else "2d"
    running = run(context, plan, low, address(source), H2D, stream, blocking)
    if running:
        context.reclaim.retire(stream, source)
    _count(context, f"h2d {path}", dst.nbytes)


def read(src: DeviceNDArray[Any], dst: npt.NDArray[Any], stream: Stream, *, blocking: bool) -> None:
    """Copy device elements into host elements; shapes and dtypes are equal, and the destination is writable."""
    download = _begin(src, dst, stream)
    if download is not None:
        try:
            download.finish()
        except BaseException as error:
            # Interrupted, say: the destination is the caller's again, and nobody may write there later.
            download.fail(error)
            raise
    elif src.nbytes:
        _steadily(src.context, dst, partial(_read, src, dst, stream, blocking))


def read_async(src: DeviceNDArray[Any], dst: npt.NDArray[Any], stream: Stream) -> Download | None:
    """Enqueue a copy into host elements that nobody reads yet; what has to be finished by hand, if anything."""
    download = _begin(src, dst, stream)
    if download is None and src.nbytes:
        _steadily(src.context, dst, partial(_read, src, dst, stream, False))
    return download


def _begin(src: DeviceNDArray[Any], dst: npt.NDArray[Any], stream: Stream) -> Download | None:
    """Enqueue a large copy of device elements to the host by way of the ring, if that is its way."""
    context = src.context
    if src.nbytes < context.staged_from or choose(context, dst, stream).path is not Path.STAGED:
        return None
    axes, flipped = memory_order(src.shape, src.strides)
    shape, strides = _in_memory_order(src.shape, src.strides, axes, flipped)
    target = _view(_raw(dst), axes, flipped)
    low = src.ptr + span(src.shape, src.strides, src.itemsize)[0]
    if target.flags.c_contiguous and is_contiguous(shape, strides, src.itemsize):
        target, strides = _bytes(target), (1,)
    elif calls(context, rows(shape, src.itemsize, contiguous_strides(shape, src.itemsize), strides)) > MANY_CALLS:
        return None  # narrow rows: cheaper to gather on the host
    download = Download(context, target)
    download.start(low, strides, stream)
    _count(context, "d2h staged", src.nbytes)
    return download


def _read(src: DeviceNDArray[Any], dst: npt.NDArray[Any], stream: Stream, blocking: bool) -> None:
    context = src.context
    axes, flipped = memory_order(src.shape, src.strides)
    origin = _in_memory_order(src.shape, src.strides, axes, flipped)
    target = _view(dst, axes, flipped)
    reach = span(src.shape, src.strides, src.itemsize)
    low = src.ptr + reach[0]
    plan = rows(origin[0], src.itemsize, target.strides, origin[1])
    if plan.calls == plan.height == 1 or _rows_pay(context, plan, target):
        running = run(context, plan, address(target), low, D2H, stream, blocking)
        if running:
            context.reclaim.retire(stream, dst)
        _count(context, f"d2h {'direct' if plan.height == 1 else '2d'}", src.nbytes)
        return
    stream.check_waitable(context.driver)
    packed = _scratch(origin[0], src.dtype)
    plan = rows(origin[0], src.itemsize, packed.strides, origin[1])
    if (
        plan.calls == plan.height == 1
        or _rows_pay(context, plan, packed)
        or reach[1] - reach[0] > DENSE_SPAN * src.nbytes
    ):
        run(context, plan, address(packed), low, D2H, stream, True)
        path = "packed"
    else:
        fetched = _scratch((reach[1] - reach[0],), np.dtype(np.uint8))
        if fetched.nbytes < context.staged_from:
            context.driver.copy(address(fetched), low, fetched.nbytes, D2H, stream.handle, blocking=True)
        else:
            whole = Download(context, fetched)
            whole.start(low, (1,), stream)
            whole.finish()
        packed = np.ndarray(origin[0], src.dtype, fetched, 0, origin[1])
        path = "span"
    _raw(target)[...] = _raw(packed)
    _count(context, f"d2h {path}", src.nbytes)


def move(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], stream: Stream, *, blocking: bool) -> None:
    """Copy between device arrays of one shape and dtype, on one device or two; right also where they overlap."""
    if not dst.nbytes:
        return
    if dst.context is not src.context:
        _move_across(dst, src, stream, blocking)
        return
    context = dst.context
    if overlap(_range(dst), _range(src)):
        if (dst.ptr, dst.strides) != (src.ptr, src.strides):
            _move_overlapping(dst, src, stream, blocking)
        return
    plan = rows(dst.shape, dst.itemsize, dst.strides, src.strides)
    if calls(context, plan) > MANY_CALLS:
        write(dst, _fetched(src, stream), stream, blocking=blocking)
        path = "staged"
    else:
        run(context, plan, dst.ptr, src.ptr, D2D, stream, blocking)
        path = "direct" if plan.calls == plan.height == 1 else "2d"
    _count(context, f"d2d {path}", dst.nbytes)


def fill(dst: DeviceNDArray[Any], value: object, stream: Stream, *, blocking: bool) -> None:
    """Store one value in every element."""
    if not dst.nbytes:
        return
    context = dst.context
    cast = assignable(value, dst.dtype)
    if cast.size != 1:
        raise LayoutError(
            f"fill() stores one value, not {cast.size} of shape {cast.shape}: assign them, d[...] = values"
        )
    item = cast.reshape(())
    pattern = item.tobytes()
    if not is_contiguous(dst.shape, dst.strides, dst.itemsize) and not is_contiguous(
        dst.shape, dst.strides, dst.itemsize, "F"
    ):
        repeated = np.broadcast_to(item, dst.shape)
        write(dst, repeated, stream, blocking=blocking)
        return
    width = next((width for width in (1, 2, 4) if _repeats(pattern, width)), 0)
    if width and dst.ptr % width == 0:
        word = int.from_bytes(pattern[:width], sys.byteorder)
        context.driver.fill(dst.ptr, word, width, dst.nbytes // width, stream.handle)
    else:
        _double(context, dst.ptr, pattern, dst.nbytes, stream)
    if blocking:
        context.driver.stream_synchronize(stream.handle)
    _count(context, "fill", dst.nbytes)


def guard(what: str) -> None:
    """Called before a copy to the host that nobody spelled out; obeys DEVMEM_TRANSFER_GUARD."""
    mode = settings().transfer_guard
    if mode is TransferGuard.ALLOW:
        return
    site = _call_site()
    message = f"implicit copy from device to host by {what} at {site[0]}:{site[1]}"
    if mode is TransferGuard.DISALLOW:
        raise TransferGuardError(
            f"{message}, which DEVMEM_TRANSFER_GUARD=disallow forbids: call copy_to_host() yourself"
        )
    if site not in _guarded_sites:
        _guarded_sites.add(site)
        import logging  # takes longer to import than the rest of this module

        logging.getLogger("devmem").warning("%s", message)


# -- below -------------------------------------------------------------------------------------------------------------


def _rows_pay(context: Context, plan: Rows, host: npt.NDArray[Any]) -> bool:
    return (
        plan.width >= WIDE_ROW
        and calls(context, plan) <= MANY_CALLS
        and strided(context, plan)
        and not context.registry.cuts(*extent(host))
    )


def _steadily(context: Context, host: npt.NDArray[Any], copy: Callable[[], None]) -> None:
    """Make a copy from or to host memory, in which nobody locks or unlocks pages meanwhile.

    Where nothing is locked, which is nearly always, nobody is asked to wait. If memory beside it is locked before the driver
    looks, CUDA refuses the copy, which now lies half in locked memory: then it is made again, cut there.
    """
    registry = context.registry
    locked = registry.segments
    if not locked:
        try:
            copy()
            return
        except BackendError:
            if registry.segments is locked:
                raise
    with registry.steady(*extent(host)):
        copy()


def _scratch(shape: Shape, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A contiguous buffer of our own, on pages of its own: neighbours on the heap may be page-locked at any time."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + 2 * PAGE, np.uint8)
    return np.ndarray(shape, dtype, raw, -address(raw) % PAGE)


def _in_memory_order(shape: Shape, strides: Shape, axes: list[int], flipped: list[int]) -> tuple[Shape, Shape]:
    steps = [-stride if axis in flipped else stride for axis, stride in enumerate(strides)]
    return tuple(shape[axis] for axis in axes), tuple(steps[axis] for axis in axes)


def _view(array: npt.NDArray[Any], axes: list[int], flipped: list[int]) -> npt.NDArray[Any]:
    if flipped:
        array = array[tuple(slice(None, None, -1) if axis in flipped else slice(None) for axis in range(array.ndim))]
    return array.transpose(axes)


def _raw(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Bytes and not values: assigning records, NumPy leaves padding behind.
    return array.view(f"V{array.itemsize}") if array.dtype.fields is not None and array.itemsize else array


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of a C-contiguous array."""
    return np.ndarray((array.nbytes,), np.uint8, array) if array.flags.writeable else array.reshape(-1).view(np.uint8)


def _range(array: DeviceNDArray[Any]) -> tuple[int, int]:
    low, high = span(array.shape, array.strides, array.itemsize)
    return array.ptr + low, array.ptr + high


def _fetched(src: DeviceNDArray[Any], stream: Stream) -> npt.NDArray[Any]:
    stream.check_waitable(src.context.driver)
    host = np.empty(src.shape, src.dtype)
    read(src, host, stream, blocking=True)
    return host


def _move_across(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], stream: Stream, blocking: bool) -> None:
    """Between two devices, by way of the host unless one backend can do it directly."""
    stream.check_waitable(dst.context.driver)
    origin = src.stream_in_force()
    plan = rows(dst.shape, dst.itemsize, dst.strides, src.strides)
    direct = plan.calls == plan.height == 1 and dst.context.info.backend == src.context.info.backend
    if direct and dst.context.has(Capability.PEER) and dst.context.driver.can_access(src.context.info.ordinal):
        # The source's stream knows nothing of the destination's: what was enqueued there has to be done first.
        origin.synchronize()
        dst.context.driver.copy_peer(
            dst.ptr + plan.dst_offset,
            dst.context.info.ordinal,
            src.ptr + plan.src_offset,
            src.context.info.ordinal,
            plan.width,
            stream.handle,
            blocking=True,
        )
        _count(dst.context, "peer", dst.nbytes)
        return
    with Entered(src.context):
        host = _fetched(src, origin)
    write(dst, host, stream, blocking=blocking)
    _count(dst.context, "peer staged", dst.nbytes)


def _move_overlapping(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], stream: Stream, blocking: bool) -> None:
    """As if the source had been copied away first: it is."""
    aside = src.like(stream)
    with Using(stream, aside.allocation):
        move(aside, src, stream, blocking=False)
        move(dst, aside, stream, blocking=blocking)


def _repeats(pattern: bytes, width: int) -> bool:
    return len(pattern) % width == 0 and pattern == pattern[:width] * (len(pattern) // width)


def _double(context: Context, ptr: int, pattern: bytes, nbytes: int, stream: Stream) -> None:
    """Fill with a pattern of any length: some of it from the host, then each copy doubles what is there."""
    repeats = max(1, min(PATTERN_BYTES, nbytes) // len(pattern))
    first = _scratch((repeats * len(pattern),), np.dtype(np.uint8))
    first[:] = np.frombuffer(pattern * repeats, np.uint8)
    driver, handle = context.driver, stream.handle
    if driver.copy(ptr, address(first), first.nbytes, H2D, handle, blocking=False):
        context.reclaim.retire(stream, first)
    done = first.nbytes
    while done < nbytes:
        step = min(done, nbytes - done)
        driver.copy(ptr + done, ptr, step, D2D, handle, blocking=False)
        done += step


def _count(context: Context, path: str, nbytes: int) -> None:
    counter = context.stats[path]
    counter[0] += 1
    counter[1] += nbytes


def _call_site() -> tuple[str, int]:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("devmem", "numpy"):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
