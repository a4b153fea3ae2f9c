"""The one row that says which side is the truth, and how it changes (docs/gateway.md).

Every change is one statement that names the phase it starts from, so that of two at once one wins.
Holding writes has an end in the row itself: whoever finds it over sets the phase back, so that a
switch that died holds nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import transaction

from capacity.locks import LockSpace, lock_key
from core.conf import headroom
from core.prepared import drop_dead_connection, fetch, fetch_prepared, run
from journal.errors import HeadroomError
from placement.database import in_transaction
from placement.models import Change, Phase
from placement.models.changes import ALL_ROOTS
from placement.services.locking import log_changes

#: Longest time that writes are held, seconds; what comes after the last look at the clock fits in.
HOLD_SECONDS: Final = 0.9
#: How long running writes of ours may take until a rollback gives up, seconds.
LOCAL_WRITES_SECONDS: Final = 0.5
#: A held phase, and what it goes back to.
BACK: Final = {
    Phase.CLOSING: Phase.COPYING,
    Phase.RETURNING: Phase.SWITCHED,
    Phase.PARTING: Phase.PARTED,
}
#: Phases in which each side answers for its own trees.
PARTED: Final = frozenset({Phase.PARTED, Phase.PARTING})

PHASE: Final = """
SELECT phase, coalesce(closes_at <= clock_timestamp(), false) FROM placement_cutover
"""
STATE: Final = """
SELECT phase, began_at, switched_at, last_error, last_error_at, clock_timestamp(),
       moved_provider::text, moved_at
  FROM placement_cutover
"""
BEGIN: Final = """
INSERT INTO placement_cutover AS c (id, phase, began_at) VALUES (1, 'copying', clock_timestamp())
    ON CONFLICT (id) DO UPDATE
   SET phase = 'copying', began_at = clock_timestamp(), last_error = '', last_error_at = NULL,
       moved_provider = NULL, moved_at = NULL, updated_at = clock_timestamp()
 WHERE c.phase = 'off'
RETURNING phase
"""
END: Final = """
UPDATE placement_cutover SET phase = 'off', updated_at = clock_timestamp()
 WHERE phase = 'copying' RETURNING phase
"""
CLOSE: Final = """
UPDATE placement_cutover
   SET phase = %s, updated_at = clock_timestamp(),
       closes_at = clock_timestamp() + %s * interval '1 second'
 WHERE phase = %s RETURNING phase
"""
REOPEN: Final = """
UPDATE placement_cutover
   SET phase = CASE phase WHEN 'closing' THEN 'copying' WHEN 'parting' THEN 'parted'
                          ELSE 'switched' END,
       closes_at = NULL, updated_at = clock_timestamp()
 WHERE phase IN ('closing', 'returning', 'parting')
   AND (%s::boolean OR closes_at <= clock_timestamp())
RETURNING phase
"""
FLIP: Final = """
UPDATE placement_cutover
   SET phase = %s, closes_at = NULL, last_error = '', last_error_at = NULL,
       switched_at = CASE WHEN %s::boolean THEN clock_timestamp() END,
       updated_at = clock_timestamp()
 WHERE phase = %s AND closes_at > clock_timestamp() RETURNING phase
"""
OWN: Final = "UPDATE placement_provider SET origin = 'api' WHERE origin = 'upstream'"
DISOWN: Final = "UPDATE placement_provider SET origin = 'upstream' WHERE origin = 'api'"
BEGIN_PARTS: Final = """
UPDATE placement_cutover SET phase = 'parted', updated_at = clock_timestamp()
 WHERE phase = 'copying' RETURNING phase
"""
#: Nothing is ours, and the other side has all that was written while something was.
END_PARTS: Final = """
UPDATE placement_cutover SET phase = 'copying', updated_at = clock_timestamp()
 WHERE phase = 'parted'
   AND NOT EXISTS (SELECT FROM placement_provider WHERE origin <> 'upstream')
   AND NOT EXISTS (SELECT FROM placement_mirrored_write)
   AND NOT EXISTS (SELECT FROM placement_write_fence) RETURNING phase
"""
FLIP_PART: Final = """
UPDATE placement_provider SET origin = %s, updated_at = statement_timestamp()
 WHERE root_id = ANY (%s::bigint[]) AND origin = %s
