"""Whose is what a write is about, and whether it may go on: one look at our tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from capacity.locks import LockSpace, lock_key
from core.copying import number_array
from core.prepared import fetch_prepared, run
from placement.domain.sides import Standing
from placement.domain.touched import Touched

STANDING: Final = """
WITH named AS MATERIALIZED (
    SELECT p.root_id, coalesce(p.origin <> 'upstream', false) AS is_ours
      FROM unnest(%s::uuid[]) AS g (uuid) LEFT JOIN placement_provider p ON p.uuid = g.uuid),
given AS MATERIALIZED (SELECT %s::uuid[] AS consumers),
held AS MATERIALIZED (
    SELECT DISTINCT p.root_id, p.origin <> 'upstream' AS is_ours
      FROM given, placement_consumer k
      JOIN placement_allocation a ON a.consumer_id = k.id
      JOIN placement_provider p ON p.id = a.provider_id
     WHERE k.uuid = ANY (given.consumers)),
ours AS MATERIALIZED (
    SELECT ARRAY(SELECT root_id FROM named WHERE is_ours
                  UNION SELECT root_id FROM held WHERE is_ours) AS roots)
SELECT (SELECT coalesce(bool_or(is_ours), false) FROM named),
       (SELECT coalesce(bool_or(NOT is_ours), false) FROM named),
       (SELECT coalesce(bool_or(is_ours), false) FROM held),
       (SELECT coalesce(bool_or(NOT is_ours), false) FROM held),
       EXISTS (SELECT FROM placement_forwarded_write w
                WHERE w.consumers && given.consumers AND w.id <> %s::bigint)
       OR EXISTS (SELECT FROM placement_copy_due d
                   WHERE d.kind = 'consumer' AND d.uuid = ANY (given.consumers)),
       EXISTS (SELECT FROM placement_mirrored_write m WHERE m.consumers && given.consumers),
       EXISTS (SELECT FROM placement_write_fence f WHERE f.consumers && given.consumers),
       EXISTS (SELECT FROM placement_write_fence f
                WHERE f.roots && ours.roots OR 0 = ANY (f.roots)),
       ours.roots
  FROM given, ours
"""
LOCK: Final = "SELECT pg_advisory_xact_lock(k) FROM unnest(%s::bigint[]) AS k"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look found.

    Attributes:
        fences_consumers: Whether a write of both sides is about one of the consumers.
        fences_roots: Whether one is about a tree of ours that this is about.
    """

    standing: Standing
    fences_consumers: bool
    fences_roots: bool

    @property
    def is_fenced(self) -> bool:
        """Whether a write of ours has to wait."""
        return self.fences_consumers or self.fences_roots


def look_at(touched: Touched, *, besides: int = 0) -> Look:
    """Return whose is what a write touches, as of now.

    Args:
        touched: What.
        besides: Number of the announcement that does not count: its own.
    """
    named = sorted(touched.providers | touched.generations)
    found = fetch_prepared(
        STANDING, [number_array(named), number_array(sorted(touched.consumers)), besides]
    )
    ours, others, holds, holds_theirs, unclear, waits, consumers, roots_fenced, roots = found[0]
    return Look(
        standing=Standing(
            names_ours=ours,
            names_others=others,
            holds_ours=holds,
            holds_theirs=holds_theirs,
            is_unclear=unclear,
            waits=waits,
            roots=frozenset(roots),
        ),
        fences_consumers=consumers,
        fences_roots=roots_fenced,
    )


def lock_consumers(consumers: Iterable[str]) -> None:
    """Let no other write of these consumers decide who does it, until the transaction ends."""
    keys = sorted({lock_key(LockSpace.PLACEMENT_CONSUMER, uuid) for uuid in consumers})
    if keys:
        run(LOCK, [keys])
