"""Writing allocations (spec placement, 4.9, 5.5, 5.6, 9.3).

A whole request is one call of a server-side function: it locks consumers by uuid and providers by
id, compares, writes and counts, and either does all or nothing. See the decision record on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import Error, transaction

from capacity.ledger.claims import Eaten
from core.conf import headroom
from core.copying import number_array, text_array
from core.prepared import drop_dead_connection, fetch_prepared, run
from core.sessions import current_session
from journal.actors import Actor
from journal.outages import sqlstate_of
from placement import metrics
from placement.database import LOCK_TIMEOUT_SQL, lock_timeout, retried
from placement.domain.capacity import MAX_INTEGER
from placement.domain.errors import (
    CONCURRENT_UPDATE,
    BadRequest,
    Conflict,
    NotFound,
    PlacementError,
)
from placement.services.rooms import (
    Resources,
    TakesHeldRoom,
    held_for_others,
    held_on_hosts,
    rooms_follow_allocations,
    settle_claims,
)

REPLACE = """
SELECT placement_replace_allocations(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::int[],
    %s::int[], %s::uuid[], %s::text[], %s::bigint[], %s, %s, %s)
"""
LOCK_CONSUMERS = "SELECT placement_lock_consumers(%s::uuid[], %s::text[], %s::text[], %s::text[])"
DELETE = "SELECT placement_delete_allocations(%s::uuid, %s::int, %s, %s, %s)"
#: What writes and settles in one statement: the same arguments, who is written, and whether held
#: room is enforced.
CLAIM = """
SELECT placement_claim(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::int[], %s::int[],
    %s::uuid[], %s::text[], %s::bigint[], %s, %s, %s, %s::text[], %s::boolean)
"""
DELETE_CLAIM = f"{DELETE}, placement_settled(%s::text[], %s::boolean)"

UNKNOWN_PROVIDER: Final = "HRA01"
UNKNOWN_CLASS: Final = "HRA02"
NO_INVENTORY: Final = "HRA03"
CONSTRAINT: Final = "HRA04"
CAPACITY: Final = "HRA05"
CONSUMER_GENERATION: Final = "HRA06"
HELD: Final = "HRA07"
USES_FAILOVER: Final = "HRA08"

#: No generation is like this one, so that a number too large for the column differs from all.
IMPOSSIBLE_GENERATION: Final = -1
#: Above every ``max_unit``; what a client asks beyond is refused just the same.
AMOUNT_CAP: Final = MAX_INTEGER + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerWrite:
    """What one consumer is to hold from now on.

    Attributes:
        uuid: Canonical UUID.
        project_id: Who pays.
        user_id: Who asked.
        resources: Amount by class, by canonical UUID of the provider; empty gives all back.
        generation: The consumer's, as the client knows it; ``None`` for a new one.
        consumer_type: What it is; ``None`` keeps what is stored.
    """

    uuid: str
    project_id: str
    user_id: str
    resources: Resources
    generation: int | None = None
    consumer_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRequest:
    """One request: all its consumers or none.

    Attributes:
        consumers: One entry per consumer.
        checks_generations: Whether consumer generations are compared (since 1.28).
        who: How messages name the consumer of a request that has only one.
    """

    consumers: Sequence[ConsumerWrite]
    checks_generations: bool
    who: str = ""

    @property
    def asked(self) -> dict[str, Resources]:
        """What each consumer is to hold, by its UUID."""
        return {consumer.uuid: consumer.resources for consumer in self.consumers}


def replace_allocations(
    request: AllocationRequest, *, actor: Actor, request_id: str, kind: str
) -> None:
    """Replace what consumers hold, all or nothing.

    Args:
        request: Who is to hold what.
        actor: Who asks, for the history.
        request_id: Id of the request, for the history.
        kind: ``put`` or ``post``, for metrics.

    Raises:
        BadRequest: a provider or a class is unknown.
        Conflict: it does not fit, or a consumer's generation moved on.
        Busy: the rows were locked for too long.
    """
    parameters = replace_parameters(request, actor=actor, request_id=request_id)
    consumers = [consumer.uuid for consumer in request.consumers]
    write = _Write(REPLACE, CLAIM, [*parameters, lock_timeout()], request, consumers)
    observed_write(kind, lambda: _write(write))


def replace_in_transaction(request: AllocationRequest, *, actor: Actor, request_id: str) -> None:
    """Replace what consumers hold inside the caller's transaction, which bounds lock waits.

    Raises:
        BadRequest: a provider or a class is unknown.
        Conflict: it does not fit, or a consumer's generation moved on.
    """
    parameters = replace_parameters(request, actor=actor, request_id=request_id)
    try:
        run(REPLACE, [*parameters, None])
    except Error as error:
        raise _told(error, request) from error


def delete_allocations(
    consumer_uuid: str, *, generation: int | None, actor: Actor, request_id: str
) -> None:
    """Give back all that a consumer holds and forget the consumer.

    Args:
        consumer_uuid: Canonical UUID.
        generation: The consumer's, as the client knows it; ``None`` compares nothing.
        actor: Who asks, for the history.
        request_id: Id of the request, for the history.

    Raises:
        NotFound: it holds nothing.
        Conflict: its generation moved on.
        Busy: the rows were locked for too long.
    """
    request = AllocationRequest(consumers=(), checks_generations=generation is not None)
    history = _history(actor, request_id)

    def delete() -> bool:
        parameters = [consumer_uuid, generation, *history, lock_timeout()]
        row = _write(_Write(DELETE, DELETE_CLAIM, parameters, request, [consumer_uuid]))
        return bool(row and row[0])

    if not observed_write("delete", delete):
        raise NotFound(f"No allocations for consumer '{consumer_uuid}'")


def replace_parameters(
    request: AllocationRequest, *, actor: Actor, request_id: str
) -> list[Any]:  # Any: SQL parameters
    """Return the arguments of the server-side function but the last."""
    consumers = request.consumers
    types = [consumer.consumer_type for consumer in consumers]
    amounts = [
        (place, provider, name, min(int(amount), AMOUNT_CAP))
        for place, consumer in enumerate(consumers, 1)
        for provider, resources in consumer.resources.items()
        for name, amount in resources.items()
    ]
    places, providers, names, numbers = zip(*amounts, strict=True) if amounts else ((),) * 4
    generations = [_generation(consumer) for consumer in consumers]
    return [
        number_array([consumer.uuid for consumer in consumers]),
        text_array([consumer.project_id for consumer in consumers]),
        text_array([consumer.user_id for consumer in consumers]),
        text_array(types) if any(types) else None,
        number_array(generations) if request.checks_generations else None,
        number_array(places),
        number_array(providers),
        text_array(names),
        number_array(numbers),
        *_history(actor, request_id),
    ]


def _generation(consumer: ConsumerWrite) -> int | None:
    given = consumer.generation
    if given is None or 0 < given <= MAX_INTEGER:
        return given
    return IMPOSSIBLE_GENERATION


def _history(actor: Actor, request_id: str) -> tuple[str, str | None]:
    return actor.name, request_id if headroom().placement.history_days else None


@dataclass(frozen=True, slots=True)
class _Write:
    """One call of a server-side function, the same with settling, and the consumers written."""

    sql: str
    claim: str
    parameters: Sequence[Any]  # Any: SQL parameters
    request: AllocationRequest
    consumers: Sequence[str]


class _NeedsTransaction(Exception):  # noqa: N818 - private: says what is the case
    """One statement that commits cannot do it: the caller's is open, or failover room is used."""


