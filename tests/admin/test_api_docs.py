"""The page of the operator API in a browser: it shows every path, from this server alone."""

from __future__ import annotations

from typing import Any

import pytest
from selenium import webdriver

from console.api.urls import LISTS
from tests.admin.test_browser import browser, pytestmark, until

__all__ = ["browser", "pytestmark"]

ASKED = "return performance.getEntriesByType('resource').map(one => one.name)"


@pytest.mark.django_db(transaction=True)
def test_page_shows_every_list_and_asks_no_other_host(
    browser: webdriver.Chrome,
    live_server: Any,
) -> None:
    browser.get(f"{live_server.url}/api/docs")
    until(browser, f"document.querySelectorAll('.opblock').length >= {2 * len(LISTS)}")
    shown = browser.execute_script("return document.body.innerText")
    assert all(view.path_label in shown.replace("\u200b", "") for view in LISTS)
    asked = browser.execute_script(ASKED)
    assert f"{live_server.url}/api/schema" in asked
    assert all(address.startswith((live_server.url, "data:")) for address in asked)
    log = browser.get_log("browser")  # type: ignore[no-untyped-call]  # selenium
    assert [entry["message"] for entry in log if entry["level"] in {"SEVERE", "WARNING"}] == []
