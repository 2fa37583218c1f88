"""Mistakes in page-locked, managed and peer memory, and pointers, and the tests of `testing/driver_sharing.py` that find them."""

from __future__ import annotations

import contextlib
from typing import Any

from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM

from .base import Broken


class RegistersNothing(Broken):
    def spoil(self) -> None:
        self.host_register = self.host_unregister = lambda *args: None


class PeerCopiesToItself(Broken):
    def spoil(self) -> None:
        def copy_peer(dst: int, there: int, src: int, here: int, nbytes: int, stream: int, *, blocking: bool) -> None:
            pass

        self.copy_peer = copy_peer


class PeersNeverBlock(Broken):
    def spoil(self) -> None:
        def copy_peer(*sides: int, blocking: bool) -> None:
            self.sound.copy_peer(*sides, blocking=False)

        self.copy_peer = copy_peer


class PeersAreNotWaitedFor(Broken):
    def spoil(self) -> None:
        self.stream_wait_peer = lambda *args: None


class PeersAreWaitedForByTheHost(Broken):
    def spoil(self) -> None:
        def stream_wait_peer(stream: int, event: int, ordinal: int) -> None:
            self.sound.stream_wait_peer(stream, event, ordinal)
            self.sound.stream_synchronize(stream)

        self.stream_wait_peer = stream_wait_peer


class MapsOtherMemory(Broken):
    def spoil(self) -> None:
        self.device_pointer = lambda host: self.sound.alloc(16384, LEGACY_STREAM)


class AcceptsRegisteredMemoryAgain(Broken):
    def spoil(self) -> None:
        def host_register(ptr: int, nbytes: int, mapped: bool) -> None:
            with contextlib.suppress(BackendError):
                self.sound.host_register(ptr, nbytes, mapped)

        self.host_register = host_register


class PrefetchClears(Broken):
    def spoil(self) -> None:
        self.prefetch = lambda ptr, nbytes, to_host, stream: self.sound.fill(ptr, 0, 1, nbytes, stream)


class PrefetchToClears(Broken):
    def spoil(self) -> None:
        def prefetch_to(ptrs: Any, sizes: Any, to: Any, stream: int, *, discard: bool) -> None:
            self.sound.fill(ptrs[0], 0, 1, sizes[0], stream)

        self.prefetch_to = prefetch_to


class DiscardsTooMuch(Broken):
    def spoil(self) -> None:
        self.discard = lambda ptrs, sizes, stream: self.sound.fill(ptrs[0], 0, 1, sizes[0] + 1, stream)


class RangesBeginAtTheAddress(Broken):
    def spoil(self) -> None:
        def pointer_range(ptr: int) -> tuple[int, int] | None:
            found = self.sound.pointer_range(ptr)
            return found and (ptr, found[1])

        self.pointer_range = pointer_range


class AllMemoryIsItsOwn(Broken):
    def spoil(self) -> None:
        self.pointer_device = lambda ptr: 0


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (RegistersNothing, "test_registered_memory_is_pinned", {}),
    (RegistersNothing, "test_registered_for_every_device", {}),
    (PeerCopiesToItself, "test_copy_peer_reaches_the_other_device", {"outwards": True, "blocking": True}),
    (PeersNeverBlock, "test_blocking_copy_peer_waits_for_earlier_work", {"outwards": True}),
    (PeersNeverBlock, "test_blocking_copy_peer_waits_for_earlier_work", {"outwards": False}),
    (PeersAreNotWaitedFor, "test_a_stream_waits_for_an_event_of_another_device", {}),
    (PeersAreWaitedForByTheHost, "test_a_stream_waits_for_an_event_of_another_device", {}),
    (MapsOtherMemory, "test_mapped_memory_has_an_address_for_the_device", {"how": "allocated"}),
    (AcceptsRegisteredMemoryAgain, "test_register_twice_and_unregister_unknown", {}),
    (PrefetchClears, "test_hints_do_not_change_bytes", {}),
    (PrefetchToClears, "test_hints_for_places_do_not_change_bytes", {"kind": "numa_node"}),
    (DiscardsTooMuch, "test_discarded_memory_is_written_again_and_no_other_changes", {"moved": False}),
    (RangesBeginAtTheAddress, "test_pointer_range_is_the_allocation_around_an_address", {}),
    (AllMemoryIsItsOwn, "test_pageable_memory_is_no_devices", {}),
]
