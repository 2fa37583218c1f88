"""The types and the generated code of devmem's names in numba, for every vendor.

Positions and numbers have their own types, as their values are registers and not constants. Functions are generated inline from
the vendor's positions, barriers and fences. numba asks each name for its type (``_numba_type_``), so that ``devmem.barrier()``
and ``from devmem import barrier`` work alike.

Overloads are not used: numba-cuda compiles those as device functions for the current device, and there may be none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import names
from ..functions import DeviceFunction

POSITIONS = (names.threadIdx, names.blockIdx, names.blockDim, names.gridDim)
NUMBERS = (names.laneid, names.warpsize)

#: Generates a value along an axis, from the target's context, the builder and the axis.
Value = Callable[[Any, Any, str], Any]


@dataclass(frozen=True)
class NumbaModules:
    """The modules, the lock and the registries of one numba. numba-cuda has its own copies of numba's."""

    types: Any
    models: Any
    templates: Any
    errors: Any
    cgutils: Any
    lock: Any
    register_model: Any
    typing_registry: Any
    impl_registry: Any


class NumbaNames(ABC):
    """devmem's names for one numba. A subclass implements the vendor's positions, barriers, fences and namespaces."""

    #: The key under which device functions keep their dispatchers.
    name: str

    def __init__(self, numba: NumbaModules) -> None:
        self.numba = numba
        #: The type of each name, once registered.
        self.kinds: dict[Any, Any] = {}

    def register(self) -> None:
        """Register everything once, and refresh numba's contexts, as it may be compiling already."""
        with self.numba.lock:  # numba's compiler lock, which is held when numba asks for a type
            if not self.kinds:
                self._register_all()

    def type_of_name(self, name: Any) -> Any:
        """The type of one of devmem's names, or of a device function."""
        self.register()
        if not isinstance(name, DeviceFunction):
            return self.kinds[name]
        made: Any = name.compiled.get(self.name)
        if made is None:
            made = name.compiled.setdefault(self.name, self.device_function(name))
        return made._numba_type_

    # -- the vendor's part ---------------------------------------------------------------------------------------------

    @abstractmethod
    def target(self) -> Any:
        """The numba's target, with its two contexts."""

    @abstractmethod
    def register_namespaces(self) -> None:
        """Register the types of ``shared``, ``local``, ``const`` and ``atomic``."""

    @abstractmethod
    def device_function(self, function: DeviceFunction) -> Any:
        """The dispatcher for a device function."""

    @abstractmethod
    def coordinate(self, context: Any, builder: Any, position: names.Position, axis: str) -> Any:
        """A position along an axis, an int32."""

    @abstractmethod
    def read(self, context: Any, builder: Any, number: names.Number) -> Any:
        """A number, an int32."""

    @abstractmethod
    def block_barrier(self, context: Any, builder: Any) -> Any:
        """A barrier of the block, which orders accesses to shared and device memory."""

    @abstractmethod
    def wave_barrier(self, context: Any, builder: Any) -> Any:
        """A barrier of the warp, or the wavefront."""

    @abstractmethod
    def block_fence(self, context: Any, builder: Any) -> None:
        """A fence for the block."""

    @abstractmethod
    def device_fence(self, context: Any, builder: Any) -> None:
        """A fence for the device."""

    # -- registering ---------------------------------------------------------------------------------------------------

    def namespace(self, namespace: Any, members: Mapping[str, Any]) -> None:
        """Register the type of a namespace, with a template for each of its names."""
        types, templates = self.numba.types, self.numba.templates
        kind = self.kinds[namespace] = types.Module(namespace)
        body: dict[str, Any] = {"key": kind}
        for name, template in members.items():
            body[f"resolve_{name}"] = lambda self, module, template=template: types.Function(template)
        self.numba.typing_registry.register_attr(type("Namespace", (templates.AttributeTemplate,), body))

    def _register_all(self) -> None:
        types, models, register_model = self.numba.types, self.numba.models, self.numba.register_model
        position_type = type("PositionType", (types.Dummy,), {})
        number_type = _number_type(types)
        register_model(position_type)(models.OpaqueModel)
        register_model(number_type)(models.IntegerModel)
        for position in POSITIONS:
            self._position(position, position_type(f"devmem.position({position.name})"))
        for number in NUMBERS:
            self._number(number, number_type(number))
        for function, (typer, lower) in self._functions().items():
            self._function(function, typer, lower)
        self.register_namespaces()
        target = self.target()
        target.typing_context.refresh()
        target.target_context.refresh()

    def _position(self, position: names.Position, kind: Any) -> None:
        self.kinds[position] = kind
        int32, lowering = self.numba.types.int32, self.numba.impl_registry
        body: dict[str, Any] = {"key": kind}
        for axis in "xyz":
            body[f"resolve_{axis}"] = lambda self, position: int32

            def read(context: Any, builder: Any, sig: Any, args: Any, axis: str = axis) -> Any:
                return self.coordinate(context, builder, position, axis)

            lowering.lower_getattr(kind, axis)(read)
        self.numba.typing_registry.register_attr(type("Position", (self.numba.templates.AttributeTemplate,), body))
        lowering.lower_constant(kind)(lambda context, builder, ty, value: context.get_dummy_value())

    def _number(self, number: names.Number, kind: Any) -> None:
        self.kinds[number] = kind
        types, lowering = self.numba.types, self.numba.impl_registry

        def cast(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
            return context.cast(builder, value, types.int32, toty)

        lowering.lower_constant(kind)(lambda context, builder, ty, value: self.read(context, builder, number))
        for other in (types.Integer, types.Float, types.Complex, types.Boolean):
            lowering.lower_cast(kind, other)(cast)

    def _function(self, function: Any, typer: Any, lower: Any) -> None:
        body = {"key": function, "generic": lambda template: typer}
        template = type("Template", (self.numba.templates.CallableTemplate,), body)
        self.kinds[function] = self.numba.types.Function(template)

        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            found = lower(context, builder, sig.args, args)
            return context.get_dummy_value() if found is None else found

        for count in range(2):
            self.numba.impl_registry.lower(function, *[self.numba.types.Any] * count)(build)

    # -- functions: each has a typer, from the types of the arguments to that of the result, and a lowering, from the target's
    # -- context, the builder, the types of the arguments and their values to the value

    def _functions(self) -> dict[Any, tuple[Any, Any]]:
        types = self.numba.types
        place, size = self._product_value(names.blockIdx, names.threadIdx), self._product_value(names.gridDim)
        along = {
            names.get_global_id: place,
            names.get_local_id: self._coordinate_value(names.threadIdx),
            names.get_group_id: self._coordinate_value(names.blockIdx),
            names.get_local_size: self._coordinate_value(names.blockDim),
            names.get_num_groups: self._coordinate_value(names.gridDim),
            names.get_global_size: size,
        }
        return {
            **{function: (self._type_along_axis, self._selected_axis(value)) for function, value in along.items()},
            names.grid: (self._axes("grid"), self._per_axis(place)),
            names.gridsize: (self._axes("gridsize"), self._per_axis(size)),
            names.get_work_dim: (lambda: types.int64, self._work_dim),
            names.barrier: (self._scope, lambda context, builder, *scope: self.block_barrier(context, builder)),
            names.syncthreads: (lambda: types.none, lambda context, builder, *_: self.block_barrier(context, builder)),
            names.wavebarrier: (lambda: types.none, lambda context, builder, *_: self.wave_barrier(context, builder)),
            names.mem_fence: (self._scope, self._fence),
        }

    def _axes(self, what: str) -> Any:
        types, errors = self.numba.types, self.numba.errors

        def typer(ndim: Any) -> Any:
            if not isinstance(ndim, types.IntegerLiteral) or not 1 <= ndim.literal_value <= 3:
                raise errors.RequireLiteralValue(f"devmem.{what}(ndim) takes a constant: 1, 2 or 3")
            return types.int64 if ndim.literal_value == 1 else types.UniTuple(types.int64, ndim.literal_value)

        return typer

    def _type_along_axis(self, dim: Any) -> Any:
        """The result type of a function that takes an axis."""
        return self.numba.types.int64 if isinstance(dim, self.numba.types.Integer) else None

    def _scope(self, scope: Any = None) -> Any:
        types = self.numba.types
        return types.none if scope is None or isinstance(scope, types.Integer) else None

    def _coordinate_value(self, position: names.Position) -> Value:
        types = self.numba.types

        def value(context: Any, builder: Any, axis: str) -> Any:
            return context.cast(builder, self.coordinate(context, builder, position, axis), types.int32, types.int64)

        return value

    def _product_value(self, blocks: names.Position, rest: names.Position | None = None) -> Value:
        """``blocks`` times the block length along an axis, plus ``rest``."""
        many, length = self._coordinate_value(blocks), self._coordinate_value(names.blockDim)
        top = None if rest is None else self._coordinate_value(rest)

        def value(context: Any, builder: Any, axis: str) -> Any:
            whole = builder.mul(many(context, builder, axis), length(context, builder, axis))
            return whole if top is None else builder.add(whole, top(context, builder, axis))

        return value

    def _selected_axis(self, value: Value) -> Any:
        """The value along the given axis; if that is a constant, LLVM removes the others."""
        int32 = self.numba.types.int32

        def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
            dim = context.cast(builder, values[0], kinds[0], int32)
            x, y, z = (value(context, builder, axis) for axis in "xyz")
            is_x = builder.icmp_signed("==", dim, context.get_constant(int32, 0))
            is_y = builder.icmp_signed("==", dim, context.get_constant(int32, 1))
            return builder.select(is_x, x, builder.select(is_y, y, z))

        return lower

    def _per_axis(self, value: Value) -> Any:
        """The values along the first ``ndim`` axes."""

        def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
            count = kinds[0].literal_value
            found = [value(context, builder, axis) for axis in "xyz"[:count]]
            return found[0] if count == 1 else self.numba.cgutils.pack_array(builder, found)

        return lower

    def _work_dim(self, context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        int64, size = self.numba.types.int64, self._product_value(names.gridDim)
        one = context.get_constant(int64, 1)

        def wide(axis: str) -> Any:
            return builder.icmp_signed(">", size(context, builder, axis), one)

        two = builder.select(wide("y"), context.get_constant(int64, 2), one)
        return builder.select(wide("z"), context.get_constant(int64, 3), two)

    def _fence(self, context: Any, builder: Any, kinds: Any, values: Any) -> None:
        if not values:
            self.device_fence(context, builder)
            return
        int32 = self.numba.types.int32
        scope = context.cast(builder, values[0], kinds[0], int32)
        local = context.get_constant(int32, names.CLK_LOCAL_MEM_FENCE)
        with builder.if_else(builder.icmp_signed("==", scope, local)) as (to_block, to_device):
            with to_block:
                self.block_fence(context, builder)
            with to_device:
                self.device_fence(context, builder)


def _number_type(types: Any) -> Any:
    class NumberType(types.Literal, types.Integer):  # type: ignore[misc]  # numba has no types for checkers
        """The type of ``laneid``: its register is read at each use, and other operations see an int32.

        A literal type, as numba falls back on its `literal_type` where an operation has no implementation for it.
        """

        def __init__(self, value: names.Number) -> None:
            self._literal_init(value)
            self._key = value.name
            types.Integer.__init__(self, name=f"devmem.{value.name}", bitwidth=32, signed=True)

        @property
        def literal_type(self) -> Any:
            """The type for arithmetic."""
            return types.int32

        def can_convert_to(self, typingctx: Any, other: Any) -> Any:
            """Whether an int32 can be converted."""
            return typingctx.can_convert(types.int32, other)

    return NumberType
