"""``devmem info`` and ``devmem doctor``: they work best when the rest does not."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import devmem
from devmem.cli import doctor as doctor_module
from devmem.cli.commands import commands
from devmem.cli.doctor import Verdict, examine
from devmem.cli.info import Report, collect

SETTING = devmem.Setting(name="DEVMEM_BACKEND", value="", source="default", allowed="a name", help="backend to use")
HOST = devmem.BackendStatus(name="host", usable=True, reason=None, devices=1, origin="built in")
CUDA = devmem.BackendStatus(name="cuda", usable=False, reason="no driver: install one", devices=0, origin="built in")


def command(*arguments, **environment):
    """The command in a process of its own, where settings are read afresh."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "devmem.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def verdicts(report):
    return {check.name: check.verdict for check in examine(report)}


def asked(value):
    return dataclasses.replace(SETTING, value=value, source="environment")


# -- info --------------------------------------------------------------------------------------------------------------


def test_info_shows_backends_devices_settings_and_versions():
    result = CliRunner().invoke(commands, ["info"])
    assert result.exit_code == 0, result.output
    for word in ("Backends", "host", "host:1", "DEVMEM_HOST_DEVICES", "environment", "python", "numpy", "pluggy"):
        assert word in result.output


def test_info_shows_settings_at_their_defaults_if_asked():
    few, every = (CliRunner().invoke(commands, ["info", *options]).output for options in ([], ["--all"]))
    assert "DEVMEM_STAGING_SLOTS" not in few
    assert "devmem info --all" in few
    assert "DEVMEM_STAGING_SLOTS" in every
    assert "at their defaults" not in every


def test_info_as_json():
    result = CliRunner().invoke(commands, ["info", "--json"])
    document = json.loads(result.stdout)
    assert {backend["name"] for backend in document["backends"]} >= {"host", "cuda", "roc"}
    assert all(backend["usable"] or backend["reason"] for backend in document["backends"])
    assert [device["device"] for device in document["devices"] if device["backend"] == "host"] == ["host:0", "host:1"]
    host_devices = next(item for item in document["settings"] if item["name"] == "DEVMEM_HOST_DEVICES")
    assert host_devices["value"] == 2
    assert host_devices["source"] == "environment"
    assert document["versions"]["devmem"] == devmem.__version__
    assert document["problems"] == []


def test_info_goes_on_after_a_bad_setting():
    result = command("info", "--json", DEVMEM_HOST_DEVICES="several")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "DEVMEM_HOST_DEVICES='several'" in result.stderr
    document = json.loads(result.stdout)
    assert document["versions"]["python"]
    assert len(document["problems"]) == 1


def test_collect_survives_whatever_a_plugin_raises(monkeypatch):
    def explode():
        raise ZeroDivisionError("in a plugin")

    monkeypatch.setattr(devmem, "backends", explode)
    report = collect()
    assert report.problems == ["ZeroDivisionError: in a plugin"]
    assert report.settings


# -- doctor ------------------------------------------------------------------------------------------------------------


def test_doctor_is_content_with_host_on_purpose():
    result = command("doctor", DEVMEM_BACKEND="host")
    assert result.returncode == 0, result.stdout
    assert "asked for by DEVMEM_BACKEND" in result.stdout


def test_doctor_as_json():
    result = command("doctor", "--json", DEVMEM_BACKEND="host")
    document = json.loads(result.stdout)
    assert document["healthy"] is True
    assert {check["name"] for check in document["checks"]} >= {"backend host", "choice of backend", "round trip"}


def test_doctor_reports_a_bad_setting_as_a_check():
    result = command("doctor", "--json", DEVMEM_TRANSFER_GUARD="sometimes")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    failing = [check for check in json.loads(result.stdout)["checks"] if check["verdict"] == "fail"]
    assert any("DEVMEM_TRANSFER_GUARD='sometimes'" in check["found"] for check in failing)


