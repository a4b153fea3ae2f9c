"""A fake of the wire that serves the real bodies of the mini cloud, read with the real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from hosts.models import Host, Instance
from tests.hosts.mini_cloud import MiniCloud
from tests.hosts.region_files import load
from tests.hosts.served_cloud import served_cloud

Json = Any


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniCloud]:
    fake = MiniCloud()

    with served_cloud(fake, tmp_path, monkeypatch):
        yield fake


@pytest.mark.django_db
def test_a_live_cloud_is_dumped_and_imported(cloud: MiniCloud, tmp_path: Path) -> None:
    path = tmp_path / "region.json"
    call_command("dump_region", "--cloud", "mini", "--output", str(path))
    content = json.loads(path.read_bytes())
    by_id = {server["id"]: server for server in content["compute"]["servers"]}
    assert by_id == {server["id"]: server for server in cloud.region["compute"]["servers"]}
    assert len(content["limes"]["commitments"]) == len(cloud.limes["commitments"])
    load(path)
    assert (Host.objects.count(), Instance.objects.count()) == (18, 53)
    assert Host.objects.get(name="node001-az-a").effective_vcpus == 128


def test_a_service_that_fails_leaves_no_file(cloud: MiniCloud, tmp_path: Path) -> None:
    cloud.failing = "os-aggregates"
    path = tmp_path / "region.json"
    with pytest.raises(CommandError, match="os-aggregates: status 503"):
        call_command("dump_region", "--cloud", "mini", "--output", str(path))
    assert list(tmp_path.glob("region*")) == []


@pytest.mark.parametrize(
    "path",
    [
        "/identity/v3/domains",
        "/identity/v3/projects",
        "/compute/v2.1/flavors/detail",
        "/compute/v2.1/os-hypervisors/detail",
        "/compute/v2.1/os-services",
        "/compute/v2.1/os-aggregates",
        "/compute/v2.1/servers/detail",
        "/compute/v2.1/os-server-groups",
        "/image/v2/images",
        "/placement/resource_providers",
    ],
)
def test_a_list_that_is_not_there_is_no_empty_list(
    cloud: MiniCloud, tmp_path: Path, path: str
) -> None:
    cloud.missing = path
    region = tmp_path / "region.json"
    service, _, kind = path.strip("/").partition("/")
    with pytest.raises(CommandError, match=f"{service} .*{kind.split('/')[-1]}.*404"):
        call_command("dump_region", "--cloud", "mini", "--output", str(region))
    assert not region.exists()


def test_a_project_that_limes_does_not_know_yet_has_no_commitments(
    cloud: MiniCloud, tmp_path: Path
) -> None:
    known = cloud.limes["commitments"][0]
    path = f"/limes/v1/domains/{known['domain_id']}/projects/{known['project_id']}/commitments"
    cloud.missing = path
    region = tmp_path / "region.json"
    call_command("dump_region", "--cloud", "mini", "--output", str(region))
    dumped = json.loads(region.read_bytes())["limes"]["commitments"]
    others = {
        c["uuid"] for c in cloud.limes["commitments"] if c["project_id"] != known["project_id"]
    }
    assert {commitment["uuid"] for commitment in dumped} == others


def test_servers_that_are_deleted_at_borders_of_pages_cost_no_other(
    cloud: MiniCloud, tmp_path: Path
) -> None:
    before = {server["id"] for server in cloud.region["compute"]["servers"]}
    cloud.deleted_behind = "servers"
    region = tmp_path / "region.json"
    call_command("dump_region", "--cloud", "mini", "--output", str(region))
    dumped = {server["id"] for server in json.loads(region.read_bytes())["compute"]["servers"]}
    left = {server["id"] for server in cloud.region["compute"]["servers"]}
    assert left < before
    assert dumped == before


def test_an_unknown_cloud_is_named(cloud: MiniCloud) -> None:
    with pytest.raises(CommandError, match="nowhere"):
        call_command("dump_region", "--cloud", "nowhere")
