"""`devmem.spill.Store`: more arrays than fit on the device, exact, in bounded memory, and nothing taken that the program has."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from waits import MOMENT, patience, together

import devmem as dm
from devmem._core.arrays import creation
from devmem._core.bulk.spill import blocks
from devmem._core.bulk.spill import store as module
from devmem.spill import Store
from devmem.testing import hold

KIB = 1024
PACKAGE = Path(module.__file__).parent


def host(number, kib=64):
    return np.random.default_rng(number).integers(0, 255, kib * KIB, np.uint8)


def put(store, *numbers, kib=64):
    for number in numbers:
        store[number] = dm.to_device(host(number, kib))


def exact(store, *numbers, kib=64):
    return all(np.array_equal(store[number].copy_to_host(), host(number, kib)) for number in numbers)


@pytest.fixture
def make(tmp_path, tidy, device):
    """A store with a limit of two blocks on the device, and of two on the host, that is closed afterwards."""
    made = []

    def new(device="128KiB", host="128KiB", disk=tmp_path, **more):
        made.append(Store(device, host, disk, **more))
        return made[-1]

    yield new
    for each in made:
        each.close()


# -- tiers and limits ---------------------------------------------------------------------------------------------------


def test_the_oldest_leave_for_the_host_and_then_for_the_disk(make):
    store = make()
    put(store, *range(6))
    assert [store.tier(number) for number in range(6)] == ["disk"] * 2 + ["host"] * 2 + ["device"] * 2
    assert exact(store, *range(6))
    assert exact(store, *reversed(range(6)))
    stats = store.stats()
    assert [stats[tier]["count"] for tier in ("device", "host", "disk")] == [2, 2, 2]
    assert [stats[tier]["bytes"] for tier in ("device", "host", "disk")] == [128 * KIB] * 3


def test_what_was_used_last_stays(make):
    store = make()
    put(store, 0, 1)
    assert exact(store, 0)
    put(store, 2)
    assert [store.tier(number) for number in range(3)] == ["device", "host", "device"]


def test_what_has_not_moved_is_the_same_memory(make):
    store = make()
    array = dm.to_device(host(0))
    store["a"] = array
    assert store["a"].ptr == array.ptr
    del array
    first = store["a"]
    assert store["a"].ptr == first.ptr
    first[:3] = 7
    assert (store["a"][:3].copy_to_host() == 7).all()


def test_an_array_that_the_program_holds_stays(make):
    store = make()
    store["held"] = array = dm.to_device(host(0))
    store["view"] = base = dm.to_device(host(1))
    view = base[10:20]
    del base
    put(store, 2, 3, 4)
    assert store.tier("held") == store.tier("view") == "device"
    assert store.stats()["device"]["held"] == 128 * KIB
    assert store.spill() == 0 or store.tier("held") == "device"
    assert np.array_equal(array.copy_to_host(), host(0))
    del view, array
    assert store.spill() == 128 * KIB
    assert [store.tier(key) for key in ("held", "view")] == ["host"] * 2
    assert np.array_equal(store["held"].copy_to_host(), host(0))


def test_a_returned_array_is_held_again_and_again(make):
    store = make()
    put(store, 0)
    for _ in range(3):
        array = store[0]
        assert store.spill() == 0
        assert np.array_equal(array.copy_to_host(), host(0))
        del array
        assert store.spill() == 64 * KIB
        assert store.tier(0) == "host"


def test_a_consumer_of_dlpack_holds_too(make):
    store = make()
    put(store, 0)
    capsule = store[0].__dlpack__(stream=None if dm.current_device().info.exchange.streams is None else -1)
    assert store.spill() == 0
    del capsule
    assert store.spill() == 64 * KIB


def test_without_limits_nothing_moves_until_it_is_asked(make):
    store = make(None, None)
    put(store, *range(5))
    assert store.stats()["device"]["count"] == 5
    assert store.spill(keep_bytes=130 * KIB) == 192 * KIB
    assert store.spill(tier="host") == 192 * KIB
    assert [store.tier(number) for number in range(5)] == ["disk"] * 3 + ["device"] * 2
    assert exact(store, *range(5))


def test_an_array_that_is_larger_than_a_tier_passes_it(make):
    store = make("128KiB", "32KiB")
    put(store, 0, 1, 2)
    assert [store.tier(number) for number in range(3)] == ["disk", "device", "device"]
    store["large"] = dm.to_device(host(9, 512))
    assert store.spill() == 512 * KIB
    assert store.stats()["host"]["bytes"] == 0
    assert np.array_equal(store["large"].copy_to_host(), host(9, 512))


def test_a_full_store_says_so_and_loses_nothing(make):
    store = make(disk=None)
    put(store, *range(4))
    with pytest.raises(
        dm.OutOfMemory,
        match=r"its tier 'host' is (128\.0 KiB .131,072 bytes.), of which \1 are in use, and 64\.0 KiB .* more do not fit",
    ):
        put(store, 4)
    assert 4 not in store
    assert exact(store, 3, 2)
    store = make(disk_bytes="64KiB")
    put(store, *range(5))
    with pytest.raises(dm.OutOfMemory, match="tier 'disk'"):
        put(store, 5)
    assert sorted(store) == [0, 1, 2, 3, 4]


def test_memory_that_runs_out_moves_what_is_in_the_store(make, with_settings):
    with_settings(MEMORY_MANAGER="limit:512KiB,driver")
    store = make(None, None)
    put(store, *range(20))
    assert exact(store, *range(20))
    assert store.stats()["device"]["bytes"] <= 512 * KIB
    large = dm.to_device(host(1, 500))
    assert np.array_equal(large.copy_to_host(), host(1, 500))
    assert store.stats()["device"]["bytes"] == 0


# -- memory that is used again ---------------------------------------------------------------------------------------------


@pytest.fixture
def counts(device):
    """The statistics of device memory, and the pool of page-locked memory."""
    with (
        dm.use_memory(dm.memory.Statistics(dm.memory.DriverMemory())) as on_device,
        dm.use_memory(dm.memory.PinnedPool(), kind="pinned") as locked,
    ):
        yield on_device, locked


def asked(counts):
    """How often memory of each kind was asked for."""
    on_device, locked = counts
    report = locked.report()
    return on_device.snapshot().total_count, report.hits + report.misses


def test_an_array_comes_back_to_the_memory_of_one_that_leaves(make, counts):
    store = make(host=None, disk=None)
    put(store, *range(5))
    assert exact(store, 0)
    before = asked(counts)
    assert exact(store, *range(1, 5), *range(5))
    assert store.stats()["moves"]["host to device"]["count"] == 10
    assert asked(counts) == before
    assert store.stats()["device"]["bytes"] == counts[0].snapshot().current_bytes == 128 * KIB


def test_memory_that_another_key_is_in_is_not_used_again(make, counts):
    store = make(host=None, disk=None)
    put(store, 0)
    both = dm.to_device(host(1))
    store["whole"], store["part"] = both, both[:100]
    del both
    assert exact(store, 0)
    assert np.array_equal(store["whole"].copy_to_host(), host(1))
    assert np.array_equal(store["part"].copy_to_host(), host(1)[:100])
    assert exact(store, 0)


def test_memory_of_another_size_is_given_back(make, counts):
    store = make(host=None, disk=None)
    put(store, 0, 1, 2)
    store["large"] = dm.to_device(host(9, 128))
    assert exact(store, 0)  # the large one leaves
    assert counts[0].snapshot().current_bytes == 64 * KIB
    assert exact(store, 1)
    assert np.array_equal(store["large"].copy_to_host(), host(9, 128))
    assert counts[0].snapshot().current_bytes == 128 * KIB


def test_memory_comes_from_the_stack_in_force(make, counts):
    store = make(host=None, disk=None)
    put(store, 0, 1, 2)
    with dm.use_memory(dm.memory.Statistics(dm.memory.DriverMemory())) as other:
        assert exact(store, 0)
        assert other.snapshot().current_bytes == counts[0].snapshot().current_bytes == 64 * KIB


def test_page_locked_memory_of_one_array_is_kept_and_goes_with_the_store(make, counts):
    store, locked = make(host=None, disk=None), counts[1]
    put(store, *range(4))
    assert exact(store, 0, 1)
    dm.trim()
    assert locked.report().live_bytes == 3 * 64 * KIB
    store.close()
    dm.trim()
    assert locked.report().live_bytes == 0


# -- values -------------------------------------------------------------------------------------------------------------

GRID = np.arange(120.0).reshape(4, 5, 6)
RECORDS = np.zeros((2, 3), [("a", "i1"), ("b", "f8", (2,)), ("c", "M8[s]")])
ARRAYS = {
    "C": lambda: dm.to_device(GRID),
    "F": lambda: dm.to_device(GRID.T),
    "axes in another order": lambda: dm.to_device(GRID.transpose(1, 0, 2)),
    "strided": lambda: dm.to_device(GRID)[::2, :, 1::2],
    "negative strides": lambda: dm.to_device(GRID)[::-1, ::-2],
    "0-d": lambda: dm.to_device(GRID)[0, 0, 1:2].reshape(()),
    "empty": lambda: dm.to_device(GRID)[:, :0],
    "nothing": lambda: dm.device_array((0, 3), "f4"),
    "records": lambda: dm.to_device(RECORDS),
    "dates": lambda: dm.to_device(GRID.astype("M8[s]")),
    "foreign byte order": lambda: dm.to_device(GRID.astype(">i4")),
    "booleans": lambda: dm.to_device(GRID % 3 == 0),
}


@pytest.mark.parametrize("tier", ["device", "host", "disk"])
@pytest.mark.parametrize("name", ARRAYS)
def test_every_layout_and_dtype_comes_back(name, tier, make):
    store = make(None, None)
    array = ARRAYS[name]()
    wanted = array.copy_to_host()
    store["x"] = array
    del array
    move(store, tier)
    found = store["x"]
    assert (found.shape, found.dtype, type(found)) == (wanted.shape, wanted.dtype, dm.DeviceNDArray)
    assert found.copy_to_host().tobytes() == wanted.tobytes()


def move(store, tier):
    if tier != "device":
        store.spill()
    if tier == "disk":
        store.spill(tier="host")


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_trees_come_back_with_what_else_is_in_them(tier, make):
    store = make(None, None)
    shared = dm.to_device(GRID)
    frozen = np.arange(3)
    frozen.flags.writeable = False
    store["x"] = {"w": [shared, shared[1], (1, "two", None)], "b": np.arange(70000), "c": frozen}
    del shared
    move(store, tier)
    assert store.tier("x") == tier
    found = store["x"]
    assert store.tier("x") == "device"
    assert (found["w"][0].copy_to_host() == GRID).all()
    assert (found["w"][1].copy_to_host() == GRID[1]).all()
    assert found["w"][2] == (1, "two", None)
    assert (found["b"] == np.arange(70000)).all() and found["b"].flags.writeable
    assert (found["c"] == frozen).all() and not found["c"].flags.writeable


def test_values_without_device_arrays_go_to_disk_by_pickle(make):
    store = make(host="600KiB")
    values = {f"array {at}": host(at, 200) for at in range(4)} | {"text": "x" * 1000, "list": [1, {"a": host(9, 1)}]}
    store.update(values)
    assert store.tier("array 0") == "disk"
    assert store["text"] is values["text"]
    assert all(np.array_equal(store[f"array {at}"], host(at, 200)) for at in range(4))
    assert np.array_equal(store["list"][1]["a"], host(9, 1))
    assert store.stats()["host"]["bytes"] <= 600 * KIB


def test_what_cannot_be_pickled_stays_and_that_is_told(make):
    store = make(host="1KiB")
    store["f"] = function = lambda: 3
    with pytest.warns(
        dm.DevmemWarning, match=r"'f' stays in memory, it cannot be pickled: .*(PicklingError|AttributeError)"
    ):
        store["x"] = host(0, 64)
    put(store, 1, 2, 3)
    assert store["f"] is function
    assert store.tier("f") == "host"


def test_memory_of_others_stays_where_it_is(make):
    store = make()
    array = dm.to_device(host(0))
    foreign = dm.from_dlpack(array)
    store["x"] = foreign
    del foreign
    assert store.spill() == 0
    assert store["x"].ptr == array.ptr
    assert store.stats()["device"] == {"count": 1, "bytes": 0, "held": 0}
    other = make()
    put(store, 1)
    other["y"] = store[1]
    assert other.spill() == 0
    assert np.array_equal(other["y"].copy_to_host(), host(1))


def test_it_is_a_mapping(make):
    store = make()
    put(store, 0, 1, 2)
    assert (len(store), sorted(store), 1 in store, 7 in store) == (3, [0, 1, 2], True, False)
    with pytest.raises(KeyError):
        store[7]
    with pytest.raises(KeyError):
        del store[7]
    put(store, 1)
    assert len(store) == 3
    assert np.array_equal(store.pop(0).copy_to_host(), host(0))
    assert store.get(0) is None
    assert all(value.shape == (64 * KIB,) for value in store.values())
    del store[1]
    store.clear()
    assert not store
    assert {tier: store.stats()[tier]["bytes"] for tier in ("device", "host", "disk")} == dict.fromkeys(
        ("device", "host", "disk"), 0
    )


def test_a_freed_array_is_told(make):
    store = make()
    store["x"] = array = dm.to_device(host(0))
    array.free()
    with pytest.raises(dm.ClosedError):
        store["x"].copy_to_host()
    del array
    with pytest.raises(dm.ClosedError, match=r"freed this array with free\(\)"):
        store["x"]
    assert store.spill() == 0
    del store["x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "much"}, "'much' is not a size"),
        ({"host": -1}, "-1 is not a size"),
        ({"disk_bytes": "1MiB"}, "without disk="),
    ],
)
def test_wrong_limits_are_refused(arguments, message):
    with pytest.raises(dm.ConfigError, match=message):
        Store(**arguments)


def test_wrong_arguments_are_refused(make):
    with pytest.raises(TypeError, match="disk= takes the path of a folder, not a int"):
        Store(disk=3)
    store = make()
    with pytest.raises(dm.ConfigError, match="give 'device' or 'host'"):
        store.spill(tier="disk")
    store.close()
    store.close()
    with pytest.raises(dm.ClosedError, match="this store is closed"):
        put(store, 1)
    assert repr(store) == "<Store, closed>"


# -- order, statistics ----------------------------------------------------------------------------------------------------


def test_work_on_streams_is_done_before_an_array_moves(make, need, in_background):
    need("hold")
    store = make(None, None)
    stream = dm.stream()
    store["x"] = array = dm.device_array(1000, "f8")
    moved = []
    with hold(stream) as held:
        array.fill(3.0, stream=stream)
        del array
        done = in_background(lambda: moved.append(store.spill()))
        done.wait(MOMENT)  # it waits, or takes the array for held
        held.release()
        assert done.wait(patience())
    assert moved in ([0], [8000])  # an array whose work has not passed may count as held
    assert (store["x"].copy_to_host() == 3.0).all()


def test_moves_are_counted_and_traced(make, with_settings, tmp_path):
    with_settings(TRACE=str(tmp_path / "trace.json"))
    store = make()
    put(store, *range(5))
    assert exact(store, 0)
    moves = store.stats()["moves"]
    assert {way: (move["count"], move["bytes"]) for way, move in moves.items()} == {
        "device to host": (4, 256 * KIB),
        "host to disk": (2, 128 * KIB),
        "disk to device": (1, 64 * KIB),
    }
    assert all(move["seconds"] > 0 for move in moves.values())
    events = json.loads((tmp_path / "trace.json").read_text() + "]")
    spans = [event["name"] for event in events if event.get("cat") == "spill"]
    assert sorted(spans) == sorted(f"spill {way}" for way, move in moves.items() for _ in range(move["count"]))
    with_settings()


def test_a_guard_of_transfers_does_not_mind(make, with_settings):
    with_settings(TRANSFER_GUARD="disallow")
    store = make()
    put(store, *range(6))
    assert all(np.array_equal(store[number].copy_to_host(), host(number)) for number in range(6))


# -- files ----------------------------------------------------------------------------------------------------------------


def test_files_are_private_and_gone_at_close(make, tmp_path):
    store = make()
    put(store, *range(7))
    [folder] = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = [path for path in folder.iterdir() if path.name != "lock"]
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert exact(store, 0)
    del store[1]
    assert len(list(folder.iterdir())) == 1 + store.stats()["disk"]["count"]
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_a_dropped_store_leaves_nothing(make, tmp_path, still):
    store = Store("128KiB", "128KiB", tmp_path)
    put(store, *range(5))
    kept = store[4]
    del store
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert np.array_equal(kept.copy_to_host(), host(4))
    before = dm.memory_info().live
    del kept
    dm.trim()
    assert dm.memory_info().live < before


def test_arrays_outlive_the_store(make, still):
    store = make()
    put(store, 0, 1)
    array = store[0]
    store.close()
    assert np.array_equal(array.copy_to_host(), host(0))
    before = dm.memory_info()
    del array
    gc.collect()
    dm.trim()
    assert dm.memory_info().live == before.live - 64 * KIB


def test_a_file_that_was_cut_short_is_told(make, tmp_path):
    store = make(None, None)
    put(store, 0)
    store["pickled"] = host(1)
    move(store, "disk")
    [folder] = tmp_path.iterdir()
    for path in folder.iterdir():
        if path.name != "lock":
            os.truncate(path, path.stat().st_size - 3)
    for key in (0, "pickled"):
        with pytest.raises(dm.LayoutError, match="expected"):
            store[key]


def test_a_full_disk_leaves_everything_where_it_is(make, monkeypatch):
    store = make()
    put(store, *range(4))
    whole = module.Folder.new_file

    def full(self):
        file = whole(self)
        monkeypatch.setattr(type(file), "_append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        return file

    monkeypatch.setattr(module.Folder, "new_file", full)
    with pytest.raises(OSError, match="No space left"):
        put(store, 4)
    monkeypatch.undo()
    assert exact(store, *range(4))


KILLED = """
import os, sys
import numpy as np
import devmem as dm
from devmem.spill import Store
store = Store(65536, 65536, sys.argv[1])
for number in range(5):
    store[number] = dm.to_device(np.full(65536, number, np.uint8))
