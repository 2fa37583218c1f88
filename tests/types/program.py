"""What type checkers know of devmem's verbs: read by mypy and by pyright, never run."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import devmem as dm
import devmem.typing as dmt

F4 = np.float32

host: npt.NDArray[F4] = np.zeros(3, F4)
array = dm.to_device(host)
assert_type(array, dm.DeviceNDArray[F4])
assert_type(dm.to_device([1, 2]), dm.DeviceNDArray[Any])
assert_type(dm.to_device(host, to=array), dm.DeviceNDArray[F4])

# made
assert_type(dm.empty(3), dm.DeviceNDArray[np.float64])
assert_type(dm.zeros((3, 4), F4), dm.DeviceNDArray[F4])
assert_type(dm.ones(3, np.dtype(np.int8)), dm.DeviceNDArray[np.int8])
assert_type(dm.full(3, 1, np.int16), dm.DeviceNDArray[np.int16])
assert_type(dm.device_array(3, "f4"), dm.DeviceNDArray[Any])
assert_type(dm.zeros_like(array), dm.DeviceNDArray[F4])
assert_type(dm.empty_like(host, np.int8), dm.DeviceNDArray[np.int8])
assert_type(dm.device_array_like(array), dm.DeviceNDArray[F4])
assert_type(dm.asarray(host), dm.DeviceNDArray[F4])
assert_type(dm.asarray([1], np.int8), dm.DeviceNDArray[np.int8])

# views and copies
assert_type(array[1:], dm.DeviceNDArray[F4])
assert_type(array.T, dm.DeviceNDArray[F4])
assert_type(array.reshape(3, 1), dm.DeviceNDArray[F4])
assert_type(array.view(np.int32), dm.DeviceNDArray[np.int32])
assert_type(array.copy(), dm.DeviceNDArray[F4])
assert_type(array.to("host:1"), dm.DeviceNDArray[F4])
assert_type(array.copy_to_host(), npt.NDArray[F4])
assert_type(array.numpy(), npt.NDArray[F4])
assert_type(array.dtype, np.dtype[F4])

# in the background
assert_type(dm.copy_async(host).result(), dm.DeviceNDArray[F4])
assert_type(dm.copy_async(array).result(), npt.NDArray[F4])
for batch in dm.prefetch([host]):
    assert_type(batch, dm.DeviceNDArray[F4])
for pair in dm.prefetch([(host, np.zeros(3, np.int8))]):
    assert_type(pair, tuple[dm.DeviceNDArray[F4], dm.DeviceNDArray[np.int8]])

# many at once, and files
# of lists and dicts of host arrays pyright says Any: NumPy's arrays have a shape of Any, which fits more than one overload
assert_type(dm.to_device_many([host]), list[dm.DeviceNDArray[F4]])  # pyright: ignore[reportAssertTypeFailure]
assert_type(dm.to_device_many((host, np.zeros(3, np.int8))), tuple[dm.DeviceNDArray[F4], dm.DeviceNDArray[np.int8]])
assert_type(dm.to_device_many({"x": host}), dict[str, dm.DeviceNDArray[F4]])  # pyright: ignore[reportAssertTypeFailure]
assert_type(dm.to_host_many([array]), list[npt.NDArray[F4]])
assert_type(dm.to_host_many({"x": array}), dict[str, npt.NDArray[F4]])
assert_type(dm.load("raw.bin", dtype=F4, shape=3), dm.DeviceNDArray[F4])
assert_type(dm.load("x.npy", to=array), dm.DeviceNDArray[F4])

# what is loaded when it is first used is known before
assert_type(dm.load("model.safetensors", lazy=True), dm.ArrayFile)
assert_type(dm.load("model.safetensors", lazy=True)["x"], dm.DeviceNDArray[Any])
assert_type(dm.memory.PoolMemory(), dm.memory.PoolMemory)
assert_type(dm.memory_info().free, int)
assert_type(dm.Stream(priority=-1), dm.Stream)
assert_type(dm.Event(timing=False), dm.Event)
assert_type(dm.is_available(), bool)

# what arguments are
stream = dm.Stream()


def upload(x: dmt.ArrayLike, on: dmt.StreamLike = 0, to: dmt.DeviceLike = None) -> dm.DeviceNDArray[Any]:
    uploaded = dm.to_device(x, on, device=to)
    return dm.zeros(3, stream=on, device=to) if isinstance(uploaded, dm.DeviceRecord) else uploaded


upload([1, 2], stream, "host:1")
upload(np.zeros(3), stream.handle, array.device)
dm.zeros(3, F4, device=stream.device)
dm.zeros([2, 3], F4, stream=None)
dm.to_device(host, stream="no stream")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
dm.empty("no shape")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
dm.event(enable_timing=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
array.copy_to_device(object())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
array.squeeze("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
array.copy_to_device([1.0, 2.0, 3.0], stream)
array.transpose(0, 1).transpose((1, 0)).transpose(None)

assert_type(dm.scatter(host, ["host:0", "host:1"]), list[dm.DeviceNDArray[F4]])
assert_type(dm.gather([array, array]), npt.NDArray[F4])
assert_type(dm.copy_async(array, host).result(), npt.NDArray[F4])


@dm.kernel
def whole(x: Any) -> None:
    """Do nothing."""


@dm.kernel(device=True)
def part(x: Any) -> None:
    """Do nothing."""


whole[1, 1](array)
part(array)
