"""PyTorch: its caching allocator as ours, and our stack as its pluggable allocator.

PyTorch calls a pluggable allocator through C function pointers, from any thread, with or without the interpreter's lock. A small
C library, compiled when it is first asked for, takes those calls to Python; after the interpreter's end it takes none.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..api.devices import device as device_of
from ..spi.driver import Driver
from ..spi.errors import BackendUnavailable, ConfigError
from ..toolkit import toolchain
from .foreign_resource import ForeignResource, load, raw
from .lent_blocks import LentBlocks, tell

INSTALL = "torch"
SHIM = Path(__file__).with_name("torch_shim.c")
#: An exception of C++ has to pass through it.
SHIM_FLAGS = ("-fexceptions", "-ldl")

#: PyTorch's own allocators, as it names them: both order the reuse of memory by stream, and count what they hold.
OWN = ("native", "cudaMallocAsync")

ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


class TorchMemory(ForeignResource):
    """Memory from PyTorch's caching allocator, so that tensors and devmem's arrays share one cache.

    Parameters
    ----------
    pool : torch.cuda.MemPool, optional
        Take memory from this pool instead of the common one.
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
        """True of PyTorch's own allocators. Of one that was plugged into it nothing is known."""
        return self._own

    @property
    def cached_bytes(self) -> int:
        """Bytes that PyTorch has reserved on the device and no tensor or array uses; 0 for an allocator plugged into it."""
        if not self._own:
            return 0
        return int(self._cuda.memory_reserved(self._ordinal)) - int(self._cuda.memory_allocated(self._ordinal))

    @property
    def shared_cache(self) -> object:
        """Whose memory `cached_bytes` counts: PyTorch's cache is one for the process."""
        return self._cuda

    def trim(self, keep_bytes: int) -> None:
        """Let PyTorch give back all that is unused, if that is more than ``keep_bytes``: it cannot give back a part."""
        if self.cached_bytes > keep_bytes:
            self._cuda.empty_cache()

    def _open(self, driver: Driver) -> None:
        cuda = built(self._load("torch"), f"the memory resource {type(self).__name__}").cuda
        self._check_default(driver)
        self._cuda, self._ordinal = cuda, driver.info.ordinal
        self._own = cuda.get_allocator_backend() in OWN

    def _take(self, nbytes: int, stream: int) -> tuple[object, object]:
        with nullcontext() if self.pool is None else self._cuda.use_mem_pool(self.pool, self._ordinal):
            return self._cuda.caching_allocator_alloc(nbytes, self._ordinal, raw(stream)), self.pool

    def _give(self, ptr: int, nbytes: int, stream: int, home: int, owner: object) -> None:
        self._settle(stream, home)
        self._cuda.caching_allocator_delete(ptr)

    def _ran_out(self, error: Exception) -> bool:
        # torch.OutOfMemoryError is a RuntimeError, and had another home before 2.5.
        return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


class Shim:
    """The C functions that PyTorch calls, and what they call here. One for the process: they carry no argument of ours."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.path = toolchain.shared_library("torch_shim.so", [SHIM], SHIM_FLAGS)
        self._loans: dict[int, LentBlocks] = {}
        self._lock = threading.Lock()
        # Kept for as long as the process lives, as C keeps their addresses.
        self._callbacks = ALLOCATE(self._allocate), FREE(self._free)
        self._library = ctypes.CDLL(str(self.path))
        self._library.devmem_connect(*self._callbacks)
        # Before anything of the interpreter is gone. What PyTorch frees later goes with the process.
        atexit.register(self._library.devmem_disconnect)

    def loans(self, ordinal: int) -> LentBlocks:
        """What PyTorch has on loan of one device."""
        with self._lock:
            if ordinal not in self._loans:
                self._loans[ordinal] = LentBlocks(device_of(f"{self.backend}:{ordinal}"))
            return self._loans[ordinal]

    def _allocate(self, nbytes: int, ordinal: int, stream: int | None) -> int:
        try:
            return self.loans(ordinal).lend(nbytes, stream or 0)
        except Exception as error:
            # Nothing can be raised through C: the library throws std::bad_alloc for a null pointer, and this says why.
            tell(f"PyTorch asked devmem for {nbytes} bytes on {self.backend}:{ordinal}: {error}")
            return 0

    def _free(self, ptr: int | None, nbytes: int, ordinal: int, stream: int | None) -> None:
        self.loans(ordinal).take_back_or_tell(ptr or 0, stream or 0, "PyTorch")


_shim: Shim | None = None
_shim_lock = threading.Lock()


def pluggable_allocator(device: Any = None) -> Any:
    """Make a ``torch.cuda.memory.CUDAPluggableAllocator`` that allocates from devmem's memory stacks.

    Install it with ``torch.cuda.memory.change_current_allocator(...)`` before PyTorch allocates anything on a device. Every
    device of the backend is served by its own stack. Running out of memory raises in PyTorch as a failed allocation; the reason
    comes as a DevmemWarning.

    Parameters
    ----------
    device : Device, int or str, optional
        Any device of the backend that PyTorch runs on; the current device, if not given.

    Raises
    ------
    BackendUnavailable
        PyTorch is not installed, or was built for no GPU, or there is no C compiler.
    ConfigError
        This process serves PyTorch from the devices of another backend already.
    """
    purpose = "devmem.adapters.torch.pluggable_allocator()"
    built(load("torch", INSTALL, purpose), purpose)
    memory = load("torch.cuda.memory", INSTALL, purpose)
    found = shim(device_of(device).backend)
    return memory.CUDAPluggableAllocator(str(found.path), "devmem_allocate", "devmem_free")


def shim(backend: str) -> Shim:
    """The process's C library, connected to the memory stacks of a backend's devices."""
    global _shim
    with _shim_lock:
        if _shim is None:
            _shim = Shim(backend)
        elif _shim.backend != backend:
            raise ConfigError(f"PyTorch is served from {_shim.backend!r} in this process already, not from {backend!r}")
        return _shim


def built(torch: Any, purpose: str) -> Any:
    """PyTorch, if it was built for GPUs at all.

    Raises
    ------
    BackendUnavailable
        It was built for the host alone: its allocator, and what one is plugged into, are missing.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        raise BackendUnavailable(
            f"{purpose} needs a PyTorch that was built for CUDA or ROCm; the one that is installed, {torch.__version__}, "
            f"knows the host only: install the build for your GPU, as pytorch.org says"
        )
    return torch
