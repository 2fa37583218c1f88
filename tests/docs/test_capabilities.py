"""The page of capabilities has those of the contract, each with a state on each backend."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "capabilities"

pytestmark = pytest.mark.skipif(
    not SCRIPT.is_file(), reason="these are not the sources: there is no scripts/capabilities"
)


def test_the_page_is_that_of_the_contract_and_its_cells():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"vulkan": {}}, "no backend is 'vulkan'"),
        ({"host": {"teleport": "no: not yet"}}, "no capability is 'teleport'"),
        ({"host": {"ipc": "maybe"}}, "begins with 'no: '"),
    ],
)
def test_a_cell_that_is_none_is_a_fault(cells, says):
    loader = SourceFileLoader("capabilities_script", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    [fault] = module.faults(cells)
    assert says in fault
