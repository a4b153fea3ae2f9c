"""Writes while each side answers for its own trees of providers (docs/gateway.md).

Who does a write is decided by one look at our tables, and again where nothing can come between: a
write that is handed on is announced first; one of ours looks in its own transaction, behind a lock
of its consumers that the announcement takes as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import orjson
import structlog
from django.db import DatabaseError, transaction
from django.http import HttpRequest, HttpResponse

from core.prepared import drop_dead_connection, fetch_prepared, run
from journal.access_log import facts_of
from journal.errors import HeadroomError
from placement import metrics
from placement.api.names import CUSTOM_NAME, MAX_NAME
from placement.cutover import fences
from placement.cutover.announcing import UNCERTAIN, WITHDRAW, Asked, announce, keep, note_done
from placement.cutover.peer import Peer, shared_peer
from placement.cutover.soon import mirror_soon
from placement.cutover.standing import Look, lock_consumers, look_at
from placement.cutover.state import current_phase, hold_truth
from placement.database import LOCK_TIMEOUT_SQL, lock_timeout
from placement.domain.errors import Conflict, PlacementError, UpstreamFailed
from placement.domain.microversion import MAJOR
from placement.domain.sides import Side, changes_trees, side_of
from placement.gateway.versions import minor_of_both
from placement.models import Phase
from placement.services.names import ensure_class, ensure_trait

log = structlog.get_logger(__name__)

Serve = Callable[[HttpRequest], HttpResponse]

VERSION_KEY: Final = "HTTP_OPENSTACK_API_VERSION"
FAILED: Final = 400
SERVER_FAILED: Final = 500
#: Errors of the client of the other side after which nothing was sent.
NOT_SENT: Final = frozenset({"placement_upstream_unreachable", "placement_upstream_away"})


def written(asked: Asked, *, here: Serve, there: Serve) -> HttpResponse | None:
    """Let a write be done by whose it is.

    Args:
        asked: The write.
        here: Does it here.
        there: Hands it on.

    Returns:
        The answer; nothing if it has to wait, and to be tried again.

    Raises:
        PlacementError: it cannot be done, or the other side does not answer.
    """
    side = _side(asked, look_at(asked.touched))
    if side is Side.NEITHER:
        raise Conflict(
            "While a cloud moves in parts, no provider moves below one of the other side and no "
            "resource class gets another name: let one side answer for all first.",
            reason="mixed_tree",
        )
    work = {Side.HERE: _here, Side.THERE: _there, Side.BOTH: _both}[side]
    response = work(asked, here if side is Side.HERE else there)
    if response is not None:
        metrics.PARTED_WRITES.labels(side=side).inc()
    return response


def _side(asked: Asked, look: Look) -> Side:
    if asked.touched.has_names and asked.request.method == "PUT" and asked.body:
        return Side.NEITHER  # a class gets another name, which it may have here only
    return side_of(str(asked.request.method), asked.path, asked.touched, look.standing)


def _here(asked: Asked, serve: Serve) -> HttpResponse | None:
    """Do a write here, and keep it for the other side, in one transaction."""
    meta = asked.request.META
    meta[VERSION_KEY] = f"placement {MAJOR}.{minor_of_both(meta.get(VERSION_KEY))}"
    request = asked.again()
    drop_dead_connection()
    with transaction.atomic():
        run(LOCK_TIMEOUT_SQL, [lock_timeout()])
        if hold_truth() is not Phase.PARTED:
            return None
        lock_consumers(asked.touched.consumers)
        look = look_at(asked.touched)
        if look.is_fenced or _side(asked, look) is not Side.HERE:
            return None
        response = serve(request)
        if response.status_code >= FAILED:
            transaction.set_rollback(True)
            return response
        keep(asked, response)
    mirror_soon()
    return response


def _there(asked: Asked, serve: Serve) -> HttpResponse | None:
    """Hand a write on that is about nothing of ours, announced before it goes out."""
    drop_dead_connection()
    with transaction.atomic():
        run(LOCK_TIMEOUT_SQL, [lock_timeout()])
        lock_consumers(asked.touched.consumers)
        number = announce(asked.touched)
    look = look_at(asked.touched, besides=number)
    is_theirs = _side(asked, look) is Side.THERE and not look.fences_consumers
    if not is_theirs or current_phase() is not Phase.PARTED:
        fetch_prepared(WITHDRAW, [number])
        return None
    response = serve(asked.again())
    if response.status_code not in UNCERTAIN:
        if asked.touched.has_names and response.status_code < FAILED:
            _copy_name(asked)
        note_done(number, response)
    return response


def _both(asked: Asked, serve: Serve) -> HttpResponse | None:
    """Hand a write on that is about ours as well, and take over what that side made of ours."""
    if look_at(asked.touched).is_fenced:
        return None
    fence = fences.raised(
        asked.touched,
        is_whole=changes_trees(asked.path),
        is_about_all=asked.touched.has_names,
    )
    if fence is None:
        return None
    number = None
    try:
        peer = shared_peer()
        number = _sendable(peer, asked, fence)
    except (HeadroomError, OSError) as error:
        if isinstance(error, PlacementError) and error.status != SERVER_FAILED:
            raise
        raise UpstreamFailed(f"what it lacks cannot be sent first: {error}") from error
    finally:
        if number is None:
            fences.lower(fence)
    if number is None:
        return None
    request = asked.again()
    response = serve(request)
    if facts_of(request).reason in NOT_SENT:
        fetch_prepared(WITHDRAW, [number])
        fences.lower(fence)
    elif response.status_code not in UNCERTAIN:
        _take_over(peer, fence, number, response)
    return response


def _sendable(peer: Peer, asked: Asked, fence: fences.Fence) -> int | None:
    """Return the number of the announcement once a write may go out; nothing if it may not."""
    if not fences.is_drained(peer, fence):
        return None
    held = fence.held_there
    if look_at(asked.touched).standing.is_unclear:
        held |= fences.held_before(peer, fence)
    number = announce(asked.touched, more=held)
    if fences.is_sendable(fence):
        return number
    fetch_prepared(WITHDRAW, [number])
    return None


def _take_over(peer: Peer, fence: fences.Fence, number: int, response: HttpResponse) -> None:
    """Store what a write made of ours; what cannot be stored now is read back by whoever waits."""
    is_refused = FAILED <= response.status_code < SERVER_FAILED
    try:
        if is_refused:
            fences.lower(fence)
        else:
            fences.settle(peer, fence)
    except (HeadroomError, DatabaseError) as error:
        log.warning("cutover_fence_stays", error=str(error))
    note_done(number, response)


def settle_left() -> None:
    """Bring to an end what whoever raised a fence did not, for a write that waits."""
    if not fences.has_old():
        return
    try:
        fences.settle_old(shared_peer())
    except (HeadroomError, DatabaseError) as error:
        log.warning("cutover_fence_stays", error=str(error))


def _copy_name(asked: Asked) -> None:
    """Write a trait or class here as well, so that the next write may use it."""
    try:
        body = orjson.loads(asked.body) if asked.body else {}
    except orjson.JSONDecodeError:
        body = {}
    given = body.get("name") if isinstance(body, dict) else None
    first, _, name = asked.path.strip("/").partition("/")
    name = str(given or name)
    if len(name) > MAX_NAME or CUSTOM_NAME.fullmatch(name) is None:
        return
    try:
        (ensure_class if first == "resource_classes" else ensure_trait)(name)
    except (HeadroomError, DatabaseError) as error:  # it is due, and copied later
        log.warning("gateway_name_not_copied", name=name, error=str(error))
