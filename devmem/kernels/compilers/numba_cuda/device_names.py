"""What devmem's names are to numba-cuda: types, and the code in their place.

The namespaces (``shared``, ``atomic``) resolve to numba's own functions, by their templates; functions become calls of numba's,
in place; indices and numbers have types of their own, because their values are registers and not constants. numba asks each name
for its type (``_numba_type_``), so that ``devmem.barrier()`` and ``from devmem import barrier`` are the same.

No overloads: numba-cuda compiles those as device functions, and for that asks which device is current, where there may be none.
"""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda import cudadecl, cudaimpl, nvvmutils, types
from numba.cuda.compiler import compile_cuda
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.errors import RequireLiteralValue
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.datamodel import models
from numba.cuda.descriptor import cuda_target
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.extending import register_model
from numba.cuda.typing import signature
from numba.cuda.typing.templates import AttributeTemplate, CallableTemplate

from ... import names
from ...kernel import DeviceFunction

#: Of each namespace its names, and numba's template for each.
NAMESPACES: dict[Any, dict[str, Any]] = {
    names.shared: {"array": cudadecl.Cuda_shared_array},
    names.local: {"array": cudadecl.Cuda_local_array},
    names.const: {"array_like": cudadecl.Cuda_const_array_like},
    names.atomic: {
        "add": cudadecl.Cuda_atomic_add,
        "max": cudadecl.Cuda_atomic_max,
        "min": cudadecl.Cuda_atomic_min,
        "exch": cudadecl.Cuda_atomic_exch,
        "cas": cudadecl.Cuda_atomic_cas,
    },
}
#: The special registers behind indices and numbers.
POSITIONS = {names.threadIdx: "tid", names.blockIdx: "ctaid", names.blockDim: "ntid", names.gridDim: "nctaid"}
NUMBERS = {names.laneid: "laneid", names.warpsize: "warpsize"}

#: The type of each name, once they are registered.
_types: dict[Any, Any] = {}


class PositionType(types.Dummy):  # type: ignore[misc]  # numba has no types for checkers
    """The type of ``threadIdx`` and its like."""

    def __init__(self, register: str) -> None:
        self.register = register
        super().__init__(f"devmem.position({register})")


class NumberType(types.Literal, types.Integer):  # type: ignore[misc]
    """The type of ``laneid``: read where it is used, and an int32 to whatever asks for more.

    A literal, as numba has none for what is no variable: it falls back on `literal_type` by itself.
    """

    def __init__(self, value: names.Number) -> None:
        self._literal_init(value)
        self._key = value.name
        types.Integer.__init__(self, name=f"devmem.{value.name}", bitwidth=32, signed=True)

    @property
    def literal_type(self) -> Any:
        """What it is to arithmetic."""
        return types.int32

    def can_convert_to(self, typingctx: Any, other: Any) -> Any:
        """To all that an int32 can be converted to."""
        return typingctx.can_convert(types.int32, other)


def register() -> None:
    """Register everything, once, and let numba take it in: it may be compiling already."""
    with global_compiler_lock:  # numba's own, which is held already where it asks for a name
        if not _types:
            _register_all()


def _register_all() -> None:
    register_model(PositionType)(models.OpaqueModel)
    register_model(NumberType)(models.IntegerModel)
    for namespace, members in NAMESPACES.items():
        _namespace(namespace, members)
    for position, sreg in POSITIONS.items():
        _position(position, sreg)
    for number, sreg in NUMBERS.items():
        _number(number, sreg)
    for function, (typer, lower) in FUNCTIONS.items():
        _function(function, typer, lower)
    cuda_target.typing_context.refresh()
    cuda_target.target_context.refresh()


def type_of_name(name: Any) -> Any:
    """The type of one of devmem's names, or of a device function."""
    register()
    return _device_function(name) if isinstance(name, DeviceFunction) else _types[name]


