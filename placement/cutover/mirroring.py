"""Sending writes of ours to the other Placement as well, once we are the truth (docs/gateway.md).

Each is sent as it came, in an order that keeps those that share anything, so that the other side
counts the same generations. One that was sent before and has no known answer is sent again only if
that changes nothing when it was done; else the generations tell whether it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from urllib.parse import unquote

import orjson
import structlog

from core.conf import headroom
from core.copying import number_array
from core.prepared import Row, drop_dead_connection, fetch, fetch_prepared, run
from journal.errors import HeadroomError
from placement.cutover.peer import NOT_FOUND, SENDERS, Peer
from placement.domain.errors import (
    PlacementError,
    ServiceUnavailable,
    UpstreamAway,
    UpstreamUnreachable,
)
from placement.domain.replaying import Subject, sendable
from placement.domain.touched import counts_generations, touched_by

log = structlog.get_logger(__name__)

#: Times the longest time of a request: then one of which nobody heard has ended.
OVER_AFTER: Final = 2.0
READ_AT_ONCE: Final = 500
#: Most writes that are known at once; what waits behind refused ones is not looked for for ever.
MOST_KNOWN: Final = 5000
FAILED: Final = 400
SERVER_FAILED: Final = 500
SHOWN: Final = 300
#: Errors after which nothing was sent.
NOT_SENT: Final = (UpstreamUnreachable, UpstreamAway, ServiceUnavailable)

WAITING: Final = """
SELECT id, roots, consumers::text[], sent_at IS NOT NULL,
       coalesce(sent_at <= clock_timestamp() - %s::float8 * interval '1 second', true),
       refusal <> ''
  FROM placement_mirrored_write WHERE id <> ALL (%s::bigint[]) ORDER BY id LIMIT %s::int
"""
COUNT: Final = """
SELECT count(*), count(*) FILTER (WHERE refusal <> ''), min(created_at)
  FROM placement_mirrored_write
"""
#: Forgets what is done, and returns what goes out now: what nobody else sends just now is noted.
EXCHANGE: Final = """
WITH gone AS (DELETE FROM placement_mirrored_write WHERE id = ANY (%(gone)s::bigint[])),
taken AS (
    UPDATE placement_mirrored_write SET sent_at = clock_timestamp()
     WHERE id = ANY (%(chosen)s::bigint[])
       AND (sent_at IS NULL
            OR sent_at <= clock_timestamp() - %(seconds)s::float8 * interval '1 second')
    RETURNING id, method, target, minor, body, providers_after, consumers_after)
SELECT true, id, method, target, minor, body, providers_after::text, consumers_after::text
  FROM taken
 UNION ALL
SELECT false, id, method, target, minor, body, providers_after::text, consumers_after::text
  FROM placement_mirrored_write w
 WHERE id = ANY (%(chosen)s::bigint[]) AND NOT EXISTS (SELECT FROM taken t WHERE t.id = w.id)
"""
UNSENT: Final = "UPDATE placement_mirrored_write SET sent_at = NULL WHERE id = %s"
REFUSED: Final = "UPDATE placement_mirrored_write SET refusal = %s WHERE id = %s"
AGAIN: Final = "UPDATE placement_mirrored_write SET refusal = '' WHERE refusal <> ''"


class MirrorRefusedError(HeadroomError):
    """The other Placement does not take a write that we did."""

    code = "placement_mirror_refused"


class MirrorFailedError(PlacementError):
    """The other Placement answered a mirrored write with an error of its own."""

    code = "placement_mirror_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A write that waits, without its body; see :class:`placement.models.MirroredWrite`.

    Attributes:
        is_over: Whether a request that was sent before it was read has ended by then, whatever
            became of it.
    """

    subject: Subject
    was_sent: bool
    is_over: bool
    is_refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A write that is to be sent, whole.

    Attributes:
        waiting: As it was read before it went out.
    """

    waiting: Waiting
    method: str
    target: str
    minor: int
    body: bytes
    providers_after: dict[str, int]
    consumers_after: dict[str, int]

    @property
    def number(self) -> int:
        """Its place in the order."""
        return self.waiting.subject.number

    @property
    def path(self) -> str:
        """Its path, decoded, without its query."""
        return unquote(self.target.partition("?")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits.

    Attributes:
        refused: How many of them the other side does not take.
    """

    count: int
    refused: int
    oldest: object = None


