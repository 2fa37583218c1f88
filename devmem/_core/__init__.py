"""Generic machinery, written once for every backend."""

import ctypes as _ctypes


def _check_interpreter() -> None:
    """Refuse a sub-interpreter: what comes from C by ``PyGILState_Ensure`` (callbacks, NumPy's capsules) waits there for ever."""
    current = _ctypes.PYFUNCTYPE(_ctypes.c_void_p)(("PyInterpreterState_Get", _ctypes.pythonapi))
    number_of = _ctypes.PYFUNCTYPE(_ctypes.c_int64, _ctypes.c_void_p)(("PyInterpreterState_GetID", _ctypes.pythonapi))
    if number_of(current()) != 0:
        raise ImportError(
            "devmem runs in the main interpreter alone, as drivers call back into that one, and this is a sub-interpreter: "
            "under mod_wsgi set `WSGIApplicationGroup %{GLOBAL}`"
        )


_check_interpreter()
