"""The built site. scripts/check builds it. With SITE_BUILT set, its absence is an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SITE = DOCS / "_build" / "html"
needs_site = pytest.mark.skipif(
    not SITE.is_dir() and "SITE_BUILT" not in os.environ, reason="the site is not built: scripts/check builds it"
)


def pages() -> list[Path]:
    """Its pages, but not what an earlier build left of pages that there were."""
    found = [page for page in SITE.rglob("*.html") if (DOCS / page.relative_to(SITE)).with_suffix(".md").exists()]
    assert len(found) > 60, f"{SITE} has {len(found)} pages: scripts/check builds them"
    return found
