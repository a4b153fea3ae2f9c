from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone
from prometheus_client import REGISTRY

from capacity.host_table import (
    HostTableCache,
    current_host_table,
    table_differences,
    verify_host_table,
)
from capacity.ledger.rooms import move_blocks, rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation, ReservationKind
from hosts.models import Aggregate, Host, HostStatus, Instance
from journal.history import NotFollowed
from journal.metrics import metric_name
from journal.standby.asking import reading_from
from placement.selectors.snapshot import current_snapshot
from scheduling.columns import CAPACITY_COLUMNS
from scheduling.resources import GIB, ResourceVector
from scheduling.table import HostTable
from tests.factories import make_commitment, make_host, make_reservation, make_slot, make_vm
from tests.process_tables import load_host_table

pytestmark = pytest.mark.django_db(transaction=True)


def by_name(table: HostTable) -> dict[str, tuple[object, ...]]:
    return {
        name: (
            table.zones[table.zone[row]],
            bool(table.state_ok[row]),
            *(int(getattr(table, column)[row]) for column in CAPACITY_COLUMNS),
        )
        for name, row in table.row_of.items()
    }


def test_table_follows_changes_additions_and_deletions() -> None:
    make_host("h1")
    make_host("h2")
    assert set(current_host_table().names) == {"h1", "h2"}
    make_host("h3", zone="az-b")
    Host.objects.filter(name="h1").update(status=HostStatus.DISABLED)
    Host.objects.get(name="h2").delete()
    table = current_host_table()
    assert by_name(table) == by_name(load_host_table())
    assert set(table.names) == {"h1", "h3"}
    assert not table.state_ok[table.row_of["h1"]]


def test_table_follows_renamed_and_recreated_hosts() -> None:
    make_host("h1")
    make_host("h2")
    current_host_table()
    Host.objects.filter(name="h1").update(name="h9")
    Host.objects.get(name="h2").delete()
    make_host("h2", zone="az-c")
    assert by_name(current_host_table()) == by_name(load_host_table())


def test_table_is_not_brought_forward_where_a_standby_answers() -> None:
    """What changed would be the primary's word, and what hosts are that of one that is late."""
    make_host("h1")
    assert current_host_table().state_ok.tolist() == [True]
    with reading_from(connections["default"]):  # as if it were one
        Host.objects.filter(name="h1").update(status=HostStatus.DISABLED)
        for ask in (current_host_table, current_snapshot):
            with pytest.raises(NotFollowed):
                ask()
    assert current_host_table().state_ok.tolist() == [False]
    assert current_snapshot() is not None


def test_rolled_back_writes_never_stay_in_the_table() -> None:
    host = make_host("h1", memory_gib=64)
    before = by_name(current_host_table())
    with transaction.atomic():
        taken = {host.pk: ResourceVector(memory_bytes=GIB, vcpus=1)}
        assert move_blocks(ReservationKind.COMMITTED, taken) == ()
        inside = current_host_table()
        assert inside.committed_memory_bytes[inside.row_of["h1"]] == GIB
        transaction.set_rollback(True)
    assert by_name(current_host_table()) == before


def test_block_is_refused_where_the_room_is_smaller_than_asked() -> None:
    small = make_host("h1", memory_gib=4, vcpus=2)
    large = make_host("h2", memory_gib=64, vcpus=32)
    asked = ResourceVector(memory_bytes=4 * GIB, vcpus=3)
    with transaction.atomic():
        refused = move_blocks(ReservationKind.COMMITTED, {small.pk: asked, large.pk: asked})
        transaction.set_rollback(True)
    assert refused == (small.pk,)


