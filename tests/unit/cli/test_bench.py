"""`devmem bench`: what it measures, what it keeps when something ends it, and what it writes."""

from __future__ import annotations

import contextvars
import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from waits import patience

import devmem
from devmem.cli import bench as command
from devmem.cli import bench_runner, plot
from devmem.cli.bench_cases import CASES, LIMIT_CASE, PAGE_LOCKED, BenchArrays, BenchCase, CopyTask, Direction, KiB, MiB
from devmem.cli.bench_runner import Bench, Measurement
from devmem.cli.commands import commands
from devmem.testing import emulator

UPLOAD, DOWNLOAD, WITHIN = Direction


@pytest.fixture
def tiny(monkeypatch):
    """Two small sizes, each case once or a few times."""
    monkeypatch.setattr(command, "QUICK_SIZES", (4 * KiB, 16 * KiB))


def bench(*arguments):
    # In a context of its own: a process selects its backend for good.
    return contextvars.copy_context().run(
        CliRunner().invoke, commands, ["bench", "--backend", "host", "--seconds", "0", *map(str, arguments)]
    )


def rows_of(result):
    return {(row["direction"], row["way"], row["bytes"]): row for row in json.loads(result.stdout)["rows"]}


def case(name, run, direction=UPLOAD, **options):
    return BenchCase(direction, name, lambda arrays: CopyTask(lambda: run(arrays)), **options)


# -- the cases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [each for each in CASES if each.direction is UPLOAD], ids=lambda each: each.name)
def test_an_upload_brings_the_bytes(each):
    with BenchArrays(64 * KiB) as arrays:
        data = np.arange(16 * KiB, dtype=np.float32)
        transposed, last, batch = each.name == "transposed", each.name == "rows apart", "batch" in each.name
        for host in (arrays.pinned, arrays.registered, arrays.source):
            host[:] = data
        if last:
            arrays.source_rows[...] = data.reshape(arrays.source_rows.shape)
        for small, part in zip(arrays.small_arrays, np.split(data, 16), strict=True):
            small[:] = part
        made = each.build(arrays).run()
        if batch:
            found = np.concatenate([small.copy_to_host() for small in made])
        else:
            found = (arrays.device if made is None else made).copy_to_host()
    expected = data.reshape(128, 128).T.reshape(-1) if transposed else data
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("each", [each for each in CASES if each.direction is DOWNLOAD], ids=lambda each: each.name)
def test_a_download_brings_the_bytes(each):
    with BenchArrays(64 * KiB) as arrays:
        data = np.arange(16 * KiB, dtype=np.float32)
        arrays.device.copy_to_device(data)
        if "batch" in each.name:
            for small, part in zip(arrays.small_arrays, np.split(data, 16), strict=True):
                small[:] = part
        made = each.build(arrays).run()
        if "batch" in each.name:
            found = np.concatenate(made)
        elif each.name == "rows apart":
            found = arrays.target_rows.reshape(-1)
        elif "pinned" in each.name or each.name == "registered":
            found = getattr(arrays, each.name.partition(",")[0])
        else:
            found = made.reshape(-1)
        expected = data.reshape(128, 128).T.reshape(-1) if each.name == "transposed" else data
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("each", [each for each in CASES if each.direction is WITHIN], ids=lambda each: each.name)
def test_a_copy_within_one_memory_brings_the_bytes(each):
    with BenchArrays(64 * KiB) as arrays:
        data = np.arange(16 * KiB, dtype=np.float32)
        arrays.device.copy_to_device(data)
        arrays.source[:] = data
        each.build(arrays).run()
        found = arrays.second_device.copy_to_host() if "device" in each.name else arrays.target
        assert np.array_equal(found, data)


def test_what_a_room_registered_is_given_back():
    with BenchArrays(4 * KiB) as arrays:
        array = arrays.registered
    with pytest.raises(devmem.DevmemError):
        devmem.deregister(array)


# -- the measurement ---------------------------------------------------------------------------------------------------


def test_every_way_is_measured_once_at_least_and_those_with_registered_memory_last():
    order = []
    cases = [
        case("a", lambda arrays: order.append("a"), last=True),
        case("b", lambda arrays: order.append("b")),
        case("c", lambda arrays: order.append("c"), max_bytes=4 * KiB),
    ]
    run = Bench(devmem.device("host:0"), cases=cases)
    run.run([16 * KiB, 4 * KiB], 0)
    assert order == ["b", "c", "a", "b", "a"]
    assert [(name, [row.nbytes for row in measurements]) for name, measurements in run.measured(UPLOAD)] == [
        ("a", [4 * KiB, 16 * KiB]),
        ("b", [4 * KiB, 16 * KiB]),
        ("c", [4 * KiB]),
    ]


