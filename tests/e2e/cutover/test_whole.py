"""A cloud moves from a real openstack-placement to us and back while it is written to."""

from __future__ import annotations

import threading
import time
from io import StringIO
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from benchmarks.placement_equality import what_differs
from placement.clients.reference_database import read_database
from placement.cutover import announcing, copying, gate, mirroring, rounds, state, switching
from placement.cutover.peer import opened_peer
from placement.cutover.rounds import one_round
from placement.cutover.switching import FEW_DUE
from placement.domain.errors import UpstreamFailed
from placement.domain.transfer import Contents
from placement.gateway.upstream import UpstreamAnswer
from placement.models import CopyDue, Origin, Phase, ResourceProvider
from placement.selectors.contents import read_contents
from placement.services.audit import find_problems
from tests.e2e.cutover.driving import LONG_AGO, RATE, execute, step
from tests.e2e.cutover.halves import old
from tests.e2e.placement_peers import MOUNT, PlacementServer, Request
from tests.e2e.processes import WebServer, database_url
from tests.e2e.upstream_placement import UpstreamPlacement
from tests.e2e.write_load import WriteLoad, cell_of, claim, expected_consumers, make_cloud, root_of
from tests.killing import die_at_each_distinct_statement
from tests.placement.client import PlacementClient

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

HOSTS, CONSUMERS = 30, 600


def assert_equal(upstream: UpstreamPlacement, cloud: Contents, load: WriteLoad) -> None:
    """Compare both databases, read whole, with each other and with what writers were told."""
    there, here = read_database(upstream.database), read_contents(with_copies=True)
    held = {uuid: record for uuid, record in there.consumers.items() if record.allocations}
    assert held == here.consumers
    assert held == expected_consumers(cloud, load)
    assert there.providers == here.providers
    assert not [one for one in find_problems() if one.kind in {"drift", "project_usage"}]


@pytest.mark.usefixtures("_gateway")
def test_a_cloud_moves_and_returns_under_load(
    webs: list[WebServer], upstream: UpstreamPlacement
) -> None:
    cloud = make_cloud(HOSTS, CONSUMERS)
    upstream.fill(cloud)
    with WriteLoad([web.port for web in webs], HOSTS, rate=RATE) as load:
        load.go_on(20)
        plan = step("plan")
        assert (plan["providers"], plan["trees"]) == (2 * HOSTS, HOSTS)
        assert not plan["in_the_way"]
        assert not ResourceProvider.objects.exists()

        assert step("copy")["phase"] == Phase.COPYING
        load.go_on(40)
        assert step("verify", "--from-database", upstream.database)["differences"] == []

        assert step("switch")["phase"] == Phase.SWITCHED
        load.go_on(100)
        assert step("verify", "--from-database", upstream.database)["differences"] == []

        assert step("rollback")["phase"] == Phase.COPYING
        for _ in range(5):
            load.go_on(8)
            one_round()
        assert step("status")["moved_without_us"] == ""  # all of it came through us
    assert step("verify")["differences"] == []
    assert_equal(upstream, cloud, load)
    assert what_differs(upstream.database, database_url()) == []
    assert load.unexpected == []
    assert set(load.statuses) <= {200, 201, 204, 409}


SMALL_HOSTS = 3
ENDED = "UPDATE placement_forwarded_write SET ends_at = clock_timestamp() - interval '1 second'"
OVER = "UPDATE placement_cutover SET closes_at = closes_at - interval '1 hour'"


def assert_same(upstream: UpstreamPlacement) -> None:
    there, here = read_database(upstream.database), read_contents(with_copies=True)
    assert {uuid: one for uuid, one in there.consumers.items() if one.allocations} == here.consumers
    assert there.providers == here.providers
    assert what_differs(upstream.database, database_url()) == []


@pytest.fixture
def _written_before(transactional_db: None, _gateway: None, upstream: UpstreamPlacement) -> None:
    """Fill a cloud that may have been written to a moment ago."""
    del transactional_db
    upstream.fill(make_cloud(SMALL_HOSTS, 6))


@pytest.fixture
def _small(_written_before: None, _nobody_wrote_before: None) -> None:
    """Fill a cloud to which nobody has written."""


@pytest.mark.usefixtures("_written_before")
@pytest.mark.parametrize("is_read_whole", [False, True])
def test_a_write_of_before_has_ended_when_anything_is_copied(
    upstream: UpstreamPlacement,
    theirs: PlacementServer,
    monkeypatch: pytest.MonkeyPatch,
    is_read_whole: bool,
) -> None:
    path = f"/allocations/{old(0)}"
    waited: list[float] = []

    def end(seconds: float) -> None:
        """End what was handed on before copying began as late as it may; it moves no generation."""
        if not waited:
            assert theirs.send(Request(method="DELETE", path=path, minor=36)).status == 204
        waited.append(seconds)
        execute(LONG_AGO)

    clock = SimpleNamespace(sleep=end, monotonic=time.monotonic)
    monkeypatch.setattr(switching, "time", clock)
    step("copy", *(("--from-database", upstream.database) if is_read_whole else ()))
    step("switch")
    assert waited[0] > 0
    assert PlacementClient(version="1.36").get(path).json["allocations"] == {}
    assert_same(upstream)


