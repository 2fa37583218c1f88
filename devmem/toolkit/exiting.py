"""The interpreter's exit, which daemon threads outlive for a moment."""

from __future__ import annotations

import threading


def end_daemon_thread() -> None:
    """End the calling thread without a traceback if Python is exiting and will stop it anyhow.

    Python waits for all threads but daemon threads before anything is closed. By then its main thread counts as ended.
    """
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        raise SystemExit
