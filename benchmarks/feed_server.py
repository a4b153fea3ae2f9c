"""A made-up region behind the APIs of a cloud, in a process of its own.

Run as ``python -m benchmarks.feed_server REGION_FILE``; it prints its address and serves until its
standard input ends. A line on it is the id of a server that is moved a host further.
"""

from __future__ import annotations

import bisect
import gc
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import orjson

from journal.collector import give_memory_back

Json = Any  # bodies keep the APIs' own shapes
SERVERS: Final = "/compute/servers/detail"
HYPERVISORS: Final = "/compute/os-hypervisors/detail"
PROVIDERS: Final = "/placement/resource_providers"
HEADER: Final = re.compile(rb'( ?)"(\w+)": [\[{]')
LISTS: Final = {
    "/identity/v3/domains": ("identity", "domains"),
    "/identity/v3/projects": ("identity", "projects"),
    "/compute/flavors/detail": ("compute", "flavors"),
    HYPERVISORS: ("compute", "hypervisors"),
    "/compute/os-services": ("compute", "services"),
    "/compute/os-aggregates": ("compute", "aggregates"),
    SERVERS: ("compute", "servers"),
    "/compute/os-server-groups": ("compute", "server_groups"),
    "/compute/os-migrations": ("compute", "migrations"),
    "/image/v2/images": ("image", "images"),
    PROVIDERS: ("placement", "resource_providers"),
}
PARTS: Final = ("inventories", "traits", "aggregates", "usages", "allocations")
HOST: Final = "OS-EXT-SRV-ATTR:host"
HYPERVISOR: Final = "OS-EXT-SRV-ATTR:hypervisor_hostname"
PAGE: Final = 1000
LOGIN: Final = 201


def sections(lines: Iterable[bytes]) -> Iterator[tuple[tuple[str, str], list[bytes]]]:
    """Yield service, key and elements of each list of a region file that we wrote.

    Such a file has an element a line (:mod:`hosts.region.dump`). Of a region of two million VMs
    nothing else than these texts fits into memory.
    """
    group, name, elements = "", "", list[bytes]()
    for line in lines:
        if line.startswith(b"  {"):
            elements.append(line.strip())
            continue
        if elements:
            yield (group, name), [*(one[:-1] for one in elements[:-1]), _last(elements[-1])]
            elements = []
        if header := HEADER.match(line):
            is_group, word = not header[1], header[2].decode()
            group, name = (word, "") if is_group else (group, word)


def _last(element: bytes) -> bytes:
    """Return the last element of a list, without what ends the list and its service."""
    element = element.removesuffix(b",")
    return element[:-1] if element.endswith(b"]") else element[:-2]


class ServedRegion:
    """What is served: sorted lists of encoded elements, cut in pages, and what has changed."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        """Take the lists of a region file.

        Args:
            lines: The file's.
        """
        self.lists: dict[str, list[bytes]] = {path: [] for path in LISTS}
        self.ids: dict[str, list[str]] = {path: [] for path in LISTS}
        self.parts: dict[tuple[str, str], bytes] = {}
        self.places: dict[str, bytes] = {}
        self.hosts: list[tuple[str, str]] = []
        path_of = {section: path for path, section in LISTS.items()}
        for section, elements in sections(lines):
            if section in path_of:
                self._take(path_of[section], elements)
        self.changed: dict[str, bytes] = {}

    def _take(self, path: str, elements: list[bytes]) -> None:
        keyed = []
        for element in elements:
            read = orjson.loads(element)
            if path == HYPERVISORS:
                self.hosts.append((read["hypervisor_hostname"], read["service"]["host"]))
            if path == PROVIDERS:
                self.places[read["uuid"]] = orjson.dumps(self._provider(read))
            served = self.places[read["uuid"]] if path == PROVIDERS else element
            keyed.append((str(read.get("id")), served))
        keyed.sort(key=itemgetter(0))
        self.ids[path] = [one for one, _ in keyed]
        self.lists[path] = [element for _, element in keyed]

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
    with path.open("rb") as lines:
        served = ServedRegion(lines)
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
