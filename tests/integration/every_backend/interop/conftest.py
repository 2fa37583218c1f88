"""Starting the other process, for tests of memory that two use."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
from two_processes import THERE

import devmem as dm


@pytest.fixture
def shared(request, need):
    """Skips where memory cannot be shared; what is allocated in the test can be."""
    need("ipc")
    stack = getattr(request, "param", "driver")
    needed = {"stream_ordered": "pool_ipc", "virtual": "virtual"}
    if stack in needed:
        need(needed[stack])
    with dm.use_memory(stack):
        yield stack


@pytest.fixture
def there(python):
    """Run a script in another process, where ``given`` is what it was given; what it raises fails the test."""

    def run(script, given, **options):
        done = python(THERE.format(given=pickle.dumps(given).hex()) + script, **options)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture
def python_starts(device):
    """Start a script in a process, by another command if given; it is killed at the end."""
    started = []

    def start(script, inside=()):
        command = [*inside, sys.executable, "-c", script]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environment = os.environ | {"DEVMEM_BACKEND": device.backend}
        started.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()
