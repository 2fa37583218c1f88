"""Device memory that a store and the program share: which of the two has it.

While the program has an array over a block, its allocation is of a class whose finalizer appends it to a queue of the store
(`queued`): the store does not hold it, and learns that the last array was dropped from finding it there. From
then on the block is *idle*: the store holds a new allocation of it, of the device's own class, which gives the block back when
it is dropped in its turn. So the block is given back once, whatever is dropped first, the store too.

The finalizer takes no lock and runs no Python, so any thread may drop an array. Everything else here is called with the
store's lock held.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import WeakSet, WeakValueDictionary, ref

from ....spi.errors import ClosedError
from ...arrays.ndarray import DeviceNDArray
from ...lifetime.allocation import Allocation, queued
from ...lifetime.deferred_free import DeferredFreeQueue


class Block:
    """One block of device memory.

    Attributes
    ----------
    allocation : Allocation or None
        The block's, while it is idle; None while the program has an array over it.
    """

    __slots__ = ("__weakref__", "allocation", "holder", "lent")

    def __init__(self, lent: Allocation) -> None:
        self.allocation: Allocation | None = None
        #: The program's allocation of it, and its number, which is known when the reference is dead.
        self.lent = ref(lent)
        self.holder = id(lent)


class Blocks:
    """The device memory that one store looks after."""

    def __init__(self) -> None:
        self.returned: deque[Allocation] = deque()
        self._class = queued(self.returned)
        #: The class whose dropped allocations a device frees, by its queue.
        self._owned: dict[DeferredFreeQueue, type[Allocation]] = {}
        self._known: WeakValueDictionary[tuple[DeferredFreeQueue, int], Block] = WeakValueDictionary()
        self._lent: WeakSet[Allocation] = WeakSet()
        self._taking: dict[tuple[DeferredFreeQueue, int], Block] = {}

    def can_take(self, array: DeviceNDArray[Any]) -> bool:
        """Whether an array's memory is devmem's to move: not that of another library or process, nor another store's."""
        allocation = array.allocation
        if type(allocation) is self._class:
            return (allocation.queue, allocation.ptr) in self._known
        return not allocation.ptr or type(allocation) is array.open_device.memory.owned

    def take(self, array: DeviceNDArray[Any]) -> Block:
        """The block that an array is in, which is looked after from now on."""
        allocation = array.allocation
        key, owned = (allocation.queue, allocation.ptr), type(allocation)
        try:
            # One for this call and for that of a signal's handler which takes the same block in between.
            block = self._taking.setdefault(key, Block(allocation))
            if type(allocation) is self._class:
                return self._known.setdefault(key, block)
            self._owned[allocation.queue] = owned
            self._known[key] = block
            self._lent.add(allocation)
            allocation.__class__ = self._class
            return block
        finally:
            self._taking.pop(key, None)

    def lend(self, block: Block) -> Allocation:
        """An allocation for an array that the program is given.

        Raises
        ------
        ClosedError
            The program has freed the memory.
        """
        self.collect()
        while True:
            idle = block.allocation
            if idle is None:
                lent = block.lent()
                self.collect()  # from here on it cannot be dropped: if it was, it is found now
                if block.allocation is not None:
                    continue
                if lent is not None:
                    return lent
                raise ClosedError("the program freed this array with free(): put a new one into the store")
            made = _same_block(idle)
            self._lent.add(made)
            holder, reference = id(made), ref(made)
            # A signal's handler may have lent it by now. No call stands below: an interrupt finds the block either idle or lent.
            if block.allocation is idle:
                block.holder = holder
                block.lent = reference
                made.__class__ = self._class
                idle.__class__ = Allocation
                block.allocation = None
                return made

    def collect(self) -> None:
        """Note which blocks the program has dropped. It takes no lock and calls no driver."""
        while self.returned:
            try:
                back = self.returned[0]  # it stays there until its block is idle
            except IndexError:  # a signal's handler has noted the rest
                break
            block, holder = self._known.get((back.queue, back.ptr)), id(back)
            made = _same_block(back)
            # No call stands below. A signal's handler may have noted it by now, and others behind it.
            if block is None:
                # Of an interrupted call, or of a key that was deleted. Dropped as it is, it is the device's to free.
                if not back.freed:
                    back.freed = True
                    made.__class__ = self._owned[back.queue]
            elif block.allocation is None and block.holder == holder:
                block.allocation = made
                made.__class__ = self._owned[back.queue]
            if self.returned and self.returned[0] is back:
                self.returned.popleft()

    def let_go(self) -> None:
        """Make every allocation that the program has the device's own again, as it was before. As `collect`."""
        for lent in list(self._lent):
            if type(lent) is self._class:
                lent.__class__ = self._owned[lent.queue]


def _same_block(allocation: Allocation) -> Allocation:
    """Another allocation of the same block, which no finalizer gives back."""
    made = Allocation(
        allocation.queue, allocation.heap, allocation.ptr, allocation.nbytes, allocation.home, allocation.unnamed
    )
    made.place, made.streams = allocation.place, allocation.streams
    return made
