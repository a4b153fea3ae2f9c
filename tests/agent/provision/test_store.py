"""What an agent must not forget (spec hosts, B.9, D.8)."""

from __future__ import annotations

import sqlite3
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from headroom_host_agent.provision.ids import network_id
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.stored import (
    Artifact,
    Message,
    State,
    StoreError,
    UnknownReservationError,
)
from headroom_host_agent.provision.units import Counters
from headroom_host_agent.provision.wire import Reservation, Result, ResultState
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.provision.workshop import NOW, reservation

OK = Result(state=ResultState.OK, created=NOW, data=b"null")


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "agent.sqlite")


def test_the_example_of_the_reference(store: SqliteStore) -> None:
    kept = reservation(
        "1-1",
        "network",
        user_id="1",
        duration_ns=10 * 10**9,
        data=b'{"name":"tf_devnet"}',
        result=OK,
    )
    store.add(kept)

    assert store.get("1-1") == kept
    with pytest.raises(UnknownReservationError):
        store.get("foo")
    assert store.get_expired(NOW) == (kept,)
    assert store.get_expired(None) == ()
    assert store.list() == (kept,)
    assert store.network_exists(network_id("1", "tf_devnet"))
    assert not store.network_exists(network_id("1", "tf_mainnet"))
    with pytest.raises(StoreError, match="stored already"):
        store.add(kept)

    store.remove("1-1")
    store.remove("1-1")
    assert not store.exists("1-1")
    with pytest.raises(UnknownReservationError):
        store.get("1-1")


def test_a_network_counts_once(store: SqliteStore) -> None:
    for number, kind in enumerate(("network", "network_resource", "volume")):
        data = b'{"name":"net"}' if kind != "volume" else b'{"size":1,"type":"ssd"}'
        store.add(reservation(f"{number}-1", kind, data=data, result=OK))
    store.add(reservation("4-1", "volume", result=replace(OK, state=ResultState.ERROR)))
    store.add(
        reservation("5-1", "volume", duration_ns=1, data=b'{"size":1,"type":"ssd"}', result=OK)
    )
    counted = Counters()

    store.sync(counted, NOW)

    assert counted.current_workloads() == {"network": 1, "volume": 1}


def test_only_the_owner_may_read_it(store: SqliteStore) -> None:
    store.set_meta("a", "b")

    for path in store.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_what_is_stored_outlives_the_process(store: SqliteStore) -> None:
    one = reservation("1-1", attempt=2, seq=7, fence_epoch=3, resources={"cpu": 8})
    store.take_page([one], cursor=7)
    store.finish(replace(one, result=OK), [Message(key="1-1:2:result", body=b"{}")])
    store.close()

    again = SqliteStore(store.path)

    assert again.get("1-1") == replace(one, result=OK)
    assert again.cursor == 7
    assert again.outbox_depth() == 1
    assert not again.needs_confirmation


def test_a_newer_agents_store_is_left_alone(store: SqliteStore) -> None:
    store.close()
    with sqlite3.connect(store.path) as sql:
        sql.execute("PRAGMA user_version = 2")
    sql.close()

    with pytest.raises(StoreError, match="a newer agent wrote it"):
        SqliteStore(store.path)


@pytest.mark.parametrize(("place", "length"), [(0, 100), (4096, 40960)])
def test_a_damaged_store_is_moved_aside(store: SqliteStore, place: int, length: int) -> None:
    for number in range(200):
        store.add(reservation(f"{number}-1", result=OK))
    store.close()
    content = bytearray(store.path.read_bytes())
    content[place : place + length] = b"\xff" * length
    store.path.write_bytes(content)

    again = SqliteStore(store.path)

    assert again.list() == ()
    assert again.cursor == 0
    assert again.needs_confirmation
    assert store.path.with_name("agent.sqlite.damaged-1").exists()
    again.confirm()
    assert not again.needs_confirmation


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        SqliteStore(tmp_path / "none/agent.sqlite")


def deployed(store: SqliteStore) -> Reservation:
    one = reservation("1-1", seq=5)
    store.take_page([one], cursor=5)
    store.finish(replace(one, result=OK), [])
    return one


