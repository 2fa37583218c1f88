"""Listings and error texts of the public objects: names that are listed, and other libraries' names with ours for them.

The tables are here, once: what CuPy, PyTorch, JAX, Numba, PyCUDA and NumPy call what devmem calls otherwise, or leaves to others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

C = TypeVar("C", bound=type)

_COMPUTES = (
    "devmem computes nothing: use NumPy before to_device(), or a library that computes on the device (from_dlpack)"
)
#: By the object that is asked: other libraries' names, separated by blanks, and what to do.
MODULE = {
    "array tensor as_tensor from_numpy ascontiguousarray device_put": "asarray(x) or to_device(x) makes a device array",
    "asnumpy to_host to_numpy device_get": "d.copy_to_host() copies an array to the host, to_host_many(tree) many",
    "cpu": "d.copy_to_host() copies to the host; use_backend('host') works without a GPU",
    "copy": "d.copy() is a new array on the device, asarray(x, copy=True) a device array of its own",
    "copyto": "d.copy_to_device(x) copies into an array that is there, d[...] = x casts and repeats x",
    "memset": "d.fill(value)",
    "memcpy_async": "copy_async(x) copies in the background, to_device(x, stream=stream) on a stream",
    "set_per_process_memory_fraction": "use_memory('limit:80%') bounds what devmem takes of a device",
    "frombuffer fromiter": "make it with NumPy, to_device(numpy.frombuffer(buffer, dtype))",
    "toDlpack": "the other library's from_dlpack(d) takes the array itself",
    "CUDAGraph": "`with capture(stream) as plan:` records the stream's work, plan.replay() runs it",
    "empty_pinned zeros_pinned alloc_pinned_memory": "pinned_array(shape, dtype) is page-locked memory of the host",
    "pin_memory": "pinned_array(shape, dtype) is page-locked memory of the host, pinned(x) locks an array's for a while",
    "malloc mem_alloc alloc caching_allocator_alloc": "empty(nbytes, numpy.uint8) is memory of a device, its ptr the address",
    "malloc_managed": "managed_array(shape, dtype) is managed memory",
    "memcpy memcpy_htod memcpy_dtoh memcpy_dtod": (
        "to_device(x) copies to a device, d.copy_to_host() back, d.copy_to_device(x) into an array that is there"
    ),
    "empty_cache free_all_blocks": "trim() gives cached memory back",
    "mem_get_info memory_allocated memory_reserved max_memory_allocated max_memory_reserved memory_stats": (
        "memory_info() and memory_summary() have the bytes"
    ),
    "reset_peak_memory_stats": "push() and pop() of a memory.Statistics have the peak between them",
    "MemoryPool MemPool get_default_memory_pool PinnedMemoryPool": "use_memory('pool') chooses a pool, memory.PoolMemory is one",
    "set_allocator set_pinned_memory_allocator set_memory_manager using_allocator use_mem_pool change_current_allocator": (
        "use_memory(resource) sets the memory stack for a block, DEVMEM_MEMORY_MANAGER for the process"
    ),
    "CUDAPluggableAllocator": "devmem.adapters.torch.pluggable_allocator() makes one of the memory stack in force",
    "OutOfMemoryError": "OutOfMemory is raised, which is a MemoryError",
    "current_stream get_current_stream": "default_stream(), or the stream of the `with stream:` around the call",
    "get_device get_current_device current_context": "current_device(), and d.device of an array",
    "set_device": "select_device(device)",
    "use_device default_device": "`with device(0):` for a block, select_device(0) from now on",
    "use_stream set_stream": "`with stream:` makes it the current stream",
    "get_device_name": "current_device().name",
    "get_device_properties": "device(0).info has what is known of a device",
    "gpus local_devices list_devices": "devices() are the devices",
    "gpu": "device(0) is the first device",
    "arange linspace eye random rand randn": "make it with NumPy, to_device(numpy.arange(10)): devmem computes nothing",
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128 bool_ dtype": (
        "dtypes are NumPy's, numpy.float32"
    ),
    "concatenate cat stack": "gather(arrays) joins on the host; on a device copy_to_device() into parts of an empty() array does",
    "sum mean max min dot matmul einsum where exp abs": _COMPUTES,
    "savez save_file load_file load_npz": "save({name: array}, path) and load(path) take .npz and .safetensors files",
    "DataLoader": "prefetch(batches) uploads ahead of the work",
    "ndarray Tensor": "DeviceNDArray is the class of device arrays",
    "cuda": "every function is in devmem itself, for each vendor; numba.cuda's names are in devmem.compat.numba_cuda",
    "ExternalStream": "external_stream(stream) takes another library's stream",
    "UnownedMemory as_cuda_array from_cuda_array_interface": "as_device_array(x) takes another library's memory, without a copy",
    "is_cuda_array": "is_device_array(x)",
    "get_elapsed_time": "start.elapsed_time(end) gives milliseconds",
    "can_device_access_peer": "device(0).can_access_peer(other)",
    "jit": "kernel is the decorator of kernels",
    (
        "Adaptor DriverMemory FailIf FailNth Guard Limit Log ManagedMemory MappedMemory MemoryResource OnOutOfMemory Owner "
        "PinnedMemory PinnedPool PinnedReport PoolMemory PoolReport Prefetch Scrub Snapshot Statistics StreamOrderedMemory "
        "VirtualMemory"
    ): "it is in devmem.memory",
    "Store": "it is in devmem.spill",
}
ARRAY = {
    "astype type half float double int long": (
        "convert on the host, to_device(x.astype(dtype)); view(dtype) reads the same bytes as another type"
    ),
    "get cpu asnumpy to_host to_numpy detach": "copy_to_host() copies to the host, and numpy() does without arguments",
    "cuda hip xpu to_device": "to(device) copies to a device, d.to('cuda:1')",
    "set set_async copy_ copy_from": "copy_to_device(x) copies into this array",
    "gpudata data device_pointer device_ctypes_pointer unsafe_buffer_pointer untyped_storage": "ptr is the address, an int",
    "zero_": "fill(0)",
    "fill_": "fill(value)",
    "getitem": "d[key]; d[key].copy_to_host(stream=stream) on a stream",
    "setitem": "d[key] = value; d[key].copy_to_device(value, stream) on a stream",
    "base": "views share their memory and keep it alive: there is no array that owns it",
    "clone contiguous": "copy() is a new array, contiguous in the same order of axes",
    "flatten": "ravel() is a view where there is one; reshape(-1, copy=True) always copies",
    "flat": "ravel() is a view where there is one; copy_to_host().flat goes over the elements",
    "permute swapaxes moveaxis mT": "transpose(axes) is a view with the axes in another order",
    "unsqueeze expand_dims": "index with None for an axis of length one, d[None]",
    "expand broadcast_to": "d[...] = x repeats x along axes of d; or to_device(numpy.broadcast_to(x, shape))",
    "byteswap": "swap on the host, to_device(x.byteswap()); view(d.dtype.newbyteorder()) reads the same bytes in the other order",
    "new_zeros new_empty": "devmem.zeros(shape, d.dtype, device=d.device), devmem.empty(...)",
    "stride": "strides are in bytes, one for each axis",
    "is_contiguous": "is_c_contiguous() says it of C order, is_f_contiguous() of Fortran's",
    "is_pinned": "pinned_array() is page-locked memory of the host; this array is in a device's",
    "toDlpack": "the other library's from_dlpack(d) takes the array itself",
    "numel": "size is the number of elements",
    "dim": "ndim is the number of axes",
    "element_size": "itemsize is the bytes of an element",
    "is_cuda": "device.backend is the name of the backend",
    "get_device": "device is where the array lives, device.ordinal its number",
    "pin_memory": "pinned_array() is page-locked memory of the host, copy_to_host(pinned=True) copies to it",
    "block_until_ready": "device.synchronize() waits for the device, stream.synchronize() for a stream",
    "tobytes tofile save dump dumps": "copy_to_host() first; devmem.save(d, path) writes a .npy file",
    (
        "sum mean min max prod std var any all argmin argmax argsort sort cumsum cumprod dot matmul clip round nonzero take "
        "repeat trace conj real imag"
    ): (
        "devmem arrays compute nothing: use copy_to_host() and NumPy, or give the array to a library that computes on the device "
        "(from_dlpack)"
    ),
}
STREAM = {
    "record_event": "record(event) records an event behind the stream's work, a new one if none is given",
    "wait_event wait_for_event wait_stream": "wait(event) makes later work wait for an event, wait(stream) for another stream",
    "done is_done": "query() says whether all work is done",
    "finish": "synchronize() waits until all work is done",
    "flush": "work begins as it is enqueued; synchronize() waits until it is done",
    "async_done": "copy_async(x) can be awaited, add_callback(callback) calls a function when the work is done",
    "use": "`with stream:` makes it the current stream",
    "begin_capture end_capture": "`with devmem.capture(stream) as plan:` records the stream's work",
    "launch_host_func": "add_callback(callback) calls a function when the work is done",
    "ptr cuda_stream": "handle is the driver's number of it, int(stream)",
}
EVENT = {
    "done is_done": "query() says whether the work before it is done",
    "block": "wait(stream) makes a stream wait, synchronize() the host",
    "time_till time_since": "start.elapsed_time(end) gives milliseconds",
    "cuda_event": "handle is the driver's number of it",
}
DEVICE = {
    "index": "ordinal is its number among the backend's devices",
    "type": "backend is the name of the backend, str(device) both",
    "use set_current": "`with device:` makes it the current one, devmem.select_device(device) from now on",
    "mem_info total_memory free_memory memory_stats": "memory_info() has the bytes, free and total",
    "compute_capability": "info.arch is its architecture",
    "uuid": "info.uuid",
    "pci_bus_id": "info.pci_id",
    "attributes properties": "info has what is known of it, info.facts has what the driver says of it",
    "create_stream": "`with device:` around devmem.stream() makes one there",
}
IPC = {
    "open open_direct open_staged open_array": "devmem.open_ipc_array(handle) opens it in another process",
    "close": "the array that open_ipc_array() returned is freed, or dropped",
}
#: Keywords of other libraries; of those that mean something else in another call, with the call.
KEYWORDS = {
    "non_blocking": "write stream=devmem.Stream(): the call may return before the copy is done",
    "requires_grad": "devmem arrays have no gradients: leave it out",
    "order": "write x = numpy.asarray(x, order=...) before: the order of axes is kept",
    "asarray(blocking)": "without stream= the copy is complete on return: leave it out",
    "pin_memory pinned": "pinned_array(shape, dtype) is page-locked memory of the host",
    "to(dtype)": "devmem converts on the host only: asarray(d.copy_to_host(), dtype)",
    "copy(order)": "the order of axes is kept; d.reshape(-1, order=...) has the elements in another",
    "batch_size drop_last shuffle": "write it into the iterable: its items are the batches",
    "num_workers": "a DataLoader with workers may be the iterable: leave it out",
    "prefetch_factor": "write depth=",
    "mmap_mode": "files are read block by block, without a copy in host memory: leave it out",
    "allow_pickle": "Python objects mean nothing to a device: leave it out",
    "enable_timing": "write timing=True, or False",
    "disable_timing": "write timing=False for an event without timing",
    "blocking": "events that sleep and events that spin are all one: leave it out",
    "interprocess": "events are not shared with other processes",
    "null": "devmem.legacy_default_stream() is that stream",
    "ptds": "devmem.per_thread_default_stream() is that stream",
    "device": "it is made on the current device, which `with device:` chooses",
}


def advice_on(table: Mapping[str, str], name: str) -> str:
    """The advice of a table on a name, to be put behind an error's text; empty where it has none."""
    return next((f": {text}" for names, text in table.items() if name in names.split()), "")


