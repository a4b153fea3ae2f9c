"""Acknowledging and revalidating reservations (spec failover, 13).

The scheduler is asked whether each user could be evacuated to its reservation now. Users of one
class are judged together; only one that fails is asked about by itself, which names the filter.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np
import structlog
from django.conf import settings

from capacity.ledger.bulk import note_invalid, note_valid
from core.chunks import in_chunks
from failover.choices import EventReason, SlotState
from failover.constants import RESERVATION_ACTIVE
from failover.domain.zone_columns import BoolColumn, Int64Column, ZoneSnapshot
from failover.metrics import VALIDATION_FAILURES, VALIDATION_SECONDS
from failover.models import FailoverReservation
from failover.selectors.drills import zone_snapshot
from failover.selectors.scheduler import SchedulerHosts
from failover.selectors.zone import latest_validation
from failover.services.events import EventWriter, Happening, record_events
from failover.services.replanning import note_due
from failover.services.writing import (
    delete_unused,
    delete_users,
    in_step,
    lock_rooms_of,
    lock_slots,
)
from failover.validation import InvalidResourceAmount, validate_amounts
from journal.clock import TOLERANCE, database_now
from journal.leases import held_lease
from journal.statements import execute, fetch_rows
from journal.tracing import with_global_request_id
from scheduling.engine import schedule
from scheduling.intents import Intent

log = structlog.get_logger(__name__)

TASK_LOCK = "failover.validate"
SLOTS_PER_RUN = 2000
SLOTS_PER_STEP = 200
HOST_FILTER = "host"
SIZE_FILTER = "size"

SELECT_DUE = """
SELECT held.id FROM failover_failoverreservation AS known
  JOIN capacity_reservation AS held ON held.id = known.reservation_id
 WHERE held.zone = %(zone)s AND known.state = 'active'
   AND (coalesce(known.next_validation_at, '-infinity') <= %(now)s
        OR known.next_validation_at > %(latest)s)
 ORDER BY known.next_validation_at NULLS FIRST, held.id LIMIT %(limit)s
"""

SELECT_DUE_ZONES = """
SELECT DISTINCT held.zone FROM failover_failoverreservation AS known
  JOIN capacity_reservation AS held ON held.id = known.reservation_id
 WHERE known.state = 'active'
   AND (coalesce(known.next_validation_at, '-infinity') <= %s OR known.next_validation_at > %s)
 ORDER BY held.zone
"""

# A change or an acknowledgement that is to come was dated by a fast clock: both were until now.
ACKNOWLEDGE = """
UPDATE failover_failoverreservation AS known
   SET acknowledged_at = CASE
           WHEN known.last_changed_at IS NOT NULL
                AND (known.acknowledged_at IS NULL OR known.acknowledged_at < known.last_changed_at)
                OR known.acknowledged_at > %(latest)s
           THEN %(now)s ELSE known.acknowledged_at END,
       last_changed_at = CASE
           WHEN known.last_changed_at > %(latest)s THEN %(now)s ELSE known.last_changed_at END,
       next_validation_at = due.next_validation_at, version = known.version + 1
  FROM unnest(%(ids)s::bigint[], %(versions)s::bigint[], %(next)s::timestamptz[])
           AS due(reservation_id, version, next_validation_at)
 WHERE known.reservation_id = due.reservation_id AND known.version = due.version
RETURNING known.reservation_id
"""

POSTPONE = """
UPDATE failover_failoverreservation AS known SET next_validation_at = due.next_validation_at
  FROM unnest(%(ids)s::bigint[], %(next)s::timestamptz[]) AS due(reservation_id, next_validation_at)
 WHERE known.reservation_id = due.reservation_id
"""

COOL_DOWN = """
INSERT INTO failover_failovercooldown AS known (vm_uuid, host_id, failures, until)
SELECT refused.vm_uuid, refused.host_id, 1, %(now)s + make_interval(secs => %(base)s)
  FROM unnest(%(vm_uuids)s::text[], %(host_ids)s::bigint[]) AS refused(vm_uuid, host_id)
ON CONFLICT (vm_uuid, host_id) DO UPDATE
   SET failures = known.failures + 1,
       until = %(now)s + make_interval(
           secs => least(%(base)s * (2 ^ least(known.failures, 20)), %(most)s))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """What validation found.

    Attributes:
        valid: Reservations all of whose users could be evacuated to them.
        removed_users: Users that could not.
        deleted: Reservations that nobody is left in, or whose host cannot hold any.
        transient: Reservations that could not be judged now; nothing was changed.
        invalid: Reservations that can hold no VM: not ready, and kept.
    """

    valid: int = 0
    removed_users: int = 0
    deleted: int = 0
    transient: int = 0
    invalid: int = 0


