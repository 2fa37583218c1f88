"""The injection loop: fail the first driver call of something, then the second, until it runs through unharmed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

from devmem.spi.errors import DevmemError, DevmemWarning

from .fault_injection import Failure


class Fallible(Protocol):
    """`FaultyDriver`, `FaultyBackend`, or anything else with their knobs."""

    def fail_at(
        self, nth: int, method: str | None = None, error: Failure | None = None, *, repeat: bool = False
    ) -> None: ...

    def disarm(self) -> None: ...

    @property
    def injected(self) -> list[str]: ...


def every_failure(
    call: Callable[[], object],
    target: Fallible,
    *,
    check: Callable[[], object],
    limit: int = 10_000,
    repeat: bool = False,
) -> int:
    """Run ``call`` with its 1st, 2nd, ... driver call failing, until a run in which none is left to fail.

    Each run may raise a `DevmemError` or a `MemoryError`, or swallow the failure; anything else is a failure of the
    test, and so is an error without an injection. ``check`` is called after each run, with nothing armed: that nothing
    leaked, and that the next call works. What either raises carries a note with n and the method that was made to fail.

    Parameters
    ----------
    call : callable
        What is tested. It must do the same each time, and leave nothing behind that `check` would call a leak.
    target : FaultyDriver or FaultyBackend
        Where to inject.
    check : callable
        Called after each run.
    limit : int
        Give up after so many runs: a ``call`` that tries again forever would never run through.
    repeat : bool
        Fail every call from the n-th on, not just that one.

    Returns
    -------
    int
        How many runs had a failure injected.
    """
    for nth in range(1, limit + 1):
        target.fail_at(nth, repeat=repeat)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DevmemWarning)  # the channel for what cannot be raised: also right
                call()
        except BaseException as error:
            target.disarm()
            if not (target.injected and isinstance(error, DevmemError | MemoryError)):
                error.add_note(_where(nth, target))
                raise
        finally:
            target.disarm()
        injected = bool(target.injected)
        try:
            check()
        except BaseException as error:
            error.add_note(f"in the check after {_where(nth, target)}")
            raise
        if not injected:
            return nth - 1
    raise AssertionError(f"{limit} runs, and there is still a driver call left to fail")


def _where(nth: int, target: Fallible) -> str:
    if not target.injected:
        return f"run {nth}, in which no failure was injected"
    return f"run {nth}, in which {target.injected[0]} was made to fail"
