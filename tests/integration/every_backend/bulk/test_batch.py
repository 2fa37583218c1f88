"""Many arrays in one go: the same structure, the same elements, one block, few calls, and nothing half done."""

from __future__ import annotations

import gc
import re
import sys
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest

import devmem as dm
from devmem._core.bulk.batch import upload
from devmem.testing import every_failure

pytestmark = pytest.mark.usefixtures("tidy", "device")

Pair = namedtuple("Pair", "first second")


def leaves():
    data = np.arange(24.0)
    return {
        "c": data.reshape(2, 3, 4),
        "f": np.asfortranarray(data.reshape(4, 6)),
        "axes swapped": data.reshape(2, 3, 4).transpose(1, 0, 2),
        "strided": data[::3],
        "backwards": data[::-2],
        "0-d": np.float32(7),
        "empty": np.zeros((0, 3), "i2"),
        "times": np.array(["2020-01-01", "NaT"], "M8[D]"),
        "record": np.array([(1, 2.5)], [("a", "u1"), ("b", "f8")]),
        "text": np.array(["abc", "de"]),
        "scalar": 3,
        "big endian": data.astype(">f4"),
    }


def same(mine, theirs):
    if isinstance(mine, dict):
        assert type(mine) is type(theirs) and list(mine) == list(theirs)
        return all(same(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, (list, tuple)):
        assert type(mine) is type(theirs) and len(mine) == len(theirs)
        return all(map(same, mine, theirs))
    found = theirs.copy_to_host() if isinstance(theirs, dm.DeviceNDArray) else theirs
    wanted = np.asarray(mine)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    return found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("staged", [False, True])
def test_a_tree_comes_back_with_its_structure_and_values(with_settings, staged, bound):
    if staged:
        with_settings(STAGING_THRESHOLD="64", STAGING_SLOT_BYTES="100")
    stream = dm.stream() if bound else 0
    tree = {"all": leaves(), "pair": Pair([np.arange(3)], (np.arange(5, dtype="u1"),)), "none": [], "more": [{}, ()]}
    up = dm.to_device_many(tree, stream)
    assert up["all"]["c"].stream is (stream or None)
    assert same(tree, up)
    down = dm.to_host_many(up, stream)
    assert same(tree, down)
    assert all(type(each) is np.ndarray for each in down["all"].values())


@pytest.mark.parametrize("strict", ["0", "1"])
def test_large_ones_among_small_ones(with_settings, strict):
    with_settings(HOST_STRICT=strict)
    large = np.arange(200_000.0).reshape(400, 500)
    for tree in ([large], [1, large, 2, large.T, 3, large[:, ::2]], (large[::-1], np.zeros(0), np.arange(3))):
        up = dm.to_device_many(tree)
        assert same(tree, up)
        assert same(tree, dm.to_host_many(up))


def test_structures_keep_their_classes():
    tree = OrderedDict(b=defaultdict(list, x=np.arange(2)), a=Pair(1.5, [2, (3,)]))
    up = dm.to_device_many(tree)
    assert up["b"].default_factory is list
    assert same(tree, up)
    assert same(tree, dm.to_host_many(up))


class Named(dict):
    """With something besides its items, and no `copy` of its own."""


def test_dicts_of_other_classes_keep_what_they_have_besides():
    tree = Named(a=np.arange(3))
    tree.name = "mine"
    for made in (up := dm.to_device_many(tree), dm.to_host_many(up)):
        assert type(made) is Named
        assert made.name == "mine"
    assert same(tree, up)
    assert isinstance(tree["a"], np.ndarray)


def test_what_lies_between_the_fields_of_records_goes_with_them():
    """As by `to_device`: nothing else that the host's memory held goes to the device."""
    dtype = np.dtype({"names": ["a", "b"], "formats": ["u1", "f4"], "offsets": [0, 4], "itemsize": 8})
    records = np.arange(8 * 24, dtype="u1").view(dtype).reshape(4, 6)
    tree = [records, records[:, ::2], records.T, records[::-1]]
    for array, made in zip(tree, dm.to_device_many(tree), strict=True):
        wanted = array.view("V8")
        assert made.copy_to_host().view("V8").tolist() == wanted.tolist()


def test_one_array_is_a_tree():
    up = dm.to_device_many(np.arange(4))
    assert isinstance(up, dm.DeviceNDArray)
    np.testing.assert_array_equal(dm.to_host_many(up), np.arange(4))


def test_other_leaves_stay_as_they_are_on_the_way_down():
    host, text = np.arange(3), "text"
    down = dm.to_host_many([dm.to_device(host), host, text, None])
    assert down[1] is host and down[2] is text and down[3] is None
    np.testing.assert_array_equal(down[0], host)


def test_device_arrays_are_taken_as_they_are():
    there = dm.to_device(np.arange(3))
    up = dm.to_device_many([there, np.arange(4)])
    assert up[0] is there


def test_device_arrays_of_another_device_are_copied(second):
    with second:
        there = dm.to_device(np.arange(3))
    up = dm.to_device_many([there, np.arange(4)])
    assert up[0].device == up[1].device == dm.current_device()
    np.testing.assert_array_equal(up[0].copy_to_host(), np.arange(3))
    down = dm.to_host_many([there, up[1]])
    np.testing.assert_array_equal(down[0], np.arange(3))
    np.testing.assert_array_equal(down[1], np.arange(4))


def test_they_share_one_block_as_long_as_one_of_them_lives(device):
    before = dm.memory_info().live
    arrays = dm.to_device_many([np.full(100, number, "u1") for number in range(10)])
    assert dm.memory_info().live - before == 10 * 256
    alignment = min(256, device.info.alignment)
    assert all(array.ptr % alignment == 0 for array in arrays)
    last = arrays[7]
    del arrays
    gc.collect()
    np.testing.assert_array_equal(last.copy_to_host(), np.full(100, 7, "u1"))
    last.free()
    assert dm.memory_info().live == before


def test_arrays_of_their_own_come_down_together():
    hosts = [np.random.default_rng(n).random((n, 5)) for n in range(12)]
    arrays = [dm.to_device(host, stream=dm.stream() if n % 2 else 0) for n, host in enumerate(hosts)]
    arrays += [arrays[7][:, ::2], arrays[6].T, arrays[5][::-1]]
    hosts += [hosts[7][:, ::2], hosts[6].T, hosts[5][::-1]]
    for found, wanted in zip(dm.to_host_many(arrays), hosts, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_bound_arrays_are_waited_for(recorded):
    stream = dm.stream(non_blocking=True)
    array = dm.to_device(np.arange(1000.0), stream=stream)
    other = dm.to_device(np.arange(3))
    with recorded.during() as seen:
        dm.to_host_many([array, other])
    names = [call.method for call in seen]
    assert "stream_wait" in names
    assert names.index("stream_wait") < names.index("copy")


def test_a_leaf_that_cannot_be_copied_is_named():
    before = dm.memory_info().live
    with pytest.raises(dm.LayoutError, match=r"^tree\['w'\]\[2\]\[0\]: "):
        dm.to_device_many({"x": np.arange(3), "w": [1, np.arange(2), (object(),)]})
    assert dm.memory_info().live == before


def test_what_may_be_a_leaf_is_told():
    with pytest.raises(dm.LayoutError, match=r"^tree\['a'\]\[1\]: None is no array.*give an array, a number or text"):
        dm.to_device_many({"a": [1, None]})


def within_itself():
    tree = {"x": np.arange(3), "w": [1, (2, [3])]}
    tree["w"][1][1].append(tree["w"])
    return tree


def within_a_tuple():
    tree = [np.arange(3), ([],)]
    tree[1][0].append(tree[1])
    return tree


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        (within_itself(), r"^tree\['w'\]\[1\]\[1\]\[1\] is tree\['w'\] again"),
        (within_a_tuple(), r"^tree\[1\]\[0\]\[0\] is tree\[1\] again"),
    ],
)
def test_a_tree_within_itself_is_refused(tree, told):
    before = dm.memory_info().live
    for verb in (dm.to_device_many, dm.to_host_many):
        with pytest.raises(dm.LayoutError, match=told):
            verb(tree)
    assert dm.memory_info().live == before


