"""Lists of VMs in Hypervisor objects arm the brakes of failover (spec failover, 9.2)."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.hypervisors.writing import told_by, write_list
from failover.choices import EventReason, RunOutcome
from failover.models import FailoverEvent
from hosts.models import Host, Instance
from hosts.vm_source import reporting_hosts
from journal.actors import Actor
from tests.bridge.hypervisor_objects import Json, object_of
from tests.failover.zones import cover, hosts, require, run, vm

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def objects(takes_objects: Any) -> list[Json]:
    """A covered zone, and the objects that say the same of it."""
    assert takes_objects
    hosts("host1 host2 host3 host4 host5")
    for number in (1, 2, 3):
        vm(f"vm-{number}@host{number}")
    require(any=2)
    told = [object_of(host, list(host.instances.all())) for host in Host.objects.order_by("name")]
    write(told)
    run()
    return told


def write(bodies: list[Json]) -> None:
    write_list(dict(map(told_by, bodies)), actor=Actor(name="test"))


def without_vms(body: Json) -> Json:
    return {**body, "status": {**body["status"], "instances": []}}


def test_objects_that_all_lose_their_vms_raise_the_brake(objects: list[Json]) -> None:
    covered = cover()
    assert covered
    assert run().brake == ""
    write(list(map(without_vms, objects)))
    assert not any(host.vms for host in reporting_hosts())
    result = run()
    assert (result.outcome, result.brake) == (RunOutcome.HALTED, "hosts_report_no_vms")
    assert cover() == covered
    write(objects)
    assert run().brake == ""
    assert cover() == covered


def test_a_vm_list_that_is_nearly_empty_costs_nothing_that_objects_still_run(
    objects: list[Json],
) -> None:
    covered = cover()
    assert len(objects) == 5
    Instance.objects.exclude(openstack_id="vm-1").delete()
    result = run()
    assert result.brake == ""
    assert cover() == covered
    event = FailoverEvent.objects.get(reason=EventReason.SAFEGUARD_KEPT)
    assert event.facts == {"memberships": 4}
