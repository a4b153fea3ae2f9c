"""Acknowledging and revalidating reservations (spec failover, 13)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.models import Reservation, ReservationAllocation
from failover.choices import EventReason
from failover.models import FailoverCooldown, FailoverEvent, FailoverReservation
from failover.services import FailoverService
from failover.services.validation import (
    ValidationReport,
    due_validation_zones,
    validate_zone,
)
from hosts.models import Host, HostStatus, Instance
from tests.failover.zones import assert_sound, cover, flavor, hosts, require, run, slots, state, vm

pytestmark = pytest.mark.django_db


def validate(**options: Any) -> ValidationReport:
    FailoverReservation.objects.update(next_validation_at=timezone.now() - timedelta(seconds=1))
    return validate_zone("az-a", request_id="failover-test", **options)


def covered() -> None:
    hosts("host1 host2 host3 host4")
    vm("vm-a@host1")
    require(any=1)
    slots("res@host2{vm-a@host1}")


def test_valid_reservation_is_acknowledged_and_looked_at_again_later() -> None:
    covered()
    now = timezone.now()
    report = validate(now=now)
    held = FailoverReservation.objects.get()
    assert report == ValidationReport(valid=1)
    assert held.acknowledged_at == now
    assert held.next_validation_at is not None
    wait = held.next_validation_at - now
    assert timedelta(minutes=27) <= wait <= timedelta(minutes=33)
    assert ReservationAllocation.objects.get().validated_at == now
    assert FailoverEvent.objects.get().reason == EventReason.VALIDATION_PASSED


@pytest.mark.parametrize(
    ("changed", "acknowledged", "is_new"),
    [
        pytest.param(-10, None, True, id="never acknowledged"),
        pytest.param(-5, -10, True, id="changed since"),
        pytest.param(-10, -5, False, id="routine"),
        pytest.param(None, None, False, id="never changed"),
    ],
)
def test_acknowledgement_follows_the_last_change(
    changed: int | None, acknowledged: int | None, is_new: bool
) -> None:
    covered()
    now = timezone.now()

    def moment(minutes: int | None) -> object:
        return None if minutes is None else now + timedelta(minutes=minutes)

    FailoverReservation.objects.update(
        last_changed_at=moment(changed), acknowledged_at=moment(acknowledged)
    )
    validate(now=now)
    expected = now if is_new else moment(acknowledged)
    assert FailoverReservation.objects.get().acknowledged_at == expected


@pytest.mark.parametrize("column", ["last_changed_at", "acknowledged_at"])
def test_times_of_tomorrow_are_put_right_by_the_next_validation(column: str) -> None:
    covered()
    now = timezone.now()
    fields = {"last_changed_at": now, "acknowledged_at": now, column: now + timedelta(days=1)}
    FailoverReservation.objects.update(**fields)
    validate(now=now)
    held = FailoverReservation.objects.get()
    assert (held.last_changed_at, held.acknowledged_at) == (now, now)


def test_user_that_could_not_be_evacuated_leaves_and_the_empty_reservation_goes() -> None:
    covered()
    Host.objects.filter(name="host2").update(allowed_projects=["someone-else"])
    report = validate()
    assert report == ValidationReport(removed_users=1, deleted=1)
    assert state() == {}
    assert_sound()
    event = FailoverEvent.objects.get(reason=EventReason.VALIDATION_FAILED)
    assert (event.vm_uuid, event.facts) == ("vm-a", {"filter": "filter_allowed_projects"})


def test_failing_user_does_not_cost_the_others_their_reservation() -> None:
    covered()
    vm("vm-b@host3", of=flavor("hana", CUSTOM_HANA="required"))
    FailoverReservation.objects.all().delete()
    Reservation.objects.all().delete()
    slots("res@host2{vm-a@host1,vm-b@host3}")
    report = validate()
    assert report == ValidationReport(removed_users=1)
    assert state() == {"res": ("host2", {"vm-a": "host1"})}
    assert FailoverReservation.objects.get().acknowledged_at is None
    assert validate() == ValidationReport(valid=1)
    assert FailoverReservation.objects.get().acknowledged_at is not None


def test_refused_host_is_not_proposed_again_for_a_while_and_then_longer() -> None:
    hosts("host1 host2")
    vm("vm-a@host1")
    require(any=1)
    now = timezone.now()
    run(now=now)
    Host.objects.filter(name="host2").update(traits=["CUSTOM_X"])
    waits = []
    for _ in range(3):
        Instance.objects.update(flavor_extra_specs={"trait:CUSTOM_X": "forbidden"})
        validate(now=now)
        waits.append((FailoverCooldown.objects.get().until - now).total_seconds())
        Instance.objects.update(flavor_extra_specs={})
        run(now=now)
        assert cover() == {}
        now = FailoverCooldown.objects.get().until + timedelta(seconds=1)
        run(now=now)
        assert cover() == {"vm-a": 1}
    assert waits == [900, 1800, 3600]


def test_vm_that_does_not_exist_is_left_to_the_loop() -> None:
    hosts("host1 host2 host3")
    slots("res@host2{vm-gone@host1}")
    assert validate() == ValidationReport(valid=1)
    assert cover() == {"vm-gone": 1}


def test_reservation_without_users_is_valid() -> None:
    hosts("host1 host2")
    slots("res@host2{}")
    assert validate() == ValidationReport(valid=1)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"status": HostStatus.DISABLED}, id="disabled"),
        pytest.param({"maintenance": "termination"}, id="terminating"),
        pytest.param({"conditions": {"Ready": "False"}}, id="not ready"),
    ],
)
def test_reservation_on_a_host_that_is_drained_goes(change: dict[str, Any]) -> None:
    covered()
    Host.objects.filter(name="host2").update(**change)
    held = FailoverReservation.objects.get()
    assert held.next_validation_at is not None
    assert held.next_validation_at <= timezone.now()
    assert validate_zone("az-a", request_id="r").deleted == 1
    run()
    assert cover() == {"vm-a": 1}
    assert [host for host, _ in state().values()] != ["host2"]


def test_many_hosts_down_at_once_cost_no_reservation() -> None:
    covered()
    Host.objects.exclude(name="host1").update(status=HostStatus.DISABLED)
    assert validate() == ValidationReport(transient=1)
    assert cover() == {"vm-a": 1}


def test_vm_that_outgrew_its_reservation_leaves_it() -> None:
    covered()
    Instance.objects.update(memory_bytes=16 << 30)
    assert validate().removed_users == 1
    event = FailoverEvent.objects.get(reason=EventReason.VALIDATION_FAILED)
    assert event.facts == {"filter": "size"}


def test_host_that_is_fuller_than_full_cannot_take_the_user() -> None:
    covered()
    for number in range(4):
        vm(f"filler-{number}@host2")
    report = validate()
    assert report.removed_users == 1
    event = FailoverEvent.objects.get(reason=EventReason.VALIDATION_FAILED)
    assert event.facts == {"filter": "filter_has_enough_capacity"}


def test_scheduler_that_cannot_judge_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduling.evaluation import PipelineRunError  # noqa: PLC0415

    def fail(*_: object) -> None:
        raise PipelineRunError("no answer")

    covered()
    monkeypatch.setattr("failover.selectors.scheduler.passing_hosts", fail)
    monkeypatch.setattr("scheduling.engine.Batch.evaluation", fail)
    assert validate() == ValidationReport(transient=1)
    assert cover() == {"vm-a": 1}


def test_only_due_reservations_are_looked_at() -> None:
    covered()
    FailoverReservation.objects.update(next_validation_at=timezone.now() + timedelta(seconds=60))
    assert due_validation_zones(now=timezone.now()) == []
    assert validate_zone("az-a", request_id="r") == ValidationReport()


def test_a_validation_further_ahead_than_the_interval_is_due() -> None:
    covered()
    FailoverReservation.objects.update(next_validation_at=timezone.now() + timedelta(days=1))
    assert due_validation_zones(now=timezone.now()) == ["az-a"]
    assert validate_zone("az-a", request_id="r") == ValidationReport(valid=1)
    assert due_validation_zones(now=timezone.now()) == []


def test_reservation_of_an_evacuation_is_left_alone() -> None:
    covered()
    FailoverReservation.objects.update(state="consuming")
    Host.objects.filter(name="host2").update(status=HostStatus.DISABLED)
    assert validate() == ValidationReport()
    assert cover() == {"vm-a": 1}


def test_single_reservation_is_validated_by_its_key() -> None:
    covered()
    key = Reservation.objects.get().pk
    assert FailoverService().reconcile_reservation(key) == ValidationReport(valid=1)
    assert FailoverService().reconcile_reservation(key + 1) == ValidationReport()
