"""devmem's names against numba-hip's own registries, as far as they can be had without ROCm: a program, run by a test.

numba-hip reads ROCm's headers when it is imported. Here the packages that do so are left out; its registries, stubs and typing
are the real ones, and functions of the headers are stubs without code, registered as numba-hip registers those it finds.
"""

import importlib
import sys
import types as python
from pathlib import Path

import numba
import numpy as np
from numba.core import cgutils, datamodel, types
from numba.core.compiler import Flags, compile_extra, run_frontend
from numba.core.cpu import CPUContext
from numba.core.registry import cpu_target
from numba.core.sigutils import normalize_signature
from numba.core.typed_passes import type_inference_stage
from numba.core.typing import BaseContext, cffi_utils, cmathdecl, enumdecl
from numba.core.typing.templates import make_concrete_template, signature

HIP = Path(numba.__path__[0]) / "hip"


def bare(name, folder):
    """A package whose modules can be imported, and whose own code is not run."""
    module = python.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, module)
    return module


hip = bare("numba.hip", HIP)
bare("numba.hip.typing_lowering", HIP / "typing_lowering")
bare("numba.hip.typing_lowering.hip", HIP / "typing_lowering" / "hip")
registries = importlib.import_module("numba.hip.typing_lowering.registries")
stubs = importlib.import_module("numba.hip.typing_lowering.stubs")
hiptypes = importlib.import_module("numba.hip.typing_lowering.types")
hipstubs = importlib.import_module("numba.hip.typing_lowering.hip.hipstubs")
hipmodels = importlib.import_module("numba.hip.typing_lowering.models")
hiptyping = importlib.import_module("numba.hip.typing_lowering.hip.typing")

called = []


def function_of_the_headers(name):
    stub = type(name, (stubs.Stub,), {})
    stub._signatures_ = [signature(types.void)]
    stub._template_ = make_concrete_template(name, stub, stub._signatures_)

    def build(context, builder, sig, args):
        called.append(name)
        return context.get_dummy_value()

    stub._call_generators_ = [(build, ())]
    registries.typing_registry.register(stub._template_)
    registries.impl_registry.lower(stub)(build)
    return stub


attributes = {name: getattr(hipstubs, name) for name in ("shared", "local", "const")}
attributes |= {name: function_of_the_headers(name) for name in ("syncthreads", "threadfence", "threadfence_block")}
for name in ("threadIdx", "blockIdx", "blockDim", "gridDim"):
    attributes[name] = type(name, (stubs.Stub,), {"_type_": hiptypes.dim3})
stubs.resolve_attributes(registries.typing_registry, hip, attributes)


class TypingContext(BaseContext):
    """What numba-hip's own has, without what cannot be imported."""

    def load_additional_registries(self):
        for registry in (cffi_utils.registry, cmathdecl.registry, enumdecl.registry, registries.typing_registry):
            self.install_registry(registry)


context = TypingContext()
sys.modules["numba.hip.descriptor"] = descriptor = python.ModuleType("numba.hip.descriptor")
target = python.SimpleNamespace(typing_context=context, target_context=cpu_target.target_context)
descriptor.hip_target = target
hip.jit = lambda **options: numba.njit

sys.path.insert(0, str(Path(__file__).parent))
import kernels_all  # noqa: E402

import devmem as dm  # noqa: E402
from devmem.kernels import names  # noqa: E402
from devmem.kernels.compilers.numba_hip import device_names  # noqa: E402

for name in names.PUBLIC:
    value = getattr(dm, name)
    if not isinstance(value, int):
        assert isinstance(device_names.type_of_name(value), types.Type), name
assert device_names.type_of_name(dm.shared) == types.Module(hipstubs.shared)
array = context.resolve_getattr(device_names.type_of_name(dm.shared), "array")
assert array == types.Function(hiptyping.Hip_shared_array), array

# -- types: of all well-known kernels ------------------------------------------------------------------------------

for case in kernels_all.cases():
    arguments, _ = normalize_signature(case.signature)
    ir = run_frontend(case.kernel.function)
    found = type_inference_stage(context, target.target_context, ir, arguments, types.void)
    if ".shared" in case.code:
        assert types.Function(hiptyping.Hip_shared_array) in found.typemap.values(), case.name
    print(case.name)

