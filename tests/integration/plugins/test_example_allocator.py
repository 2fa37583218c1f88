"""The example allocator, really installed: found by its entry point, driven by its name, and held to the published suite."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waits import patience

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "examples" / "arena-allocator"
HOST = {"DEVMEM_BACKEND": "host", "DEVMEM_HOST_STRICT": "1"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example distribution, installed as pip installs it, from disk alone."""
    pytest.importorskip("hatchling", reason="building the example package needs hatchling")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-index", "--no-build-isolation", "--target", str(target), str(PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(140))
    assert done.returncode == 0, done.stderr
    return target


def run(site: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DEVMEM_")}
    env |= {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "PYTHONWARNINGS": "error"} | HOST | variables
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(140),
        env=env,
        cwd=site,
    )


def script(site: Path, text: str, **variables: str) -> str:
    done = run(site, "-c", textwrap.dedent(text), **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_passes_the_published_suite(site: Path) -> None:
    # As a plugin's author runs it: away from devmem's own configuration, in the package's folder.
    done = run(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(PACKAGE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.parametrize("spelled", ["arena", "arena:1MiB", "limit:64MiB,arena:1MiB", "arena:1MiB,limit:64MiB"])
@pytest.mark.parametrize("how", ["call", "variable"])
def test_it_is_used_by_its_name(site: Path, spelled: str, how: str) -> None:
    text = """
        import sys, numpy as np, devmem as dm
        if sys.argv[1:] == ["call"]:
            dm.use_memory(SPELLED)
        arrays = [dm.to_device(np.arange(n)) for n in range(1, 50)]
        assert all(each.tolist() == list(range(each.size)) for each in arrays)
        assert "devmem_arena" in sys.modules
        dm.zeros(0)
        for each in arrays:
            each.free()
        dm.trim()
        info = dm.memory_info()
        assert (info.live, info.cached, info.free) == (0, 0, info.total), info
    """.replace("SPELLED", repr(spelled))
    variables = {} if how == "call" else {"DEVMEM_MEMORY_MANAGER": spelled}
    done = run(site, "-c", textwrap.dedent(text), how, **variables)
    assert done.returncode == 0, done.stderr


def test_its_own_error_is_what_the_user_sees(site: Path) -> None:
    text = """
        import devmem as dm
        try:
            dm.use_memory("arena:many")
        except dm.ConfigError as error:
            print(error)
    """
    assert "arena:many: give the size of a chunk, such as 64MiB" in script(site, text)


def test_it_runs_out_like_any_other(site: Path) -> None:
    text = """
        import devmem as dm
        dm.use_memory("arena:1MiB,limit:4MiB")
        kept = dm.zeros(1000)
        try:
            dm.device_array(8 << 20, "u1")
        except dm.OutOfMemory as error:
            print("asked for 8.0 MiB (8,388,608 bytes)" in str(error))
        assert kept.tolist() == [0.0] * 1000
        dm.device_array(2 << 20, "u1").free()
    """
    assert script(site, text) == "True\n"


def test_it_can_be_blocked(site: Path) -> None:
    done = run(site, "-c", "import devmem; devmem.use_memory('arena')", DEVMEM_BLOCK_PLUGINS="arena")
    assert done.returncode != 0
    assert "no memory resource is named 'arena'" in done.stderr


def test_it_is_not_imported_for_what_is_built_in(site: Path) -> None:
    text = "import sys, devmem as dm; dm.use_memory('limit:1GiB,driver'); dm.zeros(1); print('devmem_arena' in sys.modules)"
    assert script(site, text) == "False\n"
