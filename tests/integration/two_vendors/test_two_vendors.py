"""Both vendors' GPUs in one process: arrays go from one to the other by way of the host, and each error names its own side.

Needs both emulated libraries: ``devmem emulate cuda,roc -- pytest tests/integration/two_vendors``.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import vendors
from waits import patience, together

import devmem as dm
from devmem.errors import BackendError, DeviceLost, DevmemError, LayoutError, OutOfMemory
from devmem.testing import emulator

VENDORS = ("cuda", "roc")
UNKNOWN, OUT_OF_MEMORY = 999, 2  # of both
LAYOUTS = {
    "whole": np.s_[...],
    "rows": np.s_[::2, ::2, :40],
    "columns": np.s_[1:, ::-2, ::3],
    "nothing": np.s_[:0],
}
#: Functions that a copy from one vendor to the other may call, by what fails if they do.
TRANSFER = ("Malloc", "MemAlloc", "Memcpy", "Event", "StreamSynchronize", "CtxGetCurrent", "CtxSetCurrent", "SetDevice")


class Side(NamedTuple):
    """One vendor: a device of its, and what steers its library."""

    name: str
    device: dm.Device
    control: emulator.Control

    def books(self) -> tuple[int, int]:
        """What its library says is out."""
        return self.control.live()

    def prefix(self) -> str:
        """How its functions begin."""
        return "cu" if self.name == "cuda" else "hip"


class Both(NamedTuple):
    cuda: Side
    roc: Side

    def at_rest(self) -> None:
        gc.collect()
        mine = [device for device in dm.devices() if device.backend in VENDORS]
        for device in mine * 2:  # memory goes back in the order of its stream, then streams that have passed that
            with device:
                device.synchronize()
                dm.trim()


@pytest.fixture
def both() -> Iterator[Both]:
    """A device of each vendor, where both libraries are emulated; nothing is left behind on either."""
    dm.close()
    sides = []
    for name in VENDORS:
        status = next((each for each in dm.backends() if each.name == name), None)
        if status is None or not status.usable:
            pytest.skip(f"needs both vendors in one process: {name}: {status.reason if status else 'unknown'}")
        for ordinal in range(status.devices):  # opening a device makes a pool, which stays
            dm.memory_info(device=f"{name}:{ordinal}")
        device = dm.device(f"{name}:0")
        try:
            control = emulator.control(name)
        except emulator.EmulatorNotLoaded as error:
            pytest.skip(str(error))
        control.reset()
        sides.append(Side(name, device, control))
    made = Both(*sides)
    made.at_rest()
    before = [side.books() for side in made]
    try:
        yield made
        for side in made:
            side.control.reset()
        made.at_rest()
        assert [side.books() for side in made] == before, "bytes and handles that are out, now and before"
    finally:
        for side in made:
            side.control.reset()
        dm.close()


@pytest.fixture(params=list(itertools.permutations(VENDORS)), ids=lambda pair: f"{pair[0]} to {pair[1]}")
def way(both: Both, request: pytest.FixtureRequest) -> tuple[Side, Side]:
    """(source, destination), each way round."""
    source, destination = request.param
    return getattr(both, source), getattr(both, destination)


def data() -> np.ndarray:
    return np.arange(4 * 6 * 128, dtype=np.int32).reshape(4, 6, 128)


# -- what is there -----------------------------------------------------------------------------------------------------


def test_both_vendors_devices_are_listed(both: Both) -> None:
    listed = dm.devices()
    for side in both:
        mine = [each for each in listed if each.backend == side.name]
        assert len(mine) >= 2
        assert side.device in mine
    gpus = [each for each in listed if each.backend in VENDORS]
    assert len({each.info.uuid for each in gpus}) == len(gpus)


def test_each_array_is_where_it_was_put(both: Both) -> None:
    for side in both:
        array = dm.to_device(data(), device=side.device)
        assert array.device == side.device
        assert array.device.backend == side.name
        assert np.array_equal(array.copy_to_host(), data())


def test_what_is_current_of_one_vendor_is_not_disturbed_by_the_other(both: Both) -> None:
    with both.roc.device:
        for array in (dm.to_device(data(), device=both.cuda.device), dm.to_device(data())):
            assert np.array_equal(array.copy_to_host(), data())
        assert dm.current_device() == both.roc.device
    with dm.use_backend("cuda"):
        assert dm.current_device().backend == "cuda"


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_to_device_copies_across(layout: str, way: tuple[Side, Side]) -> None:
    source, destination = way
    there = dm.to_device(data(), device=source.device)[LAYOUTS[layout]]
    here = dm.to_device(there, device=destination.device)
    assert here.device == destination.device
    assert np.array_equal(here.copy_to_host(), data()[LAYOUTS[layout]])
    assert np.array_equal(there.copy_to_host(), data()[LAYOUTS[layout]])


@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, repeat=2)), ids=" into ".join)
def test_copy_to_device_copies_across(layouts: tuple[str, str], way: tuple[Side, Side]) -> None:
    """Any layout into any other of its shape; what lies between the elements stays."""
    source, destination = way
    origin = dm.to_device(data(), device=source.device)[LAYOUTS[layouts[0]]]
    base = dm.to_device(np.full((4, 6, 128), -1, np.int32), device=destination.device)
    target = base[LAYOUTS[layouts[1]]]
    model = np.full((4, 6, 128), -1, np.int32)
    shape = tuple(map(min, zip(origin.shape, target.shape, strict=True)))
    box = tuple(slice(0, length) for length in shape)
    target[box].copy_to_device(origin[box])
    model[LAYOUTS[layouts[1]]][box] = data()[LAYOUTS[layouts[0]]][box]
    assert np.array_equal(base.copy_to_host(), model)


def test_with_streams_of_both(way: tuple[Side, Side]) -> None:
    """The source's stream holds back what the copy has to wait for; the destination's orders what comes after."""
    source, destination = way
    with source.device:
        here = dm.stream()
        origin = dm.to_device(data(), stream=here)
        origin.fill(7, stream=here)
    with destination.device:
        there = dm.stream()
        target = dm.to_device(origin, stream=there, device=destination.device)
        target[1].fill(9, stream=there)
        found = target.copy_to_host(stream=there)
        there.synchronize()
    model = np.full_like(data(), 7)
    model[1] = 9
    assert np.array_equal(found, model)


def test_a_held_source_stream_is_waited_for(way: tuple[Side, Side]) -> None:
    """What was enqueued on the source's own stream is done before the other vendor's device sees the bytes."""
    source, destination = way
    here = with_stream(source)
    origin = dm.to_device(data(), stream=here, device=source.device)
    here.synchronize()
    outcome: list[np.ndarray] = []
    thread = threading.Thread(
        target=lambda: outcome.append(dm.to_device(origin, device=destination.device).copy_to_host())
    )
    with source.device, source.control.hold(here) as held:
        origin.fill(5, stream=here)
        thread.start()
        assert outcome == []
        held.release()
    thread.join(patience())
    assert not thread.is_alive()
    assert np.array_equal(outcome[0], np.full_like(data(), 5))


def test_the_source_may_be_dropped_at_once(way: tuple[Side, Side]) -> None:
    source, destination = way
    stream = with_stream(destination)
    target = dm.to_device(dm.to_device(data(), device=source.device), stream=stream, device=destination.device)
    gc.collect()
    stream.synchronize()
    assert np.array_equal(target.copy_to_host(), data())


def test_an_array_crosses_between_the_vendors_and_back_unchanged(both: Both) -> None:
    array = dm.to_device(data(), device=both.cuda.device)
    for _ in range(3):
        for side in (both.roc, both.cuda):
            array = dm.to_device(array, device=side.device)
    assert np.array_equal(array.copy_to_host(), data())


def test_pinned_memory_of_one_vendor_is_host_memory_to_the_other(way: tuple[Side, Side]) -> None:
    """It is page-locked for one library and pageable for the other: right on both, and kept until the later copy has read it."""
    source, destination = way
    with source.device:
        pinned = dm.pinned_array((4, 6, 128), np.int32)
        pinned[...] = data()
    stream = with_stream(destination)
    array = dm.to_device(pinned, stream=stream, device=destination.device)
    with destination.device:
        stream.synchronize()
    pinned[...] = -1
    assert np.array_equal(array.copy_to_host(), data())
    array.copy_to_host(pinned)
    assert np.array_equal(pinned, data())


def test_the_same_memory_registered_with_both(both: Both) -> None:
    host = np.zeros(50_000, np.int32)
    with both.cuda.device, dm.pinned(host), both.roc.device, dm.pinned(host):
        for side in both:
            dm.to_device(np.arange(50_000, dtype=np.int32), device=side.device).copy_to_host(host)
            assert host[-1] == 49_999
            host[...] = 0


SLOT, SLOTS = 4096, 3


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything from 100 bytes on passes through a few small slots of each device; to be named before `both`."""
    for name, value in {"THRESHOLD": 100, "SLOT_BYTES": SLOT, "SLOTS": SLOTS, "THREADS": 2}.items():
        monkeypatch.setenv(f"DEVMEM_STAGING_{name}", str(value))


