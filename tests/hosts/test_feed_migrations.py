"""VMs that Nova moves hold room on both hosts until that is over, whatever the feed is told."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.models import HostCapacity, Reservation
from capacity.nova.in_flight import InFlightAsk, after_vm_changes, end_expired, hold_in_flight
from hosts.clients.listing import CloudUnreachable
from hosts.feed.lists import PassKind
from hosts.models import FeedPass, Instance, ServerMigration
from journal.clock import database_now
from scheduling.resources import GIB, ResourceVector
from tests.examples import few
from tests.hosts.feed_cloud import LiveCloud, places, read_cloud, taken
from tests.hosts.region_files import empty_database
from tests.ledger import assert_ledger_holds, assert_rooms_add_up

pytestmark = pytest.mark.django_db(transaction=True)

Truth = dict[str, dict[str, int]]
HOSTS = 3


@pytest.fixture
def cloud() -> LiveCloud:
    cloud = LiveCloud(hosts=HOSTS)
    for number in range(1, 3):
        cloud.boot(f"v{number}", number)
    read_cloud(cloud)
    return cloud


def held() -> dict[tuple[str, str], int]:
    """Return GiB that rows in flight hold, by VM and host."""
    rows = Reservation.objects.filter(kind="in_flight").values_list(
        "vm_uuid", "target_host__name", "blocked_memory_bytes"
    )
    return {(vm, host): size // GIB for vm, host, size in rows}


def look(cloud: LiveCloud, *kinds: PassKind) -> None:
    read_cloud(cloud, *(kinds or (PassKind.MIGRATIONS, PassKind.CHANGES)))


def resized(cloud: LiveCloud, vm: str, gib: int, **fields: Any) -> None:
    server = cloud.server(vm)
    server["flavor"] = server["flavor"] | {"ram": gib * 1024}
    server |= fields
    cloud.touch(server)


def claim(cloud: LiveCloud, migration: dict[str, Any], old_gib: int, new_gib: int) -> None:
    for consumer, gib in (("uuid", old_gib), ("instance_uuid", new_gib)):
        cloud.claims[migration[consumer]] = {"a": {"MEMORY_MB": gib * 1024, "VCPU": 2}}


def test_a_live_migration_holds_its_target_until_the_vm_is_listed_there(cloud: LiveCloud) -> None:
    migration = cloud.start("v1", 1, 3)
    look(cloud)
    assert held() == {("v1", "node3"): 8}
    assert taken() == {"node1": 1, "node2": 1, "node3": 0}

    migration["status"] = "completed"
    look(cloud, PassKind.MIGRATIONS)
    assert held() == {("v1", "node3"): 8}, "the VM list does not show it there yet"

    cloud.put("v1", 3)
    look(cloud, PassKind.CHANGES)
    assert held() == {}
    assert taken() == {"node1": 0, "node2": 1, "node3": 1}
    assert not ServerMigration.objects.exists()
    assert_ledger_holds()


@pytest.mark.parametrize("status", ["failed", "cancelled", "error"])
def test_a_migration_that_came_to_nothing_gives_its_target_back(
    cloud: LiveCloud, status: str
) -> None:
    migration = cloud.start("v1", 1, 3)
    look(cloud)
    migration["status"] = status
    look(cloud)
    assert held() == {}
    assert places()["v1"] == "node1"


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_resize_holds_both_hosts_with_both_sizes_until_it_is_confirmed_or_reverted(
    cloud: LiveCloud, is_kept: bool
) -> None:
    migration = cloud.start("v1", 1, 3, migration_type="resize", status="migrating")
    claim(cloud, migration, 8, 32)
    look(cloud)
    assert held() == {("v1", "node3"): 32}

    migration["status"] = "finished"
    resized(cloud, "v1", 32, status="VERIFY_RESIZE")
    cloud.put("v1", 3)
    look(cloud, PassKind.CHANGES)
    assert held() == {("v1", "node1"): 8}, "at once, before any look at migrations"
    look(cloud)
    assert held() == {("v1", "node1"): 8}
    assert end_expired(database_now() + timedelta(minutes=30)) == 0

    migration["status"] = "confirmed" if is_kept else "reverted"
    resized(cloud, "v1", 32 if is_kept else 8, status="ACTIVE")
    cloud.put("v1", 3 if is_kept else 1)
    look(cloud)
    assert held() == {}
    assert places()["v1"] == ("node3" if is_kept else "node1")
    assert_ledger_holds()


def test_sizes_that_nobody_may_read_are_those_that_were_seen(cloud: LiveCloud) -> None:
    cloud.broken = {"/allocations/"}
    migration = cloud.start("v1", 1, 3, migration_type="resize", status="migrating")
    look(cloud)
    assert held() == {("v1", "node3"): 8}
    migration["status"] = "finished"
    resized(cloud, "v1", 32, status="VERIFY_RESIZE")
    cloud.put("v1", 3)
    look(cloud, PassKind.CHANGES, PassKind.MIGRATIONS)
    assert held() == {("v1", "node1"): 8}


def test_a_resize_in_place_holds_both_sizes_on_one_host(cloud: LiveCloud) -> None:
    migration = cloud.start("v1", 1, 1, migration_type="resize", status="migrating")
    claim(cloud, migration, 8, 32)
    look(cloud)
    assert held() == {("v1", "node1"): 32}
    resized(cloud, "v1", 32, status="VERIFY_RESIZE")
    migration["status"] = "finished"
    look(cloud)
    assert held() == {("v1", "node1"): 8}


def test_where_claims_say_it_nothing_is_counted_twice(cloud: LiveCloud, settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": "placement"})
    cloud.start("v1", 1, 3)
    look(cloud)
    assert held() == {("v1", "node3"): 8}, "Placement knows nothing of this host"
    asked = [path for path in cloud.asked if path.startswith("/allocations/")]
    assert not asked


def test_a_placement_for_the_move_is_taken_over_and_held_once(cloud: LiveCloud) -> None:
    ask = InFlightAsk(
        vm_uuid="v1",
        resources=ResourceVector(memory_bytes=8 * GIB, vcpus=2),
        intent="live_migration",
    )
    with transaction.atomic():
        assert hold_in_flight(ask, candidates=["node3", "node2"], request_id="r")
    assert held() == {("v1", "node2"): 8, ("v1", "node3"): 8}
    migration = cloud.start("v1", 1, 3)
    look(cloud, PassKind.MIGRATIONS)
    assert held() == {("v1", "node2"): 8, ("v1", "node3"): 8}
    cloud.put("v1", 3)
    look(cloud, PassKind.CHANGES)
    after_vm_changes()
    assert held() == {("v1", "node1"): 8}, "not over before Nova says so"
    migration["status"] = "completed"
    look(cloud)
    assert held() == {}
    assert_rooms_add_up()


def test_a_migration_that_is_lost_from_the_list_stays_while_nova_has_it_or_knows_nothing(
    cloud: LiveCloud,
) -> None:
    migration = cloud.start("v1", 1, 3)
    look(cloud)
    before = held()
    cloud.cut = {"/os-migrations": 0}
    partial = {"id": "v1", "status": "UNKNOWN"}
    whole = cloud.servers[0]
    cloud.servers[0] = partial  # the cell is down: it has neither migrations nor VMs
    look(cloud, PassKind.MIGRATIONS)
    assert held() == before
    cloud.servers[0] = whole
    cloud.broken = {"/os-migrations?instance_uuid="}
    look(cloud, PassKind.MIGRATIONS)
    assert held() == before
    cloud.cut, cloud.broken = {}, set()
    look(cloud)
    assert held() == before

    cloud.migrations.remove(migration)  # archived, while its VM is there
    look(cloud)
    assert held() == {}


def test_rows_of_a_feed_that_ended_go_by_their_time_and_not_while_the_cloud_is_away(
    cloud: LiveCloud, settings: Any
) -> None:
    cloud.start("v1", 1, 3)
    look(cloud)
    late = database_now() + timedelta(hours=2)
    feed = settings.HEADROOM.feed.model_copy(update={"cloud": "mini"})
    plain = settings.HEADROOM
    settings.HEADROOM = plain.model_copy(update={"feed": feed})
    FeedPass.objects.filter(kind=PassKind.CHANGES).update(listed_at=late)
    assert end_expired(late) == 0, "nobody looked at migrations meanwhile"
    settings.HEADROOM = plain
    assert end_expired(late) == 1
    assert_rooms_add_up()


def test_rows_that_are_still_needed_are_prolonged(cloud: LiveCloud) -> None:
    cloud.start("v1", 1, 3)
    look(cloud)
    worn = database_now() + timedelta(minutes=5)
    Reservation.objects.filter(kind="in_flight").update(end_time=worn)
    look(cloud, PassKind.MIGRATIONS)
    assert Reservation.objects.filter(end_time__gt=worn + timedelta(minutes=30)).count() == 1


def test_a_deleted_vm_holds_nothing_though_its_migration_is_listed(cloud: LiveCloud) -> None:
    cloud.start("v1", 1, 3)
    look(cloud)
    cloud.delete("v1")
    look(cloud, PassKind.CHANGES)
    assert held() == {}


vms = st.sampled_from(["v1", "v2", "v3"])
hosts = st.integers(1, HOSTS)
happenings = st.one_of(
    st.tuples(st.just("live"), vms, hosts),
    st.tuples(st.just("resize"), vms, hosts, st.sampled_from([4, 16, 32])),
    st.tuples(st.just("go_on"), vms),
    st.tuples(st.just("go_on"), vms),
    st.tuples(st.just("give_up"), vms),
    st.tuples(st.just("delete"), vms),
    st.tuples(st.just("archive")),
)
kinds = st.sampled_from([PassKind.MIGRATIONS, PassKind.CHANGES, PassKind.SERVERS])
looks = st.one_of(
    st.tuples(st.just("look"), kinds),
    st.tuples(st.just("cut"), kinds, st.integers(0, 2)),
    st.tuples(st.just("twice"), kinds),
    st.tuples(st.just("broken"), kinds),
    st.tuples(st.just("both")),
)


class Moving:
    """A Nova that moves VMs, and what they really need.

    Attributes:
        known: What they needed when all lists were last read.
    """

    def __init__(self) -> None:
        self.cloud = LiveCloud(HOSTS)
        self.moves: dict[str, dict[str, Any]] = {}
        self.truth: Truth = {}
        self.known: Truth = {}
        for number in range(1, 4):
            self.cloud.boot(f"v{number}", number)
            self.truth[f"v{number}"] = {f"node{number}": 8}

    def live(self, vm: str, target: int) -> None:
        self._begin(vm, target, 0)

    def resize(self, vm: str, target: int, gib: int) -> None:
        self._begin(vm, target, gib)

    def _begin(self, vm: str, target: int, gib: int) -> None:
        if vm in self.moves or not self.truth.get(vm):
            return
        ((source, old),) = self.truth[vm].items()
        number = int(source.removeprefix("node"))
        if not gib and number == target:
            return
        kind, status = ("resize", "migrating") if gib else ("live-migration", "queued")
        move = self.cloud.start(vm, number, target, migration_type=kind, status=status)
        move["uuid"] = f"{move['uuid']}-{len(self.cloud.asked)}"
        new = gib or old
        claim(self.cloud, move, old, new)
        self.moves[vm] = {"move": move, "source": number, "target": target, "old": old, "new": new}
        needs: defaultdict[str, int] = defaultdict(int)
        needs[source] += old
        needs[f"node{target}"] += new
        self.truth[vm] = dict(needs)

    def go_on(self, vm: str) -> None:
        if vm not in self.moves:
            return
        own = self.moves[vm]
        move, after = own["move"], f"node{own['target']}"
        if move["migration_type"] == "resize":
            if move["status"] == "migrating":
                move["status"] = "finished"
                resized(self.cloud, vm, own["new"], status="VERIFY_RESIZE")
                self.cloud.put(vm, own["target"])
                return
            move["status"] = "confirmed"
            resized(self.cloud, vm, own["new"], status="ACTIVE")
        else:
            order = ["queued", "running", "post-migrating", "completed"]
            move["status"] = order[order.index(move["status"]) + 1]
            if move["status"] == "post-migrating":
                self.cloud.put(vm, own["target"])
            if move["status"] != "completed":
                return
        self.truth[vm] = {after: own["new"]}
        del self.moves[vm]

    def give_up(self, vm: str) -> None:
        own = self.moves.get(vm)
        if own is None or own["move"]["status"] == "post-migrating":
            return
        is_resize = own["move"]["migration_type"] == "resize"
        own["move"]["status"] = "reverted" if is_resize else "cancelled"
        resized(self.cloud, vm, own["old"], status="ACTIVE")
        self.cloud.put(vm, own["source"])
        self.truth[vm] = {f"node{own['source']}": own["old"]}
        del self.moves[vm]

    def delete(self, vm: str) -> None:
        if not self.truth.get(vm):
            return
        self.cloud.delete(vm)
        self.truth[vm] = {}
        if own := self.moves.pop(vm, None):
            own["move"]["status"] = "confirmed"

    def archive(self) -> None:
        under_way = [own["move"] for own in self.moves.values()]
        self.cloud.migrations[:] = [one for one in self.cloud.migrations if one in under_way]

    def look(self, *kinds: PassKind) -> None:
        with suppress(CloudUnreachable):
            read_cloud(self.cloud, *kinds)

    def cut(self, kind: PassKind, at: int) -> None:
        path = "/os-migrations" if kind is PassKind.MIGRATIONS else "/servers/detail"
        self.cloud.cut = {path: at}
        self.look(kind)
        self.cloud.cut = {}

    def twice(self, kind: PassKind) -> None:
        doubled = [dict(one) for one in self.cloud.migrations]
        self.cloud.migrations.extend(doubled)
        self.look(kind)
        del self.cloud.migrations[len(self.cloud.migrations) - len(doubled) :]

    def broken(self, kind: PassKind) -> None:
        self.cloud.broken = {"/os-migrations?status=finished", "/servers/detail", "/allocations"}
        self.look(kind)
        self.cloud.broken = set()

    def both(self) -> None:
        self.look(PassKind.MIGRATIONS, PassKind.CHANGES)
        self.known = {vm: dict(needs) for vm, needs in self.truth.items()}


def covered() -> Truth:
    """Return GiB that are counted or held, by VM and host."""
    found: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (vm, host), gib in held().items():
        found[vm][host] += gib
    for vm, host, size in Instance.objects.filter(host__isnull=False).values_list(
        "openstack_id", "host__name", "memory_bytes"
    ):
        found[vm][host] += size // GIB
    return {vm: dict(places) for vm, places in found.items()}


@few(5)
@given(st.lists(st.one_of(happenings, happenings, looks), min_size=4, max_size=20))
def test_room_that_a_known_move_needs_is_never_free(history: list[tuple[Any, ...]]) -> None:
    empty_database()
    moving = Moving()
    read_cloud(moving.cloud)
    moving.both()
    for what, *facts in history:
        getattr(moving, what)(*facts)
        now = covered()
        for vm, needs in moving.truth.items():
            for host, gib in needs.items():
                known = min(gib, moving.known.get(vm, {}).get(host, 0))
                assert now.get(vm, {}).get(host, 0) >= known, (vm, host, now, moving.truth)
        assert_rooms_add_up()
        assert_free_is_what_is_left()

    moving.both()
    assert covered() == {vm: needs for vm, needs in moving.truth.items() if needs}
    for vm in list(moving.moves):
        moving.give_up(vm)
        moving.go_on(vm)
        moving.go_on(vm)
    moving.both()
    assert held() == {}
    assert not ServerMigration.objects.exists()


def assert_free_is_what_is_left() -> None:
    """What rooms say is taken is what VMs are counted and held for, on each host."""
    sums: defaultdict[str, int] = defaultdict(int)
    for places_of_vm in covered().values():
        for host, gib in places_of_vm.items():
            sums[host] += gib
    rooms = HostCapacity.objects.values_list(
        "host__name", "allocated_memory_bytes", "in_flight_memory_bytes"
    )
    assert {host: (own + flying) // GIB for host, own, flying in rooms} == {
        f"node{n}": sums[f"node{n}"] for n in range(1, HOSTS + 1)
    }
