from __future__ import annotations

import contextvars
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import devmem
from devmem.cli.commands import commands
from devmem.cli.roundtrip import RATED, Row, _rate, layout


def roundtrip(*arguments):
    # In a context of its own: a process selects its backend for good.
    return contextvars.copy_context().run(CliRunner().invoke, commands, ["roundtrip", *map(str, arguments)])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "numbers.npy"
    np.save(path, np.arange(5000, dtype=np.float32).reshape(50, 100))
    return path


@pytest.fixture
def flipped(monkeypatch):
    """Downloads in which one bit of the last byte is wrong."""
    real = devmem.DeviceNDArray.copy_to_host

    def flip(self, *arguments, **options):
        back = real(self, *arguments, **options)
        back.reshape(-1).view(np.uint8)[-1] ^= 1
        return back

    monkeypatch.setattr(devmem.DeviceNDArray, "copy_to_host", flip)


def test_the_sample_data_comes_back():
    result = roundtrip("--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert len(document["arrays"]) > 25
    assert {row["verdict"] for row in document["arrays"]} == {"ok"}
    assert document["device"] == "host:0"
    assert all(row["path"] for row in document["arrays"] if row["nbytes"])


def test_the_table_has_what_was_asked_for(file):
    result = roundtrip(file)
    assert result.exit_code == 0, result.output
    words = (
        "name",
        "shape",
        "dtype",
        "layout",
        "bytes",
        "H2D GB/s",
        "D2H GB/s",
        "path",
        "verdict",
        "numbers.npy",
        "50×100",
        "<f4",
        "20,000",
        "mapped",
        "1 of 1 array came back bit for bit (19.5 KiB (20,000 bytes) each way).",
    )
    for word in words:
        assert word in result.stdout


def test_members_of_an_archive(tmp_path):
    path = tmp_path / "two.npz"
    np.savez(path, a=np.arange(7), b=np.zeros((3, 0)))
    rows = json.loads(roundtrip(path, "--json").stdout)["arrays"]
    assert [(row["name"], row["source"], row["verdict"]) for row in rows] == [
        ("two.npz:a", "mapped", "ok"),
        ("two.npz:b", "mapped", "ok"),
    ]


def test_a_flipped_bit_is_a_mismatch(file, flipped):
    result = roundtrip(file)
    assert result.exit_code == 1
    assert "MISMATCH" in result.stdout
    assert "[49, 99] is " in result.stderr
    assert "0 of 1 array came back" in result.stdout
    assert "devmem: numbers.npy did not come back the same: [49, 99] is " in result.stderr


def test_a_flipped_bit_is_a_mismatch_in_json(file, flipped):
    result = roundtrip(file, "--json", "--repeat", 3)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["arrays"][0]["verdict"] == "MISMATCH"


def test_what_cannot_be_read_does_not_stop_the_rest(file, tmp_path):
    text = tmp_path / "text.npy"
    text.write_text("hello, world")
    result = roundtrip(tmp_path / "none.npy", text, file, "--json")
    assert result.exit_code == 2
    assert [row["verdict"] for row in json.loads(result.stdout)["arrays"]].count("ok") == 1
    assert len(result.stderr.strip().splitlines()) == 3  # two complaints, and where it ran
    assert "Traceback" not in result.stderr


def test_the_table_has_what_was_not_moved_in_its_place(file, tmp_path):
    text = tmp_path / "text.npy"
    text.write_text("hello, world")
    cut = tmp_path / "cut.npy"
    cut.write_bytes(file.read_bytes()[:-1])
    result = roundtrip(file, text, cut, file)
    rows = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["numbers.npy", str(text), "cut.npy", "numbers.npy"]
    for row in rows[1:3]:
        assert [cell.strip() for cell in row[1:]] == ["", "", "", "–", "–", "–", "", "", "error"]
    assert (
        "2 of 2 arrays came back bit for bit (39.1 KiB (40,000 bytes) each way); 2 could not be read or moved."
        in result.stdout
    )
    told = result.stderr.splitlines()
    assert len(told) == 2 and told[0].startswith(f"devmem: {text}: ") and told[1].startswith(f"devmem: {cut}: ")
    assert told[1].count("cut.npy") == 1


def test_slow_copies_are_no_standstill(tmp_path):
    path = tmp_path / "one.npy"
    np.save(path, np.zeros(1, "u1"))
    result = roundtrip(path)
    assert _rate(Row("slow", nbytes=RATED), 0.001) == "<0.01"
    assert "<0.01" not in result.stdout and "0.00" not in result.stdout, "a rate of one byte is that of a call"
    cells = next(line.split("│") for line in result.stdout.splitlines() if line.startswith("│"))
    assert cells.count(cells[6]) >= 2 and cells[6].strip() == "–"
    [row] = json.loads(roundtrip(path, "--json").stdout)["arrays"]
    assert row["h2d_gb_per_s"] > 0


def test_a_dtype_that_cannot_be_moved_does_not_stop_the_rest(file, tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([{}], object), y=np.arange(3))
    result = roundtrip(path, file, "--json")
    assert result.exit_code == 2
    assert {row["name"]: row["verdict"] for row in json.loads(result.stdout)["arrays"]} == {
        "objects.npz:x": "error",
        "objects.npz:y": "ok",
        "numbers.npy": "ok",
    }


def test_a_mismatch_outweighs_an_unreadable_file(file, flipped, tmp_path):
    assert roundtrip(tmp_path / "none.npy", file).exit_code == 1


def test_device_and_backend_can_be_named(file):
    result = roundtrip(file, "--backend", "host", "--device", "host:1", "--json")
    document = json.loads(result.stdout)
    assert document["device"] == "host:1"
    assert document["notes"] == ["This ran on the host backend (as asked): ordinary memory, no GPU."]


@pytest.mark.parametrize("arguments", [["--backend", "nonsense"], ["--device", "host:99"], ["--device", "x:y:z"]])
def test_a_device_that_is_not_there_is_one_line(file, arguments):
    result = roundtrip(file, *arguments)
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1


def test_without_a_gpu_it_says_so_in_one_line(file):
    environment = {name: value for name, value in os.environ.items() if name != "DEVMEM_BACKEND"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "devmem.cli", "roundtrip", str(file)],
        capture_output=True,
        text=True,
        env=environment,
    )
    if "host:" not in run.stdout:
        pytest.skip("a GPU backend is usable here")
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert run.stdout.count("host backend (no GPU backend is usable; `devmem doctor` says why)") == 1


