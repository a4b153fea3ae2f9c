"""Copying from the other Placement while writes go on (docs/gateway.md).

Everything that may be another over there has a row that says so: what a write touched, what lists
show at another generation, what was never read. A row goes with the transaction that stores what
was read after it was there, so that copying may end at any line and goes on from there.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from itertools import count, takewhile
from typing import Final

from core.chunks import in_chunks
from core.conf import headroom
from core.prepared import drop_dead_connection, fetch, run
from journal.errors import HeadroomError
from placement.clients.reference_api import Json
from placement.cutover.peer import Peer
from placement.cutover.storing import ADD_DUE, NO_UUID, Due, Slice, store
from placement.domain.transfer import Contents
from placement.models import CopyDue

PROVIDERS_AT_ONCE: Final = 100
CONSUMERS_AT_ONCE: Final = 500
#: Rounds in a row in which something could not be stored, until it never can.
MOST_ROUNDS: Final = 20
#: Turns in a row that leave no less than one before them: as much is written meanwhile.
MOST_IDLE_TURNS: Final = 5
MOST_NAMED: Final = 5
#: Providers that are read again in each round of a worker, whether they moved or not.
REREAD_AT_ONCE: Final = 20

TAKE_WRITES: Final = """
WITH ended AS (
    DELETE FROM placement_forwarded_write WHERE is_done OR ends_at <= clock_timestamp()
    RETURNING providers, generations, consumers, has_names),
given AS (SELECT DISTINCT unnest(consumers) AS uuid FROM ended)
INSERT INTO placement_copy_due (kind, uuid)
SELECT 'provider', unnest(providers) FROM ended
 UNION
SELECT 'generation', unnest(generations) FROM ended
 UNION
SELECT 'consumer', uuid FROM given
 UNION
SELECT 'generation', p.uuid
  FROM given g JOIN placement_consumer k ON k.uuid = g.uuid
  JOIN placement_allocation a ON a.consumer_id = k.id
  JOIN placement_provider p ON p.id = a.provider_id
 UNION
SELECT 'names', %s::uuid FROM ended WHERE has_names
    ON CONFLICT DO NOTHING
"""
DUE: Final = "SELECT kind, uuid::text FROM placement_copy_due"
COUNT_RUNNING: Final = """
SELECT count(*) FROM placement_forwarded_write WHERE NOT is_done AND ends_at > clock_timestamp()
"""
COPIES: Final = """
SELECT p.uuid::text, p.name, p.generation, q.uuid::text
  FROM placement_provider p LEFT JOIN placement_provider q ON q.id = p.parent_id
 WHERE p.origin = 'upstream'
"""
OURS: Final = "SELECT uuid::text FROM placement_provider WHERE origin <> 'upstream'"
HELD: Final = """
SELECT p.uuid::text, k.uuid::text, k.generation, c.name, a.used
  FROM placement_allocation a
  JOIN placement_provider p ON p.id = a.provider_id
  JOIN placement_consumer k ON k.id = a.consumer_id
  JOIN placement_resource_class c ON c.id = a.resource_class_id
 WHERE p.uuid = ANY (%s::uuid[])
"""
#: No write was handed on since, none that began before copying may be under way, all is copied.
IS_EVEN: Final = """
SELECT NOT EXISTS (SELECT FROM placement_forwarded_write)
   AND NOT EXISTS (SELECT FROM placement_copy_due)
   AND EXISTS (SELECT FROM placement_provider WHERE origin = 'upstream')
   AND began_at < clock_timestamp() - %s::float8 * interval '1 second'
  FROM placement_cutover
"""
REREAD: Final = """
WITH part AS (
    SELECT p.uuid FROM placement_provider p, placement_cutover s
     WHERE p.origin = 'upstream' AND (s.reread_after IS NULL OR p.uuid > s.reread_after)
     ORDER BY p.uuid LIMIT %s),
noted AS (
    INSERT INTO placement_copy_due (kind, uuid) SELECT 'provider', uuid FROM part
        ON CONFLICT DO NOTHING)
