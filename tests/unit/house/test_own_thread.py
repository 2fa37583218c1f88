"""A test that is marked with own_thread ends with its time limit: what it has replaced would meet all later tests."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
SOURCE = """
import threading, time, pytest

@pytest.mark.own_thread
@pytest.mark.timeout(1)
def test_first():
    while True:
        time.sleep(0.01)

def test_second():
    assert threading.active_count() == 1
"""


def test_the_thread_of_a_test_ends_with_its_time_limit(tmp_path):
    (tmp_path / "test_two.py").write_text(SOURCE)
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", f"--confcutdir={tmp_path}", "-p", "conftest"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}:{TESTS / 'helpers'}"}
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert "1 failed, 1 passed" in told.stdout, told.stdout + told.stderr
