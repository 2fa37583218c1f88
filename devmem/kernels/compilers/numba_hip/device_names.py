"""What devmem's names are to numba-hip: types, and the code in their place.

numba-hip makes most of its own names from ROCm's headers when it is imported, and keeps them as attributes of the module
``numba.hip``: they are looked up there, by name, when they are asked for. What takes other arguments than numba-hip's (barriers
with a scope, indices along an axis) is built of those; atomics on arrays, which numba-hip has not got, of LLVM's instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import hip
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.datamodel import models, register_default
from numba.core.errors import RequireLiteralValue
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, CallableTemplate, signature
from numba.hip.typing_lowering.registries import impl_registry, typing_registry

from ... import names
from ...kernel import DeviceFunction

#: Those that are numba-hip's own, under its names.
SAME = {names.shared: "shared", names.local: "local", names.const: "const"}
POSITIONS = {
    names.threadIdx: "threadIdx",
    names.blockIdx: "blockIdx",
    names.blockDim: "blockDim",
    names.gridDim: "gridDim",
}
NUMBERS = {names.laneid: "laneid", names.warpsize: "warpsize"}
#: LLVM's instructions: for signed integers, for unsigned ones, and for floats.
ATOMICS = {
    "add": ("add", "add", "fadd"),
    "max": ("max", "umax", "fmax"),
    "min": ("min", "umin", "fmin"),
    "exch": ("xchg", "xchg", "xchg"),
}
#: Names under which ROCm's headers may have a fence or a barrier, the best first.
BLOCK_BARRIER, BLOCK_FENCE, DEVICE_FENCE = ("syncthreads",), ("threadfence_block",), ("threadfence",)
WAVE_BARRIER = ("syncwarp", "builtin_amdgcn_wave_barrier")

#: The type of each name, once they are registered.
_types: dict[Any, Any] = {}


class PositionType(types.Dummy):  # type: ignore[misc]  # numba has no types for checkers
    """The type of ``threadIdx`` and its like."""

    def __init__(self, name: str) -> None:
        self.of = name
        super().__init__(f"devmem.position({name})")


class NumberType(types.Literal, types.Integer):  # type: ignore[misc]
    """The type of ``laneid``; see the one for numba-cuda."""

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
    register_default(PositionType)(models.OpaqueModel)
    register_default(NumberType)(models.IntegerModel)
    for position, name in POSITIONS.items():
        _position(position, name)
    for number, name in NUMBERS.items():
        _number(number, name)
    _atomics()
    for function, (typer, lower) in FUNCTIONS.items():
        _function(function, typer, lower)
    target = _target()
    target.typing_context.refresh()
    target.target_context.refresh()


def type_of_name(name: Any) -> Any:
    """The type of one of devmem's names, or of a device function."""
    register()
    if isinstance(name, DeviceFunction):
        return _device_function(name)
    return _attribute(_target().typing_context, SAME[name]) if name in SAME else _types[name]


def _target() -> Any:
    from numba.hip.descriptor import hip_target  # imports the compiler, which may be importing this

    return hip_target


def _attribute(typingctx: Any, name: str) -> Any:
    """The type of ``numba.hip.name``; None where ROCm's headers have no such thing."""
    try:
        return typingctx.resolve_getattr(types.Module(hip), name)
    except AttributeError:  # numba looks for it in the module itself, last
        return None


def _device_function(value: DeviceFunction) -> Any:
    made: Any = value.compiled.get("numba_hip")
    if made is None:
        made = value.compiled.setdefault("numba_hip", hip.jit(device=True, **value.options)(value.function))
    return made._numba_type_


# -- positions and numbers -----------------------------------------------------------------------------------------------


def _position(position: names.Position, name: str) -> None:
    kind = _types[position] = PositionType(name)
    body: dict[str, Any] = {"key": kind}
    for axis in "xyz":
        body[f"resolve_{axis}"] = lambda self, position: types.int32

        def read(context: Any, builder: Any, sig: Any, args: Any, axis: str = axis) -> Any:
            return _coordinate(context, builder, name, axis)

        impl_registry.lower_getattr(kind, axis)(read)
    typing_registry.register_attr(type("Position", (AttributeTemplate,), body))
    impl_registry.lower_constant(kind)(lambda context, builder, ty, value: context.get_dummy_value())


