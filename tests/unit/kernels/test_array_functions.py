"""Functions of whole arrays in the simulator give what numba compiles them to."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm
from devmem.kernels.compilers.simulator.array_functions import FUNCTIONS, METHODS, UFUNCS

EXPRESSIONS = [f"np.{name}(a)" for name in sorted(FUNCTIONS) if name not in ("searchsorted", "shape")]
METHOD_CALLS = [f"a.{name}()" for name in sorted(METHODS) if name not in ("fill", "item", "transpose")]
EXPRESSIONS += ["a[1:2].item()", "np.shape(a)[0]", "np.searchsorted(a, 3)", "np.searchsorted(a, a[2], 'right')"]
ARRAYS = {
    "float32": np.array([0.1, 2.5, 3e7, -1, 0.3], np.float32),
    "nan": np.array([1, np.nan, 3, np.nan], np.float32),
    "int8": np.array([100, 100, 100, -3], np.int8),
    "uint64": np.array([2**63, 2**63, 5], np.uint64),
    "bool": np.array([True, False, True]),
    "complex64": np.array([1 + 2j, 3 - 1j, 0.5], np.complex64),
}


@pytest.fixture
def on_host(devmem_backend):
    pytest.importorskip("greenlet", reason="the extra 'sim' is not installed")
    if devmem_backend != "host":
        pytest.skip("the simulator runs on the host backend")


def made(source, **names):
    space = {"np": np, **names}
    exec(source, space)
    return space["function"]


CASES = [(each, kind) for each in EXPRESSIONS for kind in ARRAYS] + [(each, "float32") for each in METHOD_CALLS]


@pytest.mark.parametrize(("expression", "kind"), CASES)
def test_each_is_what_numba_compiles(on_host, expression, kind):
    numba = pytest.importorskip("numba", reason="numba is not installed")
    host = ARRAYS[kind]
    if kind == "nan" and "searchsorted" in expression:
        pytest.skip("the array is not sorted")
    try:
        compiled = numba.njit(error_model="numpy")(made(f"def function(a):\n    return {expression}"))
        expected = compiled(host)
    except numba.core.errors.TypingError:
        pytest.skip("numba does not compile it for this type")
    kind = np.complex128 if isinstance(expected, complex | np.complexfloating) else np.float64
    out = dm.zeros(1, np.uint64 if isinstance(expected, np.uint64 | int) and expected >= 0 else kind)
    kernel = dm.kernel(made(f"def function(a, out):\n    out[0] = {expression}"))
    kernel[1, 1](dm.to_device(host), out)
    found = out.copy_to_host()[0]
    if host.dtype in (np.float32, np.complex64):
        np.testing.assert_allclose(found, expected, rtol=2e-7)
    else:
        np.testing.assert_allclose(found, out.dtype.type(expected), rtol=4e-16)


def test_arrays_are_filled_and_turned_around(on_host):
    @dm.kernel
    def kernel(a, out):
        own = dm.local.array((2, 3), np.float32)
        own.fill(a[0])
        own[1, 2] = 7
        out[0] = own.transpose()[2, 1] + own.sum()

    out = dm.zeros(1)
    kernel[1, 1](dm.to_device(np.full(1, 2.0)), out)
    assert out.copy_to_host()[0] == 7 + 17


def test_what_numba_does_not_compile_is_refused(on_host):
    for expression in ("a.cumsum()[0]", "np.median(a)", "a.sort()"):
        kernel = dm.kernel(made(f"def function(a):\n    {expression}"))
        with pytest.raises(dm.SimulatorError, match=r"whole|has no"):
            kernel[1, 1](dm.to_device(np.arange(3.0)))
            dm.current_device().synchronize()


@pytest.mark.filterwarnings("ignore:Passing more than 2 positional arguments:DeprecationWarning")  # to np.maximum
@pytest.mark.parametrize("name", sorted(UFUNCS))
def test_a_ufunc_writes_whole_arrays(on_host, name):
    ufunc = getattr(np, name)
    kind = np.int64 if "shift" in name or "bitwise" in name or name == "invert" else np.float64
    host = np.array([[1, 2, 3], [0, 1, 2]], kind)
    out = dm.to_device(np.zeros((2, 3), kind))
    given = ["a", "a[0]"][: ufunc.nin]
    dm.kernel(made(f"def function(a, out):\n    np.{name}({', '.join(given)}, out)"))[1, 1](dm.to_device(host), out)
    with np.errstate(all="ignore"):
        expected = ufunc(*(host, host[0])[: ufunc.nin]).astype(kind)
    np.testing.assert_allclose(out.copy_to_host(), expected, rtol=1e-12)


@pytest.mark.parametrize("expression", ["np.add(a, a, a)", "np.sin(a)", "np.logical_or.reduce(a, 0)"])
def test_other_ufuncs_of_whole_arrays_are_refused(on_host, expression):
    with pytest.raises(dm.SimulatorError, match="is given a whole"):
        dm.kernel(made(f"def function(a):\n    {expression}"))[1, 1](dm.zeros(3))
