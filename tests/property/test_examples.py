"""The examples are the same each time, whatever ran before."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def examples() -> list[Any]:
    seen = []

    @settings(settings.get_profile("property"), max_examples=200)
    @given(st.integers(), st.text(max_size=20), st.floats())
    def note(number: int, text: str, fraction: float) -> None:
        seen.append(repr((number, text, fraction)))

    note()
    return seen


def test_examples_are_the_same_whatever_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = examples()
    home = tmp_path / "of_the_user"
    home.mkdir()
    Path(home, "full_of_constants.py").write_text(f"found = {[*range(7000, 7400)]}\nsaid = 'some text', 12.75\n")
    monkeypatch.syspath_prepend(home)
    monkeypatch.chdir(home)
    importlib.import_module("full_of_constants")
    assert examples() == before
