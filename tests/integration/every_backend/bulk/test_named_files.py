"""Files with arrays by name, .safetensors and .npz: read and written as the formats' own libraries do it."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from numpy.lib import format

import devmem as dm
from devmem import plugins

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.usefixtures("tidy")

RNG = np.random.default_rng(3)
ARRAYS = {
    "layer.0.weight": RNG.standard_normal((300, 70)).astype("f4"),
    "layer.0.bias": np.arange(70, dtype="f2"),
    "step": np.array(7, "i8"),
    "mask": np.arange(13) % 3 == 0,
    "nothing": np.zeros((0, 4), "f8"),
    "bytes": RNG.integers(0, 256, 3, np.uint8),
    "half": np.arange(9).astype(ml_dtypes.bfloat16),
    "spectrum": np.arange(4).astype("c8"),
}
PLAIN = {name: array for name, array in ARRAYS.items() if name != "half"}


@pytest.fixture(params=["whole", "staged", "direct"])
def staged(request, with_settings, monkeypatch, need_kind, device):
    """Everything in the small block; or every array of 100 bytes through a few slots, or past them."""
    if request.param == "staged":
        monkeypatch.setitem(plugins.registry.files, device.backend, None)
    if request.param == "direct" and plugins.registry.direct_files(device.backend) is None:
        pytest.skip(f"files pass through slots on {device.backend} devices")
    if request.param != "whole":
        need_kind("pinned")
        with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES="1024", STAGING_SLOTS="3", STAGING_THREADS="2")
        monkeypatch.setattr("devmem._core.bulk.files.named.SMALL", 100)


def same(found, expected):
    assert list(found) == list(expected) or set(found) == set(expected)
    for name, array in expected.items():
        host = found[name].copy_to_host()
        assert host.dtype == array.dtype
        assert host.shape == array.shape
        assert host.tobytes() == array.tobytes(), name


def forged(path, header, data=b"\0" * 64):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


# -- .safetensors ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("staged")
def test_what_the_formats_library_wrote_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(PLAIN, path, {"format": "np"})
    same(dm.load(path), PLAIN)


@pytest.mark.usefixtures("staged")
def test_what_is_written_the_formats_library_reads(tmp_path):
    path = tmp_path / "model.safetensors"
    dm.save({name: dm.to_device(array) for name, array in ARRAYS.items()}, path, metadata={"made by": "é"})
    with safetensors.safe_open(path, "np") as file:
        assert set(file.keys()) == set(ARRAYS)
        assert file.metadata() == {"made by": "é"}
        for name, array in PLAIN.items():
            assert np.array_equal(file.get_tensor(name), array)
        assert file.get_slice("half").get_dtype() == "BF16"
    same(dm.load(path), ARRAYS)


def test_any_layout_is_written_in_c_order(tmp_path):
    path = tmp_path / "model.safetensors"
    host = np.arange(60.0).reshape(3, 4, 5)
    array = dm.to_device(host)
    views = {"T": array.T, "part": array[::2, 1:, ::3], "F": dm.to_device(np.asfortranarray(host[0]))}
    dm.save(views, path)
    found = safetensors.numpy.load_file(path)
    assert np.array_equal(found["T"], host.T)
    assert np.array_equal(found["part"], host[::2, 1:, ::3])
    assert np.array_equal(found["F"], host[0])


def test_every_array_is_aligned(tmp_path):
    path = tmp_path / "model.safetensors"
    dm.save({name: dm.to_device(array) for name, array in ARRAYS.items()}, path)
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    header = json.loads(path.read_bytes()[8 : 8 + length])
    assert (8 + length) % 8 == 0
    for name, entry in header.items():
        assert entry["data_offsets"][0] % ARRAYS[name].itemsize == 0


def test_lazily_each_is_loaded_when_it_is_asked_for(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(PLAIN, path, {"format": "np"})
    before = dm.memory_info().live
    arrays = dm.load(path, lazy=True)
    assert isinstance(arrays, dm.ArrayFile)
    assert (len(arrays), set(arrays), "step" in arrays, "stop" in arrays) == (len(PLAIN), set(PLAIN), True, False)
    assert arrays.metadata == {"format": "np"}
    assert dm.memory_info().live == before
    assert np.array_equal(arrays["layer.0.bias"].numpy(), ARRAYS["layer.0.bias"])
    assert list(arrays.load(["step", "mask"])) == ["step", "mask"]
    same(dict(arrays), PLAIN)
    with pytest.raises(KeyError, match=r"did you mean layer\.0\.bias"):
        arrays["layer.0.bais"]


def test_a_model_in_several_files_is_one(tmp_path):
    names = list(PLAIN)
    parts = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for file, some in parts.items():
        safetensors.numpy.save_file({name: PLAIN[name] for name in some}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, some in parts.items() for name in some}}))
    same(dm.load(index), PLAIN)
    assert dm.load(index, lazy=True)["step"].item() == 7
    index.write_text(json.dumps({"weight_map": {"gone": "model-1.safetensors"}}))
    with pytest.raises(dm.LayoutError, match="no array 'gone'"):
        dm.load(index)
    index.write_text(json.dumps({"weight_map": {"x": "../model-1.safetensors"}}))
    with pytest.raises(dm.LayoutError, match="no file beside it"):
        dm.load(index)
    index.write_text("[]")
    with pytest.raises(dm.LayoutError, match="weight_map"):
        dm.load(index)


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        {"a": 1},
        {"a": {**ENTRY, "dtype": "F33"}},
        {"a": {**ENTRY, "dtype": ["F32"]}},
        {"a": {**ENTRY, "shape": [-2, -2]}},
        {"a": {**ENTRY, "shape": [2.5, 2]}},
        {"a": {**ENTRY, "shape": [1 << 62, 1 << 62]}},
        {"a": {**ENTRY, "data_offsets": [0, 15]}},
        {"a": {**ENTRY, "data_offsets": [-16, 0]}},
        {"a": {**ENTRY, "data_offsets": [56, 72]}},
        {"a": {"dtype": "F32", "shape": []}},
        {"__metadata__": {"a": 1}, "a": ENTRY},
    ],
)
def test_a_forged_header_is_refused(header, tmp_path):
    with pytest.raises(dm.LayoutError, match=r"model\.safetensors"):
        dm.load(forged(tmp_path / "model.safetensors", header))


@pytest.mark.parametrize("text", [b"", b"abc", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 100) + b"{}"])
def test_a_cut_file_is_refused(text, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(text)
    with pytest.raises(dm.LayoutError, match=r"model\.safetensors"):
        dm.load(path)


def test_a_failing_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.safetensors"
    dm.save({"a": dm.to_device(np.arange(3))}, path)
    with pytest.raises(dm.LayoutError, match=r"no dtype.*'b'"):
        dm.save({"a": dm.to_device(np.arange(4)), "b": dm.to_device(np.array(["x"]))}, path)
    assert dm.load(path)["a"].shape == (3,)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


# -- .npz --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_an_archive_of_numpys_is_read(write, tmp_path):
    arrays = {**PLAIN, "fortran": np.asfortranarray(np.arange(600.0).reshape(20, 30)), "text": np.array(["ab", "c"])}
    write(tmp_path / "data.npz", **arrays)
    found = dm.load(tmp_path / "data.npz")
    same(
        {name: array for name, array in found.items() if name != "fortran"},
        {k: arrays[k] for k in arrays if k != "fortran"},
    )
    assert np.array_equal(found["fortran"].numpy(), arrays["fortran"])
    assert found["fortran"].is_f_contiguous()
    assert dm.load(tmp_path / "data.npz", lazy=True)["step"].item() == 7


def test_an_archive_that_is_written_numpy_reads(tmp_path):
    path = tmp_path / "data.npz"
    dm.save({name: dm.to_device(array) for name, array in PLAIN.items()}, path)
    with np.load(path) as found:
        assert set(found) == set(PLAIN)
        for name, array in PLAIN.items():
            assert np.array_equal(found[name], array)


def test_objects_in_an_archive_are_refused(tmp_path):
    np.savez(tmp_path / "data.npz", a=np.array([{}, None]))
    with pytest.raises(dm.LayoutError, match="Python objects"):
        dm.load(tmp_path / "data.npz")
    np.savez_compressed(tmp_path / "data.npz", a=np.array([{}, None]))
    with pytest.raises(dm.LayoutError, match=r"a\.npy"):
        dm.load(tmp_path / "data.npz")


@pytest.mark.parametrize("nbytes", [3 << 30, 1 << 40, 1 << 62])
@pytest.mark.parametrize("listed", [None, 0xFFFF_FFF0], ids=["as it is", "as if it were larger"])
def test_a_header_in_a_compressed_archive_asks_for_no_more_than_there_can_be(nbytes, listed, tmp_path):
    """The archive's list of what is in it may lie, too."""
    path, header = tmp_path / "data.npz", io.BytesIO()
    format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (nbytes,)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(1000))
    if listed:
        data = bytearray(path.read_bytes())
        struct.pack_into("<I", data, data.index(b"PK\1\2") + 24, listed)
        path.write_bytes(data)
    with pytest.raises(dm.LayoutError, match=r"data\.npz, a\.npy: its header asks for"):
        dm.load(path)


