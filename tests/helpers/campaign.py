"""What a campaign's seed draws: which tests of a round run, in which order, and what they meet.

`scripts/rounds.py` sets both variables for the processes that it starts. Without a seed every test is as it always is.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest

SEED = os.environ.get("CAMPAIGN_SEED", "")
#: So many parameters of each test run in a round; all, if it is empty.
PARAMETERS = os.environ.get("CAMPAIGN_PARAMETERS", "")

Item = TypeVar("Item")


def sample(items: Sequence[Item], most: int) -> list[Item]:
    """So many of these, drawn anew for each seed; without a seed all of them, in their own order."""
    return list(items) if not SEED else random.Random(SEED).sample(list(items), min(most, len(items)))


def drawn(tests: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Some parameters of each test, all in an order of the seed's; without a seed the tests as they are."""
    if not PARAMETERS:
        return list(tests)
    parameters: dict[str, list[pytest.Item]] = {}
    for each in tests:
        parameters.setdefault(each.nodeid.partition("[")[0], []).append(each)
    return shuffled([each for those in parameters.values() for each in sample(those, int(PARAMETERS))])


def shuffled(items: Sequence[Item]) -> list[Item]:
    """All of them, in the order that the seed says."""
    return sample(items, len(items))
