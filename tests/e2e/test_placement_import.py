"""Copying a real reference Placement into ours: through its API and from its database."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from config.launcher.demo import choose_port
from config.launcher.peers import ensure_peer, start_reference
from config.launcher.places import this_checkout
from config.launcher.processes import stop_children, wait_until
from placement.models import Allocation, Consumer, Inventory, ResourceProvider
from placement.selectors.contents import read_contents
from placement.services.audit import find_problems
from tests.e2e.placement_peers import PlacementServer, Request
from tests.e2e.processes import PATIENCE_SECONDS
from tests.placement.rows import make_provider

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

HOST = "00000001-aaaa-4aaa-8aaa-000000000001"
CELL = "00000002-aaaa-4aaa-8aaa-000000000002"
AGGREGATE = "00000001-eeee-4eee-8eee-000000000001"
VM = "00000001-cccc-4ccc-8ccc-000000000001"
OLD_VM = "00000002-cccc-4ccc-8ccc-000000000002"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A running reference and the two ways of reading it."""

    server: PlacementServer
    url: str
    database: str

    def arguments(self, way: str) -> list[str]:
        if way == "api":
            return ["--from-url", self.url, "--token", "admin"]
        return ["--from-database", self.database]

    def write(self, method: str, path: str, body: Any = None, minor: int = 38) -> None:
        reply = self.server.send(Request(method=method, path=path, minor=minor, body=body))
        assert reply.status < 300, reply


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """A reference with a host, a NUMA cell, names, and two consumers."""
    directory: Path = tmp_path_factory.mktemp("reference")
    database = f"sqlite:///{directory}/placement.sqlite"
    port = choose_port(0)
    child = start_reference(
        ensure_peer(this_checkout()),
        directory,
        port=port,
        database_url=database,
        environ={"PATH": os.environ["PATH"]},
    )
    server = PlacementServer(port=port)

    def answers() -> bool:
        try:
            return server.send(Request(method="GET", path="/", minor=0)).status == 200
        except OSError:
            server.close()
            return False

    assert wait_until(answers, PATIENCE_SECONDS), child.log.read_text()[-2000:]
    running = Source(server=server, url=f"http://127.0.0.1:{port}", database=database)
    fill(running)
    yield running
    server.close()
    stop_children([child], ((15, 10.0),))


def fill(source: Source) -> None:
    source.write("PUT", "/resource_classes/CUSTOM_GOLD")
    source.write("PUT", "/traits/CUSTOM_FAST")
    source.write("POST", "/resource_providers", {"name": "host", "uuid": HOST})
    source.write(
        "POST",
        "/resource_providers",
        {"name": "host-cell", "uuid": CELL, "parent_provider_uuid": HOST},
    )
    inventories = {
        "VCPU": {"total": 16, "reserved": 2, "allocation_ratio": 4.0},
        "CUSTOM_GOLD": {"total": 8, "min_unit": 2, "max_unit": 4, "step_size": 2},
    }
    for uuid in (HOST, CELL):
        body = {"resource_provider_generation": 0, "inventories": inventories}
        source.write("PUT", f"/resource_providers/{uuid}/inventories", body)
    body = {"resource_provider_generation": 1, "traits": ["CUSTOM_FAST", "HW_CPU_X86_AVX"]}
    source.write("PUT", f"/resource_providers/{CELL}/traits", body)
    body = {"resource_provider_generation": 1, "aggregates": [AGGREGATE]}
    source.write("PUT", f"/resource_providers/{HOST}/aggregates", body)
    allocate(source, VM, {HOST: {"VCPU": 3}, CELL: {"CUSTOM_GOLD": 4}}, consumer_type="INSTANCE")
    allocate(source, OLD_VM, {HOST: {"VCPU": 5}}, minor=36)


def allocate(
    source: Source, uuid: str, held: dict[str, Any], minor: int = 38, **more: object
) -> None:
    body = {
        "allocations": {provider: {"resources": amounts} for provider, amounts in held.items()},
        "project_id": "project-a",
        "user_id": "user-a",
        "consumer_generation": None,
        **more,
    }
    source.write("PUT", f"/allocations/{uuid}", body, minor)


def run_import(source: Source, way: str, *arguments: str) -> dict[str, Any]:
    out = StringIO()
    call_command("placement_import", *source.arguments(way), "--json", *arguments, stdout=out)
    return dict(json.loads(out.getvalue()))


@pytest.mark.parametrize("way", ["api", "database"])
def test_everything_is_copied_once(source: Source, way: str) -> None:
    dry = run_import(source, way, "--dry-run")
    assert dry["written"]["new providers"] == 2
    assert not ResourceProvider.objects.exists()

    assert run_import(source, way)["written"] == dry["written"]

    cell = ResourceProvider.objects.get(uuid=CELL)
    assert (cell.name, str(cell.root.uuid), cell.generation) == ("host-cell", HOST, 3)
    gold = Inventory.objects.get(provider=cell, resource_class__name="CUSTOM_GOLD")
    assert (gold.total, gold.min_unit, gold.max_unit, gold.step_size, gold.used) == (8, 2, 4, 2, 4)
    cpu = Inventory.objects.get(provider__uuid=HOST, resource_class__name="VCPU")
    assert (cpu.reserved, cpu.allocation_ratio, cpu.used) == (2, 4.0, 8)
    contents = read_contents()
    assert contents.providers[CELL].traits == {"CUSTOM_FAST", "HW_CPU_X86_AVX"}
    assert contents.providers[HOST].aggregates == {AGGREGATE}
    assert contents.consumers[VM].type_name == "INSTANCE"
    assert contents.consumers[OLD_VM].type_name == ""
    assert find_problems() == ()

    assert set(run_import(source, way)["written"].values()) == {0}


def test_both_ways_read_the_same(source: Source) -> None:
    run_import(source, "api")

    assert set(run_import(source, "database", "--dry-run")["written"].values()) == {0}


def test_a_nested_provider_made_anew_here_keeps_its_uuid(source: Source) -> None:
    host = make_provider("host", uuid=ResourceProvider._meta.get_field("uuid").to_python(HOST))
    cell = make_provider("host-cell", parent=host)

    assert run_import(source, "api")["written"]["matched by name"] == 1

    held = Allocation.objects.get(consumer__uuid=VM, provider=cell)
    assert held.used == 4
    assert ResourceProvider.objects.count() == 2


def test_a_root_under_another_uuid_stops_the_import(source: Source) -> None:
    make_provider("host")

    with pytest.raises(CommandError, match=f"provider host is {HOST} there"):
        run_import(source, "api")

    assert not Consumer.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--from-url", "http://127.0.0.1:1"], "GET / failed", id="nobody listens"),
        pytest.param(["--from-database", "sqlite:////gone"], "cannot be read", id="no database"),
        pytest.param(["--from-database", "oracle://x"], "oracle: allowed are", id="unknown kind"),
    ],
)
def test_a_source_that_cannot_be_read_is_told(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("placement_import", *arguments, stdout=StringIO())
