from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from devmem.cli.array_files import Unreadable, sources
from devmem.cli.bitwise_compare import first_difference

ARRAYS = {
    "c": np.arange(24, dtype="<i4").reshape(4, 6),
    "fortran": np.asfortranarray(np.arange(24, dtype=">f8").reshape(4, 6)),
    "record": np.zeros(3, [("a", "i1"), ("b", "f8")]),
    "scalar": np.float32(2.5),
    "empty": np.empty((0, 3), np.float16),
    "without bytes": np.ndarray((2, 3), "S0"),
    "dates": np.arange("2001-01", "2001-03", dtype="M8[D]"),
}


def load_all(path):
    return {source.name: source.load() for source in sources(path)}


@pytest.mark.parametrize("name", ARRAYS)
def test_npy_files_are_mapped(tmp_path, name):
    path = tmp_path / f"{name}.npy"
    np.save(path, ARRAYS[name])
    array, how = load_all(path)[path.name]
    assert first_difference(np.asarray(ARRAYS[name]), np.asarray(array)) is None
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable
    assert how == "mapped"


@pytest.mark.parametrize(("save", "expected"), [(np.savez, "mapped"), (np.savez_compressed, "read")])
def test_the_members_of_an_npz_file_are_loaded(tmp_path, save, expected):
    path = tmp_path / "all.npz"
    save(path, **ARRAYS)
    loaded = load_all(path)
    assert list(loaded) == [f"all.npz:{name}" for name in ARRAYS]
    for name, array in ARRAYS.items():
        found, how = loaded[f"all.npz:{name}"]
        assert first_difference(np.asarray(array), np.asarray(found)) is None
        if np.asarray(array).nbytes:  # NumPy 1 says of an array without bytes that it is contiguous in both ways
            assert found.flags.f_contiguous == np.asarray(array).flags.f_contiguous
        assert how == expected


def test_a_stored_member_is_a_map_of_the_archive(tmp_path):
    path = tmp_path / "one.npz"
    np.savez(path, x=ARRAYS["c"])
    [(array, _)] = load_all(path).values()
    assert isinstance(array, np.memmap)
    assert str(array.filename) == str(path)


def test_local_extra_fields_are_skipped(tmp_path):
    path = tmp_path / "extra.npz"
    member = zipfile.ZipInfo("x.npy")
    member.extra = b"\x99\x99\x05\x00hello"
    data = io.BytesIO()
    np.save(data, ARRAYS["c"])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, data.getvalue())
    [(array, how)] = load_all(path).values()
    assert how == "mapped"
    assert first_difference(ARRAYS["c"], np.asarray(array)) is None


def test_field_names_in_other_scripts_are_read(tmp_path):
    path = tmp_path / "names.npz"
    array = np.zeros(3, [("größe", "f4"), ("名", "i2")])
    with pytest.warns(UserWarning, match="format 3.0"):
        np.savez(path, x=array)
    [(found, how)] = load_all(path).values()
    assert found.dtype == array.dtype
    assert how == "read"


def test_what_a_file_is_its_first_bytes_say(tmp_path):
    path = tmp_path / "named.wrongly.npz"
    with path.open("wb") as file:
        np.save(file, ARRAYS["c"])
    assert list(load_all(path)) == [path.name]


def write(path, data):
    path.write_bytes(data)
    return path


def saved(array, **options):
    data = io.BytesIO()
    np.save(data, array, **options)
    return data.getvalue()


OBJECTS = saved(np.array([{}], object), allow_pickle=True)


def archive_with(data, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("x.npy", data)
    return buffer.getvalue()


def broken_archive():
    data = bytearray(archive_with(saved(np.arange(1000)), zipfile.ZIP_DEFLATED))
    data[80:120] = bytes(40)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "neither"),
        (b"hello, world", "neither"),
        (b"PK but no archive", "zip"),
        (b"PK\x05\x06" + bytes(18), "without a single"),
        (saved(np.arange(100))[:-8], "."),
        (saved(np.arange(100))[:20], "."),
        (OBJECTS, "[Oo]bject"),
        (archive_with(OBJECTS), "object"),
        (archive_with(OBJECTS, zipfile.ZIP_DEFLATED), "[Oo]bject"),
        (archive_with(saved(np.arange(100))[:-8]), "ends before"),
        (archive_with(b"no array"), "."),
        (broken_archive(), "."),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, data, reason):
    path = write(tmp_path / "bad.npy", data)
    with pytest.raises(Unreadable, match=reason) as caught:
        load_all(path)
    assert str(path) in str(caught.value)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(Unreadable, match="No such file"):
        load_all(tmp_path / "none.npy")
    with pytest.raises(Unreadable, match="directory"):
        load_all(tmp_path)