def test_doctor_reports_a_backend_that_is_asked_for_and_missing():
    result = command("doctor", "--json", DEVMEM_BACKEND="nonsense")
    assert result.returncode == 1
    failing = {check["name"]: check for check in json.loads(result.stdout)["checks"] if check["verdict"] == "fail"}
    assert "nonsense" in failing["choice of backend"]["found"]
    assert "host" in failing["choice of backend"]["advice"]


def test_a_machine_without_a_gpu_is_no_failure():
    report = Report(settings=[SETTING], backends=[CUDA, HOST])
    [choice] = [check for check in examine(report) if check.name == "choice of backend"]
    assert choice.verdict is Verdict.INFO
    assert "DEVMEM_BACKEND=host" in choice.advice
    [cuda] = [check for check in examine(report) if check.name == "backend cuda"]
    assert cuda.verdict is Verdict.INFO
    assert "no driver: install one" in cuda.found


def test_no_backend_at_all_is():
    assert verdicts(Report(settings=[SETTING], backends=[CUDA]))["choice of backend"] is Verdict.FAIL


def test_doctor_ends_well_without_a_gpu_and_badly_where_one_is_asked_for():
    plain = command("doctor", "--json", DEVMEM_BACKEND="")
    document = json.loads(plain.stdout)
    assert plain.returncode == 0, plain.stdout
    assert document["healthy"] is True
    unusable = [c["name"].split()[1] for c in document["checks"] if c["found"].startswith("not usable")]
    for name in unusable:
        asked_for = command("doctor", "--json", DEVMEM_BACKEND=name)
        assert asked_for.returncode == 1
        failing = [c["name"] for c in json.loads(asked_for.stdout)["checks"] if c["verdict"] == "fail"]
        assert "choice of backend" in failing


def test_choosing_the_host_is_not():
    report = Report(settings=[asked("host")], backends=[CUDA, HOST])
    assert verdicts(report)["choice of backend"] is Verdict.OK


def test_a_usable_gpu_is_enough():
    gpu = dataclasses.replace(CUDA, usable=True, reason=None, devices=1)
    assert verdicts(Report(settings=[SETTING], backends=[gpu, HOST]))["choice of backend"] is Verdict.OK


def test_a_problem_fails():
    report = Report(settings=[asked("host")], backends=[HOST], problems=["plugin 'x' is broken"])
    assert verdicts(report)["problem"] is Verdict.FAIL


def test_changed_bytes_fail(monkeypatch):
    monkeypatch.setattr(doctor_module, "first_difference", lambda *arrays: "[3] is 00, not 01")
    [check] = [check for check in examine(Report()) if check.name == "round trip"]
    assert check.verdict is Verdict.FAIL
    assert "[3] is 00, not 01" in check.found


# -- page-locked memory, plugins to leave out, emulated drivers --------------------------------------------------------


def checks_of(**environment):
    result = command("doctor", "--json", DEVMEM_BACKEND="host", **environment)
    return result.returncode, {check["name"]: check for check in json.loads(result.stdout)["checks"]}


def test_page_locked_memory_is_tried_with_its_own_stack():
    status, checks = checks_of(DEVMEM_PINNED_MEMORY_MANAGER="statistics,pinned_pool")
    assert (status, checks["page-locked memory"]["verdict"]) == (0, "ok")
    status, checks = checks_of(DEVMEM_PINNED_MEMORY_MANAGER="limit:16,pinned")
    assert (status, checks["page-locked memory"]["verdict"], checks["round trip"]["verdict"]) == (1, "fail", "ok")
    assert "out of page-locked host memory" in checks["page-locked memory"]["found"]


def test_page_locked_memory_is_not_tried_where_nothing_can_be_moved(monkeypatch):
    monkeypatch.setattr(doctor_module, "first_difference", lambda *arrays: "[3] is 00, not 01")
    assert "page-locked memory" not in verdicts(Report())


