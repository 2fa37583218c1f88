"""What docs/reference/capabilities.toml says of a backend is what its devices say, and what an error says of what is lacking."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import devmem as dm
from devmem.spi.types import Capability

CELLS = Path(__file__).parents[4] / "docs/reference/capabilities.toml"


@pytest.mark.skipif(not CELLS.is_file(), reason="these are not the sources: there is no docs/reference")
def test_a_device_has_what_the_page_says(device):
    texts = tomllib.loads(CELLS.read_text(encoding="utf-8")).get(device.info.backend)
    if texts is None:
        pytest.skip(f"the page does not have the backend {device.info.backend!r}")
    absent = {name for name, text in texts.items() if text.startswith("no: ")}
    assert not absent & device.info.capabilities
    assert set(Capability) - texts.keys() <= device.info.capabilities


@pytest.mark.parametrize("capability", Capability)
def test_an_error_says_what_is_lacking_and_what_that_is(device, capability, monkeypatch):
    handle = device.opened().handle
    monkeypatch.setattr(handle, "capabilities", handle.capabilities - {capability})
    with pytest.raises(dm.UnsupportedError) as caught:
        handle.require(capability, "do this", "do that")
    assert f"it lacks '{capability}': {capability.meaning}" in str(caught.value)
