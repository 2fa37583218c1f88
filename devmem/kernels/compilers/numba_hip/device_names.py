"""devmem's names in numba-hip.

When it is imported, numba-hip makes most of its own names from ROCm's headers, as attributes of the module ``numba.hip``; they
are looked up there by name at each use. Atomic operations on arrays, which numba-hip lacks, are built from LLVM instructions.
"""

from __future__ import annotations

from typing import Any

from numba import hip
from numba.core import cgutils, errors, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.datamodel import models, register_default
from numba.core.typing import templates
from numba.hip.typing_lowering.registries import impl_registry, typing_registry

from ... import names
from ...functions import DeviceFunction
from ..numba_names import NumbaModules, NumbaNames

#: Names that map to numba-hip's own.
NUMBA_HIP_NAMES = {names.shared: "shared", names.local: "local", names.const: "const"}
#: LLVM's operations for signed integers, unsigned integers and floats.
ATOMICS = {
    "add": ("add", "add", "fadd"),
    "max": ("max", "umax", "fmax"),
    "min": ("min", "umin", "fmin"),
    "exch": ("xchg", "xchg", "xchg"),
    "sub": ("sub", "sub", "fsub"),
    "nanmax": ("max", "umax", "fmax"),
    "nanmin": ("min", "umin", "fmin"),
    "and_": ("and", "and", ""),
    "or_": ("or", "or", ""),
    "xor": ("xor", "xor", ""),
}
#: Operations on unsigned integers that LLVM has no instruction for in all versions.
COMPUTED = ("inc", "dec")
#: Operations that compare, and their numbers of arguments.
COMPARING = {"cas": 4, "compare_and_swap": 3}
#: Names that ROCm's headers may have for a barrier of the wavefront, the best first.
WAVE_BARRIER = ("syncwarp", "builtin_amdgcn_wave_barrier")


class HipNames(NumbaNames):
    """devmem's names for numba-hip."""

    name = "numba_hip"

    def target(self) -> Any:
        """numba-hip's target."""
        from numba.hip.descriptor import hip_target  # imports the compiler, which may be importing this module

        return hip_target

    def type_of_name(self, name: Any) -> Any:
        """The type of one of devmem's names, or of a device function; for some names numba-hip's own type."""
        if name not in NUMBA_HIP_NAMES:
            return super().type_of_name(name)
        self.register()
        return _attribute(self.target().typing_context, NUMBA_HIP_NAMES[name])

    def register_namespaces(self) -> None:
        """Register ``atomic``; the other namespaces are numba-hip's."""
        self.namespace(names.atomic, {each: _atomic(each) for each in (*ATOMICS, *COMPUTED, *COMPARING)})

    def device_function(self, function: DeviceFunction) -> Any:
        """The dispatcher that numba-hip's decorator makes."""
        return hip.jit(device=True, **function.options)(function.function)

    def coordinate(self, context: Any, builder: Any, position: names.Position, axis: str) -> Any:
        """The axis of the attribute of that name."""
        kind = _attribute(context.typing_context, position.name)
        value = _value(context, builder, position.name)
        return context.get_getattr(kind, axis)(context, builder, kind, value, axis)

    def read(self, context: Any, builder: Any, number: names.Number) -> Any:
        """The attribute of that name."""
        return _value(context, builder, number.name)

    def block_barrier(self, context: Any, builder: Any) -> None:
        """Call ``syncthreads``."""
        _must_call(context, builder, "syncthreads")

    def wave_barrier(self, context: Any, builder: Any) -> None:
        """Order the accesses of the lanes with fences; the lanes of a wavefront run in step anyway."""
        builder.fence("acq_rel", "wavefront")
        any(_call(context, builder, name) for name in WAVE_BARRIER)
        builder.fence("acq_rel", "wavefront")

    def block_fence(self, context: Any, builder: Any) -> None:
        """Call ``threadfence_block``."""
        _must_call(context, builder, "threadfence_block")

    def device_fence(self, context: Any, builder: Any) -> None:
        """Call ``threadfence``."""
        _must_call(context, builder, "threadfence")


def _attribute(typingctx: Any, name: str) -> Any:
    """The type of ``numba.hip.name``; None if ROCm's headers lack it."""
    try:
        return typingctx.resolve_getattr(types.Module(hip), name)
    except AttributeError:  # raised by numba's last resort, the lookup in the module
        return None


def _value(context: Any, builder: Any, name: str) -> Any:
    """The value of an attribute of ``numba.hip``."""
    module = types.Module(hip)
    return context.get_getattr(module, name)(context, builder, module, context.get_dummy_value(), name)


