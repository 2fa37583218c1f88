"""The registry of plugins: backends, memory resources and kernel compilers by their names.

This module alone imports pluggy, and imports built-in plugins by string. pluggy is used to find plugins, never in a transfer.
Built-ins are loaded before third-party code; a name that is taken raises an error with both owners, as does a misspelt hook.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .spi import SPI_VERSION, hookspecs
from .spi.driver import Backend, Configurable, Driver
from .spi.errors import DevmemError, DevmemWarning, PluginError
from .spi.files import DirectFiles
from .spi.kernel import KernelCompiler
from .spi.memory import ResourceFactory
from .toolkit.locks import Rank, lock

if TYPE_CHECKING:
    import pluggy

GROUP = "devmem"

#: Backends that ship with devmem, in order of preference, with the modules of their hooks.
BUILT_IN = {
    "cuda": "devmem.backends.cuda.hooks",
    "roc": "devmem.backends.roc.hooks",
    "host": "devmem.backends.host.hooks",
    "opencl": "devmem.backends.opencl.hooks",
}
#: Of these, what is used only when it is named: no run on hardware is recorded.
BY_NAME_ONLY = frozenset({"opencl"})
#: Names of memory resources that ship with devmem.
BUILT_IN_RESOURCES = (
    "driver",
    "fail_nth",
    "guard",
    "limit",
    "log",
    "managed",
    "mapped",
    "pinned",
    "pinned_pool",
    "pool",
    "prefetch",
    "scrub",
    "statistics",
    "stream_ordered",
    "virtual",
)
#: Allocators of other libraries, by their names for `use_memory`. The module here is imported at the first lookup, the library
#: itself when the resource is bound to a device.
ADAPTERS = {
    "cuda_core": "devmem.adapters.cuda_core:CudaCoreMemory",
    "cupy": "devmem.adapters.cupy:CuPyMemory",
    "rmm": "devmem.adapters.rmm:RMMMemory",
    "torch": "devmem.adapters.torch:TorchMemory",
}
#: Kernel compilers that ship with devmem, by their names: their backend, and the module of their hook. The module is imported
#: when a kernel is first compiled for that backend, the library that compiles when the compiler is used.
BUILT_IN_COMPILERS = {
    "numba_cuda": ("cuda", "devmem.kernels.compilers.numba_cuda"),
    "numba_cuda_mlir": ("cuda", "devmem.kernels.compilers.numba_cuda_mlir"),
    "numba_hip": ("roc", "devmem.kernels.compilers.numba_hip"),
    "simulator": ("host", "devmem.kernels.compilers.simulator"),
}
#: Direct copies between files and device memory, by backend.
DIRECT_FILES = {"cuda": "devmem.adapters.kvikio:KvikIO", "host": "devmem.backends.host.files:HostFiles"}
#: The attribute of a module that is given as a memory resource; not a hook, although it begins like one.
MANAGER = "devmem_memory_manager"
#: The backend that is chosen last, with a warning: the lack of a GPU must not go unnoticed.
LAST_RESORT = "host"


#: More devices than any machine has: a plugin's count is believed up to here.
MAX_DEVICES = 1 << 16

T = TypeVar("T")


def ask(call: Callable[..., T], what: str, *arguments: object) -> T:
    """Call a plugin: what it raises becomes a PluginError, but for what says itself what is wrong, and interrupts."""
    try:
        return call(*arguments)
    except (DevmemError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # a plugin does not end the program
        raise PluginError(f"{what} raised {type(error).__name__}: {error}{_place(error)}") from error


class LoadedBackend(NamedTuple):
    """A backend and the package that it comes from. It is called through these methods, which check its answers."""

    backend: Backend
    origin: str

    def __str__(self) -> str:
        return f"the backend {self.backend.name!r} from {self.origin}"

    def configure(self, options_of: Callable[[Configurable], dict[str, object]]) -> None:
        """Pass it what is set for it, if it has settings."""
        if isinstance(self.backend, Configurable):
            ask(self.backend.configure, f"configure() of {self}", options_of(self.backend))

    def unavailable(self) -> str | None:
        """Why it cannot be used here; None if it can."""
        reason: object = ask(self.backend.unavailable, f"unavailable() of {self}")
        if reason is None or isinstance(reason, str):
            return reason
        raise PluginError(f"unavailable() of {self} returned {reason!r}: it returns a reason, a str, or None")

    def device_count(self) -> int:
        """Return the number of devices."""
        count: object = ask(self.backend.device_count, f"device_count() of {self}")
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_DEVICES:
            return count
        raise PluginError(f"device_count() of {self} returned {count!r}: it returns an int from 0 to {MAX_DEVICES}")

    def open(self, ordinal: int) -> Driver:
        """Open one of its devices."""
        return ask(self.backend.open, f"open({ordinal}) of {self}", ordinal)


class LoadedCompiler(NamedTuple):
    """A kernel compiler and the package that it comes from."""

    compiler: KernelCompiler
    origin: str


class Failure(NamedTuple):
    """A plugin that could not be loaded: the package that it comes from, and the error."""

    origin: str
    message: str


class Registry:
    """The plugins found so far."""

    def __init__(self, block: tuple[str, ...] = (), third_parties_loaded: bool = False) -> None:
        self.block = block
        self.backends: dict[str, LoadedBackend] = {}
        self.resources: dict[str, tuple[ResourceFactory, str]] = {}
        self.compilers: dict[str, LoadedCompiler] = {}
        self.failures: dict[str, Failure] = {}
        self.files: dict[str, DirectFiles] = {}
        self.third_parties_loaded = third_parties_loaded
        self.entries_loaded: list[object] = []
        self.lock = lock("plugins", Rank.PLUGIN)

    def configure(self, block: tuple[str, ...]) -> None:
        """Set the entry points that are not to be loaded; those loaded already are not affected."""
        self.block = block

    def backend(self, name: str) -> LoadedBackend | None:
        """The backend of that name; entry points are loaded only if no built-in has it."""
        with self.lock:
            if name not in self.backends and name in BUILT_IN:
                self._load_built_in(name)
            if name not in self.backends:
                self._load_third_parties()
            return self.backends.get(name)

    def loaded_backends(self) -> dict[str, LoadedBackend]:
        """Built-in backends in order of preference, and those of third parties that are loaded already."""
        with self.lock:
            for name in BUILT_IN:
                if name not in self.backends:
                    self._load_built_in(name)
            return dict(self.backends)

    def every_backend(self) -> dict[str, LoadedBackend]:
        """All backends: built-ins in order of preference, then third parties."""
        with self.lock:
            self.loaded_backends()
            self._load_third_parties()
            return dict(self.backends)

    def resource(self, name: str) -> ResourceFactory | None:
        """The factory of a memory resource: another library's allocator, or a plugin's own."""
        with self.lock:
            if name in ADAPTERS and name not in self.resources:
                module, _, attribute = ADAPTERS[name].partition(":")
                self.resources[name] = getattr(importlib.import_module(module), attribute), "built in"
            if name not in self.resources:
                self._load_third_parties()
            found = self.resources.get(name)
            return found[0] if found else None

    def compilers_for(self, backend: str) -> list[LoadedCompiler]:
        """The kernel compilers of a backend, built-in ones first; they may be unavailable."""
        with self.lock:
            for name, (whose, module) in BUILT_IN_COMPILERS.items():
                if whose == backend and name not in self.compilers and name not in self.failures:
                    self._load_module(name, module, "compiler")
            self._load_third_parties()
            found = [each for each in self.compilers.values() if each.compiler.backend == backend]
            return sorted(found, key=lambda each: each.origin != "built in")

    def compiler_names(self) -> list[str]:
        """The names of all kernel compilers: built-in ones, and those of the plugins that are loaded."""
        return sorted({*BUILT_IN_COMPILERS, *self.compilers})

    def direct_files(self, backend: str) -> DirectFiles | None:
        """The direct copies between files and the memory of a backend's devices; they may be unavailable."""
        with self.lock:
            if backend in DIRECT_FILES and backend not in self.files:
                module, _, attribute = DIRECT_FILES[backend].partition(":")
                self.files[backend] = getattr(importlib.import_module(module), attribute)()
            return self.files.get(backend)

    def compiler_failures(self, backend: str) -> list[str]:
        """Why built-in compilers for a backend could not be loaded, with their names."""
        names = [name for name, (whose, _) in BUILT_IN_COMPILERS.items() if whose == backend]
        return [f"{name}: {self.failures[name].message}" for name in names if name in self.failures]

    def third_party_names(self) -> set[str]:
        """The possible names of third-party backends: of loaded ones, and of all entry points. Imports no plugin."""
        import importlib.metadata  # late, as below

        entries = importlib.metadata.entry_points(group=GROUP)
        return {*self.backends, *(entry.name for entry in entries)} - BUILT_IN.keys()

    def add_backend(self, backend: Backend, origin: str) -> None:
        """Register a backend under its name.

        Raises
        ------
        PluginError
            The name is taken, or the backend is written for a newer contract or lacks a part of it.
        """
        ask(_check_backend, f"the backend from {origin}, when it was asked what it is,", backend, origin)
        with self.lock:
            taken = self.backends.get(backend.name)
            if taken is not None and taken.origin == origin == "built in":
                return  # a handler or a finalizer that came into this has loaded it
            if taken is not None or (backend.name in BUILT_IN and origin != "built in"):
                owner = taken.origin if taken else "built in"
                raise PluginError(
                    f"two backends are named {backend.name!r}: one from {owner}, one from {origin}; "
                    f"rename one, or leave one out with DEVMEM_BLOCK_PLUGINS"
                )
            self.backends[backend.name] = LoadedBackend(backend, origin)

    def remove_backend(self, name: str) -> None:
        """Forget a backend that was registered by hand."""
        with self.lock:
            self.backends.pop(name, None)

    def _load_built_in(self, name: str) -> None:
        self._load_module(name, BUILT_IN[name], "backend")

    def _load_module(self, name: str, module: str, what: str) -> None:
        """Register what a built-in module supplies; a module that this version lacks is recorded as a failure."""
        manager = _manager()
        try:
            manager.register(importlib.import_module(module), module)
        except ModuleNotFoundError as missing:
            if missing.name is None or not module.startswith(missing.name):
                raise
            self.failures[name] = Failure(
                "built in", f"this version of devmem does not contain the {what} {name!r} yet"
            )
            return
        self._register_all(manager, "built in")

    def _load_third_parties(self) -> None:
        if self.third_parties_loaded or "*" in self.block:
            return
        import importlib.metadata  # would double the time of `import devmem`

        self.third_parties_loaded = True  # before: a plugin may ask for another one while it is imported
        broken: list[str] = []
        try:
            for entry in importlib.metadata.entry_points(group=GROUP):
                if entry.name not in self.block and entry not in self.entries_loaded:
                    self._try_entry_point(entry, broken)
                    self.entries_loaded.append(entry)
        except BaseException:
            self.third_parties_loaded = False  # an interrupt: the next lookup goes on here
            raise
        for message in broken:  # after all are loaded, as a filter may turn the warning into an error
            _warn(message)

    def _try_entry_point(self, entry: importlib.metadata.EntryPoint, broken: list[str]) -> None:
        """Load one plugin. A broken one must not affect the others, nor end the program: its error is recorded, shown by
        `devmem info`, and raised if a lookup finds no other plugin.
        """
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        try:
            self._load_entry_point(entry, origin)
        except (Exception, SystemExit) as error:
            message = f"plugin {entry.name!r} ({origin}): {type(error).__name__}: {error}{_place(error)}"
            self.failures[entry.name] = Failure(origin, message)
            broken.append(message)

    def _load_entry_point(self, entry: importlib.metadata.EntryPoint, origin: str) -> None:
        manager = _manager()
        plugin = entry.load()
        manager.register(plugin, entry.name)
        _check_hook_names(plugin, entry.name)
        manager.check_pending()
        self._register_all(manager, origin)

    def _register_all(self, manager: pluggy.PluginManager, origin: str) -> None:
        """Register everything that a plugin supplies, or nothing."""
        before = dict(self.backends), dict(self.resources), dict(self.compilers)
        try:
            self._register_each(manager, origin)
        except BaseException:
            self.backends, self.resources, self.compilers = before
            raise

    def _register_each(self, manager: pluggy.PluginManager, origin: str) -> None:
        for backends in manager.hook.devmem_backends():
            for backend in backends:
                self.add_backend(backend, origin)
        for resources in manager.hook.devmem_memory_resources():
            if not isinstance(resources, Mapping):
                raise PluginError(
                    f"devmem_memory_resources() returned {resources!r}: it returns a dict, factories by name"
                )
            for name, factory in resources.items():
                _check_name("a memory resource", name, origin)
                built_in = name in BUILT_IN_RESOURCES or name in ADAPTERS
                owner = "built in" if built_in else self.resources.get(name, ("", ""))[1]
                if owner:
                    raise PluginError(f"two memory resources are named {name!r}: one from {owner}, one from {origin}")
                self.resources[name] = (factory, origin)
        for compilers in manager.hook.devmem_kernel_compilers():
            for compiler in compilers:
                self._add_compiler(compiler, origin)

    def _add_compiler(self, compiler: KernelCompiler, origin: str) -> None:
        parts = ("name", "backend", "unavailable", "type_of", "types_of", "fits", "compile")
        missing = [part for part in parts if getattr(compiler, part, None) is None]
        if missing:
            raise PluginError(
                f"the kernel compiler {compiler!r} from {origin} lacks {', '.join(missing)} (see devmem.spi.kernel)"
            )
        name = compiler.name
        _check_name("a kernel compiler", name, origin)
        taken = self.compilers.get(name)
        if taken is not None and taken.origin == origin == "built in":
            return  # as above
        if taken is not None or (name in BUILT_IN_COMPILERS and origin != "built in"):
            owner = taken.origin if taken else "built in"
            raise PluginError(
                f"two kernel compilers are named {name!r}: one from {owner}, one from {origin}; rename one, or leave one "
                f"out with DEVMEM_BLOCK_PLUGINS"
            )
        self.compilers[name] = LoadedCompiler(compiler, origin)


