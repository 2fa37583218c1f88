"""Every function of the HIP runtime that is used: what it takes, what it gives, and the numbers that go with it.

The letters are those of `devmem.toolkit.ctypes_functions`, and these: ``k`` the direction of a copy, ``h`` an IPC handle by
value; ``H`` the bytes of one, ``T`` text, ``U`` the 16 bytes of an UUID, ``D`` the properties of a device, ``A`` what is known of
an address. At the end, ``+``: is called through a Python binding where there is one; ``!+``: may wait, for a device or for much
else, such as another library's work, and is not called through a binding that holds the GIL.

All others are called through ctypes: bindings have types of their own for enums, structs, text, buffers, code and graphs, and get
some signatures wrong; and they run Python behind a call, where an interrupt would leave unknown what the call has made or ended.
"""

# Decision: docs/adr/0008-hip-through-three-providers.md
from __future__ import annotations

import ctypes

from ...toolkit import ctypes_functions
from ...toolkit.memory import IPC_HANDLE_BYTES

#: What has to be there. A runtime without one of these is too old or is none.
REQUIRED = {
    "hipGetDeviceCount": "I+",
    "hipGetDevice": "I+",
    "hipSetDevice": "i+",
    "hipRuntimeGetVersion": "I+",
    "hipDeviceGetAttribute": "Iii",
    "hipDeviceGetName": "Tii",
    "hipDeviceGetPCIBusId": "Tii",
    "hipDeviceTotalMem": "Ni+",
    "hipDeviceGetStreamPriorityRange": "II+",
    "hipDeviceSynchronize": "!+",
    "hipGetLastError": "+",
    "hipMemGetInfo": "NN+",
    "hipMalloc": "Pn",
    "hipFree": "p",
    "hipHostMalloc": "Pnu",
    "hipHostFree": "p",
    "hipHostRegister": "pnu",
    "hipHostUnregister": "p",
    "hipHostGetDevicePointer": "Ppu+",
    "hipMemcpyAsync": "ppnkp!+",
    "hipMemcpyWithStream": "ppnkp!+",
    "hipMemcpy2DAsync": "pnpnnnkp!+",
    "hipMemsetD8Async": "pbnp+",
    "hipMemsetD16Async": "psnp+",
    "hipMemsetD32Async": "pinp+",
    "hipStreamCreateWithPriority": "Pui",
    "hipStreamDestroy": "p",
    "hipStreamSynchronize": "p!+",
    "hipStreamQuery": "p+?",
    "hipStreamWaitEvent": "ppu+",
    "hipEventCreateWithFlags": "Pu",
    "hipEventDestroy": "p",
    "hipEventRecord": "pp+",
    "hipEventQuery": "p+?",
    "hipEventSynchronize": "p!+",
    "hipEventElapsedTime": "Fpp+",
}
#: What makes a capability, or a fact, where it is there.
OPTIONAL = {
    "hipDeviceGetUuid": "Ui",
    "hipGetDevicePropertiesR0600": "Di",
    "hipMallocManaged": "Pnu",
    "hipMemPrefetchAsync": "pnip+",
    "hipMemAdvise": "pnii",
    "hipMemPrefetchAsync_v2": "pnnup",  # a location, of two ints, is given as one word
    "hipMemAdvise_v2": "pnin",
    "hipMemPrefetchBatchAsync": "ppnppnnp",
    "hipMemDiscardBatchAsync": "ppnnp",
    "hipMemDiscardAndPrefetchBatchAsync": "ppnppnnp",
    "hipMemcpy3DAsync": "pp",
    "hipMemcpyBatchAsync": "pppnppnNp",
    "hipMemcpyPeerAsync": "pipinp!+",
    "hipDeviceCanAccessPeer": "Iii+",
    "hipDeviceEnablePeerAccess": "iu+",
    "hipDeviceDisablePeerAccess": "i!+",
    "hipIpcGetMemHandle": "Hp",
    "hipIpcOpenMemHandle": "Phu",
    "hipIpcCloseMemHandle": "p",
    "hipPointerGetAttributes": "Ap",
    "hipMemGetAddressRange": "PNp+",
    "hipStreamIsCapturing": "pI",
    "hipThreadExchangeStreamCaptureMode": "m",
    "hipStreamWaitValue32": "ppuuu+",
    "hipStreamBeginCapture": "pi",
    "hipStreamEndCapture": "pP",
    "hipGraphInstantiateWithFlags": "Ppn",
    "hipGraphLaunch": "pp",
    "hipGraphExecDestroy": "p",
    "hipGraphDestroy": "p",
    "hipModuleLoadData": "Pp",
    "hipModuleUnload": "p",
    "hipModuleGetFunction": "Ppp",
    "hipModuleLaunchKernel": "puuuuuuuppp",
    "hipMemPoolGetAttribute": "piN",
    "hipMemPoolSetAttribute": "pip",
    "hipMemPoolCreate": "Pp",
    "hipMemPoolDestroy": "p",
    "hipMemPoolTrimTo": "pn!+",
    "hipMemPoolExportToShareableHandle": "Ipiu",
    "hipMemPoolImportFromShareableHandle": "Ppiu",
    "hipMemPoolExportPointer": "Hp",
    "hipMemPoolImportPointer": "Ppp",
    "hipMemPoolSetAccess": "ppn",
    "hipMallocFromPoolAsync": "Pnpp",
    "hipMallocAsync": "Pnp",
    "hipFreeAsync": "pp",
}
#: What virtual memory needs.
VIRTUAL = {
    "hipMemGetAllocationGranularity": "Npi",
    "hipMemCreate": "Pnpn",
    "hipMemRelease": "p",
    "hipMemGetAllocationPropertiesFromHandle": "pp",
    "hipMemAddressReserve": "Pnnpn",
    "hipMemAddressFree": "pn",
    "hipMemMap": "pnnpn",
    "hipMemUnmap": "pn",
    "hipMemSetAccess": "pnpn",
    "hipMemExportToShareableHandle": "ppin",
    "hipMemImportFromShareableHandle": "Ppi",
}
FUNCTIONS = REQUIRED | OPTIONAL | VIRTUAL
#: What a pool needs, and what is needed to share its memory.
POOL_SHARING = [name for name in OPTIONAL if name.startswith(("hipMemPoolE", "hipMemPoolI", "hipMemPoolSetAcc"))]
POOLS = [name for name in OPTIONAL if ("Pool" in name or name == "hipFreeAsync") and name not in POOL_SHARING]
TEXT_BYTES, UUID_BYTES, PROPERTIES_BYTES, POINTER_BYTES = 256, 16, 1472, 32


class IpcHandle(ctypes.Structure):
    """The handle of an allocation, which is given by value."""

    _fields_ = (("reserved", ctypes.c_char * IPC_HANDLE_BYTES),)


#: The C types of the letters.
TYPES = {
    **ctypes_functions.TYPES,
    "k": ctypes.c_int,
    "h": IpcHandle,
    "T": ctypes.c_char * TEXT_BYTES,
    "U": ctypes.c_ubyte * UUID_BYTES,
    "H": ctypes.c_ubyte * IPC_HANDLE_BYTES,
    "D": ctypes.c_ubyte * PROPERTIES_BYTES,
    "A": ctypes.c_ubyte * POINTER_BYTES,
}
#: Statuses, besides those of `devmem.toolkit.vendor_functions`.
NOT_INITIALIZED, INSUFFICIENT_DRIVER, NO_DEVICE, INVALID_DEVICE = 3, 35, 100, 101
PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, ALREADY_REGISTERED, NOT_REGISTERED = 704, 705, 712, 713
#: After one of these every call on the device fails, as far as is known: the process has to let go of it.
STICKY = frozenset({4, 214, 700, 702, 709, 710, 719})
