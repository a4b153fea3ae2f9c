"""A live cloud to be fed from: what runs in it changes, and it may cut short, lie and fail."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.db import connection, connections

from capacity.models import HostCapacity
from hosts.clients.listing import CloudUnreachable
from hosts.feed.lists import PARTS_OF_PROVIDERS, PassKind
from hosts.feed.passes import FULL_KINDS, run_pass
from hosts.models import Instance
from hosts.region.run import ImportReport
from journal.actors import Actor
from scheduling.resources import GIB
from tests.hosts.region_files import small_region

Json = dict[str, Any]
PAGE = 2
HOST = "OS-EXT-SRV-ATTR:host"
HYPERVISOR = "OS-EXT-SRV-ATTR:hypervisor_hostname"
LISTS = {
    "/domains": ("identity", "domains"),
    "/projects": ("identity", "projects"),
    "/flavors/detail": ("compute", "flavors"),
    "/os-hypervisors/detail": ("compute", "hypervisors"),
    "/os-services": ("compute", "services"),
    "/os-aggregates": ("compute", "aggregates"),
    "/servers/detail": ("compute", "servers"),
    "/os-migrations": ("compute", "migrations"),
    "/os-server-groups": ("compute", "server_groups"),
    "/images": ("image", "images"),
    "/resource_providers": ("placement", "resource_providers"),
}
WHOLE = {"/domains", "/projects", "/os-services", "/os-aggregates", "/resource_providers"}


def hypervisor(number: int) -> Json:
    first: Json = small_region()["compute"]["hypervisors"][0]
    return first | {
        "id": f"h{number}",
        "hypervisor_hostname": f"node{number}",
        "service": {"host": f"svc{number}", "id": f"s{number}", "disabled_reason": None},
        "vcpus": 64,
        "memory_mb": 1 << 16,
        "local_gb": 1000,
    }


class LiveCloud:
    """A cloud of some hosts in a zone, as its APIs answer.

    Attributes:
        region: Its lists, by service, with the VMs that are there.
        deleted: VMs that are gone, as ``changes-since`` still lists them.
        cut: Path of a list -> after how many elements it ends.
        broken: Beginnings of paths that are answered with an error.
        lost: Beginnings of paths that are answered with 404 whatever is there.
        asked: Paths in the order in which they were asked for.
        meanwhile: Called once, after a path was answered.
        claims: What consumers of Placement hold, by provider.
        sees: The project that our token is of, which sees no others' things; none for an
            administrator.
        stray: VMs that each hypervisor counts and no list has; None where none says how many.
    """

    region_name = "live"

    def __init__(self, hosts: int = 2) -> None:
        self._reader = connections["default"]  # of the pass; its threads have others
        region = small_region()
        (service,) = region["compute"]["services"]
        region["compute"]["hypervisors"] = [hypervisor(n) for n in range(1, hosts + 1)]
        region["compute"]["services"] = [
            service | {"host": f"svc{n}", "id": f"s{n}"} for n in range(1, hosts + 1)
        ]
        region["compute"]["aggregates"][0]["id"] = 1
        region["compute"]["aggregates"][0]["hosts"] = [f"svc{n}" for n in range(1, hosts + 1)]
        region["placement"] = {"resource_providers": []}
        (self._server,) = region["compute"]["servers"]
        region["compute"]["servers"] = []
        region["compute"]["migrations"] = []
        region["compute"]["server_groups"][0]["members"] = []
        self.region = region
        self.deleted: dict[str, Json] = {}
        self.cut: dict[str, int] = {}
        self.broken: set[str] = set()
        self.lost: set[str] = set()
        self.asked: list[str] = []
        self.meanwhile: dict[str, Callable[[], object]] = {}
        self.ahead = timedelta()
        self.claims: dict[str, dict[str, Json]] = {}
        self.sees: str | None = None
        self.stray: int | None = 0

    @property
    def clock(self) -> datetime:
        """Nova's time, which goes on."""
        return datetime.now(UTC) + self.ahead

    @property
    def servers(self) -> list[Json]:
        servers: list[Json] = self.region["compute"]["servers"]
        return servers

    def boot(self, vm: str, host: int | None, **fields: Any) -> Json:
        server: Json = deepcopy(self._server) | {"id": vm, "name": vm} | fields
        self.servers.append(server)
        self.put(vm, host)
        return server

    def put(self, vm: str, host: int | None, **fields: Any) -> None:
        server = self.server(vm)
        server |= fields
        server[HYPERVISOR] = f"node{host}" if host else None
        server[HOST] = f"svc{host}" if host else None
        self.touch(server)

    def touch(self, server: Json) -> None:
        server["updated"] = self.clock.strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def migrations(self) -> list[Json]:
        migrations: list[Json] = self.region["compute"]["migrations"]
        return migrations

    def start(self, vm: str, source: int, target: int | None, **fields: Any) -> Json:
        """Begin to move a VM."""
        number = len(self.migrations) + 1
        migration = {
            "id": number,
            "uuid": f"m{number:03d}",
            "instance_uuid": vm,
            "status": "running",
            "migration_type": "live-migration",
            "source_compute": f"svc{source}",
            "source_node": f"node{source}",
            "dest_compute": f"svc{target}" if target else None,
            "dest_node": f"node{target}" if target else None,
        } | fields
        self.migrations.append(migration)
        return migration

    def delete(self, vm: str) -> None:
        server = self.server(vm)
        self.servers.remove(server)
        server |= {"status": "DELETED", HYPERVISOR: None, HOST: None}
        self.touch(server)
        self.deleted[vm] = server

    def server(self, vm: str) -> Json:
        return next(server for server in self.servers if server["id"] == vm)

    def has(self, service: str) -> bool:
        return service != "resources"

    def get(self, service: str, path: str) -> Any:
        assert not self._reader.in_atomic_block, "nobody waits for a cloud inside a transaction"
        del service
        self.asked.append(path)
        parts = urlsplit(path)
        if any(path.startswith(beginning) for beginning in self.broken):
            raise CloudUnreachable(f"{path}: status 500", path=path)
        if any(path.startswith(beginning) for beginning in self.lost):
            return None
        answer = deepcopy(self._answer(parts.path, parse_qs(parts.query)))
        if (meanwhile := self.meanwhile.pop(path, None)) is not None:
            meanwhile()
        return answer

    def _answer(self, path: str, query: dict[str, list[str]]) -> Any:
        if path in LISTS:
            service, key = LISTS[path]
            if self.sees and query.get("status") == ["deleted"]:
                raise CloudUnreachable(f"{path}: status 403", path=path, answer=403)
            elements = self._shown(key, self.region[service][key])
            if "changes-since" in query:
                since = datetime.fromisoformat(query["changes-since"][0])
                elements = [
                    server
                    for server in [*elements, *self.deleted.values()]
                    if "updated" in server and datetime.fromisoformat(server["updated"]) >= since
                ]
            for fact in {"status", "instance_uuid"} & query.keys():
                elements = [one for one in elements if one[fact] == query[fact][0]]
            elements = elements[: self.cut.get(path, len(elements))]
            if key == "resource_providers":
                elements = [
                    {name: fact for name, fact in one.items() if name not in PARTS_OF_PROVIDERS}
                    for one in elements
                ]
                if "uuid" in query:
                    elements = [one for one in elements if one["uuid"] == query["uuid"][0]]
            if path in WHOLE:
                return {key: elements, "links": {"next": None}}
            return {key: self._page(elements, query, "uuid" if key == "migrations" else "id")}
        if path.startswith("/allocations/"):
            held = self.claims.get(path.removeprefix("/allocations/"), {})
            return {"allocations": {f"rp-{n}": {"resources": one} for n, one in held.items()}}
        return self._one(path)

    def _shown(self, key: str, elements: list[Json]) -> list[Json]:
        """Return a list as our token sees it, with what changes while VMs come and go."""
        if key == "flavors" and self.sees:
            return [one for one in elements if one.get("os-flavor-access:is_public", True)]
        if key != "hypervisors" or self.stray is None:
            return elements
        on = Counter(server.get(HYPERVISOR) for server in self.servers)
        return [
            one | {"running_vms": on[one["hypervisor_hostname"]] + self.stray} for one in elements
        ]

    def _one(self, path: str) -> Any:
        if part := re.fullmatch(r"/resource_providers/([^/]+)/([a-z]+)", path):
            listed = self.region["placement"]["resource_providers"]
            (provider,) = [each for each in listed if each["uuid"] == part.group(1)]
            return provider.get(part.group(2))
        if path.startswith("/resource_providers/"):
            listed = self.region["placement"]["resource_providers"]
            return next((one for one in listed if path.endswith(f"/{one['uuid']}")), None)
        found = re.fullmatch(r"/([a-z-]+)/([^/]+)", path)
        assert found, path
        kind, own = found.groups()
        (service, key) = next(
            place for at, place in LISTS.items() if at.removesuffix("/detail") == f"/{kind}"
        )
        listed = self._shown(key, self.region[service][key])
        if key == "servers" and self.sees:
            listed = [one for one in listed if one["tenant_id"] == self.sees]
        one = next((one for one in listed if str(one.get("id")) == own), None)
        return one and {key.removesuffix("s"): one}

    @staticmethod
    def _page(elements: list[Json], query: dict[str, list[str]], own: str) -> list[Json]:
        """Return a page after a marker, also after one that is deleted meanwhile."""
        if "marker" in query:
            elements = [one for one in elements if one[own] > query["marker"][0]]
        start = int(query["offset"][0]) if "offset" in query else 0
        return sorted(elements, key=itemgetter(own))[start : start + PAGE]


