"""Text from outside: stacks, settings, names of devices."""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm
from devmem._core.base import config
from devmem._core.base.size_text import ALLOWED, bytes_of, parse_size

from .conftest import attempt

SIZES = st.sampled_from(
    ["1MiB", "64", "1.5GiB", "0", "-1", "80%", "0%", "1e3", "9" * 400, "99999TiB", "1.5", "²", "1 kb", "nan"]
)
WORDS = st.text("ab:;,=.%0129 \x00-_é", max_size=6)
PARTS = """
    driver stream_ordered managed pinned mapped limit statistics guard scrub fail_nth pinned_pool pool prefetch cupy rmm torch
"""
ARGUMENTS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "max_bytes=", "owners=", "byte=", "n=", "redzone=", "quarantine_bytes=", "numa_node=", "x="]),
    SIZES | st.integers(-2, 300).map(str) | WORDS,
    st.sampled_from(["", ";", ";owners", ";repeat"]),
)
PART = st.builds("{}:{}".format, st.sampled_from(PARTS.split()), ARGUMENTS) | st.sampled_from(PARTS.split()) | WORDS
STACKS = st.lists(PART, min_size=1, max_size=5).map(",".join) | st.text("abcdef:;,=.%0129 \x00_", max_size=20)


@pytest.mark.filterwarnings("ignore")
@given(STACKS)
def test_any_text_is_a_stack_or_is_told(text: str) -> None:
    def run() -> None:
        with dm.use_memory(text) as stack:
            # Each part of the text is one of the chain, from the outermost on.
            names = [part.partition(":")[0].strip().replace("_", "") for part in text.split(",")]
            for name in names:
                assert name in type(stack).__name__.lower(), (text, stack)
                stack = getattr(stack, "upstream", None)
            try:
                array = dm.zeros(3)
            except dm.OutOfMemory:
                return
            assert array.tolist() == [0, 0, 0]

    told = attempt(run)
    assert not told or told.startswith(("ConfigError", "PluginError", "UnsupportedError", "BackendUnav")), told
    if told.startswith("ConfigError"):
        assert repr(text)[:200] in told


@given(
    SIZES
    | WORDS
    | st.builds("{}{}".format, st.integers(0, 2**70), st.sampled_from(["", "kb", "KiB", " GiB", "TB", "b"]))
)
def test_any_size_is_what_it_says(text: str) -> None:
    units = {"": 1, "b": 1, "kb": 10**3, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tb": 10**12, "tib": 2**40}
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(digits) :].strip().lower()
    try:
        nbytes = parse_size(text)
    except dm.ConfigError as error:
        assert "is not a size" in str(error)  # noqa: PT017
        assert not (digits.isascii() and digits.isdecimal() and unit in units and int(digits) * units[unit] < 2**64)
    else:
        assert nbytes == int(float(digits) * units[unit] if "." in digits else int(digits) * units[unit])
        assert bytes_of(text, 1000) == nbytes


#: What each setting allows, of backends too, by its variable.
ALLOWED_FOR = {each.name: each.allowed for each in config.describe() if each.source != "unknown"}
VALUES = (
    WORDS
    | SIZES
    | st.integers(-5, 2**70).map(str)
    | st.floats().map(str)
    | st.sampled_from(
        ["true", "OFF", "legacy", "per-thread", "LOG", "disallow", "auto", "ctypes", "*", "a,b", "debug", "9" * 5000]
    )
)


@given(
    st.dictionaries(
        st.sampled_from(sorted(ALLOWED_FOR)), VALUES.filter(lambda text: "\0" not in text), min_size=1, max_size=3
    )
)
def test_any_environment_is_read_or_told(environment: dict[str, str]) -> None:
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(config.PREFIX)}
    logger = logging.getLogger("devmem")
    level = logger.level
    config.forget()
    try:
        os.environ.update(environment)
        found = {each.name: each.value for each in config.describe()}
    except dm.ConfigError as error:
        [name] = [each for each in environment if f"{each}=" in str(error)]
        assert repr(environment[name]) in str(error)  # noqa: PT017
        assert is_wrong(name, environment[name])
    else:
        for name, text in environment.items():
            assert not is_wrong(name, text)
            value: Any = found[name]
            if isinstance(value, bool):
                assert value is (text.lower() in ("1", "true", "yes", "on"))
            elif isinstance(value, int):
                read = size_of if ALLOWED_FOR[name].startswith(ALLOWED) else int
                assert value == read(text)
            elif isinstance(value, StrEnum):
                assert value == text.lower()
            elif isinstance(value, str):
                assert value in (text.strip(), text.upper(), text.lower())
    finally:
        for name in environment:
            os.environ.pop(name, None)
        os.environ.update(kept)
        config.forget()
        logger.setLevel(level)


def is_wrong(name: str, text: str) -> bool:
    """Whether a text is none of what `devmem info` says is allowed."""
    allowed = ALLOWED_FOR[name]
    if allowed == "0 | 1":
        return text.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off")
    if "a number from 0 to 1" in allowed:
        return not is_number(float, text) or not 0 <= float(text) <= 1
    if allowed.startswith(ALLOWED):
        least = 1 if "1 or more" in allowed else 0
        return (nbytes := size_of(text)) is None or nbytes < least
    if "number" in allowed or "ordinal" in allowed:
        least = 1 if "1 or more" in allowed else 0 if "0 or more" in allowed else -(10**80)
        return not is_number(int, text) or int(text) < least
    if " | " in allowed:
        return text.lower() not in allowed.split(" | ")
    if "a level" in allowed:
        return text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    return False


def size_of(text: str) -> int | None:
    """The bytes that a text means, or None."""
    try:
        return parse_size(text)
    except dm.ConfigError:
        return None


def is_number(kind: type, text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


@given(
    WORDS
    | st.builds(
        "{}:{}".format, st.sampled_from(["host", "cuda", "roc", "", "x"]), WORDS | st.integers(-5, 2**70).map(str)
    )
)
def test_any_name_of_a_device_is_one_or_told(text: str) -> None:
    def run() -> None:
        found = dm.device(text)
        assert str(found) in [str(each) for each in dm.devices()]

    told = attempt(run)
    assert not told or told.startswith(("ConfigError", "BackendUnavailable")), told
