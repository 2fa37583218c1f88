"""Operators refuse on both sides; NumPy's functions and every other implicit copy obey DEVMEM_TRANSFER_GUARD."""

from __future__ import annotations

import copy
import inspect
import logging
import operator
import pickle

import numpy as np
import pytest

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")

BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and_", "or_", "xor"]
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]
INPLACE = [
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "imatmul",
    "ilshift",
    "irshift",
    "iand",
    "ior",
    "ixor",
]
OTHERS = [1, 1.5, True, None, "x", [1, 2, 3], np.arange(3), np.float64(2), np.int8(1), np.array(5), object()]


@pytest.mark.parametrize("name", BINARY + COMPARE)
def test_binary_operators_refuse_on_both_sides(name):
    call = getattr(operator, name)
    d = dm.to_device(np.arange(3))
    for other in [*OTHERS, d, dm.to_device([1, 2, 3])]:
        for pair in ((d, other), (other, d)):
            if name == "mod" and isinstance(pair[0], str):
                continue  # formatting, which takes any object with indices
            with pytest.raises(TypeError, match=r"copy_to_host\(\)"):
                call(*pair)
    assert d.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", INPLACE)
def test_in_place_operators_refuse(name):
    call = getattr(operator, name)
    d = dm.to_device(np.arange(3))
    for other in OTHERS:
        with pytest.raises(TypeError, match=r"copy_to_host\(\)"):
            call(d, other)
    host = np.arange(3)
    with pytest.raises(TypeError):
        call(host, d)
    assert d.tolist() == host.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "call", [operator.neg, operator.pos, operator.abs, operator.invert, lambda d: divmod(d, 2), lambda d: divmod(2, d)]
)
def test_unary_operators_and_divmod_refuse(call):
    with pytest.raises(TypeError, match=r"copy_to_host\(\)"):
        call(dm.to_device([1, 2]))


@pytest.mark.parametrize(
    "call",
    [
        lambda d: np.add(d, 1),
        lambda d: np.add(1, d),
        lambda d: np.equal(d, d),
        lambda d: np.sqrt(d),
        lambda d: np.add(np.arange(3), 1, out=d),
        lambda d: np.add.reduce(d),
        lambda d: np.matmul(d, d),
    ],
)
def test_ufuncs_refuse_device_arrays(call):
    d = dm.to_device(np.arange(3))
    with pytest.raises(TypeError):
        call(d)
    assert d.tolist() == [0, 1, 2]
    d.free()  # NumPy's add.reduce leaks a reference to what it refuses


def test_a_mapped_array_refuses_to_compute_with_a_device_array(need_kind):
    need_kind("mapped")
    m = dm.mapped_array(3)
    m[:] = 1
    d = dm.to_device(np.arange(3.0))
    for call in (operator.eq, operator.add, operator.lt):
        with pytest.raises(TypeError):
            call(m, d)
        with pytest.raises(TypeError):
            call(d, m)


def test_arrays_are_not_hashable():
    d = dm.to_device([1])
    assert dm.DeviceNDArray.__hash__ is None
    with pytest.raises(TypeError, match="unhashable"):
        set([d])  # noqa: C405
    with pytest.raises(TypeError, match="unhashable"):
        hash(d)


def test_identity_still_works():
    d, e = dm.to_device([1]), dm.to_device([1])
    assert d in [d]
    assert d is not e


# -- __array__ ---------------------------------------------------------------------------------------------------------


def test_asarray_copies_to_the_host():
    host = np.arange(6.0).reshape(2, 3)
    d = dm.to_device(host)
    got = np.asarray(d)
    assert type(got) is np.ndarray
    np.testing.assert_array_equal(got, host)
    got[...] = -1
    np.testing.assert_array_equal(d.copy_to_host(), host)
    np.testing.assert_array_equal(np.array(d), host)
    assert np.asarray(d, "f4").dtype == np.dtype("f4")
    assert np.asarray(d.T).flags.f_contiguous


@pytest.mark.parametrize(
    "host",
    [
        np.arange(3, dtype="i4"),
        np.arange(6.0).reshape(2, 3).T,
        np.array(5),
        np.zeros((3, 0)),
        np.array([(1, 2.5)], [("x", "i1"), ("y", "f8")])[0],
    ],
    ids=["integers", "floats", "one integer", "nothing", "record"],
)
def test_bytes_are_those_of_the_elements(host):
    """Without a method Python makes a byte of each integer, or so many zeros as one integer says."""
    assert bytes(dm.to_device(host)) == host.tobytes()


