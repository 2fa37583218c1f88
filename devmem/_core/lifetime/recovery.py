"""The one answer to memory that ran out.

Free what was dropped, wait for the device, collect garbage once, free and wait again, give back what every stack caches, try once
more; then the error says where the memory is (`oom`).
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from functools import partial

from ...spi.errors import DevmemError, DevmemWarning, OutOfMemory
from ...spi.types import MemoryInfo
from ..base.device_handle import DeviceHandle, without_own_frames
from ..memory.heap import Heap
from ..ordering.stream import Stream
from ..stacks.installed import InstalledStacks
from .deferred_free import DeferredFreeQueue


class Recovery:
    """Makes room on one open device.

    Attributes
    ----------
    trim_others : list of callable
        What else gives back cached memory when memory runs out, with a name for the message.
    """

    def __init__(
        self,
        handle: DeviceHandle,
        queue: DeferredFreeQueue,
        stacks: InstalledStacks,
        memory_info: Callable[[], MemoryInfo],
    ) -> None:
        self.handle = handle
        self.queue = queue
        self.stacks = stacks
        self._memory_info = memory_info
        self.trim_others: list[tuple[str, Callable[[], object]]] = []

    def recover(self, heap: Heap, nbytes: int, stream: Stream, first: MemoryError) -> int:
        """Make room and try once more; while a graph is captured nothing may be freed, and the answer is the error."""
        if isinstance(first, OutOfMemory) or not isinstance(first, DevmemError):
            queue = self.queue
            if queue.streams.any_capturing():
                raise self._out_of_memory(heap, nbytes, first, capturing=True) from without_own_frames(first)
            queue.drain()
            self.wait_for_device()
            gc.collect()  # also what completed copies held until then
            queue.drain()
            self.wait_for_device()  # memory that was freed in stream order can be trimmed when its stream has passed
            self._trim_everything()
            try:
                return heap.allocate(nbytes, stream.handle)
            except MemoryError as second:
                raise self._out_of_memory(heap, nbytes, second, capturing=False) from without_own_frames(first)
        try:
            raise first
        finally:
            del first  # or its traceback and this frame would keep each other, and the caller's arrays

    def _out_of_memory(self, heap: Heap, nbytes: int, cause: MemoryError, capturing: bool) -> OutOfMemory:
        from .oom import out_of_memory  # with the statistics that it asks: only where memory has run out

        heaps, text = self.stacks.all_heaps(), self.stacks.name_of(heap)
        return out_of_memory(self.queue, heaps, self._memory_info(), heap, nbytes, cause, capturing, text)

    def _trim_everything(self) -> None:
        steps: list[tuple[str, Callable[[], object]]] = [
            (repr(heap.resource), partial(heap.trim, 0)) for heap in list(self.stacks.heaps)
        ]
        for what, trim in [*steps, *self.trim_others]:
            try:
                trim()
            except Exception as error:  # one stack that fails must not keep the memory of the others
                warnings.warn(f"while trimming {what}: {error}", DevmemWarning, stacklevel=5)

    def wait_for_device(self) -> None:
        """Wait for all that runs on the device."""
        self.handle.driver.synchronize()
        self.queue.completions.poll()
