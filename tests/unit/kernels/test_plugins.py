"""Kernel compilers by their hook: found, refused, and told of."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from devmem import plugins
from devmem.kernels.code import compiler_for
from devmem.spi.errors import PluginError, UnsupportedError


def compiler(name="theirs", backend="cuda", **changed):
    parts = dict.fromkeys(("unavailable", "type_of", "types_of", "fits", "compile"), lambda *arguments: None)
    return SimpleNamespace(name=name, backend=backend, **{**parts, **changed})


def plugin(*compilers):
    module = ModuleType("a_plugin")
    module.devmem_kernel_compilers = lambda: compilers
    return module


def registry(*modules):
    found = plugins.Registry(block=("*",))
    for module in modules:
        manager = plugins._manager()
        manager.register(module, module.__name__)
        found._register_all(manager, "a package")
    return found


def names(found, backend):
    return [each.compiler.name for each in found.compilers_for(backend)]


def test_those_of_devmem_come_first_and_import_nothing_else():
    before = set(sys.modules)
    found = registry(plugin(compiler()))
    assert names(found, "cuda") == ["numba_cuda", "numba_cuda_mlir", "theirs"]
    assert names(found, "roc") == ["numba_hip"]
    assert names(found, "host") == ["simulator"]
    assert names(found, "unheard_of") == []
    assert not {
        name
        for name in set(sys.modules) - before
        if name.partition(".")[0] in ("numba", "numba_cuda_mlir", "llvmlite", "cuda")
    }


def test_a_compiler_that_lacks_a_part_is_refused():
    with pytest.raises(PluginError, match=r"from a package lacks fits \(see devmem\.spi\.kernel\)"):
        registry(plugin(compiler(fits=None)))


@pytest.mark.parametrize("name", ["theirs", "numba_cuda", "simulator"])
def test_a_name_that_is_taken_is_refused(name):
    with pytest.raises(PluginError, match=f"two kernel compilers are named '{name}'"):
        registry(plugin(compiler("theirs"), compiler(name)))


def test_a_plugin_supplies_all_or_nothing():
    found = plugins.Registry(block=("*",))
    manager = plugins._manager()
    manager.register(plugin(compiler("good"), compiler("bad", compile=None)), "a_plugin")
    with pytest.raises(PluginError):
        found._register_all(manager, "a package")
    assert found.compilers == {}


def test_a_module_that_is_not_there_is_told_of(monkeypatch):
    monkeypatch.setattr(plugins, "BUILT_IN_COMPILERS", {"gone": ("cuda", "devmem.kernels.compilers.gone")})
    found = registry()
    assert names(found, "cuda") == []
    assert found.compiler_failures("cuda") == ["gone: this version of devmem does not contain the compiler 'gone' yet"]


def test_the_first_that_can_be_used_is_taken(monkeypatch):
    monkeypatch.setattr(plugins, "BUILT_IN_COMPILERS", {})
    opened = SimpleNamespace(handle=SimpleNamespace(info=SimpleNamespace(backend="cuda")), device="cuda:0")
    unusable = compiler("one", unavailable=lambda: "it is ill")
    monkeypatch.setattr(plugins, "registry", registry(plugin(unusable, compiler("two"), compiler("three"))))
    assert compiler_for(opened).name == "two"
    monkeypatch.setattr(plugins, "registry", registry(plugin(unusable)))
    with pytest.raises(UnsupportedError, match=r"no kernel compiler can be used for cuda:0 \(one: it is ill\)"):
        compiler_for(opened)