@dataclass(slots=True, kw_only=True)
class _Verdicts:
    """What the scheduler said of some reservations.

    Attributes:
        failed: Membership -> filter that removed the host.
        dead_slots: Reservations whose host cannot hold any.
        unknown_slots: Reservations that could not be judged.
        invalid_slots: Reservation -> what is wrong with its resources.
    """

    failed: dict[int, str] = field(default_factory=dict)
    dead_slots: set[int] = field(default_factory=set)
    unknown_slots: set[int] = field(default_factory=set)
    invalid_slots: dict[int, str] = field(default_factory=dict)


def due_validation_zones(*, now: datetime) -> list[str]:
    """Return the zones that have due reservations, sorted."""
    return [row[0] for row in fetch_rows(SELECT_DUE_ZONES, [now, latest_validation(now)])]


def validate_zone(
    zone: str,
    *,
    request_id: str,
    now: datetime | None = None,
    reservation_ids: Collection[int] | None = None,
    events: EventWriter = record_events,
) -> ValidationReport:
    """Validate reservations of a zone, unless a validation is under way there.

    Args:
        reservation_ids: Which; those that are due when left out.

    Raises:
        Busy: the zone stayed locked; what was written stays.

    Source: spec failover, 13.2, 13.5.
    """
    moment = now or database_now()
    with (
        with_global_request_id(request_id),
        held_lease(f"{TASK_LOCK}:{zone}") as is_mine,
    ):
        if not is_mine:
            return ValidationReport()
        ids = _due(zone, moment) if reservation_ids is None else list(reservation_ids)
        if not ids:
            return ValidationReport()
        started = time.monotonic()
        versions = dict(
            FailoverReservation.objects.filter(
                reservation_id__in=ids, state=SlotState.ACTIVE
            ).values_list("reservation_id", "version")
        )
        snapshot = zone_snapshot(zone, now=moment)
        work = _Validation(snapshot, versions, request_id=request_id, now=moment, events=events)
        report = work.run()
        VALIDATION_SECONDS.observe((time.monotonic() - started) / max(1, len(ids)))
        return report


def _due(zone: str, now: datetime) -> list[int]:
    latest = latest_validation(now)
    chosen = {"zone": zone, "now": now, "latest": latest, "limit": SLOTS_PER_RUN}
    return [row[0] for row in fetch_rows(SELECT_DUE, chosen)]


