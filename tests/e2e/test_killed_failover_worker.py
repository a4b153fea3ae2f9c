"""The Celery worker is killed in the middle of failover runs: the next ones finish the work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import transaction

from capacity.models import HostCapacity, Reservation, ReservationAllocation
from config.launcher.processes import wait_until
from failover.models import FailoverReservation, FailoverRun
from failover.tasks import RECONCILE_ZONE
from tests.e2e.processes import Worker, someone_waits_for_a_lock, wait_until_database_is_ours
from tests.failover.zones import assert_sound, cover, flavor, hosts, require, vm

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

ZONES = ("az-a", "az-b")
HOSTS_PER_ZONE = 8
PATIENCE_SECONDS = 60.0


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker with a process for each zone, not started yet."""
    process = Worker(directory=tmp_path, processes=len(ZONES))
    yield process
    process.forget()


@pytest.fixture
def uncovered() -> int:
    """VMs of two zones that need two reservations each; return how many."""
    kind = flavor("m1.small", vcpus=1, gib=1)
    for zone in ZONES:
        names = [f"{zone}-h{number}" for number in range(HOSTS_PER_ZONE)]
        hosts(" ".join(names), zone=zone, vcpus=64, gib=24)
        for number, name in enumerate(names):
            vm(f"{zone}-vm{number}@{name}", of=kind)
    require(**{"m1.*": 2})
    return len(ZONES) * HOSTS_PER_ZONE


def dispatch(worker: Worker) -> None:
    for zone in ZONES:
        worker.send(RECONCILE_ZONE, zone)


def users() -> int:
    return ReservationAllocation.objects.count()


def test_worker_killed_in_the_middle_leaves_whole_steps_and_the_next_run_finishes(
    worker: Worker, uncovered: int
) -> None:
    worker.start()
    with transaction.atomic():
        assert len(HostCapacity.objects.select_for_update())
        dispatch(worker)
        assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS), worker.log()
        worker.kill()
    wait_until_database_is_ours()
    assert not Reservation.objects.exists()

    worker.start()
    dispatch(worker)
    assert wait_until(lambda: users() > 0, PATIENCE_SECONDS), worker.log()
    worker.kill()
    wait_until_database_is_ours()
    assert_sound()
    assert FailoverReservation.objects.count() == Reservation.objects.count()

    worker.start()
    dispatch(worker)
    assert wait_until(lambda: users() == 2 * uncovered, PATIENCE_SECONDS), worker.log()
    assert wait_until(
        lambda: not FailoverRun.objects.filter(outcome="running").exists(), PATIENCE_SECONDS
    ), worker.log()
    assert set(cover().values()) == {2}
    assert_sound(2)
    assert FailoverRun.objects.filter(error_code="died").exists()
    assert worker.stop() == os.EX_OK
