"""Making the other side the truth: hold writes, compare, flip one row, or let go (docs/gateway.md).

The same for both directions; only what has to be even before it differs. Whatever fails, and
whenever it takes longer than writes may be held, the truth stays where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from django.conf import settings
from django.db import OperationalError

from core.prepared import fetch
from journal.actors import Actor
from journal.errors import HeadroomError
from journal.leases import held_lease
from journal.services import Change as AuditChange
from journal.services import record_changes
from placement.clients.reference_api import Json
from placement.cutover import copying, fences, mirroring, state
from placement.cutover.parts import Tree, unequal
from placement.cutover.peer import Peer
from placement.models import CopyDue, Phase

log = structlog.get_logger(__name__)

LEASE: Final = "placement.cutover"
LEASE_PATIENCE_SECONDS: Final = 30.0
ATTEMPTS: Final = 20
#: Between two tries; longer than the time that writes are held, so that all of them go on.
PAUSE_SECONDS: Final = 1.2
LOOK_SECONDS: Final = 0.01
#: With this many writes left to mirror, holding the others is short enough.
FEW_WRITES: Final = 20
#: Likewise with this many copies due.
FEW_DUE: Final = 30
MOST_NAMED: Final = 5
GENERATIONS: Final = """
SELECT p.uuid::text, p.name, p.generation, q.uuid::text
  FROM placement_provider p LEFT JOIN placement_provider q ON q.id = p.parent_id
 WHERE p.origin = 'api'
"""


class MovedWithoutUsError(HeadroomError):
    """Something changed over there that did not come through us."""

    code = "placement_moved_without_us"


class NotInTimeError(HeadroomError):
    """Writes would have been held for too long, each time."""

    code = "placement_cutover_not_in_time"


class CutoverBusyError(HeadroomError):
    """Another process copies, mirrors or switches just now."""

    code = "placement_cutover_busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How the truth changed.

    Attributes:
        attempts: How often it was tried.
        held_ms: How long writes were held, the last time.
    """

    attempts: int
    held_ms: int


def switch(peer: Peer, *, actor: Actor, request_id: str) -> Turn:
    """Make us the truth.

    Raises:
        MovedWithoutUsError: the other side has what did not come through us; copy and see why.
        NotInTimeError: writes would have been held for too long.
        HeadroomError: the other side does not answer, or the step does not follow.
    """
    phase = _check_phase(Phase.COPYING, Phase.PARTED)
    _refuse_moved()
    wait_for_old_writes()

    def prepare() -> None:
        if phase is Phase.PARTED:
            mirroring.mirror(peer)
        copying.follow(peer, few=FEW_DUE)

    def even() -> None:
        _wait_for_running(peer)
        if phase is Phase.PARTED:
            _mirror_all(peer)
        copying.follow(peer)
        moved = copying.moved_providers(peer.rows())
        if moved:
            copying.note_due(CopyDue.Kind.PROVIDER, moved)
            raise moved_without_us(moved)

    held = Phase.CLOSING if phase is Phase.COPYING else Phase.PARTING
    note = partial(_audit, "switched", actor, request_id)
    return _turn(held, prepare, even, partial(state.flip, held, note), action="switched")


def switch_part(peer: Peer, trees: Sequence[Tree], *, actor: Actor, request_id: str) -> Turn:
    """Make us the truth of some trees; nothing else changes sides.

    Raises:
        MovedWithoutUsError: as :func:`switch`.
        NotInTimeError: as :func:`switch`.
        HeadroomError: as :func:`switch`.
    """
    _check_phase(Phase.COPYING, Phase.PARTED)
    _refuse_moved()
    wait_for_old_writes()

    def prepare() -> None:
        state.begin_parts()
        mirroring.mirror(peer)
        copying.follow(peer, few=FEW_DUE)

    def even() -> None:
        _wait_for_running(peer)
        _mirror_all(peer)
        copying.follow(peer)
        moved = unequal(peer, trees)
        if moved:
            copying.note_due(CopyDue.Kind.PROVIDER, moved)
            raise moved_without_us(moved)

    note = partial(_audit_part, "part_switched", trees, actor, request_id)
    roots = [tree.number for tree in trees]
    flip = partial(state.flip_part, roots, note, to_us=True)
    try:
        return _turn(Phase.PARTING, prepare, even, flip, action="part_switched")
    finally:
        state.end_parts()