def trim_rings(*devices: dm.Device) -> None:
    """Give slots back, after a look at how many there are."""
    for device in devices:
        with device.entered():
            ring = device.opened().ring
            assert len(ring.made) <= SLOTS
            assert set(ring.free_slots()) == set(ring.made)
            ring.trim()


@pytest.mark.parametrize("layout", ["whole", "rows", "columns"])
def test_large_arrays_pass_through_both_rings(staged: None, layout: str, way: tuple[Side, Side]) -> None:
    """In bounded memory: neither the host nor a ring ever holds the whole."""
    source, destination = way
    large = np.arange(64 * 40 * 200, dtype=np.int32).reshape(64, 40, 200)
    origin = dm.to_device(large, device=source.device)[LAYOUTS[layout]]
    stream = with_stream(destination)
    tracemalloc.start()
    try:
        target = dm.to_device(origin, stream=stream, device=destination.device)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    origin.fill(-1)  # the source is the caller's again
    target[:1].fill(7, stream=stream)  # and this comes after the copy
    stream.synchronize()
    expected = large[LAYOUTS[layout]].copy()
    expected[:1] = 7
    assert np.array_equal(target.copy_to_host(), expected)
    if layout != "columns":  # too narrow to be copied from slot to slot
        assert "peer staged" in dm.transfer_stats(device=destination.device)
    assert most < large.nbytes // 4
    trim_rings(source.device, destination.device)


