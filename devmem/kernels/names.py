"""The names that kernels use: ``devmem.shared``, ``barrier``, ``threadIdx``, ``atomic`` and the rest.

Compilers recognise these objects and generate the vendor's code. Called in Python, they act on the running work-item (see
`work_items`): what depends on its four extents alone (``grid``, ``get_global_id``, ...) is computed here; what involves other
work-items of the block, or has to be watched, is a method of the work-item.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..spi.errors import UnsupportedError
from .compilers import extensions
from .work_items import Dim3, WorkItem, finders, require_item, running_item

#: What a barrier or a fence orders: accesses to shared memory, or to all memory. OpenCL's names, and numba.roc's numbers.
CLK_LOCAL_MEM_FENCE = 0
CLK_GLOBAL_MEM_FENCE = 1
#: Bytes of an address: the least alignment that can be asked for.
_ADDRESS = 8


def _in_numba_simulator() -> WorkItem | None:
    """The work-item of numba-cuda's simulator, if that runs on this thread."""
    if "numba.cuda.simulator.kernel" not in sys.modules:
        return None
    from .compilers.numba_cuda import cudasim  # imports numba, which is loaded already

    return cudasim.find()


finders.append(_in_numba_simulator)

#: The names that are exported as ``devmem.<name>``.
PUBLIC = (
    "CLK_GLOBAL_MEM_FENCE",
    "CLK_LOCAL_MEM_FENCE",
    "atomic",
    "barrier",
    "blockDim",
    "blockIdx",
    "const",
    "get_global_id",
    "get_global_size",
    "get_group_id",
    "get_local_id",
    "get_local_size",
    "get_num_groups",
    "get_work_dim",
    "grid",
    "gridDim",
    "gridsize",
    "laneid",
    "local",
    "mem_fence",
    "shared",
    "syncthreads",
    "threadIdx",
    "warpsize",
    "wavebarrier",
)

# -- memory ------------------------------------------------------------------------------------------------------------


class KernelName:
    """An object that compilers recognise by its identity."""

    def __init__(self, name: str, doc: str = "") -> None:
        self.name = name
        self.__doc__ = doc or type(self).__doc__

    def __repr__(self) -> str:
        return f"<devmem.{self.name}, for kernels>"

    def __reduce__(self) -> str:
        return self.name

    def __getattr__(self, name: str) -> Any:
        has = ", ".join(each for each in dir(type(self)) if not each.startswith("_")) or "no attributes"
        raise AttributeError(f"devmem.{self.__dict__.get('name')} has no {name!r}: there is {has}")

    @property
    def _numba_type_(self) -> Any:
        """The type that numba looks up for every global, from the imported compiler.

        So the names work in kernels under numba's own decorators, too, without registration.
        """
        return extensions.type_of(self)


class Shared(KernelName):
    """``devmem.shared``: memory that the threads of a block share."""

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        """An array shared by all threads of the block. Shape and dtype are constants; shape 0: the dynamic shared memory.

        ``alignment``: bytes, a power of two, that the address is a multiple of; compiled by numba-cuda alone.
        """
        if alignment is not None:
            _check_alignment(alignment)
        return require_item("shared.array").shared_array(shape, dtype)


class Local(KernelName):
    """``devmem.local``: memory of a single thread."""

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        """An array of this thread alone. Shape and dtype are constants; ``alignment`` as in `Shared.array`."""
        if alignment is not None:
            _check_alignment(alignment)
        return require_item("local.array").local_array(shape, dtype)


def _check_alignment(alignment: int) -> None:
    if alignment < _ADDRESS or alignment & (alignment - 1):
        raise ValueError(f"alignment={alignment!r}: give a power of two, {_ADDRESS} or more bytes, or leave it out")


class Const(KernelName):
    """``devmem.const``: memory that is compiled into the kernel."""

    def array_like(self, ary: Any) -> Any:
        """A host array that is a global of the kernel, with its contents at compile time."""
        return require_item("const.array_like").const_array(ary)


