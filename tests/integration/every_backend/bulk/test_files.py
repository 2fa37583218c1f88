"""Files to device arrays and back: every .npy file and raw ones, through a few small slots, in order, and whole or not at all."""

from __future__ import annotations

import errno
import gc
import os
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from waits import blocked, patience, together

import devmem as dm
from devmem import plugins
from devmem._core.base.array_view import ArrayView
from devmem._core.bulk.files import disk, npy
from devmem._core.copy.staging import Download
from devmem._core.copy.submit import Submitter
from devmem.adapters.kvikio import KvikIO

SLOT, SLOTS = 1024, 3
DATA = np.random.default_rng(1).integers(0, 256, (12, 20, 30), np.uint8).view("i2")
RECORDS = np.zeros(300, [("a", "i4"), ("b", "f8", (2,)), ("c", "S3")])
RECORDS["a"] = np.arange(300)

ARRAYS = {
    "one axis": DATA.ravel(),
    "three axes": DATA,
    "Fortran": np.asfortranarray(DATA),
    "no axes": np.array(3.5),
    "nothing": np.zeros((0, 4)),
    "nothing, Fortran": np.zeros((3, 0), order="F"),
    "one": np.ones((1, 1, 1)),
    "records": RECORDS,
    "names beyond Latin": np.ones(400, [("\N{SNOWMAN}", "i4"), ("b", "f2")]),
    "dates": np.arange(500).astype("M8[s]"),
    "swapped": np.arange(500, dtype=">i4"),
    "text": np.array(["abc", "de"] * 300),
    "small": np.arange(5, dtype="u1"),
}


#: Of tests of what a library does that moves files by itself.
by_itself = pytest.mark.races("files go through the driver's calls, where races are looked for")


@pytest.fixture(autouse=True, params=["slots", pytest.param("direct", marks=by_itself)])
def staged(request, with_settings, need_kind, device, monkeypatch):
    """Everything from 100 bytes on passes through a few small slots; or past them, where a backend moves files by itself."""
    need_kind("pinned")
    files_by(request.param, device, monkeypatch)
    with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(SLOT), STAGING_SLOTS=str(SLOTS), STAGING_THREADS="2")
    return request.param


def files_by(way, device, monkeypatch):
    """Let files pass through slots or past them."""
    if way == "slots":
        monkeypatch.setitem(plugins.registry.files, device.backend, None)
        return
    found = plugins.registry.direct_files(device.backend)
    if found is None or found.unavailable():
        pytest.skip(f"files pass through slots on {device.backend} devices")


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes("A") == expected.tobytes("A")
    assert found.flags.f_contiguous == expected.flags.f_contiguous


def whole_ring():
    ring = dm.current_device().opened().ring
    assert set(ring.free_slots()) == set(ring.made)


def left(folder: Path):
    return sorted(each.name for each in folder.iterdir())


# -- .npy --------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Stored array in format:UserWarning")
@pytest.mark.parametrize("kind", ARRAYS)
def test_npy_there_and_back(kind, tmp_path):
    """As NumPy writes and reads it, byte for byte where NumPy has one form only."""
    array = ARRAYS[kind]
    np.save(tmp_path / "a.npy", array)
    there = dm.load(tmp_path / "a.npy")
    same(there.copy_to_host(), array)
    dm.save(there, tmp_path / "b.npy")
    same(np.load(tmp_path / "b.npy"), array)
    if kind != "names beyond Latin":
        assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    same(dm.load(tmp_path / "b.npy").copy_to_host(), array)
    whole_ring()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header(version, tmp_path):
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, DATA, version)
    same(dm.load(tmp_path / "a.npy").copy_to_host(), DATA)


def test_a_header_that_is_long(tmp_path):
    many = np.zeros(3, [(f"name{at:04}" * 20, "u1") for at in range(50)])
    np.save(tmp_path / "a.npy", many)
    same(dm.load(tmp_path / "a.npy").copy_to_host(), many)
    long = np.zeros(3, [(f"name{at:04}" * 200, "u1") for at in range(50)])
    dm.save(dm.to_device(long), tmp_path / "b.npy")
    with (tmp_path / "b.npy").open("rb") as file:
        assert np.lib.format.read_magic(file) == (2, 0)
    same(np.load(tmp_path / "b.npy", max_header_size=100_000), long)