@pytest.mark.parametrize(
    ("changes", "state", "keeps_result"),
    [
        ({"seq": 6}, State.DEPLOYED, True),
        ({"seq": 6, "to_delete": True}, State.DEPLOYED, True),
        ({"seq": 6, "fence_epoch": 2}, State.DEPLOYED, True),
        ({"seq": 6, "attempt": 2}, State.QUEUED, False),
        ({"seq": 6, "data": b'{"a":1}'}, State.QUEUED, False),
        ({"seq": 4, "to_delete": True}, State.DEPLOYED, True),
        ({"seq": 4, "data": b'{"a":1}'}, State.DEPLOYED, True),
    ],
)
def test_a_page_changes_what_is_newer(
    store: SqliteStore, changes: dict[str, object], state: State, keeps_result: bool
) -> None:
    one = deployed(store)

    store.take_page([replace(one, **changes)], cursor=6)  # type: ignore[arg-type]  # by name

    row = store.row("1-1")
    is_newer = changes["seq"] == 6
    assert row.state == state
    assert (row.reservation.result == OK) is keeps_result
    assert row.reservation.to_delete is (is_newer and "to_delete" in changes)
    assert store.cursor == 6


def test_a_job_of_an_older_change_is_not_begun(store: SqliteStore) -> None:
    one = deployed(store)

    assert not store.begin(replace(one, seq=4), runs_as="1-1")
    assert store.row("1-1").state == State.DEPLOYED
    assert store.begin(one, runs_as="1-1")
    assert store.row("1-1").state == State.PROVISIONING


def test_a_result_of_what_was_asked_before_is_told_alone(store: SqliteStore) -> None:
    one = reservation("1-1", seq=5)
    store.take_page([one], cursor=5)
    store.begin(one, runs_as="1-1")
    store.take_page([replace(one, seq=6, attempt=2)], cursor=6)

    store.finish(replace(one, result=OK), [Message(key="1-1:1:result", body=b"")])

    assert store.row("1-1").state == State.QUEUED
    assert store.row("1-1").reservation.attempt == 2
    assert store.outbox_depth() == 1


def test_what_was_begun_comes_first_after_a_start(store: SqliteStore) -> None:
    store.take_page(
        [
            reservation("1-1", seq=1),
            reservation("2-1", seq=2, to_delete=True),
            reservation("3-1", seq=3),
            reservation("4-1", seq=4),
        ],
        cursor=4,
    )
    store.begin(reservation("3-1", seq=3), runs_as="3-1")
    store.finish(reservation("4-1", seq=4, result=OK), [])
    store.add(reservation("5-1", seq=5, result=OK))
    store.begin_removal("5-1")

    assert [one.id for one in store.unfinished()] == ["2-1", "5-1", "1-1", "3-1"]


def test_what_a_reservation_made_goes_with_its_successor(store: SqliteStore) -> None:
    store.add(reservation("1-1", result=OK))
    store.intend(Artifact(name="1-1", kind="file", reservation_id="1-1"))
    store.intend(Artifact(name="1-1", kind="file", reservation_id="1-1"))

    store.migrate("1-1", reservation("2-1", reference="1-1", result=OK), [])

    (artifact,) = store.artifacts()
    assert artifact.reservation_id == "2-1"
    assert store.row("2-1").runs_as == "1-1"
    with pytest.raises(UnknownReservationError):
        store.migrate("1-1", reservation("3-1"), [])
    store.drop_artifact(artifact)
    assert store.artifacts() == ()


@settings(max_examples=30)  # each writes a file through to the disk
@given(
    posted=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["result", "death", "deleted"])), max_size=9
    ),
    failing=st.sets(st.integers(1, 3)),
)
def test_messages_of_a_reservation_keep_their_order(
    tmp_path_factory: pytest.TempPathFactory, posted: list[tuple[int, str]], failing: set[int]
) -> None:
    store = SqliteStore(tmp_path_factory.mktemp("outbox") / "agent.sqlite")
    keys = [f"{number}-1:1:{kind}" for number, kind in posted]
    for key in keys:
        store.post(Message(key=key, body=b""))
    told: list[str] = []
    for _ in range(100):
        message = store.next_message()
        if message is None:
            break
        if int(message.key[0]) in failing and message.tries < 2:
            store.tried(message)
        else:
            store.told(message)
            told.append(message.key)
    store.close()

    unique = list(dict.fromkeys(keys))
    assert sorted(told) == sorted(unique)
    for number in range(1, 4):
        mine = [key for key in told if key.startswith(f"{number}-")]
        assert mine == [key for key in unique if key.startswith(f"{number}-")]


def test_end_of_a_reservation_that_never_began_or_failed(store: SqliteStore) -> None:
    failed = replace(OK, state=ResultState.ERROR)
    store.add(reservation("1-1", duration_ns=1, result=failed))
    store.take_page([reservation("2-1", duration_ns=1)], cursor=1)

    assert [one.id for one in store.get_expired(NOW + timedelta(days=1))] == ["2-1"]
