"""``DEVMEM_TRACE``: a file of trace events, as Perfetto and chrome://tracing read them."""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

from ...spi.errors import ConfigError, DevmemWarning

if TYPE_CHECKING:
    from pathlib import Path

_lock = threading.Lock()
_open: TraceFile | None = None
_forked = False


class TraceFile:
    """Events of this process, each written at once, as one line: a process that dies loses none.

    The file is a JSON array that is never closed. Its readers take it so, because every trace that was cut short looks like this;
    for others ``json.loads(text + "]")``. Times are microseconds of `time.perf_counter`, which on Linux is the clock of other
    tools too. Where the file cannot be written any more, a DevmemWarning says so, and the copies go on.
    """

    def __init__(self, path: Path) -> None:
        #: What was asked for. A second process that writes there has a file of its own beside it, as the child of a fork has.
        self.asked = path
        self._names: dict[int, str] = {}
        self._fd = -1
        self._pid = os.getpid()
        self._fd = _claimed(path)
        self._put("[\n" + _line({"ph": "M", "name": "process_name", **self._at(0), "args": {"name": "devmem"}}))

    def span(self, name: str, sort: str, began: float, ended: float, args: dict[str, object]) -> None:
        """What this thread did from one time to another, in seconds of `time.perf_counter`."""
        tid = self._thread()
        dur = round((ended - began) * 1e6, 3)
        self._event(
            {
                "ph": "X",
                "cat": sort,
                "name": name,
                "ts": round(began * 1e6, 3),
                "dur": dur,
                **self._at(tid),
                "args": args,
            }
        )

    def close(self) -> None:
        """Write nothing any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # -- below ---------------------------------------------------------------------------------------------------------

    def _thread(self) -> int:
        """The system's number of the calling thread, whose name is written when it is new."""
        tid, name = threading.get_native_id(), threading.current_thread().name
        if self._names.get(tid) != name:
            self._names[tid] = name
            self._event({"ph": "M", "name": "thread_name", **self._at(tid), "args": {"name": name}})
        return tid

    def _at(self, tid: int) -> dict[str, object]:
        return {"pid": self._pid, "tid": tid}

    def _event(self, event: dict[str, object]) -> None:
        # The comma goes before: then the file is whole after each event but for its last bracket.
        self._put(",\n" + _line(event))

    def _put(self, text: str) -> None:
        """Write by one call, unbuffered: appended whole, whichever threads write, and never a second time by a child."""
        if self._fd < 0:
            return
        data = text.encode(errors="replace")
        try:
            written = os.write(self._fd, data)
            problem = "" if written == len(data) else f"{written} of {len(data)} bytes were written"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            # Not closed: another thread may be about to write, and the number would be somebody else's file by then.
            self._fd = -1
            warnings.warn(f"the trace {self.asked} ends here: {problem}", DevmemWarning, stacklevel=2)


def tracefile(text: str) -> TraceFile | None:
    """The trace that a setting names, one in a process; None for the empty text.

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
        if _open is None or _open.asked != path:
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


# -- below -------------------------------------------------------------------------------------------------------------


def _line(event: dict[str, object]) -> str:
    import json  # a tenth of what importing devmem takes, for those who trace

    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


def _claimed(path: Path) -> int:
    """The file, emptied; or, in the child of a fork and where another process writes there, one with our number in its name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    if not _forked:
        fd = os.open(path, flags, 0o666)
        if _locked(fd):
            return _emptied(fd)
        os.close(fd)
    return _emptied(os.open(path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}"), flags, 0o666))


def _locked(fd: int) -> bool:
    """Whether nobody else writes there, now and until we end. Where files cannot be locked so, it is taken on trust."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system, or a kind of file, without locks
    return True


def _emptied(fd: int) -> int:
    with suppress(OSError):  # a pipe, say
        os.ftruncate(fd, 0)
    return fd


def _after_fork_in_child() -> None:
    """The parent goes on in its file."""
    global _open, _forked, _lock
    _lock = threading.Lock()
    if _open is not None:
        _forked = True
        _open.close()
        _open = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
