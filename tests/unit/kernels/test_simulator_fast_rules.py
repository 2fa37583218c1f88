"""``DEVMEM_SIM=fast`` computes as the simulator does where numba's compiler for the host would compute otherwise.

The expressions are of ``x`` and ``y``, elements of arrays of two types; the values are those at which something changes.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import sys

import numpy as np
import pytest

import devmem as dm

pytest.importorskip("greenlet", reason="the simulator needs greenlet")
pytest.importorskip("numba", reason="numba is not installed")

TEXT = """
import math
import numpy as np
import devmem as dm

@dm.kernel
def kernel(a, b, out):
    i = dm.grid(1)
    if i < a.size:
        x, y = a[i], b[i]"""

INTEGERS = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]
BYS = ["int32", "uint32", "int64", "uint64", "int8", "uint8", "int16"]
FLOATS = ["float32", "float64"]
MIXED = [("float32", "int8"), ("int16", "float32"), ("int64", "float32"), ("float64", "uint64")]

ARITHMETIC = ["x + y", "x - y", "x * y", "x / y", "x // y", "x % y", "+y", "abs(x)"]
COMPARISONS = ["x < y", "x <= y", "x == y", "x != y", "x > y", "x >= y", "not x"]
BITS = ["x & y", "x | y", "x ^ y", "-(x * 1)", "~(x * 1)", "x << np.int8(y)", "x >> np.int8(y)"]
BITS += ["x << 3", "x >> 70", "(x << 2) >> np.uint8(y)"]
#: Of narrow numbers themselves, by amounts of which instructions see 32 bits, and by constants beyond them.
NARROW = ["-x", "~x", "-x - y", "~x | y", "x << y", "x >> y", "x << 4294967299", "x >> (1 << 32)", "-x >> 68719476740"]
CASTS = [*(f"np.{each}(x)" for each in [*INTEGERS, *FLOATS]), "int(x)", "float(x)", "bool(x)"]
OF_FLOATS = [f"math.{name}(x)" for name in ("floor", "ceil", "trunc", "fabs", "sqrt", "isnan", "isinf", "isfinite")]
OF_FLOATS += [f"np.{name}(x)" for name in ("floor", "ceil", "trunc", "rint", "sqrt", "abs", "fabs", "square")]
OF_FLOATS += ["-x", "round(x)", "max(x, y)", "min(x, y)", "math.copysign(x, y)"]
#: Types of x and y, and the expressions for them.
PAIRS = [
    *((one, other, [*ARITHMETIC, *COMPARISONS, *BITS, *CASTS]) for one, other in zip(INTEGERS, BYS, strict=True)),
    *((one, other, NARROW) for one, other in zip(INTEGERS, itertools.cycle(["uint64", "int64"]))),
    *((one, one, ["max(x, y)", "min(x, 3)", "math.floor(x)", "math.sqrt(x)"]) for one in ("int8", "int32")),
    ("uint64", "uint64", ["max(x, y)", "min(x, y)", "x + y", "x // y", "x % y", "x - 1"]),
    *((one, other, [*ARITHMETIC, *COMPARISONS, *CASTS, *OF_FLOATS]) for one in FLOATS for other in FLOATS),
    *((one, other, [*ARITHMETIC, *COMPARISONS, "max(x, y)", "min(x, y)"]) for one, other in MIXED),
    *(("bool", other, [*ARITHMETIC[:-1], *COMPARISONS, *BITS[:3], "int(x)"]) for other in ("bool", "int32")),
    ("complex64", "complex64", ["x + y", "x - y", "x * y", "-x", "x == y", "x.real + y.imag"]),
    ("int32", "int8", ["x ** y", "x ** 3", "pow(x, y)"]),
]
#: Functions whose results are within two units in the last place.
NEARLY = [
    f"math.{name}(x)" for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh")
]
NEARLY += [
    f"math.{name}(x)" for name in ("tan", "tanh", "erf", "erfc", "exp", "exp2", "expm1", "log", "log10", "log1p")
]
NEARLY += [f"math.{name}(x)" for name in ("log2", "degrees", "radians")] + ["math.hypot(x, y)", "math.atan2(x, y)"]
NEARLY += [f"np.{name}(x)" for name in ("arccos", "arctan", "cosh", "exp", "log2", "sin", "tanh")]
NEARLY += ["x ** 2", "x ** np.int8(3)", "x ** -1", "x ** y", "math.pow(x, y)"]


def values(name: str) -> np.ndarray:
    """Numbers of a type."""
    dtype = np.dtype(name)
    if dtype.kind == "b":
        return np.array([True, False])
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        given = [0, 1, 2, 3, 7, 31, 63, 64, 65, 100, ends.max, ends.max - 1, ends.min, ends.min + 1]
        given += [-1, -3, -64] * (dtype.kind == "i") + [(1 << 32) + 3] * (dtype.itemsize == 8)
        return np.array(given, dtype)
    given = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.0, 3.7, -3.7, 127.6, 255.5, -128.9, 300.0, 40000.25, -1e5]
    given += [2.0**31, -(2.0**31), 3e9, 2.0**32, 2.0**53 + 2, 2.0**63, -(2.0**63), 2.0**64, 1e30, -1e30, 1e-40]
    given += [np.inf, -np.inf, np.nan]
    if dtype.kind == "c":
        return np.array([complex(a, b) for a, b in itertools.product(given[:15], given[4:9])], dtype)
    return np.array(given, dtype)


def crossed(left: str, right: str) -> tuple[np.ndarray, np.ndarray]:
    """Each number of one type with each of the other."""
    a, b = (np.array(each) for each in zip(*itertools.product(values(left), values(right)), strict=True))
    return a.astype(left), b.astype(right)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Make a kernel that stores each of some expressions in a row; it has a file, as kernels need a source."""

    def made(expressions):
        path = tmp_path / "generated_kernels.py"
        path.write_text(TEXT + "".join(f"\n        out[{row}, i] = {each}" for row, each in enumerate(expressions)))
        spec = importlib.util.spec_from_file_location("generated_kernels", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "generated_kernels", module)
        spec.loader.exec_module(module)
        return module.kernel

    return made


