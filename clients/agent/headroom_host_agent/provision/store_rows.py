"""Rows of an agent's store, read and written inside a transaction of it (spec hosts, B.9)."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import replace

from headroom_host_agent.provision.documents import digest_of
from headroom_host_agent.provision.stored import (
    FORGOTTEN,
    MADE,
    Row,
    State,
    former_text,
    row_of,
)
from headroom_host_agent.provision.wire import Reservation, Result, reservation_to_json

log = logging.getLogger(__name__)

_FORMER = "former "  # in the table of names, with the id: what is on the host until a change is
SELECT = (
    "SELECT seq, attempt, epoch, digest, resources, body, state, runs_as, begun,"
    " (SELECT value FROM meta WHERE name = 'former ' || reservation.id) FROM reservation"
)
BEGUN = "UPDATE reservation SET begun = max(begun, ?) WHERE id = ?"


def take_row(sql: sqlite3.Connection, reservation: Reservation, *, is_made: bool) -> None:
    """Keep what a page says of a reservation; an older number or attempt changes nothing.

    Args:
        is_made: Whether the server knows it as made.
    """
    row = find_row(sql, reservation.id)
    if row is None:
        # What is to be removed may be of a store before this one, as what was made is.
        begun = MADE if is_made and not reservation.to_delete else reservation.to_delete
        put_row(sql, reservation, State.QUEUED, begun=begun)
        return
    known = row.reservation
    numbers = (reservation.attempt, reservation.seq)
    if not row.is_forgotten and numbers < (known.attempt, known.seq):
        return
    is_alike = row.digest == digest_of(reservation)
    is_same = is_alike and (row.is_forgotten or reservation.attempt == known.attempt)
    state = row.state if is_same or reservation.to_delete else State.QUEUED
    is_there = row.made or (state == State.QUEUED and row.state == State.DEPLOYED)
    if is_there and not is_alike and row.former is None and state == State.QUEUED:
        keep_former(sql, known)
    put_row(
        sql,
        replace(reservation, result=known.result if state == row.state else Result()),
        state,
        runs_as=row.runs_as,
        begun=MADE if is_there else row.begun,
    )


def inherit_rows(sql: sqlite3.Connection) -> None:
    """Give what the server forgot to those that ask for the same and were not begun."""
    forgotten = [
        row_of(found)
        for found in sql.execute(
            f"{SELECT} WHERE seq = ? AND state = ? ORDER BY id",
            (FORGOTTEN, State.DEPLOYED.value),
        ).fetchall()
    ]
    waiting = sql.execute(
        f"{SELECT} WHERE state = ? AND NOT begun ORDER BY seq", (State.QUEUED.value,)
    ).fetchall()
    for heir in (row_of(found).reservation for found in (waiting if forgotten else ())):
        same = [row for row in forgotten if row.may_serve(heir)]
        if same and not heir.reference:
            left = min(same, key=lambda row: row.slot != heir.id.partition("-")[0])
            forgotten.remove(left)
            former = left.reservation
            log.warning("%s takes over what %s made, which is forgotten", heir.id, former.id)
            replace_row(sql, left, replace(heir, result=replace(former.result, id=heir.id)))


def replace_row(sql: sqlite3.Connection, row: Row, reservation: Reservation) -> None:
    """Put a reservation in the place of another, with its state and artefacts."""
    former = row.reservation.id
    sql.execute("DELETE FROM reservation WHERE id = ?", (former,))
    drop_former(sql, former)
    put_row(sql, reservation, row.state, runs_as=row.runs_as, begun=row.begun)
    sql.execute(
        "UPDATE artifact SET reservation = ? WHERE reservation = ?", (reservation.id, former)
    )


def put_row(
    sql: sqlite3.Connection,
    reservation: Reservation,
    state: State,
    *,
    begun: int,
    runs_as: str = "",
) -> None:
    """Write a reservation, over what is stored of its id.

    Args:
        begun: Whether something of it may be on the host; ``MADE`` if it is.
        runs_as: Empty for its own name.
    """
    sql.execute(
        "INSERT OR REPLACE INTO reservation"
        " (id, seq, attempt, epoch, digest, resources, body, state, runs_as, begun)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            reservation.id,
            reservation.seq,
            reservation.attempt,
            reservation.fence_epoch,
            digest_of(reservation),
            json.dumps(dict(reservation.resources), sort_keys=True),
            reservation_to_json(reservation),
            state.value,
            runs_as or reservation.reference or reservation.id,
            begun,
        ),
    )


def find_row(sql: sqlite3.Connection, identity: str) -> Row | None:
    """Return a reservation with its state, None when there is none of this id."""
    found = sql.execute(f"{SELECT} WHERE id = ?", (identity,)).fetchone()
    return None if found is None else row_of(found)


def get_meta(sql: sqlite3.Connection, name: str) -> str | None:
    """Return a value that is kept by name, None when none is."""
    found = sql.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if found is None else found[0]


def put_meta(sql: sqlite3.Connection, name: str, value: str) -> None:
    """Keep a value by name."""
    sql.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))


def keep_former(sql: sqlite3.Connection, reservation: Reservation) -> None:
    """Keep what is on the host of a reservation while something else is asked for."""
    put_meta(sql, _FORMER + reservation.id, former_text(reservation))


def drop_former(sql: sqlite3.Connection, identity: str) -> None:
    """Forget what was on the host before a change."""
    sql.execute("DELETE FROM meta WHERE name = ?", (_FORMER + identity,))


def resyncs_of(sql: sqlite3.Connection) -> int:
    """Return how many resyncs have begun."""
    return int(get_meta(sql, "resyncs") or 0)
