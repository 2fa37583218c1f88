"""What other people's libraries see of devmem's arrays, and devmem of theirs; and the page that is made of it.

``EXCHANGE_MATRIX=check`` makes a library that is missing, or of another version than the page tells of, an error: elsewhere it is
a skip, or only the bytes are compared. ``EXCHANGE_MATRIX=write`` writes what is found into the page. The same goes for
docs/reference/real-libraries.md, the page of what libraries do over the emulated drivers.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import devmem as dm


def load(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    full = f"devmem_tests_peers_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


MODE = os.environ.get("EXCHANGE_MATRIX", "")
page, libraries = load("page"), load("libraries")
page.ORDER |= {
    "libraries": [library.name for library in libraries.LIBRARIES],
    "layouts": list(libraries.LAYOUTS),
    "types": list(libraries.DTYPES),
    "streams": list(libraries.STREAMS),
}


class Book:
    """What the page says, and what was found."""

    def __init__(self, mode: str) -> None:
        self.cells, self.versions = page.read(page.PAGE.read_text(encoding="utf-8"))
        self.mode = mode

    def enter(self, cell: object, version: str, outcome: str) -> None:
        """Hold an outcome against the page; the versions that it tells of are the only ones that it speaks for."""
        if self.mode == "write":
            self.cells[cell] = outcome
            self.versions[cell.library] = version
        elif version == self.versions.get(cell.library):
            assert outcome == self.cells.get(cell), f"{cell}: found {outcome!r}, the page says {self.cells.get(cell)!r}"
        else:
            assert self.mode != "check", (
                f"the page tells of {cell.library} {self.versions.get(cell.library)}, not {version}"
            )


_book = Book(MODE)


@pytest.fixture
def book() -> Book:
    """The page."""
    return _book


@pytest.fixture
def open_memory(devmem_backend: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host backend as one whose memory is the host's, so that there is something to share with libraries of the host."""
    if os.environ.get("DEVMEM_HOST_STRICT") == "0":
        yield
        return
    monkeypatch.setenv("DEVMEM_HOST_STRICT", "0")
    dm.close()
    yield
    monkeypatch.undo()
    dm.close()


@pytest.fixture
def installed() -> Callable[..., str]:
    """The version of a library; a skip where there is none. With JUDGES the judges must be there, without it the others."""

    def installed(name: str, version: str | None, judge: bool = False) -> str:
        if version is None:
            assert not MODE or judge != ("JUDGES" in os.environ), f"{name} is not installed"
            pytest.skip(f"{name} is not installed (nox -s {'judges' if judge else 'exchange'} installs it)")
        return version

    return installed


def pytest_sessionfinish() -> None:
    if MODE == "write":
        page.PAGE.write_text(page.render(_book.cells, _book.versions), encoding="utf-8")
