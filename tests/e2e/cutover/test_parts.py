"""Hosts of a cloud move from a real openstack-placement to us one by one, and back."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pydantic import SecretStr

from benchmarks.placement_equality import what_differs
from placement.clients.reference_database import read_database
from placement.cutover import parted
from placement.cutover.rounds import one_round
from placement.cutover.soon import wait_for_mirror
from placement.models import MirroredWrite, Origin, Phase, ResourceProvider, WriteFence
from placement.selectors.contents import read_contents
from placement.services.audit import find_problems
from tests.e2e.placement_peers import MOUNT, PlacementServer, Request
from tests.e2e.processes import ALONE, OPEN, WebServer, database_url
from tests.e2e.upstream_placement import UpstreamPlacement, running_upstream
from tests.e2e.write_load import (
    PROJECT,
    WriteLoad,
    cell_of,
    claim,
    expected_consumers,
    make_cloud,
    root_of,
)
from tests.factories import make_host
from tests.killing import die_at_each_distinct_statement
from tests.placement.client import PlacementClient

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

HOSTS, CONSUMERS = 4, 8
TIMEOUT_SECONDS = 20.0
RATE = 5.0  # of each of four
LEFT = (
    "UPDATE placement_write_fence SET ends_at = clock_timestamp() - interval '1 second'",
    "UPDATE placement_forwarded_write SET ends_at = clock_timestamp() - interval '1 second'",
    "UPDATE placement_mirrored_write SET sent_at = sent_at - interval '1 hour'",
    "UPDATE placement_cutover SET closes_at = closes_at - interval '1 hour'",
)
LONG_AGO = "UPDATE placement_cutover SET began_at = began_at - interval '1 hour'"


@pytest.fixture(scope="module")
def upstream(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[UpstreamPlacement]:
    del django_db_setup
    with running_upstream(tmp_path_factory.mktemp("upstream")) as running:
        yield running


@pytest.fixture
def _gateway(settings: Any, upstream: UpstreamPlacement) -> Iterator[None]:
    """Give this process the settings of a gateway."""
    gateway = settings.HEADROOM.gateway.model_copy(
        update={
            "upstream_url": upstream.url,
            "token": SecretStr("admin"),
            "timeout_seconds": TIMEOUT_SECONDS,
        }
    )
    placement = settings.HEADROOM.placement.model_copy(update={"host_providers": False})
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={"gateway": gateway, "placement": placement, "auth": "noauth"}
    )
    yield
    wait_for_mirror()


@pytest.fixture
def webs(
    transactional_db: None, tmp_path: Path, upstream: UpstreamPlacement
) -> Iterator[list[WebServer]]:
    """Two web servers on one database."""
    del transactional_db
    overrides = {**OPEN, **ALONE, **upstream.settings(timeout_seconds=str(TIMEOUT_SECONDS))}
    servers = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        servers.append(WebServer(directory=tmp_path / name, overrides=overrides))
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.end()


@pytest.fixture
def theirs(upstream: UpstreamPlacement) -> Iterator[PlacementServer]:
    server = PlacementServer(port=upstream.port, prefix=MOUNT)
    yield server
    server.close()


@pytest.fixture
def client(transactional_db: None, _gateway: None, upstream: UpstreamPlacement) -> PlacementClient:
    """A client of a cloud that is copied."""
    del transactional_db
    upstream.fill(make_cloud(HOSTS, CONSUMERS))
    step("copy")
    execute(LONG_AGO)
    return gateway_client()


def gateway_client() -> PlacementClient:
    return PlacementClient(version="1.36", X_Roles="admin,service")


def step(name: str, *arguments: str) -> dict[str, Any]:
    out = StringIO()
    call_command("placement_cutover", name, "--json", *arguments, stdout=out)
    return dict(json.loads(out.getvalue()))


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def assert_same(upstream: UpstreamPlacement) -> None:
    """Let both sides come to rest, and compare their databases by SQL alone."""
    wait_for_mirror()
    for _ in range(3):
        one_round()
    assert not MirroredWrite.objects.exists()
    assert not WriteFence.objects.exists()
    assert what_differs(upstream.database, database_url()) == []
    there, here = read_database(upstream.database), read_contents(with_copies=True)
    assert there.providers == here.providers
    assert not [one for one in find_problems() if one.kind in {"drift", "project_usage"}]


def ours() -> set[str]:
    return {
        str(uuid)
        for uuid in ResourceProvider.objects.exclude(origin=Origin.UPSTREAM).values_list(
            "uuid", flat=True
        )
    }


def consumer(number: int) -> str:
    return str(UUID(int=(1 << 103) + number))


def old(number: int) -> str:
    return str(UUID(int=(1 << 101) + number))


def hosts_of(answer: Any) -> set[int]:
    used = {uuid for one in answer.json["allocation_requests"] for uuid in one["allocations"]}
    return {number for number in range(HOSTS) if cell_of(number) in used}


def test_a_host_changes_sides_alone_and_returns(
    client: PlacementClient, upstream: UpstreamPlacement
) -> None:
    plan = step("plan", "--host", "host-0")
    assert (plan["trees"], plan["providers"], plan["consumers"]) == (1, 2, CONSUMERS // HOSTS)
    assert (plan["spanning"], plan["shares"], plan["in_the_way"]) == (0, [], [])

    done = step("switch", "--host", "host-0")
    assert (done["phase"], done["turned"], done["trees_of_ours"]) == (Phase.PARTED, 1, 1)
    assert ours() == {root_of(0), cell_of(0)}
    assert_same(upstream)

    # Who asked is told the same by either side, and each does its own writes.
    new, other = f"/allocations/{consumer(1)}", f"/allocations/{consumer(2)}"
    assert client.put(new, claim(0, None)).status == 204
    assert client.put(other, claim(1, None)).status == 204
    assert client.get(new).json["consumer_generation"] == 1
    assert client.get(other).json["allocations"].keys() == {root_of(1), cell_of(1)}
    listed = client.get("/resource_providers").json["resource_providers"]
    assert len(listed) == 2 * HOSTS
    query = "/allocation_candidates?resources1=VCPU:1&resources2=DISK_GB:1&group_policy=none"
    assert hosts_of(client.get(query)) == set(range(HOSTS))
    assert len(client.get(f"{query}&limit=3").json["allocation_requests"]) == 3
    used = client.get(f"/usages?project_id={PROJECT}").json["usages"]
    assert used == {"VCPU": CONSUMERS + 2, "DISK_GB": 10 * (CONSUMERS + 2)}
    assert step("verify")["differences"] == []
    assert step("verify", "--host", "host-0")["providers"] == 2
    assert_same(upstream)

    done = step("rollback", "--host", "host-0")
    assert (done["phase"], done["turned"]) == (Phase.COPYING, 1)
    assert not ours()
    assert client.put(new, claim(1, 1)).status == 204
    assert_same(upstream)


def test_a_vm_moves_between_the_sides_and_back(
    client: PlacementClient, upstream: UpstreamPlacement
) -> None:
    step("switch", "--host", "host-0")
    vm, path = consumer(1), f"/allocations/{consumer(1)}"
    assert client.put(path, claim(1, None)).status == 204
    assert client.put(path, claim(0, 1)).status == 204  # before anybody copied the first
    assert client.get(path).json["consumer_generation"] == 2
    assert client.get(path).json["allocations"].keys() == {root_of(0), cell_of(0)}
    assert client.put(path, claim(0, 1)).status == 409
    assert_same(upstream)

    # As Nova migrates: the source is given to another consumer, the destination is claimed.
    migration = consumer(2)
    body = {vm: claim(None, 2), migration: claim(0, None)}
    assert client.post("/allocations", body).status == 204
    assert client.put(path, claim(2, None)).status == 204
    assert client.delete(f"/allocations/{migration}").status == 204
    assert client.get(path).json["allocations"].keys() == {root_of(2), cell_of(2)}
    assert_same(upstream)

    # Both at once, and what is left of it is given up.
    both = claim(0, 1)
    both["allocations"][cell_of(3)] = {"resources": {"VCPU": 3}}
    assert client.put(path, both).status == 204
    held = client.get(path).json
    assert (held["consumer_generation"], len(held["allocations"])) == (2, 3)
    assert step("status")["consumers_of_both"] == 1
    assert_same(upstream)
    step("switch", "--host", "host-3")
    assert step("status")["consumers_of_both"] == 0
    step("rollback", "--host", "host-0")
    assert step("status")["consumers_of_both"] == 1
    assert client.delete(path).status == 204
    assert client.get(path).json["allocations"] == {}
    assert_same(upstream)


def test_a_write_of_both_sides_sends_what_is_lacking_there_first(
    client: PlacementClient, upstream: UpstreamPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    step("switch", "--host", "host-0")
    monkeypatch.setattr(parted, "mirror_soon", lambda: None)
    path = f"/allocations/{consumer(1)}"
    assert client.put(path, claim(0, None)).status == 204
    assert client.put(path, claim(0, 1)).status == 204
    assert MirroredWrite.objects.count() == 2
    assert client.put(path, claim(1, 2)).status == 204
    assert not MirroredWrite.objects.exists()
    assert client.put(path, claim(0, 3)).status == 204
    assert client.delete(path).status == 204
    assert client.put(path, claim(1, None)).status == 204  # known to the mirror alone
    assert_same(upstream)


def test_what_does_not_fit_is_refused_as_one_placement_would(
    client: PlacementClient, upstream: UpstreamPlacement
) -> None:
    step("switch", "--host", "host-0")
    too_much = claim(0, None)
    too_much["allocations"][root_of(0)]["resources"]["DISK_GB"] = 3_000_000
    assert client.put(f"/allocations/{consumer(1)}", too_much).status == 409
    too_much["allocations"][root_of(1)] = {"resources": {"DISK_GB": 1}}
    assert client.put(f"/allocations/{consumer(1)}", too_much).status == 409
    unknown = claim(0, None)
    unknown["allocations"][consumer(9)] = {"resources": {"VCPU": 1}}
    assert client.put(f"/allocations/{consumer(1)}", unknown).status == 400
    assert client.put(f"/allocations/{consumer(1)}", {"allocations": 3}).status == 400
    assert client.delete(f"/allocations/{consumer(1)}").status == 404
    assert not WriteFence.objects.exists()
    assert_same(upstream)


def test_trees_of_both_sides_change(client: PlacementClient, upstream: UpstreamPlacement) -> None:
    step("switch", "--host", "host-0")
    below, made = "/resource_providers", consumer(5)
    body = {"name": "gpu", "uuid": made, "parent_provider_uuid": root_of(0)}
    assert client.post(below, body).status == 200
    assert made in ours()
    inventory = {"resource_class": "VGPU", "total": 4}
    assert client.post(f"{below}/{made}/inventories", inventory).status == 201
    assert client.put("/traits/CUSTOM_GPU").status == 201
    traits = {"traits": ["CUSTOM_GPU"], "resource_provider_generation": 1}
    assert client.put(f"{below}/{made}/traits", traits).status == 200
    assert client.put(f"{below}/{made}", {"name": "gpu 2", "parent_provider_uuid": root_of(0)})
    assert client.get(f"{below}/{made}").json["name"] == "gpu 2"
    assert_same(upstream)

    # Names and UUIDs are unique on both sides together; nothing moves below the other side.
    assert client.post(below, {"name": "gpu 2"}).status == 409
    assert client.post(below, {"name": "host-1", "parent_provider_uuid": root_of(0)}).status == 409
    name = {"name": "host-1-cell"}
    assert (
        client.put(f"{below}/{cell_of(1)}", name | {"parent_provider_uuid": root_of(0)}).status
        == 409
    )
    assert (
        client.put(f"{below}/{made}", {"name": "x", "parent_provider_uuid": root_of(1)}).status
        == 409
    )
    assert client.delete("/traits/CUSTOM_GPU").status == 409
    assert client.delete(f"{below}/{root_of(0)}").status == 409  # it has children

    other = consumer(6)
    assert client.post(below, {"name": "new host", "uuid": other}).status == 200
    assert other not in ours()
    assert client.post(f"{below}/{other}/inventories", inventory).status == 201
    held = {"allocations": {made: {"resources": {"VGPU": 1}}, other: {"resources": {"VGPU": 1}}}}
    whole = {**claim(None, None), **held}
    assert client.put(f"/allocations/{consumer(7)}", whole).status == 204  # not copied yet
    assert_same(upstream)
    assert client.delete(f"/allocations/{consumer(7)}").status == 204
    assert client.delete(f"{below}/{made}").status == 204
    assert client.delete(f"{below}/{other}").status == 204
    assert client.delete("/traits/CUSTOM_GPU").status == 204
    assert client.put("/traits/CUSTOM_GPU").status == 201
    assert made not in ours()
    assert_same(upstream)


def test_a_reshape_is_all_or_nothing_on_both_sides(
    client: PlacementClient, upstream: UpstreamPlacement
) -> None:
    step("switch", "--host", "host-0")
    for host in (0, 1):
        moved = client.get(f"/resource_providers/{root_of(host)}").json["generation"]
        target = client.get(f"/resource_providers/{cell_of(host)}").json["generation"]
        vcpu = client.get(f"/resource_providers/{cell_of(host)}/inventories").json["inventories"]
        body = {
            "inventories": {
                root_of(host): {"resource_provider_generation": moved, "inventories": {}},
                cell_of(host): {
                    "resource_provider_generation": target,
                    "inventories": {**vcpu, "DISK_GB": {"total": 2_000_000}},
                },
            },
            "allocations": {
                uuid: {
                    "allocations": {cell_of(host): {"resources": {"VCPU": 1, "DISK_GB": 10}}},
                    "project_id": PROJECT,
                    "user_id": "bench-user",
                    "consumer_generation": 1,
                }
                for uuid in (old(host), old(host + HOSTS))
            },
        }
        assert client.post("/reshaper", body).status == 204
        assert client.post("/reshaper", body).status == 409
        assert_same(upstream)
    inventories = {
        root_of(host): {
            "resource_provider_generation": client.get(f"/resource_providers/{root_of(host)}").json[
                "generation"
            ],
            "inventories": {"DISK_GB": {"total": 7}},
        }
        for host in (0, 1)
    }
    assert client.post("/reshaper", {"inventories": inventories, "allocations": {}}).status == 204
    assert client.get(f"/resource_providers/{root_of(0)}/inventories").json["inventories"]
    assert_same(upstream)


def test_storage_shared_over_both_sides_is_found_and_claimed(
    client: PlacementClient, upstream: UpstreamPlacement
) -> None:
    pool, aggregate = consumer(5), str(UUID(int=(1 << 90)))
    below = f"/resource_providers/{pool}"
    assert client.post("/resource_providers", {"name": "pool", "uuid": pool}).status == 200
    amounts = {"resource_class": "IPV4_ADDRESS", "total": 100}
    assert client.post(f"{below}/inventories", amounts).status == 201
    traits = {"traits": ["MISC_SHARES_VIA_AGGREGATE"], "resource_provider_generation": 1}
    assert client.put(f"{below}/traits", traits).status == 200
    shared = {"aggregates": [aggregate], "resource_provider_generation": 2}
    assert client.put(f"{below}/aggregates", shared).status == 200
    step("copy")
    plan = step("plan", "--host", "host-0", "--host", "host-1")
    assert (plan["trees"], plan["shares"]) == (2, ["pool"])

    query = "/allocation_candidates?resources=DISK_GB:1,IPV4_ADDRESS:1&limit=10"

    def found() -> list[str]:
        requests = client.get(query).json["allocation_requests"]
        used = [uuid for one in requests for uuid in one["allocations"]]
        assert used.count(pool) == len(requests)
        return sorted(set(used) - {pool})

    expected = sorted([root_of(0), root_of(3)])  # of one aggregate
    assert found() == expected
    for arguments in (
        ("switch", "--host", "host-0"),
        ("switch", "--host", "pool"),
        ("switch", "--host", "host-3"),
        ("rollback", "--host", "pool"),
    ):
        step(*arguments)
        assert found() == expected
        for number, host in ((1, 0), (2, 3)):
            body = claim(host, None)
            body["allocations"][pool] = {"resources": {"IPV4_ADDRESS": 1}}
            assert client.put(f"/allocations/{consumer(number)}", body).status == 204
            assert client.delete(f"/allocations/{consumer(number)}").status == 204
        assert_same(upstream)


def test_all_or_an_aggregate_change_sides_after_some(
    client: PlacementClient, upstream: UpstreamPlacement
) -> None:
    done = step("switch", "--aggregate", str(UUID(int=1 << 90)))
    assert done["turned"] == 2
    done = step("switch", "--host", "host-0", "--host", root_of(1))
    assert (done["turned"], done["trees_of_ours"]) == (1, 3)
    with pytest.raises(CommandError, match="nothing that was copied is"):
        step("switch", "--host", "no-such")
    make_host("host-2", zone="az-x")
    assert step("plan", "--zone", "az-x")["trees"] == 1
    assert {"zone": "az-x", "trees_of_ours": 0, "trees": 1} in step("status")["parts"]
    with pytest.raises(CommandError, match="the phase is parted"):
        step("stop")
    assert client.put(f"/allocations/{consumer(1)}", claim(0, None)).status == 204
    done = step("switch")
    assert (done["phase"], len(ours())) == (Phase.SWITCHED, 2 * HOSTS)
    assert client.put(f"/allocations/{consumer(2)}", claim(3, None)).status == 204
    assert step("rollback")["phase"] == Phase.COPYING
    step("switch", "--aggregate", str(UUID(int=1 << 90)))
    assert client.put(f"/allocations/{consumer(3)}", claim(0, None)).status == 204
    done = step("rollback")
    assert (done["phase"], done["turned"]) == (Phase.COPYING, 2)
    assert not ours()
    assert_same(upstream)


def test_what_moves_without_us_stops_a_part_either_way(
    client: PlacementClient, upstream: UpstreamPlacement, theirs: PlacementServer
) -> None:
    def past_us(host: int, number: int) -> None:
        path = f"/allocations/{consumer(number)}"
        request = Request(method="PUT", path=path, minor=36, body=claim(host, None))
        assert theirs.send(request).status == 204

    past_us(0, 1)
    with pytest.raises(CommandError, match="without us"):
        step("switch", "--host", "host-0")
    assert step("status")["phase"] == Phase.COPYING
    step("copy")
    step("switch", "--host", "host-0")
    past_us(0, 2)
    with pytest.raises(CommandError, match="without us"):
        step("rollback", "--host", "host-0")
    assert step("status")["phase"] == Phase.PARTED
    assert client.put(f"/allocations/{consumer(3)}", claim(1, None)).status == 204


class History:
    """A single Placement's answers to writes, as a model says them; real ones are compared.

    Attributes:
        held: Consumer -> its generation and the hosts that it has something of.
        totals: Disk of each host.
    """

    def __init__(self, client: PlacementClient, seed: int) -> None:
        self.client = client
        self.chance = random.Random(seed)  # noqa: S311 - to be had again
        self.held = {old(number): (1, {number % HOSTS}) for number in range(CONSUMERS)}
        self.totals = dict.fromkeys(range(HOSTS), 2_000_000)
        self.ours: set[int] = set()
        self.made = 0

    def run(self, steps: int) -> None:
        kinds = [self.create] * 5 + [self.move] * 6 + [self.migrate] * 3 + [self.delete] * 2
        kinds += [self.stale, self.resize, self.resize, self.look, self.look, self.turn, self.turn]
        for _ in range(steps):
            self.chance.choice([*kinds, one_round])()

    def some(self) -> str:
        return self.chance.choice(sorted(self.held)) if self.held else self.new()

    def new(self) -> str:
        self.made += 1
        return consumer(self.made)

    def hosts(self) -> set[int]:
        return set(self.chance.sample(range(HOSTS), self.chance.choice([1, 1, 1, 2])))

    def free(self, host: int, *, without: str = "") -> int:
        users = sum(host in hosts for uuid, (_, hosts) in self.held.items() if uuid != without)
        return self.totals[host] - 10 * users

    def body(self, hosts: set[int], generation: int | None) -> dict[str, Any]:
        whole = claim(None, generation)
        for host in hosts:
            whole["allocations"] |= claim(host, None)["allocations"]
        return whole

    def create(self) -> None:
        self.put(self.new(), None)

    def move(self) -> None:
        uuid = self.some()
        self.put(uuid, self.held.get(uuid, (None, 0))[0])

    def put(self, uuid: str, generation: int | None) -> None:
        hosts = self.hosts()
        fits = all(self.free(host, without=uuid) >= 10 for host in hosts)
        status = self.client.put(f"/allocations/{uuid}", self.body(hosts, generation)).status
        assert status == (204 if fits else 409)
        if fits:
            self.held[uuid] = (generation or 0) + 1, hosts

    def stale(self) -> None:
        uuid = self.some()
        generation = self.held.get(uuid, (None, 0))[0]
        wrong = 5 if generation is None else generation + 1
        status = self.client.put(f"/allocations/{uuid}", self.body({0}, wrong)).status
        assert status == 409

    def migrate(self) -> None:
        uuid = self.some()
        if uuid not in self.held:
            return
        generation, hosts = self.held.pop(uuid)
        other = self.new()
        body = {uuid: self.body(set(), generation), other: self.body(hosts, None)}
        assert self.client.post("/allocations", body).status == 204
        self.held[other] = 1, hosts

    def delete(self) -> None:
        uuid = self.some()
        known = self.held.pop(uuid, None) is not None
        assert self.client.delete(f"/allocations/{uuid}").status == (204 if known else 404)

    def resize(self) -> None:
        host = self.chance.randrange(HOSTS)
        path = f"/resource_providers/{root_of(host)}"
        used = self.totals[host] - self.free(host)
        self.totals[host] = max(10, used + self.chance.choice([0, 10, 30]))
        body = {
            "resource_provider_generation": self.client.generation(root_of(host)),
            "inventories": {"DISK_GB": {"total": self.totals[host]}},
        }
        assert self.client.put(f"{path}/inventories", body).status == 200

    def look(self) -> None:
        uuid = self.some()
        answer = self.client.get(f"/allocations/{uuid}").json
        generation, hosts = self.held.get(uuid, (None, set()))
        expected = {part(host) for host in hosts for part in (root_of, cell_of)}
        assert (answer.get("consumer_generation"), set(answer["allocations"])) == (
            generation,
            expected,
        )
        count = sum(len(hosts) for _, hosts in self.held.values())
        used = self.client.get(f"/usages?project_id={PROJECT}").json["usages"]
        assert used == ({"VCPU": count, "DISK_GB": 10 * count} if count else {})
        host = self.chance.randrange(HOSTS)
        used = self.client.get(f"/resource_providers/{root_of(host)}/usages").json["usages"]
        assert used == {"DISK_GB": self.totals[host] - self.free(host)}
        query = "/allocation_candidates?resources1=VCPU:1&resources2=DISK_GB:10&group_policy=none"
        wait_for_mirror()
        one_round()
        assert hosts_of(self.client.get(query)) == {
            host for host in range(HOSTS) if self.free(host) >= 10
        }

    def turn(self) -> None:
        host = self.chance.randrange(HOSTS)
        is_ours = host in self.ours
        done = step("rollback" if is_ours else "switch", "--host", f"host-{host}")
        self.ours ^= {host}
        assert done["trees_of_ours"] == len(self.ours)
        assert done["phase"] == (Phase.PARTED if self.ours else Phase.COPYING)


@pytest.mark.parametrize("seed", range(4))
def test_any_history_of_writes_and_turns_leaves_both_sides_equal(
    client: PlacementClient, upstream: UpstreamPlacement, seed: int
) -> None:
    history = History(client, seed)
    history.run(70)
    assert_same(upstream)
    there = read_database(upstream.database).consumers
    assert {uuid: one.generation for uuid, one in there.items() if one.allocations} == {
        uuid: generation for uuid, (generation, _) in history.held.items()
    }
    if history.ours:
        step("rollback")
    assert_same(upstream)


@pytest.mark.usefixtures("_gateway")
def test_hosts_change_sides_one_by_one_under_load(
    webs: list[WebServer], upstream: UpstreamPlacement
) -> None:
    hosts = 6
    cloud = make_cloud(hosts, 10 * hosts)
    upstream.fill(cloud)
    with WriteLoad([web.port for web in webs], hosts, rate=RATE) as load:
        load.go_on(8)
        step("copy")
        execute(LONG_AGO)
        for number in range(hosts // 2):
            assert step("switch", "--host", f"host-{number}")["turned"] == 1
            load.go_on(8)
            one_round()
        assert step("verify")["differences"] == []
        assert step("switch")["phase"] == Phase.SWITCHED
        load.go_on(8)
        assert step("rollback")["phase"] == Phase.COPYING
        assert step("switch", "--aggregate", str(UUID(int=1 << 90)))["turned"] == 2
        load.go_on(8)
        assert step("rollback")["phase"] == Phase.COPYING
        load.go_on(8)
        assert step("status")["moved_without_us"] == ""  # all of it came through us
    assert_same(upstream)
    there = read_database(upstream.database).consumers
    held = {uuid: one for uuid, one in there.items() if one.allocations}
    assert held == expected_consumers(cloud, load)
    assert load.unexpected == []
    assert set(load.statuses) <= {200, 201, 204, 409}


def test_of_two_first_writes_of_a_consumer_one_wins(
    client: PlacementClient, upstream: UpstreamPlacement
) -> None:
    step("switch", "--host", "host-0")
    for number in range(12):
        told: list[int] = []
        both = threading.Barrier(2)

        def write(host: int, path: str, both: threading.Barrier, told: list[int]) -> None:
            try:
                mine = gateway_client()
                both.wait()
                told.append(mine.put(path, claim(host, None)).status)
            finally:
                connection.close()

        threads = [
            threading.Thread(
                target=write, args=(host, f"/allocations/{consumer(number)}", both, told)
            )
            for host in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(told) == [204, 409]
        assert len(client.get(f"/allocations/{consumer(number)}").json["allocations"]) == 2
    assert_same(upstream)


def test_a_part_is_turned_or_not_wherever_that_was_killed(
    client: PlacementClient, upstream: UpstreamPlacement
) -> None:
    del client
    seen = set()

    def switch() -> None:
        call_command("placement_cutover", "switch", "--host", "host-0", stdout=StringIO())

    def rollback() -> None:
        call_command("placement_cutover", "rollback", "--host", "host-0", stdout=StringIO())

    def look() -> None:
        for statement in LEFT:
            execute(statement)
        assert gateway_client().put(f"/allocations/{old(0)}", claim(0, None)).status == 409
        seen.add(frozenset(ours()))
        assert step("status")["phase"] in {Phase.COPYING, Phase.PARTED}

    whole = {frozenset(), frozenset({root_of(0), cell_of(0)})}
    assert die_at_each_distinct_statement(switch, look, times=1) > 10
    assert seen == whole
    seen.clear()
    assert die_at_each_distinct_statement(rollback, look, times=1) > 10
    assert seen == whole
    assert_same(upstream)


@pytest.mark.parametrize("kind", ["allocations", "providers"])
def test_a_write_of_both_sides_may_be_killed_anywhere(
    client: PlacementClient, upstream: UpstreamPlacement, kind: str
) -> None:
    step("switch", "--host", "host-0")
    numbers = iter(range(1, 10_000))

    def write() -> None:
        number, mine = next(numbers), gateway_client()
        path, made = f"/allocations/{consumer(number)}", consumer(number + 10_000)
        if kind == "allocations":
            body = claim(1, None)
            body["allocations"] |= claim(0, None)["allocations"]
            mine.put(path, body)
            mine.put(path, claim(0, 1))
        else:
            new = {"name": made, "uuid": made, "parent_provider_uuid": root_of(0)}
            mine.post("/resource_providers", new)

    def look() -> None:
        next(numbers)
        for statement in LEFT:
            execute(statement)
        path = f"/allocations/{consumer(0)}"
        assert client.put(path, claim(0, None)).status == 204  # nobody waits for what is left
        assert client.delete(path).status == 204
        wait_for_mirror()
        one_round()
        assert what_differs(upstream.database, database_url()) == []

    assert die_at_each_distinct_statement(write, look, times=1) > 20
    assert_same(upstream)
