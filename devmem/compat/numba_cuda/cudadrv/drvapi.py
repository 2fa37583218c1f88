"""The driver's C types under numba.cuda's names. The table of C prototypes is missing, as devmem does not call through ctypes."""

from __future__ import annotations

import warnings
from ctypes import CFUNCTYPE, Structure, c_byte, c_int, c_size_t, c_uint8, c_void_p, py_object

warnings.warn(
    "cudadrv.drvapi is deprecated, as it is in numba.cuda: use what the vendor's bindings have",
    DeprecationWarning,
    stacklevel=2,
)

cu_device = cu_device_attribute = cu_function_attribute = cu_jit_option = cu_jit_input_type = c_int
cu_context = cu_module = cu_function = cu_stream = cu_event = cu_link_state = c_void_p
cu_device_ptr = c_size_t
cu_uuid = c_byte * 16

cu_stream_callback_pyobj = CFUNCTYPE(None, cu_stream, c_int, py_object)
cu_occupancy_b2d_size = CFUNCTYPE(c_size_t, c_int)


class cu_ipc_mem_handle(Structure):
    """A handle with which another process opens memory."""

    _fields_ = [("reserved", c_uint8 * 64)]


CU_STREAM_DEFAULT = 0
CU_STREAM_LEGACY = 1
CU_STREAM_PER_THREAD = 2
