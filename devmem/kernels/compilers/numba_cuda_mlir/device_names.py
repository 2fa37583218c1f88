"""devmem's names in numba-cuda-mlir: typed by templates, and lowered to its own names, special registers and device functions.

Its compiler asks `typeof_impl` for the type of every global, so the names work under its own ``cuda.jit`` too: the first one that
is asked for its type registers them all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from numba_cuda_mlir import cuda
from numba_cuda_mlir._mlir.dialects import gpu, llvm, nvvm
from numba_cuda_mlir._mlir.extras import types as mlir_types
from numba_cuda_mlir.descriptor import MLIRDispatcher, mlir_target
from numba_cuda_mlir.extending import (
    lower_builtin,
    lowering_registry,
    refresh_registries,
    register_model,
    typeof_impl,
    typing_registry,
)
from numba_cuda_mlir.lowering_utilities import convert, unverified_convert
from numba_cuda_mlir.models import OpaqueModel
from numba_cuda_mlir.numba_cuda import cudadecl, types
from numba_cuda_mlir.numba_cuda.core import errors, ir
from numba_cuda_mlir.numba_cuda.core.compiler_lock import global_compiler_lock
from numba_cuda_mlir.numba_cuda.core.rewrites import Rewrite, register_rewrite
from numba_cuda_mlir.numba_cuda.typing.templates import AbstractTemplate, AttributeTemplate, ConcreteTemplate, signature

from ... import names
from ...functions import CudaFunction, DeviceFunction
from ..numba_names import NUMBERS, POSITIONS
from . import device_functions

#: numba-cuda-mlir's own namespace for each of devmem's.
NAMESPACES: dict[Any, Any] = {
    names.shared: cuda.shared,
    names.local: cuda.local,
    names.const: cuda.const,
    names.atomic: device_functions.atomic,
}
_INDICES = {
    names.threadIdx: gpu.thread_id,
    names.blockIdx: gpu.block_id,
    names.blockDim: gpu.block_dim,
    names.gridDim: gpu.grid_dim,
}
_FENCES = {
    device_functions.threadfence_block: "membar.cta;",
    device_functions.threadfence: "membar.gl;",
    device_functions.threadfence_system: "membar.sys;",
}
_REGISTERS = {names.laneid: nvvm.read_ptx_sreg_laneid, names.warpsize: nvvm.read_ptx_sreg_warpsize}

#: The types of the fences, once registered.
kinds_of_fences: dict[str, Any] = {}

#: The device function to call, and the arguments to pass, from the types of the arguments and the arguments.
Choice = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Sequence[Any]]]


class MlirNames:
    """devmem's names for numba-cuda-mlir, registered once."""

    #: The key under which device functions keep their dispatchers.
    name = "numba_cuda_mlir"

    def __init__(self) -> None:
        #: The type of each name, once registered.
        self.kinds: dict[Any, Any] = {}

    def register(self) -> None:
        """Register everything once, and refresh numba's contexts, as it may be compiling already."""
        with global_compiler_lock:
            if not self.kinds:
                self.kinds = self._register_all()
                refresh_registries()

    def type_of_name(self, name: Any) -> Any:
        """The type of one of devmem's names, or of a device function."""
        self.register()
        if isinstance(name, CudaFunction):
            return _own_function(name)
        return self._device_function(name) if isinstance(name, DeviceFunction) else self.kinds[name]

    def _register_all(self) -> dict[Any, Any]:
        """Register each name; their types."""
        typeof_impl.register(names.KernelName)(lambda name, context: self.kinds[name])
        typeof_impl.register(DeviceFunction)(lambda function, context: self._device_function(function))
        typeof_impl.register(CudaFunction)(lambda function, context: _own_function(function))
        for function, instruction in _FENCES.items():
            kinds_of_fences[function.__name__] = _fence(function, instruction)
        _atomic_operations()
        kinds = {ours: types.Module(theirs) for ours, theirs in NAMESPACES.items()} | _positions() | _numbers()
        plain: dict[Any, Choice] = {function: _always(made) for function, made in device_functions.PLAIN.items()}
        optional: dict[Any, Choice] = {
            function: _by_count(pair) for function, pair in device_functions.OPTIONAL.items()
        }
        by_axes: dict[Any, Choice] = {
            function: _by_axes(function, choices) for function, choices in device_functions.BY_AXES.items()
        }
        return kinds | {name: _function(name, choose) for name, choose in (plain | optional | by_axes).items()}

    def _device_function(self, function: DeviceFunction) -> Any:
        found: Any = function.compiled.get(self.name)
        if found is None:
            # What is asked of the device's memory while it is compiled is the caller's to choose.
            made = cuda.jit(device=True, **function.options)(function.function)
            kind = _function(function, _always(made))
            refresh_registries()
            found = function.compiled.setdefault(self.name, kind)
        return found


def _own_function(function: CudaFunction) -> Any:
    """The type of one of numba-cuda-mlir's own functions, or of a fence, of which it has none."""
    if function.__name__ in kinds_of_fences:
        return kinds_of_fences[function.__name__]
    *path, name = function.__name__.split(".")
    module = operator.attrgetter(*path)(cuda) if path else cuda
    return mlir_target.typing_context.resolve_getattr(types.Module(module), name)


def _atomic_operations() -> None:
    body: dict[str, Any] = {"key": types.Module(device_functions.atomic)}
    for name, function in vars(device_functions.atomic).items():
        kind = getattr(function, "_numba_type_", None)  # of a device function
        if kind is None and not name.startswith("__"):
            template = getattr(cudadecl, f"Cuda_atomic_{name.rstrip('_')}")
            kind = types.Function(_of_signed(template, name) if name.endswith(("max", "min")) else template)
        body[f"resolve_{name}"] = lambda self, module, kind=kind: kind
    typing_registry.register_attr(type("Atomic", (AttributeTemplate,), body))


