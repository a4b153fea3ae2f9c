"""The failover loop: one run in one zone (spec failover, 9).

Read, clean up, plan, write. Reading and planning hold no lock; writing goes in steps, see
:mod:`failover.services.apply`. A run that dies leaves whole steps, and the next one goes on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import structlog
from django.conf import settings
from django.db import transaction

from core.jobs import tried
from failover.choices import EventReason, RunOutcome
from failover.conf import FailoverConfig, current_config, plan_options
from failover.domain.cleaning import plan_cleaning
from failover.domain.covering import plan_zone
from failover.domain.plan import HostChooser, PlanOptions, RunFigures, ZonePlan
from failover.domain.rhythm import RunResult, next_interval_seconds
from failover.domain.zone_columns import ZoneSnapshot
from failover.metrics import observe_run
from failover.models import FailoverCooldown, FailoverDecision, FailoverRun, FailoverZone
from failover.selectors.scheduler import SchedulerHosts
from failover.selectors.zone import (
    failover_requirements,
    failover_zones,
    latest_cooldown,
    load_zone,
    waiting_zones,
)
from failover.services.apply import Applied, PlanWriter, StepRefusedError
from failover.services.decisions import keep_decisions
from failover.services.events import EventWriter, Happening, record_events
from hosts.domain.shrinking import length_from_now
from journal.clock import database_now
from journal.collector import paused_collector
from journal.errors import HeadroomError
from journal.leases import check_leases, held_lease
from journal.tracing import with_global_request_id

log = structlog.get_logger(__name__)

TASK_LOCK = "failover.reconcile"
DIED = "died"

ChooserFactory = Callable[[ZoneSnapshot], HostChooser]


class RunMonitor(Protocol):
    """Hears of every run that was completed."""

    def __call__(self, figures: RunFigures, *, seconds: float, zone: str) -> None:
        """Take the figures of a run and how long it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneRun:
    """What a run did, or would do.

    Attributes:
        outcome: How it ended.
        figures: What it counted.
        plan: What it planned last; None if it did not come to that.
        brake: Code of the brake; empty if it did not hold.
        hit_limit: Whether VMs were left for the next run.
        spoiled: VMs that others got in the way of.
        next_run_at: When the zone's next run is due.
    """

    zone: str
    outcome: RunOutcome
    figures: RunFigures = field(default_factory=RunFigures)
    plan: ZonePlan | None = None
    brake: str = ""
    hit_limit: bool = False
    spoiled: int = 0
    next_run_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class _Run:
    """A run under way."""

    zone: str
    state: FailoverZone
    config: FailoverConfig
    request_id: str
    now: datetime
    is_dry_run: bool
    chooser: ChooserFactory
    events: EventWriter
    monitor: RunMonitor
    started: float = field(default_factory=time.monotonic)
    snapshot: ZoneSnapshot | None = None
    plan: ZonePlan | None = None
    applied: Applied = field(default_factory=Applied)


def reconcile_zone(
    zone: str,
    *,
    request_id: str,
    now: datetime | None = None,
    is_dry_run: bool = False,
    config: FailoverConfig | None = None,
    chooser: ChooserFactory = SchedulerHosts,
    events: EventWriter = record_events,
    monitor: RunMonitor = observe_run,
) -> ZoneRun:
    """Run the loop once in a zone, unless a run is under way there.

    Args:
        is_dry_run: Plan and report, write nothing but the row of the run.
        config: What the run may do; settings and policies when left out.
        chooser: Who says what the scheduler thinks of hosts.
        events: Writes events, inside the transaction of what they tell of.
        monitor: Hears of every run that was completed.

    Raises:
        Busy: the zone stayed locked; what was written stays.

    Source: spec failover, 9.
    """
    with (
        with_global_request_id(request_id),
        held_lease(f"{TASK_LOCK}:{zone}") as is_mine,
    ):
        if not is_mine:
            log.info("failover_run_skipped", zone=zone)
            return ZoneRun(zone=zone, outcome=RunOutcome.SKIPPED)
        run = _Run(
            zone=zone,
            state=_next_state(zone, is_dry_run=is_dry_run),
            config=config or current_config(failover_requirements()),
            request_id=request_id,
            now=now or database_now(),
            is_dry_run=is_dry_run,
            chooser=chooser,
            events=events,
            monitor=monitor,
        )
        row = _started(run)
        try:
            with paused_collector():
                _attempts(run)
        except Exception as error:
            _failed(run, row, error)
            raise
        return _finished(run, row)


