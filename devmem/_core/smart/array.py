"""The array on both sides."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ...spi.errors import LayoutError
from ..arrays.ndarray import DeviceNDArray
from ..base.argument_types import ShapeLike
from ..base.arguments import dtype_of, layout_of, order_of
from ..base.array_view import Shaped
from ..base.layout import Shape
from ..interop.host_objects import check_no_mask
from .asnumpy import AsNumpy, read_only
from .copies import Where, fits, sides_of, uninitialised

S = TypeVar("S")


#: A function that makes a view of a host array, and the same view of a device array.
Step = Callable[[Any], Any]


class SmartArray(Shaped, AsNumpy):
    """An array that is on the host and on the device, and moves when the side that is asked for lacks the newest elements.

    It is used as an ndarray where the host computes, and given to kernels as it is. Each side has memory of its own, which stays;
    elements move at the first use of a side after a change of the other one, and at no other time.

    Parameters
    ----------
    obj : array_like, DeviceNDArray or SmartArray, optional
        The elements. Any layout and any dtype of plain bytes, 0-d and empty arrays too.
    copy : bool
        True: the array has memory of its own. False: the memory of ``obj`` is its host side (of a device array, its device side;
        of a SmartArray, both) unless ``dtype`` or ``order`` ask for other memory, or it has none, as a list; then it is copied
        all the same, as by ``numpy.asarray``. Memory that is read-only, or whose elements overlap, serves until the device has
        written: then the host side gets memory of its own.
    shape, dtype : optional
        An uninitialised array, without ``obj``; with it, ``shape`` has to be the object's and ``dtype`` is converted to.
    order : {'C', 'F', 'A', 'K'}, optional
        Order of the axes in memory, as for ``numpy.array``.
    where : {'host', 'gpu'}
        The side that has the elements at first; ``'gpu'`` uploads them to the current device.

    Notes
    -----
    What comes out of it: ints, slices, Ellipsis, None and field names, ``T``, ``transpose``, ``reshape``, ``ravel`` and
    ``squeeze`` give SmartArrays that share memory *and* what is known about it, as long as NumPy has a view; ``copy`` and
    ``astype`` give independent ones; arithmetic, reductions and the other methods give what NumPy gives. An ndarray that is a
    look at the host side (``numpy.asarray(smart)``, ``smart.real``) is read-only, because a write could not be noticed.

    Whatever is ordered on streams by devmem, copies of a SmartArray come behind, and they are complete on return.

    Threads may read it at the same time, from either side. To write it, from either side, while another thread uses it is a
    race, as with an ndarray, and has to be excluded by the caller: elements are lost or mixed by it, the knowledge of which side
    is the newer is not.

    Raises
    ------
    LayoutError
        Python objects; another shape than the object's; an unknown ``where`` or ``order``.
    TypeError
        Neither ``obj`` nor ``shape``.

    Examples
    --------
    >>> a = dm.SmartArray(np.arange(3))
    >>> a.gpu()[0] = 7                         # on the device
    >>> a.gpu_changed()
    >>> int(a.sum())                            # moves to the host, as its elements are newer on the device
    10
    """

    __slots__ = ("__weakref__", "_dtype", "_shape", "_sides", "_steps")

    def __init__(
        self,
        obj: object = None,
        copy: bool = True,
        shape: object = None,
        dtype: npt.DTypeLike | None = None,
        order: str | None = None,
        where: str = "host",
    ) -> None:
        side = _where(where)
        order = order_of(order or "K", "CFAK")
        self._steps: tuple[Step, ...] = ()
        if obj is None:
            if shape is None:
                raise TypeError(
                    "a SmartArray is made of an array, SmartArray(obj), or of shape= and dtype=: give one of them"
                )
            self._sides = uninitialised(shape, dtype, order, side)
        elif isinstance(obj, SmartArray) and not copy and fits(obj, dtype, order):
            self._sides, self._steps = obj._sides, obj._steps
        else:
            if isinstance(obj, SmartArray):
                obj = obj.gpu() if side is Where.GPU and obj._sides.valid(side) else obj._read("a copy")
            self._sides = sides_of(obj, copy, None if dtype is None else dtype_of(dtype), order, side)
        found = self._on(self._sides.host_memory()) if self._steps else self._sides
        self._shape: Shape = found.shape
        self._dtype: np.dtype[Any] = found.dtype
        if (
            obj is not None
            and shape is not None
            and (asked := layout_of(shape, self._dtype, None, "C")[0]) != self._shape
        ):
            raise LayoutError(
                f"shape={asked}, but the object's shape is {self._shape}: leave shape= out, and reshape() it"
            )

    # -- the two sides -------------------------------------------------------------------------------------------------

    def host(self) -> npt.NDArray[Any]:
        """The host side, up to date on return: always the same memory, as an ordinary ndarray.

        Call `host_changed` after you write to it. After the device has written (`gpu_changed`) its elements are old until
        the next call of `host`, or the next use as an array.
        """
        return self._on(self._sides.host())

    def gpu(self) -> DeviceNDArray[Any]:
        """The device side, up to date on return: on the device that was current when it was first asked for.

        Call `gpu_changed` after you write to it; for a kernel that is given the SmartArray itself both are done. Where its
        memory was freed, or its device closed, and the host has the newest elements, a new one is made.

        Raises
        ------
        OutOfMemory
            It does not fit; the host side stays as it is.
        ClosedError
            The newest elements were there alone, and are gone with the memory or the device.
        """
        return self._on(self._sides.gpu())

    def get(self, where: str = "host") -> Any:
        """The side that is named: `host` or `gpu`."""
        return self.host() if _where(where) is Where.HOST else self.gpu()

    def host_changed(self) -> None:
        """Say that the host side was written, where that was not through this array: the device lacks it from here on.

        Raises
        ------
        DevmemError
            The device had changed, and the host had not been brought up to date by `host`: both have new elements.
        """
        self._sides.changed(Where.HOST)

    def gpu_changed(self) -> None:
        """Say that the device side was written, or that work was enqueued that will: the host lacks it from here on.

        Nothing moves, and nothing is waited for, until the host side is used.

        Raises
        ------
        DevmemError
            The host had changed, and the device had not been brought up to date by `gpu`: both have new elements.
        """
        self._sides.changed(Where.GPU)

    def mark_changed(self, where: str = "host") -> None:
        """Say that the side that is named was written: `host_changed` or `gpu_changed`."""
        self._sides.changed(_where(where))

    # -- what it is; nothing moves -------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """Lengths of the axes."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self._dtype

    @property
    def strides(self) -> Shape:
        """Bytes from one element to the next on the host side; the device side has no gaps."""
        return self._memory().strides

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of an array without axes")
        return self._shape[0]

    def __repr__(self) -> str:
        # Moves nothing: a debugger must not change which side is up to date.
        valid = " and ".join(where for where in Where if self._sides.valid(where)) or "nowhere any more"
        return f"<SmartArray shape={self._shape} dtype={self._dtype}, up to date on {valid}>"

    # -- views, which share memory and what is known about it ----------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        key = _plain(key)
        if not _basic(key):
            return self._read("indexing")[key]
        memory = self._memory()
        if isinstance(key, str):
            return self._through(operator.itemgetter(key), memory)
        parts = key if isinstance(key, tuple) else (key,)
        if any(part is Ellipsis for part in parts):
            return self._through(operator.itemgetter(key), memory)
        view = memory[(*parts, Ellipsis)]
        if not view.shape:
            return self._read("indexing one element")[key]
        return self._through(operator.itemgetter((*parts, Ellipsis)), memory)

    def __setitem__(self, key: object, value: object) -> None:
        value = value._read("assignment") if isinstance(value, SmartArray) else value
        check_no_mask(value)
        self._write("assignment")[_plain(key)] = value

    def __iter__(self) -> Iterator[Any]:
        if not self._shape:
            raise TypeError("iteration over an array without axes")
        return (self[i] for i in range(self._shape[0]))

    def transpose(self, *axes: ShapeLike | None) -> SmartArray:
        """A view with the axes in another order, reversed if none is given."""
        return self._through(operator.methodcaller("transpose", *axes))

    @property
    def T(self) -> SmartArray:
        """The array with its axes reversed, a view."""
        return self.transpose()

    def reshape(self, *shape: Any, order: str = "C") -> SmartArray:
        """The elements in another shape: a view where both sides have one, else an independent SmartArray."""
        host = self._memory()
        letter = order_of(order, "CFA")
        if letter == "A":
            letter = "F" if host.flags.fnc else "C"
        return self._shaped(host, host.reshape(*shape, order=letter), letter)

    def ravel(self, order: str = "C") -> SmartArray:
        """The elements along one axis: a view where NumPy has one and the device too, else an independent SmartArray."""
        host = self._memory()
        letter = order_of(order, "CFAK")
        if letter in ("A", "K"):
            letter = "F" if host.flags.fnc else "C" if letter == "A" or host.flags.c_contiguous else letter
        if letter == "K":
            return SmartArray(self._read("ravel").ravel("K"))
        return self._shaped(host, host.ravel(letter), letter)

    def squeeze(self, axis: ShapeLike | None = None) -> SmartArray:
        """A view without axes of length one: all of them, or those named."""
        return self._through(operator.methodcaller("squeeze", axis))

    # -- arrays of their own -------------------------------------------------------------------------------------------

    def copy(self, order: str = "C") -> SmartArray:
        """An independent SmartArray with the same elements, on the host side at first."""
        return SmartArray(self._read("copy").copy(order_of(order, "CFAK")), copy=False)

    def astype(self, dtype: npt.DTypeLike, *args: Any, **keywords: Any) -> SmartArray:
        """An independent SmartArray with the elements converted; arguments as of ``ndarray.astype``."""
        return SmartArray(self._read("astype").astype(dtype, *args, **{**keywords, "copy": True}), copy=False)

    def __copy__(self) -> SmartArray:
        return self.copy("K")

    def __deepcopy__(self, memo: dict[int, object]) -> SmartArray:
        return self.copy("K")

    def __reduce__(self) -> tuple[object, ...]:
        return SmartArray, (np.array(self._read("pickle")), False)

    # -- below ---------------------------------------------------------------------------------------------------------

    def _gpu_unread(self) -> DeviceNDArray[Any] | None:
        """The device side without an upload, for work that writes all of it and is followed by `_gpu_overwritten`.

        Nothing is uploaded. None where the device side is up to date as it is, or this is a view of a part: the rest is needed.
        """
        sides = self._sides
        if sides.valid(Where.GPU) or self.size != math.prod(sides.shape) or self._dtype != sides.dtype:
            return None
        return self._on(sides.gpu(unread=True))

    def _gpu_overwritten(self) -> None:
        """Say that work was enqueued that writes all of the device side: it alone has the elements from here on."""
        self._sides.overwritten(Where.GPU)

    def _read(self, what: str) -> npt.NDArray[Any]:
        """The host side, up to date and not to be written."""
        view = self._on(self._sides.host(f"SmartArray, for {what}")).view()
        view.flags.writeable = False
        return view

    def _write(self, what: str) -> npt.NDArray[Any]:
        """The host side, up to date, about to be written.

        The device counts as out of date before anything is written: what fails half way through has changed something too.
        """
        host = self._sides.host(f"SmartArray, for {what}")
        self._sides.changed(Where.HOST)
        return self._on(host)

    def _memory(self) -> npt.NDArray[Any]:
        """The host side's memory, whatever is in it."""
        return self._on(self._sides.host_memory())

    def _shaped(self, host: npt.NDArray[Any], shaped: npt.NDArray[Any], order: Any) -> SmartArray:
        """The elements in the shape that NumPy has made of the host side's memory: a view where that is one."""
        step = _Reshape(shaped.shape, order)
        if (host.size and not np.may_share_memory(host, shaped)) or not self._device_has(step):
            return SmartArray(self._read("reshape").reshape(shaped.shape, order=order))
        return self._through(step, host)

    def _device_has(self, step: Step) -> bool:
        """Whether the device side has such a view in the layout that it has; one that is not made yet will have no gaps."""
        gpu = self._sides.gpu_memory()
        if gpu is None:
            return True
        try:
            step(self._on(gpu))
        except LayoutError:
            return False
        return True

    def _on(self, side: S) -> S:
        for step in self._steps:
            side = cast("S", step(side))
        return side

    def _through(self, step: Step, memory: npt.NDArray[Any] | None = None) -> SmartArray:
        """A view: NumPy says here what is wrong with it, before there is one."""
        found = step(self._memory() if memory is None else memory)
        view = SmartArray.__new__(SmartArray)
        view._sides, view._steps = self._sides, (*self._steps, step)
        view._shape, view._dtype = found.shape, found.dtype
        return view


class _Reshape:
    """A view in another shape."""

    __slots__ = ("order", "shape")

    def __init__(self, shape: Shape, order: str) -> None:
        self.shape = shape
        self.order = order

    def __call__(self, array: Any, /) -> Any:
        if isinstance(array, DeviceNDArray):
            return array.reshape(self.shape, order=self.order, copy=False)
        return array.reshape(self.shape, order=self.order)


def _where(where: str) -> Where:
    try:
        return Where(where)
    except ValueError:
        raise LayoutError(f"an array is on 'host' or on 'gpu', not on {where!r}") from None


def _plain(key: object) -> Any:
    """An index without SmartArrays in it."""
    if isinstance(key, tuple):
        return tuple(read_only(part, "indexing") for part in key)
    return read_only(key, "indexing")


def _basic(key: object) -> bool:
    """Whether an index makes a view of both sides."""
    if isinstance(key, str):
        return True
    parts = key if isinstance(key, tuple) else (key,)
    return all(part is None or part is Ellipsis or isinstance(part, slice) or _is_integer(part) for part in parts)


def _is_integer(part: object) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(part, (bool, np.bool_))
