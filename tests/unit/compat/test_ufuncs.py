"""``cuda.reduce``, ``cuda.vectorize`` and ``cuda.guvectorize`` of the drop-in, on the host backend."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm
from devmem.compat import numba_cuda as cuda

pytestmark = pytest.mark.filterwarnings("ignore::devmem.DevmemWarning")


@pytest.fixture(autouse=True)
def on_the_host():
    pytest.importorskip("greenlet")
    with dm.device("host"):
        yield


total = cuda.reduce(lambda a, b: a + b)


@cuda.vectorize(["float32(float32, float32)", "float64(float64, float64)"])
def hypotenuse(x, y):
    return (x * x + y * y) ** 0.5


@cuda.guvectorize(["void(float64[:, :], float64[:, :], float64[:, :])"], "(m,n),(n,p)->(m,p)")
def product(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            found = 0.0
            for k in range(b.shape[0]):
                found += a[i, k] * b[k, j]
            c[i, j] = found


@pytest.mark.parametrize("count", [0, 1, 100, 20_000])
def test_a_reduction_takes_every_element_once(count):
    a = np.arange(count, dtype=np.int64) + 1
    assert total(a) == a.sum()
    assert total(cuda.to_device(a), init=5) == a.sum() + 5


def test_a_reduction_of_a_part_into_an_array():
    a, result = cuda.to_device(np.arange(10.0)), cuda.to_device(np.zeros(2))
    assert total(a, size=4, res=result) is None
    assert result.copy_to_host().tolist() == [6, 0]
    greatest = cuda.Reduce(lambda a, b: a if a > b else b)
    assert greatest(np.array([3.0, 9, 4]), init=-np.inf) == 9


class Foreign:
    """An array of another library that has the interface and nothing else."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.owner = array


def foreign(values):
    return Foreign(cuda.to_device(np.asarray(values, float)))


def test_arrays_of_other_libraries_need_the_interface_alone():
    a, b, result = foreign([3, 5]), foreign([4, 12]), foreign([0, 0])
    assert hypotenuse(a, b).copy_to_host().tolist() == [5, 13]
    assert hypotenuse(np.array([3.0, 5]), b, out=result).copy_to_host().tolist() == [5, 13]
    assert result.owner.copy_to_host().tolist() == [5, 13]
    assert product(foreign([[1, 2]]), foreign([[3], [4]])).copy_to_host().tolist() == [[11]]
    assert product(foreign([[1, 2]]), [[3], [4]], out=(made := foreign([[0]]))).copy_to_host().tolist() == [[11]]
    assert made.owner.copy_to_host().tolist() == [[11]]
    assert total(a) == total([3.0, 5.0]) == 8
    assert total(a, res=result) is None
    assert result.owner.copy_to_host().tolist() == [8, 13]
    assert cuda.vectorize(lambda x, y: x + y).reduce(a) == 8


def test_what_cannot_be_reduced():
    with pytest.raises(TypeError, match="only arrays with one axis are reduced, and this one has 2"):
        total(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="size=5 of an array of 3 elements"):
        total(np.zeros(3), size=5)


def test_a_function_of_numbers_is_broadcast():
    x, y = np.arange(6.0).reshape(2, 3), np.arange(3.0)
    assert np.array_equal(hypotenuse(x, y), np.hypot(x, y))
    assert hypotenuse(3, 4) == 5
    assert hypotenuse(np.float32(3), np.float32(4)).dtype == np.float32
    on_device = hypotenuse(cuda.to_device(x), y)
    assert cuda.is_cuda_array(on_device)
    assert np.array_equal(on_device.copy_to_host(), np.hypot(x, y))
    out = np.empty((2, 3))
    assert hypotenuse(x, y, out=out) is out
    assert hypotenuse(np.empty((0, 3)), y).shape == (0, 3)
    assert hypotenuse.reduce(np.array([3.0, 4, 12])) == 13


@cuda.vectorize(["float64(float64)", "int64(int64)", "float32(float32)"])
def doubled(x):
    return x + x


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_the_declared_types_that_an_array_has_come_first(dtype):
    assert doubled(np.arange(3, dtype=dtype)).dtype == dtype


