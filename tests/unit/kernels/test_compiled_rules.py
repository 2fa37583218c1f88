"""Numbers at the limits of their types: docs/reference/kernels.md says what compiled code gives, and the simulator gives it."""

from __future__ import annotations

import gc
import math
import re
import weakref
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import devmem as dm
from devmem.compat import numba_cuda as cuda
from devmem.kernels.compilers.simulator.conversions import stored
from devmem.kernels.compilers.simulator.numbers import kernel_number

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "kernels.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("### Values at the limits\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| [^`]*(?:`[^`]+`[^`|]*)*?\| `([^|]+)` \| `([^`|]+)` \| [^|]*\|$", TABLE, re.MULTILINE)
ARRAYS = "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"
INTEGERS = [np.dtype(name) for name in ARRAYS if name[0] in "iu"]
FLOATS = (
    0.0,
    -0.0,
    0.5,
    -0.5,
    2.5,
    -1.0,
    127.6,
    300.0,
    -300.0,
    70000.0,
    3e9,
    -3e9,
    1e19,
    -1e30,
    math.inf,
    -math.inf,
    math.nan,
)
WHOLE = (0, 1, -1, 127, 128, 255, 256, 70000, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63))


def values():
    """Numbers of kernels, of all types, and Python's own."""
    found = [kernel_number(np.float32(each)) for each in FLOATS] + [kernel_number(each) for each in FLOATS]
    found += [kernel_number(dtype.type(each)) for dtype in INTEGERS for each in WHOLE if stored(each, dtype) == each]
    return [*found, *FLOATS, *WHOLE, True, kernel_number(np.True_)]


def same(one, other):
    """Whether two numbers are equal, nan and signs of zero included."""
    return one == other and math.copysign(1, one) == math.copysign(1, other) if one == one else other != other


def test_every_row_is_read():
    assert len(ROWS) == TABLE.count("\n| ") - 1 > 70


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(("body", "result"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row(simulated, body, result, watched):
    *before, last = body.split("; ")
    found: list = []
    made = {"np": np, "math": math, "cuda": cuda, "atomic": dm.atomic, "inf": math.inf, "nan": math.nan, "found": found}
    lines = [*before, f"found.append({last})"]
    exec(f"def kernel({', '.join(ARRAYS)}):\n    " + "\n    ".join(lines), made)
    with dm.simulator(race_check=watched):
        simulated.run(made["kernel"], 1, 1, *(np.zeros(1, name) for name in ARRAYS))
    expected = eval(result, made)
    assert same(found[0], expected)
    assert isinstance(found[0], float | np.floating) == isinstance(expected, float)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_every_way_to_an_integer_is_the_same(simulated, dtype):
    """Elements of arrays of all ranks, in all memory, of views and of records; constructors; operands."""
    given, kind = values(), dtype.type
    operands = [
        dtype.itemsize >= 4 and (isinstance(each, int | np.integer) or float(each).is_integer()) for each in given
    ]

    def kernel(line, plane, cube, zero, records, out):
        near, mine = dm.shared.array(3, dtype), dm.local.array((2, 2), dtype)
        for at, value in enumerate(given):
            line[0] = value
            line[1:][0] = value
            plane[0, 0] = value
            plane[1][0] = value
            cube.flat[0] = value
            zero[()] = value
            near[1:] = value
            mine[1, 1] = value
            records[0].x = value
            records[0]["y"][1] = value
            if operands[at]:
                dm.atomic.exch(line, 2, value)
            else:
                line[2] = value
            got = (line[0], line[1], line[2], plane[0, 0], plane[1, 0], cube[0, 0, 0], zero[()], near[2], mine[1, 1])
            got += (records[0].x, records[0].y[1], kind(value))
            for way in range(len(got)):
                out[at, way] = got[way]

    record = np.dtype([("x", dtype), ("y", dtype, (2,))])
    arrays = [np.zeros((3,) * axes, dtype) for axes in (1, 2, 3, 0)]
    found = simulated.run(kernel, 1, 1, *arrays, np.zeros(1, record), np.zeros((len(given), 12), dtype))[-1]
    wrong = [
        (value, row) for value, row in zip(given, found, strict=True) if set(row.tolist()) != {stored(value, dtype)}
    ]
    assert not wrong


# -- globals -----------------------------------------------------------------------------------------------------------

SCALE = 2.0
NUMBERS = np.array([1.0])


class Kept:
    """Something that is freed."""


def test_what_is_assigned_after_the_first_launch_has_no_effect(simulated, monkeypatch):
    settings = ModuleType("settings")
    settings.COUNT, settings.inner = 3, ModuleType("settings.inner")
    settings.inner.COUNT = 4
    factor = 10.0
    monkeypatch.setitem(globals(), "NUMBERS", NUMBERS.copy())

    @dm.kernel(device=True)
    def scaled(x):
        return x * SCALE

    def kernel(out):
        out[0], out[1], out[2] = scaled(1.0), NUMBERS[0], factor
        out[3], out[4], out[5] = settings.COUNT, settings.inner.COUNT, math.sqrt(SCALE * 2)

    compiled = simulated.prepare(kernel, out := simulated.put(np.zeros(6)))
    for _ in range(2):
        compiled.launch((1, 1, 1), (1, 1, 1), 0, 1, (out,))
        assert simulated.get(out).tolist() == [2, 1, 10, 3, 4, 2]
        monkeypatch.setitem(globals(), "SCALE", 3.0)
        NUMBERS[0] = 7
        settings.COUNT, settings.inner.COUNT, factor = 30, 40, 11.0
    [found] = simulated.run(kernel, 1, 1, np.zeros(6))  # compiled anew, as for arguments of other types
    assert found.tolist() == [3, 7, 11, 30, 40, math.sqrt(6)]


def test_a_kernel_keeps_no_globals_alive_that_it_does_not_use(simulated, monkeypatch):
    monkeypatch.setitem(globals(), "unused", Kept())
    reference = weakref.ref(globals()["unused"])

    def kernel(out):
        out[0] = math.sqrt(SCALE)

    compiled = simulated.prepare(kernel, simulated.put(np.zeros(1)))
    monkeypatch.setitem(globals(), "unused", None)
    monkeypatch.undo()
    gc.collect()
    assert reference() is None
    assert compiled is not None


def test_a_name_may_be_defined_after_a_launch_that_lacked_it(simulated, monkeypatch):
    def kernel(out):
        out[0] = not_yet  # noqa: F821

    report = simulated.report(kernel, 1, 1, np.zeros(1))
    assert "name 'not_yet' is not defined: kernels are compiled with the globals of their first launch" in str(report)
    monkeypatch.setitem(globals(), "not_yet", 5.0)
    assert simulated.run(kernel, 1, 1, np.zeros(1))[0].tolist() == [5]
