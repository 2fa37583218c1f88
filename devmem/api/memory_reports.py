"""Reports of the memory: a summary for people, and a snapshot of every block."""

from __future__ import annotations

from .._core.device import memory_report
from .._core.device.device import DeviceLike, open_device_of
from .._core.device.memory_report import MemorySnapshot, MemorySummary
from .._core.device.open_device import OpenDevice
from .._core.device.opening import open_devices

#: What a file of a snapshot says that it is.
SNAPSHOT_FORMAT = memory_report.FORMAT


def memory_summary(device: DeviceLike = None) -> MemorySummary:
    """Report devmem's memory, of each open device and memory stack: live, pending, at its peak, cached, and by size.

    Parameters
    ----------
    device : Device, int or str, optional
        One device, which is opened; every open device, if none is given.

    Returns
    -------
    MemorySummary
        ``print`` shows a table with units, a notebook an HTML table; ``to_json()`` and ``to_dict()`` have bytes.

    Examples
    --------
    >>> d = dm.zeros(1000)
    >>> print(dm.memory_summary())
    host:0 ...
    """
    return memory_report.summarize(_chosen(device))


def memory_snapshot(device: DeviceLike = None, *, record: bool = False) -> MemorySnapshot:
    """Every block that is in use now, with the line of the program that asked for it where that was recorded.

    A block that was dropped and waits in the queue is in the snapshot until it is freed.

    Parameters
    ----------
    device : Device, int or str, optional
        One device, which is opened; every open device, if none is given, and with ``record`` the current one.
    record : bool
        From now on record the line that asks for each block of device memory, on these devices and every thread, for later
        snapshots: a `memory.Statistics` with ``owners=True`` is put on top of each device's stack, if none is in it. It costs
        a few microseconds for each block, and holds until `use_memory` installs another stack or the device is closed. Stacks
        within ``with use_memory(...)`` say themselves what they record: ``"statistics:owners,pool"``.

    Returns
    -------
    MemorySnapshot
        ``blocks`` (of each stack by address), ``summary``, and ``save(path)``: a file that ``devmem view`` makes a page of.

    Examples
    --------
    >>> before = dm.memory_snapshot(record=True)
    >>> d = dm.zeros(1000)
    >>> [block] = [block for block in dm.memory_snapshot().blocks if block.address == d.ptr]
    >>> file, line, function = block.site
    >>> line
    1
    """
    chosen = _chosen(device)
    if record:
        for opened in {*chosen, open_device_of(device)}:
            memory_report.record_lines(opened)
    return memory_report.snapshot(chosen)


def _chosen(device: DeviceLike) -> list[OpenDevice]:
    return open_devices() if device is None else [open_device_of(device)]
