"""Placing a VM as a transaction (spec scheduling, 16.2).

Hosts are chosen on a snapshot without any lock. The transaction then looks at their rooms again,
under lock, holds the VM's size on those that still have it, and books the VM into its slot. When
none has room any more, the choice is made again on a fresh snapshot, a few times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, connection, transaction

from capacity.ledger.in_flight_end import UNKNOWN_INTENT, holds_in_flight
from capacity.nova.in_flight import InFlightAsk, InFlightHold, hold_alone, hold_in_flight
from journal.actors import Actor
from journal.errors import Busy
from journal.outages import RETRYABLE, UNIQUE_VIOLATION, sqlstate_of
from scheduling.intents import Intent
from scheduling.request import PlacementRequest

log = structlog.get_logger(__name__)

SPARE_CANDIDATES = 8
LONGEST_PAUSE_SECONDS = 0.05
MOVES = frozenset({Intent.REBUILD, Intent.RESIZE, Intent.LIVE_MIGRATION, Intent.EVACUATE})

Book = Callable[[InFlightHold], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Hosts that were chosen on a snapshot.

    Attributes:
        host_names: Candidates, best first.
        snapshot: Text of the ``pg_snapshot`` of the host table; empty if it is not known. Hosts
            that changed since are passed over.
    """

    host_names: tuple[str, ...]
    snapshot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOutcome:
    """What became of a placement.

    Attributes:
        placement_id: Shared by its in-flight rows; None if no host had room, or none was needed.
        held: Hosts that hold room for the VM, in the order of the candidates.
        refused: Candidates that were tried and had no room any more, over all rounds.
        rounds: How many choices were tried.
    """

    placement_id: UUID | None
    held: tuple[str, ...]
    refused: tuple[str, ...] = ()
    rounds: int = 1


def ask_of(
    request: PlacementRequest,
    *,
    user_id: str = "",
    domain_id: str = "",
    flavor_group: str = "",
) -> InFlightAsk:
    """Return what an engine request asks its hosts to hold.

    New VMs of one request bear the uuid of the first and are held together, since each host of the
    answer may get them all. A VM that exists moves alone: Nova repeats for it how many were
    once created with it, and a resize has landed when the VM has the size of its row.

    Args:
        request: The request; its key is the uuid of the VM.
        user_id: Who asked Nova.
        domain_id: Domain of the project.
        flavor_group: Group of the flavor; the request's own when left out.
    """
    return InFlightAsk(
        vm_uuid=request.request_key,
        resources=request.one_vm if request.intent in MOVES else request.asked,
        intent=UNKNOWN_INTENT if request.intent is None else request.intent.value,
        project_id=request.project_id,
        flavor_group_name=flavor_group or request.commitment_group,
        flavor_name=request.flavor_name,
        user_id=user_id,
        domain_id=domain_id,
        source_host=request.source_host,
        lock_reservations=request.lock_reservations,
        ignored_kinds=request.ignored_kinds,
    )


def place_vm(
    ask: InFlightAsk,
    *,
    candidates: Sequence[str] | Choice,
    actor: Actor,
    request_id: str,
    choose_again: Callable[[], Sequence[str] | Choice] | None = None,
    max_held: int = 0,
    book: Book | None = None,
    now: datetime | None = None,
) -> PlacementOutcome:
    """Hold room for a VM on its candidates, in one transaction.

    Rows that the VM held before are replaced in the same transaction, so that a retry is not
    blocked by itself; when no host is found they stay. Takes no zone lock: the lock of the VM,
    then host rooms by primary key.

    Args:
        candidates: Hosts, best first, as chosen on a snapshot; a name counts once.
        choose_again: Chooses on a fresh snapshot when no candidate has room any more; called
            outside of any transaction. Left out, there is one round.
        max_held: Most hosts to hold and return; 0 holds all candidates.
        book: Called with the hold inside the transaction, to book the VM into its slot; raises to
            undo the placement. Without it a hold is one statement as a rule.
        now: Time of the placement; the database's when left out.

    Returns:
        The hosts that hold the VM, or none.

    Raises:
        Busy: rooms or the VM stayed locked by others in every round.

    Source: spec scheduling, 16.2; commitments, 12.1.
    """
    choice = _choice(candidates)
    if not holds_in_flight(ask.intent):
        return PlacementOutcome(placement_id=None, held=choice.host_names[: max_held or None])
    attempt = _Attempt(ask=ask, max_held=max_held, book=book, request_id=request_id, now=now)
    outcome = _in_rounds(attempt, choice, choose_again)
    if outcome.placement_id is None:
        log.info(
            "vm_not_placed",
            vm_uuid=ask.vm_uuid,
            actor=actor.name,
            rounds=outcome.rounds,
            refused=len(outcome.refused),
        )
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    ask: InFlightAsk
    max_held: int
    book: Book | None
    request_id: str
    now: datetime | None


