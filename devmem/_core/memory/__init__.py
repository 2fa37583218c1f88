"""Memory resources, and how a text or an object becomes one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...spi.errors import ConfigError, PluginError
from ...spi.memory import MemoryResource
from ...spi.types import AllocFlags, Capability, MemoryKind
from ..base.config import settings
from ..base.device_handle import CurrentDevice, DeviceHandle
from .adaptor import chain, kind_of
from .direct import PLAIN, DriverMemory, StreamOrderedMemory
from .foreign import check_resource, is_ours, tell

#: Counts the device's memory, after what was dropped is freed if its argument says so: see `DeviceMemory.usage`.
Usage = Callable[[bool], tuple[int, int]]
#: Resources that were built of a text, by kind and text: one for each device.
Named = dict[tuple[MemoryKind, str], MemoryResource]


def default_resource(handle: DeviceHandle, named: Named) -> MemoryResource:
    """Return the resource of a device's arrays, which serves until ``use_memory`` names another."""
    spelled = settings().memory_manager
    if spelled:
        return _named_by("DEVMEM_MEMORY_MANAGER", spelled, handle, named, MemoryKind.DEVICE)
    return _native(handle)


def default_host_resource(handle: DeviceHandle, named: Named, kind: MemoryKind) -> MemoryResource | None:
    """The stack that the settings name for memory that the host can see; None: plain memory, with the flags of each request."""
    spelled = settings().pinned_memory_manager if kind is MemoryKind.PINNED else ""
    return _named_by("DEVMEM_PINNED_MEMORY_MANAGER", spelled, handle, named, kind) if spelled else None


def of_kind(kind: MemoryKind, flags: AllocFlags) -> MemoryResource:
    """The plain resource for memory that the host can see."""
    return PLAIN[kind](flags=flags)


def resource_of(
    what: object, handle: DeviceHandle, named: Named, kind: MemoryKind = MemoryKind.DEVICE
) -> MemoryResource:
    """The resource that an argument means: an instance, or a stack as text.

    Raises
    ------
    ConfigError
        No resource has that name, it does not take that argument, or its memory is of another kind.
    PluginError
        It cannot be loaded, or is not a resource.
    """
    if not isinstance(what, str):
        found = check_resource(what, type(what).__name__)
    else:
        # One for each device: a text that is used ten thousand times must not make as many resources.
        key = kind, what.strip()
        if key not in named:
            named.setdefault(key, fresh(key[1], handle, kind))
        found = named[key]
    has = kind_of(found)
    # Managed memory may serve as device memory; page-locked memory of the host is not the device's.
    if has is not kind and (kind, has) != (MemoryKind.DEVICE, MemoryKind.MANAGED):
        raise ConfigError(
            f"{found!r} has {has.value} memory, so it cannot serve {kind.value} memory: let it stand over "
            f"devmem.memory.{PLAIN[kind].__name__}(), or install it with use_memory(..., kind={has.value!r})"
        )
    return found


def fresh(text: str, handle: DeviceHandle, kind: MemoryKind = MemoryKind.DEVICE) -> MemoryResource:
    """A stack of its own for a text, not bound yet; see `resource_of`."""
    from .stack_spec import build  # and with it every pool and adaptor, a sixth of what `import devmem` took

    return build(text, handle, partial(_native, handle) if kind is MemoryKind.DEVICE else PLAIN[kind])


def prepare(resource: MemoryResource, handle: DeviceHandle, usage: Usage | None = None) -> MemoryResource:
    """Give a resource its device, which is entered meanwhile: a resource may reserve memory at once.

    ``usage`` is for a part of the stack that makes room.
    """
    with CurrentDevice(handle) as driver:
        tell(resource, "bind", driver)
    for part in chain(resource) if usage is not None else ():
        if hasattr(part, "usage") and is_ours(part):
            part.usage = usage
    return resource


def _native(handle: DeviceHandle) -> MemoryResource:
    """Return the resource that the backend recommends for a device; else the driver's pool, or plain memory."""
    plain = StreamOrderedMemory if handle.has(Capability.STREAM_ORDERED) else DriverMemory
    if not handle.info.default_memory:
        return plain()
    from .stack_spec import build  # on first use, as in `fresh`

    return build(handle.info.default_memory, handle, plain)


def _named_by(variable: str, spelled: str, handle: DeviceHandle, named: Named, kind: MemoryKind) -> MemoryResource:
    try:
        return resource_of(spelled, handle, named, kind)
    except (ConfigError, PluginError) as error:
        raise type(error)(f"{variable}={spelled!r}: {error}") from error
