"""What was found by drawing, each by itself."""

from __future__ import annotations

import importlib.metadata
import itertools
import pickle
import struct
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import devmem as dm
from devmem import plugins
from devmem._core.device.device import device_at
from devmem.cli import view

BODY = bytes(100)


@pytest.mark.parametrize("verb", ["device_array", "zeros", "pinned_array"])
@pytest.mark.parametrize("order", [np.zeros(2), ["C", "F"], None])
def test_an_order_that_is_no_letter(verb: str, order: Any) -> None:
    with pytest.raises(dm.LayoutError, match="order is one of 'C', 'F', not"):
        getattr(dm, verb)(3, order=order)


@pytest.mark.parametrize("name", ["backend", "nbytes", "shape", "strides", "dtype", "process"])
def test_a_handle_that_lacks_a_field(name: str) -> None:
    handle = dm.IpcHandle("none", "none", 96, 0, (96,), np.dtype("u1"), (1,), bytes(64), 1)
    object.__delattr__(handle, name)
    with pytest.raises(
        dm.LayoutError, match=rf"not made by get_ipc_handle\(\), or was damaged on its way: {name}=None"
    ):
        dm.open_ipc_array(pickle.loads(pickle.dumps(handle)))


@pytest.mark.parametrize("shape", ["{'': 0}", "'ab'", "3", "[3]", "(1.5,)", "(-1,)", "(1180591620717411303424,)"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_header_whose_shape_is_none(tmp_path: Path, shape: str, version: int) -> None:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    path = tmp_path / "array.npy"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    path.write_bytes(b"\x93NUMPY" + bytes((version, 0)) + length + text + BODY)
    with pytest.raises(dm.LayoutError, match=r"array\.npy: the header of this .npy file cannot be read") as raised:
        dm.load(path)
    assert "not supported between" not in str(raised.value)


@pytest.mark.parametrize("facts", ["[]", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': 2, 'shape': (3,)}"])
def test_a_header_that_says_something_else(tmp_path: Path, facts: str) -> None:
    path = tmp_path / "array.npy"
    path.write_bytes(b"\x93NUMPY\x03\x00" + struct.pack("<I", len(facts)) + facts.encode() + BODY)
    with pytest.raises(dm.LayoutError, match=r"array\.npy: the header of this .npy file cannot be read: it says"):
        dm.load(path)


@pytest.mark.parametrize("name", [[], {}, np.zeros(2), 5, None])
def test_a_backend_that_is_no_name(name: Any) -> None:
    with pytest.raises(TypeError, match="a backend is given by its name, not as"):
        dm.use_backend(name)
    with pytest.raises(dm.ConfigError, match="no device is backend="):
        device_at(name, 0)


@pytest.mark.parametrize("ordinal", [-1, "0", None, 1.5])
def test_an_ordinal_out_of_a_pickle(ordinal: Any) -> None:
    with pytest.raises(dm.ConfigError, match="ordinal="):
        device_at("host", ordinal)


@pytest.mark.parametrize("text", ["cupy:1MiB", "torch:x", "rmm,pool"])
def test_an_adaptor_of_another_library_takes_no_arguments_in_a_text(text: str) -> None:
    with pytest.raises(dm.ConfigError, match="takes no arguments in a stack as text, and is the last of it"):
        dm.use_memory(text)


def test_a_record_filled_with_a_number_too_large() -> None:
    array = dm.zeros(2, [("a", "u1"), ("b", "<i4")])
    with pytest.raises(dm.LayoutError, match=f"cannot assign {1 << 70} to"):
        array.fill(1 << 70)


@pytest.mark.parametrize("number", [-1, 3, 4095, 1 << 64, 1 << 70])
def test_a_stream_in_an_array_interface_that_is_no_address(number: int) -> None:
    array = dm.zeros(3)
    if "pointer_info" not in array.device.info.capabilities or array.device.info.exchange.device_type == 1:
        pytest.skip("the driver cannot be asked what an address is")

    class Foreign:
        def __init__(self) -> None:
            data = array.ptr, False
            said = {"shape": (3,), "typestr": "<f8", "data": data, "version": 3, "stream": number}
            self.__cuda_array_interface__ = said

    with pytest.raises(dm.LayoutError, match=f"names the stream {number}, which is not allowed"):
        dm.as_device_array(Foreign())


def test_a_factory_whose_resource_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Raising:
        def __getattr__(self, name: str) -> Any:
            raise ZeroDivisionError(name)

    monkeypatch.setattr(plugins, "registry", plugins.Registry(third_parties_loaded=True))
    plugins.registry.resources["mine"] = (Raising, "elsewhere")
    with pytest.raises(dm.PluginError, match=r"'mine' from elsewhere failed when it was made.* ZeroDivisionError"):
        dm.use_memory("mine")


class Mine:
    """A resource, as far as its verbs go."""

    def allocate(self, nbytes: int, stream: int) -> int:
        raise MemoryError

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        raise AssertionError


class SaysNoContract(Mine):
    @property
    def spi_version(self) -> int:
        raise ZeroDivisionError


class SaysNoOrder(Mine):
    stream_ordered = np.zeros(2)


@pytest.mark.parametrize(
    ("kind", "says"),
    [(SaysNoContract, "does not say for which contract"), (SaysNoOrder, "is array.*, not true or false")],
)
def test_a_resource_that_answers_nothing_about_itself(kind: type[Mine], says: str) -> None:
    with pytest.raises(dm.PluginError, match=says):
        dm.use_memory(kind())


@pytest.mark.parametrize("verb", ["reshape", "ravel"])
def test_an_order_of_another_shape_that_is_no_letter(verb: str) -> None:
    array = dm.zeros(3)
    with pytest.raises(dm.LayoutError, match="order is one of"):
        array.reshape(3, order=np.zeros(2)) if verb == "reshape" else array.ravel(np.zeros(2))  # type: ignore[arg-type]


def test_the_packages_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        __module__ = "a_package_of_nowhere"

        def allocate(self, nbytes: int, stream: int) -> int:
            raise MemoryError

        def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
            raise AssertionError

    calls = []
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: calls.append(1) or {})
    for _ in range(3):
        dm.memory.Statistics(Mine())
    assert len(calls) <= 1


@pytest.mark.parametrize(
    "make", [lambda dtype: dm.zeros(3, dtype), lambda dtype: dm.to_device(np.arange(8)).view(dtype)]
)
def test_a_dtype_of_more_digits_than_python_reads(make: Any) -> None:
    with pytest.raises(TypeError, match="is no dtype"):
        make("9" * 5000)


def test_an_offset_that_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "found.bin"
    path.write_bytes(BODY)
    with pytest.raises(TypeError, match="whole number of bytes"):
        dm.load(path, dtype="u1", shape=3, offset=None)  # type: ignore[arg-type]


def test_a_safetensors_dtype_that_is_no_text(tmp_path: Path) -> None:
    path, header = tmp_path / "found.safetensors", b'{"a":{"dtype":[]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(dm.LayoutError, match=r"the dtype \[\] is no text"):
        dm.load(path)


@pytest.mark.parametrize("header", ["null", "[]", '{"a":null}', '{"__metadata__":null}', '{"a":[1]}'])
def test_a_safetensors_header_that_is_no_object(tmp_path: Path, header: str) -> None:
    path = tmp_path / "found.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    with pytest.raises(dm.LayoutError, match="is no object of JSON"):
        dm.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 9000,
        '[{"ph":"X","ts":1,"dur":1,"name":"a","tid":1},null]',
        '[{"ph":"X","ts":1,"dur":NaN,"name":"a","tid":1}]',
    ],
)
def test_a_damaged_trace_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(view.NotShown, match="trace"):
        view.page([view.document(path)])


def test_a_log_that_goes_too_deep_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"a":' * 9000 + "\n")
    with pytest.raises(view.NotShown, match="not a record"):
        view.document(path)


HOST = np.arange(6.0)


@pytest.mark.parametrize(
    "verb",
    [
        lambda flag: dm.to_device(HOST, 0, flag),
        lambda flag: dm.to_device([1, 2], 0, flag),
        lambda flag: dm.asarray(HOST, copy=flag),
        lambda flag: dm.from_dlpack(HOST, copy=flag),
    ],
)
def test_an_array_is_no_flag(verb: Callable[[Any], Any]) -> None:
    for flag in (HOST, dm.SmartArray(HOST)):
        with pytest.raises(TypeError, match="copy is True or False, not"):
            verb(flag)


def test_a_flag_of_numpys_is_one() -> None:
    array = dm.to_device(HOST)
    assert dm.asarray(array, copy=np.True_) is not array
    with pytest.raises(dm.LayoutError, match="copy=False"):
        dm.asarray(HOST, copy=np.False_)
    assert dm.to_device(HOST, copy=np.True_).tolist() == HOST.tolist()


@pytest.mark.parametrize("verb", [dm.prefetch_managed, dm.discard_managed])
@pytest.mark.parametrize(("arrays", "says"), [(None, "in a list, not None"), (itertools.repeat(1), "not for a int")])
def test_hints_for_what_is_no_list_of_managed_arrays(verb: Callable[[Any], None], arrays: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        verb(arrays)


@pytest.mark.parametrize(
    "verb",
    [
        lambda array, what: array.split(what),
        lambda array, what: list(dm.prefetch([HOST], depth=what)),
        lambda array, what: dm.scatter(HOST, [0], axis=what),
        lambda array, what: dm.trim(what),
    ],
)
def test_what_is_no_integer_is_told_by_its_name(verb: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"(section|depth|axis|kept).*, not 'abc'"):
        verb(dm.to_device(HOST), "abc")


def nested(levels: int) -> Any:
    """A record in records."""
    fields: Any = "<f4"
    for _ in range(levels):
        fields = [("a", fields)]
    return fields


@pytest.mark.parametrize("fields", [[("", ",")], [("a", "9" * 5000)], [("a", [("b", ",")])], nested(2000)])
def test_fields_of_an_interface_that_numpy_reads_as_python(fields: Any) -> None:
    said = {"shape": (), "typestr": "|V8", "data": (0, False), "version": 3, "strides": None, "descr": fields}
    if not dm.current_device().info.exchange.array_interface:
        pytest.skip("this device knows no such interface")
    with pytest.raises(dm.LayoutError, match=r"is not one: (SyntaxError|ValueError)"):
        dm.as_device_array(types.SimpleNamespace(__cuda_array_interface__=said))


def endless() -> Any:
    while True:
        yield "", "|V1"


def within_itself() -> list[Any]:
    fields: list[Any] = []
    fields.append(("a", fields))
    return fields


@pytest.mark.parametrize("descr", [endless(), [("a", endless())], within_itself(), [("a", "<i4", endless())]])
def test_fields_without_end(descr: Any) -> None:
    class Foreign:
        __cuda_array_interface__: ClassVar = {
            "shape": (1,), "typestr": "|V4", "data": (8, False), "version": 3, "descr": descr
        }  # fmt: skip

    with pytest.raises(dm.LayoutError, match="descr"):
        dm.as_device_array(Foreign())


@pytest.mark.parametrize("number", [2, -3, 1 << 70])
def test_a_field_that_a_record_does_not_have(number: int) -> None:
    record = dm.zeros(1, [("a", "i4"), ("b", "f4")])[0]
    with pytest.raises(IndexError, match=f"a record of 2 fields, a, b, has no field {number}"):
        record[number]
    with pytest.raises(IndexError, match=f"a record of 2 fields, a, b, has no field {number}"):
        record[number] = 1


def test_fields_that_no_file_can_describe(tmp_path: Path) -> None:
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2], "itemsize": 9})
    array = dm.zeros(4, overlapping)
    with pytest.raises(dm.LayoutError, match=r"cannot say the dtype .* save its bytes, array\.view\('V9'\)"):
        dm.save(array, tmp_path / "array.npy")
    dm.save(array.view("V9"), tmp_path / "array.npy")
    assert (dm.load(tmp_path / "array.npy").view(overlapping).copy_to_host() == np.zeros(4, overlapping)).all()


