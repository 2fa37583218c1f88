"""Meanings of an address to one device: the memory it names, on which side of a copy, and where its bytes can be touched.

Two arenas hold the memory of a device: its own, and that of the host kinds. In a strict device every byte of both has two
addresses: a hidden one, which faults, and one that can be touched. Device memory is known by the hidden one alone. Page-locked
memory is known to the host by the other, and no device reaches it. Mapped memory is known to devices by the hidden one, to the
host by the other; managed memory is known to both by the other. Where a device is not strict the two are the same, and any
address of the process counts as device memory, so that arrays of the host can be adopted without a copy.

Memory that the user had page-locked belongs to no device: see `page_locks`. Methods that check an address take the name of the
driver call for the error, and return addresses that can be touched; those never leave the backend.
"""

from __future__ import annotations

from typing import NamedTuple

from devmem.spi.types import CopyKind, MemoryKind
from devmem.toolkit.host_limits import machine_bytes

from ...spi.sizes import exact_size
from .arena import Arena
from .error_codes import host_error
from .page_locks import page_locks
from .shared_memory import SharedBlock, handle_of, open_handle


class Place(NamedTuple):
    """The address at which bytes of a device can be touched, and their position in the file that holds them, else -1."""

    address: int
    file: int = -1
    position: int = 0


