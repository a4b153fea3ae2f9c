"""A made-up region behind the APIs of a cloud, in a process of its own.

Run as ``python -m benchmarks.feed_server REGION_FILE``; it prints its address and serves until its
standard input ends. A line on it is the id of a server that is moved a host further.
"""

from __future__ import annotations

import bisect
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import orjson

Json = Any  # bodies keep the APIs' own shapes
LISTS: Final = {
    "/identity/v3/domains": ("identity", "domains"),
    "/identity/v3/projects": ("identity", "projects"),
    "/compute/flavors/detail": ("compute", "flavors"),
    "/compute/os-hypervisors/detail": ("compute", "hypervisors"),
    "/compute/os-services": ("compute", "services"),
    "/compute/os-aggregates": ("compute", "aggregates"),
    "/compute/servers/detail": ("compute", "servers"),
    "/compute/os-server-groups": ("compute", "server_groups"),
    "/compute/os-migrations": ("compute", "migrations"),
    "/image/v2/images": ("image", "images"),
    "/placement/resource_providers": ("placement", "resource_providers"),
}
PARTS: Final = ("inventories", "traits", "aggregates", "usages", "allocations")
HOST: Final = "OS-EXT-SRV-ATTR:host"
HYPERVISOR: Final = "OS-EXT-SRV-ATTR:hypervisor_hostname"
PAGE: Final = 1000
LOGIN: Final = 201


class ServedRegion:
    """What is served: sorted lists, whose pages are cut out, and what changed."""

    def __init__(self, region: Json) -> None:
        """Take the lists of a region file.

        Args:
            region: Its content.
        """
        self.lists: dict[str, list[Json]] = {
            path: sorted(
                (region.get(service) or {}).get(key) or [], key=lambda one: str(one.get("id"))
            )
            for path, (service, key) in LISTS.items()
        }
        self.providers = {one["uuid"]: one for one in self.lists["/placement/resource_providers"]}
        self.changed: dict[str, Json] = {}

    def move(self, server_id: str) -> None:
        """Have a server on another host, a moment ago."""
        servers = self.lists["/compute/servers/detail"]
        server = next(one for one in servers if one["id"] == server_id)
        hosts = self.lists["/compute/os-hypervisors/detail"]
        names = [host["hypervisor_hostname"] for host in hosts]
        host = hosts[(names.index(server[HYPERVISOR]) + 1) % len(hosts)]
        server[HYPERVISOR], server[HOST] = host["hypervisor_hostname"], host["service"]["host"]
        server["updated"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.changed[server_id] = server

    def answer(self, path: str, query: Mapping[str, list[str]]) -> bytes | None:
        """Return the body of a GET."""
        if path in LISTS:
            key = LISTS[path][1]
            return orjson.dumps({key: self._page(path, query), "links": {"next": None}})
        *_, owner, part = path.split("/")
        if owner in self.providers and part in PARTS:
            return orjson.dumps(self.providers[owner].get(part) or {part: {}})
        return None

    def _page(self, path: str, query: Mapping[str, list[str]]) -> list[Json]:
        elements = self.lists[path]
        if "changes-since" in query:
            elements = sorted(self.changed.values(), key=lambda one: str(one["id"]))
        if path.startswith("/placement"):
            bare = [{k: v for k, v in one.items() if k not in PARTS} for one in elements]
            asked = query.get("uuid")
            return [{"generation": 1, **one} for one in bare if not asked or one["uuid"] in asked]
        start = int(query.get("offset", ["0"])[0])
        if "marker" in query:
            marker = query["marker"][0]
            start = bisect.bisect_right(elements, marker, key=lambda one: str(one["id"]))
        is_paged = "limit" in query
        return elements[start : start + PAGE] if is_paged else elements


def _handler(served: ServedRegion) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body in one packet: else each answer waits for the client's delayed ACK.
        wbufsize = -1

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            path = parts.path.rstrip("/")
            if path == "/identity/v3":
                links = [{"rel": "self", "href": f"http://{self.headers['Host']}{path}/"}]
                version = {"id": "v3.14", "status": "stable", "links": links}
                return self._send(200, orjson.dumps({"version": version}))
            body = served.answer(path, parse_qs(parts.query))
            return self._send(200 if body is not None else 404, body or b"{}")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(LOGIN, orjson.dumps(_token(f"http://{self.headers['Host']}")))

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if status == LOGIN:
                self.send_header("X-Subject-Token", "of-the-benchmark")
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _token(url: str) -> Json:
    paths = {"identity": "/identity/v3", "compute": "/compute", "image": "/image/v2"}
    paths["placement"] = "/placement"
    catalog = [
        {
            "id": service,
            "type": service,
            "name": service,
            "endpoints": [
                {"id": service, "interface": "public", "region": "R", "url": f"{url}{path}"}
            ],
        }
        for service, path in paths.items()
    ]
    domain = {"id": "default", "name": "Default"}
    return {
        "token": {
            "methods": ["password"],
            "user": {"id": "u", "name": "reader", "domain": domain},
            "project": {"id": "p", "name": "admin", "domain": domain},
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "expires_at": "2099-01-01T00:00:00.000000Z",
            "catalog": catalog,
        }
    }


@contextmanager
def serving(region: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Serve a region while the context lasts; ``clouds.yaml`` in the folder names it ``bench``."""
    command = [sys.executable, "-m", "benchmarks.feed_server", str(region)]
    with subprocess.Popen(  # noqa: S603 - ourselves
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url:
                message = "the region is not served"
                raise RuntimeError(message)
            auth = {
                "auth_url": f"{url}/identity/v3",
                "username": "reader",
                "password": "of-the-benchmark",
                "project_name": "admin",
                "user_domain_id": "default",
                "project_domain_id": "default",
            }
            clouds = {"clouds": {"bench": {"auth": auth, "identity_api_version": "3"}}}
            (folder / "clouds.yaml").write_bytes(orjson.dumps(clouds))
            yield process
        finally:
            process.kill()


def _serve(path: Path) -> None:
    served = ServedRegion(orjson.loads(path.read_bytes()))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(served))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        served.move(line.strip())
        sys.stdout.write("moved\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