def backlog() -> Backlog:
    """Return what waits to be sent."""
    count, refused, oldest = fetch(COUNT)[0]
    return Backlog(count=count, refused=refused, oldest=oldest)


def try_refused_again() -> None:
    """Forget refusals, so that those writes are sent again."""
    drop_dead_connection()
    run(AGAIN)


def mirror(
    peer: Peer,
    *,
    until: Callable[[], bool] = lambda: False,
    few: int = 0,
) -> Backlog:
    """Send what waits until nothing is left that can be sent; return what is left.

    Several processes may do so at once: of what another one sends just now it is asked only whether
    it was done.

    Args:
        until: Whether to stop; what is under way is finished.
        few: How many may be left, where writes go on.

    Raises:
        PlacementError: the other side does not answer; what was sent stays.
    """
    line = _Line()
    under_way: dict[Future[str | None], Kept] = {}
    failure: PlacementError | None = None
    while True:
        stops = failure is not None or until()
        chosen = [] if stops else line.chosen(SENDERS - len(under_way), few=few)
        if chosen or line.done:
            going = _exchanged(line.done, chosen)
            line.forget({one.subject.number for one in chosen} - {kept.number for kept in going})
            line.done.clear()
            under_way |= {peer.begin(partial(sent, peer, kept)): kept for kept in going}
        if not under_way:
            break
        done, _ = wait(under_way, return_when=FIRST_COMPLETED)
        for future in done:
            kept = under_way.pop(future)
            try:
                refusal = future.result()
            except PlacementError as error:
                failure = error
                if isinstance(error, NOT_SENT) and not kept.waiting.was_sent:
                    _note_unsent(kept)
                continue
            if refusal:
                _note_refusal(kept, refusal)
            if refusal == "":
                line.end(kept.number)
    if failure is not None:
        raise failure
    return backlog()


class _Line:
    """The writes that wait, in their order, each read once.

    More are read when too few of those that are known may go. A write that has a lower number than
    known ones, as its transaction took longer, shares nothing with them.

    Attributes:
        done: Numbers of writes that the other side has, and that have a row still.
    """

    def __init__(self) -> None:
        self.done: set[int] = set()
        self._known: dict[int, Waiting] = {}
        self._held: set[int] = set()
        self._is_whole = False

    def chosen(self, limit: int, *, few: int) -> list[Waiting]:
        """Return what goes now; none if no more than a few wait.

        Args:
            limit: How many at most.
            few: That few.
        """
        found = self._sendable(limit)
        if len(found) < limit and self._read():
            found = self._sendable(limit)
        if self._is_whole and len(self._known) - len(self._held) <= few:
            return []
        self._held |= {one.subject.number for one in found}
        return found

    def end(self, number: int) -> None:
        """Let those go that waited for a write, which the other side has."""
        del self._known[number]
        self._held.discard(number)
        self.done.add(number)

    def forget(self, numbers: Collection[int]) -> None:
        """Let those go that waited for writes which another process brought to their end."""
        for number in numbers:
            del self._known[number]
            self._held.discard(number)

    def _sendable(self, limit: int) -> list[Waiting]:
        """Return what shares nothing with anything before it that is still here.

        What went out stays held until it is forgotten, and so does what was refused or has to
        wait.
        """
        busy = [self._known[number].subject for number in self._held]
        free = (one.subject for number, one in self._known.items() if number not in self._held)
        return [self._known[one.number] for one in sendable(free, busy, limit=limit)]

    def _read(self) -> bool:
        """Read more; return whether there were any."""
        if len(self._known) >= MOST_KNOWN:
            return False
        known = number_array(sorted(self._known.keys() | self.done))
        parameters = [over_after_seconds(), known, READ_AT_ONCE]
        rows = fetch_prepared(WAITING, parameters)
        self._is_whole = len(rows) < READ_AT_ONCE
        if not rows:
            return False
        more = {row[0]: _waiting(row) for row in rows}
        self._held |= {number for number, one in more.items() if one.is_refused}
        self._known = dict(sorted({**self._known, **more}.items()))
        return True


