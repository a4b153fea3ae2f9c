"""Rows of slots that are made for running VMs (spec commitments, 7)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from capacity.models import (
    FlavorGroup,
    FlavorGroupMember,
    HostCapacity,
    Reservation,
    ReservationAllocation,
)
from commitments.services import repair as repair_module
from commitments.services.admission import read_snapshot
from commitments.services.repair import RepairReport
from hosts.models import Host
from scheduling.resources import GIB
from tests.commitments.change_requests import NOW
from tests.commitments.due_rows import (
    FLAVOR_GIB,
    due,
    repair,
    slots,
    use_payg,
)
from tests.factories import (
    make_flavor,
    make_group,
    make_host,
    make_vm,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def cloud() -> Host:
    make_group("hana_1", flavors=[("small", FLAVOR_GIB * 1024, 4)])
    return make_host("h1", zone="az-a", memory_gib=16, vcpus=64)


class TestPaygCandidates:
    """Section 7.1."""

    @pytest.fixture(autouse=True)
    def _on(self, settings: Any) -> None:
        use_payg(settings)

    def test_vm_that_no_host_lists_is_not_a_candidate(self, cloud: Host) -> None:
        make_vm(host=None, memory_gib=4, vcpus=4, project_id="alpha", zone="az-a")
        due()
        repair()
        assert slots() == [("h1", 4)]
        assert not ReservationAllocation.objects.exists()

    @pytest.mark.parametrize(
        ("sizes", "chosen"),
        [
            pytest.param({"vm-b": 4, "vm-a": 4}, "vm-a", id="same size: by uuid"),
            pytest.param({"vm-a": 4, "vm-b": 8}, "vm-b", id="the largest that fits"),
        ],
    )
    def test_order(self, cloud: Host, sizes: dict[str, int], chosen: str) -> None:
        large = make_flavor("large", 8192, 8, group="hana_1")
        group = FlavorGroup.objects.get()
        FlavorGroupMember.objects.update(position=1)
        FlavorGroupMember.objects.create(group=group, flavor=large, position=0)
        FlavorGroup.objects.update(largest_flavor=large)
        for uuid, gib in sizes.items():
            make_vm(
                host=cloud,
                openstack_id=uuid,
                memory_gib=gib,
                vcpus=gib,
                project_id="alpha",
                flavor_name={4: "small", 8: "large"}[gib],
            )
        due(gib=max(sizes.values()))
        repair()
        assert ReservationAllocation.objects.get().vm_uuid == chosen

    def test_flag_off_holds_fresh_room(self, cloud: Host, settings: Any) -> None:
        use_payg(settings, is_on=False)
        make_vm(host=cloud, memory_gib=4, vcpus=4, project_id="alpha")
        due()
        repair()
        slot = Reservation.objects.get()
        assert (slot.ready_reason, slot.allocations.count()) == ("ReservationActive", 0)
        assert HostCapacity.objects.get().committed_memory_bytes == 4 * GIB

    def test_slot_of_a_vm_is_as_its_flavor(self, cloud: Host) -> None:
        """Section 7.2."""
        vm = make_vm(host=cloud, memory_gib=4, vcpus=4, project_id="alpha")
        due()
        repair()
        slot = Reservation.objects.get()
        assert (slot.target_host, slot.confirmed_host) == (cloud, cloud)
        assert (slot.resource_name, slot.memory_bytes, slot.vcpus) == ("small", 4 * GIB, 4)
        listed = slot.allocations.get()
        assert (listed.vm_uuid, listed.memory_bytes, listed.vcpus, listed.since) == (
            vm.openstack_id,
            4 * GIB,
            4,
            NOW,
        )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        pytest.param(
            "UPDATE hosts_instance SET host_id = (SELECT id FROM hosts_host WHERE name = 'h2')",
            "PreAllocated",
            id="it moves",
        ),
        pytest.param("DELETE FROM hosts_instance", "ReservationActive", id="it goes"),
        pytest.param(
            "UPDATE hosts_instance SET status = 'SHUTOFF'", "ReservationActive", id="stops"
        ),
    ],
)
def test_vm_that_changes_while_its_slot_is_planned(
    monkeypatch: pytest.MonkeyPatch, settings: Any, statement: str, reason: str
) -> None:
    """Section 7.3: the candidates are locked and looked at again before anything is written."""
    use_payg(settings)
    make_group("hana_1", flavors=[("small", FLAVOR_GIB * 1024, 4)])
    first = make_host("h1", memory_gib=16, vcpus=64)
    make_host("h2", memory_gib=16, vcpus=64)
    make_vm(host=first, memory_gib=4, vcpus=4, project_id="alpha")
    due()
    happened: list[str] = []

    def read_and_let_it_happen(**options: Any) -> Any:
        snapshot = read_snapshot(**options)
        if not happened:
            happened.append(statement)
            other = connection.copy()
            try:
                with other.cursor() as cursor:
                    cursor.execute(statement)
            finally:
                other.close()
        return snapshot

    monkeypatch.setattr(repair_module, "read_snapshot", read_and_let_it_happen)
    assert repair() == RepairReport(accepted=1)
    slot = Reservation.objects.get()
    assert slot.ready_reason == reason
    assert slot.allocations.count() == (reason == "PreAllocated")
    if reason == "PreAllocated":
        assert slot.target_host is not None
        assert slot.target_host.name == "h2"
