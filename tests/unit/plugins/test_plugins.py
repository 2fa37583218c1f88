"""The plugin loader: built-ins first, both owners of a name told, misspelt hooks loud, and no plugin harmed by another."""

from __future__ import annotations

import importlib
import importlib.metadata
import types
import warnings

import pluggy
import pytest

from devmem import plugins
from devmem._core.stacks import stack_spec
from devmem.plugins import BUILT_IN, Registry
from devmem.spi import SPI_VERSION
from devmem.spi.errors import DevmemWarning, PluginError


class Backend:
    def __init__(self, name, spi_version=SPI_VERSION):
        self.name = name
        self.spi_version = spi_version

    def unavailable(self):
        return None

    def device_count(self):
        return 1

    def open(self, ordinal):
        raise AssertionError("nothing is opened here")


class Entry:
    """An entry point of a distribution that is not installed."""

    def __init__(self, name, plugin, dist=None):
        self.name = name
        self.value = f"{name}_module"
        self.plugin = plugin
        self.loaded = 0
        self.dist = types.SimpleNamespace(name=dist or f"dist-{name}", version="1.0")

    def load(self):
        self.loaded += 1
        if isinstance(self.plugin, Exception):
            raise self.plugin
        return self.plugin


def plugin(backends=(), resources=None, **others):
    hooks = {"devmem_backends": lambda: list(backends), **others}
    if resources is not None:
        hooks["devmem_memory_resources"] = lambda: resources
    return types.SimpleNamespace(**hooks)


def nothing():
    return []


@pytest.fixture
def installed(monkeypatch):
    """Say which entry points there are."""

    def install(*entries):
        def found(*, group):
            assert group == "devmem"
            return list(entries)

        monkeypatch.setattr(importlib.metadata, "entry_points", found)

    install()
    return install


def test_a_third_party_is_found_by_its_entry_point(installed):
    entry = Entry("extra", plugin([Backend("extra")], {"mine": lambda: "resource"}))
    installed(entry)
    registry = Registry()
    found = registry.backend("extra")
    assert found.backend.name == "extra"
    assert found.origin == "dist-extra 1.0"
    assert registry.resource("mine")() == "resource"
    assert registry.resource("other") is None
    assert registry.backend("other") is None
    assert entry.loaded == 1


def test_built_ins_resolve_before_any_third_party_is_imported(installed):
    entry = Entry("extra", plugin([Backend("extra")]))
    installed(entry)
    registry = Registry()
    assert registry.backend("host").origin == "built in"
    assert entry.loaded == 0


def test_built_in_names_of_stacks_are_those_that_a_text_may_have():
    """A plugin must not take them, which is known before the resources are imported."""
    assert set(plugins.BUILT_IN_RESOURCES) == set(stack_spec.NAMED)


def test_every_backend_lists_built_ins_first(installed):
    installed(Entry("aaa", plugin([Backend("aaa")])))
    names = list(Registry().every_backend())
    assert names[-1] == "aaa"
    assert set(names[:-1]) <= set(BUILT_IN)
    assert names[:-1] == [name for name in BUILT_IN if name in names]


def test_a_plugin_needs_no_marker_and_may_serve_one_hook(installed):
    installed(Entry("only", types.SimpleNamespace(devmem_memory_resources=lambda: {"mine": dict})))
    assert Registry().resource("mine") is dict


# -- names that are taken ----------------------------------------------------------------------------------------------


def test_a_name_of_a_built_in_is_refused_and_names_both(installed):
    installed(Entry("thief", plugin([Backend("host")])))
    registry = Registry()
    with pytest.warns(
        DevmemWarning,
        match=r"two backends are named 'host': one from built in, one from dist-thief 1.0.*DEVMEM_BLOCK_PLUGINS",
    ):
        found = registry.every_backend()
    assert found["host"].origin == "built in"
    assert "dist-thief" in registry.failures["thief"].message


def test_two_third_parties_of_one_name_are_refused_and_both_named(installed):
    installed(Entry("one", plugin([Backend("same")])), Entry("two", plugin([Backend("same")])))
    registry = Registry()
    with pytest.warns(
        DevmemWarning, match=r"two backends are named 'same': one from dist-one 1.0, one from dist-two 1.0"
    ):
        assert registry.backend("same").origin == "dist-one 1.0"


def test_two_resources_of_one_name_are_refused_and_both_named(installed):
    installed(Entry("one", plugin(resources={"same": list})), Entry("two", plugin(resources={"same": dict})))
    registry = Registry()
    with pytest.warns(
        DevmemWarning, match=r"two memory resources are named 'same': one from dist-one 1.0, one from dist-two 1.0"
    ):
        assert registry.resource("same") is list


