"""Traces: what `Log` wrote is read back, and done again with another stack; also by the command ``devmem replay``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import devmem as dm
from devmem._core.telemetry import allocation_log
from devmem._core.telemetry.allocation_log import Record
from devmem.cli.commands import commands
from devmem.memory import DriverMemory, FailIf, Limit, Log, StreamOrderedMemory
from devmem.spi.driver import SupportsManaged, SupportsStreamOrdered
from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from devmem.testing import FaultyDriver
from devmem.testing.replay import Meter, Streams, measure, replay

S = LEGACY_STREAM


@pytest.fixture
def driver(driver: FaultyDriver) -> Iterator[FaultyDriver]:
    yield driver
    driver.disarm()
    driver.synchronize()
    assert driver.blocks() == {}


def bound(resource: DriverMemory, driver: object) -> DriverMemory:
    resource.bind(driver)  # type: ignore[arg-type]
    return resource


RECORDS = [
    Record("allocate", 0x1000, 500, S, 0.0),
    Record("allocate", 0x2000, 300, 77, 0.1),
    Record("deallocate", 0x1000, 500, S, 0.2),
    Record("allocate", 0x1000, 100, S, 0.3),
    Record("deallocate", 0x2000, 300, 77, 0.4),
    Record("deallocate", 0x9000, 300, S, 0.5),
    Record("allocate", 0x3000, 1000, S, 0.6),
]


def test_a_log_comes_back_as_it_was_written(driver: FaultyDriver, tmp_path: Path) -> None:
    log = Log(DriverMemory(), tmp_path / "log")
    log.bind(driver)
    stream = driver.stream_create(0, True)
    ptr = log.allocate(100, stream)
    log.deallocate(ptr, 100, stream)
    first, second = allocation_log.read(tmp_path / "log")
    assert first[:4] == ("allocate", ptr, 100, stream)
    assert second[:4] == ("deallocate", ptr, 100, stream)
    assert 0 <= first.t <= second.t
    driver.stream_destroy(stream)


@pytest.mark.parametrize(
    "line",
    ["nonsense", "5", "{}", '{"op": "other", "address": 1, "nbytes": 1, "stream": 1, "t": 0}',
     '{"op": "allocate", "address": 1, "nbytes": -1, "stream": 1, "t": 0}',
     '{"op": "allocate", "address": 1e999, "nbytes": 1, "stream": 1, "t": 0}'],
)  # fmt: skip
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(RECORDS[0].line() + line.encode() + b"\n")
    with pytest.raises(dm.ConfigError, match=f"{path}, line 2: not a record"):
        list(allocation_log.read(path))


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(RECORDS[0].line() + RECORDS[1].line()[:20])
    assert list(allocation_log.read(path)) == RECORDS[:1]


def test_a_replay_does_what_the_trace_says(driver: FaultyDriver) -> None:
    streams = Streams(driver)
    asked = []
    result = replay(RECORDS, bound(DriverMemory(), driver), stream=streams, after=asked.append)
    assert (result.allocations, result.deallocations, result.failed, result.calls) == (4, 2, 0, 6)
    assert result.peak_live_bytes == 1100
    assert result.left_over == 2
    assert result.seconds > 0
    assert asked == RECORDS
    assert list(streams.made) == [77]
    assert streams(PER_THREAD_STREAM) == PER_THREAD_STREAM
    streams.close()
    assert driver.live().streams == 0


def test_allocations_that_fail_are_counted_and_not_given_back(driver: FaultyDriver) -> None:
    stack = FailIf(DriverMemory(), lambda nbytes, stream: nbytes == 300)
    stack.bind(driver)
    result = replay(RECORDS, stack, stream=lambda handle: S)
    assert (result.allocations, result.deallocations, result.failed) == (3, 1, 1)
    assert "300 bytes was made to fail" in result.errors[0]


def test_nothing_is_left_out_when_a_replay_fails(driver: FaultyDriver) -> None:
    driver.fail_at(3, "alloc", KeyError("not a memory matter"))
    with pytest.raises(KeyError):
        replay(RECORDS, bound(DriverMemory(), driver), stream=lambda handle: S)
    driver.disarm()


def test_everything_goes_back_also_where_that_fails(driver: FaultyDriver) -> None:
    driver.fail_at(1, "free")
    records = [Record("allocate", address, 100, 1, 0.0) for address in range(1, 6)]
    with pytest.raises(BackendError, match="injected"):
        replay(records, bound(DriverMemory(), driver), stream=lambda handle: S)
    assert driver.blocks() == {}


def test_an_address_that_a_trace_hands_out_twice_counts_once(driver: FaultyDriver) -> None:
    records = [Record("allocate", 1, 100, 1, 0.0)] * 3 + [Record("deallocate", 1, 100, 1, 0.0)]
    result = replay(records, bound(DriverMemory(), driver), stream=lambda handle: S)
    assert (result.peak_live_bytes, result.left_over) == (100, 0)
    assert driver.blocks() == {}


def test_nonsense_of_a_plugin_is_caught_in_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nonsense_in_a_replay.py").write_text(
        "class Nonsense:\n    def __init__(self, device): pass\n    def allocate(self, nbytes, stream): return None\n"
        "    def deallocate(self, ptr, nbytes, stream): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "log").write_bytes(RECORDS[0].line())
    with dm.use_backend("host"), pytest.raises(dm.PluginError, match="returned None for"):
        measure(tmp_path / "log", "nonsense_in_a_replay:Nonsense")


@pytest.mark.parametrize("resource", [DriverMemory, StreamOrderedMemory])
def test_the_driver_is_metered(driver: FaultyDriver, resource: type) -> None:
    meter = Meter(driver)  # type: ignore[arg-type]
    assert isinstance(meter, SupportsStreamOrdered)
    assert isinstance(meter, SupportsManaged)
    result = replay(RECORDS, bound(resource(), meter), stream=lambda handle: S)
    assert meter.calls == 8  # with the two that were left over
    assert (meter.peak_reserved_bytes, meter.reserved_bytes) == (result.peak_live_bytes, 0)
    assert meter.seconds > 0


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(b"".join(record.line() for record in RECORDS))
    return path


def run(*arguments: object):
    with dm.use_backend("host"):
        return CliRunner().invoke(commands, ["replay", *map(str, arguments)])


def test_the_command_as_json(log: Path) -> None:
    done = run(log, "--memory", "driver", "--memory", "limit:1MiB,pool", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    plain, pooled = document["replays"]
    assert plain["stack"].startswith("DriverMemory(")
    assert pooled["stack"].startswith("Limit(PoolMemory(")
    assert (plain["calls"], plain["driver_calls"], plain["peak_live_bytes"], plain["ratio"]) == (6, 8, 1100, 1.0)
    assert pooled["driver_calls"] < plain["driver_calls"]
    assert plain["left_over"] == 2
    assert dm.memory_info().live == 0


def test_the_command_as_a_table(log: Path) -> None:
    done = run(log, "--memory", "statistics,driver", "--backend", "host", "--device", "host:0")
    assert done.exit_code == 0, done.output
    assert "Statistics(DriverMemory(" in done.stdout
    assert "1.000" in done.stdout


def test_allocations_that_fail_are_told(log: Path) -> None:
    done = run(log, "--memory", "limit:600,driver")
    assert done.exit_code == 1
    assert "the limit is 600 bytes, of which 500 bytes are in use" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["missing", "--memory", "driver"], ["{log}", "--memory", "nonsense"], ["{bad}", "--memory", "driver"]]
)
def test_what_cannot_be_replayed(log: Path, arguments: list[str]) -> None:
    bad = log.with_name("bad")
    bad.write_text("nonsense\n")
    done = run(*(argument.format(log=log, bad=bad) for argument in arguments))
    assert done.exit_code == 2
    assert done.stderr.startswith("devmem: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("also", [[], ["--json"]])
def test_a_stack_that_cannot_be_had_costs_no_other_its_row(log: Path, also: list[str]) -> None:
    done = run(log, "--memory", "driver", "--memory", "nonsense", "--memory", "pool", *also)
    assert done.exit_code == 2
    assert done.stderr.startswith("devmem: nonsense: ") and done.stderr.count("\n") == 1
    if also:
        plain, nonsense, pooled = json.loads(done.stdout)["replays"]
        assert (plain["failed"], pooled["failed"]) == (0, 0)
        assert nonsense.keys() == {"stack", "error"} and "nonsense" in nonsense["error"]
    else:
        assert "DriverMemory(" in done.stdout and "PoolMemory(" in done.stdout
        assert [line.split()[-2] for line in done.stdout.splitlines() if "nonsense" in line] == ["error"]


def test_allocations_that_fail_outweigh_a_stack_that_cannot_be_had(log: Path) -> None:
    assert run(log, "--memory", "nonsense", "--memory", "limit:600,driver").exit_code == 1


def test_a_limit_shows_what_it_is(driver: FaultyDriver) -> None:
    assert repr(Limit(DriverMemory(), 5)) == "Limit(DriverMemory(not bound), max_bytes=5 bytes)"