@pytest.fixture
def refused(caplog):
    """The messages of kernels that were not compiled."""
    caplog.set_level(logging.INFO, "devmem")
    return lambda: [each.getMessage() for each in caplog.records if "DEVMEM_SIM=fast" in each.getMessage()]


def launched(mode: str, kernel, a, b, out) -> np.ndarray:
    """What the kernel stores."""
    held = [dm.to_device(each) for each in (a, b, out)]
    with dm.simulator(mode=mode):
        kernel[-(-a.size // 32), 32](*held)
    return held[-1].copy_to_host()


@pytest.mark.parametrize(("left", "right", "expressions"), PAIRS)
@pytest.mark.parametrize("stored", ["wide", "narrow"])
def test_each_expression_has_the_same_bits(kernel, refused, left, right, expressions, stored):
    a, b = crossed(left, right)
    kinds = ["complex128" if "complex" in left else "float64" if "float" in left + right else "int64"]
    if stored == "narrow" and "complex" not in left:  # what is stored is converted once more
        kinds, expressions = ["uint8", "float32"], expressions[:: 4 if left[0] == "f" else 7]
    made = kernel(expressions)
    for dtype in kinds:
        out = np.zeros((len(expressions), a.size), dtype)
        exact, fast = (launched(mode, made, a, b, out) for mode in ("exact", "fast"))
        alike = (exact == fast) & (np.signbit(exact.real) == np.signbit(fast.real))
        alike |= np.isnan(exact) & np.isnan(fast)  # any nan is as good as another
        wrong = [(expressions[row], a[at], b[at], exact[row, at], fast[row, at]) for row, at in np.argwhere(~alike)]
        assert wrong[:5] == []
    assert refused() == []


@pytest.mark.parametrize("dtype", FLOATS)
def test_other_functions_are_within_two_units_in_the_last_place(kernel, refused, dtype):
    a, b = crossed(dtype, dtype)
    made, out = kernel(NEARLY), np.zeros((len(NEARLY), a.size), dtype)
    exact, fast = (launched(mode, made, a, b, out) for mode in ("exact", "fast"))
    with np.errstate(all="ignore"):
        alike = (exact == fast) | (np.isnan(exact) & np.isnan(fast))
        alike |= np.abs(exact - fast) <= 2 * np.spacing(np.abs(exact))
    wrong = [(NEARLY[row], a[at], b[at], exact[row, at], fast[row, at]) for row, at in np.argwhere(~alike)]
    assert wrong[:5] == []
    assert refused() == []