UPDATE placement_cutover SET reread_after = (SELECT uuid FROM part ORDER BY uuid DESC LIMIT 1)
"""

Seen = Callable[[str, int], None]
"""Called with how much is left of a kind."""
#: Consumer -> its generation and its amounts by class.
Held = Mapping[str, tuple[int, Mapping[str, int]]]


class CannotFollowError(HeadroomError):
    """The other Placement says things that contradict each other, again and again."""

    code = "placement_cutover_inconsistent"


def unseen(_: str, __: int) -> None:
    """Take progress, for nobody."""


def take_writes() -> None:
    """Note as due what writes touched that have ended."""
    drop_dead_connection()
    run(TAKE_WRITES, [NO_UUID])


def count_running() -> int:
    """Return how many writes are handed on just now."""
    return int(fetch(COUNT_RUNNING)[0][0])


def read_due() -> dict[str, list[str]]:
    """Return UUIDs of what is due, by kind."""
    found: dict[str, list[str]] = defaultdict(list)
    for kind, uuid in fetch(DUE):
        found[kind].append(uuid)
    return found


def moved_providers(rows: Mapping[str, Json]) -> list[str]:
    """Return the providers whose copies are missing, superfluous or at another generation.

    Those of ours are no copies.

    Args:
        rows: As the other side lists them, by UUID.
    """
    here = {uuid: (name, generation, parent) for uuid, name, generation, parent in fetch(COPIES)}
    ours = {row[0] for row in fetch(OURS)}
    there = {
        uuid: (row["name"], row["generation"], row.get("parent_provider_uuid"))
        for uuid, row in rows.items()
        if uuid not in ours
    }
    return sorted(uuid for uuid in here.keys() | there.keys() if here.get(uuid) != there.get(uuid))


def is_even() -> bool:
    """Return whether nothing explains that the other side would be another than its copies."""
    rows = fetch(IS_EVEN, [headroom().gateway.timeout_seconds])
    return bool(rows and rows[0][0])


def note_due(kind: CopyDue.Kind, uuids: Collection[str]) -> None:
    """Note that copies may be others than over there."""
    drop_dead_connection()
    run(ADD_DUE, [[str(kind)] * len(uuids), sorted(uuids)])


def note_some_again() -> None:
    """Note the next few providers as due, round and round: what moved without us shows then."""
    drop_dead_connection()
    run(REREAD, [REREAD_AT_ONCE])


def follow(
    peer: Peer, seen: Seen = unseen, *, few: int = 0, until: Callable[[], bool] = lambda: False
) -> None:
    """Copy what is due until little is left of it; what is written meanwhile comes along.

    Args:
        seen: Told what is left.
        few: How much may be left; while writes go on, there is always something, and where they
            come faster than that a few turns in a row without fewer are enough as well. With none,
            which takes that nobody writes, all is copied.
        until: Whether to stop, whatever is left; what is under way is stored.

    Raises:
        CannotFollowError: something cannot be stored, again and again.
        CopyingEndedError: we are the truth by now.
        PeerError: the other side does not answer.
        PlacementError: likewise.
    """
    put_off: Counter[Due] = Counter()
    least, idle = sys.maxsize, 0
    for turn in count():
        take_writes()
        due = read_due()
        for kind in CopyDue.Kind:
            seen(kind, len(due[kind]))
        left = sum(map(len, due.values()))
        least, idle = (left, 0) if left < least else (least, idle + 1)
        if left <= (few if turn else 0) or (few and idle >= MOST_IDLE_TURNS) or until():
            return
        later = [
            *_copy_names(peer, due[CopyDue.Kind.NAMES]),
            *_copy_generations(peer, due[CopyDue.Kind.GENERATION]),
            *_copy_providers(peer, due[CopyDue.Kind.PROVIDER], seen, until),
            *_copy_consumers(peer, sorted(read_due()[CopyDue.Kind.CONSUMER]), seen, until),
        ]
        put_off = Counter({one: put_off[one] + 1 for one in later})
        hopeless = [one for one, rounds in put_off.items() if rounds > MOST_ROUNDS]
        if hopeless:
            named = ", ".join(f"{kind} {uuid}" for kind, uuid in sorted(hopeless)[:MOST_NAMED])
            raise CannotFollowError(f"what the other side says cannot be stored: {named}")


def copy_all(peer: Peer, seen: Seen = unseen, *, few: int = 0) -> None:
    """Copy everything that differs from what the other side lists.

    Twice: what moved during the first time is little.

    Raises:
        HeadroomError: as :func:`follow`.
    """
    note_due(CopyDue.Kind.NAMES, [NO_UUID])
    for _ in range(2):
        note_due(CopyDue.Kind.PROVIDER, moved_providers(peer.rows()))
        follow(peer, seen, few=few)


def store_contents(contents: Contents) -> None:
    """Store all that was read of the other side's database at once; lists tell what moved since."""
    everything = Slice(
        names=(contents.classes, contents.traits),
        providers=list(contents.providers.values()),
        consumers=[record for record in contents.consumers.values() if record.allocations],
    )
    store(everything)