def test_what_is_compressed_as_far_as_can_be_is_read(tmp_path):
    np.savez_compressed(tmp_path / "data.npz", a=np.zeros(20 << 20, np.uint8))
    assert (tmp_path / "data.npz").stat().st_size < 21_000
    found = dm.load(tmp_path / "data.npz")["a"]
    assert found.nbytes == 20 << 20
    assert not found.copy_to_host().any()


@pytest.mark.parametrize("cut", [0, 10, 200, -1])
def test_a_broken_archive_is_refused(cut, tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, a=np.arange(100))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(dm.LayoutError, match=r"data\.npz"):
        dm.load(path)


def test_what_is_no_array_in_an_archive_is_left_out(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, a=np.arange(3))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "hello")
    assert set(dm.load(path)) == {"a"}


# -- many, and what is refused -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("staged")
def test_many_files_are_loaded_in_their_structure(tmp_path):
    np.save(tmp_path / "x.npy", PLAIN["layer.0.weight"])
    np.save(tmp_path / "y.npy", np.asfortranarray(np.arange(12).reshape(3, 4)))
    np.savez(tmp_path / "z.npz", **PLAIN)
    found = dm.load_many({"x": tmp_path / "x.npy", "rest": [str(tmp_path / "y.npy"), (tmp_path / "z.npz",)]})
    assert np.array_equal(found["x"].numpy(), PLAIN["layer.0.weight"])
    assert np.array_equal(found["rest"][0].numpy(), np.arange(12).reshape(3, 4))
    assert found["rest"][0].is_f_contiguous()
    same(found["rest"][1][0], PLAIN)
    assert np.array_equal(dm.load_many(tmp_path / "x.npy").numpy(), PLAIN["layer.0.weight"])


