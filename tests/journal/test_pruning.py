"""Forgetting deletions and outbox entries, and readers that slept through it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from capacity.figures.capacity_freshness import stale_zones
from capacity.figures.group_capacity import refresh_group_capacity
from capacity.hooks import ZonePosition
from capacity.host_table import current_host_table
from capacity.host_table.changes import read_changes
from capacity.host_table.differences import table_differences
from capacity.host_table.position import load_position, newest_after
from capacity.models import CapacityComputation, ProjectQuota
from commitments.hooks_capacity import CommittedMemory
from commitments.selectors.slot_suspects import what_changed
from commitments.services.quota_usage import reconcile_changed, reconcile_full
from core.tasks import PRUNE, prune
from hosts.models import Host, Instance
from journal.history import read_moment
from journal.metrics import metric_name
from journal.models import AuditEntry, LoggedChange, Outbox, PrunedLog
from journal.pruning import prune_logs
from tests.factories import make_group, make_host, make_quota, make_vm
from tests.process_tables import load_host_table
from tests.schedule import beat_schedule
from tests.scraping import scrape

# What a transaction wrote itself is no change to it: looks at changes need real commits.
pytestmark = pytest.mark.django_db(transaction=True)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PATIENCE_SECONDS = 30


@pytest.fixture(autouse=True)
def retention(settings: Any) -> None:
    chosen = settings.HEADROOM.journal.model_copy(
        update={"deletions_retention_hours": 24, "outbox_retention_days": 7}
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"journal": chosen})


@pytest.fixture
def now() -> datetime:
    return timezone.now()


#: Of a transaction that ended long ago, whatever else runs on the server.
ANCIENT_XID = 10


def deleted(count: int, *, at: datetime, xid: int = ANCIENT_XID) -> None:
    LoggedChange.objects.bulk_create(
        LoggedChange(
            table_name="hosts_host",
            row_ids=[number],
            is_deletion=True,
            logged_at=at,
            changed_xid=xid,
        )
        for number in range(count)
    )


def announced(count: int, *, at: datetime) -> None:
    Outbox.objects.bulk_create(
        Outbox(
            topic="t",
            object_type="T",
            object_id=str(number),
            created_at=at,
            transaction_id=ANCIENT_XID,
        )
        for number in range(count)
    )


def forget_deletions(*, up_to_xid: int) -> None:
    """Leave the deletion log as pruning does, which would wait for transactions of other tests."""
    LoggedChange.objects.all().delete()
    PrunedLog.objects.update_or_create(log="deletions", defaults={"pruned_xid": up_to_xid})


def test_only_what_is_past_its_retention_is_forgotten(now: datetime) -> None:
    deleted(2, at=now - 25 * HOUR)
    deleted(3, at=now - 23 * HOUR)
    announced(4, at=now - 7 * DAY - HOUR)
    announced(5, at=now - 7 * DAY + HOUR)
    assert prune_logs(now=now) == {"deletions": 2, "outbox": 4}
    assert (LoggedChange.objects.count(), Outbox.objects.filter(topic="t").count()) == (3, 5)
    assert prune_logs(now=now) == {"deletions": 0, "outbox": 0}


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 7])
def test_any_number_of_entries_goes_in_batches(now: datetime, count: int) -> None:
    deleted(count, at=now - 2 * DAY)
    assert prune_logs(now=now, batch_rows=3)["deletions"] == count
    assert not LoggedChange.objects.exists()


def test_a_run_that_dies_leaves_whole_batches_and_the_next_one_goes_on(now: datetime) -> None:
    deleted(5, at=now - 2 * DAY)
    batches = 0

    def die_in_the_second_batch(execute: Any, sql: str, *rest: Any) -> Any:
        nonlocal batches
        answer = execute(sql, *rest)
        batches += "journal_prunedlog" in sql
        if batches == 2:
            raise KeyboardInterrupt
        return answer

    with (
        connection.execute_wrapper(die_in_the_second_batch),
        pytest.raises(KeyboardInterrupt),
    ):
        prune_logs(now=now, batch_rows=2)
    assert LoggedChange.objects.count() == 3
    assert prune_logs(now=now, batch_rows=2)["deletions"] == 3


def test_how_far_a_log_was_forgotten_is_written_and_never_goes_back(now: datetime) -> None:
    deleted(1, at=now - 3 * DAY, xid=20)
    deleted(1, at=now - 2 * DAY, xid=30)
    prune_logs(now=now)
    assert PrunedLog.objects.get(log="deletions").pruned_xid == 30
    deleted(1, at=now - 2 * DAY, xid=29)
    assert prune_logs(now=now)["deletions"] == 1
    assert PrunedLog.objects.get(log="deletions").pruned_xid == 30
    assert not PrunedLog.objects.filter(log="outbox").exists()


@contextmanager
def transaction_elsewhere() -> Iterator[None]:
    """Keep a transaction with an id of its own open in another session."""
    has_begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_xact_id()")
                has_begun.set()
                may_end.wait(PATIENCE_SECONDS)
        finally:
            connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    assert has_begun.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        may_end.set()
        holder.join()


def test_nothing_newer_than_a_running_transaction_is_forgotten(now: datetime) -> None:
    """Else every reader's position would lie before what was forgotten until that one ends."""
    deleted(1, at=now - 3 * DAY)
    with transaction_elsewhere():
        LoggedChange.objects.create(
            table_name="hosts_host", row_ids=[7], is_deletion=True, logged_at=now - 2 * DAY
        )
        assert prune_logs(now=now)["deletions"] == 1
        assert read_changes(read_moment().snapshot).are_all
    assert LoggedChange.objects.get().row_ids == [7]


