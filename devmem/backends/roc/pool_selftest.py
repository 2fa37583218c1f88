"""Whether a pool of the runtime can be trusted with data: some versions hand out memory that they zero afterwards."""

from __future__ import annotations

import ctypes
import warnings
from contextlib import ExitStack

from ...spi.driver import Driver
from ...spi.errors import DevmemError, DevmemWarning
from ...spi.types import CopyKind
from ...toolkit.memory_pool import MemoryPool
from .memory import Memory

ROUNDS = 48
PROPERTIES = ctypes.c_int * 22
SIZES = (4 << 10, 192 << 10, 96 << 10)


def pool_is_sound(driver: Driver, memory: Memory, pool: MemoryPool, ordinal: int) -> bool:
    """Make the pool; fill, read back and free blocks of several sizes. Where a byte is wrong, warn, and destroy the pool."""
    found = ""
    try:
        properties = PROPERTIES(1, 0, 1, ordinal)  # pinned, no handles to share, on this device
        pool.create(ctypes.addressof(properties))
        stream = driver.stream_create(0, True)
        try:
            found = next(filter(None, (_round(driver, memory, stream, number) for number in range(ROUNDS))), "")
        finally:
            driver.stream_destroy(stream)
            pool.pool_trim(0)
    except DevmemError as error:
        found = str(error)
    if found:
        pool.destroy()
        warnings.warn(
            f"DEVMEM_ROC_STREAM_ORDERED=1, but the pool of this HIP runtime cannot be used ({found}): plain memory and devmem's "
            f"own pool are used instead",
            DevmemWarning,
            stacklevel=2,
        )
    return not found


def _round(driver: Driver, memory: Memory, stream: int, number: int) -> str:
    """What is wrong, or nothing."""
    wrong = ""
    blocks: list[tuple[int, int]] = []
    with ExitStack() as given_back:
        for nbytes in SIZES:
            blocks.append((memory.alloc_async(nbytes, stream), nbytes))
            given_back.callback(memory.free_async, *blocks[-1], stream)
        for at, (ptr, nbytes) in enumerate(blocks):
            driver.fill(ptr, (number + 85 * at + 1) % 256, 1, nbytes, stream)
        for at, (ptr, nbytes) in enumerate(blocks):
            back = (ctypes.c_ubyte * nbytes)()
            driver.copy(ctypes.addressof(back), ptr, nbytes, CopyKind.D2H, stream, blocking=True)
            if bytes(back) != bytes([(number + 85 * at + 1) % 256]) * nbytes:
                wrong = f"{nbytes} bytes at {ptr:#x} did not hold what was stored"
    if number % 2:
        driver.stream_synchronize(stream)
    return wrong