def _manager() -> pluggy.PluginManager:
    import pluggy  # which takes longer than most of devmem, and is not needed before a device is

    class Manager(pluggy.PluginManager):
        """Recognises hooks by their names, so that a plugin needs neither a marker nor pluggy."""

        def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
            options = super().parse_hookimpl_opts(plugin, name)
            is_hook = name.startswith(f"{GROUP}_") and name != MANAGER and callable(getattr(plugin, name, None))
            return {} if options is None and is_hook else options

        def parse_hookspec_opts(self, module_or_class: object, name: str) -> Any:
            return {} if name.startswith(f"{GROUP}_") else None

    manager = Manager(GROUP)
    manager.add_hookspecs(hookspecs)
    return manager


def _check_hook_names(plugin: object, name: str) -> None:
    known = {hook for hook in vars(hookspecs) if hook.startswith(f"{GROUP}_")}
    found = {hook for hook in dir(plugin) if hook.startswith(f"{GROUP}_")}
    if not found & known:
        kind = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__name__
        raise PluginError(f"plugin {name!r} ({kind}) defines none of the hooks {', '.join(sorted(known))}")


def _check_backend(backend: Backend, origin: str) -> None:
    missing = [
        part
        for part in ("name", "spi_version", "unavailable", "device_count", "open")
        if getattr(backend, part, None) is None
    ]
    if missing:
        raise PluginError(f"the backend {backend!r} from {origin} lacks {', '.join(missing)} (see devmem.spi.driver)")
    _check_name("a backend", backend.name, origin)
    if not isinstance(backend.spi_version, int):
        raise PluginError(f"the backend {backend.name!r} from {origin} has spi_version {backend.spi_version!r}: an int")
    if backend.spi_version > SPI_VERSION:
        raise PluginError(
            f"the backend {backend.name!r} from {origin} is written for contract {backend.spi_version}, this devmem has "
            f"contract {SPI_VERSION}: upgrade devmem"
        )
    if backend.spi_version < SPI_VERSION - 1:
        raise PluginError(
            f"the backend {backend.name!r} from {origin} is written for contract {backend.spi_version}, this devmem has "
            f"contract {SPI_VERSION} and supports one step back: upgrade {origin}"
        )
    if backend.spi_version == SPI_VERSION - 1:
        _warn(
            f"the backend {backend.name!r} from {origin} is written for contract {backend.spi_version}, this devmem has contract "
            f"{SPI_VERSION}: it runs, but without its strided copies; upgrade {origin}, or change it as "
            f"docs/reference/contract-changes.md says"
        )


def _check_name(what: str, name: object, origin: str) -> None:
    if not isinstance(name, str) or not name:
        raise PluginError(f"{what} from {origin} is named {name!r}: a name is a str, and not empty")


def _place(error: BaseException) -> str:
    """The line where a plugin raised an exception, as the end of a phrase; empty if the loader raised it."""
    import traceback  # only where something is wrong

    import pluggy

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    loaders = (__file__, *(folder + os.sep for folder in (*pluggy.__path__, *importlib.__path__)))
    in_plugin = bool(frames) and not frames[-1].filename.startswith(loaders)
    return f", {frames[-1].filename}:{frames[-1].lineno}" if in_plugin else ""


def _warn(message: str) -> None:
    warnings.warn(message, DevmemWarning, stacklevel=2)


#: The registry of this process.
registry = Registry()