def read_cloud(cloud: LiveCloud, *kinds: PassKind, accepts_shrink: bool = False) -> ImportReport:
    """Do a full pass over each kind, or one over some; return the last report."""
    for kind in kinds or FULL_KINDS:
        report = run_pass(
            kind,
            cloud=cloud,
            actor=Actor(name="feed"),
            request_id="req-feed",
            accepts_shrink=accepts_shrink,
        )
    return report


def pass_time(cloud: LiveCloud, **time: float) -> None:
    """Let time go by in the cloud."""
    cloud.ahead += timedelta(**time)


def cloud_of_five() -> LiveCloud:
    made = LiveCloud()
    for number in range(1, 6):
        made.boot(f"v{number}", 1 + number % 2)
    return made


def places() -> dict[str, str | None]:
    return dict(Instance.objects.values_list("openstack_id", "host__name"))


def in_a_thread(work: Callable[[], object]) -> Callable[[], None]:
    """Return what does the work on another connection, to its end."""

    def run() -> None:
        def alone() -> None:
            try:
                work()
            finally:
                connection.close()

        thread = threading.Thread(target=alone)
        thread.start()
        thread.join()

    return run


def taken() -> dict[str, int]:
    rooms = HostCapacity.objects.values_list("host__name", "allocated_memory_bytes")
    return {name: count // (8 * GIB) for name, count in rooms}


def without_about(content: bytes) -> bytes:
    return content.partition(b'"identity"')[2]
