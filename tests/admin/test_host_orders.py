"""Orders about hosts and agents from the admin's lists: with a reason, audited, or refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client
from django.urls import reverse
from headroom_host_agent.server.identity import new_identity

from hosts.agents.enrolment import digest_of
from hosts.agents.models import EnrolmentToken, HostAgent, HostKey
from hosts.models import Host
from journal.models import AuditEntry
from tests.admin.test_frame import staff_client
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.hosts.agents.agents import enrolment, make_token, send_enrolment
from tests.hosts.agents.test_leases import liveness, up

pytestmark = pytest.mark.django_db(transaction=True)
AGENTS = "admin:hosts_hostagent_changelist"
HOSTS = "admin:hosts_host_changelist"
KEYS = "admin:hosts_hostkey_changelist"
TOKENS = "admin:hosts_enrolmenttoken_changelist"


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


def test_hosts_are_taken_out_for_good_and_kept_after_all(admin_client: Client) -> None:
    host = make_host("h1")
    assert "taken out for good" in order(admin_client, HOSTS, "start_termination", [host.pk])
    host.refresh_from_db()
    assert (host.maintenance, host.maintenance_reason) == ("termination", "fans")
    assert "only ha ends that" in order(admin_client, HOSTS, "end_maintenance", [host.pk])
    assert "it stays" in order(admin_client, HOSTS, "end_termination", [host.pk])
    host.refresh_from_db()
    assert (host.maintenance, host.terminating_since) == ("", None)
    kept = AuditEntry.objects.filter(action="host_changed").values_list("after__maintenance")
    assert [state for (state,) in kept.order_by("id")] == ["termination", "ha", ""]


TOKEN = re.compile(r'>([^<>]+)</a></td><td><code class="hr-code">([A-Za-z0-9_-]{43})</code>')


def test_a_new_token_is_shown_once_and_enrols_its_host_once(admin_client: Client) -> None:
    rows = [make_host("h1"), make_host("h[2]*")]
    pks = [row.pk for row in rows]
    assert "need a reason" in order(admin_client, HOSTS, "new_tokens", pks, " ")
    assert not EnrolmentToken.objects.exists()

    page = order(admin_client, HOSTS, "new_tokens", pks, "new hosts")

    tokens = dict(TOKEN.findall(page))
    first, other = tokens["h1"], tokens["h[2]*"]
    assert "2 tokens made" in page
    assert other not in admin_client.get(reverse(TOKENS)).content.decode()
    entry = AuditEntry.objects.filter(action="enrolment_token_created").first()
    assert entry is not None
    assert (entry.actor, entry.reason) == ("admin:admin", "new hosts")
    kept = EnrolmentToken.objects.values_list("token_sha256", flat=True)
    assert set(kept) == {digest_of(other), digest_of(first)}
    enrolments = [
        send_enrolment(enrolment(new_identity(), token, name)).status_code
        for token, name in ((first, "h[2]*"), (other, "h[2]*"), (other, "h[2]*"), (first, "h1"))
    ]
    assert enrolments == [403, 201, 401, 201]

    kid = HostKey.objects.get(agent__host_name="h1").kid
    agent = HostAgent.objects.get(host_name="h1")
    page = order(admin_client, AGENTS, "new_tokens", [agent.pk], "its disk was lost")
    assert f"its key {kid} has to be revoked" in page
    ((_, token),) = TOKEN.findall(page)
    again = enrolment(new_identity(), token, "h1")
    assert send_enrolment(again).status_code == 409
    key = HostKey.objects.get(kid=kid)
    assert "need a reason" in order(admin_client, KEYS, "revoke_keys", [key.pk], " ")
    assert "may enrol anew" in order(admin_client, KEYS, "revoke_keys", [key.pk], "disk lost")
    key.refresh_from_db()
    assert (key.state, AuditEntry.objects.latest("id").reason) == ("revoked", "disk lost")
    assert send_enrolment(again).status_code == 201


def test_a_token_is_ended_in_the_admin(admin_client: Client) -> None:
    token = make_token("h1")
    make_host("h1")
    pk = EnrolmentToken.objects.get().pk
    assert "no agent enrols" in order(admin_client, TOKENS, "revoke_tokens", [pk], "leaked")
    assert AuditEntry.objects.latest("id").reason == "leaked"
    assert send_enrolment(enrolment(new_identity(), token)).status_code == 401
    viewer = staff_client("looker", "view_hostkey", "view_enrolmenttoken")
    for page, action in ((KEYS, "revoke_keys"), (TOKENS, "revoke_tokens")):
        assert action not in viewer.get(reverse(page)).content.decode()


def test_who_may_order_about_hosts_makes_no_token_without_the_right_to() -> None:
    host = make_host("h1")
    operator = staff_client("orders", "view_host", "change_host", "view_hostagent")
    assert TOKEN.findall(order(operator, HOSTS, "new_tokens", [host.pk])) == []
    assert not EnrolmentToken.objects.exists()
    enroller = staff_client("enrols", "view_host", "add_enrolmenttoken")
    assert len(TOKEN.findall(order(enroller, HOSTS, "new_tokens", [host.pk]))) == 1


def test_who_may_only_look_orders_nothing() -> None:
    up()
    viewer = staff_client("looker", "view_host", "view_hostagent")
    pages = ((AGENTS, "fence_agents", HostAgent), (HOSTS, "start_maintenance", Host))
    for page, action, model in pages:
        assert action not in viewer.get(reverse(page)).content.decode()
        order(viewer, page, action, [model.objects.get().pk])
    assert liveness() == "up"
    assert Host.objects.get().maintenance == ""
