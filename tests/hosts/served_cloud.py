"""Serving what a pretended cloud answers over real HTTP, and a ``clouds.yaml`` that leads there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import pytest

Json = Any
BUSY = 503


class PretendedCloud(Protocol):
    """Answers of a cloud's services; ``url`` is told to it once it is served."""

    url: str

    def answer(self, target: str) -> tuple[int, Json]:
        """Return status and body of a GET; ``target`` is path and query as they were asked."""

    def token(self) -> Json:
        """Return the body of a login."""


def as_bytes(body: Json) -> bytes:
    """Return a body as it is sent; bytes are no JSON on purpose."""
    if body is None:
        return b""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@contextmanager
def served_cloud(
    fake: PretendedCloud, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Serve a cloud; openstacksdk knows it as ``mini``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = fake.answer(self.path)
            self.send(status, body, {"Retry-After": "0"} if status == BUSY else None)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.path.endswith("/auth/tokens"):
                return self.send(*fake.change(self.path, body))  # type: ignore[attr-defined]
            if getattr(fake, "refuses_login", False):
                return self.send(401, {"error": {"code": 401, "message": "no", "title": "no"}})
            return self.send(201, fake.token(), {"X-Subject-Token": "secret"})

        def do_PUT(self) -> None:
            self.send(fake.put(self.path), None)  # type: ignore[attr-defined]

        def date_time_string(self, timestamp: float | None = None) -> str:
            return getattr(fake, "date", "") or super().date_time_string(timestamp)

        def send(self, status: int, body: Json, headers: Mapping[str, str] | None = None) -> None:
            raw = as_bytes(body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            for name, content in (headers or {}).items():
                self.send_header(name, content)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    config = folder / "clouds.yaml"
    auth = {
        "auth_url": f"{fake.url}/identity/v3",
        "username": "reader",
        "password": "secret",
        "project_name": "admin",
        "user_domain_id": "default",
        "project_domain_id": "default",
    }
    entry = {"auth": auth, "region_name": "RegionOne", "identity_api_version": "3"}
    config.write_text(json.dumps({"clouds": {"mini": entry}}))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(config))
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
