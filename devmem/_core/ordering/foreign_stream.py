"""The addresses of other libraries' streams, by which a driver knows them."""

from __future__ import annotations

import operator

from ...spi.errors import UnsupportedError
from ..base.arguments import foreign_attribute


def foreign_handle(stream: object) -> int | None:
    """The address of another library's stream, or the number of a default one; None of what is no stream.

    Most speak ``__cuda_stream__``. PyTorch's on AMD name it ``cuda_stream``; the vendors' own bindings have types that are turned
    into integers, and into no other numbers.

    Raises
    ------
    UnsupportedError
        It speaks a newer protocol.
    """
    protocol = foreign_attribute(stream, "__cuda_stream__")
    if protocol is not None:
        answer = protocol() if callable(protocol) else protocol
        try:
            version, handle = map(operator.index, answer)
        except (TypeError, ValueError):
            raise TypeError(
                f"__cuda_stream__ of a {type(stream).__name__} gave {answer!r}: it returns two integers, (0, address)"
            ) from None
        if version != 0:
            raise UnsupportedError(f"{stream!r} speaks version {version} of __cuda_stream__, this devmem version 0")
        return handle
    if isinstance(stream, bool):
        return None
    try:
        return operator.index(stream)  # type: ignore[arg-type]
    except TypeError:
        named = foreign_attribute(stream, "cuda_stream")
        if type(named) is int:
            return named
        kind = type(stream)
        return int(stream) if hasattr(kind, "__int__") and not hasattr(kind, "__float__") else None  # type: ignore[call-overload]