def test_they_are_bound_to_the_stream_that_is_named(tmp_path):
    np.savez(tmp_path / "z.npz", **PLAIN)
    stream = dm.Stream()
    assert {array.stream for name, array in dm.load(tmp_path / "z.npz", stream=stream).items()} == {stream}
    stream.synchronize()


def test_arguments_that_mean_nothing_are_refused(tmp_path):
    np.savez(tmp_path / "z.npz", a=np.arange(3))
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(dm.LayoutError, match="by name"):
        dm.load(tmp_path / "z.npz", to=dm.device_array(3))
    with pytest.raises(dm.LayoutError, match="lazy"):
        dm.load(tmp_path / "x.npy", lazy=True)
    array = dm.to_device(np.arange(3))
    with pytest.raises(dm.LayoutError, match=r"\.safetensors or \.npz"):
        dm.save({"a": array}, tmp_path / "x.npy")
    with pytest.raises(dm.LayoutError, match="metadata"):
        dm.save({"a": array}, tmp_path / "x.npz", metadata={})
    with pytest.raises(dm.LayoutError, match="metadata"):
        dm.save(array, tmp_path / "x.npy", metadata={})
    with pytest.raises(TypeError, match="names"):
        dm.save({1: array}, tmp_path / "x.npz")
    with pytest.raises(TypeError, match="numpy"):
        dm.save({"a": np.arange(3)}, tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz"])
@pytest.mark.parametrize("how", ["replaced", "written"])
def test_a_file_that_changed_since_its_header_was_read_is_refused(tmp_path, name, how):
    """Its arrays may lie elsewhere: without a look they would be bytes of another array."""
    path = tmp_path / name
    dm.save({"a": dm.zeros(1000, "f4"), "w": dm.full(1 << 19, 1, "f4")}, path)
    model = dm.load(path, lazy=True)
    assert model["a"].copy_to_host().tolist() == [0] * 1000
    if how == "replaced":
        dm.save({"a": dm.full(1 << 18, 5, "f4"), "w": dm.full(1 << 19, 2, "f4")}, path)
    else:
        with path.open("ab") as file:
            file.write(b"more")
    for names in (["a"], ["w"], None):
        with pytest.raises(
            dm.LayoutError, match=rf"{name}: the file was replaced or written after its header was read"
        ):
            model.load(names)
    if how == "replaced":
        assert dm.load(path, lazy=True)["w"].copy_to_host()[0] == 2


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.safetensors.index.json"])
def test_one_array_without_a_name_does_not_go_into_a_file_of_several(tmp_path, name):
    with pytest.raises(dm.LayoutError, match=r"hold arrays by name: save\({'name': array}"):
        dm.save(dm.zeros(3), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
