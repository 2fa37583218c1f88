"""``cuda.reduce``, ``cuda.vectorize`` and ``cuda.guvectorize``: devmem's kernels, on every backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import numpy as np

import devmem

from .api import as_cuda_array, device_array, is_cuda_array, to_device
from .cudadrv.streams import native_stream
from .kernel import OPTIONS, _signatures

#: Threads of a block, and blocks of the first pass of a reduction at most.
THREADS, BLOCKS = 128, 64
#: How arrays and numbers may be cast to the declared types, the closest first.
CASTINGS: tuple[tuple[Any, Any], ...] = (
    ("equiv", "equiv"),
    ("equiv", "same_kind"),
    ("safe", "safe"),
    ("same_kind", "same_kind"),
)


class Reduce:
    """Reduces an array with a binary function, which has to be associative and commutative."""

    def __init__(self, functor: Callable[..., Any]) -> None:
        function = devmem.kernel(device=True)(functor)

        @devmem.kernel
        def first_pass(array: Any, count: Any, found: Any) -> None:
            i = devmem.grid(1)
            if i < found.size:
                total = array[i]
                for at in range(i + found.size, count, found.size):
                    total = function(total, array[at])
                found[i] = total

        @devmem.kernel
        def last_pass(found: Any, result: Any) -> None:
            if devmem.grid(1) == 0:
                total = result[0]
                for at in range(found.size):
                    total = function(total, found[at])
                result[0] = total

        self._first_pass, self._last_pass = first_pass, last_pass

    def __call__(self, arr: Any, size: int | None = None, res: Any = None, init: Any = 0, stream: Any = 0) -> Any:
        """Reduce the first ``size`` elements of an array with one axis, after ``init``.

        Returns
        -------
        scalar or None
            The result; None if ``res`` is given, a device array whose first element becomes the result.

        Raises
        ------
        TypeError
            The array has not one axis.
        ValueError
            It has fewer elements than ``size``.
        """
        arr = _array(arr)
        if arr.ndim != 1:
            raise TypeError(f"only arrays with one axis are reduced, and this one has {arr.ndim}")
        count = arr.size if size is None else size
        if not 0 <= count <= arr.size:
            raise ValueError(f"size={size} of an array of {arr.size} elements")
        array = arr if is_cuda_array(arr) else to_device(arr, stream=stream)
        result = device_array(1, array.dtype, stream=stream) if res is None else _array(res)
        result[:1].copy_to_device(np.array([init], array.dtype), stream=stream)
        parts = min(count, THREADS * BLOCKS)
        if parts:
            found, on = device_array(parts, array.dtype, stream=stream), native_stream(stream)
            self._first_pass[-(-parts // THREADS), THREADS, on](array, count, found)
            self._last_pass[1, 1, on](found, result)
        return result.copy_to_host(stream=stream)[0] if res is None else None


reduce = Reduce


class Vectorized:
    """A function of numbers, applied to each element of its arguments, which are broadcast to one shape."""

    def __init__(self, function: Callable[..., Any], signatures: Sequence[str]) -> None:
        self.__name__, self.__doc__, self.py_func = function.__name__, function.__doc__, function
        self._types = Types(function, signatures)
        names = [f"a{place}" for place in range(function.__code__.co_argcount)]
        self._kernel = _made(
            f"def {_kernel_name(function)}({', '.join(names)}, out):\n"
            f"    i = grid(1)\n"
            f"    if i < out.size:\n"
            f"        out.flat[i] = function({', '.join(f'{name}.flat[i]' for name in names)})\n",
            function,
        )
        self._reduce: Reduce | None = None

    @property
    def nin(self) -> int:
        """The number of arguments."""
        return self.py_func.__code__.co_argcount

    def __call__(self, *args: Any, out: Any = None, stream: Any = 0) -> Any:
        """Apply it. The result is a device array if an argument or ``out`` is one, else a host array, or a number.

        Raises
        ------
        TypeError
            It takes another number of arguments, or was declared for other types.
        ValueError
            The arguments cannot be broadcast to one shape, or ``out`` has another.
        """
        if len(args) != self.nin:
            raise TypeError(f"{self.__name__} takes {self.nin} arguments, and was given {len(args)}")
        arrays = [_array(each) for each in args]
        out = None if out is None else _array(out)
        numbers = {place for place, each in enumerate(args) if isinstance(each, int | float | complex | np.number)}
        *wanted, result = self._types.choose([each.dtype for each in arrays], numbers)
        shape = np.broadcast_shapes(*(each.shape for each in arrays))
        if out is not None and out.shape != shape:
            raise ValueError(f"out has shape {out.shape}, and the result {shape}")
        on_device = is_cuda_array(out) or any(map(is_cuda_array, arrays))
        made = out if is_cuda_array(out) else device_array(shape, result, stream=stream)
        if made.size:
            given = [_on_device(each, kind, shape, stream) for each, kind in zip(arrays, wanted, strict=True)]
            self._kernel[-(-made.size // THREADS), THREADS, native_stream(stream)](*given, made)
        if on_device:
            return made
        found = made.copy_to_host(out, stream=stream)
        return found if found.shape else found[()]

    def reduce(self, arg: Any, stream: Any = 0) -> Any:
        """Reduce an array with one axis by the function, which takes two arguments."""
        if self._reduce is None:
            self._reduce = Reduce(self.py_func)
        array = _array(arg)
        array = array if is_cuda_array(array) else to_device(array, stream=stream)
        if not array.size:
            raise ValueError("an array without elements cannot be reduced: there is no first element")
        first = array[:1].copy_to_host(stream=stream)[0]
        return self._reduce(array[1:], init=first, stream=stream)


class GeneralVectorized:
    """A function of arrays, applied to each item of the leading axes of its arguments."""

    def __init__(self, function: Callable[..., Any], signatures: Sequence[str], layout: str) -> None:
        self.__name__, self.__doc__, self.py_func = function.__name__, function.__doc__, function
        self._types = Types(function, signatures)
        before, _, after = layout.partition("->")
        self._axes = [
            [axis.strip() for axis in each.split(",") if axis.strip()] for each in re.findall(r"\((.*?)\)", layout)
        ]
        self._inputs = len(re.findall(r"\(", before))
        if len(self._axes) != function.__code__.co_argcount or self._inputs + len(re.findall(r"\(", after)) != len(
            self._axes
        ):
            raise TypeError(
                f"the layout {layout!r} has {len(self._axes)} arguments, and {self.__name__} takes another number"
            )
        names = [f"a{place}" for place in range(len(self._axes))]
        scalar = [
            place < self._inputs and not axes and self._types.is_number(place) for place, axes in enumerate(self._axes)
        ]
        items = [f"{name}[i, 0]" if plain else f"{name}[i]" for name, plain in zip(names, scalar, strict=True)]
        self._kernel = _made(
            f"def {_kernel_name(function)}({', '.join(names)}):\n"
            f"    i = grid(1)\n"
            f"    if i < {names[-1]}.shape[0]:\n"
            f"        function({', '.join(items)})\n",
            function,
        )

    def __call__(self, *args: Any, out: Any = None, stream: Any = 0) -> Any:
        """Apply it; results that are not given are made. They are device arrays if an argument is one, else host arrays.

        Parameters
        ----------
        out : array or tuple of arrays, optional
            The results, which can also follow the arguments.

        Raises
        ------
        TypeError
            It takes another number of arguments, or was declared for other types.
        ValueError
            The lengths of the axes do not match, or the results are given twice.
        """
        if out is not None and len(args) > self._inputs:
            raise ValueError("cannot specify argument 'out' as both positional and keyword")
        if out is not None and len(args) == self._inputs:
            args += out if isinstance(out, tuple) else (out,)
        count = len(self._axes)
        if len(args) not in (self._inputs, count):
            raise TypeError(f"{self.__name__} takes {self._inputs} or {count} arguments, and was given {len(args)}")
        arrays = [_array(each) for each in args]
        types = self._types.choose([each.dtype for each in arrays[: self._inputs]])
        lengths: dict[str, int] = {}
        outer: tuple[int, ...] = ()
        for array, axes in zip(arrays, self._axes, strict=False):
            rank = array.ndim - len(axes)
            if rank < 0:
                raise ValueError(f"{self.__name__}: an argument has {array.ndim} axes, and needs at least {len(axes)}")
            outer = np.broadcast_shapes(outer, array.shape[:rank])
            for axis, length in zip(axes, array.shape[rank:], strict=True):
                if lengths.setdefault(axis, length) != length:
                    raise ValueError(f"{self.__name__}: axis {axis} has length {lengths[axis]} and length {length}")
        on_device = any(map(is_cuda_array, arrays))
        given: list[Any] = []
        for place, axes in enumerate(self._axes):
            core = tuple(lengths[axis] for axis in axes) or (1,)
            shape = (*outer, *(core if axes else ()))
            if place < len(arrays) and (place < self._inputs or is_cuda_array(arrays[place])):
                array = _on_device(arrays[place], types[place], shape, stream)
            else:
                array = device_array(shape, types[place], stream=stream)
            given.append((array, array.reshape(-1, *core) if array.is_c_contiguous() else _copied(array, core, stream)))
        items = given[-1][1].shape[0]
        if items:
            flat = [each for _, each in given]
            self._kernel[-(-items // THREADS), THREADS, native_stream(stream)](*flat)
        results = [array for array, _ in given[self._inputs :]]
        if not on_device:
            outs: Iterator[Any] = iter(args[self._inputs :])
            results = [each.copy_to_host(next(outs, None), stream=stream) for each in results]
        return results[0] if len(results) == 1 else tuple(results)


class Types:
    """The types that a function was declared for; without signatures it takes all, and the results follow from a sample."""

    def __init__(self, function: Callable[..., Any], signatures: Sequence[str]) -> None:
        self.function = function
        self._texts = [_split(each) for each in signatures]
        self.declared = [tuple(map(_dtype, each)) for each in self._texts]

    def is_number(self, place: int) -> bool:
        """Whether an argument is declared as a number, and not as an array."""
        return bool(self._texts) and "[" not in self._texts[0][place]

    def choose(self, given: Sequence[np.dtype[Any]], numbers: Container[int] = ()) -> tuple[np.dtype[Any], ...]:
        """The declared types that the arguments have, or else the first that they can be cast to; TypeError if none.

        ``numbers``: the places of arguments that are no arrays, and take a type that the arrays have, as in numba.cuda.
        """
        if not self.declared:
            with np.errstate(all="ignore"):
                sample = self.function(*[dtype.type(1) for dtype in given])
            return (*given, np.asarray(sample).dtype)
        for of_arrays, of_numbers in CASTINGS:
            for types in self.declared:
                if all(
                    np.can_cast(one, other, of_numbers if place in numbers else of_arrays)
                    for place, (one, other) in enumerate(zip(given, types, strict=False))
                ):
                    return types
        declared = " and ".join(f"({', '.join(map(str, types))})" for types in self.declared)
        raise TypeError(
            f"{self.function.__name__} is declared for {declared}, and was given ({', '.join(map(str, given))})"
        )


def vectorize(ftylist_or_function: Any = (), target: str = "cuda", identity: Any = None, **kws: Any) -> Any:
    """Make a function of arrays from a function of numbers; with signatures, for these types alone."""
    if callable(ftylist_or_function) and not hasattr(ftylist_or_function, "return_type"):
        return Vectorized(ftylist_or_function, ())
    given = ftylist_or_function
    signatures = _signatures(list(given) if isinstance(given, list | tuple) else [given])
    return lambda function: Vectorized(function, signatures)


def guvectorize(ftylist: Any, signature: str, target: str = "cuda", identity: Any = None, **kws: Any) -> Any:
    """Make a function of many items from a function of one, whose axes ``signature`` names: ``"(m,n),(n,p)->(m,p)"``."""
    signatures = _signatures(list(ftylist) if isinstance(ftylist, list | tuple) else [ftylist])
    if unknown := [name for name in kws if name not in (*OPTIONS, "nopython", "cache")]:
        raise TypeError(f"The following target options are not supported: {', '.join(map(repr, unknown))}")
    for each in signatures:
        if (result := each.partition("(")[0].strip()) not in ("", "void", "none"):
            raise TypeError(
                f"guvectorized functions cannot return values: signature {each} specifies {result} return type"
            )
    return lambda function: GeneralVectorized(function, signatures, signature)


def _made(source: str, function: Callable[..., Any]) -> Any:
    """A kernel from its source, which calls a function."""
    names: dict[str, Any] = {"grid": devmem.grid, "function": devmem.kernel(device=True)(function)}
    exec(compile(source, f"<devmem.compat: {function.__name__}>", "exec"), names)
    return devmem.kernel(names[_kernel_name(function)])


def _kernel_name(function: Callable[..., Any]) -> str:
    return function.__name__ if function.__name__.isidentifier() else "unnamed"  # a lambda


def _split(signature: str) -> list[str]:
    """The types in a signature as text: those of the arguments, then that of the result."""
    result, _, arguments = signature.strip().removesuffix(")").partition("(")
    found = [each.strip() for each in re.split(r",(?![^\[]*\])", arguments) if each.strip()]
    return found if result.strip() in ("", "void", "none") else [*found, result.strip()]


def _dtype(text: str) -> np.dtype[Any]:
    name = text.partition("[")[0].strip()
    return np.dtype({"boolean": "bool", "double": "float64", "int_": "int64"}.get(name, name))


def _array(given: Any) -> Any:
    """An argument as an array of NumPy, or over its device memory: another library's array may have no attributes of one."""
    if isinstance(given, devmem.DeviceNDArray):
        return given
    return as_cuda_array(given) if is_cuda_array(given) else np.asarray(given)


def _on_device(array: Any, dtype: np.dtype[Any], shape: tuple[int, ...], stream: Any) -> Any:
    """An argument on the device, in its type and broadcast to a shape."""
    if is_cuda_array(array):
        if array.dtype == dtype and array.shape == shape:
            return array
        array = array.copy_to_host(stream=stream)
    return to_device(np.ascontiguousarray(np.broadcast_to(array.astype(dtype, copy=False), shape)), stream=stream)


def _copied(array: Any, core: tuple[int, ...], stream: Any) -> Any:
    found = device_array(array.shape, array.dtype, stream=stream)
    found.copy_to_device(array, stream=stream)
    return found.reshape(-1, *core)
