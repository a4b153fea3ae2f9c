"""The worker is killed in the middle of usage runs: the next one ends where an undisturbed does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connection, transaction
from kombu import Queue

from commitments.models import (
    AssignmentPeriod,
    Commitment,
    InstanceAssignment,
    ProjectUsage,
    UsageCheck,
)
from commitments.services.usage import reconcile_all_usage
from commitments.tasks import RECONCILE_CHANGED_USAGE
from config.celery_app import app
from config.launcher.processes import wait_until
from hosts.models import Host, Instance
from journal.actors import task_actor
from tests.e2e.processes import Process, someone_waits_for_a_lock, wait_until_database_is_ours
from tests.factories import make_commitment, make_group, make_host, make_vm
from tests.killing import die_at_every_statement

PROJECTS = 40
KILLS = 3
SEED = 1
PATIENCE_SECONDS = 90.0
T0 = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Process]:
    """A worker with a queue of its own, not started yet."""
    queue = f"e2e-{uuid4()}"
    arguments = ["--queues", queue, "--concurrency", "1", "--without-mingle", "--without-gossip"]
    process = Process(role="worker", directory=tmp_path, arguments=arguments)
    yield process
    if process.child is not None and process.child.process.poll() is None:
        process.kill()
    with app.connection() as link:
        Queue(queue)(link.default_channel).delete()


def prepare(projects: int) -> None:
    """Make projects whose usage was assigned once, and has to change in every way since."""
    make_group("hana_1", flavors=[("small", 1024, 1)])
    host = make_host("h1", zone="az-a", memory_gib=1000, vcpus=1000)
    for number in range(projects):
        project_id = f"project-{number:02}"
        for kind, gib in (("first", 3), ("second", 2), ("over", 1), ("empty", 4)):
            make_commitment(f"{kind}-{number:06}", amount_gib=gib, project_id=project_id)
        for age in range(5):
            add_vm(host, project_id, age)
    run_here()
    Instance.objects.filter(pk__in=Instance.objects.filter(nova_created_at=T0)).delete()
    Commitment.objects.filter(commitment_uuid__startswith="over").update(state="superseded")
    for number in range(projects):
        add_vm(host, f"project-{number:02}", 9, gib=2)


def add_vm(host: Host, project_id: str, age: int, *, gib: int = 1) -> None:
    make_vm(
        host=host,
        memory_gib=gib,
        vcpus=1,
        project_id=project_id,
        nova_created_at=T0 + timedelta(hours=age),
    )


def run_here() -> None:
    reconcile_all_usage(actor=task_actor("test"), request_id="usage", only_changed=True)


def state_of_everything() -> tuple[object, ...]:
    """Return all that a run writes, without keys and times."""
    return (
        sorted(
            InstanceAssignment.objects.values_list(
                "vm_uuid", "resource_type", "commitment__commitment_uuid", "position"
            )
        ),
        sorted(
            Commitment.objects.values_list(
                "commitment_uuid",
                "used_memory_bytes",
                "used_vcpus",
                "usage_observed_generation",
                "status_summary",
            ),
            key=str,
        ),
        sorted(ProjectUsage.objects.values_list("project_id", "assigned_vms", "uncovered_vms")),
        sorted(
            (uuid, owner, ended is None)
            for uuid, owner, ended in AssignmentPeriod.objects.values_list(
                "vm_uuid", "commitment_uuid", "valid_to"
            )
        ),
    )


TABLES = (
    "commitments_commitment",
    "commitments_instanceassignment",
    "commitments_projectusage",
    "commitments_assignmentperiod",
    "commitments_usagecheck",
    "commitments_projectdeparture",
)


def keep_copies() -> None:
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"CREATE TEMP TABLE kept_{table} AS TABLE {table}")


def restore_copies() -> None:
    """Put back what was kept, numbers of transactions included: triggers do not see it."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            cursor.execute(f"INSERT INTO {table} SELECT * FROM kept_{table}")  # noqa: S608 - constants
            cursor.execute(f"DROP TABLE kept_{table}")
    with transaction.atomic(), connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


@pytest.mark.e2e
@pytest.mark.django_db(transaction=True)
def test_a_run_that_is_killed_and_run_again_ends_where_an_undisturbed_one_does(
    worker: Process,
) -> None:
    chance = random.Random(SEED)  # noqa: S311 - where to kill
    prepare(PROJECTS)
    keep_copies()
    before = state_of_everything()
    run_here()
    expected = state_of_everything()
    assert expected != before
    restore_copies()
    assert state_of_everything() == before

    for number in sorted(chance.sample(range(PROJECTS), KILLS)):
        worker.start()
        with transaction.atomic():
            row = Commitment.objects.select_for_update().get(commitment_uuid=f"first-{number:06}")
            app.send_task(RECONCILE_CHANGED_USAGE, queue=worker.arguments[1])
            assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS), worker.log()
            worker.kill()
            assert row.pk
        wait_until_database_is_ours()
        assert state_of_everything() not in (before, expected)
        with app.connection() as link:
            Queue(worker.arguments[1])(link.default_channel).purge()
    worker.start()
    checked = UsageCheck.objects.get().checked_at
    app.send_task(RECONCILE_CHANGED_USAGE, queue=worker.arguments[1])
    assert wait_until(lambda: UsageCheck.objects.get().checked_at != checked, PATIENCE_SECONDS), (
        worker.log()
    )
    assert state_of_everything() == expected
    worker.kill()


@pytest.mark.django_db(transaction=True)
def test_a_project_is_assigned_anew_as_a_whole_or_not_at_all() -> None:
    prepare(1)
    states = die_at_every_statement(run_here, state_of_everything)
    different = [state for number, state in enumerate(states) if state not in states[:number]]
    assert len(different) == 2, "before and after, nothing between"
    run_here()
    assert state_of_everything() == states[-1]