def test_one_array_over_both_vendors_and_the_host(staged: None, both: Both) -> None:
    large = np.arange(97 * 500, dtype=np.int32).reshape(97, 500)
    devices = [both.cuda.device, "cuda:1", both.roc.device, "host:0", "roc:1"]
    pieces = dm.scatter(large, devices)
    assert [str(piece.device) for piece in pieces] == [str(device) for device in devices]
    assert np.array_equal(dm.gather(pieces), large)
    assert np.array_equal(dm.to_device(pieces[3], device="roc:0").copy_to_host(), large[59:78])
    assert np.array_equal(dm.to_device(pieces[0], device="host:0").copy_to_host(), large[:20])
    del pieces
    gc.collect()
    trim_rings(*(dm.device(f"{name}:{ordinal}") for name in VENDORS for ordinal in range(2)))


# -- handles that belong to the other ----------------------------------------------------------------------------------


def test_a_stream_of_the_other_vendor_is_refused(way: tuple[Side, Side]) -> None:
    source, destination = way
    stream = with_stream(destination)
    array = dm.to_device(data(), device=source.device)
    for call in (
        lambda: array.copy_to_host(stream=stream),
        lambda: array.fill(1, stream=stream),
        lambda: dm.to_device(data(), stream=stream, device=source.device),
    ):
        with pytest.raises((DevmemError, ValueError)) as told:
            call()
        assert str(source.device) in str(told.value) or source.name in str(told.value)
        assert destination.name in str(told.value)
    assert np.array_equal(array.copy_to_host(), data())


