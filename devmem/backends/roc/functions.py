"""Every function of the HIP runtime that is used: what it takes, what it gives, and the numbers that go with it.

The letters are those of `devmem.toolkit.ctypes_functions`, and these: ``e`` a member of an enum, ``h`` an IPC handle by value;
``H`` the bytes of one, ``T`` text, ``U`` the 16 bytes of an UUID, ``D`` the properties of a device, ``A`` what is known of an
address. At the end, ``!``: may wait, for a device or for much else, such as another library's work; ``*``: is not called through
a Python binding, because of what bindings make of it.
"""

# Decision: docs/adr/0008-hip-through-three-providers.md
from __future__ import annotations

#: What has to be there. A runtime without one of these is too old or is none.
REQUIRED = {
    "hipGetDeviceCount": "I",
    "hipGetDevice": "I",
    "hipSetDevice": "i",
    "hipRuntimeGetVersion": "I",
    "hipDeviceGetAttribute": "Iei",
    "hipDeviceGetName": "Tii",
    "hipDeviceGetPCIBusId": "Tii",
    "hipDeviceTotalMem": "Ni",
    "hipDeviceGetStreamPriorityRange": "II",
    "hipDeviceSynchronize": "!",
    "hipGetLastError": "",
    "hipMemGetInfo": "NN",
    "hipMalloc": "Pn!",
    "hipFree": "p!",
    "hipHostMalloc": "Pnu!",
    "hipHostFree": "p!",
    "hipHostRegister": "pnu!",
    "hipHostUnregister": "p!",
    "hipHostGetDevicePointer": "Ppu",
    "hipMemcpyAsync": "ppnep!",
    "hipMemcpyWithStream": "ppnep!",
    "hipMemcpy2DAsync": "pnpnnnep!",
    "hipMemsetD8Async": "pbnp",
    "hipMemsetD16Async": "psnp",
    "hipMemsetD32Async": "pinp",
    "hipStreamCreateWithPriority": "Pui",
    "hipStreamDestroy": "p!",
    "hipStreamSynchronize": "p!",
    "hipStreamQuery": "p?",
    "hipStreamWaitEvent": "ppu",
    "hipEventCreateWithFlags": "Pu",
    "hipEventDestroy": "p!",
    "hipEventRecord": "pp",
    "hipEventQuery": "p?",
    "hipEventSynchronize": "p!",
    "hipEventElapsedTime": "Fpp",
}
#: What makes a capability, or a fact, where it is there.
OPTIONAL = {
    "hipDeviceGetUuid": "Ui",
    "hipGetDevicePropertiesR0600": "Di",
    "hipMallocManaged": "Pnu!",
    "hipMemPrefetchAsync": "pnip",
    "hipMemAdvise": "pnei",
    "hipMemPrefetchAsync_v2": "pnnup*",  # a location, of two ints, is given as one word
    "hipMemAdvise_v2": "pnin*",
    "hipMemPrefetchBatchAsync": "ppnppnnp*",  # bindings have outputs where inputs belong, as below
    "hipMemDiscardBatchAsync": "ppnnp*",
    "hipMemDiscardAndPrefetchBatchAsync": "ppnppnnp*",
    "hipMemcpy3DAsync": "pp!",
    "hipMemcpyBatchAsync": "pppnppnNp*",  # bindings have outputs where inputs belong
    "hipMemcpyPeerAsync": "pipinp!",
    "hipDeviceCanAccessPeer": "Iii",
    "hipDeviceEnablePeerAccess": "iu",
    "hipDeviceDisablePeerAccess": "i!",
    "hipIpcGetMemHandle": "Hp",
    "hipIpcOpenMemHandle": "Phu*",  # bindings have a type of their own for the handle
    "hipIpcCloseMemHandle": "p!",
    "hipPointerGetAttributes": "Ap",
    "hipMemGetAddressRange": "PNp",
    "hipStreamIsCapturing": "pI*",  # of a failed call bindings make an enum's member from no output: the status is lost
    "hipThreadExchangeStreamCaptureMode": "m",
    "hipStreamWaitValue32": "ppuuu",
    # Bindings have types of their own for graphs; 7.2 cannot say what a node of one depends on.
    "hipStreamBeginCapture": "pi*",
    "hipStreamEndCapture": "pP*",
    "hipGraphInstantiateWithFlags": "Ppn*",
    "hipGraphLaunch": "pp*",
    "hipGraphExecDestroy": "p*",
    "hipGraphDestroy": "p*",
    # Bindings have types of their own for addresses of code, of text and of arguments, and of untyped values.
    "hipModuleLoadData": "Pp*",
    "hipModuleUnload": "p!*",
    "hipModuleGetFunction": "Ppp*",
    "hipModuleLaunchKernel": "puuuuuuuppp*",
    "hipMemPoolGetAttribute": "peN*",
    "hipMemPoolSetAttribute": "pep*",
    "hipMemPoolCreate": "Pp*",
    "hipMemPoolDestroy": "p!",
    "hipMemPoolTrimTo": "pn!",
    "hipMemPoolExportToShareableHandle": "Ipeu*",
    "hipMemPoolImportFromShareableHandle": "Ppeu*",
    "hipMemPoolExportPointer": "Hp*",
    "hipMemPoolImportPointer": "Ppp*",
    "hipMemPoolSetAccess": "ppn*",
    "hipMallocFromPoolAsync": "Pnpp!",
    "hipMallocAsync": "Pnp!",
    "hipFreeAsync": "pp",
}
#: What virtual memory needs. Bindings have a type of their own for handles of physical memory.
VIRTUAL = {
    "hipMemGetAllocationGranularity": "Npe*",
    "hipMemCreate": "Pnpn*",
    "hipMemRelease": "p*",
    "hipMemGetAllocationPropertiesFromHandle": "pp*",
    "hipMemAddressReserve": "Pnnpn*",
    "hipMemAddressFree": "pn*",
    "hipMemMap": "pnnpn*",
    "hipMemUnmap": "pn!*",
    "hipMemSetAccess": "pnpn*",
    "hipMemExportToShareableHandle": "ppen*",
    "hipMemImportFromShareableHandle": "Ppe*",
}
FUNCTIONS = REQUIRED | OPTIONAL | VIRTUAL
#: What a pool needs, and what is needed to share its memory.
POOL_SHARING = [name for name in OPTIONAL if name.startswith(("hipMemPoolE", "hipMemPoolI", "hipMemPoolSetAcc"))]
POOLS = [name for name in OPTIONAL if ("Pool" in name or name == "hipFreeAsync") and name not in POOL_SHARING]
TEXT_BYTES, UUID_BYTES, PROPERTIES_BYTES, POINTER_BYTES = 256, 16, 1472, 32
#: Statuses, besides those of `devmem.toolkit.vendor_functions`.
NOT_INITIALIZED, INSUFFICIENT_DRIVER, NO_DEVICE, INVALID_DEVICE = 3, 35, 100, 101
PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, ALREADY_REGISTERED, NOT_REGISTERED = 704, 705, 712, 713
#: After one of these every call on the device fails, as far as is known: the process has to let go of it.
STICKY = frozenset({4, 214, 700, 702, 709, 710, 719})
