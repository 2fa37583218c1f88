"""What every address means to a device."""

from __future__ import annotations

import os
import threading

from devmem.spi.types import CopyKind, MemoryKind

from .arena import Arena
from .error_codes import host_error
from .page_locks import registered

_KINDS = frozenset(MemoryKind)


class Space:
    """All the memory of one device: an arena for each kind; what the user registered is that of the process.

    The two sides of a copy are told apart by address. What is checked here answers with addresses that can be touched:
    they differ from the device's by the `shift` of the arena, and never leave the backend.

    Strict devices keep device memory where the host cannot touch it. One that is not strict takes any address of the
    process as device memory too, so that arrays of the host can be adopted without a copy.
    """

    def __init__(self, strict: bool) -> None:
        self.memory = Arena(_physical_memory(), hidden=strict)
        self.strict = self.memory.hidden
        self.arenas = {MemoryKind.DEVICE: self.memory}  # the others follow when they are first asked for
        self._lock = threading.Lock()

    # -- giving and taking -------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, kind: MemoryKind) -> int:
        """Return the address of a new block: the host's for host kinds."""
        arena = self._arena(kind)
        return arena.allocate(nbytes) + arena.host_shift

    def retire(self, call: str, ptr: int, nbytes: int, kind: MemoryKind) -> None:
        """Let no new call name the block. Its bytes are taken until `recycle`."""
        arena = self._arena(kind)
        block = ptr - arena.host_shift
        if not arena.retire(block, nbytes):
            held = arena.live.get(block)
            if held is None:
                raise host_error(call, "INVALID_ADDRESS", f"{ptr:#x} is not the start of a live {kind} block")
            raise host_error(call, "INVALID_VALUE", f"the block at {ptr:#x} has {held} bytes, not {nbytes}")

    def recycle(self, ptr: int, kind: MemoryKind) -> None:
        """Make the bytes of a retired block available again."""
        arena = self.arenas[kind]
        arena.recycle(ptr - arena.host_shift)

    def register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        """Count host memory of the user as pinned."""
        for kind, arena in self.arenas.items():
            if arena.hidden and arena.overlaps(ptr, nbytes):
                raise host_error("host_register", "INVALID_VALUE", f"{ptr:#x} is a device address")
            if kind is not MemoryKind.DEVICE and arena.overlaps(ptr - arena.host_shift, nbytes):
                raise host_error("host_register", "HOST_MEMORY_ALREADY_REGISTERED", f"{ptr:#x} is {kind} memory")
        registered.add(self, ptr, nbytes, mapped)

    def check_registered(self, ptr: int, nbytes: int) -> None:
        """Raise unless exactly this range was registered, by this device."""
        registered.check(self, ptr, nbytes)

    def unregister(self, ptr: int, nbytes: int) -> None:
        """Forget a registered range."""
        registered.remove(self, ptr, nbytes)

    def device_pointer(self, host: int) -> int:
        """Return the device's address of a byte of mapped, managed or registered memory."""
        for kind in (MemoryKind.MAPPED, MemoryKind.MANAGED):
            arena = self.arenas.get(kind)
            if arena is not None and arena.resolve(host - arena.host_shift, 1):
                return host - arena.host_shift
        ptr = registered.device_pointer(host, self.strict)
        if not ptr:
            raise host_error(
                "device_pointer", "INVALID_VALUE", f"{host:#x} is not mapped memory, nor registered as such"
            )
        return ptr

    def close(self, keep: bool) -> None:
        """Unmap what nobody can be using; ``keep``: a job of another device still may. What was registered ends with it."""
        registered.remove_all(self)
        for arena in self.arenas.values():
            # Blocks at readable addresses may be arrays in somebody's hands: better mapped for good than a crash.
            readable = not arena.hidden or arena.host_shift
            arena.close(keep=keep or bool(readable and arena.live))

    def pin_mappings(self) -> None:
        """Make the mappings outlive the interpreter, for a job that is still running when it goes."""
        for arena in self.arenas.values():
            arena.pin_mappings()

    # -- checking ----------------------------------------------------------------------------------------------------

    def sides(self, call: str, dst: int, dst_span: int, src: int, src_span: int, kind: CopyKind) -> tuple[int, int]:
        """Return where destination and source can be touched, after checking both."""
        if kind is CopyKind.H2D:
            self._check_host_side(call, src, src_span)
            return self.device_side(call, dst, dst_span), src
        if kind is CopyKind.D2H:
            self._check_host_side(call, dst, dst_span)
            return dst, self.device_side(call, src, src_span)
        if kind is not CopyKind.D2D:
            raise host_error(call, "INVALID_VALUE", f"{kind!r} is not a kind of copy")
        to, source = self.device_side(call, dst, dst_span), self.device_side(call, src, src_span)
        refuse_overlap(call, to, dst_span, source, src_span)
        return to, source

    def device_side(self, call: str, ptr: int, nbytes: int) -> int:
        """Return where the bytes of device memory can be touched."""
        at = self.memory.resolve(ptr, nbytes)
        if at:
            return at
        if ptr <= 0:
            raise host_error(call, "INVALID_VALUE", f"device address {ptr:#x}")
        for kind, arena in self.arenas.items():
            if self.strict and kind is MemoryKind.PINNED:
                continue  # the device reaches it through copies alone
            at = arena.resolve(ptr, nbytes)
            if at:
                return at
            if arena.overlaps(ptr, nbytes):
                raise host_error(
                    call, "INVALID_ADDRESS", f"{nbytes} bytes at {ptr:#x} are not in one live {kind} block"
                )
        at = registered.resolve(ptr, nbytes)
        if not at and self.strict:
            raise host_error(call, "INVALID_ADDRESS", f"{nbytes} bytes at {ptr:#x} are not memory of the device")
        return at or ptr

    def block_around(self, ptr: int) -> tuple[int, int] | None:
        """(first address, bytes) of the live block that an address of the device's lies in; None if it lies in none."""
        for kind, arena in self.arenas.items():
            found = None if self.strict and kind is MemoryKind.PINNED else arena.block_around(ptr)
            if found is not None:
                return found
        return registered.block_around(ptr, self.strict)

    def pinned(self, ptr: int, nbytes: int) -> bool:
        """Whether the copy engine may read or write these bytes of the host after the call."""
        for kind, arena in self.arenas.items():
            if kind is not MemoryKind.DEVICE and arena.resolve(ptr - arena.host_shift, nbytes):
                return True
        return registered.contains(ptr, nbytes)

    def check_managed(self, call: str, ptr: int, nbytes: int) -> None:
        """Raise unless all the bytes lie in one managed block."""
        arena = self.arenas.get(MemoryKind.MANAGED)
        if arena is None or nbytes <= 0 or not arena.resolve(ptr, nbytes):
            raise host_error(call, "INVALID_VALUE", f"{nbytes} bytes at {ptr:#x} are not in one managed block")

    def _check_host_side(self, call: str, ptr: int, nbytes: int) -> None:
        if ptr <= 0:
            raise host_error(call, "INVALID_VALUE", f"host address {ptr:#x}")
        for kind, arena in self.arenas.items():
            block = ptr - arena.host_shift
            if block < arena.end and block + nbytes > arena.base and not arena.resolve(block, nbytes):
                raise host_error(
                    call, "INVALID_ADDRESS", f"{nbytes} bytes at {ptr:#x} are not in one live {kind} block"
                )
            if arena.hidden and ptr < arena.end and ptr + nbytes > arena.base:
                raise host_error(call, "INVALID_ADDRESS", f"{ptr:#x} is a device address, where the host's belongs")
        if registered.overlaps_window(ptr, nbytes):
            raise host_error(call, "INVALID_ADDRESS", f"{ptr:#x} is a device address, where the host's belongs")

    def _arena(self, kind: MemoryKind) -> Arena:
        arena = self.arenas.get(kind)
        if arena is None:
            if kind not in _KINDS:
                raise host_error("alloc", "INVALID_VALUE", f"{kind!r} is not a kind of memory")
            with self._lock:
                if kind not in self.arenas:
                    mapped = kind == MemoryKind.MAPPED
                    made = Arena(self.memory.size, hidden=self.strict and mapped)
                    made.host_shift = made.shift if mapped else 0
                    self.arenas = {**self.arenas, kind: made}  # replaced: other threads may be iterating over the old
            arena = self.arenas[kind]
        return arena


def refuse_overlap(call: str, to: int, to_span: int, source: int, source_span: int) -> None:
    """Raise if two ranges share a byte."""
    if to < source + source_span and source < to + to_span:
        raise host_error(call, "INVALID_VALUE", f"source and destination overlap ({source_span} bytes)")


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30