def test_block_may_shrink_on_an_oversubscribed_host() -> None:
    host = make_host("h1", memory_gib=8, vcpus=4)
    room = {host.pk: ResourceVector(memory_bytes=8 * GIB, vcpus=4)}
    with transaction.atomic():
        assert move_blocks(ReservationKind.COMMITTED, room) == ()
    Host.objects.update(effective_memory_bytes=GIB)
    rebuilt = HostCapacity.objects.filter(host=host)
    rebuilt.update(effective_memory_bytes=GIB)
    give_back = {host.pk: ResourceVector(memory_bytes=-GIB, vcpus=0)}
    with transaction.atomic():
        assert move_blocks(ReservationKind.COMMITTED, give_back) == ()
    assert rebuilt.get().committed_memory_bytes == 7 * GIB


def test_rebuild_counts_vms_and_writes_only_what_differs() -> None:
    host = make_host("h1")
    make_vm(host=host, memory_gib=4, vcpus=2)
    HostCapacity.objects.update(allocated_memory_bytes=0)
    with transaction.atomic():
        assert rebuild_host_capacity() == 1
    assert HostCapacity.objects.get().allocated_memory_bytes == 4 * GIB
    with transaction.atomic():
        assert rebuild_host_capacity() == 0


def tenants(table: HostTable, name: str) -> frozenset[str]:
    code: int = table.aggregate_tenant_class[table.row_of[name]]
    return table.aggregate_tenant_classes[code]


def counted(what: str, **labels: str) -> float:
    name = metric_name(f"scheduling_host_table_{what}_total")
    return REGISTRY.get_sample_value(name, labels) or 0


def hold_in_flight(host: Host, vm_uuid: str) -> Reservation:
    return make_reservation(
        host,
        kind=ReservationKind.IN_FLIGHT,
        vm_uuid=vm_uuid,
        placement_id=uuid.uuid4(),
        end_time=timezone.now(),
        confirmed_host=None,
    )


@pytest.mark.parametrize(
    ("fields", "is_ready"),
    [
        pytest.param({}, True, id="no conditions, service up and enabled"),
        pytest.param({"status": "disabled"}, False, id="no conditions, disabled"),
        pytest.param({"state": "down"}, False, id="no conditions, down"),
        pytest.param({"maintenance": "manual"}, False, id="no conditions, maintenance"),
        pytest.param({"maintenance": "ha"}, True, id="no conditions, high availability"),
        pytest.param({"conditions": {"Ready": "True"}}, True, id="ready"),
        pytest.param({"conditions": {"Ready": True}}, True, id="ready as a boolean"),
        pytest.param({"conditions": {"Ready": "False"}}, False, id="not ready"),
        pytest.param({"conditions": {"Ready": "Unknown"}}, False, id="ready unknown"),
        pytest.param({"conditions": {"Terminating": "False"}}, False, id="ready missing"),
        pytest.param(
            {"conditions": {"Ready": "True", "Terminating": "True"}}, False, id="terminating"
        ),
        pytest.param(
            {"conditions": {"Ready": "True"}, "status": "disabled"}, False, id="ready but disabled"
        ),
    ],
)
def test_host_takes_vms_only_where_service_and_conditions_allow_it(
    fields: Mapping[str, Any], is_ready: bool
) -> None:
    host = make_host("h1", **fields)
    table = current_host_table()
    assert table.state_ok[table.row_of["h1"]] == is_ready
    assert host.is_ready is is_ready, "the admin says what the scheduler does"


def test_host_shows_what_filters_need() -> None:
    make_host(
        "h1",
        traits=["A"],
        custom_traits=["B"],
        building_block="bb-7",
        cpu_arch="aarch64",
        aggregate_uuids=["agg-1", "agg-unknown"],
        domain_capabilities={"features": ["sev"], "cpu_modes": ["max"], "devices": ["video"]},
    )
    Aggregate.objects.create(uuid="agg-1", name="a", metadata={"filter_tenant_id": "p1, p2"})
    table = current_host_table()
    row = table.row_of["h1"]
    for column, bits, words in (
        (table.traits, table.trait_bit, {"A", "B"}),
        (table.aggregates, table.aggregate_bit, {"agg-1", "agg-unknown"}),
        (table.features, table.feature_bit, {"sev"}),
        (table.cpu_modes, table.cpu_mode_bit, {"max"}),
        (table.devices, table.device_bit, {"video"}),
    ):
        assert {word for word, bit in bits.items() if int(column[row, 0]) >> bit & 1} == words
    assert table.building_blocks[table.building_block[row]] == "bb-7"
    assert table.cpu_archs[table.cpu_arch[row]] == "aarch64"
    assert tenants(table, "h1") == {"p1", "p2"}


