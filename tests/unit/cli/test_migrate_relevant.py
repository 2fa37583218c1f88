"""`devmem migrate` gives libcst only the statements that can concern numba: what is hidden, and that results stay the same."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("libcst", reason="the extra 'migrate' is not installed")

from devmem.cli import import_rewriter
from devmem.cli.import_rewriter import rewrite
from devmem.cli.migrate import _examine_all
from devmem.cli.relevant_statements import hide_irrelevant

#: Modules with something to report in the last line, each by a way that leads there through other statements.
WAYS = {
    "an alias of an alias": "from numba import cuda as c\nx = c\ny = x\ndef f():\n    y.cg",
    "a kernel's member": "from numba import cuda\n@cuda.jit\ndef k(a): pass\ndef f():\n    k.inspect_asm()",
    "a decorator in a variable": "from numba import cuda\njit = cuda.jit\n@jit\ndef k(a): pass\ndef f(): k.inspect_asm()",
    "a class": "from numba import cuda\nclass K:\n    xp = cuda\ndef f():\n    K.xp.cg",
    "a global": "def g():\n    global c\n    from numba import cuda as c\ndef f():\n    c.cg",
    "a block": "try:\n    from numba import cuda as c\nexcept ImportError:\n    c = None\ndef f():\n    c.cg",
    "a keyword": "from numba import vectorize\nv = vectorize\nf = v(['f4(f4)'], target='roc')(None)",
    "a setting": "from numba import cuda\nfrom numba.core import config as s\ndef f():\n    s.CUDA_LOW_OCCUPANCY_WARNINGS = 0",
    "a text": "import pytest\ndef f():\n    exec('from numba import cuda')",
    "an environment": "import os\ndef f():\n    os.environ['NUMBA_ENABLE_CUDASIM'] = '1'",
    "a semicolon": "from numba import cuda\nx = 1; y = cuda; z = 2\ndef f(): y.cg",
    "a module": "import importlib\nc = importlib.import_module('numba.cuda')\ndef f():\n    c.cg",
    "the successor": "from numba_cuda_mlir import cuda as m\ndef f():\n    m.cg",
    "a drop-in": "import devmem.compat.numba_cuda as d\ndef f():\n    d.cg",
}
OTHERS = "def other(a, b=1):\n    # a comment\n    return '''\nOther'''\n\n\n@cache\nclass Other:\n    one = 1\n\n\nn = len(x)\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", WAYS)
def test_what_is_hidden_changes_no_result(name, end, monkeypatch):
    source = f"{OTHERS}{WAYS[name]}\n{OTHERS}# the end\n".replace("\n", end).encode()
    quick = rewrite(source)
    assert b"Other" not in hide_irrelevant(source, ast.parse(source))
    monkeypatch.setattr(import_rewriter, "hide_irrelevant", lambda source, *_: source)
    whole = rewrite(source)
    assert quick == whole
    assert whole.findings
    assert max(each.line for each in whole.findings) == OTHERS.count("\n") + WAYS[name].count("\n") + 1


def test_what_other_modules_hand_on_is_not_hidden(tmp_path):
    (tmp_path / "gpu.py").write_text("import numba as nb\nxp = nb.cuda\n")
    (tmp_path / "more.py").write_text("from gpu import xp as zp\n")
    (tmp_path / "use.py").write_text("import more\ndef f():\n    more.zp.cg\ndef g():\n    return 1\n")
    (tmp_path / "all.py").write_text("from numba.cuda import *\n")
    paths = [tmp_path / name for name in ("gpu.py", "more.py", "use.py")]
    [use] = [each for each, _ in _examine_all(paths) if each.path.name == "use.py"]
    assert [(each.line, each.name) for each in use.findings] == [(3, "numba.cuda.cg")]
    (tmp_path / "use.py").write_text("from all import cg as g\ndef f():\n    g.this_grid()\n")
    [use] = [each for each, _ in _examine_all([*paths, tmp_path / "all.py"]) if each.path.name == "use.py"]
    assert use.findings


def test_lines_and_imports_stay():
    source = b"import os\n\n\ndef f():\n    return 1\n\nx = 1; y = 2\n# a comment\nif x:\n    from numba import cuda\n"
    hidden = hide_irrelevant(source, ast.parse(source))
    assert hidden.split(b"\n") == [
        b"import os", b"", b"", b"'''3", b"4'''", b"", b"'''6'''", b"# a comment", b"if x:", b"    from numba import cuda", b""
    ]  # fmt: skip
    assert len({ast.dump(each) for each in ast.parse(hidden).body}) == 4


def test_names_that_are_no_ascii_hide_nothing():
    source = "from numba import cuda as ç\ndef f(): pass\ndef g(): ç.cg\n".encode()
    assert hide_irrelevant(source, ast.parse(source)) == source
