"""``debug=True``: a division by zero raises, as in code that numba-cuda compiles with it."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm
from devmem.spi.errors import SimulatorError

pytest.importorskip("greenlet", reason="the simulator needs greenlet")
OPERATORS = "/", "//", "%"


def kernel(operator, swapped=False):
    made: dict = {}
    operands = ("b[0]", "a[0]") if swapped else ("a[0]", "b[0]")
    exec(f"def divide(a, b, out):\n    out[0] = {operator.join(operands)}\n    out[1] = 1", made)
    return made["divide"]


@pytest.fixture(params=["exact", "fast"])
def mode(request):
    if request.param == "fast":
        pytest.importorskip("numba", reason="numba is not installed")
    with dm.simulator(mode=request.param):
        yield request.param


@dm.kernel(debug=True)
def ratio(a, b, out):
    i = dm.grid(1)
    out[i] = a[i] / b[i]


@dm.kernel(debug=True)
def remainder(a, b, out):
    i = dm.grid(1)
    out[i] = a[i] % b[i]


@pytest.mark.parametrize("made", [ratio, remainder])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32, np.float64])
def test_a_division_by_zero_ends_the_kernel(mode, made, dtype):
    a, b, out = dm.to_device(np.ones(4, dtype)), dm.to_device(np.array([2, 1, 0, 1], dtype)), dm.zeros(4)
    with pytest.raises(SimulatorError, match="ZeroDivisionError") as told:
        made[1, 4](a, b, out)
    assert (told.value.kind, told.value.thread) == ("exception", (2, 0, 0))
    assert type(told.value.__cause__) is ZeroDivisionError
    assert out.copy_to_host()[2:].tolist() == [0, 0]


@pytest.mark.parametrize(
    "kinds", [(np.int64, np.int64), (np.float32, np.int8), (np.uint8, np.float64), (np.bool_, np.bool_)]
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_checks(simulated, operator, kinds):
    one, zero = np.ones(1, kinds[0]), np.zeros(1, kinds[1])
    for swapped in False, True:
        given = (zero, one) if swapped else (one, zero)
        function = kernel(operator, swapped)
        assert simulated.run(function, 1, 1, *given, np.zeros(2))[2][1] == 1, "without debug it goes on"
        with pytest.raises(SimulatorError, match="ZeroDivisionError"):
            simulated.run(function, 1, 1, *given, np.zeros(2), debug=True)


def test_numbers_by_numbers_of_python_check(simulated):
    def by_constant(a):
        a[0] = a[1] / 0

    def of_constant(a):
        a[0] = 1 // a[1]

    for each in by_constant, of_constant:
        simulated.run(each, 1, 1, np.zeros(2, np.float32))
        with pytest.raises(SimulatorError, match="ZeroDivisionError"):
            simulated.run(each, 1, 1, np.zeros(2, np.float32), debug=True)


def test_the_next_kernel_without_it_does_not_check(simulated):
    given = np.ones(1), np.zeros(1)
    with pytest.raises(SimulatorError):
        simulated.run(kernel("/"), 1, 1, *given, np.zeros(2), debug=True)
    assert simulated.run(kernel("/"), 1, 1, *given, np.zeros(2))[2].tolist() == [np.inf, 1]


def test_the_drop_in_raises_what_the_kernel_raised():
    from devmem.compat import numba_cuda as cuda

    @cuda.jit(debug=True, opt=False)
    def divide(x, y, out):
        out[0] = x[0] / y[0]

    try:
        with pytest.raises(ZeroDivisionError):
            divide[1, 1](dm.to_device(np.ones(1)), dm.to_device(np.zeros(1)), dm.to_device(np.zeros(1)))
    finally:
        dm.close()  # the drop-in has installed memory for the whole device