def test_several_in_one_file(tmp_path):
    with (tmp_path / "two").open("wb") as file:
        np.save(file, DATA)
        second = file.tell()
        np.save(file, RECORDS)
    same(dm.load(tmp_path / "two").copy_to_host(), DATA)
    same(dm.load(tmp_path / "two", offset=second).copy_to_host(), RECORDS)


def test_paths_are_taken_as_they_are(tmp_path):
    there = dm.to_device(DATA)
    for path in (str(tmp_path / "a"), os.fsencode(tmp_path / "b"), tmp_path / "c.npy"):
        dm.save(there, path)
        same(dm.load(path).copy_to_host(), DATA)
    assert left(tmp_path) == ["a", "b", "c.npy"]
    for wrong in (3, None, (tmp_path / "a").open("rb")):
        with pytest.raises(TypeError, match="by its path"):
            dm.load(wrong)
        with pytest.raises(TypeError, match="by its path"):
            dm.save(there, wrong)
    wrong.close()


@pytest.mark.parametrize(
    "layout",
    [np.s_[::2, 1:], np.s_[..., ::3], np.s_[:, :, 3:10], np.s_[::-1, :, ::-2], np.s_[:, None, :, :, None], np.s_[:, 3]],
    ids=str,
)
@pytest.mark.parametrize("turned", [False, True])
def test_layouts_with_gaps(layout, turned, tmp_path):
    host = DATA.transpose(1, 2, 0) if turned else DATA
    array = dm.to_device(DATA)
    view = (array.transpose(1, 2, 0) if turned else array)[layout]
    dm.save(view, tmp_path / "a.npy")
    assert np.array_equal(np.load(tmp_path / "a.npy"), host[layout])
    whole_ring()


def test_managed_and_mapped_memory(need_kind, tmp_path):
    for kind in ("managed", "mapped"):
        need_kind(kind)
        array = getattr(dm, f"{kind}_array")(900, "i4")
        array[...] = np.arange(900)
        dm.save(array, tmp_path / "a.npy")
        assert np.array_equal(np.load(tmp_path / "a.npy"), np.arange(900))


def test_host_arrays_are_numpys(tmp_path):
    with pytest.raises(TypeError, match=r"numpy\.save"):
        dm.save(DATA, tmp_path / "a.npy")
    assert left(tmp_path) == []


# -- raw files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 4096])
def test_raw_files_are_loaded_at_an_offset(offset, tmp_path):
    (tmp_path / "raw").write_bytes(b"x" * offset + DATA.tobytes() + b"behind")
    there = dm.load(tmp_path / "raw", dtype="i2", shape=DATA.shape, offset=offset)
    same(there.copy_to_host(), DATA)
    same(dm.load(tmp_path / "raw", dtype="u1", shape=3, offset=offset).copy_to_host(), DATA.view("u1").ravel()[:3])
    assert dm.load(tmp_path / "raw", dtype="f8", shape=(0, 3), offset=offset).shape == (0, 3)


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        (b"PAR1\x15\x04", r"a Parquet file.*pyarrow.*load-data\.md"),
        (b"ARROW1\0\0", r"an Arrow file.*pyarrow.*load-data\.md"),
        (b"\x89HDF\r\n\x1a\n", r"an HDF5 file.*h5py"),
        (b"PK\x03\x04" + bytes(22) + b"\x10\0\x12\0archive/data.pkl", r"a PyTorch file.*torch\.load.*\.safetensors"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", r"a PyTorch file.*torch\.load.*\.safetensors"),
    ],
)
def test_the_file_of_another_library_is_named(begin, told, tmp_path):
    (tmp_path / "data").write_bytes(begin + bytes(1000))
    with pytest.raises(dm.LayoutError, match=f"data: {told}"):
        dm.load(tmp_path / "data")


