"""Zones in the database for tests of the loop: hosts, VMs, reservations from short texts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import combinations
from typing import Any

from django.utils import timezone

from capacity.models import HostCapacity, Reservation, ReservationAllocation
from failover.conf import current_config
from failover.domain.drill import simulate
from failover.domain.drill_columns import drill_state_of
from failover.models import FailoverPolicy, FailoverReservation
from failover.selectors.zone import failover_requirements, failover_zones, load_zone
from failover.services.loop import ZoneRun, reconcile_zone
from hosts.models import Flavor, Host, Instance
from tests.domain.failover.oracle import SLOT, five_rules_hold, private_survivors
from tests.factories import (
    make_allocation,
    make_domain,
    make_flavor,
    make_host,
    make_project,
    make_reservation,
    make_vm,
)

GIB = 1 << 30
QEMU = {"capabilities:hypervisor_type": "QEMU"}


def require(**patterns: int) -> None:
    """Set the policies: pattern -> count; ``any`` stands for ``*``."""
    for place, (pattern, count) in enumerate(patterns.items()):
        FailoverPolicy.objects.create(
            flavor_pattern="*" if pattern == "any" else pattern,
            required_count=count,
            position=place,
        )


def hosts(names: str, *, zone: str = "az-a", vcpus: int = 16, gib: int = 32, **fields: Any) -> None:
    """Make hosts of some names; the domain and the projects of their VMs are known."""
    make_domain()
    make_project()
    make_project("p")
    for name in names.split():
        make_host(name, zone=zone, vcpus=vcpus, memory_gib=gib, **fields)


def flavor(name: str = "m1.large", *, vcpus: int = 4, gib: int = 8, **specs: str) -> Flavor:
    """Return a flavor for QEMU hosts; keywords are traits: required or forbidden."""
    known = Flavor.objects.filter(name=name).first()
    if known is not None:
        return known
    extra = {**QEMU, **{f"trait:{trait}": word for trait, word in specs.items()}}
    return make_flavor(name, vcpus=vcpus, memory_mib=gib * 1024, extra_specs=extra)


def vm(text: str, *, of: Flavor | None = None, **fields: Any) -> Instance:
    """Make the VM of a text like ``vm-1@host1``."""
    name, host = text.split("@")
    kind = of or flavor()
    return make_vm(
        name,
        Host.objects.get(name=host),
        openstack_id=name,
        flavor_name=kind.name,
        vcpus=kind.vcpus,
        memory_gib=kind.memory_bytes // GIB,
        flavor_extra_specs=kind.extra_specs,
        **fields,
    )


def slots(text: str, *, vcpus: int = 4, gib: int = 8) -> None:
    """Make reservations of a text like ``res-1@host2{vm-1@host1}``; users need not exist."""
    for name, host, users in SLOT.findall(text.replace("-", "_")):
        held = Host.objects.get(name=host.replace("_", "-"))
        row = make_reservation(held, memory_gib=gib, vcpus=vcpus)
        FailoverReservation.objects.create(
            reservation=row,
            name=name.replace("_", "-"),
            last_changed_at=timezone.now(),
            next_validation_at=timezone.now() + timedelta(minutes=30),
        )
        for user in filter(None, (part.strip() for part in users.split(","))):
            uuid, user_host = user.replace("_", "-").split("@")
            place = Host.objects.get(name=user_host)
            shadow = Instance(openstack_id=uuid, host=place, memory_bytes=gib * GIB, vcpus=vcpus)
            make_allocation(row, shadow)


def run(zone: str = "az-a", **options: Any) -> ZoneRun:
    """Run the loop once."""
    return reconcile_zone(zone, request_id="failover-test", **options)


def state() -> dict[str, tuple[str, dict[str, str]]]:
    """Return reservation -> (host, VM -> recorded host)."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for row in FailoverReservation.objects.select_related("reservation__target_host"):
        target_host = row.reservation.target_host
        assert target_host is not None
        users = row.reservation.allocations.select_related("vm_host")
        hosts = {user.vm_uuid: user.vm_host.name for user in users if user.vm_host is not None}
        found[row.name] = (target_host.name, hosts)
    return found


def cover() -> dict[str, int]:
    """Return VM -> how many reservations it has."""
    counts: dict[str, int] = {}
    for uuid in ReservationAllocation.objects.values_list("vm_uuid", flat=True):
        counts[uuid] = counts.get(uuid, 0) + 1
    return counts


def assert_sound(required: int = 0) -> None:
    """Rules hold, rooms add up, nothing is over capacity, and every failure is survivable."""
    plain = plain_slots()
    assert five_rules_hold(plain)
    users = {user.vm_uuid: user.host for slot in plain for user in slot.users}
    have = cover()
    for uuid, host in users.items():
        others = {one.host for one in plain} | set(users.values())
        assert private_survivors(plain, uuid, frozenset({host})) == have[uuid]
        if have[uuid] > 1:
            for other in others - {host}:
                assert private_survivors(plain, uuid, frozenset({host, other})) >= 1
    for room in HostCapacity.objects.select_related("host"):
        held = Reservation.objects.filter(target_host=room.host, kind="failover")
        assert room.failover_memory_bytes == sum(row.memory_bytes for row in held)
        assert room.failover_vcpus == sum(row.vcpus for row in held)
        taken = room.allocated_memory_bytes + room.failover_memory_bytes
        assert taken + room.committed_memory_bytes <= room.effective_memory_bytes
    assert (
        Reservation.objects.filter(kind="failover").count() == FailoverReservation.objects.count()
    )
    assert all(count >= required for count in have.values())
    assert_drills_save_everybody()


def assert_drills_save_everybody(covered_size: int = 2) -> None:
    """Every failure of up to so many hosts leaves a private place to whoever is covered for it.

    The simulation verifies its own answers; here it is asked about every set of hosts of a zone.
    Reservations on hosts that promise more than they have, or too small ones, cover nobody.

    Source: spec failover, 9.7, 17.2.
    """
    config = current_config(failover_requirements())
    for zone in failover_zones():
        drill = drill_state_of([load_zone(zone, config, now=timezone.now())])
        usable = {
            uuid: sum(
                drill.slots[name].is_usable
                and one.size.fits_into(drill.slots[name].size)
                and drill.hosts[drill.slots[name].host].keeps_promises
                for name in drill.slots_of.get(uuid, ())
            )
            for uuid, one in drill.vms.items()
        }
        for size in range(1, covered_size + 1):
            for failed in combinations(sorted(drill.hosts), size):
                answer = simulate(drill, failed)
                saved = {row.vm for row in answer.assignments if row.is_private}
                owed = {u for u, one in drill.vms.items() if one.host in failed}
                assert {uuid for uuid in owed if usable[uuid] >= size} <= saved


def plain_slots() -> list[Any]:
    """Return the reservations as values of the oracle."""
    from failover.domain.slots import FailoverSlot, SlotUser  # noqa: PLC0415

    return [
        FailoverSlot(
            name=name,
            host=host,
            users=tuple(SlotUser(vm_uuid=uuid, host=place) for uuid, place in users.items()),
        )
        for name, (host, users) in state().items()
    ]


def names(items: Iterable[str]) -> list[str]:
    """Return texts sorted."""
    return sorted(items)
