"""A made-up region behind the APIs of a cloud, in a process of its own.

Run as ``python -m benchmarks.feed_server REGION_FILE``; it prints its address and serves until its
standard input ends. A line on it is the id of a server that is moved a host further.
"""

from __future__ import annotations

import bisect
import gc
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

from journal.collector import give_memory_back

Json = Any  # bodies keep the APIs' own shapes
SERVERS: Final = "/compute/servers/detail"
LISTS: Final = {
    "/identity/v3/domains": ("identity", "domains"),
    "/identity/v3/projects": ("identity", "projects"),
    "/compute/flavors/detail": ("compute", "flavors"),
    "/compute/os-hypervisors/detail": ("compute", "hypervisors"),
    "/compute/os-services": ("compute", "services"),
    "/compute/os-aggregates": ("compute", "aggregates"),
    SERVERS: ("compute", "servers"),
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
    """What is served: sorted lists of encoded elements, cut in pages, and what has changed."""

    def __init__(self, region: Json) -> None:
        """Take the lists of a region file.

        Args:
            region: Its content, which is taken apart: a large one is in memory only once.
        """
        self.lists: dict[str, list[bytes]] = {}
        self.ids: dict[str, list[str]] = {}
        self.parts: dict[tuple[str, str], bytes] = {}
        self.hosts: list[tuple[str, str]] = []
        for path, (service, key) in LISTS.items():
            elements = (region.get(service) or {}).pop(key, None) or []
            elements.sort(key=lambda one: str(one.get("id")))
            if key == "hypervisors":
                self.hosts = [
                    (one["hypervisor_hostname"], one["service"]["host"]) for one in elements
                ]
            if service == "placement":
                elements = [self._provider(one) for one in elements]
            self.ids[path] = [str(one.get("id")) for one in elements]
            self.lists[path] = [orjson.dumps(one) for one in elements]
        self.places = {
            orjson.loads(one)["uuid"]: one for one in self.lists["/placement/resource_providers"]
        }
        self.changed: dict[str, bytes] = {}

    def _provider(self, provider: Json) -> Json:
        for part in PARTS:
            self.parts[provider["uuid"], part] = orjson.dumps(provider.get(part) or {part: {}})
        return {"generation": 1, **{k: v for k, v in provider.items() if k not in PARTS}}

    def move(self, server_id: str) -> None:
        """Have a server on another host, a moment ago."""
        place = bisect.bisect_left(self.ids[SERVERS], server_id)
        server = orjson.loads(self.lists[SERVERS][place])
        names = [name for name, _ in self.hosts]
        number = (names.index(server[HYPERVISOR]) + 1) % len(names)
        server[HYPERVISOR], server[HOST] = self.hosts[number]
        server["updated"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.lists[SERVERS][place] = self.changed[server_id] = orjson.dumps(server)

    def answer(self, path: str, query: Mapping[str, list[str]]) -> bytes | None:
        """Return the body of a GET."""
        if path in LISTS:
            key = LISTS[path][1].encode()
            page = b",".join(self._page(path, query))
            return b'{"%s":[%s],"links":{"next":null}}' % (key, page)
        *_, owner, part = path.split("/")
        return self.parts.get((owner, part))

    def _page(self, path: str, query: Mapping[str, list[str]]) -> list[bytes]:
        elements, ids = self.lists[path], self.ids[path]
        if "changes-since" in query:
            ids = sorted(self.changed)
            elements = [self.changed[one] for one in ids]
        if path.startswith("/placement") and "uuid" in query:
            return [self.places[one] for one in query["uuid"] if one in self.places]
        start = int(query.get("offset", ["0"])[0])
        if "marker" in query:
            start = bisect.bisect_right(ids, query["marker"][0])
        return elements[start : start + PAGE] if "limit" in query else elements


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
    gc.disable()  # what is loaded stays
    served = ServedRegion(orjson.loads(path.read_bytes()))
    give_memory_back()
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