@pytest.mark.usefixtures("_written_before")
def test_workers_copy_nothing_while_a_write_of_before_may_be_under_way(
    upstream: UpstreamPlacement,
) -> None:
    assert state.begin()
    assert one_round() == {"too_early": 1}
    assert not ResourceProvider.objects.exists()
    execute(LONG_AGO)
    assert "too_early" not in one_round()
    step("copy")
    assert_same(upstream)


@pytest.mark.usefixtures("_small")
def test_copying_goes_on_wherever_it_was_killed(upstream: UpstreamPlacement) -> None:
    def copy() -> None:
        call_command("placement_cutover", "copy", stdout=StringIO())

    assert die_at_each_distinct_statement(copy, lambda: None, times=1) > 30
    assert_same(upstream)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("is_read_whole", [False, True])
def test_what_was_given_back_between_two_beginnings_is_in_no_copy(
    upstream: UpstreamPlacement, is_read_whole: bool
) -> None:
    database = ("--from-database", upstream.database) if is_read_whole else ()
    step("copy", *database)
    client = PlacementClient(version="1.36")
    consumers = [f"/allocations/{UUID(int=(1 << 72) + number)}" for number in range(SMALL_HOSTS)]
    for number, consumer in enumerate(consumers):
        assert client.put(consumer, claim(number, None)).status == 204
    one_round()
    assert_same(upstream)
    assert step("stop")["phase"] == Phase.OFF

    assert client.delete(consumers[0]).status == 204  # which moves no generation
    step("copy", *database)
    assert_same(upstream)
    execute(LONG_AGO)
    step("switch")
    assert client.get(consumers[0]).json["allocations"] == {}
    assert_same(upstream)


