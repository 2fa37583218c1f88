"""What public signatures say: `help` shows them, and type checkers read them (`tests/types`)."""

from __future__ import annotations

import doctest
import inspect
import pydoc
import re
import typing
from pathlib import Path

import pytest

import devmem as dm
import devmem.typing

FUNCTIONS = {name: found for name in dm.__all__ if inspect.isfunction(found := getattr(dm, name))}
CLASSES = {name: found for name in dm.__all__ if isinstance(found := getattr(dm, name), type)}

#: Arguments that may be anything, as NumPy's `full` takes them, and options of compilers.
ANYTHING = {
    ("full", "fill_value"),
    ("full_like", "fill_value"),
    ("is_device_array", "obj"),
    ("to_host_many", "tree"),
    ("kernel", "options"),
}
#: What they return depends on what they are given in ways that no overload says, as of `numpy.load`.
ANY_RESULT = {"load", "load_many", "to_device_many", "to_host_many"}


def signatures(function):
    return [inspect.signature(each) for each in (function, *typing.get_overloads(function))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_argument_is_anything(name):
    for signature in signatures(FUNCTIONS[name]):
        for argument in signature.parameters.values():
            assert argument.annotation is not inspect.Parameter.empty, argument
            assert (name, argument.name) in ANYTHING or str(argument.annotation) not in ("Any", "object"), argument


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_result_says_what_it_is(name):
    for signature in signatures(FUNCTIONS[name]):
        assert signature.return_annotation not in ("object", inspect.Signature.empty)
        assert name in ANY_RESULT or signature.return_annotation != "Any"


def callables():
    yield from FUNCTIONS.items()
    for name, kind in CLASSES.items():
        for member, method in inspect.getmembers_static(kind, inspect.isfunction):
            if not member.startswith("_") and member not in getattr(kind, "_unlisted", ()):
                yield f"{name}.{member}", method


#: Methods that NumPy, or Python's mappings, leave as open.
OPEN = {"SmartArray.astype", "SmartArray.get", "SmartArray.reshape"} | {
    f"ArrayFile.{name}" for name in ("get", "items", "keys", "values")
}


@pytest.mark.parametrize("name", [name for name, _ in callables() if "." in name and name not in OPEN])
def test_a_method_says_what_it_takes_and_gives(name):
    signature = inspect.signature(dict(callables())[name])
    for argument in list(signature.parameters.values())[1:]:
        assert str(argument.annotation) not in ("Any", "object", str(inspect.Parameter.empty)), argument
    assert signature.return_annotation not in ("object", inspect.Signature.empty)


@pytest.mark.parametrize(
    ("name", "function"), list(callables()), ids=lambda each: each if isinstance(each, str) else ""
)
def test_a_stream_that_is_not_named_is_spelt_one_way(name, function):
    for signature in signatures(function):
        stream = signature.parameters.get("stream")
        if stream is not None:
            assert stream.default in (0, inspect.Parameter.empty), name
            assert stream.annotation == "StreamLike", name


@pytest.mark.parametrize("name", ["to_device", "zeros", "copy_async", "load"])
def test_help_is_readable(name):
    first = pydoc.render_doc(getattr(dm, name), renderer=pydoc.plaintext).splitlines()[2]
    assert "Any," not in first
    assert "stream: 'StreamLike' = 0" in first


@pytest.mark.parametrize(
    ("kind", "call"),
    [(dm.Stream, "(*, priority: 'int' = 0, non_blocking: 'bool' = False)"), (dm.Event, "(*, timing: 'bool' = True)")],
)
def test_help_shows_how_a_class_is_called(kind, call):
    assert str(inspect.signature(kind)) == call
    assert f"class {kind.__name__}" in pydoc.render_doc(kind, renderer=pydoc.plaintext).splitlines()[2]


def test_help_of_the_module_names_the_first_verbs():
    for verb in ("to_device", "copy_to_host", "empty", "copy_to_device", "from_dlpack", "stream"):
        assert verb in dm.__doc__
    assert not doctest.testmod(dm, verbose=False).failed


@pytest.mark.parametrize("name", devmem.typing.__all__)
def test_a_name_in_signatures_can_be_looked_up(name):
    assert (
        typing.get_args(getattr(devmem.typing, name))
        or name == "StridesLike"
        or isinstance(getattr(devmem.typing, name), str)
    )
    page = Path(__file__).parents[3] / "docs" / "reference" / "api.md"
    assert re.search(rf"^\| `{name}` \|", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_signatures_name_nothing_else():
    named = set()
    for function in FUNCTIONS.values():
        for signature in signatures(function):
            for argument in signature.parameters.values():
                named.update(re.findall(r"\b(\w+(?:Like|Tree))\b", str(argument.annotation)))
    assert named - {"DTypeLike"} <= {*devmem.typing.__all__, "PathTree"}