print(os.listdir(sys.argv[1])[0], flush=True)
sys.stdin.read()
"""


def test_the_next_store_removes_what_a_killed_process_left(tmp_path, make):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"DEVMEM_BACKEND": "host"},
    ) as process:
        left = tmp_path / process.stdout.readline().decode().strip()
        store = make()
        assert left.exists()  # it lives
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert len(list(left.iterdir())) > 1
    other = make()
    assert not left.exists()
    put(other, 1)
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_the_child_of_a_fork_leaves_the_files_alone(make, tmp_path):
    store = make(None, 0)
    store["x"] = host(0)
    store["y"] = host(1)
    assert store.tier("x") == "disk"
    child = os.fork()
    if not child:
        store.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert np.array_equal(store["x"], host(0))


# -- threads and interrupts -------------------------------------------------------------------------------------------------


def test_threads_share_a_store(make):
    store = make("192KiB", "192KiB")
    put(store, *range(12), kib=32)

    def use(seed):
        draw = np.random.default_rng(seed)
        for _ in range(40):
            number = int(draw.integers(12))
            if draw.integers(4):
                assert exact(store, number, kib=32), number
            else:
                put(store, number, kib=32)

    together(*(partial(use, seed) for seed in range(4)))
    stats = store.stats()
    assert sum(stats[tier]["count"] for tier in ("device", "host", "disk")) == 12
    assert sum(stats[tier]["bytes"] for tier in ("device", "host", "disk")) == 12 * 32 * KIB


def watched(code):
    return Path(code.co_filename).parent == PACKAGE


#: Points at which the interrupt comes, of about 600: ``INTERRUPT_POINTS=all`` goes through every one.
POINTS = os.environ.get("INTERRUPT_POINTS", "15")


@pytest.mark.own_thread
@pytest.mark.timeout(300)
def test_an_interrupt_anywhere_loses_nothing(make, at_point, tmp_path):
    """At points at which Python can run a handler, in the store's own files."""

    def interrupted_at(point):
        store = make()
        put(store, *range(5))
        with at_point(point, watched) as interrupt:
            put(store, 5)
            assert exact(store, 0)
            store[1] = dm.to_device(host(1))
            del store[2]
        left, where = interrupt.left, interrupt.where
        del interrupt
        gc.collect()
        found = {key: store[key].copy_to_host() for key in list(store)}
        assert {0, 1, 3, 4} <= found.keys(), where
        assert all(np.array_equal(found[key], host(key)) for key in found), where
        stats = store.stats()
        assert sum(stats[tier]["count"] for tier in ("device", "host", "disk")) == len(store), where
        assert sum(stats[tier]["bytes"] for tier in ("device", "host", "disk")) == len(store) * 64 * KIB, where
        store.close()
        assert list(tmp_path.iterdir()) == []
        return left

    number = 10**6 - interrupted_at(10**6)
    assert number > 300
    points = range(1, number + 1)
    for point in points if POINTS == "all" else random.sample(points, int(POINTS)):
        assert interrupted_at(point) == 0