class Atomic(KernelName):
    """``devmem.atomic``: atomic read-modify-write operations on an element. Each returns the old value."""

    def add(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] += val``."""
        return require_item("atomic.add").atomic("add", ary, idx, val)

    def sub(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] -= val``."""
        return require_item("atomic.sub").atomic("sub", ary, idx, val)

    def and_(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] &= val``; integers only, as `or_` and `xor`."""
        return require_item("atomic.and_").atomic("and_", ary, idx, val)

    def or_(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] |= val``."""
        return require_item("atomic.or_").atomic("or_", ary, idx, val)

    def xor(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] ^= val``."""
        return require_item("atomic.xor").atomic("xor", ary, idx, val)

    def inc(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] = 0 if ary[idx] >= val else ary[idx] + 1``; unsigned integers only, as `dec`."""
        return require_item("atomic.inc").atomic("inc", ary, idx, val)

    def dec(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] = val if ary[idx] == 0 or ary[idx] > val else ary[idx] - 1``."""
        return require_item("atomic.dec").atomic("dec", ary, idx, val)

    def max(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] = max(ary[idx], val)``."""
        return require_item("atomic.max").atomic("max", ary, idx, val)

    def min(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] = min(ary[idx], val)``."""
        return require_item("atomic.min").atomic("min", ary, idx, val)

    def nanmax(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] = max(ary[idx], val)``, where a NaN is less than every number."""
        return require_item("atomic.nanmax").atomic("nanmax", ary, idx, val)

    def nanmin(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] = min(ary[idx], val)``, where a NaN is greater than every number."""
        return require_item("atomic.nanmin").atomic("nanmin", ary, idx, val)

    def exch(self, ary: Any, idx: Any, val: Any) -> Any:
        """``ary[idx] = val``."""
        return require_item("atomic.exch").atomic("exch", ary, idx, val)

    def cas(self, ary: Any, idx: Any, old: Any, new: Any) -> Any:
        """``ary[idx] = new`` if ``ary[idx] == old``."""
        return require_item("atomic.cas").atomic("cas", ary, idx, old, new)

    def compare_and_swap(self, ary: Any, old: Any, val: Any) -> Any:
        """``ary[0] = val`` if ``ary[0] == old``; for an array with one axis."""
        return require_item("atomic.compare_and_swap").atomic("cas", ary, 0, old, val)


# -- where a thread is -------------------------------------------------------------------------------------------------


class Position(KernelName):
    """Indices or lengths with ``x``, ``y`` and ``z``."""

    def __init__(self, name: str, part: str, doc: str) -> None:
        super().__init__(name, doc)
        self.part = part

    def __str__(self) -> str:
        item = running_item()
        return repr(self) if item is None else str(tuple(getattr(item, self.part)))

    @property
    def x(self) -> int:
        """Along the first axis."""
        found: Dim3 = getattr(require_item(self.name), self.part)
        return found[0]

    @property
    def y(self) -> int:
        """Along the second axis."""
        found: Dim3 = getattr(require_item(self.name), self.part)
        return found[1]

    @property
    def z(self) -> int:
        """Along the third axis."""
        found: Dim3 = getattr(require_item(self.name), self.part)
        return found[2]


class NoTruthValue(UnsupportedError, TypeError):
    """A TypeError too, as compilers test the truth of globals and handle that error."""


class Number(KernelName):
    """An integer of the running work-item, such as ``laneid``; operators apply to its value."""

    def __init__(self, name: str, part: str, doc: str) -> None:
        super().__init__(name, doc)
        self.part = part

    def __index__(self) -> int:
        value: int = getattr(require_item(self.name), self.part)
        return value

    __int__ = __index__
    __hash__ = object.__hash__

    def __float__(self) -> float:
        return float(self.__index__())

    def __bool__(self) -> bool:
        if running_item() is None:
            raise NoTruthValue(f"whether devmem.{self.name} is 0 is known in a kernel, and not on the host")
        return bool(self.__index__())


def _operators() -> None:
    """Give `Number` the operators of its value."""
    for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"):
        apply = getattr(operator, name)
        plain = name.strip("_")
        setattr(Number, f"__{plain}__", lambda self, other, apply=apply: apply(self.__index__(), other))
        setattr(Number, f"__r{plain}__", lambda self, other, apply=apply: apply(other, self.__index__()))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        apply = getattr(operator, name)
        # It equals itself without a lookup, as tables on the host compare their keys.
        same = name == "eq"
        setattr(
            Number,
            f"__{name}__",
            lambda self, other, apply=apply, same=same: (same and other is self) or apply(self.__index__(), other),
        )
    for name in ("neg", "pos", "invert", "abs"):
        apply = getattr(operator, name)
        setattr(Number, f"__{name}__", lambda self, apply=apply: apply(self.__index__()))


_operators()


class BuiltinFunction(KernelName):
    """A function for kernels. Each has its own class, whose ``__call__`` is the function."""

    def __repr__(self) -> str:
        return f"<function devmem.{self.name}, for kernels>"


P = ParamSpec("P")
R = TypeVar("R")


def _function(call: Callable[Concatenate[BuiltinFunction, P], R]) -> Callable[P, R]:
    """The object for a function for kernels; the function's first parameter is that object."""
    name = call.__name__
    kind: Any = type(name, (BuiltinFunction,), {"__call__": call, "__doc__": call.__doc__})
    made: Callable[P, R] = kind(name)
    return made


