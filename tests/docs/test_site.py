"""Every link within the built site leads to a page and a place that there is. scripts/check builds the site."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from site_pages import SITE, needs_site, pages


class Page(HTMLParser):
    """What a page links to, and the places in it that may be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.places.add(value)


@needs_site
def test_links_within_the_site_lead_somewhere():
    found = {path: Page(path) for path in pages()}
    broken = []
    for path, page in found.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not target.exists() or (place and target in found and place not in found[target].places):
                broken.append(f"{path.relative_to(SITE)}: {link}")
    assert broken == []
