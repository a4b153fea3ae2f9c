"""The feed: a live cloud read again and again ends in the rows that it has."""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.db import models

from commitments.models import SlotCheck
from commitments.services.vm_list import unbelieved_zones
from core.jobs import Run
from failover.models import FailoverZone
from hosts.clients.listing import CloudUnreachable
from hosts.feed import jobs, passes, reading
from hosts.feed.jobs import full_pass
from hosts.feed.lists import PassKind
from hosts.feed.passes import NothingReadYet
from hosts.feed.state import known_until
from hosts.models import (
    Aggregate,
    DeletedVM,
    FeedPass,
    Flavor,
    Host,
    Image,
    Instance,
    Project,
    Region,
    ServerGroup,
)
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import Busy
from journal.leases import take_lease
from scheduling.resources import GIB
from tests.hosts.feed_cloud import (
    LISTS,
    LiveCloud,
    cloud_of_five,
    hypervisor,
    in_a_thread,
    pass_time,
    places,
    read_cloud,
    taken,
    without_about,
)
from tests.hosts.region_files import dump, empty_database, load, small_region, write_file

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cloud() -> LiveCloud:
    return cloud_of_five()


def test_the_first_passes_end_in_the_rows_of_an_import_of_the_same_cloud(
    cloud: LiveCloud, tmp_path: Path
) -> None:
    read_cloud(cloud)
    fed = without_about(dump())
    assert taken() == {"node1": 2, "node2": 3}

    empty_database()
    region = {part: cloud.region[part] for part in ("identity", "compute", "image", "placement")}
    load(write_file(tmp_path, region))
    assert without_about(dump()) == fed


def test_a_pass_over_what_did_not_change_writes_nothing(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    before = list(Instance.objects.order_by("pk").values_list("pk", "updated_at"))
    for kind in PassKind:
        report = read_cloud(cloud, kind)
        assert not report.has_changes, kind
    assert list(Instance.objects.order_by("pk").values_list("pk", "updated_at")) == before
    assert set(FeedPass.objects.values_list("kind", "passes")) == {
        (kind.value, 1 if kind is PassKind.CHANGES else 2) for kind in PassKind
    }


def test_boots_moves_and_deletions_are_seen_by_one_look_at_changes(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    cloud.asked.clear()
    cloud.boot("v6", 1)
    cloud.put("v1", 1)
    cloud.delete("v2")
    cloud.put("v3", None, status="SHELVED_OFFLOADED")

    read_cloud(cloud, PassKind.CHANGES)

    assert places() == {"v1": "node1", "v3": None, "v4": "node1", "v5": "node2", "v6": "node1"}
    assert taken() == {"node1": 3, "node2": 1}
    assert all(path.startswith("/servers/detail") for path in cloud.asked)


def test_changes_are_told_from_the_last_look_on_with_some_overlap(
    cloud: LiveCloud, settings: Any
) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"overlap_seconds": 3000})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
    pass_time(cloud, hours=-1)
    for server in cloud.servers:
        cloud.touch(server)
    with pytest.raises(NothingReadYet):
        read_cloud(cloud, PassKind.CHANGES)
    read_cloud(cloud)
    cloud.asked.clear()
    report = read_cloud(cloud, PassKind.CHANGES)
    (counts,) = report.counts.values()
    assert (counts.unchanged, counts.changed) == (0, 0)
    pass_time(cloud, minutes=20)  # Nova's clock is slow, or the change was listed late
    cloud.put("v1", 1)
    read_cloud(cloud, PassKind.CHANGES)
    assert places()["v1"] == "node1"


def test_a_deleted_vm_does_not_come_back_with_an_older_list(cloud: LiveCloud) -> None:
    """The full pass has read the VM when it is deleted and the look at changes sees that."""
    read_cloud(cloud)

    def delete_and_see() -> None:
        cloud.delete("v5")
        cloud.put("v4", 2)
        read_cloud(cloud, PassKind.CHANGES)

    cloud.meanwhile["/servers/detail?all_tenants=1&limit=1000&marker=v5"] = in_a_thread(
        delete_and_see
    )
    read_cloud(cloud, PassKind.SERVERS)

    assert not cloud.meanwhile
    assert places() == {"v1": "node2", "v2": "node1", "v3": "node2", "v4": "node2"}
    assert DeletedVM.objects.exists()
    read_cloud(cloud, PassKind.SERVERS)
    assert not DeletedVM.objects.exists()
    assert taken() == {"node1": 1, "node2": 3}


