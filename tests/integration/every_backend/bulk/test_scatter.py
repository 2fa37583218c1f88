"""One host array over several devices, and back: the pieces of ``numpy.array_split``, together or not at all."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from waits import blocked, patience

import devmem as dm
from devmem._core.bulk import scatter
from devmem._core.bulk.async_copy import Transfer
from devmem.errors import BackendError

SLOT, SLOTS = 1024, 3
DATA = np.arange(7 * 30 * 40, dtype="i4").reshape(7, 30, 40)


@pytest.fixture(params=["direct", "staged"])
def devices(request, with_settings, device):
    """Every device of the backend under test, twice; what is large passes through small slots, or does not."""
    if request.param == "staged":
        with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(SLOT), STAGING_SLOTS=str(SLOTS))
    else:
        with_settings(STAGING_SLOTS="0")
    return [each for each in dm.devices() if each.backend == device.backend] * 2


SOURCES = {
    "C": lambda: DATA,
    "Fortran": lambda: np.asfortranarray(DATA),
    "gaps": lambda: DATA[:, ::2, 1:],
    "reversed": lambda: DATA[::-1, :, ::-1],
    "one axis": lambda: DATA.ravel(),
    "read-only": lambda: np.broadcast_to(DATA[:1], DATA.shape),
    "records": lambda: np.zeros((9, 5), [("a", "i4"), ("b", "f8")]),
    "nothing": lambda: np.zeros((0, 3)),
    "list": lambda: [[1, 2], [3, 4], [5, 6]],
}


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("kind", SOURCES)
def test_gather_undoes_scatter(kind, axis, devices):
    source = SOURCES[kind]()
    pieces = dm.scatter(source, devices, axis)
    wanted = np.array_split(np.asarray(source), len(devices), axis)
    assert [piece.device for piece in pieces] == devices
    for piece, expected in zip(pieces, wanted, strict=True):
        assert piece.dtype == expected.dtype
        assert piece.stream is None
        assert np.array_equal(piece.copy_to_host(), expected)
    back = dm.gather(pieces, axis)
    assert back.dtype == np.asarray(source).dtype
    assert np.array_equal(back, source)


def test_more_devices_than_elements(devices):
    pieces = dm.scatter(DATA[:2], devices * 2, axis=0)
    assert [len(piece) for piece in pieces] == [1, 1] + [0] * (2 * len(devices) - 2)
    assert np.array_equal(dm.gather(pieces), DATA[:2])


def test_devices_by_name_and_number(device):
    pieces = dm.scatter(DATA, [device, str(device), device.ordinal])
    assert {piece.device for piece in pieces} == {device}
    assert np.array_equal(dm.gather(iter(pieces)), DATA)


def test_page_locked_memory(devices, need_kind):
    need_kind("pinned")
    source, out = dm.pinned_array_like(DATA), dm.pinned_array_like(DATA)
    source[...] = DATA
    out[...] = -1
    assert dm.gather(dm.scatter(source, devices, 1), 1, out) is out
    assert np.array_equal(out, DATA)


@pytest.mark.parametrize("room", [np.s_[:, :, ::2], np.s_[::-1, ...], np.s_[...]], ids=str)
def test_gather_fills_an_array_of_any_strides(room, devices):
    """Any strides; not a byte between its elements is touched."""
    base = np.full((7, 30, 80), -1, "i4")
    out = base[room] if base[room].shape == DATA.shape else base[..., :40][room]
    dm.gather(dm.scatter(DATA, devices), out=out)
    assert np.array_equal(out, DATA)
    out[...] = -1
    assert np.all(base == -1)


def test_views_and_bound_arrays(devices):
    """Pieces may be views, and on streams of their own: what was enqueued there comes first."""
    views = []
    for device in devices:
        with device:
            stream = dm.stream()
            array = dm.to_device(np.zeros((6, 30, 50), "i4"), stream=stream)
            array.fill(len(views) + 1, stream=stream)
            views.append(array[::2, :, 5:15])
    wanted = [np.full((3, 30, 10), at + 1, "i4") for at in range(len(views))]
    assert np.array_equal(dm.gather(views, axis=1), np.concatenate(wanted, axis=1))


def test_every_device_is_given_something_before_any_is_waited_for(recorded):
    every = [each for each in dm.devices() if each.backend == recorded.name]
    source = dm.pinned_array_like(DATA)
    source[...] = DATA
    with recorded.during() as calls:
        pieces = dm.scatter(source, every)
    order = [call.method for call in calls if call.method in ("copy", "stream_synchronize")]
    assert order[: len(every)] == ["copy"] * len(every)
    assert "stream_synchronize" in order
    out = dm.pinned_array_like(DATA)
    with recorded.during() as calls:
        dm.gather(pieces, out=out)
    order = [call.method for call in calls if call.method in ("copy", "event_synchronize", "stream_synchronize")]
    assert order[: len(every)] == ["copy"] * len(every)
    assert np.array_equal(out, DATA)


def test_large_pieces_go_in_turns(device, with_settings, monkeypatch, second):
    """No device waits until all of another's piece has passed through the ring."""
    with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(SLOT), STAGING_SLOTS="2")
    turns = []
    write = scatter._upload_part

    def noted(array, *others):
        turns.append(array.device)
        write(array, *others)

    monkeypatch.setattr(scatter, "_upload_part", noted)
    pieces = dm.scatter(DATA[:6], [device, second])
    assert len(turns) > 10
    assert turns == [device, second] * (len(turns) // 2)
    assert np.array_equal(dm.gather(pieces), DATA[:6])


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused_with_the_reason(device):
    piece = dm.to_device(DATA)
    for call, kind, told in [
        (lambda: dm.scatter(DATA, []), dm.LayoutError, "no device"),
        (lambda: dm.scatter(DATA, 0), TypeError, "list of devices"),
        (lambda: dm.scatter(DATA, str(device)), TypeError, "list of devices"),
        (lambda: dm.scatter(DATA, [99]), dm.ConfigError, "99"),
        (lambda: dm.scatter(DATA, [device], axis=3), dm.LayoutError, "axis=3"),
        (lambda: dm.scatter(DATA, [device], axis=1.5), TypeError, "integer"),
        (lambda: dm.scatter(5, [device]), dm.LayoutError, "without axes"),
        (lambda: dm.scatter([object()], [device]), dm.LayoutError, "Python objects"),
        (lambda: dm.scatter(piece, [device]), TypeError, "host arrays"),
        (lambda: dm.gather([]), dm.LayoutError, "no arrays"),
        (lambda: dm.gather(piece), TypeError, "list of device arrays"),
        (lambda: dm.gather([piece, DATA]), TypeError, "array 1"),
        (lambda: dm.gather([piece, dm.to_device(DATA.astype("f4"))]), dm.LayoutError, "array 1 has dtype float32"),
        (lambda: dm.gather([piece, piece[:, 1:]]), dm.LayoutError, "array 1 has shape"),
        (lambda: dm.gather([piece, piece[0]]), dm.LayoutError, "array 1 has shape"),
        (lambda: dm.gather([dm.to_device(5)]), dm.LayoutError, "without axes"),
        (lambda: dm.gather([piece], axis=-4), dm.LayoutError, "axis=-4"),
        (lambda: dm.gather([piece], out=np.zeros(3, "i4")), dm.LayoutError, "shape"),
        (lambda: dm.gather([piece], out=np.zeros(DATA.shape)), dm.LayoutError, "dtype"),
        (lambda: dm.gather([piece], out=[1]), TypeError, r"gather\(out=\).* ndarray"),
        (lambda: dm.gather([piece], out=DATA.copy(), pinned=True), dm.LayoutError, "pinned=True"),
        (
            lambda: dm.gather([piece], out=np.broadcast_to(np.zeros((1, 30, 40), "i4"), DATA.shape)),
            dm.LayoutError,
            "read-only",
        ),
    ]:
        with pytest.raises(kind, match=told):
            call()
    freed = dm.to_device(DATA)
    freed.free()
    with pytest.raises(dm.ClosedError) as told:
        dm.gather([piece, freed])
    assert any("array 1 of 2" in note for note in told.value.__notes__)


@pytest.mark.parametrize("method", ["alloc", "alloc_async", "copy", "stream_synchronize"])
def test_a_failure_leaves_nothing_allocated(recorded, method):
    """On any device; and the error tells whose piece it was."""
    every = [each for each in dm.devices() if each.backend == recorded.name] * 2
    dm.scatter(DATA, every)
    error = BackendError("injected", backend=recorded.name, call=method, code=5, name="INJECTED")
    for nth in range(1, 20):
        gc.collect()
        dm.trim()
        before = [dm.memory_info(each).live for each in every]
        recorded.fail_at(nth, method, error)
        failed = None
        try:
            dm.scatter(DATA, every)
        except BackendError as found:
            failed = found
        recorded.disarm()
        if not recorded.injected:
            break
        assert failed is error
        for each in every:
            each.synchronize()
        dm.trim()
        assert [dm.memory_info(each).live for each in every] == before, "pieces live as long as the error"
        [note] = error.__notes__
        assert note.startswith("scatter: ")
        assert any(str(each) in note for each in every)
        del error.__notes__
    assert nth > len(set(every)) or method not in ("copy", "stream_synchronize")
    assert np.array_equal(dm.gather(dm.scatter(DATA, every)), DATA)


def test_a_failed_download_is_raised_and_the_destination_is_not_written_later(recorded, need_kind):
    every = [each for each in dm.devices() if each.backend == recorded.name] * 2
    pieces = dm.scatter(DATA, every)
    recorded.fail_at(2, "copy")
    out = np.zeros_like(DATA)
    with pytest.raises(dm.BackendError) as told:
        dm.gather(pieces, out=out)
    assert any("array 1 of" in note for note in told.value.__notes__)
    recorded.disarm()
    out[...] = -1
    dm.synchronize()
    assert np.all(out == -1)
    assert np.array_equal(dm.gather(pieces, out=out), DATA)


def test_what_is_under_way_is_waited_for_when_it_is_interrupted(device, monkeypatch):
    """That which was just being waited for, too."""
    pieces = dm.scatter(DATA, [device] * 3)
    wait, made, waited = Transfer.wait, [], []
    copy_async = scatter.copy_async

    def noted(*args):
        made.append(copy_async(*args))
        return made[-1]

    def interrupted(transfer, timeout=None):
        if not waited:
            waited.append(None)
            raise KeyboardInterrupt
        waited.append(transfer)
        return wait(transfer, timeout)

    monkeypatch.setattr(scatter, "copy_async", noted)
    monkeypatch.setattr(Transfer, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dm.gather(pieces)
    assert len(made) == 3
    assert waited[1:] == made


def test_what_is_under_way_is_waited_for_when_another_fails(recorded, need, need_kind, hold, in_background):
    """Or it would write to the caller's array after the call."""
    need("hold")
    need_kind("pinned")
    stream = dm.stream(non_blocking=True)
    first, second = dm.to_device(DATA, stream=stream), dm.to_device(DATA)
    out = dm.pinned_array((14, 30, 40), "i4")
    out[...] = -1
    dm.synchronize()
    with hold(stream) as latch:
        recorded.fail_at(2, "copy")
        done = in_background(lambda: dm.gather([first, second], out=out))
        blocked(done, "it came back while a copy was under way")
        latch.release()
        assert done.wait(patience())
    recorded.disarm()
    assert [type(error) for error in done.errors] == [BackendError]
    assert np.array_equal(out[:7], DATA)


EIGHT = """
import time
import numpy as np
import devmem as dm
from devmem.testing.emulator import control

devices = [each for each in dm.devices() if each.backend == dm.current_device().backend]
assert len(devices) == 8, devices
for each in devices:
    dm.to_device(np.zeros(10), device=each)
host = np.arange(8000.0)
controlled = control(dm.current_device().backend)
controlled.delay(40_000)

def seconds(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

def copies(pieces):
    for transfer in [dm.copy_async(piece, pinned=True) for piece in pieces]:
        transfer.wait()

one, eight = dm.scatter(host[:1000], devices[:1]), dm.scatter(host, devices)
works = {
    "scatter": (lambda: dm.scatter(host[:1000], devices[:1]), lambda: dm.scatter(host, devices)),
    "gather": (lambda: dm.gather(one), lambda: dm.gather(eight)),
    "copies": (lambda: copies(one), lambda: copies(eight)),
}
for name, (alone, together) in works.items():
    for _ in range(12):  # other processes may want the processors
        ratio = seconds(together) / seconds(alone)
        if ratio < 1.3:
            break
    assert ratio < 1.3, (name, ratio)
assert np.array_equal(dm.gather(eight), host)
"""


@pytest.mark.exhaustive  # it compares times
def test_eight_devices_take_as_long_as_one(python, device):
    """Each copy takes 40 ms there, so one behind the other would take eight times as long."""
    from devmem.testing import emulator

    try:
        emulator.control(device.backend)
    except emulator.EmulatorNotLoaded as error:
        pytest.skip(str(error))
    done = python(EIGHT, EMULATOR_DEVICES="8")
    assert done.returncode == 0, done.stderr
