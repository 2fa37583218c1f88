"""Timing small calls on a shared machine."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import NamedTuple


class Spread(NamedTuple):
    """Seconds: minimum and median."""

    least: float
    median: float


def interleaved(
    functions: Mapping[str, Callable[[], object]], rounds: int, seconds: float, before: Callable[[str], object]
) -> dict[str, list[float]]:
    """Seconds per call of each function, by round; ``before`` is called with its name, untimed, before each turn.

    The functions take turns in every round, for about ``seconds`` each, so that other load affects them alike: their ratios
    (`ratio`) are reliable even if the times are not. The cyclic garbage collector is off during a turn.
    """
    counts = {}
    for name, function in functions.items():
        before(name)
        counts[name] = _calls_in(function, seconds)
    found: dict[str, list[float]] = {name: [] for name in functions}
    collecting = gc.isenabled()
    try:
        for _ in range(rounds):
            for name, function in functions.items():
                before(name)
                gc.collect(0)
                gc.disable()
                found[name].append(_time(function, counts[name]) / counts[name])
                gc.enable()
    finally:
        (gc.enable if collecting else gc.disable)()
    return found


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The ratio of two functions' times: the median of the ratios of each round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def spread(times: list[float]) -> Spread:
    """Minimum and median of some times."""
    return Spread(min(times), statistics.median(times))


def _time(function: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in repeat(None, count):
        function()
    return time.perf_counter() - start


def _calls_in(function: Callable[[], object], seconds: float) -> int:
    count = 10
    while True:
        taken = _time(function, count)
        if taken > seconds / 4:
            return max(1, int(count * seconds / taken))
        count *= 4
