"""Forks, spawned processes and the interpreter's end, each in a process of its own.

What counts: the exit code, an empty stderr, and that nothing hangs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waits import patience

import devmem as dm

#: Seconds after which something hangs. None of these waits for time to pass, so a slow or busy machine is far from it.
HANG = 280.0

pytestmark = pytest.mark.timeout(HANG + 20)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PREAMBLE = """
import atexit, gc, os, sys, threading
import numpy as np
import devmem as dm
from devmem.testing import hold

def report(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
"""


def run(
    script: str, tmp_path: Path, *, code: int = 0, stderr: str = "", first: str = "", **environment: str
) -> list[str]:
    """Run a script in a fresh interpreter; its lines on stdout, once exit code and stderr have been checked."""
    path = tmp_path / "script.py"
    path.write_text(first + PREAMBLE + textwrap.dedent(script))
    home = str(Path(dm.__file__).parents[1])
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "DEVMEM_BACKEND": "host",
        "DEVMEM_HOST_STRICT": "1",
        "DEVMEM_HOST_DEVICES": "2",
        **environment,
    }
    # Python 3.12 and later warn of forks in processes with threads, which is what is tested here.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(HANG), env=env, check=False)
    assert done.stderr == stderr
    assert done.returncode == code
    return done.stdout.splitlines()


# -- fork --------------------------------------------------------------------------------------------------------------

IN_CHILD = f"""
import faulthandler

def in_child(work):
    sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()   # a child of a child would wait for a watchdog that it has not got
    pid = os.fork()
    if pid == 0:
        # A child that hangs says where, and goes: it would keep the pipes open that the test reads to their end.
        faulthandler.dump_traceback_later({HANG / 2}, exit=True)
        try:
            work()
        finally:
            gc.collect()
        sys.exit(0)   # the whole of the interpreter's end, in the child too
    _, status = os.waitpid(pid, 0)
    report("child exited with " + str(os.waitstatus_to_exitcode(status)))
"""

AFTER_USE = (
    IN_CHILD
    + """
stream, event = dm.stream(), dm.event()
array = dm.to_device(np.arange(10))
record = dm.to_device(np.zeros(3, [("x", "i4")]))[1]
pinned, mapped, managed = dm.pinned_array(10), dm.mapped_array(10), dm.managed_array(10)
pinned[...] = mapped[...] = managed[...] = 1.0
registered = np.zeros(1000)
scope = dm.pinned(registered)
held = dm.register(np.zeros(1000))
pending = dm.to_device(pinned, stream=stream)
event.record(stream)

old = {
    "copy_to_host": lambda: array.copy_to_host(),
    "copy_to_device": lambda: array.copy_to_device(np.arange(10)),
    "index": lambda: array[3],
    "slice": lambda: array[3:],
    "assign": lambda: array.__setitem__(slice(None), 0),
    "ptr": lambda: array.ptr,
    "fill": lambda: array.fill(0),
    "copy": lambda: array.copy(),
    "reshape": lambda: array.reshape(5, 2),
    "asarray": lambda: np.asarray(array),
    "free": lambda: array.free(),
    "with": lambda: array.__enter__(),
    "record": lambda: record["x"],
    "set record": lambda: record.__setitem__("x", 1),
    "mapped": lambda: mapped.copy_to_host(),
    "mapped ptr": lambda: mapped.ptr,
    "managed": lambda: managed.prefetch(),
    "advise": lambda: managed.advise("set_read_mostly"),
    "synchronize stream": lambda: stream.synchronize(),
    "query stream": lambda: stream.query(),
    "close stream": lambda: stream.close(),
    "enter stream": lambda: stream.__enter__(),
    "record event": lambda: event.record(stream),
    "record stream": lambda: stream.record(),
    "wait": lambda: stream.wait(event),
    "query event": lambda: event.query(),
    "synchronize event": lambda: event.synchronize(),
    "event wait": lambda: event.wait(stream),
    "close event": lambda: event.close(),
    "elapsed": lambda: dm.event_elapsed_time(event, event),
}
fresh = {
    "to_device": lambda: dm.to_device(np.arange(3)),
    "to_device list": lambda: dm.to_device([1, 2]),
    "device_array": lambda: dm.device_array(3),
    "device_array_like": lambda: dm.device_array_like(np.zeros(3)),
    "zeros": lambda: dm.zeros(3),
    "full": lambda: dm.full(3, 1),
    "pinned_array": lambda: dm.pinned_array(3),
    "mapped_array": lambda: dm.mapped_array(3),
    "managed_array": lambda: dm.managed_array(3),
    "pinned": lambda: dm.pinned(np.zeros(3)),
    "mapped scope": lambda: dm.mapped(np.zeros(3)),
    "register": lambda: dm.register(np.zeros(3)),
    "deregister": lambda: dm.deregister(registered),
    "stream": lambda: dm.stream(),
    "default_stream": lambda: dm.default_stream(),
    "external_stream": lambda: dm.external_stream(1),
    "event": lambda: dm.event(),
    "synchronize": lambda: dm.synchronize(),
    "memory_info": lambda: dm.memory_info(),
    "use_memory": lambda: dm.use_memory("driver"),
    "other device": lambda: dm.device(1).memory_info(),
    "select": lambda: dm.select_device(0),
    "enter device": lambda: dm.device(1).__enter__(),
    "named": lambda: dm.to_device(np.arange(3), device="host:1"),
    "trim named": lambda: dm.trim(device=0),
    "trim": lambda: dm.trim(),
    "reset": lambda: dm.reset(),
    "reset named": lambda: dm.reset("host:1"),
}

def refused(calls):
    for name, call in calls.items():
        try:
            call()
        except dm.ForkedError as error:
            assert "fork" in str(error), error
        except BaseException as error:
            report(f"{name}: {error!r}")
        else:
            report(f"{name}: not refused")
"""
)


@needs_fork
def test_after_a_fork_the_child_is_refused_everything(tmp_path: Path) -> None:
    script = """
    in_child(lambda: (refused(old), refused(fresh)))
    assert np.array_equal(array.copy_to_host(), np.arange(10))
    stream.synchronize()
    assert np.array_equal(pending.copy_to_host(), pinned)
    report("parent goes on")
    """
    lines = run(AFTER_USE + textwrap.dedent(script), tmp_path)
    assert lines == ["child exited with 0", "parent goes on"]


@needs_fork
def test_what_touches_no_device_works_in_the_child(tmp_path: Path) -> None:
    script = """
    def work():
        assert repr(array) and repr(stream) and repr(event) and repr(mapped)
        assert array.shape == (10,) and array.nbytes == 80
        assert [status.name for status in dm.backends()]
        assert dm.devices() and dm.settings()
        with dm.defer_cleanup():
            pass
        dm.close()
        assert pinned.sum() == mapped.sum() == managed.sum() == 10.0  # host memory can be read, if it was nothing else
        try:
            dm.device_array(3)   # closing does not help
        except dm.ForkedError:
            report("refused")
    in_child(work)
    """
    lines = run(AFTER_USE + textwrap.dedent(script), tmp_path)
    assert lines == ["refused", "child exited with 0"]


@needs_fork
def test_a_store_stays_with_the_process_that_made_it(tmp_path: Path) -> None:
    """At the fork another thread has its lock, and no thread of the child would release it."""
    script = """
    store = dm.spill.Store(disk=".")
    store["kept"] = np.arange(3)
    held, go_on = threading.Event(), threading.Event()
    def hold():
        with store._lock:
            held.set()
            go_on.wait()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    def work():
        verbs = {
            "get": lambda: store["kept"], "put": lambda: store.__setitem__("new", np.arange(3)),
            "delete": lambda: store.__delitem__("kept"), "spill": store.spill, "stats": store.stats,
        }
        refused(verbs)
        store.close()
        with dm.spill.Store() as own:
            own["a"] = np.arange(2)
            assert own["a"].tolist() == [0, 1]
    in_child(work)
    go_on.set()
    thread.join()
    assert store["kept"].tolist() == [0, 1, 2]
    """
    assert run(AFTER_USE + textwrap.dedent(script), tmp_path) == ["child exited with 0"]


@needs_fork
def test_finalizers_do_nothing_in_the_child(tmp_path: Path) -> None:
    """Everything is dropped there, in cycles and out of them, with copies of the parent still on their way."""
    script = """
    class Node:
        pass
    node = Node()
    node.me, node.array, node.stream = node, dm.to_device(np.arange(5)), dm.stream()
    source = dm.pinned_array(1000, np.int32)
    source[...] = 7
    target = dm.full(1000, 1, np.int32)
    slow = dm.stream(non_blocking=True)

    def work():
        global array, record, mapped, managed, stream, event, pending, node, source, target, slow, scope, held
        del array, record, mapped, managed, stream, event, pending, node, source, target, slow, scope, held
        gc.collect()

    with hold(slow):
        target.copy_to_device(source, stream=slow)
        in_child(work)
    slow.synchronize()
    assert np.all(target.copy_to_host() == 7)
    assert np.array_equal(node.array.copy_to_host(), np.arange(5))
    before = dm.memory_info().live
    assert before > 0
    report("parent goes on")
    """
    lines = run(AFTER_USE + textwrap.dedent(script), tmp_path)
    assert lines == ["child exited with 0", "parent goes on"]


@needs_fork
def test_the_end_of_a_hold_waits_for_nothing_in_the_child(tmp_path: Path) -> None:
    """The child leaves the block too, and what holds the stream, its timer and the stream's engine may be locked for good."""
    script = """
    slow = dm.stream(non_blocking=True)
    latch = hold(slow, patience=100)
    locks = [latch._lock, latch._timer.finished._cond, latch._driver._engine.lock]
    held, go_on = threading.Event(), threading.Event()
    def hold_all():
        for lock in locks:
            lock.acquire()
        held.set()
        go_on.wait()
        for lock in locks:
            lock.release()
    def call_past_the_library():
        latch._driver.enter()
        try:
            latch._driver.stream_synchronize(slow.handle)
        except dm.BackendError as error:
            assert "parent" in str(error), error
            report("refused")
    with latch:
        thread = threading.Thread(target=hold_all)
        thread.start()
        held.wait()
        in_child(call_past_the_library)
        go_on.set()
        thread.join()
    slow.synchronize()
    """
    assert run(AFTER_USE + textwrap.dedent(script), tmp_path) == ["refused", "child exited with 0"]


@needs_fork
def test_a_fork_while_another_thread_holds_every_lock(tmp_path: Path) -> None:
    """The child must not wait for any of them: no thread is left there to release them."""
    script = """
    dm.register(np.zeros(1000))
    # RLock and Lock are functions in older versions of Python.
    kinds = type(threading.Lock()), type(threading.RLock()), threading.Condition
    gc.collect()
    locks, seen = [], {}   # what was seen is kept, or a later object could have its id
    def find(holder, name=""):
        if id(holder) in seen:
            return
        seen[id(holder)] = holder
        if isinstance(holder, kinds):
            locks.append((name, holder))
        elif isinstance(holder, dict):
            for key, each in list(holder.items()):
                find(each, f"{name}.{key}")
        elif isinstance(holder, (list, tuple)):
            for each in holder:
                find(each, name)
        elif type(holder).__module__.partition(".")[0] == "devmem":
            find(getattr(holder, "__dict__", {}), name)
            for kind in type(holder).__mro__:
                for slot in getattr(kind, "__slots__", ()):
                    find(getattr(holder, slot, None), f"{name}.{slot}")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "devmem":
            find(vars(module), name)
    from devmem.toolkit.locks import known
    known = {each.name: each() for each in known if each.name in ("devices", "open device", "page locks")}
    assert len(known) == 3, known
    assert all(any(lock is each for _, each in locks) for lock in known.values()), (known, locks)

    held, go_on = threading.Event(), threading.Event()
    def hold_all():
        taken = [lock for _, lock in locks if lock.acquire(False)]   # idle workers are parked on some
        held.set()
        go_on.wait()
        for lock in taken:
            lock.release()
    thread = threading.Thread(target=hold_all)
    thread.start()
    held.wait()
    assert not any(lock.acquire(False) for lock in known.values())
    def work():
        refused({**old, **fresh})
        with dm.defer_cleanup():
            refused({"trim": dm.trim})
        dm.close()
        assert dm.backends() and dm.devices()
    in_child(work)
    go_on.set()
    thread.join()
    """
    assert run(AFTER_USE + textwrap.dedent(script), tmp_path) == ["child exited with 0"]


@needs_fork
def test_a_fork_in_the_middle_of_everything(tmp_path: Path) -> None:
    """Wherever other threads are at that moment, the child goes its way."""
    script = """
    stop = threading.Event()
    at_work = threading.Barrier(3)
    def busy():
        stream = dm.stream()
        at_work.wait()
        while not stop.is_set():
            dm.to_device(np.arange(1000), stream=stream).copy_to_host()
            with dm.pinned(registered):
                dm.trim()
    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    at_work.wait()
    for _ in range(5):
        in_child(lambda: refused({**old, **fresh}))
    stop.set()
    for thread in threads:
        thread.join()
    """
    lines = run(AFTER_USE + textwrap.dedent(script), tmp_path)
    assert lines == ["child exited with 0"] * 5


@needs_fork
def test_a_fork_before_the_first_use(tmp_path: Path) -> None:
    script = """
    dm.backends(), dm.devices(), dm.settings()
    def work():
        array = dm.to_device(np.arange(10))
        assert np.array_equal(array.copy_to_host(), np.arange(10))
        report("child works")
    in_child(work)
    assert np.array_equal(dm.to_device(np.arange(10)).copy_to_host(), np.arange(10))
    """
    assert run(IN_CHILD + textwrap.dedent(script), tmp_path) == ["child works", "child exited with 0"]


@needs_fork
def test_a_fork_after_a_close_leaves_the_memory_that_is_still_used_to_the_parent(tmp_path: Path) -> None:
    script = """
    from devmem._core.device.open_device import closing_drivers
    array = dm.pinned_array(10)
    dm.close()
    assert closing_drivers   # the driver, until the array is dropped
    def work():
        assert not closing_drivers
        array[:] = 5
    in_child(work)
    array[:] = 3
    """
    assert run(IN_CHILD + textwrap.dedent(script), tmp_path) == ["child exited with 0"]


@needs_fork
def test_the_grandchild_is_refused_too(tmp_path: Path) -> None:
    script = """
    in_child(lambda: in_child(lambda: refused({**old, **fresh})))
    """
    assert run(AFTER_USE + textwrap.dedent(script), tmp_path) == ["child exited with 0"] * 2


@needs_fork
def test_a_fork_while_cleanup_is_deferred_and_scopes_are_open(tmp_path: Path) -> None:
    script = """
    def work():
        refused(fresh)
    with dm.defer_cleanup(), dm.use_memory("driver"), stream, dm.device(1), dm.use_backend("host"):
        dm.to_device(np.arange(10))
        in_child(work)
    assert np.array_equal(array.copy_to_host(), np.arange(10))
    """
    assert run(AFTER_USE + textwrap.dedent(script), tmp_path) == ["child exited with 0"]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_workers_use_the_device(tmp_path: Path, method: str) -> None:
    script = f"""
    import multiprocessing

    def double(array):
        return dm.to_device(array).copy_to_host() * 2

    def doubled(array):   # pickled by way of the host
        return type(array).__name__, array.copy_to_host() * 2

    if __name__ == "__main__":
        here = dm.to_device(np.arange(10))
        context = multiprocessing.get_context({method!r})
        with context.Pool(2) as pool:
            for result in pool.map(double, [np.arange(10), np.ones((3, 4))]):
                report(str(result.sum()))
            report(str(pool.apply(doubled, [here])[1].sum()))
        assert np.array_equal(here.copy_to_host(), np.arange(10))
    """
    if method == "forkserver" and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    assert run(script, tmp_path) == ["90", "24.0", "90"]


# -- the interpreter's end ---------------------------------------------------------------------------------------------


def test_exit_with_everything_alive(tmp_path: Path) -> None:
    script = """
    stream, event = dm.stream(), dm.event()
    array = dm.to_device(np.arange(10), stream=stream)
    view = array[::2]
    pinned, mapped, managed = dm.pinned_array(10), dm.mapped_array(10), dm.managed_array(10)
    registered = dm.register(np.zeros(1 << 20))
    scope = dm.pinned(np.zeros(1 << 20))
    mapping = dm.mapped(np.zeros(1 << 20))
    event.record(stream)
    with dm.device(1):
        far = dm.to_device(np.arange(10))
    """
    assert run(script, tmp_path) == []


def test_exit_with_everything_in_cycles(tmp_path: Path) -> None:
    script = """
    class Node:
        def __init__(self, *what):
            self.what, self.me = what, self
    gc.disable()
    stream = dm.stream()
    array = dm.to_device(np.arange(10), stream=stream)
    Node(array, stream, dm.event(), dm.pinned_array(10), dm.mapped_array(10), dm.pinned(np.zeros(1000)))
    sys.kept = Node(dm.to_device(np.arange(10)), dm.stream())   # dies after the modules
    del stream, array
    """
    assert run(script, tmp_path) == []


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_exit_with_copies_held_back(tmp_path: Path, keep: bool) -> None:
    script = f"""
    stream = dm.stream()
    source, out = dm.pinned_array(1 << 20), dm.pinned_array(1 << 20)
    array = dm.device_array(1 << 20)
    latch = hold(stream, patience=100)
    latch.__enter__()
    array.copy_to_device(source, stream=stream)
    array.copy_to_host(out, stream=stream)
    late = dm.to_device(source, stream=stream)
    if not {keep}:
        del source, out, array, late, stream
        gc.collect()
    """
    assert run(script, tmp_path) == []


def test_exit_with_copies_running(tmp_path: Path) -> None:
    script = """
    streams = [dm.stream() for _ in range(4)]
    source = dm.pinned_array(1 << 22)
    arrays = [dm.to_device(source, stream=stream) for stream in streams for _ in range(4)]
    """
    assert run(script, tmp_path) == []


@pytest.mark.parametrize(
    "scope",
    [
        "dm.defer_cleanup()",
        "dm.stream()",
        "dm.stream().auto_synchronize()",
        "dm.device(1)",
        "dm.use_backend('host')",
        "dm.use_memory('driver')",
        "dm.select_device(1)",
        "dm.to_device(np.arange(10))",
        "dm.pinned(np.zeros(1000))",
        "dm.register(np.zeros(1000))",
        "dm.mapped(np.zeros(1000))",
    ],
)
@pytest.mark.parametrize("where", ["global", "cycle"])
def test_exit_in_a_scope_that_a_generator_holds_open(tmp_path: Path, scope: str, where: str) -> None:
    """The block is left when the generator is collected, which may be when modules and threads are gone."""
    script = f"""
    def inside():
        with {scope}:
            array = dm.to_device(np.arange(10))
            yield array
    generator = inside()
    next(generator).copy_to_host(stream=dm.stream())
    if {where == "cycle"}:
        class Node: pass
        sys.kept = node = Node()
        node.me, node.generator = node, generator
        del generator, node
    """
    assert run(script, tmp_path) == []


def test_exit_while_another_thread_is_at_work(tmp_path: Path) -> None:
    script = """
    started = threading.Event()
    def busy():
        stream = dm.stream()
        source = dm.pinned_array(100_000)
        while True:
            array = dm.to_device(source, stream=stream)
            array.copy_to_host(stream=stream)
            dm.to_device(np.arange(1000)).copy_to_host()
            started.set()
    # They are cut off by the end of the process, wherever they are, and print nothing.
    for _ in range(3):
        threading.Thread(target=busy, daemon=True).start()
    started.wait()
    """
    first = (
        "import atexit, time; atexit.register(time.sleep, 0.3)\n"  # behind devmem's own: the threads go on meanwhile
    )
    assert run(script, tmp_path, first=first) == []


def test_exit_from_within_defer_cleanup(tmp_path: Path) -> None:
    script = """
    with dm.defer_cleanup():
        for _ in range(30):
            dm.to_device(np.arange(1000))
        sys.exit(3)
    """
    assert run(script, tmp_path, code=3) == []


@pytest.mark.parametrize("scope", ["dm.stream()", "dm.mapped(np.zeros(1000))", "dm.to_device(np.arange(10))"])
def test_exit_from_within_a_scope(tmp_path: Path, scope: str) -> None:
    assert run(f"with {scope}:\n    kept = dm.to_device(np.arange(9))\n    sys.exit(4)\n", tmp_path, code=4) == []


def test_an_exception_at_the_end(tmp_path: Path) -> None:
    """Its traceback keeps arrays and streams alive until everything else is gone."""
    script = """
    def work():
        stream = dm.stream()
        array = dm.to_device(dm.pinned_array(100_000), stream=stream)
        with stream, dm.defer_cleanup(), dm.pinned(np.zeros(1000)):
            raise SystemExit(5)
    work()
    """
    assert run(script, tmp_path, code=5) == []


def test_a_traceback_is_the_only_thing_on_stderr(tmp_path: Path) -> None:
    script = """
    sys.excepthook = lambda kind, error, trace: sys.stderr.write("only this")
    array = dm.to_device(np.arange(10))
    with dm.stream() as stream:
        late = dm.to_device(dm.pinned_array(1000), stream=stream)
        raise RuntimeError
    """
    assert run(script, tmp_path, code=1, stderr="only this") == []


def test_devmem_still_works_in_the_handlers_of_atexit(tmp_path: Path) -> None:
    """Those that were registered after the first use run before its own."""
    script = """
    array = dm.to_device(np.arange(10))
    atexit.register(lambda: report(str(array.copy_to_host().sum())))
    """
    assert run(script, tmp_path) == ["45"]


#: A handler that was registered before devmem was imported, and so runs after devmem's own.
BEFORE = "import atexit\natexit.register(lambda: late())\n"


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "no new threads"])
def test_handlers_from_before_the_import_can_use_devices(tmp_path: Path, threads: bool) -> None:
    """They save results. From Python 3.12 on no thread can be started by then, so a stream may have none."""
    script = """
    def late():
        report(str(array.copy_to_host().sum()))
        fresh, event = dm.stream(), dm.event()
        copied = dm.to_device(pinned, stream=fresh)
        copied.copy_to_host(out, stream=fresh)
        event.record(fresh)
        while not event.query():
            pass
        report(str(out.sum()))
        stream.synchronize()
        report(str(pending.copy_to_host().sum()))
        with dm.defer_cleanup():
            report(str(dm.copy_async(np.arange(5), device=1).result().copy_to_host().sum()))
        dm.trim()
        dm.reset()
        report(str(dm.to_device([1, 2]).copy_to_host().sum()))
        dm.close()
        report(str(dm.to_device([3, 4]).copy_to_host().sum()))
    array, stream = dm.to_device(np.arange(10)), dm.stream()
    pinned, out = dm.pinned_array(1 << 20, np.uint8), dm.pinned_array(1 << 20, np.uint8)
    pinned[...] = 1
    pending = dm.to_device(pinned, stream=stream)
    """
    if not threads:
        script += """
    import importlib
    engine = importlib.import_module("devmem.backends.host.stream_engine")
    def refuse(*args):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    @atexit.register
    def first():
        engine.start_new_thread = threading._start_new_thread = refuse
    """
    assert run(script, tmp_path, first=BEFORE) == ["45", "1048576", "1048576", "10", "3", "7"]


