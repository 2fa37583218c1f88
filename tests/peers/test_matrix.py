"""Every cell of docs/reference/exchange-matrix.md: the bytes are compared, and the outcome with what the page says.

On the host backend with open memory, for libraries on the CPU; with ``devmem emulate`` over the emulated drivers, for those
that speak to a driver. The page is the list of what is expected, refusals among it; ``EXCHANGE_MATRIX=write`` makes it anew.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem.testing import hold

from .conftest import load

libraries, page = load("libraries"), load("page")
WAYS = ["takes", "gives"]
CASES = [
    *(("layouts", case) for case in libraries.LAYOUTS),
    *(("types", case) for case in libraries.DTYPES),
    *(("streams", case) for case in libraries.STREAMS),
]
pytestmark = pytest.mark.usefixtures("open_memory")


@pytest.fixture
def place() -> str:
    """The part of the page that tells of the device under test."""
    device = dm.current_device()
    found = libraries.PLACES.get(device.info.exchange.device_type)
    if found is None:
        pytest.skip(f"the page does not tell of devices like {device}")
    return found


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[case for _, case in CASES])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "library",
    libraries.LIBRARIES,
    ids=lambda library: library.package.partition(".")[0] + f"-{library.places[0]}" * library.judge,
)
def test_an_exchange_does_what_the_page_says(library, way, kind, case, place, book, installed):
    if place not in library.places:
        pytest.skip(f"{library.name} is for devices: run it over an emulated driver")
    if way == "gives" and place in library.gives_nothing:
        pytest.skip(f"{library.name} gives nothing there without a GPU")
    version = installed(library.name, library.version(), library.judge)
    peer = library(place)
    cell = page.Cell(place, kind, library.name, way, case)
    if kind == "streams":
        # A call that waits has to be given up; one that must not may take its time on a busy machine.
        patience = {"waits": 0.5}.get(book.cells.get(cell), 3.0 if book.mode == "write" else 20.0)
        outcome = (taken_early if way == "takes" else given_early)(peer, patience)
    elif way == "takes" and case in library.deadly and place == library.places[0]:
        outcome = died(library)
    else:
        outcome = (taken if way == "takes" else given)(peer, kind, case, place)
    book.enter(cell, version, outcome)


def taken(peer, kind, case, place) -> str:
    """What becomes of an array of ours in a library."""
    try:
        host, layout, array = ours(kind, case, place)
    except libraries.Absent:
        return "–"
    expected = layout(host)
    try:
        object_ = peer.take(array)
    except Exception as error:
        return refusal(error)
    seen = peer.see(object_)
    assert (seen.shape, seen.data) == (expected.shape, expected.tobytes())
    if not array.size:
        return "empty"
    if seen.address != array.ptr:
        return "copied"
    if not array.flags["WRITEABLE"]:
        return "shared, writable" if seen.writable else "shared"
    other = expected[..., ::-1].copy() if expected.shape else expected * 0
    array.copy_to_device(other)
    assert peer.see(object_).data == other.tobytes(), "it is told the address, and does not look there"
    return "shared"


def given(peer, kind, case, place) -> str:
    """What becomes of a library's array with us."""
    host = libraries.table(case) if kind == "layouts" else libraries.elements(case)
    layout = libraries.LAYOUTS[case if kind == "layouts" else "C"]
    try:
        object_ = peer.give_read_only(host) if case == "read-only" else peer.give(host, layout)
    except libraries.Absent:
        return "–"
    except Exception as error:
        return refusal(error)
    try:
        array = peer.adopt(object_)
    except Exception as error:
        return refusal(error)
    seen = peer.see(object_)
    expected = layout(host)
    assert (array.shape, array.copy_to_host().tobytes()) == (expected.shape, expected.tobytes())
    assert (seen.shape, seen.data) == (expected.shape, expected.tobytes())
    if not array.size:
        return "empty"
    if seen.address != array.ptr:
        return "copied"
    if not array.flags["WRITEABLE"] or case == "read-only":
        return "shared, writable" if array.flags["WRITEABLE"] else "shared"
    return "shared"


def taken_early(peer, patience) -> str:
    """Whether a library waits for the stream that is still writing an array of ours."""
    host, filling = np.arange(1 << 14, dtype="f8"), dm.stream(non_blocking=True)
    array, locked = dm.zeros(host.shape, host.dtype), dm.pinned_array(host.shape, host.dtype)
    locked[:] = host
    dm.synchronize()
    with hold(filling, patience=patience, tolerant=True) as latch:
        array.copy_to_device(locked, stream=filling)
        try:
            copy = peer.duplicate(peer.take_pending(array))
        except libraries.Absent:
            return "–"
        except Exception as error:
            return refusal(error)
        waited = latch.expired
        latch.release()
    seen = peer.see(copy).data
    if seen == bytes(host.nbytes):
        return "not ordered"
    assert seen == host.tobytes()
    return "waits" if waited else "ordered"


def given_early(peer, patience) -> str:
    """Whether we wait for the stream that is still writing a library's array."""
    host, ours = np.arange(1 << 14, dtype="f8"), dm.stream(non_blocking=True)
    try:
        stream = peer.stream()
    except libraries.Absent:
        return "–"
    with hold(dm.external_stream(stream), patience=patience, tolerant=True) as latch:
        copy = peer.give_pending(host, stream).copy(stream=ours)
        waited = latch.expired
        latch.release()
    if (copy.copy_to_host(stream=0) != host).any():
        return "not ordered"
    return "waits" if waited else "ordered"


def ours(kind, case, place):
    """An array of ours for a case: the elements, how they are laid out, and the array itself."""
    host = libraries.table(case) if kind == "layouts" else libraries.elements(case)
    layout = libraries.LAYOUTS[case if kind == "layouts" else "C"]
    if case == "read-only":
        return host, layout, libraries.read_only(host, place)
    return host, layout, layout(dm.to_device(host))


def refusal(error: Exception) -> str:
    """How the page calls a refusal; an unknown one is a failure."""
    said = f"{type(error).__name__}: {error}"
    for reason in page.REASONS:
        if re.search(reason.pattern, said):
            return f"refused: {reason.key}"
    raise AssertionError(f"refused, and no reason in page.py is that: {said}") from error


def died(library) -> str:
    """What a library does that may end the process, in a process of its own."""
    script = f"""
import numpy as np, {library.package} as library, devmem as dm
made = library.from_dlpack(dm.to_device(np.arange(4.0))[::-1])
assert made.tolist() == [3.0, 2.0, 1.0, 0.0]
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=patience(140), check=False
    )
    assert done.returncode in (0, -signal.SIGABRT), done.stderr
    return "terminates the process" if done.returncode else "shared"


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_is_what_its_cells_make(book):
    if book.mode == "write":
        pytest.skip("it is being written")
    assert page.render(book.cells, book.versions) == page.PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_cell_and_no_other(book):
    if book.mode == "write":
        pytest.skip("it is being written")
    asked = {
        page.Cell(place, kind, library.name, way, case)
        for library in libraries.LIBRARIES
        for place in library.places
        for way in WAYS
        for kind, case in CASES
        if way == "takes" or place not in library.gives_nothing
    }
    assert set(book.cells) == asked


def test_a_wrong_cell_is_found(book):
    cell = next(cell for cell in book.cells if cell.library == "NumPy" and book.cells[cell] == "shared")
    with pytest.raises(AssertionError, match="the page says 'shared'"):
        type(book)("check").enter(cell, book.versions["NumPy"], "copied")
    with pytest.raises(AssertionError, match=r"not 0\.1"):
        type(book)("check").enter(cell, "0.1", "shared")
