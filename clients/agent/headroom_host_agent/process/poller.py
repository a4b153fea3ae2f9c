"""Asks the server for reservations, and compares all with it when that is needed (D.5, D.7, D.9).

A resync begins when the server says that its epoch or its history is another, or that our number
is none of its own. It ends when every stored reservation was told again or asked for. What the
server does not know then stays: a restored database forgets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headroom_host_agent.provision.janitor import ServerKnowledge
from headroom_host_agent.provision.signing.keys import SigningError
from headroom_host_agent.provision.sources import (
    REFERENCE_ORDER,
    Page,
    RetryablePollError,
    StartAgainError,
    UnreadablePageError,
    in_order,
)
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.wire import Reservation, WireError
from headroom_host_agent.server.client import Client, RefusedError, Request, ServerError
from headroom_host_agent.server.identity import Enrolled
from headroom_host_agent.server.refusals import ENDING, EndedError
from headroom_host_agent.server.trust import UntrustedKeyError, verified_reservation

log = logging.getLogger(__name__)
WAIT_SECONDS = 25
_QUICK_SECONDS = 1.0  # an empty answer that took less was not held


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What an answer to a poll says."""

    reservations: tuple[Reservation, ...]
    last_id: int
    caught_up: bool
    timeline: str
    made: frozenset[str]


