"""The documentation's code runs. A block that does not must say why."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

from devmem._core.bulk.files import named

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("run_page.py")
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts)]

specification = importlib.util.spec_from_file_location("run_page", RUNNER)
assert specification
assert specification.loader
run_page = importlib.util.module_from_spec(specification)
sys.modules["run_page"] = run_page  # dataclasses look their module up
specification.loader.exec_module(run_page)


def run(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    # A process for each page: pages change settings, and close devices, as readers do.
    return subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER), str(page)], capture_output=True, text=True, cwd=folder
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, tmp_path):
    result = run(page, tmp_path)
    assert result.returncode == 0, result.stderr


def test_there_is_something_to_run():
    ran = [block for page in PAGES for block in run_page.blocks(page.read_text(encoding="utf-8")) if not block.reason]
    assert len(ran) > 5


#: By page and reason, the blocks that are not run on the host.
ELSEWHERE = sorted(
    {
        (page.relative_to(ROOT), block.reason)
        for page in PAGES
        for block in run_page.blocks(page.read_text(encoding="utf-8"))
        if block.reason
    }
)
#: Reasons for which nothing runs a block as a whole; the calls in it are tested there.
RUN_BY_NOTHING = {"needs a GPU, and RMM, CuPy, PyTorch or cuda.core": "tests/integration/adapters/test_gpu.py"}


@pytest.mark.parametrize(("page", "reason"), ELSEWHERE, ids=str)
def test_a_block_that_its_page_does_not_run_names_the_test_that_does(page, reason):
    if reason in RUN_BY_NOTHING:
        assert (ROOT / RUN_BY_NOTHING[reason]).is_file()
    else:
        [test] = re.findall(r"; (tests/[\w/]+\.py) runs it$", reason)
        assert ROOT / test == Path(__file__) or page.name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.timeout(300)  # the first one compiles the drivers
@pytest.mark.parametrize(("page", "reason"), [each for each in ELSEWHERE if Path(__file__).name in each[1]], ids=str)
def test_the_code_over_emulated_drivers_runs(page, reason, tmp_path):
    pytest.importorskip("cuda.bindings", reason="the binding of CUDA is not installed")
    [backends] = re.findall(r"^needs emulated drivers: ([\w,]+);", reason)
    python = Path(sys.executable)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEVMEM_")}
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])  # a page's program calls "python"
    environment |= {"PYTHONPATH": str(ROOT), "PATH": path}
    over = [python, "-m", "devmem.cli", "emulate", backends, "--"]
    command = [*over, python, "-W", "error", RUNNER, ROOT / page, reason]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=patience(280))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)  # code may look like a link: kernel[grid, block](...)
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    broken = [
        to for to in targets if "://" not in to and not to.startswith("mailto:") and not (page.parent / to).exists()
    ]
    assert broken == []


def test_the_page_of_trust_has_every_format_that_is_read():
    page = (ROOT / "docs" / "explanation" / "what-devmem-trusts.md").read_text(encoding="utf-8")
    for suffix in (".npy", named.NPZ, named.SAFETENSORS):
        assert re.search(rf"^\| `{suffix}` ", page, re.MULTILINE), suffix


# -- the runner itself can fail ----------------------------------------------------------------------------------------


def test_a_failing_block_fails_at_its_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\ntext\n\n```python\ny = x\nassert y == 2\n```\n")
    result = run(page, tmp_path)
    assert result.returncode != 0
    assert f'"{page}", line 11' in result.stderr


def test_a_warning_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nimport warnings\nwarnings.warn('no')\n```\n")
    assert run(page, tmp_path).returncode != 0


def test_a_block_that_is_not_run_needs_a_reason(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: needs a GPU -->\n```python\n1 / 0\n```\n")
    assert run(page, tmp_path).stdout == "0\n"
    page.write_text("<!-- not run: -->\n```python\n1 / 0\n```\n")
    assert "does not say why" in run(page, tmp_path).stderr
    page.write_text("<!-- skipped -->\n```python\n1 / 0\n```\n")
    assert "ZeroDivisionError" in run(page, tmp_path).stderr


@pytest.mark.parametrize(
    "page",
    [
        "```py\n1 / 0\n```",
        "~~~python\n1 / 0\n~~~",
        "```{code-block} python\n1 / 0\n```",
        "- item\n\n  ```python\n  1 / 0\n  ```",
        ":::{note}\n```python\n1 / 0\n```\n:::",
        "````{tab} x\n```python\n1 / 0\n```\n````",
    ],
)
def test_no_spelling_hides_a_block(page):
    [block] = run_page.blocks(page)
    assert block.text.strip() == "1 / 0"


@pytest.mark.parametrize("page", ["```console\n$ x\n```", "```\n1 / 0\n```", "```{eval-rst}\n.. x\n```", "no fence"])
def test_other_languages_are_text(page):
    assert list(run_page.blocks(page)) == []
