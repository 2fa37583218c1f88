"""The contract of a kernel compiler. devmem compiles nothing itself.

A compiler is found by its hook, belongs to one backend, and never to a backend's folder. It sees device arrays as they are
(``ptr``, ``shape``, ``strides``, ``dtype``, ``readonly``), scalars, and nothing that would have to be copied first: arguments
that live elsewhere have been brought to the device before it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from .driver import Driver
from .types import Extent


class KernelCompiler(Protocol):
    """Turns Python functions into something that the drivers of one backend can launch.

    Types are told to people by ``str``; with a method ``spelled(type) -> str``, by that.
    """

    name: str
    backend: str

    def unavailable(self) -> str | None:
        """Why this compiler cannot be used here, with the install line; ``None`` if it can. Cheap, silent, never raises."""

    def type_of(self, argument: object) -> Hashable:
        """Return what selects the code for an argument. Raises TypeError for what no kernel of this compiler takes."""

    def types_of(self, signature: str) -> tuple[Hashable, ...]:
        """The same, of a written signature such as ``void(float32[::1], int64)``. Raises TypeError where it is none."""

    def fits(self, declared: tuple[Hashable, ...], given: tuple[Hashable, ...]) -> bool:
        """Whether code for the declared types takes arguments of those given, with no more than scalars converted."""

    def compile(
        self,
        function: Callable[..., object],
        types: tuple[Hashable, ...],
        driver: Driver,
        options: Mapping[str, object],
    ) -> CompiledKernel:
        """Code for arguments of these types on this device; the device is entered."""


class CompiledKernel(Protocol):
    """A function compiled for some types of arguments and one device.

    With an attribute ``resident`` that is False the device holds nothing for it, and need not be idle for ``close``.
    """

    def launch(self, grid: Extent, block: Extent, shared_bytes: int, stream: int, arguments: Sequence[object]) -> None:
        """Enqueue it on the stream; the device is entered. The caller keeps the arguments' memory until the stream has passed."""

    def close(self) -> None:
        """Give back what the device holds for it; nothing of it runs or is enqueued any more."""
