"""Losses of VMs and flavors: an empty list proves nothing, nor does what is hidden from us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capacity.models import FlavorGroup, HostCapacity
from commitments.models import SlotCheck
from commitments.services.vm_list import unbelieved_zones
from failover.models import FailoverZone
from hosts.feed.lists import PassKind
from hosts.models import DeletedVM, FeedPass, Flavor, Host, Instance
from hosts.region import merging
from hosts.region.registry import Phase, Step, registry
from journal.errors import Busy
from tests.hosts.feed_cloud import LiveCloud, read_cloud
from tests.hosts.feed_wire import WiredCloud, read_wire
from tests.hosts.served_cloud import served_cloud

pytestmark = pytest.mark.django_db(transaction=True)
VMS = 8
OWN = "our-project"
IS_PUBLIC = "os-flavor-access:is_public"


@pytest.fixture
def cloud() -> LiveCloud:
    made = LiveCloud()
    for number in range(1, VMS + 1):
        made.boot(f"v{number}", 1 + number % 2)
    read_cloud(made)
    return made


def stored() -> int:
    return Instance.objects.count()


def allocated() -> int:
    return sum(HostCapacity.objects.values_list("allocated_memory_bytes", flat=True))


def refusal() -> str:
    return FeedPass.objects.get(kind=PassKind.SERVERS).refusal


def test_an_empty_list_is_believed_where_an_administrator_finds_none_of_them(
    cloud: LiveCloud,
) -> None:
    cloud.servers.clear()
    report = read_cloud(cloud, PassKind.SERVERS)
    assert (stored(), allocated(), refusal()) == (0, 0, "")
    assert report.counts["compute.servers"].removed == VMS
    assert DeletedVM.objects.count() == VMS


def test_the_rest_of_a_cloud_need_not_go_with_it(cloud: LiveCloud) -> None:
    """All of one host, most of the region: what is left is listed by an administrator."""
    del cloud.servers[1:]
    read_cloud(cloud, PassKind.SERVERS)
    assert stored() == 1
    assert refusal() == ""


def test_an_empty_list_alone_proves_nothing(cloud: LiveCloud) -> None:
    cloud.cut = {"/servers/detail": 0}
    read_cloud(cloud, PassKind.SERVERS)
    assert stored() == VMS
    assert f"shrank from {VMS} to 0" in refusal()


@pytest.mark.parametrize("left", range(VMS))
def test_who_sees_its_own_project_alone_forgets_no_vm_of_others(
    cloud: LiveCloud, left: int
) -> None:
    """Also where so few are absent that no list looks cut short."""
    for server in cloud.servers[:left]:
        server["tenant_id"] = OWN
    read_cloud(cloud, PassKind.SERVERS)
    cloud.sees = OWN
    cloud.cut = {"/servers/detail": left}
    read_cloud(cloud, PassKind.SERVERS)
    assert stored() == VMS
    assert not DeletedVM.objects.exists()


def test_who_sees_nothing_forgets_not_even_the_last_vm(cloud: LiveCloud) -> None:
    del cloud.servers[1:]
    read_cloud(cloud, PassKind.SERVERS)
    cloud.sees = OWN
    cloud.cut = {"/servers/detail": 0}
    read_cloud(cloud, PassKind.SERVERS)
    assert stored() == 1


def test_vms_of_two_projects_that_are_found_show_that_nothing_is_hidden(cloud: LiveCloud) -> None:
    """Then nobody has to be asked whether we are an administrator."""
    cloud.server("v1")["tenant_id"] = OWN
    read_cloud(cloud, PassKind.SERVERS)
    cloud.servers.remove(cloud.server("v8"))
    cloud.asked.clear()
    read_cloud(cloud, PassKind.SERVERS)
    assert stored() == VMS - 1
    assert not [path for path in cloud.asked if "status=deleted" in path]


@pytest.mark.parametrize("fault", ["counted", "away", "down", "not told", "one is there"])
def test_a_great_loss_is_not_believed_without_the_hypervisors(cloud: LiveCloud, fault: str) -> None:
    """As where Nova lost its records of where VMs are: it lists none, and finds none."""
    kept = list(cloud.servers)
    cloud.servers.clear()
    hypervisors = cloud.region["compute"]["hypervisors"]
    if fault == "counted":
        cloud.stray = 1
    elif fault == "away":
        cloud.broken = {"/os-hypervisors"}
    elif fault == "down":
        for one in hypervisors:
            one["state"] = "down"
    elif fault == "not told":
        cloud.stray = None  # as from microversion 2.88 on
    else:
        cloud.servers.append(kept[0])
        cloud.cut = {"/servers/detail": 0}
    read_cloud(cloud, PassKind.SERVERS)
    assert stored() == VMS
    assert f"shrank from {VMS} to 0" in refusal()


def test_more_than_may_be_asked_for_take_an_operator(cloud: LiveCloud, settings: Any) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"most_asked": VMS - 1})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
    cloud.servers.clear()
    read_cloud(cloud, PassKind.SERVERS)
    assert stored() == VMS
    read_cloud(cloud, PassKind.SERVERS, accepts_shrink=True)
    assert stored() == 1
    read_cloud(cloud, PassKind.SERVERS, accepts_shrink=True)
    assert stored() == 0


@pytest.mark.parametrize("sees", [None, OWN])
def test_a_zone_that_lost_all_its_vms(cloud: LiveCloud, sees: str | None) -> None:
    """So few of the region that no list looks cut short, but nothing of the zone is left."""
    Host.objects.filter(name="node2").update(zone="az-b")
    aggregates = cloud.region["compute"]["aggregates"]
    aggregates[0]["hosts"] = ["svc1"]
    second = {"id": 2, "uuid": "a2", "name": "az-b", "hosts": ["svc2"]}
    aggregates.append({**second, "metadata": {"availability_zone": "az-b"}})
    for number in range(1, VMS + 1):
        cloud.put(f"v{number}", 2 if number <= 3 else 1)
    read_cloud(cloud)
    cloud.sees = sees
    del cloud.servers[:3]
    read_cloud(cloud, PassKind.SERVERS)
    assert stored() == (VMS if sees else VMS - 3)
    assert ("az-b" in refusal()) is bool(sees)


def test_vms_that_moved_to_another_zone_are_not_missed_in_theirs(cloud: LiveCloud) -> None:
    """The last ones of a zone are deleted after some others had left it."""
    Host.objects.filter(name="node2").update(zone="az-b")
    aggregates = cloud.region["compute"]["aggregates"]
    aggregates[0]["hosts"] = ["svc1"]
    second = {"id": 2, "uuid": "a2", "name": "az-b", "hosts": ["svc2"]}
    aggregates.append({**second, "metadata": {"availability_zone": "az-b"}})
    for number in range(1, VMS + 1):
        cloud.put(f"v{number}", 2 if number <= 3 else 1)
    read_cloud(cloud)
    SlotCheck.objects.update_or_create(zone="az-b", defaults={"listed_vms": 3})
    for number in (1, 2):
        cloud.put(f"v{number}", 1)
    read_cloud(cloud, PassKind.CHANGES)
    assert SlotCheck.objects.get(zone="az-b").listed_vms == 1
    cloud.delete("v3")
    read_cloud(cloud, PassKind.CHANGES)
    assert SlotCheck.objects.get(zone="az-b").listed_vms == 0
    assert unbelieved_zones() == {}


def test_vms_of_a_host_that_went_to_another_zone_are_not_missed(cloud: LiveCloud) -> None:
    """With most VMs of its zone."""
    for number in range(1, VMS + 1):
        cloud.put(f"v{number}", 2 if number <= 6 else 1)
    read_cloud(cloud, PassKind.CHANGES)
    SlotCheck.objects.update_or_create(zone="az-a", defaults={"listed_vms": VMS})
    FailoverZone.objects.update_or_create(zone="az-a", defaults={"vm_count": VMS})
    aggregates = cloud.region["compute"]["aggregates"]
    aggregates[0]["hosts"] = ["svc1"]
    second = {"id": 2, "uuid": "a2", "name": "az-b", "hosts": ["svc2"]}
    aggregates.append({**second, "metadata": {"availability_zone": "az-b"}})
    read_cloud(cloud, PassKind.HOSTS)
    assert Host.objects.get(name="node2").zone == "az-b"
    assert SlotCheck.objects.get(zone="az-a").listed_vms == 2
    assert FailoverZone.objects.get(zone="az-a").vm_count == 2
    assert unbelieved_zones() == {}


@pytest.mark.parametrize("kind", [PassKind.CHANGES, PassKind.SERVERS])
def test_a_pass_that_dies_after_it_removed_vms_leaves_no_list_cut_short(
    cloud: LiveCloud, monkeypatch: pytest.MonkeyPatch, kind: PassKind
) -> None:
    """What follows the removals, as the rooms of all hosts, may find what it needs busy."""
    SlotCheck.objects.update_or_create(zone="az-a", defaults={"listed_vms": VMS})
    FailoverZone.objects.update_or_create(zone="az-a", defaults={"vm_count": VMS})
    for number in range(1, VMS + 1):
        cloud.delete(f"v{number}")
    usual = registry.steps

    def without_end(phase: Phase) -> list[Step]:
        if phase is Phase.FINISH:
            raise Busy("a room was not free")
        return usual(phase)

    monkeypatch.setattr(registry, "steps", without_end)
    with pytest.raises(Busy):
        read_cloud(cloud, kind)
    monkeypatch.undo()
    assert stored() == 0
    read_cloud(cloud, PassKind.CHANGES)
    assert unbelieved_zones() == {}
    assert FailoverZone.objects.get(zone="az-a").vm_count == 0


def test_a_list_is_as_long_as_it_was_until_its_vms_are_written_elsewhere(
    cloud: LiveCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who counts it before that, and remembers that, would else miss them for ever."""
    SlotCheck.objects.update_or_create(zone="az-a", defaults={"listed_vms": VMS})
    FailoverZone.objects.update_or_create(zone="az-a", defaults={"vm_count": VMS})
    for number in range(1, VMS + 1):
        cloud.put(f"v{number}", None, status="SHELVED_OFFLOADED")

    def busy(*_: object) -> None:
        raise Busy("a room was not free")

    monkeypatch.setattr(merging, "settle", busy)
    with pytest.raises(Busy):
        read_cloud(cloud, PassKind.CHANGES)
    monkeypatch.undo()
    assert SlotCheck.objects.get(zone="az-a").listed_vms == VMS
    assert FailoverZone.objects.get(zone="az-a").vm_count == VMS
    read_cloud(cloud, PassKind.CHANGES)
    assert SlotCheck.objects.get(zone="az-a").listed_vms == 0
    assert FailoverZone.objects.get(zone="az-a").vm_count == 0


