"""Take the pictures of the README from a running demo.

Start ``./run demo --fresh`` in one terminal, then in another::

    .local/venv/bin/python -m tests.docs.take_screenshots

It plays an accepted batch of the tour, looks at the pages with a headless chromium, deletes what
it made, and writes ``docs/images/*.png``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.docs.tour import ROOT

WIDTH = 1280
PICTURES = {
    "dashboard": ("/admin/", 1172),
    "commitment": ("/admin/commitments/commitment/?q=tour-beta-az-b", 1062),
}
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def main() -> None:
    """Parse arguments, then play, look and clean up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--password-file", type=Path, default=ROOT / ".local" / "demo-admin-password"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    send(options.url, "accept-az-b")
    try:
        with browser() as driver:
            sign_in(driver, options.url, options.password_file.read_text(encoding="utf-8").strip())
            for name, (path, height) in PICTURES.items():
                take(driver, options.url + path, options.output / f"{name}.png", height)
    finally:
        send(options.url, "delete-az-b")


def send(url: str, name: str) -> None:
    """Send one of the tour's change requests, and insist on its acceptance."""
    with urllib.request.urlopen(f"{url}/commitments/v1/info") as answer:  # noqa: S310 - the demo
        version = json.load(answer)["version"]
    text = (ROOT / "docs" / "tour" / f"{name}.json").read_text(encoding="utf-8")
    body = text.replace("VERSION", str(version)).encode()
    with urllib.request.urlopen(  # noqa: S310 - the demo
        f"{url}/commitments/v1/change-commitments", data=body
    ) as answer:
        decision = json.load(answer)
    if decision:
        raise SystemExit(f"{name}: {decision}")


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Start a headless chromium, and stop it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium is not installed (Debian: chromium chromium-driver)")
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def sign_in(driver: webdriver.Chrome, url: str, password: str) -> None:
    """Log in as the demo's admin."""
    driver.get(f"{url}/admin/")
    driver.find_element(By.NAME, "username").send_keys("admin")
    driver.find_element(By.NAME, "password").send_keys(password)
    driver.find_element(By.CSS_SELECTOR, "form [type=submit]").click()


def take(driver: webdriver.Chrome, address: str, path: Path, height: int) -> None:
    """Open a page, from a list its first row, and store what a window of this size shows."""
    driver.get(address)
    if "?q=" in address:
        driver.find_element(By.CSS_SELECTOR, "#result_list tbody th a").click()
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    driver.execute_script("return document.fonts.ready")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not driver.save_screenshot(str(path)):
        raise SystemExit(f"{path} could not be written")


if __name__ == "__main__":
    main()
