"""scripts/gpu-check: that it runs, writes down what it saw, survives what kills a test process, and refuses where it must."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waits import patience

from devmem.testing import emulator

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "gpu-check"


def has_bindings():
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ImportError:
        return False


needs_bindings = pytest.mark.skipif(not has_bindings(), reason="cuda-bindings is not installed")


@pytest.fixture
def environment():
    """No GPU, and no emulated driver either."""
    env = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    for name in ("OUT", "DEVMEM_EMULATOR", "LD_LIBRARY_PATH"):
        env.pop(name, None)
    return env


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    """The modules behind the script can be imported, as they are by it."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture
def step():
    return importlib.import_module("gpucheck.step")


@pytest.fixture
def suites():
    return importlib.import_module("gpucheck.suites")


def check(env, *arguments):
    return subprocess.run(
        [SCRIPT, *arguments], env=env, capture_output=True, text=True, timeout=patience(280), check=False
    )


# -- refusing ----------------------------------------------------------------------------------------------------------


@needs_bindings
def test_without_a_gpu_it_refuses(environment, tmp_path):
    done = check(environment, "--results", str(tmp_path))
    assert done.returncode == 2, done
    assert done.stderr.startswith("gpu-check: no NVIDIA GPU can be used here: "), done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@needs_bindings
