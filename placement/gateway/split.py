"""Writes of allocations on both sides at once (spec placement, 8.5).

Two stores cannot commit together. So a record with both states is written first, in the transaction
in which our tables take a hold that covers both: of each provider and class the larger amount of
before and after. Then the other Placement is sent its part as one request. What it answers decides:
our part becomes the new one, or again the old one; both only give back, so neither can fail for
want of room. Without an answer the record stays, and whoever comes next, at the latest a task, asks
what the other side holds now: its generations tell whether it carried the request out. It may do
so late, so that "it did not" counts only after a time in which any request has ended. A write of
ours alone looks for records behind the lock of its consumers under which they are written, so that
no hold that ends undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final

import orjson
import structlog
from django.db import IntegrityError, transaction
from django.http import HttpResponse

from core.conf import headroom
from core.copying import number_array
from core.prepared import fetch_prepared, run
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import HeadroomError
from placement.cutover.standing import lock_consumers
from placement.database import in_transaction
from placement.domain.errors import (
    CONCURRENT_UPDATE,
    Conflict,
    PlacementError,
    UpstreamAway,
    UpstreamUnreachable,
)
from placement.domain.schemas import CONSUMER_GENERATIONS_SINCE, CONSUMER_TYPES_SINCE
from placement.gateway.asking import Asks, Held, RefusedError, held_there
from placement.gateway.upstream import UpstreamAnswer
from placement.models import SplitConsumer, SplitWrite
from placement.selectors.allocations import UNKNOWN_TYPE, get_consumer_allocations
from placement.services.allocations import (
    AllocationRequest,
    ConsumerWrite,
    replace_in_transaction,
)
from placement.services.rooms import Resources

log = structlog.get_logger(__name__)

DONE: Final = 204
CLIENT_ERRORS: Final = range(400, 500)
FAILED: Final = 400
#: How many times the longest request a write is taken for possibly under way.
TIMES_OF_A_REQUEST: Final = 2
MOST_HEALED: Final = 500

SET_GENERATION = "UPDATE placement_consumer SET generation = %s::int WHERE uuid = %s::uuid"
KNOWN_HERE = """
SELECT k.uuid::text, 0::bigint FROM placement_consumer k WHERE k.uuid = ANY (%s::uuid[])
 UNION ALL
SELECT s.uuid::text, s.write_id FROM placement_split_consumer s WHERE s.uuid = ANY (%s::uuid[])
"""


class Resolution(Enum):
    """What the other side made of its part."""

    AFTER = "carried out"
    BEFORE = "not carried out"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHere:
    """What our tables know of some consumers.

    Attributes:
        holding: Those that hold something of ours.
        writes: Keys of split writes that concern some of them.
    """

    holding: frozenset[str]
    writes: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one consumer of a request holds and is to hold, on each side."""

    write: ConsumerWrite
    here: Held
    there: Held
    wanted_here: Resources
    wanted_there: Resources

    @property
    def generation(self) -> int | None:
        """The one that clients see: ours where it holds something of ours."""
        return self.here.generation if self.here.resources else self.there.generation

    @property
    def concerns_here(self) -> bool:
        """Whether our tables have or get something."""
        return bool(self.here.resources or self.wanted_here)

    @property
    def concerns_there(self) -> bool:
        """Whether the other side has or gets something."""
        return bool(self.there.resources or self.wanted_there)


def known_here(consumers: Iterable[str]) -> KnownHere:
    """Return what is known here of some consumers; one query."""
    wanted = number_array(sorted(consumers))
    rows = fetch_prepared(KNOWN_HERE, [wanted, wanted])
    return KnownHere(
        holding=frozenset(row[0] for row in rows if not row[1]),
        writes=frozenset(row[1] for row in rows if row[1]),
    )


def write_here(consumers: Collection[str], serve: Callable[[], HttpResponse]) -> HttpResponse:
    """Let our side write alone; no write of both sides about the same consumers begins meanwhile.

    Args:
        consumers: Whom it is about.
        serve: Writes, and returns the answer.

    Raises:
        Conflict: one is under way.
    """

    def write() -> HttpResponse:
        lock_consumers(consumers)
        if known_here(consumers).writes:
            raise _under_way()
        response = serve()
        if response.status_code >= FAILED:
            transaction.set_rollback(True)
        return response

    return in_transaction(write)


