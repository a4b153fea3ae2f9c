"""Whatever happens in a cloud and to its feed, the rows end as those of a fresh import."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.models import HostCapacity
from hosts.clients.listing import CloudUnreachable
from hosts.domain.notifications import Hint
from hosts.feed.hints import note_hints
from hosts.feed.lists import PassKind
from hosts.models import Instance
from tests.examples import few
from tests.hosts.feed_cloud import LiveCloud, in_a_thread, read_cloud, without_about
from tests.hosts.region_files import dump, empty_database, load, write_file
from tests.killing import run_in_child
from tests.ledger import assert_ledger_holds

pytestmark = pytest.mark.django_db(transaction=True)

HOSTS = 3
LISTED = "/servers/detail?all_tenants=1&limit=1000"

vms = st.integers(1, 6).map("v{}".format)
hosts = st.integers(1, HOSTS)
happenings = st.one_of(
    st.tuples(st.just("boot"), vms, hosts),
    st.tuples(st.just("move"), vms, hosts),
    st.tuples(st.just("shelve"), vms),
    st.tuples(st.just("resize"), vms, st.sampled_from([4096, 8192, 16384])),
    st.tuples(st.just("delete"), vms),
)
looks = st.one_of(
    st.tuples(st.just("changes")),
    st.tuples(st.just("full")),
    st.tuples(st.just("overtaken"), happenings),
    st.tuples(st.just("cut"), st.integers(0, 4)),
    st.tuples(st.just("broken"), st.sampled_from(["/servers/detail", "/servers/v"])),
    st.tuples(st.just("killed"), st.sampled_from(["changes", "servers"]), st.integers(5, 60)),
    st.tuples(st.just("hint"), vms),
)


class World:
    """A cloud, what happens in it, and how it is looked at."""

    def __init__(self) -> None:
        self.cloud = LiveCloud(HOSTS)
        self.booted: Counter[str] = Counter()
        self.alive: dict[str, str] = {}

    def happen(self, what: str, vm: str, *facts: Any) -> None:
        own = self.alive.get(vm)
        if what == "boot":
            if own is None:
                self.booted[vm] += 1
                self.alive[vm] = f"{vm}-{self.booted[vm]}"
                self.cloud.boot(self.alive[vm], *facts)
        elif own is None:
            return
        elif what == "move":
            self.cloud.put(own, *facts, status="ACTIVE")
        elif what == "shelve":
            self.cloud.put(own, None, status="SHELVED_OFFLOADED")
        elif what == "resize":
            server = self.cloud.server(own)
            server["flavor"] = server["flavor"] | {"ram": facts[0]}
            self.cloud.touch(server)
        else:
            self.cloud.delete(self.alive.pop(vm))

    def look(self, how: str, *facts: Any) -> None:
        cloud = self.cloud
        if how == "changes":
            read_cloud(cloud, PassKind.CHANGES)
        elif how == "full":
            read_cloud(cloud, PassKind.SERVERS)
        elif how == "hint":
            note_hints([Hint(kind=PassKind.SERVERS, object_id=self.alive.get(facts[0], "unknown"))])
        elif how == "overtaken":
            self.overtaken(facts[0])
        elif how == "cut":
            cloud.cut = {"/servers/detail": facts[0]}
            read_cloud(cloud, PassKind.SERVERS)
        elif how == "broken":
            cloud.broken = {facts[0]}
            with suppress(CloudUnreachable):
                read_cloud(cloud, PassKind.SERVERS)
        else:
            run_in_child(partial(read_cloud, cloud, PassKind(facts[0])), facts[1])
        cloud.cut, cloud.broken, cloud.meanwhile = {}, set(), {}

    def overtaken(self, happening: tuple[Any, ...]) -> None:
        """Read all VMs; after the first page something happens, and a look at changes sees it."""

        def happen_and_see() -> None:
            self.happen(*happening)
            read_cloud(self.cloud, PassKind.CHANGES)

        self.cloud.meanwhile = {LISTED: in_a_thread(happen_and_see)}
        read_cloud(self.cloud, PassKind.SERVERS)


@few(5)
@given(st.lists(st.one_of(happenings, happenings, looks), min_size=4, max_size=14))
def test_any_history_seen_by_any_passes_ends_as_a_fresh_import(
    tmp_path: Path, history: list[tuple[Any, ...]]
) -> None:
    empty_database()
    world = World()
    read_cloud(world.cloud)
    for what, *facts in history:
        if what in {"boot", "move", "shelve", "resize", "delete"}:
            world.happen(what, *facts)
        else:
            world.look(what, *facts)
        assert_rooms_follow_vms()
    read_cloud(world.cloud, PassKind.CHANGES)
    assert {vm for vm, _ in stored()} == set(world.alive.values())
    read_cloud(world.cloud)
    fed = without_about(dump())
    assert_ledger_holds()

    empty_database()
    services = ("identity", "compute", "image", "placement")
    load(write_file(tmp_path, {name: world.cloud.region[name] for name in services}))
    assert without_about(dump()) == fed


def stored() -> list[tuple[str, str | None]]:
    return list(Instance.objects.values_list("openstack_id", "host__name"))


def assert_rooms_follow_vms() -> None:
    taken: Counter[str] = Counter()
    for host, memory_bytes in Instance.objects.values_list("host__name", "memory_bytes"):
        taken[host] += memory_bytes
    rooms = HostCapacity.objects.values_list("host__name", "allocated_memory_bytes")
    assert dict(rooms) == {
        f"node{number}": taken[f"node{number}"] for number in range(1, HOSTS + 1)
    }
