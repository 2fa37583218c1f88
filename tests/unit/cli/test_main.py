"""The command line as a whole: what it does without its libraries, and how it is started."""

from __future__ import annotations

import os
import re
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


@pytest.mark.parametrize("module", ["devmem", "devmem.cli"])
def test_it_runs_as_a_module(module):
    run = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert devmem.__version__ in run.stdout


@pytest.mark.parametrize("name", commands.commands)
def test_the_help_of_every_command_has_an_example(name):
    text = CliRunner().invoke(commands, [name, "--help"]).output
    assert re.search(rf"Example:\n( +\$ .+\n)* +\$ .*devmem {name}", text)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(shell):
    script = CliRunner().invoke(commands, ["completion", shell])
    assert script.exit_code == 0
    assert f"_DEVMEM_COMPLETE={shell}_complete" in script.output
    words = {
        "COMP_WORDS": "devmem bench --q",
        "COMP_CWORD": "2" if shell != "fish" else "--q",
        "_DEVMEM_COMPLETE": f"{shell}_complete",
    }
    run = subprocess.run([sys.executable, "-m", "devmem.cli"], env=os.environ | words, capture_output=True, text=True)
    assert "--quick" in run.stdout


@pytest.mark.parametrize(
    ("words", "wanted", "unwanted"),
    [
        ("bench --backend ", {"cuda", "host", "roc"}, set()),
        ("roundtrip --backend h", {"host"}, {"cuda"}),
        ("replay --device ", {"host:0"}, set()),
        ("replay --memory ", {"limit", "pool"}, set()),
        ("replay --memory limit:4GiB,p", {"limit:4GiB,pool", "limit:4GiB,pinned"}, {"limit:4GiB,limit"}),
        ("emulate ", {"cuda", "roc", "cuda,roc"}, set()),
        ("emulate r", {"roc"}, {"cuda"}),
    ],
)
def test_shells_complete_values(words, wanted, unwanted):
    told = completed(words, {"DEVMEM_BACKEND": "host"})
    assert wanted <= told
    assert not unwanted & told


def test_completion_is_silent_where_a_setting_is_wrong():
    assert completed("bench --device ", {"DEVMEM_BACKEND": "host", "DEVMEM_HOST_DEVICES": "many"}) == set()


def completed(words, settings):
    """What zsh is told to complete the last word to; nothing may be printed beside it."""
    asked = {
        "COMP_WORDS": f"devmem {words}",
        "COMP_CWORD": str(words.count(" ") + 1),
        "_DEVMEM_COMPLETE": "zsh_complete",
    }
    run = subprocess.run(
        [sys.executable, "-m", "devmem.cli"], env=os.environ | settings | asked, capture_output=True, text=True
    )
    assert run.stderr == ""
    return set(run.stdout.splitlines()[1::3])


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
