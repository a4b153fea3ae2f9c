"""Filters that are kept under a name: by whom, for whom, and where they lead."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from console import saved_filters
from console.models import LONGEST_NAME, SavedFilter
from journal.models import AuditEntry
from tests.factories import make_hosts

pytestmark = pytest.mark.django_db
HOSTS = reverse("admin:hosts_host_changelist")
KEEP = reverse("admin:hosts_host_keep")


def viewer(name: str) -> Client:
    user = User.objects.create_user(name, is_staff=True)
    user.groups.add(Group.objects.get(name="viewer"))
    client = Client()
    client.force_login(user)
    return client


def names(client: Client, address: str = HOSTS) -> list[str]:
    answer = client.get(address)
    assert answer.status_code == 200
    return [row["name"] for row in answer.context["cl"].saved_filters()["rows"]]


def test_filters_are_kept_shown_opened_and_removed() -> None:
    ann = viewer("ann")
    make_hosts(1)
    query = "zone=az-a&q=h&o=-1"
    asked = ann.get(f"{HOSTS}?{query}&p=1").context["cl"].saved_filters()["asked"]
    assert sorted(asked.split("&")) == sorted(query.split("&"))
    answer = ann.post(KEEP, {"name": " my  <b>hosts ", "query": asked + "&p=3"}, follow=True)
    row = SavedFilter.objects.get()
    assert (row.name, row.owner.get_username(), row.is_shared) == ("my <b>hosts", "ann", False)
    assert answer.redirect_chain == [(f"{HOSTS}?{asked}", 302)]
    page = answer.content.decode()
    assert f'href="?{asked.replace("&", "&amp;")}" aria-current="true"' in page
    assert "<b>hosts" not in page

    remove = reverse("admin:hosts_host_remove", args=[row.pk])
    assert f'action="{remove}"' in page
    assert ann.get(remove).status_code == 405
    assert ann.post(remove, follow=True).status_code == 200
    assert "removed already" in ann.post(remove, follow=True).content.decode()
    assert names(ann) == []
    told = AuditEntry.objects.filter(object_type="SavedFilter").order_by("id")
    assert [one.action for one in told] == ["saved_filter_kept", "saved_filter_removed"]


def test_own_ones_are_of_one_list_and_shared_ones_for_all(admin_client: Client) -> None:
    ann, bob = viewer("ann"), viewer("bob")
    ann.post(KEEP, {"name": "own", "query": "q=a"})
    ann.post(KEEP, {"name": "shared", "query": "q=b", "is_shared": "1"})
    assert (names(ann), names(bob)) == (["own", "shared"], ["shared"])
    assert names(ann, reverse("admin:hosts_instance_changelist")) == []
    assert "by ann" in bob.get(HOSTS).content.decode()

    own, shared = SavedFilter.objects.order_by("name")
    for row, status in ((shared, 403), (own, 302)):
        remove = reverse("admin:hosts_host_remove", args=[row.pk])
        assert remove not in bob.get(HOSTS).content.decode()
        assert bob.post(remove).status_code == status
    assert SavedFilter.objects.count() == 2
    elsewhere = reverse("admin:hosts_instance_remove", args=[shared.pk])
    assert ann.post(elsewhere).status_code == 302
    assert SavedFilter.objects.count() == 2
    admin_client.post(reverse("admin:hosts_host_remove", args=[shared.pk]))
    assert names(bob) == []


def test_the_same_name_is_replaced(admin_client: Client) -> None:
    for query in ("q=a", "q=b"):
        admin_client.post(KEEP, {"name": "one", "query": query})
    assert [row.query for row in SavedFilter.objects.all()] == ["q=b"]


@pytest.mark.parametrize(
    "posted",
    [
        {},
        {"name": "x"},
        {"name": "x", "query": "p=2&all="},
        {"name": " ", "query": "q=a"},
        {"name": "x" * (LONGEST_NAME + 1), "query": "q=a"},
        {"name": "a\u2028b\u202e", "query": "q=a"},
        {"name": "x", "query": "q=" + "a" * 2000},
    ],
)
def test_what_cannot_be_kept_is_said(admin_client: Client, posted: dict[str, str]) -> None:
    answer = admin_client.post(KEEP, posted, follow=True)
    assert answer.redirect_chain == [(HOSTS, 302)]
    assert "kept" in answer.content.decode()
    assert not SavedFilter.objects.exists()


def test_one_keeps_so_many_of_a_list(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_filters, "MOST_OF_ONE", 2)
    for name in ("a", "b", "c", "b"):
        admin_client.post(KEEP, {"name": name, "query": f"q={name}"})
    assert names(admin_client) == ["a", "b"]


def test_who_may_not_see_a_list_keeps_nothing_of_it() -> None:
    client = Client()
    client.force_login(User.objects.create_user("somebody", is_staff=True))
    assert client.post(KEEP, {"name": "x", "query": "q=a"}).status_code == 403
    assert client.post(reverse("admin:hosts_host_remove", args=[1])).status_code == 403
    assert not SavedFilter.objects.exists()


def test_a_kept_filter_that_the_list_does_not_know_shows_no_rows(admin_client: Client) -> None:
    answer = admin_client.post(KEEP, {"name": "x", "query": "colour=blue"}, follow=True)
    assert answer.status_code == 200
    assert "No rows are shown" in answer.content.decode()
