"""A driver's table of C entry points, of a vendor whose functions are those of CUDA's driver and of the HIP runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..spi.driver_table import TABLE_VERSION, DriverTable, TableFlags
from .driver_parts import DriverState
from .vendor_functions import RELAXED

#: The entries for memory of the driver's own pool.
_POOL = ("allocate", "free")


def table_of(
    state: DriverState,
    functions: Mapping[str, str],
    address: Callable[[str], int],
    *,
    current: int,
    stream: int,
    pool: int,
    copies_take_stream: bool = False,
) -> DriverTable | None:
    """The table of an open device; None where the vendor's library lacks a function.

    ``functions`` are the vendor's names by entry, ``address`` finds one (0: it is not there). ``current`` is what is current on a
    thread that is in the device, ``stream`` the vendor's handle of the legacy default stream, ``pool`` the driver's own pool, or
    0. ``copies_take_stream``: as the table's flag of that name; such copies have arrived when they return. A lost device's table
    is not used any more; and uploads that have not arrived are waited for once there are streams that are not ordered
    with the legacy one.
    """
    flags = TableFlags.USABLE | (TableFlags.COPIES_TAKE_STREAM if copies_take_stream else 0)
    table = DriverTable(TABLE_VERSION, flags, current, pool, stream, RELAXED)
    for entry, function in functions.items():
        if pool or entry not in _POOL:
            found = address(function)
            if not found:
                return None
            setattr(table, entry, found)

    def lost() -> None:
        table.flags &= ~TableFlags.USABLE

    def unordered() -> None:
        table.flags |= TableFlags.UPLOADS_WAIT

    state.errors.on_lost(lost)
    if not copies_take_stream:
        state.streams.on_unordered(unordered)
    return table