def sent(peer: Peer, kept: Kept) -> str | None:
    """Send a write, unless it was done already.

    One that was sent by somebody who did not hear the answer may be under way still. Sent again
    then, it could be done twice, or after what follows it; so it waits until that one is over.

    Returns:
        Why the other side refuses it, empty if it has it; nothing if it has to wait.

    Raises:
        PlacementError: there is no answer, or one that says nothing about the write.
    """
    was_sent = kept.waiting.was_sent
    if was_sent:
        has_sign = counts_generations(kept.method, kept.path, kept.minor)
        if has_sign and is_done(peer, kept):
            return ""
        if not kept.waiting.is_over:
            return None
    answer = peer.send(kept.method, kept.target, kept.minor, kept.body)
    if answer.status < FAILED:
        return ""
    told = answer.body[:SHOWN].decode(errors="replace")
    if answer.status >= SERVER_FAILED:
        raise MirrorFailedError(f"{kept.method} {kept.path} answered {answer.status}: {told}")
    if was_sent:
        is_away = kept.method == "DELETE" and answer.status == NOT_FOUND
        if is_away or is_done(peer, kept):
            return ""
    return f"{answer.status}: {told}"


def is_done(peer: Peer, kept: Kept) -> bool:
    """Return whether the other side has the generations that we had after a write.

    Those of the consumers and providers that it names: of others in the same trees we may have
    known another number then, since writes of these were done at the same time.
    """
    for consumer in sorted(kept.waiting.subject.consumers):
        record = peer.consumer(consumer)
        if (record.generation if record else None) != kept.consumers_after.get(consumer):
            return False
    named = touched_by(kept.path, kept.body)
    for uuid in sorted(named.providers | named.generations):
        row = peer.find(f"/resource_providers/{uuid}")
        if (row["generation"] if row else None) != kept.providers_after.get(uuid):
            return False
    return True


def over_after_seconds() -> float:
    """Return after how long a request of which nobody heard has ended."""
    return OVER_AFTER * float(headroom().gateway.timeout_seconds)


def _waiting(row: Row) -> Waiting:
    number, roots, consumers, was_sent, is_over, is_refused = row
    return Waiting(
        subject=Subject(number=number, roots=frozenset(roots), consumers=frozenset(consumers)),
        was_sent=was_sent,
        is_over=is_over,
        is_refused=is_refused,
    )


def _exchanged(gone: Collection[int], chosen: Collection[Waiting]) -> list[Kept]:
    """Forget what is done, and note and return what is sent now."""
    numbered = {one.subject.number: one for one in chosen}
    parameters = {
        "gone": number_array(sorted(gone)),
        "chosen": number_array(sorted(numbered)),
        "seconds": over_after_seconds(),
    }
    return [
        Kept(
            waiting=numbered[number] if is_taken else _sent_by_others(numbered[number]),
            method=method,
            target=target,
            minor=minor,
            body=bytes(body),
            providers_after=orjson.loads(providers),
            consumers_after=orjson.loads(consumers),
        )
        for is_taken, number, method, target, minor, body, providers, consumers in fetch_prepared(
            EXCHANGE, parameters
        )
    ]


def _sent_by_others(one: Waiting) -> Waiting:
    return replace(one, was_sent=True, is_over=False)


def _note_unsent(kept: Kept) -> None:
    """Let a write go out as soon as the other side is there again, which has never seen it."""
    drop_dead_connection()
    run(UNSENT, [kept.number])


def _note_refusal(kept: Kept, refusal: str) -> None:
    log.error("cutover_mirror_refused", method=kept.method, path=kept.path, status=refusal[:3])
    drop_dead_connection()
    run(REFUSED, [refusal, kept.number])