def refuse_keywords(call: str, others: Mapping[str, object]) -> NoReturn:
    """Raise a TypeError, as Python's own, for a keyword that a call does not take; of another library's it says what to write."""
    name = next(iter(others))
    advice = advice_on(KEYWORDS, f"{call[:-1]}{name})") or advice_on(KEYWORDS, name)
    raise TypeError(f"{call} got an unexpected keyword argument {name!r}{advice}")


class Absent:
    """Stands in a class where an attribute of another library's is looked for. ``hasattr`` says False, and the error what to do.

    A descriptor for each name, not a ``__getattr__``, which makes every look at an attribute slower.
    """

    __slots__ = ("_advice", "_name")

    def __init__(self, name: str, advice: str) -> None:
        self._name = name
        self._advice = advice

    def __get__(self, instance: object, owner: type) -> NoReturn:
        what = f"{owner.__name__!r} object has no attribute {self._name!r}: {self._advice}"
        raise AttributeError(what, name=self._name, obj=instance)


class Listed:
    """A public object: ``dir`` lists its names without those that only devmem's own modules use.

    These have no underscore where other modules, and the compiled core, read them all the time.
    """

    __slots__ = ()
    #: Names that are not listed.
    _unlisted: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> list[str]:
        return sorted(set(object.__dir__(self)) - self._unlisted)


def advise(table: Mapping[str, str], own: str = "") -> type[Listed]:
    """A class to inherit from, in which the names of a table are absent, and these and devmem's own are not listed.

    Type checkers are told nothing of them.
    """
    absent = {name: Absent(name, advice) for several, advice in table.items() for name in several.split()}
    unlisted = frozenset(absent).union(own.split())
    return type("Advice", (Listed,), {"__slots__": (), "__module__": __name__, "_unlisted": unlisted, **absent})


def made_by(makers: str, of: type | tuple[type, ...] = ()) -> Callable[[C], C]:
    """Decorate a public class that users do not call: a call says which functions make its objects.

    Devmem's own calls are told by their first argument, which is an ``of``; subclasses are called as they like.
    """

    def decorate(cls: C) -> C:
        inherited: Any = cls.__new__

        def __new__(kind: type, *parts: object, **named: object) -> Any:
            if kind is cls and not (parts and isinstance(parts[0], of)):
                raise TypeError(f"{cls.__name__} is not called: {makers}")
            return inherited(kind) if inherited is object.__new__ else inherited(kind, *parts, **named)

        cls.__new__ = __new__  # type: ignore[method-assign, assignment]
        return cls

    return decorate
