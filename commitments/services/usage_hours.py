"""Keeping what commitments promised and used, hour by hour, for accounts (docs/focus.md).

Each whole usage run is a look; what was so since the look before is added to the hours, in the
transaction that remembers the look. So a run that is killed or done twice adds nothing twice.
Looks that are too far apart leave a gap: nobody knows what was between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction

from commitments.domain.statuses import ResourceType
from commitments.domain.usage_hours import HourShare, Promise, hour_shares, hours_between
from commitments.models import Commitment, UsageCheck
from commitments.services.usage import spec_time, usable_commitment
from commitments.usage_models import CommitmentAccount
from core.chunks import in_chunks
from journal.pruning import forget
from journal.statements import execute, fetch_rows
from scheduling.resources import MIB

log = structlog.get_logger(__name__)

RETENTION: Final = timedelta(days=400)
"""13 months, and the days that the longest of them have more."""
LONGEST_STEP: Final = timedelta(minutes=15)
STEPS_MISSED: Final = 3
ROWS_PER_STATEMENT: Final = 5_000

SEE_ACCOUNTS: Final = """
INSERT INTO commitments_commitmentaccount AS row
       (commitment_uuid, project_id, domain_id, zone, flavor_group_name, resource_type,
        promised_amount, used_amount, ends_at, is_open, seen_at)
SELECT seen.*, true, %s
  FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
              %s::bigint[], %s::bigint[], %s::timestamptz[]) AS seen
ON CONFLICT (commitment_uuid, project_id, domain_id, zone, flavor_group_name, resource_type)
DO UPDATE SET promised_amount = excluded.promised_amount, used_amount = excluded.used_amount,
              ends_at = excluded.ends_at, is_open = true, seen_at = excluded.seen_at
RETURNING id, commitment_uuid, project_id, domain_id, zone, flavor_group_name, resource_type
"""
CLOSE_ACCOUNTS: Final = """
UPDATE commitments_commitmentaccount SET is_open = false WHERE is_open AND seen_at < %s
"""
ADD_HOURS: Final = """
INSERT INTO commitments_commitmenthour AS row
       (account_id, at, observed_seconds, promised_amount_seconds, used_amount_seconds)
SELECT * FROM unnest(%s::bigint[], %s::timestamptz[], %s::int[], %s::bigint[], %s::bigint[])
ON CONFLICT (at, account_id) DO UPDATE
   SET observed_seconds = row.observed_seconds + excluded.observed_seconds,
       promised_amount_seconds = row.promised_amount_seconds + excluded.promised_amount_seconds,
       used_amount_seconds = row.used_amount_seconds + excluded.used_amount_seconds
