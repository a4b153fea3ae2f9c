"""What an agent must not forget (spec hosts, B.9, D.8)."""

from __future__ import annotations

import sqlite3
import stat
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from headroom_host_agent.provision.ids import network_id
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.store_file import move_aside
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
    store.follow_timeline("a")

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


def test_a_store_made_by_the_next_start_after_a_damaged_one_needs_confirmation(
    store: SqliteStore,
) -> None:
    """A kill right after the damaged file was moved."""
    store.close()
    move_aside(store.path)
    again = SqliteStore(store.path)
    assert again.needs_confirmation
    again.confirm()
    again.close()
    again = SqliteStore(store.path)
    assert not again.needs_confirmation
    again.close()


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


def test_numbers_of_another_history_count_though_they_are_lower(store: SqliteStore) -> None:
    one = deployed(store)  # number 5, attempt 1
    store.take_page([replace(one, seq=9, attempt=3)], cursor=9)
    store.finish(replace(one, seq=9, attempt=3, result=OK), [])
    store.begin_resync(ends_history=True)
    assert store.row("1-1").is_forgotten

    store.take_page([replace(one, seq=2, attempt=1)], cursor=2, resyncs=store.resyncs)

    row = store.row("1-1")
    assert (row.reservation.seq, row.reservation.attempt) == (2, 1)
    assert (row.state, row.reservation.result) == (State.DEPLOYED, OK)
    assert not row.is_forgotten


def test_what_is_made_stays_so_while_another_attempt_waits(store: SqliteStore) -> None:
    one = deployed(store)
    store.take_page([replace(one, seq=6, attempt=2)], cursor=6)
    row = store.row("1-1")
    assert (row.state, row.made) == (State.QUEUED, True)
    assert store.begin(row.reservation, runs_as="1-1")
    assert store.row("1-1").made
    store.finish(replace(row.reservation, result=replace(OK, state=ResultState.ERROR)), [])
    assert not store.row("1-1").made


def test_what_is_made_stays_until_its_change_is(store: SqliteStore) -> None:
    one = deployed(store)
    bigger = replace(one, seq=6, attempt=2, version=2, resources={"cpu": 9}, data=b'{"n":9}')
    store.take_page([bigger], cursor=6)
    row = store.row("1-1")
    assert (row.state, row.made, row.reservation.resources) == (State.QUEUED, True, {"cpu": 9})
    assert row.former is not None
    assert (dict(row.former.resources), row.former.data) == (dict(one.resources), one.data)
    assert row.there == row.former

    store.begin(row.reservation, runs_as="1-1")
    failed = replace(row.reservation, result=replace(OK, state=ResultState.ERROR))
    store.finish(failed, [], keeps_former=True)
    biggest = replace(bigger, seq=7, attempt=3, version=3, resources={"cpu": 10})
    store.take_page([biggest], cursor=7)
    row = store.row("1-1")
    assert (row.state, row.made, row.former) == (State.QUEUED, True, row.there)
    assert row.there.resources == dict(one.resources)

    store.begin(row.reservation, runs_as="1-1")
    store.take_page([replace(biggest, seq=8, attempt=4, resources={"cpu": 11})], cursor=8)
    store.finish(replace(row.reservation, result=OK), [])  # of the one before
    row = store.row("1-1")
    assert (row.state, row.made) == (State.QUEUED, True)
    assert (row.there.resources, row.reservation.resources) == ({"cpu": 10}, {"cpu": 11})

    store.begin(row.reservation, runs_as="1-1")
    store.finish(replace(row.reservation, result=OK), [])
    row = store.row("1-1")
    assert (row.state, row.made, row.former) == (State.DEPLOYED, False, None)
    assert store.meta("former 1-1") is None


@pytest.mark.parametrize("end", ["boot", "forget"])
def test_what_was_before_a_change_ends_with_what_carries_it(store: SqliteStore, end: str) -> None:
    one = deployed(store)
    store.boot("a", persistent=())
    store.take_page([replace(one, seq=6, attempt=2, data=b"[]")], cursor=6)
    assert store.row("1-1").former is not None
    if end == "boot":
        store.boot("b", persistent=())
        assert store.row("1-1").former is None
    else:
        store.forget("1-1", ())
    assert store.meta("former 1-1") is None


def test_a_folder_with_data_serves_its_own_slot_alone(store: SqliteStore) -> None:
    """However alike: what one slot wrote is never handed to another (doubt of the audit)."""
    store.end_resync(resyncs=0)
    for name in ("1-1", "2-1"):
        for kind in ("disk_quota", "hugepages"):
            facts = {"data": b'{"size_bytes":4096}', "seq": 1}
            store.add(reservation(f"{name}{len(kind)}", kind, result=OK, **facts))
    store.begin_resync(ends_history=True)
    page = [
        reservation("2-50", "disk_quota", data=b'{"size_bytes":4096}', seq=2),
        reservation("3-50", "disk_quota", data=b'{"size_bytes":4096}', seq=3),
        reservation("3-51", "hugepages", data=b'{"size_bytes":4096}', seq=4),
    ]
    store.take_page(page, cursor=9, resyncs=store.resyncs)
    store.end_resync(resyncs=store.resyncs)

    heirs = {row.reservation.id: row.runs_as for row in store.rows()}
    assert heirs["2-50"] == "2-110"
    assert heirs["3-50"] == "3-50"  # made anew
    assert store.row("3-50").state == State.QUEUED
    assert heirs["3-51"] == "1-19"
    assert store.row("1-110").is_forgotten  # it stays, and nobody has it


