"""The border where host objects come in: what each becomes, and what is refused at every way in."""

from __future__ import annotations

import re
from collections import UserList, deque
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import recfunctions

import devmem as dm
from devmem._core.interop.host_objects import assignable, has_mask, host_array, pinnable
from devmem.spi.errors import LayoutError


class MaskedElsewhere(np.ndarray):
    """A subclass of ndarray of another library, whose objects have a mask."""

    @property
    def mask(self):
        return np.ones(self.shape, bool)


class Subclass(np.ndarray):
    """A subclass without one."""


class Described:
    """Says by NumPy's array interface what it has."""

    def __init__(self, **more):
        self.array = np.arange(3.0)
        self.__array_interface__ = {**self.array.__array_interface__, **more}


class Items:
    """A sequence by its methods alone."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        return self.items[at]


class Tensor:
    """As PyTorch's of a type that NumPy does not have: converted by DLPack only."""

    def __init__(self, array, error=None):
        self.array, self.error = array, error or TypeError("Got unsupported ScalarType BFloat16")

    def __array__(self, dtype=None, copy=None):
        raise self.error

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return self.array.__dlpack__(max_version=max_version, dl_device=(1, 0))


class Converts:
    """An object whose ``__array__`` returns what it was made with, as those of lazy arrays do."""

    def __init__(self, array):
        self.array, self.calls = array, 0

    def __array__(self, dtype=None, copy=None):
        self.calls += 1
        return self.array if dtype is None else self.array.astype(dtype)


M = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
RECORD = np.ma.array([(1, 2.0)], mask=[(0, 1)], dtype="i4,f8")
MASKED = {
    "array": M,
    "without a masked element": np.ma.array([1.0, 2.0, 3.0]),
    "masked": np.ma.masked,
    "record": RECORD[0],
    "of another library": np.arange(3.0).view(MaskedElsewhere),
    "array interface": Described(mask=np.ones(3, bool)),
    "list of arrays": [M, M],
    "one element of a list": [1.0, np.ma.masked, 3.0],
    "tuple in a list": [(1.0, 2.0, np.ma.masked)],
    "deep in lists": [[[1.0]], [[M[1]]]],
    "among NumPy's numbers": [np.float64(1), np.ma.masked],
    "deque": deque([M]),
    "sequence of another class": UserList([M]),
    "sequence by its methods": Items(1.0, np.ma.masked),
    "by __array__": Converts(M),
    "by __array__, in a list": [[1.0, 2.0, 3.0], Converts(M)],
}
WAYS_IN = {
    "to_device": dm.to_device,
    "to_device(to=)": lambda x: dm.to_device(x, to=dm.zeros(3)),
    "asarray": dm.asarray,
    "asarray(dtype)": lambda x: dm.asarray(x, "f4"),
    "full": lambda x: dm.full(3, x),
    "full(dtype)": lambda x: dm.full(3, x, "f4"),
    "full_like": lambda x: dm.full_like(dm.zeros(3), x),
    "fill": lambda x: dm.zeros(3).fill(x),
    "assignment": lambda x: dm.zeros(3).__setitem__(..., x),
    "assignment of an element": lambda x: dm.zeros(3).__setitem__(0, x),
    "assignment of a record": lambda x: dm.zeros(3, "i4,f8").__setitem__(0, x),
    "copy_to_device": lambda x: dm.zeros(3).copy_to_device(x),
    "copy_async": dm.copy_async,
    "scatter": lambda x: dm.scatter(x, [dm.current_device()]),
    "to_device_many": lambda x: dm.to_device_many([x]),
    "prefetch": lambda x: list(dm.prefetch([x])),
    "SmartArray": dm.SmartArray,
    "SmartArray on the device": lambda x: dm.SmartArray(x, where="gpu"),
    "assignment to a SmartArray": lambda x: dm.SmartArray(np.zeros(3)).__setitem__(..., x),
    "copy_pitched": lambda x: dm.copy_pitched(dm.zeros(3), x, width=24, height=1),
}
IN_PLACE = {
    "from_dlpack": dm.from_dlpack,
    "from_dlpack(copy=True)": lambda x: dm.from_dlpack(x, copy=True),
    "as_device_array": dm.as_device_array,
    "mapped": lambda x: dm.mapped(x).__enter__(),
    "pinned": lambda x: dm.pinned(x).__enter__(),
    "register": dm.register,
}


