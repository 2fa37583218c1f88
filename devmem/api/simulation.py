"""Scopes of the kernel simulator's checks."""

from __future__ import annotations

from .._core.base import simulation
from .._core.base.scopes import Scope
from .._core.base.simulation import Simulation


def simulator(
    race_check: bool = False,
    shuffle: int | None = None,
    wave_size: int = 32,
    negative: str = "wrap",
    mode: str = "exact",
) -> Scope[Simulation]:
    """Say how kernels are run on the host backend: from the call on, or in ``with`` until the end of the block.

    It holds for kernels that are launched in this thread, in ``with`` in this thread or task; `select_device` says how far that
    reaches. Whatever it says, divergence at a barrier, indices out of bounds and exceptions are reported: a `SimulatorError` with
    block, thread and source line, raised by the launch, or, where a stream was named for it, by the next call that waits for the
    stream.

    Parameters
    ----------
    race_check : bool, default False
        Compare each access to shared memory with those of the block's other threads since the last barrier. Reported are two
        threads of which one writes an element that the other reads or writes, unless both do it atomically or write the same
        value; and reads of elements that were never written. Kernels that use shared memory take many times as long.
    shuffle : int, optional
        A seed. Threads and blocks run in an order that is drawn from it, the same each time, and so do atomics; what depends
        on the order, as it does where a barrier is missing, shows in the results. Shared memory is watched as by ``race_check``.
    wave_size : int, default 32
        Threads of a warp or wavefront: what ``wavebarrier``, ``laneid`` and ``warpsize`` go by. 64 on many AMD devices.
    negative : {"wrap", "report"}, default "wrap"
        What a negative index does: it counts from the end, as in compiled code, or it is reported, because in a kernel it is
        often a mistake. An index before the beginning is reported in any case.
    mode : {"exact", "fast"}, default "exact"
        How kernels run: thread by thread in Python, or, where they have no barriers, atomics or shuffles, compiled for the host
        by ``numba.njit``. Integers, ``+ - * /`` and roots are the same then, other functions differ in the last places. The
        report of an index out of bounds has block and thread, and no line. What cannot be compiled runs as by ``"exact"``, and
        so does everything with ``race_check``, ``shuffle`` or ``negative="report"``; the log says why, at the level INFO.

    Returns
    -------
    Scope
        For ``with``.

    Raises
    ------
    ConfigError
        A value is not one of those allowed.

    Notes
    -----
    Where it is not called, ``DEVMEM_SIM``, ``DEVMEM_SIM_RACE_CHECK``, ``DEVMEM_SIM_SHUFFLE``, ``DEVMEM_SIM_WAVE_SIZE`` and
    ``DEVMEM_SIM_NEGATIVE`` say it.

    Examples
    --------
    >>> @dm.kernel
    ... def neighbour(x):
    ...     s = dm.shared.array(4, np.int64)
    ...     i = dm.threadIdx.x
    ...     s[i] = i
    ...     x[i] = s[(i + 1) % 4]               # a barrier is missing before
    >>> with dm.simulator(race_check=True):
    ...     neighbour[1, 4](dm.zeros(4, np.int64))
    Traceback (most recent call last):
        ...
    devmem.SimulatorError: ...
    """
    return simulation.choose(race_check, shuffle, wave_size, negative, mode)
