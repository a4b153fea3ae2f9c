"""Planning one VM now, when something happened to it (spec failover, 13.6, 17.8).

The run of the zone would do the same within its interval. Both take the same lock, so a zone has
one planner at a time; the loop goes first. Writing is the loop's: the zone lock, another look at
what the plan stands on, and the trigger that refuses whatever breaks a rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import islice

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import transaction

from failover.conf import FailoverConfig, current_config, plan_options
from failover.domain.cleaning import plan_cleaning
from failover.domain.covering import left_after, missing_counts, plan_cover
from failover.domain.plan import CoverPlan, HostChooser, ZonePlan
from failover.domain.zone_columns import ZoneSnapshot
from failover.models import DueVM, FailoverZone
from failover.selectors.scheduler import SchedulerHosts
from failover.selectors.vicinity import Vicinity, load_vicinity, open_slots, zone_of_vm
from failover.selectors.zone import failover_requirements, waiting_zones
from failover.services.apply import Applied, PlanWriter, StepRefusedError
from failover.services.decisions import keep_decisions
from failover.services.events import EventWriter, record_events
from failover.services.loop import TASK_LOCK, ChooserFactory
from journal.clock import database_now
from journal.errors import Busy
from journal.leases import held_lease
from journal.statements import fetch_rows
from journal.tracing import with_global_request_id

log = structlog.get_logger(__name__)

PLANS_PER_VM = 3
NEAREST = 8
MOST_PER_ZONE = 200
MOST_PER_PASS = 2000

SELECT_DUE = """
SELECT due.id, due.vm_uuid, host.zone
  FROM (SELECT id, vm_uuid FROM failover_duevm ORDER BY id LIMIT %s) AS due
  LEFT JOIN hosts_instance AS vm ON vm.openstack_id = due.vm_uuid
  LEFT JOIN hosts_host AS host ON host.id = vm.host_id
 ORDER BY due.id