"""
ADOPT: Final = """
UPDATE placement_provider p SET origin = 'upstream'
 WHERE p.origin = 'host'
   AND NOT EXISTS (SELECT FROM placement_allocation a WHERE a.provider_id = p.id)
"""
OURS: Final = "SELECT name FROM placement_provider WHERE origin <> 'upstream' ORDER BY 1 LIMIT 1"
#: Copies of before: what was deleted since moved no generation, and nobody announced it.
ALL_DUE: Final = """
INSERT INTO placement_copy_due (kind, uuid)
SELECT 'provider', uuid FROM placement_provider WHERE origin = 'upstream' ON CONFLICT DO NOTHING
"""
FAILED: Final = """
UPDATE placement_cutover SET last_error = %s, last_error_at = clock_timestamp()
"""
MOVED: Final = """
UPDATE placement_cutover SET moved_provider = %s::uuid, moved_at = clock_timestamp()
"""
FORGET_MOVED: Final = "UPDATE placement_cutover SET moved_provider = NULL, moved_at = NULL"
IS_COPIED_INTO: Final = """
SELECT phase FROM placement_cutover
 WHERE phase IN ('copying', 'closing', 'parted', 'parting') FOR SHARE
"""
HOLD_TRUTH: Final = "SELECT pg_advisory_xact_lock_shared(%s::bigint)"
CHANGE_TRUTH: Final = "SELECT pg_advisory_xact_lock(%s::bigint)"
SET_LOCK_TIMEOUT: Final = "SELECT set_config('lock_timeout', %s, true)"
TRUTH_KEY: Final = lock_key(LockSpace.PLACEMENT_TRUTH, "phase")


class WrongPhaseError(HeadroomError):
    """The cut-over is not where this step begins."""

    code = "placement_cutover_phase"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where it stands.

    Attributes:
        now: The database's time.
        moved_provider: One that somebody changed over there without us; empty if none was seen.
    """

    phase: Phase = Phase.OFF
    began_at: datetime | None = None
    switched_at: datetime | None = None
    last_error: str = ""
    last_error_at: datetime | None = None
    now: datetime | None = None
    moved_provider: str = ""
    moved_at: datetime | None = None


def current_phase() -> Phase:
    """Return the phase; one small statement, and no transaction is left open.

    Writes that were held for too long are let go first.
    """
    rows = fetch_prepared(PHASE)
    if not rows:
        return Phase.OFF
    phase, is_over = rows[0]
    if is_over and Phase(phase) in BACK:
        reopen(only_if_over=True)
        return current_phase()
    return Phase(phase)


def read_state() -> State:
    """Return all of the row."""
    rows = fetch(STATE)
    if not rows:
        return State()
    phase, began_at, switched_at, error, error_at, now, moved, moved_at = rows[0]
    return State(
        phase=Phase(phase),
        began_at=began_at,
        switched_at=switched_at,
        last_error=error,
        last_error_at=error_at,
        now=now,
        moved_provider=moved or "",
        moved_at=moved_at,
    )


def begin() -> bool:
    """Begin to copy, unless that has begun; return whether it had not.

    Providers of hosts that nobody uses become copies: the other side has the same hosts. Copies of
    an earlier beginning are due, whatever their generations are.

    Raises:
        WrongPhaseError: providers of our own came since somebody looked.
        Busy: what :func:`refuse_while_moving` let begin takes too long.
    """
    if current_phase() is not Phase.OFF:
        return False

    def write() -> bool:
        run(CHANGE_TRUTH, [TRUTH_KEY])
        if not run(BEGIN).fetchall():
            return False
        run(ADOPT)
        ours = run(OURS).fetchall()
        if ours:
            raise WrongPhaseError(f"{ours[0][0]} is a provider of our own and came just now")
        run(ALL_DUE)
        return True

    return in_transaction(write)


def end() -> bool:
    """Leave all to the other Placement again; return whether copying was what went on."""
    return _changed(END)


