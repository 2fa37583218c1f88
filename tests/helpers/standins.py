"""Stand-ins for the allocators of RMM, CuPy, PyTorch, cuda.core and Numba, as their documentation describes them.

They allocate from the driver that the adaptor under test is bound to, so that the conformance suite can check that all
memory is freed. Where the real library works without a GPU, the tests use it instead.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections import defaultdict
from typing import Any


class StreamPool:
    """Free lists by exact size and stream, without waiting: what the pools of CuPy and PyTorch promise."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.free: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.cached = 0
        self.lock = threading.Lock()

    def take(self, nbytes: int, stream: int) -> int:
        with self.lock:
            kept = self.free[nbytes, stream]
            if kept:
                self.cached -= nbytes
                return kept.pop()
        return self.driver.alloc(nbytes, stream or 1)

    def give(self, ptr: int, nbytes: int, stream: int) -> None:
        with self.lock:
            self.free[nbytes, stream].append(ptr)
            self.cached += nbytes

    def empty(self) -> None:
        self.driver.synchronize()
        with self.lock:
            for (nbytes, _), blocks in self.free.items():
                while blocks:
                    self.cached -= nbytes
                    self.driver.free(blocks.pop(), nbytes, 1)


@contextlib.contextmanager
def installed(**modules: Any) -> Any:
    """Make the modules importable by their names; ``__`` in a name stands for a dot."""
    names = {name.replace("__", "."): module for name, module in modules.items()}
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def module(name: str, **parts: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(parts)
    return made


# -- RMM ---------------------------------------------------------------------------------------------------------------


class RMMStream:
    """``rmm.pylibrmm.stream.Stream(obj)`` of an object with the stream protocol."""

    def __init__(self, obj: Any = None) -> None:
        self.handle = 0 if obj is None else obj.__cuda_stream__()[1]

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class CallbackMemoryResource:
    """``rmm.mr.CallbackMemoryResource(allocate_func, deallocate_func)``."""

    def __init__(self, allocate_func: Any, deallocate_func: Any) -> None:
        self.allocate_func, self.deallocate_func = allocate_func, deallocate_func

    def allocate(self, nbytes: int, stream: Any = None) -> int:
        try:
            return self.allocate_func(nbytes, stream or RMMStream())
        except MemoryError as error:
            raise MemoryError(f"std::bad_alloc: out_of_memory: {error}") from None

    def deallocate(self, ptr: int, nbytes: int, stream: Any = None) -> None:
        self.deallocate_func(ptr, nbytes, stream or RMMStream())


class StatisticsResourceAdaptor:
    """An adaptor of RMM: passes calls to its upstream, and returns it."""

    def __init__(self, upstream_mr: Any) -> None:
        self.upstream_mr = upstream_mr
        self.allocate, self.deallocate = upstream_mr.allocate, upstream_mr.deallocate

    def get_upstream(self) -> Any:
        return self.upstream_mr


def rmm() -> dict[str, Any]:
    per_device: dict[int, Any] = {}
    mr = module(
        "rmm.mr",
        CallbackMemoryResource=CallbackMemoryResource,
        StatisticsResourceAdaptor=StatisticsResourceAdaptor,
        get_per_device_resource=per_device.__getitem__,
        set_per_device_resource=per_device.__setitem__,
    )
    streams = module("rmm.pylibrmm.stream", Stream=RMMStream)
    return {"rmm__mr": mr, "rmm__pylibrmm__stream": streams}


# -- CuPy --------------------------------------------------------------------------------------------------------------


class CuPyStream:
    """``cupy.cuda.Stream``: current in ``with``, for this thread."""

    current = threading.local()

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    @classmethod
    def from_external(cls, obj: Any) -> CuPyStream:
        return cls(obj.__cuda_stream__()[1])

    def __enter__(self) -> CuPyStream:
        self.before = getattr(self.current, "stream", None)
        CuPyStream.current.stream = self
        return self

    def __exit__(self, *_: object) -> None:
        CuPyStream.current.stream = self.before


class _Streams:
    """The public class: `null` and `ptds` are streams; a stream is current for the thread that entered it."""

    null = property(lambda self: CuPyStream(0))
    ptds = property(lambda self: CuPyStream(2))
    from_external = staticmethod(CuPyStream.from_external)


def current_stream() -> CuPyStream:
    return getattr(CuPyStream.current, "stream", None) or CuPyStream(0)


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id


class OutOfMemoryError(MemoryError):
    """``cupy.cuda.memory.OutOfMemoryError``."""


class PooledMemory:
    def __init__(self, pool: MemoryPool, ptr: int, size: int, stream: int, device_id: int) -> None:
        self.pool, self.ptr, self.size, self.stream, self.device_id = pool, ptr, size, stream, device_id

    def __del__(self) -> None:
        self.pool.blocks.give(self.ptr, self.size, self.stream)


class MemoryPool:
    """``cupy.cuda.MemoryPool`` with `malloc`, `free_bytes`, `free_all_blocks`."""

    def __init__(self, driver: Any) -> None:
        self.blocks = StreamPool(driver)
        self.device_id = driver.info.ordinal

    def malloc(self, size: int) -> MemoryPointer:
        stream = current_stream().ptr
        try:
            ptr = self.blocks.take(size, stream)
        except MemoryError as error:
            raise OutOfMemoryError(f"Out of memory allocating {size} bytes") from error
        return MemoryPointer(PooledMemory(self, ptr, size, stream, self.device_id), 0)

    def free_bytes(self) -> int:
        return self.blocks.cached

    def free_all_blocks(self) -> None:
        self.blocks.empty()


def cupy(allocator: Any = None) -> dict[str, Any]:
    state = {"allocator": allocator}
    cuda = module(
        "cupy.cuda",
        Stream=_Streams(),
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
        MemoryPool=MemoryPool,
        get_current_stream=current_stream,
        get_allocator=lambda: state["allocator"],
        set_allocator=lambda function: state.update(allocator=function),
        alloc=lambda size: state["allocator"](size),
    )
    return {"cupy__cuda": cuda}


# -- PyTorch -----------------------------------------------------------------------------------------------------------


class TorchOutOfMemoryError(RuntimeError):
    """``torch.OutOfMemoryError``, which is not a MemoryError."""


TorchOutOfMemoryError.__name__ = "OutOfMemoryError"


class TorchCuda:
    """``torch.cuda``: the documented functions of the caching allocator."""

    def __init__(self, driver: Any) -> None:
        self.common = StreamPool(driver)
        self.pools: list[Any] = []
        self.live: dict[int, tuple[StreamPool, int, int]] = {}
        self.routed = threading.local()
        self.backend = "native"

    def get_allocator_backend(self) -> str:
        return self.backend

    def caching_allocator_alloc(self, size: int, device: Any = None, stream: Any = None) -> int:
        assert isinstance(stream, int)
        assert device == self.common.driver.info.ordinal
        pool = getattr(self.routed, "pool", None) or self.common
        try:
            ptr = pool.take(size, stream)
        except MemoryError as error:
            raise TorchOutOfMemoryError("CUDA out of memory. Tried to allocate ...") from error
        self.live[ptr] = pool, size, stream
        return ptr

    def caching_allocator_delete(self, mem_ptr: int) -> None:
        pool, size, stream = self.live.pop(mem_ptr)
        pool.give(mem_ptr, size, stream)

    def memory_reserved(self, device: Any = None) -> int:
        if self.backend == "pluggable":
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
        every = [self.common, *self.pools]
        return sum(pool.cached for pool in every) + self.memory_allocated(device)

    def memory_allocated(self, device: Any = None) -> int:
        return sum(size for _, size, _ in list(self.live.values()))

    def empty_cache(self) -> None:
        for pool in [self.common, *self.pools]:
            pool.empty()

    def MemPool(self) -> StreamPool:
        self.pools.append(StreamPool(self.common.driver))
        return self.pools[-1]

    @contextlib.contextmanager
    def use_mem_pool(self, pool: StreamPool, device: Any = None) -> Any:
        self.routed.pool = pool
        try:
            yield
        finally:
            self.routed.pool = None


def torch(cuda: Any) -> dict[str, Any]:
    version = module("torch.version", cuda="13.0", hip=None)
    return {"torch": module("torch", cuda=cuda, version=version, OutOfMemoryError=TorchOutOfMemoryError)}


class CUDAPluggableAllocator:
    """``torch.cuda.memory.CUDAPluggableAllocator(path, alloc_fn, free_fn)``: loads the functions as PyTorch does."""

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        import ctypes

        library = ctypes.CDLL(path_to_so_file)
        self.alloc, self.free = getattr(library, alloc_fn_name), getattr(library, free_fn_name)
        self.alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.alloc.restype = ctypes.c_void_p
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free.restype = None


# -- cuda.core ---------------------------------------------------------------------------------------------------------


class CoreStream:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    @staticmethod
    def from_handle(handle: int) -> CoreStream:
        return CoreStream(handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM = CoreStream(1), CoreStream(2)


class Buffer:
    """``cuda.core.Buffer``: owned by its resource's `deallocate`, when it is closed or dropped."""

    @classmethod
    def from_handle(cls, ptr: int, size: int, mr: Any = None, owner: Any = None, *, stream: Any = None) -> Buffer:
        made = cls()
        made.handle, made.size, made.mr, made.stream = ptr, size, mr, stream
        return made

    def close(self, stream: Any = None) -> None:
        mr, self.mr = self.mr, None
        if mr is not None:
            mr.deallocate(self.handle, self.size, stream=stream or self.stream)

    def __del__(self) -> None:
        self.close()


class CoreMemoryResource:
    """``cuda.core.MemoryResource``: `stream` is keyword-only."""

    def allocate(self, size: int, *, stream: Any) -> Buffer:
        raise TypeError("abstract")


class DeviceMemoryResource(CoreMemoryResource):
    """The driver's stream-ordered pool."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def allocate(self, size: int, *, stream: Any) -> Buffer:
        try:
            ptr = self.driver.alloc_async(size, stream.handle)
        except MemoryError:
            raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: The API call failed ...") from None
        return Buffer.from_handle(ptr, size, mr=self, stream=stream)

    def deallocate(self, ptr: int, size: int, *, stream: Any) -> None:
        self.driver.free_async(ptr, size, stream.handle)


def cuda_core() -> dict[str, Any]:
    core = module(
        "cuda.core",
        Stream=CoreStream,
        Buffer=Buffer,
        MemoryResource=CoreMemoryResource,
        DeviceMemoryResource=DeviceMemoryResource,
        LEGACY_DEFAULT_STREAM=LEGACY_DEFAULT_STREAM,
        PER_THREAD_DEFAULT_STREAM=PER_THREAD_DEFAULT_STREAM,
    )
    return {"cuda__core": core}


# -- Numba's External Memory Management interface ----------------------------------------------------------------------


class NumbaPointer:
    """A MemoryPointer: frees with its finalizer when it dies."""

    def __init__(self, ptr: int, finalizer: Any) -> None:
        self.device_pointer = self.host_pointer = ptr
        self.finalizer = finalizer

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # a destructor cannot raise
            self.finalizer()


class Manager:
    """A plugin for Numba, over a driver, as its ``context``."""

    interface_version = 1

    def __init__(self, context: Any = None) -> None:
        self.driver = context
        self.initialized = 0
        self.pinned: dict[int, tuple[int, bool]] = {}

    def initialize(self) -> None:
        self.initialized += 1

    def memalloc(self, size: int) -> NumbaPointer:
        ptr = self.driver.alloc(size, 1)
        return NumbaPointer(ptr, lambda: self.driver.free(ptr, size, 1))

    def memhostalloc(self, size: int, mapped: bool, portable: bool, wc: bool) -> NumbaPointer:
        from devmem.spi.types import MemoryKind

        kind = MemoryKind.MAPPED if mapped else MemoryKind.PINNED
        ptr = self.driver.alloc(size, 1, kind)
        return NumbaPointer(ptr, lambda: self.driver.free(ptr, size, 1, kind))

    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool) -> NumbaPointer:
        self.pinned[pointer] = size, mapped
        return NumbaPointer(pointer, lambda: self.pinned.pop(pointer))

    def get_ipc_handle(self, memory: NumbaPointer) -> tuple[str, int]:
        return "ipc", memory.device_pointer

    def get_memory_info(self) -> tuple[int, int]:
        return self.driver.memory_info()

    def reset(self) -> None:
        pass

    def defer_cleanup(self) -> Any:
        return contextlib.nullcontext()
