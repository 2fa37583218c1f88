"""Drop-in replacement for ``numba.roc``: ``from devmem.compat import numba_roc as roc``.

It runs on the backend chosen by ``DEVMEM_BACKEND``, `devmem.use_backend` or `devmem.select_device`: ROCm, CUDA or the host.
Without a choice, the first call of a thread selects the first ROCm device. The guide "Coming from numba.roc" lists the
differences from numba.roc.
"""

# Decision: docs/adr/0011-drop-ins-add-names-and-no-state.md
from __future__ import annotations

from typing import Any

from ... import (
    CLK_GLOBAL_MEM_FENCE,
    CLK_LOCAL_MEM_FENCE,
    atomic,
    barrier,
    get_global_id,
    get_global_size,
    get_group_id,
    get_local_id,
    get_local_size,
    get_num_groups,
    get_work_dim,
    mem_fence,
    shared,
    wavebarrier,
)
from ..deprecation import warn_old_name
from .api import (
    coarsegrain_array,
    deregister,
    device_array,
    device_array_like,
    finegrain_array,
    register,
    stream,
    to_device,
)
from .compiler import activelanepermute_wavewidth, ds_bpermute, ds_permute, jit
from .hsadrv import devicearray
from .hsadrv.devices import get_context, is_available

__all__ = [
    "CLK_GLOBAL_MEM_FENCE",
    "CLK_LOCAL_MEM_FENCE",
    "activelanepermute_wavewidth",
    "agents",
    "atomic",
    "barrier",
    "coarsegrain_array",
    "deregister",
    "device_array",
    "device_array_like",
    "devicearray",
    "ds_bpermute",
    "ds_permute",
    "finegrain_array",
    "get_context",
    "get_global_id",
    "get_global_size",
    "get_group_id",
    "get_local_id",
    "get_local_size",
    "get_num_groups",
    "get_work_dim",
    "is_available",
    "jit",
    "mem_fence",
    "register",
    "shared",
    "stream",
    "to_device",
    "wavebarrier",
]


def __getattr__(name: str) -> Any:
    # Created at first use, as an import must not open devices.
    from .hsadrv.driver import hsa

    if name == "agents":
        return hsa.agents
    if name == "hsa":
        warn_old_name("numba.roc.hsa", "numba_roc itself, or numba_roc.hsadrv.driver.hsa")
        return hsa
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
