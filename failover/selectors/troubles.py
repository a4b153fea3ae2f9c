"""What is wrong with a zone's reservations, and what will become of it (spec failover, 14.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from capacity.models import ReservationAllocation
from failover.conf import plan_options
from failover.domain.blame import BrokenRule, broken_rules
from failover.domain.cleaning import plain_slots, plan_cleaning, rule_breaking_vms, stale_members
from failover.domain.plan import Brake, CleaningPlan, RemovalReason
from failover.domain.zone_columns import ZoneSnapshot
from failover.models import FailoverReservation, FailoverZone
from failover.selectors.drills import zone_snapshot

MOST_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubledMember:
    """A VM in a reservation that it should not be in, or that only the safeguard keeps.

    Attributes:
        reservation: Name of the reservation.
        host: Host of the reservation; empty if it is gone.
        reason: Why it leaves; None if the safeguard keeps it.
        recorded_host: Host the VM ran on when it joined; empty if it is gone.
        vm_host: Host it runs on now; empty if it runs nowhere here.
        right_until: When it was last found right: validated, or joined.
    """

    vm_uuid: str
    reservation: str
    host: str
    reason: RemovalReason | None
    recorded_host: str
    vm_host: str
    right_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubledSlot:
    """A reservation that covers nobody now, or that nobody is in.

    Attributes:
        host: Its host; empty if it is gone.
        users: How many VMs are in it.
        reason: ``host_gone``, ``host_not_ready``, ``consuming``, ``not_ready`` or ``empty``.
        right_until: When it was last acknowledged.
    """

    name: str
    host: str
    users: int
    reason: str
    right_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneTroubles:
    """What is wrong in a zone.

    Attributes:
        next_run_at: When its loop runs next; None if it is due.
        brake: Why the next run would remove nothing; None if it would.
        is_confirmed: Whether an operator allowed it all the same.
        breaking_vms: How many VMs break a rule.
        broken: The rules that the first of them break.
        members: VMs that leave reservations, and those that the safeguard keeps.
        slots: Reservations that cover nobody.
        hidden: How many more of members and reservations there are.
    """

    zone: str
    next_run_at: datetime | None
    brake: Brake | None
    is_confirmed: bool
    breaking_vms: int
    broken: tuple[BrokenRule, ...]
    members: tuple[TroubledMember, ...]
    slots: tuple[TroubledSlot, ...]
    hidden: int


def zone_troubles(zone: str, *, now: datetime) -> ZoneTroubles:
    """Return what is wrong in a zone now; reads the whole zone and writes nothing."""
    snapshot = zone_snapshot(zone, now=now)
    state = FailoverZone.objects.filter(zone=zone).first()
    before = 0 if state is None else state.vm_count
    options = replace(plan_options(), shrinks=False, previous_vm_count=before)
    cleaning = plan_cleaning(snapshot, options)
    brake = cleaning.brake
    if brake is not None:
        cleaning = plan_cleaning(snapshot, replace(options, is_confirmed=True))
    members = _members(snapshot, cleaning)
    slots = _slots(snapshot)
    breaking_vms, broken = _broken(snapshot)
    return ZoneTroubles(
        zone=zone,
        next_run_at=None if state is None else state.next_run_at,
        brake=brake,
        is_confirmed=state is not None and state.confirmed_at is not None,
        breaking_vms=breaking_vms,
        broken=broken,
        members=_dated(members[:MOST_SHOWN]),
        slots=_acknowledged(slots[:MOST_SHOWN]),
        hidden=max(0, len(members) - MOST_SHOWN) + max(0, len(slots) - MOST_SHOWN),
    )


def _members(snapshot: ZoneSnapshot, cleaning: CleaningPlan) -> list[tuple[int, TroubledMember]]:
    members, vms, slots = snapshot.members, snapshot.vms, snapshot.slots
    leaving: list[tuple[int, RemovalReason | None]] = [
        (one.member, one.reason) for one in cleaning.removals
    ]
    is_stale, _, _ = stale_members(snapshot)
    kept = ~vms.is_listed[members.vm] & vms.is_seen[members.vm] & ~is_stale
    leaving += [(row, None) for row in np.flatnonzero(kept).tolist()]
    return [
        (
            int(members.ids[row]),
            TroubledMember(
                vm_uuid=vms.uuids[members.vm[row]],
                reservation=slots.names[members.slot[row]],
                host=_host(snapshot, int(slots.host[members.slot[row]])),
                reason=reason,
                recorded_host=_host(snapshot, int(members.joined_host[row])),
                vm_host=_host(snapshot, int(vms.host[members.vm[row]])),
                right_until=None,
            ),
        )
        for row, reason in leaving
    ]


def _dated(members: Sequence[tuple[int, TroubledMember]]) -> tuple[TroubledMember, ...]:
    """Return members with the time at which each was last found right."""
    keys = [key for key, _ in members]
    rows = ReservationAllocation.objects.filter(pk__in=keys).values_list(
        "pk", "validated_at", "since"
    )
    times = {key: validated_at or since for key, validated_at, since in rows}
    return tuple(replace(one, right_until=times.get(key)) for key, one in members)


def _slots(snapshot: ZoneSnapshot) -> list[TroubledSlot]:
    slots, hosts = snapshot.slots, snapshot.hosts
    users = np.bincount(snapshot.members.slot, minlength=len(slots)).tolist()
    found = []
    for row, host in enumerate(slots.host.tolist()):
        if host < 0:
            reason = "host_gone"
        elif slots.is_consuming[row]:
            reason = "consuming"
        elif not slots.is_usable[row]:
            reason = "not_ready"
        elif not hosts.is_ready[host]:
            reason = "host_not_ready"
        elif not users[row]:
            reason = "empty"
        else:
            continue
        found.append(
            TroubledSlot(
                name=slots.names[row],
                host=_host(snapshot, host),
                users=users[row],
                reason=reason,
                right_until=None,
            )
        )
    return found


def _acknowledged(slots: Sequence[TroubledSlot]) -> tuple[TroubledSlot, ...]:
    rows = FailoverReservation.objects.filter(name__in=[slot.name for slot in slots])
    times = dict(rows.values_list("name", "acknowledged_at"))
    return tuple(replace(slot, right_until=times.get(slot.name)) for slot in slots)


def _broken(snapshot: ZoneSnapshot) -> tuple[int, tuple[BrokenRule, ...]]:
    """Return how many VMs break a rule, and what is wrong with the first of them.

    Hosts that have left the zone are all alike here and say nothing about rules.
    """
    members, slots = snapshot.members, snapshot.slots
    is_inside = (members.joined_host >= 0) & (slots.host[members.slot] >= 0)
    breaking = np.flatnonzero(rule_breaking_vms(snapshot, is_inside)).tolist()
    found: list[BrokenRule] = []
    for vm in breaking[:MOST_SHOWN]:
        own = members.slot[is_inside & (members.vm == vm)]
        rows = np.flatnonzero(is_inside & np.isin(members.slot, own)).tolist()
        found += broken_rules(snapshot.vms.uuids[vm], plain_slots(snapshot, rows))
    return len(breaking), tuple(found[:MOST_SHOWN])


def _host(snapshot: ZoneSnapshot, row: int) -> str:
    return snapshot.hosts.names[row] if row >= 0 else ""