def rollback_part(peer: Peer, trees: Sequence[Tree], *, actor: Actor, request_id: str) -> Turn:
    """Make the other side the truth of some trees again, once it has all of our writes.

    Raises:
        MirrorRefusedError: as :func:`rollback`.
        MovedWithoutUsError: as :func:`rollback`.
        NotInTimeError: as :func:`rollback`.
        HeadroomError: as :func:`rollback`.
    """
    _check_phase(Phase.PARTED)
    mirroring.try_refused_again()

    def even() -> None:
        _wait_for_running(peer)
        _mirror_all(peer)
        moved = unequal(peer, trees)
        if moved:
            raise moved_without_us(moved)

    note = partial(_audit_part, "part_rolled_back", trees, actor, request_id)
    roots = [tree.number for tree in trees]
    flip = partial(state.flip_part, roots, note, to_us=False)
    try:
        return _turn(
            Phase.PARTING, partial(_mirror_most, peer), even, flip, action="part_rolled_back"
        )
    finally:
        state.end_parts()


def rollback(peer: Peer, *, actor: Actor, request_id: str) -> Turn:
    """Make the other side the truth again, once it has all of our writes.

    Raises:
        MirrorRefusedError: the other side does not take one of them.
        MovedWithoutUsError: the generations of providers differ.
        NotInTimeError: writes would have been held for too long.
        HeadroomError: the other side does not answer, or the step does not follow.
    """
    _check_phase(Phase.SWITCHED)
    mirroring.try_refused_again()

    def even() -> None:
        _mirror_all(peer)
        moved = _unequal(peer.rows())
        if moved:
            raise moved_without_us(moved)

    note = partial(_audit, "rolled_back", actor, request_id)
    flip = partial(state.flip, Phase.RETURNING, note)
    return _turn(Phase.RETURNING, partial(_mirror_most, peer), even, flip, action="rolled_back")


