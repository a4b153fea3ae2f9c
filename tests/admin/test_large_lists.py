"""Lists whose tables are large: what they find, and that they read no more than they show."""

from __future__ import annotations

from html import unescape

import pytest
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from capacity.models import Reservation
from failover.models import FailoverPolicy, FailoverReservation
from hosts.models import Image, Instance
from tests import factories
from tests.failover.drill_rows import make_zone

pytestmark = pytest.mark.django_db


def list_address(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def found(client: Client, model: type[Model], search: str) -> set[int]:
    listed = client.get(list_address(model), {"q": search}).context["cl"]
    return {row.pk for row in listed.result_list}


def statements(client: Client, address: str, query: dict[str, str] | None = None) -> list[str]:
    client.get(address, query or {})
    with CaptureQueriesContext(connection) as captured:
        assert client.get(address, query or {}).status_code == 200
    return [query["sql"] for query in captured]


def test_a_failover_slot_is_found_by_itself_its_host_its_users_and_their_hosts(
    admin_client: Client,
) -> None:
    zone = make_zone("rA@3{a@1,b@2} rB@4{a@1}")
    keys = dict(FailoverReservation.objects.values_list("name", "pk"))
    both = {keys["rA"], keys["rB"]}

    asked = {"rA": {keys["rA"]}, "h3": {keys["rA"]}, "H4": {keys["rB"]}, "h1": both, "h9": set()}
    asked |= {zone.uuid("b"): {keys["rA"]}, f"{zone.uuid('a')} h4": {keys["rB"]}}

    assert {word: found(admin_client, FailoverReservation, word) for word in asked} == asked


def test_users_of_failover_slots_are_counted_for_those_shown_alone(admin_client: Client) -> None:
    make_zone("rA@3{a@1,b@2} rB@4{a@1} rC@5{}")
    address = list_address(FailoverReservation)
    order = list(admin_client.get(address).context["cl"].list_display)
    by_users = {"o": f"-{order.index('users_count')}"}

    shown = admin_client.get(address, by_users).context["cl"].result_list
    read = [sql for sql in statements(admin_client, address) if "reservationallocation" in sql]

    assert [(row.name, row.user_count) for row in shown] == [("rA", 2), ("rB", 1), ("rC", 0)]
    assert len(read) == 1
    assert 'JOIN "capacity_reservationallocation"' not in read[0]


def test_a_reservation_is_found_by_whole_ids_and_names(admin_client: Client) -> None:
    commitment = factories.make_commitment()
    first, second = factories.make_hosts(2)
    slot = factories.make_slot(commitment, host=first)
    other = factories.make_reservation(second)

    asked = {
        str(slot.uuid): {slot.pk},
        str(slot.uuid).upper(): {slot.pk},
        str(commitment.commitment_uuid): {slot.pk},
        second.name.upper(): {other.pk},
        f"{slot.uuid} {second.name}": set(),
        str(slot.uuid)[:8]: set(),
    }

    assert {word: found(admin_client, Reservation, word) for word in asked} == asked


def test_a_vm_is_found_by_ids_and_its_flavor_and_a_part_of_its_name(admin_client: Client) -> None:
    host = factories.make_host("h1")
    vm = factories.make_vm("billing-1", host)
    factories.make_vm("other", host, flavor_name="large", project_id="p2")

    words = (vm.openstack_id.upper(), "ILLING", vm.flavor_name.upper(), vm.project_id.upper())

    assert [found(admin_client, Instance, word) for word in words] == [{vm.pk}] * 4


@pytest.mark.parametrize("model", [Instance, Reservation, FailoverReservation])
def test_a_search_for_whole_words_compares_columns_as_they_are(
    admin_client: Client, model: type[Model]
) -> None:
    make_zone("rA@3{a@1,b@2}")

    read = [
        sql
        for sql in statements(admin_client, list_address(model), {"q": "node001"})
        if "node001" in sql
    ]

    assert read
    for sql in read:
        assert sql.count("UPPER(") == 2 * sql.count("%node001%"), sql


def test_systems_to_choose_are_those_of_vms_and_of_many_vms_those_of_images(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = factories.make_host("h1")
    for name, system in (("a", "suse"), ("b", "windows"), ("c", "suse")):
        vm = factories.make_vm(name, host)
        Instance.objects.filter(pk=vm.pk).update(os_type=system)
    Image.objects.create(openstack_id="i1", name="one", os_type="debian")
    address = list_address(Instance)

    def offered() -> list[str]:
        specs = admin_client.get(address).context["cl"].filter_specs
        (spec,) = (spec for spec in specs if getattr(spec, "parameter_name", "") == "os_type")
        return [word for word, _ in spec.lookup_choices]

    assert offered() == ["suse", "windows"]
    monkeypatch.setattr("console.commitments.vms.COUNT_CAP", 2)
    assert offered() == ["debian", "suse", "windows"]
    rows = admin_client.get(address, {"os_type": "suse"}).context["cl"].result_list
    assert {row.name for row in rows} == {"a", "c"}


def test_a_policy_counts_the_vms_of_its_flavors_once(admin_client: Client) -> None:
    make_zone("rA@3{a@1,b@2}")
    policy = FailoverPolicy.objects.get()
    address = reverse("admin:failover_failoverpolicy_change", args=[policy.pk])

    counting = [sql for sql in statements(admin_client, address) if "hosts_instance" in sql]
    page = unescape(admin_client.get(address).content.decode())

    assert len(counting) == 1
    assert "small" in page