def due_zones(now: datetime | None = None) -> list[str]:
    """Return the zones whose next run is due; a zone that never ran is."""
    waiting = set(waiting_zones(now or database_now()).values_list("zone", flat=True))
    return [zone for zone in failover_zones() if zone not in waiting]


def _next_state(zone: str, *, is_dry_run: bool) -> FailoverZone:
    with transaction.atomic(durable=True):
        state, _ = FailoverZone.objects.get_or_create(zone=zone)
        if not is_dry_run:
            state.run_count += 1
            state.save(update_fields=["run_count"])
    return state


def _started(run: _Run) -> FailoverRun:
    with transaction.atomic(durable=True):
        FailoverRun.objects.filter(zone=run.zone, outcome=RunOutcome.RUNNING).update(
            outcome=RunOutcome.FAILED, finished_at=run.now, error_code=DIED
        )
        return FailoverRun.objects.create(
            zone=run.zone,
            number=run.state.run_count,
            started_at=run.now,
            is_dry_run=run.is_dry_run,
            request_id=run.request_id,
        )


def _attempts(run: _Run) -> None:
    """Plan and write; plan anew on fresh data when the database refuses a step."""
    tried(
        lambda: _attempt(run),
        again_after=lambda error: isinstance(error, StepRefusedError),
        event="failover_plan_spoiled",
        zone=run.zone,
    )


def _attempt(run: _Run) -> None:
    run.snapshot = load_zone(run.zone, run.config, now=run.now)
    run.plan = _planned(run, run.snapshot)
    if run.is_dry_run or run.plan.cleaning.brake is not None:
        return
    run.applied.spoiled = set()
    writer = PlanWriter(
        run.snapshot,
        creator=run.config.creator or settings.HEADROOM.failover.creator,
        request_id=run.request_id,
        now=run.now,
        trusts_hosts=bool(run.config.trust_hypervisor_location),
        events=run.events,
        done=run.applied,
    )
    writer.write(run.plan)


def _planned(run: _Run, snapshot: ZoneSnapshot) -> ZonePlan:
    options = _options(run)
    cleaning = plan_cleaning(snapshot, options)
    return plan_zone(
        snapshot, cleaning, run.chooser(snapshot), options, barred=_barred(run, snapshot)
    )


def _options(run: _Run) -> PlanOptions:
    config, options = run.config, plan_options()
    return replace(
        options,
        limit=config.max_vms_to_process or 0,
        run_number=run.state.run_count,
        rotation_interval=config.vm_selection_rotation_interval or 0,
        draw=random.randrange,
        one_new_per_host=bool(config.limit_one_new_reservation_per_hypervisor),
        shrinks=options.shrinks and not config.use_flavor_group_resources,
        previous_vm_count=run.state.vm_count,
        is_confirmed=run.state.confirmed_at is not None,
    )


def _barred(run: _Run, snapshot: ZoneSnapshot) -> Mapping[int, int]:
    """Return VM row -> bit set of hosts that validation refused to it of late (12.6)."""
    barred: dict[int, int] = {}
    host_row = {key: row for row, key in enumerate(snapshot.hosts.ids.tolist())}
    rows = FailoverCooldown.objects.filter(
        until__gt=run.now, until__lte=latest_cooldown(run.now), host_id__in=list(host_row)
    ).values_list("vm_uuid", "host_id")
    for vm_uuid, host_id in rows:
        vm = snapshot.vm_row.get(vm_uuid)
        if vm is not None:
            barred[vm] = barred.get(vm, 0) | 1 << host_row[host_id]
    return barred


def _failed(run: _Run, row: FailoverRun, error: Exception) -> None:
    log.warning("failover_run_failed", zone=run.zone, error=str(error))
    code = error.code if isinstance(error, HeadroomError) else type(error).__name__
    with transaction.atomic():
        row.outcome, row.error_code, row.message = RunOutcome.FAILED, code[:64], str(error)
        row.finished_at = database_now()
        row.counts = {"created": run.applied.created, "joined": run.applied.joined}
        row.save()
        FailoverZone.objects.filter(pk=run.state.pk).update(
            next_run_at=database_now() + _interval(run.config, None)
        )


def _interval(config: FailoverConfig, result: RunResult | None) -> timedelta:
    chosen = settings.HEADROOM.failover
    long, short = config.reconcile_interval, config.short_reconcile_interval
    fewest, most = config.min_success_for_short_interval, config.max_failures_for_short_interval
    seconds = next_interval_seconds(
        result,
        interval_seconds=(
            chosen.reconcile_interval_seconds if long is None else long.total_seconds()
        ),
        short_interval_seconds=(
            chosen.short_reconcile_interval_seconds if short is None else short.total_seconds()
        ),
        min_successes=chosen.min_success_for_short_interval if fewest is None else fewest,
        max_failures=chosen.max_failures_for_short_interval if most is None else most,
    )
    return timedelta(seconds=seconds)