def test_repeats_keep_the_fastest(file):
    row = json.loads(roundtrip(file, "--repeat", 3, "--json").stdout)["arrays"][0]
    assert row["h2d_gb_per_s"] > 0
    assert row["d2h_gb_per_s"] > 0


def test_warnings_of_others_still_show(file, monkeypatch):
    real = devmem.to_device

    def warn(*arguments, **options):
        warnings.warn("from elsewhere", UserWarning, stacklevel=2)
        return real(*arguments, **options)

    monkeypatch.setattr(devmem, "to_device", warn)
    with pytest.warns(UserWarning, match="from elsewhere"):
        roundtrip(file)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((2, 3)), "C"),
        (np.zeros((2, 3)).T, "F"),
        (np.zeros((4, 6))[:, ::2], "strided"),
        (np.zeros((4, 6))[::-1], "negative strides"),
        (np.broadcast_to(np.zeros(3), (2, 3)), "zero strides"),
        (np.broadcast_to(np.zeros(3)[::-1], (2, 3)), "negative and zero strides"),
        (np.zeros(()), "0-d"),
        (np.zeros((0, 3)), "empty"),
    ],
)
def test_layouts_have_names(array, expected):
    assert layout(array) == expected


def test_a_terminal_sees_progress(file):
    pty = pytest.importorskip("pty", reason="no pseudo-terminals on this platform")
    parent, child = pty.openpty()
    run = subprocess.run(
        [sys.executable, "-m", "devmem.cli", "roundtrip", str(file), "--repeat", "5"],
        stdout=subprocess.PIPE,
        stderr=child,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(child)
    shown = os.read(parent, 65536)
    os.close(parent)
    assert run.returncode == 0
    assert b"arrays" in shown
