from __future__ import annotations

import ast
import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from devmem.cli import main

pytest.importorskip("libcst", reason="the extra 'migrate' is not installed")

from devmem.cli.import_rewriter import Unparsable, rewrite

ROOT = Path(__file__).parents[3]
#: Programs before and after, a pair of files each.
PAIRS = Path(__file__).parent / "migrated"
ENVIRONMENT = {**os.environ, "DEVMEM_BACKEND": "host", "PYTHONPATH": str(ROOT)}


def text(source: str) -> str:
    return textwrap.dedent(source).lstrip("\n")


def rewritten(source: str) -> str:
    return rewrite(text(source).encode()).after.decode()


CASES = {
    "from": ("from numba import cuda", "from devmem.compat import numba_cuda as cuda"),
    "from, renamed": ("from numba import cuda as cu", "from devmem.compat import numba_cuda as cu"),
    "from, as ours": ("from numba import cuda as numba_cuda", "from devmem.compat import numba_cuda"),
    "roc": ("from numba import roc", "from devmem.compat import numba_roc as roc"),
    "hsa": ("from numba import hsa", "from devmem.compat import numba_roc as hsa"),
    "both": ("from numba import cuda, roc", "from devmem.compat import numba_cuda as cuda, numba_roc as roc"),
    "smart": ("from numba import SmartArray", "from devmem import SmartArray"),
    "smart in full": ("import numba\nx = numba.SmartArray(y)", "from devmem import SmartArray\nx = SmartArray(y)"),
    "beside others": (
        "from numba import cuda, njit  # both",
        "from numba import njit  # both\nfrom devmem.compat import numba_cuda as cuda",
    ),
    "behind others": (
        "from numba import float32, cuda",
        "from numba import float32\nfrom devmem.compat import numba_cuda as cuda",
    ),
    "plain": ("import numba.cuda\nnumba.cuda.close()", "from devmem.compat import numba_cuda\nnumba_cuda.close()"),
    "plain, renamed": ("import numba.cuda as cuda", "from devmem.compat import numba_cuda as cuda"),
    "plain, deep": (
        "import numba.cuda.cudadrv.devicearray\nx = numba.cuda.cudadrv.devicearray.is_contiguous",
        "from devmem.compat import numba_cuda\nx = numba_cuda.cudadrv.devicearray.is_contiguous",
    ),
    "plain, deep, renamed": (
        "import numba.roc.hsadrv.devices as d",
        "from devmem.compat.numba_roc.hsadrv import devices as d",
    ),
    "plain, and numba": (
        "import numba.roc\nnumba.roc.stream(); numba.njit",
        "import numba\nfrom devmem.compat import numba_roc\nnumba_roc.stream(); numba.njit",
    ),
    "through numba": ("import numba\nnumba.roc.stream()", "from devmem.compat import numba_roc\nnumba_roc.stream()"),
    "through numba, kept": (
        "import numba\nnumba.roc.stream()\nnumba.njit(f)",
        "import numba\nfrom devmem.compat import numba_roc\nnumba_roc.stream()\nnumba.njit(f)",
    ),
    "through numba, renamed": (
        "import numba as nb\nnb.roc.stream(nb.roc)",
        "from devmem.compat import numba_roc\nnumba_roc.stream(numba_roc)",
    ),
    "two imports": (
        "import numba\nimport numba.roc\nnumba.roc.stream()\nnumba.njit",
        "import numba\nfrom devmem.compat import numba_roc\nnumba_roc.stream()\nnumba.njit",
    ),
    "two targets": (
        "import numba\nnumba.roc.stream(numba.cuda)",
        "from devmem.compat import numba_cuda\nfrom devmem.compat import numba_roc\nnumba_roc.stream(numba_cuda)",
    ),
    "among others": (
        "import os, numba.roc, sys  # three",
        "import os, sys  # three\nfrom devmem.compat import numba_roc",
    ),
    "successor": (
        "from numba_cuda_mlir import cuda, types",
        "from numba_cuda_mlir import types\nfrom devmem.compat import numba_cuda as cuda",
    ),
    "names of the successor": (
        "from numba_cuda_mlir.cuda import to_device as up",
        "from devmem.compat.numba_cuda import to_device as up",
    ),
    "successor, renamed": ("import numba_cuda_mlir.cuda as cu", "from devmem.compat import numba_cuda as cu"),
    "names": (
        "from numba.roc import to_device, stream as make",
        "from devmem.compat.numba_roc import to_device, stream as make",
    ),
    "deep names": (
        "from numba.cuda.cudadrv.driver import driver, host_to_device",
        "from devmem.compat.numba_cuda.cudadrv.driver import driver, host_to_device",
    ),
    "deep module": (
        "from numba.cuda.cudadrv import driver",
        "from devmem.compat.numba_cuda.cudadrv import driver",
    ),
    "names, some missing": (
        "from numba.roc import stream, vectorize as v",
        "from numba.roc import vectorize as v\nfrom devmem.compat.numba_roc import stream",
    ),
    "taken name": (
        "import numba.roc\nnumba_roc = 1\nnumba.roc.stream()",
        "from devmem.compat import numba_roc as devmem_numba_roc\nnumba_roc = 1\ndevmem_numba_roc.stream()",
    ),
    "one line": ("import numba.roc; x = numba.roc", "from devmem.compat import numba_roc; x = numba_roc"),
    "behind a colon": ("if x: import numba.roc", "if x: from devmem.compat import numba_roc"),
    "two for one on a line": (
        "if x: from numba import njit, roc; y = 1",
        "if x: from numba import njit; from devmem.compat import numba_roc as roc; y = 1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_statement_is_rewritten(name):
    before, after = CASES[name]
    assert rewrite(before.encode()).after.decode() == after
    assert rewrite(f"{before}\n".encode()).after.decode() == f"{after}\n"
    ast.parse(after)


@pytest.mark.parametrize("name", CASES)
def test_rewriting_again_changes_nothing(name):
    after = rewrite(CASES[name][0].encode()).after
    assert rewrite(after).after == after


@pytest.mark.parametrize(
    "source",
    [
        "",
        "import os\n",
        "import numba\n",
        "import numba\nnumba.njit(f)\n",
        "from numba import njit, prange\n",
        "from .numba import cuda\n",
        "from . import numba\nnumba.cuda\n",
        "from mine import cuda\ncuda.jit\n",
        "import cupy.cuda\ncupy.cuda.Stream()\n",
        "numba = object()\nnumba.cuda.jit\n",
        "def f(numba):\n    return numba.cuda\n",
        "x.numba.cuda.jit\n",
        "import numbaplus.cuda\nfrom numba_cuda import x\n",
        "from devmem.compat import numba_cuda as cuda\ncuda.to_device(x)\n",
    ],
)
def test_what_is_none_of_ours_is_left_alone(source):
    found = rewrite(source.encode())
    assert (found.after, found.findings) == (source.encode(), [])


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".before.py") for path in PAIRS.glob("*.before.py")))
def test_a_program_is_rewritten_as_its_pair_says(name):
    before, after = ((PAIRS / f"{name}.{which}.py").read_bytes() for which in ("before", "after"))
    assert rewrite(before).after == after
    assert rewrite(after).after == after


