"""Keeping what pipelines decided, and forgetting it in time (spec scheduling, 10.5, 15.11).

A decision is written after it was made, in a transaction of its own: it never delays a placement's
commit, and a failure to write it is logged and counted but never fails the request.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import orjson
import structlog
from django.conf import settings
from django.db import connection, transaction

from capacity.metrics import DECISIONS_LOST
from capacity.nova.decision_masks import compress_masks, names_digest, pack_names
from core.prepared import fetch_prepared
from journal.pruning import forget, in_batches
from journal.statements import execute, fetch_rows
from scheduling.decision import Candidate
from scheduling.record import PackedMask
from scheduling.request import PlacementRequest

log = structlog.get_logger(__name__)

TOP_HOSTS_KEPT = 10
SCORE_DIGITS = 6
INTENT_OF_NONE = "Unknown"
PRUNE_CHUNK_ROWS = 5000
LISTING_CHUNK_ROWS = 100
LISTING_MIN_AGE = timedelta(hours=1)
LISTING_ROUNDS = 3
_DIGESTS_KEPT = 16

INSERT_LISTING = """
INSERT INTO capacity_hostlisting (digest, names, created_at) VALUES (%s, %s, now())
ON CONFLICT (digest) DO NOTHING
"""
# The function finds the listing, locks it until the decision that refers to it is committed, and
# says whether it was there (``sql/capacity_record_decision.sql``). Its plan is made once: twenty
# values in a statement of their own took the server half as long to plan as to insert.
RECORD = "SELECT capacity_record_decision(%s::json, %s, %s)"
DELETE_DECISIONS = """
DELETE FROM capacity_schedulingdecision WHERE id IN (
    SELECT id FROM capacity_schedulingdecision WHERE created_at < %(oldest)s
     ORDER BY created_at LIMIT %(rows)s FOR UPDATE SKIP LOCKED)
"""
LOCK_ORPHANS = """
SELECT id FROM capacity_hostlisting AS listing
 WHERE created_at < %s
   AND NOT EXISTS (SELECT FROM capacity_schedulingdecision WHERE listing_id = listing.id)
 ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
