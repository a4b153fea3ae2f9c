"""Every admin page in a real browser: nothing fails, nothing is blocked, nothing is too wide."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group
from django.db.models import Model
from django.urls import reverse
from selenium import webdriver
from selenium.common.exceptions import JavascriptException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.ui import Select
from selenium.webdriver.support.wait import WebDriverWait

from capacity.models import FlavorGroupRule, GroupCapacity
from console.links import row_url
from console.theme import SECTIONS, Tab
from failover.drill_models import CoverageAccount
from hosts.models import Host, Instance, Project
from journal.clock import database_now
from tests.admin.axe import NoAxeError, axe_source
from tests.admin.looks import clipped, foreign_requests, found_by_axe
from tests.admin.test_pages import EDITABLE
from tests.factories import make_capacity_history

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)
ANSWERS: dict[type[Model], str] = {
    GroupCapacity: "headroom_sell_group",
    Project: "headroom_project",
    Host: "headroom_host_drain",
}
FORMS = {model._meta.label_lower for model in EDITABLE}
"""Lists with a way to add a row."""
SHOWN_WHOLLY = FlavorGroupRule
SAME_FOR_ALL = ("history", "delete")
"""Pages that are the theme's, with the same few words about whatever row: one row's are enough."""
QUESTIONS = ("sell", "projects", "system", "search", "map", "drill")
STILL = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
STATES = """
return {wide: document.documentElement.scrollWidth, seen: window.innerWidth,
        alpine: typeof window.Alpine, title: document.title}
"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None or CHROMEDRIVER is None,
        reason="chromium and chromedriver are not installed (Debian: chromium chromium-driver)",
    ),
]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(CHROMEDRIVER)))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def sign_in(browser: webdriver.Chrome, address: str) -> None:
    browser.get(address + reverse("admin:index"))
    browser.find_element(By.NAME, "username").send_keys("admin")
    browser.find_element(By.NAME, "password").send_keys("password")
    browser.find_element(By.CSS_SELECTOR, "form [type=submit]").click()
    # A click may return before its form is sent; the next address would then lose to its answer.
    signed_in = "document.title.startsWith('Overview') && document.readyState === 'complete'"
    until(browser, signed_in)


def addresses() -> list[str]:
    """Return the pages of the site, of an application, and of every model and one row of it."""
    found = [reverse("admin:index"), reverse("admin:password_change")]
    found += [reverse("admin:placement_resourceprovider_candidates")]
    found += [reverse(f"headroom_{name}") for name in QUESTIONS]
    found += [reverse("headroom_search") + "?q=project"]
    found += [reverse("headroom_map") + "?show=risk&by=group", reverse("headroom_map") + "?by=rack"]
    found += [reverse("headroom_drill") + "?zone=az-a"]
    found += [row_url(row) for row in Instance.objects.all()[:1]]
    registered = sorted(admin.site._registry, key=lambda model: model._meta.label)
    found.append(reverse("admin:app_list", args=[SHOWN_WHOLLY._meta.app_label]))
    for model in registered:
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        found.append(reverse(f"{name}_changelist"))
        row = model._default_manager.first()
        assert row is not None or model is Group, f"no row of {model._meta.label} to look at"
        if row is not None:
            pages = ["change", *(SAME_FOR_ALL if model is SHOWN_WHOLLY else ())]
            found += [reverse(f"{name}_{page}", args=[row.pk]) for page in pages]
        if model in EDITABLE:
            found.append(reverse(f"{name}_add"))
        if model is CoverageAccount and row is not None:
            found.append(reverse("admin:failover_coverageaccount_troubles", args=[row.pk]))
        if model in ANSWERS and row is not None:
            found.append(reverse(ANSWERS[model], args=[row.pk]))
    return found


WORDLESS = """
return [...document.querySelectorAll("#content table, #content ul, #content ol, #content dl")]
    .filter((one) => one.checkVisibility() && !one.closest("[hidden]")
        && ![...one.querySelectorAll("tbody td, li, dd")].length)
    .map((one) => `without a word: ${one.outerHTML.slice(0, 120)}`)
"""
"""Tables and lists that have nothing in them, and do not say so."""


SEEN = """
const at = document.activeElement;
const style = getComputedStyle(at);
const around = getComputedStyle(at.closest(".hr-find") ?? at);
return at === document.body || at.matches("iframe")
    || [style, around].some((one) => one.outlineStyle !== "none" && one.outlineWidth !== "0px")
    || style.boxShadow !== "none"
"""
"""Whether one sees where the focus is."""


