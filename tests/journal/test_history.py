"""Readers of changes notice that the database has another past than the one they know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from django.db import connection, connections, transaction
from prometheus_client import REGISTRY

from capacity.host_table.changes import read_changes
from capacity.host_table.differences import table_differences
from capacity.host_table.position import Position, load_position, newest_after
from commitments.models import SlotCheck, UsageCheck
from commitments.services.usage import reconcile_all_usage
from commitments.services.verification import verify_slots
from core.process_cache import ProcessCache
from journal.actors import Actor
from journal.history import NOW, Moment, is_continued, may_store, moment_of, read_moment
from journal.metrics import metric_name
from placement.selectors.snapshot import changes as provider_changes
from placement.selectors.snapshot.cache import advance, load_state
from placement.services.providers import create_provider
from tests.factories import (
    make_allocation,
    make_commitment,
    make_group,
    make_host,
    make_slot,
    make_vm,
)
from tests.process_tables import load_snapshot

pytestmark = pytest.mark.django_db

ACTOR = Actor(name="tester")
PARTS = {"other_timeline": 0, "other_system": 1, "restarted": 2, "other_database": 3}
OTHERS = ("000000FF", "1", "1.5", "base/1")


def elsewhere(moment: Moment, reason: str = "other_timeline") -> Moment:
    """Return a moment of another history that differs in one part of its name."""
    parts = moment.history.split(" ")
    parts[PARTS[reason]] = OTHERS[PARTS[reason]]
    return replace(moment, history=" ".join(parts))


def counted(reader: str, reason: str) -> float:
    name = metric_name("database_history_reloads_total")
    return REGISTRY.get_sample_value(name, {"reader": reader, "reason": reason}) or 0.0


def move_behind_the_back(zone: str) -> None:
    """Change hosts by a transaction whose number readers have seen, as another history does."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE hosts_host DISABLE TRIGGER USER")
        cursor.execute("UPDATE hosts_host SET zone = %s, changed_xid = 3", [zone])
        cursor.execute("ALTER TABLE hosts_host ENABLE TRIGGER USER")


def test_sessions_of_one_server_tell_one_history() -> None:
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute(NOW)
            (text,) = cursor.fetchone() or ("",)
    finally:
        other.close()
    first, second = moment_of(text), read_moment()
    assert first.history == second.history
    assert len(first.history.split(" ")) == 4
    assert 0 < first.wal_bytes <= second.wal_bytes
    assert is_continued(first, second, reader="placement")


def test_an_ordinary_role_may_ask() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        mine = read_moment()
        cursor.execute("CREATE ROLE ordinary_reader")
        cursor.execute("SET LOCAL ROLE ordinary_reader")
        cursor.execute("SELECT set_config('headroom.server', '', false)")
        assert read_moment().history == mine.history
        transaction.set_rollback(True)


@pytest.mark.parametrize("reason", [*PARTS, "behind"])
def test_a_reason_is_counted_for_each_reader(reason: str) -> None:
    now = read_moment()
    known = replace(now, wal="FFFFFFFF/0") if reason == "behind" else elsewhere(now, reason)
    before = counted("host_table", reason)
    assert not is_continued(known, now, reader="host_table")
    assert counted("host_table", reason) == before + 1
    assert not may_store(known, reader="usage")


@pytest.mark.django_db(transaction=True)
def test_a_host_table_of_another_history_is_built_anew() -> None:
    make_host("h1", zone="az-a")
    position: Position = load_position(read_moment())
    assert read_changes(position.moment.snapshot).are_all
    move_behind_the_back("az-b")
    fresh = load_position(read_moment()).table
    same = replace(position, moment=read_moment())
    assert table_differences(newest_after(same).table, fresh) != {}  # what numbers do not tell
    left = replace(position, moment=elsewhere(read_moment()))
    assert table_differences(newest_after(left).table, fresh) == {}


@pytest.mark.django_db(transaction=True)
def test_a_provider_snapshot_of_another_history_is_built_anew() -> None:
    uuid = "11111111-1111-1111-1111-111111111111"
    state = load_state()
    create_provider(name="p", uuid=uuid, parent_uuid=None)
    changes = provider_changes.read_changes(read_moment().snapshot)
    assert not changes.trees  # its numbers were seen
    assert len(advance(state, changes, read_at=0).snapshot) == 0  # what numbers do not tell
    left = replace(state, moment=elsewhere(state.moment))
    assert len(advance(left, changes, read_at=0).snapshot) == len(load_snapshot()) == 1


@pytest.mark.django_db(transaction=True)
def test_rows_kept_by_a_process_are_of_one_history() -> None:
    loads = 0

    def load() -> int:
        nonlocal loads
        loads += 1
        return loads

    server = "SELECT set_config('headroom.server', %s, false)"
    cache = ProcessCache("SELECT true, 'always the same'", load, reader="pipelines")
    assert [cache.current(), cache.current()] == [1, 1]
    with connection.cursor() as cursor:
        cursor.execute(server, ["17 1.5 base/1"])
        assert [cache.current(), cache.current()] == [2, 2]
        cursor.execute(server, [""])
    assert [cache.current(), cache.current()] == [3, 3]
    assert counted("pipelines", "other_system") >= 2


@contextmanager
def server_that_changes_with_a_write_to(table: str) -> Iterator[None]:
    """Let this session be of another server once a row of a table is written."""
    with connection.cursor() as cursor:
        cursor.execute(f"""
            CREATE FUNCTION another_server() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM set_config('headroom.server', '17 1.5 base/1', false);
                RETURN NULL;
            END $$;
            CREATE TRIGGER another_server AFTER INSERT OR UPDATE ON {table}
              FOR EACH STATEMENT EXECUTE FUNCTION another_server();
        """)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION another_server CASCADE")
            cursor.execute("SELECT set_config('headroom.server', '', false)")


def project_with_a_vm_in_a_slot() -> None:
    make_group("g", flavors=[("small", 4096, 1)])
    host = make_host("h1", zone="az-a")
    vm = make_vm("vm-1", host=host, flavor_name="small", project_id="p", zone="az-a")
    commitment = make_commitment("commitment-1", project_id="p")
    make_allocation(make_slot(commitment, host), vm, state="expected")


@pytest.mark.django_db(transaction=True)
def test_a_usage_run_that_ends_on_another_server_stores_no_position() -> None:
    project_with_a_vm_in_a_slot()
    with server_that_changes_with_a_write_to("commitments_projectusage"):
        reconcile_all_usage(actor=ACTOR, request_id="r")
    assert not UsageCheck.objects.exists()
    reconcile_all_usage(actor=ACTOR, request_id="r")
    assert UsageCheck.objects.get().snapshot


@pytest.mark.django_db(transaction=True)
def test_a_look_at_slots_that_ends_on_another_server_stores_no_position() -> None:
    project_with_a_vm_in_a_slot()
    with server_that_changes_with_a_write_to("capacity_reservationallocation"):
        assert verify_slots(actor=ACTOR, request_id="r").events
    assert not SlotCheck.objects.exists()
    verify_slots(actor=ACTOR, request_id="r")
    assert SlotCheck.objects.get().snapshot
