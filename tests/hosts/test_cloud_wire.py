"""dump_region against what a real Keystone, Nova, Glance and Placement answered it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command

from tests.hosts.region_files import DATA
from tests.hosts.served_cloud import BUSY, served_cloud

Json = Any
WIRE = DATA / "mini-cloud-wire.json"
ELSEWHERE = ".mini-cloud.invalid"


class RecordedCloud:
    """Replays recorded answers; any other request gets 404, as from the real services.

    ``identity`` is what the catalog says of Keystone; ``busy`` says how often a path is refused
    first.
    """

    def __init__(self) -> None:
        self.url = ""
        self.identity = "/v3/"
        self.lost: set[str] = set()
        self.busy: dict[str, int] = {}
        self.truncated = False
        self._exchanges: list[Json] = json.loads(WIRE.read_text())["exchanges"]

    def answer(self, target: str) -> tuple[int, Json]:
        asked = urlsplit(target)
        if asked.path in self.lost:
            return 404, {}
        if self.busy.get(asked.path, 0) > 0:
            self.busy[asked.path] -= 1
            return BUSY, {}
        for exchange in self._exchanges:
            parts = urlsplit(exchange["url"])
            path = f"/{str(parts.hostname).removesuffix(ELSEWHERE)}{parts.path}"
            if exchange["method"] == "GET" and (path, parts.query) == (asked.path, asked.query):
                return exchange["status"], self._here(exchange["body"])
        return 404, {}

    def token(self) -> Json:
        (login,) = [each["body"] for each in self._exchanges if each["method"] == "POST"]
        body = self._here(login)
        body["token"]["expires_at"] = "2099-01-01T00:00:00.000000Z"
        for service in body["token"]["catalog"]:
            for endpoint in service["endpoints"]:
                if service["type"] == "identity":
                    endpoint["url"] = f"{self.url}/identity{self.identity}"
        return body

    def _here(self, body: Json) -> Json:
        text = json.dumps(body)
        for service in ("identity", "compute", "image", "placement", "network"):
            text = text.replace(f"http://{service}{ELSEWHERE}", f"{self.url}/{service}")
        if self.truncated:
            text = text.replace('"next": "', '"next": null, "was": "')
        return json.loads(text)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedCloud]:
    recorded = RecordedCloud()
    with served_cloud(recorded, tmp_path, monkeypatch):
        yield recorded


def dumped(tmp_path: Path) -> Json:
    path = tmp_path / "region.json"
    call_command("dump_region", "--cloud", "mini", "--output", str(path))
    return json.loads(path.read_bytes())


@pytest.mark.parametrize("identity", ["/v3/", "/v3", "/", ""])
def test_projects_are_found_however_the_catalog_spells_keystones_address(
    cloud: RecordedCloud, tmp_path: Path, identity: str
) -> None:
    cloud.identity = identity
    found = dumped(tmp_path)["identity"]
    assert {project["name"] for project in found["projects"]} == {
        "admin",
        "service",
        "acme-prod",
        "acme-dev",
        "globex-core",
        "globex-lab",
    }
    assert {domain["name"] for domain in found["domains"]} == {"Default", "acme", "globex"}


def test_every_page_of_server_groups_is_read_once(cloud: RecordedCloud, tmp_path: Path) -> None:
    groups = dumped(tmp_path)["compute"]["server_groups"]
    names = sorted(group["name"] for group in groups)
    assert names == ["acme-prod-0", "acme-prod-1", "acme-prod-2", "globex-core-0", "globex-core-1"]


def test_every_page_of_hypervisors_and_flavors_is_read_once(
    cloud: RecordedCloud, tmp_path: Path
) -> None:
    compute = dumped(tmp_path)["compute"]
    assert len({host["hypervisor_hostname"] for host in compute["hypervisors"]}) == 12
    assert len(compute["hypervisors"]) == 12
    assert len(compute["flavors"]) == len({flavor["id"] for flavor in compute["flavors"]}) == 13


def test_projects_that_keystone_answers_with_404_are_an_error(
    cloud: RecordedCloud, tmp_path: Path
) -> None:
    cloud.lost = {"/identity/v3/projects"}
    with pytest.raises(CommandError, match=r"identity .*projects: status 404"):
        dumped(tmp_path)
    assert not (tmp_path / "region.json").exists()


def test_a_list_that_keystone_cuts_short_without_a_next_page_is_an_error(
    cloud: RecordedCloud, tmp_path: Path
) -> None:
    cloud.truncated = True
    with pytest.raises(CommandError, match="list_limit"):
        dumped(tmp_path)


def test_a_service_that_is_busy_for_a_moment_is_asked_again(
    cloud: RecordedCloud, tmp_path: Path
) -> None:
    whole = dumped(tmp_path)
    listed = "/placement/resource_providers"
    one = whole["placement"]["resource_providers"][0]["uuid"]
    cloud.busy = {listed: 2, f"{listed}/{one}/inventories": 4}
    assert dumped(tmp_path)["placement"] == whole["placement"]
    assert not any(cloud.busy.values())


def test_a_service_that_stays_busy_is_an_error(cloud: RecordedCloud, tmp_path: Path) -> None:
    cloud.busy = {"/placement/resource_providers": 1000}
    with pytest.raises(CommandError, match="resource_providers: status 503"):
        dumped(tmp_path)
