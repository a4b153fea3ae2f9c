"""The frame of every page: sidebar, tabs, search."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from console.theme import SECTIONS
from failover.models import FailoverEvent

ENTRIES_LIMIT = 16


class Links(HTMLParser):
    """Collects the links inside the element of an id."""

    def __init__(self, page: str, element_id: str) -> None:
        super().__init__()
        self.element_id, self.depth = element_id, 0
        self.found: dict[str, str] = {}
        self._href = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if self.depth or named.get("id") == self.element_id:
            self.depth += tag not in {"input", "br", "hr", "img"}
        if self.depth and tag == "a":
            self._href = str(named.get("href"))
            self.found[self._href] = ""

    def handle_endtag(self, tag: str) -> None:
        if self.depth:
            self.depth -= 1
        if tag == "a":
            self._href = ""

    def handle_data(self, data: str) -> None:
        if self.depth and self._href:
            self.found[self._href] = (self.found[self._href] + " " + data).strip()


def links_of(client: Client, url: str, element_id: str) -> dict[str, str]:
    answer = client.get(url)
    assert answer.status_code == 200, url
    return Links(answer.content.decode(), element_id).found


def staff_client(username: str, *permissions: str) -> Client:
    user = User.objects.create_user(username, password="password", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def test_every_model_is_in_one_tab_of_few_entries() -> None:
    entries = [entry for _, entries in SECTIONS for entry in entries]
    counted = Counter(
        tab.model for entry in entries for tab in entry.tabs if tab.page == "changelist"
    )

    assert len(entries) <= ENTRIES_LIMIT
    assert counted == Counter(model._meta.label_lower for model in admin.site._registry)


@pytest.mark.django_db
def test_each_tab_opens_and_shows_its_neighbours(admin_client: Client) -> None:
    for _, entries in SECTIONS:
        for entry in entries:
            for tab in entry.tabs:
                answer = admin_client.get(tab.url)
                assert answer.status_code == 200, tab.url
                if tab.page != "changelist" or len(entry.tabs) == 1:
                    continue
                page = answer.content.decode()
                sidebar = Links(page, "nav-sidebar-apps").found
                tabs = Links(page, "tabs-items").found
                assert sidebar[entry.tabs[0].url].endswith(entry.title)
                assert tabs == {one.url: one.title for one in entry.tabs}


@pytest.mark.django_db
def test_an_entry_leads_to_what_may_be_seen() -> None:
    client = staff_client("looker", "view_failoverrun", "view_failuredrill", "view_shadowplan")
    drills = reverse("admin:failover_failuredrill_changelist")

    sidebar = links_of(client, reverse("admin:index"), "nav-sidebar-apps")
    tabs = links_of(client, drills, "tabs-items")

    assert {words.split()[-1]: url for url, words in sidebar.items()} == {
        "Overview": reverse("admin:index"),
        "Failover": drills,
        "Runs": reverse("admin:failover_failoverrun_changelist"),
    }
    assert list(tabs) == [drills, reverse("admin:failover_shadowplan_changelist")]


@pytest.mark.django_db
@pytest.mark.usefixtures("region")
def test_the_page_of_a_row_marks_its_entry(admin_client: Client) -> None:
    row: Any = FailoverEvent.objects.first()
    page = admin_client.get(reverse("admin:failover_failoverevent_change", args=[row.pk]))

    marked = page.content.decode().split('id="nav-sidebar-apps"')[1]
    active = [part for part in marked.split("<a ")[1:] if " active" in part.split(">")[0]]
    assert [reverse("admin:failover_coverageaccount_changelist") in one for one in active] == [True]
