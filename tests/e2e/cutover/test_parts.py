"""Hosts of a cloud move from a real openstack-placement to us one by one, and back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import openstack
import pytest
from django.core.management import CommandError

from placement.cutover import parted
from placement.cutover.rounds import one_round
from placement.models import MirroredWrite, Phase, WriteFence
from tests.e2e.cutover.driving import execute, forget_peer, step, wait_for_mirror
from tests.e2e.cutover.halves import (
    CONSUMERS,
    HOSTS,
    LEFT,
    assert_same,
    consumer,
    hosts_of,
    old,
    ours,
)
from tests.e2e.placement_peers import PlacementServer, Request
from tests.e2e.upstream_placement import UpstreamPlacement
from tests.e2e.write_load import PROJECT, cell_of, claim, root_of
from tests.factories import make_host
from tests.placement.client import PlacementClient
from tests.placement.gateway.accounts import Keystone

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


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


def test_what_was_given_back_here_is_gone_at_once(
    client: PlacementClient, upstream: UpstreamPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    step("switch", "--host", "host-0")
    path = f"/allocations/{consumer(1)}"
    assert client.put(path, claim(0, None)).status == 204
    wait_for_mirror()
    monkeypatch.setattr(parted, "mirror_soon", lambda: None)
    assert client.delete(path).status == 204
    assert MirroredWrite.objects.count() == 1
    assert client.get(path).json["allocations"] == {}
    assert_same(upstream)
    assert client.get(path).json["allocations"] == {}


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


def test_without_keystone_a_write_of_both_sides_is_answered_and_read_back_later(
    client: PlacementClient,
    upstream: UpstreamPlacement,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step("switch", "--host", "host-0")
    path = f"/allocations/{consumer(1)}"
    assert client.put(path, claim(0, None)).status == 204
    wait_for_mirror()
    forget_peer()
    keystone = Keystone()
    monkeypatch.setattr(openstack, "connect", keystone.connect)
    account = {"cloud": "known", "token": None}
    gateway = settings.HEADROOM.gateway.model_copy(update=account)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"gateway": gateway})

    keystone.is_away = True
    assert client.put(path, claim(1, 1)).status == 204  # by the client's own token
    assert WriteFence.objects.count() == 1
    other = f"/allocations/{consumer(2)}"
    assert client.put(other, claim(2, None)).status == 204
    keystone.is_away = False
    for statement in LEFT:
        execute(statement)
    assert client.put(path, claim(0, 2)).status == 204
    one_round()

    keystone.is_away = True
    assert client.put(path, claim(0, 3)).status == 204
    wait_for_mirror()
    refused = client.put(path, claim(1, 4))  # what was written here has to be there before
    assert (refused.status, "retry-after" in refused.headers) == (503, True)
    assert not WriteFence.objects.exists()
    keystone.is_away = False
    assert client.put(path, claim(1, 4)).status == 204
    assert_same(upstream)
    forget_peer()


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