def _write(write: _Write) -> tuple[Any, ...] | None:  # Any: columns
    try:
        return _granted(write)
    except TakesHeldRoom as error:
        raise held_for_others(error.eaten, write.request.asked) from None


def _granted(write: _Write) -> tuple[Any, ...] | None:  # Any: columns
    try:
        try:
            return _attempted(write, lambda: _alone(write))
        except _NeedsTransaction:
            return _attempted(write, lambda: _settled(write))
    except TakesHeldRoom:
        if not _may_have_held(write.request):
            raise
        return _attempted(write, lambda: _settled(write, compares=True))


def _attempted(
    write: _Write,
    attempt: Callable[[], tuple[Any, ...] | None],  # Any: columns
) -> tuple[Any, ...] | None:  # Any: columns
    try:
        return retried(attempt)
    except Error as error:
        raise _told(error, write.request) from error


def _alone(write: _Write) -> tuple[Any, ...] | None:  # Any: columns
    """Write, and settle where that is asked for, in one statement that commits."""
    if current_session().wrapper.in_atomic_block:
        raise _NeedsTransaction
    if not rooms_follow_allocations():
        rows = fetch_prepared(write.sql, write.parameters)
    else:
        settled = [text_array(write.consumers), headroom().placement.enforce_held]
        try:
            rows = fetch_prepared(write.claim, [*write.parameters, *settled])
        except Error as error:
            state = sqlstate_of(error)
            if state == HELD:
                raise TakesHeldRoom(Eaten(*_facts_of(error))) from None
            if state == USES_FAILOVER:
                raise _NeedsTransaction from None
            raise
        metrics.SETTLED_CLAIMS.inc()
    return rows[0] if rows else None


def _settled(write: _Write, *, compares: bool = False) -> tuple[Any, ...] | None:  # Any: columns
    """Write and settle in one transaction.

    Only a write that seems to take held room is compared with what its consumers held before, which
    has to be read under their locks: it is done again then.
    """
    drop_dead_connection()
    follows = rooms_follow_allocations()
    with transaction.atomic():
        before = None
        if compares:
            run(LOCK_TIMEOUT_SQL, [lock_timeout()])
            lock_consumers(write.request.consumers)
            before = held_on_hosts(write.consumers)
        row = run(write.sql, write.parameters).fetchone()
        if follows:
            eaten = settle_claims(write.consumers, held_before=before)
            if eaten:
                raise TakesHeldRoom(eaten[0])
    if follows:
        metrics.SETTLED_CLAIMS.inc()
    return row