def test_what_is_said_wrongly(tmp_path):
    raw, npy = tmp_path / "raw", tmp_path / "a.npy"
    raw.write_bytes(DATA.tobytes())
    np.save(npy, DATA)
    np.savez(tmp_path / "a.npz", DATA)
    (tmp_path / "a.npz").rename(tmp_path / "a.zip")
    np.save(tmp_path / "objects.npy", np.array([None, 3]), allow_pickle=True)
    for arguments, told in [
        ({"path": raw}, "no .npy file"),
        ({"path": raw, "dtype": "i2"}, "without shape="),
        ({"path": raw, "shape": 3}, "without dtype="),
        ({"path": raw, "dtype": "O", "shape": 3}, "Python objects"),
        ({"path": raw, "dtype": "i2", "shape": -3}, "negative"),
        ({"path": raw, "dtype": "i2", "shape": 3, "offset": -1}, "offset=-1"),
        ({"path": raw, "dtype": "i2", "shape": 3, "offset": 2**70}, rf"offset={2**70}.*raw has {DATA.nbytes}"),
        ({"path": npy, "offset": 2**70}, rf"offset={2**70}.*a.npy has {DATA.nbytes + 128}"),
        ({"path": npy, "offset": DATA.nbytes + 128}, f"nothing is there from offset {DATA.nbytes + 128} on"),
        ({"path": npy, "offset": 2**63}, rf"offset={2**63}"),
        ({"path": raw, "dtype": "i2", "shape": (1 << 40, 1 << 40)}, "does not fit"),
        ({"path": npy, "dtype": "i2", "shape": 3}, "by itself"),
        ({"path": tmp_path / "a.zip"}, "zip archive"),
        ({"path": tmp_path / "objects.npy"}, "Python objects"),
    ]:
        with pytest.raises(dm.LayoutError, match=told):
            dm.load(**arguments)
    raw.write_bytes(b"")
    with pytest.raises(dm.LayoutError, match="raw: nothing is there, the file is empty"):
        dm.load(raw)
    for damage in (
        b"\x93NUMPY\x09\x00",
        b"\x93NUMPY\x01\x00\x06\x00{'a':}",
        b"\x93NUMPY\x03\x00\xff\xff\xff\xff",
        b"\x93NUM",
    ):
        raw.write_bytes(damage)
        with pytest.raises(dm.LayoutError, match="raw"):
            dm.load(raw)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such file here")
def test_offsets_into_what_has_no_length():
    assert not dm.load("/dev/zero", dtype="i4", shape=300, offset=4096).copy_to_host().any()
    for offset in (2**63 - 1, 2**63, 2**70):
        with pytest.raises(dm.LayoutError, match=str(offset)):
            dm.load("/dev/zero", dtype="i4", shape=300, offset=offset)


# -- into an array that is there ---------------------------------------------------------------------------------------

TARGETS = {
    "C": lambda: dm.device_array(DATA.shape, "i2"),
    "Fortran": lambda: dm.device_array(DATA.shape, "i2", order="F"),
    "axes": lambda: dm.device_array((20, 15, 12), "i2").transpose(2, 0, 1),
    "gaps": lambda: dm.zeros((12, 40, 15), "i2")[:, ::2],
    "reversed": lambda: dm.device_array(DATA.shape, "i2")[::-1],
}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", ["C", "Fortran", "raw"])
@pytest.mark.parametrize("layout", TARGETS)
def test_a_file_is_loaded_into_an_array(layout, kind, named, tmp_path):
    if kind == "raw":
        (tmp_path / "a").write_bytes(b"before" + DATA.tobytes())
        says = {"dtype": "i2", "shape": DATA.shape, "offset": 6}
    else:
        np.save(tmp_path / "a.npy", np.asarray(DATA, order=kind[0]))
        (tmp_path / "a.npy").rename(tmp_path / "a")
        says = {}
    target, stream = TARGETS[layout](), dm.stream() if named else 0
    assert dm.load(tmp_path / "a", to=target, stream=stream, **says) is target
    assert np.array_equal(target.bind(stream).copy_to_host() if named else target.copy_to_host(), DATA)
    whole_ring()


def test_into_an_array_nothing_else_is_written(tmp_path):
    np.save(tmp_path / "a.npy", DATA)
    whole = dm.full((12, 40, 15), 7, "i2")
    dm.load(tmp_path / "a.npy", to=whole[:, ::2])
    assert (whole[:, 1::2].copy_to_host() == 7).all()


def test_a_file_is_loaded_into_a_record(tmp_path):
    np.save(tmp_path / "a.npy", RECORDS[5:6].reshape(()))
    record = dm.to_device(RECORDS)[0]
    assert dm.load(tmp_path / "a.npy", to=record) is record
    assert record["a"] == 5