@pytest.mark.parametrize(
    ("names", "kept", "moved"),
    [
        ("\n    stream,  # a\n    vectorize,  # b\n", "\n    vectorize,  # b\n", "\n    stream,  # a\n"),
        ("\n    vectorize,  # b\n    stream,  # a\n", "\n    vectorize,  # b\n", "\n    stream,  # a\n"),
        ("\n    stream,  # a\n    vectorize\n", "\n    vectorize\n", "\n    stream,  # a\n"),
        ("stream, vectorize", "vectorize", "stream"),
        ("vectorize, stream", "vectorize", "stream"),
    ],
)
def test_a_list_in_parentheses_is_split_with_its_comments(names, kept, moved):
    after = rewrite(f"from numba.roc import ({names})\n".encode()).after.decode()
    assert after == f"from numba.roc import ({kept})\nfrom devmem.compat.numba_roc import ({moved})\n"


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_newlines_stay(newline, end):
    source = f"# é{newline}from numba import cuda{newline}x = 1{end.replace(chr(10), newline)}"
    after = rewrite(source.encode()).after.decode()
    assert after == source.replace("from numba import cuda", "from devmem.compat import numba_cuda as cuda")


def test_mixed_newlines_and_form_feeds_stay():
    source = b"x = 1\r\n\x0c\nfrom numba import cuda\ny = 2\r\n# \xe2\x80\xa8 end"
    after = rewrite(source).after
    assert after == source.replace(b"from numba import cuda", b"from devmem.compat import numba_cuda as cuda")