@pytest.mark.parametrize("removed", [False, True])
def test_a_handler_may_put_in_the_array_that_is_being_put_in(removed, make, at_point, still):
    """At each point at which the store takes the array's block: all keys have it then, and it is given back once."""
    number, left, expected, before = 0, 0, host(1), dm.memory_info().live
    while left <= 0:
        number, store, arrays = number + 1, make(), [dm.to_device(expected)]

        def handled(store=store, arrays=arrays):
            sys.settrace(None)
            store["handled"] = arrays[0]
            if removed:
                del store["handled"]

        with at_point(number, lambda code: code.co_filename == blocks.__file__, handled) as point:
            store["mine"] = arrays[0]
        left = point.left
        arrays.clear()
        store.spill()
        for key in store:
            assert np.array_equal(store[key].copy_to_host(), expected), (key, point.where)
        store.close()
        gc.collect()
        dm.trim()
        assert dm.memory_info().live == before, point.where
    assert number > 5


def test_a_handler_does_not_wait_for_another_threads_move(make, at_point, in_background, monkeypatch):
    """The other thread may need what the call holds that the handler came into."""
    store, there, go_on = make(), threading.Event(), threading.Event()
    put(store, 1)
    store.spill()
    sound, answers = Store._bring_back, []

    def stopped(self, entry):
        there.set()
        assert go_on.wait(patience())
        sound(self, entry)

    def handled():
        with pytest.raises(RuntimeError, match="which another thread is moving"):
            store[1]
        answers.append(True)

    monkeypatch.setattr(Store, "_bring_back", stopped)
    done = in_background(lambda: exact(store, 1))
    assert there.wait(patience())
    with at_point(3, lambda code: code.co_filename == creation.__file__, handled):
        dm.zeros(3)
    go_on.set()
    assert done.wait(patience())
    assert answers == [True]
    assert exact(store, 1)