def test_hosts_of_a_changed_or_deleted_aggregate_follow_it() -> None:
    make_host("h1", aggregate_uuids=["agg-1"])
    make_host("h2")
    Aggregate.objects.create(uuid="agg-1", name="a", metadata={"filter_tenant_id": "p1"})
    assert tenants(current_host_table(), "h1") == {"p1"}
    Aggregate.objects.update(metadata={"filter_tenant_id": "p2"})
    assert tenants(current_host_table(), "h1") == {"p2"}
    Aggregate.objects.all().delete()
    assert tenants(current_host_table(), "h1") == frozenset()


def test_moved_and_deleted_vms_leave_the_list_of_their_host() -> None:
    first, second = make_host("h1"), make_host("h2")
    vm = make_vm(host=first)
    other = make_vm(host=first)
    table = current_host_table()
    assert table.instance_index.lists(table.row_of["h1"], (vm.openstack_id, other.openstack_id))
    Instance.objects.filter(pk=vm.pk).update(host=second)
    Instance.objects.filter(pk=other.pk).delete()
    table = current_host_table()
    assert table.instance_index.lists(table.row_of["h1"], ())
    assert table.instance_index.rows_of(vm.openstack_id) == (table.row_of["h2"],)
    assert table.instance_index.rows_of(other.openstack_id) == ()


def test_reservations_are_found_by_project_group_and_vm() -> None:
    host = make_host("h1")
    slot = make_slot(make_commitment(project_id="p1", group="g1"), host)
    failover = make_reservation(host)
    make_vm(host=make_host("h2"), openstack_id="user", slot=failover)
    flight = hold_in_flight(host, "traveller")
    index = current_host_table().reservations
    assert [row.reservation_id for row in index.committed["p1", "g1"]] == [slot.pk]
    assert [row.reservation_id for row in index.failover_of_vm["user"]] == [failover.pk]
    assert [row.reservation_id for row in index.in_flight_of_vm["traveller"]] == [flight.pk]
    assert index.by_id[slot.pk].hosts() == ("h1",)
    slot.delete()
    ReservationAllocation.objects.all().delete()
    flight.delete()
    index = current_host_table().reservations
    assert (dict(index.committed), dict(index.failover_of_vm)) == ({}, {})
    assert set(index.by_id) == {failover.pk}


def test_table_is_the_same_in_whatever_parts_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [make_host(f"h{number}") for number in range(5)]
    slots = [make_slot(make_commitment(), host, memory_gib=8, vcpus=4) for host in hosts]
    held = [make_reservation(host) for host in hosts]
    for number, host in enumerate(hosts):
        make_vm(host=host, slot=held[number - 1])
        make_vm(memory_gib=2, vcpus=1, slot=slots[number], slot_state="expected")
    hold_in_flight(hosts[0], "traveller")
    with transaction.atomic():
        whole = load_host_table()
    for at_once in (1, 2, 100):
        monkeypatch.setattr("capacity.host_table.reading.HOSTS_AT_ONCE", at_once)
        monkeypatch.setattr("capacity.host_table.reading.RESERVATIONS_AT_ONCE", at_once)
        assert table_differences(load_host_table(), whole) == {}
    assert (len(whole), len(whole.reservations.by_id)) == (5, 11)
    assert whole.reservations.by_id[slots[0].pk].expected_only.vcpus == 1