def test_a_vm_goes_only_when_the_cloud_says_so_of_itself(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    cloud.cut = {"/servers/detail": 4}
    read_cloud(cloud, PassKind.SERVERS)
    assert len(places()) == 5

    cloud.broken = {"/servers/v"}
    cloud.delete("v5")
    read_cloud(cloud, PassKind.SERVERS)
    assert len(places()) == 5

    cloud.broken, cloud.lost = set(), {"/servers/v"}  # even of what was listed
    read_cloud(cloud, PassKind.SERVERS)
    assert len(places()) == 5

    cloud.lost = set()
    report = read_cloud(cloud, PassKind.SERVERS)
    assert report.counts["compute.servers"].removed == 1
    assert len(places()) == 4


@pytest.mark.parametrize("kind", [PassKind.CHANGES, PassKind.SERVERS])
def test_the_loss_of_many_vms_is_believed_where_the_cloud_says_they_are_gone(
    cloud: LiveCloud, kind: PassKind, settings: Any
) -> None:
    slots = settings.HEADROOM.slots.model_copy(update={"max_drop_rows": 4})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"slots": slots})
    for number in range(6, 13):
        cloud.boot(f"v{number}", 1 + number % 2)
    read_cloud(cloud)
    (zone,) = set(Host.objects.values_list("zone", flat=True))
    SlotCheck.objects.update_or_create(zone=zone, defaults={"listed_vms": 12})
    FailoverZone.objects.update_or_create(zone=zone, defaults={"vm_count": 12})
    for number in range(1, 7):
        cloud.delete(f"v{number}")
    if kind is PassKind.SERVERS:  # nothing but the answer to the question for itself says it
        cloud.deleted.clear()
        settings.HEADROOM = settings.HEADROOM.model_copy(
            update={"slots": slots.model_copy(update={"max_drop_rows": 8})}
        )
    read_cloud(cloud, kind)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"slots": slots})
    assert Instance.objects.count() == 6
    assert unbelieved_zones() == {}
    assert SlotCheck.objects.get().listed_vms == 6
    assert FailoverZone.objects.get().vm_count == 6
    for number in range(7, 13):
        cloud.put(f"v{number}", None)  # still there, and nobody says where
    pass_time(cloud, minutes=5)
    read_cloud(cloud, PassKind.CHANGES)
    assert "the VM list shrank from 6 to 0" in unbelieved_zones()[zone]


def test_only_so_many_absent_vms_are_asked_for_in_a_pass(cloud: LiveCloud, settings: Any) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"most_asked": 2})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
    read_cloud(cloud)
    for vm in ("v1", "v2", "v3"):
        cloud.delete(vm)
    read_cloud(cloud, PassKind.SERVERS)
    assert set(places()) == {"v3", "v4", "v5"}
    read_cloud(cloud, PassKind.SERVERS)
    assert set(places()) == {"v4", "v5"}


@pytest.mark.parametrize(
    ("kind", "path", "model"),
    [
        (PassKind.IDENTITY, "/projects", Project),
        (PassKind.FLAVORS, "/flavors/detail", Flavor),
        (PassKind.IMAGES, "/images", Image),
        (PassKind.HOSTS, "/os-hypervisors/detail", Host),
        (PassKind.SERVERS, "/servers/detail", Instance),
        (PassKind.SERVER_GROUPS, "/os-server-groups", ServerGroup),
    ],
)
def test_a_list_that_is_cut_short_removes_nothing_and_one_that_is_true_does(
    cloud: LiveCloud, kind: PassKind, path: str, model: type[models.Model]
) -> None:
    if kind is PassKind.HOSTS:
        cloud.servers.clear()  # a host with VMs stays anyway
    read_cloud(cloud)
    stored = model._default_manager.count()
    cloud.cut = {path: 0}
    read_cloud(cloud, kind)
    assert model._default_manager.count() == stored

    cloud.cut = {}
    service, key = LISTS[path]
    cloud.region[service][key].pop()
    read_cloud(cloud, kind)
    assert model._default_manager.count() == stored - 1


