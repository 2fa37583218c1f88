"""Settings: ``DEVMEM_*`` variables, read once at first use into one frozen object."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from ... import plugins
from ...spi.driver import Configurable
from ...spi.errors import ConfigError, DevmemWarning
from .size_text import ALLOWED, parse_size

PREFIX = "DEVMEM_"
#: Variables that others read: the emulated drivers, which are started before Python is.
ELSEWHERE = "DEVMEM_EMULATOR"
#: Settings that are called after something with a vendor's name in it, and are every backend's.
SHARED = frozenset({"cuda_array_interface_sync"})


class DefaultStream(StrEnum):
    """Which stream orders work for which none was named."""

    LEGACY = "legacy"
    PER_THREAD = "per-thread"


class TransferGuard(StrEnum):
    """What happens at a copy to the host that the program did not ask for by name."""

    ALLOW = "allow"
    LOG = "log"
    DISALLOW = "disallow"


class NegativeIndices(StrEnum):
    """What the simulator does with a negative index: count from the end, as compiled code does, or report it."""

    WRAP = "wrap"
    REPORT = "report"


class Simulators(StrEnum):
    """How kernels run on the host: thread by thread, or compiled where that can be done."""

    EXACT = "exact"
    FAST = "fast"


class RocProvider(StrEnum):
    """What the HIP runtime is called through."""

    AUTO = "auto"
    ROCM = "rocm"
    HIP = "hip"
    CTYPES = "ctypes"


@dataclass(frozen=True)
class Setting:
    """One setting as it stands: its variable, its value, and where the value came from.

    ``source`` is ``default``, ``environment``, or ``unknown`` for a variable that looks like a setting and is none.

    Examples
    --------
    >>> [guard] = [setting for setting in dm.settings() if setting.name == "DEVMEM_TRANSFER_GUARD"]
    >>> str(guard.value), guard.source
    ('allow', 'default')
    """

    name: str
    value: object
    source: str
    allowed: str
    help: str


def _choice(kind: type[StrEnum]) -> tuple[Callable[[str], object], str]:
    return lambda text: kind(text.lower()), " | ".join(kind)


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _size(text: str) -> int:
    value = parse_size(text)
    if not value:
        raise ValueError
    return value


def _ratio(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise ValueError
    return value


def _flag(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}[
        text.lower()
    ]


def _level(text: str) -> str:
    if text.upper() not in {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}:
        raise ValueError
    return text.upper()


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def _setting(default: object, parse: Callable[[str], object], allowed: str, help: str) -> Any:
    return field(default=default, metadata={"parse": parse, "allowed": allowed, "help": help})


@dataclass(frozen=True)
class Settings:
    """Every setting with its default; the variable is the name in capitals behind ``DEVMEM_``.

    A setting whose name starts with a backend's name belongs to that backend and is handed to it; `SHARED` belong to no backend.
    """

    backend: str = _setting("", str.strip, "a backend's name", "backend to use; empty: the first usable GPU backend")
    device: int = _setting(0, _count, "an ordinal, 0 or more", "device to use where none is named")
    memory_manager: str = _setting(
        "",
        str.strip,
        "a stack as text (limit:4GiB,pool), or module:attribute",
        "where device memory comes from; empty: what suits the device",
    )
    pinned_memory_manager: str = _setting(
        "",
        str.strip,
        "a stack as text (statistics,pinned_pool), or module:attribute",
        "where pinned_array's memory comes from; empty: plain page-locked memory",
    )
    max_pending_deallocs_count: int = _setting(
        10, _count, "a whole number, 0 or more", "dropped blocks that may wait before the queue is drained"
    )
    max_pending_deallocs_ratio: float = _setting(
        0.2, _ratio, "a number from 0 to 1", "share of the device's memory that may wait before the queue is drained"
    )
    default_stream: DefaultStream = _setting(
        DefaultStream.LEGACY, *_choice(DefaultStream), "stream that orders work for which none was named"
    )
    staging_slots: int = _setting(
        4, _count, "a whole number, 0 or more", "page-locked slots that large pageable copies pass through; 0: none do"
    )
    staging_slot_bytes: int = _setting(16 << 20, _size, f"{ALLOWED}, 1 or more", "size of a slot")
    staging_threads: int | None = _setting(
        None,
        _positive,
        "a whole number, 1 or more",
        "threads that fill and empty the slots; unset: one for each processor, 4 at most",
    )
    staging_threshold: int | None = _setting(
        None,
        parse_size,
        f"{ALLOWED}, 0 or more",
        "size from which pageable copies pass through the slots; unset: what suits the device",
    )
    staging_limit: int = _setting(
        512 << 20,
        parse_size,
        f"{ALLOWED}, 0 or more",
        "page-locked memory of a device that copies in the background may be in; 0: such copies may wait for their stream",
    )
    block_plugins: tuple[str, ...] = _setting(
        (), _names, "names separated by commas, or *", "entry points that are not loaded"
    )
    host_strict: bool = _setting(False, _flag, "0 | 1", "host backend: device memory that the host cannot read")
    host_devices: int = _setting(1, _positive, "a whole number, 1 or more", "host backend: number of devices")
    roc_provider: RocProvider = _setting(
        RocProvider.AUTO,
        *_choice(RocProvider),
        "roc backend: what HIP is called through: hip-python 10, hip-python 7, neither; auto: the first that is there",
    )
    roc_library: str = _setting(
        "", str.strip, "the path of a file", "roc backend: the libamdhip64.so to use, unless the process has one loaded"
    )
    roc_stream_ordered: bool = _setting(
        False, _flag, "0 | 1", "roc backend: allocate from HIP's pool, in stream order, if it passes a self-test"
    )
    roc_cuda_array_interface: bool = _setting(
        False,
        _flag,
        "0 | 1",
        "roc backend: arrays say __cuda_array_interface__, which was not made for HIP, besides DLPack",
    )
    cuda_array_interface_sync: bool = _setting(
        True,
        _flag,
        "0 | 1",
        "wait, on the device, for the stream that a foreign array's __cuda_array_interface__ names",
    )
    transfer_guard: TransferGuard = _setting(
        TransferGuard.ALLOW, *_choice(TransferGuard), "what to do at an implicit copy to the host"
    )
    trace: str = _setting(
        "", str.strip, "the path of a file", "write each copy to a file that Perfetto opens; empty: none is written"
    )
    kernel_compiler: str = _setting(
        "",
        str.strip,
        "a compiler's name",
        "compiler that takes the kernels of its backend; empty: the first usable one",
    )
    races: bool = _setting(
        False, _flag, "0 | 1", "report accesses to the same bytes that no stream order, event or wait separates"
    )
    sim: Simulators = _setting(
        Simulators.EXACT,
        *_choice(Simulators),
        "simulator: run kernels thread by thread, or hand those without barriers and atomics to numba.njit",
    )
    sim_race_check: bool = _setting(
        False, _flag, "0 | 1", "simulator: report data races of a block's threads on shared memory"
    )
    sim_shuffle: int | None = _setting(
        None,
        int,
        "a whole number",
        "simulator: a seed; threads and blocks run in an order drawn from it, and races are reported",
    )
    sim_wave_size: int = _setting(
        32, _positive, "a whole number, 1 or more", "simulator: threads of a warp or wavefront"
    )
    sim_negative: NegativeIndices = _setting(
        NegativeIndices.WRAP,
        *_choice(NegativeIndices),
        "simulator: negative indices count from the end, as in compiled code, or are reported",
    )
    sim_log: str = _setting(
        "",
        str.strip,
        "the path of a file",
        "simulator: append a line of JSON for each launch to a file: what ran, how long, and what was found; empty: none",
    )
    native: bool = _setting(
        True, _flag, "0 | 1", "use the compiled core, where it was built; read when devmem is imported; 1: it has to be"
    )
    log_level: str = _setting("WARNING", _level, "a level of the logging module", "level of the logger 'devmem'")

    def for_backend(self, name: str) -> dict[str, object]:
        """The settings that belong to one backend, under their names without the prefix."""
        prefix = name + "_"
        return {
            item.name[len(prefix) :]: getattr(self, item.name)
            for item in fields(self)
            if item.name.startswith(prefix) and item.name not in SHARED
        }


_current: Settings | None = None
_given: frozenset[str] = frozenset()
_told: set[str] = set()


def settings() -> Settings:
    """The settings in force; the environment is read at the first call, which warns of names that are no settings, once each.

    Raises
    ------
    ConfigError
        A variable has a value that is not allowed.
    """
    global _current
    if _current is None:
        _current = _read()
        _apply_log_level(_current.log_level)
        _warn_of_strangers()
    return _current


def options_of(backend: Configurable) -> dict[str, object]:
    """What is set for one backend: of a built-in one all its settings, of another one what is set of its ``options``, as text.

    Warns of variables with its name that it does not know, once each.
    """
    if backend.name in plugins.BUILT_IN:
        return settings().for_backend(backend.name)
    _warn_of_strangers()
    return {
        option: os.environ[_variable(backend, option)]
        for option in backend.options
        if _variable(backend, option) in os.environ
    }


def forget() -> None:
    """Read the environment again at the next use."""
    global _current
    _current = None


def describe() -> list[Setting]:
    """Every setting as it stands, for people; behind them the variables that look like settings and are none."""
    current = settings()
    known = [
        Setting(
            name=PREFIX + item.name.upper(),
            value=getattr(current, item.name),
            source="environment" if item.name in _given else "default",
            allowed=item.metadata["allowed"],
            help=item.metadata["help"],
        )
        for item in fields(Settings)
    ]
    theirs = [
        Setting(
            name=_variable(backend, option),
            value=os.environ.get(_variable(backend, option), ""),
            source="environment" if _variable(backend, option) in os.environ else "default",
            allowed=f"as the backend {backend.name!r} says",
            help=help,
        )
        for backend in _configurable()
        for option, help in backend.options.items()
    ]
    return [*known, *theirs, *_strangers()]


def caller_level() -> int:
    """The stacklevel at which a warning names the line outside devmem that led to the caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "devmem":
        level, frame = level + 1, frame.f_back
    return level


