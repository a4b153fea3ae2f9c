"""Sending writes of ours to the other Placement as well, once we are the truth (docs/gateway.md).

Each is sent as it came, in an order that keeps those that share anything, so that the other side
counts the same generations. One that was sent before and has no known answer is sent again only if
that changes nothing when it was done; else the generations tell whether it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import unquote

import orjson
import structlog

from core.conf import headroom
from core.prepared import Row, drop_dead_connection, fetch, run
from journal.errors import HeadroomError
from journal.progress import unwatched
from placement.cutover.peer import NOT_FOUND, Peer
from placement.domain.errors import PlacementError
from placement.domain.replaying import Subject, sendable
from placement.domain.touched import counts_generations

log = structlog.get_logger(__name__)

SENDERS: Final = 6
#: Times the longest time of a request: then one of which nobody heard has ended.
OVER_AFTER: Final = 2.0
READ_AT_ONCE: Final = 200
FAILED: Final = 400
SERVER_FAILED: Final = 500
SHOWN: Final = 300

WAITING: Final = """
SELECT id, method, target, minor, body, roots, consumers::text[], providers_after::text,
       consumers_after::text, sent_at IS NOT NULL,
       coalesce(sent_at <= clock_timestamp() - %s::float8 * interval '1 second', true), refusal
  FROM placement_mirrored_write ORDER BY id LIMIT %s
"""
COUNT: Final = """
SELECT count(*), count(*) FILTER (WHERE refusal <> ''), min(created_at)
  FROM placement_mirrored_write
"""
SENDING: Final = """
UPDATE placement_mirrored_write SET sent_at = clock_timestamp()
 WHERE id = ANY (%s)
   AND (sent_at IS NULL OR sent_at <= clock_timestamp() - %s::float8 * interval '1 second')
"""
GONE: Final = "DELETE FROM placement_mirrored_write WHERE id = ANY (%s)"
REFUSED: Final = "UPDATE placement_mirrored_write SET refusal = %s WHERE id = %s"
AGAIN: Final = "UPDATE placement_mirrored_write SET refusal = '' WHERE refusal <> ''"


class MirrorRefusedError(HeadroomError):
    """The other Placement does not take a write that we did."""

    code = "placement_mirror_refused"


class MirrorFailedError(PlacementError):
    """The other Placement answered a mirrored write with an error of its own."""

    code = "placement_mirror_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A write that waits to be sent; see :class:`placement.models.MirroredWrite`.

    Attributes:
        is_over: Whether a request that was sent then has ended by now, whatever became of it.
    """

    subject: Subject
    method: str
    target: str
    minor: int
    body: bytes
    providers_after: dict[str, int]
    consumers_after: dict[str, int]
    was_sent: bool
    is_over: bool
    refusal: str

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
    seen: Callable[[int], None] = unwatched,
) -> Backlog:
    """Send what waits until nothing is left that can be sent; return what is left.

    Args:
        peer: The other side.
        until: Whether to stop; what is under way is finished.
        seen: Told how many were done.

    Raises:
        PlacementError: the other side does not answer; what was sent stays.
    """
    under_way: dict[Future[str | None], Kept] = {}
    failure: PlacementError | None = None
    waits: set[int] = set()
    while True:
        stops = failure is not None or until()
        chosen = [] if stops else _next(under_way.values(), waits)
        if chosen:
            drop_dead_connection()
            run(SENDING, [[kept.subject.number for kept in chosen], over_after_seconds()])
            under_way |= {peer.begin(partial(sent, peer, kept)): kept for kept in chosen}
        if not under_way:
            break
        done, _ = wait(under_way, return_when=FIRST_COMPLETED)
        gone = []
        for future in done:
            kept = under_way.pop(future)
            try:
                refusal = future.result()
            except PlacementError as error:
                failure = error
                continue
            if refusal is None:
                waits.add(kept.subject.number)
            elif refusal:
                _note_refusal(kept, refusal)
            else:
                gone.append(kept.subject.number)
        drop_dead_connection()
        run(GONE, [gone])
        seen(len(gone))
    if failure is not None:
        raise failure
    return backlog()


def sent(peer: Peer, kept: Kept) -> str | None:
    """Send a write, unless it was done already.

    One that was sent by somebody who did not hear the answer may be under way still. Sent again
    then, it could be done twice, or after what follows it; so it waits until that one is over.

    Returns:
        Why the other side refuses it, empty if it has it; nothing if it has to wait.

    Raises:
        PlacementError: there is no answer, or one that says nothing about the write.
    """
    if kept.was_sent:
        has_sign = counts_generations(kept.method, kept.path, kept.minor)
        if has_sign and is_done(peer, kept):
            return ""
        if not kept.is_over:
            return None
    answer = peer.send(kept.method, kept.target, kept.minor, kept.body)
    if answer.status < FAILED:
        return ""
    told = answer.body[:SHOWN].decode(errors="replace")
    if answer.status >= SERVER_FAILED:
        raise MirrorFailedError(f"{kept.method} {kept.path} answered {answer.status}: {told}")
    if kept.was_sent:
        is_away = kept.method == "DELETE" and answer.status == NOT_FOUND
        if is_away or is_done(peer, kept):
            return ""
    return f"{answer.status}: {told}"


def is_done(peer: Peer, kept: Kept) -> bool:
    """Return whether the other side has the generations that we had after a write."""
    for consumer in sorted(kept.subject.consumers):
        record = peer.consumer(consumer)
        if (record.generation if record else None) != kept.consumers_after.get(consumer):
            return False
    for uuid, generation in sorted(kept.providers_after.items()):
        row = peer.find(f"/resource_providers/{uuid}")
        if row is None or row["generation"] != generation:
            return False
    return True


def over_after_seconds() -> float:
    """Return after how long a request of which nobody heard has ended."""
    return OVER_AFTER * float(headroom().gateway.timeout_seconds)


def _next(under_way: Iterable[Kept], waits: Collection[int]) -> list[Kept]:
    """Return what may be sent now.

    Args:
        under_way: What is being sent.
        waits: Numbers of what was sent by others, and may not be over.
    """
    sending = {kept.subject.number for kept in under_way}
    waiting = [_kept(row) for row in fetch(WAITING, [over_after_seconds(), READ_AT_ONCE])]
    held = {
        kept.subject.number
        for kept in waiting
        if kept.refusal or kept.subject.number in sending or kept.subject.number in waits
    }
    busy = [kept.subject for kept in waiting if kept.subject.number in held]
    free = {kept.subject.number: kept for kept in waiting if kept.subject.number not in held}
    room = SENDERS - len(sending)
    subjects = [kept.subject for kept in free.values()]
    return [free[one.number] for one in sendable(subjects, busy, limit=room)]


def _kept(row: Row) -> Kept:
    number, method, target, minor, body, roots, consumers, providers, held, *sent, refusal = row
    return Kept(
        subject=Subject(number=number, roots=frozenset(roots), consumers=frozenset(consumers)),
        method=method,
        target=target,
        minor=minor,
        body=bytes(body),
        providers_after=orjson.loads(providers),
        consumers_after=orjson.loads(held),
        was_sent=sent[0],
        is_over=sent[1],
        refusal=refusal,
    )


def _note_refusal(kept: Kept, refusal: str) -> None:
    log.error("cutover_mirror_refused", method=kept.method, path=kept.path, status=refusal[:3])
    drop_dead_connection()
    run(REFUSED, [refusal, kept.subject.number])