def test_two_runs_at_once_share_the_work(now: datetime) -> None:
    deleted(200, at=now - 2 * DAY)
    start = threading.Barrier(2, timeout=PATIENCE_SECONDS)
    counts: list[int] = []

    def run() -> None:
        try:
            start.wait()
            counts.append(prune_logs(now=now, batch_rows=7)["deletions"])
        finally:
            connections.close_all()

    runs = [threading.Thread(target=run) for _ in range(2)]
    for one in runs:
        one.start()
    for one in runs:
        one.join()
    assert len(counts) == 2
    prune_logs(now=now)
    assert not LoggedChange.objects.exists()
    assert sum(counts) <= 200


def remove_host() -> None:
    Host.objects.get(name="h2").delete()


def remove_vm() -> None:
    Instance.objects.get(name="vm-1").delete()


@pytest.mark.parametrize("remove", [remove_host, remove_vm], ids=["host", "VM"])
def test_a_host_table_that_slept_through_it_is_built_anew(remove: Callable[[], None]) -> None:
    make_host("h2")
    make_vm("vm-1", host=make_host("h1"))
    assert "h2" in current_host_table().row_of
    slept_since = read_moment()  # no earlier than the table's, whatever others do meanwhile
    remove()
    forget_deletions(up_to_xid=slept_since.xmin)
    assert table_differences(current_host_table(), load_host_table()) == {}


def test_a_host_table_is_built_anew_once() -> None:
    make_host("h1")
    ancient = replace(read_moment(), snapshot=f"{ANCIENT_XID}:{ANCIENT_XID}:")
    slept = replace(load_position(read_moment()), moment=ancient)
    assert read_changes(slept.moment.snapshot).are_all
    forget_deletions(up_to_xid=ANCIENT_XID)
    assert not read_changes(slept.moment.snapshot).are_all
    assert read_changes(newest_after(slept).moment.snapshot).are_all


# Forgotten up to a position, or up to just before it, which the position saw.
REACHES = pytest.mark.parametrize(
    ("before", "is_affected"), [(0, True), (1, False)], ids=["unseen", "seen"]
)


@REACHES
def test_capacity_of_zones_counted_before_is_stale(before: int, is_affected: bool) -> None:
    make_group(flavors=(("small", 4096, 1),))
    make_host("h1", zone="az-a")
    refresh_group_capacity()
    done = CapacityComputation.objects.get(zone="az-a")
    assert stale_zones(["az-a"], inputs=done.inputs) == set()
    forget_deletions(up_to_xid=done.snapshot_xmin - before)
    assert stale_zones(["az-a"], inputs=done.inputs) == ({"az-a"} if is_affected else set())


@REACHES
def test_commitments_of_zones_looked_at_before_may_have_changed(
    before: int, is_affected: bool
) -> None:
    now = read_moment()
    position = ZonePosition(zone="az-a", snapshot=now.snapshot)
    forget_deletions(up_to_xid=now.xmin - before)
    changed = CommittedMemory().zones_changed_since([position])
    assert changed == ({"az-a"} if is_affected else set())


@REACHES
def test_slots_of_zones_looked_at_before_are_looked_at(before: int, is_affected: bool) -> None:
    make_host("h1", zone="az-a")
    now = read_moment()
    forget_deletions(up_to_xid=now.xmin - before)
    changed = what_changed("az-a", now.snapshot)
    assert (changed.slots, changed.vms_deleted) == (is_affected, is_affected)
    assert (changed.hosts, changed.others) == (is_affected, is_affected)


def test_quota_counted_before_is_counted_again() -> None:
    make_group("g", flavors=[("small", 4096, 1)])
    host = make_host("h1", zone="az-a")
    make_vm("vm-1", host=host, flavor_name="small", project_id="p", zone="az-a")
    make_quota("p", "az-a", {})
    reconcile_full()
    quota = ProjectQuota.objects.get()
    assert quota.total_usage["hw_version_g_instances"] == 1
    remove_vm()
    forget_deletions(up_to_xid=quota.counted_xmin or 0)
    assert reconcile_changed().projects == 1
    quota.refresh_from_db()
    assert "hw_version_g_instances" not in quota.total_usage


def test_the_task_forgets_and_leaves_the_audit_trail_alone(now: datetime) -> None:
    deleted(1, at=now - 2 * DAY)
    AuditEntry.objects.create(
        actor="a", action="x", object_type="T", object_id="1", created_at=now - 1000 * DAY
    )
    nothing = dict.fromkeys(
        ("outbox", "sessions", "clocks", "kept_answers", "audit", "failed_logins"), 0
    )
    assert prune() == {"deletions": 1, **nothing}
    assert AuditEntry.objects.filter(actor="a").count() == 1
    entries = beat_schedule().values()
    assert [one for one in entries if one["task"] == PRUNE]


def test_what_is_forgotten_is_counted(now: datetime) -> None:
    def counted() -> dict[str, float]:
        name = metric_name("journal_pruned_rows_total")
        lines = scrape().splitlines()
        found = [line.rsplit(" ", 1) for line in lines if line.startswith(f"{name}{{")]
        return {series.split('"')[1]: float(value) for series, value in found}

    before = counted()
    assert set(before) == {"deletions", "outbox"}
    deleted(3, at=now - 2 * DAY)
    prune_logs(now=now)
    assert counted() == {**before, "deletions": before["deletions"] + 3}
