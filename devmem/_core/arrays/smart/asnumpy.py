"""NumPy's and Python's operations on an array that is brought up to date first."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from ....spi.errors import LayoutError
from ..conversions import Conversions

#: Methods of an ndarray that write it.
WRITERS = frozenset({"byteswap", "fill", "itemset", "partition", "put", "setfield", "sort"})


class AsNumpy(Conversions, NDArrayOperatorsMixin):
    """The uses of an ndarray: operators, universal functions, methods, conversions.

    What reads gets an ndarray that is up to date and read-only; what writes announces it first.
    """

    __slots__ = ()

    __hash__ = None  # type: ignore[assignment]  # a method for type checkers; this is how Python says that there is none

    def _read(self, what: str) -> npt.NDArray[Any]:
        """The elements as an ndarray, up to date, not to be written."""
        raise NotImplementedError

    def _write(self, what: str) -> npt.NDArray[Any]:
        """The elements as an ndarray, up to date, about to be written."""
        raise NotImplementedError

    def _value(self, what: str) -> Any:
        return self._read(what)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        host = self._read("numpy")
        if copy:
            return np.array(host, dtype)
        if copy is False and dtype is not None and np.dtype(dtype) != host.dtype:
            raise ValueError(f"a SmartArray of {host.dtype} becomes an ndarray of {np.dtype(dtype)} by a copy only")
        return host if dtype is None else host.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        outs = keywords.pop("out", ())
        given = [read_only(each, ufunc.__name__) for each in inputs]
        keywords = {name: read_only(value, ufunc.__name__) for name, value in keywords.items()}
        if method == "at" and isinstance(inputs[0], AsNumpy):
            given[0] = inputs[0]._write(ufunc.__name__)
        if outs:
            keywords["out"] = tuple(to_write(each, ufunc.__name__) for each in outs)
        result = getattr(ufunc, method)(*given, **keywords)
        if not outs:
            return result
        if not isinstance(result, tuple):
            return outs[0] if isinstance(outs[0], AsNumpy) else result
        return tuple(out if isinstance(out, AsNumpy) else each for out, each in zip(outs, result, strict=True))

    def __array_function__(
        self, func: Any, types: Collection[type], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """NumPy's function as if this method were not here; but where it refuses, the error tells what it could be given."""
        ours = AsNumpy.__array_function__, np.ndarray.__array_function__
        if not all(getattr(each, "__array_function__", None) in ours for each in types):
            # Another library's array is there too: that has the say, as it had if this were an ndarray.
            return func(*_ndarrays(args, func.__name__), **_ndarrays(keywords, func.__name__))
        try:
            return func._implementation(*args, **keywords)
        except (TypeError, ValueError) as error:
            if isinstance(error, TypeError) or "read-only" in str(error):
                error.add_note(
                    f"{func.__name__}() was given a SmartArray: where it takes nothing but an ndarray, or writes it, give it "
                    f"host(), and call host_changed() behind what is written"
                )
            raise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"a SmartArray has no attribute {name!r}")
        if callable(getattr(np.ndarray, name)):
            return _Method(self, name)
        return getattr(self._read(name), name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(np.ndarray) if not name.startswith("_"))})

    def __eq__(self, other: object) -> Any:
        return self._read("==") == read_only(other, "==")

    def __ne__(self, other: object) -> Any:
        return self._read("!=") != read_only(other, "!=")

    def __contains__(self, value: object) -> bool:
        return value in self._read("in")

    def __bytes__(self) -> bytes:
        return self._read("bytes()").tobytes()

    def __index__(self) -> int:
        return operator.index(self._read("an index"))

    def __str__(self) -> str:
        return str(self._read("str()"))

    def __format__(self, spec: str) -> str:
        return format(self._read("format()"), spec)


class _Method:
    """A method of an ndarray, which finds the host side up to date when it is called, not when it is looked up."""

    __slots__ = ("array", "name")

    def __init__(self, array: AsNumpy, name: str) -> None:
        self.array = array
        self.name = name

    def __repr__(self) -> str:
        return f"<method {self.name!r} of {self.array!r}>"

    def __call__(self, *args: object, **keywords: object) -> Any:
        name = self.name
        if name in ("resize", "setflags"):
            raise LayoutError(
                f"{name}() would change one side of a SmartArray alone: make another, or call it on a copy"
            )
        args = tuple(read_only(each, name) for each in args)
        out = keywords.get("out")
        keywords = {key: read_only(value, name) for key, value in keywords.items() if key != "out"}
        owner = self.array
        if isinstance(out, AsNumpy):
            keywords["out"] = out._write(name)
        elif out is not None:
            keywords["out"] = out
        writes = name in WRITERS and (name != "byteswap" or keywords.get("inplace", bool(args and args[0])))
        result = getattr(owner._write(name) if writes else owner._read(name), name)(*args, **keywords)
        if isinstance(out, AsNumpy):
            return out
        return owner if writes and result is not None else result


def read_only(each: object, what: str) -> Any:
    """An argument as NumPy takes it, where it is only read."""
    return each._read(what) if isinstance(each, AsNumpy) else each


def _ndarrays(each: object, what: str) -> Any:
    """Arguments without SmartArrays, in lists and tuples of them neither."""
    if isinstance(each, dict):
        return {name: _ndarrays(value, what) for name, value in each.items()}
    if type(each) is list or type(each) is tuple:
        return type(each)(_ndarrays(value, what) for value in each)
    return read_only(each, what)


def to_write(each: object, what: str) -> Any:
    """An argument as NumPy takes it, where it is written."""
    return each._write(what) if isinstance(each, AsNumpy) else each
