"""Lists that are one answer: a loss is believed where each address says so, and never by itself."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from hosts.clients.listing import CloudUnreachable
from hosts.feed.lists import PassKind
from hosts.models import Aggregate, Host
from tests.hosts.feed_cloud import LiveCloud, read_cloud
from tests.hosts.region_files import small_region

pytestmark = pytest.mark.django_db(transaction=True)
HOSTS = 12
LOST = 5
PATHS = {
    "services": "/os-services",
    "resource_providers": "/resource_providers",
    "aggregates": "/os-aggregates",
}


@pytest.fixture
def cloud() -> LiveCloud:
    cloud = LiveCloud(hosts=HOSTS)
    (provider,) = small_region()["placement"]["resource_providers"]
    for number in range(1, HOSTS + 1):
        own = {"uuid": f"h{number}", "root_provider_uuid": f"h{number}", "name": f"node{number}"}
        cloud.region["placement"]["resource_providers"].append(deepcopy(provider) | own)
    (aggregate,) = cloud.region["compute"]["aggregates"]
    for number in range(2, HOSTS + 1):
        more = {"id": number, "uuid": f"agg-{number}", "name": f"agg-{number}", "metadata": {}}
        cloud.region["compute"]["aggregates"].append(deepcopy(aggregate) | more)
    read_cloud(cloud)
    return cloud


def hosts() -> dict[str, tuple[str, str]]:
    rows = Host.objects.order_by("pk").values_list("name", "zone", "status")
    return {name: (zone, status) for name, zone, status in rows}


def disable_the_first(cloud: LiveCloud) -> None:
    cloud.region["compute"]["hypervisors"][0]["status"] = "disabled"


def lose(cloud: LiveCloud, *names: str) -> None:
    for name in names:
        service = "placement" if name == "resource_providers" else "compute"
        del cloud.region[service][name][-LOST:]


def assert_nothing_is_written(cloud: LiveCloud, section: str, **options: Any) -> None:
    before = hosts()
    disable_the_first(cloud)
    with pytest.raises(CloudUnreachable, match=f"{section} shrank from {HOSTS} to {HOSTS - LOST}"):
        read_cloud(cloud, PassKind.HOSTS, **options)
    assert hosts() == before


def test_hosts_that_are_gone_do_not_keep_the_others_from_being_read(cloud: LiveCloud) -> None:
    before = hosts()
    lose(cloud, "hypervisors", "services", "resource_providers")
    disable_the_first(cloud)
    read_cloud(cloud, PassKind.HOSTS)
    zone, _ = before["node1"]
    assert hosts()["node1"] == (zone, "disabled")
    left = {f"node{number}" for number in range(2, HOSTS - LOST + 1)}
    assert {name: hosts()[name] for name in left} == {name: before[name] for name in left}


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("services", "compute.services"),
        ("resource_providers", "placement.resource_providers"),
        ("aggregates", "compute.aggregates"),
    ],
)
def test_a_list_that_is_cut_short_is_not_believed(
    cloud: LiveCloud, name: str, section: str
) -> None:
    cloud.cut = {PATHS[name]: HOSTS - LOST}
    assert_nothing_is_written(cloud, section)


@pytest.mark.parametrize(
    ("names", "section", "broken"),
    [
        (("hypervisors", "services"), "compute.services", "/os-hypervisors/h12"),
        (("resource_providers",), "placement.resource_providers", "/resource_providers/h12"),
        (("aggregates",), "compute.aggregates", "/os-aggregates/12"),
    ],
)
@pytest.mark.parametrize("is_lost", [True, False])
def test_answers_that_prove_nothing_are_not_believed(
    cloud: LiveCloud, names: tuple[str, ...], section: str, broken: str, is_lost: bool
) -> None:
    """One cannot be asked for; or all are answered with 404, also those that are there."""
    lose(cloud, *names)
    everything = broken.removesuffix("12")
    cloud.broken, cloud.lost = (set(), {everything}) if is_lost else ({broken}, set())
    assert_nothing_is_written(cloud, section)


def test_more_than_may_be_asked_for_are_not_believed(cloud: LiveCloud, settings: Any) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"most_asked": LOST - 1})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
    lose(cloud, "hypervisors", "services")
    assert_nothing_is_written(cloud, "compute.services")


def test_a_list_without_any_row_is_not_believed_whatever_the_addresses_say(
    cloud: LiveCloud,
) -> None:
    before = hosts()
    cloud.region["compute"]["services"].clear()
    cloud.region["compute"]["hypervisors"].clear()
    with pytest.raises(CloudUnreachable, match=r"compute\.services shrank from 12 to 0"):
        read_cloud(cloud, PassKind.HOSTS)
    assert hosts() == before


def test_aggregates_that_are_gone_go(cloud: LiveCloud) -> None:
    lose(cloud, "aggregates")
    disable_the_first(cloud)
    report = read_cloud(cloud, PassKind.HOSTS)
    assert not report.refusals
    assert Aggregate.objects.count() == HOSTS - LOST
    assert hosts()["node1"][1] == "disabled"


def test_the_loss_of_aggregates_without_a_number_takes_an_operator(cloud: LiveCloud) -> None:
    """As an earlier release has stored them; the first whole list tells the numbers."""
    Aggregate.objects.update(nova_number=None)
    lose(cloud, "aggregates")
    assert_nothing_is_written(cloud, "compute.aggregates")
    read_cloud(cloud, PassKind.HOSTS, accepts_shrink=True)
    assert Aggregate.objects.count() == HOSTS - LOST
    assert hosts()["node1"][1] == "disabled"


def test_a_pass_over_hosts_tells_the_numbers_of_aggregates(cloud: LiveCloud) -> None:
    Aggregate.objects.update(nova_number=None)
    read_cloud(cloud, PassKind.HOSTS)
    numbers = Aggregate.objects.order_by("nova_number").values_list("nova_number", flat=True)
    assert list(numbers) == list(range(1, HOSTS + 1))
