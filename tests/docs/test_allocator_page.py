"""The allocator of the page passes the suite that the page says it passes: its two blocks, as the two files that they are."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "write-an-allocator.md"

specification = importlib.util.spec_from_file_location("run_page", Path(__file__).with_name("run_page.py"))
run_page = sys.modules.get("run_page") or importlib.util.module_from_spec(specification)
if "run_page" not in sys.modules:
    sys.modules["run_page"] = run_page  # dataclasses look their module up
    specification.loader.exec_module(run_page)


def test_the_pages_allocator_passes_the_suite(tmp_path):
    blocks = [block.text for block in run_page.blocks(PAGE.read_text(encoding="utf-8"))]
    [allocator] = [code for code in blocks if "class Recycle:" in code]
    [tests] = [code for code in blocks if "class TestRecycle(" in code]
    (tmp_path / "my_package.py").write_text(allocator)
    (tmp_path / "test_recycle.py").write_text(tests)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.split(" passed")[0].split()[-1])
    assert passed > 20, done.stdout
