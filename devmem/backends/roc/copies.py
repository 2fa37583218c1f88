"""Copies to, from, on and between HIP devices, and fills."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ...spi.errors import BackendError
from ...spi.types import CopyKind, Extent
from ...toolkit.driver_parts import DriverState, Part, StridedCopies
from ...toolkit.handles import DEFAULT_STREAMS
from ...toolkit.streams import Streams
from ...toolkit.vendor_functions import NOT_SUPPORTED
from .functions import PEER_ACCESS_ALREADY_ENABLED
from .providers import Provider

_D2D = CopyKind.D2D
_KINDS = {CopyKind.H2D: 1, CopyKind.D2H: 2, CopyKind.D2D: 3}


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


class Copies(StridedCopies, Part):
    """Copies and fills. Whether host memory is page-locked is not asked, so every asynchronous copy may still touch it.

    The runtime finds the direction out by itself. The kind that it is given keeps it from taking a device's address that it does
    not know for host memory on both sides.
    """

    def __init__(self, state: DriverState, streams: Streams, provider: Provider) -> None:
        super().__init__(state)
        self._synchronize = streams.stream_synchronize
        self._can_enable_access = provider.has("hipDeviceEnablePeerAccess")
        self._peers = {state.ordinal}  # access to their memory is enabled, or cannot be
        self.kinds = {kind: provider.member("hipMemcpyKind", number) for kind, number in _KINDS.items()}

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        on = self._streams[stream]
        if blocking and kind is not _D2D:  # within a device it would not wait
            self._functions.MemcpyWithStream(dst, src, nbytes, self.kinds[kind], on)
            return False
        self._functions.MemcpyAsync(dst, src, nbytes, self.kinds[kind], on)
        if blocking:
            self._synchronize(stream)
            return False
        return kind is not _D2D

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        if width == 4:
            value -= value >> 31 << 32  # a signed word there
        getattr(self._functions, f"MemsetD{8 * width}Async")(dst, value, count, self._streams[stream])

    def copy_slices(
        self, call: str, dst: Extent, src: Extent, shape: Extent, kind: CopyKind, stream: int, blocking: bool
    ) -> bool:
        (to, to_pitch, to_rows), (source, source_pitch, source_rows), (width, height, depth) = dst, src, shape
        kind_there, on = self.kinds[kind], self._streams[stream]
        if depth == 1:
            self._functions.Memcpy2DAsync(to, to_pitch, source, source_pitch, width, height, kind_there, on)
        else:
            plan = Volume(extent=shape, kind=_KINDS[kind])
            plan.src[:] = source, source_pitch, source_pitch, source_rows
            plan.dst[:] = to, to_pitch, to_pitch, to_rows
            self._functions.Memcpy3DAsync(ctypes.addressof(plan), on)
        if blocking:
            self._synchronize(stream)
            return False
        return kind is not _D2D

    def copy_batch(
        self, dsts: Sequence[int], srcs: Sequence[int], sizes: Sequence[int], kind: CopyKind, stream: int
    ) -> bool:
        if stream not in DEFAULT_STREAMS:  # the runtime refuses batches on them
            words = ctypes.c_size_t * len(dsts)
            lists = [words(*each) for each in (dsts, srcs, sizes)]
            addresses = map(ctypes.addressof, lists)
            try:
                # The runtime takes attributes of copies and ignores them: none are given.
                self._functions.MemcpyBatchAsync(*addresses, len(lists[0]), None, None, 0, self._streams[stream])
                return kind is not _D2D
            except BackendError as error:
                if error.code != NOT_SUPPORTED:
                    raise
        running = [self.copy(*each, kind, stream, blocking=False) for each in zip(dsts, srcs, sizes, strict=True)]
        return any(running)

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

    def _enable_access(self, other: int) -> None:
        """Enable access to another device's memory; without it the same copy passes through the host."""
        if self._can_enable_access and self.can_access(other):
            try:
                self._functions.DeviceEnablePeerAccess(other, 0)
            except BackendError as error:
                if error.code != PEER_ACCESS_ALREADY_ENABLED:
                    raise
        self._peers.add(other)