def _figures(run: _Run) -> RunFigures:
    assert run.snapshot is not None  # noqa: S101 - a finished run has both
    assert run.plan is not None  # noqa: S101
    cover, done = run.plan.cover, run.applied
    return RunFigures(
        total_vms=run.snapshot.notes.get("vms_listed", len(run.snapshot.vms)),
        total_reservations=len(run.snapshot.slots) - done.deleted + done.created,
        vms_missing_failover=cover.missing_vms,
        vms_processed=cover.processed_vms,
        reservations_needed=cover.needed,
        reused=done.joined - done.created,
        created=done.created,
        failed=cover.failed + len(done.spoiled),
        reservations_updated=done.updated,
        reservations_deleted=done.deleted,
    )


def _finished(run: _Run, row: FailoverRun) -> ZoneRun:
    figures = _figures(run)
    assert run.snapshot is not None  # noqa: S101 - a finished run has both
    assert run.plan is not None  # noqa: S101
    brake, cover = run.plan.cleaning.brake, run.plan.cover
    result = RunResult(
        hit_limit=cover.hit_limit or bool(run.applied.spoiled),
        succeeded=figures.created + figures.reused,
        failed=figures.failed,
    )
    ended = database_now()
    next_run_at = ended + _interval(run.config, result)
    outcome = RunOutcome.DONE if brake is None else RunOutcome.HALTED
    with transaction.atomic(durable=True):
        check_leases()
        if not run.is_dry_run:
            _note_state(run, next_run_at)
            if brake is None:
                known = FailoverDecision.objects.filter(zone=run.zone)
                keep_decisions(
                    run.snapshot,
                    run.plan,
                    known=known.values_list("vm_uuid", flat=True),
                    run=row,
                    request_id=run.request_id,
                    now=run.now,
                    spoiled=run.applied.spoiled,
                    events=run.events,
                )
        row.outcome, row.finished_at = outcome, ended
        row.error_code = "" if brake is None else brake.code
        row.message = "" if brake is None else brake.message
        row.counts = {
            **asdict(figures),
            "kept_by_safeguard": run.plan.cleaning.kept,
            "removals": len(run.plan.cleaning.removals),
            "resized": run.applied.resized,
            "planned_created": len(cover.created),
            "planned_joins": len(cover.joins),
            "spoiled": len(run.applied.spoiled),
        }
        row.save()
    if not run.is_dry_run:
        run.monitor(figures, seconds=time.monotonic() - run.started, zone=run.zone)
    return ZoneRun(
        zone=run.zone,
        outcome=outcome,
        figures=figures,
        plan=run.plan,
        brake="" if brake is None else brake.code,
        hit_limit=cover.hit_limit,
        spoiled=len(run.applied.spoiled),
        next_run_at=next_run_at,
    )


def _note_state(run: _Run, next_run_at: datetime) -> None:
    """Remember the brake, or that the run went through, for the next run of the zone."""
    assert run.snapshot is not None  # noqa: S101 - a finished run has both
    assert run.plan is not None  # noqa: S101
    brake, kept = run.plan.cleaning.brake, run.plan.cleaning.kept
    events = []
    state = FailoverZone.objects.select_for_update(no_key=True).get(pk=run.state.pk)
    state.next_run_at = next_run_at
    if brake is not None:
        if state.brake_reason != brake.code:
            state.braked_at = run.now
            events.append(
                Happening(
                    reason=EventReason.REMOVAL_HALTED,
                    zone=run.zone,
                    message=brake.message,
                    facts={"code": brake.code, **brake.facts},
                )
            )
        state.brake_reason, state.brake_facts = brake.code, dict(brake.facts)
    else:
        state.brake_reason, state.brake_facts, state.braked_at = "", {}, None
        state.confirmed_at, state.confirmed_by = None, ""
        listed = run.snapshot.notes.get("vms_listed", 0)
        state.vm_count = length_from_now(listed, before=run.state.vm_count, now=state.vm_count)
        if kept:
            events.append(
                Happening(
                    reason=EventReason.SAFEGUARD_KEPT,
                    zone=run.zone,
                    message=f"{kept} memberships kept: only hosts know their VMs",
                    facts={"memberships": kept},
                )
            )
    state.save()
    run.events(events, request_id=run.request_id, now=run.now)
