"""Everything a drain is judged by, and the answer (issue 6, "Safe to drain?")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Q

from capacity.host_table import current_host_table
from capacity.models import AllocationState, Reservation, ReservationAllocation, ReservationKind
from capacity.nova.slot_requests import SlotBook, held_slot
from capacity.nova.vm_requests import VmBook
from failover.domain.drain import DrainInput, DrainReport, DrainSlot, DrainVm, plan_drain
from failover.domain.drain_window import SafeWindow
from failover.domain.drill_state import DrillState
from failover.selectors.drain_future import known_changes, safe_window
from failover.selectors.drills import drill_state
from hosts.models import Host, Instance
from journal.errors import InvalidInput
from journal.heavy import Computing, computed_here
from scheduling.intents import Intent
from scheduling.resources import ResourceVector

MOST_HOSTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAnswer:
    """Whether hosts may be drained.

    Attributes:
        report: What moves where and what cannot.
        window: When it is safe next, as far as ends of commitments and planned hosts are known;
            None if nothing known helps.
    """

    report: DrainReport
    window: SafeWindow | None


def check_drain(
    host_names: Collection[str],
    *,
    now: datetime,
    computed: Computing = computed_here,
) -> DrainAnswer:
    """Return whether hosts may be drained together; writes nothing.

    Args:
        host_names: Names of the hosts.
        computed: Where the pure part is computed.

    Raises:
        InvalidInput: no host, too many, or unknown ones.
        NotReady: there are slots, and flavor groups have not been extracted yet.
    """
    hosts = _hosts(host_names)
    names = {host.name for host in hosts}
    ask, slots = alone = _loaded(hosts, now)
    changes = known_changes({host.zone for host in hosts}, hosts=names, now=now)
    others = changes.drained_hosts
    if others:
        ask, slots = _loaded([*hosts, *Host.objects.filter(name__in=others).order_by("name")], now)
    return computed(
        lambda: DrainAnswer(
            report=plan_drain(alone[0]),
            window=safe_window(ask, slots, changes, hosts=names, now=now),
        )
    )


def _hosts(names: Collection[str]) -> list[Host]:
    wanted = sorted(set(names))
    if not wanted or len(wanted) > MOST_HOSTS:
        raise InvalidInput(f"hosts: 1 to {MOST_HOSTS} names are needed, got {len(wanted)}")
    rows = list(Host.objects.filter(name__in=wanted).order_by("name"))
    unknown = sorted(set(wanted) - {row.name for row in rows})
    if unknown:
        raise InvalidInput(f"unknown hosts: {', '.join(unknown)}", code="unknown_host")
    return rows


def _loaded(hosts: Sequence[Host], now: datetime) -> tuple[DrainInput, dict[int, DrainSlot]]:
    """Return what the drain is judged by, and its committed slots by key."""
    state = drill_state(sorted({host.zone for host in hosts}), now=now)
    ids = [host.pk for host in hosts]
    vms = list(Instance.objects.filter(host_id__in=ids).select_related("host"))
    failover = [
        state.slots[name]
        for host in hosts
        for name in state.slots_on.get(host.name, ())
        if any(user in state.vms for user in state.slots[name].users)
    ]
    largest = {slot.name: _largest_user(state, slot.users) for slot in failover}
    users = Instance.objects.filter(openstack_id__in=largest.values()).select_related("host")
    book = VmBook([*vms, *users])
    by_uuid = {row.openstack_id: row for row in users}
    slots = _slots(ids)
    return (
        DrainInput(
            hosts=tuple(host.name for host in hosts),
            table=current_host_table(),
            vms=tuple(
                DrainVm(host=row.host.name, ask=book.ask_for(row, Intent.LIVE_MIGRATION))
                for row in vms
                if row.host is not None and row.memory_bytes and row.vcpus
            ),
            slots=tuple(slots.values()),
            failover_asks={
                slot.name: replace(
                    book.ask_for(by_uuid[largest[slot.name]], Intent.RESERVE_FOR_FAILOVER),
                    slot_name=slot.name,
                    slot=slot.size,
                )
                for slot in failover
                if largest[slot.name] in by_uuid and slot.size.memory_bytes and slot.size.vcpus
            },
            state=state,
        ),
        slots,
    )


def _largest_user(state: DrillState, users: Iterable[str]) -> str:
    known = [uuid for uuid in users if uuid in state.vms]
    return max(known, key=lambda uuid: (state.vms[uuid].size.memory_bytes, uuid))


def _slots(host_ids: Collection[int]) -> dict[int, DrainSlot]:
    """Return the committed slots on hosts by key, with what each and its VMs take together."""
    rows = list(
        Reservation.objects.filter(
            Q(target_host_id__in=host_ids) | Q(confirmed_host_id__in=host_ids),
            kind=ReservationKind.COMMITTED,
        )
        .select_related("target_host", "confirmed_host", "commitment")
        .order_by("pk")
    )
    if not rows:
        return {}
    inside = _vms_inside([row.pk for row in rows])
    held = [held_slot(row) for row in rows]
    book = SlotBook(held)
    slots = {}
    for row, slot in zip(rows, held, strict=True):
        host = row.confirmed_host or row.target_host
        vms = inside.get(row.pk, {})
        taken = sum(vms.values(), _vector(row.blocked_memory_bytes, row.blocked_vcpus))
        if host is None or not (taken.memory_bytes and taken.vcpus):
            continue
        slots[row.pk] = DrainSlot(
            name=f"{slot.commitment_uuid}/{slot.slot_index}",
            commitment=slot.commitment_uuid,
            host=host.name,
            ask=book.ask_for(slot, takes=taken),
            vm_uuids=tuple(sorted(vms)),
        )
    return slots


def _vms_inside(reservation_ids: Collection[int]) -> dict[int, dict[str, ResourceVector]]:
    """Return the VMs that were seen in slots, with their sizes."""
    found: dict[int, dict[str, ResourceVector]] = {}
    rows = ReservationAllocation.objects.filter(
        reservation_id__in=reservation_ids, state=AllocationState.CONFIRMED
    )
    for row in rows:
        vms = found.setdefault(row.reservation_id, {})
        vms[row.vm_uuid] = _vector(row.memory_bytes, row.vcpus)
    return found


def _vector(memory_bytes: int, vcpus: int) -> ResourceVector:
    return ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
