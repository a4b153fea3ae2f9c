"""Writes about both sides: the other Placement does them, while nobody here writes what is ours.

A fence is a row that every write of ours looks for. Once it is there, the other side is sent what
it lacks of the same trees and consumers, and then the write, whole; what that made of our trees and
of the consumers is read back and stored in the transaction in which the fence goes. Whoever raised
it may die at any line: what was not sent by then ends after :data:`RAISE_SECONDS`, what was sent
after the time of a request. Then anybody reads back what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import structlog
from django.db import OperationalError, transaction

from core.conf import headroom
from core.prepared import drop_dead_connection, fetch, run
from journal.errors import HeadroomError
from placement.clients.reference_api import Json
from placement.cutover import mirroring, state
from placement.cutover.peer import Peer
from placement.cutover.standing import look_at
from placement.cutover.storing import Slice, store
from placement.domain.errors import ServiceUnavailable
from placement.domain.touched import Touched
from placement.domain.transfer import ConsumerRecord, ProviderRecord
from placement.models import CopyDue, Phase
from placement.models.changes import ALL_ROOTS

log = structlog.get_logger(__name__)

#: How long raising a fence may take until the write goes out.
RAISE_SECONDS: Final = 2.5
#: What a request may take beyond the time of the client.
GRACE_SECONDS: Final = 5.0
LOCK_MILLISECONDS: Final = 500
LOOK_SECONDS: Final = 0.01
#: How often reading back is tried while what was read cannot be stored.
TRIES: Final = 5
#: For how long one process brings an old fence to its end.
SETTLING_SECONDS: Final = 10.0

RAISE: Final = """
INSERT INTO placement_write_fence (roots, consumers, is_whole, ends_at)
VALUES (%s::bigint[], %s::uuid[], %s, clock_timestamp() + %s * interval '1 second') RETURNING id
"""
#: What the other side lacks, how much of that it refuses, and what is under way there.
LEFT: Final = """
SELECT (SELECT count(*) FROM placement_mirrored_write m
         WHERE m.roots && f.roots OR m.consumers && f.consumers OR 0 = ANY (f.roots)),
       (SELECT count(*) FROM placement_mirrored_write m
         WHERE (m.roots && f.roots OR m.consumers && f.consumers OR 0 = ANY (f.roots))
           AND m.refusal <> ''),
       (SELECT count(*) FROM placement_forwarded_write w
         WHERE w.consumers && f.consumers AND NOT w.is_done AND w.ends_at > clock_timestamp()),
       f.ends_at <= clock_timestamp()
       OR NOT EXISTS (SELECT FROM placement_cutover WHERE phase = 'parted')
  FROM placement_write_fence f WHERE f.id = %s
"""
SEND: Final = """
UPDATE placement_write_fence
   SET sent_at = clock_timestamp(), ends_at = clock_timestamp() + %s * interval '1 second'
 WHERE id = %s AND ends_at > clock_timestamp() AND sent_at IS NULL
   AND EXISTS (SELECT FROM placement_cutover WHERE phase = 'parted') RETURNING id
