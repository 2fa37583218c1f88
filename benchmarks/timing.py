"""Timing small calls on a machine that is not ours alone."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import NamedTuple


class Spread(NamedTuple):
    """Seconds: the least, and the median."""

    least: float
    median: float


def interleaved(
    functions: Mapping[str, Callable[[], object]], rounds: int, seconds: float, before: Callable[[str], object]
) -> dict[str, list[float]]:
    """Seconds per call of each function, round by round; ``before`` is called with its name, untimed, whenever its turn comes.

    All take turns in every round, for about ``seconds`` each, so that what the machine does meanwhile strikes them alike: their
    ratios (`ratio`) hold where their times do not. Cycles are not collected while one is being timed.
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
    """How many times as long one takes as the other: the median of the rounds, in each of which the machine was the same."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def spread(times: list[float]) -> Spread:
    """The least and the median of some times."""
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
