"""Evacuation plans: who goes where when hosts die (spec failover, 17.2 and 17.5).

The plan of a zone is made once for all its dead hosts and again when a further one dies, for the
VMs that have not started yet. Slots that it gives out are ``consuming``: they cover nobody else,
still block their room, and go once their VM has arrived.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import structlog
from django.db import DatabaseError, OperationalError, transaction
from django.db.models import F, Q

from capacity.hooks import BeingChanged
from capacity.locks import zone_lock
from capacity.models import Reservation, ReservationAllocation
from core.sql import load_sql
from failover.choices import EventReason, SlotState
from failover.domain.drill import DrillResult, DrillVerificationError, simulate
from failover.domain.drill_state import DrillState
from failover.drill_models import (
    PENDING_MOVES,
    EvacuationMove,
    EvacuationPlan,
    EvacuationState,
    MoveState,
)
from failover.models import FailoverReservation
from failover.selectors.drills import state_of, zone_snapshot
from failover.services.events import Happening, record_events
from failover.services.replanning import note_due
from failover.services.writing import (
    delete_unused,
    delete_users,
    in_step,
    lock_rooms_of,
    lock_slots,
)
from hosts.models import Host, HostState, Instance
from journal.actors import Actor
from journal.clock import is_ahead
from journal.errors import Busy, HeadroomError
from journal.outages import is_retryable
from journal.services import Change, record_changes
from journal.statements import fetch_rows

log = structlog.get_logger(__name__)

LOCK_ATTEMPTS: Final = 5
BACK_GRACE: Final = timedelta(minutes=10)
START_LIMIT: Final = timedelta(hours=1)
OPEN_MOVES: Final = (*PENDING_MOVES, MoveState.UNPROTECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvacuationOutcome:
    """What planning did in a zone.

    Attributes:
        failed_hosts: Hosts that the plan is for.
        planned: VMs with a slot.
        unprotected: VMs without one.
    """

    zone: str
    failed_hosts: tuple[str, ...]
    planned: int
    unprotected: int


def plan_evacuations(*, actor: Actor, request_id: str, now: datetime) -> list[EvacuationOutcome]:
    """Plan for every zone with hosts that are lost and VMs on them that no plan knows.

    Each zone is a transaction of its own; one that is planned already costs one statement, and one
    that others hold is left to the next pass and holds up none.
    """
    outcomes = []
    for zone in zones_to_plan():
        try:
            outcome = plan_evacuation(zone, actor=actor, request_id=request_id, now=now)
        except (HeadroomError, DatabaseError, DrillVerificationError) as error:
            log.warning("evacuation_not_planned", zone=zone, error=str(error))
            continue
        if outcome is not None:
            outcomes.append(outcome)
    return outcomes


UNPLANNED = load_sql("failover", "zones_without_plan")


def zones_to_plan() -> list[str]:
    """Return zones where a covered VM of a dead host has no plan, or its target died."""
    return [row[0] for row in fetch_rows(UNPLANNED)]


def plan_evacuation(
    zone: str,
    *,
    actor: Actor,
    request_id: str,
    now: datetime,
    also_failed: Collection[str] = (),
) -> EvacuationOutcome | None:
    """Make or renew the evacuation plan of a zone, in one transaction under the zone's lock.

    VMs whose evacuation has started keep their slots; all others are planned anew.

    Args:
        also_failed: Hosts that are known to be dead although their rows do not say so yet.

    Returns:
        What was planned; None if no host of the zone is dead.

    Raises:
        Busy: the zone stayed locked by others.

    Source: spec failover, 17.2 (evacuation planner).
    """
    with transaction.atomic(durable=True):
        zone_lock([zone])
        plan = (
            EvacuationPlan.objects.filter(zone=zone, state=EvacuationState.OPEN)
            .select_for_update(of=("self",), no_key=True)
            .first()
        )
        failed = _failed_hosts(zone, plan, also_failed)
        if not failed:
            return None
        if plan is None:
            plan = EvacuationPlan(zone=zone, started_at=now, request_id=request_id)
        plan.failed_hosts = sorted(failed)
        plan.changed_at = now
        plan.save()
        state, known = _state_of(zone, plan, now)
        started = [
            move
            for move in known.values()
            if move.state == MoveState.STARTED
            and move.target_host is not None
            and move.target_host.name not in failed
        ]
        settled = {move.vm_uuid for move in started}
        result = simulate(
            state,
            failed & set(state.hosts),
            settled=settled,
            taken={move.reservation_name for move in started},
        )
        _write_moves(plan, known, result, now, settled=settled)
        _mark_slots(plan, now, waits=True)
        _record(plan, result, actor=actor, request_id=request_id, now=now)
    return EvacuationOutcome(
        zone=zone,
        failed_hosts=tuple(plan.failed_hosts),
        planned=len(result.assignments),
        unprotected=len(result.unprotected),
    )


def _failed_hosts(
    zone: str, plan: EvacuationPlan | None, also_failed: Collection[str]
) -> frozenset[str]:
    """Return hosts that are lost, that somebody says are dead, or that are being evacuated."""
    lost = set(Host.objects.filter(zone=zone, is_lost=True).values_list("name", flat=True))
    emptying: set[str] = set()
    if plan is not None:
        emptying = set(
            plan.moves.filter(state__in=OPEN_MOVES).values_list("from_host__name", flat=True)
        )
    return frozenset(lost | emptying | set(also_failed))


def _state_of(
    zone: str, plan: EvacuationPlan, now: datetime
) -> tuple[DrillState, dict[str, EvacuationMove]]:
    """Return the zone with the slots of waiting moves free again, and the moves by VM."""
    rows = plan.moves.select_related("target_host").order_by("pk")
    moves = {move.vm_uuid: move for move in rows.select_for_update(of=("self",))}
    waiting = {move.reservation_name for move in moves.values() if move.state == MoveState.PLANNED}
    state = state_of([zone_snapshot(zone, now=now)])
    if waiting:
        slots = [
            replace(slot, is_usable=True) if slot.name in waiting else slot
            for slot in state.slots.values()
        ]
        state = DrillState.of(state.hosts.values(), state.vms.values(), slots)
    return state, moves


def _write_moves(
    plan: EvacuationPlan,
    known: dict[str, EvacuationMove],
    result: DrillResult,
    now: datetime,
    *,
    settled: Collection[str],
) -> None:
    """Replace what had not started, or whose target died, by the new plan."""
    affected = {row.vm for row in result.assignments} | {row.vm for row in result.unprotected}
    stale = [
        move.pk
        for move in known.values()
        if move.vm_uuid in affected or (move.state in PENDING_MOVES and move.vm_uuid not in settled)
    ]
    EvacuationMove.objects.filter(pk__in=stale).delete()
    hosts = dict(
        Host.objects.filter(
            name__in={row.from_host for row in result.assignments}
            | {row.to_host for row in result.assignments}
        ).values_list("name", "pk")
    )
    slots = dict(
        FailoverReservation.objects.filter(
            name__in=[row.slot for row in result.assignments]
        ).values_list("name", "reservation_id")
    )
    origins = dict(
        Instance.objects.filter(
            openstack_id__in=[row.vm for row in result.unprotected], host__isnull=False
        ).values_list("openstack_id", "host_id")
    )
    EvacuationMove.objects.bulk_create(
        [
            EvacuationMove(
                plan=plan,
                vm_uuid=row.vm,
                state=MoveState.PLANNED,
                from_host_id=hosts[row.from_host],
                target_host_id=hosts[row.to_host],
                reservation_id=slots.get(row.slot),
                reservation_name=row.slot,
                is_private=row.is_private,
                changed_at=now,
            )
            for row in result.assignments
        ]
        + [
            EvacuationMove(
                plan=plan,
                vm_uuid=row.vm,
                state=MoveState.UNPROTECTED,
                from_host_id=origins[row.vm],
                reason=row.reason.value,
                changed_at=now,
            )
            for row in result.unprotected
            if row.vm in origins
        ]
    )


def _mark_slots(plan: EvacuationPlan, now: datetime, *, waits: bool) -> None:
    """Make the slots that the zone's pending moves use consuming, and all others active.

    Args:
        plan: The plan of the zone.
        waits: Whether to wait for VMs that are leaving slots; not with rooms locked.

    Raises:
        Busy: others are changing one of the slots.
    """
    used = set(
        plan.moves.filter(state__in=PENDING_MOVES, reservation__isnull=False).values_list(
            "reservation_id", flat=True
        )
    )
    in_zone = FailoverReservation.objects.filter(reservation__zone=plan.zone)
    free = in_zone.filter(state=SlotState.CONSUMING).exclude(reservation_id__in=used)
    fresh = in_zone.filter(state=SlotState.ACTIVE, reservation_id__in=used)
    changing = (free | fresh).values_list("reservation_id", flat=True)
    _lock_slots(plan.zone, changing, attempts=LOCK_ATTEMPTS if waits else 1)
    free.update(
        state=SlotState.ACTIVE, version=F("version") + 1, next_validation_at=now, updated_at=now
    )
    lost = ReservationAllocation.objects.filter(
        reservation_id__in=list(fresh.values_list("reservation_id", flat=True))
    )
    note_due(lost.values_list("vm_uuid", flat=True))
    fresh.update(state=SlotState.CONSUMING, version=F("version") + 1, updated_at=now)


def _lock_slots(zone: str, reservation_ids: Iterable[int], *, attempts: int = 1) -> None:
    """Lock slots of a zone against changes of their users, all or none.

    Waits between attempts for one that another is changing, with none of the others locked: who
    moves VMs locks in the order of the VMs, so waiting with some could end in a deadlock.

    Raises:
        BeingChanged: others are changing one of them all the same.
    """
    wanted = set(reservation_ids)
    for attempt in range(1, attempts + 1):
        with transaction.atomic():
            taken = wanted - set(lock_slots(wanted))
            if not taken:
                return
            transaction.set_rollback(True)
        if attempt < attempts:
            _wait_for(zone, min(taken))
    wait = partial(_wait_for, zone, min(taken))
    raise BeingChanged(f"zone {zone}: VMs are moving", wait=wait)


def _wait_for(zone: str, reservation_id: int) -> None:
    """Wait until nobody is changing a slot; lock nothing."""
    row = FailoverReservation.objects.filter(reservation_id=reservation_id)
    try:
        with transaction.atomic():
            row.select_for_update(no_key=True).first()
            transaction.set_rollback(True)
    except OperationalError as error:
        if not is_retryable(error):
            raise
        raise Busy(f"zone {zone}: VMs are moving", zone=zone) from error


def _record(
    plan: EvacuationPlan, result: DrillResult, *, actor: Actor, request_id: str, now: datetime
) -> None:
    record_changes(
        [
            Change(
                action="evacuation_planned",
                object_type="evacuation_plan",
                object_id=str(plan.pk),
                after={
                    "zone": plan.zone,
                    "failed_hosts": plan.failed_hosts,
                    "planned": len(result.assignments),
                    "unprotected": len(result.unprotected),
                },
                topic="failover",
            )
        ],
        actor=actor,
        request_id=request_id,
    )
    record_events(
        (
            Happening(
                reason=EventReason.COVERAGE_LOST,
                zone=plan.zone,
                vm_uuid=row.vm,
                message="its host died and no slot is left for it",
                facts={"reason": row.reason.value, "slots": row.slots, "required": row.required},
            )
            for row in result.unprotected
            if row.required
        ),
        request_id=request_id,
        now=now,
    )
    log.info(
        "evacuation_planned",
        zone=plan.zone,
        failed_hosts=len(plan.failed_hosts),
        planned=len(result.assignments),
        unprotected=len(result.unprotected),
    )


def start_move(vm_uuid: str, *, now: datetime) -> str:
    """Note that Nova asks where a VM goes; return the planned host, empty without a plan for it."""
    with transaction.atomic(durable=True):
        EvacuationMove.objects.filter(vm_uuid=vm_uuid, state=MoveState.PLANNED).update(
            state=MoveState.STARTED, changed_at=now
        )
        name = (
            EvacuationMove.objects.filter(vm_uuid=vm_uuid, state=MoveState.STARTED)
            .exclude(target_host__is_lost=True)
            .values_list("target_host__name", flat=True)
            .first()
        )
    return name or ""


def settle_evacuations(*, actor: Actor, request_id: str, now: datetime) -> dict[str, int]:
    """Compare open plans with where VMs are, and end what is over.

    A slot whose VM arrived goes, and its room with it: the VM takes it now. A slot whose VM went
    elsewhere, or came to no harm, is active again. Each zone is a transaction of its own under the
    zone's lock; one that others hold is left to the next pass and holds up none.

    Returns:
        State -> how many moves reached it.

    Source: spec failover, 17.5 (state machine of a slot).
    """
    counts: dict[str, int] = {}
    zones = EvacuationPlan.objects.filter(state=EvacuationState.OPEN).order_by("zone")
    for zone in list(zones.values_list("zone", flat=True)):
        settle = partial(_settle_zone, zone, actor=actor, request_id=request_id, now=now)
        try:
            settled = in_step(zone, settle)
        except (HeadroomError, DatabaseError) as error:
            log.warning("evacuation_not_settled", zone=zone, error=str(error))
            continue
        for state, number in settled.items():
            counts[state] = counts.get(state, 0) + number
    return counts


def _settle_zone(zone: str, *, actor: Actor, request_id: str, now: datetime) -> dict[str, int]:
    plan = (
        EvacuationPlan.objects.filter(zone=zone, state=EvacuationState.OPEN)
        .select_for_update(of=("self",), no_key=True)
        .first()
    )
    if plan is None:
        return {}
    moves = list(
        plan.moves.filter(state__in=OPEN_MOVES)
        .select_related("from_host")
        .order_by("pk")
        .select_for_update(of=("self",))
    )
    where = dict(
        Instance.objects.filter(openstack_id__in=[move.vm_uuid for move in moves]).values_list(
            "openstack_id", "host_id"
        )
    )
    counts: dict[str, int] = {}
    ended: list[EvacuationMove] = []
    for move in moves:
        state = _outcome(move, where, now)
        if state is not None:
            move.state, move.changed_at = state, now
            counts[state.value] = counts.get(state.value, 0) + 1
            ended.append(move)
    retire_slots(
        plan.zone,
        [
            move.reservation_id
            for move in ended
            if move.state == MoveState.ARRIVED and move.reservation_id is not None
        ],
        now,
    )
    for move in ended:
        if move.state == MoveState.ARRIVED:
            move.reservation_id = None
    EvacuationMove.objects.bulk_update(ended, ["state", "changed_at", "reservation"])
    _mark_slots(plan, now, waits=False)
    if len(ended) == len(moves):
        _finish(plan, actor=actor, request_id=request_id, now=now)
    return counts


def _outcome(
    move: EvacuationMove, where: Mapping[str, int | None], now: datetime
) -> MoveState | None:
    """Return what became of a move; None while it is under way."""
    host_id = where.get(move.vm_uuid)
    if move.vm_uuid not in where:
        return MoveState.DROPPED
    if host_id not in {None, move.from_host_id}:
        is_planned = move.state in PENDING_MOVES and host_id == move.target_host_id
        return MoveState.ARRIVED if is_planned else MoveState.ELSEWHERE
    patience = START_LIMIT if move.state == MoveState.STARTED else BACK_GRACE
    is_overdue = now - move.changed_at >= patience or is_ahead(move.changed_at, now)
    is_back = move.from_host.state == HostState.UP and not move.from_host.is_lost
    return MoveState.DROPPED if is_back and is_overdue else None


def retire_slots(zone: str, reservation_ids: Iterable[int], now: datetime) -> None:
    """Remove slots whose VM arrived, with whoever else was in them, and give their room back."""
    known = FailoverReservation.objects.filter(reservation_id__in=set(reservation_ids))
    ids = sorted(known.values_list("reservation_id", flat=True))
    if not ids:
        return
    lock_rooms_of(ids)
    _lock_slots(zone, ids)
    FailoverReservation.objects.filter(reservation_id__in=ids).update(state=SlotState.ACTIVE)
    users = ReservationAllocation.objects.filter(reservation_id__in=ids)
    left_out = delete_users(list(users.values_list("pk", flat=True)), now=now)
    note_due(vm_uuid for _, vm_uuid in left_out)
    gone = delete_unused(ids)
    left = Reservation.objects.filter(pk__in=ids).exclude(pk__in=gone)
    log.info("slots_retired", retired=len(gone), left=left.count())


def _finish(plan: EvacuationPlan, *, actor: Actor, request_id: str, now: datetime) -> None:
    plan.state, plan.finished_at, plan.changed_at = EvacuationState.DONE, now, now
    plan.save()
    counted = plan.moves.values_list("state", flat=True)
    record_changes(
        [
            Change(
                action="evacuation_finished",
                object_type="evacuation_plan",
                object_id=str(plan.pk),
                after={"zone": plan.zone, "moves": len(counted)},
                topic="failover",
            )
        ],
        actor=actor,
        request_id=request_id,
    )


def is_unplanned(vm_uuid: str) -> tuple[str, str] | None:
    """Return (zone, host) of a VM that no open plan knows on its host; None for others."""
    row = (
        Instance.objects.filter(openstack_id=vm_uuid, host__isnull=False)
        .exclude(host__zone="")
        .values_list("host__zone", "host__name", "host_id")
        .first()
    )
    if row is None:
        return None
    zone, host, host_id = row
    is_known = EvacuationMove.objects.filter(
        Q(state__in=OPEN_MOVES), vm_uuid=vm_uuid, from_host_id=host_id
    ).exists()
    return None if is_known else (zone, host)