def parts_of(
    request: AllocationRequest, *, owned: frozenset[str], holding: frozenset[str], ask: Asks
) -> list[Part]:
    """Return what a request is about on each side; asks the other one for each consumer.

    Raises:
        Conflict: a consumer has another generation than the client knows.
        RefusedError: the other side answered otherwise.
    """
    parts = []
    for one in request.consumers:
        held = get_consumer_allocations(one.uuid) if one.uuid in holding else None
        part = Part(
            write=one,
            here=Held(held.resources, held.consumer_generation if held.resources else None)
            if held
            else Held({}, None),
            there=held_there(ask, one.uuid),
            wanted_here={uuid: found for uuid, found in one.resources.items() if uuid in owned},
            wanted_there={
                uuid: found for uuid, found in one.resources.items() if uuid not in owned
            },
        )
        if request.checks_generations and one.generation != part.generation:
            raise Conflict(
                f"consumer generation conflict - expected {part.generation or 'null'} but got "
                f"{one.generation or 'null'}",
                wire_code=CONCURRENT_UPDATE,
                reason="consumer_generation",
            )
        parts.append(part)
    return parts


def write_both(
    parts: list[Part], *, minor: int, ask: Asks, actor: Actor, request_id: str
) -> UpstreamAnswer | None:
    """Write both sides, or leave both as they were.

    Returns:
        Nothing if it is done, else why the other side refused.

    Raises:
        Conflict: it does not fit here, or a consumer is being written.
        PlacementError: the other side did not answer; then the record says what is left to do.
    """
    row = _begin(parts, minor=minor, actor=actor, request_id=request_id)
    try:
        answer = ask("POST", "/allocations", row.minor, orjson.dumps(row.body))
    except (UpstreamAway, UpstreamUnreachable):
        _finish(row.pk, Resolution.BEFORE)
        raise
    except PlacementError as error:
        if settle(row, ask) is Resolution.AFTER:
            return None
        _note(row, str(error))
        raise
    if answer.status == DONE:
        _finish_done(row)
        return None
    if answer.status in CLIENT_ERRORS:
        _finish(row.pk, Resolution.BEFORE)
    elif settle(row, ask) is Resolution.AFTER:
        return None
    return answer


def settle(row: SplitWrite, ask: Asks) -> Resolution | None:
    """Bring a write of unknown outcome to its end, if that can be known now."""
    try:
        now = {consumer: held_there(ask, consumer) for consumer in row.theirs}
    except (PlacementError, RefusedError) as error:
        _note(row, str(error))
        return None
    outcome = outcome_of(row.theirs, now)
    if outcome is None:
        _note(row, "the other side holds neither what it held nor what it was to hold")
    elif outcome is Resolution.BEFORE and database_now() < row.ends_at:
        return None
    else:
        _finish(row.pk, outcome)
        log.info("gateway_split_settled", outcome=outcome.value, names=list(row.theirs))
    return outcome


def settle_all(keys: Iterable[int], ask: Asks) -> None:
    """Settle writes that stand in the way of another one.

    Raises:
        Conflict: one is still under way.
    """
    for row in SplitWrite.objects.filter(pk__in=list(keys)):
        if settle(row, ask) is None:
            raise Conflict(
                "A write of these allocations is still under way: try again",
                wire_code=CONCURRENT_UPDATE,
            )


def has_split_writes() -> bool:
    """Return whether any write of both sides is there."""
    return SplitWrite.objects.exists()


def heal(ask: Asks) -> dict[str, int]:
    """Settle all writes of unknown outcome; returns how many were, and how many are left."""
    rows = list(SplitWrite.objects.order_by("pk")[:MOST_HEALED])
    settled = sum(_is_settled(row, ask) for row in rows if _is_due(row))
    return {"settled": settled, "left": len(rows) - settled}


def outcome_of(theirs: Mapping[str, Any], now: Mapping[str, Held]) -> Resolution | None:
    """Return what the other side made of a request, nothing if its state is another one.

    Args:
        theirs: By consumer, ``before`` and ``after`` with ``resources`` and ``generation``.
        now: What the consumers hold there.
    """
    for outcome, name in ((Resolution.AFTER, "after"), (Resolution.BEFORE, "before")):
        if all(
            now[consumer].resources == states[name]["resources"]
            and now[consumer].generation == states[name]["generation"]
            for consumer, states in theirs.items()
        ):
            return outcome
    return None


def _is_settled(row: SplitWrite, ask: Asks) -> bool:
    """Settle a write; one that our tables do not take now holds up no other."""
    try:
        return settle(row, ask) is not None
    except HeadroomError as error:
        _note(row, error.message)
        return False


def _is_due(row: SplitWrite) -> bool:
    return bool(row.error) or database_now() >= row.ends_at


