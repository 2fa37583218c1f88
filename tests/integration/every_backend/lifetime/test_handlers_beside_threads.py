"""Signals' handlers that call devmem on the main thread, while others work on the same pool, store and pages: nothing hangs.

A handler may find its thread with any lock; the others may have any other. `test_locks_are_asked.py` shows for one thread that no
lock is taken under another one that a handler waits for; this lets the system's scheduler look for what that leaves out.
"""

from __future__ import annotations

import pytest

PROGRAM = """
import gc, random, signal, tempfile, threading
import numpy as np
import devmem as dm

DATA, LARGE, PAGES = np.arange(4000, dtype="f4"), np.arange(1 << 18, dtype="u1"), np.arange(8192, dtype="u1")
pool, store = dm.memory.PoolMemory(), dm.spill.Store("128KiB", "128KiB", tempfile.mkdtemp())
dm.zeros(3)
registers = "host_register" in dm.current_device().info.capabilities

def copies(tag):
    assert np.array_equal(dm.to_device(DATA).copy_to_host(), DATA)
    assert np.array_equal(dm.to_device(LARGE).copy_to_host(), LARGE)

def streams(tag):
    stream, event = dm.stream(), dm.event()
    array = dm.to_device(DATA, stream=stream)
    event.record(stream)
    assert np.array_equal(dm.copy_async(array, stream=stream).result(), DATA)
    stream.close()

def memory(tag):
    with dm.use_memory(pool):
        stream = dm.stream()
        blocks = dm.device_array(3000, "u1"), dm.device_array(2 << 20, "u1", stream=stream)
        del blocks
        stream.close()
        dm.device_array(2 << 20, "u1").free()

def pages(tag):
    if registers:
        with dm.pinned(PAGES[tag * 2048 : tag * 2048 + 2048]):
            assert np.array_equal(dm.to_device(PAGES).copy_to_host(), PAGES)

def kept(tag):
    store[tag, 0] = dm.to_device(np.full(40 << 10, tag, "u1"))
    for other in range(4):
        found = store.get((other, 0))
        assert found is None or (found.copy_to_host() == other).all()

def fetched(tag):
    with dm.prefetch([DATA, DATA]) as items:
        for item in items:
            assert np.array_equal(item.copy_to_host(), DATA)

def looks(tag):
    dm.memory_info()
    dm.trim()

VERBS, failed, inside = [copies, streams, memory, pages, kept, fetched, looks], [], []

def handler(*_):
    if len(inside) > 1:
        return
    inside.append(True)
    try:
        random.choice(VERBS)(3)
    except RuntimeError as error:
        if "needs another thread" not in str(error) and "this one interrupted" not in str(error):
            failed.append(error)
    except Exception as error:
        failed.append(error)
    finally:
        inside.pop()

def work(tag):
    try:
        for _ in range(60):
            random.choice(VERBS)(tag)
    except Exception as error:
        failed.append(error)

for verb in VERBS:  # a handler that comes into an import finds the module half made
    verb(2)
store.spill()
store.spill(tier="host")
assert (store[2, 0].copy_to_host() == 2).all()
threads = [threading.Thread(target=work, args=(tag,), daemon=True) for tag in range(2)]
for each in threads:
    each.start()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
work(2)
signal.setitimer(signal.ITIMER_REAL, 0)
for each in threads:
    each.join()
if failed:
    raise failed[0]
store.close()
gc.collect()
dm.trim()
dm.trim()
assert dm.memory_info()[2:] == (0, 0, 0, (0, 0, 0)), dm.memory_info()
"""


@pytest.mark.races("a handler may wait for a thread that waits for the check which the handler came into")
def test_handlers_and_threads_share_a_pool_a_store_and_pages(python):
    done = python(PROGRAM)
    assert done.returncode == 0, done.stderr