def test_an_event_of_the_other_vendor_is_waited_for_by_the_host(way: tuple[Side, Side]) -> None:
    """No stream of one can wait for an event of the other; so the host does, and the order is as it was asked for."""
    source, destination = way
    here, there = with_stream(source), with_stream(destination)
    origin = dm.to_device(data(), stream=here, device=source.device)
    target = dm.to_device(data(), stream=there, device=destination.device)
    source.control.delay(2000)
    origin.fill(3, stream=here)
    event = here.record()
    there.wait(event)
    assert event.query()
    target.copy_to_device(origin, stream=there)
    there.wait(here)
    there.synchronize()
    assert np.array_equal(target.copy_to_host(), np.full_like(data(), 3))


def test_times_of_the_two_do_not_compare(both: Both) -> None:
    events = []
    for side in both:
        with side.device:
            events.append(dm.event())
            events[-1].record()
            events[-1].synchronize()
    for start, end in (events, events[::-1]):
        with pytest.raises(LayoutError) as told:
            start.elapsed_time(end)
        assert str(both.cuda.device) in str(told.value)
        assert str(both.roc.device) in str(told.value)


# -- failures ----------------------------------------------------------------------------------------------------------


def functions(side: Side, call: Callable[[], object]) -> dict[str, int]:
    """The functions of one library that a call needs, and how often."""
    side.control.reset()
    call()
    found = side.control.calls()
    side.control.reset()
    return {name: count for name, count in found.items() if any(part in name for part in TRANSFER)}


