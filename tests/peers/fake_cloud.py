"""Keystone's and Limes' answers over real HTTP, as the specification has them (spec liquid, 15)."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from journal.conf import KeystoneSettings

USER, PASSWORD, PROJECT = "headroom", "password-of-the-fake", "service"
CONFIRMED_AT = 1_772_366_400


def limes_commitment(uuid: str, /, **fields: Any) -> dict[str, Any]:
    """Return a commitment as Limes lists it."""
    return {
        "id": 17,
        "uuid": uuid,
        "service_type": "compute",
        "resource_name": "hw_version_test_group_v1_ram",
        "availability_zone": "az-a",
        "amount": 2,
        "unit": "GiB",
        "duration": "10 years",
        "created_at": CONFIRMED_AT,
        "confirmed_at": CONFIRMED_AT,
        "expires_at": CONFIRMED_AT + 315_360_000,
        "status": "confirmed",
    } | fields


@dataclass
class FakeCloud:
    """What the fake knows, and how it misbehaves.

    ``faults`` maps the beginning of a path to answers that are given first, one for each request:
    a status, or ``cut`` (a body shorter than announced), ``garbage`` (no JSON), ``hang``.
    ``always`` does so for every request.
    """

    projects: dict[str, str] = field(default_factory=dict)
    commitments: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    faults: dict[str, list[int | str]] = field(default_factory=dict)
    always: dict[str, int | str] = field(default_factory=dict)
    page_size: int = 1000
    list_limit: int = 1_000_000
    limes_suffix: str = ""
    tokens: set[str] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    most_at_once: int = 0
    at_once: int = 0
    lock: Any = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)
    server: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"cloud": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def settings(self, **changes: Any) -> KeystoneSettings:
        fields = {
            "auth_url": f"{self.url}/v3",
            "username": USER,
            "password": PASSWORD,
            "project_name": PROJECT,
        }
        return KeystoneSettings.model_validate(fields | changes)

    def add(self, project_id: str, commitments: Iterable[Mapping[str, Any]] = ()) -> None:
        self.projects.setdefault(project_id, "domain-1")
        self.commitments[project_id] += [dict(commitment) for commitment in commitments]

    def fault_for(self, path: str) -> int | str | None:
        for prefix, answer in self.always.items():
            if path.startswith(prefix):
                return answer
        for prefix, answers in self.faults.items():
            if path.startswith(prefix) and answers:
                return answers.pop(0)
        return None


class _Handler(BaseHTTPRequestHandler):
    cloud: FakeCloud
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cloud = self.cloud
        fault = cloud.fault_for(self.path)
        if isinstance(fault, int):
            return self._answer(fault, {"error": {"code": fault}})
        user = body["auth"]["identity"]["password"]["user"]
        if self.path != "/v3/auth/tokens" or (user["name"], user["password"]) != (USER, PASSWORD):
            return self._answer(401, {"error": {"code": 401, "message": "no"}})
        token = uuid4().hex
        with cloud.lock:
            cloud.tokens.add(token)
            cloud.seen["login"] += 1
        return self._answer(201, self._token(), {"X-Subject-Token": token})

    def _token(self) -> dict[str, Any]:
        now, url = datetime.now(tz=UTC), self.cloud.url
        endpoints = {"identity": f"{url}/v3", "resources": f"{url}/limes{self.cloud.limes_suffix}"}
        catalog = [
            {
                "type": kind,
                "name": kind,
                "id": uuid4().hex,
                "endpoints": [
                    {"id": uuid4().hex, "interface": interface, "region": "r", "url": where}
                    for interface, where in (
                        ("public", address),
                        ("internal", "http://127.0.0.1:1/internal"),
                    )
                ],
            }
            for kind, address in endpoints.items()
        ]
        return {
            "token": {
                "methods": ["password"],
                "user": {"id": "u", "name": USER, "domain": {"id": "default", "name": "Default"}},
                "project": {"id": "p", "name": PROJECT, "domain": {"id": "default", "name": "D"}},
                "roles": [{"id": "r", "name": "cloud_resource_viewer"}],
                "catalog": catalog,
                "issued_at": now.isoformat().replace("+00:00", "Z"),
                "expires_at": (now + timedelta(hours=1)).isoformat().replace("+00:00", "Z"),
            }
        }

    def do_GET(self) -> None:
        cloud = self.cloud
        parts = urlsplit(self.path)
        with cloud.lock:
            cloud.seen[parts.path] += 1
            cloud.at_once += 1
            cloud.most_at_once = max(cloud.most_at_once, cloud.at_once)
            fault = cloud.fault_for(parts.path)
        try:
            if fault is not None:
                return self._misbehave(fault)
            if self.headers.get("X-Auth-Token") not in cloud.tokens:
                return self._answer(401, {"error": {"code": 401}})
            if parts.path == "/v3/projects":
                return self._projects(parse_qs(parts.query))
            return self._commitments(parts.path.split("/"))
        finally:
            with cloud.lock:
                cloud.at_once -= 1

    def _projects(self, query: Mapping[str, list[str]]) -> None:
        every = sorted(self.cloud.projects)
        ids = every[: self.cloud.list_limit]
        start = ids.index(query["marker"][0]) + 1 if "marker" in query else 0
        page = ids[start : start + self.cloud.page_size]
        more = start + len(page) < len(ids)
        following = f"{self.cloud.url}/v3/projects?marker={page[-1]}" if more else None
        self._answer(
            200,
            {
                "projects": [
                    {
                        "id": project_id,
                        "name": f"name-of-{project_id}",
                        "domain_id": self.cloud.projects[project_id],
                        "parent_id": None,
                    }
                    for project_id in page
                ],
                "links": {"next": following, "self": "", "previous": None},
                **({"truncated": True} if len(ids) < len(every) else {}),
            },
        )

    def _commitments(self, path: list[str]) -> None:
        match path:
            case ["", "limes", "v1", "domains", domain, "projects", project, "commitments"]:
                if self.cloud.projects.get(project) != domain:
                    return self._answer(404, {})
                return self._answer(200, {"commitments": self.cloud.commitments[project]})
        return self._answer(400, {})

    def _misbehave(self, fault: int | str) -> None:
        if isinstance(fault, int):
            return self._answer(fault, {"error": {"code": fault}})
        if fault == "garbage":
            return self._send(200, b"<html>")
        if fault == "hang":
            self.cloud.released.wait(30)
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        with suppress(OSError):  # a client that was killed, or lost its patience, listens no more
            self.end_headers()
            self.wfile.write(b'{"commitments": [')
        self.close_connection = True
        return None

    def _answer(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, json.dumps(body).encode(), headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)
