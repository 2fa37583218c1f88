"""`devmem migrate` on notebooks, what it says of kernels, and its use in CI."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("libcst", reason="the extra 'migrate' is not installed")

from devmem.cli import main
from devmem.cli.import_rewriter import rewrite

CELLS = [
    ("markdown", ["# A lesson about `numba.cuda`\n", "from numba import cuda"], None),
    ("code", ["%matplotlib inline\n", "import numpy as np\n", "from numba import cuda, njit"], []),
    (
        "code",
        ["%%timeit\n", "x = !ls\n", "d = cuda.to_device(np.ones(3))\n", "d?"],
        [{"output_type": "stream", "text": ["é"]}],
    ),
    ("code", ["%%bash\n", "echo from numba import cuda"], []),
    ("code", [], []),
    ("code", ["if True:\n", "    %time cuda.atomic.swap(1)\n", "    cuda.atomic.swap(1)\n"], []),
]


def notebook(indent=1, ascii_only=False, joined=False):
    cells = []
    for kind, source, outputs in CELLS:
        cell = {"cell_type": kind, "metadata": {"tags": []}, "source": "".join(source) if joined else source}
        cells.append(cell if outputs is None else {**cell, "execution_count": 3, "outputs": outputs})
    whole = {"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=indent, ensure_ascii=ascii_only) + "\n"


@pytest.fixture
def run(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["migrate", *map(str, arguments)])
        out, err = capsys.readouterr()
        return left.value.code, out, err

    return run


@pytest.mark.parametrize("form", [{}, {"indent": None}, {"indent": 4, "ascii_only": True}, {"joined": True}], ids=str)
def test_the_imports_in_cells_change_and_nothing_else(run, tmp_path, form):
    path = tmp_path / "lesson.ipynb"
    path.write_text(notebook(**form))
    code, _, err = run("--write", tmp_path)
    assert code == 1
    assert f"{path}:cell 5, line 3: numba.cuda.atomic.swap is not in devmem" in err
    before = notebook(**form).replace("from numba import cuda, njit", "@")
    line = "from numba import njit@from devmem.compat import numba_cuda as cuda"
    wanted = line.replace("@", "\\n") if form.get("joined") else None
    after = path.read_text()
    if wanted:
        assert after == before.replace("@", wanted)
    cells = json.loads(after)["cells"]
    assert "".join(cells[1]["source"]).splitlines()[2:] == line.split("@")
    changed = json.loads(before)
    changed["cells"][1]["source"] = cells[1]["source"]
    indent = form.get("indent", 1)
    assert after == json.dumps(changed, indent=indent, ensure_ascii=form.get("ascii_only", False)) + "\n"
    assert run("--write", path)[1] == "", "a second run changes nothing"
    assert path.read_text() == after


def test_a_notebook_without_numba_is_left_as_it_is(run, tmp_path):
    path = tmp_path / "other.ipynb"
    path.write_text('{"cells": [{"cell_type": "code", "source": ["this is (no Python"]}],   "nbformat": 4}')
    assert run("--write", path)[0] == 0
    assert path.read_text().endswith(',   "nbformat": 4}')
    path.write_text('{"cells": [{"cell_type": "code", "source": ["from numba import cuda\\n", "x = ("]}]}')
    code, _, err = run(path)
    assert code == 2
    assert "cannot be parsed: line" in err


def test_check_is_for_ci(run, tmp_path):
    path = tmp_path / "a.py"
    path.write_text("from numba import cuda\n")
    code, out, err = run("--check", path)
    assert (code, out) == (1, "")
    assert "1 file, 1 to change: nothing written" in err
    assert path.read_text() == "from numba import cuda\n"
    assert run("--write", path)[0] == 0
    assert run("--check", path)[0] == 0
    assert run("--check", "--write", path)[0] == 2


KERNELS = b"""
import math
from numba import cuda, njit

ON = False

def plain(x):
    return x + 1

@njit
def known(x):
    return x + 1

def later(x):
    return x

later = cuda.jit(device=True)(later)

@cuda.jit(device=True)
def helper(x):
    return known(x)

@cuda.jit
def fine(a):
    if ON:
        plain(a)
    for x in [1, 2]:
        a[0] = helper(x) + math.sin(later(a[1]))

@cuda.jit("void(float32[:])")
def a_list(a):
    found = [a[0]]  # refused
    a[0] = found[0]

@cuda.jit
def a_plain_function(a):
    a[0] = plain(a[0])  # refused

def make():
    @cuda.jit
    def catching(a):
        try:  # refused
            a[0] = 1
        except ValueError:
            pass

def on_the_host(a):
    return [plain(a)]

@cuda.jit
def by_some(a):
    cuda.cg.this_grid().sync()
    a[0] = cuda.popc(a[0])
"""


def test_what_kernels_cannot_have_is_told_by_line_and_by_whom():
    found = rewrite(KERNELS).findings
    everywhere = [each for each in found if len(each.refused_by) == 3]
    lines = KERNELS.decode().splitlines()
    assert [each.line for each in everywhere] == [at for at, line in enumerate(lines, 1) if "# refused" in line]
    told = [each.what.partition(": ")[2] for each in everywhere]
    assert [each.partition(" ")[0] for each in told] == ["lists", "plain", "try"]
    assert all(each.what.startswith("is refused by the simulator, CUDA and ROCm: ") for each in everywhere)
    others = {each.name: each.refused_by for each in found if len(each.refused_by) in (1, 2)}
    assert others == {"numba.cuda.cg": ("CUDA", "ROCm"), "numba.cuda.popc": ("ROCm",)}


def test_the_summary_counts_who_refuses(run, tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(KERNELS)
    code, _, err = run("--check", path)
    assert code == 1
    assert err.splitlines()[-1].endswith("refused in kernels: 4 by CUDA, 5 by ROCm, 3 by the simulator")
    _, out, _ = run("--json", path)
    [file] = json.loads(out)["files"]
    assert {tuple(each["refused_by"]) for each in file["findings"]} > {("the simulator", "CUDA", "ROCm"), ("ROCm",)}


def test_files_that_cannot_import_numbas_names_are_not_parsed(tmp_path, monkeypatch):
    """Nor are they missed: names of numba's come by way of packages and of modules that mention it nowhere."""
    from devmem.cli import migrate, reexports

    (tmp_path / "pkg").mkdir()
    texts = {
        "pkg/__init__.py": "from .gpu import *\n",
        "pkg/gpu.py": "from numba import cuda\n",
        "pkg/inner.py": "from . import cuda\ncuda.atomic.swap(1)\n",
        "user.py": "from pkg import cuda\ncuda.atomic.swap(1)\n",
        "other.py": "import sys\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    parsed = []
    real = reexports._parsed
    monkeypatch.setattr(reexports, "_parsed", lambda path: parsed.append(path.name) or real(path))
    results = {each.path.name: each for each, _ in migrate._examine_all(sorted(tmp_path.rglob("*.py")))}
    assert [name for name, each in sorted(results.items()) if each.findings] == ["inner.py", "user.py"]
    assert "other.py" not in parsed
