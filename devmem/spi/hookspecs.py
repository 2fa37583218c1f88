"""The hooks of the pluggy project ``devmem``, one for each kind of plugin.

A plugin is a module (or any object) named by an entry point of the group ``devmem``; it defines the hooks that it
serves, as plain functions with these names. No marker and no import of pluggy is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .driver import Backend
from .kernel import KernelCompiler
from .memory import ResourceFactory


def devmem_backends() -> Sequence[Backend]:  # type: ignore[empty-body]
    """Return the backends that this plugin supplies. Import no vendor module here: they do so when they are opened."""


def devmem_memory_resources() -> Mapping[str, ResourceFactory]:  # type: ignore[empty-body]
    """Return memory resources by the name under which ``use_memory`` and ``DEVMEM_MEMORY_MANAGER`` find them."""


def devmem_kernel_compilers() -> Sequence[KernelCompiler]:  # type: ignore[empty-body]
    """Return the kernel compilers that this plugin supplies."""
