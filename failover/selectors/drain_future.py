"""What will have changed by the time of a drain: ends of commitments, planned hosts (issue 6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from capacity.models import Reservation, ReservationKind
from failover.domain.drain import DrainInput, DrainSlot, blockers_for, plan_drain
from failover.domain.drain_window import SafeWindow, next_safe_window
from hosts.models import PlannedHostChange, PlannedHostEdit
from scheduling.resources import ZERO, ResourceVector
from scheduling.table import HostTable

MOST_PLANNED = 200
EFFECTIVE_COLUMNS = ("eff_memory_bytes", "eff_vcpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownChanges:
    """What is known to come in some zones.

    Attributes:
        ending: Committed slots that end, with their hosts.
        planned: Hosts that come or go, by time; those that are to be drained are left out.
        until: From when on there are more of these than were read; None if these are all.
    """

    ending: tuple[Reservation, ...] = ()
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
    ending = Reservation.objects.filter(
        kind=ReservationKind.COMMITTED, zone__in=zones, end_time__gt=now
    ).select_related("target_host")
    planned = (
        PlannedHostChange.objects.filter(host__zone__in=zones, at__gt=now)
        .exclude(edit=PlannedHostEdit.DRAIN, host__name__in=hosts)
        .select_related("host")
        .order_by("at", "pk")
    )
    read = list(planned[: MOST_PLANNED + 1])
    until = read[MOST_PLANNED].at if len(read) > MOST_PLANNED else None
    return KnownChanges(
        ending=tuple(ending),
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
            *(row.end_time for row in changes.ending if row.end_time is not None),
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
        ended = [
            row
            for row in self._changes.ending
            if row.end_time is not None and row.end_time <= moment
        ]
        ended_keys = {row.pk for row in ended}
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


def _without_blocks(table: HostTable, ended: Sequence[Reservation]) -> HostTable:
    """Return the table after committed slots ended."""
    freed: dict[int, ResourceVector] = {}
    for row in ended:
        host = row.target_host
        if host is not None and host.name in table.row_of:
            number = table.row_of[host.name]
            block = row.blocked
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
