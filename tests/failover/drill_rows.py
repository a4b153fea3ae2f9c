"""Zones as rows, in the specification's notation ``rA@3{a@1,b@2}``; hosts are named h1, h2, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django.utils import timezone

from capacity.models import Reservation, ReservationAllocation
from failover.models import FailoverPolicy, FailoverReservation
from hosts.models import Host, Instance
from tests.domain.failover.drill_worlds import SLOT
from tests.factories import make_host, make_reservation, make_vm, recount_room


@dataclass(slots=True)
class ZoneRows:
    """What was made.

    Attributes:
        hosts: By the number in the notation.
        vms: By the name in the notation.
        slots: By the name in the notation, which is the slot's own.
    """

    hosts: dict[str, Host] = field(default_factory=dict)
    vms: dict[str, Instance] = field(default_factory=dict)
    slots: dict[str, Reservation] = field(default_factory=dict)

    def uuid(self, name: str) -> str:
        """Return the uuid of a VM."""
        return self.vms[name].openstack_id


def make_zone(
    slots: str = "",
    *,
    vms: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
    required: int = 2,
    zone: str = "az-a",
    memory_gib: int = 64,
    vm_gib: int = 4,
    racks: Mapping[str, str] | None = None,
) -> ZoneRows:
    """Make hosts, VMs, failover slots and the policy for them.

    Args:
        slots: Slots with their users and the hosts these run on.
        vms: Further VMs and their hosts.
        hosts: Further hosts.
        required: Slots that every VM needs.
        zone: Availability zone.
        memory_gib: Memory of each host.
        vm_gib: Memory of each VM and slot.
        racks: Host to rack.
    """
    made = ZoneRows()
    FailoverPolicy.objects.update_or_create(
        flavor_pattern="*", defaults={"required_count": required}
    )

    def host(number: str) -> Host:
        if number not in made.hosts:
            made.hosts[number] = make_host(
                f"h{number}",
                zone=zone,
                memory_gib=memory_gib,
                building_block=(racks or {}).get(number, ""),
            )
        return made.hosts[number]

    def vm(name: str, number: str) -> Instance:
        if name not in made.vms:
            made.vms[name] = make_vm(name, host(number), memory_gib=vm_gib, vcpus=1)
        return made.vms[name]

    for number in hosts:
        host(number)
    for name, number in (vms or {}).items():
        vm(name, number)
    for name, number, listed in SLOT.findall(slots):
        made.slots[name] = make_failover_slot(
            name,
            host(number),
            [vm(*entry.split("@")) for entry in listed.split(",") if entry],
            memory_gib=vm_gib,
        )
    return made


def make_failover_slot(
    name: str, host: Host, users: Sequence[Instance], *, memory_gib: int = 4
) -> Reservation:
    """Make a failover slot and its users as the services would."""
    now = timezone.now()
    row = make_reservation(host, memory_gib=memory_gib, vcpus=1, resource_name="small")
    FailoverReservation.objects.create(reservation=row, name=name, last_changed_at=now)
    ReservationAllocation.objects.bulk_create(
        ReservationAllocation(
            reservation=row,
            vm_uuid=vm.openstack_id,
            state="expected",
            memory_bytes=vm.memory_bytes,
            vcpus=vm.vcpus,
            since=now,
            vm_host=vm.host,
        )
        for vm in users
    )
    recount_room(host)
    return row