def _namespace(namespace: Any, members: dict[str, Any]) -> None:
    kind = types.Module(namespace)
    body: dict[str, Any] = {"key": kind}
    for name, template in members.items():
        body[f"resolve_{name}"] = lambda self, module, template=template: types.Function(template)
    cudadecl.registry.register_attr(type("Namespace", (AttributeTemplate,), body))
    _types[namespace] = kind


def _position(position: names.Position, sreg: str) -> None:
    kind = PositionType(sreg)
    _types[position] = kind
    body: dict[str, Any] = {"key": kind}
    for axis in "xyz":
        body[f"resolve_{axis}"] = lambda self, position: types.int32

        def read(context: Any, builder: Any, sig: Any, args: Any, register: str = f"{sreg}.{axis}") -> Any:
            return nvvmutils.call_sreg(builder, register)

        cudaimpl.registry.lower_getattr(kind, axis)(read)
    cudadecl.registry.register_attr(type("Position", (AttributeTemplate,), body))
    cudaimpl.registry.lower_constant(kind)(lambda context, builder, ty, value: context.get_dummy_value())


def _number(number: names.Number, sreg: str) -> None:
    kind = NumberType(number)
    _types[number] = kind

    def read(context: Any, builder: Any, ty: Any, value: Any) -> Any:
        return nvvmutils.call_sreg(builder, sreg)

    def cast(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
        return context.cast(builder, value, types.int32, toty)

    cudaimpl.registry.lower_constant(kind)(read)
    for other in (types.Integer, types.Float, types.Complex, types.Boolean):
        cudaimpl.registry.lower_cast(kind, other)(cast)


class DeviceDispatcher(CUDADispatcher):  # type: ignore[misc]
    """A device function that is compiled for what its caller is compiled for, and not for the device that is current."""

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Compile it for arguments of these types, once."""
        flags = ConfigStack.top_or_none()
        if flags is None or args in self.overloads:
            return super().compile_device(args, return_type)
        options = {name: self.targetoptions.get(name) for name in ("debug", "lineinfo", "forceinline", "fastmath")}
        with self._compiling_counter:
            result = compile_cuda(
                self.py_func,
                return_type,
                args,
                **options,
                inline=self.targetoptions.get("inline", "never"),
                nvvm_options=flags.nvvm_options,
                cc=flags.compute_capability,
            )
            self.overloads[args] = result
            result.target_context.insert_user_function(result.entry_point, result.fndesc, [result.library])
        return result


def _device_function(value: DeviceFunction) -> Any:
    """A device function is what numba-cuda makes of it, made once."""
    made: Any = value.compiled.get("numba_cuda")
    if made is None:
        options = {"device": True, "opt": True, **value.options}
        made = value.compiled.setdefault("numba_cuda", DeviceDispatcher(value.function, targetoptions=options))
    return made._numba_type_


# -- functions -----------------------------------------------------------------------------------------------------------
# Of each a typer, which takes numba's types and gives the result's, and what builds it in place: a function of the target's
# context, the builder, the types of the arguments and their values.


def _function(function: Any, typer: Any, lower: Any) -> None:
    class Template(CallableTemplate):  # type: ignore[misc]
        key = function

        def generic(self) -> Any:
            return typer

    _types[function] = types.Function(Template)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        found = lower(context, builder, sig.args, args)
        return context.get_dummy_value() if found is None else found

    for count in range(2):
        cudaimpl.registry.lower(function, *[types.Any] * count)(build)


def _call(context: Any, builder: Any, function: Any, kinds: Any = (), values: Any = ()) -> Any:
    """A call of one of numba's intrinsics."""
    kind = context.typing_context.resolve_value_type(function)
    sig = kind.get_call_type(context.typing_context, kinds, {})
    return context.get_function(kind, sig)(builder, values)


def _stub(context: Any, builder: Any, function: Any) -> None:
    """A call of one of numba's functions that are known by what stands for them."""
    context.get_function(function, signature(types.none))(builder, ())


def _axes(what: str) -> Any:
    def typer(ndim: Any) -> Any:
        if not isinstance(ndim, types.IntegerLiteral) or not 1 <= ndim.literal_value <= 3:
            raise RequireLiteralValue(f"devmem.{what}(ndim) takes a constant: 1, 2 or 3")
        return types.int64 if ndim.literal_value == 1 else types.UniTuple(types.int64, ndim.literal_value)

    return typer


def _along(dim: Any) -> Any:
    """The type of what a function of one axis gives."""
    return types.int64 if isinstance(dim, types.Integer) else None


def _of_axis(context: Any, builder: Any, kinds: Any, values: Any, value_of: Any) -> Any:
    """The value along the axis that was asked for; where that is a constant, LLVM leaves out the others."""
    dim = context.cast(builder, values[0], kinds[0], types.int32)
    x, y, z = map(value_of, "xyz")
    is_x = builder.icmp_signed("==", dim, context.get_constant(types.int32, 0))
    is_y = builder.icmp_signed("==", dim, context.get_constant(types.int32, 1))
    return builder.select(is_x, x, builder.select(is_y, y, z))


def _register(context: Any, builder: Any, name: str) -> Any:
    return context.cast(builder, nvvmutils.call_sreg(builder, name), types.int32, types.int64)


def _one(register: str) -> Any:
    def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        return _of_axis(context, builder, kinds, values, lambda axis: _register(context, builder, f"{register}.{axis}"))

    return lower


def _product(blocks: str, rest: str | None) -> Any:
    """Blocks along an axis times their length, and what comes on top."""

    def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        def value_of(axis: str) -> Any:
            whole = builder.mul(
                _register(context, builder, f"{blocks}.{axis}"), _register(context, builder, f"ntid.{axis}")
            )
            return whole if rest is None else builder.add(whole, _register(context, builder, f"{rest}.{axis}"))

        return _of_axis(context, builder, kinds, values, value_of)

    return lower


def _work_dim(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    one = context.get_constant(types.int64, 1)

    def wide(axis: str) -> Any:
        size = builder.mul(_register(context, builder, f"nctaid.{axis}"), _register(context, builder, f"ntid.{axis}"))
        return builder.icmp_signed(">", size, one)

    two = builder.select(wide("y"), context.get_constant(types.int64, 2), one)
    return builder.select(wide("z"), context.get_constant(types.int64, 3), two)


def _fence(context: Any, builder: Any, kinds: Any, values: Any) -> None:
    if not values:
        _stub(context, builder, cuda.threadfence)
        return
    scope = context.cast(builder, values[0], kinds[0], types.int32)
    local = context.get_constant(types.int32, names.CLK_LOCAL_MEM_FENCE)
    with builder.if_else(builder.icmp_signed("==", scope, local)) as (to_block, to_device):
        with to_block:
            _stub(context, builder, cuda.threadfence_block)
        with to_device:
            _stub(context, builder, cuda.threadfence)


def _block(context: Any, builder: Any, kinds: Any, values: Any) -> None:
    # Whatever the scope: it orders accesses to all memory that the block can see.
    _call(context, builder, cuda.syncthreads)


def _scope(scope: Any = None) -> Any:
    return types.none if scope is None or isinstance(scope, types.Integer) else None


FUNCTIONS: dict[Any, tuple[Any, Any]] = {
    names.grid: (_axes("grid"), lambda context, builder, *rest: _call(context, builder, cuda.grid, *rest)),
    names.gridsize: (_axes("gridsize"), lambda context, builder, *rest: _call(context, builder, cuda.gridsize, *rest)),
    names.get_global_id: (_along, _product("ctaid", "tid")),
    names.get_local_id: (_along, _one("tid")),
    names.get_group_id: (_along, _one("ctaid")),
    names.get_local_size: (_along, _one("ntid")),
    names.get_num_groups: (_along, _one("nctaid")),
    names.get_global_size: (_along, _product("nctaid", None)),
    names.get_work_dim: (lambda: types.int64, _work_dim),
    names.barrier: (_scope, _block),
    names.syncthreads: (lambda: types.none, _block),
    names.wavebarrier: (lambda: types.none, lambda context, builder, *rest: _stub(context, builder, cuda.syncwarp)),
    names.mem_fence: (_scope, _fence),
}
