"""Launching what a vendor's library has loaded: the limits that the library would not tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from devmem.spi.errors import LayoutError
from devmem.toolkit.module_loader import ModuleLoader


def test_a_grid_with_too_many_threads_along_an_axis_is_refused_before_it_is_launched() -> None:
    launched: list[Any] = []
    errors = SimpleNamespace(refuse=None)
    relaxed = SimpleNamespace(run=None)
    functions: Any = SimpleNamespace(LaunchKernel=lambda *args: launched.append(args))
    functions.recorded = functions
    state: Any = SimpleNamespace(
        functions=functions,
        errors=errors,
        relaxed_capture=relaxed,
        streams={1: 1},
        events={},
        graphs={},
        ordinal=0,
    )
    loader = ModuleLoader(state, lambda made, image: made.append(5), lambda module, name: 7, most_threads=(1 << 32) - 1)
    function = loader.load(b"", "kernel")
    with pytest.raises(LayoutError, match="at most 4294967295 threads along an axis"):
        loader.launch(function, (1, 1 << 25, 1), (1, 128, 1), 0, 1, 0, ())
    assert launched == []
    loader.launch(function, (1, (1 << 25) - 1, 1), (1, 128, 1), 0, 1, 0, ())
    assert len(launched) == 1