def test_a_list_that_shrank_too_much_is_refused_until_an_operator_accepts(
    cloud: LiveCloud,
) -> None:
    for number in range(6, 11):
        cloud.boot(f"v{number}", 1)
    read_cloud(cloud)
    for number in range(1, 10):
        cloud.delete(f"v{number}")
    cloud.deleted.clear()  # archived: changes tell nothing of them
    cloud.stray = 1  # so that nothing but their own addresses says that they are gone

    report = read_cloud(cloud, PassKind.SERVERS)
    assert "compute.servers" in report.refusals
    assert len(places()) == 10
    assert "shrank" in FeedPass.objects.get(kind=PassKind.SERVERS).refusal

    read_cloud(cloud, PassKind.SERVERS, accepts_shrink=True)
    assert set(places()) == {"v10"}
    assert FeedPass.objects.get(kind=PassKind.SERVERS).refusal == ""


def test_a_cell_that_is_down_freezes_its_hosts_and_vms(cloud: LiveCloud) -> None:
    """As a real Nova lists it from 2.69 on: only what the API database knows."""
    read_cloud(cloud)
    before = places()
    compute = cloud.region["compute"]
    whole = {key: list(compute[key]) for key in ("hypervisors", "services", "servers")}
    compute["hypervisors"] = compute["hypervisors"][:1]
    compute["services"][1] = {"binary": "nova-compute", "host": "svc2", "status": "UNKNOWN"}
    compute["servers"] = [
        server
        if server["OS-EXT-SRV-ATTR:host"] == "svc1"
        else {
            "id": server["id"],
            "status": "UNKNOWN",
            "tenant_id": "p1",
            "created": server["created"],
            "links": [],
        }
        for server in compute["servers"]
    ]
    for kind in (PassKind.HOSTS, PassKind.SERVERS, PassKind.CHANGES, PassKind.HOSTS):
        report = read_cloud(cloud, kind)
        assert not report.has_changes
    assert places() == before
    assert taken() == {"node1": 2, "node2": 3}

    compute |= whole
    cloud.delete("v1")
    read_cloud(cloud)
    assert taken() == {"node1": 2, "node2": 2}