def _copy_names(peer: Peer, due: Collection[str]) -> set[Due]:
    if not due:
        return set()
    return store(Slice(names=peer.names(), done=[(CopyDue.Kind.NAMES, NO_UUID)]))


def _copy_generations(peer: Peer, due: Collection[str]) -> set[Due]:
    """Take over generations from one list of all: writes of allocations change nothing else."""
    if not due:
        return set()
    rows = peer.rows()
    generations = {uuid: int(rows[uuid]["generation"]) for uuid in due if uuid in rows}
    done = [(CopyDue.Kind.GENERATION, uuid) for uuid in due]
    return store(Slice(generations=generations, done=done))


def _copy_providers(
    peer: Peer, due: Collection[str], seen: Seen, until: Callable[[], bool]
) -> set[Due]:
    """Store providers and note the consumers that hold other things of them than is known."""
    left, later = len(due), set[Due]()
    rows = peer.rows() if len(due) > PROVIDERS_AT_ONCE else {}
    depth = _depths(rows)
    ordered = sorted(due, key=lambda uuid: (depth.get(uuid, 0), uuid))
    for uuids in takewhile(lambda _: not until(), in_chunks(ordered, PROVIDERS_AT_ONCE)):
        found = peer.each(lambda uuid: peer.provider(uuid, rows.get(uuid)), uuids)
        records = [pair[0] for pair in found if pair is not None]
        here = _held_here(uuids)
        differing = {
            consumer
            for uuid, pair in zip(uuids, found, strict=True)
            for consumer in _differing(here[uuid], _held_there(pair[1] if pair else {}))
        }
        later |= store(
            Slice(
                providers=records,
                gone_providers=[
                    uuid for uuid, pair in zip(uuids, found, strict=True) if pair is None
                ],
                done=[(CopyDue.Kind.PROVIDER, uuid) for uuid in uuids],
                due=[(CopyDue.Kind.CONSUMER, uuid) for uuid in differing],
            )
        )
        left -= len(uuids)
        seen(CopyDue.Kind.PROVIDER, left)
    return later


def _depths(rows: Mapping[str, Json]) -> dict[str, int]:
    """Return how far below its root each provider is, so that parents are copied first."""
    found: dict[str, int] = {}
    for uuid, row in rows.items():
        above, steps = row.get("parent_provider_uuid"), 0
        while above in rows and steps < len(rows):
            above, steps = rows[above].get("parent_provider_uuid"), steps + 1
        found[uuid] = steps
    return found


def _copy_consumers(
    peer: Peer, due: Collection[str], seen: Seen, until: Callable[[], bool]
) -> set[Due]:
    left, later = len(due), set[Due]()
    for uuids in takewhile(lambda _: not until(), in_chunks(list(due), CONSUMERS_AT_ONCE)):
        found = peer.each(peer.consumer, uuids)
        later |= store(
            Slice(
                consumers=[record for record in found if record is not None],
                gone_consumers=[
                    uuid for uuid, record in zip(uuids, found, strict=True) if record is None
                ],
                done=[(CopyDue.Kind.CONSUMER, uuid) for uuid in uuids],
            )
        )
        left -= len(uuids)
        seen(CopyDue.Kind.CONSUMER, left)
    return later


def _held_here(providers: Collection[str]) -> dict[str, dict[str, tuple[int, dict[str, int]]]]:
    found: dict[str, dict[str, tuple[int, dict[str, int]]]] = defaultdict(dict)
    for provider, consumer, generation, name, used in fetch(HELD, [sorted(providers)]):
        found[provider].setdefault(consumer, (generation, {}))[1][name] = used
    return found


def _held_there(listed: Mapping[str, Json]) -> Held:
    return {
        consumer: (held["consumer_generation"], held["resources"])
        for consumer, held in listed.items()
    }


def _differing(here: Held, there: Held) -> set[str]:
    return {
        consumer
        for consumer in here.keys() | there.keys()
        if here.get(consumer) != there.get(consumer)
    }