def test_array_protocol_as_numpy_calls_it():
    d = dm.to_device(np.arange(3))
    assert d.__array__().tolist() == [0, 1, 2]
    assert d.__array__(np.float32).dtype == np.float32
    assert d.__array__(None, copy=True).tolist() == [0, 1, 2]
    assert d.__array__(copy=None).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"without a copy.*copy_to_host"):
        d.__array__(copy=False)
    with pytest.raises(ValueError, match="without a copy"):
        d.__array__("f4", copy=False)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 passes no copy= to __array__")
def test_copy_false_reaches_us():
    d = dm.to_device([1])
    with pytest.raises(ValueError, match="without a copy"):
        np.array(d, copy=False)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(d, copy=False)


def test_functions_that_go_through_the_protocol_work():
    d = dm.to_device(np.arange(6.0).reshape(2, 3))
    assert np.mean(d) == 2.5
    assert np.concatenate([d, d]).shape == (4, 3)
    assert np.stack([d, np.zeros((2, 3))]).shape == (2, 2, 3)
    np.testing.assert_array_equal(d, np.arange(6.0).reshape(2, 3))


# -- the guard ---------------------------------------------------------------------------------------------------------

#: Everything that copies to the host without saying so.
IMPLICIT = {
    "asarray": lambda d: np.asarray(d),
    "array": lambda d: np.array(d),
    "function": lambda d: np.mean(d),
    "element": lambda d: d[0],
    "last element": lambda d: d[-1],
    "tuple": lambda d: d[(1,)],
    "iteration": lambda d: list(d),
    "contains": lambda d: 1 in d,
    "bool": lambda d: bool(d[:1]),
    "if": lambda d: 1 if d[:1] else 0,
    "int": lambda d: int(d[:1]),
    "float": lambda d: float(d[:1]),
    "complex": lambda d: complex(d[:1]),
    "bytes": bytes,
    "bytes of a record": lambda d: bytes(d.view([("a", "i2"), ("b", "i2")])[0]),
    "index": lambda d: [1, 2][d.view("i4")[0, ...]],
    "assign another dtype": lambda d: operator.setitem(dm.zeros(4), ..., d),
    "pickle": lambda d: pickle.dumps(d),
    "record field": lambda d: d.view([("a", "i2"), ("b", "i2")])[0]["a"],
    "host assignment": lambda d: operator.setitem(np.zeros(4), slice(None), d),
    "list": lambda d: np.array([d, d]),
}
#: And what says so.
SPELLED_OUT = {
    "copy_to_host": lambda d: d.copy_to_host(),
    "copy_to_host of an element": lambda d: d[1:2].copy_to_host(),
    "into": lambda d: d.copy_to_host(np.empty(4, "i4")),
    "item": lambda d: d.item(1),
    "item of one": lambda d: d[:1].item(),
    "tolist": lambda d: d.tolist(),
    "record": lambda d: d.view([("a", "i2"), ("b", "i2")])[0].copy_to_host(),
    "upload": lambda d: dm.to_device(d),
    "assign": lambda d: operator.setitem(d, slice(None), d[::-1]),
    "assign host": lambda d: operator.setitem(d, 0, 1),
    "deepcopy": lambda d: copy.deepcopy(d),
    "copy": lambda d: copy.copy(d),
    "reshape": lambda d: d.reshape(2, 2).T.reshape(4),
    "repr": repr,
    "fill": lambda d: d.fill(1),
    "narrow rows": lambda d: dm.to_device(np.ones((300, 8), "u1"))[:, :3].copy(),
}


@pytest.mark.parametrize("call", IMPLICIT.values(), ids=IMPLICIT)
def test_disallow_raises_at_every_implicit_copy(with_settings, call):
    with_settings(TRANSFER_GUARD="disallow")
    d = dm.to_device(np.array([0, 1, 2, 3], "i4"))
    before = dm.transfer_stats()
    with pytest.raises(
        dm.TransferGuardError,
        match=r"implicit copy from device to host by .*test_numpy\.py:\d+.*disallow.*copy_to_host\(\)",
    ):
        call(d)
    assert {k: v for k, v in dm.transfer_stats().items() if k.startswith("d2h")} == {
        k: v for k, v in before.items() if k.startswith("d2h")
    }
    assert d.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("call", SPELLED_OUT.values(), ids=SPELLED_OUT)
