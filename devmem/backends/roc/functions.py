"""Every function of the HIP runtime that is used: what it takes, what it gives, and the numbers that go with it.

One letter for each argument of the C function, in its order. Small letters are given by the caller, capitals come back:
``p`` address or handle, ``n`` size, ``i`` int, ``u`` unsigned, ``b`` byte, ``s`` 16 bits, ``e`` a member of an enum, ``h`` 64
bytes by value, ``q`` 64 bits by address; ``F`` float, ``T`` text, ``U`` the 16 bytes of an UUID, ``H`` the 64 of an IPC handle,
``D`` the properties of a device, ``A`` the 32 bytes of what is known of an address, ``Q`` 64 bits by an untyped address. A ``?``
at the end: answers a question, not ready is False.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

#: What has to be there. A runtime without one of these is too old or is none.
REQUIRED = {
    "hipGetDeviceCount": "I",
    "hipGetDevice": "I",
    "hipSetDevice": "i",
    "hipRuntimeGetVersion": "I",
    "hipDeviceGetAttribute": "Iei",
    "hipDeviceGetName": "Ti",
    "hipDeviceGetPCIBusId": "Ti",
    "hipDeviceTotalMem": "Ni",
    "hipDeviceGetStreamPriorityRange": "II",
    "hipDeviceSynchronize": "",
    "hipGetLastError": "",
    "hipMemGetInfo": "NN",
    "hipMalloc": "Pn",
    "hipFree": "p",
    "hipHostMalloc": "Pnu",
    "hipHostFree": "p",
    "hipHostRegister": "pnu",
    "hipHostUnregister": "p",
    "hipHostGetDevicePointer": "Ppu",
    "hipMemcpyAsync": "ppnep",
    "hipMemcpyWithStream": "ppnep",
    "hipMemcpy2DAsync": "pnpnnnep",
    "hipMemsetD8Async": "pbnp",
    "hipMemsetD16Async": "psnp",
    "hipMemsetD32Async": "pinp",
    "hipStreamCreateWithPriority": "Pui",
    "hipStreamDestroy": "p",
    "hipStreamSynchronize": "p",
    "hipStreamQuery": "p?",
    "hipStreamWaitEvent": "ppu",
    "hipEventCreateWithFlags": "Pu",
    "hipEventDestroy": "p",
    "hipEventRecord": "pp",
    "hipEventQuery": "p?",
    "hipEventSynchronize": "p",
    "hipEventElapsedTime": "Fpp",
}
#: What makes a capability, or a fact, where it is there.
OPTIONAL = {
    "hipDeviceGetUuid": "Ui",
    "hipGetDevicePropertiesR0600": "Di",
    "hipMallocManaged": "Pnu",
    "hipMemPrefetchAsync": "pnip",
    "hipMemAdvise": "pnei",
    "hipMemcpy3DAsync": "pp",
    "hipMemcpyBatchAsync": "pppnppnNp",
    "hipMemcpyPeerAsync": "pipinp",
    "hipDeviceCanAccessPeer": "Iii",
    "hipDeviceEnablePeerAccess": "iu",
    "hipIpcGetMemHandle": "Hp",
    "hipIpcOpenMemHandle": "Phu",
    "hipIpcCloseMemHandle": "p",
    "hipPointerGetAttributes": "Ap",
    "hipMemGetAddressRange": "PNp",
    "hipStreamIsCapturing": "pI",
    "hipThreadExchangeStreamCaptureMode": "p",
    "hipStreamWaitValue32": "ppuuu",
    "hipModuleLoadData": "Pp",
    "hipModuleUnload": "p",
    "hipModuleGetFunction": "Ppp",
    "hipModuleLaunchKernel": "puuuuuuuppp",
    "hipMemPoolCreate": "Pp",
    "hipMemPoolDestroy": "p",
    "hipMemPoolTrimTo": "pn",
    "hipMemPoolGetAttribute": "peQ",
    "hipMemPoolSetAttribute": "peq",
    "hipMallocFromPoolAsync": "Pnpp",
    "hipFreeAsync": "pp",
}
FUNCTIONS = REQUIRED | OPTIONAL
#: Those that may wait for a device, or for much else: pages that are locked, work of other libraries.
WAITING = frozenset(
    {
        "hipDeviceSynchronize",
        "hipStreamSynchronize",
        "hipEventSynchronize",
        "hipStreamDestroy",
        "hipEventDestroy",
        "hipMalloc",
        "hipMallocManaged",
        "hipMallocFromPoolAsync",
        "hipFree",
        "hipHostMalloc",
        "hipHostFree",
        "hipHostRegister",
        "hipHostUnregister",
        "hipMemcpyAsync",
        "hipMemcpyWithStream",
        "hipMemcpy2DAsync",
        "hipMemcpy3DAsync",
        "hipMemcpyPeerAsync",
        "hipIpcCloseMemHandle",
        "hipMemPoolTrimTo",
        "hipMemPoolDestroy",
    }
)

TEXT_BYTES, UUID_BYTES, IPC_HANDLE_BYTES, PROPERTIES_BYTES, POINTER_BYTES = 256, 16, 64, 1472, 32

#: Statuses.
INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INSUFFICIENT_DRIVER, NO_DEVICE, INVALID_DEVICE = 1, 2, 3, 35, 100, 101
INVALID_HANDLE, NOT_READY, PEER_ACCESS_ALREADY_ENABLED, NOT_SUPPORTED = 400, 600, 704, 801
ALREADY_REGISTERED, NOT_REGISTERED, NOT_FOUND = 712, 713, 500
CAPTURE_UNSUPPORTED, CAPTURED_EVENT, CAPTURE_ELSEWHERE = 900, 907, range(900, 910)
#: After one of these every call on the device fails, as far as is known: the process has to let go of it.
STICKY = frozenset({4, 214, 700, 702, 709, 710, 719})

#: Called with a function's name and a status that is not success; raises.
Fail = Callable[[str, int], Any]


class Provider(Protocol):
    """One way to call the runtime. All have the same surface: integers (and bytes, and text) in and out."""

    name: str
    #: What it is, with its version.
    version: str
    #: Whether other Python threads stand still during its own calls, so that those of `WAITING` go another way.
    holds_gil: bool

    def has(self, function: str) -> bool:
        """Whether a function is there, in the runtime and in a form that can be called."""

    def bind(self, function: str, fail: Fail) -> Callable[..., Any]:
        """A function that takes the small letters, and gives the capitals: one as it is, several as a tuple."""

    def member(self, enum: str, value: int) -> Any:
        """A member of an enum as the provider wants it; ValueError if it does not know the number."""

    def describe(self, code: int) -> tuple[str, str]:
        """The name of a status, and the runtime's sentence on it."""
