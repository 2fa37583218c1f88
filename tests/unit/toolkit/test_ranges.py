"""The table of address ranges, against a search of all of them."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devmem.toolkit.ranges import RangeTable


class Range(NamedTuple):
    start: int
    end: int


def disjoint(cuts):
    """Every second stretch between sorted cuts, and those between where they touch."""
    points = sorted(set(cuts))
    return [Range(*pair) for pair in itertools.pairwise(points) if sum(pair) % 3]


tables = st.lists(st.integers(1, 40), max_size=12).map(disjoint)
addresses = st.tuples(st.integers(0, 45), st.integers(1, 12)).map(lambda pair: (pair[0], sum(pair)))


@given(tables, addresses)
def test_every_question_against_a_search(ranges, asked):
    table, (low, high) = RangeTable(reversed(ranges)), asked
    overlapping = [each for each in ranges if each.start < high and each.end > low]
    assert table.ranges == ranges
    assert table.overlapping(low, high) == overlapping
    assert table.containing(low, high) == next((r for r in ranges if r.start <= low and high <= r.end), None)
    assert table.covers(low, high) is all(any(r.start <= at < r.end for r in ranges) for at in range(low, high))
    assert table.edges(low, high) == sorted({edge for r in ranges for edge in r if low < edge < high})


@given(tables.filter(bool), st.randoms())
def test_a_change_makes_another_table(ranges, random):
    table, chosen = RangeTable(ranges), random.choice(ranges)
    less = table.without(chosen)
    assert less.ranges == [each for each in ranges if each != chosen]
    assert table.ranges == less.with_range(chosen).ranges == ranges


@pytest.mark.parametrize("asked", [(0, 1), (5, 9)])
def test_an_empty_table(asked):
    table = RangeTable[Range]()
    assert table.overlapping(*asked) == table.edges(*asked) == []
    assert table.containing(*asked) is None
    assert not table.covers(*asked)
