"""What devmem's names are to a numba: types, and the code in their place, the same for every vendor.

Indices and numbers have types of their own, because their values are registers and not constants; functions are built in place,
of what a vendor says of positions, barriers and fences. numba asks each name for its type (``_numba_type_``), so that
``devmem.barrier()`` and ``from devmem import barrier`` are the same.

No overloads: numba-cuda compiles those as device functions, and for that asks which device is current, where there may be none.
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

#: What builds a value along an axis: of the target's opened, the builder and the axis.
Value = Callable[[Any, Any, str], Any]


@dataclass(frozen=True)
class Numba:
    """What of a numba the names are made of: its modules, its lock and its registries. numba-cuda has copies of numba's own."""

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
    """devmem's names for one numba. A vendor's part says what is its own: positions, barriers, fences, namespaces."""

    #: Under which device functions keep what the compiler made of them.
    name: str

    def __init__(self, numba: Numba) -> None:
        self.numba = numba
        #: The type of each name, once they are registered.
        self.kinds: dict[Any, Any] = {}

    def register(self) -> None:
        """Register everything, once, and let numba take it in: it may be compiling already."""
        with self.numba.lock:  # numba's own, which is held already where it asks for a name
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
        """The numba's target, with its two opened_devices."""

    @abstractmethod
    def register_namespaces(self) -> None:
        """Give ``shared``, ``local``, ``const`` and ``atomic`` their types."""

    @abstractmethod
    def device_function(self, function: DeviceFunction) -> Any:
        """What the compiler makes of a device function."""

    @abstractmethod
    def coordinate(self, opened: Any, builder: Any, position: names.Position, axis: str) -> Any:
        """A position along an axis, an int32."""

    @abstractmethod
    def read(self, opened: Any, builder: Any, number: names.Number) -> Any:
        """A number, an int32."""

    @abstractmethod
    def block_barrier(self, opened: Any, builder: Any) -> Any:
        """A barrier of the block, which orders accesses to all memory that the block can see."""

    @abstractmethod
    def wave_barrier(self, opened: Any, builder: Any) -> Any:
        """A barrier of the warp, or the wavefront."""

    @abstractmethod
    def block_fence(self, opened: Any, builder: Any) -> None:
        """A fence that the block sees."""

    @abstractmethod
    def device_fence(self, opened: Any, builder: Any) -> None:
        """A fence that the device sees."""

    # -- registering ---------------------------------------------------------------------------------------------------

    def namespace(self, namespace: Any, members: Mapping[str, Any]) -> None:
        """Give a namespace a type, with a template for each name in it."""
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

            def read(opened: Any, builder: Any, sig: Any, args: Any, axis: str = axis) -> Any:
                return self.coordinate(opened, builder, position, axis)

            lowering.lower_getattr(kind, axis)(read)
        self.numba.typing_registry.register_attr(type("Position", (self.numba.templates.AttributeTemplate,), body))
        lowering.lower_constant(kind)(lambda opened, builder, ty, value: opened.get_dummy_value())

    def _number(self, number: names.Number, kind: Any) -> None:
        self.kinds[number] = kind
        types, lowering = self.numba.types, self.numba.impl_registry

        def cast(opened: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
            return opened.cast(builder, value, types.int32, toty)

        lowering.lower_constant(kind)(lambda opened, builder, ty, value: self.read(opened, builder, number))
        for other in (types.Integer, types.Float, types.Complex, types.Boolean):
            lowering.lower_cast(kind, other)(cast)

    def _function(self, function: Any, typer: Any, lower: Any) -> None:
        body = {"key": function, "generic": lambda template: typer}
        template = type("Template", (self.numba.templates.CallableTemplate,), body)
        self.kinds[function] = self.numba.types.Function(template)

        def build(opened: Any, builder: Any, sig: Any, args: Any) -> Any:
            found = lower(opened, builder, sig.args, args)
            return opened.get_dummy_value() if found is None else found

        for count in range(2):
            self.numba.impl_registry.lower(function, *[self.numba.types.Any] * count)(build)

    # -- functions: of each a typer, which takes numba's types and gives the result's, and what builds it in place, of the
    # -- target's opened, the builder, the types of the arguments and their values

    def _functions(self) -> dict[Any, tuple[Any, Any]]:
        types = self.numba.types
        place, size = self._product(names.blockIdx, names.threadIdx), self._product(names.gridDim)
        along = {
            names.get_global_id: place,
            names.get_local_id: self._one(names.threadIdx),
            names.get_group_id: self._one(names.blockIdx),
            names.get_local_size: self._one(names.blockDim),
            names.get_num_groups: self._one(names.gridDim),
            names.get_global_size: size,
        }
        return {
            **{function: (self._along, self._of_axis(value)) for function, value in along.items()},
            names.grid: (self._axes("grid"), self._of_axes(place)),
            names.gridsize: (self._axes("gridsize"), self._of_axes(size)),
            names.get_work_dim: (lambda: types.int64, self._work_dim),
            names.barrier: (self._scope, lambda opened, builder, *scope: self.block_barrier(opened, builder)),
            names.syncthreads: (lambda: types.none, lambda opened, builder, *_: self.block_barrier(opened, builder)),
            names.wavebarrier: (lambda: types.none, lambda opened, builder, *_: self.wave_barrier(opened, builder)),
            names.mem_fence: (self._scope, self._fence),
        }

    def _axes(self, what: str) -> Any:
        types, errors = self.numba.types, self.numba.errors

        def typer(ndim: Any) -> Any:
            if not isinstance(ndim, types.IntegerLiteral) or not 1 <= ndim.literal_value <= 3:
                raise errors.RequireLiteralValue(f"devmem.{what}(ndim) takes a constant: 1, 2 or 3")
            return types.int64 if ndim.literal_value == 1 else types.UniTuple(types.int64, ndim.literal_value)

        return typer

    def _along(self, dim: Any) -> Any:
        """The type of what a function of one axis gives."""
        return self.numba.types.int64 if isinstance(dim, self.numba.types.Integer) else None

    def _scope(self, scope: Any = None) -> Any:
        types = self.numba.types
        return types.none if scope is None or isinstance(scope, types.Integer) else None

    def _one(self, position: names.Position) -> Value:
        types = self.numba.types

        def value(opened: Any, builder: Any, axis: str) -> Any:
            return opened.cast(builder, self.coordinate(opened, builder, position, axis), types.int32, types.int64)

        return value

    def _product(self, blocks: names.Position, rest: names.Position | None = None) -> Value:
        """Blocks along an axis times their length, and what comes on top."""
        many, length = self._one(blocks), self._one(names.blockDim)
        top = None if rest is None else self._one(rest)

        def value(opened: Any, builder: Any, axis: str) -> Any:
            whole = builder.mul(many(opened, builder, axis), length(opened, builder, axis))
            return whole if top is None else builder.add(whole, top(opened, builder, axis))

        return value

    def _of_axis(self, value: Value) -> Any:
        """The value along the axis that was asked for; where that is a constant, LLVM leaves out the others."""
        int32 = self.numba.types.int32

        def lower(opened: Any, builder: Any, kinds: Any, values: Any) -> Any:
            dim = opened.cast(builder, values[0], kinds[0], int32)
            x, y, z = (value(opened, builder, axis) for axis in "xyz")
            is_x = builder.icmp_signed("==", dim, opened.get_constant(int32, 0))
            is_y = builder.icmp_signed("==", dim, opened.get_constant(int32, 1))
            return builder.select(is_x, x, builder.select(is_y, y, z))

        return lower

    def _of_axes(self, value: Value) -> Any:
        """The values along as many axes as were asked for."""

        def lower(opened: Any, builder: Any, kinds: Any, values: Any) -> Any:
            count = kinds[0].literal_value
            found = [value(opened, builder, axis) for axis in "xyz"[:count]]
            return found[0] if count == 1 else self.numba.cgutils.pack_array(builder, found)

        return lower

    def _work_dim(self, opened: Any, builder: Any, kinds: Any, values: Any) -> Any:
        int64, size = self.numba.types.int64, self._product(names.gridDim)
        one = opened.get_constant(int64, 1)

        def wide(axis: str) -> Any:
            return builder.icmp_signed(">", size(opened, builder, axis), one)

        two = builder.select(wide("y"), opened.get_constant(int64, 2), one)
        return builder.select(wide("z"), opened.get_constant(int64, 3), two)

    def _fence(self, opened: Any, builder: Any, kinds: Any, values: Any) -> None:
        if not values:
            self.device_fence(opened, builder)
            return
        int32 = self.numba.types.int32
        scope = opened.cast(builder, values[0], kinds[0], int32)
        local = opened.get_constant(int32, names.CLK_LOCAL_MEM_FENCE)
        with builder.if_else(builder.icmp_signed("==", scope, local)) as (to_block, to_device):
            with to_block:
                self.block_fence(opened, builder)
            with to_device:
                self.device_fence(opened, builder)


def _number_type(types: Any) -> Any:
    class NumberType(types.Literal, types.Integer):  # type: ignore[misc]  # numba has no types for checkers
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

    return NumberType
