"""The page of `devmem view` in a real browser: opened, clicked, filtered and read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from devmem.cli import view


def record(op: str, address: int, nbytes: int, t: float, function: str = "") -> str:
    frames = {"frames": [["train.py", 12, function], ["main.py", 3, "<module>"]]} if function else {}
    return json.dumps({"op": op, "address": address, "nbytes": nbytes, "stream": 1, "t": t, **frames})


#: One block for all of the time, two short ones, and one that is never freed.
LOG = "\n".join(
    [
        record("allocate", 0x1000, 4096, 0.0, "weights"),
        record("allocate", 0x2000, 1024, 0.25, "batch"),
        record("deallocate", 0x2000, 1024, 0.5),
        record("allocate", 0x2000, 2048, 0.6, "batch"),
        record("deallocate", 0x2000, 2048, 0.75),
        record("allocate", 0x3000, 512, 0.9, "<b>loss</b>"),
        record("deallocate", 0x1000, 4096, 1.0),
        "",
    ]
)


def span(name: str, began: float, ended: float, nbytes: int) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": "copy",
        "name": name,
        "ts": began,
        "dur": ended - began,
        "tid": 7,
        "args": {"bytes": nbytes},
    }


TRACE = json.dumps([span("h2d direct", 1000, 2000, 1 << 20), span("d2h direct", 5000, 6000, 1 << 10)])
SNAPSHOT = json.dumps(
    {
        "format": "devmem memory snapshot",
        "taken_at": 0,
        "devices": [],
        "blocks": [
            {"device": "host:0", "address": 4096, "nbytes": 300, "kind": "device", "site": ["a.py", 1, "f"]},
            {"device": "host:0", "address": 8192, "nbytes": 700, "kind": "pinned", "site": None},
        ],
    }
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a log, a trace and a snapshot."""
    folder = tmp_path_factory.mktemp("page")
    documents = []
    for name, text in (("run.log", LOG), ("trace.json", TRACE), ("snapshot.json", SNAPSHOT)):
        (folder / name).write_text(text)
        documents.append(view.document(folder / name))
    (folder / "page.html").write_text(view.page(documents))
    return folder / "page.html"


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The browser, with the page as it is at first."""
    browser.screen(1000, 1600)
    browser.get(page)
    assert browser.script("return document.body.dataset.ready") == "1"
    return browser


def text(browser: Any, css: str) -> str:
    found: str = browser.find(css).text
    return found


def rows(browser: Any, table: str) -> list[str]:
    return [row.text for row in browser.driver.find_elements("css selector", f"#{table} tbody tr")]


def write(browser: Any, field: str, words: str) -> None:
    """Type into a field, after what it has is deleted."""
    from selenium.webdriver.common.keys import Keys

    found = browser.find(f"#{field}")
    found.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE, words)


def test_it_begins_at_the_peak(opened: Any) -> None:
    assert text(opened, "#facts-0") == "4 blocks in 1.000 s; at most 6.0 KiB live, at 600.000 ms."
    assert text(opened, "#moment-0").startswith("At 600.000 ms: 6.0 KiB live in 2 blocks")
    assert rows(opened, "lines-0") == [
        "4.0 KiB 1 train.py:12 (weights) ← main.py:3 (<module>)",
        "2.0 KiB 1 train.py:12 (batch) ← main.py:3 (<module>)",
    ]


def test_a_click_on_the_chart_shows_the_blocks_of_that_moment(opened: Any) -> None:
    from selenium.webdriver import ActionChains

    chart = opened.find("#chart-0")
    half = chart.size["width"] / 2
    # Offsets count from the middle; the chart has a border of one pixel.
    ActionChains(opened.driver).move_to_element_with_offset(chart, int(0.35 * 2 * half - half), 0).click().perform()
    moment = text(opened, "#moment-0")
    found = re.match(r"At ([0-9.]+) ms: 5.0 KiB live in 2 blocks", moment)
    assert found is not None, moment
    assert 340 < float(found[1]) < 360
    ActionChains(opened.driver).move_to_element_with_offset(chart, int(0.97 * 2 * half - half), 0).click().perform()
    assert [row.split()[:2] for row in rows(opened, "blocks-0")] == [["4.0", "KiB"], ["512", "B"]]
    assert rows(opened, "blocks-0")[1].endswith("in use at the end train.py:12 (<b>loss</b>) ← main.py:3 (<module>)")


def test_a_filter_keeps_the_lines_that_match(opened: Any) -> None:
    write(opened, "filter-0", "BATCH")
    assert len(rows(opened, "lines-0")) == 1
    assert text(opened, "#moment-0").endswith("1 match the filter.")
    write(opened, "filter-0", "nothing like it")
    assert rows(opened, "blocks-0") == []
    write(opened, "filter-0", "")
    assert len(rows(opened, "lines-0")) == 2


def test_copies_are_told_by_path_with_the_times_between_them(opened: Any) -> None:
    assert text(opened, "#facts-1") == "2 copies in 5.000 ms; no copy ran for 3.000 ms, 60 % of it."
    assert rows(opened, "paths-1") == [
        "h2d direct 1 1.0 MiB 1.000 ms 1000.0 MiB/s",
        "d2h direct 1 1.0 KiB 1.000 ms 1000.0 KiB/s",
    ]
    assert rows(opened, "gaps-1") == ["1.000 ms 3.000 ms"]


def test_a_snapshot_is_filtered_by_line(opened: Any) -> None:
    assert [row.split()[0] for row in rows(opened, "blocks-2")] == ["700", "300"]
    write(opened, "filter-2", "a.py")
    assert rows(opened, "blocks-2") == ["300 B 0x1000 host:0 device a.py:1 (f)"]


def test_the_page_is_whole(opened: Any) -> None:
    """It loads nothing, and its script complains of nothing; on a narrow screen nothing sticks out."""
    assert opened.script("return performance.getEntriesByType('resource').length") == 0
    assert opened.driver.get_log("browser") == []
    opened.screen(500, 900)
    assert opened.script("return document.documentElement.scrollWidth <= window.innerWidth")
