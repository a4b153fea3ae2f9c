"""``/admin/system/``: sources, runs, work, versions and findings, with ages; worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import redis
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse

from commitments.models import SlotCheck, SyncRun, UsageCheck
from console.attention import ICONS, skipped_of
from console.base import PageData, badge, may_view
from console.commitments.sync_runs import outcome_tone
from console.links import list_url, row_url, text_link
from console.pages import show_page
from core.releases import newest_version, own_version
from core.text import NOTHING, count_text, duration_text, plural, time_text
from failover.choices import RunOutcome
from failover.models import FailoverRun
from hosts.models import FeedPass
from journal.clock import database_now
from journal.gauges import QUEUE_LIMITS_SECONDS
from journal.health import BEAT
from journal.models import BeatEntry, CheckFinding, Heartbeat, LogConsumer, Outbox, ProcessClock
from journal.services import queue_heartbeat
from journal.waiting import waiting_tasks

TONES: Final = ("bad", "warn", "ok", "idle")
MOST_ROWS: Final = 40
SEVERITY_TONES: Final = {"error": "bad", "warning": "warn"}
FAR_CLOCK_SECONDS: Final = 1.0
LATE_LOG: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A thing that is at work.

    Attributes:
        tone: ``ok``, ``warn``, ``bad`` or ``idle``.
        word: Its state.
        at: When it was last heard of.
        detail: What is known of it, and why.
    """

    name: str
    tone: str
    word: str
    at: datetime | None
    url: str
    detail: str = ""


def system_view(request: HttpRequest) -> HttpResponse:
    """Show all that the user may see of it.

    Raises:
        PermissionDenied: they may see nothing of it.
    """
    seen = [part for part in PARTS if may_view(request, part[0])]
    if not seen:
        raise PermissionDenied
    now = database_now()
    sections: dict[str, list[Line]] = {}
    for _, title, lines in seen:
        sections.setdefault(title, []).extend(lines(now))
    everything = [line for lines in sections.values() for line in lines]
    wrong = [line for line in everything if line.tone in {"bad", "warn"}]
    names = dict.fromkeys(line.name for line in wrong)
    tone = min((line.tone for line in wrong), key=TONES.index, default="ok")
    page = PageData(
        tone=tone,
        icon=ICONS[tone],
        title=(
            f"{plural(len(wrong), 'thing')} to look at: {', '.join(names)}"
            if wrong
            else "Everything is in sync and at work"
        ),
        version=own_version(),
        newest=newest_version() or "none yet",
        sections=[
            PageData(title=title, lines=[_shown(line, now) for line in _worst_first(lines)])
            for title, lines in sections.items()
        ],
    )
    return show_page(request, "admin/system_page.html", title="System", model=seen[0][0], page=page)


