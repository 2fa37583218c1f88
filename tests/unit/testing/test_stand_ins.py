"""Stand-ins for missing libraries: made of what a package's modules need, and fatal with their names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devmem.spi.errors import BackendUnavailable
from devmem.testing.emulator import elf, stand_ins
from devmem.toolkit import toolchain

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads and makes ELF files")

MODULE = """
void versioned(void), plain(void), here(void);
extern void weak(void) __attribute__((weak));
__attribute__((visibility("default"))) void here(void) {}
__attribute__((visibility("default"))) int calls(int which)
{
    if (weak) return 9;
    which == 1 ? versioned() : which == 2 ? plain() : here();
    return which;
}
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package with one module, whose two libraries are gone."""
    try:
        command = [*toolchain.compiler(), *toolchain.FLAGS]
    except BackendUnavailable as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "site" / "needy"
    home.mkdir(parents=True)
    (home / "__init__.py").touch()
    (tmp_path / "names.map").write_text("V_1 { global: versioned; };")
    exported = '__attribute__((visibility("default"))) void {}(void); void {}(void) {{}}'
    for name, function, flags in (
        ("libversioned.so.3", "versioned", [f"-Wl,--version-script={tmp_path / 'names.map'}"]),
        ("libplain.so", "plain", []),
    ):
        source = tmp_path / f"{function}.c"
        source.write_text(exported.format(function, function))
        toolchain.compile_library([*command, str(source), f"-Wl,-soname,{name}", *flags], tmp_path / name)
    (tmp_path / "module.c").write_text(MODULE)
    libraries = [str(tmp_path / "libversioned.so.3"), str(tmp_path / "libplain.so")]
    toolchain.compile_library([*command, str(tmp_path / "module.c"), *libraries], home / "module.so")
    for each in libraries:
        Path(each).unlink()
    monkeypatch.syspath_prepend(str(home.parent))
    return home / "module.so"


def test_what_a_module_needs_is_read_from_its_file(package):
    module = elf.read(package)
    assert {"libversioned.so.3", "libplain.so"} <= set(module.needed)
    assert module.undefined["versioned"] == ("libversioned.so.3", "V_1")
    assert module.undefined["plain"] == ("", "")
    assert "weak" not in module.undefined and {"here", "calls"} <= module.defined


def test_a_package_loads_with_stand_ins_and_ends_with_the_name_of_what_it_calls(package):
    code = f"import ctypes, sys; print(ctypes.CDLL('{package}', ctypes.RTLD_GLOBAL).calls(int(sys.argv[1])))"

    def run(which, **variables):
        command = [sys.executable, "-c", code, str(which)]
        return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)

    assert "cannot open shared object file" in run(0).stderr
    place = stand_ins.folder(["needy"])
    assert sorted(path.name for path in place.iterdir()) == ["libplain.so", "libversioned.so.3"]
    assert stand_ins.folder(["needy"]) == place
    found = {"LD_LIBRARY_PATH": str(place)}
    assert (run(0, **found).stdout, run(0, **found).stderr) == ("0\n", "")
    assert "devmem stand-in: versioned was called. libversioned.so.3 is missing" in run(1, **found).stderr
    assert "devmem stand-in: plain was called. libplain.so is missing" in run(2, **found).stderr


def test_an_emulated_library_and_one_that_is_there_need_no_stand_in(package):
    wanted = stand_ins.missing([elf.read(package)], ("libversioned.so",))
    assert [each.soname for each in wanted] == ["libplain.so"]


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(LookupError, match="'no_such_package'"):
        stand_ins.folder(["no_such_package"])