"""
ADD_OBSERVED: Final = """
INSERT INTO commitments_observedhour AS row (at, observed_seconds)
SELECT * FROM unnest(%s::timestamptz[], %s::int[])
ON CONFLICT (at) DO UPDATE SET observed_seconds = row.observed_seconds + excluded.observed_seconds
"""
FORGET_HOURS: Final = """
DELETE FROM commitments_commitmenthour WHERE id = ANY (ARRAY(
    SELECT id FROM commitments_commitmenthour
     WHERE at < %(oldest)s ORDER BY at LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""
FORGET_OBSERVED: Final = """
DELETE FROM commitments_observedhour WHERE id = ANY (ARRAY(
    SELECT id FROM commitments_observedhour
     WHERE at < %(oldest)s ORDER BY at LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""
FORGET_ACCOUNTS: Final = """
DELETE FROM commitments_commitmentaccount WHERE id = ANY (ARRAY(
    SELECT id FROM commitments_commitmentaccount AS account
     WHERE NOT is_open AND seen_at < %(oldest)s
       AND NOT EXISTS (SELECT FROM commitments_commitmenthour WHERE account_id = account.id)
     ORDER BY id LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
"""
READ_FIELDS: Final = (
    "commitment_uuid",
    "project_id",
    "domain_id",
    "state",
    "end_time",
    "accepted_spec",
    "accepted_at",
    "used_memory_bytes",
    "used_vcpus",
)


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """What makes an account; the columns of its unique constraint, in their order."""

    commitment_uuid: str
    project_id: str
    domain_id: str
    zone: str
    flavor_group_name: str
    resource_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursReport:
    """What a look added.

    Attributes:
        accounts: Commitments that are in force.
        hours: Rows of hours that were made or grew.
        is_gap: The look before was too long ago for anything to be known.
    """

    accounts: int = 0
    hours: int = 0
    is_gap: bool = False


def keep_usage_hours() -> HoursReport:
    """Add what is known since the last look, up to the last whole usage run."""
    with transaction.atomic(durable=True):
        check = UsageCheck.objects.select_for_update().first()
        if check is None or check.fully_checked_at is None:
            return HoursReport()
        last, now = check.accounted_at, check.fully_checked_at
        if last is not None and last >= now:
            return HoursReport()
        is_gap = last is None or now - last > longest_step()
        present = _present(now)
        shares = [] if last is None or is_gap else list(_shares(last, now, _open(), present))
        keys = _see(present, now)
        hours = _add(shares, keys)
        if last is not None and not is_gap:
            spans = list(hours_between(last.replace(microsecond=0), now.replace(microsecond=0)))
            execute(ADD_OBSERVED, [[at for at, _ in spans], [count for _, count in spans]])
        UsageCheck.objects.filter(pk=check.pk).update(accounted_at=now)
    if is_gap and last is not None:
        log.warning("usage_hours_gap", since=last.isoformat(), until=now.isoformat())
    return HoursReport(accounts=len(present), hours=hours, is_gap=is_gap)


def longest_step() -> timedelta:
    """Return how far two looks may be apart."""
    usual = timedelta(seconds=settings.HEADROOM.usage.cooldown_seconds)
    return max(LONGEST_STEP, STEPS_MISSED * usual)


def forget_usage_hours(*, now: datetime) -> int:
    """Forget hours of more than 13 months ago, and accounts without any; return how many rows."""
    oldest = now - RETENTION
    statements = (FORGET_HOURS, FORGET_OBSERVED, FORGET_ACCOUNTS)
    return sum(forget(statement, oldest=oldest) for statement in statements)


def _present(now: datetime) -> dict[Identity, Promise]:
    rows = Commitment.objects.filter(accepted_spec__isnull=False).only(*READ_FIELDS)
    found = {}
    for row in rows.iterator():
        usable = usable_commitment(row, now)
        if usable is None:
            continue
        kind = ResourceType.MEMORY if usable.is_memory else ResourceType.CORES
        of = Identity(
            row.commitment_uuid, row.project_id, row.domain_id, usable.zone, usable.group, kind
        )
        promised = usable.amount // MIB if usable.is_memory else usable.amount
        used = row.used_memory_bytes // MIB if usable.is_memory else row.used_vcpus
        ends = [spec_time((row.accepted_spec or {}).get("endTime")), row.end_time]
        starts = [usable.start_time, row.accepted_at]
        found[of] = Promise(
            promised=promised,
            used=min(used, promised),
            since=max((start for start in starts if start), default=None),
            until=min((end for end in ends if end), default=None),
        )
    return found


def _open() -> dict[Identity, tuple[int, Promise]]:
    return {
        Identity(
            row.commitment_uuid,
            row.project_id,
            row.domain_id,
            row.zone,
            row.flavor_group_name,
            row.resource_type,
        ): (
            row.pk,
            Promise(promised=row.promised_amount, used=row.used_amount, until=row.ends_at),
        )
        for row in CommitmentAccount.objects.filter(is_open=True).iterator()
    }


def _shares(
    last: datetime,
    now: datetime,
    known: Mapping[Identity, tuple[int, Promise]],
    present: Mapping[Identity, Promise],
) -> Iterator[tuple[Identity | int, HourShare]]:
    """Yield each share with its account: the key of one that is gone, else what makes it."""
    for of in sorted({*known, *present}):
        key, before = known.get(of, (0, None))
        after = present.get(of)
        for share in hour_shares(before, after, last=last, now=now):
            yield (of if after is not None else key), share


def _see(present: Mapping[Identity, Promise], now: datetime) -> dict[Identity, int]:
    keys: dict[Identity, int] = {}
    for chunk in in_chunks(sorted(present), ROWS_PER_STATEMENT):
        columns = [[getattr(of, name) for of in chunk] for name in Identity.__dataclass_fields__]
        promises = [present[of] for of in chunk]
        columns += [
            [one.promised for one in promises],
            [one.used for one in promises],
            [one.until for one in promises],
        ]
        for key, *of in fetch_rows(SEE_ACCOUNTS, [now, *columns]):
            keys[Identity(*of)] = key
    execute(CLOSE_ACCOUNTS, [now])
    return keys


def _add(shares: Sequence[tuple[Identity | int, HourShare]], keys: Mapping[Identity, int]) -> int:
    hours = 0
    for chunk in in_chunks(shares, ROWS_PER_STATEMENT):
        hours += execute(
            ADD_HOURS,
            [
                [keys[of] if isinstance(of, Identity) else of for of, _ in chunk],
                [share.at for _, share in chunk],
                [share.seconds for _, share in chunk],
                [share.promised_seconds for _, share in chunk],
                [share.used_seconds for _, share in chunk],
            ],
        )
    return hours
