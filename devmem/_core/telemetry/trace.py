"""``DEVMEM_TRACE``: a file of trace events, as Perfetto and chrome://tracing read them.

Each event is one line, written at once by one call, whichever threads write: a process that dies loses none. The file is a JSON
array that is never closed, which its readers accept; for other readers ``json.loads(text + "]")``. Times are microseconds of
`time.perf_counter`, which on Linux is the clock of other tools too.

A process has one trace. The child of a fork, and a second process that is given the same path, write a file of their own beside
it, with their number in its name. Where a file cannot be written any more, a DevmemWarning says so, and the copies go on.
"""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

from ...spi.errors import ConfigError, DevmemWarning
from ...toolkit.locks import Rank, lock

if TYPE_CHECKING:
    from pathlib import Path

_lock = lock("trace file", Rank.LEAF)
_open: TraceFile | None = None
_forked = False


class TraceFile:
    """The trace of this process; ``path`` is what the setting names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[int, str] = {}
        self._pid = os.getpid()
        self._fd = _open_own(path)
        self._write("[\n" + _line({"ph": "M", "name": "process_name", **self._at(0), "args": {"name": "devmem"}}))

    def span(self, name: str, category: str, began: float, ended: float, args: dict[str, object]) -> None:
        """Write what this thread did from one time to another, in seconds of `time.perf_counter`."""
        tid, thread = threading.get_native_id(), threading.current_thread().name
        if self._names.get(tid) != thread:
            self._names[tid] = thread
            self._event({"ph": "M", "name": "thread_name", **self._at(tid), "args": {"name": thread}})
        ts, dur = round(began * 1e6, 3), round((ended - began) * 1e6, 3)
        self._event({"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, **self._at(tid), "args": args})

    def close(self) -> None:
        """Write nothing any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _at(self, tid: int) -> dict[str, object]:
        return {"pid": self._pid, "tid": tid}

    def _event(self, event: dict[str, object]) -> None:
        # The comma goes before: then the file is whole after each event but for its last bracket.
        self._write(",\n" + _line(event))

    def _write(self, text: str) -> None:
        if self._fd < 0:
            return
        data = text.encode(errors="replace")
        try:
            written = os.write(self._fd, data)
            problem = "" if written == len(data) else f"{written} of {len(data)} bytes were written"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            # Not closed: another thread may be about to write, and the number would be another file's by then.
            self._fd = -1
            warnings.warn(f"the trace {self.path} ends here: {problem}", DevmemWarning, stacklevel=2)


def tracefile(text: str) -> TraceFile | None:
    """The trace that a setting names; None for the empty text.

    Raises
    ------
    ConfigError
        The file cannot be written.
    """
    global _open
    if not text:
        return None
    from pathlib import Path  # late, as `json` below

    path = Path(text).absolute()
    with _lock:
        if _open is None or _open.path != path:
            try:
                fresh = TraceFile(path)
            except OSError as error:
                raise ConfigError(
                    f"DEVMEM_TRACE={text!r} cannot be written ({error.strerror}): give the path of a file in a folder that "
                    f"exists, or unset it"
                ) from None
            if _open is not None:
                _open.close()
            _open = fresh
        return _open


def _line(event: dict[str, object]) -> str:
    import json  # late: a tenth of the time that importing devmem takes

    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


def _open_own(path: Path) -> int:
    """Open an empty file that no other process writes to: this one, or one with our number in its name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    fd = -1 if _forked else os.open(path, flags, 0o666)
    if fd >= 0 and not _lock_file(fd):
        os.close(fd)
        fd = -1
    if fd < 0:
        fd = os.open(path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}"), flags, 0o666)
    with suppress(OSError):  # a pipe, say
        os.ftruncate(fd, 0)
    return fd


def _lock_file(fd: int) -> bool:
    """Lock a file until this process ends; False where another process holds it. Files without locks count as free."""
    try:
        import fcntl
    except ImportError:
        return True
    with suppress(OSError):  # a file system, or a kind of file, without locks
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _after_fork_in_child() -> None:
    """Leave the file to the parent."""
    global _open, _forked
    if _open is not None:
        _forked = True
        _open.close()
        _open = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
