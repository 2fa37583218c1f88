"""PyTorch: its caching allocator for devmem, and devmem's memory stack as its pluggable allocator.

PyTorch calls a pluggable allocator through C function pointers, from any thread, with or without the interpreter's lock. A small
C library, compiled at first use, forwards these calls to Python until the interpreter shuts down.
"""

from __future__ import annotations

import atexit
import ctypes
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..api.devices import device as device_of
from ..spi.driver import Driver
from ..spi.errors import BackendUnavailable, ConfigError
from ..spi.sizes import exact_size
from ..toolkit import toolchain
from ..toolkit.locks import Rank, lock
from .foreign_resource import ForeignResource, import_library, raw_handle
from .lent_blocks import LentBlocks, warn

INSTALL = "torch"
SHIM = Path(__file__).with_name("torch_shim.c")
#: C++ exceptions have to pass through the library.
SHIM_FLAGS = ("-fexceptions", "-ldl")

#: PyTorch's names of its own allocators: both order the reuse of memory by stream, and report their cached bytes.
OWN_ALLOCATORS = ("native", "cudaMallocAsync")

ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


class TorchMemory(ForeignResource):
    """Memory from PyTorch's caching allocator, so that tensors and devmem's arrays share one cache.

    Parameters
    ----------
    pool : torch.cuda.MemPool, optional
        Allocate from this pool instead of the default one.
    """

    install = INSTALL
    backends = frozenset({"cuda", "roc"})

    def __init__(self, pool: Any = None) -> None:
        super().__init__()
        self.pool = pool
        self._cuda: Any = None
        self._ordinal = 0
        self._own = False

    @property
    def stream_ordered(self) -> bool:  # type: ignore[override]
        """True for PyTorch's own allocators; a pluggable allocator is treated as not stream-ordered."""
        return self._own

    @property
    def cached_bytes(self) -> int:
        """Bytes that PyTorch has reserved on the device and does not use; 0 for a pluggable allocator, and for a pool.

        What a pool keeps, PyTorch frees with the pool and not before: a stack that is not used any more must not hold on to it.
        """
        if not self._own or self.pool is not None:
            return 0
        return int(self._cuda.memory_reserved(self._ordinal)) - int(self._cuda.memory_allocated(self._ordinal))

    @property
    def shared_cache(self) -> object:
        """Identifies the cache that `cached_bytes` counts: PyTorch has one for the process."""
        return self._cuda

    def trim(self, keep_bytes: int) -> None:
        """Free all unused memory in PyTorch's cache, if it exceeds ``keep_bytes``: PyTorch cannot free a part.

        With a pool always: what dropped pools have left is not counted.
        """
        if self._own and (self.pool is not None or self.cached_bytes > keep_bytes):
            self._cuda.empty_cache()

    def _open(self, driver: Driver) -> None:
        cuda = require_gpu_build(self._load("torch"), f"the memory resource {type(self).__name__}").cuda
        self._check_default(driver)
        self._cuda, self._ordinal = cuda, driver.info.ordinal
        self._own = cuda.get_allocator_backend() in OWN_ALLOCATORS

    def _acquire(self, nbytes: int, stream: int) -> tuple[object, object]:
        with nullcontext() if self.pool is None else self._cuda.use_mem_pool(self.pool, self._ordinal):
            return self._cuda.caching_allocator_alloc(nbytes, self._ordinal, raw_handle(stream)), self.pool

    def _release(self, ptr: int, nbytes: int, stream: int, home: int, owner: object) -> None:
        self._wait_unless_ordered(stream, home)
        self._cuda.caching_allocator_delete(ptr)

    def _is_out_of_memory(self, error: Exception) -> bool:
        # torch.OutOfMemoryError is a RuntimeError, and was in another module before 2.5.
        return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


