"""The faults B1 to B8 of the API that devmem descends from (see the research notes): none of them may exist here.

B3, B4, B6 and B8 have more tests beside the verbs that they are about: ``test_host_visible``, ``test_memory`` and
``test_streams``.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import devmem as dm
from devmem.spi.types import AllocFlags

pytestmark = pytest.mark.usefixtures("tidy")


def test_b1_pickling_depends_on_no_field_of_a_vendors_struct(python):
    """numba.cuda: pickling through an IPC handle broke when the bindings renamed a field. Ours goes by value."""
    text = pickle.dumps(dm.to_device(np.arange(6.0).reshape(2, 3)[:, ::2]))
    assert pickle.loads(text).tolist() == [[0, 2], [3, 5]]
    done = python(f"import pickle; print(pickle.loads({text!r}).tolist())")
    assert done.stdout.strip() == "[[0.0, 2.0], [3.0, 5.0]]", done.stderr


def test_b2_every_public_method_of_a_stream_works():
    """numba.cuda: add_callback and async_done raised AttributeError, unnoticed."""
    s = dm.stream()
    calls = {
        "synchronize": s.synchronize,
        "query": s.query,
        "wait": lambda: s.wait(s.record()),
        "record": s.record,
        "add_callback": lambda: s.add_callback(lambda error: None),
        "auto_synchronize": lambda: s.auto_synchronize().__enter__(),
        "close": s.close,
    }
    documented = {
        name for name, value in vars(dm.Stream).items() if name[0] != "_" and callable(value) and value.__doc__
    }
    assert set(calls) <= documented
    assert "async_done" not in dir(s)
    for call in calls.values():
        call()


def test_b3_flags_of_mapped_arrays_reach_the_driver(recorded, need_kind):
    """numba.cuda: portable= and wc= were accepted and dropped."""
    need_kind("mapped")
    dm.mapped_array(8, portable=True, wc=True)
    flags = recorded.named("alloc")[-1].args[3]
    assert flags & AllocFlags.PORTABLE
    assert flags & AllocFlags.WRITE_COMBINED


@pytest.mark.parametrize("name", ["mapped", "managed"])
def test_b4_mapped_and_managed_arrays_have_their_methods_and_their_address(need_kind, name):
    """numba.cuda: the documented methods raised AttributeError, and slices had a null pointer."""
    need_kind(name)
    a = {"mapped": dm.mapped_array, "managed": dm.managed_array}[name]((3, 4))
    a.copy_to_device(np.ones((3, 4)))
    assert a.copy_to_host().sum() == 12
    assert a.squeeze().ptr == a.ptr != 0
    assert a[1:].ptr == a.ptr + 32
    assert a.reshape(12)[5:].ptr == a.ptr + 40
    with pytest.raises(dm.LayoutError):
        (a + a).ptr  # noqa: B018


def test_b5_a_strided_destination_keeps_its_gaps():
    """numba.cuda (numba #3553): a 3x2 view of a 3x8 array had 18 elements touched instead of 6."""
    d = dm.to_device(np.arange(6.0).reshape(3, 2))
    big = np.full((3, 8), -1.0)
    d.copy_to_host(big[:, :2])
    assert (big != -1).sum() == 6
    assert big[:, :2].tolist() == [[0, 1], [2, 3], [4, 5]]
    for view in (big[:, ::4], big[::-1, 3:5], big.T[1:3].T):
        big[...] = -1
        d.copy_to_host(view)
        assert (big != -1).sum() == 6


def test_b6_nothing_goes_past_the_memory_resource():
    """numba.cuda: implicit transfers allocated beside the memory manager, and beside the queue."""
    asked = []

    class Recording:
        def bind(self, driver):
            self.driver = driver

        def allocate(self, nbytes, stream):
            asked.append(nbytes)
            return self.driver.alloc(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            self.driver.free(ptr, nbytes, stream)

    with dm.use_memory(Recording()):
        d = dm.to_device(np.arange(8.0))
        d[1:] = d[:-1]
        d[::2] = np.arange(4.0)
        d[...] = dm.to_device(np.arange(8, dtype="f4"))
        d.free()
    assert asked[0] == 64
    assert all(0 < nbytes <= 64 for nbytes in asked)


def test_b7_the_default_stream_has_a_handle_that_may_be_exported():
    """numba.cuda: arrays on the default stream exported stream 0, which the protocol forbids; records lost their fields."""
    assert dm.default_stream().handle in (1, 2)
    assert dm.legacy_default_stream().handle == 1
    host = np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")])
    d = dm.to_device(host)
    for view in (d, d[::-1], d[None, 0], d.copy(), d.reshape(1, 1), d.bind(dm.default_stream())):
        assert view.dtype == host.dtype
        assert view.copy_to_host().dtype.names == ("a", "b")


def test_b8_scopes_clean_up_when_their_body_raises(need):
    """numba.cuda: auto_synchronize did not synchronize, and pinned() was left locked."""
    s = dm.stream()
    with pytest.raises(ZeroDivisionError), s.auto_synchronize():
        dm.zeros(1000).fill(1.0, stream=s)
        raise ZeroDivisionError
    assert s.query()
    need("host_register")
    a = np.zeros(1000)
    with pytest.raises(ZeroDivisionError), dm.pinned(a):
        raise ZeroDivisionError
    with pytest.raises(dm.DevmemError, match="not registered"):
        dm.deregister(a)
