"""What needs a person, worst first, and one verdict over it: red, amber or green.

What the checks of ``doctor`` and ``/statusz`` found is read from the rows that a worker keeps; the
rest is counted, a statement each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import models
from django.db.models import Count, Max, Q, Sum

from capacity.models import LeavingRoom
from commitments.domain.statuses import LIVE_STATUSES
from commitments.models import Commitment, Condition, SyncRun
from console.base import PageData, badge
from console.commitments.sync_runs import outcome_tone
from console.hosts.columns import CLOUD_EMPTY
from console.links import list_url, row_url
from core.doctor.findings import Severity
from core.text import duration_text, plural
from failover.drill_models import CoverageAccount, EvacuationPlan, EvacuationState
from failover.models import FailoverZone
from hosts.agents.models import HostAgent, KeyState
from hosts.agents.workload_models import Workload
from hosts.domain.liveness import Liveness
from hosts.domain.workloads import WorkloadState
from hosts.models import FeedPass, Host, HostState
from journal.models import AuditEntry, CheckFinding, Heartbeat

FINDINGS_AGE = timedelta(minutes=15)
"""Three times as long as the task that keeps findings takes to come again."""
OVERDUE = timedelta(minutes=10)
NAMES_TOLD = 5
TONES = ("bad", "warn")
ICONS = {"bad": "error", "warn": "warning", "ok": "check_circle"}

Sees = Callable[[type[models.Model]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """Something that needs a person.

    Attributes:
        tone: ``bad`` or ``warn``.
        url: Address of the rows behind it.
        detail: What it means, or what to do.
    """

    tone: str
    text: str
    url: str
    detail: str = ""


def attention(now: datetime, may_see: Sees) -> PageData | None:
    """Return the verdict and what it stands on; None for who may see nothing of it."""
    asked = [look for model, look in LOOKS.items() if may_see(model)]
    if not asked:
        return None
    concerns = [concern for look in asked for concern in look(now)]
    concerns.sort(key=lambda one: TONES.index(one.tone))
    wrong = sum(one.tone == "bad" for one in concerns)
    tone = "bad" if wrong else "warn" if concerns else "ok"
    parts = [f"{plural(wrong, 'thing')} wrong"] if wrong else []
    if len(concerns) > wrong:
        parts.append(f"{plural(len(concerns) - wrong, 'thing')} to look at")
    return PageData(
        tone=tone,
        icon=ICONS[tone],
        title=", ".join(parts) or "All is well",
        lines=[
            PageData(
                state=badge(one.tone, "wrong" if one.tone == "bad" else "look"),
                text=one.text,
                url=one.url,
                detail=one.detail,
            )
            for one in concerns
        ],
    )


def _in_use_since() -> datetime | None:
    """Return when the first change was recorded."""
    moments = AuditEntry.objects.order_by("created_at").values_list("created_at", flat=True)
    return moments.first()


def _findings(now: datetime) -> Iterator[Concern]:
    label = "journal.checkfinding"
    counted = CheckFinding.objects.aggregate(
        errors=Count("pk", filter=Q(severity=Severity.ERROR)),
        warnings=Count("pk", filter=Q(severity=Severity.WARNING)),
        looked_at=Max("looked_at"),
    )
    looked_at = counted["looked_at"]
    expected_since = looked_at or _in_use_since()
    if expected_since is not None and now - expected_since > FINDINGS_AGE:
        age = "never" if looked_at is None else f"{duration_text(now - looked_at)} ago"
        yield Concern(
            tone="warn",
            text=f"checks of the installation ran last: {age}",
            url=list_url(label),
            detail="a worker runs them every five minutes",
        )
    for tone, severity, count in (
        ("bad", Severity.ERROR, counted["errors"]),
        ("warn", Severity.WARNING, counted["warnings"]),
    ):
        if count:
            yield Concern(
                tone=tone,
                text=f"{plural(count, severity.value)} of the doctor",
                url=list_url(label, severity__exact=severity.value),
                detail="each says what to do",
            )


def _commitments(now: datetime) -> Iterator[Concern]:
    label = "commitments.commitment"
    live = Q(state__in=LIVE_STATUSES) & (Q(end_time__isnull=True) | Q(end_time__gt=now))
    open_ = live & ~Q(ready_status=True)
    counted = Commitment.objects.aggregate(
        refused=Count("pk", filter=open_ & Q(ready_reason=Condition.REJECTED)),
        waiting=Count("pk", filter=open_ & ~Q(ready_reason=Condition.REJECTED)),
        stuck=Count("pk", filter=live & Q(next_reconcile_at__lt=now - OVERDUE)),
    )
    if counted["stuck"]:
        yield Concern(
            tone="bad",
            text=f"{plural(counted['stuck'], 'commitment')} stuck",
            url=list_url(label, stuck="yes"),
            detail=f"due for more than {duration_text(OVERDUE)} and not taken by a worker",
        )
    for word, detail in (
        ("waiting", "not held yet; each row says what blocks it"),
        ("refused", "not held, and not tried again"),
    ):
        if counted[word]:
            yield Concern(
                tone="warn",
                text=f"{plural(counted[word], 'live commitment')} {word}",
                url=list_url(label, fulfilled=word),
                detail=detail,
            )


def _coverage(now: datetime) -> Iterator[Concern]:
    uncovered = CoverageAccount.objects.aggregate(vms=Sum("uncovered_vms"))["vms"]
    if uncovered:
        yield Concern(
            tone="bad",
            text=f"{plural(uncovered, 'VM')} not protected",
            url=list_url("failover.failoverdecision"),
            detail="they would not survive the loss of their host; each row says why",
        )


def _evacuations(now: datetime) -> Iterator[Concern]:
    plans = list(EvacuationPlan.objects.filter(state=EvacuationState.OPEN).order_by("zone"))
    failed = {name for plan in plans for name in plan.failed_hosts}
    back = Host.objects.filter(name__in=failed or {""}, state=HostState.UP)
    returned = set(back.values_list("name", flat=True))
    for plan in plans:
        dead = len(set(plan.failed_hosts) - returned)
        yield Concern(
            tone="bad" if dead else "warn",
            text=f"{plural(dead, 'dead host')} in {plan.zone}"
            if dead
            else f"evacuation in {plan.zone} not over, its hosts are back",
            url=row_url(plan),
            detail=f"the evacuation is open for {duration_text(now - plan.started_at)}",
        )


def _hosts(now: datetime) -> Iterator[Concern]:
    counted = Host.objects.aggregate(
        every=Count("pk"), down=Count("pk", filter=Q(state=HostState.DOWN))
    )
    down = counted["down"]
    if not counted["every"]:
        yield Concern(
            tone="warn", text="no host is known", url=list_url("hosts.host"), detail=CLOUD_EMPTY
        )
    if down:
        yield Concern(
            tone="warn",
            text=f"{plural(down, 'host')} down",
            url=list_url("hosts.host", state__exact=HostState.DOWN.value),
        )


def _beats(now: datetime) -> Iterator[Concern]:
    if not Heartbeat.objects.exists():
        yield Concern(
            tone="warn",
            text="no background work was seen yet",
            url=list_url("journal.heartbeat"),
            detail="start ./run serve beat and ./run serve worker (docs/operations.md)",
        )


def _brakes(now: datetime) -> Iterator[Concern]:
    for zone in FailoverZone.objects.exclude(brake_reason="").order_by("zone"):
        yield Concern(
            tone="bad",
            text=f"failover brake on in {zone}",
            url=list_url("failover.failoverzone"),
            detail=zone.brake_reason.replace("_", " "),
        )


def _syncs(now: datetime) -> Iterator[Concern]:
    newest = SyncRun.objects.order_by("source", "-id").distinct("source")
    for run in newest:
        if run.shrink_accepted_by:
            continue
        tone = outcome_tone(run)
        if tone != "ok":
            yield Concern(
                tone=tone,
                text=f"the last run of {run.source}: {run.error_code or run.outcome}",
                url=row_url(run),
                detail=run.message[:200],
            )
        skipped = skipped_of(run.counts)
        if skipped:
            yield Concern(
                tone="warn",
                text=f"{plural(skipped, 'object')} skipped by {run.source}",
                url=row_url(run),
                detail="they are in the lists and not in Headroom; the run says why",
            )


def skipped_of(counts: Mapping[str, object]) -> int:
    """Return how many objects a run skipped, for whatever reasons."""
    return sum(
        count for name, count in counts.items() if "skipped" in name and isinstance(count, int)
    )


def _feed(now: datetime) -> Iterator[Concern]:
    for row in FeedPass.objects.filter(Q(failures__gt=0) | ~Q(refusal="")).order_by("kind"):
        what = f"fails, {plural(row.failures, 'pass', 'passes')} in a row" if row.failures else ""
        yield Concern(
            tone="bad" if row.failures else "warn",
            text=f"the feed of {row.kind} {what or 'did not believe all'}",
            url=row_url(row),
            detail=(row.error if row.failures else row.refusal)[:200],
        )


def _agents(now: datetime) -> Iterator[Concern]:
    silent = (Liveness.SUSPECT.value, Liveness.DOWN.value)
    count = (
        HostAgent.objects.filter(lease__liveness__in=silent, keys__state=KeyState.ACTIVE)
        .distinct()
        .count()
    )
    if count:
        yield Concern(
            tone="warn",
            text=f"{plural(count, 'agent')} of hosts silent",
            url=list_url("hosts.hostagent", lease__liveness__in=",".join(silent)),
            detail="what they report ages; the VMs may be well",
        )


def _left_rooms(now: datetime) -> Iterator[Concern]:
    late = LeavingRoom.objects.filter(since__lt=now - OVERDUE)
    names = list(late.order_by("host__name").values_list("host__name", flat=True).distinct())
    if names:
        more = f" and {len(names) - NAMES_TOLD:,} more" if len(names) > NAMES_TOLD else ""
        yield Concern(
            tone="warn",
            text=f"{plural(len(names), 'agent')} did not give back the room of slots that left",
            url=list_url("hosts.workload", state__exact=WorkloadState.DELETING.value),
            detail=f"asked for more than {duration_text(OVERDUE)}: "
            f"{', '.join(names[:NAMES_TOLD])}{more}; the room is sold to nobody meanwhile",
        )


LOOKS: Mapping[type[models.Model], Callable[[datetime], Iterator[Concern]]] = {
    EvacuationPlan: _evacuations,
    CoverageAccount: _coverage,
    FailoverZone: _brakes,
    Commitment: _commitments,
    SyncRun: _syncs,
    FeedPass: _feed,
    CheckFinding: _findings,
    Host: _hosts,
    Heartbeat: _beats,
    HostAgent: _agents,
    Workload: _left_rooms,
}
"""Whose rows may be seen decides what is looked at."""