def problems_of(browser: webdriver.Chrome, path: str) -> list[str]:
    state: dict[str, Any] = browser.execute_script(STATES)
    problems = [
        f"{path}: {entry['message']}"
        for entry in browser.get_log("browser")  # type: ignore[no-untyped-call]  # selenium
        if entry["level"] in {"SEVERE", "WARNING"}
    ]
    if "Headroom" not in state["title"]:
        problems.append(f"{path}: unexpected title {state['title']!r}")
    if state["wide"] > state["seen"]:
        problems.append(f"{path}: {state['wide']} px wide in a window of {state['seen']} px")
    if state["alpine"] != "object":
        problems.append(f"{path}: the theme's script did not run")
    return problems


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("region", "admin_user")
def test_every_admin_page_works_in_a_browser(browser: webdriver.Chrome, live_server: Any) -> None:
    axe, why_not = axe_or_why_not()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", STILL)
    sign_in(browser, live_server.url)
    problems = problems_of(browser, "sign in")  # the log has the page before, too

    for path in addresses():
        browser.get(live_server.url + path)
        found = [*foreign_requests(browser), *clipped(browser)]
        found += found_by_axe(browser, axe) if axe else []
        problems += [f"{path}: {one}" for one in found]
        problems += problems_of(browser, path)

    assert problems == []
    if why_not:
        pytest.skip(f"every page was opened, none was looked at by axe-core: {why_not}")


def axe_or_why_not() -> tuple[str, str]:
    try:
        return axe_source(), ""
    except NoAxeError as problem:
        return "", str(problem)


def press(browser: webdriver.Chrome, selector: str) -> None:
    def shown(driver: webdriver.Chrome) -> Any:
        found = driver.find_elements(By.CSS_SELECTOR, selector)
        return next((one for one in found if one.is_displayed()), None)

    WebDriverWait(browser, 20).until(shown).click()


def until(browser: webdriver.Chrome, script: str) -> None:
    """Wait for a page that may still be on its way: what it lacks yet is no error."""
    waiting = WebDriverWait(browser, 20, ignored_exceptions=[JavascriptException])
    waiting.until(lambda driver: driver.execute_script(f"return {script}"))


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("region", "admin_user")
def test_the_theme_works_without_eval(browser: webdriver.Chrome, live_server: Any) -> None:
    sign_in(browser, live_server.url)
    policy = browser.execute_async_script(
        "fetch(location.href).then(r => arguments[0](r.headers.get('Content-Security-Policy')))"
    )
    assert "unsafe-eval" not in policy

    stored = "localStorage.getItem('sidebarDesktopOpen')"
    press(browser, "[x-on\\:click^='sidebarDesktopOpen =']")
    until(browser, f"{stored} === '0'")
    browser.get(browser.current_url)
    press(browser, "[x-on\\:click^='sidebarDesktopOpen =']")
    until(browser, f"{stored} === '1'")

    browser.find_element(By.TAG_NAME, "body").send_keys("t")
    until(browser, "document.activeElement.id === 'nav-filter'")
    browser.switch_to.active_element.send_keys("tt no such thing", Keys.ENTER)
    until(browser, "document.body.innerText.includes('“tt no such thing”')")
    press(browser, "[x-on\\:click='openUserLinks = !openUserLinks']")
    for theme, is_dark in (("dark", "true"), ("light", "false")):
        press(browser, f"[x-on\\:click=\"switchTheme('{theme}')\"]")
        until(browser, f"document.documentElement.classList.contains('dark') === {is_dark}")
    assert problems_of(browser, browser.current_url) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("region", "admin_user")
def test_command_palette_finds_pages_without_eval(
    browser: webdriver.Chrome, live_server: Any
) -> None:
    sign_in(browser, live_server.url)
    palette = "document.querySelector('[x-data=\"searchCommand()\"]').style.display"
    until(browser, f"{palette} === 'none'")

    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.CONTROL, "k")
    until(browser, "document.activeElement.id === 'search-input-command'")
    field = browser.find_element(By.ID, "search-input-command")
    field.send_keys("aggregate")
    until(browser, "document.querySelectorAll('#command-results-list li').length > 0")
    field.send_keys(Keys.ESCAPE)
    field.send_keys(Keys.ESCAPE)
    until(browser, f"{palette} === 'none'")

    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.CONTROL, "k")
    field.send_keys("aggregate")
    until(browser, "document.querySelectorAll('#command-results-list li').length > 0")
    field.send_keys(Keys.ARROW_DOWN)
    until(browser, "document.querySelector('#command-results-list .active') !== null")
    field.send_keys(Keys.ENTER)
    until(browser, "location.pathname.includes('aggregate')")
    assert problems_of(browser, browser.current_url) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("region", "admin_user")