def _begin(parts: list[Part], *, minor: int, actor: Actor, request_id: str) -> SplitWrite:
    here = [part for part in parts if part.concerns_here]
    there = [part for part in parts if part.concerns_there]
    sent_minor = max(minor, CONSUMER_GENERATIONS_SINCE)
    if not all(part.write.consumer_type for part in there):  # who gives back names no type
        sent_minor = min(sent_minor, CONSUMER_TYPES_SINCE - 1)
    hold = AllocationRequest(consumers=[_held_for(part) for part in here], checks_generations=True)
    ends_at = database_now() + timedelta(
        seconds=TIMES_OF_A_REQUEST * headroom().gateway.timeout_seconds
    )

    def write() -> SplitWrite:
        lock_consumers([part.write.uuid for part in parts])
        elsewhere = [part.write.uuid for part in parts if not part.concerns_here]
        if any(get_consumer_allocations(uuid).resources for uuid in elsewhere):
            raise _under_way()  # it came to hold something here since it was looked at
        row = SplitWrite.objects.create(
            ends_at=ends_at,
            request_id=request_id,
            actor=actor.name,
            minor=sent_minor,
            before={part.write.uuid: _before(part) for part in here},
            after={part.write.uuid: _after(part) for part in here},
            theirs={part.write.uuid: _states_there(part) for part in there},
            body={part.write.uuid: _document(part, sent_minor) for part in there},
            consumers=[part.write.uuid for part in parts],
        )
        SplitConsumer.objects.bulk_create(
            [SplitConsumer(uuid=part.write.uuid, write=row) for part in parts]
        )
        replace_in_transaction(hold, actor=actor, request_id=request_id)
        return row

    try:
        return in_transaction(write)
    except IntegrityError as error:
        raise _under_way() from error


def _under_way() -> Conflict:
    return Conflict(
        "A write of these allocations is under way: try again", wire_code=CONCURRENT_UPDATE
    )


def _held_for(part: Part) -> ConsumerWrite:
    """Return what covers both outcomes."""
    union: dict[str, dict[str, int]] = {}
    for resources in (part.here.resources, part.wanted_here):
        for provider, amounts in resources.items():
            held = union.setdefault(provider, {})
            for name, amount in amounts.items():
                held[name] = max(held.get(name, 0), amount)
    return ConsumerWrite(
        uuid=part.write.uuid,
        project_id=part.write.project_id,
        user_id=part.write.user_id,
        resources=union,
        generation=part.here.generation,
        consumer_type=part.write.consumer_type,
    )


def _before(part: Part) -> dict[str, Any]:
    held = get_consumer_allocations(part.write.uuid) if part.here.resources else None
    known = held if held and held.resources else None
    return {
        "resources": part.here.resources,
        "generation": part.here.generation,
        "project_id": known.project_id if known else part.write.project_id,
        "user_id": known.user_id if known else part.write.user_id,
        "consumer_type": known.consumer_type if known else None,
    }


def _after(part: Part) -> dict[str, Any]:
    return {
        "resources": part.wanted_here,
        "generation": (part.generation or 0) + 1,
        "project_id": part.write.project_id,
        "user_id": part.write.user_id,
        "consumer_type": part.write.consumer_type,
    }


def _states_there(part: Part) -> dict[str, Any]:
    after = (part.there.generation or 0) + 1 if part.wanted_there else None
    return {
        "before": {"resources": part.there.resources, "generation": part.there.generation},
        "after": {"resources": part.wanted_there, "generation": after},
    }


def _document(part: Part, minor: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "allocations": {
            provider: {"resources": amounts} for provider, amounts in part.wanted_there.items()
        },
        "project_id": part.write.project_id,
        "user_id": part.write.user_id,
        "consumer_generation": part.there.generation,
    }
    if minor >= CONSUMER_TYPES_SINCE:
        document["consumer_type"] = part.write.consumer_type
    return document


def _finish_done(row: SplitWrite) -> None:
    """End a write that both sides have done; where ours cannot shrink now, a task does it later."""
    try:
        _finish(row.pk, Resolution.AFTER)
    except HeadroomError as error:
        _note(row, error.message)


def _finish(key: int, outcome: Resolution) -> None:
    """Turn the hold into what is to be here, and forget the write; does nothing a second time."""

    def write() -> None:
        row = SplitWrite.objects.select_for_update().filter(pk=key).first()
        if row is None:
            return
        states = row.after if outcome is Resolution.AFTER else row.before
        request = AllocationRequest(
            consumers=[_write_of(uuid, state) for uuid, state in states.items()],
            checks_generations=False,
        )
        replace_in_transaction(request, actor=Actor(name=row.actor), request_id=row.request_id)
        for uuid, state in states.items():
            if state["resources"]:
                run(SET_GENERATION, [state["generation"], uuid])
        SplitConsumer.objects.filter(write=row).delete()
        row.delete()

    in_transaction(write)


def _write_of(uuid: str, state: Mapping[str, Any]) -> ConsumerWrite:
    kind = state["consumer_type"]
    return ConsumerWrite(
        uuid=uuid,
        project_id=state["project_id"],
        user_id=state["user_id"],
        resources=state["resources"],
        consumer_type=None if kind == UNKNOWN_TYPE else kind,
    )


def _note(row: SplitWrite, error: str) -> None:
    """Keep why the outcome is not known, for whoever looks; the write itself stays."""
    SplitWrite.objects.filter(pk=row.pk).update(error=error[:1000])
    log.warning("gateway_split_unsettled", error=error, names=list(row.theirs))
