"""The command line as a whole: what it does without its libraries, and how it is started."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

import devmem
from devmem import cli
from devmem.cli.commands import commands

BLOCKED = """
import importlib.abc, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"click", "rich", "matplotlib"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Block())
"""


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "devmem: the command line needs click and rich: pip install 'devmem-arrays[cli]'\n"


def test_the_package_imports_without_its_libraries():
    subprocess.run([sys.executable, "-W", "error", "-c", f"{BLOCKED}\nimport devmem.cli"], check=True)


def test_it_runs_as_a_module():
    run = subprocess.run([sys.executable, "-m", "devmem.cli", "--version"], capture_output=True, text=True, check=True)
    assert devmem.__version__ in run.stdout


@pytest.mark.parametrize("command", [[], *([name] for name in commands.commands)])
def test_every_command_has_help(command):
    result = CliRunner().invoke(commands, [*command, "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 4


@pytest.mark.parametrize("command", ["doctor", "roundtrip", "info", "emulate"])
def test_exit_codes_are_documented(command):
    assert "xit code" in CliRunner().invoke(commands, [command, "--help"]).output


def test_an_unknown_command_is_refused():
    assert CliRunner().invoke(commands, ["fly"]).exit_code == 2
