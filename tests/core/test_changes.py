"""The one change follower: its races, with real transactions on connections of their own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import connection, transaction

from core.changes import changed_rows, has_deletions, is_forgotten, is_unseen, unseen_by, xmin_of
from core.sql import apply_sql
from hosts.models import Host
from journal.history import read_moment
from journal.models import FollowedModel, LoggedChange, PrunedLog, TrackedModel
from tests.factories import make_host, make_vm

# What a transaction wrote itself is no change to it: looks at changes need real commits.
pytestmark = pytest.mark.django_db(transaction=True)

CHANGED = f"""
SELECT host.name FROM {changed_rows("hosts_host", "host", since="%(since)s")} ORDER BY 1
"""  # noqa: S608 - constants only
WRITE = "UPDATE hosts_host SET name = name WHERE name = %s"
TRIGGERS = """
SELECT event_object_table || ' ' || event_manipulation FROM information_schema.triggers
 WHERE trigger_name LIKE '%%_log_%%' AND action_orientation = 'STATEMENT'
"""


@contextmanager
def another() -> Iterator[psycopg.Connection[Any]]:
    """Open a transaction on a connection of its own; it is rolled back unless it commits."""
    wanted = connection.get_connection_params()
    names = ("dbname", "host", "port", "user", "password")
    link = psycopg.connect(**{name: wanted[name] for name in names if wanted.get(name)})
    try:
        yield link
    finally:
        link.rollback()
        link.close()


def ask(statement: str, since: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, {"since": since})
        return [row[0] for row in cursor.fetchall()]


def changed(since: str) -> list[str]:
    return ask(CHANGED, since)


def holds(condition: Callable[..., str], *tables: str, since: str) -> bool:
    named = {"since": "%(since)s"} if tables else {}
    text = condition(*tables, **named) if tables else condition("%(since)s")
    (found,) = ask(f"SELECT {text}", since)
    return bool(found)


def position() -> str:
    return read_moment().snapshot


def position_of_a_quiet_server() -> str:
    """Return the position as if no other transaction ran.

    Those of other databases of the server, where other tests run, hold it back.
    """
    xmax = unseen_by(position())["xmax"]
    return f"{xmax}:{xmax}:"


@pytest.fixture
def _other_tests_run() -> Iterator[None]:
    with another() as long:
        long.execute("SELECT pg_current_xact_id()")
        yield


@pytest.fixture(autouse=True)
def hosts() -> None:
    for name in ("h1", "h2", "h3"):
        make_host(name)


def test_a_writer_with_an_older_number_that_commits_late_is_not_missed() -> None:
    with another() as early, another() as late:
        early.execute(WRITE, ["h1"])
        late.execute(WRITE, ["h2"])
        before = position()
        late.commit()
        assert changed(before) == ["h2"]
        between = position()
        assert changed(between) == []
        early.commit()
        assert changed(between) == ["h1"]
        assert changed(before) == ["h1", "h2"]
    assert changed(position()) == []


def test_a_long_transaction_elsewhere_makes_nothing_be_read_again() -> None:
    with another() as long:
        long.execute("SELECT pg_current_xact_id()")
        Host.objects.filter(name="h1").update(reserved_disk_gib=1)
        after = position()
        assert xmin_of(after) < unseen_by(after)["xmax"]
        assert changed(after) == []
        Host.objects.filter(name="h2").update(reserved_disk_gib=1)
        assert changed(after) == ["h2"]


@pytest.mark.parametrize("whole", [True, False], ids=["transaction", "savepoint"])
def test_what_is_rolled_back_leaves_nothing(whole: bool) -> None:
    before = position()
    with another() as link:
        if not whole:
            link.execute(WRITE, ["h1"])
            link.execute("SAVEPOINT inner_one")
        link.execute(WRITE, ["h2"])
        if whole:
            link.rollback()
        else:
            link.execute("ROLLBACK TO SAVEPOINT inner_one")
            link.commit()
    assert changed(before) == ([] if whole else ["h1"])


def test_what_a_savepoint_kept_bears_the_number_of_its_transaction() -> None:
    with another() as link:
        link.execute("SAVEPOINT inner_one")
        link.execute(WRITE, ["h1"])
        link.execute("RELEASE SAVEPOINT inner_one")
        before = position()
        link.execute("SAVEPOINT inner_two")
        link.execute(WRITE, ["h2"])
        link.commit()
    assert changed(before) == ["h1", "h2"]


def test_a_position_within_a_transaction_sees_the_transaction_s_own_writes() -> None:
    before = position()
    with transaction.atomic():
        Host.objects.filter(name="h3").update(reserved_disk_gib=1)
        assert changed(before) == ["h3"]
        assert read_moment().has_written


@pytest.mark.sql("journal_changes", "headroom_track_change")
def test_two_followers_see_every_commit_whatever_the_order() -> None:
    """Each host ends as the last thing that both followers saw of it, for any interleaving."""
    chooser = random.Random(20)  # noqa: S311 - a reproducible order, nothing secret
    seen: list[dict[str, int]] = [{}, {}]
    since = [position(), position()]
    written = {"h1": 0, "h2": 0, "h3": 0}

    def look(follower: int) -> None:
        moment = position()
        for name in changed(since[follower]):
            seen[follower][name] = Host.objects.get(name=name).reserved_disk_gib
        since[follower] = moment

    with another() as first, another() as second, another() as third:
        free, open_links = [first, second, third], {}
        for number in range(60):
            action = chooser.choice(("write", "end", "look", "look"))
            names = [name for name in written if name not in open_links]
            if action == "write" and names and free:
                name, link = chooser.choice(names), free.pop(chooser.randrange(len(free)))
                statement = "UPDATE hosts_host SET reserved_disk_gib = %s WHERE name = %s"
                link.execute(statement, [number, name])
                open_links[name] = (link, number)
            elif action == "end" and open_links:
                name = chooser.choice(sorted(open_links))
                link, value = open_links.pop(name)
                if chooser.random() < 0.7:
                    link.commit()
                    written[name] = value
                else:
                    link.rollback()
                free.append(link)
            else:
                look(chooser.randrange(2))
        for link, _ in open_links.values():
            link.rollback()
    for follower in (0, 1):
        look(follower)
        assert seen[follower] == {name: value for name, value in written.items() if value}


@pytest.mark.sql("headroom_log_deletion")
def test_deletions_are_told_and_those_of_other_tables_are_not() -> None:
    before = position()
    make_vm("vm-1", host=Host.objects.get(name="h1"))
    assert not holds(has_deletions, "hosts_host", since=before)
    Host.objects.get(name="h2").delete()
    assert holds(has_deletions, "hosts_host", since=before)
    assert not holds(has_deletions, "hosts_instance", since=before)
    assert not holds(has_deletions, "hosts_host", since=position())


@pytest.mark.usefixtures("_other_tests_run")
@pytest.mark.sql("journal_is_forgotten")
def test_who_slept_until_the_log_was_pruned_beyond_reads_everything_anew() -> None:
    before = position_of_a_quiet_server()
    PrunedLog.objects.update_or_create(
        log="deletions", defaults={"pruned_xid": xmin_of(before) - 1}
    )
    assert not holds(is_forgotten, since=before)
    PrunedLog.objects.update(pruned_xid=xmin_of(before))
    assert holds(is_forgotten, since=before)
    assert holds(has_deletions, "hosts_host", since=before)
    Host.objects.filter(name="h1").update(reserved_disk_gib=1)
    assert not holds(is_forgotten, since=position_of_a_quiet_server())


@pytest.mark.usefixtures("_other_tests_run")
@pytest.mark.sql("hosts_triggers")
def test_positions_from_before_a_table_was_followed_read_everything_anew() -> None:
    before = position()
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER hosts_host_log_insert ON hosts_host")
    assert apply_sql() == ["hosts/sql/hosts_triggers.sql"]
    assert holds(is_forgotten, since=before)
    assert not holds(is_forgotten, since=position_of_a_quiet_server())
    Host.objects.filter(name="h1").update(reserved_disk_gib=1)
    assert changed(before) == ["h1"]


def test_the_release_before_finds_deletions_where_it_looks() -> None:
    host = Host.objects.get(name="h2")
    key = host.pk
    host.delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_id FROM journal_deletedrow WHERE table_name = 'hosts_host'")
        assert cursor.fetchall() == [(key,)]


def test_a_row_of_another_log_is_unseen_until_its_transaction_was() -> None:
    with another() as link:
        found = link.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert found is not None
        condition = is_unseen(found[0], since="%(since)s")
        during = position()
        link.commit()
    assert ask(f"SELECT {condition}", during) == [True]
    assert ask(f"SELECT {condition}", position()) == [False]


@pytest.mark.sql("headroom_log_change")
def test_a_statement_is_one_entry_and_one_that_writes_nothing_none() -> None:
    LoggedChange.objects.all().delete()
    Host.objects.filter(name="h9").update(reserved_disk_gib=1)
    with another() as link:
        link.execute(WRITE, ["h9"])
        found = link.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()
        assert found == (None,)
    assert not LoggedChange.objects.exists()
    Host.objects.update(reserved_disk_gib=1)
    entry = LoggedChange.objects.get()
    assert (entry.table_name, entry.is_deletion) == ("hosts_host", False)
    assert sorted(entry.row_ids) == sorted(Host.objects.values_list("pk", flat=True))


def test_every_followed_table_logs_what_is_written_to_it() -> None:
    followed = {
        model._meta.db_table for model in apps.get_models() if issubclass(model, FollowedModel)
    }
    with connection.cursor() as cursor:
        cursor.execute(TRIGGERS)
        logged = {name for (name,) in cursor.fetchall()}
    events = ("INSERT", "UPDATE", "DELETE")
    assert logged >= {f"{table} {event}" for table in followed for event in events}
    assert {name for name in logged if not name.endswith("DELETE")} == {
        f"{table} {event}" for table in followed for event in events[:2]
    }


@pytest.mark.sql("capacity_triggers", "commitments_triggers", "failover_triggers")
def test_every_tracked_table_numbers_its_rows_and_logs_what_is_deleted() -> None:
    tracked = {
        model._meta.db_table for model in apps.get_models() if issubclass(model, TrackedModel)
    }
    found = ask("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal", "")
    for suffix in ("_track_change", "_log_deletion"):
        assert {name.removesuffix(suffix) for name in found if name.endswith(suffix)} == tracked