class Shim:
    """The C library that PyTorch calls, and its callbacks. There is one per process, as the C functions carry no context."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.path = toolchain.shared_library("torch_shim.so", [SHIM], SHIM_FLAGS)
        self._lent: dict[int, LentBlocks] = {}
        # Kept for the life of the process, as the C library keeps their addresses.
        self._callbacks = ALLOCATE(self._allocate), FREE(self._free)
        self._library = ctypes.CDLL(str(self.path))
        self._library.devmem_refuse.argtypes = [ctypes.c_char_p, ctypes.c_int]
        self._library.devmem_refuse.restype = None
        self._library.devmem_connect(*self._callbacks)
        # Disconnected before the interpreter shuts down. Memory that PyTorch frees later is freed with the process.
        atexit.register(self._library.devmem_disconnect)

    def lent(self, ordinal: int) -> LentBlocks:
        """The blocks of one device that are lent to PyTorch."""
        if ordinal not in self._lent:
            self._lent.setdefault(
                ordinal, LentBlocks(device_of(f"{self.backend}:{ordinal}"))
            )  # one, whichever comes first
        return self._lent[ordinal]

    def _allocate(self, nbytes: int, ordinal: int, stream: int | None) -> int:
        try:
            return self.lent(ordinal).lend(nbytes, stream or 0)
        except Exception as error:
            # No Python exception passes through C: the library throws PyTorch's own for a null pointer.
            why = f"PyTorch asked devmem for {exact_size(nbytes)} on {self.backend}:{ordinal}: {error}"
            self._library.devmem_refuse(why.encode(), isinstance(error, MemoryError))
            warn(why)
            return 0

    def _free(self, ptr: int | None, nbytes: int, ordinal: int, stream: int | None) -> None:
        self.lent(ordinal).take_back_or_warn(ptr or 0, stream or 0, "PyTorch")


_shim: Shim | None = None
_shim_lock = lock("PyTorch shim", Rank.COMPILE)


def pluggable_allocator(device: Any = None) -> Any:
    """Make a ``torch.cuda.memory.CUDAPluggableAllocator`` that allocates from devmem's memory stacks.

    Install it with ``torch.cuda.memory.change_current_allocator(...)`` before PyTorch allocates anything on a device. Each device
    of the backend uses its own stack. When memory runs out, PyTorch raises ``torch.OutOfMemoryError`` with devmem's message (a
    RuntimeError about ``std::bad_alloc`` in builds from which it cannot be thrown); a DevmemWarning gives the reason too.

    Parameters
    ----------
    device : Device, int or str, optional
        Any device of the backend that PyTorch uses; by default the current device.

    Raises
    ------
    BackendUnavailable
        PyTorch is not installed or was built without GPU support, or there is no C compiler.
    ConfigError
        PyTorch already uses the devices of another backend in this process.
    """
    purpose = "devmem.adapters.torch.pluggable_allocator()"
    require_gpu_build(import_library("torch", INSTALL, purpose), purpose)
    memory = import_library("torch.cuda.memory", INSTALL, purpose)
    found = shim(device_of(device).backend)
    return memory.CUDAPluggableAllocator(str(found.path), "devmem_allocate", "devmem_free")


def shim(backend: str) -> Shim:
    """The C library of this process, connected to the memory stacks of a backend's devices."""
    global _shim
    with _shim_lock:
        if _shim is None:
            _shim = Shim(backend)
        elif _shim.backend != backend:
            raise ConfigError(f"PyTorch already allocates from {_shim.backend!r} in this process, not from {backend!r}")
        return _shim


def require_gpu_build(torch: Any, purpose: str) -> Any:
    """PyTorch, if it was built for GPUs.

    Raises
    ------
    BackendUnavailable
        It was built without GPU support, and has no GPU allocator.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        raise BackendUnavailable(
            f"{purpose} needs a PyTorch that was built for CUDA or ROCm; the one that is installed, {torch.__version__}, "
            f"supports the host only: install the build for your GPU, see pytorch.org"
        )
    return torch