def test_a_handler_from_before_the_import_waits_for_a_daemon_thread(tmp_path: Path) -> None:
    script = """
    def late():
        go_on.set()
        thread.join()
    def save():
        go_on.wait()
        report(str(array.copy_to_host().sum()))
    go_on, array = threading.Event(), dm.to_device(np.arange(10))
    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    """
    assert run(script, tmp_path, first=BEFORE) == ["45"]


def test_copies_of_a_handler_from_before_the_import_are_in_the_trace(tmp_path: Path) -> None:
    script = """
    def late():
        array.copy_to_host()
    array = dm.to_device(np.arange(10))
    """
    trace = tmp_path / "trace.json"
    assert run(script, tmp_path, first=BEFORE, DEVMEM_TRACE=str(trace)) == []
    names = [event["name"] for event in json.loads(trace.read_text() + "]")]
    assert [name[:3] for name in names if name[:3] in ("h2d", "d2h")] == ["h2d", "d2h"]


def test_a_device_opens_first_in_a_handler_from_before_the_import(tmp_path: Path) -> None:
    """Once the interpreter finalizes it is refused even so, as is one that was open before."""
    script = """
    class Late:
        def __init__(self, *calls):
            self.calls = calls
        def __del__(self, write=os.write, closed=dm.ClosedError):   # the names of modules may be gone
            for call in self.calls:
                try:
                    call()
                except closed as error:
                    write(1, b"refused: " + str(error).encode() + b"\\n")
    def late():
        global kept
        array = dm.to_device(np.arange(10), device=1)
        report(str(array.copy_to_host().sum()))
        kept = Late(array.copy_to_host, opened.copy_to_host, stream.synchronize, opened.free)
    opened, stream = dm.to_device(np.arange(3), device=0), dm.stream()
    """
    refused = "refused: no device can be used any more: the interpreter is exiting"
    assert run(script, tmp_path, first=BEFORE) == ["45"] + [refused] * 4


@pytest.mark.parametrize("how", ["dm.close()", "dm.reset()"])
def test_exit_after_the_end(tmp_path: Path, how: str) -> None:
    script = f"""
    stream, event = dm.stream(), dm.event()
    array = dm.to_device(np.arange(10), stream=stream)
    pinned, mapped = dm.pinned_array(10), dm.mapped_array(10)
    scope = dm.pinned(np.zeros(1000))
    {how}
    mapped[...] = pinned[...] = 1
    """
    assert run(script, tmp_path) == []


def test_exit_with_warnings_as_errors_and_a_sanitizing_allocator(tmp_path: Path) -> None:
    script = """
    import warnings
    warnings.simplefilter("error")
    arrays = [dm.to_device(np.arange(1000)) for _ in range(100)]
    streams = [dm.stream() for _ in range(10)]
    del arrays[::2]
    """
    assert run(script, tmp_path, PYTHONMALLOC="debug", PYTHONDEVMODE="1") == []
