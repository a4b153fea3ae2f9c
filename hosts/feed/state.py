"""How far the feed is: the one writer of :class:`hosts.models.FeedPass`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Greatest, Least

from hosts.feed.lists import PassKind
from hosts.models import DeletedVM, FeedPass
from hosts.region.about import keep_region
from journal.clock import database_now

if TYPE_CHECKING:
    from hosts.region.run import ImportReport

LATE_INTERVALS: Final = 3
LEAST_LATE_SECONDS: Final = 60
EPOCH: Final = datetime.fromtimestamp(0, UTC)


def is_fed() -> bool:
    """Whether a live cloud is read all the time."""
    return bool(settings.HEADROOM.feed.cloud)


def begin_pass(kind: str) -> datetime:
    """Note that a pass begins; return when, by the database's time.

    Args:
        kind: A :class:`hosts.feed.lists.PassKind`, or the name of a list that the APIs lack.
    """
    began = database_now()
    FeedPass.objects.update_or_create(kind=kind, defaults={"began_at": began})
    return began


def fail_pass(kind: str, error: str) -> None:
    """Note why a pass was not completed."""
    FeedPass.objects.filter(kind=kind).update(error=error, failures=F("failures") + 1)


def finish_pass(kind: str, began: datetime, report: ImportReport) -> None:
    """Note that a pass was completed, and what is known from it: all of it or, killed, nothing.

    Passes over VMs end one after the other, by the row of changes: what is known gets less by files
    alone (:func:`vms_are_of`).
    """
    counts = {counted.section: asdict(counted) for counted in report.counts.values()}
    with transaction.atomic(durable=True):
        FeedPass.objects.filter(kind=kind).update(
            passes=F("passes") + 1,
            finished_at=database_now(),
            counts=counts,
            refusal="\n".join(report.refusals[name] for name in sorted(report.refusals)),
            error="",
            failures=0,
        )
        counted = FeedPass.objects.filter(kind=kind, began_at=began).update(
            listed_at=Greatest("listed_at", began)
        )
        if kind == PassKind.SERVERS and counted:
            # What changed before all VMs were read need not be asked for again.
            FeedPass.objects.get_or_create(kind=PassKind.CHANGES)
            changes = FeedPass.objects.filter(kind=PassKind.CHANGES)
            changes.update(listed_at=Greatest("listed_at", began))
            DeletedVM.objects.filter(seen_at__lt=began).delete()
        if kind in {PassKind.SERVERS, PassKind.CHANGES}:
            _tell_when_listed()


def vms_are_of(taken_at: datetime | None) -> None:
    """Note that a file is about to write VMs: as old as it until changes since then are read.

    A pass that is reading meanwhile may have read what the file then undoes; it counts for nothing.
    Runs inside the caller's transaction.

    Args:
        taken_at: When the file's list was taken; None, where it does not say so, until all VMs are
            read anew.
    """
    FeedPass.objects.filter(kind=PassKind.SERVERS).update(began_at=None)
    FeedPass.objects.filter(kind=PassKind.CHANGES).update(
        began_at=None, listed_at=Least("listed_at", Value(taken_at)) if taken_at else None
    )
    _tell_when_listed()


def still_known(kind: str) -> None:
    """Note that until now nothing else has changed: who follows changes was told so."""
    FeedPass.objects.filter(kind=kind).update(
        listed_at=Greatest("listed_at", database_now()), error="", failures=0
    )


def forget_pass(kind: str) -> None:
    """Forget lists that nobody reads any more: their age is nobody's concern."""
    FeedPass.objects.filter(kind=kind).delete()


def listed_at(kind: str) -> datetime | None:
    """Return when the last completed pass of a kind began to read; None before the first."""
    return FeedPass.objects.filter(kind=kind).values_list("listed_at", flat=True).first()


def known_until(now: datetime, kind: PassKind = PassKind.CHANGES) -> datetime:
    """Return the time until which is known what the cloud lists: graces are over only by then.

    What happened later no completed pass can have seen. Without a feed it is the present, as
    nobody knows when the next file comes.

    Args:
        kind: What has to be known; where VMs are when left out.
    """
    if not is_fed():
        return now
    since = listed_at(kind)
    return EPOCH if since is None else min(now, since)


def late_kinds(now: datetime) -> dict[str, int | None]:
    """Return the kinds whose lists are older than three intervals, with their age in seconds.

    None for a kind that was never read. Looks at changes are told by their own interval.
    """
    listed = dict(FeedPass.objects.values_list("kind", "listed_at"))
    late: dict[str, int | None] = {}
    for kind in PassKind:
        since = listed.get(kind.value)
        seconds = None if since is None else int((now - since).total_seconds())
        interval = getattr(settings.HEADROOM.feed, f"{kind}_interval_seconds")
        if seconds is None or seconds > max(LATE_INTERVALS * interval, LEAST_LATE_SECONDS):
            late[kind.value] = seconds
    return late


def _tell_when_listed() -> None:
    """Tell from when the VMs are: from the newest pass, which need not be the last to end."""
    since = listed_at(PassKind.CHANGES)
    keep_region({"taken_at": since.isoformat() if since else ""})