def test_what_is_malformed_is_told_and_keeps_its_row(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    cloud.put("v1", 1)
    cloud.put("v2", 2, flavor={})
    report = read_cloud(cloud, PassKind.SERVERS)
    (remark,) = report.remarks
    assert (remark.object_id, remark.reason) == ("v2", "malformed")
    assert (places()["v1"], places()["v2"]) == ("node1", "node1")


def test_a_cloud_that_does_not_answer_changes_nothing_and_is_read_again(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    cloud.put("v1", 1)
    cloud.broken = {"/servers/detail?all_tenants=1&limit=1000&marker=v4"}
    with pytest.raises(CloudUnreachable):
        read_cloud(cloud, PassKind.SERVERS)
    assert places()["v1"] == "node2"
    row = FeedPass.objects.get(kind=PassKind.SERVERS)
    assert (row.passes, row.failures) == (1, 1)
    assert "status 500" in row.error

    cloud.broken = set()
    read_cloud(cloud, PassKind.SERVERS)
    assert places()["v1"] == "node1"
    row.refresh_from_db()
    assert (row.passes, row.failures, row.error) == (2, 0, "")


def test_a_pass_of_a_kind_is_alone_and_another_kind_goes_on(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    lease = take_lease(f"{passes.LEASE}.{PassKind.SERVERS}")
    assert lease is not None
    with pytest.raises(Busy, match="servers"):
        read_cloud(cloud, PassKind.SERVERS)
    read_cloud(cloud, PassKind.CHANGES)
    lease.give_back()
    read_cloud(cloud, PassKind.SERVERS)


def test_hosts_flavors_and_aggregates_follow(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    compute = cloud.region["compute"]
    compute["hypervisors"][0] |= {"state": "down", "status": "disabled"}
    compute["aggregates"].append(
        {
            "uuid": "a2",
            "name": "mine",
            "hosts": ["svc2"],
            "metadata": {"filter_tenant_id": "p1"},
        }
    )
    compute["flavors"][0]["ram"] = 4096
    read_cloud(cloud, PassKind.HOSTS)
    read_cloud(cloud, PassKind.FLAVORS)
    down, other = Host.objects.order_by("name")
    assert (down.state, down.status, down.down_since is None) == ("down", "disabled", False)
    assert other.allowed_projects == ["p1"]
    assert Aggregate.objects.count() == 2
    assert Flavor.objects.get().memory_bytes == 4 * GIB


def test_hosts_leave_an_aggregate_that_is_deleted_in_the_same_pass(cloud: LiveCloud) -> None:
    aggregates = cloud.region["compute"]["aggregates"]
    mine = {"uuid": "a2", "name": "mine", "metadata": {"filter_tenant_id": "p1"}}
    aggregates.append(mine | {"hosts": ["svc2"]})
    read_cloud(cloud)
    assert Host.objects.get(name="node2").allowed_projects == ["p1"]
    aggregates.pop()
    read_cloud(cloud, PassKind.HOSTS)
    assert Host.objects.get(name="node2").allowed_projects == []
    assert Aggregate.objects.count() == 1


def test_graces_end_only_by_what_was_read(cloud: LiveCloud, settings: Any) -> None:
    now = database_now()
    assert known_until(now) == now
    feed = settings.HEADROOM.feed.model_copy(update={"cloud": "mini"})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
    assert known_until(now).year == 1970
    read_cloud(cloud)
    listed_at = FeedPass.objects.get(kind=PassKind.SERVERS).listed_at
    assert known_until(database_now()) == listed_at
    read_cloud(cloud, PassKind.CHANGES)
    assert known_until(database_now()) > listed_at
    region = Region.objects.get()
    assert region.listed_at == FeedPass.objects.get(kind=PassKind.CHANGES).listed_at


def test_a_long_pass_that_ends_last_does_not_make_the_list_older(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    cloud.meanwhile["/servers/detail?all_tenants=1&limit=1000&marker=v5"] = in_a_thread(
        lambda: read_cloud(cloud, PassKind.CHANGES)
    )
    read_cloud(cloud, PassKind.SERVERS)
    assert not cloud.meanwhile
    newest, older = FeedPass.objects.filter(kind__in=[PassKind.CHANGES, PassKind.SERVERS]).order_by(
        "-listed_at"
    )
    assert (newest.kind, older.kind) == (PassKind.CHANGES, PassKind.SERVERS)
    assert Region.objects.get().listed_at == newest.listed_at


def named() -> tuple[str, str]:
    region = Region.objects.get()
    return region.name, region.source


def test_a_region_without_a_name_has_that_of_the_cloud(cloud: LiveCloud, tmp_path: Path) -> None:
    read_cloud(cloud, PassKind.IDENTITY)
    assert named() == ("live", "feed")
    load(write_file(tmp_path, {"about": {"region": "r", "source": "a file"}}))
    read_cloud(cloud)
    assert named() == ("r", "a file")
    load(write_file(tmp_path, {"about": {"source": "another"}}))
    read_cloud(cloud, PassKind.IDENTITY)
    assert named() == ("live", "another")


def told_time() -> datetime:
    listed_at = Region.objects.get().listed_at
    assert listed_at
    return listed_at


@pytest.mark.parametrize("hours", [1, -1])
def test_a_file_makes_what_is_known_no_newer_than_it(
    cloud: LiveCloud, settings: Any, tmp_path: Path, hours: int
) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"cloud": "mini"})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
    read_cloud(cloud)
    before = known_until(database_now())
    taken_at = before - timedelta(hours=hours)
    servers = [cloud.server("v1") | {"OS-EXT-SRV-ATTR:hypervisor_hostname": "node1"}]
    file = {"about": {"region": "r", "taken_at": taken_at.isoformat()}}
    load(write_file(tmp_path, file | {"compute": {"servers": servers}}))
    assert known_until(database_now()) == told_time() == min(before, taken_at)
    assert Region.objects.get().name == "r"
    read_cloud(cloud, PassKind.CHANGES)
    assert known_until(database_now()) == told_time() > before
    load(write_file(tmp_path, {"about": {"region": "r", "taken_at": taken_at.isoformat()}}))
    assert told_time() > before  # it has no VMs
    load(write_file(tmp_path, file | {"about": {}, "compute": {"servers": servers}}))
    assert known_until(database_now()).year == 1970
    with pytest.raises(NothingReadYet):
        read_cloud(cloud, PassKind.CHANGES)
    read_cloud(cloud, PassKind.SERVERS)
    assert known_until(database_now()) > before


def test_an_older_file_is_undone_by_the_next_look_at_changes(
    cloud: LiveCloud, settings: Any, tmp_path: Path
) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"cloud": "mini"})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
    read_cloud(cloud)
    old, taken_at = deepcopy(cloud.servers), cloud.clock
    cloud.ahead += timedelta(hours=1)
    cloud.put("v1", 1)
    read_cloud(cloud, PassKind.CHANGES)
    now = places()
    assert now["v1"] == "node1"
    file = {"about": {"taken_at": taken_at.isoformat()}, "compute": {"servers": old}}
    load(write_file(tmp_path, file))
    assert places()["v1"] == "node2"
    read_cloud(cloud, PassKind.CHANGES)
    assert places() == now


def test_a_pass_that_reads_beside_the_import_of_a_file_tells_no_time(
    cloud: LiveCloud, settings: Any, tmp_path: Path
) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"cloud": "mini"})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
    read_cloud(cloud)
    before = known_until(database_now())
    taken_at = before - timedelta(hours=1)
    file = {"about": {"taken_at": taken_at.isoformat()}, "compute": {"servers": cloud.servers}}
    cloud.meanwhile["/servers/detail?all_tenants=1&limit=1000&marker=v5"] = in_a_thread(
        lambda: load(write_file(tmp_path, file))
    )
    read_cloud(cloud, PassKind.SERVERS)
    assert not cloud.meanwhile
    assert known_until(database_now()) == taken_at
    read_cloud(cloud, PassKind.SERVERS)
    assert known_until(database_now()) > before