@pytest.mark.parametrize("status", ["SHELVED_OFFLOADED", "SOFT_DELETED"])
def test_vms_that_are_shelved_are_not_missed_in_their_zone(cloud: LiveCloud, status: str) -> None:
    """Neither all at once nor when the last one is deleted, shelved or not."""
    SlotCheck.objects.update_or_create(zone="az-a", defaults={"listed_vms": VMS})
    for number in range(2, VMS + 1):
        cloud.put(f"v{number}", 1 if status == "SOFT_DELETED" else None, status=status)
    read_cloud(cloud, PassKind.CHANGES)
    assert SlotCheck.objects.get(zone="az-a").listed_vms == 1
    for number in (1, 2):
        cloud.delete(f"v{number}")
    read_cloud(cloud, PassKind.CHANGES)
    assert SlotCheck.objects.get(zone="az-a").listed_vms == 0
    assert unbelieved_zones() == {}


def test_vms_whose_hosts_nova_does_not_tell_are_missed(cloud: LiveCloud) -> None:
    """As when the login is no administrator any more."""
    SlotCheck.objects.update_or_create(zone="az-a", defaults={"listed_vms": VMS})
    for number in range(1, VMS + 1):
        cloud.put(f"v{number}", None)
    read_cloud(cloud, PassKind.CHANGES)
    assert "az-a" in unbelieved_zones()


