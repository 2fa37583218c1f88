"""Ending code that runs in another thread: it ends, and nothing is raised in that thread behind it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from waits import patience

from devmem.kernels.compilers.simulator.interrupts import Interrupted, Interrupts
from devmem.kernels.compilers.simulator.interrupts import _raise_in as raise_in
from devmem.spi.types import LEGACY_STREAM

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="Python 3.11 goes on looking for an exception that was raised in a traced thread"
)


class Runner(threading.Thread):
    """A thread that runs something inside, and something else behind it, so many times."""

    def __init__(self, interrupts: Interrupts, steps: int | None, times: int = 1) -> None:
        super().__init__(daemon=True)
        self.interrupts, self.steps, self.times = interrupts, steps, times
        self.begun, self.over = threading.Event(), threading.Event()
        self.ended = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self.times):
                try:
                    self.interrupts.run_interruptible(self.spin)
                except Interrupted:
                    self.ended += 1
                for _ in range(20):  # here it must not be raised
                    pass
        except BaseException as error:
            self.problem = error
        finally:
            self.over.set()

    def spin(self) -> None:
        self.begun.set()
        done = 0
        while self.steps is None or done < self.steps:
            done += 1


def test_a_loop_without_end_is_ended():
    interrupts = Interrupts(threading.RLock())
    runner = Runner(interrupts, None)
    runner.start()
    assert runner.begun.wait(patience())
    assert interrupts.interrupt_all(runner.over)
    assert runner.ended
    assert runner.problem is None


def test_nothing_begins_once_it_was_ended():
    interrupts, over = Interrupts(threading.RLock()), threading.Event()
    over.set()
    assert interrupts.interrupt_all(over)
    with pytest.raises(Interrupted):
        interrupts.run_interruptible(pytest.fail)


def test_what_it_raises_itself_comes_through():
    with pytest.raises(ZeroDivisionError):
        Interrupts(threading.RLock()).run_interruptible(divmod, 1, 0)


def test_what_does_not_let_itself_be_ended_is_told(monkeypatch):
    monkeypatch.setattr("devmem.kernels.compilers.simulator.interrupts.ATTEMPTS", 2)
    interrupts, go, over = Interrupts(threading.RLock()), threading.Event(), threading.Event()
    begun = threading.Event()

    def waits():
        begun.set()
        go.wait()  # in C: nothing is raised before it returns

    def run():
        try:
            interrupts.run_interruptible(waits)
        except Interrupted:
            over.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(patience())
    assert not interrupts.interrupt_all(over)
    go.set()
    thread.join(patience())
    assert over.is_set()


@pytest.mark.parametrize("times", [1, 3])
def test_one_that_is_told_while_it_leaves_has_left(times):
    class Striking(set):
        left = times

        def discard(self, thread):
            super().discard(thread)
            if self.left:
                self.left -= 1
                raise_in(thread, Interrupted)

    interrupts, ran = Interrupts(threading.RLock()), []
    interrupts._running = Striking()
    interrupts.run_interruptible(ran.append, 1)
    for _ in range(1000):  # time for what was not taken back
        pass
    assert (ran, interrupts._running.left) == ([1], 0)


def test_nothing_is_raised_behind_it(hasty, monkeypatch):
    # Told again and again, with no time between: while it is inside, and while it leaves.
    monkeypatch.setattr("devmem.kernels.compilers.simulator.interrupts.ATTEMPTS", 10_000_000)
    monkeypatch.setattr("devmem.kernels.compilers.simulator.interrupts.INTERVAL", 0)
    interrupts = Interrupts(threading.RLock())
    runner = Runner(interrupts, 3, times=20_000)
    runner.start()
    assert runner.begun.wait(patience())
    assert interrupts.interrupt_all(runner.over)
    runner.join(patience())
    assert runner.problem is None


@pytest.mark.parametrize("when", ["before", "while it runs", "behind"])
def test_who_interrupts_a_launch_is_told_where_it_was_if_it_was_anywhere(simulated, when):
    begun = threading.Event()

    def kernel():
        begun.set()
        while when == "while it runs":
            pass

    class Launcher:
        def launch_host_function(self, run, ranges, stream):
            if when == "before":
                assert run.interrupt() == ""
            thread = threading.Thread(target=run, args=([],))
            thread.start()
            if when == "while it runs":
                assert begun.wait(patience())
                assert "the launch was interrupted here" in run.interrupt()
            thread.join(patience())
            assert not thread.is_alive()
            assert run.interrupt() == ""

    compiled = simulated.prepare(kernel)
    compiled._launcher = Launcher()
    compiled.launch((1, 1, 1), (1, 1, 1), 0, LEGACY_STREAM, ())
    assert begun.is_set() == (when != "before")


LOOKED_FOR = """
import sys, threading
from devmem.kernels.compilers.simulator.interrupts import Interrupted, Interrupts

def run(end, times):
    interrupts, begun, over = Interrupts(threading.RLock()), threading.Event(), threading.Event()
    def spin():
        begun.set()
        while end:
            pass
    def body():
        for _ in range(times):
            try:
                interrupts.run_interruptible(spin)
            except Interrupted:
                pass
        over.set()
    thread = threading.Thread(target=body)
    thread.start()
    begun.wait()
    if end:
        interrupts.interrupt_all(over)
    thread.join()

for end in (False, True):
    for times in (1, 3):
        run(end, times)
sys.settrace(lambda frame, event, arg: None)
print(sorted([3, 1, 2], key=lambda each: -each))
"""


def test_the_interpreter_does_not_go_on_looking_for_it():
    """Python 3.11 would hang in the first function that a debugger, or a coverage tool, traces."""
    done = subprocess.run(
        [sys.executable, "-c", LOOKED_FOR], capture_output=True, text=True, timeout=patience(140), check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[3, 2, 1]\n", "")
