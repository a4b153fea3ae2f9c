"""Filters that a list does not understand: a message and no rows, never all rows."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from tests import factories

pytestmark = pytest.mark.django_db

OURS = sorted(
    (model for model in admin.site._registry if model not in {User, Group}),
    key=lambda model: model._meta.label,
)


def list_of(client: Client, model: str, query: str) -> tuple[list[Any], list[str]]:
    """Return rows and messages of a list."""
    response = client.get(f"{reverse(f'admin:{model}_changelist')}?{query}", follow=True)
    assert response.status_code == 200
    shown = [str(message) for message in response.context["messages"]]
    return list(response.context["cl"].result_list), shown


@pytest.fixture
def hosts() -> None:
    factories.make_host("h1", zone="az-a")
    factories.make_host("h2", zone="az-b", state="down")


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.label_lower)
@pytest.mark.usefixtures("region")
def test_no_list_shows_rows_for_a_filter_that_it_does_not_know(
    model: type[Model], admin_client: Client
) -> None:
    label = model._meta.label_lower.replace(".", "_")
    rows, shown = list_of(admin_client, label, "nosuch=1")
    assert rows == []
    assert shown == ["No rows are shown: this list cannot be filtered by nosuch=1"]


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("id__exact=abc", "id__exact=abc"),
        ("nosuch__field=1", "nosuch__field=1"),
        ("ready=maybe", "ready=maybe"),
        ("zone=az-a&ready=maybe", "ready=maybe"),
        ("generation=1%0A2", "generation=1?2"),
    ],
)
def test_hosts_are_not_shown_for_it(admin_client: Client, query: str, named: str) -> None:
    rows, shown = list_of(admin_client, "hosts_host", query)
    assert rows == []
    (problem,) = shown
    assert problem.startswith("No rows are shown")
    assert named in problem


@pytest.mark.parametrize("provider", ["abc", "99999999999999999999", "-1"])
def test_consumers_of_no_provider_are_not_shown(admin_client: Client, provider: str) -> None:
    rows, shown = list_of(admin_client, "placement_consumer", f"provider={provider}")
    assert rows == []
    assert shown == [f"No rows are shown: this list cannot be filtered by provider={provider}"]


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["h1", "h2"]),
        ("zone=az-a", ["h1"]),
        ("ready=no", ["h2"]),
        ("zone=az-x", []),
        ("zone=", []),
        ("state__exact=down", ["h2"]),
        ("q=h1", ["h1"]),
        ("o=1&all=", ["h1", "h2"]),
        ("e=1", ["h1", "h2"]),
    ],
)
def test_what_a_list_knows_goes_on_as_before(
    admin_client: Client, query: str, names: list[str]
) -> None:
    rows, shown = list_of(admin_client, "hosts_host", query)
    assert ([row.name for row in rows], shown) == (names, [])