def test_lists_and_forms_work_without_eval(browser: webdriver.Chrome, live_server: Any) -> None:
    sign_in(browser, live_server.url)
    problems = []

    browser.get(live_server.url + reverse("admin:auth_user_changelist"))
    sheet = "document.querySelector('#changelist-filter').checkVisibility()"
    until(browser, f"!{sheet}")
    press(browser, "[x-on\\:click='filterOpen = true']")
    until(browser, sheet)
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    until(browser, f"!{sheet}")
    problems += problems_of(browser, browser.current_url)

    browser.get(live_server.url + reverse("admin:failover_failoverzone_changelist"))
    press(browser, "input.action-select")
    actions = Select(browser.find_element(By.NAME, "action"))
    run = browser.find_element(By.CSS_SELECTOR, "#changelist-actions button[name=index]")
    until(browser, "!document.querySelector('#changelist-actions [name=index]').checkVisibility()")
    actions.select_by_value("confirm_brakes")
    WebDriverWait(browser, 20).until(lambda _driver: run.is_displayed())
    run.click()
    WebDriverWait(browser, 20).until(staleness_of(run))
    until(browser, "document.body.innerText.includes('brake')")
    problems += problems_of(browser, browser.current_url)

    browser.get(live_server.url + reverse("admin:auth_user_add") + "?a=1")
    until(browser, "document.getElementById('user_form').action.endsWith('/add/?a=1')")
    problems += problems_of(browser, browser.current_url)

    browser.get(live_server.url + reverse("admin:hosts_plannedhostchange_add"))
    press(browser, "a[id^=calendarlink]")
    press(browser, "[id^=calendarin] td a")
    until(browser, "document.querySelector('.vDateField').value !== ''")
    press(browser, "a[id^=clocklink]")
    press(browser, "[id^=clockbox] li a")
    until(browser, "document.querySelector('.vTimeField').value !== ''")
    problems += problems_of(browser, browser.current_url)

    browser.set_window_size(700, 900)
    sidebar = "document.getElementById('nav-sidebar').checkVisibility()"
    until(browser, f"!{sidebar}")
    press(browser, "[x-on\\:click='sidebarMobileOpen = !sidebarMobileOpen']")
    until(browser, sidebar)

    assert problems == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("region", "admin_user")
def test_pictures_over_time_are_drawn_in_both_themes_and_their_table_stays(
    browser: webdriver.Chrome, live_server: Any
) -> None:
    now = database_now()
    for hours in range(5):
        make_capacity_history(at=now - timedelta(hours=hours), total_memory_bytes=64 << 30)
    sign_in(browser, live_server.url)
    browser.get(live_server.url + reverse("admin:index"))
    until(browser, "document.querySelector('figure[data-drawn] canvas') !== null")
    table = "document.querySelector('figure[data-drawn] table').checkVisibility()"
    until(browser, f"!{table}")
    browser.find_element(By.CSS_SELECTOR, "figure[data-drawn] summary").send_keys(Keys.ENTER)
    until(browser, table)
    drawn = "document.querySelector('figure[data-drawn] canvas').toDataURL()"
    light = browser.execute_script(f"return {drawn}")
    browser.execute_script("document.documentElement.classList.toggle('dark')")
    WebDriverWait(browser, 20).until(
        lambda driver: driver.execute_script(f"return {drawn}") != light
    )
    fetched = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert [name for name in fetched if not name.startswith((live_server.url, "data:"))] == []
    assert problems_of(browser, browser.current_url) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("region", "admin_user")
