"""The candidate explorer (spec placement, 10.3)."""

from __future__ import annotations

import html
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from placement.models import Origin, ResourceProvider
from tests.factories import make_host, make_reservation
from tests.placement.rows import make_provider

pytestmark = pytest.mark.django_db
URL = reverse("admin:placement_resourceprovider_candidates")


@pytest.fixture
def hosts() -> None:
    host = make_host("h1", openstack_id=str(uuid4()))
    make_reservation(host, memory_gib=16, vcpus=4)
    row = make_provider("h1", uuid=UUID(host.openstack_id), inventories={"VCPU": 16})
    ResourceProvider.objects.filter(pk=row.pk).update(origin=Origin.HOST)
    make_provider("card", parent=row, inventories={"SRIOV_NET_VF": 8}, traits=("CUSTOM_NIC",))
    make_provider("h2", inventories={"VCPU": 4})


def page(client: Client, query: str) -> str:
    response = client.get(f"{URL}?{urlencode({'query': query})}")
    assert response.status_code == 200
    return html.unescape(response.content.decode())


def test_the_empty_page_asks_for_a_query(admin_client: Client) -> None:
    shown = html.unescape(admin_client.get(URL).content.decode())
    assert 'name="query"' in shown
    assert "No candidate" not in shown


def test_candidates_are_listed_with_their_providers(admin_client: Client, hosts: Any) -> None:
    shown = page(admin_client, "resources=VCPU:1&resources_N=SRIOV_NET_VF:1&required_N=CUSTOM_NIC")
    assert "1 candidate" in shown
    assert "SRIOV_NET_VF 1" in shown
    assert "Group _N: SRIOV_NET_VF:1" in shown
    assert "has trait CUSTOM_NIC" in shown
    card = ResourceProvider.objects.get(name="card")
    assert reverse("admin:placement_resourceprovider_change", args=[card.pk]) in shown


def test_an_empty_answer_says_who_was_removed_and_what_would_help(
    admin_client: Client, hosts: Any
) -> None:
    shown = page(admin_client, "resources=VCPU:17")
    assert "No candidate" in shown
    assert "has room for VCPU:17" in shown
    assert "-2, 0 providers in 0 trees" in shown
    assert "ask for VCPU:16 instead of VCPU:17 in the unsuffixed group: 1 candidate" in shown


def test_trees_that_come_near_are_named_with_what_is_held_there(
    admin_client: Client, hosts: Any
) -> None:
    shown = page(admin_client, "resources=VCPU:1&resources_N=SRIOV_NET_VF:9")
    assert "Nobody there for" in shown
    assert "4 VCPU, 16384 MEMORY_MB" in shown


def test_a_query_that_breaks_a_rule_is_answered_with_the_reason(admin_client: Client) -> None:
    shown = page(admin_client, "?resources=VCPU:0")
    assert "requires amount >= 1" in shown
    assert "No such trait(s): CUSTOM_NONE" in page(
        admin_client, "resources=VCPU:1&required=CUSTOM_NONE"
    )


def test_operators_without_the_permission_are_refused(client: Client) -> None:
    client.force_login(User.objects.create_user("someone", is_staff=True))
    assert client.get(URL).status_code == 403
