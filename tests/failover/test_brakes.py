"""Losing data costs no coverage (spec failover, 9.2, 17.9)."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from failover.choices import EventReason, RunOutcome
from failover.domain.zone_columns import ZoneSnapshot
from failover.models import FailoverEvent, FailoverZone
from failover.selectors import zone
from failover.services import loop
from failover.services.orders import confirm_removal
from hosts.models import DeletedVM, Host, Instance
from hosts.region.registry import registry
from journal.actors import Actor
from journal.errors import HeadroomError
from journal.models import AuditEntry
from tests.failover.zones import assert_sound, cover, hosts, require, run, vm

pytestmark = pytest.mark.django_db

OPERATOR = Actor(name="operator")


@pytest.fixture
def covered() -> dict[str, int]:
    hosts("host1 host2 host3 host4 host5")
    for number in (1, 2, 3):
        vm(f"vm-{number}@host{number}")
    require(any=2)
    run()
    return cover()


def report_all() -> None:
    for row in Host.objects.all():
        listed = [{"id": vm.openstack_id, "active": True} for vm in row.instances.all()]
        Host.objects.filter(pk=row.pk).update(reported_instances=listed)


def test_empty_vm_list_removes_nothing_and_raises_the_brake(covered: dict[str, int]) -> None:
    Instance.objects.all().delete()
    result = run()
    assert (result.outcome, result.brake) == (RunOutcome.HALTED, "vm_list_empty")
    assert cover() == covered
    assert FailoverZone.objects.get().brake_reason == "vm_list_empty"
    run()
    events = FailoverEvent.objects.filter(reason=EventReason.REMOVAL_HALTED)
    assert events.count() == 1


def test_vms_that_the_cloud_said_are_gone_leave_without_a_brake(covered: dict[str, int]) -> None:
    lost = list(Instance.objects.values_list("openstack_id", flat=True))
    Instance.objects.all().delete()
    assert run().brake == "vm_list_empty"
    now = timezone.now()
    DeletedVM.objects.bulk_create(DeletedVM(openstack_id=vm, seen_at=now) for vm in lost[:-1])
    assert run().brake == "vm_list_empty", "of one nobody said so"
    DeletedVM.objects.create(openstack_id=lost[-1], seen_at=now)
    FailoverZone.objects.update(vm_count=0)  # as the pass does that saw them go
    assert run().brake == ""
    assert covered
    assert cover() == {}
    assert_sound()


@pytest.mark.parametrize("status", ["SHELVED_OFFLOADED", "SOFT_DELETED"])
@pytest.mark.parametrize("reports", [False, True])
def test_vms_that_are_all_shelved_leave_without_a_brake(
    covered: dict[str, int], status: str, *, reports: bool
) -> None:
    FailoverZone.objects.update(vm_count=0)  # as the pass does that saw them go
    Instance.objects.exclude(openstack_id="vm-1").update(host=None, status=status)
    Instance.objects.filter(openstack_id="vm-1").update(host=None)
    if reports:
        report_all()
    expected = "hosts_report_no_vms" if reports else "vm_list_empty"
    assert run().brake == expected, "of one it is not known where it is"
    assert cover() == covered
    Instance.objects.update(status=status)
    assert run().brake == ""
    assert cover() == {}
    assert_sound()


@pytest.mark.parametrize("reports", [False, True])
def test_a_zone_that_all_vms_left_empties_its_reservations(
    covered: dict[str, int], *, reports: bool
) -> None:
    """They were nowhere in between, so nothing took them out as they moved."""
    hosts("far", zone="az-b")
    FailoverZone.objects.update(vm_count=0)
    assert covered
    Instance.objects.update(host=None)
    Instance.objects.update(host=Host.objects.get(name="far"))
    if reports:
        Host.objects.filter(zone="az-a").update(reported_instances=[])
    assert run().brake == ""
    assert cover() == {}
    assert_sound()


def test_what_a_live_cloud_takes_from_the_list_during_a_run_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run counts the list when it begins, and remembers it when it ends."""
    hosts("host1 host2 host3", vcpus=400, gib=800)
    require(any=1)
    many = [vm(f"vm-{number}@host1") for number in range(60)]
    run()
    read = zone.load_zone

    def load_zone(*args: Any, **options: Any) -> ZoneSnapshot:
        snapshot = read(*args, **options)
        registry.expect_fewer({(Host.objects.get(name="host1").pk, "ACTIVE"): 30})
        DeletedVM.objects.bulk_create(
            DeletedVM(openstack_id=one.openstack_id, seen_at=timezone.now()) for one in many[:30]
        )
        Instance.objects.filter(pk__in=[one.pk for one in many[:30]]).delete()
        return snapshot

    monkeypatch.setattr(loop, "load_zone", load_zone)
    assert run().brake == ""
    monkeypatch.undo()
    assert FailoverZone.objects.get(zone="az-a").vm_count == 30
    assert run().brake == ""
    assert cover()
    assert cover().keys().isdisjoint([one.openstack_id for one in many[:30]])


def test_empty_lists_of_all_hosts_remove_nothing_and_raise_the_brake(
    covered: dict[str, int],
) -> None:
    report_all()
    assert run().brake == ""
    Host.objects.update(reported_instances=[])
    assert run().brake == "hosts_report_no_vms"
    assert cover() == covered


def test_emptied_vm_list_costs_nothing_while_hosts_run_the_vms(covered: dict[str, int]) -> None:
    report_all()
    Instance.objects.exclude(openstack_id="vm-1").delete()
    result = run()
    assert result.brake == ""
    assert result.plan is not None
    assert result.plan.cleaning.kept == 4
    assert cover() == covered
    event = FailoverEvent.objects.get(reason=EventReason.SAFEGUARD_KEPT)
    assert event.facts == {"memberships": 4}


def test_brake_lets_go_when_the_data_is_back(covered: dict[str, int]) -> None:
    kept = list(Instance.objects.values())
    Instance.objects.all().delete()
    run()
    Instance.objects.bulk_create(Instance(**row) for row in kept)
    assert run().brake == ""
    row = FailoverZone.objects.get()
    assert (row.brake_reason, row.braked_at) == ("", None)
    assert cover() == covered
    assert_sound()


def test_confirmed_brake_lets_one_run_remove(covered: dict[str, int]) -> None:
    assert covered
    Instance.objects.all().delete()
    run()
    confirm_removal("az-a", actor=OPERATOR, request_id="r", now=timezone.now())
    assert run().brake == ""
    assert cover() == {}
    assert FailoverZone.objects.get().confirmed_at is None
    entry = AuditEntry.objects.get(action="failover_removal_confirmed")
    assert (entry.actor, entry.object_id) == ("operator", "az-a")


def test_only_a_raised_brake_can_be_confirmed(covered: dict[str, int]) -> None:
    assert covered
    with pytest.raises(HeadroomError, match="no brake"):
        confirm_removal("az-a", actor=OPERATOR, request_id="r", now=timezone.now())


@pytest.mark.parametrize(("trusts", "expected"), [(False, {}), (True, {"vm-1": 1})])
def test_location_is_believed_as_configured(trusts: bool, expected: dict[str, int]) -> None:
    from dataclasses import replace  # noqa: PLC0415

    from failover.conf import current_config  # noqa: PLC0415

    hosts("host1 host2 host3")
    vm("vm-1@host1")
    Host.objects.filter(name="host1").update(reported_instances=[])
    Host.objects.filter(name="host2").update(reported_instances=[{"id": "vm-1", "active": True}])
    config = replace(current_config({"*": 1}), trust_hypervisor_location=trusts)
    run(config=config)
    assert cover() == expected
