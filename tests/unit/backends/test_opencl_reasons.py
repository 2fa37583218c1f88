"""Why there is no OpenCL, on machines that lack a part of it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

import devmem
from devmem import plugins
from devmem._core.base import config
from devmem.backends.opencl import vendors
from devmem.backends.opencl.hooks import OpenCLBackend
from devmem.backends.opencl.vendors import broken_vendors
from devmem.spi.errors import ConfigError


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment of Python's with a file of a vendor, which names a library."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    (tmp_path / "lib").mkdir()

    def make(library, folder="etc/OpenCL/vendors"):
        file = tmp_path / folder / "intel.icd"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{library}\n")
        return file

    make.root = tmp_path
    return make


def told_of(file):
    return [told for told in broken_vendors() if str(file) in told]


def test_a_path_that_was_never_replaced_is_told_with_its_cure(environment, monkeypatch):
    file, library = environment("/placeholder/lib/libintelocl.so"), environment.root / "lib" / "libintelocl.so"
    library.touch()
    monkeypatch.setattr(vendors, "ctypes", SimpleNamespace(CDLL=str))  # it can be loaded
    [told] = told_of(file)
    assert "/placeholder/lib/libintelocl.so, which does not exist" in told
    assert f"echo {library} > ~/.opencl/intel.icd" in told
    assert told.endswith("OCL_ICD_VENDORS=$HOME/.opencl")


@pytest.mark.parametrize("path", ["/placeholder/lib/libintelocl.so", "{root}/lib/libintelocl.so"])
def test_a_library_that_lacks_another_one_is_told_with_the_wheel_that_has_it(environment, path):
    library = environment.root / "lib" / "libintelocl.so"
    library.write_text("no library")
    environment(path.format(root=environment.root))
    [told] = [each for each in broken_vendors() if str(library) in each]
    assert f"{library} cannot be loaded (" in told
    assert told.endswith("pip install intel-cmplr-lib-rt")


def test_a_library_that_is_gone_is_told(environment):
    [told] = told_of(environment("/gone/libvendor.so"))
    assert told.endswith("install that runtime again, or remove the file")


def test_files_that_can_be_followed_are_not_told(environment, monkeypatch):
    library = environment.root / "lib" / "libgood.so"
    library.touch()
    monkeypatch.setattr(vendors, "ctypes", SimpleNamespace(CDLL=str))
    assert told_of(environment(library)) == []
    assert told_of(environment("libsearched.so.1")) == []


def test_the_folder_of_the_variable_is_looked_at(environment, monkeypatch):
    file = environment("/gone/libvendor.so", "own")
    assert told_of(file) == []
    monkeypatch.setenv("OCL_ICD_VENDORS", str(file.parent))
    assert len(told_of(file)) == 1


def test_without_pyopencl_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    monkeypatch.delitem(sys.modules, "devmem.backends.opencl.runtime", raising=False)
    reason = OpenCLBackend().unavailable()
    assert "pyopencl cannot be imported" in reason
    assert "pip install 'devmem-arrays[opencl]'" in reason


def test_a_pyopencl_that_raises_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", ModuleType("pyopencl"))  # without any of its names
    monkeypatch.delitem(sys.modules, "devmem.backends.opencl.runtime", raising=False)
    reason = OpenCLBackend().unavailable()
    assert "pyopencl cannot be imported" in reason


def test_it_is_chosen_by_name_only(monkeypatch):
    class Usable(OpenCLBackend):
        def unavailable(self):
            return None

        def device_count(self):
            return 1

    monkeypatch.delenv("DEVMEM_BACKEND", raising=False)
    monkeypatch.setattr(config, "_current", None)  # what is read here goes with the test
    monkeypatch.setitem(plugins.registry.backends, "opencl", plugins.LoadedBackend(Usable(), "built in"))
    [status] = [status for status in devmem.backends() if status.name == "opencl"]
    assert status.usable
    assert status.by_name_only
    others = [each.name for each in devmem.backends() if each.usable and each.name not in ("host", "opencl")]
    assert devmem.is_available() is bool(others)
    assert devmem.is_available("opencl")


def test_its_setting_is_checked():
    backend = OpenCLBackend()
    backend.configure({"platform": "Portable"})
    with pytest.raises(ConfigError, match="has no setting 'platfrom'; it has: platform"):
        backend.configure({"platfrom": "x"})
    with pytest.raises(ConfigError, match="platform=3 is of the wrong type: give it as str"):
        backend.configure({"platform": 3})