def test_what_vms_had_filled_is_no_part_of_what_is_asked(store: SqliteStore) -> None:
    store.end_resync(resyncs=0)
    store.add(reservation("1-1", "accounting", data=b'{"slot":"a"}', result=OK, seq=1))
    store.begin_resync(ends_history=True)
    heir = reservation("1-9", "accounting", data=b'{"filled":{"cpu":1},"slot":"a"}', seq=2)
    store.take_page([heir], cursor=2, resyncs=store.resyncs)
    store.end_resync(resyncs=store.resyncs)
    assert [(row.reservation.id, row.runs_as) for row in store.rows()] == [("1-9", "1-1")]


def test_a_boot_takes_what_does_not_outlast_it(store: SqliteStore) -> None:
    one = deployed(store)
    store.boot("a", persistent=())
    store.take_page([replace(one, seq=6, attempt=2)], cursor=6)
    assert store.boot("b", persistent=())
    row = store.row("1-1")
    assert (row.state, row.begun, row.made) == (State.QUEUED, True, False)


def test_a_store_that_begins_takes_the_servers_word_for_what_is_made(store: SqliteStore) -> None:
    page = [
        reservation("1-1", seq=1),
        reservation("2-1", seq=2),
        reservation("3-1", seq=3, to_delete=True),
    ]
    assert store.is_resyncing  # all is compared before anything is begun
    store.take_page(page, cursor=3, made={"1-1"})
    rows = {row.reservation.id: (row.begun, row.made) for row in store.rows()}
    # What is to be removed may have been made by who had the store before.
    assert rows == {"1-1": (True, True), "2-1": (False, False), "3-1": (True, False)}


AMOUNTS = st.sampled_from([{}, {"cpu": 1}, {"cpu": 2}])
WANTED = st.tuples(
    st.integers(1, 4), st.sampled_from(["a", "b"]), AMOUNTS, st.sampled_from(["file", "vgpu"])
)


def content(one: tuple[int, str, dict[str, int], str]) -> tuple[object, ...]:
    """Return what two have in common of which one may serve the other: of files, their slot too."""
    slot, user, resources, kind = one
    return (slot if kind == "file" else None, user, str(resources), kind)


@settings(max_examples=60)  # each writes a file through to the disk
@given(
    made=st.lists(WANTED, max_size=5),
    wanted=st.lists(WANTED, max_size=5),
    is_early=st.booleans(),
)
def test_what_is_forgotten_serves_whoever_wants_the_same_and_no_other(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[tuple[int, str, dict[str, int], str]],
    wanted: list[tuple[int, str, dict[str, int], str]],
    is_early: bool,
) -> None:
    store = SqliteStore(tmp_path_factory.mktemp("heirs") / "agent.sqlite")
    store.end_resync(resyncs=0)
    for number, (slot, user, resources, kind) in enumerate(made):
        name = f"{slot}-{number}"
        facts = {"user_id": user, "resources": resources, "seq": number}
        store.add(reservation(name, kind, result=OK, **facts))
        store.intend(Artifact(name=name, kind=kind, reservation_id=name))
    store.begin_resync(ends_history=True)
    page = [
        reservation(f"{slot}-{number + 100}", kind, user_id=user, resources=resources, seq=number)
        for number, (slot, user, resources, kind) in enumerate(wanted)
    ]
    if is_early:
        store.take_page(page, cursor=9, resyncs=store.resyncs)
    assert store.end_resync(resyncs=store.resyncs)
    if not is_early:
        store.take_page(page, cursor=9)

    rows = store.rows()
    served = {row.reservation.id: row for row in rows if row.state == State.DEPLOYED}
    heirs = [row for row in served.values() if row.runs_as != row.reservation.id]
    alike = Counter(map(content, made))
    asked = Counter(map(content, wanted))
    # As many as can be served are; nothing that is on the host is lost or given twice.
    assert len(heirs) == (alike & asked).total()
    assert len(rows) == len(made) + len(wanted) - len(heirs)
    assert sorted(row.runs_as for row in served.values()) == sorted(
        f"{slot}-{number}" for number, (slot, *_) in enumerate(made)
    )
    for row in served.values():
        known = made[int(row.runs_as.split("-")[1])]
        assert (row.reservation.user_id, dict(row.reservation.resources)) == known[1:3]
        assert row.reservation.type == known[3]
        assert row.reservation.result.state == ResultState.OK
    owners = {artifact.name: artifact.reservation_id for artifact in store.artifacts()}
    assert owners == {row.runs_as: row.reservation.id for row in served.values()}
    store.close()
