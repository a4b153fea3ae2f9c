"""Orders about hosts and agents from the admin's lists: with a reason, audited, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client
from django.urls import reverse

from hosts.agents.models import HostAgent
from hosts.models import Host
from journal.models import AuditEntry
from tests.admin.test_frame import staff_client
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.hosts.agents.test_leases import liveness, up

pytestmark = pytest.mark.django_db(transaction=True)
AGENTS = "admin:hosts_hostagent_changelist"
HOSTS = "admin:hosts_host_changelist"


def order(client: Client, page: str, action: str, pks: list[int], reason: str = "fans") -> str:
    """Send the form of a list; return what the next page says."""
    form: dict[str, Any] = {"action": action, ACTION_CHECKBOX_NAME: pks, "reason": reason}
    answer = client.post(reverse(page), form, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def test_an_agent_is_fenced_and_ended_with_a_reason(admin_client: Client) -> None:
    up()
    pk = HostAgent.objects.get().pk
    assert "need a reason" in order(admin_client, AGENTS, "fence_agents", [pk], " ")
    assert liveness() == "up"

    assert "h1: its agent is down, its epoch is 2" in order(
        admin_client, AGENTS, "fence_agents", [pk]
    )

    assert liveness() == "down"
    entry = AuditEntry.objects.get(action="host_agent_down")
    assert (entry.actor, entry.reason) == ("admin:admin", "fans")
    make_slot(make_commitment(), Host.objects.get())
    assert "still has 1 slots" in order(admin_client, AGENTS, "decommission_agents", [pk])
    Host.objects.get().targeted_reservations.all().delete()
    assert "this is the end" in order(admin_client, AGENTS, "decommission_agents", [pk])
    assert HostAgent.objects.get().decommissioned_at is not None


def test_hosts_leave_service_and_come_back(admin_client: Client) -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    one, own = make_host("h1"), make_host("own", is_self_described=True)
    page = order(admin_client, HOSTS, "start_maintenance", [one.pk, own.pk])
    assert "h1: it takes no new VMs and slots" in page
    assert "own: own has an object of its own" in page
    one.refresh_from_db()
    assert (one.maintenance, one.maintenance_reason) == ("manual", "fans")
    assert "0 slots moved, 0 found no place" in order(admin_client, HOSTS, "evict_hosts", [one.pk])
    assert "in service again" in order(admin_client, HOSTS, "end_maintenance", [one.pk])
    assert "h1 is in service" in order(admin_client, HOSTS, "evict_hosts", [one.pk])


def test_who_may_only_look_orders_nothing() -> None:
    up()
    viewer = staff_client("looker", "view_host", "view_hostagent")
    pages = ((AGENTS, "fence_agents", HostAgent), (HOSTS, "start_maintenance", Host))
    for page, action, model in pages:
        assert action not in viewer.get(reverse(page)).content.decode()
        order(viewer, page, action, [model.objects.get().pk])
    assert liveness() == "up"
    assert Host.objects.get().maintenance == ""
