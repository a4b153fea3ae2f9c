"""What an agent must not forget, in one SQLite file (spec hosts, B.9, D.8).

Every method is one transaction. A result and the message that tells it are written together, as
are a page and the cursor behind it, so that a kill leaves both or none.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from headroom_host_agent.provision.ids import network_id
from headroom_host_agent.provision.store_file import move_aside, open_file
from headroom_host_agent.provision.store_rows import (
    BEGUN,
    SELECT,
    drop_former,
    find_row,
    get_meta,
    inherit_rows,
    keep_former,
    put_meta,
    put_row,
    replace_row,
    resyncs_of,
    take_row,
)
from headroom_host_agent.provision.stored import (
    FORGOTTEN,
    MADE,
    Artifact,
    Message,
    Row,
    State,
    Statser,
    StoreError,
    UnknownReservationError,
    row_of,
)
from headroom_host_agent.provision.wire import (
    Reservation,
    ResultState,
)


class SqliteStore:
    """The store of one agent; safe to use from threads.

    Args:
        path: Its folder exists; the file is made readable to its owner alone. One that is damaged
            is moved aside, and ``needs_confirmation`` is true until an operator confirms.

    Raises:
        StoreError: A newer agent wrote it, or it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.posted = threading.Event()  # something may wait in the outbox
        self._lock = threading.RLock()
        try:
            self._connection = open_file(path)
        except (OSError, sqlite3.OperationalError) as error:
            raise StoreError(f"{path}: {error}") from None
        except sqlite3.DatabaseError:
            move_aside(path)
            self._connection = open_file(path)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @property
    def needs_confirmation(self) -> bool:
        """Whether reservations may have been lost, so that nothing may be cleaned up."""
        return self.meta("damaged") is not None

    def confirm(self) -> None:
        """Take what is stored as all there is: an operator looked."""
        with self._write() as sql:
            sql.execute("DELETE FROM meta WHERE name = 'damaged'")

    def add(self, reservation: Reservation) -> None:
        """Keep a reservation with its result, as one that was handled.

        Raises:
            StoreError: Its id is there already.
        """
        is_ok = reservation.result.state == ResultState.OK
        with self._write() as sql:
            if find_row(sql, reservation.id) is not None:
                raise StoreError(f"{reservation.id} is stored already")
            put_row(sql, reservation, State.DEPLOYED if is_ok else State.FAILED, begun=True)

    def get(self, identity: str) -> Reservation:
        """Return a reservation.

        Raises:
            UnknownReservationError: There is none of this id.
        """
        return self.row(identity).reservation

    def row(self, identity: str) -> Row:
        """Return a reservation with its state.

        Raises:
            UnknownReservationError: As ``get``.
        """
        with self._read() as sql:
            row = find_row(sql, identity)
        if row is None:
            raise UnknownReservationError(identity)
        return row

    def find(self, identity: str) -> Row | None:
        """Return a reservation with its state, None when there is none of this id."""
        with self._read() as sql:
            return find_row(sql, identity)

    def exists(self, identity: str) -> bool:
        """Return whether there is one of this id."""
        return self.find(identity) is not None

    def remove(self, identity: str) -> None:
        """Forget a reservation and what it made; an unknown one is success."""
        self.forget(identity, ())

    def list(self) -> tuple[Reservation, ...]:
        """Return all, by id."""
        return tuple(row.reservation for row in self.rows())

    def rows(self) -> tuple[Row, ...]:
        """Return all with their states, by id."""
        with self._read() as sql:
            return tuple(row_of(found) for found in sql.execute(f"{SELECT} ORDER BY id"))

    def get_expired(self, now: datetime | None) -> tuple[Reservation, ...]:
        """Return what has ended, and what is still to be removed; by id.

        Args:
            now: Time of the server; None when unknown: nothing ends then.
        """
        return tuple(
            row.reservation
            for row in self.rows()
            if row.state == State.DELETING
            or (now is not None and row.state != State.FAILED and row.reservation.expired(now))
        )

    def unfinished(self) -> tuple[Reservation, ...]:
        """Return what was stored or begun and not ended, deletions first, then by number."""
        rows = [row for row in self.rows() if row.state not in (State.DEPLOYED, State.FAILED)]
        rows += [
            row
            for row in self.rows()
            if row.state in (State.DEPLOYED, State.FAILED) and row.reservation.to_delete
        ]
        rows.sort(key=lambda row: (not _is_going(row), row.reservation.seq))
        return tuple(row.reservation for row in rows)

    def network_exists(self, identity: str) -> bool:
        """Return whether a network of this network id is stored, of either type of network."""
        return identity in {
            _network_of(row.reservation)
            for row in self.rows()
            if row.reservation.type in ("network", "network_resource")
        }

    def sync(self, statser: Statser, now: datetime) -> None:
        """Count all that runs; a network of several reservations once."""
        networks: set[str] = set()
        for row in self.rows():
            reservation = row.reservation
            if row.state != State.DEPLOYED or reservation.expired(now):
                continue
            if reservation.type in ("network", "network_resource"):
                identity = _network_of(reservation)
                if identity in networks:
                    continue
                networks.add(identity)
            statser.increment(reservation.type, _data_of(reservation))

    def take_page(
        self,
        reservations: Iterable[Reservation],
        *,
        cursor: int,
        resyncs: int | None = None,
        made: Collection[str] = (),
    ) -> bool:
        """Keep a page and the number behind it.

        A reservation that asks for the same keeps its state and result; one that is made and asks
        for something else now keeps what it made until that is; an older number or attempt than
        the stored one changes nothing. One that is new and asks for what the server
        forgot elsewhere takes that over, once all was compared.

        Args:
            resyncs: How many had begun when the page was asked for; None for any.
            made: Ids of those that the server knows as made.

        Returns:
            Whether it was kept: no resync began since.
        """
        with self._write() as sql:
            if resyncs is not None and resyncs != resyncs_of(sql):
                return False
            for reservation in reservations:
                take_row(sql, reservation, is_made=reservation.id in made)
            put_meta(sql, "cursor", str(cursor))
            if get_meta(sql, "resyncing") is None:
                inherit_rows(sql)
            return True

    @property
    def resyncs(self) -> int:
        """How many resyncs have begun."""
        with self._read() as sql:
            return resyncs_of(sql)

    @property
    def is_resyncing(self) -> bool:
        """Whether all reservations are to be compared with those of the server."""
        return self.meta("resyncing") is not None

    def begin_resync(self, *, ends_epoch: bool = False, ends_history: bool = False) -> None:
        """Ask for everything again; what was not begun is dropped, for it will come again.

        Args:
            ends_epoch: Whether an epoch ended: the server takes nothing that is told of it.
            ends_history: Whether the server's database was restored: its numbers and attempts may
                be lower than those it told before, and count.
        """
        with self._write() as sql:
            if ends_epoch:
                sql.execute("DELETE FROM outbox")
            sql.execute("DELETE FROM reservation WHERE NOT begun")
            if ends_history:
                sql.execute("UPDATE reservation SET seq = ?", (FORGOTTEN,))
            put_meta(sql, "cursor", "0")
            put_meta(sql, "resyncs", str(resyncs_of(sql) + 1))
            put_meta(sql, "resyncing", "1")

    def end_resync(self, *, resyncs: int, forgotten: Iterable[str] = ()) -> bool:
        """Keep that all was compared; return whether no other resync began since.

        Args:
            forgotten: Ids of which the server knows nothing.
        """
        with self._write() as sql:
            if resyncs != resyncs_of(sql):
                return False
            sql.execute("DELETE FROM meta WHERE name = 'resyncing'")
            sql.executemany(
                "UPDATE reservation SET seq = ? WHERE id = ?",
                [(FORGOTTEN, identity) for identity in forgotten],
            )
            inherit_rows(sql)
            return True

    def follow_timeline(self, timeline: str) -> bool:
        """Keep the name of the server's history; return whether it is another than before.

        Then the server's database was restored, and a resync begins.
        """
        with self._write() as sql:
            known = get_meta(sql, "timeline")
            put_meta(sql, "timeline", timeline)
            is_other = known is not None and known != timeline
            if is_other:
                self.begin_resync(ends_history=True)
            return is_other

    def begin(self, reservation: Reservation, *, runs_as: str) -> bool:
        """Keep that it is being provisioned, before anything is made.

        Returns:
            Whether it may be: a newer change of it is not stored.
        """
        with self._write() as sql:
            row = find_row(sql, reservation.id)
            if row is not None and row.reservation.seq > reservation.seq:
                return False
            begun = MADE if row is not None and row.made else True
            put_row(sql, reservation, State.PROVISIONING, runs_as=runs_as, begun=begun)
            return True

    def begin_removal(self, identity: str) -> None:
        """Keep that it is being removed."""
        with self._write() as sql:
            sql.execute(
                "UPDATE reservation SET state = ? WHERE id = ?", (State.DELETING.value, identity)
            )

    def finish(
        self,
        reservation: Reservation,
        messages: Iterable[Message],
        *,
        keeps_former: bool = False,
    ) -> None:
        """Keep the result that a reservation has, and what to tell of it.

        When a page brought a change meanwhile, the change stays: with the result if the same is
        asked for, else still to be handled, in place of what was made now.

        Args:
            keeps_former: Whether what was on the host before a change is there still.
        """
        is_ok = reservation.result.state == ResultState.OK
        state = State.DEPLOYED if is_ok else State.FAILED
        with self._write() as sql:
            row = find_row(sql, reservation.id)
            self._post(sql, messages)
            if not keeps_former:
                drop_former(sql, reservation.id)
            if row is not None and row.reservation.seq > reservation.seq:
                if row.state == State.QUEUED:
                    if is_ok:
                        keep_former(sql, reservation)
                    begun = MADE if is_ok or keeps_former else True
                    sql.execute(BEGUN, (begun, reservation.id))
                    return
                reservation = replace(row.reservation, result=reservation.result)
            runs_as = row.runs_as if row is not None else ""
            begun = MADE if keeps_former else True
            put_row(sql, reservation, state, runs_as=runs_as, begun=begun)

    def migrate(self, old: str, reservation: Reservation, messages: Iterable[Message]) -> None:
        """Put a reservation in the place of another, whose artefacts it takes over.

        Raises:
            UnknownReservationError: There is no old one.
        """
        with self._write() as sql:
            row = find_row(sql, old)
            if row is None:
                raise UnknownReservationError(old)
            replace_row(sql, row, reservation)
            self._post(sql, messages)

    def forget(self, identity: str, messages: Iterable[Message]) -> None:
        """Forget a reservation and what it made, and keep what to tell of it."""
        with self._write() as sql:
            sql.execute("DELETE FROM reservation WHERE id = ?", (identity,))
            sql.execute("DELETE FROM artifact WHERE reservation = ?", (identity,))
            drop_former(sql, identity)
            self._post(sql, messages)

    def boot(self, boot_id: str, *, persistent: Collection[str]) -> bool:
        """Keep which boot this is; return whether the host was booted since the last time.

        Then what does not outlive a boot is to be made again: it counts as begun.
        """
        with self._write() as sql:
            known = get_meta(sql, "boot_id")
            put_meta(sql, "boot_id", boot_id)
            if known in (None, boot_id):
                return False
            for found in sql.execute(SELECT).fetchall():
                row = row_of(found)
                if row.reservation.type in persistent:
                    continue
                state = State.PROVISIONING if row.state == State.DEPLOYED else row.state
                sql.execute(
                    "UPDATE reservation SET state = ?, begun = min(begun, 1) WHERE id = ?",
                    (state.value, row.reservation.id),
                )
                drop_former(sql, row.reservation.id)
            return True

    def intend(self, artifact: Artifact) -> None:
        """Keep what is about to be made; twice is once."""
        with self._write() as sql:
            sql.execute(
                "INSERT OR REPLACE INTO artifact (name, kind, reservation) VALUES (?, ?, ?)",
                (artifact.name, artifact.kind, artifact.reservation_id),
            )

    def artifacts(self) -> tuple[Artifact, ...]:
        """Return what was made or was about to be, by kind and name."""
        with self._read() as sql:
            return tuple(
                Artifact(name=name, kind=kind, reservation_id=reservation)
                for name, kind, reservation in sql.execute(
                    "SELECT name, kind, reservation FROM artifact ORDER BY kind, name"
                )
            )

    def drop_artifact(self, artifact: Artifact) -> None:
        """Forget something that was removed."""
        with self._write() as sql:
            sql.execute(
                "DELETE FROM artifact WHERE name = ? AND kind = ?", (artifact.name, artifact.kind)
            )

    def post(self, message: Message) -> None:
        """Keep something to tell; a message with a key that waits is there already."""
        with self._write() as sql:
            self._post(sql, (message,))

    def next_message(self) -> Message | None:
        """Return what is to be told next, None when nothing waits.

        The least tried first, so that one that nobody takes does not hold up all others; those of
        a reservation in their order.
        """
        with self._read() as sql:
            found = sql.execute(_NEXT).fetchone()
        if found is None:
            return None
        number, key, body, tries = found
        return Message(number=number, key=key, body=body, tries=tries)

    def outbox_depth(self) -> int:
        """Return how many messages wait."""
        with self._read() as sql:
            depth: int = sql.execute("SELECT count(*) FROM outbox").fetchone()[0]
            return depth

    def oldest_message_at(self) -> int | None:
        """Return when the oldest message that waits was posted, in Unix seconds of the host."""
        with self._read() as sql:
            oldest: int | None = sql.execute("SELECT min(posted_at) FROM outbox").fetchone()[0]
            return oldest

    def tried(self, message: Message) -> None:
        """Count a try that brought no answer."""
        with self._write() as sql:
            sql.execute("UPDATE outbox SET tries = tries + 1 WHERE number = ?", (message.number,))

    def told(self, message: Message) -> None:
        """Forget a message that was answered."""
        with self._write() as sql:
            sql.execute("DELETE FROM outbox WHERE number = ?", (message.number,))

    @property
    def cursor(self) -> int:
        """The highest number of which the page is stored; 0 at first."""
        return int(self.meta("cursor") or 0)

    def meta(self, name: str) -> str | None:
        """Return a value that is kept by name, None when none is."""
        with self._read() as sql:
            return get_meta(sql, name)

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            yield self._connection

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection.in_transaction:  # a method that calls another
                yield self._connection
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _post(self, sql: sqlite3.Connection, messages: Iterable[Message]) -> None:
        sql.executemany(
            "INSERT OR IGNORE INTO outbox (key, body) VALUES (?, ?)",
            [(message.key, message.body) for message in messages],
        )
        self.posted.set()


_NEXT = """
SELECT number, key, body, tries FROM outbox AS this WHERE NOT EXISTS (
    SELECT 1 FROM outbox AS other WHERE other.number < this.number
    AND substr(other.key, 1, instr(other.key, ':')) = substr(this.key, 1, instr(this.key, ':')))
ORDER BY tries, number LIMIT 1
"""


def _is_going(row: Row) -> bool:
    return row.reservation.to_delete or row.state == State.DELETING


def _data_of(reservation: Reservation) -> dict[str, object]:
    data = json.loads(reservation.data or b"null")
    return data if isinstance(data, dict) else {}


def _network_of(reservation: Reservation) -> str:
    return network_id(reservation.user_id, str(_data_of(reservation).get("name", "")))
