"""docs/reference/kernel-constructs.md: every row runs, and stores or refuses what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import devmem as dm
from devmem.spi.errors import SimulatorError

pytest.importorskip("greenlet", reason="the simulator needs greenlet")
pytest.importorskip("numba", reason="numba is not installed")
TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "kernel-constructs.md").read_text(encoding="utf-8")
SETUP = TEXT.partition("```python\n")[2].partition("```")[0]
ROWS = re.findall(r"^\| (.+?) \| `([^`]+)` \| (.+?) \|$", TEXT, re.MULTILINE)
ARGUMENTS = "a", "f", "m", "z", "u", "k", "h", "b", "r", "pair", "states"


def test_every_row_is_read():
    assert len(ROWS) == TEXT.count("\n| ") - 1 > 40


@pytest.mark.parametrize(("body", "stores"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_row(body, stores):
    made: dict = {"plain": lambda x: x, "table": dm.to_device(np.zeros(1))}
    exec(SETUP, made)
    *before, last = body.split("; ")
    lines = ["i = cuda.grid(1)", *before, f"out[i] = {last}"]
    exec(f"def kernel({', '.join(ARGUMENTS)}, out):\n    " + "\n    ".join(lines), made)
    given = [made[each] for each in ARGUMENTS]
    held = [dm.to_device(each) if isinstance(each, np.ndarray) else each for each in given]
    held[ARGUMENTS.index("pair")] = made["Pair"](dm.to_device(made["pair"].left), made["pair"].right)
    out = dm.zeros(4)
    launch = dm.kernel(made["kernel"])[1, 4, 0, 16]
    if stores.startswith("refused: "):
        with pytest.raises(SimulatorError, match=re.escape(stores.removeprefix("refused: "))):
            launch(*held, out)
    else:
        launch(*held, out)
        assert out.copy_to_host()[1] == pytest.approx(float(stores), rel=1e-15)
