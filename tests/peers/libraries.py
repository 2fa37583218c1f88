"""Other array libraries, as what a cell of the matrix asks of them: take an array of ours, give one of theirs, say what they see.

A library is imported when it is asked for something, never before: most environments have few of them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

import devmem as dm
from devmem.spi.types import LEGACY_STREAM, CopyKind

Layout = Callable[[Any], Any]

#: DLPack's type of a device, and the part of the page that tells of such devices.
PLACES = {1: "host", 2: "cuda", 10: "rocm"}

LAYOUTS: dict[str, Layout] = {
    "C": lambda x: x,
    "F": lambda x: x.T,
    "strided": lambda x: x[::2, 1::2],
    "negative": lambda x: x[::-1, ::-2],
    "0-d": lambda x: x[1:2, 2:3].reshape(()),
    "empty": lambda x: x[:0],
    "read-only": lambda x: x,
    "record": lambda x: x,
}
RECORD = np.dtype([("a", "<i4"), ("b", "<f8")])
NATIVE = ["bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "float16", "float32"]
NATIVE += ["float64", "complex64", "complex128"]
EXTENSIONS = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
STRANGE = ["longdouble", "datetime64[s]", ">i4", "S3"]
DTYPES = [*NATIVE, *EXTENSIONS, *STRANGE]
#: What a stream has to do with the memory when it is imported.
STREAMS = ["still writing"]


class Absent(Exception):
    """The library has no such array."""


class Seen(NamedTuple):
    """What a library sees: where, the shape, the elements in C order, and whether it may write them (None: it does not know)."""

    address: int
    shape: tuple[int, ...]
    data: bytes
    writable: bool | None


class Library:
    """One of them; all that differs is overridden."""

    name: ClassVar[str]
    package: ClassVar[str]
    distribution: ClassVar[str]
    places: ClassVar[tuple[str, ...]] = ("host", "cuda")
    #: Where it gives nothing, or would need a GPU to.
    gives_nothing: ClassVar[tuple[str, ...]] = ()
    #: Whether it is tested in an environment of its own, ``nox -s judges`` or ``kernels_mlir``.
    judge: ClassVar[bool] = False
    #: Cases that end the process.
    deadly: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, place: str) -> None:
        self.place = place
        self.module: Any = importlib.import_module(self.package)

    @classmethod
    def version(cls) -> str | None:
        """What is installed, if anything is."""
        if importlib.util.find_spec(cls.package.partition(".")[0]) is None:
            return None
        try:
            return importlib.metadata.version(cls.distribution)
        except importlib.metadata.PackageNotFoundError:  # the module is of a build for another vendor
            return None

    def take(self, array: dm.DeviceNDArray) -> Any:
        """Its own object of our array."""
        return self.module.from_dlpack(array)

    def make(self, host: np.ndarray) -> Any:
        """An object of its own with these elements."""
        raise NotImplementedError

    def give(self, host: np.ndarray, layout: Layout) -> Any:
        """An object of its own, laid out so."""
        return layout(self.make(host))

    def give_read_only(self, host: np.ndarray) -> Any:
        """An object of its own that is read-only."""
        raise Absent

    def adopt(self, given: Any) -> dm.DeviceNDArray:
        """What we make of its object."""
        return dm.from_dlpack(given)

    def see(self, taken: Any) -> Seen:
        """What it sees, now."""
        raise NotImplementedError

    def take_pending(self, array: dm.DeviceNDArray) -> Any:
        """Its own object of our array, for a stream of its own where it has streams."""
        return self.take(array)

    def duplicate(self, taken: Any) -> Any:
        """A copy, in the order of its own stream where it has streams: it need not be done when this returns."""
        raise Absent

    def stream(self) -> Any:
        """A stream of its own."""
        raise Absent

    def give_pending(self, host: np.ndarray, stream: Any) -> dm.DeviceNDArray:
        """What we make of an object of its own that its stream is still writing."""
        raise NotImplementedError


class NumPy(Library):
    name, package, distribution = "NumPy", "numpy", "numpy"
    places = ("host", "cuda", "rocm")

    def take(self, array):
        return np.from_dlpack(array) if self.place == "host" else np.from_dlpack(array, device="cpu")

    def make(self, host):
        return host.copy()

    def give_read_only(self, host):
        made = host.copy()
        made.flags.writeable = False
        return made

    def see(self, taken):
        return Seen(taken.ctypes.data, taken.shape, taken.tobytes(), taken.flags.writeable)

    def duplicate(self, taken):
        return taken.copy()


def built_for_gpus() -> bool:
    """Whether the PyTorch that is installed is a build for GPUs."""
    return any("nvidia" in each for each in importlib.metadata.requires("torch") or ())


class PyTorch(Library):
    name, package, distribution = "PyTorch, CPU build", "torch", "torch"
    deadly = frozenset({"negative"})

    @classmethod
    def version(cls):
        known = super().version()
        return None if known is None or built_for_gpus() else known

    def make(self, host):
        if host.dtype.fields or host.dtype.str[0] == ">" or not hasattr(self.module, host.dtype.name):
            raise Absent
        return self.module.from_numpy(host.copy().view("u1")).view(getattr(self.module, host.dtype.name))

    def give(self, host, layout):
        try:
            return super().give(host, layout)
        except ValueError as error:
            if "step must be greater than zero" in str(error):
                raise Absent from None
            raise

    def duplicate(self, taken):
        return taken.clone()

    def see(self, taken):
        flat = taken.reshape(-1).contiguous().view(self.module.uint8)
        return Seen(taken.data_ptr(), tuple(taken.shape), flat.numpy().tobytes(), True)


class TorchCUDA(PyTorch):
    """The build for CUDA, on a GPU or over the emulated runtime. Elsewhere its libraries are missing, or it sees no device."""

    name, places, judge = "PyTorch, CUDA build", ("cuda",), True
    deadly = frozenset()

    @classmethod
    def version(cls):
        known = Library.version.__func__(cls)
        try:
            return known if known and importlib.import_module("torch").cuda.is_available() else None
        except (ImportError, OSError):
            return None

    def make(self, host):
        return super().make(host).cuda()

    def stream(self):
        return self.module.cuda.Stream()

    def give_pending(self, host, stream):
        made, locked = self.module.empty(host.shape, dtype=self.module.float64, device="cuda"), super().make(host)
        with self.module.cuda.stream(stream):
            return self.adopt(made.copy_(locked.pin_memory(), non_blocking=True))

    def see(self, taken):
        name = str(taken.dtype).removeprefix("torch.")
        dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), name) if name in EXTENSIONS else name)
        strides = tuple(step * dtype.itemsize for step in taken.stride())
        self.module.cuda.synchronize()
        return Seen(
            taken.data_ptr(), tuple(taken.shape), look(taken.data_ptr(), taken.shape, strides, dtype).tobytes(), True
        )


class JAX(Library):
    name, package, distribution = "JAX, on the CPU", "jax", "jax"

    def __init__(self, place):
        super().__init__(place)
        self.module.config.update("jax_enable_x64", True)

    def take(self, array):
        return self.module.dlpack.from_dlpack(array)

    def make(self, host):
        if host.dtype.fields or host.dtype.name not in NATIVE + EXTENSIONS or host.dtype.str[0] == ">":
            raise Absent
        return self.module.numpy.asarray(host)

    def give_read_only(self, host):
        return self.make(host)  # as all of its arrays are

    def duplicate(self, taken):
        return self.module.numpy.copy(taken)

    def see(self, taken):
        # It keeps the ndarray that it has once made of an array, and would show that at a second look.
        elements = np.asarray(self.module.numpy.copy(taken))
        return Seen(taken.unsafe_buffer_pointer(), taken.shape, elements.tobytes(), False)


class ArrayAPIStrict(Library):
    name, package, distribution = "array-api-strict", "array_api_strict", "array-api-strict"

    def make(self, host):
        if host.dtype.name not in NATIVE or host.dtype.name == "float16" or host.dtype.str[0] == ">":
            raise Absent
        return self.module.asarray(host)

    def give(self, host, layout):
        return self.make(layout(host.copy()))

    def give_read_only(self, host):
        made = host.copy()
        made.flags.writeable = False
        return self.module.asarray(made, copy=False)

    def duplicate(self, taken):
        return self.module.asarray(taken, copy=True)

    def see(self, taken):
        under = taken._array
        return Seen(under.ctypes.data, under.shape, under.tobytes(), under.flags.writeable)


class Received(NamedTuple):
    """Where a message is to go, and what it says."""

    into: Any
    elements: np.ndarray


class MPI4Py(Library):
    """Sending is its taking, receiving its giving."""

    name, package, distribution = "mpi4py", "mpi4py.MPI", "mpi4py"
    #: Its MPI may know nothing of devices, and would then touch their memory from the host.
    gives_nothing = ("cuda",)

    def take(self, array):
        self.module.memory(array)
        if self.place == "host":
            self._send(array)
        return array

    def give(self, host, layout):
        there = layout(dm.device_array(host.shape, host.dtype))
        return Received(there, layout(host))

    def give_read_only(self, host):
        return Received(read_only(host, self.place), host)

    def adopt(self, given):
        source = np.asarray(given.elements, order="K")
        self.module.COMM_SELF.Sendrecv([source, self.module.BYTE], 0, recvbuf=given.into, source=0)
        return given.into

    def duplicate(self, taken):
        if self.place != "host":
            raise Absent
        sent = self._send(taken)
        return Received(sent, sent)

    def see(self, taken):
        if isinstance(taken, Received):
            seen = self.module.memory(taken.into)
            return Seen(seen.address, taken.elements.shape, taken.elements.tobytes(), not seen.readonly)
        seen = self.module.memory(taken)
        if self.place == "host":
            data = self._send(taken).tobytes()
        else:
            order = "F" if taken.is_f_contiguous() else "C"
            data = np.asarray(look(seen.address, taken.shape, None, taken.dtype, order)).tobytes()
        return Seen(seen.address, taken.shape, data, not seen.readonly)

    def _send(self, array):
        there = np.empty(array.shape, array.dtype, "F" if array.is_f_contiguous() else "C")
        into = [there.reshape(-1, order="A").view("u1"), self.module.BYTE]
        self.module.COMM_SELF.Sendrecv(array, 0, recvbuf=into, source=0)
        return there


class NumbaCUDA(Library):
    name, package, distribution, places = "numba-cuda", "numba.cuda", "numba-cuda", ("cuda",)

    @classmethod
    def version(cls):
        return super().version() if importlib.util.find_spec("numba_cuda") is not None else None

    def take(self, array):
        return self.module.as_cuda_array(array)

    def make(self, host):
        if host.dtype.name in EXTENSIONS:
            raise Absent
        return self.module.to_device(host)

    def give(self, host, layout):
        # What is there already is transposed by a kernel.
        return self.make(layout(host)) if layout is LAYOUTS["F"] else layout(self.make(host))

    def adopt(self, given):
        return dm.as_device_array(given)

    def stream(self):
        return self.module.stream()

    def duplicate(self, taken):
        made = self.module.device_array_like(taken)
        made.copy_to_device(taken, stream=self.stream())
        return made

    def give_pending(self, host, stream):
        self.locked = self.module.pinned_array(host.shape, host.dtype)
        self.locked[:] = host
        made = self.module.device_array(host.shape, host.dtype, stream=stream)
        made.copy_to_device(self.locked, stream=stream)
        return self.adopt(made)

    def see(self, taken):
        at = taken.device_ctypes_pointer.value or 0
        return Seen(at, taken.shape, look(at, taken.shape, taken.strides, taken.dtype).tobytes(), None)


class NumbaCudaMLIR(NumbaCUDA):
    name, package, distribution = "numba-cuda-mlir", "numba_cuda_mlir.cuda", "numba-cuda-mlir"
    judge = True  # the session kernels_mlir has it

    @classmethod
    def version(cls):
        return Library.version.__func__(cls)


class CudaCore(Library):
    name, package, distribution, places = "cuda.core", "cuda.core.utils", "cuda-core", ("cuda",)

    def __init__(self, place):
        super().__init__(place)
        self.device = importlib.import_module("cuda.core").Device(0)
        self.device.set_current()  # as its users have to

    def take(self, array, stream=-1):
        view = self.module.StridedMemoryView.from_any_interface(array, stream_ptr=stream)
        assert view.dtype  # found out when it is asked for
        return view

    def take_pending(self, array):
        self.own = self.device.create_stream()
        return self.take(array, int(self.own.handle))

    def duplicate(self, taken):
        made = dm.device_array(taken.shape, np.dtype(taken.dtype))
        buffers = importlib.import_module("cuda.core").Buffer
        source = buffers.from_handle(taken.ptr, made.nbytes)
        source.copy_to(buffers.from_handle(made.ptr, made.nbytes), stream=self.own)
        return self.take(made)

    def give(self, host, layout):
        # It makes no arrays: this is its view of another library's memory.
        return self.take(layout(Described(dm.to_device(host))))

    def give_read_only(self, host):
        return self.take(Described(dm.to_device(host), read_only=True))

    def see(self, taken):
        dtype = np.dtype(taken.dtype)
        strides = None if taken.strides is None else tuple(step * dtype.itemsize for step in taken.strides)
        data = look(taken.ptr, taken.shape, strides, dtype).tobytes()
        return Seen(taken.ptr, tuple(taken.shape), data, not taken.readonly)


class CuPy(Library):
    """As far as it goes without a GPU: its pointers, in which an address of ours is put by hand."""

    name, package, distribution, places = "CuPy", "cupy", "cupy-cuda13x", ("cuda",)
    gives_nothing = ("cuda",)

    def take(self, array):
        cuda = self.module.cuda
        low = array.ptr + sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True) if step < 0)
        memory = cuda.UnownedMemory(low, array.allocation.nbytes, array, 0)
        pointer = cuda.MemoryPointer(memory, array.ptr - low)
        return self.module.ndarray(array.shape, array.dtype, pointer, strides=array.strides)

    def see(self, taken):
        at = taken.data.ptr
        return Seen(at, taken.shape, look(at, taken.shape, taken.strides, taken.dtype).tobytes(), None)


class CuPyROCm(CuPy):
    """All of it, but kernels: over the emulated HIP runtime."""

    name, distribution, places = "CuPy for ROCm", "cupy-rocm-7-0", ("rocm",)
    gives_nothing, judge = (), True

    def take(self, array):
        return self.module.from_dlpack(array)

    def make(self, host):
        if host.dtype.name not in NATIVE or host.dtype.str[0] == ">":
            raise Absent
        return self.module.asarray(host)

    def stream(self):
        return self.module.cuda.Stream(non_blocking=True)

    def duplicate(self, taken):
        made = self.module.empty_like(taken)
        made.data.copy_from_device_async(taken.data, taken.nbytes)
        return made

    def give_pending(self, host, stream):
        self.locked = self.module.cuda.alloc_pinned_memory(host.nbytes)
        source = np.frombuffer(self.locked, host.dtype, host.size)
        source[:] = host
        made = self.module.empty(host.shape, host.dtype)
        made.set(source, stream=stream)
        with stream:
            return self.adopt(made)


LIBRARIES: list[type[Library]] = [NumPy, PyTorch, TorchCUDA, JAX, ArrayAPIStrict, MPI4Py, NumbaCUDA]
LIBRARIES += [NumbaCudaMLIR, CudaCore, CuPy, CuPyROCm]


class Described:
    """Device memory of no library in particular, which speaks the CUDA Array Interface only."""

    def __init__(self, array: dm.DeviceNDArray, read_only: bool = False) -> None:
        self.array, self.read_only = array, read_only

    def __getitem__(self, key: Any) -> Described:
        return Described(self.array[key])

    def reshape(self, shape: Any) -> Described:
        """As the array's."""
        return Described(self.array.reshape(shape))

    @property
    def T(self) -> Described:
        """As the array's."""
        return Described(self.array.T)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        said = self.array.__cuda_array_interface__
        return {**said, "data": (said["data"][0], self.read_only)}


