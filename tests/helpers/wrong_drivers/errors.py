"""Mistakes in errors, and the tests of `testing/driver_errors.py` that find them."""

from __future__ import annotations

import contextlib
from typing import Any

from devmem.spi.errors import BackendError
from devmem.spi.types import CopyKind, MemoryKind

from .base import Broken


class NoDetails(Broken):
    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        try:
            super().free(ptr, nbytes, stream, kind)
        except BackendError as error:
            raise BackendError(str(error)) from error


class AcceptsAnyStream(Broken):
    def stream_query(self, stream: int) -> bool:
        try:
            return super().stream_query(stream)
        except BackendError:
            return True


class ErrorsHaveNoCode(Broken):
    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        try:
            super().free(ptr, nbytes, stream, kind)
        except BackendError as error:
            error.code = 0
            raise


class AcceptsADestroyedStreamAgain(Broken):
    def stream_destroy(self, stream: int) -> None:
        with contextlib.suppress(BackendError):
            super().stream_destroy(stream)


class AcceptsADestroyedEventAgain(Broken):
    def event_destroy(self, event: int) -> None:
        with contextlib.suppress(BackendError):
            super().event_destroy(event)


class AcceptsFreedMemoryAgain(Broken):
    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        with contextlib.suppress(BackendError):
            super().free(ptr, nbytes, stream, kind)


class ChecksBlockingCopiesOnly(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        with contextlib.nullcontext() if blocking else contextlib.suppress(BackendError):
            return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)
        return False


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (NoDetails, "test_errors_have_the_call_and_the_code", {}),
    (AcceptsAnyStream, "test_a_stream_unknown_or_destroyed_is_refused", {"call": "query", "gone": True}),
    (ErrorsHaveNoCode, "test_errors_have_the_call_and_the_code", {}),
    (AcceptsADestroyedStreamAgain, "test_a_stream_unknown_or_destroyed_is_refused", {"call": "destroy", "gone": True}),
    (AcceptsADestroyedEventAgain, "test_an_event_unknown_or_destroyed_is_refused", {"call": "destroy", "gone": True}),
    (AcceptsFreedMemoryAgain, "test_freeing_twice_is_refused", {"kind": MemoryKind.DEVICE}),
    (
        ChecksBlockingCopiesOnly,
        "test_copy_of_bad_addresses",
        {"kind": CopyKind.H2D, "wrong": "too long", "blocking": False},
    ),
]