def _worst_first(lines: list[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: (TONES.index(line.tone), line.name))


def _shown(line: Line, now: datetime) -> PageData:
    return PageData(
        name=text_link(line.url, line.name),
        state=badge(line.tone, line.word),
        age=time_text(line.at, now) if line.at else NOTHING,
        detail=line.detail,
    )


def _skips(counts: Mapping[str, object]) -> str:
    """Say what was skipped and why: the names of the counts are the reasons."""
    return ", ".join(
        f"{count_text(count)} {name.replace('_', ' ')}"
        for name, count in counts.items()
        if "skipped" in name and isinstance(count, int) and count
    )


def _feed(_now: datetime) -> Iterator[Line]:
    for row in FeedPass.objects.order_by("kind")[:MOST_ROWS]:
        if row.failures:
            tone, word = "bad", f"fails, {plural(row.failures, 'pass', 'passes')} in a row"
        elif row.refusal:
            tone, word = "warn", "did not believe all"
        else:
            tone, word = ("ok", "read") if row.listed_at else ("idle", "not read yet")
        yield Line(
            name=f"list of {row.kind}",
            tone=tone,
            word=word,
            at=row.listed_at,
            url=row_url(row),
            detail=row.error or row.refusal,
        )


def _syncs(_now: datetime) -> Iterator[Line]:
    for row in SyncRun.objects.order_by("source", "-id").distinct("source")[:MOST_ROWS]:
        skipped = skipped_of(row.counts)
        tone = "ok" if row.shrink_accepted_by else outcome_tone(row)
        if skipped and tone == "ok":
            tone = "warn"
        word = row.error_code or row.outcome or "running"
        yield Line(
            name=f"run of {row.source}",
            tone=tone,
            word=f"{word}, {count_text(skipped)} skipped" if skipped else word,
            at=row.finished_at or row.started_at,
            url=row_url(row),
            detail="; ".join(part for part in (_skips(row.counts), row.message) if part),
        )


def _failover(_now: datetime) -> Iterator[Line]:
    rows = FailoverRun.objects.filter(is_dry_run=False).order_by("zone", "-id").distinct("zone")
    tones = {RunOutcome.HALTED: "bad", RunOutcome.FAILED: "bad", RunOutcome.RUNNING: "ok"}
    for row in rows[:MOST_ROWS]:
        yield Line(
            name=f"failover in {row.zone}",
            tone=tones.get(RunOutcome(row.outcome), "ok"),
            word=row.get_outcome_display(),
            at=row.finished_at or row.started_at,
            url=row_url(row),
            detail=row.message,
        )


def _slot_checks(_now: datetime) -> Iterator[Line]:
    for row in SlotCheck.objects.order_by("zone")[:MOST_ROWS]:
        refused = row.is_refused or bool(row.host_refusal)
        yield Line(
            name=f"check of slots in {row.zone}",
            tone="bad" if refused else "ok",
            word="list not believed" if refused else "done",
            at=row.checked_at,
            url=row_url(row),
            detail=row.message or row.host_refusal,
        )


def _usage(_now: datetime) -> Iterator[Line]:
    for row in UsageCheck.objects.all()[:1]:
        yield Line(
            name="usage of commitments", tone="ok", word="done", at=row.checked_at, url=row_url(row)
        )


def _limits() -> dict[str, timedelta]:
    """Return for how long heartbeats may be silent, by name."""
    return {
        BEAT: timedelta(seconds=settings.HEADROOM.beat_max_age_seconds),
        **{name: timedelta(seconds=most) for name, most in QUEUE_LIMITS_SECONDS.items()},
    }


def _beats(now: datetime) -> Iterator[Line]:
    limits = _limits()
    rows = list(Heartbeat.objects.order_by("name")[:MOST_ROWS])
    url = list_url("journal.heartbeat")
    if not rows:
        detail = "retries and refreshes do not run: start ./run serve worker and ./run serve beat"
        yield Line(name="workers", tone="bad", word="never seen", at=None, url=url, detail=detail)
    for row in rows:
        limit = limits.get(row.name)
        is_late = limit is not None and now - row.beaten_at > limit
        queue = row.name.removeprefix(queue_heartbeat(""))
        yield Line(
            name=f"queue {queue}" if queue != row.name else f"heartbeat of {row.name}",
            tone="bad" if is_late else "ok",
            word="silent" if is_late else "alive",
            at=row.beaten_at,
            url=url,
            detail=_limit_text(limit, is_queue=queue != row.name),
        )


def _limit_text(limit: timedelta | None, *, is_queue: bool) -> str:
    if limit is None:
        return ""
    told = f"limit {duration_text(limit)}"
    return f"{told}; silent since a worker last took a task of it" if is_queue else told


def _waiting(now: datetime) -> Iterator[Line]:
    url = list_url("journal.heartbeat")
    limits = _limits()
    try:
        queues = waiting_tasks([queue.name for queue in settings.CELERY["task_queues"]])
    except (redis.RedisError, OSError, ValueError) as error:
        detail = f"{type(error).__name__}: see to REDIS_URL, and that Redis runs"
        yield Line(name="broker", tone="bad", word="no answer", at=None, url=url, detail=detail)
        return
    for one in queues:
        limit = limits.get(queue_heartbeat(one.queue), limits[BEAT])
        is_late = one.sent_at is not None and now - one.sent_at > limit
        yield Line(
            name=f"waiting in {one.queue}",
            tone="bad" if is_late else "ok",
            word=plural(one.count, "task") if one.count else "nothing",
            at=one.sent_at,
            url=url,
            detail=f"the oldest: {one.oldest}" if one.count else "",
        )


def _schedule(_now: datetime) -> Iterator[Line]:
    newest = BeatEntry.objects.order_by("-last_run_at").first()
    if newest is not None:
        yield Line(
            name="schedule",
            tone="ok",
            word=plural(BeatEntry.objects.count(), "task"),
            at=newest.last_run_at,
            url=list_url("journal.beatentry"),
            detail=f"last: {newest.entry}",
        )


def _consumers(now: datetime) -> Iterator[Line]:
    newest = Outbox.objects.order_by("-id").first()
    if newest is not None:
        yield Line(
            name="outbox",
            tone="ok",
            word="written",
            at=newest.created_at,
            url=list_url("journal.outbox"),
            detail=f"last: {newest.topic}",
        )
    for row in LogConsumer.objects.order_by("name")[:MOST_ROWS]:
        is_late = newest is not None and newest.created_at - row.moved_at > LATE_LOG
        yield Line(
            name=f"reader {row.name}",
            tone="warn" if is_late else "ok",
            word="behind" if is_late else "follows",
            at=row.moved_at,
            url=row_url(row),
            detail=f"moved last {duration_text(now - row.moved_at)} ago" if is_late else "",
        )


def _clocks(_now: datetime) -> Iterator[Line]:
    for row in ProcessClock.objects.order_by("process")[:MOST_ROWS]:
        is_far = abs(row.deviation_seconds) > FAR_CLOCK_SECONDS
        yield Line(
            name=f"clock of {row.process}",
            tone="warn" if is_far else "ok",
            word=f"{row.deviation_seconds:+.3f} s",
            at=row.looked_at,
            url=list_url("journal.processclock"),
        )


def _findings(_now: datetime) -> Iterator[Line]:
    for row in CheckFinding.objects.order_by("severity", "check_name", "pk")[:MOST_ROWS]:
        yield Line(
            name=row.check_name.replace("_", " "),
            tone=SEVERITY_TONES.get(row.severity, "ok"),
            word=row.severity,
            at=row.looked_at,
            url=row_url(row),
            detail="; ".join(part for part in (row.found, row.todo) if part),
        )


SOURCES: Final = "Sources: age of each list, what was skipped and why"
RUNS: Final = "Runs"
WORK: Final = "Work and queues"
PARTS: Final[tuple[tuple[type[models.Model], str, Callable[[datetime], Iterator[Line]]], ...]] = (
    (CheckFinding, "Findings of the doctor, drift among them", _findings),
    (FeedPass, SOURCES, _feed),
    (SyncRun, SOURCES, _syncs),
    (FailoverRun, RUNS, _failover),
    (SlotCheck, RUNS, _slot_checks),
    (UsageCheck, RUNS, _usage),
    (Heartbeat, WORK, _beats),
    (Heartbeat, WORK, _waiting),
    (BeatEntry, WORK, _schedule),
    (LogConsumer, WORK, _consumers),
    (ProcessClock, "Clocks", _clocks),
)
"""Whose rows must be visible, under which heading, and the lines."""
