"""Kernels that go to another process: a worker that has the same program, and one that has another."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

import devmem as dm

pytest.importorskip("greenlet", reason="the simulator needs greenlet")
pytestmark = pytest.mark.timeout(280)

HOME = Path(dm.__file__).parents[1]
#: A folder with something for cloudpickle where that is not installed.
BY_VALUE = str(Path(__file__).parents[2] / "helpers" / "by_value")
IS_INSTALLED = importlib.util.find_spec("cloudpickle") is not None
needs_none = pytest.mark.skipif(IS_INSTALLED, reason="cloudpickle is installed")

PROGRAM = """
import copy, pickle, sys, threading
import numpy as np
import devmem as dm

OFFSET = 100.0

@dm.kernel(device=True)
def halved(n):
    return n if n < 2 else halved(n // 2)

@dm.kernel
def of_main(out):
    i = dm.grid(1)
    if i < out.size:
        out[i] = OFFSET + halved(4)

def made(factor):
    @dm.kernel("void(float64[::1])", debug=True)
    def closure(out):
        out[dm.grid(1)] = factor * OFFSET
    return closure

def told(error):
    print(f"{type(error).__name__}: {error}")
"""
SENDS = """
if __name__ == "__main__":
    closure = made(3.0)
    for kernel in of_main, closure, halved:
        again = [pickle.loads(pickle.dumps(kernel)) for _ in range(2)]
        assert again == [kernel, kernel]
        assert copy.deepcopy([kernel]) == [copy.copy(kernel)] == [kernel]
    objects = of_main[1, 4], closure[(2, 1), 2], of_main.forall(0), closure.forall(4, threads=4, dynamic_shared_bytes=8)
    {dump}
"""
RECEIVES = """
import pickle, sys
import numpy as np
import devmem as dm
{first}
sent = sys.stdin.buffer.read()
for each, again in zip(pickle.loads(sent), pickle.loads(sent)):
    assert each.kernel is again.kernel
    out = dm.zeros(4)
    each(out)
    print(each.kernel.__name__, each.kernel.signatures, each.kernel.options, out.tolist())
"""
GIVEN = [
    "of_main () {} [101.0, 101.0, 101.0, 101.0]",
    "closure ('void(float64[::1])',) {'debug': True} [300.0, 300.0, 300.0, 300.0]",
    "of_main () {} [0.0, 0.0, 0.0, 0.0]",
    "closure ('void(float64[::1])',) {'debug': True} [300.0, 300.0, 300.0, 300.0]",
]


def run(path: Path, script: str, given: bytes = b"", *, by_value: bool = True) -> bytes:
    """Run a script in a fresh interpreter, with cloudpickle or without."""
    path.write_text(script)
    folders = [str(HOME), *([BY_VALUE] if by_value and not IS_INSTALLED else [])]
    done = subprocess.run(
        [sys.executable, str(path)],
        input=given,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders), "DEVMEM_BACKEND": "host"},
        timeout=patience(250),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize(
    "dump",
    [
        "pickle.dump(objects, sys.stdout.buffer)",
        "import cloudpickle; sys.stdout.buffer.write(cloudpickle.dumps(objects))",
    ],
    ids=["pickle", "cloudpickle"],
)
def test_a_process_of_another_program_gets_them_by_value(tmp_path, dump):
    sent = run(tmp_path / "sends.py", PROGRAM + SENDS.format(dump=dump))
    assert run(tmp_path / "other.py", RECEIVES.format(first=""), sent).decode().splitlines() == GIVEN


def test_what_has_the_name_in_another_program_is_not_taken_for_it(tmp_path):
    sent = run(tmp_path / "sends.py", PROGRAM + SENDS.format(dump="pickle.dump(objects, sys.stdout.buffer)"))
    first = "@dm.kernel\ndef of_main(out):\n    out[0] = -1"
    assert run(tmp_path / "other.py", RECEIVES.format(first=first), sent).decode().splitlines() == GIVEN


@needs_none
def test_without_cloudpickle_the_processes_of_multiprocessing_have_them_by_name(tmp_path):
    main = """
    if __name__ == "__main__":
        import multiprocessing
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(worked, [of_main, of_main[2, 2]]))
        for each in made(3.0), made(3.0)[1, 1]:
            try:
                pickle.dumps(each)
            except pickle.PicklingError as error:
                told(error)
    """.replace("\n    ", "\n")
    work = """
