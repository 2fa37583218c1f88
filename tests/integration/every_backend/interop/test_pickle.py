"""What belongs to one process says so when it is pickled or copied, and what to send instead."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")

MADE = {
    "stream": (dm.stream, "make one where it is used"),
    "event": (dm.event, "wait for it here"),
    "transfer": (lambda: dm.copy_async(np.arange(3.0)), "send what result"),
    "pool": (dm.memory.PoolMemory, "send the stack as text"),
    "limit": (lambda: dm.memory.Limit(None, "1MiB"), "send the stack as text"),
}
DUPLICATE = {
    "pickle": lambda made: pickle.dumps(made),
    "oldest pickle": lambda made: pickle.dumps(made, protocol=0),
    "copy": copy.copy,  # a second owner of one handle
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("how", DUPLICATE)
@pytest.mark.parametrize("what", MADE)
def test_what_belongs_to_a_process_is_neither_pickled_nor_copied(what, how):
    make, instead = MADE[what]
    made = make()
    with pytest.raises(TypeError, match=f"cannot be pickled or copied.*{instead}"):
        DUPLICATE[how](made)


def test_what_was_refused_works_on():
    stream = dm.stream()
    with pytest.raises(TypeError):
        copy.copy(stream)
    array = dm.to_device(np.arange(5), stream)
    assert array.copy_to_host().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("how", DUPLICATE)
def test_plain_memory_can_be_sent_until_it_has_a_device(how):
    resource = dm.memory.DriverMemory()
    DUPLICATE[how](resource)
    with dm.use_memory(resource), pytest.raises(TypeError, match=r"DriverMemory cannot be pickled or copied.*as text"):
        DUPLICATE[how](resource)
