"""`devmem doctor` on compilers of two vendors in one environment, which cannot be."""

from __future__ import annotations

import importlib.metadata

import pytest

from devmem.cli import doctor
from devmem.cli.doctor import Verdict
from devmem.spi.errors import UnsupportedError


@pytest.mark.parametrize(
    ("installed", "told"),
    [
        ({"numba-cuda": "0.30.4"}, False),
        ({"numba-hip": "0.2.1", "hip-python-interop": "10.0"}, False),
        ({"numba-cuda": "0.30.4", "numba-hip": "0.2.1", "hip-python-interop": "10.0"}, True),
        ({"numba-cuda": "0.30.4", "hip-python-interop": "10.0"}, True),
        ({}, False),
    ],
)
def test_two_vendors_compilers_in_one_environment(monkeypatch, installed, told):
    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    checks = list(doctor._compilers())
    assert [check.verdict for check in checks] == [Verdict.FAIL] * told
    for check in checks:
        assert all(f"{name} {number}" in check.found for name, number in installed.items())
        assert "devmem-arrays[cuda-kernels]" in check.advice
        assert "devmem-arrays[rocm-kernels]" in check.advice


@pytest.mark.parametrize("installed", [True, False])
def test_each_usable_backend_has_a_row_for_its_kernels(monkeypatch, installed):
    reason = None if installed else "kernels on the host backend need greenlet: pip install 'devmem-arrays[sim]'"
    monkeypatch.setattr(doctor, "kernel_compilers", lambda backend: {"simulator": reason})
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.2")
    rows = {check.name: check for check in doctor.examine(doctor.collect())}
    row = rows["kernels: host"]
    if installed:
        assert (row.verdict, row.found) == (Verdict.OK, "simulator, greenlet 3.2, numba 3.2")
    else:
        assert row.verdict is Verdict.INFO
        assert "pip install 'devmem-arrays[sim]'" in row.found


def test_a_missing_library_of_a_compiler_is_told_with_what_installs_it(monkeypatch):
    from devmem.kernels.compilers.numba_compiler import NumbaCompiler

    class DynamicLibNotFoundError(RuntimeError):
        pass

    class Module:
        @staticmethod
        def image_for(*_):
            raise DynamicLibNotFoundError("no nvrtc")

    class Compiler(NumbaCompiler):
        name, backend, extra = "numba_cuda", "cuda", "cuda-kernels"

        def unavailable(self):
            return None

        def compiler(self):
            return Module

    monkeypatch.setattr("devmem.kernels.compilers.numba_compiler.isinstance", lambda *_: True, raising=False)
    with pytest.raises(UnsupportedError, match=r"no nvrtc.*devmem-arrays\[cuda-kernels\]"):
        Compiler().compile(lambda: None, (), object(), {})