@pytest.mark.parametrize(
    ("encoding", "declared"), [("latin-1", True), ("utf-8", True), ("utf-8", False), ("shift_jis", True)]
)
def test_encodings_stay(encoding, declared):
    letter = "ソ" if encoding == "shift_jis" else "é"
    source = (
        f"# -*- coding: {encoding} -*-\n" if declared else ""
    ) + f"from numba import cuda  # {letter}\nx = '{letter}'\n"
    after = rewrite(source.encode(encoding)).after
    assert after.decode(encoding) == source.replace("numba import cuda", "devmem.compat import numba_cuda as cuda")


def test_a_byte_order_mark_stays():
    assert rewrite(b"\xef\xbb\xbffrom numba import cuda\n").after.startswith(b"\xef\xbb\xbffrom devmem")


@pytest.mark.parametrize(
    "source", [b"def f(:\n", b"print 'numba'\n", b"# coding: nonsense\nnumba\n", b"numba = '\xff'\n"]
)
def test_what_cannot_be_parsed_is_said(source):
    with pytest.raises(Unparsable, match=r"."):
        rewrite(source + b"# numba.cuda\n")
    assert rewrite(source).after == source  # nothing of ours in it: it is not even looked at


def test_names_of_the_compiler_move_with_the_module_that_has_them():
    assert (
        rewrite(b"from numba.cuda import libdevice, to_device\n").after
        == b"from devmem.compat.numba_cuda import libdevice, to_device\n"
    )
    source = b"from numba.cuda.libdevice import sqrt\n"
    assert rewrite(source).after == source.replace(b"numba.cuda", b"devmem.compat.numba_cuda")


# -- what has to be looked at ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "line", "name", "words"),
    [
        ("\nfrom numba.roc import vectorize\n", 2, "numba.roc.vectorize", "is not in devmem"),
        ("from numba import roc\n\nroc.vectorize(f)\n", 3, "numba.roc.vectorize", "is not in devmem"),
        ("import numba as n\nn.roc.hsadrv.nonsense.x\n", 2, "numba.roc.hsadrv.nonsense", "is not in devmem"),
        ("from numba.roc.hsadrv.nonsense import x\n", 1, "numba.roc.hsadrv.nonsense", "is not in devmem"),
        ("import numba.roc.gcn_occupancy\n", 1, "numba.roc.gcn_occupancy", "is not in devmem"),
        ("from numba import roc\nroc.ds_permute(1, 2)\n", 2, "numba.roc.ds_permute", "NotImplementedError"),
        ("from numba.roc import finegrain_array\n", 1, "numba.roc.finegrain_array", "is fine-grained"),
        ("from numba.roc import *\n", 1, "numba.roc.*", "cannot be changed by name"),
        ("from numba import *\n", 1, "numba.*", "cannot be changed by name"),
        ("from numba import hsa\n", 1, "numba.hsa", "renamed"),
        ("from numba.cuda.libdevice import sqrt\n", 1, "numba.cuda.libdevice", "not on ROCm"),
        (
            "from numba import cuda\ncuda.syncwarp()\n",
            2,
            "numba.cuda.syncwarp",
            "not on ROCm; write devmem.wavebarrier()",
        ),
        (
            "from numba import cuda\ncuda.atomic.swap(a, 0, 1)\n",
            2,
            "numba.cuda.atomic.swap",
            "which has add, and_, cas, ",
        ),
        ("from numba import cuda\ncuda.cg.this_grid()\n", 2, "numba.cuda.cg", "has to be linked"),
        ("from numba import cuda\ncuda.float32(1)\n", 2, "numba.cuda.float32", "write NumPy's, such as np.float32"),
        ("from numba import cuda, njit\n", 1, "numba", "stays for njit, and has to be installed"),
        ("from numba import cuda, float32\n", 1, "numba", "kernels take NumPy's types, and signatures take strings"),
        ("import numba\nf(numba)\nnumba.cuda.close()\n", 1, "numba", "stays, and has to be installed"),
        (
            "from numba.cuda import jit\n@jit\ndef f(): 1\nf.ptx\n",
            4,
            "f.ptx",
            "whose Dispatcher has configure, forall, py_func, signatures",
        ),
        (
            "m = importlib.import_module('numba.cuda.cudadrv')\n",
            1,
            "numba.cuda.cudadrv",
            "devmem.compat.numba_cuda.cudadrv",
        ),
    ],
)
def test_a_name_that_differs_is_told_with_its_line(source, line, name, words):
    [finding] = rewrite(source.encode()).findings
    assert (finding.line, finding.name) == (line, name)
    assert words in finding.what


