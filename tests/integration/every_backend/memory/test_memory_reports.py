"""The summary and the snapshot of memory say what `memory_info` says, and more of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import devmem as dm
from devmem.api.memory_reports import memory_snapshot, memory_summary
from devmem.spi.sizes import size_text


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """A device on which earlier tests left nothing, and that goes with what a test installs: recording stays on for a device."""
    dm.close()
    yield
    dm.close()


def test_a_summary_adds_up_to_memory_info() -> None:
    with dm.use_memory(dm.memory.Statistics(dm.memory.PoolMemory())):
        kept = [dm.device_array(size, np.uint8) for size in (100, 5000, 5000, 3 << 20)]
        pinned = dm.pinned_array(1000)
        [device] = memory_summary(dm.current_device()).devices
        info = dm.memory_info()
        assert (device.live_bytes, device.pending_bytes, device.cached_bytes) == (info.live, info.pending, info.cached)
        assert device.live_bytes == sum(stack.live_bytes for stack in device.stacks if stack.kind != "pinned")
        [stack] = [each for each in device.stacks if each.peak_bytes is not None and each.live_bytes]
        assert (stack.live_bytes, stack.live_blocks) == (10100 + (3 << 20), 4)
        assert stack.peak_bytes == stack.live_bytes
        classes = [(each.max_bytes, each.blocks, each.nbytes) for each in stack.size_classes]
        assert classes == [(4096, 1, 100), (65536, 2, 10000), (1 << 24, 1, 3 << 20)]
        assert [each.kind for each in device.stacks if each.live_bytes == pinned.nbytes] == ["pinned"]
        del kept
        [device] = memory_summary(dm.current_device()).devices
        assert device.pending_bytes == 10100 + (3 << 20)
        assert device.live_bytes == 0


def test_a_summary_is_read_by_people_and_by_programs() -> None:
    with dm.use_memory(dm.memory.Statistics(dm.memory.PoolMemory())):
        array = dm.device_array(3 << 20, np.uint8)
        summary = memory_summary()
        text, page = str(summary), summary._repr_html_()
        for part in ("3.0 MiB", "blocks of up to 16.0 MiB: 1", "Statistics(PoolMemory("):
            assert part in text
            assert part.replace("<", "&lt;") in page
        [device] = json.loads(summary.to_json())["devices"]
        assert device["live_bytes"] == summary.devices[0].live_bytes
        array.free()


def test_a_summary_tells_the_peak_of_a_pool_from_the_peak_in_use() -> None:
    with dm.use_memory(dm.memory.PoolMemory()) as pool:
        dm.device_array(3 << 20, np.uint8).free()
        kept = dm.device_array(100, np.uint8)
        dm.trim()
        summary = memory_summary(dm.current_device())
        [stack] = [each for each in summary.devices[0].stacks if each.live_bytes == kept.nbytes]
        assert stack.peak_bytes is None
        assert stack.peak_reserved_bytes == pool.report().peak_reserved_bytes >= 3 << 20
        heads, cells = str(summary).splitlines()[1:3]
        assert heads.split("  ")[-1] == "peak reserved"
        assert cells.endswith(size_text(stack.peak_reserved_bytes))
        assert "not counted" in cells
        kept.free()
    with dm.use_memory(dm.memory.Statistics()):
        kept = dm.device_array(100, np.uint8)
        [stack] = [each for each in memory_summary().devices[0].stacks if each.live_bytes == kept.nbytes]
        assert stack.peak_reserved_bytes is None
        assert "no pool" in str(memory_summary())
        kept.free()


def test_without_an_open_device_there_is_nothing() -> None:
    dm.close()
    assert str(memory_summary()) == "no device is open: devmem has no memory"
    assert memory_snapshot().blocks == ()


def test_a_snapshot_that_records_names_the_lines_of_later_blocks() -> None:
    before = dm.zeros(5, np.uint8)
    assert memory_snapshot(record=True).blocks[0].site is None
    after = dm.zeros(7, np.uint8)
    with dm.use_memory("pool"):
        elsewhere = dm.zeros(9, np.uint8)
    sites = {block.nbytes: block.site for block in memory_snapshot(record=True).blocks}  # a second time changes nothing
    assert sites[5] is None
    assert sites[9] is None
    assert sites[7] is not None
    assert sites[7][0] == __file__
    [stack] = [each.stack for each in memory_snapshot().blocks if each.nbytes == 7]
    assert stack.count("Statistics") == 1
    before.free(), after.free(), elsewhere.free()
    dm.synchronize()  # the pool keeps a block until its stream has passed the fill
    dm.trim()
    assert memory_snapshot().blocks == ()
    assert dm.memory_info().cached == 0
    with dm.use_memory(dm.memory.Statistics(dm.memory.Statistics(dm.memory.PoolMemory(), owners=True))):
        inner = dm.zeros(11, np.uint8)
        assert memory_snapshot().blocks[0].site is not None  # whichever part of the stack knows it
        inner.free()


def test_recording_opens_the_current_device() -> None:
    assert memory_snapshot(record=True).blocks == ()
    array = dm.zeros(7, np.uint8)
    assert memory_snapshot().blocks[0].site is not None
    array.free()


def test_a_snapshot_names_the_line_of_each_block(tmp_path: Path) -> None:
    with dm.use_memory(dm.memory.Statistics(dm.memory.PoolMemory(), owners=True)):
        array = dm.to_device(np.arange(100))
        other = dm.zeros(7, np.uint8)
        found = memory_snapshot(dm.current_device())
        blocks = {block.address: block for block in found.blocks}
        for each in (array, other):
            block = blocks[each.ptr]
            assert (block.nbytes, block.device) == (each.nbytes, str(dm.current_device()))
            assert block.site is not None
            assert block.site[0] == __file__
            assert block.site[2] == "test_a_snapshot_names_the_line_of_each_block"
        found.save(tmp_path / "snapshot.json")
        saved = json.loads((tmp_path / "snapshot.json").read_text())
        assert {each["address"] for each in saved["blocks"]} == set(blocks)
        array.free()
        assert array.nbytes not in {block.nbytes for block in memory_snapshot().blocks}
        other.free()


def test_a_snapshot_is_read_by_people() -> None:
    with dm.use_memory(dm.memory.Statistics(dm.memory.PoolMemory(), owners=True)):
        kept = [dm.zeros(3 << 20, np.uint8) for _ in range(2)]
        found = memory_snapshot(dm.current_device())
        for shown in (str(found), repr(found), found._repr_html_()):
            assert f"{__file__}:" in shown
            assert "6.0 MiB" in shown
        del kept


def test_a_snapshot_says_what_of_it_was_dropped() -> None:
    dm.trim()
    with dm.defer_cleanup():
        kept = dm.zeros(1 << 20, np.uint8)
        assert "dropped" not in str(memory_snapshot())
        del kept
        assert "; of these 1.0 MiB were dropped and wait to be freed: call trim() first" in str(memory_snapshot())
    dm.trim()
    assert "dropped" not in str(memory_snapshot())


def test_without_owners_people_are_told_what_records_them() -> None:
    array = dm.to_device(np.arange(100))
    assert "memory_snapshot(record=True)" in str(memory_snapshot())
    assert repr(memory_summary()) == str(memory_summary())
    array.free()


def test_without_owners_a_block_has_no_line() -> None:
    array = dm.to_device(np.arange(100))
    [block] = [block for block in memory_snapshot().blocks if block.address == array.ptr]
    assert block.site is None
