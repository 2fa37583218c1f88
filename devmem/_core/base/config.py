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
from ...toolkit.settings import parse_count, parse_flag
from .size_text import ALLOWED, parse_size

PREFIX = "DEVMEM_"
#: Variables that others read: the emulated drivers, which are started before Python is.
ELSEWHERE = "DEVMEM_EMULATOR"


class DefaultStream(StrEnum):
    """The stream that orders work for which none was named."""

    LEGACY = "legacy"
    PER_THREAD = "per-thread"


class TransferGuard(StrEnum):
    """The reaction to a copy to the host that the program did not ask for by name."""

    ALLOW = "allow"
    LOG = "log"
    DISALLOW = "disallow"


class NegativeIndices(StrEnum):
    """The simulator's treatment of a negative index: count from the end, as compiled code does, or report it."""

    WRAP = "wrap"
    REPORT = "report"


class Simulators(StrEnum):
    """The way in which kernels run on the host: thread by thread, or compiled where that can be done."""

    EXACT = "exact"
    FAST = "fast"


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
    """Every setting of devmem's own with its default; the variable is the name in capitals behind ``DEVMEM_``.

    A backend has settings of its own, whose names begin with its name, and says which (`Configurable`).
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
        parse_count,
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
    cuda_array_interface_sync: bool = _setting(
        True,
        parse_flag,
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
        False, parse_flag, "0 | 1", "report accesses to the same bytes that no stream order, event or wait separates"
    )
    sim: Simulators = _setting(
        Simulators.EXACT,
        *_choice(Simulators),
        "simulator: run kernels thread by thread, or hand those without barriers and atomics to numba.njit",
    )
    sim_race_check: bool = _setting(
        False, parse_flag, "0 | 1", "simulator: report data races of a block's threads on shared memory"
    )
    sim_shuffle: int | None = _setting(
        None,
        int,
        "a whole number",
        "simulator: a seed; threads and blocks run in an order drawn from it, and races are reported",
    )
    sim_wave_size: int = _setting(
        32, parse_count, "a whole number, 1 or more", "simulator: threads of a warp or wavefront"
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
        True,
        parse_flag,
        "0 | 1",
        "use the compiled core, where it was built; read when devmem is imported; 1: it has to be",
    )
    log_level: str = _setting("WARNING", _level, "a level of the logging module", "level of the logger 'devmem'")


_current: Settings | None = None
#: The variables with devmem's prefix, as they were when the settings were read.
_environment: dict[str, str] = {}
#: The variables of backends that were passed to them.
_handed_over: set[str] = set()
_told: set[str] = set()


def settings() -> Settings:
    """The settings in force; the environment is read at the first call, which warns of names that are no settings, once each.

    Raises
    ------
    ConfigError
        A variable has a value that is not allowed.
    """
    global _current, _environment
    if _current is None:
        _environment = {name: text for name, text in os.environ.items() if name.startswith(PREFIX)}
        current = _read()
        for backend in _configurable() if _unread() else ():
            _options(backend)  # what is not allowed is refused here, whichever backend is used
        _current = current
        _apply_log_level(current.log_level)
        _warn_of_strangers()
    return _current


def options_of(backend: Configurable) -> dict[str, object]:
    """Return a backend's settings, and the default of each that an earlier call returned and that is no longer set.

    Nothing else: a program may have configured the backend itself. Warns of variables with its name that it does not know, once
    each.
    """
    settings()
    _warn_of_strangers()
    found = _options(backend)
    for name, option in backend.options.items():
        variable = _variable(backend, name)
        if name in found:
            _handed_over.add(variable)
        elif variable in _handed_over and not isinstance(option, str):
            found[name] = option.default
    return found


def _options(backend: Configurable) -> dict[str, object]:
    """Return a backend's settings: the value of an `Option`, the text of an option that is described by text."""
    found: dict[str, object] = {}
    for name, option in backend.options.items():
        variable = _variable(backend, name)
        if variable in _environment:
            parse, allowed = (str, "") if isinstance(option, str) else (option.parse, option.allowed)
            found[name] = _parsed(variable, parse, allowed)
    return found


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
            source=_source(PREFIX + item.name.upper()),
            allowed=item.metadata["allowed"],
            help=item.metadata["help"],
        )
        for item in fields(Settings)
    ]
    theirs = [_setting_of(backend, name) for backend in _configurable() for name in backend.options]
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


def _setting_of(backend: Configurable, name: str) -> Setting:
    """One option of a backend as it stands."""
    option, variable = backend.options[name], _variable(backend, name)
    found = _options(backend)
    if isinstance(option, str):
        allowed = f"as the backend {backend.name!r} says"
        return Setting(variable, found.get(name, ""), _source(variable), allowed, option)
    value = found.get(name, option.default)
    return Setting(variable, value, _source(variable), option.allowed, f"{backend.name} backend: {option.help}")


def _source(variable: str) -> str:
    return "environment" if variable in _environment else "default"


def _configurable() -> list[Configurable]:
    """The backends with settings: built-in ones, and those of other packages that are loaded."""
    loaded = [each.backend for each in plugins.registry.loaded_backends().values()]
    return [backend for backend in loaded if isinstance(backend, Configurable)]


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
    names = _unread()
    if not names:
        return []
    say = _configurable()
    options = {_variable(backend, option) for backend in say for option in backend.options}
    names = [name for name in names if name not in options]
    if not names:
        return []
    import difflib  # only for those who made a mistake

    known = {PREFIX + item.name.upper() for item in fields(Settings)} | options
    silent = plugins.registry.third_party_names() - {backend.name for backend in say}
    shorter = [each.removeprefix(PREFIX) for each in known]
    found = []
    for name in names:
        if not name.startswith(tuple(map(_prefix, silent))):
            close = difflib.get_close_matches(name.removeprefix(PREFIX), shorter, n=1)
            advice = f"did you mean {PREFIX}{close[0]}?" if close else "unset it; `devmem info` lists what there is"
            help = f"{name} is not a setting of devmem and does nothing: {advice}"
            found.append(Setting(name, _environment[name], "unknown", "", help))
    return found


def _unread() -> list[str]:
    """The variables that are none of devmem's own settings: those of backends, and those that are not read at all."""
    known = {PREFIX + item.name.upper() for item in fields(Settings)}
    names = sorted(_environment.keys() - known)
    return [name for name in names if name != ELSEWHERE and not name.startswith(ELSEWHERE + "_")]


def _read() -> Settings:
    values: dict[str, Any] = {
        item.name: _parsed(variable, item.metadata["parse"], item.metadata["allowed"])
        for item in fields(Settings)
        if (variable := PREFIX + item.name.upper()) in _environment
    }
    return Settings(**values)


def _parsed(variable: str, parse: Callable[[str], object], allowed: str) -> object:
    """The value of a variable that is set."""
    text = _environment[variable]
    try:
        return parse(text)
    except (ValueError, KeyError):
        raise ConfigError(f"{variable}={text!r} is not allowed: give {allowed}, or unset it") from None


def _apply_log_level(level: str) -> None:
    # Only a level that the user asked for is imposed: otherwise the application's own logging configuration rules.
    if PREFIX + "LOG_LEVEL" in _environment:
        import logging

        logging.getLogger("devmem").setLevel(level)
