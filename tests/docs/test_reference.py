"""The reference is complete: what devmem has, its pages name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import devmem
import devmem.errors
from devmem.cli.commands import commands

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def page(name):
    return (REFERENCE / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("setting", devmem.settings(), ids=lambda setting: setting.name)
def test_every_setting_is_there_with_its_default(setting):
    [row] = [line for line in page("settings.md").splitlines() if line.startswith(f"| `{setting.name}` |")]
    default = row.split("|")[2].strip().strip("`")
    if setting.source == "default":
        shown = {True: "1", False: "0", (): "", None: ""}.get(setting.value, str(setting.value))
        assert default == shown


def test_no_setting_is_there_that_is_not():
    named = set(re.findall(r"^\| `(DEVMEM_\w+)`", page("settings.md"), flags=re.MULTILINE))
    assert named == {setting.name for setting in devmem.settings()}


@pytest.mark.parametrize("command", commands.commands)
def test_every_command_is_there_with_its_options(command):
    text = page("cli.md")
    assert f"## devmem {command}\n" in text
    for parameter in commands.commands[command].params:
        if parameter.param_type_name == "option":
            assert parameter.opts[0] in text


@pytest.mark.parametrize("name", devmem.errors.__all__)
def test_every_error_is_there(name):
    assert f".. autoexception:: {name}\n" in page("errors.md")
    assert f"── {name} " in page("errors.md") or page("errors.md").count(f"\n{name}") >= 1


def test_the_api_page_leaves_out_only_what_has_a_page():
    [excluded] = re.findall(r":exclude-members: (.*)", page("api.md"))
    assert set(excluded.split(", ")) == {*devmem.errors.__all__, "errors", "memory", "spill"}
