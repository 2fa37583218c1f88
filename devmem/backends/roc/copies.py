"""Copies to, from, on and between HIP devices, and fills."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from ...spi.errors import BackendError, UnsupportedError
from ...spi.types import Box, CopyKind
from ...toolkit.driver_parts import DriverState, Part
from ...toolkit.streams import Streams
from ...toolkit.vendor_functions import NOT_SUPPORTED
from .calls import Runtime
from .functions import PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED

_D2D = CopyKind.D2D
_KINDS = {CopyKind.H2D: 1, CopyKind.D2H: 2, CopyKind.D2D: 3}

#: Copies in one call: a fault beyond 8,192 has been reported.
MOST_IN_BATCH = 4096


class Volume(ctypes.Structure):
    """The arguments of a three-dimensional copy."""

    _fields_ = (
        ("src_array_and_position", ctypes.c_size_t * 4),
        ("src", ctypes.c_size_t * 4),  # address, pitch, width, rows
        ("dst_array_and_position", ctypes.c_size_t * 4),
        ("dst", ctypes.c_size_t * 4),
        ("extent", ctypes.c_size_t * 3),
        ("kind", ctypes.c_int),
    )


class Copies(Part):
    """Copies and fills. The runtime has read or written pageable memory when its asynchronous copies return.

    The runtime finds the direction out by itself. The kind that it is given keeps it from taking a device's address that it does
    not know for host memory on both sides.
    """

    def __init__(
        self, state: DriverState, streams: Streams, found: Runtime, is_page_locked: Callable[[int], bool]
    ) -> None:
        super().__init__(state)
        self._is_page_locked = is_page_locked
        self._synchronize = streams.stream_synchronize
        self._can_enable_access = found.has("hipDeviceEnablePeerAccess")
        self._peers = {state.ordinal}  # access to their memory is enabled, or cannot be
        self.kinds = {kind: found.direction(number) for kind, number in _KINDS.items()}

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        on = self._streams[stream]
        if blocking and kind is not _D2D:  # within a device it would not wait
            self._functions.MemcpyWithStream(dst, src, nbytes, self.kinds[kind], on)
            return False
        self._functions.MemcpyAsync(dst, src, nbytes, self.kinds[kind], on)
        if blocking:
            self._synchronize(stream)
            return False
        return kind is not _D2D and self._is_page_locked(src if kind is CopyKind.H2D else dst)

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        if width == 4:
            value -= value >> 31 << 32  # a signed word there
        getattr(self._functions, f"MemsetD{8 * width}Async")(dst, value, count, self._streams[stream])

    def copy_strided(self, box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        to, to_pitch, to_rows, source, source_pitch, source_rows, width, height, depth = box
        on = self._streams[stream]
        if depth == 1:
            self._functions.Memcpy2DAsync(to, to_pitch, source, source_pitch, width, height, self.kinds[kind], on)
        else:
            plan = Volume(extent=(width, height, depth), kind=_KINDS[kind])
            plan.src[:] = source, source_pitch, source_pitch, source_rows
            plan.dst[:] = to, to_pitch, to_pitch, to_rows
            self._functions.Memcpy3DAsync(ctypes.addressof(plan), on)
        if blocking:
            self._synchronize(stream)
            return False
        return kind is not _D2D and self._is_page_locked(source if kind is CopyKind.H2D else to)

    def copy_batch(
        self, dsts: Sequence[int], srcs: Sequence[int], sizes: Sequence[int], kind: CopyKind, stream: int
    ) -> bool:
        on = self._streams[stream]
        try:
            for at in range(0, len(dsts), MOST_IN_BATCH):
                part = [each[at : at + MOST_IN_BATCH] for each in (dsts, srcs, sizes)]
                lists = [(ctypes.c_size_t * len(each))(*each) for each in part]
                addresses = map(ctypes.addressof, lists)
                # The runtime takes attributes of copies and ignores them: none are given.
                self._functions.MemcpyBatchAsync(*addresses, len(lists[0]), None, None, 0, on)
        except BackendError as error:
            if error.code == NOT_SUPPORTED:
                raise UnsupportedError(f"this device's runtime has no call for several copies: {error}") from error
            raise
        return kind is not _D2D

    def can_access(self, ordinal: int) -> bool:
        return bool(self._functions.DeviceCanAccessPeer(self._ordinal, ordinal))

    def copy_peer(
        self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int, *, blocking: bool
    ) -> None:
        for other in {dst_ordinal, src_ordinal} - self._peers:
            self._enable_access(other)
        self._functions.MemcpyPeerAsync(dst, dst_ordinal, src, src_ordinal, nbytes, self._streams[stream])
        if blocking:
            self._synchronize(stream)

    def peer_access(self, ordinal: int, enabled: bool) -> None:
        if enabled:
            self._enable_access(ordinal)
            return
        self._peers.add(ordinal)  # asked for already: no copy asks again
        try:
            self._functions.DeviceDisablePeerAccess(ordinal)
        except BackendError as error:
            if error.code != PEER_ACCESS_NOT_ENABLED:
                raise

    def _enable_access(self, other: int) -> None:
        """Enable access to another device's memory; without it the same copy passes through the host."""
        if self._can_enable_access and self.can_access(other):
            try:
                self._functions.DeviceEnablePeerAccess(other, 0)
            except BackendError as error:
                if error.code != PEER_ACCESS_ALREADY_ENABLED:
                    raise
        self._peers.add(other)
