"""A mapping whose device arrays move to page-locked host memory, and on to disk, while nothing uses them.

Each key is on one of three tiers: ``device``, ``host`` or ``disk``. Before something is put on a tier, or comes back to the
device, the keys of that tier that were used longest ago move on until there is room. A value with an array that the program
still has stays where it is: `blocks` tells which. Values without device arrays begin on the tier ``host``.

Any thread may use a store. The lock protects the tables and is never held while something is copied: the thread that moves a
key has *claimed* it, and others that want the same key wait for it. A claim is a weak reference to an object of the call, so it
ends with the call, however that ends. A key changes its tier by assignments with no call between them, after its elements are
where they are going to be and before the old ones are given back: an interrupt finds it on the one tier or the other, whole.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from contextlib import suppress
from functools import partial
from itertools import islice
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np

from ....spi.errors import ClosedError, ConfigError, DevmemWarning, ForkedError, OutOfMemory
from ....spi.sizes import exact_size
from ....toolkit.locks import Rank, lock
from ...arrays.ndarray import DeviceNDArray
from ...base.changes import Changes
from ...base.config import settings
from ...base.device_handle import CurrentDevice
from ...base.size_text import bytes_of, check_size, parse_size
from ...copy.trace import tracefile
from ...device.open_device import OpenDevice
from ..batch.tree import flatten, rebuild
from .blocks import Blocks
from .entries import Claim, Entry, Tier, unclaimed
from .folder import Folder
from .places import SLOT, Array, Place, Spare, fetched, returned, reusable

if TYPE_CHECKING:
    from types import TracebackType

    from ...device.device import Device
    from ...lifetime.allocation import Allocation

#: How many of a tier's entries are looked at before all are: mostly the oldest can be moved.
FIRST = 8


class Store(MutableMapping[Hashable, Any]):
    """Keys and values, of which those that were used longest ago leave the device while the program does not have them.

    ``store[key] = value`` takes a device array; lists, tuples and dicts of them, in one another and beside anything else; or any
    other value. ``store[key]`` gives it back, on the device that it was on, complete and bytes exact: the same memory where it
    has not moved, else a new array without gaps in the same order of axes. Page-locked host memory comes from the device's pool,
    and what goes to disk passes through it.

    Parameters
    ----------
    device : int or str, optional
        Bytes that stay on each device, as ``"2GiB"`` or a share of it, ``"80%"``. None: until memory runs out. An allocation that
        does not fit moves what is in the store, with or without a limit.
    host : int or str, optional
        Bytes of host memory; what is more goes to disk. None: no limit.
    disk : path, optional
        A folder, which is made. None: nothing goes to disk.
    disk_bytes : int or str, optional
        Bytes of files in all. None: no limit.
    sizeof : callable, optional
        Bytes of what is no device array, for the limit ``host``: ``sizeof(value) -> int``. If not given, those of the arrays
        of NumPy in it, and what ``__sizeof__`` says of anything else.

    Raises
    ------
    ConfigError
        A limit is no size.
    OSError
        The folder cannot be made.

    Notes
    -----
    An array that the program holds, or a view of it, or that a consumer of DLPack holds, is not moved; so a device may have more
    than its limit. Memory of another library stays where it is, and is counted nowhere. Two keys that share memory count it
    twice, and no longer share it once one of them has moved. A value that is no array is moved to disk by pickle, and is
    another object when it comes back; one that cannot be pickled stays, with a DevmemWarning.

    A signal's handler that asks for a key which its own thread is moving is refused with a RuntimeError: it cannot wait for what
    it has interrupted.

    The files are in a folder that only this user can read. It is removed by `close`, when the store is dropped, when the
    interpreter ends, and, after a process that was killed, by the next store with the same ``disk``. What a process left behind
    is never read.

    Examples
    --------
    >>> with dm.spill.Store(device="1MiB") as store:
    ...     for i in range(10):
    ...         store[i] = dm.full(100_000, i)  # 800 kB each: the newest stays on the device
    ...     store[3][:2].tolist()
    [3, 3]
    """

    def __init__(
        self,
        device: int | str | None = None,
        host: int | str | None = None,
        disk: object = None,
        *,
        disk_bytes: int | str | None = None,
        sizeof: Callable[[Any], int] | None = None,
    ) -> None:
        if disk is None and disk_bytes is not None:
            raise ConfigError(f"disk_bytes={disk_bytes!r} without disk=: name a folder")
        self._limit = None if device is None else check_size(device)
        self._host = Tier("host", None if host is None else parse_size(host))
        self._disk = Tier("disk", None if disk_bytes is None else parse_size(disk_bytes))
        #: One for each device that something in the store is, or was, on.
        self._devices: dict[Device, Tier] = {}
        self._sizeof = _size if sizeof is None else sizeof
        self._process = os.getpid()
        self._lock = lock("spill store", Rank.LEAF)
        self._changes = Changes(self._lock)
        self._entries: dict[Hashable, Entry] = {}
        self._blocks = Blocks()
        self._spare = Spare()
        self._moves: dict[str, list[float]] = {}
        #: What makes room on each device when its memory has run out.
        self._watched: WeakKeyDictionary[OpenDevice, tuple[str, Callable[[], object]]] = WeakKeyDictionary()
        self._relieving: set[int] = set()
        self._closed = False
        self._folder = None if disk is None else Folder(_text(disk))

    # -- the mapping ---------------------------------------------------------------------------------------------------

    def __setitem__(self, key: Hashable, value: object) -> None:
        """Put a value in, in place of the key's old one.

        Raises
        ------
        OutOfMemory
            A tier that is full cannot pass anything on: no disk was given, or it is full. Nothing was put in.
        """
        self._check()
        leaves, kinds, _ = flatten(value)
        on_device = any(issubclass(kind, DeviceNDArray) for kind in kinds)
        arrays = [leaf for leaf in leaves if isinstance(leaf, DeviceNDArray)] if on_device else []
        for array in arrays:
            array.allocation.check()
            self._watch(array.open_device)
        tier = self._tier_of(arrays[0].open_device) if arrays else self._host
        entry = Entry(key, tier, Place(value), self._bytes_of(value) if not arrays else _block_bytes(arrays))
        if arrays:  # without the lock: both call functions of the program
            others = [leaf for leaf in leaves if not isinstance(leaf, DeviceNDArray)]
            value = rebuild(value, iter([SLOT if isinstance(leaf, DeviceNDArray) else leaf for leaf in leaves]))
            entry.host_bytes = sum(array.nbytes for array in arrays) + sum(map(self._bytes_of, others))
            entry.pickles = bool(others)
        self._make_room(tier, entry.nbytes)
        old = Claim()
        self._when_unclaimed(key, partial(self._put, entry, value, arrays, old))
        if old.entry is not None:
            old.entry.place.remove_file()

    # Which one it is: a mapping compares its values, and all of them would be copied to the device for that.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, key: Hashable) -> Any:
        """The value, moved back to its device if it has left that.

        Raises
        ------
        OutOfMemory
            It does not fit there; it is still in the store.
        ClosedError
            The store is closed; or the program has freed the array, or reset its device.
        """
        self._check()
        claim = Claim()
        try:
            self._when_unclaimed(key, partial(self._claim, key, claim))
            entry = claim.entry
            assert entry is not None
            if entry.tier is self._disk or (entry.place.layouts and entry.tier is self._host):
                self._bring_back(entry)
            with self._lock:
                entry.tier.order.pop(key, None)
                entry.tier.order[key] = entry
                return entry.place.given(self._blocks)
        finally:
            if claim.entry is not None:
                claim.entry.claim = unclaimed  # no call comes before: the error's traceback may keep the claim
            self._changes.tell()

    def __delitem__(self, key: Hashable) -> None:
        self._check()
        old = Claim()
        self._when_unclaimed(key, partial(self._remove, key, old))
        assert old.entry is not None
        old.entry.place.remove_file()

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        if self._closed:
            return "<Store, closed>"
        tiers = ", ".join(f"{tier.count} on {tier}" for tier in self._tiers() if tier.count)
        return f"<Store of {len(self)}: {tiers or 'empty'}>"

    # -- more ----------------------------------------------------------------------------------------------------------

    def tier(self, key: Hashable) -> str:
        """Return the tier of a key: ``"device"``, ``"host"`` or ``"disk"``. Nothing is moved.

        Examples
        --------
        >>> store = dm.spill.Store()
        >>> store["a"] = dm.zeros(3)
        >>> store.tier("a")
        'device'
        """
        return self._entries[key].tier.name

    def spill(self, keep_bytes: int = 0, tier: str = "device") -> int:
        """Move what the program does not have off a tier, what was used longest ago first, until so many bytes are left.

        Parameters
        ----------
        keep_bytes : int
            What may stay, on each device.
        tier : str
            ``"device"``: to the host, or on to disk; ``"host"``: to disk.

        Returns
        -------
        int
            Bytes that were moved off the tier.

        Examples
        --------
        >>> store = dm.spill.Store()
        >>> store["a"] = dm.zeros(3)
        >>> store.spill(), store.tier("a")
        (24, 'host')
        """
        self._check()
        if tier not in ("device", "host"):
            raise ConfigError(f"spill(tier={tier!r}): give 'device' or 'host'")
        if tier == "host" and self._folder is None:
            return 0
        tiers = list(self._devices.values()) if tier == "device" else [self._host]
        return sum(self._reduce(each, keep_bytes) for each in tiers)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Count the keys and bytes on each tier, and the moves between tiers.

        Returns
        -------
        dict
            For ``"device"``, ``"host"`` and ``"disk"`` the keys there (``count``) and their ``bytes``, all devices together,
            and for ``"device"`` those of which the program has an array, ``held`` (bytes). ``"moves"`` has ``count``, ``bytes``
            and ``seconds`` by direction, ``"device to host"`` say.

        Examples
        --------
        >>> store = dm.spill.Store()
        >>> store["a"] = dm.zeros(3)
        >>> store.stats()["device"]
        {'count': 1, 'bytes': 24, 'held': 0}
        """
        self._check_process()
        with self._lock:
            self._blocks.collect()
            device = [tier for tier in self._tiers() if tier.name == "device"]
            entries = list(self._entries.values())
            held = sum(each.nbytes for each in entries if each.tier.name == "device" and each.place.is_held())
            return {
                "device": {
                    "count": sum(tier.count for tier in device),
                    "bytes": sum(tier.bytes for tier in device),
                    "held": held,
                },
                "host": {"count": self._host.count, "bytes": self._host.bytes},
                "disk": {"count": self._disk.count, "bytes": self._disk.bytes},
                "moves": {
                    way: {"count": int(count), "bytes": int(nbytes), "seconds": seconds}
                    for way, (count, nbytes, seconds) in sorted(self._moves.items())
                },
            }

    def close(self) -> None:
        """Drop everything, and remove the files. Arrays that the program has stay its own. A second call does nothing.

        Nor does a call in a forked child, as a store belongs to the process that made it: anything else raises ForkedError there.

        Examples
        --------
        >>> store = dm.spill.Store()
        >>> store["a"] = dm.zeros(3)
        >>> store.close()
        >>> len(store)
        0
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            self._closed = True
            self._blocks.let_go()
            self._blocks.collect()
            self._entries.clear()
            self._spare.drop()
            for tier in self._tiers():
                tier.order.clear()
                tier.bytes = tier.count = 0
            self._changes.tell()
        for opened, callback in list(self._watched.items()):
            if callback in opened.memory.trim_others:
                opened.memory.trim_others.remove(callback)
        if self._folder is not None:
            self._folder.remove()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self._blocks.let_go()
            self._blocks.collect()
        except AttributeError:  # it was not finished
            pass

    # -- what is put in ------------------------------------------------------------------------------------------------

    def _take(self, entry: Entry, value: object, arrays: list[DeviceNDArray[Any]]) -> None:
        """Look after the blocks of the arrays of an entry's ``value`` from now on; the lock is held."""
        self._blocks.collect()
        if not all(map(self._blocks.can_take, arrays)):
            entry.stuck, entry.nbytes = True, 0
            return
        parts = [Array.of(array, self._blocks) for array in arrays]
        entry.place = Place(value, [part.layout for part in parts], parts)

    def _bytes_of(self, value: object) -> int:
        return int(self._sizeof(value))

    def _check(self) -> None:
        self._check_process()
        if self._closed:
            raise ClosedError("this store is closed: make a new one")

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # where another thread may have had the lock, or a key, for good
            raise ForkedError(
                f"this store was made before process {self._process} was forked, and is that process's: make one in the child "
                f"(pid {os.getpid()}), or start processes with the 'spawn' method"
            )

    # -- tiers ---------------------------------------------------------------------------------------------------------

    def _tiers(self) -> list[Tier]:
        return [*self._devices.values(), self._host, self._disk]

    def _tier_of(self, opened: OpenDevice) -> Tier:
        device = cast("Device", opened.device)
        tier = self._devices.get(device)
        if tier is None:
            limit = None if self._limit is None else bytes_of(self._limit, opened.handle.info.total_bytes)
            tier = self._devices.setdefault(device, Tier("device", limit))
        return tier

    def _watch(self, opened: OpenDevice) -> None:
        """Make room when memory runs out on a device."""
        if opened not in self._watched:
            callback = "the spill store", partial(_relieve, ref(self), ref(opened))
            self._watched[opened] = callback
            opened.memory.trim_others.append(callback)

    def relieve(self, opened: OpenDevice) -> None:
        """Move off a device what can be moved: its memory has run out. Moves that this leads to need no second answer."""
        me, tier = get_ident(), self._tier_of(opened)
        self._spare.drop()
        if self._closed or me in self._relieving:
            return
        try:
            self._relieving.add(me)
            with suppress(OutOfMemory):  # what is behind it is full: the caller is told that the device is
                self._reduce(tier, 0)
            opened.memory.trim(0)
        finally:
            self._relieving.discard(me)

    # -- claims --------------------------------------------------------------------------------------------------------

    def _when_unclaimed(self, key: Hashable, change: Callable[[], None]) -> None:
        """Change something about a key, with the lock held, when no call moves its entry, if there is one."""
        unless_claimed = partial(self._unless_claimed, key, change)
        self._changes.wait_until(unless_claimed, f"{key!r}, which another thread is moving,")

    def _unless_claimed(self, key: Hashable, change: Callable[[], None]) -> bool:
        self._check()
        entry = self._entries.get(key)
        claim = entry.claim() if entry is not None else None
        if claim is not None:
            if claim.thread == get_ident():
                raise RuntimeError(f"{key!r} is being moved by a call of this thread, which this one interrupted")
            return False
        change()
        return True

    def _put(self, entry: Entry, value: object, arrays: list[DeviceNDArray[Any]], old: Claim) -> None:
        tier, key = entry.tier, entry.key
        if arrays:
            self._take(entry, value, arrays)
        tier.order.pop(key, None)
        tier.order[key] = entry
        # No call stands between these, but of a key's own __hash__: what a signal's handler has put in before is found.
        if key in self._entries:
            old.entry = self._entries[key]
        self._entries[key] = entry
        if old.entry is not None:
            old.entry.tier.bytes -= old.entry.nbytes
            old.entry.tier.count -= 1
        tier.bytes += entry.nbytes
        tier.count += 1

    def _claim(self, key: Hashable, claim: Claim) -> None:
        reference = ref(claim)
        # No call stands below.
        claim.entry = entry = self._entries[key]
        entry.claim = reference

    def _remove(self, key: Hashable, old: Claim) -> None:
        # No call stands between these, but of a key's own __hash__.
        old.entry = before = self._entries[key]
        del self._entries[key]
        before.tier.bytes -= before.nbytes
        before.tier.count -= 1
        before.tier.order.pop(key, None)

    def _claim_oldest(self, tier: Tier, mine: Claim) -> Entry | None:
        """The entry of a tier that was used longest ago, of those that can be moved."""
        reference = ref(mine)
        with self._lock:
            self._blocks.collect()
            for most in (FIRST, None):
                for key, entry in list(islice(tier.order.items(), most)):
                    if entry.tier is not tier or self._entries.get(key) is not entry:
                        tier.order.pop(key, None)  # an interrupted call has left it
                    elif not entry.stuck and not entry.place.is_held() and entry.claim() is None:
                        mine.entry = entry
                        entry.claim = reference
                        # A signal's handler may have moved it, taken it out, or asked for it before; from here on it cannot.
                        if entry.tier is tier and self._entries.get(key) is entry and not entry.place.is_held():
                            return entry
                        mine.entry = None
                        entry.claim = unclaimed
        return None

    # -- moving --------------------------------------------------------------------------------------------------------

    def _make_room(self, tier: Tier, nbytes: int, left: list[Allocation] | None = None) -> None:
        """Move entries on until a tier has room for so many bytes, as far as there are some that can be moved.

        ``left``: where the blocks that left the device are put, if nothing else has them; else they are given back.

        Raises
        ------
        OutOfMemory
            The host's memory, or the disk, is full, and nothing is behind it.
        """
        limit = tier.limit
        if limit is None or tier.bytes + nbytes <= limit:
            return
        last = tier is self._disk or (tier is self._host and self._folder is None)
        if not last:
            self._reduce(tier, limit - nbytes, left)
        elif tier.bytes + nbytes > limit:
            raise OutOfMemory(
                f"the store is full: the limit of its tier {tier.name!r} is {exact_size(limit)}, of which "
                f"{exact_size(tier.bytes)} are in use, and {exact_size(nbytes)} more do not fit: raise the limit, "
                f"{'' if self._folder else 'name a folder (disk=), '}or drop keys",
                call="Store",
                requested=nbytes,
                free=limit - tier.bytes,
                limit=limit,
            )

    def _reduce(self, tier: Tier, keep_bytes: int, left: list[Allocation] | None = None) -> int:
        """Move entries off a tier, the oldest first, until so many bytes are left; how many bytes have left."""
        moved = 0
        while tier.bytes > max(keep_bytes, 0):
            claim = Claim()
            try:
                entry = self._claim_oldest(tier, claim)
                if entry is None:
                    break
                nbytes = entry.nbytes
                if tier is self._host:
                    self._to_disk(entry, entry.place.host, perf_counter())
                else:
                    self._off_device(entry, left)
            finally:
                if claim.entry is not None:
                    claim.entry.claim = unclaimed
                self._changes.tell()
            if entry.tier is not tier:
                moved += nbytes
        return moved

    def _off_device(self, entry: Entry, left: list[Allocation] | None) -> None:
        """Move an idle entry to the host, or on to disk where the host has no room."""
        began, place, nbytes = perf_counter(), entry.place, entry.host_bytes
        # First: where there is no room, nothing was begun, and what was on the host longest goes on to disk.
        self._make_room(self._host, nbytes)
        host = fetched(place.arrays, self._spare)
        limit = self._host.limit
        if limit is not None and self._host.bytes + nbytes > limit and self._folder is not None:
            self._to_disk(entry, host, began)
        else:
            self._move(entry, self._host, Place(place.value, place.layouts, host=host), nbytes, began)
        homes, parts = {part.opened for part in place.arrays}, place.arrays
        block = parts[0].block if len(parts) == 1 and left is not None else None
        idle, still = (block.allocation, ref(block)) if block is not None else (None, None)
        del place, parts, block  # and so its blocks, unless another key is in them
        if left is not None and idle is not None and still is not None and still() is None:
            left.append(idle)
            return
        del idle
        for opened in homes:
            _give_back(opened)

    def _to_disk(self, entry: Entry, host: list[Any], began: float) -> None:
        assert self._folder is not None
        place, nbytes = entry.place, entry.host_bytes
        pickled, buffers = b"", list[pickle.PickleBuffer]()
        if entry.pickles:
            try:
                pickled = pickle.dumps(place.value, 5, buffer_callback=buffers.append)
            except Exception as error:  # a method of the user's may raise anything
                entry.stuck = True
                message = f"{entry.key!r} stays in memory, it cannot be pickled: {type(error).__name__}: {error}"
                warnings.warn(message, DevmemWarning, stacklevel=2)
                return
        self._make_room(self._disk, nbytes)
        file = self._folder.new_file()
        file.write(host, pickled, buffers)
        kept = None if entry.pickles else place.value
        if not self._move(entry, self._disk, Place(kept, place.layouts, file=file), nbytes, began):
            file.remove()

    def _bring_back(self, entry: Entry) -> None:
        """Move an entry to where its value is used: its device, or the host."""
        began, place = perf_counter(), entry.place
        if place.layouts:
            tier = self._tier_of(place.layouts[0].device.opened())
        else:
            tier = self._host
        left: list[Allocation] = []
        self._make_room(tier, entry.host_bytes, left)
        value = place.file.value() if place.file is not None and entry.pickles else place.value
        block = reusable(left, place)
        if len(left) > (block is not None):
            left.clear()
            _give_back(place.layouts[0].device.opened())
        made = returned(place, block)
        with self._lock:
            arrays = [Array.of(array, self._blocks) for array in made]
        fresh = Place(value, place.layouts, arrays)
        nbytes = fresh.device_bytes() if arrays else entry.host_bytes
        for array in made[:1]:
            self._watch(array.open_device)
        if self._move(entry, tier, fresh, nbytes, began):
            self._spare.keep(place.host)
            place.remove_file()
        else:
            self._check()

    def _move(self, entry: Entry, tier: Tier, place: Place, nbytes: int, began: float) -> bool:
        """Let an entry be on another tier, in one step; False if the store was closed meanwhile."""
        with self._lock:
            key, before, old = entry.key, entry.nbytes, entry.tier
            if self._closed:
                return False
            way = f"{old.name} to {tier.name}"
            tier.order.pop(key, None)
            tier.order[key] = entry
            # No call stands between these.
            entry.place = place
            entry.tier = tier
            entry.nbytes = nbytes
            old.bytes -= before
            old.count -= 1
            tier.bytes += nbytes
            tier.count += 1
            old.order.pop(key, None)
            ended = perf_counter()
            counts = self._moves.setdefault(way, [0, 0, 0.0])
            counts[0] += 1
            counts[1] += entry.host_bytes
            counts[2] += ended - began
        trace = tracefile(settings().trace)
        if trace is not None:
            trace.span(f"spill {way}", "spill", began, ended, {"bytes": entry.host_bytes, "key": repr(key)})
        return True


def _give_back(opened: OpenDevice) -> None:
    """Let a device have the blocks that were dropped."""
    with CurrentDevice(opened.handle):
        opened.free_queue.drain()


def _size(value: object) -> int:
    leaves, _, _ = flatten(value)
    return sum(each.nbytes if isinstance(each, np.ndarray) else each.__sizeof__() for each in leaves)


def _block_bytes(arrays: list[DeviceNDArray[Any]]) -> int:
    """Bytes of the blocks that arrays are in."""
    return sum({each.allocation.ptr: each.allocation.nbytes for each in arrays}.values())


def _relieve(store: ReferenceType[Store], opened: ReferenceType[OpenDevice]) -> None:
    there, device = store(), opened()
    if there is not None and device is not None:
        there.relieve(device)


def _text(path: object) -> str:
    if isinstance(path, (str, os.PathLike)):
        return os.fsdecode(path)
    raise TypeError(f"disk= takes the path of a folder, not a {type(path).__name__}")