def raised(call: Callable[[], object]) -> BackendError | None:
    """The error of a driver that a call ends with; a failure may also be swallowed, where it came too late to matter."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dm.DevmemWarning)
            call()
    except BackendError as error:
        return error
    return None


@pytest.mark.parametrize("failing", VENDORS)
@pytest.mark.parametrize("layout", ["whole", "columns"])
def test_each_failure_names_its_own_side(failing: str, layout: str, both: Both, way: tuple[Side, Side]) -> None:
    """Every call that a copy across makes fails in turn. The error says whose it is, and nothing is left on either."""
    source, destination = way
    side: Side = getattr(both, failing)
    origin = dm.to_device(data(), device=source.device)[LAYOUTS[layout]]
    stream = with_stream(destination)

    def call() -> None:
        here = dm.to_device(origin, stream=stream, device=destination.device)
        assert np.array_equal(here.copy_to_host(), data()[LAYOUTS[layout]])

    call()
    both.at_rest()
    books = [each.books() for each in both]
    told = 0
    for function, count in functions(side, call).items():
        for nth in range(1, count + 1):
            both.at_rest()
            side.control.fail(function, nth, UNKNOWN)
            error = raised(call)
            side.control.reset()
            if error is not None:
                told += 1
                assert error.backend == failing, f"call {nth} of {function}"
                assert error.call.startswith(side.prefix())
                assert error.code == UNKNOWN
            del error  # its traceback holds on to what the call had
            both.at_rest()
            assert [each.books() for each in both] == books, f"after call {nth} of {function} failed"
            call()
    assert told, "no failure was told"


def test_out_of_memory_on_one_side_is_that_sides(way: tuple[Side, Side]) -> None:
    source, destination = way
    origin = dm.to_device(data(), device=source.device)
    allocate = {"cuda": ("cuMemAlloc", "cuMemAllocFromPoolAsync"), "roc": ("hipMalloc", "hipMallocFromPoolAsync")}
    with destination.device:
        dm.trim()
    for function in allocate[destination.name]:
        destination.control.fail(function, 1, OUT_OF_MEMORY, repeat=True)
    with pytest.raises(OutOfMemory) as told:
        dm.to_device(origin, device=destination.device)
    destination.control.reset()
    assert told.value.backend == destination.name
    assert str(destination.device) in str(told.value)
    again = dm.to_device(origin, device=destination.device)
    assert np.array_equal(again.copy_to_host(), data())


@pytest.mark.parametrize("failing", VENDORS)
def test_one_vendors_lost_device_leaves_the_other_working(failing: str, both: Both) -> None:
    lost = 719  # a failed launch, of both: the context, or the device, is gone
    bad: Side = getattr(both, failing)
    [good] = [side for side in both if side is not bad]
    array = dm.to_device(data(), device=good.device)
    doomed = dm.to_device(data(), device=bad.device)
    for function in functions(bad, doomed.copy_to_host):
        if "Memcpy" in function:
            bad.control.fail(function, 1, lost)
    for call in (doomed.copy_to_host, functools.partial(dm.to_device, array, device=bad.device)):
        with pytest.raises(DeviceLost) as told:
            call()
        assert told.value.backend == failing
        assert told.value.code == lost
    copied = dm.to_device(array, device=good.device.backend + ":1")
    assert np.array_equal(copied.copy_to_host(), data())
    del doomed, call, told, copied, array
    bad.control.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dm.DevmemWarning)  # what was on the lost device cannot be given back
        with contextlib.suppress(DeviceLost):
            dm.close()
    vendors.VENDORS[failing]().renew()  # as a new process would find it
    for side in both:
        assert np.array_equal(dm.to_device(data(), device=f"{side.name}:0").copy_to_host(), data())
    for ordinal in range(2):
        dm.memory_info(device=f"{failing}:{ordinal}")


# -- many at once ------------------------------------------------------------------------------------------------------


def test_threads_that_copy_both_ways_at_once(both: Both) -> None:

    def body(number: int) -> None:
        first, second = (both.cuda, both.roc) if number % 2 else (both.roc, both.cuda)
        for turn in range(10):
            values = np.full(3000 + turn, number * 100 + turn, np.int32)
            array = dm.to_device(dm.to_device(values, device=first.device), device=second.device)
            assert np.array_equal(array.copy_to_host(), values)

    for side in both:
        side.control.delay(0, jitter=200, seed=3)
    together(*(partial(body, number) for number in range(4)))


def test_random_copies_among_all_devices_under_delays(both: Both) -> None:
    random = np.random.default_rng(11)
    devices = [each for each in dm.devices() if each.backend in VENDORS]
    for side in both:
        side.control.delay(0, jitter=100, seed=5)
    streams = {device: _stream_on(device) for device in devices}
    held: list[tuple[dm.DeviceNDArray, np.ndarray]] = []
    for _ in range(150):
        device = devices[random.integers(len(devices))]
        stream = streams[device] if random.random() < 0.5 else 0
        if not held or random.random() < 0.25:
            values = random.integers(0, 1000, (7, 50), np.int32)
            held.append((dm.to_device(values, stream=stream, device=device), values))
        elif random.random() < 0.7:
            array, values = held[random.integers(len(held))]
            part = np.s_[:: random.integers(1, 3), random.integers(0, 5) :]
            made = dm.to_device(array[part], stream=stream, device=device)
            if made.device == device and made.ptr != array.ptr:
                held.append((made, values[part].copy()))
        else:
            held.pop(random.integers(len(held)))
    for array, values in held:
        assert np.array_equal(array.copy_to_host(), values)


def _stream_on(device: dm.Device) -> dm.Stream:
    with device:
        return dm.stream()


def with_stream(side: Side) -> dm.Stream:
    """A stream of a vendor."""
    return _stream_on(side.device)
