"""The programs of the gallery run on the host backend, and print and draw what the page shows; each is one screen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "gallery"
PROGRAMS = sorted((ROOT / "examples" / "gallery").glob("*.py"))
#: Runs a program, and writes its variable ``picture`` to a file.
RUNNER = """
import json, pathlib, runpy, sys
found = runpy.run_path(sys.argv[1], run_name="__main__")
pathlib.Path(sys.argv[2]).write_text(json.dumps(found["picture"], default=float), encoding="utf-8")
"""


def shown(png: bytes) -> Any:
    """What scripts/gallery says in a picture's file that it shows."""
    assert png.startswith(b"\x89PNG")
    at = 8
    while at < len(png):
        begin, end = at + 8, at + 8 + int.from_bytes(png[at : at + 4], "big")
        keyword, _, text = png[begin:end].partition(b"\0\0")  # the second zero: compressed by zlib
        if (png[at + 4 : at + 8], keyword) == (b"zTXt", b"picture"):
            return json.loads(zlib.decompress(text))
        at = end + 4
    pytest.fail("the picture does not say what it shows: scripts/gallery writes it")


def assert_same_picture(png: bytes, drawn: dict[str, Any]) -> None:
    """Titles and names are the same, and numbers to the digits that are kept."""
    said = shown(png)
    for part in ("images", "lines", "bars"):
        series, kept = drawn.pop(part, {}), said.pop(part, {})
        assert series.keys() == kept.keys()
        for title, values in series.items():
            np.testing.assert_allclose(kept[title], values, rtol=1e-3, atol=1e-6, err_msg=title)
    assert said == drawn


def test_there_are_twelve():
    assert len(PROGRAMS) == 12


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_prints_and_draws_what_the_page_shows(program, tmp_path):
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER, str(program), "picture.json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "DEVMEM_BACKEND": "host", "DEVMEM_HOST_DEVICES": "2", "DEVMEM_HOST_STRICT": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == (PAGES / f"{program.stem}.txt").read_text(encoding="utf-8"), "scripts/gallery writes it"
    drawn = json.loads((tmp_path / "picture.json").read_text(encoding="utf-8"))
    assert_same_picture((PAGES / f"{program.stem}.png").read_bytes(), drawn)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_is_one_screen_with_its_picture_on_the_page(program):
    lines = [line for line in program.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= 30
    assert f"{program.stem}.png" in (PAGES / "index.md").read_text(encoding="utf-8")
