"""``devmem info`` and ``devmem doctor``: they work best when the rest does not."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

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
        raise ZeroDivisionError("in somebody's plugin")

    monkeypatch.setattr(devmem, "backends", explode)
    report = collect()
    assert report.problems == ["ZeroDivisionError: in somebody's plugin"]
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


def test_falling_back_to_the_host_is_a_failure():
    report = Report(settings=[SETTING], backends=[CUDA, HOST])
    assert verdicts(report)["choice of backend"] is Verdict.FAIL
    assert verdicts(report)["backend cuda"] is Verdict.WARN


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
