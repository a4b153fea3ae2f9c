"""When a commitment that Limes does not list may be ended (spec commitments, 16.7; liquid, 15.4).

Limes hides what is over, so "not listed" is how a commitment normally ends, and also what a broken
or cut answer looks like. Ending takes several complete runs and some hours, and a run whose set
shrank too far decides nothing. What Limes never listed is another matter: it was asked for, our
answer was lost, and Limes forgot it; one complete run that began late enough ends it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from hosts.domain.shrinking import has_vanished


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRules:
    """Thresholds of the syncer.

    Attributes:
        stale_threshold: Complete runs in a row that a commitment must be missing in.
        stale_grace: How long it must be missing besides.
        unlisted_grace: How long one that was never listed must be left in peace before a run that
            may end it begins: Limes asks us before it stores what it lists.
        max_drop_ratio: Share of the known set (0..1) that may go missing at once.
        max_drop_count: Fewer than so many may go missing whatever the share.
        expired_retention: How long a row outlives its end after its slots are gone.
    """

    stale_threshold: int
    stale_grace: timedelta
    unlisted_grace: timedelta
    max_drop_ratio: float
    max_drop_count: int
    expired_retention: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """A stored commitment that is not over.

    Attributes:
        pk: Its primary key.
        missed_syncs: Complete runs in a row that did not find it.
        missing_since: Start of the first of them.
        is_untouched: Nobody changed it since reading from Limes began.
    """

    pk: int
    commitment_uuid: str
    missed_syncs: int
    missing_since: datetime | None
    is_untouched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPlan:
    """What a complete run does about commitments that Limes does not list.

    Attributes:
        found_again: Rows whose count goes back to nothing.
        missed: Rows that were missing once more.
        ended: Those of them that were missing long enough, or were never listed.
    """

    found_again: tuple[int, ...]
    missed: tuple[int, ...]
    ended: tuple[int, ...]


def shrank_too_far(*, known: int, before: int, rules: SyncRules) -> bool:
    """Return whether a set lost so much that it is not to be believed.

    Args:
        known: Commitments that Limes lists now.
        before: Commitments that it listed in the last good run.
        rules: The thresholds: a drop of at least ``max_drop_count`` and of more than the share.
    """
    dropped = before - known
    return dropped >= rules.max_drop_count and dropped > before * rules.max_drop_ratio


def vanished_zones(*, before: Mapping[str, int], known: Mapping[str, int]) -> tuple[str, ...]:
    """Return the zones of which nothing is listed any more while others still are.

    When nothing is listed anywhere, the size of the whole set decides (:func:`shrank_too_far`).

    Args:
        before: Zone to the commitments that Limes listed in the last good run.
        known: Zone to the commitments that it lists now.

    Source: spec commitments, 16.7, for the part of the set that speaks of one zone.
    """
    if not any(known.values()):
        return ()
    return tuple(
        sorted(zone for zone, count in before.items() if has_vanished(count, known.get(zone, 0)))
    )


def plan_missing(
    rows: Iterable[StoredRow],
    known: Collection[str],
    *,
    rules: SyncRules,
    now: datetime,
    never_listed: Collection[str] = (),
) -> MissingPlan:
    """Return what a complete, believable run does about stored commitments.

    Args:
        rows: Stored commitments that are not over.
        known: Uuids that Limes lists, whether we understand them or not.
        rules: The thresholds.
        now: Start of the run.
        never_listed: Uuids that no run ever found, and nobody touched for long enough.
    """
    found_again, missed, ended = [], [], []
    for row in rows:
        if row.commitment_uuid in known:
            if row.missed_syncs or row.missing_since is not None:
                found_again.append(row.pk)
        elif row.is_untouched:
            missed.append(row.pk)
            since = row.missing_since or now
            is_long = now - since >= rules.stale_grace
            is_often = row.missed_syncs + 1 >= rules.stale_threshold
            if (is_long and is_often) or row.commitment_uuid in never_listed:
                ended.append(row.pk)
    return MissingPlan(
        found_again=tuple(sorted(found_again)),
        missed=tuple(sorted(missed)),
        ended=tuple(sorted(ended)),
    )
