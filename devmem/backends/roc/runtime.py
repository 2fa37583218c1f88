"""Finding out whether there is a HIP runtime to talk to, through what, and what its errors mean."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from ...spi.errors import BackendError, BackendUnavailable, DeviceLost, DevmemWarning, OutOfMemory, UnsupportedError
from . import by_binding, by_ctypes, finder
from .finder import Library, Missing
from .functions import (
    INSUFFICIENT_DRIVER,
    INVALID_DEVICE,
    NO_DEVICE,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    REQUIRED,
    STICKY,
    Provider,
)

#: In the order in which they are tried.
PROVIDERS = ("rocm", "hip", "ctypes")
UPGRADE = "pip install 'devmem-arrays[rocm]'"
_INSTALL = {"rocm": UPGRADE, "hip": "pip install 'hip-python>=7,<8'"}

#: Kept also where it was of no use: it cannot be unloaded, and would be found as one that somebody else has loaded.
_libraries: dict[str, Library] = {}
_found: dict[tuple[str, str], Runtime] = {}
_lock = threading.Lock()
#: Whether a parent of this process had called the runtime when it forked: AMD calls the state that is left undefined.
_inherited = False


class Runtime:
    """The library, and the provider that it is called through."""

    def __init__(self, library: Library, provider: Provider, passed_over: str) -> None:
        self.library = library
        self.provider = provider
        #: Why a provider that would have come first is not used.
        self.passed_over = passed_over
        self.clear = provider.bind("hipGetLastError", lambda *_: None)

    def count(self) -> int:
        """The number of devices."""
        found: int = self.provider.bind("hipGetDeviceCount", self.fail)()
        return found

    def fail(self, call: str, code: int) -> NoReturn:
        """Raise the error that a status stands for, and leave none behind for others who ask for the last one."""
        self.clear()
        name, sentence = self.provider.describe(code)
        kind = OutOfMemory if code == OUT_OF_MEMORY else DeviceLost if code in STICKY else BackendError
        message = f"{call} failed with {name} ({code}): {sentence}"
        if kind is DeviceLost:
            message += "; the device is lost for this process: restart it"
        raise kind(message, backend="roc", call=call, code=code, name=name)

    def warn_of_copies(self) -> None:
        """Say so if the process has two runtimes: memory of one is ordinary host memory to the other."""
        copies = list(finder.mapped())
        if len(copies) > 1:
            warnings.warn(
                f"{len(copies)} HIP runtimes are loaded in this process ({', '.join(copies)}), which do not know each other's "
                f"memory: devmem uses {self.library.path}; import the other library first, or set DEVMEM_ROC_LIBRARY to its",
                DevmemWarning,
                stacklevel=3,
            )


def reason(provider: str = "auto", library: str = "") -> str | None:
    """Why the runtime cannot be used, or None."""
    try:
        found = runtime(provider, library)
    except (BackendUnavailable, Missing) as error:
        return str(error)
    count, code = _probe(found.provider)
    if code == 0 and count:
        return None
    sentences = {
        0: "it has no device to show: check rocminfo",
        NO_DEVICE: "it sees no AMD GPU: check rocminfo, and that /dev/kfd is there",
        INVALID_DEVICE: "it could not set up any AMD GPU: check rocminfo, and that you may open /dev/kfd and /dev/dri/renderD* "
        "(groups render and video)",
        NOT_INITIALIZED: "it could not be initialised: check that the kernel module amdgpu is loaded (rocminfo), and that this "
        "process was not forked from one that used HIP",
        INSUFFICIENT_DRIVER: "the amdgpu driver is too old for it: update the driver, or use an older ROCm",
    }
    said = sentences.get(code) or f"hipGetDeviceCount failed with {found.provider.describe(code)[0]} ({code})"
    hidden = "" if code in (NOT_INITIALIZED, INSUFFICIENT_DRIVER) else hiding()
    parts = (f"the HIP runtime {found.library.path} is there, but {said}", hidden, found.library.versioned_only)
    return "; ".join(filter(None, parts))


def runtime(provider: str = "auto", library: str = "") -> Runtime:
    """The runtime by the settings; found once, because it cannot be unloaded.

    Raises
    ------
    Missing, BackendUnavailable
        There is none, or it cannot be called; the text says why and what would help.
    """
    if _inherited:
        raise BackendUnavailable("HIP was used before this process was forked: start processes with the 'spawn' method")
    with _lock:
        if library not in _libraries:
            _libraries[library] = finder.find(library)
        if (provider, library) not in _found:
            _found[provider, library] = _choose(provider, _libraries[library])
        return _found[provider, library]


def hiding() -> str:
    """The variables that hide devices from HIP, as they are set; HIP reads CUDA's where its own is empty."""
    name = "HIP_VISIBLE_DEVICES" if os.environ.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    words = [f"{each}={os.environ[each]!r}" for each in ("ROCR_VISIBLE_DEVICES", name) if os.environ.get(each)]
    if not words:
        return ""
    also = ", which HIP obeys too while HIP_VISIBLE_DEVICES is not set" if "CUDA" in words[-1] else ""
    return f"{' and '.join(words)} may hide devices{also}"


def _choose(wanted: str, library: Library) -> Runtime:
    lacking = [name for name in REQUIRED if not library.exports(name)]
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise Missing(
            f"the HIP runtime {library.path} ({library.how}) lacks {', '.join(lacking[:3])}{more}: it is too old, or it is "
            f"something else; install ROCm 5 or newer, or set DEVMEM_ROC_LIBRARY"
        )
    passed_over: list[str] = []
    for name in PROVIDERS if wanted == "auto" else (wanted,):
        try:
            return Runtime(library, _make(name, library), "; ".join(passed_over))
        except ImportError as error:  # BackendUnavailable is one
            if wanted != "auto":
                raise BackendUnavailable(f"DEVMEM_ROC_PROVIDER={wanted}: {error}") from error
            passed_over += [str(error)] if by_binding.installed(name) else []
    raise AssertionError("ctypes is always there")


def _make(name: str, library: Library) -> Provider:
    if name == "ctypes":
        return by_ctypes.ByCtypes(library)
    if not by_binding.installed(name):
        raise ImportError(f"hip-python of that series is not installed: {_INSTALL[name]}")
    before = set(finder.mapped())
    made = by_binding.ByBinding(name, library)
    _probe(made)  # the first call: now it loads what it will keep
    strange = set(finder.mapped()) - before
    if strange:
        raise BackendUnavailable(f"{made.version} loaded {', '.join(strange)} although {library.path} was there")
    return made


def _probe(provider: Provider) -> tuple[int, int]:
    """(devices, status), whatever the status."""

    def fail(call: str, code: int) -> NoReturn:
        raise _Status(code)

    try:
        return provider.bind("hipGetDeviceCount", fail)(), 0
    except _Status as status:
        return 0, status.code


class _Status(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Calls:
    """Every function that the runtime has, checked, as an attribute; for one open device."""

    def __init__(self, found: Runtime, fail: Callable[[str, int], NoReturn], names: Any) -> None:
        for name in names:
            if found.provider.has(name):
                setattr(self, name, found.provider.bind(name, fail))

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(f"this HIP runtime has no {name}: it needs a newer ROCm")


def _after_fork_in_child() -> None:
    global _lock, _inherited
    _lock, _inherited = threading.Lock(), bool(_found)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
