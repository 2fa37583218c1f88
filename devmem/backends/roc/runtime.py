"""The HIP runtime: finding it, and checking that it can be used and through what."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...spi.errors import BackendUnavailable, DevmemWarning
from ...toolkit import libraries
from ...toolkit.libraries import Library, LibraryMissing
from ...toolkit.locks import Rank, lock
from .binding import SERIES, Binding, installed
from .calls import Runtime
from .functions import INSUFFICIENT_DRIVER, INVALID_DEVICE, NO_DEVICE, NOT_INITIALIZED, REQUIRED

NAME = "libamdhip64.so"
#: The unversioned name comes with development packages only.
NAMES = (NAME, f"{NAME}.7", f"{NAME}.6", f"{NAME}.5")
DEFAULT_ROOT = "/opt/rocm"
#: The package that a ROCm installed by pip brings, which says where its libraries are.
ROCM_SDK = "rocm_sdk"
#: The HIP runtimes in this process.
mapped = partial(libraries.mapped, NAME)

#: Kept also where it was of no use: it cannot be unloaded, and would be found as one that another library has loaded.
_libraries: dict[str, Library] = {}
_found: dict[tuple[str, str], Runtime] = {}
_lock = lock("HIP runtime", Rank.WITHIN_DRIVER)
#: Whether a parent of this process had called the runtime when it forked: AMD calls the state that is left undefined.
_inherited = False


def reason(provider: str = "auto", library: str = "") -> str | None:
    """Why the runtime cannot be used, or None."""
    try:
        found = runtime(provider, library)
    except (BackendUnavailable, LibraryMissing) as error:
        return str(error)
    count, code = found.probe()
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
    said = sentences.get(code) or f"hipGetDeviceCount failed with {found.describe(code)[0]} ({code})"
    hidden = "" if code in (NOT_INITIALIZED, INSUFFICIENT_DRIVER) else hidden_devices()
    there = f"the HIP runtime {found.library.path} is there, but {said}"
    return "; ".join(filter(None, (there, hidden, versioned_only(found.library))))


def runtime(provider: str = "auto", library: str = "") -> Runtime:
    """The runtime by the settings, or LibraryMissing or BackendUnavailable; found once, because it cannot be unloaded."""
    if _inherited:
        raise BackendUnavailable("HIP was used before this process was forked: start processes with the 'spawn' method")
    with _lock:
        if library not in _libraries:
            _libraries[library] = _find(library)
        if (provider, library) not in _found:
            _found[provider, library] = _choose(provider, _libraries[library])
        return _found[provider, library]


def warn_of_copies(library: Library) -> None:
    """Warn if the process has two runtimes: memory of one is ordinary host memory to the other."""
    copies = list(mapped())
    if len(copies) > 1:
        warnings.warn(
            f"{len(copies)} HIP runtimes are loaded in this process ({', '.join(copies)}), which do not know each other's "
            f"memory: devmem uses {library.path}; import the other library first, or set DEVMEM_ROC_LIBRARY to its",
            DevmemWarning,
            stacklevel=3,
        )


def hidden_devices() -> str:
    """The variables that hide devices from HIP, as they are set; HIP reads CUDA's where its own is empty."""
    name = "HIP_VISIBLE_DEVICES" if os.environ.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    words = [f"{each}={os.environ[each]!r}" for each in ("ROCR_VISIBLE_DEVICES", name) if os.environ.get(each)]
    if not words:
        return ""
    also = ", which HIP obeys too while HIP_VISIBLE_DEVICES is not set" if "CUDA" in words[-1] else ""
    return f"{' and '.join(words)} may hide devices{also}"


def versioned_only(library: Library) -> str:
    """A remark where the library has no unversioned name, under which other programs look for it; else nothing."""
    path = Path(library.path)
    if path.name == NAME or path.with_name(NAME).exists():
        return ""
    return (
        f"the library is there under its versioned name only ({path.name}), as without ROCm's development files: enough for "
        f"devmem, not for programs that look for {NAME}"
    )


def _find(setting: str = "") -> Library:
    """Load the runtime, or find the one that is loaded; LibraryMissing where there is none, or it cannot be loaded."""
    searched: dict[str, None] = {}
    found = libraries.find(NAME, _candidates(setting), () if setting else NAMES, searched)
    if found is not None:
        return found
    if setting:
        raise LibraryMissing(
            f"DEVMEM_ROC_LIBRARY={setting!r} is no file: name the {NAME} of the ROCm that is to be used"
        )
    raise LibraryMissing(
        f"no HIP runtime was found ({NAME}, also .7, .6, .5, in {', '.join(searched)} and on the loader's path): install ROCm "
        f"(package hip-runtime-amd, or libamdhip64 on Debian and Ubuntu), or set DEVMEM_ROC_LIBRARY or ROCM_PATH"
    )


def _candidates(setting: str) -> Iterator[tuple[str, str]]:
    if setting:
        yield setting, "DEVMEM_ROC_LIBRARY"
        return
    try:
        of_package = [os.fspath(path) for path in importlib.import_module(ROCM_SDK).find_libraries("amdhip64")]
    except Exception:  # not installed, or without a runtime: the package has errors of its own for that
        of_package = []
    for path in of_package:
        yield path, ROCM_SDK
    roots = {variable: os.environ.get(variable, "") for variable in ("ROCM_PATH", "ROCM_HOME")}
    for how, root in {**roots, DEFAULT_ROOT: DEFAULT_ROOT}.items():
        for name in NAMES if root else ():
            yield str(Path(root, "lib", name)), how


def _choose(wanted: str, library: Library) -> Runtime:
    lacking = [name for name in REQUIRED if not library.exports(name)]
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise LibraryMissing(
            f"the HIP runtime {library.path} ({library.how}) lacks {', '.join(lacking[:3])}{more}: it is too old, or it is "
            f"something else; install ROCm 5 or newer, or set DEVMEM_ROC_LIBRARY"
        )
    passed_over: list[str] = []
    for name in filter(installed, SERIES) if wanted == "auto" else {wanted} & SERIES.keys():
        try:
            return _through(name, library, "; ".join(passed_over))
        except (ImportError, RuntimeError) as error:  # a binding that cannot load the library raises RuntimeError
            if wanted != "auto":
                raise BackendUnavailable(f"DEVMEM_ROC_PROVIDER={wanted}: {error}") from error
            passed_over.append(str(error))
    return Runtime(library, passed_over="; ".join(passed_over))


def _through(name: str, library: Library, passed_over: str) -> Runtime:
    before = set(mapped())
    found = Runtime(library, Binding(name, library.path), passed_over)
    found.probe()  # the first call: now the binding loads what it will keep
    strange = set(mapped()) - before
    if strange:
        raise BackendUnavailable(f"{found.version} loaded {', '.join(strange)} although {library.path} was there")
    return found


def _after_fork_in_child() -> None:
    global _inherited
    _inherited = bool(_found)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
