"""What workers do in the background: follow the truth, whichever side it is on."""

from __future__ import annotations

import time
from typing import Final

import structlog

from core.conf import headroom
from journal.errors import HeadroomError
from journal.leases import held_lease
from placement.cutover import copying, fences, mirroring, state, switching
from placement.cutover.peer import Peer, opened_peer
from placement.cutover.switching import FEW_DUE, LEASE
from placement.models import CopyDue, Phase

log = structlog.get_logger(__name__)

#: A round of copying or mirroring ends then, so that commands come to their turn.
ROUND_SECONDS: Final = 15.0
FOLLOWED: Final = frozenset({Phase.COPYING, Phase.SWITCHED, Phase.PARTED})


def one_round() -> dict[str, int]:
    """Copy what moved, or mirror what waits; nothing while no cut-over is on.

    A command that does the same holds it off. What fails is noted and tried again next time.
    """
    if not headroom().gateway.upstream_url or state.current_phase() not in FOLLOWED:
        return {}
    with held_lease(LEASE) as is_ours:
        if not is_ours:
            return {"skipped": 1}
        try:
            return _followed(state.current_phase())
        except HeadroomError as error:
            log.warning("cutover_round_failed", error=error.message, code=error.code)
            state.note_failure(error.message)
            return {"failed": 1}


def _followed(phase: Phase) -> dict[str, int]:
    with opened_peer() as peer:
        done: dict[str, int] = {}
        ends_at = time.monotonic() + ROUND_SECONDS

        def is_over() -> bool:
            return time.monotonic() > ends_at

        if phase in {Phase.SWITCHED, Phase.PARTED}:
            left = mirroring.mirror(peer, until=is_over)
            done = {"waiting": left.count, "refused": left.refused}
        if phase is Phase.PARTED and fences.has_old():
            done["settled"] = fences.settle_old(peer)
        if phase not in {Phase.COPYING, Phase.PARTED}:
            return done
        if switching.seconds_of_old_writes():
            return {**done, "too_early": 1}
        copying.follow(peer, few=FEW_DUE, until=is_over)
        if is_over():
            return {**done, "unfinished": 1}
        moved = _moved_providers(peer)
        copying.note_due(CopyDue.Kind.PROVIDER, moved)
        copying.note_some_again()
        copying.follow(peer, few=FEW_DUE, until=is_over)
        return {**done, "moved": len(moved)}


def _moved_providers(peer: Peer) -> list[str]:
    """Return the providers that are others than their copies; note it if that was not us.

    A write that is handed on has a row from before it goes out until somebody copies what it
    touched, which is nobody but the caller: without one before the list was read, and none after
    it, no write of ours is in the list.
    """
    was_even = copying.is_even()
    moved = copying.moved_providers(peer.rows())
    if moved and was_even and copying.is_even():
        log.warning("cutover_moved_without_us", names=moved[: switching.MOST_NAMED])
        state.note_moved(moved[0])
        state.note_failure(switching.moved_without_us(moved).message)
    return moved
