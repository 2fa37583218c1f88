"""A real browser for the tests of pages: Debian's Chromium, headless.

One browser serves all tests, in any order: each asks for the screen it needs, and for no messages of the pages before. Nothing
is judged while it moves: pages have no transitions, and what a click leads to is waited for. BROWSER_NEEDED in the environment,
set by the session of nox on a machine that has chromedriver, makes a failure of what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waits import patience

#: Seconds that a page gets for what a click leads to: more than any machine needs, less than a test's own limit.
PATIENCE = patience(60)
#: The style of a page on which everything is at once where it is to be.
AT_REST = "*, *::before, *::after { transition: none !important; animation: none !important; scroll-behavior: auto !important }"

PROGRAMS = "chromium", "chromedriver"
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
if importlib.util.find_spec("selenium") is None:
    MISSING.append("the package selenium")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if MISSING:
        refuse = pytest.fail if "BROWSER_NEEDED" in os.environ else pytest.skip
        refuse(f"needs a browser; not installed: {', '.join(MISSING)}")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    quiet = "headless no-sandbox disable-gpu no-first-run disable-background-networking disable-component-update"
    for name in [*quiet.split(), "disable-sync", "disable-dev-shm-usage", "window-size=1000,1600"]:
        options.add_argument(f"--{name}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield made
    finally:
        made.quit()


@pytest.fixture
def browser(driver: Any) -> Browser:
    """The browser, with an empty page and no messages."""
    driver.get("about:blank")
    driver.get_log("browser")
    return Browser(driver)


class Browser:
    """What the tests do with the browser that serves them all."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def screen(self, width: int, height: int, scheme: str = "light") -> None:
        """A screen of that size in CSS pixels, at once, on a machine that prefers a light or a dark page."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def get(self, page: Path) -> None:
        """Open a page of a file, and let nothing on it move."""
        self.driver.get(page.as_uri())
        style = "const style = document.createElement('style'); style.textContent = arguments[0]; document.head.append(style)"
        self.driver.execute_script(style, AT_REST)

    def script(self, text: str) -> Any:
        """What a script on the page returns."""
        return self.driver.execute_script(text)

    def find(self, css: str) -> Any:
        """The first element of a selector."""
        return self.driver.find_element("css selector", css)

    def wait(self, condition: Callable[[], object]) -> None:
        """Until it is true; a page that is being left behind answers with errors, which are passed over."""
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, PATIENCE, ignored_exceptions=[WebDriverException]).until(lambda _: condition())
