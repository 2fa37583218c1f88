"""What the fuzz tests share: how many examples they draw, anything at all as an argument, and what may come of it.

The property of them all: a documented error that says what is wrong, or the result that an independent calculation has; never a
crash, an error from the inside, memory that stays, nor a state that is half done. `scripts/campaign fuzz` draws for longer.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import devmem as dm

settings.register_profile(
    "fuzz",
    settings.get_profile("devmem"),
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=list(HealthCheck),
)
if "HYPOTHESIS_PROFILE" not in os.environ:
    settings.load_profile("fuzz")

#: What the documentation says that a verb raises for wrong arguments.
DOCUMENTED = (dm.DevmemError, TypeError, ValueError, BufferError, IndexError, MemoryError)
#: Python's words for a mistake inside: they name neither an argument nor a value of the caller's.
INSIDE = (
    "'NoneType' object",
    "unsupported operand",
    "not supported between",
    "object is not callable",
    "object is not subscriptable",
    "positional argument",
    "truth value of an array",
    "unhashable type",
    "math domain",
)


class Index:
    """Counts as an integer, and is none."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"Index({self.value})"


class Raising:
    """Raises whatever it is asked."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)

    def __index__(self) -> int:
        raise ZeroDivisionError("index")

    def __len__(self) -> int:
        raise ZeroDivisionError("len")

    def __iter__(self) -> Iterator[int]:
        raise ZeroDivisionError("iter")

    def __repr__(self) -> str:
        return "Raising()"


def endless() -> Iterator[int]:
    return itertools.repeat(1)


EDGES = [0, 1, 2, 3, -1, -2, 7, 63, 64, 65, 255, 256, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63)]
INTEGERS = (
    st.integers(-4, 10)
    | st.sampled_from(EDGES)
    | st.sampled_from([2**70, -(2**70)])
    | st.builds(pow, st.just(10), st.just(400))
)
SCALARS = (
    INTEGERS
    | st.none()
    | st.booleans()
    | st.floats(width=32)
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.sampled_from(
        [math.nan, math.inf, 1j, ..., object, NotImplemented, "f4", "u1", "O", "V0", "host:0", "9" * 5000]
    )
    | INTEGERS.map(Index)
    | st.sampled_from([np.int8(3), np.uint64(2**64 - 1), np.float32(2), np.bool_(True), np.datetime64("NaT")])
)
OBJECTS = (
    st.builds(object) | st.builds(Raising) | st.builds(endless) | st.builds(np.zeros, st.integers(0, 70), st.just("i1"))
)
#: Anything at all.
ANYTHING = st.recursive(
    SCALARS | OBJECTS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
        | st.builds(slice, inner, inner, inner)
    ),
    max_leaves=6,
)


def is_documented(error: BaseException) -> bool:
    """Whether an error is of a documented kind, says something, and is none of Python's own from the inside."""
    # Of what an argument raises itself devmem says nothing: it goes through.
    if isinstance(error, ZeroDivisionError):
        return (
            error.args[0] in ("index", "len", "iter")
            or str(error.args[0]).startswith("_")
            or error.args[0].isidentifier()
        )
    text = str(error)
    return (
        isinstance(error, DOCUMENTED)
        and (bool(text) or isinstance(error, MemoryError))
        and not any(words in text for words in INSIDE)
    )


def attempt(run: Callable[[], object], *more: type[Exception]) -> str:
    """Run one example. "": it worked; else what was raised, which is documented, or one of ``more``.

    Behind it all that it had is given back, and the device works.
    """
    dm.trim()
    before = dm.memory_info()
    told = ""
    try:
        run()
    except Exception as error:
        if not isinstance(error, more) and not is_documented(error):
            raise
        told = f"{type(error).__name__}: {error}"
    after = in_use()  # less, if something of an earlier example was collected meanwhile
    assert after[0] <= before.live and after[1] <= before.pending, (told, before, after)
    assert dm.to_device(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    return told


def in_use() -> tuple[int, int]:
    """Bytes that are live, and that wait to be freed."""
    for collect in (lambda: 0, gc.collect):  # a cycle of an argument's own, maybe
        collect()
        dm.synchronize()
        dm.trim()
        info = dm.memory_info()
        if (info.live, info.pending) == (0, 0):
            break
    return info.live, info.pending


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    dm.close()