def call_site() -> tuple[str, int]:
    """The file and the line outside devmem and NumPy that led to the caller."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("devmem", "numpy"):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def variable_of(backend: str, option: str) -> str:
    """The variable of an option of a backend; the empty text where it has no such option."""
    variable = _prefix(backend) + option.upper()
    return variable if any(each.name == variable and each.source != "unknown" for each in describe()) else ""


def _configurable() -> list[Configurable]:
    """The backends of other packages that are loaded and have settings."""
    theirs = [each.backend for name, each in plugins.registry.backends.items() if name not in plugins.BUILT_IN]
    return [backend for backend in theirs if isinstance(backend, Configurable)]


def _variable(backend: Configurable, option: str) -> str:
    return f"{_prefix(backend.name)}{option.upper()}"


def _prefix(name: str) -> str:
    return f"{PREFIX}{name.upper().replace('-', '_')}_"


def _warn_of_strangers() -> None:
    for stranger in _strangers():
        if stranger.name not in _told:
            _told.add(stranger.name)
            warnings.warn(stranger.help, DevmemWarning, stacklevel=caller_level())


def _strangers() -> list[Setting]:
    """Variables with devmem's prefix that are not read. Of a third-party backend that does not say its own it is not known."""
    known = {PREFIX + item.name.upper() for item in fields(Settings)}
    names = [name for name in os.environ if name.startswith(PREFIX) and name not in known]
    names = sorted(name for name in names if name != ELSEWHERE and not name.startswith(ELSEWHERE + "_"))
    if not names:
        return []
    import difflib  # only for those who made a mistake

    say = _configurable()
    known |= {_variable(backend, option) for backend in say for option in backend.options}
    silent = plugins.registry.third_party_names() - {backend.name for backend in say}
    shorter = [each.removeprefix(PREFIX) for each in known]
    found = []
    for name in names:
        if name not in known and not name.startswith(tuple(map(_prefix, silent))):
            close = difflib.get_close_matches(name.removeprefix(PREFIX), shorter, n=1)
            advice = f"did you mean {PREFIX}{close[0]}?" if close else "unset it; `devmem info` lists what there is"
            help = f"{name} is not a setting of devmem and does nothing: {advice}"
            found.append(Setting(name, os.environ[name], "unknown", "", help))
    return found


def _read() -> Settings:
    values: dict[str, Any] = {}
    for item in fields(Settings):
        variable = PREFIX + item.name.upper()
        text = os.environ.get(variable)
        if text is None:
            continue
        try:
            values[item.name] = item.metadata["parse"](text)
        except (ValueError, KeyError):
            allowed = item.metadata["allowed"]
            raise ConfigError(f"{variable}={text!r} is not allowed: give {allowed}, or unset it") from None
    global _given
    _given = frozenset(values)
    return Settings(**values)


def _apply_log_level(level: str) -> None:
    # Only a level that the user asked for is imposed: otherwise the application's own logging configuration rules.
    if "log_level" in _given:
        import logging

        logging.getLogger("devmem").setLevel(level)
