"""A function called on several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def at_once(count: int, work: Callable[[], object]) -> None:
    """Call a function on so many threads, which begin together; raise what one of them raises."""
    barrier, failed = threading.Barrier(count), list[BaseException]()

    def begin() -> None:
        try:
            barrier.wait(100)
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=begin, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    if failed:
        raise failed[0]