def test_all_take_turns_and_the_best_counts(monkeypatch):
    now, order = [0.0], []
    monkeypatch.setattr(bench_runner.time, "perf_counter", lambda: now[0])
    durations = {"a": iter([4.0, 1.0, 3.0, 9.0]), "b": iter([2.0, 5.0, 6.0, 9.0])}

    def taking(name):
        def run(arrays):
            order.append(name)
            now[0] += next(durations[name])

        return run

    run = Bench(devmem.device("host:0"), cases=[case(name, taking(name)) for name in durations])
    run.run([4 * KiB], 20)
    assert order == ["a", "b", "a", "b", "b", "a"], "the order changes from turn to turn"
    best = {name: (measurements[0].seconds, measurements[0].repetitions) for name, measurements in run.measured(UPLOAD)}
    assert best == {"a": (1.0, 3), "b": (2.0, 3)}


def test_the_limit_is_that_of_large_copies():
    run = Bench(devmem.device("host:0"))

    def add(name, nbytes, rate):
        run.measurements[UPLOAD, name, nbytes] = Measurement(UPLOAD, name, nbytes, nbytes / rate / 1e9, 1)

    assert run.limit(UPLOAD) is None
    add(LIMIT_CASE, MiB, 100.0)  # from the processor's cache
    assert run.limit(UPLOAD) == pytest.approx(100)
    add(LIMIT_CASE, 64 * MiB, 50.0)
    add(LIMIT_CASE, 256 * MiB, 40.0)
    add("pageable", 256 * MiB, 10.0)
    assert run.limit(UPLOAD) == pytest.approx(50)
    assert run.limit(DOWNLOAD) is None
    assert run.percent(run.measurements[UPLOAD, "pageable", 256 * MiB]) == pytest.approx(20)
    for name in ("pinned", "registered"):  # whichever is the fastest: none is more than the whole
        add(name, 256 * MiB, run.limit(UPLOAD) + 10)
        assert run.percent(run.measurements[UPLOAD, name, 256 * MiB]) == pytest.approx(100)
    run.has_bus = False
    assert run.limit(UPLOAD) is run.percent(run.measurements[UPLOAD, "pageable", 256 * MiB]) is None


def test_sizes_without_room_are_named(monkeypatch):
    monkeypatch.setattr(bench_runner, "free_on_host", lambda: 12 * 5 * KiB)
    run = Bench(devmem.device("host:0"), cases=[case("a", lambda arrays: None)])
    run.run([4 * KiB, 16 * KiB], 0)
    assert [nbytes for _, _, nbytes in run.measurements] == [4 * KiB]
    assert run.notes == ["16.0 KiB: left out, it takes 192.0 KiB on the host, where 60.0 KiB are free"]
    assert not run.failed


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (devmem.OutOfMemory("no room"), False),
        (MemoryError(), False),
        (devmem.UnsupportedError("cannot"), False),
        (devmem.BackendError("refused"), True),
    ],
)
def test_what_goes_wrong_with_one_way_stops_no_other(error, failed):
    def fail(arrays):
        raise error

    run = Bench(devmem.device("host:0"), cases=[case("bad", fail), case("good", lambda arrays: None)])
    run.run([4 * KiB], 0)
    assert [name for name, _ in run.measured(UPLOAD)] == ["good"]
    assert run.failed is failed
    assert run.notes == [f"h2d bad, 4.0 KiB: {error or 'out of memory'}"]


@pytest.mark.parametrize(
    ("error", "state"),
    [(KeyboardInterrupt(), (True, False)), (devmem.DeviceLost("fell off the bus"), (False, True))],
)
def test_what_was_measured_before_the_end_is_kept(error, state):
    def late(arrays):
        if arrays.nbytes > 4 * KiB:
            raise error

    run = Bench(devmem.device("host:0"), cases=[case("a", lambda arrays: None), case("b", late)])
    run.run([4 * KiB, 16 * KiB, 64 * KiB], 0)
    assert list(run.measurements) == [(UPLOAD, "a", 4 * KiB), (UPLOAD, "b", 4 * KiB), (UPLOAD, "a", 16 * KiB)]
    assert (run.interrupted, run.failed) == state
    assert len(run.notes) == 1


