"""Inject failures and delays into the emulator of this process, hold its streams, and read its counters."""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from pathlib import Path
from typing import Any, SupportsInt

LIBRARIES = {"cuda": "libcuda.so", "roc": "libamdhip64.so"}
#: Emulated libraries over a driver: their functions are counted and made to fail beside the driver's.
RUNTIMES = {"cuda": "libcudart.so"}


class EmulatorNotLoaded(RuntimeError):
    """No emulated driver is mapped into this process."""


class Control:
    """The controls of one emulator; :func:`control` returns it. May be used from many threads."""

    def __init__(self, library: ctypes.CDLL, *runtimes: ctypes.CDLL) -> None:
        self._library = _declared(library)
        self._names = {each: _names(each) for each in (library, *map(_counting, runtimes))}

    def hold(self, stream: Any) -> Hold:
        """Stop `stream` before its next operation, until the ``with`` block ends.

        The stream is a handle, an object that ``int()`` accepts, or one with a ``handle``; 0 and 1 are the legacy default
        stream of the current context, 2 the default stream of the calling thread. An operation that runs already continues.
        The hold is no operation itself: a stream without work counts as idle while it is held.
        """
        return Hold(self._library, _handle(stream))

    def delay(self, microseconds: int, jitter: int = 0, seed: int | None = None) -> None:
        """Sleep before every operation of every stream: `microseconds`, and up to `jitter` more.

        The same `seed` gives the same delays to the same operations; without a seed it is random.
        """
        chosen = random.getrandbits(63) if seed is None else seed & (2**64 - 1)
        self._library.devmem_emulator_delay(microseconds, jitter, chosen)

    def fail(self, function: str, nth: int, code: SupportsInt, *, repeat: bool = False) -> None:
        """Make the `nth` call of `function` from now (1 is the next) return `code` without effect.

        With `repeat`, every call from the nth on fails. A code after which a context is lost (an illegal address, a failed
        launch) becomes the sticky error of the current context.
        """
        planned = [each.devmem_emulator_fail(function.encode(), nth, int(code), repeat) == 0 for each in self._names]
        if not any(planned):
            raise ValueError(f"cannot make call {nth} of {function!r} fail: no such function, or too many plans")

    def calls(self) -> dict[str, int]:
        """Count the calls of each function since the last reset; functions never called are left out."""
        counts: Counter[str] = Counter()
        for library, names in self._names.items():
            counts.update({name: library.devmem_emulator_function_calls(index) for index, name in enumerate(names)})
        return {name: count for name, count in counts.items() if count}

    def functions(self) -> list[str]:
        """Name every function that the emulator exports."""
        return list(dict.fromkeys(name for names in self._names.values() for name in names))

    def is_coarse(self, address: int) -> bool:
        """Return whether the address is in coarse-grained host memory (HIP).

        There the host sees what the device wrote only after a release to the system.
        """
        return bool(self._library.devmem_emulator_is_coarse(address))

    def slow_copies(self) -> int:
        """Count the copies of rows whose pitch AMD's copy engines refuse (no multiple of 4), since the last reset."""
        return int(self._library.devmem_emulator_slow_copies())

    def live(self) -> tuple[int, int]:
        """Return the number of bytes that are allocated, and of handles that exist.

        Handles are streams, events, pools, contexts, graphs, registered ranges and opened IPC memory; default streams,
        default pools and primary contexts do not count.
        """
        size, handles = ctypes.c_ulong(), ctypes.c_long()
        self._library.devmem_emulator_live(ctypes.byref(size), ctypes.byref(handles))
        return size.value, handles.value

    def reset(self) -> None:
        """Clear planned failures, delays, holds and counters. Memory, streams and contexts stay."""
        self._library.devmem_emulator_reset()
        for library in self._names:
            library.devmem_emulator_forget_calls()


class Hold:
    """A held stream; the end of the ``with`` block releases it."""

    def __init__(self, library: ctypes.CDLL, stream: int) -> None:
        self._library = library
        self._stream = stream
        self._held = 0

    def __enter__(self) -> Hold:
        self._held = self._library.devmem_emulator_hold(self._stream)
        if not self._held:
            raise ValueError(f"cannot hold stream {self._stream:#x}: it is unknown, or no context is active")
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Let the stream continue. Further calls do nothing."""
        held, self._held = self._held, 0
        if held:
            self._library.devmem_emulator_release(held)


def control(backend: str | None = None) -> Control:
    """Return the controls of the emulator mapped into this process.

    Parameters
    ----------
    backend
        ``"cuda"`` or ``"roc"``; needed only where both are mapped.

    Raises
    ------
    EmulatorNotLoaded
        If the process has no emulated driver, or a real one.
    """
    wanted = [LIBRARIES[backend]] if backend in LIBRARIES else [] if backend else list(LIBRARIES.values())
    mapped = _mapped_libraries()
    for path in mapped:
        if not Path(path).name.startswith(tuple(wanted)):
            continue
        library = ctypes.CDLL(path)
        if hasattr(library, "devmem_emulator_live"):
            over = RUNTIMES.get(next(name for name, start in LIBRARIES.items() if Path(path).name.startswith(start)))
            loaded = [ctypes.CDLL(other) for other in mapped if over and Path(other).name.startswith(over)]
            return Control(library, *(other for other in loaded if hasattr(other, "devmem_emulator_fail")))
    raise EmulatorNotLoaded(
        f"no emulated {backend or 'driver'} library is mapped into this process: start the command with "
        f"`devmem emulate {backend or 'BACKEND'} -- COMMAND` or under devmem.testing.emulator.environment(), and open "
        "the backend (or call devmem.testing.emulator.load()) before control()"
    )


def _mapped_libraries() -> list[str]:
    """List the shared libraries of this process, each once, in the order of their addresses."""
    try:
        with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
            fields = [line.split(maxsplit=5) for line in maps]
    except OSError:
        return []
    return list(dict.fromkeys(line[5].rstrip("\n") for line in fields if len(line) == 6 and ".so" in line[5]))


def _handle(stream: Any) -> int:
    if stream is None:
        return 0
    return int(getattr(stream, "handle", stream))


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.devmem_emulator_hold.argtypes = [ctypes.c_uint64]
    library.devmem_emulator_hold.restype = ctypes.c_uint64
    library.devmem_emulator_release.argtypes = [ctypes.c_uint64]
    library.devmem_emulator_delay.argtypes = [ctypes.c_ulong] * 3
    library.devmem_emulator_delay.restype = None
    library.devmem_emulator_live.restype = None
    library.devmem_emulator_is_coarse.argtypes = [ctypes.c_uint64]
    library.devmem_emulator_slow_copies.restype = ctypes.c_ulong
    library.devmem_emulator_reset.restype = None
    return _counting(library)


def _counting(library: ctypes.CDLL) -> ctypes.CDLL:
    library.devmem_emulator_fail.argtypes = [ctypes.c_char_p, ctypes.c_ulong, ctypes.c_int, ctypes.c_int]
    library.devmem_emulator_function_name.restype = ctypes.c_char_p
    library.devmem_emulator_function_calls.restype = ctypes.c_ulong
    library.devmem_emulator_forget_calls.restype = None
    return library


def _names(library: ctypes.CDLL) -> list[str]:
    return [library.devmem_emulator_function_name(i).decode() for i in range(library.devmem_emulator_function_count())]
