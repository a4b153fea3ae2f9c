"""Claims are the ledger: slots, in-flight rows and held room right after each call (ADR 0029)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from django.db import connection, transaction
from structlog.testing import capture_logs

from capacity.ledger.claims import Eaten
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation, ReservationKind
from hosts.models import Host
from placement import metrics
from placement.services.rooms import held_for_others
from placement.tasks import reconcile_hosts
from tests.claims import assert_claims_are_the_ledger
from tests.commitments.slot_worlds import verify
from tests.factories import (
    make_flavor,
    make_host,
    make_hosts,
    make_slot,
    make_vm,
)
from tests.placement.claim_cloud import (
    GIB,
    LARGE,
    OWNER,
    SMALL,
    STRANGER,
    Cloud,
    cloud_of_claims,
    make_flight,
    use_source,
)
from tests.placement.client import (
    consumer_body,
    placement_settings,
    uuid,
)
from tests.reads import rows_read

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cloud(settings: Any) -> Cloud:
    return cloud_of_claims(settings)


@pytest.mark.sql(
    "capacity_settle_claims",
    "capacity_count_claimed",
    "placement_settle_claims",
    "placement_settled",
    "placement_claimed",
)
def test_the_owner_lands_in_its_slot_and_a_stranger_is_refused_there(cloud: Cloud) -> None:
    stranger, vm = uuid(), uuid()
    refused = cloud.client.allocate(
        stranger, {cloud.held.openstack_id: SMALL}, project_id=STRANGER, version="1.28"
    )
    assert refused.status == 409
    assert cloud.client.get(f"/allocations/{stranger}").json["allocations"] == {}
    assert cloud.claim(stranger, cloud.free, project=STRANGER) == 204
    assert cloud.claim(vm, cloud.held) == 204
    assert (cloud.inside(), cloud.blocked_gib()) == ({vm: 8}, 8)


def test_a_refusal_lets_nova_go_to_its_next_host(cloud: Cloud) -> None:
    asked = {cloud.held.openstack_id: SMALL}
    answer = cloud.client.put(
        f"/allocations/{uuid()}", consumer_body(asked, project_id=STRANGER), version="1.36"
    )
    assert (answer.status, answer.error["code"]) == (409, "placement.undefined_code")
    assert "consumer generation conflict" not in answer.error["detail"]
    assert "concurrent" not in answer.error["detail"]
    assert cloud.held.openstack_id in answer.error["detail"]


def test_settled_claims_and_refusals_for_held_room_are_counted(cloud: Cloud) -> None:
    refused = metrics.CONFLICTS.labels(reason="held")._value
    settled = metrics.SETTLED_CLAIMS._value
    before = refused.get(), settled.get()
    assert cloud.claim(uuid(), cloud.held, project=STRANGER) == 409
    assert cloud.claim(uuid(), cloud.held) == 204
    assert (refused.get() - before[0], settled.get() - before[1]) == (1, 1)


def test_what_has_no_host_of_ours_is_claimed_beside_a_slot_as_ever(cloud: Cloud) -> None:
    pool, vm, stranger = cloud.client.make_provider("pool", DISK_GB=30), uuid(), uuid()
    cloud.client.put("/resource_classes/CUSTOM_GPU")
    cell = cloud.client.make_provider("cell", cloud.held.openstack_id, CUSTOM_GPU=2)
    asked = {
        cloud.held.openstack_id: SMALL,
        cell: {"CUSTOM_GPU": 1},
        pool: {"DISK_GB": 20},
    }
    answer = cloud.client.allocate(vm, asked, project_id=OWNER)
    assert cloud.checked(answer).status == 204
    assert (cloud.inside(), cloud.blocked_gib()) == ({vm: 8}, 8)
    for amount, status in ((11, 409), (10, 204)):
        disk = {pool: {"DISK_GB": amount}}
        answer = cloud.client.allocate(stranger, disk, project_id=STRANGER)
        assert cloud.checked(answer).status == status
    assert cloud.client.used(pool) == {"DISK_GB": 30}
    assert cloud.delete(vm) == 204
    assert (cloud.inside(), cloud.blocked_gib()) == ({}, 16)
    assert (cloud.client.used(pool), cloud.client.used(cell)) == (
        {"DISK_GB": 10},
        {"CUSTOM_GPU": 0},
    )


def test_a_refusal_says_who_holds_how_much(cloud: Cloud) -> None:
    vm, stranger = uuid(), uuid()
    assert cloud.claim(vm, cloud.held) == 204
    with capture_logs() as said:
        answer = cloud.client.put(
            f"/allocations/{stranger}",
            consumer_body({cloud.held.openstack_id: SMALL}, project_id=STRANGER),
            version="1.36",
        )
    assert (
        "24576 would be taken or held of 16384; commitments hold 8192, failover 0, VMs in flight 0"
        in answer.error["detail"]
    )
    (line,) = [line for line in said if line["event"] == "claim_of_held_room"]
    assert (line["host"], line["facts"]) == (
        "held",
        {
            "consumers": [stranger],
            "resource_class": "MEMORY_MB",
            "taken": 24576,
            "effective": 16384,
            "committed": 8192,
            "failover": 0,
            "in_flight": 0,
        },
    )


def test_what_a_deletion_gives_back_is_the_owners_at_once(cloud: Cloud) -> None:
    first, second, third = uuid(), uuid(), uuid()
    assert cloud.claim(first, cloud.held) == 204
    assert cloud.claim(second, cloud.held) == 204
    assert cloud.claim(third, cloud.held) == 409
    assert cloud.delete(first) == 204
    assert cloud.delete(first) == 404
    assert (cloud.inside(), cloud.blocked_gib()) == ({second: 8}, 8)
    assert cloud.claim(uuid(), cloud.held, project=STRANGER) == 409
    assert cloud.claim(third, cloud.held) == 204
    assert cloud.blocked_gib() == 0


@pytest.mark.parametrize("headers", [{}, {"If_Match": "1"}])
def test_no_deletion_is_refused_whatever_its_slot_gets_back(
    cloud: Cloud, headers: dict[str, str]
) -> None:
    """A slot that took the VM for larger than its claim gets back more than the claim gives."""
    vm, stranger = uuid(), uuid()
    assert cloud.claim(vm, cloud.held) == 204
    ReservationAllocation.objects.update(memory_bytes=16 * GIB, vcpus=4)
    Reservation.objects.update(blocked_memory_bytes=0, blocked_vcpus=0)
    rebuild_host_capacity()
    held = {cloud.held.openstack_id: SMALL}
    assert cloud.client.allocate(stranger, held, project_id=STRANGER).status == 204
    assert cloud.client.delete(f"/allocations/{vm}", **headers).status == 204
    assert (cloud.inside(), cloud.blocked_gib()) == ({}, 16)


def test_a_claim_ends_the_rows_in_flight_on_all_hosts(cloud: Cloud) -> None:
    vm, other = uuid(), uuid()
    for host in (cloud.held, cloud.free):
        make_flight(host, vm)
    kept = make_flight(cloud.free, other)
    assert cloud.client.allocate(vm, {cloud.held.openstack_id: SMALL}, project_id=OWNER).status
    assert list(Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT)) == [kept]
    assert cloud.inside() == {vm: 8}
    assert_claims_are_the_ledger()
    assert cloud.delete(vm) == 204
    assert HostCapacity.objects.get(host=cloud.free).in_flight_memory_bytes == 8 * GIB


@pytest.mark.parametrize("project", [OWNER, STRANGER])
def test_no_claim_takes_what_is_promised_in_the_shadow_of_a_flight(
    cloud: Cloud, project: str
) -> None:
    """A slot and a VM in flight into it block one room: that is no room for a third."""
    host, other = make_host("shared", memory_gib=16, vcpus=4), uuid()
    make_slot(cloud.commitment, host, flavor_name="small", memory_gib=8, vcpus=2)
    rebuild_host_capacity()
    reconcile_hosts()
    flights = {OWNER: uuid(), STRANGER: uuid()}
    for whose, vm in flights.items():
        make_flight(host, vm, project_id=whose)
    assert cloud.claim(other, host, project=project) == 409
    assert cloud.claim(flights[OWNER], host) == 204
    assert cloud.claim(other, host, project=project) == 409
    assert cloud.claim(flights[STRANGER], host, project=STRANGER) == 204


def test_a_vm_that_is_to_be_moved_counts_beside_what_is_held_for_the_move(cloud: Cloud) -> None:
    vm = uuid()
    assert cloud.claim(vm, cloud.free, project=STRANGER) == 204
    make_flight(cloud.free, vm, project_id=STRANGER)  # a resize may stay on its host
    rebuild_host_capacity()
    assert cloud.claim(uuid(), cloud.free, project=STRANGER) == 409


def test_a_vm_that_was_booked_elsewhere_is_where_it_was_claimed(cloud: Cloud) -> None:
    vm = uuid()
    make_vm(openstack_id=vm, memory_gib=8, vcpus=2, slot=cloud.slot, slot_state="expected")
    assert cloud.claim(vm, cloud.free) == 204
    assert (cloud.inside(), cloud.blocked_gib()) == ({}, 16)


def test_a_booked_vm_is_in_its_slot_once_it_is_claimed(cloud: Cloud) -> None:
    vm = uuid()
    make_flight(cloud.held, vm)
    make_vm(openstack_id=vm, memory_gib=8, vcpus=2, slot=cloud.slot, slot_state="expected")
    assert cloud.claim(vm, cloud.held) == 204
    assert ReservationAllocation.objects.get(vm_uuid=vm).state == "confirmed"
    assert cloud.blocked_gib() == 8


def test_a_refusal_of_several_names_those_who_ask_for_held_room(cloud: Cloud) -> None:
    """Not who boots elsewhere in the same write, nor who keeps what it has there."""
    kept, grown, one, other = sorted(uuid() for _ in range(4))
    wide = make_host("wide", memory_gib=32, vcpus=8)
    make_slot(cloud.commitment, wide, flavor_name="large", memory_gib=16, vcpus=4)
    rebuild_host_capacity()
    reconcile_hosts()
    assert cloud.claim(kept, wide, project=STRANGER) == 204
    assert cloud.claim(grown, wide, project=STRANGER) == 204

    def refused(asks: Mapping[str, tuple[Host, dict[str, int], int | None]]) -> str:
        body = {
            vm: consumer_body({host.openstack_id: size}, generation=known, project_id=STRANGER)
            for vm, (host, size, known) in asks.items()
        }
        answer = cloud.client.post("/allocations", body, version="1.28")
        assert (answer.status, answer.error["code"]) == (409, "placement.undefined_code")
        (line,) = [line for line in said if line["event"] == "claim_of_held_room"]
        said.clear()
        assert f" for consumer {', '.join(line['facts']['consumers'])}." in answer.error["detail"]
        return " ".join(line["facts"]["consumers"])

    with capture_logs() as said:
        new = {one: (cloud.free, SMALL, None), other: (wide, SMALL, None)}
        assert refused(new) == other
        both = {one: (wide, SMALL, None), other: (wide, SMALL, None)}
        assert refused(both) == f"{one} {other}"
        mixed = {kept: (wide, SMALL, 1), grown: (wide, LARGE, 1)}
        assert refused(mixed) == grown


def test_a_full_provider_names_those_of_several_who_ask_for_it(cloud: Cloud) -> None:
    one, other, elsewhere = sorted(uuid() for _ in range(3))
    asks = {one: cloud.free, other: cloud.free, elsewhere: cloud.held}
    body = {
        vm: consumer_body(
            {host.openstack_id: LARGE if host is cloud.free else SMALL}, project_id=OWNER
        )
        for vm, host in asks.items()
    }
    answer = cloud.client.post("/allocations", body, version="1.28")
    assert answer.status == 409
    assert answer.error["detail"].endswith(f" Asked for by consumers {one}, {other}.")
    assert "consumer generation conflict" not in answer.error["detail"]


SPECS: tuple[tuple[dict[str, str], dict[str, int], dict[str, int]], ...] = (
    ({}, {"VCPU": 2, "MEMORY_MB": 8192}, {"PCPU": 2, "MEMORY_MB": 8192}),
    ({}, {"VCPU": 2, "MEMORY_MB": 8192, "DISK_GB": 9}, {"VCPU": 2, "MEMORY_MB": 8191}),
    ({"hw:cpu_policy": "dedicated"}, {"PCPU": 2, "MEMORY_MB": 8192}, SMALL),
    (
        {"hw:cpu_policy": "mixed"},
        {"VCPU": 1, "PCPU": 1, "MEMORY_MB": 8192},
        {"VCPU": 1, "PCPU": 2, "MEMORY_MB": 8192},
    ),
    ({"resources:VCPU": "1"}, {"VCPU": 1, "MEMORY_MB": 8192}, SMALL),
    ({"resources:PCPU": "1"}, {"PCPU": 1, "MEMORY_MB": 8192}, SMALL),
    ({"resources:MEMORY_MB": "512"}, {"VCPU": 2, "MEMORY_MB": 512}, SMALL),
    ({"resources:VGPU": "1"}, {**SMALL, "VGPU": 1}, SMALL),
)


@pytest.mark.sql("capacity_flavor_asks")
@pytest.mark.parametrize(("specs", "asked", "other"), SPECS)
def test_a_flavor_is_told_by_what_nova_asks_for_it(
    specs: dict[str, str], asked: dict[str, int], other: dict[str, int]
) -> None:
    def asks(classes: dict[str, int]) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT capacity_flavor_asks(%s, 2, %s::jsonb, %s::jsonb)",
                [8 * GIB, json.dumps(specs), json.dumps(classes)],
            )
            return bool(cursor.fetchone()[0])

    assert asks(asked)
    assert not asks(other)


def test_a_claim_of_no_known_flavor_is_in_no_slot(cloud: Cloud) -> None:
    odd = {"VCPU": 1, "MEMORY_MB": 4096}
    assert cloud.claim(uuid(), cloud.held, asks=odd) == 409
    assert cloud.claim(uuid(), cloud.free, asks=odd) == 204


@pytest.mark.sql("capacity_groups_of_claim")
def test_a_vm_that_keeps_its_amounts_keeps_its_flavor(cloud: Cloud) -> None:
    vm = uuid()
    make_flavor("alike", 8192, 2)
    make_vm(openstack_id=vm, memory_gib=8, vcpus=2, project_id=OWNER, flavor_name="alike")
    assert cloud.claim(vm, cloud.held) == 409
    assert cloud.claim(vm, cloud.held, asks=LARGE) == 204


@pytest.mark.sql("capacity_join_slots")
def test_a_vm_is_in_several_slots_by_parts(cloud: Cloud) -> None:
    host, vm = make_host("parts", memory_gib=16, vcpus=4), uuid()
    slots = [make_slot(cloud.commitment, host, memory_gib=8, vcpus=2) for _ in range(2)]
    rebuild_host_capacity()
    reconcile_hosts()
    assert cloud.claim(vm, host, asks=LARGE) == 204
    rows = ReservationAllocation.objects.filter(vm_uuid=vm, reservation__in=slots)
    assert {(row.memory_bytes // GIB, row.vcpus) for row in rows} == {(8, 2)}
    assert cloud.delete(vm) == 204


def test_the_flavor_of_a_row_in_flight_comes_first(cloud: Cloud) -> None:
    vm = uuid()
    make_flight(cloud.free, vm, flavor_group_name="other")
    assert cloud.claim(vm, cloud.held) == 409
    Reservation.objects.filter(vm_uuid=vm).update(flavor_group_name="general")
    assert cloud.claim(vm, cloud.held) == 204


def test_an_older_list_of_vms_undoes_no_claim(cloud: Cloud) -> None:
    vm, gone = uuid(), uuid()
    assert cloud.claim(vm, cloud.held) == 204
    assert cloud.claim(gone, cloud.held) == 204
    assert cloud.delete(gone) == 204
    make_vm(
        host=cloud.held,
        openstack_id=gone,
        memory_gib=8,
        vcpus=2,
        project_id=OWNER,
        flavor_name="small",
    )
    assert cloud.inside() == {vm: 8}
    for minutes in (0, 20, 60):
        verify(minutes, believes_list=True)
        assert_claims_are_the_ledger()
        assert (cloud.inside(), cloud.blocked_gib()) == ({vm: 8}, 8)


def test_nothing_is_enforced_where_that_is_switched_off(cloud: Cloud, settings: Any) -> None:
    placement_settings(
        settings, host_inventories="host", enforce_new_defaults=False, enforce_held=False
    )
    use_source(settings, "placement")
    asked = {cloud.held.openstack_id: SMALL}
    assert cloud.client.allocate(uuid(), asked, project_id=STRANGER).status == 204


def test_hosts_are_joined_by_the_uuid_of_their_provider(cloud: Cloud) -> None:
    named = uuid()
    host = make_host("named", memory_gib=8, vcpus=2, openstack_id="17", provider_uuid=named)
    rebuild_host_capacity()
    reconcile_hosts()
    Host.objects.filter(pk=host.pk).update(name="renamed")
    make_slot(cloud.commitment, host, memory_gib=8, vcpus=2)
    asked = {named: SMALL}
    assert cloud.client.allocate(uuid(), asked, project_id=STRANGER).status == 409
    assert cloud.client.allocate(uuid(), asked, project_id=OWNER).status == 204
    assert HostCapacity.objects.get(host=host).allocated_memory_bytes == 8 * GIB


def reservations_read_by_a_claim(cloud: Cloud) -> int:
    """Claim a part of the held host and take it back; return how many reservations that read."""
    asked = {cloud.held.openstack_id: SMALL}
    with transaction.atomic():
        before = rows_read("capacity_reservation")
        assert cloud.client.allocate(uuid(), asked, project_id=OWNER).status == 204
        assert ReservationAllocation.objects.exists()
        read = rows_read("capacity_reservation") - before
        transaction.set_rollback(True)
    return read


@pytest.mark.sql("capacity_settle_claims", "capacity_join_slots")
def test_a_claim_reads_no_slots_of_other_hosts_whatever_is_known_of_the_table(
    cloud: Cloud,
) -> None:
    alone = reservations_read_by_a_claim(cloud)
    for host in make_hosts(40, prefix="other", memory_gib=16, vcpus=4):
        make_slot(cloud.commitment, host, flavor_name="large", memory_gib=16, vcpus=4)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE capacity_reservation")
        cursor.execute("DISCARD PLANS")
    assert reservations_read_by_a_claim(cloud) < alone + 40


@pytest.mark.django_db
def test_a_refusal_on_a_host_that_went_meanwhile_is_one_too() -> None:
    eaten = Eaten(host_id=0, resource="vcpus", taken=2, effective=1, before=1)

    refusal = held_for_others(eaten, {})

    assert (refusal.status, refusal.wire_code) == (409, "placement.undefined_code")
    assert "concurrent" not in refusal.message
