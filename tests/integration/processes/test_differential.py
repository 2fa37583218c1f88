"""`scripts/campaign differential`: the same programs on two runtimes; a mistake in one is found, made small, and found again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import differential
import pytest
from waits import patience

HELPERS = Path(differential.__file__).parent
#: Wrong runtimes, and the most operations that a program needs to show what is wrong.
MISTAKES = {"WrongBytes": 4, "WrongError": 1, "Crash": 4}
IN_THE_GATE = "WrongBytes", "WrongError"


@pytest.fixture
def host():
    runtime = differential.Runtime("host", variables={"DEVMEM_BACKEND": "host"})
    runtime.begin()
    assert not runtime.absent
    yield runtime
    runtime.end()


@pytest.fixture
def wrong(request):
    command = [sys.executable, HELPERS / "wrong_runtime.py"]
    runtime = differential.Runtime("wrong", command, {"DEVMEM_BACKEND": "wrong", "WRONG": request.param})
    runtime.begin()
    assert not runtime.absent
    yield runtime
    runtime.end()


def first_difference(over, seeds):
    for seed in seeds:
        _, found = differential.compare(over, seed, differential.draw(seed))
        if found is not None:
            return seed, found
    return None, None


def test_runtimes_that_all_end_at_one_step_do_not_agree():
    """A mistake that ends the process may be in what all of them run."""
    over = [Ended("one"), Ended("other")]
    steps, found = differential.compare(over, 3, differential.draw(3))
    assert steps
    assert found is not None
    assert all(runtime.was_ended for runtime in over)


class Ended:
    """A runtime whose process ends at once."""

    can = frozenset()

    def __init__(self, name):
        self.name, self.was_ended = name, False

    def send(self, seed, steps):
        pass

    def answers(self, count):
        return [(differential.ENDED, "")]

    def end(self):
        self.was_ended = True


@pytest.mark.parametrize(
    ("wrong", "most"),
    [
        pytest.param(name, most, marks=() if name in IN_THE_GATE else pytest.mark.exhaustive)
        for name, most in MISTAKES.items()
    ],
    indirect=["wrong"],
)
def test_a_mistake_is_found_and_made_small(host, wrong, most):
    over = [host, wrong]
    seed, found = first_difference(over, range(200))
    assert found is not None
    smaller = differential.shrink(over, seed, found)
    assert len(smaller.operations) <= most, str(smaller)
    assert "wrong: " in str(smaller)
    _, again = differential.compare(over, seed, smaller.operations)
    assert again.given.keys() == smaller.given.keys()
    assert again.steps == smaller.steps


def test_a_runtime_does_not_differ_from_itself(host):
    other = differential.Runtime("again", variables={"DEVMEM_BACKEND": "host"})
    other.begin()
    try:
        assert first_difference([host, other], range(4)) == (None, None)
    finally:
        other.end()


def test_a_seed_is_always_the_same_program():
    can = frozenset({"pinned", "mapped"})
    first, second = (differential.Plan(differential.draw(5), can).steps for _ in range(2))
    assert first == second
    assert differential.draw(5) != differential.draw(6)
    every = {operation for seed in range(50) for operation, _ in differential.draw(seed)}
    assert every == set(differential.OPERATIONS_BY_NAME)


def test_the_script_tells_what_ran():
    command = [sys.executable, HELPERS / "differential.py", "--seed", "3", "--programs", "2", "--runtimes", "host,host"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 programs" in done.stdout
    assert "seeds 3 to 4" in done.stdout
    assert "differences: 0" in done.stdout