def test_the_emulated_driver_is_refused_unless_asked_for(environment, tmp_path, monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    try:
        environment |= emulator.environment("cuda")
    except emulator.BuildError as error:
        pytest.skip(f"no emulator: {error}")
    del environment["CUDA_VISIBLE_DEVICES"]
    done = check(environment, "--results", str(tmp_path))
    assert done.returncode == 2, done
    assert "the emulated one" in done.stderr
    assert "--emulated" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_python_that_lacks_packages_is_refused_with_their_names(environment, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # no site-packages
    bare.chmod(0o755)
    done = check({**environment, "PYTHON": str(bare), "PYTHONPATH": ""})
    assert done.returncode == 2, done
    assert f"{bare} lacks" in done.stderr
    assert "cuda-bindings" in done.stderr


# -- a whole run -------------------------------------------------------------------------------------------------------


@needs_bindings
@pytest.mark.timeout(300)
def test_a_run_over_the_emulated_driver_writes_everything_down(environment, tmp_path):
    try:
        emulator.library("cuda")
    except emulator.BuildError as error:
        pytest.skip(f"no emulator: {error}")
    del environment["CUDA_VISIBLE_DEVICES"]
    results, out = tmp_path / "results", tmp_path / "out"
    environment |= {"OUT": str(out), "GIT_COMMIT": "c0ffee"}
    steps = ["contract", "truth", "kernels", "allocators", "memcheck", "bandwidth"]
    done = check(environment, "--emulated", "--quick", "--results", str(results), "--only", *steps)
    assert done.returncode in (0, 1), done.stderr

    [kept] = results.glob("cuda-emulated-*.json")
    found = json.loads(kept.read_text())
    text = kept.with_suffix(".md").read_text()
    assert [step["name"] for step in found["steps"]] == steps
    wrong = [step["name"] for step in found["steps"] if step["status"] != "passed"]
    assert done.returncode == bool(wrong), found["steps"]
    assert found["emulated"] and found["device"]["emulated"] and "EMULATED" in text
    assert found["devmem"]["commit"] == "c0ffee" and "c0ffee" in text
    assert found["packages"]["numpy"] and found["host"]["cpus"] and found["device"]["compute_capability"]
    contract, truth, kernels, allocators, memcheck, bandwidth = found["steps"]
    for step in (contract, truth, kernels, allocators):
        assert sum(step["counts"].get(how, 0) for how in ("passed", "failed", "skipped", "error")) >= 6, step
    asked = {how: kernels["counts"].get(f"asked, {how}", 0) for how in ("met", "falls short", "not measured")}
    assert sum(asked.values()) == 2, "what a launch may cost, beside its own arrays and beside foreign ones"
    if importlib.util.find_spec("numba_cuda") is None:
        assert asked["not measured"] == 2 and "numba-cuda is not installed" in text, kernels["data"]
    assert "three arrays of its own: devmem / numba-cuda" in text
    assert "no memcheck" in memcheck["notes"][0]
    assert bandwidth["status"] == "passed", bandwidth["failures"]
    assert bandwidth["data"]["emulated"] and bandwidth["data"]["unfinished"] == []
    for row in bandwidth["data"]["rows"]:
        assert row["cells"]["devmem"]["median"] > 0, row
    assert {"predicted", "asked"} <= bandwidth["data"].keys()
    paths = {row["id"]: row["cells"]["devmem"].get("path") for row in bandwidth["data"]["rows"]}
    assert (paths["h2d-into"], paths["d2h-new"], paths["h2d-into-4KiB"]) == ("h2d staged", "d2h staged", "h2d direct")
    assert {each["verdict"] for each in bandwidth["data"]["asked"]} == {"not judged", "not measured"}
    assert bandwidth["counts"]["asked, not measured"] >= 1 and "not measured: CuPy was not used" in text
    assert "pinned limit" in text and "Predicted and measured" in text
    assert str(ROOT) not in text + kept.read_text()

    copied = sorted(each.suffix for each in out.iterdir())
    assert copied == [".json", ".log", ".md"]


@pytest.mark.timeout(300)
def test_an_amd_gpu_is_checked_by_the_same_command(environment, tmp_path):
    try:
        emulator.library("roc")
    except emulator.BuildError as error:
        pytest.skip(f"no emulator: {error}")
    results = tmp_path / "results"
    steps = ["contract", "truth", "memcheck", "bandwidth"]
    chosen = ["--backend", "roc", "--emulated", "--quick", "--only", *steps]
    done = check({**environment, "CUDA_VISIBLE_DEVICES": "0"}, *chosen, "--results", str(results))
    assert done.returncode == 0, done.stdout + done.stderr
    [kept] = results.glob("roc-emulated-*.json")
    found = json.loads(kept.read_text())
    assert found["backend"] == "roc" and found["device"]["arch"].startswith("gfx")
    assert {step["name"]: step["status"] for step in found["steps"]} == dict.fromkeys(steps, "passed")
    bandwidth = found["steps"][-1]["data"]
    assert bandwidth["emulated"] and bandwidth["backend"] == "roc" and bandwidth["unfinished"] == []
    for row in bandwidth["rows"]:
        assert "median" in row["cells"]["devmem"], row
    assert bandwidth["predicted"] == [], "nothing was predicted of an AMD GPU"
    for step in found["steps"][:2]:
        assert step["counts"]["passed"] >= 1 and sum(step["counts"].values()) >= 6, step
    text = kept.with_suffix(".md").read_text()
    assert "Emulated HIP runtime" in text and "HIP 7." in text
    assert str(ROOT) not in text + kept.read_text()


def test_without_an_amd_gpu_it_refuses(environment, tmp_path):
    done = check({**environment, "CUDA_VISIBLE_DEVICES": "0"}, "--backend", "roc", "--results", str(tmp_path))
    if done.returncode != 2:
        pytest.skip("there is an AMD GPU")
    assert done.stderr.startswith("gpu-check: no AMD GPU can be used here: "), done.stderr
    assert list(tmp_path.iterdir()) == []


# -- what goes wrong in a test process ---------------------------------------------------------------------------------

BAD = """
import ctypes, os, time
import pytest

def test_first(): pass
def test_kills(): os.kill(os.getpid(), 9)
def test_fails(): assert 1 == 2, "not equal"
@pytest.mark.skip(reason="because")
def test_skips(): pass
@pytest.mark.timeout(0)
def test_hangs(): time.sleep(1000)
def test_last(): pass
"""


def made(step, tmp_path, seconds):
    (tmp_path / "test_bad.py").write_text(BAD)
    env = importlib.import_module("gpucheck.device").child_environment(emulated=False)
    run = step.Run(False, False, tmp_path, env, {}, time.monotonic() + seconds, ["contract"])
    return run, step.Step("contract", "")


@pytest.mark.timeout(300)
def test_what_kills_the_process_is_named_and_the_tests_after_it_still_run(step, suites, tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "LAST_PATIENCE", 20)  # in which pytest starts on any machine
    run, step = made(step, tmp_path, 200)
    suites.tests(run, step, [tmp_path / "test_bad.py"], only_backend=False)
    assert step.status == "failed"
    assert step.counts == {"passed": 2, "crashed": 2, "failed": 1, "skipped": 1}
    told = {each["id"].rpartition("::")[2]: each["message"] for each in step.failures}
    assert told["test_kills"] == "killed by SIGKILL"
    assert told["test_hangs"] == "hung, and was ended after 20 seconds"
    assert "not equal" in told["test_fails"]
    assert step.skips == {"because": 1}


@pytest.mark.timeout(300)
def test_tests_find_their_helpers(step, suites, tmp_path):
    run, step = made(step, tmp_path, 200)
    (tmp_path / "test_bad.py").write_text("import two_processes\n\ndef test_it(): assert two_processes.data().size")
    suites.tests(run, step, [tmp_path / "test_bad.py"], only_backend=False)
    assert step.counts == {"passed": 1}, step.failures


def test_a_command_whose_time_is_up_is_ended_with_all_that_it_started(step, tmp_path):
    run, step = made(step, tmp_path, 60)
    script = "echo before; sleep 1000 & echo $!; wait"
    code, text = importlib.import_module("gpucheck.process").child(run, step, ["sh", "-c", script], 5.0)
    assert code is None
    before, sleeper = text.split()
    assert before == "before"
    # The signal is sent before child() returns; when it is acted upon is the kernel's affair.
    deadline = time.monotonic() + patience()
    while not gone(sleeper) and time.monotonic() < deadline:
        os.sched_yield()
    assert gone(sleeper)


def gone(process):
    """Whether a process has ended; its exit status may not have been read yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_what_ran_before_the_time_was_up_is_kept(step, tmp_path):
    def phase(name, when, outcome):
        return {"event": "report", "id": name, "when": when, "outcome": outcome, "text": "", "message": ""}

    events = [
        {"event": "collected", "ids": ["a", "b", "c"], "deselected": ["d"]},
        {"event": "started", "id": "a"},
        *(phase("a", when, "passed") for when in ("setup", "call", "teardown")),
        {"event": "started", "id": "b"},
        phase("b", "setup", "passed"),
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(map(json.dumps, events)) + '\n{"event": "repo')
    seen = importlib.import_module("gpucheck.seen").Seen()
    assert seen.take(path) is None
    assert seen.cut() == " in b"
    step = step.Step("contract", "")
    seen.into(step)
    assert step.counts == {"passed": 1, "cut off": 1, "not run": 1, "left out": 1}


def test_a_step_may_use_what_those_before_it_left_over(step, tmp_path):
    run = step.Run(False, False, tmp_path, {}, {}, time.monotonic() + 400, ["contract", "bandwidth", "overhead"])
    assert run.left("contract") == pytest.approx(400 - step.SHARES["bandwidth"] - step.SHARES["overhead"], abs=2)
    assert run.left("overhead") == pytest.approx(400, abs=2)
    assert sum(step.SHARES.values()) < step.TOTAL < 480


def test_every_step_has_a_share_of_the_time(step):
    report = importlib.import_module("gpu_report")
    assert step.SHARES.keys() == report.STEPS.keys() == report.TITLES.keys()
    assert min(step.SHARES.values()) > 0


# -- what was asked for ------------------------------------------------------------------------------------------------

#: Issue by issue what a run on a device is to show: case, against whom, at least how many times as fast.
WANTED = {
    *((case, "pinned limit", 0.80) for case in ("h2d-into", "h2d-new", "d2h-into", "spill-swap")),
    *((case, peer, 2) for case in ("h2d-into", "h2d-new", "d2h-into") for peer in ("CuPy", "PyTorch", "numba-cuda")),
    ("d2h-new", "numba-cuda", 5),
    *((case, peer, 5) for case in ("h2d-many", "d2h-many") for peer in ("CuPy", "PyTorch")),
    *((f"{case}-4KiB", "CuPy", 1) for case in ("h2d-into", "h2d-new", "d2h-into", "d2h-new")),
}


def rates(**seconds):
    """A row of which some libraries took so many seconds."""
    cells = {name: {"median_s": each} for name, each in seconds.items()}
    return {"id": "h2d-into", "title": "256 MiB up", "cells": cells}


def test_everything_that_was_asked_for_is_judged_also_what_was_not_measured():
    judged = importlib.import_module("rates.expected").judged
    found = judged([], quick=False)
    assert {(each["case"], each["against"], each["asked"]) for each in found} == WANTED
    assert {(each["verdict"], each["why"]) for each in found} == {("not measured", "the time was up")}


@pytest.mark.parametrize(
    ("cells", "verdict", "why"),
    [
        ({"devmem": 1.0, "CuPy": 2.0}, "met", None),
        ({"devmem": 1.0, "CuPy": 1.9}, "falls short", None),
        ({"devmem": 1.0}, "not measured", "CuPy was not used"),
        ({"CuPy": 1.0}, "not measured", "devmem was not used"),
    ],
)
def test_a_number_that_was_asked_for_is_met_or_falls_short(cells, verdict, why):
    judged = importlib.import_module("rates.expected").judged
    [found] = [
        each
        for each in judged([rates(**cells)], quick=False)
        if each["case"] == "h2d-into" and each["against"] == "CuPy"
    ]
    assert (found["verdict"], found.get("why")) == (verdict, why)
    [told] = [
        each
        for each in judged([rates(**cells)], quick=True)
        if each["case"] == "h2d-into" and each["against"] == "CuPy"
    ]
    assert told["verdict"] == ("not measured" if why else "not judged")


def test_a_library_that_failed_is_named_with_its_error():
    expected = importlib.import_module("rates.expected")
    row = rates(devmem=1.0)
    row["cells"]["CuPy"] = {"error": "RuntimeError: no"}
    assert expected.lacking(row, "CuPy") == "CuPy: RuntimeError: no"
    table = importlib.import_module("rates.tables").asked_table(expected.judged([row], quick=False))
    assert any("256 MiB up | CuPy | 2x | - | not measured: CuPy: RuntimeError: no" in line for line in table)


# -- the commit, without git -------------------------------------------------------------------------------------------


def test_the_commit_is_read_from_a_branch_a_packed_branch_or_a_bare_head(tmp_path):
    commit_by_hand = importlib.import_module("gpucheck.about").commit_by_hand
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "packed-refs").write_text("# pack-refs\naaaa refs/heads/other\nbbbb refs/heads/main\n")
    assert commit_by_hand(tmp_path) == "bbbb"
    (tmp_path / "refs/heads").mkdir(parents=True)
    (tmp_path / "refs/heads/main").write_text("cccc\n")
    assert commit_by_hand(tmp_path) == "cccc"
    (tmp_path / "HEAD").write_text("dddd\n")
    assert commit_by_hand(tmp_path) == "dddd"


def test_an_earlier_run_of_the_day_keeps_its_files(tmp_path):
    free_name = importlib.import_module("gpucheck.report").free_name
    about = {"backend": "cuda", "emulated": False, "date": "2026-01-02", "device": {"name": "NVIDIA H100 80GB HBM3"}}
    assert free_name([tmp_path], about) == "cuda-nvidia-h100-80gb-hbm3-2026-01-02"
    (tmp_path / "cuda-nvidia-h100-80gb-hbm3-2026-01-02.json").write_text("{}")
    assert free_name([tmp_path], about) == "cuda-nvidia-h100-80gb-hbm3-2026-01-02-2"