# -- code: built for the host, from devmem's own lowering over stand-ins for what numba-hip reads out of registers ---------

WHERE = {"threadIdx": (3, 0, 0), "blockIdx": (2, 1, 0), "blockDim": (8, 4, 1), "gridDim": (5, 6, 1)}
registries.impl_registry.lower_getattr(hiptypes.dim3, "x")(lambda c, b, kind, value: b.extract_value(value, 0))
registries.impl_registry.lower_getattr(hiptypes.dim3, "y")(lambda c, b, kind, value: b.extract_value(value, 1))
registries.impl_registry.lower_getattr(hiptypes.dim3, "z")(lambda c, b, kind, value: b.extract_value(value, 2))
for name, place in WHERE.items():

    def read(context, builder, kind, value, place=place):
        parts = [context.get_constant(types.int32, each) for each in place]
        proxy = cgutils.create_struct_proxy(hiptypes.dim3)(context, builder)
        proxy.x, proxy.y, proxy.z = parts
        return proxy._getvalue()

    registries.impl_registry.lower_getattr(types.Module(hip), name)(read)
for name, value in {"laneid": 5, "warpsize": 64}.items():
    registries.impl_registry.lower_getattr(types.Module(hip), name)(
        lambda context, builder, kind, value, number=value: context.get_constant(types.int32, number)
    )


class TargetContext(CPUContext):
    nonconst_module_attrs = property(
        lambda self: {(types.Module(hip), name) for name in (*WHERE, "laneid", "warpsize")}
    )

    def init(self):
        super().init()
        self.data_model_manager = hipmodels.hip_data_manager.chain(datamodel.default_manager)

    def load_additional_registries(self):
        super().load_additional_registries()
        self.install_registry(registries.impl_registry)


def everything(out, counts, floats):
    out[0] = dm.grid(1)
    x, y = dm.grid(2)
    out[1], out[2] = x, y
    out[3] = dm.gridsize(2)[1]
    out[4] = dm.get_global_id(1) + 100 * dm.get_local_id(0) + 1000 * dm.get_group_id(0)
    out[5] = dm.get_local_size(1) + 100 * dm.get_num_groups(1) + 10000 * dm.get_global_size(0)
    out[6] = dm.get_work_dim()
    out[7] = dm.laneid + dm.warpsize
    out[8] = dm.threadIdx.x + dm.blockDim.y
    out[9] = dm.atomic.add(counts, 0, 5)
    dm.atomic.max(counts, 1, 50)
    dm.atomic.min(counts, (2,), -50)
    out[10] = dm.atomic.cas(counts, 3, 40, 41)
    out[11] = dm.atomic.cas(counts, 3, 40, 42)
    out[12] = dm.atomic.exch(counts, 4, 9)
    dm.atomic.add(floats, (1, 1), 0.5)
    dm.atomic.max(floats, (0, 1), 7.0)
    dm.barrier()
    dm.barrier(dm.CLK_LOCAL_MEM_FENCE)
    dm.syncthreads()
    dm.wavebarrier()
    dm.mem_fence()
    dm.mem_fence(dm.CLK_LOCAL_MEM_FENCE)


flags = Flags()
flags.no_cpython_wrapper = flags.no_cfunc_wrapper = False
descriptor.hip_target.target_context = built_for = TargetContext(context)
arguments = normalize_signature("void(int64[::1], int32[::1], float64[:, ::1])")[0]
result = compile_extra(context, built_for, everything, arguments, types.void, flags, {})
ir = result.library.get_llvm_str()
for part in ("cmpxchg", "atomicrmw", 'fence syncscope("wavefront")'):
    assert part in ir, part
assert called.count("syncthreads") == 3, called
assert {"threadfence", "threadfence_block"} <= set(called), called
out, counts, floats = np.zeros(13, np.int64), np.array([10, 20, 30, 40, 50], np.int32), np.ones((2, 2))
result.entry_point(out, counts, floats)
assert out.tolist() == [19, 19, 4, 24, 4 + 300 + 2000, 4 + 600 + 400000, 2, 69, 7, 10, 40, 41, 50], out
assert counts.tolist() == [15, 50, -50, 41, 9], counts
assert floats.tolist() == [[1, 7], [1, 1.5]], floats
print("built")