"""
# Read anew under the lock: a decision may have come between the first look and the lock.
DELETE_ORPHANS = """
DELETE FROM capacity_hostlisting AS listing
 WHERE id = ANY(%s)
   AND NOT EXISTS (SELECT FROM capacity_schedulingdecision WHERE listing_id = listing.id)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStep:
    """What one filter did.

    Attributes:
        removed: Hosts of the listing that it removed; None when it removed none.
        remaining: Hosts left after it.
        note: Why it did nothing, as when it failed and its policy is to skip; empty otherwise.
    """

    step: str
    removed: PackedMask | None
    remaining: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDecision:
    """One run of a pipeline, as it is to be kept.

    Attributes:
        pipeline_name: Which pipeline ran.
        pipeline_version: Version of its definition; 0 when it is not a row.
        host_names: Names that the masks refer to, in row order; pass the host table's own tuple,
            which is recognised and hashed once.
        candidates: Hosts at the start; None means all of ``host_names``.
        steps: The filters in order.
        top: Best hosts with their contributions, best first.
        hosts_out: How many hosts were left.
        target_host_name: The chosen host; empty if none.
        is_successful: Whether a host was chosen.
        message: Explanation for people.
        outcome_class: Class of the outcome (spec scheduling, 12); empty when none applies.
        flavor_group_name: Flavor group; the request's when empty.
        duration_microseconds: Time that the run took.
    """

    request: PlacementRequest
    pipeline_name: str
    pipeline_version: int = 0
    host_names: tuple[str, ...] = ()
    candidates: PackedMask | None = None
    steps: Sequence[KeptStep] = ()
    top: Sequence[Candidate] = ()
    hosts_out: int = 0
    target_host_name: str = ""
    is_successful: bool = False
    message: str = ""
    outcome_class: str = ""
    flavor_group_name: str = ""
    request_id: str = ""
    duration_microseconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What was forgotten: decisions, and host listings that none refers to any more."""

    decisions: int
    listings: int


def record_decision(record: KeptDecision) -> None:
    """Keep one decision. Never raises.

    Inside a transaction the write waits for its commit, and is left out when it rolls back.

    Args:
        record: What was decided.
    """

    def write() -> None:
        try:
            _write(record)
        except Exception:  # the decision is made and answered: nothing may come of its record
            DECISIONS_LOST.inc()
            log.exception("decisions_not_recorded", decisions=1)

    _after_commit(write)


def prune_decisions(*, now: datetime, retention: timedelta | None = None) -> PruneReport:
    """Forget decisions past their retention, and listings that no decision refers to.

    Works in chunks, each a transaction of its own; safe to run twice or beside itself.

    Args:
        retention: Age from which decisions are forgotten;
            ``HEADROOM_DECISIONS__RETENTION_DAYS`` when left out.
    """
    if retention is None:
        retention = timedelta(days=settings.HEADROOM.decisions.retention_days)
    decisions = forget(DELETE_DECISIONS, PRUNE_CHUNK_ROWS, oldest=now - retention)
    listings = in_batches(lambda: _delete_orphans(now - LISTING_MIN_AGE), LISTING_CHUNK_ROWS)
    return PruneReport(decisions=decisions, listings=listings)


def _after_commit(write: Callable[[], None]) -> None:
    if connection.in_atomic_block:
        transaction.on_commit(write, robust=True)
    else:
        write()


def _write(record: KeptDecision) -> None:
    """Insert a decision, by one statement where its listing is there already."""
    digest = _digests.of(record.host_names) if record.host_names else ""
    row, masks = _row(record), _masks(record) if digest else None
    if _insert(row, masks, digest):
        return
    for _ in range(LISTING_ROUNDS):  # one that another made may be forgotten before it is locked
        with transaction.atomic(durable=True):
            execute(INSERT_LISTING, [digest, pack_names(record.host_names)])
            if _insert(row, masks, digest):
                return
    raise RuntimeError(f"the listing {digest} was forgotten again and again")


def _insert(row: dict[str, Any], masks: bytes | None, digest: str) -> bool:
    """Return whether the row was inserted; it was not if its listing is missing."""
    ((is_kept,),) = fetch_prepared(RECORD, [_json(row), masks, digest])
    return bool(is_kept)


def _row(record: KeptDecision) -> dict[str, Any]:
    request = record.request
    hosts_in = len(record.host_names) if record.candidates is None else record.candidates.count()
    return {
        "vm_uuid": request.request_key[:64],
        "project_id": request.project_id[:64],
        "request_id": record.request_id[:255],
        "pipeline_name": record.pipeline_name,
        "pipeline_version": record.pipeline_version,
        "intent": request.intent.value if request.intent is not None else INTENT_OF_NONE,
        "intent_reason": request.intent_reason[:600],
        "zone": request.zone[:255],
        "flavor_name": request.flavor_name[:255],
        "flavor_group_name": (record.flavor_group_name or request.commitment_group)[:255],
        "memory_bytes": request.memory_bytes,
        "vcpus": request.vcpus,
        "is_successful": record.is_successful,
        "outcome_class": record.outcome_class,
        "message": record.message,
        "hosts_in": hosts_in,
        "hosts_out": record.hosts_out,
        "target_host_name": record.target_host_name,
        "top_hosts": [_top_host(candidate) for candidate in record.top[:TOP_HOSTS_KEPT]],
        "removals": [_removal(step) for step in record.steps],
        "duration_microseconds": record.duration_microseconds,
    }


def _json(content: object) -> str:
    return orjson.dumps(content).decode()


def _top_host(candidate: Candidate) -> dict[str, Any]:
    start = candidate.score - sum(share for _, share in candidate.contributions)
    return {
        "host": candidate.host_name,
        "score": round(candidate.score, SCORE_DIGITS),
        "start": round(start, SCORE_DIGITS),
        "contributions": {
            name: round(share, SCORE_DIGITS) for name, share in candidate.contributions
        },
    }


def _removal(step: KeptStep) -> dict[str, Any]:
    removed = 0 if step.removed is None else step.removed.count()
    entry = {"step": step.step, "removed": removed, "remaining": step.remaining}
    return {**entry, "note": step.note} if step.note else entry


def _masks(record: KeptDecision) -> bytes:
    """Pack the candidates and one mask for each step that removed any host, in order."""
    candidates = record.candidates
    if candidates is None:
        candidates = PackedMask.pack(np.ones(len(record.host_names), dtype=np.bool_))
    removing = [step.removed for step in record.steps if step.removed and step.removed.count()]
    return compress_masks([mask.bits for mask in (candidates, *removing)])


def _delete_orphans(before: datetime) -> int:
    locked = [row[0] for row in fetch_rows(LOCK_ORPHANS, [before, LISTING_CHUNK_ROWS])]
    return execute(DELETE_ORPHANS, [locked]) if locked else 0


class _Digests:
    """Digests of the lists of names seen last, found by the identity of the tuple."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[int, tuple[tuple[str, ...], str]] = OrderedDict()

    def of(self, names: tuple[str, ...]) -> str:
        """Return the digest of a list of names."""
        with self._lock:
            known = self._known.get(id(names))
            if known is not None and known[0] is names:
                self._known.move_to_end(id(names))
                return known[1]
        digest = names_digest(names)
        with self._lock:
            self._known[id(names)] = (names, digest)
            while len(self._known) > _DIGESTS_KEPT:
                self._known.popitem(last=False)
        return digest


_digests = _Digests()
