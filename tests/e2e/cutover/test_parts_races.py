"""Hosts change sides under load, beside other writes, and with processes killed anywhere."""

from __future__ import annotations

import threading
from io import StringIO
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection

from benchmarks.placement_equality import what_differs
from placement.clients.reference_database import read_database
from placement.cutover.rounds import one_round
from placement.models import Phase
from tests.e2e.cutover.driving import LONG_AGO, RATE, execute, gateway_client, step, wait_for_mirror
from tests.e2e.cutover.halves import LEFT, assert_same, consumer, old, ours
from tests.e2e.processes import WebServer, database_url
from tests.e2e.upstream_placement import UpstreamPlacement
from tests.e2e.write_load import WriteLoad, cell_of, claim, expected_consumers, make_cloud, root_of
from tests.killing import die_at_each_distinct_statement
from tests.placement.client import PlacementClient

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


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
