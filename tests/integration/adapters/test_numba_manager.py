"""Another library's allocator by every way in: an instance, a module, a name; and what becomes of one that is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waits import patience

ROOT = Path(__file__).resolve().parents[3]

GOOD = """
class Plain:
    def __init__(self, *made_with):
        self.made_with = made_with
        self.live = {}
    def bind(self, driver):
        self.driver = driver
    def allocate(self, nbytes, stream):
        ptr = self.driver.alloc(nbytes, stream)
        self.live[ptr] = nbytes
        return ptr
    def deallocate(self, ptr, nbytes, stream):
        assert self.live.pop(ptr) == nbytes
        self.driver.free(ptr, nbytes, stream)
instance = Plain("instance")
devmem_memory_manager = Plain
"""

#: Modules of distributions that are installed for these tests, each with the hook where it has a name.
MODULES = {
    "good": GOOD + 'def devmem_memory_resources():\n    return {"good_one": Plain}\n',
    "wrong_signature": """
class Wrong:
    def allocate(self, nbytes):
        return 256
    def deallocate(self, ptr, nbytes, stream):
        pass
def devmem_memory_resources():
    return {"wrong_signature": Wrong}
""",
    "wrong_version": GOOD
    + 'Plain.spi_version = 99\ndef devmem_memory_resources():\n    return {"wrong_version": Plain}\n',
    "not_importable": "import no_such_library\n",
    "fails_when_made": """
class Wrong:
    def __init__(self, *made_with):
        raise KeyError("inside")
def devmem_memory_resources():
    return {"fails_when_made": Wrong}
""",
    "no_resource": 'def devmem_memory_resources():\n    return {"no_resource": dict}\n',
    "taken": 'def devmem_memory_resources():\n    return {"rmm": dict}\n',
    "an_instance": GOOD + 'def devmem_memory_resources():\n    return {"an_instance": instance}\n',
    "a_list": GOOD + "def devmem_memory_resources():\n    return [Plain]\n",
    "wrong_bind": """
class Wrong:
    def bind(self):
        pass
    def allocate(self, nbytes, stream):
        return 256
    def deallocate(self, ptr, nbytes, stream):
        pass
def devmem_memory_resources():
    return {"wrong_bind": Wrong}
""",
    "wrong_fact": """
class Wrong:
    def cached_bytes(self):
        return 0
    def allocate(self, nbytes, stream):
        return 256
    def deallocate(self, ptr, nbytes, stream):
        pass
def devmem_memory_resources():
    return {"wrong_fact": Wrong}
""",
    "raises": GOOD
    + """
class Raises(Plain):
    def allocate(self, nbytes, stream):
        raise ZeroDivisionError("deep inside")
""",
    "nonsense": GOOD
    + """
class Nonsense(Plain):
    answer = None
    def allocate(self, nbytes, stream):
        return self.answer
class Twice(Plain):
    def allocate(self, nbytes, stream):
        return next(iter(self.live), 0) or super().allocate(nbytes, stream)
""",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks as if these distributions were installed into it."""
    folder = tmp_path_factory.mktemp("site")
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
        info = folder / f"pkg_{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pkg-{name.replace('_', '-')}\nVersion: 1.2\n")
        (info / "RECORD").write_text(f"{name}.py,,\n")
        (info / "top_level.txt").write_text(f"{name}\n")
        if "def devmem_memory_resources" in source or name == "not_importable":
            (info / "entry_points.txt").write_text(f"[devmem]\n{name} = {name}\n")
    return folder


