"""Hypervisor objects become hosts, rooms and reported VMs, through the writer of every list."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.hypervisors.status import check_hypervisors
from bridge.hypervisors.writing import Malformed, told_by, write_changes, write_list
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity
from core.conf import headroom
from hosts.agents.cell_models import HostCell
from hosts.domain.vm_list import ReportedVM
from hosts.models import Aggregate, FeedPass, Host, Instance
from hosts.region.described import DescribedAggregate, DescribedHost
from hosts.region.run import ImportReport
from hosts.vm_source import reporting_hosts
from journal.actors import Actor
from tests.bridge.hypervisor_objects import described, hypervisor_object, instances
from tests.factories import make_commitment, make_host, make_slot, make_vm
from tests.hosts.feed_cloud import LiveCloud, read_cloud
from tests.hosts.region_files import load, small_region, write_file
from tests.ledger import assert_rooms_add_up

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1 << 30
ACTOR = Actor(name="test")
VM = ReportedVM(vm_uuid="vm-1", name="vm-1", is_active=True)


def listed(*hosts: DescribedHost, accepts_shrink: bool = False) -> ImportReport:
    return write_list(
        {host.name: host for host in hosts}, actor=ACTOR, accepts_shrink=accepts_shrink
    )


def taken(name: str) -> tuple[int, int]:
    room = HostCapacity.objects.get(host__name=name)
    return room.allocated_memory_bytes // GIB, room.allocated_vcpus


def names() -> list[str]:
    return list(Host.objects.order_by("name").values_list("name", flat=True))


@pytest.mark.usefixtures("takes_objects")
def test_an_object_becomes_a_host_with_its_room() -> None:
    name, told = told_by(
        hypervisor_object(
            "node1-bb7",
            allocation={"cpu": "4", "memory": "16Gi"},
            aggregates=[{"name": "gold", "uuid": "a-1", "metadata": {"k": "v"}}],
            instances=instances(("vm-1", True)),
            traits=["T"],
        )
    )
    report = write_list({name: told}, actor=ACTOR)
    assert report.of("described_hosts").created == 1
    host = Host.objects.get()
    assert (host.name, host.zone, host.building_block) == ("node1-bb7", "az-a", "bb7")
    assert (host.is_ready, host.is_self_described, host.traits) == (True, True, ["T"])
    assert reporting_hosts()[0].vms == (VM,)
    assert taken("node1-bb7") == (16, 4)
    aggregate = Aggregate.objects.get()
    assert (aggregate.name, aggregate.metadata) == ("gold", {"k": "v"})
    assert (aggregate.host_names, host.aggregate_uuids) == (["node1-bb7"], ["a-1"])
    assert_rooms_add_up()


@pytest.mark.usefixtures("takes_objects")
def test_cells_of_an_object_are_its_hosts() -> None:
    cell = {"cellID": 1, "capacity": {"cpu": "8"}, "effectiveCapacity": {"cpu": "12"}}
    for cells, expected in (([cell], [(1, "cpu", 8, 12)]), (None, [])):
        name, told = told_by(hypervisor_object("node1", cells=cells))
        report = write_list({name: told}, actor=ACTOR)
        rows = HostCell.objects.values_list("cell", "resource", "capacity", "effective_capacity")
        assert list(rows) == expected
        assert report.of("described_hosts.cells").updated == 1


@pytest.mark.usefixtures("takes_objects")
def test_the_same_again_writes_nothing() -> None:
    aggregates = (DescribedAggregate(uuid="a-1", name="gold", metadata={}),)
    host = described(reported_instances=(VM,), aggregates=aggregates)
    listed(host)
    before = list(Host.objects.values_list("changed_xid", "generation"))
    assert listed(host).has_changes is False
    assert list(Host.objects.values_list("changed_xid", "generation")) == before


@pytest.mark.usefixtures("takes_objects")
def test_an_aggregate_changes_without_its_hosts() -> None:
    for key in ("old", "new"):
        aggregate = DescribedAggregate(uuid="a-1", name="gold", metadata={"is": key})
        listed(described(aggregates=(aggregate,)))
        assert Aggregate.objects.get().metadata == {"is": key}


@pytest.mark.usefixtures("takes_objects")
def test_a_change_costs_its_host_only() -> None:
    listed(*(described(f"node{n}", reported_vcpus=1, reported_memory_bytes=GIB) for n in (1, 2)))
    before = Host.objects.get(name="node2").changed_xid
    changed = described(
        "node1",
        maintenance="manual",
        reported_vcpus=3,
        reported_memory_bytes=2 * GIB,
        reported_instances=(VM,),
    )
    write_changes({"node1": changed}, names=("node1", "node2"), gone=False, before=2, actor=ACTOR)
    assert (taken("node1"), taken("node2")) == ((2, 3), (1, 1))
    assert Host.objects.get(name="node1").is_ready is False
    assert Host.objects.get(name="node2").changed_xid == before


@pytest.mark.usefixtures("takes_objects")
def test_hosts_that_the_list_lacks_go_but_never_many_at_once() -> None:
    hosts = [described(f"node{n:02}") for n in range(20)]
    listed(*hosts)
    assert listed(*hosts[:16]).of("described_hosts").removed == 4
    assert len(names()) == 16
    report = listed()
    assert "shrank from 16 to 0" in report.refusals["described_hosts"]
    assert len(names()) == 16
    assert "shrank" in check_hypervisors().detail
    assert listed(accepts_shrink=True).of("described_hosts").removed == 16
    assert names() == []


@pytest.mark.usefixtures("takes_objects")
def test_many_deletions_one_by_one_are_no_more_believed_than_a_short_list() -> None:
    hosts = {f"node{n:02}": described(f"node{n:02}") for n in range(20)}
    listed(*hosts.values())
    for name in sorted(hosts)[:]:
        del hosts[name]
        write_changes({}, names=set(hosts), gone=True, before=20, actor=ACTOR)
    assert len(names()) == 16
    assert "shrank from 20" in FeedPass.objects.get(kind="hypervisors").refusal


@pytest.mark.usefixtures("takes_objects")
def test_an_object_that_cannot_be_understood_leaves_its_host_as_it_is() -> None:
    listed(described("node1"), described("node2"))
    objects = {"node1": Malformed(problem="status.capacity.cpu: is no quantity")}
    report = write_list({**objects, "node2": described("node2", maintenance="auto")}, actor=ACTOR)
    (remark,) = report.remarks
    assert (remark.object_id, remark.reason) == ("node1", "malformed")
    assert names() == ["node1", "node2"]
    assert Host.objects.get(name="node2").maintenance == "auto"


@pytest.mark.usefixtures("takes_objects")
def test_a_host_that_does_not_say_what_vms_take_is_counted_from_the_vm_list() -> None:
    listed(described("node1"), described("node2", reported_vcpus=0, reported_memory_bytes=0))
    for name in ("node1", "node2"):
        make_vm(host=Host.objects.get(name=name), memory_gib=8, vcpus=3)
    rebuild_host_capacity()
    assert (taken("node1"), taken("node2")) == ((8, 3), (0, 0))


@pytest.mark.usefixtures("takes_objects")
def test_a_vm_that_its_host_lost_keeps_its_slot_whole() -> None:
    host = described(reported_vcpus=4, reported_memory_bytes=16 * GIB, reported_instances=(VM,))
    listed(host)
    row = Host.objects.get()
    slot = make_slot(make_commitment(), row, memory_gib=32, vcpus=8)
    make_vm(host=row, openstack_id="vm-1", memory_gib=16, vcpus=4, slot=slot)

    def used_up() -> int:
        room = HostCapacity.objects.get()
        return (room.allocated_memory_bytes + room.committed_memory_bytes) // GIB

    rebuild_host_capacity()
    assert used_up() == 32
    without = described(reported_vcpus=0, reported_memory_bytes=0, reported_instances=())
    write_changes({host.name: without}, names={host.name}, gone=False, before=1, actor=ACTOR)
    assert used_up() == 32
    assert_rooms_add_up()


@pytest.mark.usefixtures("takes_objects")
def test_lists_of_the_cloud_do_not_undo_what_objects_say() -> None:
    cloud = LiveCloud(hosts=2)
    read_cloud(cloud)
    listed(described("node1", zone="az-z", effective_vcpus=7, openstack_id="h1"))
    host = Host.objects.get(name="node1")
    assert (host.service_host, host.effective_disk_gib) == ("svc1", 1000)
    cloud.region["compute"]["hypervisors"][0]["state"] = "down"
    read_cloud(cloud)
    host.refresh_from_db()
    assert (host.zone, host.effective_vcpus, host.state) == ("az-z", 7, "down")
    assert Host.objects.get(name="node2").effective_vcpus == 64


def test_objects_that_are_read_no_more_leave_their_hosts_to_the_lists(
    takes_objects: Any, tmp_path: Any
) -> None:
    cloud = LiveCloud(hosts=2)
    read_cloud(cloud)
    listed(described("node1", zone="az-z", reported_instances=(VM,), openstack_id="h1"))
    assert [host.name for host in reporting_hosts()] == ["node1"]
    headroom_settings = takes_objects.HEADROOM
    off = headroom_settings.hypervisors.model_copy(update={"sync": "off"})
    takes_objects.HEADROOM = headroom_settings.model_copy(
        update={"hypervisors": off, "allocation_source": "instances"}
    )
    load(write_file(tmp_path, small_region()), is_dry_run=True)
    assert Host.objects.get(name="node1").is_self_described
    read_cloud(cloud)
    assert not FeedPass.objects.filter(kind="hypervisors").exists()
    host = Host.objects.get(name="node1")
    assert (host.is_self_described, host.zone, reporting_hosts()) == (False, "az-a", [])


def test_where_a_cloud_is_read_a_host_without_object_is_the_lists_again(
    takes_objects: Any,
) -> None:
    feed = takes_objects.HEADROOM.feed.model_copy(update={"cloud": "some"})
    takes_objects.HEADROOM = takes_objects.HEADROOM.model_copy(update={"feed": feed})
    make_host("node9")
    listed(described("node1"), described("node9", reported_instances=(VM,)))
    listed(described("node1"))
    assert names() == ["node1", "node9"]
    host = Host.objects.get(name="node9")
    assert (host.is_self_described, host.reported_instances) == (False, None)


def test_a_file_does_not_undo_what_objects_say(takes_objects: Any, tmp_path: Any) -> None:
    assert takes_objects
    region = small_region()
    (hypervisor,) = region["compute"]["hypervisors"]
    name = hypervisor["hypervisor_hostname"]
    file = write_file(tmp_path, region)
    load(file)
    listed(described(name, zone="az-z", custom_traits=("CUSTOM_X",)), described("other"))
    load(file, prune=True)
    assert names() == sorted([name, "other"])
    host = Host.objects.get(name=name)
    assert (host.zone, host.custom_traits) == ("az-z", ["CUSTOM_X"])
    assert Instance.objects.count() == len(region["compute"]["servers"])


def test_status_says_what_is_known(takes_objects: Any) -> None:
    assert check_hypervisors().detail == "never read"
    listed(described())
    assert check_hypervisors().detail == "up to date"
    FeedPass.objects.update(listed_at="2020-01-01T00:00:00Z")
    late = check_hypervisors()
    assert (late.is_ok, late.detail.endswith("s old")) == (False, True)
    off = headroom().hypervisors.model_copy(update={"sync": "off"})
    takes_objects.HEADROOM = takes_objects.HEADROOM.model_copy(update={"hypervisors": off})
    assert check_hypervisors().is_ok