def test_a_copy_that_would_take_too_long_is_left_out_and_named():
    run = Bench(
        devmem.device("host:0"),
        cases=[case("slow", lambda arrays: pytest.fail("it was begun")), case("quick", lambda arrays: None)],
    )
    run.measurements[UPLOAD, "slow", 4 * KiB] = Measurement(UPLOAD, "slow", 4 * KiB, 1.0, 1)
    run.run([16 * KiB], 0)
    assert [(name, measurements[-1].nbytes) for name, measurements in run.measured(UPLOAD)] == [
        ("slow", 4 * KiB),
        ("quick", 16 * KiB),
    ]
    assert run.notes == ["h2d slow, 16.0 KiB: left out, it may take 4.0 s"]
    run = Bench(devmem.device("host:0"), cases=[case("slow", lambda arrays: None)])
    run.measurements[UPLOAD, "slow", 4 * KiB] = Measurement(UPLOAD, "slow", 4 * KiB, 0.1, 1)
    run.run([16 * KiB], 10)
    assert run.notes == []


def test_memory_that_is_free_is_found_out():
    assert 1 << 20 < bench_runner.free_on_host() < 1 << 50


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_tables_have_every_way_and_say_that_there_is_no_bus(tiny):
    result = bench("--quick")
    assert result.exit_code == 0, result.output
    for each in CASES:
        assert each.name in result.stdout
    for words in ("4 KiB", "16 KiB", "Host to device", "Device to host", "no bus, no GPU"):
        assert words in result.stdout
    assert "limit" not in result.stdout
    assert result.stderr == ""


@pytest.fixture
def bus(monkeypatch):
    """As on a device with memory of its own."""
    monkeypatch.setattr(command, "_caveats", lambda device: [])


def test_where_there_is_a_bus_the_parts_of_its_limit_are_told(tiny, bus):
    text = bench("--quick").stdout
    assert text.count("(pinned limit: ") == 2
    assert text.count("% of pinned limit") == 3  # two tables, and what it means
    assert "no bus" not in text


def test_a_narrow_terminal_keeps_the_largest_size(tiny, monkeypatch):
    monkeypatch.setattr(command, "QUICK_SIZES", tuple(4 * KiB << at for at in range(0, 10, 2)))
    monkeypatch.setenv("COLUMNS", "60")
    text = bench("--quick").stdout
    assert max(map(len, text.splitlines()[:20])) <= 60
    assert "1 MiB" in text and "Left out for want of room" in text