def test_one_container_at_several_places_is_no_cycle():
    shared = [np.arange(3), [np.arange(2)]]
    tree = [shared, shared, {"x": shared}]
    assert same(tree, dm.to_host_many(dm.to_device_many(tree)))


def nested(levels):
    tree = [np.arange(3)]
    for _ in range(levels):
        tree = [tree]
    return tree


def test_a_tree_may_be_deep():
    """As deep as Python's calls may be: what is deeper is refused before anything is copied, and not after."""
    room = sys.getrecursionlimit()
    found = dm.to_host_many(dm.to_device_many(nested(room // 2)))
    for _ in range(room // 2):
        [found] = found
    assert np.array_equal(found[0], np.arange(3))
    before = dm.memory_info().live
    for verb in (dm.to_device_many, dm.to_host_many):
        with pytest.raises(dm.LayoutError, match="deeper than Python"):
            verb(nested(room + 1))
    assert dm.memory_info().live == before


def test_records_are_records():
    """As by `to_device` and `copy_to_host` of one; a structured array without axes is an array, there as here."""
    record = np.array((7, 2.5), [("a", "u1"), ("b", "f8")])
    tree = [record[()], 1, record, np.rec.array(record.reshape(1))[0]]
    up = dm.to_device_many(tree)
    assert [type(each) for each in up] == [type(dm.to_device(each)) for each in tree]
    assert isinstance(up[0], dm.DeviceRecord) and isinstance(up[3], dm.DeviceRecord)
    assert (up[0]["a"], up[3]["b"]) == (7, 2.5)
    up[0]["a"] = 8
    down = dm.to_host_many(up)
    assert isinstance(down[0], np.void) and isinstance(down[2], np.ndarray)
    assert down[0] == np.array((8, 2.5), record.dtype)[()]
    assert down[2] == record


@pytest.mark.parametrize(
    ("nbytes", "told"),
    [(100, r"3 leaves together, tree\['w'\]\[0\] to tree\['w'\]\[2\]"), (40_000, r"tree\['w'\]\[1\]")],
)
def test_what_was_being_copied_when_a_driver_refused_is_told(recorded, nbytes, told):
    tree = {"w": [np.zeros(100, "u1"), np.zeros(nbytes, "u1"), np.zeros(100, "u1")]}
    recorded.fail_at(1 if nbytes == 100 else 2, "copy")
    with pytest.raises(dm.BackendError) as caught:
        dm.to_device_many(tree)
    recorded.disarm()
    [note] = caught.value.__notes__
    assert re.fullmatch(f"to_device_many: {told}", note)


@pytest.mark.parametrize(
    ("nbytes", "told"),
    [(100, r"2 leaves together, tree\['w'\]\[1\] to tree\['w'\]\[2\]"), (400_000, r"tree\['w'\]\[1\]")],
)
def test_what_was_being_fetched_when_a_driver_refused_is_told(recorded, nbytes, told):
    up = dm.to_device_many({"w": [np.zeros(nbytes, "u1"), np.zeros(100, "u1")]})
    tree = {"w": ["text", *up["w"]]}
    recorded.fail_at(1 if nbytes == 100 else 2, "copy")
    with pytest.raises(dm.BackendError) as caught:
        dm.to_host_many(tree)
    recorded.disarm()
    [note] = caught.value.__notes__
    assert re.fullmatch(f"to_host_many: {told}", note)


def test_what_a_leaf_raises_itself_tells_which():
    class Broken:
        def __array__(self, *_, **__):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as told:
        dm.to_device_many({"x": [1, Broken()]})
    assert told.value.__notes__ == ["to_device_many: tree['x'][1]"]


def test_where_the_device_is_full_each_comes_down_on_its_own():
    hosts = [np.full(20_000 + number, number, "u1") for number in range(8)]
    hosts += [np.arange(60.0).reshape(6, 10).T, np.zeros((0, 3), "i2")]
    with dm.use_memory("limit:200KiB"):
        arrays = [dm.to_device(host) for host in hosts]
        with pytest.raises(dm.OutOfMemory):
            dm.device_array(sum(host.nbytes for host in hosts), "u1")
        assert same(hosts, dm.to_host_many(arrays))


def test_what_comes_down_is_counted_once():
    arrays = [dm.to_device(np.arange(512.0).reshape(16, 32)) for _ in range(3)]
    dm.transfer_stats(reset=True)
    down = dm.to_host_many([arrays[0][:, ::2], arrays[1], arrays[2].T])
    assert sum(path["bytes"] for path in dm.transfer_stats(reset=True).values()) == sum(each.nbytes for each in down)
    dm.to_host_many(arrays)
    assert [path["copies"] for path in dm.transfer_stats().values()] == [1]


def test_freed_arrays_are_refused():
    arrays = dm.to_device_many([np.arange(3), np.arange(4)])
    other = dm.to_device(np.arange(5))
    arrays[0].free()
    with pytest.raises(dm.ClosedError) as told:
        dm.to_host_many({"good": other, "gone": [3, *arrays]})
    assert told.value.__notes__ == ["to_host_many: tree['gone'][1]"]


def test_elements_are_aligned_on_the_host_wherever_they_lie_in_their_block():
    host = np.arange(64, dtype="u1")
    block = dm.to_device(host)
    down = dm.to_host_many([block[1:2], block[8:16].view("f8"), block[24:56].view("c16")])
    assert all(each.flags.aligned for each in down)
    assert same([host[1:2], host[8:16].view("f8"), host[24:56].view("c16")], down)


def test_it_takes_one_allocation_and_one_copy(recorded):
    hosts = [np.full(100, number, "f4") for number in range(50)]
    dm.to_device_many(hosts)
    with recorded.during() as seen:
        up = dm.to_device_many(hosts)
    names = [call.method for call in seen]
    assert sum("alloc" in name for name in names) <= 1  # none, from a pool
    assert names.count("copy") == 1
    with recorded.during() as seen:
        dm.to_host_many(up)
    assert [call.method for call in seen].count("copy") == 1


# -- page-locked leaves, and blocks of their own: the driver's batches ---------------------------------------------------

KIB = 1 << 10


def pinned(nbytes, seed=0):
    array = dm.pinned_array(nbytes, np.uint8)
    array[...] = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    return array


def described(arrays):
    kept = {id(array.allocation): None for array in arrays}
    first = min(array.ptr for array in arrays if array.nbytes)
    return [
        (
            type(array), array.ptr and array.ptr - first, array.shape, array.dtype, array.strides, array.stream,
            array.open_device, list(kept).index(id(array.allocation)), array.allocation.freed,
        )
        for array in arrays
    ]  # fmt: skip


@pytest.mark.parametrize("bound", [False, True])
def test_the_compiled_core_makes_the_arrays_that_python_makes(monkeypatch, bound):
    if upload.core is None:
        pytest.skip("Python makes them")
    data, stream = np.arange(24.0), dm.stream() if bound else 0
    tree = [data, data.reshape(2, 3, 4), np.zeros((0, 3), "i2"), np.float32(7), data[:5].astype("u1"), data[:0], data]
    compiled = dm.to_device_many(tree, stream)
    monkeypatch.setattr(upload, "core", None)
    python = dm.to_device_many(tree, stream)
    assert described(compiled) == described(python)
    assert same(tree, compiled) and same(tree, python)


def test_page_locked_leaves_are_copied_from_where_they_are_by_one_call(need, recorded):
    need("batch_copy")
    leaves = [pinned(32 * KIB + number, number) for number in range(20)]
    small, large = [np.arange(number) for number in range(10)], np.arange(10_000.0)
    stream = dm.stream()
    tree = [*leaves[:10], *small, large, large.reshape(100, 100).T[::-1], *leaves[10:]]
    with recorded.during() as seen:
        up = dm.to_device_many(tree, stream)
    batches = [call for call in seen if call.method == "copy_batch"]
    [batch] = batches
    assert batch.args[1] == [leaf.ctypes.data for leaf in leaves]
    assert batch.args[2] == [leaf.nbytes for leaf in leaves]
    assert batch.args[0] == [array.ptr for array in (*up[:10], *up[-10:])]
    assert [call.method for call in seen].count(
        "copy"
    ) == 2  # the small ones and the strided one together, and the large one
    assert same(tree, up)
    assert dm.transfer_stats()["h2d batch"]["bytes"] == sum(leaf.nbytes for leaf in leaves)
    with recorded.during() as seen:
        dm.to_device_many(leaves[:1], stream)
    assert [call.method for call in seen if call.method.startswith("copy")] == ["copy"]


@pytest.mark.parametrize(("together", "calls"), [(8, [8, 8, 4]), (19, [19, 1]), (20, [20]), (1, [1] * 20)])
def test_a_long_batch_is_made_by_several_calls_so_that_the_first_copies_meanwhile(
    need, recorded, monkeypatch, together, calls
):
    need("batch_copy")
    monkeypatch.setattr(upload, "TOGETHER", together)
    leaves, small = [pinned(32 * KIB + number, number) for number in range(20)], np.arange(3)
    tree, stream = [*leaves[:5], small, *leaves[5:]], dm.stream()
    with recorded.during() as seen:
        up = dm.to_device_many(tree, stream)
    copied = [
        len(call.args[0]) if call.method == "copy_batch" else 1
        for call in seen
        if call.method in ("copy_batch", "copy")  # a copy that is left by itself is a single one
    ]
    assert copied == [1, *calls], "the small one first"
    assert same(tree, up)


def test_arrays_are_made_while_the_device_copies(need, recorded, monkeypatch):
    need("batch_copy")
    make, began = upload._Upload._arrays, []

    def made(*what, **how):
        began.append("copy_batch" in [call.method for call in recorded.log])
        return make(*what, **how)

    monkeypatch.setattr(upload._Upload, "_arrays", made)
    tree, stream = [pinned(32 * KIB, number) for number in range(10)], dm.stream()
    up = dm.to_device_many(tree, stream)
    assert began == [True]
    assert same(tree, up)


def test_views_of_one_page_locked_array_are_looked_at_once(need, monkeypatch):
    """What takes as long for each as its place in the batch."""
    need("batch_copy")
    looked, look = [], upload.host_memory_of
    monkeypatch.setattr(upload, "host_memory_of", lambda *what, **how: looked.append(what) or look(*what, **how))
    one, other = dm.pinned_array((50, 32 * KIB), np.uint8), dm.pinned_array((50, 32 * KIB), np.uint8)
    one[...], other[...] = 1, 2
    plain = np.full((3, 32 * KIB), 3, np.uint8)
    tree = [*one, *plain, *other, plain[0].copy()]
    before = dm.transfer_stats().get("h2d batch", {"bytes": 0})["bytes"]
    assert same(tree, dm.to_device_many(tree, dm.stream()))
    assert len(looked) == 3
    assert dm.transfer_stats()["h2d batch"]["bytes"] - before == one.nbytes + other.nbytes


def test_sources_of_a_batch_live_until_the_stream_has_passed(need, hold):
    need("batch_copy", "hold")
    stream = dm.stream(non_blocking=True)
    leaves = [pinned(32 * KIB, number) for number in range(4)]
    wanted = [leaf.copy() for leaf in leaves]
    with hold(stream) as latch:
        up = dm.to_device_many(leaves, stream)
        del leaves
        gc.collect()
        others = [
            dm.pinned_array(32 * KIB, np.uint8) for _ in range(4)
        ]  # where the sources were, if they were let go of
        for other in others:
            other[...] = 0
        latch.release()
    for found, expected in zip(dm.to_host_many(up), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("which", ["legacy", "none named"])
def test_on_the_legacy_stream_another_one_takes_the_batch_ordered_by_two_events(need, hold, recorded, device, which):
    """Drivers refuse the call there. What is on the legacy stream comes before, and what comes to be there, after."""
    need("batch_copy", "hold")
    stream = dm.legacy_default_stream() if which == "legacy" else 0
    leaves = [pinned(32 * KIB, number) for number in range(10)]
    wanted = [leaf.copy() for leaf in leaves]
    if which == "none named":
        with recorded.during() as seen:
            assert same(leaves, dm.to_device_many(leaves))
    else:
        with hold(stream) as latch, recorded.during() as seen:
            up = dm.to_device_many(leaves, stream)
            outs = [dm.pinned_array(32 * KIB, np.uint8) for _ in leaves]
            for array, out in zip(up, outs, strict=True):
                array.copy_to_host(out, stream=stream)
            assert not stream.query()
            latch.release()
        del leaves
        stream.synchronize()
        assert same(wanted, outs)
    calls = [call for call in seen if call.method in ("copy_batch", "stream_wait", "event_record")]
    at = [call.method for call in calls].index("copy_batch")
    on = calls[at].args[4]
    assert on not in (1, 2)
    assert [call.method for call in calls[at - 2 : at + 3]] == [
        "event_record", "stream_wait", "copy_batch", "event_record", "stream_wait",
    ]  # fmt: skip
    assert (calls[at - 1].args[0], calls[at + 1].args[1]) == (on, on)
    with recorded.during() as seen:
        dm.to_device_many([pinned(32 * KIB, number) for number in range(10)], stream)
    assert "stream_create" not in [call.method for call in seen], "made once"
    with recorded.during() as seen:
        dm.to_device_many([pinned(32 * KIB, number) for number in range(3)], stream)
    assert "copy_batch" not in [call.method for call in seen], "not worth two events"


@pytest.mark.parametrize("count", [2, 10])
def test_the_per_thread_stream_takes_the_batch_itself(need, hold, recorded, count):
    """Drivers refuse the call on the legacy stream alone."""
    need("batch_copy", "hold")
    stream, leaves = dm.per_thread_default_stream(), [pinned(32 * KIB, number) for number in range(count)]
    with hold(stream) as latch, recorded.during() as seen:
        up = dm.to_device_many(leaves, stream)
        assert not stream.query()
        latch.release()
    enqueued = [call for call in seen if call.method in ("copy", "copy_batch", "stream_create", "stream_wait")]
    assert [(call.method, call.args[4]) for call in enqueued] == [("copy_batch", stream.handle)]
    assert same(leaves, up)


def test_a_driver_that_turns_out_to_have_no_call_for_several_copies_is_asked_once(need, device, monkeypatch):
    need("batch_copy")
    asked = []

    def refuse(*arguments):
        asked.append(arguments)
        raise dm.UnsupportedError("no such call")

    monkeypatch.setattr(device.driver(), "copy_batch", refuse, raising=False)
    monkeypatch.setattr(device.opened().copies, "batches", True)  # what it will be again afterwards
    leaves = [pinned(32 * KIB, number) for number in range(10)]
    for stream in (dm.stream(), 0, dm.stream()):
        assert same(leaves, dm.to_device_many(leaves, stream))
    assert len(asked) == 1


def test_registered_leaves_arrive(need):
    need("host_register")
    host = np.arange(100_000.0)
    leaves = [host[:20_000], host[20_000:40_000], host[30_000:90_000], host[::2]]
    with dm.register(host[:50_000]):  # the third lies half in it
        assert same(leaves, dm.to_device_many(leaves, dm.stream()))
    assert same(leaves, dm.to_device_many(leaves))


def test_memory_that_is_locked_meanwhile_is_looked_at_again(need, device, monkeypatch):
    need("batch_copy", "host_register")
    leaves, other = [pinned(40 * KIB, number) for number in range(3)], np.zeros(1 << 20, np.uint8)
    context = device.opened()
    before = dm.transfer_stats().get("h2d batch", {"copies": 0})["copies"]
    hold = type(context.page_locks).hold_page_locks
    registered = []

    def first(self, low, high):
        if not registered:
            registered.append(dm.register(other))
        return hold(self, low, high)

    with monkeypatch.context() as patch:
        patch.setattr(type(context.page_locks), "hold_page_locks", first)
        up = dm.to_device_many(leaves, dm.stream())
    assert registered
    assert same(leaves, up)
    assert dm.transfer_stats().get("h2d batch", {"copies": 0})["copies"] == before
    dm.deregister(other)


def test_arrays_of_their_own_are_put_together_by_one_call(device, need, recorded):
    need("batch_copy")
    if not device.info.staging_threshold:
        pytest.skip(f"{device} has pageable memory as good as page-locked: nothing is packed")
    hosts = [np.random.default_rng(number).random(100 + number) for number in range(20)]
    arrays = [dm.to_device(host) for host in hosts]
    with recorded.during() as seen:
        down = dm.to_host_many(arrays, dm.stream())
    names = [call.method for call in seen]
    assert (names.count("copy_batch"), names.count("copy")) == (1, 1)
    assert same(hosts, down)


def test_where_a_graph_is_captured_everything_is_copied_from_where_it_is(device, monkeypatch):
    context = device.opened()
    stream = dm.stream()
    leaves = [pinned(80), pinned(160, 1), np.zeros(0), pinned(800_000), pinned(40 * KIB), pinned(40 * KIB, 1)]
    batch = tuple(leaf.ctypes.data for leaf in leaves[3:])
    seen, captured = [], {stream.handle}

    class Capturing:
        def __init__(self, driver):
            self.driver = driver

        def __getattr__(self, name):
            return getattr(self.driver, name)

        def capturing(self, handle):
            return handle in captured

        def copy(self, dst, src, *rest, **options):
            seen.append(src)
            return self.driver.copy(dst, src, *rest, **options)

        def copy_batch(self, dsts, srcs, *rest):
            seen.append(tuple(srcs))
            return self.driver.copy_batch(dsts, srcs, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(context.handle, "capabilities", context.handle.capabilities | {dm.spi.types.Capability.CAPTURE})
        patch.setattr(context.handle, "driver", Capturing(context.handle.driver))
        patch.setattr(stream, "simple", False)
        up = dm.to_device_many(leaves, stream)
        assert seen == [leaf.ctypes.data for leaf in leaves if leaf.size]
        captured.clear()
        dm.to_device_many(leaves, stream)
    assert (batch in seen) == context.handle.has(dm.spi.types.Capability.BATCH_COPY), "else they would be one call"
    stream.synchronize()
    assert same(leaves, up)


@pytest.mark.parametrize("named", [False, True])
def test_a_failure_leaves_nothing_behind(recorded, with_settings, named):
    """Whichever call of the driver fails: the error is raised, no memory stays, and the next batch is right."""
    with_settings(STAGING_THRESHOLD="20000", STAGING_SLOT_BYTES="20000")
    leaves = [np.arange(10), pinned(33 * KIB), pinned(34 * KIB, 1), np.arange(5000.0), np.arange(5000.0)[::2]]
    stream = dm.stream() if named else 0
    own = [dm.to_device(leaf) for leaf in leaves]

    def call():
        up = dm.to_device_many(leaves, stream)
        dm.to_host_many(up, stream)
        dm.to_host_many(own, stream)

    def check():
        gc.collect()
        dm.synchronize()
        dm.trim()
        assert dm.memory_info().live == live
        assert same(leaves, dm.to_device_many(leaves, stream))
        assert same(leaves, dm.to_host_many(own, stream))
        dm.synchronize()
        dm.trim()

    call()
    dm.synchronize()
    dm.trim()
    live = dm.memory_info().live
    assert every_failure(call, recorded, check=check) > 10
