"""The race detector's own algebra: which rows meet, what is remembered, whose line it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devmem.spi.errors import DevmemWarning
from devmem.toolkit import races
from devmem.toolkit.host_accesses import HostAccesses
from devmem.toolkit.race_checked_driver import caller
from devmem.toolkit.races import PIECE, REMEMBERED, Access, RaceDetector, join, meet


def access(start=0, nbytes=10, *, writes=True, number=1, turn=1, rows=None):
    return Access(start, start + nbytes, writes, "a fill", f"stream {number}", number, turn, "here:1", rows)


@st.composite
def rows(draw):
    width, height, depth = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    pitch = width + draw(st.integers(0, 5))
    slices = height * pitch + draw(st.integers(0, 7))
    start = draw(st.integers(0, 40))
    nbytes = (depth - 1) * slices + (height - 1) * pitch + width
    return access(start, nbytes, rows=(width, ((depth, slices), (height, pitch))))


def bytes_of(each):
    return {byte for start, end in each.runs() for byte in range(start, end)}


@given(one=rows(), other=rows())
def test_rows_meet_where_they_have_a_byte_in_common(one, other):
    assert meet(one, other) == bool(bytes_of(one) & bytes_of(other))


@given(one=rows(), start=st.integers(0, 80), nbytes=st.integers(1, 40))
def test_rows_meet_a_run_where_they_have_a_byte_in_common(one, start, nbytes):
    run = access(start, nbytes)
    assert meet(one, run) == meet(run, one) == bool(bytes_of(one) & bytes_of(run))


def test_of_too_many_rows_nothing_is_said():
    many = access(0, 1 << 20, rows=(1, ((1, 0), (1 << 19, 2))))
    assert not meet(many, many)


def told(*notes):
    """What is taken from notes, of which each is written by itself."""
    accesses, found = HostAccesses(), []
    for note in notes:
        os.write(accesses._file, note)
        found.append(list(accesses.take()))
    return found


FRAMES = b'  File "/x/numpy/f.py", line 1 in f\n  File "%s", line 2 in g\n  File "/x/y z.py", line 3 in h\n'


def test_a_note_names_the_innermost_line_of_the_program():
    ours = str(Path(races.__file__)).encode()
    assert told(b"access ff 1 7\nStack (most recent call first):\n" + FRAMES % ours + b"end\n") == [
        [(255, True, "/x/y z.py:3")]
    ]
    assert told(b"access 10 0 7\nend\n") == [[(16, False, "thread 7, of which no line of Python is known")]]


def test_a_note_is_taken_once_and_when_it_is_whole():
    assert told(b"access 1 1 7\nend\naccess 2 0 7\n", b"end\n", b"") == [
        [(1, True, "thread 7, of which no line of Python is known")],
        [(2, False, "thread 7, of which no line of Python is known")],
        [],
    ]


def test_a_note_is_of_a_race_only_with_what_the_host_did_not_wait_for():
    detector = RaceDetector()
    detector.host_accesses = HostAccesses()
    detector.remember(access(0, 100, turn=1), {1: 1})
    detector.complete({1: 1})
    os.write(detector.host_accesses._file, b"access 5 1 7\nend\n")
    detector.complete({})
    assert detector.reports == []
    detector.remember(access(0, 100, writes=False, turn=2), {1: 2})
    os.write(detector.host_accesses._file, b"access 5 1 7\nend\naccess 100 1 7\nend\n")
    with pytest.warns(DevmemWarning, match="a write on the host .* did not wait for a fill on the stream 1"):
        detector.complete({1: 2})
    [race] = detector.reports
    assert (race.first.turn, race.second.start) == (2, 5)


def known(detector):
    return [each for piece in detector._pieces.values() for each in piece]


def test_what_a_later_write_covers_in_order_is_forgotten():
    detector = RaceDetector()
    detector.remember(access(0, 10, turn=1), {1: 1})
    detector.remember(access(5, 10, turn=2), {1: 2})
    assert len(known(detector)) == 2, "not covered"
    detector.remember(access(0, 20, turn=3), {1: 3})
    assert [each.turn for each in known(detector)] == [3]
    detector.remember(access(0, 20, number=2), {2: 1})
    assert len(known(detector)) == 2, "not in order"


def test_a_bounded_number_is_remembered_in_every_piece_that_is_touched():
    detector = RaceDetector()
    for turn in range(REMEMBERED + 100):
        detector.remember(access(16 * turn, 8, turn=turn), {1: turn})
    assert len(known(detector)) == REMEMBERED
    wide = RaceDetector()
    wide.remember(access(0, 3 << PIECE), {1: 1})
    assert len(known(wide)) == 3
    wide.forget(0, 1 << PIECE)
    assert len(known(wide)) == 2


def test_what_the_host_found_complete_is_no_race():
    detector = RaceDetector()
    detector.remember(access(), {1: 1})
    detector.complete({1: 1})
    detector.check(access(number=2), {2: 1})
    assert (detector.reports, known(detector)) == ([], [])


def test_clocks_take_over_the_greater_count():
    clock = {1: 5, 2: 1}
    join(clock, {1: 3, 2: 4, 3: 1})
    assert clock == {1: 5, 2: 4, 3: 1}


def test_the_line_is_that_outside_of_devmem():
    assert caller().startswith(f"{__file__}:")
