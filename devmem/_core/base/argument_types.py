"""Types of arguments, for type checkers: the protocols of other libraries' objects, and shapes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, SupportsIndex, TypeAlias

#: Lengths of the axes, or one length.
ShapeLike = SupportsIndex | Iterable[SupportsIndex]
#: Bytes from one element to the next along each axis.
StridesLike = Iterable[SupportsIndex]
#: The path of a file; and paths in lists, tuples and dicts.
PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]
PathTree: TypeAlias = "PathLike | Sequence[PathTree] | Mapping[Any, PathTree]"


class SupportsCudaStream(Protocol):
    """A stream of another library, which tells (version, address)."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class SupportsStreamNumber(Protocol):
    """A stream of PyTorch's on AMD, which tells its address alone."""

    @property
    def cuda_stream(self) -> int: ...


class SupportsDLPack(Protocol):
    """An array of another library, of any device, which ``from_dlpack`` takes."""

    def __dlpack__(self, *, stream: Any = ...) -> object: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """An array of another library in device memory."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
