"""The built site in a real browser: it finds what is looked for, is light or dark as asked, and fits on a phone."""

from __future__ import annotations

from typing import Any

import pytest
from site_pages import SITE, needs_site, pages

pytestmark = needs_site

PHONE, DESK = (390, 844), (1280, 1000)


def is_light(browser: Any) -> bool:
    """Whether the page's background is nearer to white than to black."""
    colour = browser.script("return getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    assert not 200 <= brightness <= 600, colour
    return brightness > 600


@pytest.mark.timeout(300)  # a page takes half a second where other processes want the processors too
@pytest.mark.parametrize("screen", [PHONE, DESK], ids=["phone", "desk"])
def test_every_page_fits_and_shows_its_pictures(browser: Any, screen: tuple[int, int]) -> None:
    browser.screen(*screen)
    too_wide, not_shown, shown = {}, {}, 0
    for page in pages():
        browser.get(page)
        name = str(page.relative_to(SITE))
        width = browser.script("return document.documentElement.scrollWidth")
        if width > screen[0]:
            too_wide[name] = width
        widths = browser.script("return Array.from(document.images).map(image => [image.src, image.naturalWidth])")
        missing = [source for source, pixels in widths if not pixels]
        shown += len(widths) - len(missing)
        if missing:
            not_shown[name] = missing
    assert (too_wide, not_shown) == ({}, {})
    assert shown >= 12  # those of the gallery


@pytest.mark.parametrize(("screen", "names"), [(PHONE, "td code .pre"), (DESK, "code .pre")], ids=["phone", "desk"])
def test_an_option_is_not_broken_at_its_hyphens(browser: Any, screen: tuple[int, int], names: str) -> None:
    browser.screen(*screen)
    browser.get(SITE / "reference" / "cli.html")
    lines = (
        f"return Array.from(document.querySelectorAll('{names}')).map(x => [x.textContent, x.getClientRects().length])"
    )
    options = [(name, count) for name, count in browser.script(lines) if name.startswith("--")]
    assert len(options) >= 10
    assert [name for name, count in options if count > 1] == []


def test_the_states_of_features_are_in_sight(browser: Any) -> None:
    """Without scrolling the table aside."""
    browser.screen(*DESK)
    browser.get(SITE / "reference" / "features.html")
    edges = "Array.from(document.querySelectorAll('th')).map(x => [x.textContent, x.getBoundingClientRect().right])"
    right = browser.script("return document.querySelector('table').parentElement.getBoundingClientRect().right")
    states = [edge for name, edge in browser.script(f"return {edges}") if name.endswith("emulated")]
    assert states and max(states) <= right


def test_a_phone_shows_causes_of_errors_in_more_than_a_word_a_line(browser: Any) -> None:
    browser.screen(*PHONE)
    browser.get(SITE / "how-to" / "troubleshooting.html")
    widths = browser.script("return Array.from(document.querySelectorAll('td')).map(cell => cell.clientWidth)")
    assert min(widths) >= 100


@pytest.mark.parametrize(("verb", "place"), [("prefetch", "devmem.prefetch"), ("to_device", "devmem.to_device")])
def test_the_search_finds_a_verb(browser: Any, verb: str, place: str) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.screen(*DESK)
    browser.get(SITE / "index.html")
    browser.find(".sidebar-search").send_keys(verb, Keys.ENTER)
    links = (
        "return Array.from(document.querySelectorAll('#search-results li a')).map(link => link.getAttribute('href'))"
    )
    browser.wait(lambda: any(f"#{place}" in href for href in browser.script(links)))


def test_the_page_is_dark_where_that_is_preferred_or_chosen(browser: Any) -> None:
    browser.screen(*DESK, scheme="dark")
    browser.get(SITE / "index.html")
    assert not is_light(browser)
    browser.screen(*DESK, scheme="light")
    assert is_light(browser)
    seen = []
    for _ in range(3):  # the button goes through: as the machine prefers, light, dark
        browser.find(".content-icon-container .theme-toggle").click()
        seen.append(is_light(browser))
    assert sorted(seen) == [False, True, True]


def test_a_phone_reaches_all_pages(browser: Any) -> None:
    browser.screen(*PHONE)
    browser.get(SITE / "index.html")
    link = browser.find(".sidebar-tree a[href='tutorial/spilling.html']")
    assert link.rect["x"] < 0 or not link.is_displayed()  # the list of pages is out of sight
    browser.find(".mobile-header .nav-overlay-icon").click()
    browser.wait(lambda: link.rect["x"] >= 0)
    link.click()
    browser.wait(lambda: browser.driver.title.startswith("Spilling"))