def _mirror_most(peer: Peer) -> None:
    """Mirror until little is left, or for as long as one waits for that."""
    ends_at = time.monotonic() + headroom_seconds()
    while True:
        left = mirroring.mirror(peer, until=lambda: time.monotonic() > ends_at, few=FEW_WRITES // 2)
        _refuse_refused(left)
        if left.count <= FEW_WRITES or time.monotonic() > ends_at:
            return
        time.sleep(LOOK_SECONDS)


def _mirror_all(peer: Peer) -> None:
    """Mirror all, while writes are held.

    Others may be sending some of it.

    Raises:
        NotInTimeError: it takes longer than they may be held.
    """
    ends_at = time.monotonic() + state.HOLD_SECONDS
    while True:
        left = mirroring.mirror(peer)
        _refuse_refused(left)
        if not left.count:
            return
        if time.monotonic() > ends_at:
            raise NotInTimeError(f"{left.count} writes are not mirrored yet")
        time.sleep(LOOK_SECONDS)


def headroom_seconds() -> float:
    """Return how long preparing may take before writes are held all the same."""
    return float(settings.HEADROOM.gateway.timeout_seconds)


def _turn(
    held: Phase,
    prepare: Callable[[], None],
    even: Callable[[], None],
    flip: Callable[[], bool],
    *,
    action: str,
) -> Turn:
    """Prepare, hold writes, make both sides even, flip; again when it took too long."""
    with held_or_refused():
        last: Exception | None = None
        for attempt in range(1, ATTEMPTS + 1):
            if attempt > 1:
                time.sleep(PAUSE_SECONDS)
            prepare()
            began_at = time.monotonic()
            try:
                state.close(held)
                even()
                is_flipped = flip()
            except (NotInTimeError, OperationalError) as error:
                last, is_flipped = error, False
            except Exception as error:
                state.reopen()
                state.note_failure(getattr(error, "message", str(error)))
                raise
            held_ms = round((time.monotonic() - began_at) * 1000)
            if is_flipped:
                log.info("cutover_flipped", outcome=action, attempt=attempt, duration_ms=held_ms)
                return Turn(attempts=attempt, held_ms=held_ms)
            state.reopen()
            log.info("cutover_not_in_time", attempt=attempt, duration_ms=held_ms)
    told = getattr(last, "message", "") or "the two sides were not even in time"
    state.note_failure(told)
    raise NotInTimeError(f"after {ATTEMPTS} tries: {told}")


class held_or_refused:  # noqa: N801 - used as a function
    """Hold the lease of this work, waiting for a round of a worker to end.

    Raises:
        CutoverBusyError: another process has it for longer.
    """

    def __enter__(self) -> None:
        ends_at = time.monotonic() + LEASE_PATIENCE_SECONDS
        while True:
            self._held = held_lease(LEASE)
            if self._held.__enter__():
                return
            self._held.__exit__(None, None, None)
            if time.monotonic() > ends_at:
                raise CutoverBusyError("another process copies, mirrors or switches just now")
            time.sleep(LOOK_SECONDS * 10)

    def __exit__(self, *error: object) -> None:
        self._held.__exit__(*error)  # type: ignore[arg-type]


def _check_phase(*phases: Phase) -> Phase:
    current = state.read_state().phase
    if current not in phases:
        told = " or ".join(phases)
        raise state.WrongPhaseError(f"the phase is {current}, this step begins at {told}")
    return current


def _refuse_moved() -> None:
    seen = state.read_state().moved_provider
    if seen:
        raise moved_without_us([seen])


def seconds_of_old_writes() -> float:
    """Return for how long a write that began before copying did may be under way still.

    Nobody announced it, and giving allocations back moves no generation: what is read before such a
    write has ended may stay another than the other side has.
    """
    current = state.read_state()
    if current.began_at is None or current.now is None:
        return 0.0
    old = (current.now - current.began_at).total_seconds()
    return max(0.0, headroom_seconds() + fences.GRACE_SECONDS - old)


def wait_for_old_writes() -> None:
    """Wait until writes that began before copying did have ended."""
    time.sleep(seconds_of_old_writes())


def _wait_for_running(peer: Peer) -> None:
    """Wait until no write is handed on any more, and bring to an end what nobody does.

    Raises:
        NotInTimeError: one takes longer than the others may be held.
    """
    ends_at = time.monotonic() + state.HOLD_SECONDS
    while copying.count_running() or fences.count_fences():
        if fences.has_old():
            fences.settle_old(peer)
            continue
        if time.monotonic() > ends_at:
            raise NotInTimeError("a write that was handed on has not ended")
        time.sleep(LOOK_SECONDS)


def _unequal(rows: dict[str, Json]) -> list[str]:
    here = {row[0]: tuple(row[1:]) for row in fetch(GENERATIONS)}
    there = {
        uuid: (row["name"], row["generation"], row.get("parent_provider_uuid"))
        for uuid, row in rows.items()
    }
    return sorted(uuid for uuid in here.keys() | there.keys() if here.get(uuid) != there.get(uuid))


def moved_without_us(providers: list[str]) -> MovedWithoutUsError:
    """Return the error that names some providers."""
    named = ", ".join(providers[:MOST_NAMED])
    more = f" and {len(providers) - MOST_NAMED} more" if len(providers) > MOST_NAMED else ""
    return MovedWithoutUsError(
        f"providers changed at the other Placement without us: {named}{more}; find who writes "
        "there, then copy again",
        providers=len(providers),
    )


def _refuse_refused(left: mirroring.Backlog) -> None:
    if left.refused:
        raise mirroring.MirrorRefusedError(
            f"{left.refused} writes are refused by the other Placement: placement_cutover status"
        )


def _audit_part(action: str, trees: Sequence[Tree], actor: Actor, request_id: str) -> None:
    entry = AuditChange(
        action=f"placement_{action}",
        object_type="Placement",
        object_id="placement",
        after={"trees": [tree.name for tree in trees]},
    )
    record_changes([entry], actor=actor, request_id=request_id)


def _audit(action: str, actor: Actor, request_id: str) -> None:
    entry = AuditChange(
        action=f"placement_{action}", object_type="Placement", object_id="placement", after={}
    )
    record_changes([entry], actor=actor, request_id=request_id)