@pytest.mark.parametrize("sees", [None, OWN])
def test_over_the_wire(
    cloud: LiveCloud, sees: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.servers.clear()
    cloud.sees = sees
    with served_cloud(WiredCloud(cloud), tmp_path, monkeypatch):
        read_wire(PassKind.SERVERS)
    assert stored() == (VMS if sees else 0)


@pytest.mark.parametrize("sees", [None, OWN])
@pytest.mark.parametrize("is_public", [True, False])
def test_flavors_that_are_hidden_are_not_forgotten(
    cloud: LiveCloud, sees: str | None, *, is_public: bool
) -> None:
    flavors = cloud.region["compute"]["flavors"]
    hidden = {
        "id": "f-own",
        "name": "own",
        IS_PUBLIC: is_public,
        "extra_specs": flavors[0]["extra_specs"] | {"quota:hw_version": "own"},
    }
    flavors.append(flavors[0] | hidden)
    read_cloud(cloud, PassKind.FLAVORS)
    assert FlavorGroup.objects.filter(name="own", is_retired=False).exists()
    cloud.sees = sees
    if sees is None or is_public:
        flavors.pop()
    read_cloud(cloud, PassKind.FLAVORS)
    is_kept = bool(sees) and not is_public
    assert Flavor.objects.filter(name="own").exists() is is_kept
    assert FlavorGroup.objects.filter(name="own", is_retired=False).exists() is is_kept
    cloud.sees = None
    read_cloud(cloud, PassKind.FLAVORS)
    assert Flavor.objects.filter(name="own").exists() is is_kept