@pytest.fixture(autouse=True)
def on_host():
    with dm.use_backend("host"):
        yield


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("name", MASKED)
def test_no_mask_is_lost_on_any_way_in(name, way):
    with pytest.raises(LayoutError, match=r"mask.*filled"):
        WAYS_IN[way](MASKED[name])


INTO = {
    "copy_to_host": lambda d, m: d.copy_to_host(m),
    "on a stream": lambda d, m: d.copy_to_host(m, stream=dm.stream()),
    "copy_async": lambda d, m: dm.copy_async(d, m),
    "gather": lambda d, m: dm.gather([d], out=m),
    "copy_pitched": lambda d, m: dm.copy_pitched(m, d, width=24, height=1),
    "Out": lambda d, m: nothing[1, 1](dm.Out(m)),
}


@dm.kernel
def nothing(x):
    pass


@pytest.mark.parametrize("way", INTO)
@pytest.mark.parametrize("name", ["array", "without a masked element", "of another library"])
def test_no_mask_is_left_over_elements_that_come_from_a_device(name, way):
    given = MASKED[name].copy()
    with pytest.raises(LayoutError, match="mask"):
        INTO[way](dm.ones(3), given)
    assert given.tobytes() == MASKED[name].tobytes()


@pytest.mark.parametrize("way", IN_PLACE)
@pytest.mark.parametrize("name", [name for name, each in MASKED.items() if isinstance(each, np.ndarray)])
def test_nor_where_memory_is_used_in_place(name, way):
    assert not dm.is_device_array(MASKED[name])
    with pytest.raises(LayoutError, match=r"mask.*filled"):
        IN_PLACE[way](MASKED[name])


def test_nor_by_an_argument_of_a_kernel_or_a_plan():
    with pytest.raises(LayoutError, match=r"mask.*filled"):
        nothing[1, 1](dm.In(M))
    stream, source, target = dm.stream(), dm.pinned_array(3), dm.zeros(3)
    with dm.capture(stream) as plan:
        target.copy_to_device(source, stream=stream)
    with pytest.raises(LayoutError, match=r"mask.*filled"):
        plan.update(src=np.ma.array(dm.pinned_array(3), mask=[0, 1, 0], copy=False))
    with dm.capture(stream) as back:
        target.copy_to_host(source, stream=stream)
    with pytest.raises(LayoutError, match="mask"):
        back.update(dst=np.ma.array(dm.pinned_array(3), mask=[0, 1, 0], copy=False))
    plan.close()
    back.close()


@pytest.mark.parametrize(
    "obj",
    [
        np.rec.array([(1, 2.0)], dtype=[("mask", "i4"), ("x", "f8")]),
        np.zeros(3).view(Subclass),
        Described(mask=None),
        [1, 2.0, np.float64(3)],
        [np.arange(3), np.arange(3)],
        "text",
        b"bytes",
        bytearray(8),
        memoryview(np.zeros((2, 2))),
        range(3),
        {"mask": 1},
        Items(1, 2),
        Converts(np.arange(3)),
        [Converts(np.arange(3))],
    ],
    ids=lambda obj: type(obj).__name__,
)
def test_what_has_no_mask_is_not_taken_to_have_one(obj):
    assert not has_mask(obj)


def test_an_object_is_converted_once():
    lazy = Converts(np.arange(3.0))
    assert dm.to_device(lazy).copy_to_host().tolist() == [0, 1, 2]
    assert lazy.calls == 1


