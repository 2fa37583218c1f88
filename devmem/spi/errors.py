"""Everything devmem raises.

::

    DevmemError
    ├── BackendUnavailable (ImportError)      no such backend here, with the reason and the command that would help
    ├── BackendError (RuntimeError)           a driver said no: backend, call, code, name
    │   ├── OutOfMemory (MemoryError)
    │   └── DeviceLost                        sticky: the device is unusable; carries the first error and its call
    ├── UnsupportedError (NotImplementedError)  this device or this operation cannot do it
    ├── LayoutError (ValueError)              shape, strides, dtype or contiguity do not fit
    ├── ClosedError (ValueError)              use after free, close or reset
    ├── ForkedError (RuntimeError)            a handle from before a fork, used in the child
    ├── TransferGuardError (RuntimeError)     an implicit copy to the host while the guard disallows it
    ├── GuardError (RuntimeError)             memory that a Guard watches was misused: overrun, freed twice, used after free
    ├── SimulatorError (RuntimeError)         a kernel did wrong in the simulator: block, thread, source line
    ├── PluginError (RuntimeError)            a plugin that is broken, misnamed or too new
    └── ConfigError (ValueError)              a setting or name that is not one of those allowed

    DevmemWarning (RuntimeWarning)            the one channel for what cannot be raised

Each also inherits the builtin that a caller would catch. A message says what failed, with the values, and what to do.
"""

from __future__ import annotations


class DevmemError(Exception):
    """Base of every error that devmem raises on purpose."""


class BackendUnavailable(DevmemError, ImportError):
    """A backend was asked for by name and cannot be used; the message carries its reason and the remedy."""


class BackendError(DevmemError, RuntimeError):
    """A driver call failed.

    Attributes
    ----------
    backend : str
        Name of the backend, ``"cuda"``.
    call : str
        The driver function that failed, ``"cuMemAlloc"``.
    code : int
        The driver's own number for the failure.
    name : str
        The driver's own name for the failure, ``"CUDA_ERROR_INVALID_VALUE"``.
    """

    def __init__(self, message: str, *, backend: str = "", call: str = "", code: int = 0, name: str = "") -> None:
        super().__init__(message)
        self.backend = backend
        self.call = call
        self.code = code
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


class OutOfMemory(BackendError, MemoryError):
    """An allocation did not fit, after everything that could be given back was given back.

    Attributes
    ----------
    requested : int or None
        Bytes that were asked for.
    free : int or None
        Bytes that were free: below the limit, where one was reached, else on the device. None: not known (the host's memory).
    limit : int or None
        Bytes of the limit that was reached; None where the memory itself ran out.
    """

    def __init__(
        self,
        message: str,
        *,
        backend: str = "",
        call: str = "",
        code: int = 0,
        name: str = "",
        requested: int | None = None,
        free: int | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(message, backend=backend, call=call, code=code, name=name)
        self.requested = requested
        self.free = free
        self.limit = limit


class DeviceLost(BackendError):
    """The device failed in a way that outlives the call; every later call on it raises this, with the first error."""


class UnsupportedError(DevmemError, NotImplementedError):
    """The device, the backend or the operation cannot do this; the message says what can."""


class LayoutError(DevmemError, ValueError):
    """Shapes, strides, dtypes or contiguity do not fit together."""


class ClosedError(DevmemError, ValueError):
    """A handle was used after ``free()``, ``close()`` or ``reset()``."""


class ForkedError(DevmemError, RuntimeError):
    """A handle made before a fork was used in the child, where its device does not exist."""


class TransferGuardError(DevmemError, RuntimeError):
    """An implicit device-to-host copy was about to happen while ``DEVMEM_TRANSFER_GUARD`` is ``disallow``."""


class GuardError(DevmemError, RuntimeError):
    """Memory that a `Guard` watches was misused; the message says how, and where the memory was allocated.

    Attributes
    ----------
    taken : int or None
        Bytes that were given back in spite of it, where that is not what was said: 0 for a second or a foreign free. None: all.
    """

    taken: int | None = None


class SimulatorError(DevmemError, RuntimeError):
    """The simulator found a mistake in a kernel, or the kernel raised: then ``__cause__`` is what it raised.

    Attributes
    ----------
    kind : str
        ``"divergence"``, ``"race"``, ``"unwritten"``, ``"out of bounds"``, ``"misuse"`` or ``"exception"``.
    block, thread : tuple of three ints
        The block's indices in the grid, and the thread's in the block; zeros for what is found before any thread runs.
    filename, lineno : str, int
        The line of the kernel, or of the device function, where the thread was.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "",
        block: tuple[int, int, int] = (0, 0, 0),
        thread: tuple[int, int, int] = (0, 0, 0),
        filename: str = "",
        lineno: int = 0,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.block = block
        self.thread = thread
        self.filename = filename
        self.lineno = lineno

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


class PluginError(DevmemError, RuntimeError):
    """A plugin could not be loaded, breaks the contract, or has a name that is taken."""


class ConfigError(DevmemError, ValueError):
    """A setting or a name has a value that is not allowed; the message names it and lists what is."""


class DevmemWarning(RuntimeWarning):
    """Something went wrong where nothing can be raised, or a choice was made that the user should know of."""


def _rebuild(kind: type[DevmemError], message: str, fields: dict[str, object]) -> DevmemError:
    error = kind(message)
    error.__dict__.update(fields)
    return error