def _may_have_held(request: AllocationRequest) -> bool:
    """Return whether a consumer of the write may be an old one; who is deleted is."""
    return (
        not request.checks_generations
        or not request.consumers
        or any(consumer.generation is not None for consumer in request.consumers)
    )


def lock_consumers(consumers: Sequence[ConsumerWrite]) -> None:
    """Make consumers that are missing and lock them all, by UUID."""
    if not consumers:
        return
    types = [consumer.consumer_type for consumer in consumers]
    run(
        LOCK_CONSUMERS,
        [
            [consumer.uuid for consumer in consumers],
            [consumer.project_id for consumer in consumers],
            [consumer.user_id for consumer in consumers],
            types if any(types) else None,
        ],
    )


def observed_write(kind: str, work: Callable[[], Any]) -> Any:  # Any: passed through
    """Run a write of allocations and count it.

    Args:
        kind: ``put``, ``post``, ``delete`` or ``reshape``.
        work: The write.
    """
    started = time.perf_counter()
    result = "error"
    try:
        answer = work()
        result = "ok"
    except PlacementError as error:
        result = "refused"
        reason = error.facts.get("reason")
        if reason:
            metrics.CONFLICTS.labels(reason=reason).inc()
        raise
    finally:
        seconds = time.perf_counter() - started
        metrics.observe_write(kind, result, seconds=seconds)
    return answer


def _told(error: Error, request: AllocationRequest) -> Exception:
    state = sqlstate_of(error)
    if state not in _MESSAGES:
        return error
    return _MESSAGES[state](_facts_of(error), request)


def _facts_of(error: Error) -> Sequence[Any]:  # Any: JSON
    """Return what a function of ours says of its refusal."""
    diagnostics: Any = getattr(error.__cause__, "diag", None)  # Any: the driver's report
    facts: Sequence[Any] = json.loads(diagnostics.message_detail)
    return facts


def _unknown_provider(facts: Sequence[Any], _: AllocationRequest) -> PlacementError:
    return BadRequest(f"Allocation for resource provider '{facts[0]}' that does not exist.")


def _unknown_class(facts: Sequence[Any], request: AllocationRequest) -> PlacementError:
    for_whom = f" for consumer {request.who}" if request.who else ""
    return BadRequest(f"Unable to allocate inventory{for_whom}: No such resource class {facts[0]}.")


def _no_inventory(facts: Sequence[Any], request: AllocationRequest) -> PlacementError:
    provider, name = facts
    return Conflict(
        f"Unable to allocate inventory: Inventory for '{name}' on resource provider "
        f"'{provider}' invalid.{_by_whom(provider, name, request)}",
        reason="no_inventory",
    )


def _constraint(facts: Sequence[Any], request: AllocationRequest) -> PlacementError:
    provider, name, amount, min_unit, max_unit, step_size = facts
    return Conflict(
        f"Unable to allocate inventory: Unable to create allocation for '{name}' on resource "
        f"provider '{provider}'. The requested amount would violate inventory constraints: asked "
        f"{amount}, min_unit {min_unit}, max_unit {max_unit}, step_size {step_size}."
        f"{_by_whom(provider, name, request)}",
        reason="constraint",
    )


def _capacity(facts: Sequence[Any], request: AllocationRequest) -> PlacementError:
    provider, name, wanted, used, capacity = facts
    return Conflict(
        f"Unable to allocate inventory: Unable to create allocation for '{name}' on resource "
        f"provider '{provider}'. The requested amount would exceed the capacity: asked {wanted}, "
        f"used by others {used}, capacity {capacity:g}.{_by_whom(provider, name, request)}",
        reason="capacity",
    )


def _by_whom(provider: str, name: str, request: AllocationRequest) -> str:
    """Return which of several consumers ask for a class of a provider, as a sentence."""
    if len(request.consumers) < 2:  # noqa: PLR2004 - several
        return ""
    asking = sorted(
        uuid for uuid, resources in request.asked.items() if name in resources.get(provider, ())
    )
    return f" Asked for by consumers {', '.join(asking)}."


def _consumer_generation(facts: Sequence[Any], request: AllocationRequest) -> PlacementError:
    uuid, stored, given = facts
    known = {consumer.uuid: consumer.generation for consumer in request.consumers}
    expected = "null" if stored is None else stored
    return Conflict(
        f"consumer generation conflict - expected {expected} but got {known.get(uuid, given)}",
        wire_code=CONCURRENT_UPDATE,
        reason="consumer_generation",
    )


_MESSAGES: Mapping[str, Callable[[Sequence[Any], AllocationRequest], PlacementError]] = {
    UNKNOWN_PROVIDER: _unknown_provider,
    UNKNOWN_CLASS: _unknown_class,
    NO_INVENTORY: _no_inventory,
    CONSTRAINT: _constraint,
    CAPACITY: _capacity,
    CONSUMER_GENERATION: _consumer_generation,
}