def test_host_array_is_the_array_itself_or_what_numpy_makes_of_it():
    a = np.arange(3)
    assert host_array(a) is a
    assert host_array([1, 2]).tolist() == [1, 2]
    assert host_array([(1, 2)], np.dtype("i4,f8")).tolist() == [(1, 2.0)]
    assert type(host_array(np.rec.array([(1,)], dtype=[("a", "i4")]))) is np.ndarray
    with pytest.raises(LayoutError, match=r"a dict is not an array: .*to_device_many"):
        host_array({})
    with pytest.raises(LayoutError, match="None is no array"):
        host_array(None)


class Sparse:
    """As a sparse matrix of SciPy: NumPy makes one Python object of it, and it can be iterated over."""

    def __iter__(self):
        return iter([self])

    def toarray(self):
        return np.eye(2)


class Frame:
    """As a table of pandas: NumPy makes an array of Python objects of it."""

    def __array__(self, dtype=None, copy=None):
        return np.array([[1, "x"]], object)

    def to_numpy(self, dtype):
        return np.ones((1, 2), dtype)


#: What NumPy makes references to Python objects of; what the message says of it, and what the message's advice gives.
OBJECTS = {
    "numbers": (np.array([1, 2.5], object), "the items of the ndarray are references", [1.0, 2.5]),
    "fractions": ([1, Fraction(1, 2)], "the items of the list are references", [1.0, 0.5]),
    "text": (np.array(["a", "bcd"], object), "the items of the ndarray are references", ["a", "bcd"]),
    "a table": (Frame(), "the items of the Frame are references", [[1.0, 1.0]]),
    "a decimal": (Decimal("1.5"), "a Decimal is not an array", 1.5),
    "dates": ([date(2026, 1, 2), None], "the items of the list are references", [datetime(2026, 1, 2), None]),
    "a date": (datetime(2026, 1, 2), "a datetime is not an array", datetime(2026, 1, 2)),
    "durations": ([timedelta(1)], "the items of the list are references", [timedelta(1)]),
    "a generator": ((n for n in range(3)), "a generator is not an array", [0, 1, 2]),
    "a set": ({1}, "a set is not an array", [1]),
    "an iterator": (iter([1, 2]), "a list_iterator is not an array", [1, 2]),
}
if hasattr(np.dtypes, "StringDType"):
    OBJECTS["text of any length"] = (
        np.array(["a", "bcd"], "T"),
        "the items of the ndarray are references",
        ["a", "bcd"],
    )


