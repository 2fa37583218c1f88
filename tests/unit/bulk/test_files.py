"""Headers of .npy files, files that are there whole or not at all, and the adapter of KvikIO over a stand-in for it."""

from __future__ import annotations

import io
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devmem import plugins
from devmem._core.bulk.files import npy
from devmem._core.bulk.files.disk import open_file, replacing
from devmem._core.copy.staging import workers as workers_module
from devmem._core.copy.staging.workers import CopyWorkers
from devmem.adapters.kvikio import KvikIO
from devmem.spi.errors import LayoutError

# -- headers -----------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
SIMPLE = st.sampled_from(["u1", "<i2", ">i4", "f8", "c16", "S3", "U2", "?", "M8[ns]", "V5"])
DTYPES = SIMPLE.map(np.dtype) | st.lists(
    st.tuples(NAMES, SIMPLE), min_size=1, max_size=4, unique_by=lambda f: f[0]
).map(np.dtype)
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@pytest.mark.filterwarnings("ignore:Stored array in format:UserWarning")
@given(DTYPES, SHAPES, st.booleans())
def test_headers_mean_the_same_to_numpy(dtype, shape, fortran):
    array = np.zeros(shape, dtype, order="F" if fortran else "C")
    turned = array.flags.f_contiguous and not array.flags.c_contiguous
    header = npy.make_header(array.dtype, array.shape, turned)
    assert len(header) % 64 == 0
    again = np.load(io.BytesIO(header + array.tobytes("A")))
    assert (again.dtype, again.shape, again.flags.forc) == (array.dtype, array.shape, array.flags.forc)
    assert again.flags.f_contiguous == array.flags.f_contiguous
    theirs = io.BytesIO()
    np.save(theirs, array)
    for content in (header, theirs.getvalue()):
        file = io.BytesIO(b"before" + content)
        file.seek(6)
        found = npy.read_header(file, "a.npy")
        assert (found.dtype, found.shape, found.fortran) == (array.dtype, array.shape, turned)
        assert file.tell() == found.start == 6 + len(content) - (0 if content is header else array.nbytes)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4"])
def test_headers_have_types_of_other_libraries_as_bytes(name):
    """NumPy's text for them may be no type, ``<f1``, and a file with it cannot be read."""
    kind = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    plain = np.dtype(f"V{kind.itemsize}")
    record = {"names": ["a", "b"], "formats": [kind, ("f4", (2,))], "offsets": [3, 8], "itemsize": 24}
    nested = [("c", np.dtype(record)), ("d", kind, (2, 3)), (("title", "e"), kind)]
    for dtype, told in [
        (kind, plain),
        (np.dtype(record), np.dtype(record | {"formats": [plain, ("f4", (2,))]})),
        (
            np.dtype(nested),
            np.dtype(
                [("c", record | {"formats": [plain, ("f4", (2,))]}), ("d", plain, (2, 3)), (("title", "e"), plain)]
            ),
        ),
    ]:
        header = npy.make_header(dtype, (3,), False)
        assert npy.read_header(io.BytesIO(header), "a.npy").dtype == told
        assert np.load(io.BytesIO(header + bytes(3 * dtype.itemsize))).dtype == told


@given(st.binary(max_size=200), st.sampled_from([b"", npy.MAGIC, npy.MAGIC + b"\1\0", npy.MAGIC + b"\3\0"]))
def test_anything_else_is_a_layout_error(noise, begin):
    with pytest.raises(LayoutError, match=r"^some file: "):
        npy.read_header(io.BytesIO(begin + noise), "some file")


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<i4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': 3}",
        "{'descr': ('<i4', (2,)), 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
        "{'shape': (3,)}",
        "{",
        "'text'",
    ],
)
@pytest.mark.parametrize("version", [1, 3])
def test_headers_that_say_nonsense(text, version):
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    with pytest.raises(LayoutError, match="file"):
        npy.read_header(io.BytesIO(npy.MAGIC + bytes((version, 0)) + size + text.encode()), "file")


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_by_several_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(workers_module, "PART", 4096)
    data = np.random.default_rng(0).integers(0, 256, 50_000, np.uint8)
    (tmp_path / "a").write_bytes(b"12345" + data.tobytes())
    workers, parts = CopyWorkers(4), []
    run = workers.run
    monkeypatch.setattr(workers, "run", lambda steps: (parts.append(len(steps)), run(steps)))
    room = np.zeros_like(data)
    try:
        with open_file(str(tmp_path / "a")) as file:
            file.read(room, 5, workers)
    finally:
        workers.close()
    assert parts == [4]
    assert np.array_equal(room, data)


def test_the_parts_of_a_read_fail_together(tmp_path, monkeypatch):
    monkeypatch.setattr(workers_module, "PART", 4096)
    (tmp_path / "a").write_bytes(bytes(9000))
    workers = CopyWorkers(3)
    try:
        with open_file(str(tmp_path / "a")) as file, pytest.raises(LayoutError, match="found from offset"):
            file.read(np.zeros(50_000, "u1"), 0, workers)
    finally:
        workers.close()


