"""Rows of the tables of validation and of what triggers it (spec failover, 13.3, 13.6)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from failover.models import FailoverReservation
from failover.services.validation import ValidationReport, validate_zone
from hosts.models import Host, Instance
from scheduling.evaluation import PipelineRunError
from tests.failover.zones import assert_sound, hosts, require, run, slots, state, vm

pytestmark = pytest.mark.django_db

VALID = ValidationReport(valid=1)
DELETED = ValidationReport(removed_users=1, deleted=1)
KEPT = ValidationReport(transient=1)
A = "res@host2{a@host1}"
A_AND_B = "res@host2{a@host1,b@host3}"


def host_left_the_zone() -> None:
    Host.objects.filter(name="host2").update(zone="az-z")


def host_refuses_the_vm() -> None:
    Host.objects.filter(name="host2").update(allowed_projects=["someone-else"])


def host_refuses_b() -> None:
    Host.objects.filter(name="host2").update(traits=["CUSTOM_X"])
    vms = Instance.objects.filter(openstack_id="b")
    vms.update(flavor_extra_specs={"trait:CUSTOM_X": "forbidden"})


def nothing() -> None:
    return


@pytest.mark.parametrize(
    ("held", "vms", "change", "expected", "left"),
    [
        pytest.param("res@host2{}", "", nothing, VALID, {"res": set()}, id="no users"),
        pytest.param(A, "a@host1", host_left_the_zone, DELETED, {}, id="users, no host"),
        pytest.param(A, "", nothing, VALID, {"res": {"a"}}, id="VM not found"),
        pytest.param(A, "a@host1", nothing, VALID, {"res": {"a"}}, id="this host"),
        pytest.param(A, "a@host1", host_refuses_the_vm, DELETED, {}, id="no host"),
        pytest.param(
            A_AND_B,
            "a@host1 b@host3",
            host_refuses_b,
            ValidationReport(removed_users=1),
            {"res": {"a"}},
            id="one of two, who leaves alone",
        ),
    ],
)
def test_reservation_is_judged_as_in_the_table(
    held: str,
    vms: str,
    change: Callable[[], None],
    expected: ValidationReport,
    left: dict[str, set[str]],
) -> None:
    hosts("host1 host2 host3 host4 host5 host6")
    for text in vms.split():
        vm(text)
    require(any=1)
    slots(held)
    change()
    FailoverReservation.objects.update(next_validation_at=timezone.now() - timedelta(seconds=1))
    assert validate_zone("az-a", request_id="r") == expected
    assert {name: set(users) for name, (_, users) in state().items()} == left


def test_what_could_not_be_judged_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PipelineRunError("no answer")

    hosts("host1 host2")
    vm("a@host1")
    slots(A)
    FailoverReservation.objects.update(next_validation_at=timezone.now() - timedelta(seconds=1))
    before = state()
    monkeypatch.setattr("failover.selectors.scheduler.passing_hosts", fail)
    monkeypatch.setattr("scheduling.engine.Batch.evaluation", fail)
    assert validate_zone("az-a", request_id="r") == KEPT
    assert state() == before


def test_vms_that_could_not_be_read_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no answer")

    hosts("host1 host2")
    vm("a@host1")
    slots(A)
    FailoverReservation.objects.update(next_validation_at=timezone.now() - timedelta(seconds=1))
    before = state()
    monkeypatch.setattr("failover.services.validation.zone_snapshot", fail)
    with pytest.raises(OSError, match="no answer"):
        validate_zone("az-a", request_id="r")
    assert state() == before
    assert is_due()


def is_due() -> bool:
    return FailoverReservation.objects.filter(next_validation_at__lte=timezone.now()).exists()


def not_due() -> None:
    FailoverReservation.objects.update(next_validation_at=timezone.now() + timedelta(hours=1))


@pytest.mark.sql("failover_host_changed")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"conditions": {"Ready": "False"}}, id="not ready"),
        pytest.param({"state": "down"}, id="down"),
        pytest.param({"status": "disabled"}, id="disabled"),
        pytest.param({"maintenance": "termination"}, id="terminating"),
        pytest.param({"traits": ["CUSTOM_X"]}, id="traits"),
        pytest.param({"custom_traits": ["CUSTOM_X"]}, id="traits of our own"),
        pytest.param({"aggregate_uuids": ["aggregate"]}, id="aggregates"),
        pytest.param({"allowed_projects": ["project"]}, id="allowed projects"),
        pytest.param({"effective_memory_bytes": 1 << 30}, id="memory"),
        pytest.param({"effective_vcpus": 1}, id="vcpus"),
        pytest.param({"zone": "az-z"}, id="zone"),
    ],
)
def test_change_of_a_host_queues_its_reservations(change: dict[str, Any]) -> None:
    hosts("host1 host2 host3")
    slots(A)
    not_due()
    Host.objects.filter(name="host3").update(**change)
    assert not is_due()
    Host.objects.filter(name="host2").update(**change)
    assert is_due()


def test_host_that_is_written_as_it_was_queues_nothing() -> None:
    hosts("host1 host2")
    slots(A)
    not_due()
    Host.objects.update(state=F("state"), traits=F("traits"), generation=F("generation") + 1)
    assert not is_due()


def test_new_users_queue_their_reservation() -> None:
    hosts("host1 host2 host3")
    vm("a@host1")
    vm("b@host3")
    require(any=1)
    slots(A)
    FailoverReservation.objects.update(acknowledged_at=timezone.now())
    not_due()
    run()
    assert state() == {"res": ("host2", {"a": "host1", "b": "host3"})}
    assert is_due()
    assert FailoverReservation.objects.get().acknowledged_at is None
    assert_sound(1)


def test_users_that_left_queue_their_reservation() -> None:
    hosts("host1 host2 host3")
    vm("a@host1")
    require(any=1)
    slots(A_AND_B)
    FailoverReservation.objects.update(acknowledged_at=timezone.now())
    not_due()
    run()
    assert state() == {"res": ("host2", {"a": "host1"})}
    assert is_due()
    assert FailoverReservation.objects.get().acknowledged_at is None


def test_acknowledgement_queues_nothing() -> None:
    hosts("host1 host2")
    vm("a@host1")
    require(any=1)
    slots(A)
    FailoverReservation.objects.update(next_validation_at=timezone.now() - timedelta(seconds=1))
    validate_zone("az-a", request_id="r")
    assert not is_due()