@pytest.mark.parametrize("name", OBJECTS)
def test_what_is_refused_says_what_would_be_taken(name):
    """The first thing that it advises is done."""
    x, words, result = OBJECTS[name]
    with pytest.raises(LayoutError, match=words) as raised:
        host_array(x)
    advice = re.search(r"(list|numpy\.array|x\.to_numpy)\(.*?\)", str(raised.value))[0]
    assert host_array(eval(advice, {"x": x, "numpy": np})).tolist() == result


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ({}, r"a dict is not an array: devmem\.to_device_many\(tree\)"),
        (Path("x.npy"), r"a \w+Path is not an array: devmem\.load\(path\)"),
        (
            BytesIO(b"abc"),
            r"a BytesIO is not an array: devmem\.load\(path\) reads a file, numpy\.frombuffer\(x\.read\(\)",
        ),
        (Sparse(), r"a Sparse is not an array: give x\.toarray\(\)"),
        (10**30, "an int of 100 bits fits no dtype, which have 64 at most"),
        (-(10**5000), r"an int of 16610 bits fits no dtype"),
        (np.zeros(3).__dlpack__(), r"a capsule is not an array: .*from_dlpack"),
        (len, "a builtin_function_or_method is not an array: give an array"),
        (object(), "an object is not an array"),
        (np.array([None, "x"], object), "references to Python objects .dtype object.: give numbers or text"),
        (np.zeros(1, [("a", "O")]), "references to Python objects .*: give numbers or text"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_is_no_array_is_called_so(x, words):
    with pytest.raises(LayoutError, match=words):
        host_array(x)


def test_a_capsule_is_not_what_from_dlpack_takes():
    with pytest.raises(TypeError, match="a PyCapsule has no __dlpack_device__: give the object that made it"):
        dm.from_dlpack(np.zeros(3).__dlpack__())


def test_a_buffer_is_no_destination_and_says_how_it_is_one():
    d = dm.ones((2, 3))
    buffer = bytearray(d.nbytes)
    with pytest.raises(
        TypeError, match=r"not a bytearray: give numpy\.frombuffer\(buffer, d\.dtype\)\.reshape\(d\.shape\)"
    ):
        d.copy_to_host(buffer)
    d.copy_to_host(np.frombuffer(buffer, d.dtype).reshape(d.shape))
    assert bytes(buffer) == np.ones(6).tobytes()


def test_only_an_ndarrays_memory_is_locked_in_place():
    a = np.arange(3)
    assert pinnable(a) is a
    with pytest.raises(TypeError, match="not that of a list"):
        pinnable([a])
    with pytest.raises(LayoutError, match="references to Python objects"):
        pinnable(np.array([None]))


def test_a_tensor_of_a_type_that_numpy_does_not_have_comes_by_dlpack():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    values = np.array([[1.5, -2.0], [0.25, 3.0]], bfloat16)
    tensor = Tensor(dm.to_device(values))
    for way in (dm.to_device, dm.asarray, lambda x: dm.to_device_many([x])[0], lambda x: dm.SmartArray(x).gpu()):
        made = way(tensor)
        assert made.dtype == bfloat16
        assert made.copy_to_host().tobytes() == values.tobytes()
    assert dm.asarray(tensor, "f4").tolist() == values.tolist()
    into = dm.zeros((2, 2), bfloat16)
    into.copy_to_device(tensor)
    into[0] = Tensor(dm.to_device(values[1]))
    assert into.copy_to_host().tobytes() == values[[1, 1]].tobytes()


def test_a_tensor_that_numpy_takes_for_an_object_comes_by_dlpack():
    class NoArray:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **asked):
            return np.arange(3.0).__dlpack__(**asked)

    assert dm.to_device(NoArray()).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("error", [RuntimeError("call detach() first"), ValueError("no")])
def test_what_else_a_tensor_refuses_stays_refused(error):
    with pytest.raises(type(error), match=str(error)[:2]):
        dm.to_device(Tensor(np.arange(3.0), error))


def test_a_type_error_of_what_is_no_tensor_stays():
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise TypeError("broken")

    with pytest.raises(TypeError, match="broken"):
        dm.to_device(Broken())


WHOLE = {"__dlpack__": Tensor.__dlpack__, "__dlpack_device__": Tensor.__dlpack_device__}


@pytest.mark.parametrize(
    "methods",
    [
        WHOLE | {"__dlpack_device__": None},
        WHOLE | {"__dlpack__": None},
        dict.fromkeys(WHOLE),
        {"__dlpack_device__": Tensor.__dlpack_device__},
    ],
    ids=["no device", "no capsule", "neither", "lacks one"],
)
def test_none_in_place_of_a_method_says_that_there_is_no_dlpack(methods):
    plain = type("Plain", (Converts,), methods)(np.arange(3.0))
    listed = type("Listed", (UserList,), methods)
    assert not dm.is_device_array(plain)
    for given in (plain, [plain], listed([0.0, 1.0, 2.0])):
        assert np.ravel(dm.to_device(given).copy_to_host()).tolist() == [0, 1, 2]
    assert dm.to_device_many([plain])[0].copy_to_host().tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match=r"has no __dlpack__ and __dlpack_device__: copy it with devmem.to_device"):
        dm.from_dlpack(plain)
    with pytest.raises(LayoutError, match="mask"):
        dm.to_device(listed([M]))


