"""devmem's names in numba-cuda: positions and numbers are special registers, all others map to numba's own functions.

The namespaces (``shared``, ``atomic``) use numba's templates.
"""

from __future__ import annotations

import operator
from typing import Any

from numba import cuda
from numba.cuda import cgutils, cudadecl, cudaimpl, nvvmutils, types
from numba.cuda.compiler import compile_cuda
from numba.cuda.core import errors
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.datamodel import models
from numba.cuda.descriptor import cuda_target
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.extending import register_model
from numba.cuda.typing import signature, templates

from ... import names
from ...functions import CudaFunction, DeviceFunction
from ..numba_names import NumbaModules, NumbaNames

#: The names of each namespace, with numba's template for each.
NAMESPACES: dict[Any, dict[str, Any]] = {
    names.shared: {"array": cudadecl.Cuda_shared_array},
    names.local: {"array": cudadecl.Cuda_local_array},
    names.const: {"array_like": cudadecl.Cuda_const_array_like},
    names.atomic: {
        each: getattr(cudadecl, f"Cuda_atomic_{each.rstrip('_')}")
        for each in vars(names.Atomic)
        if not each.startswith("_")
    },
}
#: The special registers behind indices.
REGISTERS = {names.threadIdx: "tid", names.blockIdx: "ctaid", names.blockDim: "ntid", names.gridDim: "nctaid"}


class CudaNames(NumbaNames):
    """devmem's names for numba-cuda."""

    name = "numba_cuda"

    def target(self) -> Any:
        """numba-cuda's target."""
        return cuda_target

    def register_namespaces(self) -> None:
        """Register them with numba's templates."""
        for namespace, members in NAMESPACES.items():
            self.namespace(namespace, members)

    def device_function(self, function: DeviceFunction) -> Any:
        """A dispatcher of numba-cuda."""
        options = {"device": True, "opt": True, **function.options}
        return DeviceDispatcher(function.function, targetoptions=options)

    def coordinate(self, context: Any, builder: Any, position: names.Position, axis: str) -> Any:
        """A special register."""
        return nvvmutils.call_sreg(builder, f"{REGISTERS[position]}.{axis}")

    def read(self, context: Any, builder: Any, number: names.Number) -> Any:
        """A special register, of the same name."""
        return nvvmutils.call_sreg(builder, number.name)

    def block_barrier(self, context: Any, builder: Any) -> Any:
        """Call numba's ``syncthreads``, as its own code does."""
        kind = context.typing_context.resolve_value_type(cuda.syncthreads)
        sig = kind.get_call_type(context.typing_context, (), {})
        return context.get_function(kind, sig)(builder, ())

    def wave_barrier(self, context: Any, builder: Any) -> None:
        """Call ``syncwarp``."""
        _call_intrinsic(context, builder, cuda.syncwarp)

    def block_fence(self, context: Any, builder: Any) -> None:
        """Call ``threadfence_block``."""
        _call_intrinsic(context, builder, cuda.threadfence_block)

    def device_fence(self, context: Any, builder: Any) -> None:
        """Call ``threadfence``."""
        _call_intrinsic(context, builder, cuda.threadfence)


class DeviceDispatcher(CUDADispatcher):  # type: ignore[misc]  # numba has no types for checkers
    """A device function that is compiled for its caller's architecture, not for the current device's."""

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Compile it once for arguments of these types."""
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


def _call_intrinsic(context: Any, builder: Any, function: Any) -> None:
    """Call one of numba's functions that have no type of their own."""
    context.get_function(function, signature(types.none))(builder, ())


NAMES = CudaNames(
    NumbaModules(
        types=types,
        models=models,
        templates=templates,
        errors=errors,
        cgutils=cgutils,
        lock=global_compiler_lock,
        register_model=register_model,
        typing_registry=cudadecl.registry,
        impl_registry=cudaimpl.registry,
    )
)
register = NAMES.register


def type_of_name(name: Any) -> Any:
    """The type of one of devmem's names, of a device function, or of one of numba's own functions."""
    if not isinstance(name, CudaFunction):
        return NAMES.type_of_name(name)
    resolve = getattr(cudadecl.CudaModuleTemplate, f"resolve_{name.__name__}", None)
    if resolve is not None:
        return resolve(cudadecl.CudaModuleTemplate, None)
    return cuda_target.typing_context.resolve_value_type(operator.attrgetter(name.__name__)(cuda))
