"""Errors that are put aside: what is raised of them, and that nothing stays alive for them."""

from __future__ import annotations

import ast
import gc
import pickle
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from devmem._core.copy.staging.workers import CopyWorkers
from devmem._core.telemetry.log import Log
from devmem.backends.host.hooks import HostBackend
from devmem.memory import Guard, PinnedPool, PoolMemory
from devmem.spi.errors import BackendError, BackendUnavailable, DevmemError, OutOfMemory
from devmem.spi.types import LEGACY_STREAM
from devmem.testing.stream_hold import entered
from devmem.toolkit.deferred_errors import FirstError, fresh_copy

PACKAGE = Path(__file__).parents[3] / "devmem"


class Mine:
    """Something that a caller has in a variable."""


def kept_by(call: Callable[[], object], *kinds: type[BaseException]) -> bool:
    """Whether a call that fails keeps what its callers have, once its error is dropped, until a collection."""

    def caller() -> weakref.ref[Mine]:
        mine = Mine()
        with pytest.raises(kinds or BackendError):
            call()
        return weakref.ref(mine)

    gc.collect()
    gc.disable()
    try:
        return caller()() is not None
    finally:
        gc.enable()


def fail(number: int) -> None:
    raise BackendError(f"step {number}", code=number)


def three_steps(kind: type[BaseException] = DevmemError) -> None:
    with FirstError() as first:
        for number in range(3):
            try:
                fail(number)
            except kind as error:
                first.put(error)


# -- the first of several ----------------------------------------------------------------------------------------------


def test_the_first_error_is_raised_when_all_is_done():
    done, around = [], sys.exception()
    with pytest.raises(BackendError, match="step 1") as raised, FirstError() as first:
        for number in range(4):
            try:
                done.append(number)
                if number:
                    fail(number)
            except DevmemError as error:
                first.put(error)
                assert isinstance(first.error, BackendError)
                assert first.error.code == 1
    assert done == [0, 1, 2, 3]
    assert raised.value.__context__ is around
    assert first.error is None


def test_nothing_is_raised_where_nothing_failed():
    with FirstError() as first:
        pass
    assert first.error is None


def test_a_block_that_is_left_by_another_error_is_left_by_that():
    with pytest.raises(ZeroDivisionError), FirstError() as first:
        first.put(ValueError())
        _ = 1 / 0
    assert first.error is None


@pytest.mark.parametrize(
    "errors", [[ValueError(), KeyboardInterrupt(), SystemExit()], [KeyboardInterrupt(), ValueError()]]
)
def test_an_interrupt_goes_before_any_error(errors):
    with pytest.raises(KeyboardInterrupt), FirstError() as first:
        for error in errors:
            first.put(error)


def leave_otherwise() -> None:
    with FirstError() as first:
        try:
            fail(0)
        except DevmemError as error:
            first.put(error)
        raise KeyboardInterrupt


@pytest.mark.parametrize("call", [three_steps, leave_otherwise])
def test_what_was_put_aside_keeps_nothing(call):
    assert not kept_by(call, BackendError, KeyboardInterrupt)


def test_the_check_for_what_is_kept_can_fail():
    def call() -> None:
        try:
            fail(0)
        except DevmemError as error:
            kept = error
        raise kept

    assert kept_by(call)
    gc.collect()


# -- once more ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemory("it does not fit", backend="x", call="f", code=2, name="NO"),
        BackendUnavailable("no such backend"),
        OSError(28, "the disk is full", "a.npy"),
        UnicodeDecodeError("utf8", b"\xff", 0, 1, "no"),
        ValueError("one", 2),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_copy_of_an_error_says_the_same(error):
    error.add_note("seen twice")
    error.__cause__ = KeyError("why")
    with pytest.raises(type(error)):
        raise error
    made = fresh_copy(error)
    assert made is not error
    assert (type(made), str(made), made.args) == (type(error), str(error), error.args)
    assert (repr(made.__cause__), made.__suppress_context__, made.__traceback__) == ("KeyError('why')", True, None)
    assert {name: value for name, value in vars(made).items() if name != "__notes__"} == {
        name: value for name, value in vars(error).items() if name != "__notes__"
    }
    made.add_note("a third time")
    assert error.__notes__ == ["seen twice"]


def fail_for_a_reason() -> None:
    try:
        _ = 1 // 0
    except ZeroDivisionError as error:
        raise BackendError("it fails") from error