def test_a_tensor_that_does_not_answer_is_not_sent_to_the_verb_that_asked():
    class Broken(Tensor):
        @property
        def __dlpack__(self):
            raise RuntimeError("not now")

    with pytest.raises(TypeError, match=r"has no __dlpack__ and __dlpack_device__: give numpy.asarray\(x\)$"):
        dm.to_device(Broken(np.arange(3.0)))


# -- assignments -------------------------------------------------------------------------------------------------------


def test_assignable_is_the_value_where_it_fits():
    a = np.arange(3.0)
    assert assignable(a, np.dtype("f8")) is a
    assert assignable(5, np.dtype("u1")).dtype == np.dtype("u1")
    assert assignable((1, 2.0), np.dtype("i4,f8")).tolist() == (1, 2.0)


@pytest.mark.parametrize(
    ("value", "dtype"), [(1.5, "i4"), (1j, "f8"), (np.int8(-1), "u1"), ("x", "f4"), (np.arange(3), "?")]
)
def test_assignable_refuses_other_kinds(value, dtype):
    with pytest.raises(LayoutError, match=rf"cannot assign .* to {np.dtype(dtype)}: the cast is not of the same kind"):
        assignable(value, np.dtype(dtype))


AB = np.dtype([("a", "i4"), ("b", "f8")])
ADVICE = {
    "fields in another order": (np.array([(2.5, 1)], [("b", "f8"), ("a", "i4")]), AB, [(1, 2.5)]),
    "a record of them": (np.array([(2.5, 1)], [("b", "f8"), ("a", "i4")])[0], AB, (1, 2.5)),
    "fields of other names": (np.array([(1, 2.5)], [("p", "f8"), ("q", "f8")]), AB, [(1, 2.5)]),
    "a float": (2.7, np.dtype("i4"), 2),
    "a complex number": (2.5 + 1j, np.dtype("f8"), 2.5),
    "dates": (np.array(["1970-01-02"], "M8[D]"), np.dtype("i4"), [1]),
    "text": (np.array(["12"]), np.dtype("i4"), [12]),
    "another byte order": (np.array([2.5]), np.dtype(">i4"), [2]),
}


try:
    import ml_dtypes
except ImportError:
    pass
else:
    FLOAT8 = np.dtype(ml_dtypes.float8_e5m2)
    ADVICE |= {"a float8": (2.5 + 1j, FLOAT8, 2.5), "floats as float8": (np.array([2.5 + 1j]), FLOAT8, [2.5])}


@pytest.mark.parametrize("name", ADVICE)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_what_a_refusal_advises_works(name):
    """Whatever it says is run."""
    value, dtype, result = ADVICE[name]
    with pytest.raises(LayoutError, match="not of the same kind") as raised:
        assignable(value, dtype)
    advice = str(raised.value).rpartition("numpy.")[2]

    class D:
        pass

    d = D()
    d.dtype = dtype
    names = {"numpy": np, "value": value, "d": d}
    assert recfunctions  # numpy.lib.recfunctions, which has to be imported
    converted = eval(f"numpy.{advice}", names)
    assert assignable(converted, dtype).tolist() == result


@pytest.mark.parametrize(
    ("value", "dtype", "advice"),
    [
        (np.zeros(1, "i4,i4,i4"), AB, r"the fields one by one, d\['name'\] = \.\.\.$"),
        (np.zeros(1, "i4,i4"), np.dtype("f8"), r"give one of its fields, value\['name'\]$"),
    ],
)
def test_where_nothing_converts_no_conversion_is_advised(value, dtype, advice):
    with pytest.raises(TypeError):
        value.astype(dtype)
    with pytest.raises(LayoutError, match=advice):
        assignable(value, dtype)
