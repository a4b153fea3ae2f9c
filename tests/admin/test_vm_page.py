"""The page of a VM, compared with rows and with runs of the scheduler by hand."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from core.text import moment_text
from failover.models import FailoverDecision, FailoverPolicy, FailoverReservation
from hosts.models import Host, HostState, Image, Instance, ServerGroup, ServerMigration
from tests import factories
from tests.admin.conftest import grow_region
from tests.admin.test_pages import count_queries, page_url
from tests.capacity.decision_records import store_decision

pytestmark = pytest.mark.django_db


def address(vm: Instance) -> str:
    return reverse("headroom_vm", args=[vm.openstack_id])


def page_of(client: Client, vm: Instance) -> Any:
    response = client.get(address(vm))
    assert response.status_code == 200
    return response.context["page"]


def test_it_says_what_the_vm_is_and_what_carries_it(admin_client: Client) -> None:
    factories.make_domain("d1", name="customers")
    factories.make_project("p1", name="shop", domain_id="d1")
    Image.objects.create(openstack_id="i1", name="sles")
    host = factories.make_host("h1", memory_gib=100)
    commitment = factories.make_commitment(project_id="p1")
    slot = factories.make_slot(commitment, host)
    vm = factories.make_vm("db", host, slot=slot, project_id="p1", image_id="i1")
    ServerGroup.objects.create(
        openstack_id="sg", name="apart", policy="anti-affinity", members=[vm.openstack_id]
    )
    factories.make_assignment(commitment, vm)

    page = page_of(admin_client, vm)

    said = {fact.label: (fact.text, str(fact.note)) for fact in page.facts}
    vm.refresh_from_db()
    assert vm.arrived_at is not None
    assert said["Host"] == ("h1", "")
    assert moment_text(vm.arrived_at) in said["There since"][1]
    assert said["Project"] == ("shop", "in domain customers")
    assert said["Image"][0] == "sles"
    assert said["Server group"] == ("apart", "anti-affinity, 1 VM")
    assert [one.url for one in page.holds.commitments] == [
        page_url(type(commitment), "change", commitment.pk)
    ]
    assert [(one.name, one.state) for one in page.holds.slots] == [(str(slot), "confirmed")]
    assert [one.what for one in page.history] == ["its memory came into a commitment"]


def test_lists_and_ids_lead_to_it(admin_client: Client) -> None:
    vm = factories.make_vm("db", factories.make_host("h1"))
    listed = admin_client.get(page_url(Instance, "changelist")).content.decode()
    found = admin_client.get(reverse("admin:headroom_find", args=["vm", vm.openstack_id]))
    on_host = admin_client.get(page_url(Host, "change", vm.host_id)).content.decode()

    assert f'href="{address(vm)}"' in listed
    assert found.headers["Location"] == address(vm)
    assert f'href="{address(vm)}"' in on_host


def test_where_it_may_go_and_who_refuses_it(admin_client: Client) -> None:
    factories.make_domain("d1", name="customers")
    factories.make_project("p1", domain_id="d1")
    factories.make_group()
    here = factories.make_host("here", memory_gib=100)
    factories.make_host("wide", memory_gib=100)
    factories.make_host("elsewhere", memory_gib=100, zone="az-b")
    factories.make_host("down", memory_gib=100, state=HostState.DOWN)
    factories.make_host("narrow", memory_gib=2)
    vm = factories.make_vm("db", here, memory_gib=4, project_id="p1")

    goes = page_of(admin_client, vm).goes

    assert goes.problem == ""
    assert [name for name, _ in goes.hosts] == ["wide"]
    refused = {name: row.title for row in goes.refusals for name, _ in row.hosts}
    assert set(refused) == {"elsewhere", "down", "narrow"}
    assert len(set(refused.values())) == 3
    assert "capacity" in refused["narrow"]
    assert all(row.remedy for row in goes.refusals)

    Instance.objects.filter(pk=vm.pk).update(memory_bytes=0)
    assert "nothing can be asked" in page_of(admin_client, vm).goes.problem


def test_projects_in_the_reasons_of_refusals_are_told_by_name(admin_client: Client) -> None:
    mine, theirs, unknown = ("1" * 32, "2" * 32, "3" * 32)
    factories.make_group()
    factories.make_project(mine, name="shop")
    factories.make_project(theirs, name="bank")
    vm = factories.make_vm("db", factories.make_host("h1"), project_id=mine)
    factories.make_host("h2", allowed_projects=[theirs, unknown])

    (refusal,) = [one for one in page_of(admin_client, vm).goes.refusals if "bank" in one.remedy]

    assert "project shop" in refusal.remedy
    assert unknown in refusal.remedy
    assert mine not in refusal.remedy
    assert theirs not in refusal.remedy


def test_whether_it_would_survive_its_host(admin_client: Client) -> None:
    host, other = factories.make_host("h1"), factories.make_host("h2")
    vm = factories.make_vm(host=host)
    FailoverPolicy.objects.create(flavor_pattern="other", required_count=2)
    assert page_of(admin_client, vm).cover.title == "No failover slot is owed to it"

    FailoverPolicy.objects.create(flavor_pattern="*", required_count=1, position=1)
    assert page_of(admin_client, vm).cover.tone == "warn"

    held = factories.make_reservation(other)
    FailoverReservation.objects.create(reservation=held, name="failover-1")
    factories.make_allocation(held, vm, state="expected")
    cover = page_of(admin_client, vm).cover
    assert (cover.tone, [str(one.host) for one in cover.places]) == ("ok", ["h2"])
    assert b"It would go to" in admin_client.get(address(vm)).content

    FailoverDecision.objects.create(
        vm_uuid=vm.openstack_id, zone="az-a", required_count=1, current_count=0,
        reason="no_room", since=timezone.now(),
    )  # fmt: skip
    cover = page_of(admin_client, vm).cover
    assert (cover.tone, cover.why) == ("bad", "Why: no host has room.")
    assert cover.title == "It would not survive the loss of its host"
    assert b"It cannot count on" in admin_client.get(address(vm)).content


def test_its_address_stays_when_it_is_gone(admin_client: Client) -> None:
    host = factories.make_host("h3")
    vm = factories.make_vm(host=host)
    moved = ServerMigration.objects.create(
        uuid="m1", vm_uuid=vm.openstack_id, migration_type="live-migration", status="completed",
        source_name="h1", target_name="h3", over_at=timezone.now(),
    )  # fmt: skip
    (since,) = (one for one in page_of(admin_client, vm).facts if one.label == "Host")
    assert since.note == "by a live-migration that ended"

    store_decision(vm_uuid=vm.openstack_id)
    vm.delete()
    moved.delete()

    page = page_of(admin_client, vm)
    assert not page.is_known
    assert [one.detail for one in page.history] == ["h3 was chosen"]
    assert admin_client.get(reverse("headroom_vm", args=["no-such"])).status_code == 404


@pytest.mark.usefixtures("region")
def test_it_takes_few_statements_however_many_rows(admin_client: Client) -> None:
    vm = Instance.objects.order_by("pk")[0]
    before = count_queries(admin_client, address(vm))
    grow_region(3)
    with CaptureQueriesContext(connection) as captured:
        assert admin_client.get(address(vm)).status_code == 200

    assert count_queries(admin_client, address(vm)) <= before, captured.captured_queries
    assert before <= 30


@pytest.mark.usefixtures("region")
def test_it_shows_what_its_reader_may_see() -> None:
    user = User.objects.create_user("looker", password="password", is_staff=True)
    client = Client()
    client.force_login(user)
    vm = Instance.objects.order_by("pk")[0]
    assert client.get(address(vm)).status_code == 403

    user.user_permissions.set(Permission.objects.filter(codename="view_instance"))
    client.force_login(User.objects.get(pk=user.pk))
    page = page_of(client, vm)
    assert (page.cover, page.holds, page.goes, page.history) == (None, None, None, [])