"""
LOWER: Final = "DELETE FROM placement_write_fence WHERE id = %s RETURNING id"
LOWER_UNSENT: Final = """
DELETE FROM placement_write_fence WHERE ends_at <= clock_timestamp() AND sent_at IS NULL
"""
TAKE_OLD: Final = """
UPDATE placement_write_fence SET ends_at = clock_timestamp() + %s * interval '1 second'
 WHERE id = (SELECT id FROM placement_write_fence
              WHERE ends_at <= clock_timestamp() AND sent_at IS NOT NULL
              ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, roots, consumers::text[], is_whole
"""
HAS_OLD: Final = "SELECT FROM placement_write_fence WHERE ends_at <= clock_timestamp() LIMIT 1"
COUNT: Final = "SELECT count(*) FROM placement_write_fence"
MEMBERS: Final = """
SELECT uuid::text FROM placement_provider WHERE root_id = ANY (%s::bigint[])
"""
ROOTS: Final = "SELECT uuid::text FROM placement_provider WHERE id = ANY (%s::bigint[])"
#: Providers of which something is held that has no inventory here.
UNKNOWN: Final = """
SELECT DISTINCT n.provider::text FROM unnest(%s::uuid[], %s::text[]) AS n (provider, class)
 WHERE NOT EXISTS (
        SELECT FROM placement_provider p
          JOIN placement_inventory i ON i.provider_id = p.id
          JOIN placement_resource_class c ON c.id = i.resource_class_id
         WHERE p.uuid = n.provider AND c.name = n.class)
"""
HELD_OF_THEIRS: Final = """
SELECT DISTINCT p.uuid::text FROM placement_consumer k
  JOIN placement_allocation a ON a.consumer_id = k.id
  JOIN placement_provider p ON p.id = a.provider_id
 WHERE k.uuid = ANY (%s::uuid[]) AND p.origin = 'upstream'
"""


class FenceNotSettledError(HeadroomError):
    """What a write made of our trees cannot be read back and stored now."""

    code = "placement_fence_not_settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A raised fence; see :class:`placement.models.WriteFence`.

    Attributes:
        held_there: Providers of theirs of which the consumers hold something before the write.
    """

    number: int
    roots: frozenset[int]
    consumers: frozenset[str]
    is_whole: bool
    held_there: frozenset[str] = frozenset()


def raised(touched: Touched, *, is_whole: bool, is_about_all: bool) -> Fence | None:
    """Raise a fence, unless another one is about the same or the phase is another.

    When this returns, no write of ours about the same is under way.

    Args:
        touched: What the write names.
        is_whole: See the model.
        is_about_all: Whether it is about all that is ours.
    """
    drop_dead_connection()
    try:
        with transaction.atomic():
            run(state.SET_LOCK_TIMEOUT, [f"{LOCK_MILLISECONDS}ms"])
            run(state.CHANGE_TRUTH, [state.TRUTH_KEY])
            rows = run(state.PHASE).fetchall()
            look = look_at(touched)
            if not rows or rows[0][0] != Phase.PARTED or look.is_fenced:
                return None
            if is_about_all and run(COUNT).fetchall()[0][0]:
                return None
            roots = frozenset({ALL_ROOTS}) if is_about_all else look.standing.roots
            values = [sorted(roots), sorted(touched.consumers), is_whole, RAISE_SECONDS]
            number = run(RAISE, values).fetchall()[0][0]
            held = run(HELD_OF_THEIRS, [sorted(touched.consumers)]).fetchall()
    except OperationalError:
        return None
    return Fence(
        number=number,
        roots=roots,
        consumers=touched.consumers,
        is_whole=is_whole,
        held_there=frozenset(row[0] for row in held),
    )


def is_drained(peer: Peer, fence: Fence) -> bool:
    """Have the other side get all of our writes about the same; return whether there was time.

    Raises:
        PlacementError: it does not answer.
        ServiceUnavailable: it refuses one of them, which an operator has to look into.
    """
    ends_at = time.monotonic() + RAISE_SECONDS
    while True:
        rows = fetch(LEFT, [fence.number])
        if not rows or rows[0][3]:
            return False
        left, refused, running, _ = rows[0]
        if refused:
            raise ServiceUnavailable(
                "The Placement behind this one does not take what was written here before.",
                headers={"Retry-After": "30"},
            )
        if not left and not running:
            return True
        if left:
            mirroring.mirror(peer, until=lambda: time.monotonic() > ends_at)
        time.sleep(LOOK_SECONDS)


def is_sendable(fence: Fence) -> bool:
    """Say that a write goes out now; return whether it may."""
    drop_dead_connection()
    seconds = headroom().gateway.timeout_seconds + GRACE_SECONDS
    return bool(run(SEND, [seconds, fence.number]).fetchall())


def lower(fence: Fence) -> None:
    """Let others go on: nothing was sent, or nothing was done."""
    drop_dead_connection()
    run(LOWER, [fence.number])


def count_fences() -> int:
    """Return how many writes of both sides are under way."""
    return int(fetch(COUNT)[0][0])


def has_old() -> bool:
    """Return whether somebody died behind a fence; one small statement."""
    return bool(fetch(HAS_OLD))


def settle_old(peer: Peer) -> int:
    """Bring fences of which nobody heard in time to their end; return how many.

    Raises:
        HeadroomError: the other side does not answer; they stay.
    """
    drop_dead_connection()
    run(LOWER_UNSENT)
    done = 0
    while rows := run(TAKE_OLD, [SETTLING_SECONDS]).fetchall():
        number, roots, consumers, is_whole = rows[0]
        log.warning("cutover_fence_found")
        settle(
            peer,
            Fence(
                number=number,
                roots=frozenset(roots),
                consumers=frozenset(consumers),
                is_whole=is_whole,
            ),
        )
        done += 1
    return done


def settle(peer: Peer, fence: Fence) -> None:
    """Read back what the other side made of a write, store it, and lower the fence.

    Raises:
        FenceNotSettledError: what it says cannot be stored.
        HeadroomError: it does not answer; the fence stays.
    """
    for _ in range(TRIES):
        if not store(_read_back(peer, fence)):
            return
    raise FenceNotSettledError("what the other Placement says of a write cannot be stored")


def held_before(peer: Peer, fence: Fence) -> frozenset[str]:
    """Return the providers of which the consumers hold something over there, before a write.

    Raises:
        PeerError: it does not answer.
    """
    records = peer.each(peer.consumer, sorted(fence.consumers))
    return frozenset(uuid for record in records if record for uuid in record.allocations)


def _read_back(peer: Peer, fence: Fence) -> Slice:
    consumers = sorted(fence.consumers)
    records = peer.each(peer.consumer, consumers)
    found = [record for record in records if record is not None]
    is_about_all = ALL_ROOTS in fence.roots
    rows = {} if is_about_all else _rows_of_trees(peer, fence)
    providers = _whole(peer, list(rows), rows) if fence.is_whole else []
    known = {record.uuid for record in providers}
    providers += _unknown(peer, found, known)
    return Slice(
        names=peer.names() if is_about_all else None,
        generations={uuid: int(row["generation"]) for uuid, row in rows.items()},
        providers=providers,
        gone_providers=_gone(fence, rows) if fence.is_whole else (),
        consumers=found,
        gone_consumers=[
            uuid for uuid, record in zip(consumers, records, strict=True) if record is None
        ],
        due=[
            (CopyDue.Kind.GENERATION, uuid)
            for uuid in sorted({uuid for record in found for uuid in record.allocations})
            if uuid not in rows
        ],
        fence=fence.number,
    )


def _rows_of_trees(peer: Peer, fence: Fence) -> dict[str, Json]:
    """Return the providers of our trees as they are over there, wherever they went."""
    wanted = [row[0] for row in fetch(MEMBERS if fence.is_whole else ROOTS, [sorted(fence.roots)])]
    rows: dict[str, Json] = {}
    for uuid in wanted:
        if uuid not in rows:
            rows |= peer.tree(uuid)
    return rows


def _gone(fence: Fence, rows: Mapping[str, Any]) -> Collection[str]:  # Any: JSON
    return [row[0] for row in fetch(MEMBERS, [sorted(fence.roots)]) if row[0] not in rows]


def _whole(peer: Peer, uuids: list[str], rows: Mapping[str, Json]) -> list[ProviderRecord]:
    found = peer.each(lambda uuid: peer.provider(uuid, rows.get(uuid)), uuids)
    return [pair[0] for pair in found if pair is not None]


def _unknown(
    peer: Peer, records: list[ConsumerRecord], known: Collection[str]
) -> list[ProviderRecord]:
    """Return whole trees of theirs of which something is held that was not copied yet."""
    held = [
        (UUID(provider), name)
        for record in records
        for provider, amounts in record.allocations.items()
        for name in amounts
        if provider not in known
    ]
    wanted = fetch(UNKNOWN, [[str(pair[0]) for pair in held], [pair[1] for pair in held]])
    rows: dict[str, Json] = {}
    for (uuid,) in wanted:
        if uuid not in rows:
            rows |= peer.tree(uuid)
    return _whole(peer, list(rows), rows)
