"""pinned(), mapped(), register(), deregister(): counted, all or nothing, and over only when the copies are."""

from __future__ import annotations

import ctypes
import gc
import mmap

import numpy as np
import pytest
from waits import blocked, patience

import devmem as dm
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")

PAGE = mmap.PAGESIZE


@pytest.fixture(autouse=True)
def able(need):
    need("host_register")


@pytest.fixture
def locked(recorded):
    """Bytes that the driver has locked now, by address."""
    return lambda: dm.current_device().driver().registered()


def pages(count):
    """An array of whole pages, on a page of its own."""
    raw = np.zeros((count + 1) * PAGE, "u1")
    start = -raw.ctypes.data % PAGE
    return raw[start : start + count * PAGE]


# -- the verbs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [dm.pinned, dm.register])
def test_locked_within_the_block_and_not_after(locked, verb):
    a = pages(3)
    with verb(a) as given:
        assert given is not None
        assert locked() == {a.ctypes.data: 3 * PAGE}
    assert locked() == {}


def test_register_lasts_until_deregister(locked):
    a, b = pages(1), pages(2)
    dm.register(a, b)
    assert sum(locked().values()) == 3 * PAGE
    dm.deregister(a)
    assert list(locked()) == [b.ctypes.data]
    dm.deregister(b)
    assert locked() == {}


def test_any_address_and_length_is_covered_by_whole_pages(locked):
    raw = pages(4)
    a = raw[100 : PAGE + 5].view("u1")
    with dm.pinned(a):
        assert locked() == {raw.ctypes.data: 2 * PAGE}
    with dm.pinned(raw[:: 2 * PAGE]):
        assert locked() == {raw.ctypes.data: 3 * PAGE}
    with dm.pinned(raw[::-1][:10]):
        assert locked() == {raw.ctypes.data + 3 * PAGE: PAGE}
    assert locked() == {}


def test_copies_of_registered_arrays_are_right():
    a, b = pages(200).view("f8"), pages(200).view("f8")
    a[:] = np.arange(a.size)
    with dm.pinned(a):
        s = dm.stream()
        d = dm.to_device(a, stream=s)
        with dm.pinned(b):
            d.copy_to_host(b, stream=s)
        np.testing.assert_array_equal(b, a)
        np.testing.assert_array_equal(d[::7].copy_to_host(), a[::7])


def test_an_array_stays_page_locked_where_a_part_of_it_is_registered_too():
    a = pages(3)
    with dm.pinned(a), dm.pinned(a[10:20]), dm.stream() as stream, dm.capture(stream) as plan:
        d = dm.to_device(a, stream=stream)  # a plan takes page-locked memory only
    plan.close()
    d.free()


@pytest.mark.parametrize("also", ["not registered", "registered"])
def test_arrays_that_share_a_page_with_a_registered_one_are_copied_too(also):
    raw = pages(8)
    first, neighbour, whole = raw[: 2 * PAGE + 100], raw[2 * PAGE + 200 : 5 * PAGE], raw
    with dm.pinned(first), dm.pinned(*[neighbour] if also == "registered" else []):
        for array in (neighbour, whole, raw[::3], raw[100:-100].reshape(-1, 8)[:, :5]):
            want = np.random.default_rng(2).integers(0, 256, array.shape, np.uint8)
            array[...] = want
            d = dm.to_device(array)
            array[...] = 0
            d.copy_to_host(array)
            np.testing.assert_array_equal(array, want)


def test_mapped_arrays_may_share_their_pages_but_not_lie_on_pages_that_were_locked_apart(need_kind, locked):
    need_kind("mapped")
    raw = pages(2)
    small, neighbour, wide = raw[100:200], raw[300:400], raw[PAGE - 100 : PAGE + 100]
    with dm.mapped(small), dm.mapped(neighbour) as seen:
        neighbour[:] = 7
        assert (dm.as_device_array(seen).copy_to_host() == 7).all()
    with dm.mapped(small):
        before = locked()
        with pytest.raises(dm.LayoutError, match="neighbour that shares them"):
            dm.mapped(wide)
        assert locked() == before
    with dm.mapped(wide) as whole, dm.mapped(small) as part:
        whole.fill(1)
        part.fill(2)
    with dm.mapped(small, wide) as (part, whole):  # their pages are locked together
        assert (part.copy_to_host() == 2).all() and (whole.copy_to_host() == 1).all()
    assert locked() == {}


