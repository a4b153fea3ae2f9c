"""Seeing the VMs in slots, zone by zone (spec commitments, 9).

A run follows what changed since the last one and looks at every slot now and then. It works in
chunks, each one transaction under the zone lock; a run that dies leaves whole chunks, and the next
one follows the same changes again. Running it twice changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import transaction

from capacity.agents.unmade import unmade_slots
from capacity.locks import LockSpace, try_lock, zone_lock
from commitments.domain.verification import Patience
from commitments.metrics.slots import count_vm_events
from commitments.models import SlotCheck
from commitments.selectors.slot_suspects import (
    Deadlines,
    WhatChanged,
    count_listed_vms,
    suspect_slots,
    what_changed,
)
from commitments.services.nudges import nudge_broken, nudge_outdated
from commitments.services.relocation import move_lost_slots, refusal_of_hosts
from commitments.services.slot_settling import ChunkContext, settle_chunk
from commitments.services.vm_list import refusal_of_list
from core.chunks import in_chunks
from core.jobs import Run
from hosts.domain.shrinking import length_from_now
from hosts.feed.state import known_until
from hosts.models import Host
from journal.actors import Actor
from journal.clock import TOLERANCE, database_now, is_ahead
from journal.errors import Busy
from journal.history import Moment, may_store, read_moment
from journal.progress import Advance, unwatched

log = structlog.get_logger(__name__)

CHUNK_SLOTS = 500
LOCK_NAME = "commitments.verify_slots"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """What a run did.

    Attributes:
        events: What happened to VMs and slots, to how many; nothing when all was at rest.
        nudged: Commitments that were made due for repair.
        skipped: Zones that another run or a planner was working on.
        refused: Zones whose VM or host list shrank too much, with the reason.
    """

    events: dict[str, int] = field(default_factory=dict)
    nudged: int = 0
    skipped: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Run(Run):
    """One run, and how it looks."""

    is_full: bool
    believes_list: bool
    believes_hosts: bool


class _ZoneTaken(Exception):  # noqa: N818 - private: says what is the case
    """Somebody else verifies this zone."""


def verify_slots(
    *,
    actor: Actor,
    request_id: str,
    now: datetime | None = None,
    zones: Collection[str] | None = None,
    is_full: bool = False,
    believes_list: bool = False,
    believes_hosts: bool = False,
    progress: Advance = unwatched,
) -> VerificationReport:
    """Bring slots in line with where VMs and hosts are.

    Args:
        now: The present; the clock's when left out.
        zones: Zones to look at; all that have hosts or slots when left out.
        is_full: Look at every slot, not only at what changed.
        believes_list: Believe the VM list however much it shrank (an operator said so).
        believes_hosts: Believe that however many hosts are lost at once, likewise.
        progress: Called with 1 after each zone.
    """
    run = _Run(
        actor=actor,
        request_id=request_id,
        now=now or database_now(),
        is_full=is_full or believes_list or believes_hosts,
        believes_list=believes_list,
        believes_hosts=believes_hosts,
    )
    events: Counter[str] = Counter()
    skipped: list[str] = []
    refused: dict[str, str] = {}
    nudged = 0
    for zone in sorted(zones_to_verify() if zones is None else zones):
        try:
            done = _verify_zone(zone, run)
        except (Busy, _ZoneTaken) as busy:
            log.info("slot_check_skipped", zone=zone, message=str(busy))
            skipped.append(zone)
            continue
        finally:
            progress(1)
        events.update(done.events)
        nudged += done.nudged
        if reasons := [reason for reason in (done.refusal, done.host_refusal) if reason]:
            refused[zone] = "; ".join(reasons)
    return VerificationReport(
        events={name: count for name, count in sorted(events.items()) if count},
        nudged=nudged,
        skipped=tuple(skipped),
        refused=refused,
    )


def zones_to_verify() -> set[str]:
    """Return the zones of hosts, and those that were looked at before."""
    of_hosts = Host.objects.exclude(zone="").order_by("zone").values_list("zone", flat=True)
    return {*of_hosts.distinct(), *SlotCheck.objects.values_list("zone", flat=True)}


@dataclass(slots=True, kw_only=True)
class _Done:
    events: Counter[str] = field(default_factory=Counter)
    nudged: int = 0
    refusal: str = ""
    host_refusal: str | None = None


def _verify_zone(zone: str, run: _Run) -> _Done:
    check = SlotCheck.objects.filter(zone=zone).first() or SlotCheck(zone=zone, host_refusal="")
    moment = read_moment()
    is_full = run.is_full or _is_full_due(check, run.now)
    since = "" if is_full else check.snapshot
    changed = what_changed(zone, since)
    done = _Done()
    suspects = _suspects(zone, since, changed, run, may_drop=True)
    listed = count_listed_vms(zone) if suspects or is_full else None
    if listed is not None and not run.believes_list:
        done.refusal = refusal_of_list(zone, check.listed_vms, listed)
    if done.refusal:
        log.error("vm_list_not_believed", zone=zone, reason=done.refusal)
        suspects = _suspects(zone, since, changed, run, may_drop=False)
    for chunk in in_chunks(suspects, CHUNK_SLOTS):
        done.events.update(_verify_chunk(zone, chunk, run, may_drop=not done.refusal))
    unmade = unmade_slots(zone)
    is_due = is_full or unmade or changed.slots or changed.hosts
    if is_due or check.host_refusal or done.events:
        done.host_refusal = "" if run.believes_hosts else refusal_of_hosts(zone, run.now)
        if done.host_refusal:
            log.error("host_list_not_believed", zone=zone, reason=done.host_refusal)
        else:
            moved = move_lost_slots(
                zone, now=run.now, actor=run.actor, request_id=run.request_id, unmade=unmade
            )
            done.events.update(moved)
        done.nudged = _nudge(zone, run)
    host_news = done.host_refusal not in {None, check.host_refusal}
    if is_full or not changed.is_nothing or done.events or host_news:
        _remember(check, moment, run, done, listed=listed, is_full=is_full)
    return done


def _is_full_due(check: SlotCheck, now: datetime) -> bool:
    interval = timedelta(seconds=settings.HEADROOM.slots.full_check_seconds)
    last = check.fully_checked_at
    return last is None or is_ahead(last, now) or now - last >= interval


def _suspects(
    zone: str, since: str, changed: WhatChanged, run: _Run, *, may_drop: bool
) -> list[int]:
    chosen = settings.HEADROOM.slots
    grace = timedelta(seconds=chosen.allocation_grace_seconds)
    settle = timedelta(seconds=chosen.migration_settle_seconds)
    known = known_until(run.now)
    deadlines = Deadlines(
        overdue=known - grace if may_drop else None,
        settled=known - settle if may_drop else None,
        latest=run.now + TOLERANCE,
    )
    return suspect_slots(zone, since, changed, deadlines, adopts=chosen.adopt_arrivals)


def _verify_chunk(zone: str, slot_ids: list[int], run: _Run, *, may_drop: bool) -> Counter[str]:
    chosen = settings.HEADROOM.slots
    context = ChunkContext(
        zone=zone,
        now=run.now,
        known_until=known_until(run.now),
        patience=Patience(
            grace=timedelta(seconds=chosen.allocation_grace_seconds),
            settle=timedelta(seconds=chosen.migration_settle_seconds),
            may_drop=may_drop,
        ),
        adopts=chosen.adopt_arrivals,
        actor=run.actor,
        request_id=run.request_id,
    )
    with transaction.atomic(durable=True):
        _lock_zone(zone)
        events = settle_chunk(slot_ids, context)
        transaction.on_commit(lambda: count_vm_events(_vm_events(events)), robust=True)
    return events


def _vm_events(events: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in events.items() if not name.startswith("slots_")}


def _nudge(zone: str, run: _Run) -> int:
    with transaction.atomic(durable=True):
        _lock_zone(zone)
        return nudge_broken(zone, run.now) + nudge_outdated(zone, run.now)


def _lock_zone(zone: str) -> None:
    """Take the lock of this task and of the zone's planners.

    Raises:
        _ZoneTaken: another run has the task's lock.
        Busy: a planner has the zone for longer than the lock timeout.
    """
    if not try_lock(LockSpace.TASK, f"{LOCK_NAME}:{zone}"):
        raise _ZoneTaken(f"slots of {zone} are being verified by another run")
    zone_lock([zone])


def _remember(
    check: SlotCheck, moment: Moment, run: _Run, done: _Done, *, listed: int | None, is_full: bool
) -> None:
    """Write from where the next run follows changes, and what this one did.

    The length of the VM list is remembered only when it was believed, less what a live cloud said
    meanwhile to be gone.
    """
    wanted: dict[str, object] = {
        "snapshot": moment.snapshot,
        "snapshot_xmin": moment.xmin,
        "checked_at": run.now,
    }
    if is_full:
        wanted["fully_checked_at"] = run.now
    if listed is not None:
        wanted |= {"is_refused": bool(done.refusal), "message": done.refusal}
    if done.host_refusal is not None:
        wanted["host_refusal"] = done.host_refusal
    if done.events or done.nudged:
        wanted["counts"] = {**dict(sorted(done.events.items())), "nudged": done.nudged}
    with transaction.atomic():
        if not may_store(moment, reader="slots"):
            return
        if listed is not None and not done.refusal:
            known = SlotCheck.objects.select_for_update(no_key=True).filter(zone=check.zone)
            now = known.values_list("listed_vms", flat=True).first()
            wanted["listed_vms"] = length_from_now(listed, before=check.listed_vms, now=now)
        SlotCheck.objects.update_or_create(zone=check.zone, defaults=wanted)
