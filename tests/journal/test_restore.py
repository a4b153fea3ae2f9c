"""The statements of ``docs/operations.md`` that follow a restore from ``pg_dump``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from capacity.models import CapacityComputation
from commitments.models import ProjectDeparture, ProjectUsage, SlotCheck, UsageCheck
from journal.models import LoggedChange, Outbox, PrunedLog
from placement.models import Change
from placement.services.providers import create_provider
from tests.factories import (
    make_allocation,
    make_assignment,
    make_commitment,
    make_group,
    make_host,
    make_quota,
    make_slot,
    make_vm,
)

pytestmark = pytest.mark.django_db

#: Far ahead of any transaction of the cluster that the dump is restored into.
AHEAD = 10**15
POSITION = f"{AHEAD}:{AHEAD}:"

NUMBERS = """
SELECT table_name, column_name FROM information_schema.columns
  JOIN information_schema.tables USING (table_schema, table_name)
 WHERE table_type = 'BASE TABLE' AND table_schema = current_schema() AND data_type = 'bigint'
   AND column_name IN ('changed_xid', 'xid', 'transaction_id', 'pruned_xid', 'written_xid',
                       'counted_xmin', 'snapshot_xmin')
 ORDER BY 1, 2
"""


def statements() -> str:
    page = (Path(settings.BASE_DIR) / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("## Backup and restore")[2].partition("\n## ")[0]
    (found,) = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    return str(found)


def rows_of_every_kind() -> None:
    now = timezone.now()
    make_group("g", flavors=[("small", 4096, 1)])
    host = make_host("h1")
    vm = make_vm("vm-1", host=host, project_id="p")
    row = make_commitment("commitment-1", project_id="p")
    slot = make_slot(row, host)
    make_allocation(slot, vm)
    make_assignment(row, vm)
    make_quota("p", "az-a", {})
    create_provider(name="p", uuid="11111111-1111-1111-1111-111111111111", parent_uuid=None)
    LoggedChange.objects.create(table_name="hosts_host", row_ids=[1], is_deletion=True)
    Outbox.objects.create(topic="t", object_type="T", object_id="1")
    PrunedLog.objects.create(log="deletions", pruned_xid=1)
    ProjectDeparture.objects.create(project_id="p")
    ProjectUsage.objects.update_or_create(project_id="p", defaults={"written_xid": 1})
    UsageCheck.objects.create(snapshot=POSITION, group_fingerprint="", checked_at=now)
    SlotCheck.objects.create(zone="az-a", snapshot=POSITION, checked_at=now)
    CapacityComputation.objects.create(
        zone="az-a", snapshot=POSITION, snapshot_xmin=1, computed_at=now, host_count=1
    )


def numbers() -> list[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute(NUMBERS)
        return list(cursor.fetchall())


def come_from_another_cluster() -> None:
    """Give every row the number of a transaction that is far ahead."""
    with connection.cursor() as cursor:
        for table, column in numbers():
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            cursor.execute(f"UPDATE {table} SET {column} = %s", [AHEAD])  # noqa: S608
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def ahead() -> set[tuple[str, str]]:
    found = set()
    with connection.cursor() as cursor:
        for table, column in numbers():
            cursor.execute(
                f"SELECT count(*) FROM {table}"  # noqa: S608 - names of our tables
                f" WHERE {column} > pg_current_xact_id()::text::bigint"
            )
            row = cursor.fetchone()
            if row and row[0]:
                found.add((table, column))
    return found


def test_no_number_of_the_old_cluster_is_left_after_a_restore() -> None:
    rows_of_every_kind()
    come_from_another_cluster()
    assert {table for table, _ in ahead()} >= {
        "capacity_capacitycomputation",
        "capacity_projectquota",
        "commitments_slotcheck",
        "hosts_host",
        "journal_outbox",
        "journal_prunedlog",
        "placement_change",
    }
    with connection.cursor() as cursor:
        cursor.execute(statements())
    assert ahead() == set()
    assert not UsageCheck.objects.exists()
    assert not Change.objects.exists()
    assert set(SlotCheck.objects.values_list("snapshot", flat=True)) <= {""}
