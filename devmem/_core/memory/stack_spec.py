"""A memory stack that is written as text: ``limit:4GiB,statistics,pool``, outermost first.

Parts are separated by commas. A part is a name, or a name and its arguments behind a colon, which are separated by
semicolons: by position, by ``name=value``, or the bare name of what is on or off. What is no name is ``module:attribute``. A
comma, or a semicolon in an argument, cannot be spelled: build such a stack in Python.
"""

from __future__ import annotations

import importlib
import importlib.util
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ...plugins import ADAPTERS, MANAGER
from ...spi.errors import ConfigError, DevmemError, PluginError
from ...spi.memory import MemoryResource
from ..base.device_handle import DeviceHandle
from ..base.plugin_registry import registry
from ..base.size_text import ALLOWED, ALLOWED_SHARE, check_size, parse_size
from .direct import DriverMemory, ManagedMemory, MappedMemory, PinnedMemory, StreamOrderedMemory, VirtualMemory
from .failing import FailNth
from .foreign import check_resource, check_version, defined_at, package_of, where
from .guard import Guard
from .limit import Limit
from .log import Log
from .pool.pinned_pool import PinnedPool
from .pool.pool import PoolMemory
from .prefetch import Prefetch
from .scrub import Scrub
from .statistics import Statistics

#: Each part calls the one below it: more would not fit onto Python's own stack.
MAX_PARTS = 64


@dataclass(frozen=True)
class Argument:
    """One argument of a part: what makes a value of its text, and what is allowed, for people."""

    parse: Callable[[str], object]
    allowed: str
    required: bool = False


@dataclass(frozen=True)
class Part:
    """The meaning of a name: a callable, its arguments, and whether it stands over another resource; if so, whether it
    chooses by itself what it stands on (``bottom``) where nothing else is written.
    """

    make: Callable[..., MemoryResource]
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    over: bool = True
    bottom: bool = False


def _whole(text: str) -> int:
    return int(text, 0)


SIZE = Argument(parse_size, ALLOWED)
SHARE = Argument(check_size, ALLOWED_SHARE)
HOST_SHARE = Argument(check_size, f"{ALLOWED}, or a share of the host's memory (25%)")
FLAG = Argument(lambda text: {"1": True, "0": False}[text], "the name alone, or 1 or 0 behind =")

NAMED: dict[str, Part] = {
    "driver": Part(DriverMemory, over=False),
    "stream_ordered": Part(
        StreamOrderedMemory, {"release_threshold": SHARE, "current": FLAG, "hw_decompress": FLAG}, over=False
    ),
    "virtual": Part(VirtualMemory, {"fabric": FLAG}, over=False),
    "managed": Part(ManagedMemory, over=False),
    "pinned": Part(PinnedMemory, over=False),
    "mapped": Part(MappedMemory, over=False),
    "limit": Part(Limit, {"max_bytes": replace(SHARE, required=True)}),
    "statistics": Part(Statistics, {"owners": FLAG}),
    "log": Part(Log, {"path": Argument(str, "a path", required=True), "frames": Argument(_whole, "a number from 0")}),
    "guard": Part(Guard, {"redzone": SIZE, "quarantine_bytes": SIZE}),
    "scrub": Part(Scrub, {"byte": Argument(_whole, "a number from 0 to 255")}),
    "fail_nth": Part(FailNth, {"n": Argument(_whole, "a number from 1", required=True), "repeat": FLAG}),
    "pinned_pool": Part(
        PinnedPool, {"max_bytes": HOST_SHARE, "numa_node": Argument(_whole, "a node's number")}, bottom=True
    ),
    "pool": Part(PoolMemory, {"max_bytes": SIZE}, bottom=True),
    "prefetch": Part(Prefetch, bottom=True),
}


def build(text: str, handle: DeviceHandle, below: Callable[[], MemoryResource]) -> MemoryResource:
    """The stack that a text means, not bound yet; ``below`` makes what it stands on where the text does not say.

    Raises
    ------
    ConfigError
        A name is unknown, or an argument is wrong; lists what is allowed.
    PluginError
        What a plugin or a module supplies cannot be loaded, or is no resource.
    """
    if not text:
        raise ConfigError(f"no memory resource is named '': give {allowed()}")
    resource: MemoryResource | None = None
    parts = text.split(",", MAX_PARTS)
    if len(parts) > MAX_PARTS:
        raise ConfigError(f"a stack has at most {MAX_PARTS} parts, got more: {text[:60]!r}...")
    for part in reversed(parts):
        resource = _part(part.strip(), resource, handle, below)
    assert resource is not None
    return resource


def allowed() -> str:
    """Return the description of a part of a text, for messages."""
    return f"one of {', '.join(names())}, or module:attribute; several are separated by commas, the outermost first"


def names() -> list[str]:
    """The names that a part of a text may have."""
    return sorted({*NAMED, *ADAPTERS, *registry().resources})


def _part(
    text: str, upstream: MemoryResource | None, handle: DeviceHandle, below: Callable[[], MemoryResource]
) -> MemoryResource:
    name, colon, argument = text.partition(":")
    name = name.strip()
    if name in NAMED:
        part = NAMED[name]
        values = _arguments(name, part, argument)
        if colon and not values:
            raise ConfigError(f"{text!r} has a colon and no arguments: {_usage(name, part)}")
        if part.over:
            return part.make(below() if upstream is None and not part.bottom else upstream, **values)
        if upstream is not None:
            raise ConfigError(
                f"{name!r} stands over nothing else, so it is the last: {upstream!r} is written behind it"
            )
        return part.make(**values)
    factory = registry().resource(name) if name else None
    if factory is not None:
        return _of_plugin(name, factory, argument, upstream)
    broken = registry().failures.get(name)
    if broken is not None and not (colon and _is_module(name)):
        raise PluginError(f"the memory resource {text!r} cannot be had: {broken.message}")
    if name and (argument or _is_module(name)):
        return _of_module(text, name, argument.strip() or MANAGER, upstream, handle)
    failed = "; ".join(failure.message for failure in registry().failures.values())
    raise ConfigError(
        f"no memory resource is named {text!r}{_closest(name)}: give {allowed()}"
        + (f" (could not be loaded: {failed})" if failed else "")
    )


