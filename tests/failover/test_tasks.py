"""Tasks, the command and the published entry of failover (spec failover, 2, 9.5, 17.8)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from failover import tasks
from failover.choices import RunOutcome
from failover.domain.plan import RunFigures
from failover.log import bound_logger, new_global_request_id
from failover.models import (
    FailoverCooldown,
    FailoverEvent,
    FailoverReservation,
    FailoverRun,
    FailoverZone,
)
from failover.services import FailoverService
from failover.services.events import Happening
from failover.services.loop import due_zones
from hosts.models import Host
from journal import nudges
from tests.failover.zones import cover, hosts, require, run, vm


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any]]]:
    """What tasks send, instead of a broker."""
    calls: list[tuple[str, list[Any]]] = []

    class App:
        @staticmethod
        def send_task(name: str, args: list[Any], **_: object) -> None:
            calls.append((name, args))

    monkeypatch.setattr(nudges, "current_app", App)
    return calls


def two_zones() -> None:
    hosts("a1 a2 a3", zone="az-a")
    hosts("b1 b2 b3", zone="az-b")
    vm("vm-a@a1")
    vm("vm-b@b1")
    require(any=1)


@pytest.mark.django_db
def test_one_task_is_sent_for_each_zone_that_is_due(sent: list[tuple[str, list[Any]]]) -> None:
    two_zones()
    tasks.reconcile_periodic()
    assert sent == [("failover.reconcile_zone", ["az-a"]), ("failover.reconcile_zone", ["az-b"])]
    sent.clear()
    run("az-a")
    tasks.reconcile_periodic()
    assert sent == [("failover.reconcile_zone", ["az-b"])]
    sent.clear()
    tasks.reconcile_periodic("az-a")
    assert sent == [("failover.reconcile_zone", ["az-a"])]


@pytest.mark.django_db
def test_zone_is_due_again_after_the_interval() -> None:
    two_zones()
    now = timezone.now()
    result = run("az-a")
    assert result.next_run_at is not None
    assert timedelta(seconds=25) < result.next_run_at - now < timedelta(seconds=60)
    assert due_zones(now) == ["az-b"]
    assert due_zones(result.next_run_at) == ["az-a", "az-b"]


@pytest.mark.django_db
def test_limited_run_comes_back_soon(
    sent: list[tuple[str, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts("a1 a2 a3", zone="az-a")
    for number in (1, 2, 3):
        vm(f"vm-{number}@a{number}")
    require(any=1)
    chosen = settings.HEADROOM.failover
    monkeypatch.setattr(
        "failover.conf.settings.HEADROOM",
        settings.HEADROOM.model_copy(
            update={"failover": chosen.model_copy(update={"max_vms_to_process": 1})}
        ),
    )
    assert tasks.reconcile_one_zone("az-a")["outcome"] == "done"
    assert len(cover()) == 1
    assert sent == [("failover.reconcile_zone", ["az-a"])]


@pytest.mark.django_db
def test_validation_is_sent_where_it_is_due(sent: list[tuple[str, list[Any]]]) -> None:
    two_zones()
    run("az-a")
    tasks.validate_due()
    assert sent == [("failover.validate_zone", ["az-a"])]
    assert tasks.validate_one_zone("az-a") == {
        "valid": 1,
        "removed_users": 0,
        "deleted": 0,
        "transient": 0,
        "invalid": 0,
    }
    key = FailoverReservation.objects.get().reservation_id
    assert tasks.validate_reservation(key) == {"valid": 1, "deleted": 0}


@pytest.mark.django_db
def test_what_is_over_is_forgotten() -> None:
    two_zones()
    run("az-a")
    long_ago = timezone.now() - timedelta(days=40)
    FailoverEvent.objects.update(happened_at=long_ago)
    FailoverRun.objects.update(started_at=long_ago)
    FailoverCooldown.objects.create(vm_uuid="v", host=Host.objects.all()[0], until=long_ago)
    assert tasks.forget() == {
        "events": 1,
        "runs": 1,
        "cooldowns": 1,
        "drills": 0,
        "evacuations": 0,
    }


@pytest.mark.django_db
def test_command_shows_and_then_does(capsys: pytest.CaptureFixture[str]) -> None:
    two_zones()
    out = StringIO()
    call_command("reconcile_failover", "--dry-run", "--json", stdout=out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["planned"]["create"] for line in lines] == [1, 1]
    assert cover() == {}
    call_command("reconcile_failover", "--zone", "az-a", stdout=StringIO())
    assert cover() == {"vm-a": 1}
    with pytest.raises(CommandError, match="no such zone: az-x"):
        call_command("reconcile_failover", "--zone", "az-x")


@pytest.mark.django_db
def test_service_runs_all_zones() -> None:
    two_zones()
    assert [one.zone for one in FailoverService().reconcile_periodic()] == ["az-a", "az-b"]
    assert cover() == {"vm-a": 1, "vm-b": 1}
    (only,) = FailoverService().reconcile_periodic("az-a")
    assert only.outcome == RunOutcome.DONE


@pytest.mark.django_db
def test_service_tells_who_wants_to_know() -> None:
    told: list[object] = []

    def events(events: Iterable[Happening], *, request_id: str, now: datetime) -> None:
        del request_id, now
        told.extend(events)

    def monitor(figures: RunFigures, *, seconds: float, zone: str) -> None:
        told.append((figures.created, zone, seconds >= 0))

    two_zones()
    FailoverService(events=events, monitor=monitor).reconcile_periodic("az-a")
    assert len(told) == 2
    assert told[1] == (1, "az-a", True)


@pytest.mark.django_db
def test_import_makes_every_zone_due(monkeypatch: pytest.MonkeyPatch) -> None:
    from failover.services import orders  # noqa: PLC0415

    sent: list[str] = []
    monkeypatch.setattr(orders, "hint_worker", sent.append)
    two_zones()
    run("az-a")
    assert due_zones() == ["az-b"]
    orders.run_soon()
    assert due_zones() == ["az-a", "az-b"]
    assert sent == ["failover.reconcile_periodic", "failover.validate_due"]


@pytest.mark.django_db
def test_log_lines_of_a_run_bear_its_id() -> None:
    from journal.tracing import current_global_request_id  # noqa: PLC0415

    seen: list[str] = []
    two_zones()
    run("az-a", monitor=lambda *_, **__: seen.append(current_global_request_id()))
    assert seen == ["failover-test"]
    assert new_global_request_id().startswith("failover-")
    assert bound_logger() is not None


@pytest.mark.django_db(transaction=True)
def test_run_beside_another_in_the_zone_is_skipped() -> None:
    import threading  # noqa: PLC0415

    from django.db import connection  # noqa: PLC0415

    from journal.leases import held_lease  # noqa: PLC0415

    two_zones()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with held_lease("failover.reconcile:az-a") as is_mine:
            assert is_mine
            held.set()
            done.wait(30)
        connection.close()

    other = threading.Thread(target=hold)
    other.start()
    held.wait(30)
    assert run("az-a").outcome == RunOutcome.SKIPPED
    assert run("az-b").outcome == RunOutcome.DONE
    done.set()
    other.join()
    assert run("az-a").outcome == RunOutcome.DONE


@pytest.mark.django_db
def test_run_that_fails_is_kept_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    two_zones()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("failover.services.loop.load_zone", fail)
    with pytest.raises(RuntimeError):
        run("az-a")
    row = FailoverRun.objects.get()
    assert (row.outcome, row.error_code, row.message) == (
        RunOutcome.FAILED,
        "RuntimeError",
        "broken",
    )
    assert FailoverZone.objects.get().next_run_at is not None