def _in_rounds(
    attempt: _Attempt, choice: Choice, choose_again: Callable[[], Sequence[str] | Choice] | None
) -> PlacementOutcome:
    """Try a choice, and fresh ones after it, until some host holds the VM."""
    rounds = settings.HEADROOM.in_flight.placement_rounds
    refused: dict[str, None] = {}
    for number in range(1, rounds + 1):
        try:
            hold, tried = _place_once(attempt, choice)
        except DatabaseError as error:
            if sqlstate_of(error) not in RETRYABLE | {UNIQUE_VIOLATION}:
                raise
            if number == rounds:
                raise _busy(attempt, rounds) from error
            _pause(number)
            continue
        except Busy:
            if number == rounds:
                raise
            continue
        held = () if hold is None else hold.host_names
        refused.update(dict.fromkeys(name for name in tried if name not in held))
        if hold is not None or choose_again is None or number == rounds:
            break
        choice = _choice(choose_again())
        if not choice.host_names:
            break
    return PlacementOutcome(
        placement_id=None if hold is None else hold.placement_id,
        held=held,
        refused=tuple(name for name in refused if name not in held),
        rounds=number,
    )


def _busy(attempt: _Attempt, rounds: int) -> Busy:
    vm_uuid = attempt.ask.vm_uuid
    message = f"VM {vm_uuid}: its hosts were locked by others in {rounds} rounds"
    return Busy(message, vm_uuid=vm_uuid)


def _place_once(attempt: _Attempt, choice: Choice) -> tuple[InFlightHold | None, tuple[str, ...]]:
    """Try the candidates in windows of a few more than are wanted; return the hold and the tried.

    Each window is a transaction of its own, so that few rooms are locked at a time.
    """
    names, max_held = choice.host_names, attempt.max_held
    window = max_held + SPARE_CANDIDATES if max_held else max(1, len(names))
    for start in range(0, len(names), window):
        tried = names[start : start + window]
        hold = _hold_and_book(attempt, tried, choice.snapshot)
        if hold is not None:
            return hold, names[: start + _reach(tried, hold, max_held)]
    return None, names


def _hold_and_book(
    attempt: _Attempt, candidates: Sequence[str], snapshot: str
) -> InFlightHold | None:
    def hold_by(way: Callable[..., InFlightHold | None]) -> InFlightHold | None:
        return way(
            attempt.ask,
            candidates=candidates,
            request_id=attempt.request_id,
            now=attempt.now,
            max_held=attempt.max_held,
            snapshot=snapshot,
        )

    if attempt.book is None and not connection.in_atomic_block:
        hold = hold_by(hold_alone)
        if hold is not None:
            return hold
    with transaction.atomic(durable=True):
        hold = hold_by(hold_in_flight)
        if hold is None:
            transaction.set_rollback(True)
        elif attempt.book is not None:
            attempt.book(hold)
    return hold


def _reach(tried: Sequence[str], hold: InFlightHold, max_held: int) -> int:
    """Return how many candidates of a window were looked at before enough were held."""
    if max_held and len(hold.host_names) == max_held:
        return tried.index(hold.host_names[-1]) + 1
    return len(tried)


def _choice(candidates: Sequence[str] | Choice) -> Choice:
    if isinstance(candidates, Choice):
        return Choice(
            host_names=tuple(dict.fromkeys(candidates.host_names)), snapshot=candidates.snapshot
        )
    return Choice(host_names=tuple(dict.fromkeys(candidates)))


def _pause(number: int) -> None:
    """Wait a moment that differs between those who collided."""
    time.sleep(random.uniform(0, LONGEST_PAUSE_SECONDS * number))  # noqa: S311 - jitter