@pytest.mark.parametrize(
    "call", [lambda: dm.zeros(4).split(1.5), lambda: dm.scatter(np.zeros(4), dm.devices(), axis=1.5)]
)
def test_a_number_that_is_none(call: Any) -> None:
    with pytest.raises(TypeError, match=r"1\.5"):
        call()


class Resource:
    """A memory resource that is right but for what a subclass adds."""

    def __init__(self) -> None:
        self.inner = dm.memory.DriverMemory()

    def bind(self, driver: Any) -> None:
        self.inner.bind(driver)

    def allocate(self, nbytes: int, stream: int) -> int:
        return self.inner.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        self.inner.deallocate(ptr, nbytes, stream)


class CannotTell(Resource):
    @property
    def cached_bytes(self) -> int:
        raise dm.BackendError("the library's own", backend="x", call="y", code=1, name="z")

    def __repr__(self) -> str:
        raise KeyError("not made yet")


class Detaches(Resource):
    def detach(self) -> None:
        """Another meaning of the word."""


@pytest.mark.filterwarnings("ignore::devmem.DevmemWarning")
@pytest.mark.parametrize("kind", [CannotTell, Detaches])
def test_a_resource_that_keeps_no_other_stack_from_working(kind: type[Resource]) -> None:
    for stack in (kind(), dm.memory.Statistics(kind()) if kind is Detaches else kind(), "pool"):
        with dm.use_memory(stack):
            assert dm.zeros(10).copy_to_host().sum() == 0
        dm.memory_info()
        dm.trim()


def test_strides_of_no_axes() -> None:
    assert dm.device_array((), "f8", strides=()).strides == ()


def test_devices_without_end() -> None:
    with pytest.raises(dm.LayoutError, match="over more than 4,096 devices"):
        dm.scatter(HOST, itertools.repeat(0))