@pytest.mark.parametrize("verb", ["put", "removed", "asked"])
def test_a_handler_changes_the_key_that_its_thread_changes(verb, make, at_point):
    """At each point of the change: the books are those of what is in the store."""
    number, left = 0, 0
    while left <= 0:
        number, store = number + 1, make()
        put(store, 1)
        array = dm.to_device(host(2))

        def handled(store=store, array=array, puts=number % 2):
            sys.settrace(None)
            with suppress(RuntimeError, KeyError):  # it is being moved by the call; or is out already
                if puts:
                    store[1] = array
                else:
                    del store[1]

        with (
            at_point(number, lambda code: code.co_filename == module.__file__, handled) as point,
            suppress(KeyError),
        ):
            if verb == "put":
                store[1] = dm.to_device(host(1))
            elif verb == "removed":
                del store[1]
            else:
                store[1]
        left = point.left
        stats = store.stats()
        assert stats["device"]["count"] == len(store), point.where
        assert stats["device"]["bytes"] == len(store) * 64 * KIB, point.where
        store.close()
    assert number > 5


@pytest.mark.exhaustive  # as long as the square of the points
def test_a_handler_moves_the_key_that_its_thread_is_about_to_move(make, at_point):
    """At each point: it moves once, with all its bytes."""
    number, left = 0, 0
    while left <= 0:
        number, store = number + 1, make()
        put(store, 0, 1)

        def handled(store=store):
            sys.settrace(None)
            put(store, 10, 11, 12)

        with at_point(number, lambda code: code.co_filename == module.__file__, handled) as point:
            put(store, 2, 3)
        left = point.left
        for key in list(store):
            try:
                assert exact(store, key), key
            except BaseException as error:
                error.add_note(point.where)
                raise
        store.close()
    assert number > 5