def test_a_copy_keeps_nothing_for_its_cause_either():
    kept = []

    def call() -> None:
        try:
            fail_for_a_reason()
        except BackendError as error:
            kept.append(fresh_copy(error))
            raise

    assert not kept_by(call)
    assert isinstance(kept[0].__cause__, ZeroDivisionError)


def test_an_error_that_is_its_own_cause_can_be_raised_once_more():
    error = BackendError("it fails")
    error.__cause__ = error
    assert fresh_copy(error).__cause__ is error


class Detailed(BackendError):
    """Of a plugin's: it has more to say."""

    advice: str


@pytest.mark.parametrize(
    "copied", [fresh_copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["fresh_copy", "pickled"]
)
def test_what_else_an_error_has_is_copied(copied):
    error = Detailed("it fails", code=3)
    error.advice = "do not"
    made = copied(error)
    assert (made.advice, made.code, str(made)) == ("do not", 3, "it fails")


class Wordy(Exception):
    """Its constructor takes something else than what it keeps."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"{subject} is wrong")


class Stubborn(Exception):
    """Cannot be copied at all."""

    def __init__(self, subject: str, verb: str) -> None:
        super().__init__(f"{subject} {verb}")


def test_an_error_of_any_class_can_be_raised_once_more():
    assert str(fresh_copy(Wordy("it"))) == "it is wrong"
    error = Stubborn("it", "fails")
    with pytest.raises(Stubborn):
        raise error
    assert fresh_copy(error) is error
    assert error.__traceback__ is None


# -- who puts errors aside ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [PoolMemory, PinnedPool, lambda: Guard(quarantine_bytes=1 << 20)])
def test_memory_that_cannot_be_given_back(driver, make):
    stack = make()
    stack.bind(driver)
    blocks = [stack.allocate(1 << 18, LEGACY_STREAM) for _ in range(2)]
    for ptr in blocks:
        stack.deallocate(ptr, 1 << 18, LEGACY_STREAM)
    driver.fail_at(1, "free", repeat=True)
    assert not kept_by(lambda: stack.trim(0))


@pytest.mark.parametrize("wrong", [False, True])
def test_a_guard_that_cannot_give_back(driver, wrong):
    guard = Guard(quarantine_bytes=0)
    guard.bind(driver)

    def call() -> None:
        ptr = guard.allocate(1000, LEGACY_STREAM)
        if wrong:
            driver.fill(ptr + 1000, 7, 1, 1, LEGACY_STREAM)
        driver.fail_at(1, "free")
        guard.deallocate(ptr, 1000, LEGACY_STREAM)

    assert not kept_by(call, DevmemError)


def test_events_of_a_pool_that_cannot_be_destroyed(driver):
    pool = PoolMemory()
    pool.bind(driver)
    events = pool._reuse.events
    recorded = [events.record(LEGACY_STREAM) for _ in range(3)]
    recorded.clear()  # an event to which nothing refers is spare
    assert len(events.passed) == 3
    driver.fail_at(1, "event_destroy", repeat=True)
    assert not kept_by(events.drop_spare)
    assert not events.passed


def test_a_log_that_cannot_be_written_to(driver, tmp_path, monkeypatch):
    log = Log(path=str(tmp_path / "log"))
    log.bind(driver)
    monkeypatch.setattr("devmem._core.telemetry.log.os.write", lambda *_: fail_to_write())
    ends = []

    def call() -> None:
        with pytest.warns(match="the disk is full"):
            ends.append(log.allocate(100, LEGACY_STREAM))
        fail(0)

    assert not kept_by(call)
    log.deallocate(ends[0], 100, LEGACY_STREAM)


def fail_to_write() -> None:
    raise OSError(28, "the disk is full")


@pytest.mark.parametrize("interrupted", [False, True])
def test_steps_that_fail(monkeypatch, interrupted):
    workers = CopyWorkers(2, None)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if interrupted:
        monkeypatch.setattr("devmem._core.copy.staging.workers._Job.wait", interrupt)
        monkeypatch.setattr("devmem._core.copy.staging.workers._Job.stop", lambda job: None)
    try:
        assert not kept_by(lambda: workers.run([lambda: fail(0)] * 3), BackendError, KeyboardInterrupt)
    finally:
        workers.close()


def test_memory_of_a_device_that_is_open_twice(driver):
    """Whose it is is found out by asking each."""
    backend = HostBackend()
    backend.configure({"strict": True, "devices": 1})
    other = backend.open(0)
    blocks = []
    for owner in (driver, other, driver):
        with entered(owner):
            blocks.append((owner, owner.alloc(100, LEGACY_STREAM)))
    there = blocks.pop()

    def call() -> None:
        for _, ptr in blocks:
            driver.copy_peer(there[1], 0, ptr, 0, 100, LEGACY_STREAM, blocking=True)
        fail(0)

    try:
        assert not kept_by(call)
    finally:
        for owner, ptr in [*blocks, there]:
            with entered(owner):
                owner.free(ptr, 100, LEGACY_STREAM)
        other.close()


# -- all of the source -------------------------------------------------------------------------------------------------


def keepers(source: str) -> list[int]:
    """The lines that keep an error where its own traceback leads.

    ``raise name``, unless ``finally`` deletes the name; ``raise self.name``; and what puts the name that an ``except`` gave under
    another, or into a list, unless it is a copy or without its traceback.
    """
    tree = ast.parse(source)
    freed = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Try) for inner in _freed(node)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and id(node) not in freed and _is_kept(node.exc):
            found.add(node.lineno)
        elif isinstance(node, ast.ExceptHandler):
            found |= {
                inner.lineno for inner in ast.walk(node) if isinstance(inner, ast.stmt) and _puts(inner, node.name)
            }
    return sorted(found)


def _freed(node: ast.Try) -> list[ast.stmt]:
    """What is raised of variables that are deleted on the way out."""
    deleted = {ast.unparse(each) for last in node.finalbody if isinstance(last, ast.Delete) for each in last.targets}
    return [
        inner for inner in node.body if isinstance(inner, ast.Raise) and inner.exc and ast.unparse(inner.exc) in deleted
    ]


def _puts(node: ast.stmt, name: str | None) -> bool:
    """Whether a line puts what the name stands for anywhere."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "append":
        [value] = value.args
    values = value.values if isinstance(value, ast.BoolOp) else [value]
    return any(isinstance(each, ast.Name) and each.id == name for each in values)


def _is_kept(raised: ast.expr | None) -> bool:
    """Whether it is a variable: not a class, and not what a call has just returned."""
    if isinstance(raised, ast.Call) and isinstance(raised.func, ast.Attribute) and raised.func.attr == "with_traceback":
        raised = raised.func.value
    if isinstance(raised, ast.Attribute):
        return raised.attr.islower()
    return isinstance(raised, ast.Subscript) or (isinstance(raised, ast.Name) and raised.id.islower())


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("raise problem", [1]),
        ("raise self._problem", [1]),
        ("raise problems[0]", [1]),
        ("raise problem from None", [1]),
        ("raise self.lost.with_traceback(None)", [1]),
        ("try:\n raise problem\nfinally:\n del problem", []),
        ("try:\n raise problem\nfinally:\n del other", [2]),
        ("try:\n f()\nexcept E as error:\n kept = error", [4]),
        ("try:\n f()\nexcept E as error:\n kept = kept or error", [4]),
        ("try:\n f()\nexcept E as error:\n self.kept = error", [4]),
        ("try:\n f()\nexcept E as error:\n errors.append(error)", [4]),
        ("try:\n f()\nexcept E as error:\n kept = fresh_copy(error)\n raise", []),
        ("raise ValueError\nraise ValueError(problem)\nraise errors.Problem\nraise fresh_copy(problem)\nraise", []),
    ],
)
def test_a_line_that_keeps_an_error_is_found(source, lines):
    assert keepers(source) == lines


#: Lines that are let be, and why.
FINE = {
    "raise error.with_traceback(None) from error.__cause__": "in the `except` that gave the name, which ends with it",
    "self._error = error": "on a worker's thread, of a test; who joins it takes the error out",
    "self._failures[-1 if at is None else at] = error": "the launch forgets them when one is raised",
    "self.errors.append(error)": "a call of the user's on the thread of an OpenCL queue: the next wait takes it out",
    "self._failures[-1] = error": "the same, of blocks that wait for each other",
}


def test_no_handler_in_the_package_keeps_an_error():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        found |= {f"{path.relative_to(PACKAGE)}:{number}": lines[number - 1].strip() for number in keepers(source)}
    assert {where: line for where, line in found.items() if line not in FINE} == {}
    assert FINE.keys() <= set(found.values())