class RestPoller:
    """Polls one server. A page is stored with its number before it is handed on.

    Args:
        order: Type -> place in a page.
        resynced: Called when all was compared, so that the server hears of it at once; with the
            ids of those that the server asks for and does not know as made.
    """

    def __init__(
        self,
        client: Client,
        enrolled: Enrolled,
        store: SqliteStore,
        *,
        order: Mapping[str, int] = REFERENCE_ORDER,
        wait_seconds: int = WAIT_SECONDS,
        resynced: Callable[[frozenset[str]], object] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._enrolled, self._store = client, enrolled, store
        self._order, self._wait_seconds, self._monotonic = order, wait_seconds, monotonic
        self._resynced = resynced
        self._resyncs = store.resyncs
        self._seen: set[str] = set()
        self._made: set[str] = set()

    def poll(self, host_id: str, start: int, limit: int) -> Page:
        """Return what the server wants from number ``start`` on, stored.

        Raises:
            RetryablePollError: No answer, or none of success.
            UnreadablePageError: The answer cannot be read, or a signature in it does not hold.
            StartAgainError: A resync began.
            EndedError: The server takes nothing more of this agent.
        """
        if self._store.resyncs != self._resyncs:
            self._resyncs, self._seen, self._made = self._store.resyncs, set(), set()
            raise StartAgainError
        began = self._monotonic()
        told = self._ask(host_id, max(0, start - 1), limit)
        is_other = bool(told.timeline) and self._store.follow_timeline(told.timeline)
        if is_other or told.last_id < start - 1:
            log.warning("the server's history is another: all is compared")
            if not is_other:
                self._store.begin_resync(ends_history=True)
            raise StartAgainError
        kept = in_order(told.reservations, self._order)
        if not self._store.take_page(
            kept, cursor=told.last_id, resyncs=self._resyncs, made=told.made
        ):
            raise StartAgainError
        self._made |= told.made
        self._seen.update(reservation.id for reservation in kept)
        if told.caught_up and self._store.is_resyncing:
            kept = (*self._compared(), *kept)
        is_quick = self._monotonic() - began < _QUICK_SECONDS
        is_held = bool(told.reservations) or not told.caught_up or not is_quick
        return Page(
            reservations=kept,
            last_id=told.last_id,
            caught_up=told.caught_up,
            pause_seconds=0.0 if is_held else None,
        )

    def ask(self, identity: str) -> tuple[ServerKnowledge, Reservation | None]:
        """Return what the server says of one reservation; nothing but a signed word removes it."""
        path = f"/hosts/v1/{self._enrolled.identity.host_id}/reservations/{identity}"
        try:
            sent = self._client.signed(self._enrolled.identity, Request(method="GET", path=path))
            reservation = self._verified(sent)
        except RefusedError as error:
            return self._without(identity, error), None
        except (ServerError, SigningError, WireError) as error:
            log.warning("%s: %s", identity, error)
            return ServerKnowledge.NONE, None
        if reservation.id != identity:
            return ServerKnowledge.NONE, None
        return (
            ServerKnowledge.GOING if reservation.to_delete else ServerKnowledge.LIVE
        ), reservation

    def _without(self, identity: str, error: RefusedError) -> ServerKnowledge:
        if error.code == "no_such_reservation":
            return ServerKnowledge.UNKNOWN
        if error.code == "reservation_deleted" and self._is_tombstone(identity, error):
            return ServerKnowledge.GONE
        return ServerKnowledge.NONE

    def _ask(self, host_id: str, after: int, limit: int) -> _Told:
        wait = 0 if self._store.is_resyncing else self._wait_seconds
        request = Request(
            method="GET",
            path=f"/hosts/v1/{host_id}/reservations",
            query=(("from", str(after)), ("limit", str(limit)), ("wait", str(wait))),
            held_seconds=float(wait),
        )
        try:
            return self._read(self._client.signed(self._enrolled.identity, request))
        except RefusedError as error:
            raise self._refused(error) from None
        except ServerError as error:
            if self._store.resyncs != self._resyncs:
                raise StartAgainError from None
            raise RetryablePollError(str(error), after_seconds=error.retry_after_seconds) from None

    def _refused(self, error: RefusedError) -> Exception:
        if error.code in ENDING:
            return EndedError(str(error))
        epoch = error.details.get("fence_epoch")
        if error.code == "stale_epoch" and isinstance(epoch, int):
            self._enrolled.enter_epoch(epoch)
            return StartAgainError()
        if error.code == "bad_cursor":
            log.warning("the server does not know our number: all is compared")
            self._store.begin_resync(ends_history=True)
            return StartAgainError()
        return RetryablePollError(str(error), after_seconds=error.retry_after_seconds)

    def _read(self, answer: Mapping[str, object]) -> _Told:
        sent, last_id = answer.get("reservations"), answer.get("last_id")
        if not isinstance(sent, list) or not isinstance(last_id, int) or isinstance(last_id, bool):
            raise UnreadablePageError("it has no reservations or no last_id")
        try:
            reservations = tuple(self._verified(one) for one in sent)
        except UntrustedKeyError as error:
            raise RetryablePollError(str(error)) from None
        except (SigningError, WireError) as error:
            if self._store.resyncs != self._resyncs:
                raise StartAgainError from None
            raise UnreadablePageError(str(error), last_id=last_id) from None
        return _Told(
            reservations=reservations,
            last_id=last_id,
            caught_up=answer.get("caught_up") is True,
            timeline=str(answer.get("timeline") or ""),
            made=frozenset(map(str, made))
            if isinstance(made := answer.get("deployed"), list)
            else frozenset(),
        )

    def _verified(self, sent: object) -> Reservation:
        identity = self._enrolled.identity
        reservation = verified_reservation(sent, identity.server_keys)
        if reservation.node_id != identity.host_id:
            raise SigningError(f"{reservation.id} is for the host {reservation.node_id}")
        if reservation.fence_epoch < identity.fence_epoch:
            raise SigningError(f"{reservation.id} is of the epoch {reservation.fence_epoch}")
        return reservation

    def _is_tombstone(self, identity: str, error: RefusedError) -> bool:
        try:
            reservation = self._verified(error.document.get("tombstone"))
        except (SigningError, WireError) as reason:
            log.warning("%s: the tombstone is not taken: %s", identity, reason)
            return False
        return reservation.id == identity and reservation.to_delete

    def _compared(self) -> tuple[Reservation, ...]:
        """End a resync: ask for what was not told; return what is to be removed.

        Raises:
            RetryablePollError: The server did not answer for one.
            StartAgainError: Another resync began.
        """
        known, forgotten = [], []
        for row in self._store.rows():
            reservation = row.reservation
            if reservation.id in self._seen:
                continue
            answer, told = self.ask(reservation.id)
            if answer is ServerKnowledge.NONE:
                raise RetryablePollError(f"no word of {reservation.id}")
            if answer is ServerKnowledge.UNKNOWN:
                named = f"{reservation.id} of type {reservation.type}"
                log.error("the server does not know %s: it stays as it is", named)
                forgotten.append(reservation.id)
            if answer is ServerKnowledge.LIVE and told is not None and row.is_forgotten:
                known.append(told)  # it failed there, or was lost, and has other numbers
            if answer in (ServerKnowledge.GOING, ServerKnowledge.GONE):
                known.append(replace(reservation, to_delete=True))
        if not self._store.take_page(known, cursor=self._store.cursor, resyncs=self._resyncs):
            raise StartAgainError
        if not self._store.end_resync(resyncs=self._resyncs, forgotten=forgotten):
            raise StartAgainError
        going = tuple(one for one in known if one.to_delete)
        level = logging.WARNING if known or forgotten else logging.INFO
        log.log(level, "all reservations were compared, %d are to be removed", len(going))
        untold = frozenset(self._seen - self._made)
        self._seen.clear()
        self._resynced(untold)
        return going
