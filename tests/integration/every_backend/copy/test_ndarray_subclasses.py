"""Subclasses of ndarray that say what is not so of their memory: what NumPy has is believed, no byte beside it is touched."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")

N = 4096  # elements; those of the subclass are the first 16 of them
OURS = 16


class Boasting(np.ndarray):
    """Says that it has all the elements, where it has the first sixteen."""

    shape = property(lambda self: (N,))
    size = property(lambda self: N)
    nbytes = property(lambda self: N * self.itemsize)
    strides = property(lambda self: (self.itemsize,))


class Writable(np.ndarray):
    """Says that it can be written to."""

    @property
    def flags(self):
        return np.empty(self.shape, self.dtype).flags


@pytest.fixture
def room():
    return np.full(N, -1, "i4")


@pytest.fixture
def boasting(room):
    return room[:OURS].view(Boasting)


def untouched(room):
    return bool((np.asarray(room) == -1).all())


def into_copy_to_host(d, out):
    d.copy_to_host(out)


def into_copy_to_host_on_a_stream(d, out):
    with dm.stream() as stream:
        d.copy_to_host(out, stream=stream)
        stream.synchronize()


def into_copy_async(d, out):
    dm.copy_async(d, out).wait()


def into_gather(d, out):
    dm.gather([d[: N // 2], d[N // 2 :]], out=out)


WAYS = [into_copy_to_host, into_copy_to_host_on_a_stream, into_copy_async, into_gather]


@pytest.mark.parametrize("way", WAYS)
def test_a_destination_has_the_elements_that_numpy_says(room, boasting, way):
    d = dm.to_device(np.arange(N, dtype="i4"))
    with pytest.raises(dm.LayoutError, match=r"\(16,\)"):
        way(d, boasting)
    assert untouched(room)


@pytest.mark.parametrize("way", WAYS)
def test_a_destination_is_as_writable_as_numpy_says(room, way):
    d = dm.to_device(np.arange(N, dtype="i4"))
    frozen = room.view(Writable)
    frozen.setflags(write=False)
    with pytest.raises(dm.LayoutError, match="read-only"):
        way(d, frozen)
    assert untouched(room)


@pytest.mark.parametrize("way", WAYS)
def test_a_subclass_that_says_what_is_so_is_filled_and_returned(room, way):
    class Honest(np.ndarray):
        pass

    d = dm.to_device(np.arange(N, dtype="i4"))
    way(d, room.view(Honest))
    assert room.tolist() == list(range(N))


def test_the_result_is_the_object_that_was_given(room):
    d = dm.to_device(np.arange(N, dtype="i4"))
    out = room.view(np.memmap)
    assert d.copy_to_host(out) is out
    assert dm.copy_async(d, out).result() is out
    assert dm.gather([d], out=out) is out


def test_a_mapping_has_the_elements_that_numpy_says(room, boasting, need):
    need("host_register", "mapped")
    with dm.mapped(boasting) as d:
        assert d.shape == (OURS,)
        d.fill(7)
        dm.synchronize()
    assert room[:OURS].tolist() == [7] * OURS and untouched(room[OURS:])


def test_a_registration_is_of_the_elements_that_numpy_says(room, boasting, need):
    need("host_register")
    with dm.register(boasting) as registration:
        ((array, _),) = registration.locked.entries
        assert array.shape == (OURS,)


def test_an_upload_has_the_elements_that_numpy_says(boasting):
    d = dm.to_device(boasting)
    assert d.shape == (OURS,)
    with pytest.raises(dm.LayoutError, match=r"\(16,\)"):
        dm.zeros(N, "i4").copy_to_device(boasting)
    with pytest.raises(dm.LayoutError, match=r"\(16,\)"):
        dm.zeros(N, "i4")[...] = boasting


@pytest.mark.parametrize("name", ["src", "dst"])
def test_a_plan_gets_the_elements_that_numpy_says(name, need_kind):
    need_kind("pinned")
    host, d = dm.pinned_array(N, "i4"), dm.zeros(N, "i4")
    room = dm.pinned_array(N, "i4")
    room[:] = -1
    with dm.stream() as stream:
        with dm.capture(stream) as plan:
            if name == "src":
                d.copy_to_device(host, stream=stream)
            else:
                d.copy_to_host(host, stream=stream)
        with pytest.raises(dm.LayoutError, match=r"has shape \(16,\), and replaces shape \(4096,\)"):
            plan.update(**{name: np.asarray(room)[:OURS].view(Boasting)})
        plan.close()
    assert untouched(room)
