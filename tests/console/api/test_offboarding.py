"""Hosts that leave service, as the API and the admin tell it (spec hosts, C.3, D.3)."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from hosts.agents.models import HostAgent
from hosts.models import Host, HostLifecycle, Instance
from tests.console.api.conftest import ask, page, problem
from tests.factories import make_commitment, make_host, make_slot, make_vm
from tests.hosts.agents.agents import enrolled
from tests.openapi_documents import validator

pytestmark = pytest.mark.django_db(transaction=True)


def shown() -> str:
    word: str = page("/api/v1/hosts/h1")["shown_state"]
    assert page("/api/v1/hosts")["items"][0]["shown_state"] == word
    return word


def told(name: str = "h1") -> dict[str, Any]:
    """Return an answer that is as documented."""
    found: dict[str, Any] = page(f"/api/v1/hosts/{name}/offboarding")
    validator("hosts", "Offboarding").validate(found)
    return found


def done(found: dict[str, Any]) -> list[str]:
    return [one["step"] for one in found["steps"] if one["is_done"]]


def test_a_host_leaves_service_step_by_step(admin_client: Client) -> None:
    host = make_host("h1", aggregate_uuids=["a"])
    enrolled("h1")
    vm = make_vm(host=host)
    slot = make_slot(make_commitment(), host)
    path = reverse("admin:hosts_host_change", args=[host.pk])
    assert shown() == "enrolled"
    assert done(told()) == []
    assert "Out of service" not in admin_client.get(path).content.decode()

    Host.objects.update(maintenance="termination")
    assert shown() == "evicting"
    assert told()["left"] == {"reservations": 1, "vms": 1, "agents": 1, "aggregates": 1}
    assert "1 reservation still here" in admin_client.get(path).content.decode()
    slot.delete()
    assert shown() == "evicting"
    Instance.objects.filter(pk=vm.pk).delete()
    assert shown() == "evicted"
    assert done(told()) == ["termination", "reservations", "vms"]

    call_command("host_agent", "decommission", "h1", "--reason", "gone", stdout=StringIO())
    assert HostAgent.objects.get().decommissioned_at is not None
    assert shown() == "evicted"
    Host.objects.update(aggregate_uuids=[])
    assert shown() == "offboarded"
    found = told()
    assert found["readiness"] == {"is_ready": False, "reason": "Offboarded", "message": ""}
    assert len(done(found)) == 5
    assert "Delete its compute service in Nova" in admin_client.get(path).content.decode()


def test_an_object_of_its_own_says_where_in_its_life_a_host_is() -> None:
    make_host(
        "h1",
        is_self_described=True,
        maintenance="termination",
        conditions={"Ready": "False", "Onboarding": "True"},
        condition_reasons={"Onboarding": {"reason": "Testing"}},
    )
    assert shown() == "onboarding"
    assert told()["readiness"]["message"] == "Testing"
    Host.objects.update(conditions={"Ready": "False", "Terminating": "True"})
    assert shown() == "terminating"
    Host.objects.update(conditions={"Ready": "False"}, condition_reasons={})
    assert shown() == "maintenance"
    Host.objects.update(conditions={"Ready": "True"}, maintenance="ha")
    assert shown() == "unmanaged"


def test_a_host_that_was_fenced_says_so() -> None:
    make_host("h1")
    enrolled("h1")
    call_command("host_agent", "fence", "h1", "--reason", "fire", stdout=StringIO())
    found = told()["readiness"]
    assert (found["reason"], found["message"]) == ("ServiceDown", "it is fenced")
    assert shown() == "down"


def test_a_slot_that_is_going_away_is_still_there() -> None:
    here, there = make_host("h1", maintenance="manual"), make_host("h2")
    make_slot(make_commitment(), there, confirmed_host=here)
    assert shown() == "evicting"
    assert told()["left"]["reservations"] == 1
    make_slot(make_commitment(), here, confirmed_host=here)
    assert told()["left"]["reservations"] == 2


@pytest.mark.parametrize("name", ["h9", "a%00b", "%ff"])
def test_a_host_that_there_is_not_is_not_found(name: str) -> None:
    problem(ask(f"/api/v1/hosts/{name}/offboarding"), 404)


def test_the_page_of_a_host_says_what_it_waits_for(admin_client: Client) -> None:
    host = make_host("h1", maintenance="termination")
    path = reverse("admin:hosts_host_change", args=[host.pk])
    HostLifecycle.objects.create(
        host_name="h1", kind="out", phase="offboarding", reason="old", waits_for="VMs are left: 2"
    )
    shown_page = admin_client.get(path).content.decode()
    assert "Through Nova out of service" in shown_page
    assert "VMs are left: 2" in shown_page
    HostLifecycle.objects.update(kind="in", phase="testing", trouble="no answer", tests=2)
    Host.objects.update(maintenance="", conditions={"Onboarding": "True", "Ready": "False"})
    shown_page = admin_client.get(path).content.decode()
    assert "Hindered: no answer" in shown_page
    assert "2 test VMs" in shown_page
    Host.objects.update(conditions={})
    assert "Through Nova" not in admin_client.get(path).content.decode()