class AddressSpace:
    """The memory of one device. Any thread may call any method."""

    def __init__(self, strict: bool) -> None:
        nbytes = machine_bytes()
        self.device, self.host = Arena(nbytes, strict), Arena(nbytes, strict, touchable=True)
        self.strict = self.device.shift != 0
        self._kinds: dict[int, MemoryKind] = {}  # of the blocks of `host`, by their addresses
        #: Blocks of other processes, by their addresses.
        self.opened: dict[int, SharedBlock] = {}
        starts = [at for each in (self.device.mapping, self.host.mapping) for at in (each.base, each.base + each.shift)]
        self._lowest, self._highest = min(starts), max(starts) + self.device.size

    def allocate(self, nbytes: int, kind: MemoryKind) -> int:
        """Return the address of a new block: the host's for host kinds."""
        if kind is MemoryKind.DEVICE:
            return self.device.allocate(nbytes)
        if not isinstance(kind, MemoryKind):
            raise host_error("alloc", "INVALID_VALUE", f"{kind!r} is not a kind of memory")
        ptr = self.host.allocate(nbytes)
        self._kinds[ptr] = kind
        return ptr

    def invalidate(self, call: str, ptr: int, nbytes: int, kind: MemoryKind) -> object:
        """End the block: no call finds it from now on. Return the end; the bytes stay taken until it is recycled."""
        arena = self.device if kind is MemoryKind.DEVICE else self.host
        is_kind = arena is self.device or self._kinds.get(ptr) is kind
        end = arena.invalidate(ptr, nbytes) if is_kind else None
        if end is None:
            held = arena.live.get(ptr) if is_kind else None
            if held is None:
                raise host_error(call, "INVALID_ADDRESS", f"{ptr:#x} is not the start of a live {kind} block")
            raise host_error(call, "INVALID_VALUE", f"the block at {ptr:#x} has {held} bytes, not {nbytes}")
        return end

    def ending(self) -> list[tuple[Arena, int, object]]:
        """Return the blocks that have ended and are not recycled, to be recycled when what uses them now has passed."""
        return [
            (arena, *each) for arena in (self.device, self.host) if arena.ending for each in list(arena.ending.items())
        ]

    def discard(self) -> None:
        """Give the pages of all that is free back to the operating system."""
        self.device.discard()
        self.host.discard()

    def export(self, ptr: int) -> bytes:
        """Return what another process opens a block with."""
        return handle_of(self.device, ptr)

    def open(self, handle: bytes) -> int:
        """Return the address of a block of another process."""
        block = open_handle(handle, self.strict)
        self.opened[block.ptr] = block
        return block.ptr

    def close_opened(self, ptr: int) -> None:
        """Unmap a block of another process; nothing uses it any more."""
        block = self.opened.pop(ptr, None)
        if block is None:
            raise host_error("ipc_close", "INVALID_VALUE", f"{ptr:#x} is not where ipc_open has opened a block")
        block.close()

    def close(self, in_use: bool) -> None:
        """End the device's page locks and unmap its memory.

        Memory that can still be touched stays mapped: all of it if jobs have it ``in_use``, else an arena with live blocks that
        the host can read, which may be arrays of the user's.
        """
        page_locks.remove_all(self)
        if not in_use:
            for ptr in list(self.opened):
                self.close_opened(ptr)
        for arena in (self.device, self.host):
            if in_use or (arena.live and not arena.shift):
                arena.mapping.keep()
            else:
                arena.mapping.unmap()

    def keep_mapped(self) -> None:
        """Let the memory be mapped until the process ends, for a job that is running when the interpreter ends."""
        self.device.mapping.keep()
        self.host.mapping.keep()

    def register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        """Count memory of the user's as page-locked."""
        if self._is_hidden(ptr, nbytes):
            raise host_error("host_register", "INVALID_VALUE", f"{ptr:#x} is a device address")
        if self.host.overlaps(ptr, nbytes):
            raise host_error("host_register", "HOST_MEMORY_ALREADY_REGISTERED", f"{ptr:#x} is page-locked memory")
        page_locks.add(self, ptr, nbytes, mapped, hidden=self.strict)

    def page_locked(self, ptr: int, nbytes: int) -> bool:
        """Return whether a copy may still read or write these bytes of the host after the call."""
        return self.host.resolve(ptr, nbytes) != 0 or page_locks.locks.containing(ptr, ptr + nbytes) is not None

    def device_pointer(self, host: int) -> int:
        """Return the device's address of a byte of mapped, managed or registered memory."""
        kind = self._host_kind(host, 1)
        if kind is MemoryKind.MANAGED:
            return host
        ptr = host - self.host.mapping.shift if kind is MemoryKind.MAPPED else page_locks.device_pointer(host)
        if not ptr:
            raise host_error(
                "device_pointer", "INVALID_VALUE", f"{host:#x} is not mapped memory, nor registered as such"
            )
        return ptr

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
        if at := self.device.resolve(ptr, nbytes):
            return at
        if ptr <= 0:
            raise host_error(call, "INVALID_VALUE", f"device address {ptr:#x}")
        found = self._block_around(ptr)
        if found is not None and ptr + nbytes <= found[0] + found[1]:
            return ptr + found[2]
        if self.strict or self.device.overlaps(ptr, nbytes) or self.host.overlaps(ptr, nbytes):
            why = f"{exact_size(nbytes)} at {ptr:#x} are not in one live block of memory that the device reaches"
            raise host_error(call, "INVALID_ADDRESS", why)
        return ptr

    def place(self, call: str, ptr: int, nbytes: int) -> Place:
        """Return where bytes that a device reaches are."""
        at = self.device_side(call, ptr, nbytes)
        if self.device.resolve(ptr, nbytes):
            return Place(at, self.device.mapping.file, ptr - self.device.base)
        return Place(at)

    def block_around(self, ptr: int) -> tuple[int, int] | None:
        """Return (first address, bytes) of the live block that an address of the device's lies in."""
        found = self.device.block_around(ptr) or self._block_around(ptr)
        return found[:2] if found is not None else None

    def check_managed(self, call: str, ptr: int, nbytes: int) -> None:
        """Raise unless all the bytes lie in one managed block."""
        if nbytes <= 0 or self._host_kind(ptr, nbytes) is not MemoryKind.MANAGED:
            raise host_error(call, "INVALID_VALUE", f"{exact_size(nbytes)} at {ptr:#x} are not in one managed block")

    def _check_host_side(self, call: str, ptr: int, nbytes: int) -> None:
        if ptr <= 0:
            raise host_error(call, "INVALID_VALUE", f"host address {ptr:#x}")
        windows = page_locks.windows
        if ptr < self._highest and ptr + nbytes > self._lowest:
            for arena in (self.host, self.device):
                if arena.resolve(ptr, nbytes) and not arena.shift:
                    return
                if arena.overlaps(ptr, nbytes) and not arena.shift:
                    why = f"{exact_size(nbytes)} at {ptr:#x} are not in one live block"
                    raise host_error(call, "INVALID_ADDRESS", why)
        elif not windows.ranges:
            return
        if self._is_hidden(ptr, nbytes) or any(each.shift for each in windows.overlapping(ptr, ptr + nbytes)):
            raise host_error(call, "INVALID_ADDRESS", f"{ptr:#x} is a device address, where the host's belongs")

    def _is_hidden(self, ptr: int, nbytes: int) -> bool:
        """Return whether a hidden address of the device's is among these."""
        end = ptr + nbytes
        mappings = self.device.mapping, self.host.mapping
        return self.strict and any(ptr < mapping.end and end > mapping.base for mapping in mappings)

    def _host_kind(self, ptr: int, nbytes: int) -> MemoryKind | None:
        """Return the kind of the block of the host's that all the bytes lie in."""
        found = self.host.block_around(ptr)
        return self._kinds.get(found[0]) if found is not None and ptr + nbytes <= sum(found) else None

    def _block_around(self, ptr: int) -> tuple[int, int, int] | None:
        """Return (first address, bytes, shift to where they can be touched) of what else a device reaches.

        That is memory of another process that was opened, and the host's.
        """
        for block in list(self.opened.values()):
            if block.ptr <= ptr < block.ptr + block.nbytes:
                return block.ptr, block.nbytes, block.shift
        for shift, kind in ((self.host.mapping.shift, MemoryKind.MAPPED), (0, MemoryKind.MANAGED)):
            found = self.host.block_around(ptr + shift)
            if found is not None and (not self.strict or self._kinds.get(found[0]) is kind):
                return found[0] - shift, found[1], shift
        return page_locks.block_around(ptr)


def refuse_overlap(call: str, to: int, to_span: int, source: int, source_span: int) -> None:
    """Raise if two ranges share a byte."""
    if to < source + source_span and source < to + to_span:
        raise host_error(call, "INVALID_VALUE", f"source and destination overlap ({exact_size(source_span)})")
