"""What the exercise asks the cloud's APIs, with microversions pinned."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import openstack

from cloud.layout import PASSWORD, REGION, Layout

Json = Any  # bodies keep the APIs' own shapes
Item = TypeVar("Item")
Result = TypeVar("Result")
MICROVERSIONS: Final = {"compute": "2.96", "placement": "1.39"}
GOOD: Final = (200, 201, 202, 204)
NOT_FOUND: Final = 404
PAGE: Final = 200
_POLL_SECONDS: Final = 0.5
_WAIT_SECONDS: Final = 600.0


class CallError(Exception):
    """An API refused, or a server did not become what it should."""


def connect(layout: Layout, project: str = "admin", domain: str = "Default") -> Any:
    """Return a connection of the administrator in a project; the library has no types."""
    return openstack.connect(
        auth_url=f"{layout.url('keystone')}/v3",
        username="admin",
        password=PASSWORD,
        project_name=project,
        user_domain_name="Default",
        project_domain_name=domain,
        region_name=REGION,
        interface="public",
    )


class Api:
    """The administrator's view from one project."""

    def __init__(self, layout: Layout, project: str = "admin", domain: str = "Default") -> None:
        self.connection = connect(layout, project, domain)

    def call(
        self,
        service: str,
        method: str,
        path: str,
        body: Json = None,
        *,
        good: Sequence[int] = GOOD,
    ) -> Json:
        """Return the body of an answer.

        Raises:
            CallError: Another status than the good ones.
        """
        options = {} if body is None else {"json": body}
        if service in MICROVERSIONS:
            options["microversion"] = MICROVERSIONS[service]
        adapter = getattr(self.connection, service)
        answer = adapter.request(path, method, raise_exc=False, **options)
        if answer.status_code not in good:
            raise CallError(f"{method} {path}: {answer.status_code} {answer.text[:400]}")
        return answer.json() if answer.content and answer.status_code < NOT_FOUND else {}

    def nova(self, method: str, path: str, body: Json = None, **options: Any) -> Json:
        """Call Nova."""
        return self.call("compute", method, path, body, **options)

    def placement(self, method: str, path: str, body: Json = None) -> Json:
        """Call Placement, which is Headroom."""
        return self.call("placement", method, path, body)

    def servers(self) -> list[Json]:
        """Return the servers of all projects."""
        found: list[Json] = []
        marker = ""
        while True:
            path = f"/servers/detail?all_tenants=1&limit={PAGE}{marker}"
            page = self.nova("GET", path)["servers"]
            found += page
            if len(page) < PAGE:
                return found
            marker = f"&marker={page[-1]['id']}"

    def compute_services(self) -> list[Json]:
        """Return the nova-compute services."""
        listed: list[Json] = self.nova("GET", "/os-services?binary=nova-compute")["services"]
        return listed

    def hosts_reported_since(self, moment: datetime) -> set[str]:
        """Return the hosts whose nova-compute has reported after a moment."""
        return reported_since(self.compute_services(), moment)

    def hypervisors(self) -> dict[str, Json]:
        """Return hypervisors by name."""
        listed = self.nova("GET", "/os-hypervisors/detail?limit=1000")["hypervisors"]
        return {one["hypervisor_hostname"]: one for one in listed}

    def providers(self) -> dict[str, str]:
        """Return uuids of resource providers by name."""
        listed = self.placement("GET", "/resource_providers")["resource_providers"]
        return {one["name"]: one["uuid"] for one in listed}

    def allocations(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return what a consumer holds, by uuid of the provider."""
        held = self.placement("GET", f"/allocations/{consumer}")["allocations"]
        return {provider: one["resources"] for provider, one in held.items()}

    def boot(self, server: Mapping[str, Json], hints: Mapping[str, str] | None = None) -> str:
        """Ask for a server without networks, and return its id."""
        body: Json = {"server": {"networks": "none", **server}}
        if hints:
            body["os:scheduler_hints"] = dict(hints)
        return str(self.nova("POST", "/servers", body)["server"]["id"])

    def server(self, server_id: str) -> Json:
        """Return a server."""
        return self.nova("GET", f"/servers/{server_id}")["server"]

    def act(self, server_id: str, action: str, body: Json = None) -> None:
        """Run an action of a server."""
        self.nova("POST", f"/servers/{server_id}/action", {action: body})

    def wait(self, server_id: str, status: str, *, left: str | None = None) -> Json:
        """Wait until a server has a status and nothing under way, and return it.

        Args:
            server_id: Which.
            status: Which status.
            left: Host that it must have left.

        Raises:
            CallError: It failed, or it takes too long.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            server = self.server(server_id)
            has_moved = left is None or host_of(server) != left
            is_idle = not server["OS-EXT-STS:task_state"]
            if server["status"] == status and is_idle and has_moved:
                return server
            has_failed = server["status"] == "ERROR" and is_idle
            if has_failed or time.monotonic() > deadline:
                fault = server.get("fault", {}).get("message", "")
                raise CallError(f"{server['name']} is {server['status']}, not {status}: {fault}")
            time.sleep(_POLL_SECONDS)

    def evacuate(self, server: Json) -> Json:
        """Rebuild a server of a host that is down elsewhere, start it and return it."""
        self.act(server["id"], "evacuate", {})
        # Since 2.95 it stays stopped.
        self.wait(server["id"], "SHUTOFF", left=host_of(server))
        self.act(server["id"], "os-start")
        return self.wait(server["id"], "ACTIVE")

    def wait_gone(self, server_id: str) -> None:
        """Wait until a server is deleted.

        Raises:
            CallError: It takes too long.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        while self.nova("GET", f"/servers/{server_id}", good=(200, NOT_FOUND)):
            if time.monotonic() > deadline:
                raise CallError(f"server {server_id} is not deleted")
            time.sleep(_POLL_SECONDS)


def host_of(server: Json) -> str:
    """Return the host of a server."""
    return str(server["OS-EXT-SRV-ATTR:host"])


def reported_since(services: Sequence[Json], moment: datetime) -> set[str]:
    """Return the hosts of services that have reported after a moment.

    The state says less: a service counts as up from its creation, a restarted one by the reports of
    the old process, and one that was forced down stays so. The first report comes when the first
    resource update is behind it.
    """
    return {
        one["host"]
        for one in services
        if one["updated_at"]
        and datetime.fromisoformat(one["updated_at"]).replace(tzinfo=UTC) > moment
    }


def in_parallel(
    work: Callable[[Item], Result], items: Sequence[Item], *, threads: int = 4
) -> list[Result]:
    """Return the results of some work on each item; the first failure is raised at the end."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))
