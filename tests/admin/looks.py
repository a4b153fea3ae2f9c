"""What a browser can tell of a page's looks: whether it fits, and what axe-core finds on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from selenium import webdriver

from tests.admin.axe import VERSION

WIDTHS = (390, 1280, 1920)
HEIGHT = 1000
CLIPPED = """
const done = arguments[0];
const look = () => {
const width = document.documentElement.clientWidth;
const found = [];
if (document.documentElement.scrollWidth > width) {
    found.push(`${document.documentElement.scrollWidth} px wide`);
}
const canScroll = (one) => {
    for (let at = one; at; at = at.parentElement) {
        if (["auto", "scroll"].includes(getComputedStyle(at).overflowX)) return true;
    }
    return false;
};
for (const one of document.body.querySelectorAll("*")) {
    const hasText = [...one.childNodes].some(
        (node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (!hasText || !one.checkVisibility()) continue;
    const box = one.getBoundingClientRect();
    if (box.width > 1 && box.right > width + 1 && !canScroll(one)) {
        found.push(`cut off: ${one.textContent.trim().slice(0, 40)}`);
    }
}
if (width <= 640) {
    for (const table of document.querySelectorAll(".hr-table")) {
        if (!table.checkVisibility() || table.closest(".hr-chart-scroll")) continue;
        const style = getComputedStyle(table.parentElement);
        const room = table.parentElement.clientWidth
            - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        if (table.offsetWidth > room + 1) {
            found.push(`a table is moved sideways: ${table.textContent.trim().slice(0, 40)}`);
        }
    }
}
return found.slice(0, 3);
};
// What follows the window's size does so before the next frame but one.
requestAnimationFrame(() => requestAnimationFrame(() => done(look())));
"""
FOUND = """
const [options, done] = arguments;
axe.run(document, {resultTypes: ["violations"], iframes: false, ...options}).then(
    (result) => done(result.violations.map((one) =>
        `${one.id}: ${one.nodes.length} times, ${one.nodes[0].target.join(" ")}: `
        + `${one.nodes[0].html.slice(0, 160)} (${one.nodes[0].failureSummary.slice(0, 300)})`)),
    (problem) => done([String(problem)]));
"""
EVERY_RULE: dict[str, object] = {}
RULES_OF_COLOUR: dict[str, object] = {
    "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
}


@contextmanager
def as_wide_as(browser: webdriver.Chrome, width: int) -> Iterator[None]:
    """Look through a window of a width, in CSS pixels."""
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@contextmanager
def in_the_dark(browser: webdriver.Chrome) -> Iterator[None]:
    """Look at the page in dark colours."""
    browser.execute_script("document.documentElement.classList.add('dark')")
    yield
    browser.execute_script("document.documentElement.classList.remove('dark')")


def clipped(browser: webdriver.Chrome) -> list[str]:
    """Return what of the page is out of reach on the right, at each width."""
    problems = []
    for width in WIDTHS:
        with as_wide_as(browser, width):
            problems += [f"at {width} px {one}" for one in browser.execute_async_script(CLIPPED)]
    return problems


def found_by_axe(browser: webdriver.Chrome, axe: str) -> list[str]:
    """Return what hinders people: every rule in light colours, those of colour in dark ones."""
    browser.execute_script(axe)
    assert browser.execute_script("return axe.version") == VERSION
    problems = [*browser.execute_async_script(FOUND, EVERY_RULE)]
    with in_the_dark(browser):
        found = browser.execute_async_script(FOUND, RULES_OF_COLOUR)
        problems += [f"in the dark {one}" for one in found]
    return problems


def foreign_requests(browser: webdriver.Chrome) -> list[str]:
    """Return what the page asked of other hosts than its own."""
    fetched: list[str] = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
        ".filter(name => !name.startsWith('data:') && !name.startsWith(location.origin + '/'))"
    )
    return [f"asked {name}" for name in fetched]