def test_adding_by_hand_raises():
    registry = Registry()
    registry.add_backend(Backend("mine"), "here")
    with pytest.raises(PluginError, match="two backends are named 'mine': one from here, one from there"):
        registry.add_backend(Backend("mine"), "there")
    with pytest.raises(PluginError, match="two backends are named 'cuda': one from built in, one from there"):
        registry.add_backend(Backend("cuda"), "there")
    registry.remove_backend("mine")
    registry.add_backend(Backend("mine"), "there")


# -- plugins that are wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["devmem_backend", "devmem_memory_resource", "devmem_kernels"])
def test_a_misspelt_hook_is_loud(installed, name):
    installed(Entry("typo", plugin([Backend("typo")], **{name: nothing})))
    registry = Registry()
    with pytest.warns(DevmemWarning, match=rf"plugin 'typo' \(dist-typo 1.0\).*{name}"):
        registry.every_backend()
    assert name in registry.failures["typo"].message


def test_a_plugin_with_only_a_misspelt_hook_is_loud(installed):
    installed(Entry("typo", types.SimpleNamespace(devmem_backend=nothing)))
    with pytest.warns(
        DevmemWarning,
        match=r"defines none of the hooks devmem_backends, devmem_kernel_compilers, devmem_memory_resources",
    ):
        Registry().every_backend()


def test_a_plugin_without_hooks_is_loud(installed):
    installed(Entry("empty", types.ModuleType("empty")))
    with pytest.warns(DevmemWarning, match="defines none of the hooks"):
        Registry().every_backend()


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (ImportError("no such module"), "ImportError: no such module"),
        (plugin([object()]), "lacks name, spi_version, unavailable, device_count, open"),
        (types.SimpleNamespace(devmem_backends=lambda: 1 / 0), "ZeroDivisionError"),
        (types.SimpleNamespace(devmem_backends=lambda: 5), "TypeError"),
    ],
)
def test_a_broken_plugin_harms_no_other(installed, broken, says):
    installed(
        Entry("first", plugin([Backend("first")])), Entry("broken", broken), Entry("last", plugin([Backend("last")]))
    )
    registry = Registry()
    with pytest.warns(DevmemWarning, match=r"plugin 'broken' \(dist-broken 1.0\)") as seen:
        found = registry.every_backend()
    assert says in str(seen[0].message)
    assert {"first", "last", "host"} <= set(found)
    assert says in registry.failures["broken"].message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.every_backend()  # said once


@pytest.mark.parametrize(("beside", "named"), [("_extra", True), ("", False)])
def test_the_line_of_a_plugin_is_named_and_not_that_of_its_loader(installed, beside, named):
    file = f"{pluggy.__path__[0]}{beside}/plugin.py"
    function = types.SimpleNamespace()
    exec(compile("def devmem_backends(): return 1 / 0", file, "exec"), vars(function))
    installed(Entry("broken", function))
    with pytest.warns(DevmemWarning, match="ZeroDivisionError") as seen:
        Registry().every_backend()
    assert (f", {file}:1" in str(seen[0].message)) is named


def test_a_backend_that_lacks_parts_is_refused_with_their_names():
    thing = types.SimpleNamespace(name="half", spi_version=SPI_VERSION, unavailable=lambda: None)
    with pytest.raises(PluginError, match=r"from here lacks device_count, open \(see devmem.spi.driver\)"):
        Registry().add_backend(thing, "here")


# -- versions of the contract ------------------------------------------------------------------------------------------


def test_a_newer_contract_is_refused_by_name():
    with pytest.raises(
        PluginError,
        match=rf"'new' from here is written for contract {SPI_VERSION + 1}, .* has contract {SPI_VERSION}: upgrade devmem",
    ):
        Registry().add_backend(Backend("new", SPI_VERSION + 1), "here")


def test_one_step_older_works_with_a_warning():
    registry = Registry()
    with pytest.warns(
        DevmemWarning, match="'old' from here is written for contract 1, .*: it runs, .* upgrade here, or change it as"
    ):
        registry.add_backend(Backend("old", SPI_VERSION - 1), "here")
    assert registry.backends["old"].origin == "here"


def test_two_steps_older_is_refused():
    with pytest.raises(PluginError, match="supports one step back: upgrade here"):
        Registry().add_backend(Backend("ancient", SPI_VERSION - 2), "here")


# -- blocking ----------------------------------------------------------------------------------------------------------


def test_blocked_entry_points_are_not_even_imported(installed):
    blocked, other = Entry("blocked", plugin([Backend("blocked")])), Entry("other", plugin([Backend("other")]))
    installed(blocked, other)
    registry = Registry()
    registry.configure(("blocked", "unknown"))
    assert "blocked" not in registry.every_backend()
    assert "other" in registry.every_backend()
    assert (blocked.loaded, other.loaded) == (0, 1)