"""


class ReplanOutcome(StrEnum):
    """How planning one VM ended."""

    COVERED = "covered"
    SHORT = "short"
    NOT_NEEDED = "not_needed"
    SPOILED = "spoiled"
    SKIPPED = "skipped"
    HALTED = "halted"
    FAILED = "failed"


FINAL = frozenset(
    {
        ReplanOutcome.COVERED,
        ReplanOutcome.SHORT,
        ReplanOutcome.NOT_NEEDED,
        ReplanOutcome.FAILED,  # the loop will come by, and say what is wrong
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """What planning one VM did, or would do.

    Attributes:
        outcome: How it ended.
        zone: Its zone; empty for a VM on no host.
        removed: Reservations that it leaves.
        joined: Reservations that it gets, new ones included.
        created: New ones.
        reason: Why it lacks some; empty if it does not.
    """

    vm_uuid: str
    outcome: ReplanOutcome
    zone: str = ""
    removed: int = 0
    joined: int = 0
    created: int = 0
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class _Work:
    """One VM being planned."""

    vm_uuid: str
    zone: str
    config: FailoverConfig
    request_id: str
    now: datetime
    is_dry_run: bool
    chooser: ChooserFactory | None
    events: EventWriter
    removed: int = 0
    is_retry: bool = False


def replan_vm(
    vm_uuid: str,
    *,
    request_id: str,
    now: datetime | None = None,
    is_dry_run: bool = False,
    config: FailoverConfig | None = None,
    chooser: ChooserFactory | None = None,
    events: EventWriter = record_events,
) -> Replan:
    """Give one VM the reservations it lacks, and take those from it that it must not have.

    Does nothing while the loop runs in the VM's zone, while the zone's brake is on, and for a VM
    that is nowhere: whether it is gone is for the loop to find, whose brakes see all VMs at once.
    Running it twice, or beside the loop, is harmless.

    Args:
        is_dry_run: Plan and report, write nothing.
        config: What may be done; settings and policies when left out.
        chooser: Who says what the scheduler thinks of hosts; the scheduler when left out.
        events: Writes events, inside the transaction of what they tell of.

    Raises:
        Busy: the zone stayed locked; what was written stays.

    Source: spec failover, 13.6, 17.5, 17.8.
    """
    zone, moment = zone_of_vm(vm_uuid) or ("", None)
    if not zone or moment is None:
        return Replan(vm_uuid=vm_uuid, outcome=ReplanOutcome.NOT_NEEDED)
    work = _Work(
        vm_uuid=vm_uuid,
        zone=zone,
        config=config or current_config(failover_requirements()),
        request_id=request_id,
        now=now or moment,
        is_dry_run=is_dry_run,
        chooser=chooser,
        events=events,
    )
    with (
        with_global_request_id(request_id),
        held_lease(f"{TASK_LOCK}:{zone}") as is_mine,
    ):
        if not is_mine:
            return Replan(vm_uuid=vm_uuid, outcome=ReplanOutcome.SKIPPED, zone=zone)
        return _replan(work)


def _replan(work: _Work) -> Replan:
    for _ in range(PLANS_PER_VM):
        seen = load_vicinity(work.vm_uuid, work.config, now=work.now)
        if seen is not None and seen.is_halted:
            return _result(work, ReplanOutcome.HALTED)
        if seen is not None and seen.snapshot.zone != work.zone:
            return _result(work, ReplanOutcome.SKIPPED)
        if seen is None or seen.vm < 0 or not seen.snapshot.vms.is_listed[seen.vm]:
            return _result(work, ReplanOutcome.NOT_NEEDED)
        try:
            return _written(work, *_planned(work, seen))
        except StepRefusedError:
            work.is_retry = True
            log.info("failover_replan_refused", zone=work.zone, vm_uuid=work.vm_uuid)
    return _result(work, ReplanOutcome.SPOILED)


def _planned(work: _Work, seen: Vicinity) -> tuple[Vicinity, ZonePlan]:
    """Plan the VM as a zone is planned, on what it may join; more is read if that is too little."""
    most_required = max((work.config.flavor_failover_requirements or {}).values(), default=0)
    options = replace(plan_options(), most_required=most_required, shrinks=False, is_confirmed=True)
    cleaning = plan_cleaning(seen.snapshot, options)
    stays = left_after(seen.snapshot, cleaning)
    if not missing_counts(seen.snapshot, stays)[seen.vm]:
        return seen, ZonePlan(cleaning=cleaning, cover=CoverPlan())
    is_wide = work.is_retry or bool(work.config.trust_hypervisor_location)
    chooser = _chooser(work, seen)
    found = open_slots(seen, stays, chooser.compatible(0), options, is_wide=is_wide)
    keys: list[int] = []
    most = NEAREST
    while True:
        keys += islice(found, most - len(keys))
        near = seen.with_slots(keys, is_wide=is_wide) if keys else seen
        barred = {near.vm: seen.barred}
        cover = plan_cover(near.snapshot, cleaning, chooser, options, barred=barred)
        if len(keys) < most or cover.reused == cover.needed:
            return near, ZonePlan(cleaning=cleaning, cover=cover)
        chooser, most = _chooser(work, seen), most * 4


def _chooser(work: _Work, seen: Vicinity) -> HostChooser:
    if work.chooser is not None:
        return work.chooser(seen.snapshot)
    return SchedulerHosts(seen.snapshot, table=seen.table, rows=seen.class_rows)


def _written(work: _Work, seen: Vicinity, plan: ZonePlan) -> Replan:
    shortfall = next(iter(plan.cover.shortfalls), None)
    reason = "" if shortfall is None else shortfall.reason
    outcome = ReplanOutcome.SHORT if reason else ReplanOutcome.COVERED
    work.removed = work.removed or len(plan.cleaning.removals)
    joined, created = len(plan.cover.joins), len(plan.cover.created)
    if not work.is_dry_run:
        done = Applied()
        if plan.cleaning.removals or plan.cover.joins:
            done = _writer(work, seen.snapshot).write(plan)
        joined, created = done.joined, done.created
        if done.spoiled:
            return _result(work, ReplanOutcome.SPOILED, joined=joined, created=created)
        if reason or seen.is_known_short:  # only the loop and re-plans write it, one at a time
            with transaction.atomic(durable=True):
                keep_decisions(
                    seen.snapshot,
                    plan,
                    known=[work.vm_uuid] if seen.is_known_short else [],
                    run=None,
                    request_id=work.request_id,
                    now=work.now,
                    events=work.events,
                )
    return _result(work, outcome, joined=joined, created=created, reason=reason)


def _writer(work: _Work, snapshot: ZoneSnapshot) -> PlanWriter:
    return PlanWriter(
        snapshot,
        creator=work.config.creator or settings.HEADROOM.failover.creator,
        request_id=work.request_id,
        now=work.now,
        trusts_hosts=bool(work.config.trust_hypervisor_location),
        events=work.events,
    )


def _result(
    work: _Work, outcome: ReplanOutcome, *, joined: int = 0, created: int = 0, reason: str = ""
) -> Replan:
    return Replan(
        vm_uuid=work.vm_uuid,
        outcome=outcome,
        zone=work.zone,
        removed=work.removed,
        joined=joined,
        created=created,
        reason=reason,
    )


def note_due(vm_uuids: Iterable[str]) -> None:
    """Let VMs be planned soon, inside the transaction of what happened to them."""
    DueVM.objects.bulk_create([DueVM(vm_uuid=uuid) for uuid in sorted(set(vm_uuids))])


def replan_due(*, request_id: str) -> Mapping[str, int]:
    """Plan the VMs that are due; return how many ended how.

    A zone with very many is left to its loop, which is made due. A zone whose loop is due or runs
    keeps its notes for the next pass. A VM that cannot be planned is left to the loop as well.
    """
    now = database_now()
    notes, zones = _due()
    counts: dict[str, int] = {}
    waiting = _zones_of_the_loop(zones, now)
    for zone, vms in zones.items():
        if len(vms) > MOST_PER_ZONE:
            FailoverZone.objects.filter(zone=zone).update(next_run_at=None)
            outcomes: Mapping[str, ReplanOutcome] = dict.fromkeys(vms, ReplanOutcome.NOT_NEEDED)
            counts["left_to_the_loop"] = counts.get("left_to_the_loop", 0) + len(vms)
        elif zone in waiting:
            outcomes = dict.fromkeys(vms, ReplanOutcome.SKIPPED)
        else:
            outcomes = _in_turn(vms, request_id=request_id, now=now)
        for outcome in outcomes.values():
            counts[outcome] = counts.get(outcome, 0) + 1
        _forget([key for vm in vms if outcomes.get(vm) in FINAL for key in notes[vm]])
    return counts


def _in_turn(
    vms: Collection[str], *, request_id: str, now: datetime
) -> Mapping[str, ReplanOutcome]:
    outcomes: dict[str, ReplanOutcome] = {}
    config = current_config(failover_requirements())
    for vm_uuid in vms:
        try:
            done = replan_vm(vm_uuid, request_id=request_id, now=now, config=config)
        except Busy:
            break
        except SoftTimeLimitExceeded:
            raise
        except Exception:  # whatever one VM meets, the others are planned
            log.exception("failover_replan_failed", vm_uuid=vm_uuid)
            outcomes[vm_uuid] = ReplanOutcome.FAILED
            continue
        outcomes[vm_uuid] = done.outcome
        if done.outcome in {ReplanOutcome.SKIPPED, ReplanOutcome.HALTED}:
            break
    return outcomes


def _due() -> tuple[dict[str, list[int]], dict[str, list[str]]]:
    """Return VM -> its notes, and zone -> its VMs in the order of their first note.

    VMs on no host are of the empty zone.
    """
    notes: dict[str, list[int]] = {}
    zones: dict[str, list[str]] = {}
    for key, vm_uuid, zone in fetch_rows(SELECT_DUE, [MOST_PER_PASS]):
        if vm_uuid not in notes:
            zones.setdefault(zone or "", []).append(vm_uuid)
        notes.setdefault(vm_uuid, []).append(key)
    return notes, zones


def _zones_of_the_loop(zones: Collection[str], now: datetime) -> frozenset[str]:
    """Return the zones whose loop is due now, or has never run."""
    idle = waiting_zones(now).filter(zone__in=zones)
    return frozenset(zones) - frozenset(idle.values_list("zone", flat=True)) - {""}


def _forget(keys: Collection[int]) -> None:
    DueVM.objects.filter(pk__in=keys).delete()
