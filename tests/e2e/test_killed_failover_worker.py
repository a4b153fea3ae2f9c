"""The Celery worker is killed in the middle of failover runs: the next ones finish the work."""

from __future__ import annotations

import copy
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from capacity.models import HostCapacity, Reservation, ReservationAllocation
from capacity.nova.pipelines import ensure_shipped_pipelines
from config.launcher.processes import wait_until
from failover.models import FailoverReservation, FailoverRun
from failover.tasks import RECONCILE_ZONE
from tests.api.scheduler_client import DATA, NovaClient, recorded_request
from tests.api.scheduler_client import PATH as SCHEDULER_PATH
from tests.domain.failover.oracle import five_rules_hold
from tests.e2e.processes import (
    WebServer,
    Worker,
    someone_waits_for_a_lock,
    wait_until_database_is_ours,
)
from tests.factories import make_group
from tests.failover.zones import assert_sound, cover, flavor, hosts, plain_slots, require, vm
from tests.ledger import assert_ledger_holds, assert_rooms_add_up

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

ZONES = ("az-a", "az-b")
HOSTS_PER_ZONE = 8
PATIENCE_SECONDS = 60.0
TURN_SECONDS = 0.2
CALLERS = 2
KILLS = 3
SEED = 20261122


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


@dataclass(slots=True)
class Caller:
    """Limes and Nova at once: commitments in every zone, and VMs on any host, until told to end."""

    number: int
    web: WebServer
    version: int
    ended: threading.Event
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    committed: int = 0
    placed: int = 0

    def call(self) -> None:
        """Exchange a commitment and ask for a place in turn; a refusal is an answer."""
        draw = random.Random(self.number)  # noqa: S311 - a test
        template = recorded_request()
        turn = 0
        while not self.ended.wait(TURN_SECONDS):
            turn += 1
            zone = ZONES[turn % len(ZONES)]
            self.exchange(zone, turn, draw.randint(1, 3))
            names = [f"{zone}-h{number}" for number in range(HOSTS_PER_ZONE)]
            vm_uuid = f"{self.number:08d}-1111-4000-8000-{turn:012d}"
            asked = placement_request(template, draw.sample(names, 4), zone, vm_uuid)
            answer = self.web.send("POST", SCHEDULER_PATH, asked)
            assert answer.status in {200, 503}, answer
            self.placed += answer.status == 200 and bool(answer.json()["hosts"])

    def exchange(self, zone: str, turn: int, amount: int) -> None:
        """Replace the commitment in a zone by a new one."""
        fresh = {
            "uuid": f"{self.number:08d}-0000-4000-8000-{turn:012d}",
            "oldStatus": None,
            "newStatus": "confirmed",
            "amount": amount,
            "expiresAt": "2036-01-01T00:00:00Z",
        }
        old = self.known.get(zone)
        changes = [fresh]
        if old is not None:
            changes.append({**old, "oldStatus": "confirmed", "newStatus": "superseded"})
        changeset = {
            "totalConfirmedBefore": old["amount"] if old else 0,
            "totalConfirmedAfter": amount,
            "totalGuaranteedBefore": 0,
            "totalGuaranteedAfter": 0,
            "commitments": changes,
        }
        project = {"byResource": {"hw_version_hana_1_ram": changeset}}
        answer = self.web.send(
            "POST",
            "/commitments/v1/change-commitments",
            {
                "az": zone,
                "dryRun": False,
                "infoVersion": self.version,
                "byProject": {f"project-{self.number}": project},
            },
        )
        assert answer.status in {200, 503}, answer
        if answer.status == 200 and answer.json() == {}:
            self.committed += 1
            self.known[zone] = fresh


def placement_request(
    template: dict[str, Any], names: list[str], zone: str, vm_uuid: str
) -> dict[str, Any]:
    asked = copy.deepcopy(template)
    NovaClient.offer(asked, tuple(names))
    spec = asked["spec"][DATA]
    spec.update(instance_uuid=vm_uuid, availability_zone=zone)
    spec["flavor"][DATA].update(memory_mb=256, vcpus=1)
    return asked


@contextmanager
def one_snapshot() -> Iterator[None]:
    """Let what is read inside belong together, while others write."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def assert_nothing_is_broken() -> None:
    assert five_rules_hold(plain_slots())
    assert_ledger_holds()
    held = set(Reservation.objects.filter(kind="failover").values_list("pk", flat=True))
    assert held == set(FailoverReservation.objects.values_list("reservation_id", flat=True))


def test_loops_killed_at_random_among_change_requests_and_placements(
    worker: Worker, uncovered: int, web: WebServer
) -> None:
    ensure_shipped_pipelines(request_id="test")
    make_group("hana_1", flavors=[("small", 1024, 1)])
    version = web.send("GET", "/commitments/v1/info").json()["version"]
    draw = random.Random(SEED)  # noqa: S311 - a test
    ended = threading.Event()
    callers = [Caller(number, web, version, ended) for number in range(CALLERS)]
    with ThreadPoolExecutor(CALLERS) as pool:
        calls = [pool.submit(caller.call) for caller in callers]
        try:
            for _ in range(KILLS):
                worker.start()
                dispatch(worker)
                threading.Event().wait(draw.uniform(0.0, 1.0))
                worker.kill()
                with one_snapshot():
                    assert five_rules_hold(plain_slots())
                    assert_rooms_add_up()
                # What the loop has covered so far is to do again, among the same callers.
                ReservationAllocation.objects.filter(reservation__kind="failover").delete()
        finally:
            ended.set()
        for call in calls:
            call.result()
    assert all(caller.committed for caller in callers)
    assert all(caller.placed for caller in callers)
    assert_nothing_is_broken()

    worker.start()
    dispatch(worker)
    assert wait_until(lambda: users() == 2 * uncovered, PATIENCE_SECONDS), worker.log()
    assert wait_until(
        lambda: not FailoverRun.objects.filter(outcome="running").exists(), PATIENCE_SECONDS
    ), worker.log()
    assert_nothing_is_broken()
    orphans = Reservation.objects.filter(kind="failover", allocations__isnull=True)
    assert not orphans.exists()
    assert worker.stop() == os.EX_OK