SETTINGS = {
    "of numba": ("from numba import cuda, config", "config.CUDA_MEMORY_MANAGER = 'm'", "set NUMBA_CUDA_MEMORY_MANAGER"),
    "of its core": (
        "from numba.core import config\nfrom numba import cuda",
        "config.CUDA_MEMORY_MANAGER = 'm'",
        "set NUMBA_CUDA_MEMORY_MANAGER in the environment",
    ),
    "in full": ("import numba", "numba.config.ENABLE_CUDASIM = 1", "use DEVMEM_BACKEND=host"),
    "of numba-cuda": (
        "from numba import cuda",
        "cuda.core.config.CUDA_MEMORY_MANAGER = 'm'",
        "set NUMBA_CUDA_MEMORY_MANAGER",
    ),
    "of roc": ("from numba import config", "config.DISABLE_HSA = 1", "choose another backend with DEVMEM_BACKEND"),
    "unknown": ("from numba import cuda, config", "config.CUDA_LOW_OCCUPANCY_WARNINGS = 0", "has no effect on devmem"),
    "moved already": (
        "from numba import config\nfrom devmem.compat import numba_cuda",
        "config.CUDA_DRIVER = 'x'",
        "devmem finds the driver itself",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_numbas_that_are_not_obeyed_are_told(name):
    imports, use, words = SETTINGS[name]
    source = f"{imports}\n# of cuda, or hsa\n{use}\n"
    [finding] = [each for each in rewrite(source.encode()).findings if not each.name.startswith("numba")]
    assert finding.line == source.count("\n")
    assert words in finding.what


@pytest.mark.parametrize(
    "source",
    [
        "from numba.core.errors import NumbaPerformanceWarning as W\nfrom numba import cuda\nfilter(W)",
        "from numba import config, cuda\nconfig.DISABLE_PERFORMANCE_WARNINGS = config.DISABLE_CUDA = 1",
        "import numba\nfrom numba import cuda\nnumba.config.CUDA_WARN_ON_IMPLICIT_COPY = 0",
        "from numba import cuda\nconfig.ENABLE_CUDASIM = 1",
        "from numba import cuda\nfrom numba.core.errors import NumbaWarning\nf(NumbaWarning)",
    ],
)
def test_settings_of_others_and_those_that_the_drop_in_obeys_are_not(source):
    assert [each for each in rewrite(source.encode()).findings if each.name != "numba"] == []


TEXTS = [
    "pytest.mark.skipif('not numba.cuda.is_available()')",
    "exec('from numba import cuda')",
    "run('import numba.cuda; numba.cuda.close()')",
    'program = """\n    from numba import roc\n    roc.stream()\n    """',
]
NO_CODE = [
    "raise ImportError('numba.cuda is not there')",
    "f('needs numba.cuda')",
    'def f():\n    """from numba import cuda"""',
    "f('from numba import njit')",
    "f('cuda of numba')",
    "getLogger('numba.cuda.cudadrv')",
    "f('from .numba import cuda')",
]


@pytest.mark.parametrize("source", TEXTS)
def test_programs_in_texts_are_told(source):
    [finding] = rewrite(f"import pytest\n{source}\n".encode()).findings
    assert finding.line == 2
    assert "Python code in a string" in finding.what
    assert "numba" in finding.name


@pytest.mark.parametrize("source", NO_CODE)
def test_words_in_texts_are_not(source):
    assert rewrite(f"{source}\n".encode()).findings == []


@pytest.mark.parametrize(
    "source",
    [
        "from rmm.allocators.numba import RMMNumbaManager",
        "import rmm.allocators.numba",
        "os.environ['NUMBA_CUDA_MEMORY_MANAGER'] = 'rmm.allocators.numba'",
    ],
)
def test_plugins_that_import_numba_themselves_are_told(source):
    [finding] = rewrite(f"from numba import cuda\n{source}\n".encode()).findings
    assert (finding.line, finding.name.startswith("rmm.allocators.numba")) == (2, True)
    assert 'devmem.use_memory("rmm")' in finding.what


@pytest.mark.parametrize(
    "source",
    [
        "from numba import roc\nroc.agents[0].name\nroc.shared.array(3, 4)\nroc.is_available()\n",
        "from numba.roc.hsadrv.devicearray import DeviceNDArray\nDeviceNDArray.whatever\n",
        "'''See numba.cuda for more.'''\n",
        "from numba.cuda.cudadrv.driver import binding\n",  # whether or not the vendor's is installed
        "from numba import roc\nroc.hsa.implicit_sync()\n",  # old, and there
        "from numba import cuda\nx = x.y = cuda\nx = x\nx.atomic.swap\n",  # who knows what it is
        "from numba import cuda\ncuda.current_context().whatever\ncuda.gpus[0].whatever\ncuda.gpus.lst\n",
        "from numba import cuda\nk = cuda.jit(f)\ncuda.shared.array(shape=3, dtype='f4')\ncuda.threadIdx.x.bit_length()\n",
    ],
)
def test_what_is_there_is_not_told(source):
    assert rewrite(source.encode()).findings == []


def test_a_drop_in_is_asked_and_no_list(monkeypatch):
    from devmem.cli import migration_rules
    from devmem.compat import numba_cuda

    source = b"from numba import cuda\ncuda.now_it_is(3)\ncuda.atomic.cas(a, 0, 1, 2)\n"
    assert [each.name for each in rewrite(source).findings] == ["numba.cuda.now_it_is"]
    monkeypatch.setattr(numba_cuda, "now_it_is", abs, raising=False)
    monkeypatch.delattr(type(numba_cuda.atomic), "cas")
    migration_rules._offered.cache_clear()
    try:
        assert [each.name for each in rewrite(source).findings] == ["numba.cuda.atomic.cas"]
    finally:
        migration_rules._offered.cache_clear()


def test_every_name_that_is_said_to_be_there_is_there():
    from devmem.cli import migration_rules
    from devmem.compat import numba_cuda, numba_roc

    for target, module in (("cuda", numba_cuda), ("roc", numba_roc)):
        names = [f"numba.{target}.{name}" for name in module.__all__]
        told = {verdict.name.rpartition(".")[2] for name in names for verdict in migration_rules.verdicts_on(name)}
        never = {"activelanepermute_wavewidth", "ds_bpermute", "ds_permute", "finegrain_array"}
        assert told == (never if target == "roc" else set())
    for name in (*numba_cuda.COMPILER_ONLY, *numba_cuda.REFUSED):
        assert name not in numba_cuda.__all__
        [verdict] = migration_rules.verdicts_on(f"numba.cuda.{name}")
        assert verdict.provided == (name in numba_cuda.COMPILER_ONLY)


def test_looking_opens_no_device():
    script = """
from devmem.cli.import_rewriter import rewrite
rewrite(b"from numba import roc, cuda\\nroc.agents\\ncuda.gpus.lst\\ncuda.to_device\\nroc.hsa\\n@cuda.jit\\ndef f(): f.ptx\\n")
from devmem._core.device.opening import open_devices
assert not open_devices()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys):
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main(["migrate", *map(str, arguments)])
        out, err = capsys.readouterr()
        return int(exit.value.code or 0), out, err

    return call


SOURCE = "from numba import roc\n\nstream = roc.stream()\n"
CHANGED = "from devmem.compat import numba_roc as roc\n\nstream = roc.stream()\n"


@pytest.fixture
def tree(tmp_path):
    for name in ("a.py", "pkg/b.py", "pkg/c.pyi", "pkg/notes.txt", ".hidden/d.py", "env/e.py", "build/f.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(SOURCE)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "pkg" / "same.py").write_text("import os\n")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_changed_unless_told(run, tree):
    before = contents(tree)
    code, out, err = run(tree)
    assert code == 0
    assert contents(tree) == before
    assert out.count("-from numba import roc\n") == out.count("+from devmem.compat import numba_roc as roc\n") == 3
    assert "4 files, 3 to change: nothing written; --write does" in err


def test_write_changes_what_the_diff_says(run, tree):
    before = contents(tree)
    code, _, err = run("--write", tree)
    after = contents(tree)
    assert code == 0
    assert "3 written" in err
    assert {name for name in after if after[name] != before[name]} == {"a.py", "pkg/b.py", "pkg/c.pyi"}
    assert after["a.py"].decode() == CHANGED
    assert after.keys() == before.keys()  # nothing of what it worked with is left
    assert run("--write", tree) == (0, "", "devmem: 4 files, 0 to change: nothing to do\n")


def test_the_diff_can_be_applied(run, tmp_path, monkeypatch):
    source = "from numba import cuda\r\nx = 1\n\x0c\nfrom numba import roc"
    (tmp_path / "m.py").write_bytes(source.encode())
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "devmem.cli", "migrate", "m.py"]
    out = subprocess.run(command, capture_output=True, env=ENVIRONMENT).stdout.decode()
    assert "\\ No newline at end of file\n" in out
    assert out.startswith("--- a/m.py\n+++ b/m.py\n")
    patch = shutil.which("patch")
    if patch is None:
        pytest.skip("there is no patch")
    after = rewrite(source.encode()).after
    subprocess.run([patch, "-p1", "--binary"], input=out.encode(), check=True, capture_output=True)
    assert (tmp_path / "m.py").read_bytes() == after


def test_json_tells_of_each_file(run, tree):
    code, out, _ = run("--json", tree / "a.py", tree / "pkg")
    document = json.loads(out)
    assert code == 0
    assert document["write"] is False
    files = {Path(each["path"]).name: each for each in document["files"]}
    assert set(files) == {"a.py", "b.py", "c.pyi", "same.py"}
    assert files["a.py"]["changed"]
    assert not files["same.py"]["changed"]
    assert "+from devmem.compat" in files["a.py"]["diff"]
    assert (files["a.py"]["written"], files["a.py"]["findings"], files["a.py"]["error"]) == (False, [], None)


def test_a_folder_with_no_sources_is_no_error(run, tmp_path):
    assert run(tmp_path) == (0, "", "devmem: 0 files, 0 to change: nothing to do\n")


def test_findings_are_told_and_count(run, tmp_path):
    path = tmp_path / "a.py"
    path.write_text("from numba import roc\nroc.ds_permute(1, 2)\n")
    code, _, err = run(path)
    assert code == 1
    assert f"{path}:2: numba.roc.ds_permute is not supported: NotImplementedError" in err
    code, out, _ = run("--json", path)
    [finding] = json.loads(out)["files"][0]["findings"]
    assert (code, finding["line"], finding["kind"], finding["name"]) == (1, 2, "look", "numba.roc.ds_permute")


def test_notes_are_told_and_do_not_count(run, tmp_path):
    path = tmp_path / "a.py"
    path.write_text("from numba import cuda, njit\ncuda.syncwarp()\n")
    code, _, err = run(path)
    assert code == 0
    assert err.splitlines() == [
        f"devmem: {path}:1: note: numba stays for njit, and has to be installed",
        f"devmem: {path}:2: note: numba.cuda.syncwarp works on CUDA and in the simulator, and not on ROCm; write "
        "devmem.wavebarrier()",
        "devmem: 1 file, 1 to change: nothing written; --write does; 1 not on every backend; refused in kernels: 1 by ROCm",
    ]
    path.write_text("from numba import cuda\ncuda.syncwarp()\ncuda.atomic.swap(a, 0, 1)\n")
    code, _, err = run("--write", path)
    assert code == 1
    assert err.endswith(
        "devmem: 1 file, 1 to change: 1 written; 1 to look at; 1 not on every backend; refused in kernels: 1 by ROCm\n"
    )
    code, out, err = run(path)  # what is left is told as long as it is left
    assert (code, out) == (1, "")
    assert err.endswith(
        "devmem: 1 file, 0 to change: nothing to do; 1 to look at; 1 not on every backend; refused in kernels: 1 by ROCm\n"
    )


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("from numba import cuda\ndef f(:\n", "line 2: invalid syntax"),
        ("from numba import cuda\nprint 'roc'\n", "line 2: Missing parentheses in call to 'print'"),
        ("from numba import cuda\nx = " + "(" * 3000 + ")" * 3000 + "\n", "it is nested too deeply"),
        pytest.param(
            "from numba import cuda\nx = " + "+".join("1" * 5000) + "\n",
            "it is nested too deeply",
            marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="this Python parses it"),
        ),
        (
            "from numba import cuda\0\n",
            "line 1: " if sys.version_info < (3, 14) else "source code cannot contain null bytes",
        ),
    ],
)
def test_one_line_says_why_a_file_cannot_be_parsed_and_the_others_are_done(run, tmp_path, source, why):
    bad, good = tmp_path / "bad.py", tmp_path / "good.py"
    bad.write_text(source)
    good.write_text(SOURCE)
    code, out, err = run(bad)
    first, last = err.splitlines()
    assert (code, out, last) == (2, "", "devmem: 1 file, 0 to change, 1 failed: nothing to do")
    assert first.startswith(f"devmem: {bad}: cannot be parsed: {why}")
    assert run("--write", bad, good)[0] == 2
    assert (bad.read_text(), good.read_text()) == (source, CHANGED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.py", "good.py"]


def test_what_cannot_be_read_does_not_stop_the_others(run, tree):
    (tree / "bad.py").write_text("from numba import cuda, (\n")
    code, _, err = run("--write", tree, tree / "missing.py")
    assert code == 2
    assert "bad.py: cannot be parsed: line" in err
    assert "missing.py: No such file" in err
    assert (tree / "a.py").read_text() == CHANGED
    assert (tree / "bad.py").read_text() == "from numba import cuda, (\n"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("lesson.ipynb", "cannot be parsed: it is no notebook of format 4: KeyError: 'cells'"),
        ("kernels.pyx", "is no Python, by its ending '.pyx'"),
        ("notes.md", "is no Python, by its ending '.md'"),
    ],
)
def test_what_is_no_python_is_refused_and_the_others_are_done(run, tree, name, why):
    (tree / name).write_text('{"source": ["from numba import cuda"]}')
    code, _, err = run("--write", tree / name, tree / "a.py")
    assert code == 2
    assert f"{name}: {why}" in err
    assert "2 files, 1 to change, 1 failed: 1 written" in err
    assert (tree / "a.py").read_text() == CHANGED


def test_a_script_has_no_ending(run, tmp_path):
    (tmp_path / "tool").write_text(SOURCE)
    assert run("--write", tmp_path / "tool")[0] == 0
    assert (tmp_path / "tool").read_text() == CHANGED


#: Code bases of several files, and what is told of ``use.py`` there: lines and names.
HANDED_ON = {
    "beside it": ({"gpu.py": "from numba import cuda"}, "from gpu import cuda\ncuda.cg"),
    "in a package": ({"__init__.py": "", "gpu.py": "from numba import cuda"}, "from .gpu import cuda\ncuda.cg"),
    "by its whole name": (
        {"p/__init__.py": "", "p/gpu.py": "from numba import cuda"},
        "from p.gpu import cuda\ncuda.cg",
    ),
    "as a module": ({"gpu.py": "from numba import cuda"}, "from . import gpu\ngpu.cuda.cg"),
    "as a module, renamed": ({"gpu.py": "from numba import cuda"}, "import gpu as g\ng.cuda.cg"),
    "if there is one": (
        {"gpu.py": "try:\n    from numba import cuda\nexcept ImportError:\n    from fake import cuda"},
        "from gpu import cuda\ncuda.cg",
    ),
    "renamed": ({"gpu.py": "import numba as nb\nxp = nb.cuda"}, "from gpu import xp\nxp.cg"),
    "by two": (
        {"one.py": "from numba import cuda", "gpu/__init__.py": "from one import cuda as c"},
        "from gpu import c\nc.cg",
    ),
    "by one that is further out": (
        {"__init__.py": "from numba import cuda", "s/__init__.py": "from .. import cuda"},
        None,
    ),
    "all names": ({"gpu.py": "from numba import cuda"}, "from gpu import *\ncuda.cg"),
    "all names of all names": (
        {"o.py": "from numba import cuda", "gpu.py": "from o import *"},
        "from gpu import cuda\ncuda.cg",
    ),
    "changed already": ({"gpu.py": "from devmem.compat import numba_cuda as cuda"}, "from gpu import cuda\ncuda.cg"),
    "a part of it": ({"gpu.py": "from numba.cuda import atomic"}, "from gpu import atomic\natomic.swap"),
    "each other": ({"gpu.py": "from use import cuda\nfrom numba import cuda"}, "from gpu import cuda\ncuda.cg"),
    "in a function": ({"gpu.py": "from numba import cuda"}, "def f():\n    from gpu import cuda\n    return cuda.cg"),
}


def written(folder: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{source}\n")


@pytest.mark.parametrize("name", HANDED_ON)
def test_what_other_files_hand_on_is_told(run, tmp_path, name):
    files, use = HANDED_ON[name]
    inside = "s/use.py" if use is None else "use.py"
    use = use or "from . import cuda\ncuda.cg"
    written(tmp_path, {**files, inside: use})
    code, out, _ = run("--json", tmp_path)
    assert code == 1
    [found] = [each for each in json.loads(out)["files"] if Path(each["path"]).name == "use.py"]
    assert [(each["line"], each["name"].rpartition(".")[2]) for each in found["findings"]] == [
        (use.count("\n") + 1, use.rpartition(".")[2])
    ]
    assert not found["changed"]


@pytest.mark.parametrize(
    ("files", "use"),
    [
        ({"gpu.py": "from numba import cuda"}, "from elsewhere.gpu import cuda\ncuda.cg"),
        ({"gpu.py": "from cupy import cuda\nfrom numba import roc"}, "from gpu import cuda\ncuda.cg"),
        ({"a/gpu.py": "from numba import cuda", "b/gpu.py": "from cupy import cuda"}, "from gpu import cuda\ncuda.cg"),
        ({"gpu.py": "from numba import cuda\ndef f():\n    import numba.roc as c"}, "from gpu import c\nc.cg"),
        ({"gpu.py": "from numba import cuda"}, "from gpu import cuda\ncuda.to_device([1])"),
    ],
)
def test_what_other_files_do_not_hand_on_is_not_told(run, tmp_path, files, use):
    written(tmp_path, {**files, "use.py": use})
    assert run(tmp_path)[0] == 0


@pytest.mark.parametrize(
    "source",
    [
        "class K:\n    xp = cuda\n    def f(self): return self.xp.cg",
        "class K:\n    xp = cuda\nK.xp.cg",
        "class K:\n    xp = cuda\n    @classmethod\n    def f(cls): return cls.xp.cg",
        "class K:\n    def __init__(self): self.xp = cuda\n    def f(me): return me.xp.cg",
        "class K:\n    from numba import cuda\n    def f(self): return self.cuda.cg",
        "class K:\n    atomic = cuda.atomic\n    class L:\n        atomic = 1\n    def f(self): return self.atomic.swap",
    ],
)
def test_attributes_of_classes_are_followed(source):
    source = f"from numba import cuda\n{source}\n"
    [finding] = rewrite(source.encode()).findings
    assert finding.name in ("numba.cuda.cg", "numba.cuda.atomic.swap")


@pytest.mark.parametrize(
    "source",
    [
        "class K:\n    xp = cuda\n    def __init__(self): self.xp = fake\n    def f(self): return self.xp.cg",
        "class K:\n    xp = cuda\n    def f(self, other): return other.xp.cg",
        "class K:\n    xp = cuda\ndef f(self): return self.xp.cg",
        "class K:\n    xp = xp\n    def f(self): return self.xp.cg",
    ],
)
def test_attributes_that_may_be_something_else_are_not(source):
    assert rewrite(f"from numba import cuda\n{source}\n".encode()).findings == []


def test_mode_and_links_stay(run, tmp_path):
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_text(SOURCE)
    real.chmod(0o750)
    link.symlink_to(real)
    assert run("--write", link, real)[0] == 0
    assert link.is_symlink()
    assert real.read_text() == CHANGED
    assert stat.S_IMODE(real.stat().st_mode) == 0o750


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_file_as_it_was(run, tree, monkeypatch, at):
    before = contents(tree)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if at == "fsync" else (Path, "replace")), fail)
    code, _, err = run("--write", tree / "a.py")
    assert code == 2
    assert "could not be written, and is as it was: No space left on device" in err
    assert contents(tree) == before


def test_a_file_that_changed_meanwhile_is_left(run, tree, monkeypatch):
    from devmem.cli import migrate

    look = migrate._examine

    def look_and_touch(path, *more):
        found = look(path, *more)
        path.write_text("x = 1\n")
        return found

    monkeypatch.setattr(migrate, "_examine", look_and_touch)
    code, _, err = run("--write", tree / "a.py")
    assert code == 2
    assert "was changed by another program meanwhile" in err
    assert (tree / "a.py").read_text() == "x = 1\n"


def test_without_its_library_it_says_what_to_install(run, tmp_path, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "libcst" else find(name, *rest)
    )
    assert run(tmp_path) == (2, "", "devmem: migrate needs libcst: pip install 'devmem-arrays[migrate]'\n")


def test_the_other_commands_do_not_need_its_library():
    script = "import sys; sys.modules['libcst'] = None; import devmem.cli.commands"
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_a_program_runs_after_it(run, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        text("""
        import numpy as np
        import numba.roc
        from numba.roc.hsadrv.devicearray import DeviceNDArray

        array = numba.roc.to_device(np.arange(3))
        assert isinstance(array, DeviceNDArray)
        print(array.copy_to_host().sum())
        """)
    )
    assert run("--write", program)[0] == 0
    result = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=ENVIRONMENT)
    assert (result.stdout, result.stderr) == ("3\n", "")


def test_many_files_are_examined_by_several_processes_with_the_same_result(run, tmp_path, monkeypatch):
    from devmem.cli import migrate

    (tmp_path / "gpu.py").write_text("from numba import cuda\n")
    for at in range(7):
        (tmp_path / f"a{at}.py").write_text(f"# {at}\nfrom gpu import cuda\nimport numba.cuda\ncuda.cg\n")
    monkeypatch.setattr(migrate.os, "cpu_count", lambda: 2)
    several = run("--json", tmp_path)
    monkeypatch.setattr(migrate, "FILES_PER_WORKER", 100)
    assert run("--json", tmp_path) == several
    assert several[1].count('"changed": true') == 8