def test_json_without_a_file_is_all_there_is(tiny):
    result = bench("--quick", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["device"]["device"] == "host:0"
    assert document["versions"]["numpy"] == np.__version__
    assert document["settings"]["DEVMEM_STAGING_SLOTS"] == 4
    assert (document["emulated"], document["interrupted"]) == (False, False)
    assert "no bus" in document["notes"][0] and "no bus" in result.stderr
    rows = rows_of(result)
    assert set(rows) == {(each.direction, each.name, nbytes) for each in CASES for nbytes in (4 * KiB, 16 * KiB)}
    limit = document["pinned_limit_gb_per_s"]
    assert limit == {"h2d": None, "d2h": None, "inside": None}
    for (_, _, nbytes), row in rows.items():
        assert row["gb_per_s"] == pytest.approx(nbytes / row["seconds"] / 1e9)
        assert row["percent_of_pinned_limit"] is None
    assert rows["h2d", "transposed", 4 * KiB]["path"] == "h2d packed"


def test_json_has_the_parts_of_the_limit(tiny, bus):
    result = bench("--quick", "--json")
    limit, rows = json.loads(result.stdout)["pinned_limit_gb_per_s"], rows_of(result)
    for (direction, name, _), row in rows.items():
        if direction == "inside":
            assert row["percent_of_pinned_limit"] is None
            continue
        assert row["percent_of_pinned_limit"] == pytest.approx(100 * row["gb_per_s"] / limit[direction])
        if name in PAGE_LOCKED and row["bytes"] == 16 * KiB:
            assert row["gb_per_s"] <= limit[direction]
    assert limit["h2d"] == max(rows["h2d", name, 16 * KiB]["gb_per_s"] for name in PAGE_LOCKED)


def test_files_are_written_beside_the_tables(tiny, tmp_path):
    pytest.importorskip("matplotlib")
    document, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    picture.write_bytes(b"an older one")
    result = bench("--quick", "--json", document, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "Host to device" in result.stdout
    assert len(json.loads(document.read_text())["rows"]) == 2 * len(CASES)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bench.json", "bench.png"]


def test_both_scales_are_logarithmic_and_the_limit_is_a_line():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    run = Bench(devmem.device("host:0"))
    for nbytes, rate in ((4 * KiB, 0.25), (256 * MiB, 25.0)):
        run.measurements[UPLOAD, LIMIT_CASE, nbytes] = Measurement(UPLOAD, LIMIT_CASE, nbytes, nbytes / rate / 1e9, 1)
    axes = figure.subplots()
    plot._draw(axes, run, UPLOAD)
    figure.canvas.draw()
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert {"0.5", "1", "20"} <= {label.get_text() for label in axes.get_yticklabels()}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [LIMIT_CASE, "pinned limit, 25 GB/s"]


@pytest.fixture
def measured_nothing(monkeypatch):
    monkeypatch.setattr(Bench, "run", lambda *arguments: pytest.fail("it began to measure"))


def test_without_matplotlib_one_line_says_how_to_get_it(measured_nothing, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    result = bench("--quick", "--plot", "bench.png")
    assert result.exit_code == 2
    assert (
        result.stderr == "devmem: --plot needs matplotlib, which is not installed: pip install 'devmem-arrays[bench]'\n"
    )


@pytest.mark.parametrize(
    "arguments", [("--plot", "bench.nonsense"), ("--plot", "no/such/bench.png"), ("--json", "no/such/bench.json")]
)
def test_files_that_cannot_be_written_are_told_before_anything_is_measured(measured_nothing, arguments):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    result = bench("--quick", *arguments)
    assert result.exit_code == 2
    assert arguments[1] in result.stderr and result.stderr.count("\n") == 1


def test_a_file_that_fails_at_the_end_leaves_the_older_one(tiny, tmp_path, monkeypatch):
    document = tmp_path / "bench.json"
    document.write_text("an older one")

    def full(path, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command.Path, "write_text", full)
    result = bench("--quick", "--json", document)
    assert result.exit_code == 2
    assert "Host to device" in result.stdout
    assert result.stderr == f"devmem: {document} could not be written: No space left on device\n"
    assert document.read_text() == "an older one" and list(tmp_path.iterdir()) == [document]


def test_interrupted_it_shows_what_there_is(tiny, monkeypatch):
    def end(arrays):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "CASES", [*CASES[:4], case("ended here", end)])
    result = bench("--quick", "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["interrupted"] is True
    assert {row["way"] for row in rows_of(result).values()} >= {LIMIT_CASE, "pinned", "pageable"}
    assert "interrupted" in bench("--quick").stdout


def test_an_error_is_told_by_the_exit_code(tiny, monkeypatch):
    def fail(arrays):
        raise devmem.BackendError("refused")

    monkeypatch.setattr(command, "CASES", [*CASES[:2], case("bad", fail)])
    result = bench("--quick")
    assert result.exit_code == 1
    assert "h2d bad, 4.0 KiB: refused" in result.stdout


def test_with_no_room_at_all_nothing_was_measured(monkeypatch):
    monkeypatch.setattr(bench_runner, "free_on_host", lambda: 0)
    result = bench("--quick")
    assert result.exit_code == 2
    assert result.stdout.count("left out") == len(command.QUICK_SIZES)


def test_a_device_that_is_not_there_is_one_line(measured_nothing):
    result = bench("--device", "host:99")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


@pytest.mark.timeout(300)
def test_over_an_emulated_driver_it_says_so():
    try:
        emulator.library("roc")
    except emulator.BuildError as error:
        pytest.skip(f"no emulator: {error}")
    devmem_cli = [sys.executable, "-m", "devmem.cli"]
    run = subprocess.run(
        [
            *devmem_cli,
            "emulate",
            "roc",
            "--",
            *devmem_cli,
            "bench",
            "--backend",
            "roc",
            "--quick",
            "--seconds",
            "0",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=patience(150),
    )
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert document["emulated"] is True
    assert document["notes"][0] == (
        "The roc driver is the emulated one: these are copies within this machine's memory, and no bus's rates."
    )
    staged = {row["path"] for row in document["rows"] if row["bytes"] == 16 * MiB and row["way"] == "pageable"}
    assert staged == {"h2d staged", "d2h staged"}