@pytest.mark.usefixtures("_small")
def test_copying_ends_where_as_much_is_written_meanwhile(
    upstream: UpstreamPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    step("copy")
    turns = 0

    def as_much_again() -> None:
        nonlocal turns
        turns += 1
        assert turns < 50
        written = [str(UUID(int=(turns << 16) + number)) for number in range(2 * FEW_DUE)]
        copying.note_due(CopyDue.Kind.CONSUMER, written)

    with monkeypatch.context() as patched:
        patched.setattr(copying, "take_writes", as_much_again)
        assert step("copy")["phase"] == Phase.COPYING
    assert turns > 1
    execute(LONG_AGO)
    step("switch")
    assert_same(upstream)


@pytest.mark.usefixtures("_small")
def test_a_write_whose_process_is_killed_is_copied_all_the_same(
    upstream: UpstreamPlacement,
) -> None:
    step("copy")
    consumers = iter(range(1, 100))

    def write() -> None:
        body = claim(0, None)
        PlacementClient(version="1.36").put(f"/allocations/{UUID(int=next(consumers))}", body)

    def end() -> None:
        next(consumers)
        execute(ENDED)

    assert die_at_each_distinct_statement(write, end, times=2) >= 3
    step("copy")
    assert_same(upstream)


def writes_past_us(number: int) -> dict[str, tuple[str, Request]]:
    """Return writes of somebody who knows the other address, and which provider each moves."""
    host, made = root_of(number % SMALL_HOSTS), str(UUID(int=(1 << 70) + number))
    inventory = {"resource_class": "MEMORY_MB", "total": 1}
    consumer = f"/allocations/{UUID(int=(1 << 71) + number)}"

    def request(method: str, path: str, body: Any = None) -> Request:
        return Request(method=method, path=path, minor=36, body=body)

    below = f"/resource_providers/{host}/inventories"
    return {
        "allocation": (host, request("PUT", consumer, claim(number % SMALL_HOSTS, None))),
        "inventory": (host, request("POST", below, inventory)),
        "inventory away": (host, request("DELETE", f"{below}/MEMORY_MB")),
        "provider": (
            made,
            request("POST", "/resource_providers", {"name": f"past {number}", "uuid": made}),
        ),
        "name": (
            made,
            request("PUT", f"/resource_providers/{made}", {"name": f"past {number} again"}),
        ),
        "provider away": (made, request("DELETE", f"/resource_providers/{made}")),
    }


@pytest.mark.usefixtures("_small")
def test_a_provider_that_moves_without_us_stops_the_switch(upstream: UpstreamPlacement) -> None:
    theirs = PlacementServer(port=upstream.port, prefix=MOUNT)
    step("copy")
    execute(LONG_AGO)
    for kind, (provider, request) in writes_past_us(0).items():
        assert theirs.send(request).status < 300, kind
        with pytest.raises(CommandError, match="without us") as stopped:
            step("switch")
        assert provider in str(stopped.value), kind
        found = step("status")
        assert found["phase"] == Phase.COPYING, kind
        assert provider in found["last_error"], kind
        assert not ResourceProvider.objects.exclude(origin=Origin.UPSTREAM).exists(), kind
        body = claim(1, None)
        client = PlacementClient(version="1.36")
        consumer = f"/allocations/{UUID(bytes=kind.encode().ljust(16)[:16])}"
        assert client.put(consumer, body).status == 204, kind  # nobody is held
        step("copy")
        assert_same(upstream)

    assert step("switch")["phase"] == Phase.SWITCHED
    provider, request = writes_past_us(1)["inventory"]
    assert theirs.send(request).status < 300
    theirs.close()
    with pytest.raises(CommandError, match=f"without us: {provider}"):
        step("rollback")
    found = step("status")
    assert (found["phase"], found["copied_providers"]) == (Phase.SWITCHED, 0)


@pytest.mark.usefixtures("_small")
def test_a_provider_that_moved_without_us_stops_a_switch_after_it_was_copied(
    upstream: UpstreamPlacement,
) -> None:
    step("copy")
    execute(LONG_AGO)
    client = PlacementClient(version="1.36")
    assert client.put(f"/allocations/{UUID(int=1)}", claim(0, None)).status == 204
    one_round()
    assert_same(upstream)
    assert state.read_state().moved_provider == ""

    provider, request = writes_past_us(0)["inventory"]
    theirs = PlacementServer(port=upstream.port, prefix=MOUNT)
    assert theirs.send(request).status < 300
    theirs.close()
    one_round()
    one_round()
    assert_same(upstream)
    with pytest.raises(CommandError, match=f"without us: {provider}"):
        step("switch")
    found = step("status")
    assert found["phase"] == Phase.COPYING
    assert provider in found["last_error"]
    step("copy")
    assert step("switch")["phase"] == Phase.SWITCHED


@pytest.mark.usefixtures("_small")
def test_a_provider_for_which_nobody_named_a_uuid_has_the_same_on_both_sides(
    upstream: UpstreamPlacement, settings: Any
) -> None:
    settings.ALLOWED_HOSTS = ["placement.example"]
    client = PlacementClient(Host="placement.example")

    def make(name: str, version: str) -> None:
        answer = client.post("/resource_providers", {"name": name}, version=version)
        assert answer.status == (200 if version == "1.36" else 201), answer.content
        made = answer.headers["location"].removeprefix("http://placement.example/placement")
        inventory = {"resource_class": "VGPU", "total": 1}
        assert client.post(f"{made}/inventories", inventory, version="1.36").status == 201

    step("copy")
    execute(LONG_AGO)
    make("before", "1.36")
    for _ in range(2):
        one_round()
    assert state.read_state().moved_provider == ""
    step("switch")
    make("old", "1.0")
    make("new", "1.36")
    assert step("rollback")["phase"] == Phase.COPYING
    assert_same(upstream)


@pytest.mark.usefixtures("_small")
def test_a_switch_that_is_killed_is_done_or_lets_go(upstream: UpstreamPlacement) -> None:
    step("copy")
    execute(LONG_AGO)
    phases = set()

    def switch() -> None:
        if state.current_phase() is Phase.COPYING:
            call_command("placement_cutover", "switch", stdout=StringIO())

    def look() -> None:
        execute(OVER)
        phase = state.current_phase()
        phases.add(phase)
        origin = Origin.API if phase is Phase.SWITCHED else Origin.UPSTREAM
        assert not ResourceProvider.objects.exclude(origin=origin).exists()

    assert die_at_each_distinct_statement(switch, look, times=1) > 10
    assert phases == {Phase.COPYING, Phase.SWITCHED}
    phases.clear()

    def rollback() -> None:
        if state.current_phase() is Phase.SWITCHED:
            call_command("placement_cutover", "rollback", stdout=StringIO())

    assert die_at_each_distinct_statement(rollback, look, times=1) > 10
    assert phases == {Phase.COPYING, Phase.SWITCHED}
    assert_same(upstream)


@pytest.mark.usefixtures("_small")
def test_writes_and_their_mirror_may_be_killed_anywhere(upstream: UpstreamPlacement) -> None:
    step("copy")
    execute(LONG_AGO)
    step("switch")
    numbers = iter(range(1, 10_000))

    def work() -> None:
        write_all_kinds(next(numbers))
        with opened_peer() as peer:
            left = mirroring.mirror(peer)
        assert not left.refused

    def skip() -> None:
        for _ in range(3):
            next(numbers)

    assert die_at_each_distinct_statement(work, skip, times=1) > 10
    step("rollback")
    assert_same(upstream)


def write_all_kinds(number: int) -> None:
    """Send a write of each kind that counts generations, whatever the state is."""
    client = PlacementClient(version="1.36")
    consumer, other = str(UUID(int=number << 8)), str(UUID(int=(number << 8) + 1))
    host, cell = root_of(number % SMALL_HOSTS), cell_of(number % SMALL_HOSTS)
    client.put(f"/allocations/{consumer}", claim(0, None))
    client.put(f"/allocations/{consumer}", claim(1, 1))
    body = {"allocations": {cell: {"resources": {"VCPU": 2}}}, "project_id": "p", "user_id": "u"}
    for _ in range(2):
        client.put(f"/allocations/{other}", body, version="1.12")  # no generation stops it twice
    client.post(
        "/allocations", {consumer: claim(None, 2), str(UUID(int=(number << 8) + 2)): claim(2, None)}
    )
    client.call("DELETE", f"/allocations/{other}")
    generation = client.get(f"/resource_providers/{host}").json["generation"]
    traits = {"traits": ["HW_NUMA_ROOT"] if number % 2 else []}
    client.put(
        f"/resource_providers/{host}/traits", {**traits, "resource_provider_generation": generation}
    )
    made = str(UUID(int=(number << 8) + 3))
    client.post("/resource_providers", {"name": made, "uuid": made, "parent_provider_uuid": host})
    client.post(f"/resource_providers/{made}/inventories", {"resource_class": "VGPU", "total": 1})
    client.call("DELETE", f"/resource_providers/{made}/inventories", version="1.36")
    client.put(f"/resource_providers/{made}", {"name": f"{made} again"})
    client.put(f"/resource_providers/{made}/aggregates", [made], version="1.18")
    if number % 3:
        client.call("DELETE", f"/resource_providers/{made}")
    client.put(f"/traits/CUSTOM_{number}")


AGED = "UPDATE placement_mirrored_write SET sent_at = sent_at - interval '1 hour'"
PATIENCE_SECONDS = 60.0


@pytest.mark.usefixtures("_small")
def test_writes_of_one_tree_at_once_are_each_known_to_be_done(
    upstream: UpstreamPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    step("copy")
    execute(LONG_AGO)
    step("switch")
    is_kept, goes_on = threading.Event(), threading.Event()

    def keep_and_wait(asked: Any, *rest: Any) -> None:
        announcing.keep(asked, *rest)
        if root_of(0) in asked.path:
            is_kept.set()
            assert goes_on.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(gate, "keep", keep_and_wait)
    statuses: dict[str, int] = {}

    def add(provider: str) -> None:
        body = {"resource_class": "MEMORY_MB", "total": 1}
        client = PlacementClient(version="1.36")
        answer = client.post(f"/resource_providers/{provider}/inventories", body)
        statuses[provider] = answer.status

    def add_first() -> None:
        try:
            add(root_of(0))
        finally:
            connection.close()

    first = threading.Thread(target=add_first)
    first.start()
    assert is_kept.wait(PATIENCE_SECONDS)
    add(cell_of(0))  # neither sees what the other one does
    goes_on.set()
    first.join(PATIENCE_SECONDS)
    assert statuses == {root_of(0): 201, cell_of(0): 201}

    with opened_peer() as peer:
        send = peer.send

        def unheard(*request: Any) -> UpstreamAnswer:
            assert send(*request).status == 201
            raise UpstreamFailed("the connection ended")

        for _ in statuses:
            with monkeypatch.context() as patched:
                patched.setattr(peer, "send", unheard)
                with pytest.raises(UpstreamFailed):
                    mirroring.mirror(peer)
            execute(AGED)
        left = mirroring.mirror(peer)
    assert (left.count, left.refused) == (0, 0)
    step("rollback")
    assert_same(upstream)


@pytest.mark.usefixtures("_small")
def test_a_round_that_has_copied_for_long_lets_commands_come_to_their_turn(
    upstream: UpstreamPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    step("copy")
    theirs = PlacementServer(port=upstream.port, prefix=MOUNT)
    assert theirs.send(writes_past_us(0)["inventory"][1]).status < 300
    theirs.close()
    copying.note_due(CopyDue.Kind.PROVIDER, [root_of(number) for number in range(3)])
    with monkeypatch.context() as patched:
        patched.setattr(rounds, "ROUND_SECONDS", -1.0)
        assert one_round() == {"unfinished": 1}
    assert CopyDue.objects.filter(kind=CopyDue.Kind.PROVIDER).count() == 3

    assert "unfinished" not in one_round()
    assert not CopyDue.objects.exists()
    assert_same(upstream)
