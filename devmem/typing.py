"""Types of the arguments of devmem's functions, for annotations of your own: public names only."""

from ._core.arrays.ndarray import ArrayLike, ArrayTree, DeviceArrayLike
from ._core.base.argument_types import PathLike, ShapeLike, StridesLike
from ._core.device.device import DeviceLike
from ._core.ordering.event import StreamLike

__all__ = [
    "ArrayLike",
    "ArrayTree",
    "DeviceArrayLike",
    "DeviceLike",
    "PathLike",
    "ShapeLike",
    "StreamLike",
    "StridesLike",
]
