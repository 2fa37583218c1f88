"""`devmem doctor` on compilers of two vendors in one environment, which cannot be."""

from __future__ import annotations

import importlib.metadata

import pytest

from devmem.cli import doctor
from devmem.cli.doctor import Verdict


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