def run(site: Path, text: str, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DEVMEM_")}
    env |= {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "DEVMEM_BACKEND": "host", "DEVMEM_HOST_STRICT": "1"}
    env |= {f"DEVMEM_{name}": value for name, value in variables.items()}
    prelude = """
import sys, warnings
import numpy as np
import devmem as dm
warnings.simplefilter("ignore", dm.DevmemWarning)
def refused(kind, what, *parts):
    try:
        dm.use_memory(what)
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, (missing, str(error))
    else:
        raise AssertionError(f"{what} was taken")
    assert dm.zeros(3).tolist() == [0, 0, 0]
def works(resource):
    d = dm.to_device(np.arange(10))
    assert list(resource.live) == [d.ptr]
    assert d.tolist() == list(range(10))
    d.free()
    dm.trim()
    assert resource.live == {}
"""
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(140),
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_by_instance_by_module_and_by_name(site: Path) -> None:
    run(
        site,
        """
        import good
        mine = good.Plain()
        with dm.use_memory(mine) as given:
            assert given is mine
            works(mine)
        for spelled in ("good:instance", "good:Plain", "limit:1GiB,good:Plain"):
            with dm.use_memory(spelled) as given:
                works(getattr(given, "upstream", given))
        for spelled, made_with in (("good_one", ()), ("good_one:4GiB", ("4GiB", None)), ("good", (dm.current_device(),))):
            with dm.use_memory(spelled) as given:
                assert type(given).__name__ == "Plain"
                assert given.made_with == made_with, "by the hook with its argument, as a module with the device"
                works(given)
                assert dm.use_memory(spelled).value is given, "one for each device"
        """,
    )


@pytest.mark.parametrize("spelled", ["good:instance", "good:Plain", "good", "good_one"])
def test_the_memory_manager_variable_names_an_allocator(site: Path, spelled: str) -> None:
    text = """
        assert "good" not in sys.modules
        d = dm.to_device(np.arange(3))
        import good
        [resource] = [each for each in __import__("gc").get_objects() if isinstance(each, good.Plain) and each.live]
        assert list(resource.live) == [d.ptr]
    """
    run(site, text, MEMORY_MANAGER=spelled)


def test_nothing_is_imported_before_it_is_asked_for(site: Path) -> None:
    text = f"dm.zeros(1); dm.use_memory('driver'); print(sorted(set(sys.modules) & {{*{list(MODULES)!r}, 'devmem.adapters'}}))"
    assert run(site, text) == "[]\n"


def test_what_is_wrong_is_told_with_its_package_and_line(site: Path) -> None:
    run(
        site,
        """
        place = "wrong_signature.py:3"
        refused(dm.PluginError, "wrong_signature", "pkg-wrong-signature 1.2", place, "allocate(nbytes)", "(nbytes, stream)")
        refused(dm.PluginError, "wrong_signature:Wrong", "pkg-wrong-signature 1.2")
        refused(dm.PluginError, "wrong_version", "pkg-wrong-version 1.2", "contract 99", "upgrade devmem")
        refused(dm.PluginError, "wrong_version:Plain", "contract 99")
        refused(dm.PluginError, "not_importable:thing", "pkg-not-importable 1.2", "no_such_library")
        refused(dm.PluginError, "fails_when_made", "pkg-fails-when-made 1.2", "KeyError: 'inside'", "fails_when_made.py:4")
        refused(dm.PluginError, "no_resource", "pkg-no-resource 1.2", "is not a memory resource")
        refused(dm.PluginError, "good:nothing", "pkg-good 1.2", "nothing")
        refused(dm.PluginError, "not_importable", "no_such_library", "pkg-not-importable 1.2", "not_importable.py:1")
        refused(dm.PluginError, "not_importable:4GiB", "no_such_library", "pkg-not-importable 1.2")
        refused(dm.PluginError, "an_instance", "pkg-an-instance 1.2", "returns what makes a resource, by name")
        refused(dm.PluginError, "a_list", "pkg-a-list 1.2", "it returns a dict, factories by name")
        refused(dm.PluginError, "wrong_bind", "wrong_bind.py:3", "'wrong_bind'.bind() cannot be called as (driver)")
        refused(dm.PluginError, "wrong_fact", "wrong_fact.py:3", "'wrong_fact'.cached_bytes is a method: make it a property")
        """,
    )


def test_a_wrong_setting_names_the_variable(site: Path) -> None:
    text = """
        try:
            dm.zeros(1)
        except dm.PluginError as error:
            print("DEVMEM_MEMORY_MANAGER='wrong_signature:Wrong'" in str(error))
    """
    assert run(site, text, MEMORY_MANAGER="wrong_signature:Wrong") == "True\n"


def test_a_name_of_devmems_own_cannot_be_taken(site: Path) -> None:
    run(
        site,
        """
        refused(dm.ConfigError, "unknown", "two memory resources are named 'rmm': one from built in, one from pkg-taken 1.2")
        """,
    )


def test_its_exceptions_keep_their_type_and_get_context(site: Path) -> None:
    text = """
        import traceback, raises
        for stack in (raises.Raises(), dm.memory.Limit(raises.Raises(), max_bytes=10000)):
            with dm.use_memory(stack):
                try:
                    dm.zeros(3)
                except ZeroDivisionError as error:
                    told = "".join(traceback.format_exception(error))
                    assert "deep inside" in told
                    for part in ("devmem: raised by the memory resource Raises (pkg-raises 1.2)", "raises.py:", "24"):
                        assert part in told, (part, told)
                else:
                    raise AssertionError
        assert dm.zeros(3).tolist() == [0, 0, 0]
    """
    run(site, text)


def test_nonsense_is_caught(site: Path) -> None:
    text = """
        import nonsense
        def caught(*parts):
            try:
                dm.device_array(3)
            except dm.PluginError as error:
                assert all(part in str(error) for part in parts), str(error)
            else:
                raise AssertionError
        for answer in (None, 1.5, 0, -256, "0x100", True):
            resource = nonsense.Nonsense()
            resource.answer = answer
            for stack in (resource, dm.memory.Limit(resource, max_bytes=10000)):
                with dm.use_memory(stack):
                    caught(f"returned {answer!r} for 24 bytes", "from pkg-nonsense 1.2", "nonsense.py:20")
            resource.answer = None
        with dm.use_memory(nonsense.Twice()):
            d = dm.device_array(3)
            caught("gave out before (24 bytes)", "from pkg-nonsense 1.2", "nonsense.py:23")
            d.free()
    """
    run(site, text)