def test_disallow_lets_through_what_is_spelled_out(with_settings, call):
    with_settings(TRANSFER_GUARD="disallow")
    call(dm.to_device(np.array([0, 1, 2, 3], "i4")))


@pytest.mark.parametrize("call", IMPLICIT.values(), ids=IMPLICIT)
def test_log_warns_on_the_logger_devmem(with_settings, caplog, call):
    with_settings(TRANSFER_GUARD="log")
    d = dm.to_device(np.array([0, 1, 2, 3], "i4"))
    with caplog.at_level(logging.WARNING, "devmem"):
        first = len(caplog.records)
        call(d)
        _copy_here(d)
    assert all(r.levelno == logging.WARNING and r.name == "devmem" for r in caplog.records[first:])
    assert all("test_numpy.py" in r.getMessage() for r in caplog.records[first:])


def test_log_warns_once_for_each_call_site(with_settings, caplog):
    with_settings(TRANSFER_GUARD="log")
    d = dm.to_device(np.arange(4))
    with caplog.at_level(logging.WARNING, "devmem"):
        for _ in range(3):
            np.asarray(d)
        here = inspect.currentframe().f_lineno - 1
        d[0]
    said = [r.getMessage() for r in caplog.records if r.name == "devmem"]
    assert len(said) == 2
    assert f"implicit copy from device to host by numpy at {__file__}:{here}" in said[0]
    assert "by indexing one element" in said[1]


def test_allow_says_nothing(with_settings, caplog):
    with_settings(TRANSFER_GUARD="allow")
    with caplog.at_level(logging.DEBUG, "devmem"):
        for call in IMPLICIT.values():
            call(dm.to_device(np.array([0, 1, 2, 3], "i4")))
    assert [r for r in caplog.records if r.name == "devmem"] == []


def test_the_guard_does_not_hold_host_arrays_back(with_settings, need_kind):
    need_kind("mapped")
    with_settings(TRANSFER_GUARD="disallow")
    m = dm.mapped_array(3)
    m[:] = 2
    assert m[0] == 2
    assert np.asarray(m).sum() == 6
    assert pickle.loads(pickle.dumps(m)).tolist() == [2, 2, 2]


def _copy_here(d):
    np.asarray(d)


# -- libraries that look for arrays which compute --------------------------------------------------------------------------


def test_objects_do_not_say_that_they_compute():
    """The rule of Dask: it converts what has neither attribute, and computes with what has one, even as None."""
    d = dm.to_device(np.arange(3))
    for name in ("__array_ufunc__", "__array_function__"):
        assert not hasattr(d, name)
    assert dm.DeviceNDArray.__array_ufunc__ is None  # where NumPy looks


def test_who_asks_the_object_whether_to_step_back_does_so():
    """As NumPy's mixin, Dask and CuPy decide: by the attribute of the object, else by the priority."""
    d = dm.to_device(np.arange(3.0))
    for other in (np.ma.ones(3), np.ones(3), np.float64(1), np.ones(3).view(np.recarray)):
        assert d.__array_priority__ > getattr(other, "__array_priority__", 0)
        for pair in ((d, other), (other, d)):
            with pytest.raises(TypeError, match=r"copy_to_host\(\)"):
                operator.add(*pair)


@pytest.mark.parametrize("chunks", [-1, 2])
@pytest.mark.parametrize("reduce", ["sum", "max", "mean"])
def test_dask_computes_with_copies_on_the_host(reduce, chunks):
    dask = pytest.importorskip("dask.array")
    host = np.arange(12.0).reshape(3, 4)
    d = dm.to_device(host)
    found = dask.from_array(d, chunks=chunks, asarray=True)
    assert getattr(found, reduce)().compute(scheduler="sync") == getattr(host, reduce)()
    assert (found + 1).compute(scheduler="sync").tolist() == (host + 1).tolist()
    d.free()  # NumPy's add.reduce leaks a reference to the part without elements that Dask tries first
