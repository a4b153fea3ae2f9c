"""Calling the application as a web server does, with bytes that no client library would send."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from wsgiref.util import setup_testing_defaults

from config.wsgi import application

JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_json(self) -> bool:
        return self.headers.get("content-type", "").startswith(JSON)

    def json(self) -> Any:
        return json.loads(self.body)


def call(
    method: str,
    path: bytes | str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    query: str = "",
) -> Answer:
    """Send one request; ``path`` is the decoded path, which WSGI passes as Latin-1."""
    raw = path.encode() if isinstance(path, str) else path
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": raw.decode("latin-1"),
        "QUERY_STRING": query,
        "HTTP_HOST": "localhost",
        "CONTENT_TYPE": JSON,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    for name, text in (headers or {}).items():
        key = name.upper().replace("-", "_")
        environ[key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"] = text
    setup_testing_defaults(environ)
    seen: dict[str, Any] = {}

    def start_response(status: str, fields: list[tuple[str, str]], *_: object) -> Any:
        seen["status"] = int(status.split(" ", 1)[0])
        seen["headers"] = {name.lower(): text for name, text in fields}

    response: Any = application(environ, start_response)
    try:
        content = b"".join(response)
    finally:
        if hasattr(response, "close"):
            response.close()
    return Answer(status=seen["status"], headers=seen["headers"], body=content)
