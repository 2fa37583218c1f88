from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

SHOW = "import os; print(os.environ['EMULATED'], os.environ['DEVMEM_BACKEND']); raise SystemExit(7)"


@pytest.fixture
def emulate(tmp_path, monkeypatch):
    """The command in a process whose emulator only sets a variable: it replaces itself, so it cannot run in this one."""
    driver = tmp_path / "run.py"
    driver.write_text(
        textwrap.dedent("""
        import sys, types
        import devmem

        def environment(backend, layout, runtime, stand_ins):
            if backend != "cuda":
                raise devmem.ConfigError(f"no emulator for {backend!r}: there is one for cuda")
            return {"EMULATED": " ".join(filter(None, [backend, "runtime" * runtime, *stand_ins]))}

        import devmem.testing
        devmem.testing.emulator = types.ModuleType("devmem.testing.emulator")
        devmem.testing.emulator.environment = environment
        sys.modules["devmem.testing.emulator"] = devmem.testing.emulator
        from devmem.cli import main
        raise SystemExit(main(["emulate", *sys.argv[1:]]))
        """)
    )
    monkeypatch.delenv("DEVMEM_BACKEND", raising=False)
    return lambda *arguments: subprocess.run([sys.executable, str(driver), *arguments], capture_output=True, text=True)


def test_the_command_runs_in_the_environment_and_its_exit_code_counts(emulate):
    run = emulate("cuda", "--", sys.executable, "-c", SHOW)
    assert run.stdout == "cuda cuda\n"
    assert run.returncode == 7


def test_the_runtime_and_stand_ins_are_asked_for(emulate):
    run = emulate("cuda", "--runtime", "--stand-ins", "torch", "--", sys.executable, "-c", SHOW)
    assert run.stdout == "cuda runtime torch cuda\n"


def test_options_of_the_command_are_its_own(emulate):
    run = emulate("cuda", "--", sys.executable, "--help")
    assert run.returncode == 0
    assert "PYTHONHOME" in run.stdout or "usage" in run.stdout


def test_a_backend_that_is_set_stays(emulate, monkeypatch):
    monkeypatch.setenv("DEVMEM_BACKEND", "host")
    assert emulate("cuda", "--", sys.executable, "-c", SHOW).stdout == "cuda host\n"


def test_an_unknown_emulator_is_one_line(emulate):
    run = emulate("vulkan", "--", sys.executable, "-c", SHOW)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "there is one for cuda" in run.stderr


def test_a_command_that_is_not_there_ends_as_in_a_shell(emulate, tmp_path):
    assert emulate("cuda", "--", "no-such-command").returncode == 127
    assert emulate("cuda", "--", str(tmp_path)).returncode == 126


def test_a_command_is_needed(emulate):
    assert emulate("cuda").returncode == 2
