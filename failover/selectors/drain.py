"""What a drain is judged by, now and once what is known to come has come (issue 6)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np
from django.db.models import Q

from capacity.host_table import current_host_table
from capacity.models import AllocationState, Reservation, ReservationAllocation, ReservationKind
from capacity.nova.slot_requests import SlotBook, held_slot
from capacity.nova.vm_requests import VMBook
from failover.domain.drain import (
    DrainInput,
    DrainReport,
    DrainSlot,
    DrainVM,
    blockers_for,
    plan_drain,
)
from failover.domain.drain_window import SafeWindow, next_safe_window
from failover.domain.drill_state import DrillState
from failover.selectors.drills import state_of
from failover.selectors.losses import drain_snapshots
from hosts.models import Host, Instance, PlannedHostChange, PlannedHostEdit
from journal.errors import InvalidInput
from journal.heavy import Computing, computed_here
from scheduling.intents import Intent
from scheduling.resources import ZERO, ResourceVector
from scheduling.table import HostTable

MOST_HOSTS = 200
MOST_PLANNED = 200
EFFECTIVE_COLUMNS = ("eff_memory_bytes", "eff_vcpus")


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
    zones = sorted({host.zone for host in hosts})
    state = state_of(drain_snapshots(zones, [host.name for host in hosts], now=now))
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
    book = VMBook([*vms, *users])
    by_uuid = {row.openstack_id: row for row in users}
    slots = _slots(ids)
    return (
        DrainInput(
            hosts=tuple(host.name for host in hosts),
            table=current_host_table(),
            vms=tuple(
                DrainVM(host=row.host.name, ask=book.ask_for(row, Intent.LIVE_MIGRATION))
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


class EndingSlot(NamedTuple):
    """A committed slot that ends.

    Attributes:
        key: Its reservation's.
        at: When it ends.
        host_name: Host that holds it; None for one that nobody holds.
        memory_bytes: What it blocks there.
        vcpus: Likewise.
    """

    key: int
    at: datetime
    host_name: str | None
    memory_bytes: int
    vcpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownChanges:
    """What is known to come in some zones.

    Attributes:
        ending: Committed slots that end.
        planned: Hosts that come or go, by time; those that are to be drained are left out.
        until: From when on there are more of these than were read; None if these are all.
    """

    ending: tuple[EndingSlot, ...] = ()
    planned: tuple[PlannedHostChange, ...] = ()
    until: datetime | None = None

    @property
    def drained_hosts(self) -> tuple[str, ...]:
        """Hosts that others drain."""
        drains = (row for row in self.planned if row.edit == PlannedHostEdit.DRAIN)
        return tuple(row.host.name for row in drains)


def known_changes(zones: Collection[str], *, hosts: Collection[str], now: datetime) -> KnownChanges:
    """Return what is known to come in some zones.

    Args:
        zones: Zones of the hosts.
        hosts: Hosts that are to be drained; what is planned with them does not count.
    """
    ending = (
        Reservation.objects.filter(kind=ReservationKind.COMMITTED, zone__in=zones, end_time__gt=now)
        .values_list("pk", "end_time", "target_host__name", "blocked_memory_bytes", "blocked_vcpus")
        .order_by()
    )
    planned = (
        PlannedHostChange.objects.filter(host__zone__in=zones, at__gt=now)
        .exclude(edit=PlannedHostEdit.DRAIN, host__name__in=hosts)
        .select_related("host")
        .order_by("at", "pk")
    )
    read = list(planned[: MOST_PLANNED + 1])
    until = read[MOST_PLANNED].at if len(read) > MOST_PLANNED else None
    return KnownChanges(
        ending=tuple(map(EndingSlot._make, ending)),
        planned=tuple(row for row in read if until is None or row.at < until),
        until=until,
    )


def safe_window(
    ask: DrainInput,
    slots: Mapping[int, DrainSlot],
    changes: KnownChanges,
    *,
    hosts: Collection[str],
    now: datetime,
) -> SafeWindow | None:
    """Return when hosts may next be drained, as far as is known; None if nothing known helps.

    By each moment committed slots have ended, new hosts have come empty, and what was on hosts that
    others drained has moved: it is placed before what is on the hosts that are asked about.

    Args:
        ask: The hosts together with those that others drain.
        slots: Its committed slots by key.
        changes: What is known to come.
        hosts: The hosts that are asked about.
    """
    future = _Future(ask, slots, changes, frozenset(hosts))
    return next_safe_window(
        future.is_safe_at,
        growing=[
            *(row.at for row in changes.ending),
            *(row.at for row in changes.planned if row.edit == PlannedHostEdit.ADD),
        ],
        shrinking=[row.at for row in changes.planned if row.edit == PlannedHostEdit.DRAIN],
        now=now,
        until=changes.until,
    )


class _Future:
    """The hosts at some later time."""

    def __init__(
        self,
        ask: DrainInput,
        slots: Mapping[int, DrainSlot],
        changes: KnownChanges,
        hosts: frozenset[str],
    ) -> None:
        self._ask, self._slots, self._changes, self._hosts = ask, slots, changes, hosts

    def is_safe_at(self, moment: datetime) -> bool:
        """Return whether the hosts may be drained once everything until then has happened."""
        ask = self._at(moment)
        return not blockers_for(plan_drain(ask), ask.state, self._hosts)

    def _at(self, moment: datetime) -> DrainInput:
        happened = [row for row in self._changes.planned if row.at <= moment]
        drained = {row.host.name for row in happened if row.edit == PlannedHostEdit.DRAIN}
        gone = self._hosts | drained
        ended = [row for row in self._changes.ending if row.at <= moment]
        ended_keys = {row.key for row in ended}
        ask = self._ask
        return replace(
            ask,
            hosts=tuple(sorted(gone)),
            first=frozenset(drained - self._hosts),
            table=_with_new_hosts(_without_blocks(ask.table, ended), ask.table, happened),
            vms=tuple(vm for vm in ask.vms if vm.host in gone),
            slots=tuple(
                slot
                for key, slot in self._slots.items()
                if key not in ended_keys and slot.host in gone
            ),
            failover_asks={
                name: wanted
                for name, wanted in ask.failover_asks.items()
                if ask.state.slots[name].host in gone
            },
        )


def _without_blocks(table: HostTable, ended: Sequence[EndingSlot]) -> HostTable:
    """Return the table after committed slots ended."""
    freed: dict[int, ResourceVector] = {}
    for row in ended:
        number = None if row.host_name is None else table.row_of.get(row.host_name)
        if number is not None:
            block = _vector(row.memory_bytes, row.vcpus)
            freed[number] = freed.get(number, ZERO) + block
    if not freed:
        return table
    rows = np.array(sorted(freed), dtype=np.int64)
    memory = np.array([freed[row].memory_bytes for row in rows.tolist()], dtype=np.int64)
    vcpus = np.array([freed[row].vcpus for row in rows.tolist()], dtype=np.int64)
    return table.replace_columns(
        rows,
        {
            "committed_memory_bytes": table.committed_memory_bytes[rows] - memory,
            "committed_vcpus": table.committed_vcpus[rows] - vcpus,
        },
    )


def _with_new_hosts(
    table: HostTable, present: HostTable, happened: Sequence[PlannedHostChange]
) -> HostTable:
    """Return the table with planned hosts: empty, otherwise like the one each is modelled on."""
    models: list[int] = []
    names: list[str] = []
    for row in happened:
        model = present.row_of.get(row.host.name)
        if row.edit == PlannedHostEdit.ADD and model is not None:
            models += [model] * row.host_count
            names += [f"planned {row.pk}.{place}" for place in range(1, row.host_count + 1)]
    if not models:
        return table
    wider = table.with_copies(models, names=names, host_ids=range(-1, -1 - len(models), -1))
    columns = {column: getattr(present, column)[models].tolist() for column in EFFECTIVE_COLUMNS}
    return wider.replace_columns(range(len(table), len(wider)), columns)
