"""Any history of writes and turns of hosts, answered as one Placement would."""

from __future__ import annotations

import random
from typing import Any

import pytest

from placement.clients.reference_database import read_database
from placement.cutover.rounds import one_round
from placement.models import Phase
from tests.e2e.cutover.driving import step, wait_for_mirror
from tests.e2e.cutover.halves import CONSUMERS, HOSTS, assert_same, consumer, hosts_of, old
from tests.e2e.upstream_placement import UpstreamPlacement
from tests.e2e.write_load import PROJECT, cell_of, claim, root_of
from tests.examples import scaled
from tests.placement.client import PlacementClient

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


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


@pytest.mark.parametrize("seed", range(scaled(2)))
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