def test_a_star_blocks_all_third_parties_and_no_built_in(installed):
    entry = Entry("extra", plugin([Backend("extra")]))
    installed(entry)
    registry = Registry()
    registry.configure(("*",))
    assert "host" in registry.every_backend()
    assert "extra" not in registry.every_backend()
    assert entry.loaded == 0
    registry.configure(())
    assert "extra" in registry.every_backend()


def test_a_plugin_that_exits_the_program_is_a_broken_plugin(monkeypatch):
    def leave():
        raise SystemExit(3)

    entries = [Entry("leaver", plugin(devmem_kernel_compilers=leave)), Entry("sound", plugin([Backend("sound")]))]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    registry = Registry()
    with pytest.warns(DevmemWarning, match="SystemExit: 3"):
        assert "sound" in registry.every_backend()
    assert "leaver" in registry.failures


class Leaving(Backend):
    """Does what it was made with in place of one method."""

    def __init__(self, verb, action):
        super().__init__("leaving")
        self.options = {"a": "a number"}
        setattr(self, verb, action)


def leave(*_):
    raise SystemExit(3)


@pytest.mark.parametrize("verb", ["unavailable", "device_count", "open", "configure"])
def test_a_backend_that_exits_the_program_when_it_is_asked(verb):
    backend = Leaving(verb, leave)
    loaded = plugins.LoadedBackend(backend, "here")
    calls = {
        "unavailable": loaded.unavailable,
        "device_count": loaded.device_count,
        "open": lambda: loaded.open(0),
        "configure": lambda: loaded.configure(lambda backend: {"a": 1}),
    }
    with pytest.raises(
        PluginError, match=rf"^{verb}\(0?\) of the backend 'leaving' from here raised SystemExit: 3, .*test_plugins.py:"
    ):
        calls[verb]()


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        ("unavailable", 5),
        ("unavailable", True),
        *(("device_count", each) for each in ("2", -1, 1 << 70, None, 1.0, True)),
    ],
)
def test_an_answer_that_is_none_is_told_with_its_value(verb, answer):
    loaded = plugins.LoadedBackend(Leaving(verb, lambda: answer), "here")
    with pytest.raises(
        PluginError, match=rf"{verb}\(\) of the backend 'leaving' from here returned {answer!r}: it returns"
    ):
        getattr(loaded, verb)()


@pytest.mark.parametrize("name", [5, "", None, ["a"]])
def test_names_are_text(installed, name):
    compiler = types.SimpleNamespace(
        name=name, backend="x", unavailable=leave, type_of=leave, types_of=leave, fits=leave, compile=leave
    )
    for hooks in (
        plugin([Backend(name)]),
        plugin(resources={name if name != ["a"] else 5: list}),
        plugin(devmem_kernel_compilers=lambda: [compiler]),
    ):
        installed(Entry("nameless", hooks), Entry("sound", plugin([Backend("sound")])))
        registry = Registry()
        with pytest.warns(DevmemWarning, match=r"a name is a str, and not empty|lacks name"):
            assert "sound" in registry.every_backend()


def test_a_version_is_a_number():
    with pytest.raises(PluginError, match="'x' from here has spi_version '1'"):
        Registry().add_backend(Backend("x", "1"), "here")


def test_a_backend_that_exits_the_program_when_it_is_registered():
    class Nameless(Backend):
        name = property(leave, lambda self, name: None)

    with pytest.raises(PluginError, match="SystemExit: 3"):
        Registry().add_backend(Nameless("x"), "here")


def test_an_interrupt_while_plugins_are_loaded_leaves_none_out(installed):
    class Interrupted(Entry):
        def load(self):
            if not self.loaded:
                self.loaded = 1
                raise KeyboardInterrupt
            return super().load()

    entries = [Entry("one", plugin([Backend("one")])), Interrupted("two", plugin([Backend("two")]))]
    installed(*entries, Entry("three", plugin([Backend("three")])))
    registry = Registry()
    with pytest.raises(KeyboardInterrupt):
        registry.every_backend()
    assert {"one", "two", "three"} <= set(registry.every_backend())
    assert entries[0].loaded == 1
    assert registry.failures.keys().isdisjoint({"one", "two", "three"})


@pytest.mark.parametrize("look_up", [lambda each: each.backend("host"), lambda each: each.compilers_for("host")])
def test_a_handler_may_come_while_a_built_in_is_loaded(monkeypatch, look_up):
    registry, load, found = Registry(), importlib.import_module, []

    def interrupted(*names):
        if not found:
            found.append(None)
            found[0] = look_up(registry)
        return load(*names)

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert look_up(registry) == found[0]
    assert found[0]