@pytest.mark.parametrize("neighbour", [False, True])
def test_memory_mapped_read_only_is_registered(tmp_path, locked, neighbour):
    file = tmp_path / "data"
    file.write_bytes(bytes(range(256)) * 256)
    fixed = np.memmap(file, np.uint8, "r")
    assert not fixed.flags.writeable
    both = [fixed[:PAGE], np.memmap(file, np.uint8, "r+")[PAGE:]] if neighbour else [fixed]
    with dm.pinned(*both):
        assert locked()
        for each in both:
            array = dm.to_device(each)
            assert np.array_equal(array.copy_to_host(), each)
            if each.flags.writeable:
                array.copy_to_host(each)
    assert locked() == {}


def test_memory_mapped_read_only_in_part_is_registered_or_told(locked):
    libc, room = ctypes.CDLL(None, use_errno=True), np.frombuffer(mmap.mmap(-1, 4 * PAGE), np.uint8)
    room[:] = 5
    assert libc.mprotect(ctypes.c_void_p(room.ctypes.data), 2 * PAGE, mmap.PROT_READ) == 0
    told = None
    try:
        with dm.pinned(room):
            assert (dm.to_device(room).copy_to_host() == 5).all()
    except dm.BackendError as error:
        told = "".join(error.__notes__)
    assert told is None or "register each part by itself" in told
    assert locked() == {}
    with dm.pinned(room[: 2 * PAGE], room[2 * PAGE :]):
        assert (dm.to_device(room[: 2 * PAGE]).copy_to_host() == 5).all()
    assert locked() == {}


@pytest.mark.parametrize("thing", [[1, 2], 5, "text", b"bytes", bytearray(5), None, dm.errors])
@pytest.mark.parametrize("verb", [dm.pinned, dm.register, dm.mapped, dm.deregister])
def test_only_ndarrays_are_registered(verb, thing, locked):
    with pytest.raises(TypeError, match=f"ndarray's memory.*{type(thing).__name__}"):
        verb(np.zeros(3), thing)
    assert locked() == {}


@pytest.mark.parametrize("verb", [dm.pinned, dm.register, dm.mapped])
def test_objects_are_refused(verb):
    with pytest.raises(dm.LayoutError, match="Python objects"):
        verb(np.array([None]))


def test_a_device_array_is_refused():
    with pytest.raises(TypeError, match="DeviceNDArray"):
        dm.register(dm.zeros(3))


def test_empty_arrays_lock_nothing(locked):
    with dm.pinned():
        assert locked() == {}
    with dm.pinned(np.zeros(0)), dm.register(np.zeros((0, 3))):
        assert locked() == {}
    empty = np.zeros(0)
    dm.register(empty)
    dm.deregister(empty)


def test_read_only_arrays(locked):
    a = pages(1)
    a.flags.writeable = False
    with dm.pinned(a):
        assert sum(locked().values()) == PAGE


def test_the_block_ends_also_when_its_body_raises(locked):
    for verb in (dm.pinned, dm.register):
        with pytest.raises(ZeroDivisionError), verb(pages(1)):
            raise ZeroDivisionError
    assert locked() == {}


# -- counting ----------------------------------------------------------------------------------------------------------


def test_the_same_array_twice(locked):
    a = pages(2)
    with dm.pinned(a):
        with dm.pinned(a, a), dm.register(a):
            assert sum(locked().values()) == 2 * PAGE
        assert sum(locked().values()) == 2 * PAGE
    assert locked() == {}


def test_overlaps_are_counted_page_by_page(locked, recorded):
    raw = pages(6)
    with dm.pinned(raw[: 3 * PAGE]):
        with dm.pinned(raw[2 * PAGE : 5 * PAGE]):
            assert sum(locked().values()) == 5 * PAGE
            with dm.pinned(raw):
                assert sum(locked().values()) == 6 * PAGE
        assert sum(locked().values()) == 3 * PAGE
    assert locked() == {}
    assert recorded.mistakes() == []


