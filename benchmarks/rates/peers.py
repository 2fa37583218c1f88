"""Other libraries, if installed."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

import numpy as np

from .driver import Array
from .libraries import Bare, Devmem, Library
from .tables import one_line
from .tasks import same


class Cupy(Library):
    """CuPy, with memory in its pools."""

    name = "CuPy"

    def __init__(self) -> None:
        self.cp = importlib.import_module("cupy")

    def version(self) -> str:
        return str(self.cp.__version__)

    def upload(self, host: Array) -> Any:
        return self.cp.asarray(host)

    def allocate(self, shape: tuple[int, ...]) -> Any:
        return self.cp.empty(shape, np.float32)

    def write(self, device: Any, host: Array) -> None:
        device.set(host)

    def download(self, device: Any) -> Array:
        made: Array = device.get()
        return made

    def read(self, device: Any, out: Array) -> None:
        device.get(out=out)

    def move(self, dst: Any, src: Any) -> None:
        self.cp.copyto(dst, src)

    def write_transposed(self, device: Any, host: Array) -> None:
        device[...] = self.cp.asarray(host).T

    def read_transposed(self, device: Any, out: Array) -> None:
        self.cp.ascontiguousarray(device.T).get(out=out)

    def download_every_second(self, device: Any) -> Array:
        made: Array = device[:, ::2].get()
        return made

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        asarray, empty, shape = self.cp.asarray, self.cp.empty, host.shape
        return {
            "upload": lambda: asarray(host),
            "read": lambda: device.get(out=out),
            "create": lambda: empty(shape, np.float32),
        }


class Torch(Library):
    """PyTorch, with memory in its caching allocator."""

    name = "PyTorch"

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        if not self.torch.cuda.is_available():
            raise ImportError("torch.cuda.is_available() is False")

    def version(self) -> str:
        return str(self.torch.__version__)

    def upload(self, host: Array) -> Any:
        return self.torch.from_numpy(host).to("cuda")

    def allocate(self, shape: tuple[int, ...]) -> Any:
        return self.torch.empty(shape, dtype=self.torch.float32, device="cuda")

    def write(self, device: Any, host: Array) -> None:
        device.copy_(self.torch.from_numpy(host))

    def download(self, device: Any) -> Array:
        made: Array = device.cpu().numpy()
        return made

    def read(self, device: Any, out: Array) -> None:
        self.torch.from_numpy(out).copy_(device)

    def move(self, dst: Any, src: Any) -> None:
        dst.copy_(src)

    def write_transposed(self, device: Any, host: Array) -> None:
        device.copy_(self.torch.from_numpy(host).to("cuda").T)

    def read_transposed(self, device: Any, out: Array) -> None:
        self.torch.from_numpy(out).copy_(device.T.contiguous())

    def download_every_second(self, device: Any) -> Array:
        made: Array = device[:, ::2].contiguous().cpu().numpy()
        return made

    def pointer(self, device: Any) -> int:
        return int(device.data_ptr())

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        torch, shape = self.torch, host.shape
        from_numpy, empty = torch.from_numpy, torch.empty
        return {
            "upload": lambda: from_numpy(host).to("cuda"),
            "read": lambda: from_numpy(out).copy_(device),
            "create": lambda: empty(shape, dtype=torch.float32, device="cuda"),
        }


class NumbaCuda(Library):
    """numba-cuda accepts only contiguous arrays: NumPy packs or unpacks the others, as its users must."""

    name = "numba-cuda"
    backends = ("cuda",)

    def __init__(self) -> None:
        self.cuda = importlib.import_module("numba.cuda")
        importlib.metadata.version("numba-cuda")

    def version(self) -> str:
        return importlib.metadata.version("numba-cuda")

    def upload(self, host: Array) -> Any:
        return self.cuda.to_device(host if host.flags.c_contiguous else np.ascontiguousarray(host))

    def allocate(self, shape: tuple[int, ...]) -> Any:
        return self.cuda.device_array(shape, np.float32)

    def write(self, device: Any, host: Array) -> None:
        device.copy_to_device(host)

    def download(self, device: Any) -> Array:
        made: Array = device.copy_to_host()
        return made

    def read(self, device: Any, out: Array) -> None:
        device.copy_to_host(out)

    def move(self, dst: Any, src: Any) -> None:
        dst.copy_to_device(src)

    def write_transposed(self, device: Any, host: Array) -> None:
        device.copy_to_device(np.ascontiguousarray(host.T))

    def read_transposed(self, device: Any, out: Array) -> None:
        np.copyto(out, device.copy_to_host().T)

    def download_every_second(self, device: Any) -> Array:
        return np.ascontiguousarray(device.copy_to_host()[:, ::2])

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        cuda, shape = self.cuda, host.shape
        return {
            "upload": lambda: cuda.to_device(host),
            "read": lambda: device.copy_to_host(out),
            "create": lambda: cuda.device_array(shape, np.float32),
        }


def find_libraries(backend: str, emulated: bool) -> tuple[list[Library], dict[str, str]]:
    """The usable libraries, and for each library its version or the reason why it is not used."""
    usable: list[Library] = []
    states: dict[str, str] = {}
    for kind in (Devmem, Bare, Cupy, Torch, NumbaCuda):
        if backend not in kind.backends:
            continue
        if emulated and kind in (Cupy, Torch):
            states[kind.name] = "not used: it launches kernels, which the emulated driver refuses"
            continue
        try:
            library = kind()
            states[library.name] = library.version()
            device = library.upload(np.ones(16, np.float32))  # do one-time work before the timing
            same(np.asarray(library.download(device)), np.ones(16, np.float32))
            usable.append(library)
        except Exception as error:
            states[kind.name or kind.__name__] = f"not used: {one_line(error)}"
    return usable, states