def test_into_an_array_that_does_not_fit(tmp_path, second):
    np.save(tmp_path / "a.npy", DATA)
    for target, told in [
        (dm.zeros(DATA.shape, "i4"), r"load\(to=\): .*dtype"),
        (dm.zeros(DATA.shape[1:], "i2"), r"load\(to=\): .*shape"),
    ]:
        with pytest.raises(dm.LayoutError, match=told):
            dm.load(tmp_path / "a.npy", to=target)
    with pytest.raises(TypeError, match="ndarray"):
        dm.load(tmp_path / "a.npy", to=np.zeros_like(DATA))
    target = dm.zeros(DATA.shape, "i2")
    with pytest.raises(dm.LayoutError, match="leave one of them out"):
        dm.load(tmp_path / "a.npy", to=target, device=second)
    target.free()
    with pytest.raises(dm.ClosedError):
        dm.load(tmp_path / "a.npy", to=target)


def test_not_into_read_only_memory(tmp_path, need):
    need("mapped", "host_register")
    np.save(tmp_path / "a.npy", DATA)
    fixed = np.zeros_like(DATA)
    fixed.flags.writeable = False
    with dm.mapped(fixed) as there, pytest.raises(dm.LayoutError, match="read-only"):
        dm.load(tmp_path / "a.npy", to=there)
    assert not fixed.any()


def test_into_an_array_in_bounded_memory(with_settings, tmp_path):
    with_settings(STAGING_SLOT_BYTES=str(64 * SLOT))
    large = np.random.default_rng(2).integers(0, 256, 16 << 20, np.uint8).reshape(256, 256, 256)
    np.save(tmp_path / "a.npy", large)
    target = dm.zeros(large.shape, "u1").transpose(1, 2, 0)
    dm.to_device(DATA)  # what is made once is made
    tracemalloc.start()
    try:
        dm.load(tmp_path / "a.npy", to=target)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1 << 20, "a host array held much of the file"
    assert np.array_equal(target.copy_to_host(), large)


@pytest.mark.parametrize("cut", [1, 700, DATA.nbytes - 1, DATA.nbytes])
def test_a_file_that_is_cut_short(cut, tmp_path, tidy):
    np.save(tmp_path / "a.npy", DATA)
    os.truncate(tmp_path / "a.npy", 128 + DATA.nbytes - cut)
    with pytest.raises(dm.LayoutError, match=f"{DATA.nbytes - cut} bytes found .* {DATA.nbytes} expected") as told:
        dm.load(tmp_path / "a.npy")
    assert "a.npy" in str(told.value)


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="no reads at a position here")
def test_a_file_that_shrinks_while_it_is_read(staged, tmp_path, monkeypatch, tidy):
    np.save(tmp_path / "a.npy", DATA)
    sound, late = os.preadv, 128 + (4 * SLOT if staged == "slots" else 0)

    def read(file, views, offset):
        if offset >= late:
            os.truncate(tmp_path / "a.npy", offset + 10)
            monkeypatch.setattr(os, "preadv", sound)
        return sound(file, views, offset)

    monkeypatch.setattr(os, "preadv", read)
    dm.synchronize()
    dm.trim()
    live = dm.memory_info().live
    with pytest.raises(dm.LayoutError, match="10 bytes found") as told:
        dm.load(tmp_path / "a.npy")
    assert dm.memory_info().live <= live, f"the array lives as long as {told!r}"
    whole_ring()


def test_without_reads_at_a_position(tmp_path, monkeypatch):
    """As where the system has none."""
    for name in ("preadv", "pwrite", "posix_fallocate"):
        monkeypatch.delattr(os, name, raising=False)
    dm.save(dm.to_device(DATA), tmp_path / "a.npy")
    same(dm.load(tmp_path / "a.npy").copy_to_host(), DATA)
    dm.save(dm.to_device(DATA).transpose(2, 0, 1), tmp_path / "a.npy")
    assert np.array_equal(np.load(tmp_path / "a.npy"), DATA.transpose(2, 0, 1))


# -- errors of the system ----------------------------------------------------------------------------------------------