def test_two_small_arrays_in_one_page(locked):
    raw = pages(1)
    a, b = raw[:10], raw[20:30]
    dm.register(a)
    dm.register(b)
    assert sum(locked().values()) == PAGE
    dm.deregister(a)
    assert sum(locked().values()) == PAGE
    dm.deregister(b)
    assert locked() == {}


def test_overlapping_blocks_may_end_in_any_order(locked):
    raw = pages(4)
    first, second = dm.register(raw[: 3 * PAGE]), dm.register(raw[PAGE:])
    first.close()
    assert sum(locked().values()) >= 3 * PAGE
    second.close()
    assert locked() == {}


def test_registrations_keep_the_array_alive(locked):
    dm.register(pages(1))
    gc.collect()
    [nbytes] = locked().values()
    assert nbytes == PAGE
    dm.reset()
    assert locked() == {}


def test_deregistering_what_was_never_registered_touches_nothing(locked):
    a, b = pages(1), pages(1)
    dm.register(a)
    for wrong in ((b,), (a, b), (a, a), (a[:-1],)):
        with pytest.raises(dm.DevmemError, match=r"is not registered on .*deregister exactly what was given"):
            dm.deregister(*wrong)
        assert sum(locked().values()) == PAGE
    dm.deregister(a)
    with pytest.raises(dm.DevmemError, match="not registered"):
        dm.deregister(a)


def test_deregister_as_often_as_registered(locked):
    a = pages(1)
    dm.register(a)
    dm.register(a, a)
    dm.deregister(a, a)
    assert sum(locked().values()) == PAGE
    dm.deregister(a)
    assert locked() == {}


@pytest.mark.parametrize("verb", [dm.pinned, dm.register, dm.mapped])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_arrays_are_registered_all_or_none(recorded, locked, verb, nth, need):
    if verb is dm.mapped:
        need("mapped")
    arrays = [pages(1), pages(1), pages(1)]
    driver = dm.current_device().driver()
    driver.fail_at(nth, "host_register")
    with pytest.raises(dm.BackendError, match="injected failure of host_register"):
        verb(*arrays)
    driver.disarm()
    assert locked() == {}
    with verb(*arrays):
        assert sum(locked().values()) == 3 * PAGE
    assert locked() == {}


def test_the_devices_count_on_their_own(second):
    a = pages(1)
    dm.register(a)
    with second, pytest.raises(dm.DevmemError, match=f"not registered on {second}"):
        dm.deregister(a)
    dm.deregister(a)


# -- waiting for copies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["pinned", "register", "deregister"])
def test_the_end_waits_for_copies_that_use_the_memory(need, in_background, locked, way):
    need("hold")
    s = dm.stream(non_blocking=True)
    a = pages(1)
    a[:] = 9
    d = dm.zeros(PAGE, "u1")
    registration = dm.pinned(a) if way == "pinned" else dm.register(a)
    leave = (lambda: dm.deregister(a)) if way == "deregister" else registration.close
    with hold(s) as latch:
        d.copy_to_device(a, stream=s)
        assert not s.query()
        done = in_background(leave)
        blocked(done, "the memory was let go while a copy was held back")
        latch.release()
        assert done.wait(patience())
    assert done.errors == []
    assert locked() == {}
    assert set(d.tolist()) == {9}


def test_the_end_of_mapped_waits_for_work_on_the_view(need, in_background):
    need("hold", "mapped")
    s = dm.stream(non_blocking=True)
    a = pages(1)
    d = dm.full(PAGE, 4, "u1")
    mapping = dm.mapped(a)
    with hold(s) as latch, mapping as view:
        view.copy_to_device(d, stream=s)
        assert not s.query()
        done = in_background(mapping.close)
        blocked(done, "it did not wait")
        latch.release()
        assert done.wait(patience())
    assert done.errors == []
    assert (a == 4).all()


# -- mapped ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mappable(need):
    need("mapped")


@pytest.mark.usefixtures("mappable")
def test_mapped_gives_device_views_in_place():
    a = np.arange(12.0).reshape(3, 4)
    with dm.mapped(a) as d:
        assert type(d) is dm.DeviceNDArray
        assert (d.shape, d.dtype, d.strides) == (a.shape, a.dtype, a.strides)
        np.testing.assert_array_equal(d.copy_to_host(), a)
        d[1] = -1
        a[2] = -2
        assert d[2].tolist() == [-2] * 4
    assert a[1].tolist() == [-1] * 4


