"""The race detector's own algebra: which rows meet, what is remembered, whose line it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