def close(phase: Phase) -> None:
    """Hold writes from now on: of the other Placement while copying, else ours, or all.

    When this returns, no write of ours is under way that does not know it.

    Args:
        phase: ``CLOSING``, ``RETURNING`` or ``PARTING``.

    Raises:
        WrongPhaseError: it is not what this phase follows.
        OperationalError: a write of ours takes too long.
    """
    drop_dead_connection()
    with transaction.atomic():
        run(SET_LOCK_TIMEOUT, [f"{int(LOCAL_WRITES_SECONDS * 1000)}ms"])
        run(CHANGE_TRUTH, [TRUTH_KEY])
        if not run(CLOSE, [phase, HOLD_SECONDS, BACK[phase]]).fetchall():
            raise WrongPhaseError(f"writes can be held in the phase {BACK[phase]} only")


def reopen(*, only_if_over: bool = False) -> bool:
    """Hold no writes any more, with the truth where it was; return whether they were held."""
    return _changed(REOPEN, [not only_if_over])


def begin_parts() -> bool:
    """Let each side answer for its own trees, of which none is ours; return whether it follows."""
    return _changed(BEGIN_PARTS)


def end_parts() -> bool:
    """Leave all to the other Placement again if nothing is ours; return whether that was so."""
    return _changed(END_PARTS)


def flip_part(roots: Collection[int], note: Callable[[], None], *, to_us: bool) -> bool:
    """Give some trees to the other side while writes are held; return whether there was time.

    Args:
        roots: Their ids.
        note: Called in the same transaction.
        to_us: Whether they become ours.
    """
    before, after = ("upstream", "api") if to_us else ("api", "upstream")
    drop_dead_connection()
    with transaction.atomic():
        if not run(FLIP, [Phase.PARTED, False, Phase.PARTING]).fetchall():
            return False
        run(FLIP_PART, [after, sorted(roots), before])
        note()
        log_changes(roots)
    return True


def flip(held: Phase, note: Callable[[], None]) -> bool:
    """Make the other side the truth while writes are held; return whether there was time.

    Args:
        held: The phase that holds them.
        note: Called in the same transaction.
    """
    to_us = held is not Phase.RETURNING
    drop_dead_connection()
    with transaction.atomic():
        following = Phase.SWITCHED if to_us else Phase.COPYING
        if not run(FLIP, [following, to_us, held]).fetchall():
            return False
        run(OWN if to_us else DISOWN)
        note()
        log_changes([ALL_ROOTS], Change.Kind.NAMES)
    return True


def note_failure(text: str) -> None:
    """Keep why the last step stopped."""
    drop_dead_connection()
    run(FAILED, [text])


def note_moved(provider: str) -> None:
    """Keep that a provider was changed over there without us, until an operator copies again."""
    drop_dead_connection()
    run(MOVED, [provider])


def forget_moved() -> None:
    """Forget it: an operator knows."""
    drop_dead_connection()
    run(FORGET_MOVED)


def hold_truth() -> Phase:
    """Return the phase, which stays until the end of the open transaction."""
    run(HOLD_TRUTH, [TRUTH_KEY])
    rows = run(PHASE).fetchall()
    return Phase(rows[0][0]) if rows else Phase.OFF


def refuse_while_moving(what: str) -> None:
    """Refuse a write past the API, which neither copies nor mirrors know of, while a cloud moves.

    None begins to move until the end of the open transaction. One that has moved, and of which the
    settings hand nothing on any more, is ours, though its phase stays.

    Args:
        what: Who writes, as operators know it.

    Raises:
        WrongPhaseError: a cloud moves.
    """
    phase = hold_truth()
    if phase is Phase.OFF or (phase is Phase.SWITCHED and headroom().gateway.keeps_allocations):
        return
    raise WrongPhaseError(
        f"a cloud moves between two Placements (phase {phase}), and {what} would change one of "
        "them alone: finish that first, or placement_cutover rollback and stop"
    )


def copied_into() -> Phase | None:
    """Return the phase if the other Placement is the truth of anything; it stays until the end.

    That is the end of the open transaction; nothing changes sides until then.
    """
    rows = run(IS_COPIED_INTO).fetchall()
    return Phase(rows[0][0]) if rows else None


def _changed(sql: str, parameters: list[object] | None = None) -> bool:
    drop_dead_connection()
    return bool(run(sql, parameters or []).fetchall())
