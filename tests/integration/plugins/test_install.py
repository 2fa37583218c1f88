"""A third-party backend, really installed, is found by its entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waits import patience

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ROOT / "examples" / "backend", ROOT / "examples" / "arena-allocator"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example distributions, installed as pip installs them, from disk alone."""
    pytest.importorskip("hatchling", reason="building the example package needs hatchling")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-index", "--no-build-isolation", "--target", str(target), *map(str, PACKAGES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(140))
    assert done.returncode == 0, done.stderr
    return target


def run(site: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DEVMEM_")}
    env |= {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "PYTHONWARNINGS": "error"} | variables
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(140),
        env=env,
    )


ROUND_TRIP = """
    import json, numpy as np, devmem as dm
    a = np.arange(12).reshape(3, 4)
    d = dm.to_device(a)
    status = next(each for each in dm.backends() if each.name == "example")
    print(json.dumps([str(d.device), d.copy_to_host().tolist(), d[::2, 1].copy_to_host().tolist(), status.origin]))
"""


def test_it_is_found_and_moves_arrays(site: Path) -> None:
    done = run(site, ROUND_TRIP, DEVMEM_BACKEND="example")
    assert done.returncode == 0, done.stderr
    device, whole, part, origin = json.loads(done.stdout)
    assert device == "example:0"
    assert whole == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert part == [1, 9]
    assert origin.startswith("devmem-example-backend ")


def test_a_memory_resource_is_found_by_name_and_serves_it(site: Path) -> None:
    script = """
        import numpy as np, devmem as dm
        with dm.use_memory("arena") as resource:
            d = dm.to_device(np.arange(5))
        assert d.copy_to_host().tolist() == [0, 1, 2, 3, 4]
        d.free()
        print(type(resource).__module__.partition(".")[0])
    """
    done = run(site, script, DEVMEM_BACKEND="example")
    assert (done.returncode, done.stdout) == (0, "devmem_arena\n"), done.stderr


def test_its_settings_reach_it(site: Path) -> None:
    script = """
        import devmem as dm
        from devmem._core.base.config import describe
        status = next(each for each in dm.backends() if each.name == "example")
        [row] = [each for each in describe() if each.name.startswith("DEVMEM_EXAMPLE_")]
        print(status.devices, row.name, row.value, row.source)
    """
    done = run(site, script, DEVMEM_BACKEND="example", DEVMEM_EXAMPLE_DEVICES="3")
    assert (done.returncode, done.stdout) == (0, "3 DEVMEM_EXAMPLE_DEVICES 3 environment\n"), done.stderr
    done = run(site, "import devmem as dm; dm.to_device([1])", DEVMEM_BACKEND="example", DEVMEM_EXAMPLE_DEVICES="no")
    assert "ConfigError: DEVMEM_EXAMPLE_DEVICES='no' is not allowed" in done.stderr


def test_it_can_be_blocked(site: Path) -> None:
    done = run(site, ROUND_TRIP, DEVMEM_BACKEND="example", DEVMEM_BLOCK_PLUGINS="*")
    assert done.returncode != 0
    assert "ConfigError: no backend is named 'example'" in done.stderr


def test_it_is_not_imported_for_a_built_in(site: Path) -> None:
    script = "import sys, devmem as dm; dm.to_device([1]); print('devmem_example_backend' in sys.modules)"
    done = run(site, script, DEVMEM_BACKEND="host")
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_it_is_never_chosen_without_being_asked_for(site: Path) -> None:
    script = """
        import warnings, devmem as dm
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dm.DevmemWarning)
            print(dm.current_device().backend)
    """
    done = run(site, script)
    assert done.stdout in ("host\n", "cuda\n", "roc\n"), done.stderr