def _closest(name: str) -> str:
    """The name that was probably meant, or what else is wrong with this one, as the end of a phrase."""
    if not name:
        return " (a part of the stack is empty)"
    if name.lower().replace("_", "") in ("failif", "onoutofmemory"):
        return " (it takes a function: build that stack in Python)"
    import difflib  # only for those who made a mistake

    close = difflib.get_close_matches(name.lower().removesuffix("memory"), names(), 1)
    return f", did you mean {close[0]!r}?" if close else ""


def _arguments(name: str, part: Part, text: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(";"))):
        key, equals, value = piece.partition("=")
        key = key.strip()
        if not equals and key in part.arguments and part.arguments[key] is FLAG:
            value = "1"
        elif not equals or key not in part.arguments:
            free = [each for each in part.arguments if each not in values and part.arguments[each] is not FLAG]
            if not free:
                raise ConfigError(f"{name!r} does not take {piece!r}: {_usage(name, part)}")
            key, value = free[0], piece
        if key in values:
            raise ConfigError(f"{name!r} is given {key} twice: {_usage(name, part)}")
        try:
            values[key] = part.arguments[key].parse(value.strip())
        except (ValueError, KeyError):
            if equals and value == piece:  # no argument has that name, so it was tried as a value
                unknown = piece.partition("=")[0].strip()
                raise ConfigError(f"{name!r} has no argument {unknown!r}: {_usage(name, part)}") from None
            raise ConfigError(
                f"{name!r} does not take {value.strip()!r} as {key}: give {part.arguments[key].allowed} ({_usage(name, part)})"
            ) from None
    missing = [key for key, argument in part.arguments.items() if argument.required and key not in values]
    if missing:
        raise ConfigError(f"{name!r} lacks {', '.join(missing)}: {_usage(name, part)}")
    return values


def _usage(name: str, part: Part) -> str:
    if not part.arguments:
        return f"{name} takes no arguments"
    return f"{name}:" + ";".join(
        key.upper() if argument.required else f"[{key}]" if argument is FLAG else f"[{key}=...]"
        for key, argument in part.arguments.items()
    )


# -- plugins and modules -----------------------------------------------------------------------------------------------


def _of_plugin(
    name: str, factory: Callable[..., MemoryResource], argument: str, upstream: MemoryResource | None
) -> MemoryResource:
    origin = registry().resources[name][1]
    check_version(factory, repr(name), origin)
    if not callable(factory):
        raise PluginError(
            f"the memory resource {name!r} from {origin} is given as {factory!r}, which cannot be called: the hook "
            f"devmem_memory_resources returns what makes a resource, by name"
        )
    arguments = (argument, upstream) if argument or upstream is not None else ()
    if arguments and name in ADAPTERS:
        raise ConfigError(
            f"{name!r} takes no arguments in a stack as text, and is the last of it: give an instance instead"
        )
    return _called(factory, arguments, repr(name), origin)


def _of_module(
    text: str, module: str, attribute: str, upstream: MemoryResource | None, handle: DeviceHandle
) -> MemoryResource:
    origin = package_of(module)
    try:
        found: object = importlib.import_module(module)
        for step in attribute.split("."):
            found = getattr(found, step)
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        # The module's own line, if it has one to blame: not ours, that looked for what is not there.
        place = where(error.__traceback__, (__file__, importlib.__file__)).rstrip(",")
        missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        raise PluginError(
            f"the memory resource {text!r} cannot be loaded from {origin}{_closest(module) if missing else ''}: "
            f"{type(error).__name__}: {error}{place}"
        ) from error
    own = next((name for name, part in NAMED.items() if part.over and part.make is found), None)
    if own is not None:
        raise ConfigError(f"{text!r} is written {own!r} in a stack as text: {_usage(own, NAMED[own])}")
    if isinstance(found, types.ModuleType) or (not callable(found) and not isinstance(found, MemoryResource)):
        return check_resource(None, repr(text), origin)  # which says what is missing
    if isinstance(found, MemoryResource) and not isinstance(found, type):
        if upstream is not None:
            raise ConfigError(f"{text!r} is a resource already, so it is the last: {upstream!r} is written behind it")
        return check_resource(found, repr(text), origin)
    check_version(found, repr(text), origin)
    assert callable(found)
    return _called(found, (handle.device,) if upstream is None else (handle.device, upstream), repr(text), origin)


def _called(factory: Callable[..., object], arguments: tuple[object, ...], spelled: str, origin: str) -> MemoryResource:
    try:
        return check_resource(factory(*arguments), spelled, origin)
    except DevmemError:
        raise  # says what is wrong by itself: an argument, a device that cannot
    except (Exception, SystemExit) as error:
        # A call that did not fit never entered the factory: then the factory's own line helps.
        trace = error.__traceback__
        inside = trace is not None and trace.tb_next is not None
        raise PluginError(
            f"the memory resource {spelled} from {origin} failed when it was made, called with {arguments}: "
            f"{type(error).__name__}: {error}{where(trace).rstrip(',') if inside else defined_at(factory)}"
        ) from error


def _is_module(name: str) -> bool:
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False
    except Exception:  # the package around it: it is there, and importing it again tells what is wrong
        return True
