"""The code of the documentation that needs PyTorch, run with its CPU build: ``nox -s exchange``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNER, PAGE = ROOT / "tests" / "docs" / "run_page.py", ROOT / "docs" / "tutorial" / "from-pytorch.md"
ENGINES = ROOT / "docs" / "how-to" / "exchange-with-engines.md"

#: To import PyTorch takes half a minute where others want the processors too.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def torch():
    """PyTorch is installed."""
    if not importlib.util.find_spec("torch"):
        if os.environ.get("EXCHANGE_MATRIX"):
            pytest.fail("torch is missing")
        pytest.skip("torch is not installed")


def run(page: Path, strict: int) -> subprocess.CompletedProcess[str]:
    """Run all blocks of a page on the host backend, those that need PyTorch too."""
    environment = os.environ | {"DEVMEM_BACKEND": "host", "DEVMEM_HOST_STRICT": str(strict), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(RUNNER), str(page), "needs PyTorch; tests/peers/test_pytorch_page.py runs it"]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_page_for_users_of_pytorch_runs():
    result = run(PAGE, strict=0)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "2\n"


def test_memory_like_a_gpus_is_refused_as_the_page_says():
    result = run(PAGE, strict=1)
    assert "No module named 'torch.privateuseone'" in result.stderr
    assert "No module named\n'torch.privateuseone'" in PAGE.read_text(encoding="utf-8")


RANK = """
import sys
import numpy as np
import devmem as dm

rank, meeting = int(sys.argv[1]), sys.argv[2]
d = dm.to_device(np.arange(6.0) + 10 * rank)
ptr = d.ptr
BLOCK
assert d.ptr == ptr == torch.from_dlpack(d).data_ptr()
assert d.tolist() == [2 * number + 10 for number in range(6)], d
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def test_the_sum_over_processes_is_in_the_arrays_themselves(tmp_path):
    """`torch.distributed`, with Gloo in the place of NCCL."""
    page = ENGINES.read_text(encoding="utf-8")
    [block] = [part.partition("```")[0] for part in page.split("```python\n") if "torch.distributed.all_reduce" in part]
    gloo = '"gloo", init_method=f"file://{meeting}", rank=rank, world_size=2'
    assert '"nccl"' in block
    program = RANK.replace("BLOCK", block.replace('"nccl"', gloo))
    environment = os.environ | {"DEVMEM_BACKEND": "host", "DEVMEM_HOST_STRICT": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting")], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    said = [each.communicate()[1] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], said
