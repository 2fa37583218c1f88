"""Limits of the tests: one setting makes all of them longer, and what a helper waits for ends before its test does."""

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waits import blocked, patience, together

TESTS = Path(__file__).parents[2]
#: Programs that run in processes of their own, which their tests bound; and the helper itself.
APART = ("peers/verbs", "peers/engines.py", "programs/drivers.py", "helpers/waits.py")
WAITS = {"wait", "join", "acquire", "communicate", "result", "get", "Barrier", "run", "runpytest_subprocess"}


def limits(tree):
    """The literal numbers that bound a wait, each with its line: at least five seconds, so that one is meant to end before it."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        given = [each.value for each in call.keywords if each.arg == "timeout"]
        if name in {"wait", "join"} and len(call.args) == 1:
            given.append(call.args[0])
        for value in given:
            if (
                name in WAITS
                and isinstance(value, ast.Constant)
                and type(value.value) in (int, float)
                and value.value > 5
            ):
                yield value.lineno, value.value


def negative(tree):
    """Lines that assert that something does not end, but not by `blocked`."""
    for node in ast.walk(tree):
        match node:
            case ast.Assert(
                test=ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Attribute(attr="wait"), args=[_]))
            ):
                yield node.lineno


@pytest.fixture(scope="module")
def sources():
    paths = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}
    return {
        name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items() if not name.startswith(APART)
    }


def test_limits_follow_the_one_setting(sources):
    found = [f"{name}:{line} waits {seconds} s" for name, tree in sources.items() for line, seconds in limits(tree)]
    assert found == [], "take them from waits.patience, so that a busy machine can raise them"


def test_what_must_not_go_on_is_asked_in_one_place(sources):
    found = [f"{name}:{line}" for name, tree in sources.items() for line in negative(tree)]
    assert found == [], "take waits.blocked"


def test_both_searches_find_what_they_look_for():
    tree = ast.parse("a.wait(100)\nrun(x, timeout=20)\nassert not b.wait(0.1)\nc.join(patience())\nd.join(0.1)")
    assert list(limits(tree)) == [(1, 100), (2, 20)]
    assert list(negative(tree)) == [3]


def test_functions_run_at_once_and_return_in_order():
    meet = threading.Barrier(3, timeout=patience())
    assert together(*(lambda number=number: (meet.wait(), number)[1] for number in range(3))) == [0, 1, 2]


def test_what_one_of_them_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        together(lambda: 1, lambda: 1 / 0)


def test_one_that_does_not_end_is_told():
    go = threading.Event()
    with pytest.raises(AssertionError, match=r"threads \[1\] of 2 have not ended after 0\.\d+ s"):
        together(int, go.wait, limit=0.2)
    go.set()


def test_what_goes_on_is_not_blocked():
    go = threading.Event()
    waiting = threading.Thread(target=go.wait)
    waiting.start()
    blocked(go)
    blocked(waiting)
    go.set()
    waiting.join(patience())
    for each in (go, waiting):
        with pytest.raises(AssertionError, match="it did not wait"):
            blocked(each)


SOURCE = """
import pytest
from waits import patience

@pytest.mark.timeout(20)
def test_of_its_own(request):
    assert request.node.get_closest_marker("timeout").args == (20 * 2.5,)
    assert patience(3) == 7.5

def test_usual(request):
    assert request.node.get_closest_marker("timeout").args == (10 * 2.5,)
"""


@pytest.mark.parametrize(("last", "told"), [(100, "2 passed"), (45, "may take 50 s, but the process ends after 45 s")])
def test_a_busy_machine_raises_the_limits_of_tests_too(tmp_path, last, told):
    """The file lies outside: what `tests/conftest.py` does to each test of the suite is done to its items here."""
    (tmp_path / "test_two.py").write_text(SOURCE)
    (tmp_path / "conftest.py").write_text(
        "def pytest_collection_modifyitems(items):\n"
        "    import importlib.util\n"
        f"    spec = importlib.util.spec_from_file_location('suite', {str(TESTS / 'conftest.py')!r})\n"
        "    suite = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(suite)\n"
        "    for item in items: suite.set_limit(item)\n"
    )
    options = [
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-o",
        "timeout=10",
        "-o",
        f"faulthandler_timeout={last}",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TEST_PATIENCE": "2.5",
            "PYTEST_ADDOPTS": "",
        },
        timeout=patience(),
        check=False,
    )
    assert told in run.stdout + run.stderr, run.stdout + run.stderr