def _number(number: names.Number, name: str) -> None:
    kind = _types[number] = NumberType(number)

    def read(context: Any, builder: Any, ty: Any, value: Any) -> Any:
        return _read(context, builder, name)

    def cast(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
        return context.cast(builder, value, types.int32, toty)

    impl_registry.lower_constant(kind)(read)
    for other in (types.Integer, types.Float, types.Complex, types.Boolean):
        impl_registry.lower_cast(kind, other)(cast)


def _read(context: Any, builder: Any, name: str) -> Any:
    """The value of an attribute of ``numba.hip``."""
    module = types.Module(hip)
    return context.get_getattr(module, name)(context, builder, module, context.get_dummy_value(), name)


def _coordinate(context: Any, builder: Any, name: str, axis: str) -> Any:
    kind = _attribute(context.typing_context, name)
    return context.get_getattr(kind, axis)(context, builder, kind, _read(context, builder, name), axis)


# -- atomics -------------------------------------------------------------------------------------------------------------


def _atomics() -> None:
    kind = _types[names.atomic] = types.Module(names.atomic)
    body: dict[str, Any] = {"key": kind}
    for operation in (*ATOMICS, "cas"):
        template = _atomic(operation)
        body[f"resolve_{operation}"] = lambda self, module, template=template: types.Function(template)
    typing_registry.register_attr(type("Atomics", (AttributeTemplate,), body))


def _atomic(operation: str) -> Any:
    function = getattr(names.Atomic, operation)
    integers_only = operation == "cas"

    class Template(AbstractTemplate):  # type: ignore[misc]
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            if kws or len(args) != (4 if operation == "cas" else 3) or not isinstance(args[0], types.Array):
                return None
            array, index, *operands = args
            kinds = types.Integer if integers_only else (types.Integer, types.Float)
            if not isinstance(array.dtype, kinds) or array.dtype.bitwidth not in (32, 64):
                return None
            at = types.intp if array.ndim == 1 and isinstance(index, types.Integer) else index
            return signature(array.dtype, array, at, *[array.dtype] * len(operands))

    typing_registry.register(Template)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, at, *_ = sig.args
        place = _element(context, builder, array, at, args[0], args[1])
        if operation == "cas":
            found = builder.cmpxchg(place, args[2], args[3], "monotonic", "monotonic")
            return builder.extract_value(found, 0)
        signed, unsigned, floating = ATOMICS[operation]
        if isinstance(array.dtype, types.Float):
            return builder.atomic_rmw(floating, place, args[2], "monotonic")
        return builder.atomic_rmw(signed if array.dtype.signed else unsigned, place, args[2], "monotonic")

    for count in ((types.Array, types.Any, *[types.Any] * (2 if operation == "cas" else 1)),):
        impl_registry.lower(function, *count)(build)
    return Template


def _element(context: Any, builder: Any, array: Any, at: Any, value: Any, index: Any) -> Any:
    """The address of an element; negative indices count from the end, as elsewhere in kernels of numba's."""
    if isinstance(at, types.BaseTuple):
        kinds, parts = list(at), cgutils.unpack_tuple(builder, index, count=len(at))
    else:
        kinds, parts = [at], [index]
    indices = [context.cast(builder, part, kind, types.intp) for part, kind in zip(parts, kinds, strict=True)]
    proxy = context.make_array(array)(context, builder, value)
    return cgutils.get_item_pointer(context, builder, array, proxy, indices, wraparound=True)


# -- functions: of each a typer and what builds it in place, as for numba-cuda ---------------------------------------------


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
        impl_registry.lower(function, *[types.Any] * count)(build)


def _call(context: Any, builder: Any, candidates: tuple[str, ...]) -> bool:
    """Call the first of these functions of ``numba.hip`` that there is; False if there is none."""
    for name in candidates:
        kind = _attribute(context.typing_context, name)
        if kind is not None:
            sig = kind.get_call_type(context.typing_context, (), {})
            context.get_function(kind, sig)(builder, ())
            return True
    return False


def _must_call(context: Any, builder: Any, candidates: tuple[str, ...]) -> None:
    if not _call(context, builder, candidates):
        raise NotImplementedError(f"this numba-hip has no {' or '.join(candidates)}: ROCm's headers lack it")


def _wave(context: Any, builder: Any, kinds: Any, values: Any) -> None:
    # A wavefront goes in step by itself: what is left to do is to keep the accesses of its lanes in order.
    builder.fence("acq_rel", "wavefront")
    _call(context, builder, WAVE_BARRIER)
    builder.fence("acq_rel", "wavefront")


def _axes(what: str) -> Callable[[Any], Any]:
    def typer(ndim: Any) -> Any:
        if not isinstance(ndim, types.IntegerLiteral) or not 1 <= ndim.literal_value <= 3:
            raise RequireLiteralValue(f"devmem.{what}(ndim) takes a constant: 1, 2 or 3")
        return types.int64 if ndim.literal_value == 1 else types.UniTuple(types.int64, ndim.literal_value)

    return typer


def _along(dim: Any) -> Any:
    return types.int64 if isinstance(dim, types.Integer) else None


def _scope(scope: Any = None) -> Any:
    return types.none if scope is None or isinstance(scope, types.Integer) else None


def _wide(context: Any, builder: Any, name: str, axis: str) -> Any:
    return context.cast(builder, _coordinate(context, builder, name, axis), types.int32, types.int64)


def _product(blocks: str, rest: str | None) -> Callable[[Any, Any, str], Any]:
    """Blocks along an axis times their length, and what comes on top."""

    def value(context: Any, builder: Any, axis: str) -> Any:
        whole = builder.mul(_wide(context, builder, blocks, axis), _wide(context, builder, "blockDim", axis))
        return whole if rest is None else builder.add(whole, _wide(context, builder, rest, axis))

    return value


def _one(name: str) -> Callable[[Any, Any, str], Any]:
    return lambda context, builder, axis: _wide(context, builder, name, axis)


def _of_axis(value: Callable[[Any, Any, str], Any]) -> Any:
    """The value along the axis that was asked for; where that is a constant, LLVM leaves out the others."""

    def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        dim = context.cast(builder, values[0], kinds[0], types.int32)
        x, y, z = (value(context, builder, axis) for axis in "xyz")
        is_x = builder.icmp_signed("==", dim, context.get_constant(types.int32, 0))
        is_y = builder.icmp_signed("==", dim, context.get_constant(types.int32, 1))
        return builder.select(is_x, x, builder.select(is_y, y, z))

    return lower


def _of_axes(value: Callable[[Any, Any, str], Any]) -> Any:
    """The values along as many axes as were asked for."""

    def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        count = kinds[0].literal_value
        found = [value(context, builder, axis) for axis in "xyz"[:count]]
        return found[0] if count == 1 else cgutils.pack_array(builder, found)

    return lower


def _work_dim(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    one = context.get_constant(types.int64, 1)
    size = _product("gridDim", None)

    def wide(axis: str) -> Any:
        return builder.icmp_signed(">", size(context, builder, axis), one)

    two = builder.select(wide("y"), context.get_constant(types.int64, 2), one)
    return builder.select(wide("z"), context.get_constant(types.int64, 3), two)


def _fence(context: Any, builder: Any, kinds: Any, values: Any) -> None:
    if not values:
        _must_call(context, builder, DEVICE_FENCE)
        return
    scope = context.cast(builder, values[0], kinds[0], types.int32)
    local = context.get_constant(types.int32, names.CLK_LOCAL_MEM_FENCE)
    with builder.if_else(builder.icmp_signed("==", scope, local)) as (to_block, to_device):
        with to_block:
            _must_call(context, builder, BLOCK_FENCE)
        with to_device:
            _must_call(context, builder, DEVICE_FENCE)


def _calling(candidates: tuple[str, ...]) -> Any:
    return lambda context, builder, kinds, values: _must_call(context, builder, candidates)


FUNCTIONS: dict[Any, tuple[Any, Any]] = {
    names.grid: (_axes("grid"), _of_axes(_product("blockIdx", "threadIdx"))),
    names.gridsize: (_axes("gridsize"), _of_axes(_product("gridDim", None))),
    names.get_global_id: (_along, _of_axis(_product("blockIdx", "threadIdx"))),
    names.get_local_id: (_along, _of_axis(_one("threadIdx"))),
    names.get_group_id: (_along, _of_axis(_one("blockIdx"))),
    names.get_local_size: (_along, _of_axis(_one("blockDim"))),
    names.get_num_groups: (_along, _of_axis(_one("gridDim"))),
    names.get_global_size: (_along, _of_axis(_product("gridDim", None))),
    names.get_work_dim: (lambda: types.int64, _work_dim),
    names.barrier: (_scope, _calling(BLOCK_BARRIER)),
    names.syncthreads: (lambda: types.none, _calling(BLOCK_BARRIER)),
    names.wavebarrier: (lambda: types.none, _wave),
    names.mem_fence: (_scope, _fence),
}
