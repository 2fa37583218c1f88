"""Indexing: every basic form against NumPy, what is refused, fields and records."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")

HOST = np.arange(3 * 4 * 5, dtype="i4").reshape(3, 4, 5)

PARTS = [
    *(0, 2, -1, -3, np.int64(1), np.uint8(2), None, Ellipsis),
    *(slice(None), slice(1, None), slice(None, -1), slice(None, None, 2), slice(None, None, -1), slice(-1, None, -2)),
    *(slice(2, 1), slice(5, 99), slice(-99, 99, 3), slice(1, 2), slice(np.int64(0), np.int32(2)), slice(99, None, -99)),
]


def agree(d, host, key):
    """The device array's answer is NumPy's, in value, type and shape."""
    want = host[key]
    got = d[key]
    if isinstance(want, np.ndarray):
        assert type(got) is dm.DeviceNDArray
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(got.copy_to_host(), want)
    else:
        assert type(got) is type(want)
        assert got == want


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_one_part_selects_what_numpy_selects(part):
    d = dm.to_device(HOST)
    agree(d, HOST, part)
    agree(d, HOST, (part,))


def test_two_and_three_parts():
    d = dm.to_device(HOST)
    for count in (2, 3):
        for key in itertools.product(PARTS[::2] if count == 3 else PARTS, repeat=count):
            if sum(part is Ellipsis for part in key) <= 1:
                agree(d, HOST, key)


VIEWS = {
    "transposed": lambda a: a.T,
    "cut": lambda a: a[::-1, ::2],
    "row": lambda a: a[:, 1],
    "turned": lambda a: a.transpose(1, 2, 0)[::-1],
    "reshaped": lambda a: a.reshape(6, 10)[1::2],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_of_views_select_what_numpy_selects(view):
    d, host = view(dm.to_device(HOST)), view(HOST)
    for part in PARTS:
        if not isinstance(part, (int, np.integer)) or part in (0, -1, -3):
            agree(d, host, part)
            agree(d, host, (Ellipsis, part) if part is not Ellipsis else part)


@pytest.mark.parametrize("key", [(), Ellipsis, (None,), (Ellipsis, None), (None, Ellipsis, None)], ids=str)
def test_arrays_without_axes(key):
    agree(dm.to_device(np.array(7.5)), np.array(7.5), key)


@pytest.mark.parametrize("key", [np.s_[1, 2, 3], np.s_[1, 2, 3, ...], np.s_[..., 1, 2, 3], np.s_[-1, -1, -1]], ids=str)
def test_one_element_is_a_scalar_unless_ellipsis_asks_for_a_view(key):
    agree(dm.to_device(HOST), HOST, key)


@pytest.mark.parametrize(
    "dtype", ["?", "u1", ">i2", "f2", "f8", "longdouble", "c16", "M8[s]", "m8[D]", "S3", "U2", "V4"]
)
def test_an_element_of_every_dtype(dtype):
    host = np.full((2, 3), b"abcd" if dtype == "V4" else 1).astype(dtype)
    agree(dm.to_device(host), host, (1, 2))
    agree(dm.to_device(host), host, (-2, -3))


def test_views_share_memory_and_outlive_their_parent():
    d = dm.to_device(HOST.copy())
    row = d[1]
    assert row.ptr == d.ptr + HOST.strides[0]
    row[...] = -1
    assert (d[1].copy_to_host() == -1).all()
    column = d[:, 0, ::-2]
    del d, row
    want = HOST.copy()
    want[1] = -1
    np.testing.assert_array_equal(column.copy_to_host(), want[:, 0, ::-2])


def test_empty_views_have_no_address():
    d = dm.to_device(HOST)
    for key in (np.s_[0:0], np.s_[5:, 1], np.s_[..., 3:2]):
        assert d[key].ptr == 0
        assert d[key].nbytes == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (3, "index 3 is out of range for axis 0 of length 3"),
        (-4, "index -4 is out of range for axis 0 of length 3"),
        ((0, 4), "index 4 is out of range for axis 1 of length 4"),
        ((slice(None), None, 9), "index 9 is out of range for axis 1 of length 4"),
        ((Ellipsis, -6), "index -6 is out of range for axis 2 of length 5"),
        ((0, 0, 0, 0), "the array has 3 axes, 4 were indexed"),
        ((0, 0, 0, slice(None)), "the array has 3 axes, 4 were indexed"),
        ((Ellipsis, Ellipsis), "one Ellipsis"),
        (slice("a", None), "slice indices are integers or None"),
        (slice(1.5), "slice indices are integers or None"),
        (2**80, "out of range"),
    ],
    ids=str,
)
def test_bad_indices_are_refused_for_reading_and_writing(key, says):
    d = dm.to_device(HOST)
    with pytest.raises(IndexError, match=says):
        d[key]
    with pytest.raises(IndexError, match=says):
        d[key] = 0
    np.testing.assert_array_equal(d.copy_to_host(), HOST)


def test_a_step_of_zero_is_pythons_error():
    with pytest.raises(ValueError, match="step cannot be zero"):
        dm.to_device(HOST)[::0]


def test_an_index_into_an_array_without_axes():
    d = dm.to_device(5)
    with pytest.raises(IndexError, match="0 axes, 1 were indexed"):
        d[0]


@pytest.mark.parametrize(
    "key",
    [
        HOST > 5,
        np.array([True, False, True]),
        [True, False, True],
        [0, 1],
        np.array([0, 1]),
        np.array([0]),
        np.array(True),
        (slice(None), [0, 1]),
        (0, np.array([1])),
        {1},
        b"x",
        [None],
    ],
    ids=repr,
)
def test_masks_and_fancy_indices_are_named_as_unsupported(key):
    d = dm.to_device(HOST)
    with pytest.raises(dm.LayoutError, match=r"masks and lists of indices.*copy_to_host\(\)"):
        d[key]
    with pytest.raises(dm.LayoutError, match=r"masks and lists of indices.*copy_to_host\(\)"):
        d[key] = 0
    np.testing.assert_array_equal(d.copy_to_host(), HOST)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (True, "not bool: True and False are masks"),
        (np.bool_(False), "not bool.*: True and False are masks"),
        (1.0, r"not float: an index is a whole number, int\(\.\.\.\)"),
        (np.float64(1), "not float64: an index is a whole number"),
        ((0, "x"), r"not str: the name of a field stands alone"),
    ],
    ids=repr,
)
def test_what_else_is_no_index_says_what_is(key, reason):
    d = dm.to_device(HOST)
    with pytest.raises(dm.LayoutError, match=reason) as raised:
        d[key]
    assert "lists" not in str(raised.value)
    with pytest.raises(dm.LayoutError, match=reason):
        d[key] = 0
    np.testing.assert_array_equal(d.copy_to_host(), HOST)


@pytest.mark.parametrize("mask", [[True, False, True], [1, 0], [1], True, 1.0], ids=str)
def test_device_arrays_are_no_fancy_indices_either(mask):
    with pytest.raises(dm.LayoutError, match="masks and lists of indices"):
        dm.to_device(HOST)[dm.to_device(mask)]


def test_a_device_array_of_one_integer_is_an_index():
    d = dm.to_device(HOST)
    assert d[dm.to_device(1), 2, dm.to_device(np.uint8(3))] == HOST[1, 2, 3]
    assert list(range(5))[dm.to_device(3)] == 3


# -- fields and records ------------------------------------------------------------------------------------------------

RECORD = np.dtype([("id", "<i4"), ("inner", [("a", "u1"), ("b", ">f8")]), ("grid", "<f4", (2, 3)), ("name", "S5")])


def records():
    host = np.zeros((2, 3), RECORD)
    host["id"] = np.arange(6).reshape(2, 3)
    host["inner"]["a"] = 9 + host["id"]
    host["inner"]["b"] = host["id"] / 4
    host["grid"] = np.arange(36).reshape(2, 3, 2, 3)
    host["name"] = np.char.mod(b"n%d", host["id"])
    return host


@pytest.mark.parametrize("cut", [np.s_[...], np.s_[1], np.s_[::-1, ::2], np.s_[:, 1:1]], ids=str)
def test_fields_are_strided_views(cut):
    host = records()
    d = dm.to_device(host)
    for name in RECORD.names:
        got = d[cut][name]
        want = host[cut][name]
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(got.copy_to_host(), want)
    np.testing.assert_array_equal(d["inner"]["b"].copy_to_host(), host["inner"]["b"])
    np.testing.assert_array_equal(d["grid"][1, :, ::-1, 2].copy_to_host(), host["grid"][1, :, ::-1, 2])
    assert d["id"].strides == host["id"].strides


def test_writing_a_field_leaves_the_others_alone():
    host = records()
    d = dm.to_device(host)
    d["id"] = 7
    d["grid"][0, 1] = [[1, 2, 3], [4, 5, 6]]
    d["inner"]["a"][:, 0] = 3
    host["id"] = 7
    host["grid"][0, 1] = [[1, 2, 3], [4, 5, 6]]
    host["inner"]["a"][:, 0] = 3
    assert d.copy_to_host().tobytes() == host.tobytes()


def test_one_element_is_a_device_record():
    host = records()
    d = dm.to_device(host)
    r = d[1, 2]
    assert type(r) is dm.DeviceRecord
    assert (r.dtype, r.nbytes, r.device) == (RECORD, RECORD.itemsize, d.device)
    assert r.ptr == d.ptr + 5 * RECORD.itemsize
    assert (r["id"], r["name"]) == (5, b"n5")
    assert type(r["id"]) is np.int32
    assert type(r["inner"]) is dm.DeviceRecord
    assert r["inner"]["b"] == 1.25
    np.testing.assert_array_equal(r["grid"].copy_to_host(), host[1, 2]["grid"])
    assert "DeviceRecord" in repr(r)


PAIR = np.dtype([("a", "i4"), ("b", "f8")])
PAIRS = np.array([(1, 2.5), (3, 4.5)], PAIR)
PROTOCOLS = {
    "iteration": list,
    "length": len,
    "reversed": lambda r: list(reversed(r)),
    "in": lambda r: (4.5 in r, 7 in r),
    "a field by its number": lambda r: (r[0], r[-1], r[np.int8(1)]),
    "equal": lambda r: (r == PAIRS[1], PAIRS[1] == r, r == PAIRS[0]),
    "not equal": lambda r: (r != PAIRS[1], PAIRS[1] != r, r != PAIRS[0]),
    "with an array": lambda r: ((r == PAIRS).tolist(), (r != PAIRS).tolist(), (r == PAIRS).tolist()),
    "with None": lambda r: (r == None, r != None),  # noqa: E711
    "bool": bool,
    "asarray": lambda r: (np.asarray(r).dtype, np.asarray(r).tolist()),
    "whole": lambda r: (r[()].dtype, r[...].shape, r[None].shape),
}
REFUSED = {
    "hash": hash,
    "a number that there is no field of": lambda r: r[2],
    "negative": lambda r: r[-3],
    "a part": lambda r: r[0:1],
    "a float": lambda r: r[1.0],
    "another name": lambda r: r["z"],
    "float": float,
    "order": lambda r: r < r,
    "sum": lambda r: r + 1,
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_record_is_the_value_that_numpys_is(name):
    assert PROTOCOLS[name](dm.to_device(PAIRS)[1]) == PROTOCOLS[name](PAIRS[1])


@pytest.mark.parametrize("name", REFUSED)
def test_and_refuses_what_that_refuses(name):
    for record in (PAIRS[1], dm.to_device(PAIRS)[1]):
        with pytest.raises((TypeError, IndexError, ValueError)):
            REFUSED[name](record)


def test_records_compare_by_their_values():
    d, other = dm.to_device(PAIRS), dm.to_device(PAIRS)
    assert d[1] == d[1] == other[1]
    assert d[0] != d[1]
    assert not bool(dm.zeros(1, PAIR)[0])


def test_a_record_is_written_by_number_and_as_a_whole():
    d = dm.to_device(PAIRS)
    d[0][-1] = 7
    d[1][()] = (5, 6.5)
    assert d.tolist() == [(1, 7.0), (5, 6.5)]


def test_a_copy_of_a_record_is_its_own():
    d = dm.to_device(PAIRS)
    for make in (copy.copy, copy.deepcopy):
        made = make(d[1])
        made["a"] = 9
        assert type(made) is dm.DeviceRecord
        assert (made["a"], d[1]["a"]) == (9, 3)


def test_several_fields_of_a_record_are_refused_clearly():
    with pytest.raises(dm.LayoutError, match=r"one field at a time, not \['a', 'b'\]: index a copy_to_host"):
        dm.to_device(PAIRS)[1][["a", "b"]]


@pytest.mark.parametrize("use", [bool, lambda r: r == PAIRS[0], lambda r: r != r, np.asarray, list], ids=str)
def test_what_a_record_copies_for_its_value_is_implicit(use, monkeypatch):
    monkeypatch.setenv("DEVMEM_TRANSFER_GUARD", "disallow")
    dm.close()
    try:
        record = dm.to_device(PAIRS)[0]
        with pytest.raises(dm.TransferGuardError):
            use(record)
    finally:
        monkeypatch.undo()
        dm.close()


def test_writing_through_a_record_writes_the_array():
    host = records()
    d = dm.to_device(host)
    r = d[0, 1]
    r["id"] = 77
    r["inner"]["b"] = -1.5
    r["inner"]["a"] = 200
    r["grid"] = 4
    r["name"] = b"new"
    row = host[0, 1]
    row["id"] = 77
    row["inner"]["b"] = -1.5
    row["inner"]["a"] = 200
    row["grid"] = 4
    row["name"] = b"new"
    assert d.copy_to_host().tobytes() == host.tobytes()


def test_a_record_keeps_its_array_alive():
    r = dm.to_device(records())[1, 1]
    assert r["id"] == 4


def test_records_are_copied_as_a_whole():
    host = records()
    d = dm.to_device(host)
    r = d[0, 0]
    back = r.copy_to_host()
    assert type(back) is np.void
    assert back.tobytes() == host[0, 0].tobytes()
    into = np.zeros((), RECORD)
    assert r.copy_to_host(into).tobytes() == into.tobytes() == host[0, 0].tobytes()
    r.copy_to_device(host[1, 1])
    assert d[0, 0].copy_to_host().tobytes() == host[1, 1].tobytes()
    d[0, 1] = host[1, 2]
    d[0, 2] = (1, (2, 3.0), np.ones((2, 3)), b"t")
    d[1] = d[0, 1]
    host[0, 0], host[0, 1] = host[1, 1], host[1, 2]
    host[0, 2] = (1, (2, 3.0), np.ones((2, 3)), b"t")
    host[1] = host[0, 1]
    np.testing.assert_array_equal(d.copy_to_host(), host)


def test_a_record_copies_from_a_record_on_the_device():
    d = dm.to_device(records())
    d[0, 0].copy_to_device(d[1, 2])
    assert d[0, 0]["id"] == 5


@pytest.mark.parametrize("name", ["nope", "", "ID"])
def test_unknown_fields_are_refused_with_the_known_ones(name):
    d = dm.to_device(records())
    for thing in (d, d[0, 0]):
        with pytest.raises(dm.LayoutError, match=rf"no field '{name}'.*'id', 'inner', 'grid', 'name'"):
            thing[name]
        with pytest.raises(dm.LayoutError, match=f"no field '{name}'"):
            thing[name] = 1


def test_fields_of_an_array_without_fields():
    with pytest.raises(dm.LayoutError, match=r"no field 'x' in dtype int32: it has no fields"):
        dm.to_device(HOST)["x"]


def test_several_fields_at_once_are_refused():
    with pytest.raises(dm.LayoutError, match=r"not list: take one field at a time, d\['name'\]$"):
        dm.to_device(records())[["id", "name"]]


def test_freeing_a_record_frees_its_array():
    d = dm.to_device(records())
    r = d[0, 0]
    r.free()
    with pytest.raises(dm.ClosedError, match="freed"):
        r["id"]
    with pytest.raises(dm.ClosedError):
        d.copy_to_host()
