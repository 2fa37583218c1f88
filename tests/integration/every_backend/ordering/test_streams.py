"""Streams: which one orders a call, what `with stream:` means, and that nothing is asynchronous that was not asked to be."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from waits import blocked, patience

import devmem as dm
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")

#: Every verb that takes a stream: called with an array, a host array and the stream's argument.
VERBS = {
    "to_device": lambda d, h, s: dm.to_device(h, s),
    "to_device strided": lambda d, h, s: dm.to_device(h[::2], s),
    "to_device to": lambda d, h, s: dm.to_device(h, s, to=d),
    "copy_to_device": lambda d, h, s: d.copy_to_device(h, s),
    "copy_to_device d2d": lambda d, h, s: d[:4].copy_to_device(d[4:], s),
    "copy_to_host": lambda d, h, s: d.copy_to_host(None, s),
    "copy_to_host into": lambda d, h, s: d.copy_to_host(h, s),
    "copy_to_host strided": lambda d, h, s: d[::2].copy_to_host(h[::2], s),
    "copy": lambda d, h, s: d.copy(s),
    "fill": lambda d, h, s: d.fill(3.0, s),
    "zeros": lambda d, h, s: dm.zeros(8, stream=s),
    "full": lambda d, h, s: dm.full(8, 1.5, stream=s),
}
#: Where in the driver's arguments the stream stands, and which calls move bytes.
MOVES = ("copy", "copy_strided", "fill", "copy_peer")


@pytest.fixture(params=VERBS.values(), ids=VERBS)
def verb(request):
    return request.param


def handles(calls):
    return [call.args[-1] for call in calls if call.method in MOVES]


def waits(calls):
    return [call for call in calls if call.method.endswith("synchronize") or call.keywords.get("blocking")]


# -- which stream ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [0, None, np.int64(0)])
def test_not_named_is_the_default_stream_and_complete_on_return(recorded, verb, nothing):
    d, h = dm.to_device(np.arange(8.0)), np.arange(8.0)
    with recorded.during() as seen:
        verb(d, h, nothing)
    assert set(handles(seen)) == {dm.default_stream().handle} == {LEGACY_STREAM}
    assert waits(seen), "nothing waited for the work"


@pytest.mark.parametrize("how", ["stream", "handle", "numpy handle", "protocol"])
def test_a_named_stream_orders_the_work(recorded, verb, how):
    s = dm.stream()

    class Foreign:
        def __cuda_stream__(self):
            return (0, s.handle)

    argument = {"stream": s, "handle": s.handle, "numpy handle": np.int64(s.handle), "protocol": Foreign()}[how]
    d, h = dm.to_device(np.arange(8.0)), np.arange(8.0)
    with recorded.during() as seen:
        verb(d, h, argument)
    assert set(handles(seen)) == {s.handle}
    s.synchronize()


@pytest.mark.parametrize(("number", "which"), [(1, dm.legacy_default_stream), (2, dm.per_thread_default_stream)])
def test_one_and_two_are_the_legacy_and_the_per_thread_stream(recorded, verb, number, which):
    assert which().handle == number
    assert int(which()) == number
    d, h = dm.to_device(np.arange(8.0)), np.arange(8.0)
    for argument in (number, which()):
        with recorded.during() as seen:
            verb(d, h, argument)
        assert set(handles(seen)) == {number}
    dm.synchronize()


def test_an_array_that_is_bound_uses_its_stream_and_is_complete_all_the_same(recorded):
    s = dm.stream()
    d, h = dm.to_device(np.arange(8.0)).bind(s), np.arange(8.0)
    for name, verb in VERBS.items():
        if name in ("to_device", "to_device strided", "zeros", "full"):
            continue
        with recorded.during() as seen:
            verb(d, h, 0)
        assert set(handles(seen)) == {s.handle}, name
        assert waits(seen), name


def test_a_named_stream_beats_the_one_that_the_array_is_bound_to(recorded):
    s, t = dm.stream(), dm.stream()
    d, h = dm.to_device(np.arange(8.0)).bind(s), np.arange(8.0)
    with recorded.during() as seen:
        d.copy_to_host(h, stream=t)
        d.fill(1.0, stream=t)
    assert set(handles(seen)) == {t.handle}
    dm.synchronize()


def test_a_stream_is_not_sticky(need, need_kind):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    a = dm.pinned_array(1000, "i4")
    a[...] = 1
    d = dm.to_device(a, stream=s)
    s.synchronize()
    with hold(s, patience=0.3, tolerant=True) as latch:
        a[...] = 2
        d.copy_to_device(a, stream=s)
        out = d.copy_to_host()  # no stream named: d is bound to s, and the result is whole on return
        assert latch.expired
    assert (out == 2).all()


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        (
            0xDEAD0,
            dm.LayoutError,
            r"0xdead0 is not the handle of a stream that was made on .*external_stream\(0xdead0\)",
        ),
        (-1, dm.LayoutError, "is not the handle"),
        (True, TypeError, "a stream is 0, None, a devmem.Stream.*not True"),
        (False, TypeError, "a stream is .*not False"),
        (1.0, TypeError, "a stream is .*not 1.0"),
        ("legacy", TypeError, "a stream is .*not 'legacy'"),
        (object, TypeError, "a stream is"),
        (np.arange(3), TypeError, "a stream is"),
    ],
)
def test_what_is_no_stream_is_refused_before_anything_is_done(recorded, verb, bad, error, says):
    d, h = dm.to_device(np.arange(8.0)), np.arange(8.0)
    with recorded.during() as seen, pytest.raises(error, match=says):
        verb(d, h, bad)
    assert handles(seen) == []
    assert h.tolist() == d.tolist() == np.arange(8.0).tolist()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda d, s: dm.event(s), "timing is True or False, not <stream"),
        (lambda d, s: dm.to_device([1.0], 0, s), "copy is True or False, not <stream"),
        (lambda d, s: dm.to_device([1.0], 0, d.device), "copy is True or False, not <device"),
        (lambda d, s: dm.to_device([1.0], d.device), "a stream is .*; a device is given as device=$"),
        (lambda d, s: dm.to_device([1.0], str(d.device)), "a stream is .*; a device is given as device=$"),
        (lambda d, s: d.copy_to_host(s), "ndarray, not a Stream: give a stream as stream=$"),
        (lambda d, s: dm.copy_async(d, s), "ndarray, not a Stream: give a stream as stream=$"),
        (lambda d, s: dm.copy_async(np.zeros(3), s), "is an array, not <stream.*: give that as stream= or device=$"),
        (
            lambda d, s: dm.copy_async(np.zeros(3), "cuda:1"),
            "is an array, not 'cuda:1': give that as stream= or device=$",
        ),
    ],
)
def test_a_stream_or_device_in_the_place_of_another_argument_is_told(call, says):
    with pytest.raises(TypeError, match=says):
        call(dm.zeros(3), dm.stream())


@pytest.mark.parametrize("bad", [np.arange(3), "array", False, 1.5], ids=repr)
@pytest.mark.parametrize(
    "take",
    [
        lambda d, s: d.bind(s),
        lambda d, s: d.squeeze(stream=s),
        lambda d, s: d.split(2, stream=s),
        lambda d, s: d.ravel(stream=s),
        lambda d, s: dm.mapped(np.zeros(3), stream=s),
        lambda d, s: dm.mapped_array(3, stream=s),
        lambda d, s: dm.managed_array(3, stream=s),
        lambda d, s: dm.prefetch([np.zeros(3)], stream=s),
    ],
)
def test_what_is_no_stream_is_refused_where_arrays_are_bound(take, bad):
    """An array that is passed for one is not asked whether it is true."""
    d = dm.to_device(np.arange(8.0))
    with pytest.raises(TypeError, match="a stream is"):
        take(d, d if isinstance(bad, str) else bad)


def test_a_stream_of_another_device_is_refused(verb, second, device):
    with second:
        s = dm.stream()
    d, h = dm.to_device(np.arange(8.0)), np.arange(8.0)
    with pytest.raises(dm.LayoutError, match=rf"of {second}.* cannot order work on {device}.*made inside"):
        verb(d, h, s)
    assert d.tolist() == np.arange(8.0).tolist()


def test_a_closed_stream_is_refused(verb, device):
    s = dm.stream()
    handle = s.handle
    s.close()
    d, h = dm.to_device(np.arange(8.0)), np.arange(8.0)
    with pytest.raises(dm.ClosedError, match=f"stream of {device} is closed.*devmem.stream"):
        verb(d, h, s)
    with pytest.raises(dm.LayoutError, match="is not the handle"):
        verb(d, h, handle)
    assert d.tolist() == np.arange(8.0).tolist()


def test_the_per_thread_stream_can_be_the_default(recorded, with_settings, in_thread):
    with_settings(DEFAULT_STREAM="per-thread")
    assert dm.default_stream().handle == PER_THREAD_STREAM
    with recorded.during() as seen:
        dm.to_device(np.arange(4.0)).copy_to_host()
    assert set(handles(seen)) == {PER_THREAD_STREAM}
    mine = dm.per_thread_default_stream()
    assert mine is dm.per_thread_default_stream()
    assert in_thread(dm.per_thread_default_stream) is not mine
    with_settings(DEFAULT_STREAM="legacy")
    assert dm.default_stream() is dm.legacy_default_stream()


# -- with stream: ------------------------------------------------------------------------------------------------------


def test_with_makes_a_stream_current(recorded, verb):
    d, h = dm.to_device(np.arange(8.0)), np.arange(8.0)
    s = dm.stream()
    with s as entered, recorded.during() as seen:
        assert entered is s
        verb(d, h, 0)
    assert set(handles(seen)) == {s.handle}
    assert waits(seen)
    with recorded.during() as seen:
        verb(d, h, 0)
    assert set(handles(seen)) == {LEGACY_STREAM}
    assert not s.closed


def test_with_neither_waits_nor_closes(recorded):
    s = dm.stream()
    with recorded.during() as seen, s:
        pass
    assert seen == []


def test_with_does_not_wait_for_the_work(need, need_kind):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    d, a = dm.zeros(1000), dm.pinned_array(1000)
    a[...] = 1
    d.copy_to_device(a, stream=s)
    s.synchronize()
    with hold(s):
        with s:
            d.copy_to_device(a, stream=s)
        assert not s.query()
    s.synchronize()
    assert s.query()


def test_with_nests_and_reenters(recorded):
    s, t = dm.stream(), dm.stream()
    d = dm.to_device(np.arange(4.0))

    def used():
        with recorded.during() as seen:
            d.copy_to_host()
        return handles(seen)

    with s:
        with t, s:
            assert used() == [s.handle]
            for other in (t, dm.legacy_default_stream(), dm.per_thread_default_stream()):
                with other:
                    assert used() == [other.handle]
        assert used() == [s.handle]
        with pytest.raises(ZeroDivisionError), t:
            raise ZeroDivisionError
        assert used() == [s.handle]
    assert used() == [LEGACY_STREAM]


def test_with_holds_for_this_thread_alone(recorded, in_thread):
    d = dm.to_device(np.arange(4.0))
    with dm.stream():
        with recorded.during() as seen:
            in_thread(d.copy_to_host)
        assert handles(seen) == [LEGACY_STREAM]


def test_the_current_stream_of_one_device_is_not_that_of_another(second, device):
    s = dm.stream()
    with s, second:
        assert dm.to_device(np.arange(3.0)).tolist() == [0, 1, 2]
        far = dm.zeros(3)
    with s:
        far.copy_to_host()


def test_entering_a_closed_stream_is_refused():
    s = dm.stream()
    s.close()
    with pytest.raises(dm.ClosedError, match="is closed"):
        s.__enter__()


# -- making, waiting, closing ------------------------------------------------------------------------------------------


def test_streams_are_what_they_are(device):
    s = dm.stream()
    assert s.device == device
    assert not s.external
    assert not s.closed
    assert hex(s.handle) in repr(s)
    assert str(device) in repr(s)
    assert "legacy default" in repr(dm.legacy_default_stream())
    assert "per-thread default" in repr(dm.per_thread_default_stream())
    assert dm.default_stream() is dm.default_stream()


def test_stream_takes_keywords_only():
    with pytest.raises(TypeError):
        dm.stream(1)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_non_blocking_reaches_the_driver(recorded, non_blocking):
    with recorded.during() as seen:
        dm.stream(non_blocking=non_blocking)
    [call] = [call for call in seen if call.method == "stream_create"]
    assert call.args[1] is non_blocking


@pytest.mark.parametrize("wish", [-1000, -1, 0, 1, 1000])
def test_priorities_are_clamped_to_what_the_device_has(recorded, wish):
    least, greatest = dm.current_device().info.stream_priorities
    with recorded.during() as seen:
        dm.stream(priority=wish)
    [call] = [call for call in seen if call.method == "stream_create"]
    assert call.args[0] == max(min(wish, least), greatest)


@pytest.mark.parametrize("wish", ["hi", None, 1.5, True, [1]])
def test_a_priority_is_an_integer(wish):
    with pytest.raises(
        TypeError, match=r"priority is an integer, the smaller the sooner \(this device has -?\d+ to -?\d+\), not "
    ):
        dm.stream(priority=wish)


def test_query_and_synchronize(need, need_kind):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    assert s.query()
    d, a = dm.zeros(100), dm.pinned_array(100)
    d.copy_to_device(a, stream=s)
    s.synchronize()
    with hold(s) as latch:
        d.copy_to_device(a, stream=s)
        assert not s.query()
        latch.release()
        s.synchronize()
        assert s.query()


def test_closing_waits_and_trimming_destroys(recorded):
    s = dm.stream()
    d = dm.zeros(10)
    d.fill(1.0, stream=s)
    handle = s.handle
    with recorded.during() as seen:
        s.close()
        s.close()
        dm.trim()
    names = [call.method for call in seen if call.args[:1] == (handle,)]
    assert names.index("stream_synchronize") < names.index("stream_destroy")
    assert names.count("stream_destroy") == 1
    assert s.closed
    assert "closed" in repr(s)
    assert set(d.tolist()) == {1.0}
    for use in (s.synchronize, s.query, s.record, lambda: s.handle, lambda: s.wait(dm.event()), lambda: int(s)):
        with pytest.raises(dm.ClosedError, match="is closed"):
            use()


def test_closing_default_and_external_streams_lets_them_be(recorded):
    s = dm.stream()
    with dm.current_device().entered():
        other = dm.external_stream(dm.current_device().driver().inner.stream_create(0, True))
    with recorded.during() as seen:
        for each in (dm.legacy_default_stream(), dm.per_thread_default_stream(), dm.default_stream(), other):
            each.close()
    assert seen == []
    assert not dm.default_stream().closed
    assert not s.closed


def test_arrays_outlive_the_stream_that_they_were_made_on():
    s = dm.stream()
    d = dm.to_device(np.arange(5.0), stream=s)
    e = dm.zeros(5)
    e.copy_to_device(np.arange(5.0), stream=s)
    s.close()
    assert d.bind(0).tolist() == e.tolist() == [0, 1, 2, 3, 4]
    d.free()
    del e
    dm.trim()


def test_dropped_streams_are_destroyed_when_their_work_is_done(recorded, need, need_kind):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    d, a = dm.zeros(100), dm.pinned_array(100)
    a[...] = 3
    d.copy_to_device(a, stream=s)
    s.synchronize()
    before = recorded.live().streams
    with hold(s):
        d.copy_to_device(a, stream=s)
        with dm.current_device().entered():
            assert not s.owned.release(set()), "what the queue of dropped streams asks"
        del s
        gc.collect()
        assert recorded.live().streams == before
    dm.synchronize()
    assert set(d.tolist()) == {3}
    del d
    for _ in range(3):  # the block first, behind events on the streams that it remembers; then they, which pass those
        gc.collect()
        dm.trim()
        dm.synchronize()
    assert recorded.live().streams == before - 1


# -- foreign streams ---------------------------------------------------------------------------------------------------


class Foreign:
    def __init__(self, *answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


def test_external_streams_are_known_from_then_on_and_never_destroyed(recorded):
    driver = dm.current_device().driver()
    with dm.current_device().entered():
        handle = driver.inner.stream_create(0, False)
    with pytest.raises(dm.LayoutError, match="is not the handle"):
        dm.to_device(np.zeros(3), handle)
    s = dm.external_stream(handle)
    assert s.external
    assert "external" in repr(s)
    assert s.handle == handle
    assert dm.external_stream(handle) is s
    with recorded.during() as seen:
        d = dm.to_device(np.arange(3.0), handle)
        d.copy_to_host(stream=s)
    assert set(handles(seen)) == {handle}
    s.synchronize()
    assert s.query()
    assert d.tolist() == [0, 1, 2]
    del d
    dm.trim()
    dm.reset()
    assert ("stream_destroy", handle) not in [(call.method, call.args[0]) for call in recorded.log if call.args]


def test_foreign_streams_are_forgotten_once_unreferenced(device):
    """A program that makes a stream for each request must not keep all of them alive here."""
    with device.entered() as driver:
        made = [driver.stream_create(0, True) for _ in range(5)]
    externals = device.opened().streams._external
    before = len(externals)
    for handle in made:
        d = dm.to_device(np.arange(3.0), dm.external_stream(handle))
        assert d.stream.handle == handle, "an array that is bound to it keeps it"
        assert d.copy_to_host(stream=handle).tolist() == [0, 1, 2]
    del d
    dm.synchronize()
    dm.trim()
    gc.collect()
    assert len(externals) == before
    with pytest.raises(dm.LayoutError, match=r"external_stream\(0x[0-9a-f]+\) first, and keep what it returns"):
        dm.to_device(np.zeros(3), made[0])
    with device.entered() as driver:
        for handle in made:
            driver.stream_destroy(handle)


def test_a_foreign_stream_is_known_while_work_is_on_it(device, need, need_kind):
    need("hold")
    need_kind("pinned")
    with device.entered() as driver:
        handle = driver.stream_create(0, True)
    source = dm.pinned_array(1000, "u1")
    source[:] = 7
    d = dm.zeros(1000, "u1")
    with hold(dm.external_stream(handle)) as latch:
        d.copy_to_device(source, stream=dm.external_stream(handle))
        gc.collect()
        assert handle in device.opened().streams._external
        latch.release()
        device.synchronize()
    dm.trim()
    gc.collect()
    assert set(d.tolist()) == {7}
    with device.entered() as driver:
        driver.stream_destroy(handle)


def test_external_stream_of_our_own_is_our_own():
    s = dm.stream()
    assert dm.external_stream(s.handle) is s
    assert dm.external_stream(0) is dm.external_stream(1) is dm.legacy_default_stream()
    assert dm.external_stream(2) is dm.per_thread_default_stream()
    assert dm.external_stream(Foreign(0, s.handle)) is s
    assert dm.external_stream(np.int64(s.handle)) is s


def test_a_number_is_not_believed_to_be_a_stream(device):
    """16 is no address; and where no other library has streams, only the driver can know one. Some drivers count from 1."""
    known = "foreign_streams" in device.info.capabilities or device.info.exchange.streams is None
    first = dm.stream().handle
    small = 16 if first > 4096 else first + 1_000_000
    for number in (small, 0x0DEA_D000) if known else (small,):
        with pytest.raises((dm.LayoutError, dm.BackendError)):
            dm.external_stream(number)


@pytest.mark.parametrize("bad", [1.5, "x", None, True, object()])
def test_external_stream_of_what_is_none(bad):
    with pytest.raises(TypeError):
        dm.external_stream(bad)


def test_a_newer_stream_protocol_is_refused():
    for call in (dm.external_stream, lambda s: dm.to_device(np.zeros(3), s)):
        with pytest.raises(dm.UnsupportedError, match="version 7 of __cuda_stream__"):
            call(Foreign(7, 1))


# -- auto_synchronize --------------------------------------------------------------------------------------------------


def test_auto_synchronize_waits_once_at_the_end(recorded):
    s = dm.stream()
    with recorded.during() as seen:
        with s.auto_synchronize() as given:
            assert given is s
            dm.zeros(4, stream=s)
        assert seen == []
    assert ("stream_synchronize", (s.handle,)) in [(call.method, call.args) for call in seen]


def test_b8_auto_synchronize_synchronizes_when_the_body_raises(recorded):
    s = dm.stream()
    with recorded.during() as seen, pytest.raises(ZeroDivisionError), s.auto_synchronize():
        raise ZeroDivisionError
    assert [call.args for call in seen if call.method == "stream_synchronize"] == [(s.handle,)]


# -- what is no stream ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [None, (0,), (0, "x"), (0, 1, 2), 7])
def test_an_answer_that_is_not_the_protocol_s_is_shown(answer):
    class Speaker:
        def __cuda_stream__(self):
            return answer

    with pytest.raises(TypeError, match=r"__cuda_stream__ of a Speaker gave .*two integers"):
        dm.to_device(np.arange(3), stream=Speaker())


def test_a_property_that_raises_counts_as_absent():
    class Broken:
        """Of a library whose import fails at first use, say."""

        @property
        def __cuda_stream__(self):
            raise KeyError("a module of its library")

        cuda_stream = __cuda_stream__

    for call in (lambda: dm.zeros(3, stream=Broken()), lambda: dm.external_stream(Broken())):
        with pytest.raises(TypeError, match="stream"):
            call()


@pytest.mark.parametrize("handle", [1 << 64, 1 << 70, -1])
def test_an_address_has_64_bits(handle):
    with pytest.raises(dm.LayoutError, match=str(handle)):
        dm.external_stream(handle)


def test_times_are_taken_between_events():
    with pytest.raises(TypeError, match=r"devmem\.Events, not from 1"):
        dm.event_elapsed_time(1, 2)
    with pytest.raises(TypeError, match=r"devmem\.Events, not to 2"):
        dm.event_elapsed_time(dm.event(), 2)


@pytest.mark.parametrize("flag", [-1, "yes", 1 << 70])
def test_whether_a_stream_blocks_is_asked_as_a_truth(flag):
    with dm.stream(non_blocking=flag) as stream:
        assert stream.non_blocking is True
    stream.close()


def test_a_stream_stays_until_every_pool_has_been_told_of_its_end(recorded, monkeypatch):
    """An interrupt comes before they have: a pool would name a stream that is destroyed."""
    memory = dm.current_device().opened().memory
    stream = dm.stream()
    handle, tell, left = stream.handle, memory.stacks.forget_stream, [1]

    def interrupted(number):
        if left:
            left.pop()
            raise KeyboardInterrupt
        tell(number)

    monkeypatch.setattr(memory.queue.streams, "on_destroy", interrupted)
    with recorded.during() as seen:
        with pytest.raises(KeyboardInterrupt):
            stream.close()
        assert "stream_destroy" not in [call.method for call in seen]
        dm.to_device(np.arange(3), stream=dm.stream()).free()
        dm.reset()
    assert ("stream_destroy", (handle,)) in [(call.method, call.args) for call in seen]


# -- streams of another device or context --------------------------------------------------------------------------------


def test_a_stream_of_another_device_is_refused_by_name(device, second, need):
    need("stream_origin")
    with second.entered() as driver:
        handle = driver.stream_create(0, True)
    with pytest.raises(
        dm.UnsupportedError, match=rf"the stream {handle:#x} cannot order work of {device}: it belongs to"
    ):
        dm.external_stream(handle)
    assert handle not in device.opened().streams._external
    with second:
        assert dm.external_stream(handle).handle == handle
    with second.entered() as driver:
        driver.stream_destroy(handle)


def test_a_wait_for_the_legacy_stream_is_one_for_the_blocking_streams(need, in_background):
    need("hold")
    blocking, apart, legacy = dm.stream(), dm.stream(non_blocking=True), dm.legacy_default_stream()
    array = dm.zeros(4)
    dm.synchronize()
    with hold(apart):
        array.fill(1, stream=apart)
        legacy.synchronize()  # it has the event that the other stream waits for
        assert legacy.query()
    dm.synchronize()

    with hold(blocking) as latch:
        array.fill(2, stream=blocking)
        assert not legacy.query()
        done = in_background(legacy.synchronize)
        blocked(done)
        latch.release()
        assert done.wait(patience())
    assert not done.errors
