"""`scripts/campaign`: rounds of tests with a seed of their own, what they count, and that a seed draws the same again."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import campaign
import pytest
from waits import patience

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
FAILING = "def test_numbers(): assert 1 == 2"


@pytest.fixture
def rounds(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("rounds")


def run(name, *arguments):
    command = [sys.executable, str(SCRIPTS / "rounds.py"), name, "0", "--backend", "host", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(140), check=False)


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("failures", "tests/integration/failures/test_driver_failures.py::test_opening_a_device"),
        (
            "reentry",
            "tests/integration/every_backend/lifetime/test_interrupts.py::test_devmem_may_be_called_at_any_point[host-view-collected]",
        ),
        ("fuzz", "tests/fuzz/test_keys.py::test_any_key_reads_what_numpy_reads"),
    ],
)
def test_a_round_is_counted(name, test):
    done = run(name, "--seed", 1, test)
    assert done.returncode == 0, done.stdout + done.stderr
    assert test.partition("[")[0] in done.stdout
    assert "rounds that failed: 0" in done.stdout


def test_what_fails_is_told_with_what_repeats_it(tmp_path):
    test = tmp_path / "test_numbers.py"
    test.write_text(FAILING, encoding="utf-8")
    done = run("reentry", "--seed", 5, test)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "assert 1 == 2" in done.stdout
    assert f"again: scripts/campaign reentry 0 --seed 5 --backend host {test}" in done.stdout


def test_a_seed_draws_the_same_again_and_another_one_does_not(monkeypatch):
    drawn = []
    for seed in ("5", "5", "6", ""):
        monkeypatch.setattr(campaign, "SEED", seed)
        drawn.append(campaign.sample(range(20), 10))
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[3] == list(range(20))


def test_each_test_of_a_round_has_as_many_parameters(monkeypatch):
    monkeypatch.setattr(campaign, "SEED", "3")
    monkeypatch.setattr(campaign, "PARAMETERS", "2")
    tests = [SimpleNamespace(nodeid=f"a.py::many[{number}]") for number in range(9)]
    tests.append(SimpleNamespace(nodeid="a.py::one"))
    found = [each.nodeid for each in campaign.drawn(tests)]
    assert len(found) == 3
    assert "a.py::one" in found
    monkeypatch.setattr(campaign, "PARAMETERS", "")
    assert campaign.drawn(tests) == tests


def test_every_campaign_of_tests_names_tests_that_there_are(rounds):
    root = SCRIPTS.parent
    for each in rounds.CAMPAIGNS.values():
        for test in {*each.on_host, *each.elsewhere}:
            path, _, name = test.partition("::")
            assert (root / path).exists()
            assert f"def {name}" in ((root / path).read_text(encoding="utf-8") if name else "def ")


def test_the_door_lists_all_campaigns(rounds):
    """And takes no other name."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CAMPAIGN_")}
    command = ["bash", str(SCRIPTS / "campaign"), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=False, env=environment)
    assert done.returncode == 2
    listed = [line.split()[0] for line in done.stderr.splitlines()[4:] if line.strip()]
    assert listed == sorted({*rounds.CAMPAIGNS, "differential", "schedules", "signals", "soak"})
