"""The emulated driver is built once for each version of its sources; a failed build leaves nothing in the cache."""

import os
import subprocess
import sys

import pytest
from waits import patience

from devmem.testing import emulator
from devmem.testing.emulator import build
from devmem.testing.emulator.functions import TABLES, as_markdown, unsupported


@pytest.fixture(autouse=True)
def needs_a_compiler():
    try:
        emulator.library("cuda")
    except emulator.BuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DEVMEM_EMULATOR_CFLAGS", "-O0")  # it is built anew, and not run
    return tmp_path / "devmem" / "emulator"


def test_the_folder_comes_first_on_the_library_path(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/one:/two")
    folders = emulator.environment("cuda")["LD_LIBRARY_PATH"].split(":")
    assert folders[0] == str(emulator.library("cuda").parent)
    assert folders[1:] == ["/one", "/two"]


def test_the_backend_is_named_unless_it_is_named_already(monkeypatch):
    monkeypatch.delenv("DEVMEM_BACKEND", raising=False)
    assert emulator.environment("cuda")["DEVMEM_BACKEND"] == "cuda"
    monkeypatch.setenv("DEVMEM_BACKEND", "host")
    assert emulator.environment("cuda")["DEVMEM_BACKEND"] == "host"


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(emulator.BuildError, match=r"'abacus'.*cuda"):
        emulator.environment("abacus")


def test_it_is_built_once(empty_cache, monkeypatch):
    path = emulator.library("cuda")
    monkeypatch.setattr(build.toolchain, "_compile", lambda *_: pytest.fail("built again"))
    assert emulator.library("cuda") == path
    assert path.is_relative_to(empty_cache)


@pytest.mark.usefixtures("empty_cache")
def test_other_sources_are_another_library(tmp_path, monkeypatch):
    monkeypatch.setattr(build.toolchain, "_compile", lambda *_: None)
    before = emulator.library("cuda")
    sources = tmp_path / "sources"
    sources.mkdir()
    for path in build.SOURCES.glob("*.[chm]*"):
        (sources / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(build, "SOURCES", sources)
    assert emulator.library("cuda") == before
    for changed in ("core.c", "core.h"):
        (sources / changed).write_text((sources / changed).read_text() + "\n")
        assert emulator.library("cuda") != before
        before = emulator.library("cuda")


def test_a_failing_compiler_leaves_nothing_and_its_command_is_in_the_error(empty_cache, monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(emulator.BuildError, match="exit status 1"):
        emulator.library("cuda")
    assert list(empty_cache.iterdir()) == []


def test_a_missing_compiler_is_an_error_with_advice(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build.toolchain.shutil, "which", lambda _: None)
    monkeypatch.setattr(build.toolchain.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(emulator.BuildError, match="pip install ziglang"):
        emulator.library("cuda")


def test_two_processes_may_build_at_once(empty_cache):
    environment = {**os.environ, "PYTHONPATH": str(build.SOURCES.parents[2])}
    code = "from devmem.testing import emulator; print(emulator.library('cuda'))"
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = {process.communicate(timeout=patience(140))[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(paths) == 1
    assert [entry.name for entry in empty_cache.iterdir() if entry.name.startswith("building-")] == []


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize(
    ("backend", "layout"),
    [
        pytest.param(name, layout, marks=[] if layout == "full" else pytest.mark.exhaustive)
        for name in build.FRONTS
        for layout in build.FRONTS[name]
    ],
)
def test_the_sources_compile_without_a_warning(monkeypatch, backend, layout):
    if "ziglang" in " ".join(build.toolchain.compiler()):
        pytest.skip("the warnings of zig's clang are not those that the sources were written against")
    monkeypatch.setenv("DEVMEM_EMULATOR_CFLAGS", "-Werror")
    assert emulator.library(backend, layout).exists()
    if layout == "full" and backend == "cuda":
        emulator.environment("cuda", runtime=True)


@pytest.mark.parametrize("backend", TABLES)
def test_the_table_of_functions_reads_as_markdown(backend):
    text = as_markdown(backend)
    for names in TABLES[backend].FUNCTIONS.values():
        assert all(f"| `{name}` |" in text for name in names)
    assert all(f"`{name}`" in text for name in unsupported(backend))


def test_several_backends_share_one_environment(monkeypatch):
    monkeypatch.delenv("DEVMEM_BACKEND", raising=False)
    monkeypatch.delenv("DEVMEM_EMULATOR", raising=False)
    both = emulator.environment("cuda,roc")
    folders = both["LD_LIBRARY_PATH"].split(":")
    assert folders[:2] == [str(emulator.library(name).parent) for name in ("cuda", "roc")]
    assert (both["DEVMEM_BACKEND"], both["DEVMEM_EMULATOR"]) == ("cuda", "cuda,roc")


def test_one_environment_within_another_adds_to_it(monkeypatch):
    for name, value in emulator.environment("cuda").items():
        monkeypatch.setenv(name, value)
    both = emulator.environment("roc")
    assert both["DEVMEM_EMULATOR"] == "cuda,roc"
    assert str(emulator.library("cuda").parent) in both["LD_LIBRARY_PATH"].split(":")


def test_rocm_is_found_by_its_home():
    found = emulator.environment("roc")
    assert found["ROCM_PATH"] == found["ROCM_HOME"] == str(emulator.library("roc").parents[1])
    assert emulator.library("roc").parent.name == "lib"


def test_each_layout_has_its_library_names():
    for layout, names in (
        ("full", ["libamdhip64.so"]),
        ("versioned", ["libamdhip64.so.7"]),
        ("old", ["libamdhip64.so"]),
    ):
        assert [path.name for path in emulator.library("roc", layout).parent.iterdir()] == names
    with pytest.raises(emulator.BuildError, match=r"'new'.*full, versioned, old"):
        emulator.environment("roc", "new")