@_function
def grid(self: BuiltinFunction, ndim: int) -> Any:
    """The thread's indices in the whole grid: an int for ``ndim`` 1, else a tuple of 2 or 3."""
    item = require_item("grid")
    if ndim == 1:
        return item.block[0] * item.block_dim[0] + item.thread[0]
    return tuple(
        block * length + thread
        for block, length, thread, _ in zip(item.block, item.block_dim, item.thread, _axes(ndim), strict=False)
    )


@_function
def gridsize(self: BuiltinFunction, ndim: int) -> Any:
    """The number of threads of the whole grid along each axis: an int for ``ndim`` 1, else a tuple of 2 or 3."""
    item = require_item("gridsize")
    if ndim == 1:
        return item.grid_dim[0] * item.block_dim[0]
    return tuple(blocks * length for blocks, length, _ in zip(item.grid_dim, item.block_dim, _axes(ndim), strict=False))


@_function
def get_global_id(self: BuiltinFunction, dim: int) -> int:
    """The thread's index in the whole grid along an axis."""
    item = require_item("get_global_id")
    return item.block[dim] * item.block_dim[dim] + item.thread[dim]


@_function
def get_local_id(self: BuiltinFunction, dim: int) -> int:
    """The thread's index in its block along an axis."""
    return require_item("get_local_id").thread[dim]


@_function
def get_group_id(self: BuiltinFunction, dim: int) -> int:
    """The block's index in the grid along an axis."""
    return require_item("get_group_id").block[dim]


@_function
def get_local_size(self: BuiltinFunction, dim: int) -> int:
    """The number of threads of a block along an axis."""
    return require_item("get_local_size").block_dim[dim]


@_function
def get_global_size(self: BuiltinFunction, dim: int) -> int:
    """The number of threads of the whole grid along an axis."""
    item = require_item("get_global_size")
    return item.grid_dim[dim] * item.block_dim[dim]


@_function
def get_num_groups(self: BuiltinFunction, dim: int) -> int:
    """The number of blocks of the grid along an axis."""
    return require_item("get_num_groups").grid_dim[dim]


@_function
def get_work_dim(self: BuiltinFunction) -> int:
    """Count the axes of the grid up to the last one with more than one thread; at least 1."""
    return require_item("get_work_dim").work_dim


# -- waiting -----------------------------------------------------------------------------------------------------------


@_function
def barrier(self: BuiltinFunction, scope: int = CLK_GLOBAL_MEM_FENCE) -> None:
    """Wait for all threads of the block; their earlier writes are visible to all of them afterwards.

    ``scope``: CLK_LOCAL_MEM_FENCE covers shared memory only, CLK_GLOBAL_MEM_FENCE all memory.
    """
    require_item("barrier").barrier(scope)


@_function
def syncthreads(self: BuiltinFunction) -> None:
    """Wait for all threads of the block: `barrier` by its CUDA name."""
    require_item("syncthreads").barrier(CLK_GLOBAL_MEM_FENCE)


@_function
def wavebarrier(self: BuiltinFunction) -> None:
    """Wait for all threads of the warp, or wavefront."""
    require_item("wavebarrier").wave_barrier()


@_function
def mem_fence(self: BuiltinFunction, scope: int = CLK_GLOBAL_MEM_FENCE) -> None:
    """Make the thread's earlier writes visible, to its block or to the device, before its later ones; it does not wait."""
    require_item("mem_fence").fence(scope)


class GridGroup:
    """All threads of the grid. Made by `this_grid`."""

    __slots__ = ()

    def sync(self) -> None:
        """Wait for all threads of the grid; their earlier writes are visible to all of them afterwards."""
        require_item("this_grid().sync").grid_barrier()


@_function
def this_grid(self: BuiltinFunction) -> GridGroup:
    """The group of all threads of the grid. Only the simulator has it: compilers would have to link code for it."""
    require_item("this_grid")
    return GridGroup()


def _axes(ndim: int) -> range:
    if ndim not in (2, 3):
        raise ValueError(f"a grid has 1, 2 or 3 axes, not {ndim!r}")
    return range(ndim)


shared = Shared("shared", "Memory that the threads of a block share.")
local = Local("local", "Memory of a single thread.")
const = Const("const", "Memory that is compiled into the kernel.")
atomic = Atomic("atomic", "Atomic read-modify-write operations on an element.")
threadIdx = Position("threadIdx", "thread", "The thread's indices in its block.")
blockIdx = Position("blockIdx", "block", "The block's indices in the grid.")
blockDim = Position("blockDim", "block_dim", "The threads of a block along each axis.")
gridDim = Position("gridDim", "grid_dim", "The blocks of the grid along each axis.")
laneid = Number("laneid", "lane", "The thread's index in its warp, or wavefront.")
warpsize = Number("warpsize", "wave_size", "The threads of a warp, or wavefront.")