def test_reservations_follow_the_new_name_of_their_host() -> None:
    host = make_host("h1")
    slot = make_slot(make_commitment(), host)
    assert current_host_table().reservations.by_id[slot.pk].hosts() == ("h1",)
    Host.objects.update(name="h9")
    assert current_host_table().reservations.by_id[slot.pk].hosts() == ("h9",)


def test_expected_vm_counts_in_its_slot_unless_it_is_held_in_flight_there() -> None:
    host, other = make_host("h1"), make_host("h2")
    slot = make_slot(make_commitment(), host, memory_gib=8, vcpus=4)
    vm = make_vm(memory_gib=2, vcpus=1, slot=slot, slot_state="expected")
    vector = ResourceVector(memory_bytes=2 * GIB, vcpus=1)

    def expected_only() -> ResourceVector:
        return current_host_table().reservations.by_id[slot.pk].expected_only

    assert expected_only() == vector
    hold_in_flight(other, vm.openstack_id)
    assert expected_only() == vector
    flight = hold_in_flight(host, vm.openstack_id)
    assert expected_only() == ResourceVector(memory_bytes=0, vcpus=0)
    flight.delete()
    assert expected_only() == vector
    ReservationAllocation.objects.update(
        state="confirmed", confirmed_host=host, confirmed_at=timezone.now()
    )
    row = current_host_table().reservations.by_id[slot.pk]
    assert row.expected_only == ResourceVector(memory_bytes=0, vcpus=0)
    assert row.expected_memory_bytes == 2 * GIB


def test_verification_counts_what_differs_and_repairs_the_table() -> None:
    host = make_host("h1")
    make_host("h2")
    current_host_table()
    with connection.cursor() as cursor:  # a change that leaves no trace, which no service can make
        cursor.execute("ALTER TABLE hosts_host DISABLE TRIGGER USER")
        Host.objects.filter(pk=host.pk).update(zone="az-z")
        cursor.execute("ALTER TABLE hosts_host ENABLE TRIGGER USER")
    table = current_host_table()
    assert table.zones[table.zone[table.row_of["h1"]]] == "az-a"
    before = (counted("checks", outcome="different"), counted("differences", column="zone"))
    assert verify_host_table() == {"zone": 1}
    after = (counted("checks", outcome="different"), counted("differences", column="zone"))
    assert after == (before[0] + 1, before[1] + 1)
    table = current_host_table()
    assert table.zones[table.zone[table.row_of["h1"]]] == "az-z"
    assert verify_host_table() == {}


def test_verification_of_a_table_that_nobody_used_yet_loads_it() -> None:
    make_host("h1")
    cache = HostTableCache()
    assert cache.verify() == {}
    assert cache.current().names == ("h1",)


def test_differences_name_every_column_that_two_tables_disagree_on() -> None:
    make_host("h1", traits=["A"], aggregate_uuids=["a"], building_block="bb-1")
    make_host("h2")
    make_vm(openstack_id="vm-1", host=Host.objects.get(name="h1"))
    slot = make_slot(make_commitment(), Host.objects.get(name="h1"))
    before = load_host_table()
    assert table_differences(before, before) == {}
    Host.objects.filter(name="h1").update(
        traits=["B"], aggregate_uuids=[], building_block="bb-2", status=HostStatus.DISABLED
    )
    Host.objects.filter(name="h2").update(name="h3")
    Instance.objects.update(host=Host.objects.get(name="h3"))
    HostCapacity.objects.update(failover_vcpus=3)
    Reservation.objects.filter(pk=slot.pk).update(project_id="other")
    assert table_differences(before, load_host_table()) == {
        "names": 2,
        "state_ok": 1,
        "traits": 1,
        "aggregates": 1,
        "building_block": 1,
        "failover_vcpus": 1,
        "instances": 1,
        "instance_index": 1,
        "reservations": 1,
        "reservations_committed": 2,
    }
