"""What an address means to one device: which memory it names, on which side of a copy, and where its bytes can be touched.

Two arenas hold all memory of a device: its own, and that of the host kinds. In a strict device both are hidden, so that every
byte has two addresses: one that faults, and one that can be touched. Device memory is known by the first alone. Page-locked
memory is known to the host by the second, and no device reaches it. Mapped memory is known to the host by the second and to
devices by the first; managed memory is known to both by the second. Where a device is not strict the two are the same, and any
address of the process counts as device memory, so that arrays of the host can be adopted without a copy.

Memory that the user had page-locked belongs to no device: see `page_locks`.

The methods that check an address take the name of the driver call for the error, and return addresses that can be touched;
those never leave the backend.
"""

from __future__ import annotations

import os

from devmem.spi.types import CopyKind, MemoryKind

from .arena import Arena
from .error_codes import host_error
from .page_locks import page_locks


class AddressSpace:
    """The memory of one device. Any thread may call any method."""

    def __init__(self, strict: bool) -> None:
        nbytes = _physical_memory()
        self.device, self.host = Arena(nbytes, hidden=strict), Arena(nbytes, hidden=strict)
        self.strict = self.device.shift != 0
        arenas = self.device, self.host
        self._lowest = min(arena.base + min(arena.shift, 0) for arena in arenas)
        self._highest = max(arena.end + max(arena.shift, 0) for arena in arenas)
        self._host_kinds: dict[int, MemoryKind] = {}  # by the host's address of each live block of `host`

    # -- blocks ------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, kind: MemoryKind) -> int:
        """Return the address of a new block: the host's for host kinds."""
        if kind is MemoryKind.DEVICE:
            return self.device.allocate(nbytes)
        if not isinstance(kind, MemoryKind):
            raise host_error("alloc", "INVALID_VALUE", f"{kind!r} is not a kind of memory")
        ptr = self.host.allocate(nbytes) + self.host.shift
        self._host_kinds[ptr] = kind
        return ptr

    def invalidate(self, call: str, ptr: int, nbytes: int, kind: MemoryKind) -> None:
        """End the block: no call finds it from now on. Its bytes stay taken until `recycle`."""
        arena, start, is_kind = self.device, ptr, True
        if kind is not MemoryKind.DEVICE:
            arena, start, is_kind = self.host, ptr - self.host.shift, self._host_kinds.get(ptr) is kind
        if is_kind and arena.invalidate(start, nbytes):
            return
        held = arena.live.get(start) if is_kind else None
        if held is None:
            raise host_error(call, "INVALID_ADDRESS", f"{ptr:#x} is not the start of a live {kind} block")
        raise host_error(call, "INVALID_VALUE", f"the block at {ptr:#x} has {held} bytes, not {nbytes}")

    def recycle(self, ptr: int, kind: MemoryKind) -> None:
        """Make the bytes of an invalidated block available again."""
        if kind is MemoryKind.DEVICE:
            self.device.recycle(ptr)
        else:
            del self._host_kinds[ptr]
            self.host.recycle(ptr - self.host.shift)

    def close(self, in_use: bool) -> None:
        """End the device's page locks and unmap its memory.

        What can still be touched stays mapped: with ``in_use`` all of it, else blocks at addresses that the host can read,
        which may be arrays of the user's.
        """
        page_locks.remove_all(self)
        for arena in (self.device, self.host):
            readable = arena is self.host or not self.strict
            if in_use or (readable and arena.live):
                arena.mapping.keep()
            else:
                arena.mapping.unmap()

    def keep_mapped(self) -> None:
        """Let the memory be mapped until the process ends, for a job that is still running when the interpreter ends."""
        self.device.mapping.keep()
        self.host.mapping.keep()

    # -- page locks --------------------------------------------------------------------------------------------------

    def register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        """Count memory of the user's as page-locked."""
        if self.strict and (self.device.overlaps(ptr, nbytes) or self.host.overlaps(ptr, nbytes)):
            raise host_error("host_register", "INVALID_VALUE", f"{ptr:#x} is a device address")
        if self.host.overlaps(ptr - self.host.shift, nbytes):
            raise host_error("host_register", "HOST_MEMORY_ALREADY_REGISTERED", f"{ptr:#x} is page-locked memory")
        page_locks.add(self, ptr, nbytes, mapped, hidden=self.strict)

    def page_locked(self, ptr: int, nbytes: int) -> bool:
        """Return whether a copy may still read or write these bytes of the host after the call."""
        if self.host.resolve(ptr - self.host.shift, nbytes):
            return True
        return page_locks.locks.containing(ptr, ptr + nbytes) is not None

    def device_pointer(self, host: int) -> int:
        """Return the device's address of a byte of mapped, managed or registered memory."""
        kind = self._host_kind(host, 1)
        if kind is MemoryKind.MANAGED:
            return host
        ptr = host - self.host.shift if kind is MemoryKind.MAPPED else page_locks.device_pointer(host)
        if not ptr:
            why = f"{host:#x} is not mapped memory, nor registered as such"
            raise host_error("device_pointer", "INVALID_VALUE", why)
        return ptr

    # -- checks ------------------------------------------------------------------------------------------------------

    def copy_sides(
        self, call: str, dst: int, dst_span: int, src: int, src_span: int, kind: CopyKind
    ) -> tuple[int, int]:
        """Return where destination and source of a copy can be touched."""
        if kind is CopyKind.H2D:
            self._check_host_side(call, src, src_span)
            return self.device_side(call, dst, dst_span), src
        if kind is CopyKind.D2H:
            self._check_host_side(call, dst, dst_span)
            return dst, self.device_side(call, src, src_span)
        if kind is not CopyKind.D2D:
            raise host_error(call, "INVALID_VALUE", f"{kind!r} is not a kind of copy")
        return self.device_side(call, dst, dst_span), self.device_side(call, src, src_span)

    def device_side(self, call: str, ptr: int, nbytes: int) -> int:
        """Return where bytes that a device reaches can be touched."""
        at = self.device.resolve(ptr, nbytes)
        if at:
            return at
        if ptr <= 0:
            raise host_error(call, "INVALID_VALUE", f"device address {ptr:#x}")
        found = self._block_around(ptr)
        if found is not None and ptr + nbytes <= found[0] + found[1]:
            return ptr + found[2]
        if self.device.overlaps(ptr, nbytes) or self.host.overlaps(ptr, nbytes):
            raise host_error(call, "INVALID_ADDRESS", f"{nbytes} bytes at {ptr:#x} are not in one live block")
        if self.strict:
            raise host_error(call, "INVALID_ADDRESS", f"{nbytes} bytes at {ptr:#x} are not memory of the device")
        return ptr

    def block_around(self, ptr: int) -> tuple[int, int] | None:
        """Return (first address, bytes) of the live block that an address of the device's lies in."""
        found = self.device.block_around(ptr) or self._block_around(ptr)
        return found[:2] if found is not None else None

    def check_managed(self, call: str, ptr: int, nbytes: int) -> None:
        """Raise unless all the bytes lie in one managed block."""
        if nbytes <= 0 or self._host_kind(ptr, nbytes) is not MemoryKind.MANAGED:
            raise host_error(call, "INVALID_VALUE", f"{nbytes} bytes at {ptr:#x} are not in one managed block")

    def _check_host_side(self, call: str, ptr: int, nbytes: int) -> None:
        if ptr <= 0:
            raise host_error(call, "INVALID_VALUE", f"host address {ptr:#x}")
        end = ptr + nbytes
        hidden = False
        if ptr < self._highest and end > self._lowest and not self.host.resolve(ptr - self.host.shift, nbytes):
            for arena in (self.device, self.host):
                hidden = hidden or (self.strict and arena.overlaps(ptr, nbytes))
                start = ptr - arena.shift
                if arena.overlaps(start, nbytes) and not arena.resolve(start, nbytes):
                    raise host_error(call, "INVALID_ADDRESS", f"{nbytes} bytes at {ptr:#x} are not in one live block")
        windows = page_locks.windows
        if hidden or (windows.ranges and any(window.shift for window in windows.overlapping(ptr, end))):
            raise host_error(call, "INVALID_ADDRESS", f"{ptr:#x} is a device address, where the host's belongs")

    def _host_kind(self, ptr: int, nbytes: int) -> MemoryKind | None:
        """Return the kind of the live host block that all the bytes, at the host's address, lie in."""
        found = self.host.block_around(ptr - self.host.shift)
        if found is None or ptr - self.host.shift + nbytes > found[0] + found[1]:
            return None
        return self._host_kinds.get(found[0] + self.host.shift)

    def _block_around(self, ptr: int) -> tuple[int, int, int] | None:
        """Return (first address, bytes, shift to where they can be touched) of the block of the host's that a device reaches."""
        host = self.host
        for start, kind in ((ptr, MemoryKind.MAPPED), (ptr - host.shift, MemoryKind.MANAGED)):
            found = host.block_around(start)
            if found is not None and (not self.strict or self._host_kinds.get(found[0] + host.shift) is kind):
                return found[0] + ptr - start, found[1], host.shift - (ptr - start)
        return page_locks.block_around(ptr)


def refuse_overlap(call: str, to: int, to_span: int, source: int, source_span: int) -> None:
    """Raise if two ranges share a byte."""
    if to < source + source_span and source < to + to_span:
        raise host_error(call, "INVALID_VALUE", f"source and destination overlap ({source_span} bytes)")


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30