def _of_signed(template: Any, name: str) -> Any:
    """The template for arrays whose numbers are signed: 0.6 compares unsigned ones as if they were."""

    class OfSigned(template):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            kind = getattr(args[0], "dtype", None) if args else None
            if isinstance(kind, types.Integer) and not kind.signed:
                raise errors.TypingError(
                    f"numba-cuda-mlir compares unsigned integers of atomic.{name} as signed ones: use a signed type or numba-cuda"
                )
            return super().generic(args, kws)

    return OfSigned


def _positions() -> dict[Any, Any]:
    kinds: dict[Any, Any] = {}
    position_type = type("PositionType", (types.Dummy,), {})
    register_model(position_type)(OpaqueModel)
    for position in POSITIONS:
        kind = kinds[position] = position_type(f"devmem.position({position.name})")
        body: dict[str, Any] = {"key": kind}
        body |= {f"resolve_{axis}": lambda self, position: types.int32 for axis in "xyz"}
        typing_registry.register_attr(type("Position", (AttributeTemplate,), body))
        for axis in "xyz":
            lowering_registry.lower_getattr(kind, axis)(_read_index(_INDICES[position], axis))
    return kinds


def _numbers() -> dict[Any, Any]:
    """Lower the numbers, which are int32, where they are attributes of a module and where they are globals."""

    def read(number: names.Number, target_type: Any, **options: Any) -> Any:
        return convert(_REGISTERS[number](), target_type, **options)

    def build(context: Any, builder: Any, target: Any, value: Any) -> None:
        builder.store_var(target, read(builder.load_var(value), mlir_types.i32()))

    unverified_convert.register(names.Number)(read)
    register_model(NumberHolder)(OpaqueModel)
    lowering_registry.lower_getattr(NumberHolder, "value")(build)
    register_rewrite("after-inference")(ReadNumbers)
    return dict.fromkeys(NUMBERS, types.int32)


class NumberHolder(types.Dummy):  # type: ignore[misc]  # numba has no types for checkers
    """The type of a variable that holds a `Number` itself."""


class ReadNumbers(Rewrite):  # type: ignore[misc]
    """Turn a global that is a `Number` into a read of its register, as globals other than constants are lowered to the object."""

    def match(self, func_ir: Any, block: Any, typemap: Any, calltypes: Any) -> bool:
        """Whether a block has such a global."""
        self.block, self.typemap = block, typemap
        return any(map(self._is_number, block.body))

    def apply(self) -> Any:
        """The block with an assignment of the object, and of its value, for each."""
        new = self.block.copy()
        new.clear()
        for each in self.block.body:
            if self._is_number(each):
                holder = each.target.scope.redefine("$devmem_number", each.loc)
                self.typemap[holder.name] = NumberHolder("devmem number")
                new.append(ir.Assign(each.value, holder, each.loc))
                each = ir.Assign(ir.Expr.getattr(holder, "value", each.loc), each.target, each.loc)
            new.append(each)
        return new

    def _is_number(self, statement: Any) -> bool:
        value = getattr(statement, "value", None)
        if not isinstance(value, ir.Global | ir.FreeVar) or not isinstance(value.value, names.Number):
            return False
        return not isinstance(self.typemap[statement.target.name], NumberHolder)


def _fence(function: Any, instruction: str) -> Any:
    """The type of a function that is one instruction."""
    kind = types.Function(type("Fence", (ConcreteTemplate,), {"key": function, "cases": [signature(types.none)]}))
    typing_registry.register_global(function, kind)

    def build(builder: Any, target: Any, args: Any, kws: Any) -> None:
        llvm.inline_asm(None, [], instruction, "~{memory}", has_side_effects=True)
        builder.store_var(target, None)

    lower_builtin(function)(build)
    return kind


def _function(function: Any, choose: Choice) -> Any:
    """The type of a function that is a call of a device function, with its lowering registered."""

    def generic(self: Any, args: Any, kws: Any) -> Any:
        if kws:
            return None
        made, given = choose(args, args)
        found = made._numba_type_.get_call_type(self.context, tuple(given), {})
        return signature(found.return_type, *args)

    def build(builder: Any, target: Any, args: Any, kws: Any) -> None:
        made, given = choose([builder.get_numba_type(each.name) for each in args], args)
        builder.store_var(target, builder.build_user_defined_function_call(target, made, list(given), []))

    lower_builtin(function, types.VarArg(types.Any))(build)
    return types.Function(type("Template", (AbstractTemplate,), {"key": function, "generic": generic}))


def _always(made: Any) -> Choice:
    return lambda kinds, given: (made, given)


def _by_count(pair: Sequence[Any]) -> Choice:
    return lambda kinds, given: (pair[len(kinds)], given)


def _by_axes(function: Any, choices: Sequence[MLIRDispatcher]) -> Choice:
    def choose(kinds: Sequence[Any], given: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        if len(kinds) != 1 or not isinstance(kinds[0], types.IntegerLiteral) or not 1 <= kinds[0].literal_value <= 3:
            raise errors.RequireLiteralValue(f"devmem.{function.name}(ndim) takes a constant: 1, 2 or 3")
        return choices[kinds[0].literal_value - 1], ()

    return choose


def _read_index(read: Any, axis: str) -> Any:
    def build(context: Any, builder: Any, target: Any, value: Any) -> None:
        builder.store_var(target, convert(read(getattr(gpu.Dimension, axis)), mlir_types.i32()))

    return build


NAMES = MlirNames()
register, type_of_name = NAMES.register, NAMES.type_of_name
