"""The names that users of NumPy, CuPy, PyTorch and JAX type without looking: they are there, or the error says what is."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm

MODELS = {
    "C": np.arange(12, dtype="f4").reshape(3, 4),
    "F": np.asfortranarray(np.arange(12, dtype="i2").reshape(3, 4)),
    "strided": np.arange(24.0).reshape(4, 6)[::2, ::3],
    "transposed": np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0),
    "0-d": np.array(5),
    "empty": np.empty((0, 3)),
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model(request):
    return request.param


@pytest.fixture(params=["host", "device"])
def side(request, model):
    return model if request.param == "host" else dm.to_device(model)


def same(found, expected):
    host = found.copy_to_host()
    assert host.dtype == expected.dtype
    assert np.array_equal(host, expected)
    assert [stride for stride, n in zip(host.strides, host.shape, strict=True) if n > 1] == [
        stride for stride, n in zip(expected.strides, expected.shape, strict=True) if n > 1
    ]


@pytest.mark.parametrize("dtype", [None, "u1", "c8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_new_arrays_are_as_numpys(dtype, order):
    kinds = {} if dtype is None else {"dtype": dtype}
    made = dm.empty((3, 4), order=order, **kinds)
    assert (made.shape, made.dtype) == ((3, 4), np.dtype(dtype))
    assert made.is_f_contiguous() is (order == "F")
    same(dm.ones((3, 4), order=order, **kinds), np.ones((3, 4), order=order, **kinds))
    same(dm.zeros((3, 4), order=order, **kinds), np.zeros((3, 4), order=order, **kinds))
    same(dm.full((3, 4), 7, order=order, **kinds), np.full((3, 4), 7, order=order, **kinds))


@pytest.mark.parametrize("dtype", [None, "u1", "c8", "U2"])
def test_arrays_like_others_are_as_numpys(model, side, dtype):
    made = dm.empty_like(side, dtype)
    assert (made.shape, made.dtype) == (model.shape, np.dtype(dtype or model.dtype))
    same(dm.zeros_like(side, dtype), np.zeros_like(model, dtype))
    same(dm.ones_like(side, dtype), np.ones_like(model, dtype))
    same(dm.full_like(side, 3, dtype), np.full_like(model, 3, dtype))


def test_they_go_where_they_are_told(second):
    model = dm.to_device(np.arange(3), device=second)
    for made in (dm.empty(3, device=second), dm.ones(3, device=str(second)), dm.full(3, 1, device=second)):
        assert made.device == second
    assert dm.zeros_like(model).device == second  # where the model is
    assert dm.empty_like(model, device=dm.current_device()).device == dm.current_device()


def test_they_are_bound_to_the_stream_that_is_named():
    stream = dm.Stream()
    assert dm.ones(3, stream=stream).stream is stream
    assert dm.zeros_like(np.ones(3), stream=stream).stream is stream
    stream.synchronize()


def test_a_value_that_does_not_fit_is_refused():
    with pytest.raises(dm.LayoutError, match=r"full_like.*300.*uint8"):
        dm.full_like(np.zeros(3, "u1"), 300)


# -- asarray -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [[1, 2, 3], (1.5, 2.5), 7, np.arange(3), range(4)])
def test_asarray_of_the_host_copies(given):
    assert np.array_equal(dm.asarray(given).copy_to_host(), np.asarray(given))
    converted = dm.asarray(given, "f4")
    assert converted.dtype == np.float32
    assert np.array_equal(converted.copy_to_host(), np.asarray(given, "f4"))
    with pytest.raises(dm.LayoutError, match="copy=False"):
        dm.asarray(given, copy=False)


def test_asarray_of_a_device_array_is_the_array(second):
    array = dm.to_device(np.arange(3))
    assert dm.asarray(array) is array
    assert dm.asarray(array, "i8", copy=False) is array
    copied = dm.asarray(array, copy=True)
    assert copied is not array
    assert copied.ptr != array.ptr
    assert dm.asarray(array, device=second).device == second
    with pytest.raises(dm.LayoutError, match="copy=False"):
        dm.asarray(array, device=second, copy=False)
    with pytest.raises(dm.LayoutError, match=r"float32.*int64.*converts on the host"):
        dm.asarray(array, "f4")


# -- methods -----------------------------------------------------------------------------------------------------------


def test_to_is_to_device(second, model):
    array = dm.to_device(model)
    assert array.to(array.device) is array
    assert array.to(str(array.device)) is array
    moved = array.to(second)
    assert moved.device == second
    assert np.array_equal(moved.copy_to_host(), model)
    stream = second.opened().new_stream(0, False)
    assert array.to(second, stream).stream is stream
    stream.synchronize()


def test_to_of_a_freed_array_is_refused():
    array = dm.to_device(np.arange(3))
    array.free()
    with pytest.raises(dm.ClosedError):
        array.to(array.device)


@pytest.mark.parametrize("dtype", ["f4", "float32", np.float32, np.dtype("f4")], ids=repr)
def test_to_of_a_dtype_says_where_devmem_converts(dtype):
    with pytest.raises((dm.ConfigError, TypeError), match=r"this is a dtype.*asarray\(d\.copy_to_host\(\), dtype\)"):
        dm.zeros(3).to(dtype)


@pytest.mark.parametrize("wrong", ["nonsense", object, object(), "("], ids=repr)
def test_to_of_anything_else_says_nothing_of_dtypes(wrong):
    with pytest.raises((dm.ConfigError, TypeError)) as raised:
        dm.zeros(3).to(wrong)
    assert "dtype" not in str(raised.value)


def test_to_the_cpu_says_what_copies_to_the_host():
    with pytest.raises(dm.ConfigError, match=r"no backend is named 'cpu'.*copy_to_host\(\)"):
        dm.zeros(3).to("cpu")


def test_numpy_copies_to_the_host(model):
    host = dm.to_device(model).numpy()
    assert isinstance(host, np.ndarray)
    assert np.array_equal(host, model)


def test_streams_and_events_are_made_by_call():
    stream, start = dm.Stream(), dm.Event()
    assert type(stream) is dm.Stream
    assert stream.device == start.device == dm.current_device()
    assert not stream.is_default
    start.record(stream)
    end = stream.record(timing=True)
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert dm.Event(timing=False).timing is False
    assert int(stream) == stream.handle
    assert dm.default_stream().device.opened().streams.stream_of(stream.handle) is stream
    stream.close()
    assert stream.closed


def test_a_stream_by_call_takes_what_stream_takes():
    with dm.Stream(priority=-1, non_blocking=True) as stream:
        assert stream.non_blocking
        array = dm.to_device(np.arange(3))
    assert np.array_equal(array.numpy(), np.arange(3))
    with pytest.raises(TypeError):
        dm.Stream(prio=1)


def test_they_are_made_on_the_current_device(second):
    with second:
        assert dm.Stream().device == second
        assert dm.Event().device == second


def test_an_event_without_timing_cannot_be_recorded_with_it():
    with pytest.raises(dm.LayoutError, match="timing=False"):
        dm.Stream().record(dm.Event(timing=False), timing=True)


# -- what is not there -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("astype", r"x\.astype"),
        ("get", "copy_to_host"),
        ("cpu", "copy_to_host"),
        ("cuda", r"to\(device\)"),
        ("sum", "compute"),
        ("gpudata", "ptr"),
        ("clone", "copy"),
        ("contiguous", "copy"),
        ("flatten", "ravel"),
        ("fill_", "fill"),
        ("numel", "size"),
        ("tofile", r"devmem\.save"),
        ("float", r"x\.astype"),
        ("int", r"x\.astype"),
        ("long", r"x\.astype"),
        ("to_numpy", "copy_to_host"),
        ("stride", "strides"),
        ("is_contiguous", "is_c_contiguous"),
        ("is_pinned", "pinned_array"),
        ("mT", "transpose"),
        ("flat", "ravel"),
        ("expand_dims", "None"),
        ("broadcast_to", "broadcast_to"),
        ("save", r"devmem\.save"),
        ("untyped_storage", "ptr"),
        ("toDlpack", "from_dlpack"),
        ("expand", "broadcast_to"),
        ("byteswap", "newbyteorder"),
        ("new_zeros", r"devmem\.zeros"),
        ("new_empty", r"devmem\.empty"),
    ],
)
def test_a_name_of_another_library_says_which_verb_it_is(name, verb):
    array = dm.device_array(3)
    assert not hasattr(array, name)
    assert getattr(array, name, None) is None
    assert name not in dir(array)
    with pytest.raises(AttributeError, match=rf"'DeviceNDArray' object has no attribute '{name}'.*{verb}") as info:
        getattr(array, name)
    assert info.value.name == name


def test_data_ptr_is_the_address_of_the_first_element():
    array = dm.device_array((4, 3))
    assert array.data_ptr() == array.ptr
    assert array[2:].data_ptr() == array[2:].ptr == array.ptr + array[:2].nbytes
    assert dm.device_array(0).data_ptr() == 0
    array.free()
    with pytest.raises(dm.ClosedError):
        array.data_ptr()


def test_data_ptr_of_memory_that_the_host_sees_too(need_kind):
    need_kind("managed")
    array = dm.managed_array(10)
    assert array[3:].data_ptr() == array[3:].ptr == array.ptr + array[:3].nbytes
    with pytest.raises(dm.LayoutError, match="result of a computation"):
        (array + 1).data_ptr()


def test_names_that_are_there_are_listed():
    assert {"copy_to_host", "numpy", "to", "T", "shape"} <= set(dir(dm.device_array(3)))


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("array", "asarray"),
        ("empty_cache", "trim"),
        ("asnumpy", "copy_to_host"),
        ("jit", "kernel"),
        ("arange", "NumPy"),
        ("eye", "NumPy"),
        ("from_numpy", "to_device"),
        ("pin_memory", "pinned_array"),
        ("memory_stats", "memory_summary"),
        ("reset_peak_memory_stats", r"memory\.Statistics"),
        ("MemoryPool", "use_memory"),
        ("current_stream", "default_stream"),
        ("get_device", "current_device"),
        ("concatenate", "gather"),
        ("sum", "computes nothing"),
        ("rand", "NumPy"),
        ("device_put", "to_device"),
        ("device_get", "copy_to_host"),
        ("alloc_pinned_memory", "pinned_array"),
        ("get_default_memory_pool", "use_memory"),
        ("set_allocator", "use_memory"),
        ("savez", "save"),
        ("DataLoader", "prefetch"),
        ("Tensor", "DeviceNDArray"),
        ("cat", "gather"),
        ("copy", r"d\.copy\(\)"),
        ("copyto", "copy_to_device"),
        ("to_numpy", "copy_to_host"),
        ("cpu", "copy_to_host"),
        ("gpu", r"device\(0\)"),
        ("local_devices", "devices"),
        ("use_device", "with device"),
        ("use_stream", "with stream"),
        ("current_context", "current_device"),
        ("memset", "fill"),
        ("memcpy_async", "copy_async"),
        ("set_per_process_memory_fraction", "limit:80%"),
        ("frombuffer", "NumPy"),
        ("toDlpack", "from_dlpack"),
        ("CUDAGraph", "capture"),
        ("stack", "gather"),
    ],
)
def test_so_does_a_name_of_another_module(name, verb):
    with pytest.raises(AttributeError, match=f"'devmem' has no attribute '{name}': .*{verb}"):
        getattr(dm, name)


def test_what_the_advice_says_works():
    x = np.arange(6, dtype="<i4").reshape(2, 3)
    d = dm.zeros((2, 3), x.dtype)
    d[...] = x[0]
    assert np.array_equal(d.numpy(), np.broadcast_to(x[0], (2, 3)))
    assert np.array_equal(dm.to_device(x.byteswap()).view(d.dtype.newbyteorder()).numpy(), x)
    assert (
        dm.zeros((4,), d.dtype, device=d.device).device == dm.empty((4,), d.dtype, device=d.device).device == d.device
    )
    assert np.array_equal(dm.gather([dm.to_device(x), d]), np.concatenate([x, d.numpy()]))
    both = dm.empty((4, 3), x.dtype)
    both[:2].copy_to_device(dm.to_device(x))
    both[2:].copy_to_device(d)
    assert np.array_equal(both.numpy(), np.concatenate([x, d.numpy()]))
    counts = dm.memory.Statistics()
    with dm.use_memory(counts):
        counts.push()
        del both
        kept = dm.empty(1000, "u1")
        assert counts.pop().peak_bytes >= kept.nbytes


def test_of_other_unknown_names_nothing_is_said():
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = dm.nonsense


# -- what people are shown ---------------------------------------------------------------------------------------------


def test_devices_streams_copies_and_transfers_show_themselves_with_units(tmp_path):
    device = dm.current_device()
    array = dm.to_device(np.zeros((1000, 1000)))
    transfer = dm.copy_async(np.zeros(1 << 17))
    assert "1.0 MiB" in repr(transfer)
    assert str(device) in repr(transfer)
    transfer.wait()
    assert "done" in repr(transfer)
    assert "iB" in repr(device)
    pool, event = dm.memory.PoolMemory(), dm.event(timing=False)
    dm.save({"weights": array}, tmp_path / "model.safetensors")
    file = dm.load(tmp_path / "model.safetensors", lazy=True)
    for shown in (
        device,
        array.open_device.streams.default,
        transfer,
        dm.transfer_stats(),
        dm.memory_info(),
        pool.report(),
        event,
        file,
    ):
        page = shown._repr_html_()
        assert page.count("<table>") == page.count("</table>") == 1
    assert "(1000, 1000)" in file._repr_html_()
    np.savez_compressed(tmp_path / "packed.npz", inputs=np.zeros(3))
    assert "<td>compressed</td>" in dm.load(tmp_path / "packed.npz", lazy=True)._repr_html_()
    assert f"({dm.memory_info().total:,} bytes)</td>" in dm.memory_info()._repr_html_()
    assert "<td>timing</td><td>no</td>" in event._repr_html_()
    assert "7.6 MiB" in device._repr_html_() or "live" in device._repr_html_()
    assert str(device) in str(device.info)
    assert "bytes" in str(device.info)
    assert repr(dm.memory_info()).count("bytes") == 8


def test_sizes_of_reports_and_stacks_have_units():
    with dm.use_memory("limit:2GiB,statistics,pool:1GiB") as stack, dm.stream() as stream:
        kept = dm.device_array(3 << 20, np.uint8, stream=stream)
        assert "max_bytes=2.0 GiB (2,147,483,648 bytes)" in repr(stack)
        assert "max_bytes=2.0 GiB (2,147,483,648 bytes)" in str(dm.memory_summary())
        counts, pool = stack.upstream.snapshot(), stack.upstream.upstream.report()
        assert "current_bytes=3.0 MiB (3,145,728 bytes)" in str(counts)
        assert "current_count=1," in str(counts)
        assert "live_bytes=3.0 MiB (3,145,728 bytes)" in str(pool)
        assert "chunks=1," in str(pool)
        assert "<td>3.0 MiB (3,145,728 bytes)</td>" in pool._repr_html_()
        kept.free()
    pinned = str(dm.memory.PinnedPool(max_bytes="1GiB").report())
    assert "max_bytes=1.0 GiB (1,073,741,824 bytes)" in pinned
    assert "driver_seconds=0.0 µs" in pinned


def test_transfer_stats_print_as_a_table():
    dm.transfer_stats(reset=True)
    assert repr(dm.transfer_stats()) == "no copies"
    dm.to_device(np.zeros(1 << 17)).free()
    stats = dm.transfer_stats()
    assert isinstance(stats, dict)
    [(path, counted)] = stats.items()
    assert counted["bytes"] == 1 << 20
    head, row = repr(stats).splitlines()
    assert head.split()[:3] == ["path", "copies", "moved"]
    assert row.startswith(path)
    assert "1.0 MiB" in row
    assert "/s" in row


def test_a_closed_device_and_stream_still_show_themselves():
    device, stream = dm.current_device(), dm.Stream()
    device.reset()
    assert "not open" in device._repr_html_()
    assert repr(device) == f"<device {device}>"
    assert "closed" in stream._repr_html_()
