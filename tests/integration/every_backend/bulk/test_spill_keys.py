"""`devmem.spill.Store`: functions of the program that it calls, and claims of calls that an interrupt has ended."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from waits import together

import devmem as dm
from devmem._core.base import changes
from devmem._core.bulk.spill import store as module
from devmem.spill import Store

HOST = np.arange(3000)


def books(store):
    stats = store.stats()
    return [sum(stats[tier][what] for tier in ("device", "host", "disk")) for what in ("count", "bytes")]


def test_another_thread_may_use_the_store_while_the_program_measures_a_value(tidy, device):
    used = []

    def sizeof(value):
        used.extend(together(store.stats))
        return 8

    with Store(sizeof=sizeof) as store:
        store["a"] = dm.to_device(HOST), "a word"
        assert used
        assert store.spill() == HOST.nbytes
        assert store.stats()["host"]["bytes"] == HOST.nbytes + 8
        array, word = store["a"]
        assert np.array_equal(array.copy_to_host(), HOST)
        assert word == "a word"


class Key:
    """Hashed by Python: an interrupt may come there."""

    left = 0

    def __hash__(self):
        Key.left -= 1
        if Key.left == 0:
            raise KeyboardInterrupt
        return 7


@pytest.mark.parametrize("verb", ["put in", "replace", "remove", "ask"])
def test_an_interrupt_in_a_keys_own_hash_leaves_the_books_right(verb, tidy, device):
    number, done = 0, False
    while not done:
        number, key = number + 1, Key()
        with Store() as store:
            if verb != "put in":
                store[key] = dm.to_device(HOST)
            Key.left = number
            try:
                if verb == "remove":
                    del store[key]
                elif verb == "ask":
                    store[key]
                else:
                    store[key] = dm.to_device(HOST)
                done = True
            except KeyboardInterrupt:
                pass
            Key.left = 0
            assert books(store) == [len(store), len(store) * HOST.nbytes], number
    assert number > 2


@pytest.mark.own_thread
@pytest.mark.parametrize("verb", ["ask", "spill"])
def test_an_error_that_the_program_keeps_claims_no_key(verb, at_point, tidy, device):
    number, left = 0, 0
    while left <= 0:
        number, kept = number + 1, []
        with Store() as store:
            store["a"] = dm.to_device(HOST)
            if verb == "ask":
                store.spill()
            with at_point(number, lambda code: code.co_filename in (module.__file__, changes.__file__)) as point:
                try:
                    store["a"] if verb == "ask" else store.spill()
                except KeyboardInterrupt as error:
                    kept.append(error)
            left = point.left
            sys.settrace(None)
            assert np.array_equal(store["a"].copy_to_host(), HOST), point.where
    assert number > 20
