"""The check of a backend's settings: names, types, and what the error says."""

from __future__ import annotations

import pytest

from devmem.errors import ConfigError
from devmem.toolkit.settings import checked

KINDS = {"fast": bool, "devices": int, "library": str}


def test_settings_come_back_as_they_were_given():
    given = {"fast": True, "devices": 2}
    assert checked("pocl", given, KINDS) is given
    assert checked("pocl", {}, {}) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fsat": True}, "the backend 'pocl' has no setting 'fsat'; it has: devices, fast, library"),
        ({"devices": True}, "devices=True is of the wrong type: give it as int"),
        ({"fast": True, "library": 3}, "library=3 is of the wrong type: give it as str"),
        ({"devices": "2"}, "devices='2' is of the wrong type"),
    ],
)
def test_what_is_no_setting_is_refused_by_name(given, said):
    with pytest.raises(ConfigError, match=said):
        checked("pocl", given, KINDS)