def _call(context: Any, builder: Any, name: str) -> bool:
    """Call a function of ``numba.hip``; False if there is none."""
    kind = _attribute(context.typing_context, name)
    if kind is None:
        return False
    sig = kind.get_call_type(context.typing_context, (), {})
    context.get_function(kind, sig)(builder, ())
    return True


def _must_call(context: Any, builder: Any, name: str) -> None:
    if not _call(context, builder, name):
        raise NotImplementedError(f"this numba-hip has no {name}: ROCm's headers lack it")


# -- atomics -------------------------------------------------------------------------------------------------------------


def _atomic(operation: str) -> Any:
    function = getattr(names.Atomic, operation)
    integers_only = operation not in ATOMICS or not ATOMICS[operation][2]
    count = COMPARING.get(operation, 3)

    class Template(templates.AbstractTemplate):  # type: ignore[misc]  # numba has no types for checkers
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            if kws or len(args) != count or not isinstance(args[0], types.Array):
                return None
            array, index, *operands = args if operation != "compare_and_swap" else (args[0], None, *args[1:])
            kinds = types.Integer if integers_only else (types.Integer, types.Float)
            if not isinstance(array.dtype, kinds) or array.dtype.bitwidth not in (32, 64):
                return None
            if operation in COMPUTED and array.dtype.signed:
                return None
            if index is None:
                return templates.signature(array.dtype, array, *[array.dtype] * 2) if array.ndim == 1 else None
            at = types.intp if array.ndim == 1 and isinstance(index, types.Integer) else index
            return templates.signature(array.dtype, array, at, *[array.dtype] * len(operands))

    typing_registry.register(Template)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, at, *_ = sig.args
        if operation == "compare_and_swap":
            at, args = types.intp, (args[0], context.get_constant(types.intp, 0), *args[1:])
        place = _element(context, builder, array, at, args[0], args[1])
        if operation in COMPARING:
            found = builder.cmpxchg(place, args[2], args[3], "monotonic", "monotonic")
            return builder.extract_value(found, 0)
        if operation in COMPUTED:
            return _update(builder, place, args[2], operation)
        signed, unsigned, floating = ATOMICS[operation]
        if isinstance(array.dtype, types.Float):
            return builder.atomic_rmw(floating, place, args[2], "monotonic")
        return builder.atomic_rmw(signed if array.dtype.signed else unsigned, place, args[2], "monotonic")

    impl_registry.lower(function, types.Array, *[types.Any] * (count - 1))(build)
    return Template


def _update(builder: Any, place: Any, operand: Any, operation: str) -> Any:
    """Replace an element until no other thread has changed it in between; return the old value."""
    begin = builder.load_atomic(place, "monotonic", operand.type.width // 8)
    before, again, done = builder.block, builder.append_basic_block("again"), builder.append_basic_block("done")
    builder.branch(again)
    builder.position_at_end(again)
    old = builder.phi(operand.type)
    old.add_incoming(begin, before)
    zero, one = operand.type(0), operand.type(1)
    if operation == "inc":
        new = builder.select(builder.icmp_unsigned(">=", old, operand), zero, builder.add(old, one))
    else:
        wraps = builder.or_(builder.icmp_unsigned("==", old, zero), builder.icmp_unsigned(">", old, operand))
        new = builder.select(wraps, operand, builder.sub(old, one))
    found = builder.cmpxchg(place, old, new, "monotonic", "monotonic")
    old.add_incoming(builder.extract_value(found, 0), again)
    builder.cbranch(builder.extract_value(found, 1), done, again)
    builder.position_at_end(done)
    return old


def _element(context: Any, builder: Any, array: Any, at: Any, value: Any, index: Any) -> Any:
    """The address of an element; negative indices count from the end, as everywhere in numba's kernels."""
    if isinstance(at, types.BaseTuple):
        kinds, parts = list(at), cgutils.unpack_tuple(builder, index, count=len(at))
    else:
        kinds, parts = [at], [index]
    indices = [context.cast(builder, part, kind, types.intp) for part, kind in zip(parts, kinds, strict=True)]
    proxy = context.make_array(array)(context, builder, value)
    return cgutils.get_item_pointer(context, builder, array, proxy, indices, wraparound=True)


NAMES = HipNames(
    NumbaModules(
        types=types,
        models=models,
        templates=templates,
        errors=errors,
        cgutils=cgutils,
        lock=global_compiler_lock,
        register_model=register_default,
        typing_registry=typing_registry,
        impl_registry=impl_registry,
    )
)
register, type_of_name = NAMES.register, NAMES.type_of_name
