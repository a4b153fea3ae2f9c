"""A fake of the wire that serves the real bodies of the mini cloud."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.hosts.region_files import LIMES, REGION

Json = Any
Service = Callable[[list[str], dict[str, list[str]]], tuple[int, Json]]


class MiniCloud:
    """Answers of Keystone, Nova, Glance, Placement and Limes, from the recorded bodies."""

    def __init__(self) -> None:
        self.region: Json = json.loads(REGION.read_text())
        self.limes: Json = json.loads(LIMES.read_text())["limes"]
        self.url = ""
        self.failing = ""
        self.missing = ""
        self.refused = ""
        self.refuses_login = False
        self.date = ""
        self.deleted_behind = ""
        self.roles: tuple[str, ...] = ("admin", "reader")
        self.paths = {
            "identity": "/identity",
            "compute": "/compute/v2.1",
            "image": "/image",
            "placement": "/placement",
            "resources": "/limes",
        }
        self.addresses: dict[str, str] = {}

    def answer(self, target: str) -> tuple[int, Json]:
        parts = urlsplit(target)
        path, query = parts.path.rstrip("/"), parse_qs(parts.query)
        if path == self.missing:
            return 404, {}
        if self.refused and path.endswith(self.refused):
            return 403, {}
        if self.failing and self.failing in path:
            return 503, {}
        _, service, *rest = path.split("/")
        services: dict[str, Service] = {
            "identity": self.identity,
            "compute": self.compute,
            "image": self.image,
            "placement": self.placement,
            "limes": self.of_limes,
            "commitments": lambda *_: (200, {"version": 1}),
        }
        return services[service](rest, query) if service in services else (404, {})

    def identity(self, rest: list[str], query: dict[str, list[str]]) -> tuple[int, Json]:
        kinds = {"domains", "projects", "users", "roles", "services", "endpoints"}
        kind = next((word for word in rest if word in kinds | {"role_assignments"}), "")
        if not kind:
            return 300, {"versions": {"values": [self.version("v3.14", "/identity/v3")]}}
        found = self.region["identity"][kind]
        if rest[-1] != kind:
            one = [item for item in found if item["id"] == rest[-1]]
            return (200, {kind[:-1]: one[0]}) if one else (404, {"error": {"message": "none"}})
        fields = {"name", "type", "service_id", "region_id"} & query.keys()
        matching = [
            item for item in found if all(item.get(name) == query[name][0] for name in fields)
        ]
        if kind == "role_assignments":
            wanted = (query["user.id"][0], query["role.id"][0], query["scope.project.id"][0])
            matching = [item for item in found if self.assigned(item) == wanted]
        return 200, {kind: matching, "links": {"next": None}}

    @staticmethod
    def assigned(item: Json) -> tuple[str, str, str]:
        project = item["scope"].get("project", {})
        return item.get("user", {}).get("id", ""), item["role"]["id"], project.get("id", "")

    def change(self, target: str, body: Json) -> tuple[int, Json]:
        """Take what is created in Keystone."""
        *_, kind = urlsplit(target).path.split("/")
        (name,) = body
        made = {"id": f"made-{name}-{len(self.region['identity'][kind])}", **body[name]}
        self.region["identity"][kind].append(made)
        return 201, {name: made}

    def put(self, target: str) -> int:
        """Take a role that is given in a project."""
        *_, project, _, user, _, role = urlsplit(target).path.split("/")
        given = {"scope": {"project": {"id": project}}, "user": {"id": user}, "role": {"id": role}}
        self.region["identity"]["role_assignments"].append(given)
        return 204

    def image(self, rest: list[str], query: dict[str, list[str]]) -> tuple[int, Json]:
        if rest[-1:] != ["images"]:
            return 404, {}
        return 200, {"images": self.page(self.region["image"]["images"], query)}

    def of_limes(self, rest: list[str], _: dict[str, list[str]]) -> tuple[int, Json]:
        if rest[-1:] != ["commitments"]:
            return 404, {}
        found = [one for one in self.limes["commitments"] if one["project_id"] == rest[4]]
        return 200, {"commitments": found}

    def compute(self, rest: list[str], query: dict[str, list[str]]) -> tuple[int, Json]:
        kinds = {
            "flavors": "flavors",
            "os-hypervisors": "hypervisors_2_53",
            "servers": "servers",
            "os-services": "services",
            "os-aggregates": "aggregates",
            "os-server-groups": "server_groups",
            "os-migrations": "migrations",
        }
        if len(rest) < 2 or rest[1] not in kinds:
            return 200, {"version": self.version("v2.1", "/compute/v2.1", "2.96")}
        key = kinds[rest[1]]
        if key == "migrations":
            facts = {"status", "instance_uuid"} & query.keys()
            listed = self.region["compute"][key]
            moved = [one for one in listed if all(one[f] == query[f][0] for f in facts)]
            return 200, {key: [] if "marker" in query else moved}
        try:
            page = self.page(self.region["compute"][key], query)
        except LookupError:
            return 400, {"badRequest": {"message": "marker not found"}}
        if page and self.deleted_behind == key:  # at the border of each page
            self.region["compute"][key].remove(page[-1])
        return 200, {key.removesuffix("_2_53"): page}

    def placement(self, rest: list[str], _: dict[str, list[str]]) -> tuple[int, Json]:
        if not rest:
            return 200, {"versions": [self.version("v1.0", "/placement", "1.39", "1.0")]}
        if rest[0] == "allocations":
            return 200, {"allocations": {}}
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
            if query["marker"][0] not in ids:
                raise LookupError
            start = ids.index(query["marker"][0]) + 1
        return items[start : start + min(10, int(query["limit"][0]))]

    def version(self, name: str, path: str, newest: str = "", oldest: str = "2.1") -> Json:
        return {
            "id": name,
            "status": "CURRENT",
            "version": newest,
            "max_version": newest,
            "min_version": oldest if newest else "",
            "links": [{"rel": "self", "href": f"{self.url}{path}/"}],
        }

    def token(self) -> Json:
        return {
            "token": {
                "methods": ["password"],
                "user": {"id": "u", "name": "reader", "domain": {"id": "default", "name": "D"}},
                "project": {"id": "p", "name": "admin", "domain": {"id": "default", "name": "D"}},
                "roles": [{"id": name, "name": name} for name in self.roles],
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
                                "url": self.addresses.get(service, f"{self.url}{path}"),
                            }
                        ],
                    }
                    for service, path in self.paths.items()
                ],
            }
        }
