"""The Celery worker is killed in the middle of a repair run: the next one finishes the work."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.db import transaction
from django.utils import timezone

from capacity.models import HostCapacity, Reservation
from commitments.models import Commitment, Condition
from commitments.services.repair import CHUNK_ROWS
from commitments.tasks import DISPATCH_DUE
from config.launcher.processes import wait_until
from tests.e2e.processes import Worker, someone_waits_for_a_lock, wait_until_database_is_ours
from tests.factories import make_commitment, make_group, make_hosts
from tests.ledger import assert_ledger_holds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

COMMITMENTS = 3 * CHUNK_ROWS
PATIENCE_SECONDS = 60.0


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker, not started yet."""
    process = Worker(directory=tmp_path)
    yield process
    process.forget()


@pytest.fixture
def pending() -> None:
    """Many commitments that wait for their capacity, and room for all of them."""
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(COMMITMENTS // 64 + 1, memory_gib=64, vcpus=64)
    now = timezone.now()
    for number in range(COMMITMENTS):
        make_commitment(
            f"aaaaaaaa-{number:06d}", amount_gib=1, state="pending", next_reconcile_at=now
        )


def dispatch(worker: Worker) -> None:
    worker.send(DISPATCH_DUE)


def accepted() -> int:
    return Commitment.objects.filter(ready_reason=Condition.ACCEPTED).count()


def assert_all_is_placed() -> None:
    assert wait_until(lambda: accepted() == COMMITMENTS, PATIENCE_SECONDS), accepted()
    assert Reservation.objects.count() == COMMITMENTS
    assert_ledger_holds()


@pytest.mark.usefixtures("pending")
def test_worker_killed_in_the_middle_leaves_whole_chunks_and_the_next_dispatch_finishes(
    worker: Worker,
) -> None:
    worker.start()
    with transaction.atomic():
        assert len(HostCapacity.objects.select_for_update())
        dispatch(worker)
        assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS), worker.log()
        worker.kill()
    wait_until_database_is_ours()
    assert accepted() == 0
    assert not Reservation.objects.exists()

    worker.start()
    dispatch(worker)
    assert wait_until(lambda: accepted() > 0, PATIENCE_SECONDS), worker.log()
    worker.kill()
    wait_until_database_is_ours()
    assert accepted() % CHUNK_ROWS == 0
    assert Reservation.objects.count() == accepted()
    assert_ledger_holds()

    worker.start()
    dispatch(worker)
    assert_all_is_placed()
    assert worker.stop() == os.EX_OK


@pytest.mark.usefixtures("pending")
def test_task_of_a_killed_pool_process_is_delivered_again(worker: Worker) -> None:
    worker.start()
    with transaction.atomic():
        assert len(HostCapacity.objects.select_for_update())
        dispatch(worker)
        assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS), worker.log()
        assert worker.child is not None
        pool = psutil.Process(worker.child.process.pid).children()
        assert len(pool) == 1
        pool[0].send_signal(signal.SIGKILL)
    assert_all_is_placed()
    assert worker.child.process.poll() is None


def test_worker_that_only_just_started_ends_when_asked(worker: Worker) -> None:
    worker.start()
    assert worker.stop() == os.EX_OK