class _Validation:
    """One validation of some reservations of a zone."""

    def __init__(
        self,
        snapshot: ZoneSnapshot,
        versions: Mapping[int, int],
        *,
        request_id: str,
        now: datetime,
        events: EventWriter,
    ) -> None:
        self._record = events
        self._snapshot = snapshot
        self._versions = versions
        self._request_id = request_id
        self._now = now
        self._hosts = SchedulerHosts(snapshot, intent=Intent.EVACUATE)
        hosts = snapshot.hosts
        self._free_memory = hosts.free_memory_bytes()
        self._free_vcpus = hosts.free_vcpus()

    def run(self) -> ValidationReport:
        """Judge, then write in steps."""
        row_of = {key: row for row, key in enumerate(self._snapshot.slots.ids.tolist())}
        rows = [row_of[key] for key in sorted(self._versions) if key in row_of]
        verdicts = self._judged(rows)
        report = ValidationReport()
        for chosen in in_chunks(rows, SLOTS_PER_STEP):
            step = in_step(self._snapshot.zone, partial(self._write, chosen, verdicts))
            report = ValidationReport(
                valid=report.valid + step.valid,
                removed_users=report.removed_users + step.removed_users,
                deleted=report.deleted + step.deleted,
                transient=report.transient + step.transient,
                invalid=report.invalid + step.invalid,
            )
        for name in verdicts.failed.values():
            VALIDATION_FAILURES.labels(az=self._snapshot.zone, filter=name).inc()
        return report

    def _judged(self, rows: Sequence[int]) -> _Verdicts:
        snapshot = self._snapshot
        verdicts = _Verdicts(invalid_slots=self._invalid(rows))
        rows = [row for row in rows if row not in verdicts.invalid_slots]
        self._judge_hosts(rows, verdicts)
        chosen = np.zeros(len(snapshot.slots), dtype=np.bool_)
        chosen[[row for row in rows if row not in verdicts.dead_slots]] = True
        members = np.flatnonzero(chosen[snapshot.members.slot] & self._is_current())
        for member in members[~self._looks_fine(members)].tolist():
            self._ask(member, verdicts)
        return verdicts

    def _invalid(self, rows: Sequence[int]) -> dict[int, str]:
        """Return reservations whose resources are not valid, and why.

        Source: spec failover, 13.2 step 2.
        """
        slots, problems = self._snapshot.slots, {}
        for row in rows:
            memory_bytes, vcpus = int(slots.memory_bytes[row]), int(slots.vcpus[row])
            try:
                validate_amounts(memory_bytes=memory_bytes, vcpus=vcpus)
            except InvalidResourceAmount as problem:
                problems[row] = str(problem)
        return problems

    def _judge_hosts(self, rows: Sequence[int], verdicts: _Verdicts) -> None:
        """Find reservations whose host cannot take VMs; many at once are not believed.

        Source: spec failover, 13.5; 17.9 in the same spirit.
        """
        hosts, slots = self._snapshot.hosts, self._snapshot.slots
        down = int(np.count_nonzero(~hosts.is_ready))
        most = max(1.0, settings.HEADROOM.failover.max_vm_list_shrink_ratio * len(hosts))
        for row in rows:
            host = int(slots.host[row])
            if host >= 0 and hosts.is_ready[host]:
                continue
            if down > most:
                verdicts.unknown_slots.add(row)
            verdicts.dead_slots.add(row)
        if verdicts.unknown_slots:
            log.warning("failover_hosts_down", zone=self._snapshot.zone, hosts=down)

    def _is_current(self) -> BoolColumn:
        """Return bool[A], memberships of VMs that are listed where they were recorded."""
        members, vms = self._snapshot.members, self._snapshot.vms
        current: BoolColumn = vms.is_listed[members.vm] & (
            vms.host[members.vm] == members.joined_host
        )
        return current

    def _looks_fine(self, members: Int64Column) -> BoolColumn:
        """Return bool[K], members that may use the host and have room there by the columns."""
        rows, vms, slots = self._snapshot.members, self._snapshot.vms, self._snapshot.slots
        vm, slot = rows.vm[members], rows.slot[members]
        host = slots.host[slot]
        fine: BoolColumn = (
            (vms.memory_bytes[vm] <= slots.memory_bytes[slot])
            & (vms.vcpus[vm] <= slots.vcpus[slot])
            & (vms.memory_bytes[vm] <= self._free_memory[host] + slots.memory_bytes[slot])
            & (vms.vcpus[vm] <= self._free_vcpus[host] + slots.vcpus[slot])
        )
        for code in np.unique(vms.class_code[vm]).tolist():
            of_class = vms.class_code[vm] == code
            fine[of_class] &= self._hosts.compatible(code)[host[of_class]]
        return fine

    def _ask(self, member: int, verdicts: _Verdicts) -> None:
        """Ask the scheduler to evacuate one user to its reservation.

        Source: spec failover, 13.3.
        """
        snapshot = self._snapshot
        vm, slot = int(snapshot.members.vm[member]), int(snapshot.members.slot[member])
        if (
            snapshot.vms.memory_bytes[vm] > snapshot.slots.memory_bytes[slot]
            or snapshot.vms.vcpus[vm] > snapshot.slots.vcpus[slot]
        ):
            verdicts.failed[member] = SIZE_FILTER
            return
        host = snapshot.hosts.names[int(snapshot.slots.host[slot])]
        memory_bytes, vcpus = int(snapshot.vms.memory_bytes[vm]), int(snapshot.vms.vcpus[vm])
        if not (memory_bytes and vcpus):
            return
        facts = self._hosts.facts[int(snapshot.vms.class_code[vm])]
        request = replace(
            facts.request,
            request_key=snapshot.vms.uuids[vm],
            memory_bytes=memory_bytes,
            vcpus=vcpus,
            ignore_hosts=frozenset({snapshot.hosts.names[int(snapshot.vms.host[vm])]}),
            restrict_to_hosts=frozenset({host}),
        )
        decision = schedule(self._hosts.table, request, self._hosts.pipeline(facts.pipeline_name))
        if decision.failure:
            verdicts.unknown_slots.add(slot)
            log.warning(
                "failover_validation_unanswered",
                vm_uuid=request.request_key,
                reason=decision.failure,
            )
        elif decision.host_name != host:
            removed = [one.step for one in decision.removals if one.removed]
            verdicts.failed[member] = removed[0] if removed else HOST_FILTER

    def _write(self, rows: Sequence[int], verdicts: _Verdicts) -> ValidationReport:
        unknown = [row for row in rows if row in verdicts.unknown_slots]
        dead = [row for row in rows if row in verdicts.dead_slots and row not in set(unknown)]
        invalid = [row for row in rows if row in verdicts.invalid_slots]
        judged = [row for row in rows if row not in {*unknown, *dead, *invalid}]
        members = self._snapshot.members
        chosen = np.isin(members.slot, np.array(judged, dtype=np.int64))
        of_dead = np.isin(members.slot, np.array(dead, dtype=np.int64))
        failed = {member: name for member, name in verdicts.failed.items() if chosen[member]}
        failed |= dict.fromkeys(np.flatnonzero(of_dead).tolist(), HOST_FILTER)
        slot_ids = self._snapshot.slots.ids
        touched = {int(members.slot[member]) for member in failed} | set(dead)
        touched_ids = [int(slot_ids[row]) for row in sorted(touched)]
        lock_rooms_of(touched_ids)
        removed = self._remove(failed)
        deleted = delete_unused(touched_ids)
        self._postpone(unknown)
        self._mark_invalid({row: verdicts.invalid_slots[row] for row in invalid})
        valid = [row for row in judged if row not in touched]
        self._acknowledge(valid, chosen)
        return ValidationReport(
            valid=len(valid),
            removed_users=removed,
            deleted=len(deleted),
            transient=len(unknown),
            invalid=len(invalid),
        )

    def _remove(self, failed: Mapping[int, str]) -> int:
        snapshot = self._snapshot
        members = snapshot.members
        gone = set(delete_users([int(members.ids[row]) for row in failed], now=self._now))
        events, refused = [], []
        for row, name in sorted(failed.items()):
            slot, uuid = int(members.slot[row]), snapshot.vms.uuids[members.vm[row]]
            if (int(snapshot.slots.ids[slot]), uuid) not in gone:
                continue
            host = int(snapshot.slots.host[slot])
            if host >= 0:
                refused.append((uuid, int(snapshot.hosts.ids[host])))
            events.append(
                Happening(
                    reason=EventReason.VALIDATION_FAILED,
                    zone=snapshot.zone,
                    reservation_name=snapshot.slots.names[slot],
                    host_name=snapshot.hosts.names[host] if host >= 0 else "",
                    vm_uuid=uuid,
                    message=f"the VM could not be evacuated here: {name}",
                    facts={"filter": name},
                )
            )
        self._cool_down(refused)
        note_due(uuid for _, uuid in gone)
        self._record(events, request_id=self._request_id, now=self._now)
        return len(events)

    def _cool_down(self, refused: Sequence[tuple[str, int]]) -> None:
        chosen = settings.HEADROOM.failover
        if not refused or not chosen.retry_cooldown_seconds:
            return
        execute(
            COOL_DOWN,
            {
                "now": self._now,
                "base": chosen.retry_cooldown_seconds,
                "most": chosen.max_retry_cooldown_seconds,
                "vm_uuids": [vm_uuid for vm_uuid, _ in refused],
                "host_ids": [host_id for _, host_id in refused],
            },
        )

    def _acknowledge(self, rows: Sequence[int], chosen: BoolColumn) -> None:
        """Note that reservations are valid; one that changed since it was read waits its turn."""
        slots, members = self._snapshot.slots, self._snapshot.members
        keys = lock_slots([int(slots.ids[row]) for row in rows])
        done = {
            row[0]
            for row in fetch_rows(
                ACKNOWLEDGE,
                {
                    "now": self._now,
                    "latest": self._now + TOLERANCE,
                    "ids": keys,
                    "versions": [self._versions[key] for key in keys],
                    "next": [self._next() for _ in keys],
                },
            )
        }
        acknowledged = [row for row in rows if int(slots.ids[row]) in done]
        valid = chosen & np.isin(members.slot, np.array(acknowledged, dtype=np.int64))
        users = members.ids[valid].tolist()
        note_valid(done, users, active=RESERVATION_ACTIVE, now=self._now)
        counts = np.bincount(members.slot[valid], minlength=len(slots))
        self._record(
            (
                Happening(
                    reason=EventReason.VALIDATION_PASSED,
                    zone=self._snapshot.zone,
                    reservation_name=slots.names[row],
                    host_name=self._snapshot.hosts.names[int(slots.host[row])],
                    message=f"{int(counts[row])} users could be evacuated here",
                    facts={"users": int(counts[row])},
                )
                for row in acknowledged
            ),
            request_id=self._request_id,
            now=self._now,
        )

    def _mark_invalid(self, problems: Mapping[int, str]) -> None:
        """Let reservations be not ready: they keep their room and cover nobody."""
        if not problems:
            return
        slots = self._snapshot.slots
        messages = {int(slots.ids[row]): text for row, text in problems.items()}
        keys = self._postpone(list(problems))
        note_invalid({key: messages[key] for key in keys}, now=self._now)
        log.warning("failover_resources_invalid", zone=self._snapshot.zone, slots=len(keys))

    def _postpone(self, rows: Sequence[int]) -> list[int]:
        """Look at reservations again in their turn; return the keys of those, locked."""
        keys = lock_slots([int(self._snapshot.slots.ids[row]) for row in rows])
        if keys:
            execute(POSTPONE, {"ids": keys, "next": [self._next() for _ in keys]})
        return keys

    def _next(self) -> datetime:
        chosen = settings.HEADROOM.failover
        jitter = chosen.revalidation_jitter_ratio
        share = random.uniform(1 - jitter, 1 + jitter)  # noqa: S311 - spreads load
        return self._now + timedelta(seconds=chosen.revalidation_interval_seconds * share)
