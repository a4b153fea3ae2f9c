"""Room of VMs that Nova is moving: held on both hosts until the move is over.

A VM that is migrated, resized or evacuated is listed on one host and needs another: the one where
it goes or, until a resize is confirmed, the one where it may have to return. What nobody else
counts there is an in-flight row of the migration. It ends with the migration, when a reading of
the VM list that began later says where the VM is; while nothing can be read, it stays, and of a
feed that was given up it ends by its time.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction

from capacity.ledger.claims import KnownClaims, known_claims
from capacity.ledger.in_flight_statements import DELETE_ROWS
from capacity.ledger.moving_needs import INTENTS, Stay, needed_holds
from capacity.ledger.rooms import lock_rooms, shift_blocks
from capacity.ledger.vms import refresh_slots_expecting
from capacity.locks import LockSpace, take_lock
from capacity.models import FlavorGroup, Reservation, ReservationKind
from core.chunks import in_chunks
from core.jobs import tried
from hosts.models import Host, Instance, ServerMigration
from hosts.region.moving import host_ids_by_name
from journal.clock import database_now
from journal.statements import fetch_rows
from scheduling.resources import ZERO, ResourceVector

log = structlog.get_logger(__name__)

CREATOR: Final = "migration"
VMS_PER_PART: Final = 100
Holds = Mapping[int, ResourceVector]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mover:
    """A VM that moves.

    Attributes:
        wanted: What has to be held for it, by key of the host.
        held_on: Keys of the hosts on which rows of migrations hold room for it.
        source_id: Key of the host that it leaves, if that is known.
    """

    vm_uuid: str
    wanted: Holds
    held_on: frozenset[int | None]
    intent: str = ""
    source_id: int | None = None
    vm: Instance | None = None
    group: str = ""


def forget_moved_vms(listed_until: datetime) -> None:
    """Forget migrations that were over before a reading of the VM list began.

    Args:
        listed_until: Until when the VM list knows all.
    """
    ServerMigration.objects.filter(over_at__lte=listed_until).delete()


def hold_moving_vms() -> int:
    """Make the rows of migrations agree with what is known of them.

    It opens its transactions itself, each for some VMs: it locks them, then the rooms of their
    hosts.

    Returns:
        How many VMs had rows that changed.

    Raises:
        Busy: a VM or a room was not free in time, three times.
    """
    changed = 0
    for some in in_chunks(_movers(), VMS_PER_PART):
        changed += tried(
            partial(_agree_alone, some),
            event="moving_vms_tried_again",
        )
    if changed:
        log.info("moving_vms_held", count=changed)
    return changed


def hold_moving_vms_of(host_ids: Collection[int]) -> None:
    """Do so for VMs that leave or reach some hosts, in the transaction that moved them.

    No room is free between the moment when a VM is counted on its new host and that when the old
    one is held.
    """
    chosen = set(host_ids)
    movers = [
        mover
        for mover in _movers()
        if chosen & {*mover.wanted, *mover.held_on, mover.vm.host_id if mover.vm else None}
    ]
    _agree(movers)


def _movers() -> list[_Mover]:
    """Return the VMs that move, and those that hold room for having moved, by uuid."""
    held: defaultdict[str, set[int | None]] = defaultdict(set)
    own = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT, creator=CREATOR)
    for vm_uuid, host_id in own.values_list("vm_uuid", "target_host_id"):
        held[vm_uuid].add(host_id)
    by_vm: defaultdict[str, list[ServerMigration]] = defaultdict(list)
    for row in ServerMigration.objects.order_by("uuid"):
        by_vm[row.vm_uuid].append(row)
    if not by_vm:
        return [_Mover(vm_uuid=vm, wanted={}, held_on=frozenset(held[vm])) for vm in sorted(held)]
    hosts = host_ids_by_name(
        {
            name
            for rows in by_vm.values()
            for row in rows
            for name in (row.source_name, row.target_name)
        }
    )
    vms = {vm.openstack_id: vm for vm in Instance.objects.filter(openstack_id__in=by_vm)}
    claims = known_claims(by_vm, list(hosts.values()))
    groups = _groups({vm.flavor_name for vm in vms.values()})
    found = []
    for vm_uuid in sorted(by_vm.keys() | held):
        rows, vm = by_vm.get(vm_uuid, []), vms.get(vm_uuid)
        stays = [stay for stay in _stays(rows, vm, hosts) if stay.host_id not in claims.hosts]
        found.append(
            _Mover(
                vm_uuid=vm_uuid,
                wanted=needed_holds(stays, _counted(vm, claims)),
                held_on=frozenset(held.get(vm_uuid, ())),
                intent=INTENTS.get(rows[-1].migration_type, "unknown") if rows else "",
                source_id=hosts.get(rows[-1].source_name) if rows else None,
                vm=vm,
                group=groups.get(vm.flavor_name, "") if vm else "",
            )
        )
    return found


def _stays(
    rows: Iterable[ServerMigration], vm: Instance | None, hosts: Mapping[str, int]
) -> list[Stay]:
    """Return what migrations of a VM need; nothing for one that the cloud has no more."""
    if vm is None:
        return []
    listed = ResourceVector(memory_bytes=vm.memory_bytes, vcpus=vm.vcpus)
    found = []
    for row in rows:
        for name, memory_bytes, vcpus in (
            (row.source_name, row.source_memory_bytes, row.source_vcpus),
            (row.target_name, row.target_memory_bytes, row.target_vcpus),
        ):
            size = listed
            if memory_bytes is not None and vcpus is not None:
                size = ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
            if name in hosts:
                found.append(Stay(migration=row.uuid, host_id=hosts[name], size=size))
    return found


def _counted(vm: Instance | None, claims: KnownClaims) -> Holds:
    """Return what is counted for a VM where the VM list says that it is."""
    if vm is None or vm.host_id is None or vm.host_id in claims.hosts:
        return {}
    return {vm.host_id: ResourceVector(memory_bytes=vm.memory_bytes, vcpus=vm.vcpus)}


def _groups(flavors: Collection[str]) -> dict[str, str]:
    groups = FlavorGroup.objects.filter(flavors__name__in=flavors)
    return dict(groups.values_list("flavors__name", "name"))


def _agree_alone(movers: Sequence[_Mover]) -> int:
    with transaction.atomic(durable=True):
        return _agree(movers)


def _agree(movers: Sequence[_Mover]) -> int:
    """Make the rows of VMs those that they need; return of how many any changed."""
    if not movers:
        return 0
    vm_uuids = [mover.vm_uuid for mover in movers]
    take_lock(LockSpace.PLACED_VM, vm_uuids)
    rows = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT, vm_uuid__in=vm_uuids)
    before = set(rows.values_list("target_host_id", flat=True)) - {None}
    lock_rooms({*before, *(host_id for mover in movers for host_id in mover.wanted)})
    now = database_now()
    by_vm: defaultdict[str, list[Reservation]] = defaultdict(list)
    for row in rows.order_by("pk"):
        by_vm[row.vm_uuid].append(row)
    changed = [mover.vm_uuid for mover in movers if _agree_one(mover, by_vm[mover.vm_uuid], now)]
    refresh_slots_expecting(changed)
    return len(changed)


def _agree_one(mover: _Mover, rows: Sequence[Reservation], now: datetime) -> bool:
    stale, kept = _compared(rows, mover.wanted)
    missing = {host: size for host, size in mover.wanted.items() if host not in kept}
    deltas: defaultdict[int, ResourceVector] = defaultdict(lambda: ZERO)
    if stale:
        for _, _, host_id, memory_bytes, vcpus in fetch_rows(DELETE_ROWS, [stale]):
            deltas[host_id] -= ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
    for host_id, size in _make(mover, missing, now).items():
        deltas[host_id] += size
    _prolong(list(kept.values()), now)
    shift_blocks(ReservationKind.IN_FLIGHT, deltas)
    return bool(deltas)


def _compared(
    rows: Sequence[Reservation], wanted: Holds
) -> tuple[list[int], dict[int | None, Reservation]]:
    """Return the keys of rows that have to go, and those that stay by host.

    What a placement holds on a host of the migration goes too: the migration holds it now.
    """
    kept = {
        row.target_host_id: row
        for row in rows
        if row.creator == CREATOR and wanted.get(row.target_host_id or 0) == row.size
    }
    stale = [
        row.pk
        for row in rows
        if row.target_host_id not in kept
        and (row.creator == CREATOR or row.target_host_id in wanted)
    ]
    return stale, kept


def _make(mover: _Mover, missing: Holds, now: datetime) -> Holds:
    """Make rows; return what they hold, by key of the host."""
    if not missing:
        return {}
    hosts: Iterable[tuple[int, str]] = Host.objects.filter(pk__in=missing).values_list("pk", "zone")
    zones, vm, placement_id = dict(hosts), mover.vm, uuid.uuid4()
    Reservation.objects.bulk_create(
        Reservation(
            kind=ReservationKind.IN_FLIGHT,
            zone=zones[host_id],
            flavor_group_name=mover.group,
            resource_name=vm.flavor_name if vm else "",
            project_id=vm.project_id if vm else "",
            user_id=vm.user_id if vm else "",
            memory_bytes=missing[host_id].memory_bytes,
            vcpus=missing[host_id].vcpus,
            blocked_memory_bytes=missing[host_id].memory_bytes,
            blocked_vcpus=missing[host_id].vcpus,
            target_host_id=host_id,
            source_host_id=mover.source_id,
            start_time=now,
            end_time=now + _lifetime(),
            creator=CREATOR,
            vm_uuid=mover.vm_uuid,
            intent=mover.intent,
            placement_id=placement_id,
        )
        for host_id in sorted(zones)
    )
    return {host_id: missing[host_id] for host_id in zones}


def _prolong(rows: Collection[Reservation], now: datetime) -> None:
    """Let rows that are still needed live on, when half of their time is over."""
    half = now + _lifetime() / 2
    worn = [row.pk for row in rows if row.end_time is not None and row.end_time < half]
    if worn:
        Reservation.objects.filter(pk__in=worn).update(end_time=now + _lifetime())


def _lifetime() -> timedelta:
    return timedelta(seconds=settings.HEADROOM.in_flight.slow_ttl_seconds)