def worked(given):
    out = dm.zeros(4)
    (given[1, 4] if given is of_main else given)(out)
    assert given in (of_main, getattr(given, "kernel", None) and given)
    return out.tolist()
"""
    results, *errors = run(tmp_path / "pool.py", PROGRAM + work + main, by_value=False).decode().splitlines()
    assert results == str([[101.0] * 4] * 2)
    told = (
        "PicklingError: <kernel made.<locals>.closure> cannot be pickled: no module has it under its name "
        "'made.<locals>.closure', so it goes by value, and that needs cloudpickle: pip install cloudpickle; or define it at "
        "the top of a module"
    )
    assert errors == [told, told]


@needs_none
def test_what_came_by_name_alone_is_missed_where_the_program_is_another(tmp_path):
    sent = run(tmp_path / "sends.py", PROGRAM + "pickle.dump(of_main, sys.stdout.buffer)", by_value=False)
    loads = """
try:
    pickle.load(sys.stdin.buffer)
except pickle.UnpicklingError as error:
    told(error)
"""
    told = run(tmp_path / "other.py", PROGRAM.replace("of_main", "renamed") + loads, sent, by_value=False).decode()
    assert told == (
        "UnpicklingError: __main__ of this process has no 'of_main' of the same code, and it came by name alone: where it was "
        "pickled, that needs cloudpickle: pip install cloudpickle\n"
    )


def test_what_cannot_be_pickled_by_value_either_says_why(tmp_path):
    main = """
lock = threading.Lock()
def holds():
    @dm.kernel
    def of_a_lock(out):
        out[0] = lock
    return of_a_lock
try:
    pickle.dumps(holds())
except pickle.PicklingError as error:
    told(error)
"""
    told = run(tmp_path / "lock.py", PROGRAM + main).decode()
    assert (
        "so it goes by value, and what it refers to cannot be pickled: TypeError: cannot pickle '_thread.lock' object"
        in told
    )


def test_a_launch_on_a_stream_stays_where_it_is(tmp_path):
    main = """
for launch in of_main[1, 4, dm.stream()], dropped_in[1, 4, cuda.stream()]:
    assert copy.copy(launch) is launch is copy.deepcopy(launch)
    try:
        pickle.dumps(launch)
    except TypeError as error:
        told(error)
"""
    told = run(tmp_path / "stream.py", PROGRAM + DROP_IN.format(extensions="") + main).decode().splitlines()
    assert len(told) == 2
    for each in told:
        assert "cannot be pickled: it is on <" in each
        assert each.endswith("send the kernel, and write kernel[grid, block, stream] where it is launched")


DROP_IN = """
from devmem.compat import numba_cuda as cuda

@cuda.jit({extensions})
def dropped_in(out, x):
    out[cuda.grid(1)] = x + OFFSET
"""


EXTENSION = """
class Adds:
    def prepare_args(self, ty, value, **rest):
        return ty, value + 6.0 if isinstance(value, float) else value
"""
DROP_IN_SENDS = """
launches = dropped_in[1, 4], dropped_in.forall(4, tpb=4), dropped_in.forall(0)
assert [pickle.loads(pickle.dumps(each)).dispatcher for each in launches] == [dropped_in] * 3
pickle.dump(launches, sys.stdout.buffer)
"""
DROP_IN_RECEIVES = """
import pickle, sys
import devmem as dm

for each in pickle.load(sys.stdin.buffer):
    out = dm.zeros(4)
    each(out, 1.0)
    print(out.tolist())
"""


def test_kernels_of_the_drop_in_go_with_their_extensions(tmp_path):
    (tmp_path / "extension.py").write_text(EXTENSION)
    program = PROGRAM + "import extension" + DROP_IN.format(extensions="extensions=[extension.Adds()]")
    sent = run(tmp_path / "sends.py", program + DROP_IN_SENDS)
    told = run(tmp_path / "other.py", DROP_IN_RECEIVES, sent).decode().splitlines()
    assert told == ["[107.0, 107.0, 107.0, 107.0]"] * 2 + ["[0.0, 0.0, 0.0, 0.0]"]
