"""Device functions with declared types: what compiled code does at their calls.

Numbers are converted to the declared types, and the result is, also where a number loses digits by it. Of several signatures the
one is taken that converts least. Arrays, tuples and records are passed as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...functions import DeviceFunction
from .argument_types import ScalarType, Type, parse_device_signature
from .device_math import NUMBER_TYPES
from .numbers import numpy_type


class DeclaredFunction(DeviceFunction):
    """A device function whose signatures say what its numbers become."""

    def __init__(self, function: Any, signatures: Sequence[str], options: Any) -> None:
        super().__init__(function, signatures, options)
        self._declared = [parse_device_signature(each) for each in signatures]
        self._signature = inspect.signature(function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Convert the arguments, call the function and convert its result."""
        if named or len(arguments) < len(self._signature.parameters):
            bound = self._signature.bind(*arguments, **named)
            bound.apply_defaults()
            arguments, named = bound.args, bound.kwargs
        fitting = [each for each in self._declared if len(each[0]) == len(arguments)]
        if not fitting or named:
            return super().__call__(*arguments, **named)
        types, result = min(fitting, key=lambda each: _losses(each[0], arguments))
        return _converted(result, super().__call__(*map(_converted, types, arguments)))


def _losses(types: Sequence[Type | None], arguments: Sequence[Any]) -> tuple[int, int]:
    """Count the numbers that may lose digits by the conversion to these types, and all that are converted."""
    pairs = zip(map(_dtype, arguments), map(_wanted, types), strict=True)
    converted = [(one, other) for one, other in pairs if one is not None and other is not None and one != other]
    return sum(not np.can_cast(*each, "safe") for each in converted), len(converted)


def _converted(kind: Type | None, value: Any) -> Any:
    wanted = _wanted(kind)
    return value if wanted is None or _dtype(value) is None else NUMBER_TYPES[wanted.type](value)


def _wanted(kind: Type | None) -> np.dtype[Any] | None:
    return kind.dtype if isinstance(kind, ScalarType) and kind.dtype.type in NUMBER_TYPES else None


def _dtype(value: Any) -> np.dtype[Any] | None:
    native = numpy_type(type(value))
    return None if native is None else np.dtype(native)