def read_only(host: np.ndarray, place: str) -> dm.DeviceNDArray:
    """A device array that may not be written: such memory always belongs to another library."""
    if place == "host":
        lent = host.copy()
        lent.flags.writeable = False
        return dm.from_dlpack(lent)
    if place == "rocm":
        raise Absent  # what could describe it as read-only, the CUDA Array Interface, is not asked there
    return dm.as_device_array(Described(dm.to_device(host), read_only=True))


def look(ptr: int, shape: Any, strides: Any, dtype: np.dtype, order: str = "C") -> np.ndarray:
    """What lies at an address of the current device, fetched by its driver: the copies of libraries are under test."""
    steps = np.empty(shape, dtype, order).strides if strides is None else strides
    reach = [(count - 1) * step for count, step in zip(shape, steps, strict=True)]
    low, high = sum(min(each, 0) for each in reach), sum(max(each, 0) for each in reach) + dtype.itemsize
    if 0 in shape:
        return np.empty(shape, dtype)
    raw = np.empty(high - low, "u1")
    dm.synchronize()
    driver = dm.current_device().driver()
    token = driver.enter()
    driver.copy(raw.ctypes.data, ptr + low, raw.nbytes, CopyKind.D2H, LEGACY_STREAM, blocking=True)
    if token is not None:
        driver.exit(token)
    return np.ndarray(shape, dtype, raw, -low, steps)


def elements(name: str) -> np.ndarray:
    """Six elements of a type, none like another where it has so many."""
    if name in EXTENSIONS:
        import ml_dtypes

        return np.arange(6).astype(getattr(ml_dtypes, name))
    if name == "S3":
        return np.array([b"a", b"bc", b"def", b"", b"gh", b"i"])
    return np.arange(6).astype(name)


def table(case: str) -> np.ndarray:
    """The four rows of six elements that every layout is cut out of."""
    host = np.arange(24.0).reshape(4, 6)
    if case != "record":
        return host
    records = np.zeros((4, 6), RECORD)
    records["a"], records["b"] = np.arange(24).reshape(4, 6), host / 7
    return records