def test_a_new_file_is_there_at_the_end(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with replacing(str(path)) as (file, temporary):
        file.write(b"new content", 0)
        assert path.read_bytes() == b"old"
        assert temporary.parent == path.parent
    assert path.read_bytes() == b"new content"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
def test_a_failed_write_leaves_no_file(error, tmp_path):
    path = tmp_path / "a"
    with pytest.raises(error), replacing(str(path)) as (file, _):
        file.write(b"half", 0)
        raise error
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_a_write_is_told_where_its_file_cannot_be_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "unlink", lambda _: (tmp_path / "nothing").stat())
    with pytest.raises(ValueError, match="mine"), replacing(str(tmp_path / "a")):
        raise ValueError("mine")


def test_temporary_names_do_not_collide(tmp_path):
    with replacing(str(tmp_path / "a")) as (one, first), replacing(str(tmp_path / "a")) as (two, second):
        assert first != second
        one.write(b"1", 0)
        two.write(b"2", 0)
    assert (tmp_path / "a").read_bytes() == b"1", "the last to end is what stays"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to the superuser")
def test_a_refused_file_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError) as told, replacing(str(tmp_path / "a")):
        pass
    assert told.value.filename == str(tmp_path / "a")


# -- KvikIO ------------------------------------------------------------------------------------------------------------


class Library:
    """As much of kvikio as the adapter uses, over host memory."""

    def __init__(self):
        self.gds, self.compat, self.calls, self.error = True, False, [], None
        self.module, self.driver, self.defaults = (types.ModuleType(f"kvikio{name}") for name in ("", ".d", ".e"))
        self.module.CuFile = self.open
        self.driver.get = lambda name: {"is_gds_available": self.gds}[name]
        self.defaults.is_compat_mode_preferred = lambda: self.compat

    def open(self, path, flags):
        library = self

        class File:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                library.calls.append("closed")

            def pread(self, buffer, size, offset):
                with Path(path).open("rb") as file:
                    file.seek(offset)
                    return self.moved("pread", file.readinto(memory(buffer)[:size]))

            def pwrite(self, buffer, size, offset):
                with Path(path).open("r+b") as file:
                    file.seek(offset)
                    return self.moved("pwrite", file.write(memory(buffer)[:size].tobytes()))

            def moved(self, verb, count):
                library.calls.append((verb, flags))
                return types.SimpleNamespace(get=lambda: library.get(count))

        return File()

    def get(self, count):
        if self.error is not None:
            raise self.error
        return count


def memory(buffer):
    """What kvikio sees of an argument."""
    interface = buffer.__cuda_array_interface__
    assert interface["typestr"] == "|u1"
    return np.asarray(types.SimpleNamespace(__array_interface__=interface))


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setitem(sys.modules, "kvikio", made.module)
    monkeypatch.setitem(sys.modules, "kvikio.cufile_driver", made.driver)
    monkeypatch.setitem(sys.modules, "kvikio.defaults", made.defaults)
    return made


def test_kvikio_moves_bytes(library, tmp_path):
    data, path = np.arange(100, dtype="u1"), tmp_path / "a"
    path.write_bytes(bytes(200))
    files = KvikIO()
    assert files.unavailable() is None
    assert files.write(str(path), 50, data.ctypes.data, 100) == 100
    back = np.zeros_like(data)
    assert files.read(str(path), 50, back.ctypes.data, 100) == 100
    assert np.array_equal(back, data)
    assert files.read(str(path), 150, back.ctypes.data, 100) == 50, "how many came"
    assert library.calls[:4] == [("pwrite", "r+"), "closed", ("pread", "r"), "closed"]


@pytest.mark.parametrize("error", [RuntimeError("cuFile broke"), ValueError("no such flag")])
def test_its_errors_are_the_systems(library, error, tmp_path):
    (tmp_path / "a").write_bytes(bytes(10))
    library.error = error
    with pytest.raises(OSError, match=str(error)) as told:
        KvikIO().read(str(tmp_path / "a"), 0, np.zeros(10, "u1").ctypes.data, 10)
    assert told.value.filename == str(tmp_path / "a")
    assert library.calls[-1] == "closed"


def test_why_it_is_not_used(library, monkeypatch):
    library.gds = False
    assert "GPUDirect" in KvikIO().unavailable()
    library.compat = True
    assert "POSIX" in KvikIO().unavailable()
    del library.driver.get
    library.compat = False
    assert "AttributeError" in KvikIO().unavailable(), "a version that is too old"
    monkeypatch.setitem(sys.modules, "kvikio.cufile_driver", None)
    files = KvikIO()
    assert "ModuleNotFoundError" in files.unavailable()
    monkeypatch.undo()
    assert "ModuleNotFoundError" in files.unavailable(), "it is found out once"


def test_it_is_named_for_nvidias_devices_only():
    registry = plugins.Registry()
    assert isinstance(registry.direct_files("cuda"), KvikIO)
    assert registry.direct_files("cuda") is registry.direct_files("cuda")
    assert registry.direct_files("roc") is None