@pytest.mark.usefixtures("mappable")
def test_mapped_of_several_gives_a_list():
    arrays = [np.full(3, i) for i in range(3)]
    with dm.mapped(*arrays) as views:
        assert [view.tolist() for view in views] == [[i] * 3 for i in range(3)]
    with dm.mapped() as none:
        assert none == []


@pytest.mark.usefixtures("mappable")
@pytest.mark.parametrize("cut", [np.s_[::2], np.s_[:, 1], np.s_[1:, ::3], np.s_[1:1], np.s_[1, 2, ...]], ids=str)
def test_mapped_strided_arrays(cut):
    host = np.arange(24, dtype="i4").reshape(4, 6)
    want = host.copy()
    with dm.mapped(host[cut]) as d:
        np.testing.assert_array_equal(d.copy_to_host(), host[cut])
        d[...] = -5
    want[cut] = -5
    np.testing.assert_array_equal(host, want)


@pytest.mark.usefixtures("mappable")
@pytest.mark.parametrize(
    "array", [np.arange(4)[::-1], np.broadcast_to(np.arange(3), (2, 3))], ids=["negative", "repeated"]
)
def test_layouts_that_cannot_be_mapped(array, locked):
    with pytest.raises(dm.LayoutError, match=r"strides .* cannot be mapped"):
        dm.mapped(array)
    assert locked() == {}


@pytest.mark.usefixtures("mappable")
def test_after_mapped_the_views_are_closed(locked):
    a = pages(1)
    with dm.mapped(a) as d:
        part = d[5:10]
        d.tolist()
    for use in (d.copy_to_host, part.copy_to_host, lambda: d.ptr, lambda: d[0], lambda: d.fill(1), lambda: part[...]):
        with pytest.raises(dm.ClosedError):
            use()
    assert locked() == {}
    assert a.sum() == 0


@pytest.mark.usefixtures("mappable")
def test_mapped_ends_when_the_body_raises(locked):
    with pytest.raises(ZeroDivisionError), dm.mapped(pages(1)) as d:
        raise ZeroDivisionError
    assert locked() == {}
    with pytest.raises(dm.ClosedError):
        d.tolist()


@pytest.mark.usefixtures("mappable")
def test_freeing_a_mapped_view_only_lets_go(locked):
    a = pages(1)
    with dm.mapped(a) as d:
        d.free()
        with pytest.raises(dm.ClosedError):
            d.tolist()
        assert sum(locked().values()) == PAGE
    assert a.sum() == 0


@pytest.mark.usefixtures("mappable")
def test_mapped_views_take_a_stream():
    s = dm.stream()
    with dm.mapped(np.zeros(3), stream=s) as d:
        assert d.stream is s
    for bad in (True, "x", 1.5):
        with pytest.raises(TypeError, match="a stream is"):
            dm.mapped(np.zeros(3), stream=bad)


@pytest.mark.usefixtures("mappable")
def test_pinned_then_mapped(locked):
    a = pages(2)
    with dm.mapped(a) as d, dm.pinned(a):
        d.fill(3)
    assert (a == 3).all()
    assert locked() == {}


def test_reset_ends_registrations(locked):
    a = pages(1)
    block = dm.register(a)
    with dm.pinned(pages(1)):
        dm.reset()
        assert locked() == {}
    block.close()
    with pytest.raises(dm.DevmemError, match="not registered"):
        dm.deregister(a)
    with dm.pinned(a):
        assert sum(locked().values()) == PAGE


@pytest.mark.parametrize("call", ["host_register", "host_unregister"])
def test_an_exception_of_a_handler_is_not_taken_for_the_driver_s_refusal(call, locked, monkeypatch):
    """It may come behind what the driver has done: the pages are locked then, or are not any more."""
    array, driver = pages(3), dm.current_device().driver()
    real = getattr(driver, call)

    def interrupted(*arguments):
        monkeypatch.undo()
        real(*arguments)
        raise TimeoutError("the alarm")

    monkeypatch.setattr(driver, call, interrupted)
    with pytest.raises(TimeoutError), dm.pinned(array):
        pass
    for _ in range(2):
        with dm.pinned(array):
            assert (dm.to_device(array).copy_to_host() == array).all()
    assert locked() == {}
