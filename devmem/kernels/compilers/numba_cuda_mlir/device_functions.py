"""devmem's functions for kernels, as device functions of numba-cuda-mlir."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from numba_cuda_mlir import cuda
from numba_cuda_mlir.types import int64

from ... import names


def threadfence_block() -> None:
    """The instruction ``membar.cta``, in device functions only."""


def threadfence() -> None:
    """The instruction ``membar.gl``, in device functions only."""


def threadfence_system() -> None:
    """The instruction ``membar.sys``, in device functions only."""


def _dispatcher(function: Any) -> Any:
    return cuda.jit(device=True)(function)


@_dispatcher
def _local_id(dim):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return int64(cuda.threadIdx.x if dim == 0 else cuda.threadIdx.y if dim == 1 else cuda.threadIdx.z)


@_dispatcher
def _group_id(dim):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return int64(cuda.blockIdx.x if dim == 0 else cuda.blockIdx.y if dim == 1 else cuda.blockIdx.z)


@_dispatcher
def _local_size(dim):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return int64(cuda.blockDim.x if dim == 0 else cuda.blockDim.y if dim == 1 else cuda.blockDim.z)


@_dispatcher
def _num_groups(dim):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return int64(cuda.gridDim.x if dim == 0 else cuda.gridDim.y if dim == 1 else cuda.gridDim.z)


@_dispatcher
def _global_id(dim):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return _group_id(dim) * _local_size(dim) + _local_id(dim)


@_dispatcher
def _global_size(dim):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return _num_groups(dim) * _local_size(dim)


@_dispatcher
def _grid_1():  # type: ignore[no-untyped-def]  # noqa: ANN202
    return _global_id(0)


@_dispatcher
def _grid_2():  # type: ignore[no-untyped-def]  # noqa: ANN202
    return _global_id(0), _global_id(1)


@_dispatcher
def _grid_3():  # type: ignore[no-untyped-def]  # noqa: ANN202
    return _global_id(0), _global_id(1), _global_id(2)


@_dispatcher
def _gridsize_1():  # type: ignore[no-untyped-def]  # noqa: ANN202
    return _global_size(0)


@_dispatcher
def _gridsize_2():  # type: ignore[no-untyped-def]  # noqa: ANN202
    return _global_size(0), _global_size(1)


@_dispatcher
def _gridsize_3():  # type: ignore[no-untyped-def]  # noqa: ANN202
    return _global_size(0), _global_size(1), _global_size(2)


@_dispatcher
def _work_dim():  # type: ignore[no-untyped-def]  # noqa: ANN202
    return 3 if _global_size(2) > 1 else 2 if _global_size(1) > 1 else 1


@_dispatcher
def _barrier():  # type: ignore[no-untyped-def]  # noqa: ANN202
    cuda.syncthreads()


@_dispatcher
def _barrier_of(scope):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    cuda.syncthreads()


@_dispatcher
def _wave_barrier():  # type: ignore[no-untyped-def]  # noqa: ANN202
    cuda.syncwarp()


@_dispatcher
def _fence():  # type: ignore[no-untyped-def]  # noqa: ANN202
    threadfence()


@_dispatcher
def _fence_of(scope):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    if scope == names.CLK_LOCAL_MEM_FENCE:
        threadfence_block()
    else:
        threadfence()


@_dispatcher
def _compare_exchange(ary, idx, old, val):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    # cas of 0.6 takes operands of the array's own type only.
    return cuda.atomic.cas(ary, idx, ary.dtype.type(old), ary.dtype.type(val))


#: numba-cuda-mlir's own atomic operations, but for `cas`.
atomic = ModuleType("devmem.atomic")
for _name in vars(names.Atomic):
    if not _name.startswith("__"):
        setattr(atomic, _name, getattr(cuda.atomic, _name))
atomic.cas = _compare_exchange  # type: ignore[attr-defined]

#: The device function for each function of devmem's that takes an axis or nothing.
PLAIN = {
    names.get_local_id: _local_id,
    names.get_group_id: _group_id,
    names.get_local_size: _local_size,
    names.get_num_groups: _num_groups,
    names.get_global_id: _global_id,
    names.get_global_size: _global_size,
    names.get_work_dim: _work_dim,
    names.syncthreads: _barrier,
    names.wavebarrier: _wave_barrier,
}
#: The device functions for a function whose argument may be left out: without it, and with it.
OPTIONAL = {names.barrier: (_barrier, _barrier_of), names.mem_fence: (_fence, _fence_of)}
#: The device functions for 1, 2 and 3 axes.
BY_AXES = {names.grid: (_grid_1, _grid_2, _grid_3), names.gridsize: (_gridsize_1, _gridsize_2, _gridsize_3)}