def test_vms_are_read_at_once_where_their_host_came_after_them(
    cloud: LiveCloud, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"cloud": "mini"})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
    sent: list[list[str]] = []

    def send_task(_: object, name: str, args: list[str], **__: object) -> None:
        if name == jobs.FULL_TASK:
            sent.append(args)

    monkeypatch.setattr(Celery, "send_task", send_task)
    monkeypatch.setattr(jobs, "configured_cloud", lambda _: cloud)

    def pass_of(kind: PassKind) -> None:
        full_pass(Run(actor=Actor(name="feed"), request_id="req-feed"), kind)

    read_cloud(cloud)
    compute = cloud.region["compute"]
    compute["hypervisors"].append(hypervisor(3))
    pass_of(PassKind.HOSTS)
    assert sent == [], "no VM waits for that host"

    cloud.boot("v6", 4)
    read_cloud(cloud, PassKind.CHANGES)
    assert places()["v6"] is None
    compute["hypervisors"].append(hypervisor(4))
    pass_of(PassKind.HOSTS)
    assert sent == [["servers"]]
    pass_of(PassKind.SERVERS)
    assert places()["v6"] == "node4"
    pass_of(PassKind.HOSTS)
    assert len(sent) == 1


def test_partial_records_of_servers_are_told_from_vms_of_unknown_state(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    cloud.put("v1", 1, status="UNKNOWN")
    read_cloud(cloud, PassKind.CHANGES)
    assert places()["v1"] == "node1"
    assert Instance.objects.get(openstack_id="v1").status == reading.UNKNOWN


def test_vms_that_were_asked_for_and_are_gone_are_remembered(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    cloud.delete("v1")
    cloud.deleted.clear()
    read_cloud(cloud, PassKind.SERVERS)
    assert set(DeletedVM.objects.values_list("openstack_id", flat=True)) == {"v1"}


def test_providers_are_read_again_when_their_generation_changed(cloud: LiveCloud) -> None:
    for number in (1, 2):
        (provider,) = small_region()["placement"]["resource_providers"]
        name = f"node{number}"
        provider |= {"uuid": f"h{number}", "name": name, "root_provider_uuid": f"h{number}"}
        cloud.region["placement"]["resource_providers"].append(provider | {"generation": 1})
    read_cloud(cloud)
    cloud.asked.clear()
    assert not read_cloud(cloud, PassKind.HOSTS).has_changes
    assert not [path for path in cloud.asked if path.startswith("/resource_providers/")]

    (first, _) = cloud.region["placement"]["resource_providers"]
    first["inventories"]["inventories"]["VCPU"]["total"] = 10
    first["generation"] = 2
    cloud.asked.clear()
    read_cloud(cloud, PassKind.HOSTS)
    parts = [path.split("/") for path in cloud.asked if path.startswith("/resource_providers/")]
    assert {part[2] for part in parts} == {"h1"}
    assert dict(Host.objects.values_list("name", "total_vcpus")) == {"node1": 10, "node2": 64}
