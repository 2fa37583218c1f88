"""ARCHITECTURE.md says where things are: each file that it names exists."""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

import pytest

import devmem

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
#: Where a path may begin: most are relative to the package; those of a room's paragraph to the room.
PLACES = [ROOT, ROOT / "devmem", *(path for path in sorted((ROOT / "devmem" / "_core").rglob("*")) if path.is_dir())]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w./-]+(?:\.py|\.c|\.md|/))`", TEXT))))
def test_a_named_file_exists(path):
    assert [place for place in PLACES if (place / path).exists()] != []


@pytest.mark.parametrize("path", sorted(set(re.findall(r"^ *([\w/]+\.py) ", TEXT, flags=re.MULTILINE))))
def test_a_file_of_the_journey_exists(path):
    assert any((place / path).exists() for place in (ROOT / "devmem", ROOT / "devmem" / "_core"))


def test_an_upload_enters_the_files_of_the_journey_in_their_order():
    """Over the host backend, which has no way around Python."""
    journey = re.findall(r"^ *([\w/]+\.py) ", TEXT, flags=re.MULTILINE)
    entered: list[str] = []

    def enter(frame, event, argument):
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT / "devmem"):
            entered.append(str(file.relative_to(ROOT / "devmem")).removeprefix("_core/"))

    with devmem.use_backend("host"):
        devmem.close()  # of the first copies of a device each is timed, and counted by a call
        stream, source = devmem.stream(), devmem.pinned_array(16)
        devmem.to_device(source, stream)
        before = sys.getprofile()
        gc.disable()  # a finalizer would enter files of its own
        sys.setprofile(enter)
        try:
            array = devmem.to_device(source, stream)
        finally:
            sys.setprofile(before)
            gc.enable()
        stream.synchronize()
        array.free()
    left = iter(entered)
    assert [file for file in journey if file not in left] == [], "not entered, or not in this order"
    core = {file for file in entered if (ROOT / "devmem" / "_core" / file).exists()}
    asked = {file for file in core if file.startswith("base/")} | {
        "ordering/stream.py",
        "ordering/leases.py",
        "memory/heap.py",
    }
    assert core - set(journey) <= asked