def test_an_integer_keeps_its_bits_where_its_type_is_declared():
    assert doubled(np.array([2**61 + 1]))[0] == 2**62 + 2


@cuda.vectorize(["float64(float64, float64)", "float32(float32, float32)"])
def added(x, y):
    return x + y


@pytest.mark.parametrize("number", [2, 0.5, np.float64(0.5)])
def test_a_number_takes_the_type_of_the_array_beside_it(number):
    assert added(np.arange(3, dtype=np.float32), number).dtype == np.float32
    assert added(number, np.arange(3.0)).dtype == np.float64


def test_a_function_without_types_takes_those_of_its_arguments():
    @cuda.vectorize
    def less(x, y):
        return x < y

    found = less(np.arange(3), 1)
    assert found.tolist() == [True, False, False]
    assert found.dtype == np.bool_


def test_arguments_that_do_not_fit():
    with pytest.raises(TypeError, match="takes 2 arguments, and was given 1"):
        hypotenuse(1)
    with pytest.raises(TypeError, match=r"declared for .*and was given"):
        hypotenuse(1j, 2)
    with pytest.raises(ValueError, match="broadcast"):
        hypotenuse(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match=r"out has shape \(3,\), and the result \(2,\)"):
        hypotenuse(np.zeros(2), 1, out=np.zeros(3))


def test_a_function_of_arrays_is_applied_to_each_item():
    a, b = np.random.default_rng(1).random((5, 2, 3)), np.random.default_rng(2).random((3, 4))
    assert np.allclose(product(a, b), a @ b)
    c = np.empty((5, 2, 4))
    assert product(a, b, c) is c
    assert np.allclose(product(cuda.to_device(a), b).copy_to_host(), a @ b)


def test_a_number_for_each_item():
    @cuda.guvectorize(["void(float64[:], float64, float64[:])"], "(n),()->(n)")
    def shifted(x, by, out):
        for i in range(x.shape[0]):
            out[i] = x[i] + by

    assert shifted(np.arange(6.0).reshape(2, 3), np.array([10.0, 20])).tolist() == [[10, 11, 12], [23, 24, 25]]


@cuda.guvectorize(["void(float64[:], float64[:], float64[:])"], "(n)->(n),()")
def scaled(x, doubled, total):
    total[0] = 0
    for k in range(x.shape[0]):
        doubled[k] = 2 * x[k]
        total[0] += x[k]


@pytest.mark.parametrize("where", [np.array, cuda.to_device])
def test_results_are_given_by_name(where):
    x, out = where(np.arange(6.0).reshape(2, 3)), (where(np.zeros((2, 3))), where(np.zeros(2)))
    found = scaled(x, out=out)
    doubled, total = (each.copy_to_host() if where is cuda.to_device else each for each in out)
    assert (doubled.tolist(), total.tolist()) == ([[0, 2, 4], [6, 8, 10]], [3, 12])
    assert all(each is given for each, given in zip(found, out, strict=True))
    one = where(np.zeros((1, 1)))
    assert product(where(np.ones((1, 2))), where(np.ones((2, 1))), out=one) is one
    assert one[0, 0] == 2


def test_results_that_are_given_twice_or_without_arguments():
    a = np.ones((1, 1))
    with pytest.raises(ValueError, match="both positional and keyword"):
        product(a, a, a, out=a)
    with pytest.raises(TypeError, match="takes 2 or 3 arguments, and was given 1"):
        product(a, out=a)


def test_axes_that_do_not_match():
    with pytest.raises(ValueError, match="axis n has length 3 and length 2"):
        product(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="has 1 axes, and needs at least 2"):
        product(np.zeros(3), np.zeros((3, 4)))
    with pytest.raises(TypeError, match="takes another number"):
        cuda.guvectorize(["void(float64[:], float64[:])"], "(n)->(n),(n)")(lambda x, out: None)


def test_a_function_without_a_name_is_taken():
    assert cuda.vectorize(["float64(float64)"])(lambda x: x + 1)(np.arange(2.0)).tolist() == [1, 2]
    assert cuda.guvectorize(["void(float64[:], float64[:])"], "(n)->(n)")(lambda x, out: None)(np.ones(2)).shape == (2,)
