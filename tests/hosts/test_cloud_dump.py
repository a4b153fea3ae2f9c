"""A fake of the wire that serves the real bodies of the mini cloud, read with the real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.management import CommandError, call_command

from hosts.models import Host, Instance
from tests.hosts.region_files import LIMES, REGION, load
from tests.hosts.served_cloud import served_cloud

Json = Any


class MiniCloud:
    """Answers of Keystone, Nova, Glance, Placement and Limes, from the recorded bodies."""

    def __init__(self) -> None:
        self.region: Json = json.loads(REGION.read_text())
        self.limes: Json = json.loads(LIMES.read_text())["limes"]
        self.url = ""
        self.failing = ""
        self.missing = ""

    def answer(self, target: str) -> tuple[int, Json]:  # noqa: PLR0911
        parts = urlsplit(target)
        path, query = parts.path.rstrip("/"), parse_qs(parts.query)
        if path == self.missing:
            return 404, {}
        if self.failing and self.failing in path:
            return 503, {}
        _, service, *rest = path.split("/")
        kind = rest[-1] if rest else ""
        if service == "identity":
            if kind in {"domains", "projects"}:
                return 200, {kind: self.region["identity"][kind], "links": {"next": None}}
            return 300, {"versions": {"values": [self.version("v3.14", "/identity/v3")]}}
        if service == "compute":
            return self.compute(rest, query)
        if service == "image" and kind == "images":
            return 200, {"images": self.page(self.region["image"]["images"], query)}
        if service == "placement" and rest:
            return self.placement(rest)
        if service == "limes" and kind == "commitments":
            found = [c for c in self.limes["commitments"] if c["project_id"] == rest[4]]
            return 200, {"commitments": found}
        return 404, {}

    def compute(self, rest: list[str], query: dict[str, list[str]]) -> tuple[int, Json]:
        kinds = {
            "flavors": "flavors",
            "os-hypervisors": "hypervisors_2_53",
            "servers": "servers",
            "os-services": "services",
            "os-aggregates": "aggregates",
            "os-server-groups": "server_groups",
        }
        if len(rest) < 2 or rest[1] not in kinds:
            return 200, {"version": self.version("v2.1", "/compute/v2.1", "2.96")}
        key = kinds[rest[1]]
        return 200, {key.removesuffix("_2_53"): self.page(self.region["compute"][key], query)}

    def placement(self, rest: list[str]) -> tuple[int, Json]:
        providers = self.region["placement"]["resource_providers"]
        if len(rest) == 1:
            parts = {"inventories", "traits", "aggregates", "usages", "allocations"}
            bare = [{k: v for k, v in p.items() if k not in parts} for p in providers]
            return 200, {"resource_providers": bare}
        (provider,) = [p for p in providers if p["uuid"] == rest[1]]
        return 200, provider[rest[2]]

    @staticmethod
    def page(items: list[Json], query: dict[str, list[str]]) -> list[Json]:
        if "limit" not in query:
            return items
        start = int(query["offset"][0]) if "offset" in query else 0
        if "marker" in query:
            ids = [str(item["id"]) for item in items]
            start = ids.index(query["marker"][0]) + 1
        return items[start : start + min(10, int(query["limit"][0]))]

    def version(self, name: str, path: str, newest: str = "") -> Json:
        return {
            "id": name,
            "status": "CURRENT",
            "version": newest,
            "min_version": "2.1" if newest else "",
            "links": [{"rel": "self", "href": f"{self.url}{path}/"}],
        }

    def token(self) -> Json:
        paths = {
            "identity": "/identity",
            "compute": "/compute/v2.1",
            "image": "/image",
            "placement": "/placement",
            "resources": "/limes",
        }
        return {
            "token": {
                "methods": ["password"],
                "user": {"id": "u", "name": "reader", "domain": {"id": "default", "name": "D"}},
                "project": {"id": "p", "name": "admin", "domain": {"id": "default", "name": "D"}},
                "issued_at": "2026-11-20T10:00:00.000000Z",
                "expires_at": "2099-11-20T10:00:00.000000Z",
                "catalog": [
                    {
                        "id": service,
                        "type": service,
                        "name": service,
                        "endpoints": [
                            {
                                "id": service,
                                "interface": "public",
                                "region": "RegionOne",
                                "region_id": "RegionOne",
                                "url": f"{self.url}{path}",
                            }
                        ],
                    }
                    for service, path in paths.items()
                ],
            }
        }


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


def test_an_unknown_cloud_is_named(cloud: MiniCloud) -> None:
    with pytest.raises(CommandError, match="nowhere"):
        call_command("dump_region", "--cloud", "nowhere")
