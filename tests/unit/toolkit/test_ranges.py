"""The table of address ranges, against a search of all of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devmem.toolkit.ranges import RangeTable


def disjoint(cuts):
    """Every second stretch between sorted cuts, and those between where they touch."""
    points = sorted(set(cuts))
    return [range(*pair) for pair in itertools.pairwise(points) if sum(pair) % 3]


def table_of(ranges):
    table = RangeTable()
    assert all(map(table.add, ranges))
    return table


tables = st.lists(st.integers(1, 40), max_size=12).map(disjoint)
addresses = st.tuples(st.integers(0, 45), st.integers(1, 12)).map(lambda pair: (pair[0], sum(pair)))


@given(tables, addresses, st.randoms())
def test_every_question_against_a_search(ranges, asked, random):
    table, (low, high) = table_of(random.sample(ranges, len(ranges))), asked
    overlapping = [each for each in ranges if each.start < high and each.stop > low]
    assert table.ranges == ranges
    assert table.overlapping(low, high) == overlapping
    assert table.containing(low, high) == next((r for r in ranges if r.start <= low and high <= r.stop), None)


@given(tables, addresses)
def test_a_range_is_taken_where_none_is(ranges, asked):
    table, added = table_of(ranges), range(*asked)
    free = not table.overlapping(*asked)
    assert table.add(added) is free
    assert table.ranges == (sorted([*ranges, added], key=lambda each: each.start) if free else ranges)


@given(tables.filter(bool), st.randoms())
def test_a_change_replaces_the_ranges(ranges, random):
    table, chosen = table_of(ranges), random.choice(ranges)
    before = table.ranges
    table.remove(chosen.start)
    assert table.ranges == [each for each in ranges if each != chosen]
    assert table.containing(chosen.start, chosen.stop) is None
    table.remove(chosen.start)
    assert table.add(chosen)
    assert before == table.ranges == ranges


@pytest.mark.parametrize("asked", [(0, 1), (5, 9)])
def test_an_empty_table(asked):
    table = RangeTable[range]()
    assert table.overlapping(*asked) == []
    assert table.containing(*asked) is None
