"""The map of hosts, compared with rows and with rooms of groups by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from capacity.figures.zone_capacity import group_room
from capacity.groups.reading import load_group_definitions
from capacity.host_table import current_host_table
from console.hosts.map import RISK_BOUNDS
from core.text import memory_short, percent_text
from failover.models import FailoverDecision
from hosts.models import Aggregate, Host, HostState
from tests import factories
from tests.admin.conftest import grow_region
from tests.admin.test_pages import count_queries, page_url

pytestmark = pytest.mark.django_db
GIB = 1 << 30
URL = "headroom_map"
TILE = re.compile(r'<a href="([^"]*)"><rect class="hr-tile hr-heat-(\d)([^"]*)".*?<title>(.*?)<')


def page_of(client: Client, **asked: str) -> Any:
    response = client.get(reverse(URL), asked)
    assert response.status_code == 200
    return response.context["page"]


def tiles_of(page: Any) -> dict[str, tuple[str, int, str, str]]:
    """Return name -> (address, shade, marks, words)."""
    found = {}
    for group in page.groups:
        for url, level, marks, words in TILE.findall(str(group.picture)):
            name, _, said = words.partition(": ")
            found[name] = (url, int(level), marks.strip(), said)
    return found


def amount(bytes_: int, whole: int) -> str:
    return f"{memory_short(bytes_)} of {memory_short(whole)} ({percent_text(bytes_, whole)})"


def test_each_host_of_the_zone_has_a_tile_with_its_free_and_held_room(
    admin_client: Client,
) -> None:
    factories.make_host("z1", zone="az-b", memory_gib=10)
    for number, (taken, held) in enumerate([(0, 0), (10, 20), (50, 0), (99, 1), (100, 0)]):
        host = factories.make_host(
            f"h{number}", memory_gib=100, state=HostState.UP if number else HostState.DOWN
        )
        if taken:
            factories.make_vm(host=host, memory_gib=taken)
        if held:
            factories.make_reservation(host, memory_gib=held)

    free, reserved = page_of(admin_client, zone="az-a"), page_of(admin_client, show="reserved")

    rooms = {host.name: host.room for host in Host.objects.filter(zone="az-a")}
    drawn, held_tiles = tiles_of(free), tiles_of(reserved)
    assert set(drawn) == set(rooms) == set(held_tiles)
    for name, room in rooms.items():
        whole, held = room.effective_memory_bytes, room.failover_memory_bytes
        left = whole - room.allocated_memory_bytes - held
        url, level, marks, said = drawn[name]
        assert url == page_url(Host, "change", room.host_id)
        assert said.startswith(amount(left, whole))
        assert level == next(n for n in range(6) if left * 5 <= n * whole)
        assert ("closed" in marks) == (name == "h0")
        assert held_tiles[name][3].startswith(amount(held, whole))
    assert free.sum == "220 GiB"
    assert [line.name for line in free.lines] == ["h0", "h1", "h2", "h3", "h4"]
    assert free.headings == ("Memory, GiB", "Of all its memory, GiB", "Share")
    assert {len(line.cells) for line in free.lines} == {3}
    assert not any("GiB" in cell for line in free.lines for cell in line.cells)
    assert set(tiles_of(page_of(admin_client, zone="az-b"))) == {"z1"}


def test_stranded_is_what_no_group_can_take(admin_client: Client) -> None:
    factories.make_domain("d", name="customers")
    factories.make_project(domain_id="d")
    factories.make_group("small", flavors=[("s8", 8 * 1024, 2)])
    factories.make_group("large", flavors=[("l64", 64 * 1024, 16)])
    factories.make_host("dry", memory_gib=96, vcpus=4)
    factories.make_host("odd", memory_gib=100, vcpus=100)
    factories.make_host("tiny", memory_gib=6, vcpus=9)
    factories.make_host("away", memory_gib=64, vcpus=64, state=HostState.DOWN)

    drawn = tiles_of(page_of(admin_client, show="stranded"))

    table, groups = current_host_table(), load_group_definitions()
    rooms = [group_room(table, "az-a", group) for group in groups.values()]
    for place, name in enumerate(rooms[0].names):
        usable = max(int(room.usable_memory_bytes[place]) for room in rooms)
        left = int(rooms[0].left_memory_bytes[place])
        whole = int(table.eff_memory_bytes[table.row_of[name]])
        assert drawn[name][3].startswith(amount(left - usable, whole))
    assert drawn["odd"][3].startswith("4 GiB")
    assert drawn["dry"][3].startswith("80 GiB")
    by_group = page_of(admin_client, by="group")
    assert {group.title for group in by_group.groups} == {"large, small", "no flavor group"}


def test_risk_counts_vms_without_any_slot(admin_client: Client) -> None:
    counts = {"h0": 0, "h1": 1, "h2": 3, "h3": 16}
    for name, bare in counts.items():
        host = factories.make_host(name, memory_gib=100)
        for number in range(bare + 1):
            vm = factories.make_vm(host=host, memory_gib=1)
            FailoverDecision.objects.create(
                vm_uuid=vm.openstack_id, zone="az-a", required_count=2, reason="no_room",
                current_count=0 if number < bare else 1, since=timezone.now(),
            )  # fmt: skip

    drawn = tiles_of(page_of(admin_client, show="risk"))

    for name, bare in counts.items():
        _, level, marks, said = drawn[name]
        assert level == sum(bare >= bound for bound in RISK_BOUNDS)
        assert ("bad" in marks) == bool(bare)
        assert said.startswith(f"{bare} VM")


def test_hosts_stand_by_rack_or_aggregate(admin_client: Client) -> None:
    for name, rack in (("h1", "bb10"), ("h2", "bb9"), ("h3", ""), ("h10", "bb10")):
        factories.make_host(name, building_block=rack)
    for name, hosts in (("ssd", ["h1"]), ("gpu", ["h1", "h2"])):
        Aggregate.objects.create(uuid=name, name=name, host_names=hosts)
    Aggregate.objects.create(
        uuid="z", name="az-a", metadata={"availability_zone": "az-a"}, host_names=["h3"]
    )

    def titles(by: str) -> list[tuple[str, str]]:
        return [(group.title, group.note) for group in page_of(admin_client, by=by).groups]

    assert titles("rack") == [("bb9", "1 host"), ("bb10", "2 hosts"), ("no rack", "1 host")]
    assert titles("aggregate") == [("gpu", "2 hosts"), ("no aggregate", "2 hosts")]
    assert titles("no such word") == titles("rack")


def test_without_hosts_it_says_so(admin_client: Client) -> None:
    answer = admin_client.get(reverse(URL), {"zone": "nowhere", "show": "x"})
    verdict = answer.context["page"].verdict
    assert (verdict.tone, verdict.title) == ("idle", "No host is known")
    assert "./run manage connect CLOUD" in answer.content.decode()


def test_one_glance_tells_how_much_there_is_and_where(admin_client: Client) -> None:
    for number, (taken, held) in enumerate([(0, 0), (60, 20), (100, 0)]):
        host = factories.make_host(
            f"h{number}", memory_gib=100, state=HostState.UP if number else HostState.DOWN
        )
        if taken:
            vm = factories.make_vm(host=host, memory_gib=taken)
        if held:
            factories.make_reservation(host, memory_gib=held)

    def told(show: str) -> tuple[str, str, str]:
        verdict = page_of(admin_client, show=show).verdict
        return verdict.tone, verdict.title, verdict.sentence

    closed = "1 of 3 hosts take none now."
    assert told("free") == (
        "ok",
        "az-a: 120 GiB (40 %) of 300 GiB are free, on 2 hosts",
        f"{closed} Most: h0 with 100 GiB of 100 GiB (100 %).",
    )
    assert told("reserved")[:2] == ("ok", "az-a: 20 GiB (6 %) of 300 GiB are reserved, on 1 host")
    assert told("stranded")[:2] == ("idle", "az-a: it is not known what is stranded")
    assert told("risk") == (
        "ok",
        "az-a: every VM that is owed a failover slot has one at least",
        closed,
    )
    FailoverDecision.objects.create(
        vm_uuid=vm.openstack_id, zone="az-a", required_count=2, reason="no_room",
        current_count=0, since=timezone.now(),
    )  # fmt: skip
    assert told("risk") == (
        "bad",
        "az-a: 1 VM on 1 host would have no slot if their host were lost",
        f"{closed} Most: h2 with 1 VM without any failover slot.",
    )


@pytest.mark.usefixtures("region")
def test_it_takes_few_statements_however_many_hosts(admin_client: Client) -> None:
    urls = [
        f"{reverse(URL)}?show={show}&by={by}"
        for show, by in (
            ("free", "rack"), ("reserved", "aggregate"), ("stranded", "group"), ("risk", "rack")
        )
    ]  # fmt: skip
    before = [count_queries(admin_client, url) for url in urls]
    grow_region(3)

    assert [count_queries(admin_client, url) for url in urls] == before
    assert max(before) <= 15


@pytest.mark.usefixtures("region")
def test_it_is_for_those_who_may_see_hosts_and_their_room() -> None:
    user = User.objects.create_user("looker", password="password", is_staff=True)
    client = Client()
    client.force_login(user)
    assert client.get(reverse(URL)).status_code == 403

    user.user_permissions.set(
        Permission.objects.filter(codename__in=["view_host", "view_hostcapacity"])
    )
    client.force_login(User.objects.get(pk=user.pk))
    page = page_of(client, show="risk", by="aggregate")
    assert {label for _, label, _ in page.measures} == {"free", "stranded", "reserved"}
    assert {label for _, label, _ in page.arrangements} == {"rack", "group"}
