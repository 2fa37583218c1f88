"""Parts of a stack that plugins and modules supply: how they are found and made, and what is said where they cannot be."""

from __future__ import annotations

import importlib
import importlib.util
import types
from collections.abc import Callable

from ...plugins import ADAPTERS
from ...spi.errors import ConfigError, DevmemError, PluginError
from ...spi.memory import MemoryResource
from ..base.device_handle import DeviceHandle
from ..base.plugin_registry import registry
from ..memory.foreign import check_resource, check_version, defined_at, package_of, where


def of_plugin(
    name: str, factory: Callable[..., MemoryResource], argument: str, upstream: MemoryResource | None
) -> MemoryResource:
    """Make the resource that a plugin has a name for."""
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


def found_in(module: str, attribute: str, text: str, advice: Callable[[], str]) -> object:
    """The attribute that a text names; ``advice`` is for a module that is not there."""
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
            f"the memory resource {text!r} cannot be loaded from {origin}{advice() if missing else ''}: "
            f"{type(error).__name__}: {error}{place}"
        ) from error
    return found


def of_module(
    found: object, text: str, module: str, upstream: MemoryResource | None, handle: DeviceHandle
) -> MemoryResource:
    """The resource that a module has, or that what it has makes for the device, over ``upstream`` if there is one."""
    origin = package_of(module)
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


def is_module(name: str) -> bool:
    """Whether a name is one of a module that can be imported, or of one whose package cannot."""
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False
    except Exception:  # the package around it: it is there, and importing it again tells what is wrong
        return True