def test_a_time_without_neighbours_is_drawn_as_a_dot(
    browser: webdriver.Chrome, live_server: Any
) -> None:
    now = database_now()
    for hours in (0, 5, 6):
        make_capacity_history(at=now - timedelta(hours=hours), total_memory_bytes=64 << 30)
    sign_in(browser, live_server.url)
    browser.get(live_server.url + reverse("admin:index"))
    until(browser, "document.querySelector('figure[data-drawn] canvas') !== null")
    symbols = browser.execute_script(
        "const place = document.querySelector('figure[data-drawn] .hr-chart-canvas');"
        "const { series } = echarts.getInstanceByDom(place).getOption();"
        "return series.at(-1).data.map((point) => point.symbol ?? '')"
    )
    assert symbols == ["", "", "", "circle"]


def tabs_that_differ_without_rows() -> Iterator[Tab]:
    """Return all pages of the sidebar but empty lists that look alike: one of them is enough.

    What each of them says is read without a browser (``tests/admin/test_pages.py``).
    """
    looks = set()
    for tab in (tab for _, entries in SECTIONS for entry in entries for tab in entry.tabs):
        if tab.page == "changelist" and not tab.url_name:
            model_admin = admin.site.get_model_admin(apps.get_model(tab.model))
            name = getattr(model_admin, "list_before_template", None)
            look = (name, model_admin.change_list_template, tab.model in FORMS)
            if look in looks:
                continue
            looks.add(look)
        yield tab


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("admin_user")
def test_an_empty_installation_says_on_each_page_what_is_missing(
    browser: webdriver.Chrome, live_server: Any
) -> None:
    axe, why_not = axe_or_why_not()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", STILL)
    sign_in(browser, live_server.url)
    problems = []

    for path in [reverse("admin:index"), *(tab.url for tab in tabs_that_differ_without_rows())]:
        browser.get(live_server.url + path)
        found = clipped(browser) + browser.execute_script(WORDLESS) + problems_of(browser, path)
        found += found_by_axe(browser, axe) if axe else []
        problems += [f"{path}: {one}" for one in found]

    assert problems == []
    if why_not:
        pytest.skip(f"every page was opened, none was looked at by axe-core: {why_not}")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("region", "admin_user")
def test_the_main_way_is_walked_by_keys(browser: webdriver.Chrome, live_server: Any) -> None:
    def keys(*pressed: str) -> None:
        ActionChains(browser).send_keys(*pressed).perform()

    def tab_to(selector: str) -> None:
        """Press Tab until an element has the focus, which is seen on each that has it."""
        for _ in range(100):
            keys(Keys.TAB)
            if not browser.execute_script(SEEN):
                unseen.append(browser.execute_script("return document.activeElement.outerHTML"))
            if browser.execute_script(f"return document.activeElement.matches({selector!r})"):
                return
        pytest.fail(f"Tab does not lead to {selector}")

    unseen: list[str] = []
    sign_in(browser, live_server.url)
    browser.get(live_server.url + reverse("admin:index"))
    keys(Keys.TAB)
    until(browser, "document.activeElement.matches('.hr-skip')")
    keys(Keys.ENTER, Keys.TAB)
    until(browser, "document.getElementById('content').contains(document.activeElement)")

    browser.get(browser.current_url.partition("#")[0])
    hosts = reverse("admin:hosts_host_changelist")
    tab_to(f"#nav-sidebar-inner a[href='{hosts}']")
    keys(Keys.ENTER)
    until(browser, f"location.pathname === '{hosts}' && document.readyState === 'complete'")
    sheet = "document.getElementById('changelist-filter').checkVisibility()"
    tab_to("[x-on\\:click='filterOpen = true']")
    keys(Keys.ENTER)
    until(
        browser,
        f"{sheet} && document.getElementById('changelist-filter').contains(document.activeElement)",
    )
    keys(Keys.ESCAPE)
    until(browser, f"!{sheet} && document.activeElement.matches('[role=button]')")
    tab_to("#result_list tbody th a")
    keys(Keys.ENTER)
    until(browser, "/host[/][0-9]+[/]change/.test(location.pathname)")

    until(browser, "document.readyState === 'complete'")
    menu = "document.querySelector('nav[x-on\\\\:click\\\\.outside]')"
    tab_to("[x-on\\:click='openUserLinks = !openUserLinks']")
    keys(Keys.ENTER)
    until(browser, f"{menu}.contains(document.activeElement)")
    keys(Keys.ESCAPE)
    until(browser, f"!{menu}.checkVisibility()")
    until(browser, "document.activeElement.getAttribute('x-on:click')?.startsWith('openUserLinks')")
    assert unseen == []
    assert problems_of(browser, browser.current_url) == []
