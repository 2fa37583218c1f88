"""Memory resources, and how a name or an object becomes one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ...spi.errors import ConfigError, PluginError
from ...spi.memory import MemoryResource, SupportsBind
from ...spi.types import AllocFlags, Capability, MemoryKind
from ..backends import registry
from ..config import settings
from .direct import DriverMemory, ManagedMemory, MappedMemory, PinnedMemory
from .stream_ordered import StreamOrderedMemory

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["DriverMemory", "ManagedMemory", "PinnedMemory", "StreamOrderedMemory"]

#: Resources that have a name of their own in ``use_memory("...")`` and ``DEVMEM_MEMORY_MANAGER``.
NAMED = {
    "driver": DriverMemory,
    "stream_ordered": StreamOrderedMemory,
    "managed": ManagedMemory,
    "pinned": PinnedMemory,
}


def default_resource(context: Context) -> MemoryResource:
    """What a device's arrays come from until ``use_memory`` says otherwise."""
    spelled = settings().memory_manager
    if spelled:
        try:
            return resource_of(spelled, context)
        except (ConfigError, PluginError) as error:
            raise type(error)(f"DEVMEM_MEMORY_MANAGER={spelled!r}: {error}") from error
    return StreamOrderedMemory() if context.has(Capability.STREAM_ORDERED) else DriverMemory()


def of_kind(kind: MemoryKind, flags: AllocFlags) -> MemoryResource:
    """The plain resource for memory that the host can see."""
    kinds = {MemoryKind.PINNED: PinnedMemory, MemoryKind.MAPPED: MappedMemory, MemoryKind.MANAGED: ManagedMemory}
    return kinds[kind](flags=flags)


def resource_of(what: object, context: Context) -> MemoryResource:
    """The resource that an argument means: an instance, a name, or ``module:attribute``.

    Raises
    ------
    ConfigError
        No resource has that name.
    PluginError
        The module cannot be imported, or what it has is not a resource.
    """
    if isinstance(what, str):
        # One for each device: a name that is used ten thousand times must not make as many resources.
        name = what.strip()
        if name not in context.named_resources:
            context.named_resources[name] = _checked(_by_name(name, context), repr(what))
        return context.named_resources[name]
    return _checked(what, type(what).__name__)


def prepare(resource: MemoryResource, context: Context) -> MemoryResource:
    """Give a resource its device."""
    if isinstance(resource, SupportsBind):
        resource.bind(context.driver)
    return resource


def _by_name(name: str, context: Context) -> object:
    if name in NAMED:
        return NAMED[name]()
    if ":" in name and "." not in name.rpartition(":")[2]:
        return _from_module(name, context)
    factory = registry().resource(name)
    if factory is None:
        raise ConfigError(
            f"no memory resource is named {name!r}: give one of {', '.join(sorted([*NAMED, *registry().resources]))}, "
            f"or module:attribute"
        )
    return factory()


def _from_module(spelled: str, context: Context) -> object:
    module, _, attribute = spelled.rpartition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"the memory resource {spelled!r} cannot be loaded: {error}") from error
    return found if isinstance(found, MemoryResource) and not isinstance(found, type) else found(context.device)


def _checked(found: object, spelled: str) -> MemoryResource:
    if isinstance(found, type) or not isinstance(found, MemoryResource):
        raise PluginError(
            f"{spelled} is not a memory resource: it needs allocate(nbytes, stream) -> int and "
            f"deallocate(ptr, nbytes, stream) (see devmem.spi.memory)"
        )
    for verb in ("allocate", "deallocate"):
        if not callable(getattr(found, verb)):
            raise PluginError(f"{spelled}.{verb} is not callable")
    return found
