"""The errors of the host driver, by name."""

from __future__ import annotations

from devmem.spi.errors import BackendError, DeviceLost, OutOfMemory

# The numbers are CUDA's where it has one, so that a trace of this backend reads like one of a GPU.
_CODES = {
    "INVALID_VALUE": 1,
    "OUT_OF_MEMORY": 2,
    "DEVICE_CLOSED": 4,
    "INVALID_DEVICE": 101,
    "INVALID_CONTEXT": 201,
    "OPERATING_SYSTEM": 304,
    "INVALID_HANDLE": 400,
    "NOT_READY": 600,
    "HOST_MEMORY_ALREADY_REGISTERED": 712,
    "HOST_MEMORY_NOT_REGISTERED": 713,
    "INVALID_ADDRESS": 717,
    "LAUNCH_FAILED": 719,
    "NOT_PERMITTED": 800,
}
_KINDS: dict[str, type[BackendError]] = {"OUT_OF_MEMORY": OutOfMemory, "LAUNCH_FAILED": DeviceLost}


def host_error(call: str, name: str, message: str) -> BackendError:
    """Return the error to raise when ``call`` fails with ``name``; ``message`` says why, with the values."""
    kind = _KINDS.get(name, BackendError)
    return kind(f"host: {call}: {message} ({name})", backend="host", call=call, code=_CODES[name], name=name)
