"""Pictures of the built site, for eyes: ``nox -s browser -- pictures [PAGE...]`` writes them into docs/_build/pictures.

Each page is shown as on a phone and on a desk, light and dark. What machines can judge of the site is in
tests/integration/browser/test_site.py.
"""

from __future__ import annotations

import base64
import shutil
import sys
from pathlib import Path

from selenium import webdriver

BUILT = Path(__file__).parents[1] / "docs" / "_build"
SCREENS = {"phone": (390, 844), "desk": (1440, 900)}
MOST_ROWS = 12_000
#: One of each kind: the landing page, pictures, a tutorial, wide tables, signatures, long messages, results of a search.
PAGES = ["index", "gallery/index", "tutorial/first-steps", "tutorial/from-pytorch", "explanation/compared"]
PAGES += ["how-to/troubleshooting", "reference/api", "reference/features", "reference/cli", "search.html?q=prefetch"]


def main() -> None:
    """Take them."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for name in ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "allow-file-access-from-files"):
        options.add_argument(f"--{name}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    (BUILT / "pictures").mkdir(exist_ok=True)
    for page in sys.argv[1:] or PAGES:
        file, _, query = (page if ".html" in page else f"{page}.html").partition("?")
        for screen, (width, height) in SCREENS.items():
            for scheme in ("light", "dark"):
                metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
                driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
                features = [{"name": "prefers-color-scheme", "value": scheme}]
                driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
                driver.get(f"{(BUILT / 'html' / file).as_uri()}?{query}")
                rows = driver.execute_script("return document.documentElement.scrollHeight")
                clip = {"x": 0, "y": 0, "width": width, "height": min(rows, MOST_ROWS), "scale": 1}
                taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
                picture = f"{file.removesuffix('.html').replace('/', '-')}-{screen}-{scheme}.png"
                (BUILT / "pictures" / picture).write_bytes(base64.b64decode(taken["data"]))
    driver.quit()


if __name__ == "__main__":
    main()
