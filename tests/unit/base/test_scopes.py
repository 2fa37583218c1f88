"""Variables of scopes: in this thread or task, whatever the interpreter hands on to the threads that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextvars import ContextVar, copy_context
from itertools import permutations
from pathlib import Path
from weakref import ref

import pytest
from waits import patience, together

from devmem._core.base.scopes import Deferral, OwnThreadVariable, ScopeVariable

ROOT = Path(__file__).parents[3]


class Started(threading.Thread):
    """A thread that is started with a copy of its starter's context, as threads are where they inherit it."""

    def __init__(self, target):
        super().__init__(target=target)
        self._context = copy_context()
        self.found = []

    def run(self):
        if sys.version_info >= (3, 14):  # which has run this in the context
            self.found.append(self._target())
        else:
            self.found.append(self._context.run(self._target))


def seen_by(target):
    thread = Started(target)
    thread.start()
    thread.join(patience())
    return thread.found[0]


@pytest.fixture
def variable():
    made = OwnThreadVariable("of_a_test", "nothing")
    yield made
    made.set("nothing")


def test_a_new_thread_inherits_nothing(variable):
    variable.set("ours")
    assert seen_by(variable.get) == "nothing"
    assert variable.get() == "ours"


def test_a_new_thread_has_a_value_of_its_own(variable):
    variable.set("ours")

    def own():
        variable.set("its own")
        return variable.get(), copy_context().run(variable.get)

    assert seen_by(own) == ("its own", "its own")
    assert variable.get() == "ours"


def test_a_copied_context_brings_its_values_along(variable):
    """As `asyncio.to_thread` and `devmem.prefetch` do, on threads that were started before or in the scope."""
    variable.set("ours")
    copied = copy_context()
    assert seen_by(lambda: copied.run(variable.get)) == "ours"
    assert together(lambda: copied.run(variable.get)) == ["ours"]


def test_a_task_changes_its_own(variable):
    variable.set("ours")
    copy_context().run(variable.set, "the task's")
    assert variable.get() == "ours"


INHERITED = """
import threading, devmem as dm
def look():
    return dm.current_device() == device, device.opened().memory.stacks.current_heap().resource is counts
found, device = [], dm.device("host:1")
with device, dm.stream(), dm.use_memory(dm.memory.Statistics()) as counts:
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.start()
    thread.join()
    print(look(), *found)
"""


@pytest.mark.skipif(not hasattr(sys.flags, "thread_inherit_context"), reason="no thread of this Python inherits scopes")
def test_no_scope_reaches_a_thread_that_inherits_its_context():
    command = [sys.executable, "-X", "thread_inherit_context=1", "-c", INHERITED]
    environment = os.environ | {"DEVMEM_BACKEND": "host"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.stdout == "(True, True) (False, False)\n", done.stderr


def test_the_child_of_a_fork_has_no_blocks_of_its_parent():
    deferral = Deferral()
    deferral.depth = 2
    deferral.reset()
    assert deferral.depth == 0


@pytest.fixture(params=[ContextVar, OwnThreadVariable])
def scopes(request, monkeypatch):
    """A variable of scopes, of either kind of variable of contexts."""
    made = {
        ContextVar: lambda name: ContextVar(name, default=None),
        OwnThreadVariable: lambda name: request.param(name, None),
    }
    monkeypatch.setattr("devmem._core.base.scopes._of_context", made[request.param])
    return ScopeVariable("of_a_test", "nothing")


def test_a_block_ends_in_its_own_thread_where_another_has_left_it(scopes):
    outer, inner = scopes.enter("outer"), scopes.enter("inner")
    seen_by(lambda: scopes.leave(outer))
    assert list(scopes.values()) == ["inner"]
    scopes.leave(inner)
    assert scopes.get() == "nothing"


def test_a_thread_has_choices_and_blocks_of_its_own(scopes):
    scopes.choose("chosen")
    with_block = scopes.enter("block")

    def own():
        taken_back = scopes.choose("its own")
        block = scopes.enter("its block")
        inside = scopes.get()
        scopes.leave(block)
        outside = scopes.get()
        taken_back()
        return inside, outside

    if isinstance(scopes.blocks, OwnThreadVariable):  # else only where the thread does not inherit its context
        assert seen_by(own) == ("its block", "its own")
    assert scopes.get() == "block"
    scopes.leave(with_block)
    assert scopes.get() == "chosen"


def test_many_choices_and_blocks_leave_nothing_behind(scopes):
    for number in range(100):
        block = scopes.enter("block")
        for _ in range(number):
            scopes.choose(number)
        scopes.enter_value("entered")
        scopes.leave_value("entered")
        scopes.leave(block)
    assert scopes.blocks.get() is None
    assert scopes._seats == scopes._left == []


@pytest.mark.parametrize("order", list(permutations(range(4))))
@pytest.mark.parametrize("in_block", [False, True])
def test_choices_are_taken_back_in_any_order(scopes, order, in_block):
    """The latest one that nobody has taken back holds; in the end, what held before all of them."""
    block = scopes.enter("block") if in_block else None
    undos = {number: scopes.choose(number) for number in range(4)}
    for number in order:
        undos.pop(number)()
        assert scopes.get() == (max(undos) if undos else "block" if in_block else "nothing")
    if block is not None:
        scopes.leave(block)
    assert scopes.get() == "nothing"


def test_a_choice_that_nobody_can_take_back_stays_under_the_others(scopes):
    first = scopes.choose("first")
    scopes.choose("for good")
    last = scopes.choose("last")
    first()
    last()
    assert scopes.get() == "for good"


def test_choices_keep_those_alone_that_can_come_back(scopes):
    class Value:
        pass

    gone = []
    undo = scopes.choose(Value())
    for _ in range(100):  # each begins before the one before it ends
        gone.append(ref(scopes.get()))
        following = scopes.choose(Value())
        undo()
        undo = following
    for _ in range(100):  # for good
        gone.append(ref(scopes.get()))
        scopes.choose(Value())
    del undo, following
    assert not any(each() for each in gone)