def test_a_blocked_plugin_that_is_not_installed_is_a_warning(monkeypatch):
    entry = importlib.metadata.EntryPoint("their_memory", "their.module", "devmem")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    names = ("their_memory", "their_memroy", "*", "cuda")
    setting = dataclasses.replace(asked(names), name="DEVMEM_BLOCK_PLUGINS")
    found = [check for check in examine(Report(settings=[setting])) if check.name == "blocked plugins"]
    assert [check.verdict for check in found] == [Verdict.WARN] * 2
    assert "'their_memroy'" in found[0].found and "did you mean their_memory?" in found[0].advice
    assert "'cuda'" in found[1].found and "built-in plugins cannot be left out" in found[1].advice


def test_an_emulated_driver_is_told(monkeypatch):
    monkeypatch.setattr(doctor_module, "is_emulated", lambda backend: backend == "cuda")
    gpu = dataclasses.replace(CUDA, usable=True, reason=None, devices=1)
    found = {check.name: check for check in examine(Report(settings=[SETTING], backends=[gpu, HOST]))}
    assert found["driver of cuda"].verdict is Verdict.INFO and "emulated" in found["driver of cuda"].found
    assert "driver of host" not in found


# -- settings that are none --------------------------------------------------------------------------------------------


def test_info_and_doctor_list_unknown_settings_with_the_closest_one():
    shown = command("info", DEVMEM_BACKEND="host", DEVMEM_HOST_DEVICE="3")
    assert shown.returncode == 0, shown.stderr
    assert (
        "DEVMEM_HOST_DEVICE is not a setting of devmem and does nothing: did you mean DEVMEM_HOST_DEVICES?"
        in shown.stdout
    )
    document = json.loads(command("info", "--json", DEVMEM_BACKEND="host", DEVMEM_HOST_DEVICE="3").stdout)
    [item] = [item for item in document["settings"] if item["source"] == "unknown"]
    assert (item["name"], item["value"]) == ("DEVMEM_HOST_DEVICE", "3")
    result = command("doctor", "--json", DEVMEM_BACKEND="host", DEVMEM_HOST_DEVICE="3")
    assert result.returncode == 0, result.stdout
    rows = [c for c in json.loads(result.stdout)["checks"] if "DEVMEM_HOST_DEVICE " in c["found"]]
    assert [(c["name"], c["verdict"], c["advice"]) for c in rows] == [
        ("unknown setting", "warn", "did you mean DEVMEM_HOST_DEVICES?")
    ]


# -- narrow terminals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [30, 60, 80])
@pytest.mark.parametrize("arguments", [["info", "--all"], ["doctor"], ["roundtrip"]], ids=lambda given: given[0])
def test_narrow_terminals_cut_nothing_off(arguments, columns):
    result = command(*arguments, DEVMEM_BACKEND="host", COLUMNS=str(columns))
    assert result.returncode == 0, result.stderr
    assert "…" not in result.stdout
    if arguments == ["roundtrip"]:
        sizes = {f"{row['nbytes']:,}" for row in json.loads(command("roundtrip", "--json").stdout)["arrays"]}
        assert all(size in result.stdout for size in sizes), "numbers stay in one piece"
    if arguments == ["info", "--all"] and columns == 60:
        assert all(setting.name in result.stdout for setting in devmem.settings())


def test_a_backend_that_is_chosen_by_name_only_says_by_which(monkeypatch):
    status = devmem.BackendStatus("quiet", usable=True, reason=None, devices=1, origin="built in", by_name_only=True)
    named = dataclasses.replace(SETTING, value="quiet", source="environment")
    for setting, advice in ((SETTING, "chosen by name only: DEVMEM_BACKEND=quiet"), (named, "")):
        [check] = [
            each
            for each in examine(Report(settings=[setting], backends=[HOST, status]))
            if each.name == "backend quiet"
        ]
        assert check.advice == advice
    monkeypatch.setattr(devmem, "backends", lambda: [HOST, status])
    assert "DEVMEM_BACKEND=quiet" in CliRunner().invoke(commands, ["info"], env={"COLUMNS": "200"}).output