def test_errors_name_the_file(tmp_path):
    there = dm.to_device(DATA)
    for wrong, kind in ((tmp_path / "no" / "a.npy", FileNotFoundError), (tmp_path, IsADirectoryError)):
        for call in (lambda path: dm.save(there, path), dm.load):
            with pytest.raises(kind) as told:
                call(wrong)
            assert told.value.filename == str(wrong)
    assert left(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such files here")
@pytest.mark.parametrize("raw", [{}, {"dtype": "u1", "shape": 100}])
def test_a_pipe_is_not_loaded(tmp_path, raw):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)  # or to open the other one would wait
    try:
        with pytest.raises(OSError, match="from any place") as told:
            dm.load(path, **raw)
    finally:
        os.close(end)
    assert (told.value.errno, told.value.filename) == (errno.ESPIPE, str(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such files here")
def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for array in (dm.to_device(DATA), dm.to_device(DATA)[:, ::2]):
        with pytest.raises(OSError, match="regular") as told:
            dm.save(array, tmp_path / "pipe")
        assert (told.value.errno, told.value.filename) == (errno.EINVAL, str(tmp_path / "pipe"))
    assert left(tmp_path) == ["pipe"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_full_disk_leaves_what_was_there(turned, staged, tmp_path, monkeypatch, tidy):
    (tmp_path / "a.npy").write_bytes(b"before")
    array = dm.to_device(DATA)
    full, written, fetched = OSError(errno.ENOSPC, "No space left on device"), [], [0]
    copy = Submitter.copy_rows

    def counted(submitter, rows, *others):
        fetched[0] += rows.width * rows.height
        return copy(submitter, rows, *others)

    monkeypatch.setattr(Submitter, "copy_rows", counted)

    def refuse(*arguments):
        written.append(arguments)
        if len(written) > (0 if turned else 4 if staged == "slots" else 1):  # the first one writes the header
            raise full
        return sound(*arguments)

    sound = os.posix_fallocate if turned else os.pwrite
    monkeypatch.setattr(os, "posix_fallocate" if turned else "pwrite", refuse)
    with pytest.raises(OSError, match="No space left") as told:
        dm.save(array.transpose(1, 2, 0) if turned else array, tmp_path / "a.npy")
    assert (told.value.errno, told.value.filename) == (errno.ENOSPC, str(tmp_path / "a.npy"))
    assert fetched[0] < DATA.nbytes, "it went on fetching"
    monkeypatch.undo()
    assert left(tmp_path) == ["a.npy"]
    assert (tmp_path / "a.npy").read_bytes() == b"before"
    dm.synchronize()
    whole_ring()


def test_what_another_copy_meets_in_a_slot_is_not_its_error(tmp_path, monkeypatch, hold, need):
    """A block of a file whose write fails is taken out by the next copy that needs the slot: the error is the file's."""
    array = dm.to_device(DATA.ravel()[: SLOTS * SLOT // 2])
    context, stream = dm.current_device().opened(), dm.stream()
    dm.synchronize()
    with disk.replacing(str(tmp_path / "a.npy")) as (file, _), dm.current_device().entered():
        to_file = Download(
            context.ring, context.copies.submitter, lambda block, part: file.write(part, block[0].start or 0)
        )
        need("hold")
        with hold(stream):
            to_file.start(ArrayView(array.ptr, (array.nbytes,), np.dtype("u1")), stream)
        stream.synchronize()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
            assert np.array_equal(dm.to_device(DATA).copy_to_host(), DATA)
        with pytest.raises(OSError, match="broken"):
            to_file.finish()
    whole_ring()


def test_links_and_permissions_stay(tmp_path):
    target, link = tmp_path / "target.npy", tmp_path / "link.npy"
    target.write_bytes(b"before")
    target.chmod(0o640)
    link.symlink_to(target)
    dm.save(dm.to_device(DATA), link)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    same(np.load(target), DATA)
    assert left(tmp_path) == ["link.npy", "target.npy"]


@pytest.mark.parametrize(
    "method", ["copy", "event_record", "event_synchronize", "event_query", "alloc", "event_create"]
)
@pytest.mark.parametrize("way", ["load", "load into", "load turned", "save"])
def test_failures_of_the_driver(recorded, method, way, tmp_path):
    """Each call fails in turn: the error comes out, no file is left half done, nothing is lost, and the ring is whole."""
    np.save(tmp_path / "a.npy", DATA)
    array = dm.to_device(DATA)
    room = TARGETS["C" if way == "load into" else "axes"]()
    dm.synchronize()
    context = dm.current_device().opened()
    told = 0
    for nth in range(1, 30):
        with dm.current_device().entered():
            context.ring.trim()
        before = dm.memory_info().live
        recorded.fail_at(nth, method)
        try:
            if way == "load":
                same(dm.load(tmp_path / "a.npy").copy_to_host(), DATA)
            elif way == "save":
                dm.save(array, tmp_path / "b.npy")
            else:
                assert np.array_equal(dm.load(tmp_path / "a.npy", to=room).copy_to_host(), DATA)
        except dm.BackendError:
            told += 1
            assert left(tmp_path) == ["a.npy"]
        recorded.disarm()
        (tmp_path / "b.npy").unlink(missing_ok=True)
        gc.collect()  # an error and the download that it ended know each other
        dm.synchronize()
        dm.trim()
        assert dm.memory_info().live == before
        assert all(slot.holder is None or slot.holder.in_flight for slot in context.ring.made)
        if not recorded.injected:
            break
    same(dm.load(tmp_path / "a.npy").copy_to_host(), DATA)


# -- bounded, and in order ---------------------------------------------------------------------------------------------


def test_in_bounded_memory(staged, with_settings, tmp_path):
    """However large the file is, it passes through the slots or past them, and no host array holds it."""
    with_settings(STAGING_SLOT_BYTES=str(64 * SLOT))
    large = np.random.default_rng(2).integers(0, 256, 16 << 20, np.uint8)
    np.save(tmp_path / "a.npy", large)
    dm.to_device(DATA)  # what is made once is made
    tracemalloc.start()
    try:
        there = dm.load(tmp_path / "a.npy")
        dm.save(there, tmp_path / "b.npy")
        dm.save(there.reshape(256, 256, 256).transpose(1, 2, 0), tmp_path / "c.npy")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1 << 20, "a host array held much of the file"
    ring = dm.current_device().opened().ring
    assert 0 < len(ring.made) <= SLOTS
    assert ring.slot_bytes == 64 * SLOT
    assert np.array_equal(np.load(tmp_path / "b.npy"), large)
    assert np.array_equal(np.load(tmp_path / "c.npy"), large.reshape(256, 256, 256).transpose(1, 2, 0))
    stats, way = dm.transfer_stats(), "file" if staged == "slots" else "file direct"
    assert stats[f"h2d {way}"]["bytes"] == stats[f"d2h {way}"]["bytes"] == large.nbytes


def test_without_slots_it_is_bounded_too(with_settings, tmp_path):
    with_settings(STAGING_SLOTS="0", STAGING_SLOT_BYTES=str(64 * SLOT))
    large = np.random.default_rng(2).integers(0, 256, 16 << 20, np.uint8)
    np.save(tmp_path / "a.npy", large)
    dm.to_device(DATA)
    tracemalloc.start()
    try:
        there = dm.load(tmp_path / "a.npy")
        dm.save(there, tmp_path / "b.npy")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < large.nbytes // 4
    assert np.array_equal(np.load(tmp_path / "b.npy"), large)


@pytest.mark.parametrize("slots", ["0", str(SLOTS)])
@pytest.mark.parametrize("key", [np.s_[::2, ::2, ::8], np.s_[:, ::2, ::4], np.s_[::-2, :, 1::2]])
def test_scattered_elements_are_saved_in_bounded_memory(slots, key, with_settings, tmp_path):
    with_settings(STAGING_SLOTS=slots, STAGING_SLOT_BYTES=str(64 * SLOT))
    large = np.random.default_rng(3).integers(0, 256, (128, 256, 512), np.uint8)
    there = dm.to_device(large)
    tracemalloc.start()
    try:
        dm.save(there[key], tmp_path / "a.npy")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 16 * 64 * SLOT, "a host array held all of it, or what lies between"
    same(np.load(tmp_path / "a.npy"), large[key])


def test_loading_is_ordered_on_its_stream(need, hold, tmp_path):
    need("hold")
    np.save(tmp_path / "a.npy", DATA.ravel()[: SLOTS * SLOT // 2])
    small = np.load(tmp_path / "a.npy")
    stream = dm.stream(non_blocking=True)
    warm = dm.load(tmp_path / "a.npy", stream=stream)
    assert warm.stream is stream
    after = dm.zeros(small.shape, "i2")
    dm.synchronize()
    with hold(stream) as latch:
        there = dm.load(tmp_path / "a.npy", stream=stream)
        (tmp_path / "a.npy").write_bytes(b"it was read by now")
        after.copy_to_device(there, stream=stream)
        there.fill(7, stream=stream)
        assert not stream.query()
        latch.release()
    stream.synchronize()
    assert np.array_equal(after.copy_to_host(), small)
    assert np.all(there.copy_to_host() == 7)


@pytest.mark.parametrize("own", [True, False], ids=["its own", "one that the default stream comes after"])
def test_saving_waits_for_the_arrays_stream(own, need, hold, tmp_path, in_background):
    need("hold")
    stream = dm.stream(non_blocking=own)
    array = dm.to_device(DATA, stream=stream if own else 0)
    dm.save(array, tmp_path / "a.npy")
    dm.synchronize()
    with hold(stream) as latch:
        array.fill(5, stream=stream)
        done = in_background(lambda: dm.save(array, tmp_path / "a.npy"))
        blocked(done, "it was written before the stream came to it")
        assert np.array_equal(np.load(tmp_path / "a.npy"), DATA), "a reader sees the file that was there"
        latch.release()
        assert done.wait(patience())
    assert not done.errors
    assert np.all(np.load(tmp_path / "a.npy") == 5)


def test_threads_that_load_save_and_copy(device, tmp_path):
    """They share the slots, and take out each other's blocks."""

    def work(number):
        rng = np.random.default_rng(number)
        with dm.use_backend(device.backend):
            for _ in range(12):
                sent = rng.integers(0, 256, int(rng.integers(100, 9000)), np.uint8)
                array = dm.to_device(sent)
                if number % 2:
                    dm.save(array, tmp_path / f"{number}.npy")
                    assert np.array_equal(np.load(tmp_path / f"{number}.npy"), sent)
                    array = dm.load(tmp_path / f"{number}.npy")
                assert np.array_equal(array.copy_to_host(), sent)

    together(*(partial(work, number) for number in range(4)))
    assert left(tmp_path) == ["1.npy", "3.npy"]
    whole_ring()


def test_a_capturing_stream_is_refused(device, seems_to_capture, tmp_path):
    np.save(tmp_path / "a.npy", DATA)
    stream = dm.stream()
    array = dm.to_device(DATA, stream=stream)
    with seems_to_capture(stream):
        for call in (lambda: dm.load(tmp_path / "a.npy", stream=stream), lambda: dm.save(array, tmp_path / "b.npy")):
            with pytest.raises(dm.UnsupportedError, match="captur"):
                call()
    assert left(tmp_path) == ["a.npy"]


def test_on_another_device(second, tmp_path):
    np.save(tmp_path / "a.npy", DATA)
    there = dm.load(tmp_path / "a.npy", device=second)
    assert there.device == second
    dm.save(there, tmp_path / "b.npy")
    same(np.load(tmp_path / "b.npy"), DATA)


# -- past the host's memory --------------------------------------------------------------------------------------------


class Direct:
    """A library that moves bytes between files and device memory by itself: here, by the driver."""

    def __init__(self, device, reason=None, short=0):
        self.device, self.reason, self.short = device, reason, short
        self.calls = []

    def unavailable(self):
        return self.reason

    def read(self, path, offset, ptr, nbytes):
        data = np.fromfile(path, "u1", nbytes, offset=offset)
        self._copy(ptr, data.ctypes.data, nbytes, dm.spi.types.CopyKind.H2D)
        return nbytes - self.short

    def write(self, path, offset, ptr, nbytes):
        data = np.empty(nbytes, "u1")
        self._copy(data.ctypes.data, ptr, nbytes, dm.spi.types.CopyKind.D2H)
        with Path(path).open("r+b") as file:
            file.seek(offset)
            file.write(data.tobytes())
        return nbytes - self.short

    def _copy(self, dst, src, nbytes, kind):
        self.calls.append((kind, nbytes))
        self.device.driver().copy(dst, src, nbytes, kind, dm.legacy_default_stream().handle, blocking=True)


@by_itself
@pytest.mark.parametrize("reason", [None, "not here"])
def test_a_direct_reader_is_used_where_it_can_be(reason, device, monkeypatch, tmp_path):
    direct = Direct(device, reason)
    monkeypatch.setitem(plugins.registry.files, device.backend, direct)
    monkeypatch.setitem(plugins.DIRECT_FILES, device.backend, "")
    np.save(tmp_path / "a.npy", DATA)
    there, stream = (
        dm.load(tmp_path / "a.npy"),
        dm.stream(),
    )  # a load on a stream would be direct where that is idle at once
    there.fill(3, stream=stream)
    dm.save(there, tmp_path / "b.npy")
    assert np.array_equal(np.load(tmp_path / "b.npy"), np.full_like(DATA, 3))
    same(dm.load(tmp_path / "a.npy").copy_to_host(), DATA)
    assert [nbytes for _, nbytes in direct.calls] == ([] if reason else [DATA.nbytes] * 3)
    assert ("h2d file direct" in dm.transfer_stats()) is (reason is None)


@by_itself
def test_a_direct_library_that_stops_short(device, monkeypatch, tmp_path, tidy):
    monkeypatch.setitem(plugins.registry.files, device.backend, Direct(device, short=5))
    monkeypatch.setitem(plugins.DIRECT_FILES, device.backend, "")
    np.save(tmp_path / "a.npy", DATA)
    with pytest.raises(dm.LayoutError, match=rf"a\.npy: {DATA.nbytes - 5} bytes found .* {DATA.nbytes} expected"):
        dm.load(tmp_path / "a.npy")
    there = dm.to_device(DATA)
    with pytest.raises(OSError, match=r"b\.npy: \d+ of \d+ bytes"):
        dm.save(there, tmp_path / "b.npy")
    assert left(tmp_path) == ["a.npy"]


@by_itself
def test_with_kvikio_itself(device, monkeypatch, tmp_path):
    """Where it is installed; without GPUDirect Storage it moves the bytes in its own compatibility mode."""
    pytest.importorskip("kvikio")
    library = plugins.Registry().direct_files(device.backend)
    if not isinstance(library, KvikIO):
        pytest.skip(f"KvikIO moves no files to the memory of {device.backend} devices")
    library.unavailable()
    monkeypatch.setitem(plugins.registry.files, device.backend, library)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "_reason", None)
        np.save(tmp_path / "a.npy", DATA)
        there = dm.load(tmp_path / "a.npy")
        same(there.copy_to_host(), DATA)
        dm.save(there, tmp_path / "b.npy")
        same(np.load(tmp_path / "b.npy"), DATA)
        assert {"h2d file direct", "d2h file direct"} <= dm.transfer_stats().keys()
        with pytest.raises(OSError, match="KvikIO"):
            library.read(str(tmp_path / "nothing"), 0, there.ptr, 10)


def test_loading_comes_after_the_default_stream(need, hold, tmp_path):
    """A stream that waits for the default one may have no work of its own."""
    need("hold")
    small = DATA.ravel()[: SLOTS * SLOT // 2]
    np.save(tmp_path / "a.npy", small)
    array, stream = dm.to_device(small), dm.stream()
    dm.load(tmp_path / "a.npy", to=array, stream=stream)
    array.fill(3, stream=dm.default_stream())
    dm.synchronize()
    with hold(dm.default_stream()) as latch:
        array.fill(7, stream=dm.default_stream())
        dm.load(tmp_path / "a.npy", to=array, stream=stream)
        latch.release()
    dm.synchronize()
    same(array.copy_to_host(), small)


def test_the_file_that_was_opened_is_read_to_its_end(tmp_path, monkeypatch):
    """Whole, although another one takes its place after its header was read."""
    np.save(tmp_path / "a.npy", DATA)
    read_header = npy.read_header

    def replaced(*args):
        found = read_header(*args)
        np.save(tmp_path / "b.npy", np.full_like(DATA, 5))
        (tmp_path / "b.npy").replace(tmp_path / "a.npy")
        return found

    monkeypatch.setattr(npy, "read_header", replaced)
    same(dm.load(tmp_path / "a.npy").copy_to_host(), DATA)


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("turned", [False, True])
def test_a_file_that_is_not_to_be_written_is_replaced(turned, tmp_path):
    """Its folder may be written to: that is what replacing asks for; the new file has its permissions."""
    array = dm.to_device(DATA)[:, ::-1] if turned else dm.to_device(DATA)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    os.chown(tmp_path, 65534, 65534)
    os.seteuid(65534)
    try:
        (tmp_path / "a.npy").write_bytes(b"before")
        (tmp_path / "a.npy").chmod(0o440)
        dm.save(array, tmp_path / "a.npy")
    finally:
        os.seteuid(0)
    assert (tmp_path / "a.npy").stat().st_mode & 0o777 == 0o440
    same(np.load(tmp_path / "a.npy"), array.copy_to_host())
